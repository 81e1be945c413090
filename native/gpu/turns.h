// Angles as integers, in 2^-64 of a turn: a position times a frequency is a product of integers, of which the complete
// turns drop out. So an angle is exact for every position, without float64.
#include "parts.h"

INLINE ulong high_half_of_product(ulong a, ulong b) {
    const ulong low = 0xffffffffu, a0 = a & low, a1 = a >> 32, b0 = b & low, b1 = b >> 32;
    const ulong middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & low);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

// high:low / 2^shift modulo 2^64, of an integer of 128 bits
INLINE ulong shifted(ulong high, ulong low, int shift) {
    if (shift >= 128 || shift <= -64) return 0;
    if (shift >= 64) return high >> (shift - 64);
    if (shift > 0) return high << (64 - shift) | low >> shift;
    return low << -shift;
}

// x radians
INLINE ulong turns_of_radians(Parts x) {
    const ulong inverse = 0xa2f9836e4e441529;  // 2^66 / 2π
    const ulong turns = shifted(high_half_of_product(x.mantissa, inverse), x.mantissa * inverse, 2 - x.exponent);
    return x.negative ? -turns : turns;
}

// x times an angle
INLINE ulong turns_times(ulong turns, Parts x) {
    const ulong whole = shifted(0, x.mantissa, -x.exponent), rest = shifted(x.mantissa, 0, -x.exponent);
    const ulong product = whole * turns + high_half_of_product(rest, turns);
    return x.negative ? -product : product;
}

// Of VEC angles
typedef struct {
    vec cosines, sines;
} Directions;
INLINE Directions directions_of(const ulong* turns) {
    // The nearest multiple of a quarter of a turn, and the distance to it: at most π/4
    real distance[VEC], odd[VEC], cosine_sign[VEC], sine_sign[VEC];
    for (int k = 0; k < VEC; ++k) {
        const ulong nearest = turns[k] + ((ulong)1 << 61);
        const int quarter = (int)(nearest >> 62);
        distance[k] = (real)(index_t)(turns[k] - ((ulong)quarter << 62));
        odd[k] = quarter & 1;
        cosine_sign[k] = quarter == 1 || quarter == 2 ? -1 : 1;
        sine_sign[k] = quarter >= 2 ? -1 : 1;
    }
    const vec a = from_memory(distance) * (real)3.4061215800865545e-19;  // 2π / 2^64
#if DOUBLE
    const vec u = a * a;
    const vec s5 = 2.75573137070700676789e-06 + u * (-2.50507602534068634195e-08 + u * 1.58969099521155010221e-10);
    const vec s3 = 8.33333333332248946124e-03 + u * (-1.98412698298579493134e-04 + u * s5);
    const vec c5 = -2.75573143513906633035e-07 + u * (2.08757232129817482790e-09 + u * -1.13596475577881948265e-11);
    const vec c3 = -1.38888888888741095749e-03 + u * (2.48015872894767294178e-05 + u * c5);
    const vec s = a + a * u * (-1.66666666666666324348e-01 + u * s3);
    const vec c = 1.0 - 0.5 * u + u * u * (4.16666666666666019037e-02 + u * c3);
#else
    const vec u = a * a;
    const vec s3 = 8.3321608736e-3f + u * -1.9515295891e-4f;
    const vec c3 = -1.388731625493765e-3f + u * 2.443315711809948e-5f;
    const vec s = a + a * u * (-1.6666654611e-1f + u * s3);
    const vec c = 1.0f - 0.5f * u + u * u * (4.166664568298827e-2f + u * c3);
#endif
    const mask is_odd = from_memory(odd) == splat(1);
    Directions d;
    d.cosines = select(c, s, is_odd) * from_memory(cosine_sign);
    d.sines = select(s, c, is_odd) * from_memory(sine_sign);
    return d;
}
