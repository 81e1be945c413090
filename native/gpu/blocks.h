// Weights in blocks of a format, as files store them: w = scale · (code - OFFSET) + minimum; see formats.h.
//
// A chunk is CODE_WORDS words of low bits and what belongs to them: FIELDS times eight neighbouring columns for each two
// words. Every byte of codes is read once by one thread, and words hold four codes in bytes until these become numbers.
// Scales and minima are exact in float32, and so are products with codes: a weight is rounded once.
//
//   ELEMENTS, BYTES, GROUP  the columns of a block, its bytes, and the columns that share a scale
//   CODE_WORDS              2 or 4
//   ALIGN                   the power of two up to 16 at whose multiples all blocks begin; 1 where that does not matter
#define FIELDS (8 / LOW_BITS)
#define EIGHTS (CODE_WORDS / 2)
#define CHUNK (8 * EIGHTS * FIELDS)
#define PARTS (CHUNK / VEC)
#define PER_BLOCK (ELEMENTS / CHUNK)
#define CODE u8
#define BLOCKS IN(CODE, weight)
#define BLOCKS_OF(row) (weight + weight_start + (row) * weight_along0)
#define BLOCK_OF(row, i) (BLOCKS_OF(row) + (index_t)(i) * BYTES)

INLINE uint short_at(const GLOBAL uchar* p) {
#if ALIGN > 1
    return *(const GLOBAL ushort*)p;
#else
    return p[0] | (uint)p[1] << 8;
#endif
}
INLINE uint word_at(const GLOBAL uchar* p) {
#if ALIGN > 2
    return *(const GLOBAL uint*)p;
#elif ALIGN == 2
    return short_at(p) | short_at(p + 2) << 16;
#else
    return load_bytes_4(p);
#endif
}
INLINE float half_at(const GLOBAL uchar* p) { return float_of_half((ushort)short_at(p)); }

#include "formats.h"

#ifdef FIFTH_AT
// The bits of columns 4 i to 4 i + 4, and above them those of 16 columns later, each in its byte
INLINE uint fifth_bits(uint bits, int i) {
    return ((bits >> 4 * i & 15) * 0x204081u & 0x01010101u) | ((bits >> (4 * i + 16) & 15) * 0x408102u & 0x02020202u);
}
#endif
// Words of low bits from the eight bytes number b on, and the bits that come above theirs
INLINE void read_codes(const GLOBAL uchar* block, int b, int words, uint* low, uint* high) {
#if ALIGN >= 4 * CODE_WORDS
    const bool at_once = words == CODE_WORDS;
#define READ_WORDS(p, to)                                                        \
    if (at_once)                                                                 \
        JOIN(load_words_, CODE_WORDS)((const GLOBAL uint*)(p), to);              \
    else                                                                         \
        UNROLL for (int w = 0; w < words; ++w) (to)[w] = word_at((p) + 4 * w)
#else
#define READ_WORDS(p, to) UNROLL for (int w = 0; w < words; ++w) (to)[w] = word_at((p) + 4 * w)
#endif
    READ_WORDS(block + LOW_AT + 8 * b, low);
#if defined(FIFTH_AT)
    const uint bits = word_at(block + FIFTH_AT);
    UNROLL for (int w = 0; w < words; ++w) high[w] = fifth_bits(bits, 2 * b + w);
#elif defined(HIGH_BITS)
    READ_WORDS(block + HIGH_AT(b), high);
    UNROLL for (int w = 0; w < words; ++w) high[w] >>= HIGH_SHIFT(b);
#else
    UNROLL for (int w = 0; w < words; ++w) high[w] = 0;
#endif
}
// Four codes in bytes: those in field f of words
INLINE uint codes_in(uint low, uint high, int f) {
    uint codes = low >> f * LOW_BITS & ((1u << LOW_BITS) - 1) * 0x01010101u;
#ifdef HIGH_BITS
    codes |= (high >> f * HIGH_STEP & ((1u << HIGH_BITS) - 1) * 0x01010101u) << LOW_BITS;
#endif
#ifdef TABLE
    codes = looked_up(TABLE, codes);
#endif
#ifdef IS_SIGNED
    codes ^= 0x80808080u;
#endif
    return codes;
}
// A code less OFFSET. Its byte is the end of a number of known magnitude: that takes no conversion.
INLINE real code_in(uint codes, int k) {
    return float_of_bits((codes >> 8 * k & 255) | 0x4b000000u) - (8388608.0f + OFFSET);
}
#ifdef MINIMUM
#define WEIGHT(code, scale, minimum) fma(code, scale, minimum)
#else
#define WEIGHT(code, scale, minimum) ((code) * (scale))
#endif

