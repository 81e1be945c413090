// Where a block of each format has its codes, scales and minima; what they mean is in tensorops/formats.
//
//   LOW_AT, LOW_BITS  where bytes with the low bits of codes begin, and how many bits a code has there
//   RUN               columns that are next to each other in as many bytes; the next ones are in the next bits of these
//   HIGH_BITS         how many more bits a code has, or none
//   HIGH_AT(v)        where these are for the four bytes number v of low bits: in four bytes, from bit HIGH_SHIFT(v)
//                     on, and for the next bits of the low bytes HIGH_STEP bits further
//   FIFTH_AT          instead: where four bytes are of which each bit belongs to a column
//   TABLE             16 bytes in four words, in which codes are places
//   IS_SIGNED         whether codes are in two's complement; with OFFSET 128
//   OFFSET            is subtracted from codes
//   SCALE(p, g)       the scale of group g of the block at p, and with minima MINIMUM(p, g)
INLINE int six_bit_scale(const GLOBAL uchar* p, int g) {
    return g < 4 ? p[g] & 63 : (p[g + 4] & 15) | p[g - 4] >> 6 << 4;
}
INLINE int six_bit_minimum(const GLOBAL uchar* p, int g) {
    return g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | p[g] >> 6 << 4;
}
// Half of the powers of two that bytes of E8M0 are; the smallest two are subnormal.
INLINE float half_of_e8m0(int e) { return float_of_bits(e > 1 ? (uint)(e - 1) << 23 : 0x200000u << e); }
// Half of a number of E4M3 without its sign; 0 for the positive NaN
INLINE float half_of_e4m3(int bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 127) return 0;
    return exponent == 0 ? mantissa * 0x1p-10f : float_of_bits((uint)(exponent + 119) << 23 | (uint)mantissa << 20);
}
#define IQ4_TABLE 0x3e2c1700u, 0x75695c4eu, 0xa5988c80u, 0xf0d8c4b4u   // 127 more than the values
#define E2M1_TABLE 0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u  // 12 more than twice the values

#if defined(FORMAT_Q4_0)
#define LOW_AT 2
#define OFFSET 8
#define SCALE(p, g) half_at(p)
#elif defined(FORMAT_Q4_1)
#define LOW_AT 4
#define SCALE(p, g) half_at(p)
#define MINIMUM(p, g) half_at((p) + 2)
#elif defined(FORMAT_Q5_0)
#define LOW_AT 6
#define FIFTH_AT 2
#define OFFSET 16
#define SCALE(p, g) half_at(p)
#elif defined(FORMAT_Q5_1)
#define LOW_AT 8
#define FIFTH_AT 4
#define SCALE(p, g) half_at(p)
#define MINIMUM(p, g) half_at((p) + 2)
#elif defined(FORMAT_Q8_0)
#define LOW_AT 2
#define LOW_BITS 8
#define RUN 32
#define IS_SIGNED 1
#define OFFSET 128
#define SCALE(p, g) half_at(p)
#elif defined(FORMAT_Q2_K)
#define LOW_AT 16
#define LOW_BITS 2
#define RUN 32
#define SCALE(p, g) (half_at((p) + 80) * ((p)[g] & 15))
#define MINIMUM(p, g) (-half_at((p) + 82) * ((p)[g] >> 4))
#elif defined(FORMAT_Q3_K)
#define LOW_AT 32
#define LOW_BITS 2
#define RUN 32
#define HIGH_BITS 1
#define HIGH_AT(v) ((v) % 8 * 4)
#define HIGH_SHIFT(v) ((v) / 8 * 4)
#define HIGH_STEP 1
#define OFFSET 4
#define SCALE(p, g)       \
    (half_at((p) + 108) * \
     ((((p)[96 + (g) % 8] >> (g) / 8 * 4 & 15) | ((p)[104 + (g) % 4] >> (g) / 4 * 2 & 3) << 4) - 32))
#elif defined(FORMAT_Q4_K)
#define LOW_AT 16
#define RUN 32
#define SCALE(p, g) (half_at(p) * six_bit_scale((p) + 4, g))
#define MINIMUM(p, g) (-half_at((p) + 2) * six_bit_minimum((p) + 4, g))
#elif defined(FORMAT_Q5_K)
#define LOW_AT 48
#define RUN 32
#define HIGH_BITS 1
#define HIGH_AT(v) (16 + (v) % 8 * 4)
#define HIGH_SHIFT(v) ((v) / 8 * 2)
#define HIGH_STEP 1
#define SCALE(p, g) (half_at(p) * six_bit_scale((p) + 4, g))
#define MINIMUM(p, g) (-half_at((p) + 2) * six_bit_minimum((p) + 4, g))
#elif defined(FORMAT_Q6_K)
#define LOW_AT 0
#define RUN 64
#define HIGH_BITS 2
#define HIGH_AT(v) (128 + (v) / 16 * 32 + (v) % 8 * 4)
#define HIGH_SHIFT(v) ((v) % 16 / 8 * 2)
#define HIGH_STEP 4
#define OFFSET 32
#define SCALE(p, g) (half_at((p) + 208) * ((const GLOBAL STORAGE(i8)*)(p))[192 + (g)])
#elif defined(FORMAT_IQ4_NL)
#define LOW_AT 2
#define TABLE IQ4_TABLE
#define OFFSET 127
#define SCALE(p, g) half_at(p)
#elif defined(FORMAT_IQ4_XS)
#define LOW_AT 8
#define TABLE IQ4_TABLE
#define OFFSET 127
#define SCALE(p, g) \
    (half_at(p) * ((((p)[4 + (g) / 2] >> (g) % 2 * 4 & 15) | ((p)[2 + (g) / 4] >> (g) % 4 * 2 & 3) << 4) - 32))
#elif defined(FORMAT_MXFP4)
#define LOW_AT 1
#define TABLE E2M1_TABLE
#define OFFSET 12
#define SCALE(p, g) half_of_e8m0(*(p))
#elif defined(FORMAT_NVFP4)
#define LOW_AT 4
#define RUN 8
#define TABLE E2M1_TABLE
#define OFFSET 12
#define SCALE(p, g) half_of_e4m3((p)[g])
#endif

#ifndef LOW_BITS
#define LOW_BITS 4
#endif
#ifndef RUN
#define RUN 16
#endif
#ifndef OFFSET
#define OFFSET 0
#endif
#ifdef FIFTH_AT
#define HIGH_BITS 1
#define HIGH_STEP 1
#endif
