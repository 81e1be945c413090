// Numbers taken apart into integers, so that float64 can be read where it cannot be computed in.

// |x| = mantissa * 2^exponent of a float32, or of a float64 that the device need not compute in
typedef struct {
    ulong mantissa;
    int exponent;
    bool negative, finite;
} Parts;
INLINE Parts parts_of(ulong bits, int fraction_bits, int exponent_bits) {
    const int most = (1 << exponent_bits) - 1, exponent = (int)(bits >> fraction_bits) & most;
    Parts p;
    p.mantissa = (bits & (((ulong)1 << fraction_bits) - 1)) | ((ulong)(exponent > 0) << fraction_bits);
    p.exponent = (exponent > 0 ? exponent : 1) - most / 2 - fraction_bits;
    p.negative = bits >> (fraction_bits + exponent_bits) & 1;
    p.finite = exponent < most;
    return p;
}
#define PARTS_OF_BITS(bits) parts_of(bits, 52, 11)
#define PARTS_OF_FLOAT(x) parts_of(bits_of_float(x), 23, 8)
INLINE real real_of_parts(Parts x) {
    const real magnitude = x.finite ? ldexp((real)x.mantissa, x.exponent) : (real)0 / 0;
    return x.negative ? -magnitude : magnitude;
}
