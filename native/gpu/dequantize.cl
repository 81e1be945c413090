// w = scales · q + biases for integers q of 4 or 8 bits; see codes.h.
//
// Work: THREADS threads for each row, to which its chunks are dealt out in turn; on a processor one.
// Bytes: w is written once, which takes most of the time.
#include "rows.h"
#include "codes.h"

#define OUTPUTS 1
#define BLOCK_CHUNKS 64
#define EACH_OUTPUT for (int o = 0; o < 1; ++o)

#define STORE(p, v) JOIN(store_, SCALE)(p, v)
#if THREADS == 1 && BITS == 4
// A chunk's first part belongs to even columns, the second one to odd ones.
#define STORE_CHUNK(p, chunk)                                         \
    do {                                                              \
        const vec even = WEIGHTS(chunk, 0), odd = WEIGHTS(chunk, 1);  \
        vec both;                                                     \
        both.even = even.lo;                                          \
        both.odd = odd.lo;                                            \
        STORE(p, both);                                               \
        both.even = even.hi;                                          \
        both.odd = odd.hi;                                            \
        STORE((p) + VEC, both);                                       \
    } while (0)
#else
#define STORE_CHUNK(p, chunk) UNROLL for (int part = 0; part < PARTS; ++part) STORE((p) + part * VEC, WEIGHTS(chunk, part))
#endif

KERNEL(dequantize)(CODES, GLOBAL STORAGE(SCALE) *restrict w, ROW_SHAPE) {
    const int chunks = WHOLE ? n / CHUNK : 0;
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t output = ROW_INDEX(turn);
        if (output >= rows) continue;
        GLOBAL STORAGE(SCALE) *to = w + output * n;
        for (int begin = 0; begin < chunks; begin += BLOCK_CHUNKS * THREADS) {
            const int end = chunks - begin < BLOCK_CHUNKS * THREADS ? chunks : begin + BLOCK_CHUNKS * THREADS;
            SOME_GROUPS(begin, end);
            for (int k = begin + lane_id(); k < end; k += THREADS) {
                Chunk chunk;
                READ_CHUNK(chunk, 0, k);
                STORE_CHUNK(to + k * CHUNK, chunk);
            }
        }
        for (int i = chunks * CHUNK + lane_id(); i < n; i += THREADS) JOIN(put_, SCALE)(to + i, WEIGHT_AT(output, i));
    }
}
