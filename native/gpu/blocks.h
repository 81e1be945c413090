// Weights in blocks of a format, as files store them: w = scale · (code - OFFSET) + minimum; see formats.h.
//
// A chunk is CODE_WORDS words of low bits and what belongs to them: in each of FIELDS fields of these bits, the codes
// of neighbouring columns. Every byte of codes is read once by one thread, and words hold four codes in bytes until
// these become numbers. Scales and minima are exact in float32, and so are products with codes: a weight is rounded
// once.
//
//   ELEMENTS, BYTES, GROUP  the columns of a block, its bytes, and the columns that share a scale
//   CODE_WORDS              1, 2 or 4
//   ALIGN                   the power of two up to 16 at whose multiples all blocks begin; 1 where that does not matter
#define FIELDS (8 / LOW_BITS)
#define WIDTH (4 * CODE_WORDS)  // neighbouring columns
#define CHUNK (WIDTH * FIELDS)
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
INLINE void read_words(const GLOBAL uchar* p, int words, uint* to) {
#if ALIGN >= 4 * CODE_WORDS
    if (words == CODE_WORDS) {
        JOIN(load_words_, CODE_WORDS)((const GLOBAL uint*)p, to);
        return;
    }
#endif
    UNROLL for (int w = 0; w < words; ++w) to[w] = word_at(p + 4 * w);
}
// Words of low bits, from number v of the block on, and the bits that come above theirs
INLINE void read_codes(const GLOBAL uchar* block, int v, int words, uint* low, uint* high) {
    read_words(block + LOW_AT + 4 * v, words, low);
#if defined(FIFTH_AT)
    const uint bits = word_at(block + FIFTH_AT);
    UNROLL for (int w = 0; w < words; ++w) high[w] = fifth_bits(bits, v + w);
#elif defined(HIGH_BITS)
    read_words(block + HIGH_AT(v), words, high);
    UNROLL for (int w = 0; w < words; ++w) high[w] >>= HIGH_SHIFT(v);
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

// The first column in field f of word v
#define COLUMN(v, f) ((v) / (RUN / 4) * (RUN * FIELDS) + (v) % (RUN / 4) * 4 + (f) * RUN)

// Scales belong to fields; if a chunk has more than one run, to all fields of each.
#define SCALES (WIDTH > RUN ? WIDTH / RUN : FIELDS)
typedef struct {
    uint low[CODE_WORDS], high[CODE_WORDS];
    float scale[SCALES], minimum[SCALES];
} Chunk;
INLINE Chunk chunk_of(const GLOBAL uchar* block, int c) {
    Chunk chunk;
    read_codes(block, c * CODE_WORDS, CODE_WORDS, chunk.low, chunk.high);
    UNROLL for (int s = 0; s < SCALES; ++s) {
        const int g = (COLUMN(c * CODE_WORDS, 0) + s * (WIDTH > RUN ? RUN * FIELDS : RUN)) / GROUP;
        chunk.scale[s] = SCALE(block, g);
#ifdef MINIMUM
        chunk.minimum[s] = MINIMUM(block, g);
#endif
    }
    return chunk;
}
// Vector p of a chunk: its field, and its first column among the neighbours there
#define FIELD_OF(p) ((p) * VEC / WIDTH)
#define FIRST_OF(p) ((p) * VEC % WIDTH)
// and its first column in the block, for chunk c
#define COLUMN_OF(c, p) (COLUMN((c) * CODE_WORDS, FIELD_OF(p)) + FIRST_OF(p) / RUN * (RUN * FIELDS) + FIRST_OF(p) % RUN)
INLINE vec weights_in(const Chunk* chunk, int p) {
    const int f = FIELD_OF(p), first = FIRST_OF(p), s = WIDTH > RUN ? first / RUN : f;
    uint codes[VEC / 4 + (VEC < 4)];
    UNROLL for (int w = 0; 4 * w < VEC; ++w) codes[w] =
        codes_in(chunk->low[first / 4 + w], chunk->high[first / 4 + w], f);
#if THREADS == 1
    const vec q = reals_of(as_uchar8((uint2)(codes[0], codes[1]))) - (real)OFFSET;
#else
    real each[VEC];
    UNROLL for (int lane = 0; lane < VEC; ++lane) each[lane] = code_in(codes[lane / 4], (first + lane) % 4);
    const vec q = from_memory(each);
#endif
    return WEIGHT(q, splat(chunk->scale[s]), splat(chunk->minimum[s]));
}
// The weights in eight columns of a row, from i on, which 8 divides
INLINE void eight_weights(const GLOBAL uchar* row, int i, real* w) {
    const GLOBAL uchar* block = row + (index_t)(i / ELEMENTS) * BYTES;
    i %= ELEMENTS;
    const int f = i % (RUN * FIELDS) / RUN, g = i / GROUP;
    uint low[2], high[2];
    read_codes(block, (i / (RUN * FIELDS) * RUN + i % RUN) / 4, 2, low, high);
    const float scale = SCALE(block, g);
#ifdef MINIMUM
    const float minimum = MINIMUM(block, g);
#endif
    UNROLL for (int k = 0; k < 8; ++k) w[k] =
        WEIGHT(code_in(codes_in(low[k / 4], high[k / 4], f), k % 4), (real)scale, (real)minimum);
}
INLINE real weight_in(const GLOBAL uchar* row, int i) {
    real w[8];
    eight_weights(row, i / 8 * 8, w);
    return w[i % 8];
}
