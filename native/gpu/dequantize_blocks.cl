// The numbers in rows of blocks of a format, see blocks.h: of all rows, or with HAS_IDS of those that ids name.
//
// Work: THREADS threads for each row, to which its chunks are dealt out in turn; on a processor one.
// Bytes: the numbers are written once, which takes most of the time, and the blocks of these rows read once. NaN is in
//   place of a row that there is not.
#include "rows.h"
#include "indices.h"
#include "blocks.h"

#if HAS_IDS
#define WHICH IN(IDS, ids),
#define ID_OF(row) ((index_t)*ROW(ids, row))
#else
#define WHICH
#define ID_OF(row) (row)
#endif

KERNEL(dequantize_blocks)(BLOCKS, WHICH OUT(X, y), ROW_SHAPE, index_t vocabulary) {
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
        const index_t id = ID_OF(row);
        const bool found = is_within(id, vocabulary);
        const GLOBAL uchar* from = BLOCKS_OF(found ? id : 0);
        GLOBAL STORAGE(X)* to = ROW(y, row);
        for (int k = lane_id(); k < n / CHUNK; k += THREADS) {
            Chunk chunk;
            if (found) chunk = chunk_of(from + (index_t)(k / PER_BLOCK) * BYTES, k % PER_BLOCK);
            UNROLL for (int p = 0; p < PARTS; ++p) {
                const vec w = found ? weights_in(&chunk, p) : splat(float_of_bits(0x7fc00000u));
                JOIN(store_, X)(to + k / PER_BLOCK * ELEMENTS + COLUMN_OF(k % PER_BLOCK, p), w);
            }
        }
    }
}
