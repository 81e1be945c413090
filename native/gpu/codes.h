// Weights as integers of BITS bits: w = scale · q + bias, with a scale and a bias for each group of neighbours in a row.
//
// With 4 bits, the low half of a byte belongs to an even column. Without biases (HAS_BIASES 0) bytes are signed. One
// fused multiply-add computes a weight, so that nothing but the weight itself can overflow.
//
//   WHOLE  1 if every chunk is in one group and all rows are adjacent in memory, else 0: weights are read one by one
//   WORDS  of 32 bits, which a thread on a GPU reads at once; on a processor, a chunk has a byte for every lane
#if !WHOLE
#define CHUNK VEC
#elif THREADS == 1
#define CHUNK (VEC * 8 / BITS)
#else
#define CHUNK (WORDS * 32 / BITS)
#endif
#define PARTS (CHUNK / VEC)
#define UNROLL _Pragma("unroll")

#if WHOLE
#define STEPS(i, name) (i)
#else
#define STEPS(i, name) ((i)*name##_step)
#endif
#if HAS_BIASES
#define CODE u8
#define CODES IN(CODE, weight), IN(SCALE, scales), IN(BIAS, biases), int group_size, index_t groups_of_chunk
#define BIAS_AT(row, group) JOIN(get_, BIAS)(biases + biases_start + (row)*biases_along0 + STEPS(group, biases))
#else
#define CODE i8
#define CODES IN(CODE, weight), IN(SCALE, scales), int group_size, index_t groups_of_chunk
#define BIAS_AT(row, group) (real)0
#endif
#define SCALE_AT(row, group) JOIN(get_, SCALE)(scales + scales_start + (row)*scales_along0 + STEPS(group, scales))
#define CODES_OF(row) (weight + weight_start + (row)*weight_along0)

// A chunk, with what it takes to decode it
typedef struct {
#if !WHOLE
    vec weights;
#elif THREADS == 1
    JOIN(int, VEC) codes;
#else
    uint codes[WORDS];
#endif
    real scale, bias;
} Chunk;

#if !WHOLE

INLINE real code_in_column(const GLOBAL STORAGE(CODE) *codes, index_t step, int i) {
#if BITS == 4
    return codes[i / 2 * step] >> (i % 2 * 4) & 15;
#else
    return codes[i * step];
#endif
}
// Sets `chunk` to chunk k of a row; weights beyond the row are 0.
#define READ_CHUNK(chunk, row, k)                                                                        \
    do {                                                                                                 \
        real some[VEC];                                                                                  \
        for (int lane = 0; lane < VEC; ++lane) {                                                         \
            const int i = (k)*VEC + lane, group = i / group_size;                                        \
            some[lane] = i < n ? fma(code_in_column(CODES_OF(row), weight_step, i), SCALE_AT(row, group), \
                                     BIAS_AT(row, group))                                                \
                               : 0;                                                                      \
        }                                                                                                \
        (chunk).weights = from_memory(some);                                                             \
    } while (0)
#define WEIGHTS(chunk, p) (chunk).weights

#else

// k · CHUNK / group_size without a division: `groups_of_chunk` is that fraction in 32 bits, rounded up.
#define GROUP_OF(k) ((int)((k)*groups_of_chunk >> 32))
#define READ_CHUNK(chunk, row, k)                                              \
    do {                                                                       \
        const int group = GROUP_OF(k); \
        READ_CODES((chunk).codes, CODES_OF(row) + (index_t)(k) * (CHUNK * BITS / 8)); \
        (chunk).scale = SCALE_AT(row, group);                                  \
        (chunk).bias = BIAS_AT(row, group);                                    \
    } while (0)
#if HAS_BIASES
#define WEIGHTS(chunk, p) fma(codes_of((chunk).codes, p), splat((chunk).scale), splat((chunk).bias))
#else
#define WEIGHTS(chunk, p) (codes_of((chunk).codes, p) * (chunk).scale)
#endif

#if THREADS == 1
#define READ_CODES(codes, p) codes = JOIN(convert_, JOIN(int, VEC))(JOIN(vload, VEC)(0, p))
// With 4 bits, a part has the low halves of all bytes, or the high ones.
INLINE vec codes_of(JOIN(int, VEC) codes, int p) {
#if BITS == 4
    return reals_of(p ? codes >> 4 : codes & 15);
#else
    return reals_of(codes);
#endif
}
#else
#define READ_CODES(codes, p) JOIN(load_words_, WORDS)((const GLOBAL uint *)(p), codes)
// In its place in a word, an integer is the end of a number of known magnitude: that takes no conversion.
INLINE real code_of(uint word, int k) {
    const int bit = k * BITS, shift = bit + BITS <= 23 ? 0 : BITS == 4 ? 12 : 16, place = bit - shift;
    const float origin = (float)(1 << (23 - place));
    const uint digits = word >> shift & ((1u << BITS) - 1) << place, exponent = (uint)(150 - place) << 23;
#if HAS_BIASES
    return float_of_bits(digits | exponent) - origin;
#else
    return float_of_bits((digits ^ 128u << place) | exponent) - (origin + 128);
#endif
}
INLINE vec codes_of(const uint *codes, int p) {
    real q[VEC];
    UNROLL for (int lane = 0; lane < VEC; ++lane) {
        const int i = p * VEC + lane;
        q[lane] = code_of(codes[i * BITS / 32], i % (32 / BITS));
    }
    return from_memory(q);
}
#endif

#endif
