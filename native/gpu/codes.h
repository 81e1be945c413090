// Weights as integers of BITS bits: w = scale · q + bias, with a scale and a bias for each group of neighbours in a
// row.
//
// With 4 bits, the low half of a byte belongs to an even column. Without biases (HAS_BIASES 0) bytes are signed. One
// fused multiply-add computes a weight, so that nothing but the weight itself can overflow.
//
//   WORDS  of 32 bits, which a thread on a GPU reads at once; on a processor, a chunk has a byte for every lane
// If there are chunks (WHOLE), each is in one group.
#if THREADS == 1
#define CHUNK (VEC * 8 / BITS)
#else
#define CHUNK (WORDS * 32 / BITS)
#endif
#define PARTS (CHUNK / VEC)

#if WHOLE
#define STEPS(i, name) (i)
#else
#define STEPS(i, name) ((i) * name##_step)
#endif
#define SCALE_AT(row, group) (scales + scales_start + (row) * scales_along0 + STEPS(group, scales))
#define BIAS_AT(row, group) (biases + biases_start + (row) * biases_along0 + STEPS(group, biases))
#define CODES_OF(row) (weight + weight_start + (row) * weight_along0)
#if HAS_BIASES
#define CODE u8
#define CODES IN(CODE, weight), IN(SCALE, scales), IN(BIAS, biases), int group_size, index_t groups_of_chunk
#else
#define CODE i8
#define CODES IN(CODE, weight), IN(SCALE, scales), int group_size, index_t groups_of_chunk
#endif

// The weight in column i of a row, and its integer
#if HAS_BIASES
#define WEIGHT_AT(row, i)                                                                                        \
    fma((real)code_in_column(CODES_OF(row), weight_step, i), JOIN(get_, SCALE)(SCALE_AT(row, (i) / group_size)), \
        JOIN(get_, BIAS)(BIAS_AT(row, (i) / group_size)))
#else
#define WEIGHT_AT(row, i) \
    (code_in_column(CODES_OF(row), weight_step, i) * JOIN(get_, SCALE)(SCALE_AT(row, (i) / group_size)))
#endif
INLINE int code_in_column(const GLOBAL STORAGE(CODE) * codes, index_t step, int i) {
#if BITS == 4
    return codes[i / 2 * step] >> i % 2 * 4 & 15;
#else
    return codes[i * step];
#endif
}

// A chunk, with what it takes to decode it
typedef struct {
#if THREADS == 1
    JOIN(int, VEC) codes;
#else
    uint codes[WORDS];
#endif
    real scale, bias;
} Chunk;
// k · CHUNK / group_size without a division: `groups_of_chunk` is that fraction in 32 bits, rounded up.
#define GROUP_OF(k) ((int)((k) * groups_of_chunk >> 32))

// The scale and bias of chunk k of row `output + o`. A processor converts half ones in vectors, for a number of chunks.
#define IS_HALF_f64 0
#define IS_HALF_f32 0
#define IS_HALF_f16 1
#define IS_HALF_bf16 1
#if THREADS == 1 && JOIN(IS_HALF_, SCALE)
#define DEFINE_PARAMETERS(T)                                                                            \
    INLINE void parameters_##T(const GLOBAL storage_##T* p, int begin, int end, int groups, real* to) { \
        for (int g = begin; g < end && groups < VEC; ++g) to[g - begin] = get_##T(p + g);               \
        for (int g = begin; g < end && groups >= VEC; g += VEC) {                                       \
            const int at = g < groups - VEC ? g : groups - VEC;                                         \
            to_memory(load_##T(p + at), to + at - begin);                                               \
        }                                                                                               \
    }
DEFINE_PARAMETERS(f32)
#if DOUBLE
DEFINE_PARAMETERS(f64)
#endif
DEFINE_PARAMETERS(f16)
DEFINE_PARAMETERS(bf16)
// From element VEC on: the last vector may begin with groups before the first one.
#define SOME_GROUPS(begin, end)                                                                                 \
    real scale_of[OUTPUTS][BLOCK_CHUNKS + 2 * VEC], bias_of[OUTPUTS][BLOCK_CHUNKS + 2 * VEC];                   \
    const int first_group = GROUP_OF(begin), end_group = GROUP_OF((end) - 1) + 1;                               \
    EACH_OUTPUT {                                                                                               \
        const int groups = n / group_size;                                                                      \
        JOIN(parameters_, SCALE)(SCALE_AT(output + o, 0), first_group, end_group, groups, scale_of[o] + VEC);   \
        SOME_BIASES(                                                                                            \
            JOIN(parameters_, BIAS)(BIAS_AT(output + o, 0), first_group, end_group, groups, bias_of[o] + VEC)); \
    }
#define SCALE_OF(o, k) scale_of[o][VEC + GROUP_OF(k) - first_group]
#define BIAS_OF(o, k) bias_of[o][VEC + GROUP_OF(k) - first_group]
#else
#define SOME_GROUPS(begin, end)
#define SCALE_OF(o, k) JOIN(get_, SCALE)(SCALE_AT(output + o, GROUP_OF(k)))
#define BIAS_OF(o, k) JOIN(get_, BIAS)(BIAS_AT(output + o, GROUP_OF(k)))
#endif

#if HAS_BIASES
#define SOME_BIASES(statement) statement
#define WEIGHTS(chunk, p) fma(codes_of((chunk).codes, p), splat((chunk).scale), splat((chunk).bias))
#else
#define SOME_BIASES(statement)
#define WEIGHTS(chunk, p) (codes_of((chunk).codes, p) * (chunk).scale)
#endif
// Sets a chunk to chunk k of the row `output + o`, one of those that SOME_GROUPS was for.
#define READ_CHUNK(chunk, o, k)                                                              \
    do {                                                                                     \
        READ_CODES((chunk).codes, CODES_OF(output + o) + (index_t)(k) * (CHUNK * BITS / 8)); \
        (chunk).scale = SCALE_OF(o, k);                                                      \
        SOME_BIASES((chunk).bias = BIAS_OF(o, k));                                           \
    } while (0)

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
#define READ_CODES(codes, p) JOIN(load_words_, WORDS)((const GLOBAL uint*)(p), codes)
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
INLINE vec codes_of(const uint* codes, int p) {
    real q[VEC];
    UNROLL for (int lane = 0; lane < VEC; ++lane) {
        const int i = p * VEC + lane;
        q[lane] = code_of(codes[i * BITS / 32], i % (32 / BITS));
    }
    return from_memory(q);
}
#endif