// The first column in field f of the eight bytes number b, and the other way about
#define COLUMN(b, f) ((b) / (RUN / 8) * (RUN * FIELDS) + (b) % (RUN / 8) * 8 + (f) * RUN)
#define FIELD_OF(i) ((i) % (RUN * FIELDS) / RUN)
#define EIGHT_OF(i) ((i) / (RUN * FIELDS) * (RUN / 8) + (i) % RUN / 8)

// Scales belong to fields; to all fields of eight bytes if these are the codes of one group.
#define SCALES (RUN == 8 ? EIGHTS : FIELDS)
typedef struct {
    uint low[CODE_WORDS], high[CODE_WORDS];
    real scale[SCALES], minimum[SCALES];
} Chunk;
INLINE Chunk chunk_of(const GLOBAL uchar* block, int c) {
    Chunk chunk;
    read_codes(block, c * EIGHTS, CODE_WORDS, chunk.low, chunk.high);
    UNROLL for (int s = 0; s < SCALES; ++s) {
        const int g = (RUN == 8 ? COLUMN(c * EIGHTS + s, 0) : COLUMN(c * EIGHTS, s)) / GROUP;
        chunk.scale[s] = SCALE(block, g);
#ifdef MINIMUM
        chunk.minimum[s] = MINIMUM(block, g);
#endif
    }
    return chunk;
}
#define EIGHT_IN(p) ((p) * VEC / 8 % EIGHTS)
#define FIELD_IN(p) ((p) * VEC / 8 / EIGHTS)
// The column in its block of vector p of chunk c
#define COLUMN_IN(c, p) \
    (COLUMN((c) * EIGHTS, 0) + EIGHT_IN(p) * (RUN == 8 ? 8 * FIELDS : 8) + FIELD_IN(p) * RUN + (p) * VEC % 8)
// Vector p of the weights of a chunk
INLINE vec weights_in(const Chunk* chunk, int p) {
    const int e = EIGHT_IN(p), f = FIELD_IN(p), s = RUN == 8 ? e : f;
    uint codes[2];
    UNROLL for (int w = 0; w < 2; ++w) codes[w] = codes_in(chunk->low[2 * e + w], chunk->high[2 * e + w], f);
#if THREADS == 1
    const vec q = reals_of(as_uchar8((uint2)(codes[0], codes[1]))) - (real)OFFSET;
#else
    real each[VEC];
    UNROLL for (int lane = 0; lane < VEC; ++lane) {
        const int k = p * VEC % 8 + lane;
        each[lane] = code_in(codes[k / 4], k % 4);
    }
    const vec q = from_memory(each);
#endif
    return WEIGHT(q, splat(chunk->scale[s]), splat(chunk->minimum[s]));
}
// The weights in eight columns of a row, from i on, which 8 divides
INLINE void eight_weights(const GLOBAL uchar* row, int i, real* w) {
    const GLOBAL uchar* block = row + (index_t)(i / ELEMENTS) * BYTES;
    uint low[2], high[2];
    i %= ELEMENTS;
    read_codes(block, EIGHT_OF(i), 2, low, high);
    const real scale = SCALE(block, i / GROUP);
#ifdef MINIMUM
    const real minimum = MINIMUM(block, i / GROUP);
#endif
    UNROLL for (int k = 0; k < 8; ++k)
        w[k] = WEIGHT(code_in(codes_in(low[k / 4], high[k / 4], FIELD_OF(i)), k % 4), scale, minimum);
}
INLINE real weight_in(const GLOBAL uchar* row, int i) {
    real w[8];
    eight_weights(row, i / 8 * 8, w);
    return w[i % 8];
}
