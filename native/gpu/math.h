// exp, expm1, log1p, tanh, sigmoid and gelu on `vec`, and bounds that keep NaN; the same in all preludes.
//
// float32: polynomials fitted to minimize the largest relative error, as those of native/kernels/vector_math.h for
// processors without AVX-512. Each states its largest error in units of the last place and the range where it was
// measured (tests/kernels/gpu/test_activation.py). Outside of it, results are what they round to: 0, 1, infinity. By
// their documentation, CUDA's hardware functions add at most 3 units; that has not been measured.
// float64: the library's functions.

// A constant of the type of computation; it must be written with a point or an exponent
#if DOUBLE
#define R(x) x
#else
#define R(x) JOIN(x, f)
#endif

// The larger and the smaller of x and a bound; NaN stays NaN
INLINE vec at_least(vec x, real bound) { return select(x, splat(bound), x < bound); }
INLINE vec at_most(vec x, real bound) { return select(x, splat(bound), x > bound); }
// The larger of a and b, ignoring a b that is NaN
INLINE vec larger(vec a, vec b) { return select(a, b, a < b); }

#if DOUBLE

#define ONE_IN_UNITS 1.0
INLINE vec exp_in_units(vec x) { return exp(x); }
INLINE vec exp_of_negative(vec x) { return exp(x); }
INLINE vec exp_of(vec x) { return exp(x); }
INLINE vec expm1_of_negative(vec x) { return expm1(x); }
INLINE vec log1p_unit(vec t) { return log1p(t); }
INLINE vec tanh_of(vec x) { return tanh(x); }
INLINE vec sigmoid(vec x) {
    const vec e = exp(-fabs(x));
    return select(e, splat(1), x >= 0.0) / (e + 1.0);
}
// x Φ(x) = x erfc(-x / sqrt 2) / 2. erfc magnifies the rounding error of its argument z: that error times the
// derivative is added.
INLINE vec gelu(vec x) {
    const real root = 0x1.6a09e667f3bcdp-1, rest = -0x1.bdd3413b26456p-55;  // together 1 / sqrt 2
    const vec z = x * -root, error = fma(x, splat(-root), -z) - x * rest;
    const vec tail = erfc(z), corrected = tail - 0x1.20dd750429b6dp+0 * exp(-z * z) * error;
    return x * (0.5 * select(tail, corrected, fabs(x) < 40.0));
}

#else

// exp(x) is 2^k (1 + q) with q = exp(x - k ln 2) - 1. Adding TO_INTEGER rounds to a whole number, which the last bits
// of the sum then hold. ln 2 is in two parts, the first of 15 bits: its product with k is exact.
#define LOG2E 0x1.715476p+0f
#define LN2 0x1.62e4p-1f
#define LN2_REST 0x1.7f7d1cp-20f
#define TO_INTEGER 0x1.8p23f
// exp(r) - 1 for r within ±0.35, in few steps that depend on each other: processors overlap those of several vectors
INLINE vec exp_minus_1(vec r) {
    const vec u = r * r, high = 0x1.6a234ap-10f * u + (0x1.123a6cp-7f * r + 0x1.5558f4p-5f);
    return (high * u + (0x1.55549p-3f * r + 0x1.fffffcp-2f)) * u + r;
}
// x exp(r) for such an r; CUDA's hardware has 2^x, with 2 ulp
INLINE vec times_exp(vec x, vec r) {
#if NEAR_FUNCTIONS
    return x * exp2_near(r * LOG2E);
#else
    return x * exp_minus_1(r) + x;
#endif
}

// Exponentials are computed in a unit of 2^-32, in which those that are below the normal numbers are normal; then 2^k
// is a number of which only the bits of the exponent are set.
#define UNIT 32
#define ONE_IN_UNITS 0x1p32f
#define LEAST_EXPONENT (-104.0f)  // 0 is the float32 that is nearest to its exponential
// exp(x) 2^unit, where `shift` is TO_INTEGER + 127 + unit
INLINE vec scaled_exp(vec x, vec shift) {
    const vec shifted = x * LOG2E + shift, k = shifted - shift;
    return times_exp(lifted(shifted), x - k * LN2 - k * LN2_REST);
}
// exp(x) in units, for x up to 60; what is below LEAST_EXPONENT counts as that.
INLINE vec exp_in_units(vec x) { return scaled_exp(at_least(x, LEAST_EXPONENT), splat(TO_INTEGER + 127 + UNIT)); }
// exp(x) for x up to 60: 1 ulp from -87 on; below, one rounding more
INLINE vec exp_of_negative(vec x) { return exp_in_units(x) * (1 / ONE_IN_UNITS); }
// exp(x): 1 ulp from -87 to 88.7
INLINE vec exp_of(vec x) {
    const mask large = x > 0.0f;
    const vec bounded = at_most(at_least(x, LEAST_EXPONENT), 89.0f);  // exp(89) is infinite
    const vec shift = select(splat(TO_INTEGER + 127 + UNIT), splat(TO_INTEGER + 127 - 1), large);
    return scaled_exp(bounded, shift) * select(splat(1 / ONE_IN_UNITS), splat(2), large);
}

// exp(x) - 1 for negative x, in which nothing cancels: 2^k q + (2^k - 1), where k = 0 near 0. 1.5 ulp from -18 to 0
INLINE vec expm1_of_negative(vec x) {
    x = at_least(x, -20.0f);  // where it is -1 in float32
    const real shift = TO_INTEGER + 127;
    const vec shifted = x * LOG2E + shift, k = shifted - shift;
    const vec q = exp_minus_1(x - k * LN2 - k * LN2_REST), power = lifted(shifted);
    return power * q + (power - 1.0f);
}

// log(1 + t) for t within [0, 1]: 2 atanh(s) with s = t / (2 + t), written as t minus a term insensitive to rounding.
// 1.1 ulp, and 1.5 without a fused multiply-add
INLINE vec log1p_unit(vec t) {
    const vec s = quotient(t, t + 2.0f), u = s * s;
    vec p = 0x1.1ef87ap-2f * u + 0x1.1eb60ep-2f;
    p = p * u + 0x1.99d27cp-2f;
    p = p * u + 0x1.5555p-1f;
    return t - s * (t - u * p);
}

// 1 / (1 + exp(-x)), written as exp(x) / (exp(x) + 1), which is 1 for all x above 30: 2.5 ulp from -87 on
INLINE vec sigmoid(vec x) {
    const vec e = exp_in_units(at_most(x, 30.0f));
    return quotient(e, e + ONE_IN_UNITS);
}

// A polynomial in x² up to where the quotient, which cancels near 0, is 1/2: 1.75 ulp
INLINE vec tanh_of(vec x) {
    const vec a = fabs(x), u = x * x;
    vec p = 0x1.0d5034p-6f * u - 0x1.af7cccp-5f;
    p = p * u + 0x1.10cef6p-3f;
    p = p * u - 0x1.555452p-2f;
    const vec e = exp_in_units(-2.0f * a), q = quotient(ONE_IN_UNITS - e, ONE_IN_UNITS + e);
    return select(select(q, -q, x < 0.0f), x + x * (u * p), a < 0.55f);
}

// x exp(-a²/2) in units, for positive x that are neither small nor large, and a within ±14.5
INLINE vec times_gaussian(vec x, vec a) {
    const real shift = TO_INTEGER + 127 + UNIT;
    const vec half_a = -0.5f * a, shifted = a * half_a * LOG2E + shift, k = shifted - shift;
    // Not from the rounded square, because exp magnifies the rounding error of a large exponent
    return times_exp(x, fma(a, half_a, -(k * LN2)) - k * LN2_REST) * lifted(shifted);
}
// x Φ(x), where Φ is the standard normal distribution function. With Φ(-|x|) it is x Φ(-|x|) for negative x, and else
// x - x Φ(-|x|). With a = -|x| and s = -a²/2, Φ(a) is exp(s) n / d for polynomials n and d in a. They are summed in
// pairs of terms, none of which is negative, so that few rounding errors add up. 5 ulp from -12.5 on
INLINE vec gelu(vec x) {
    const vec a = at_least(-fabs(x), -14.5f);  // exp(-14.5²/2) is 0 in float32
    const vec s = a * (-0.5f * a);
    vec n = s * 0x1.d817d8p-6f + (a * 0x1.23427cp-3f - 0x1.485b9ep-1f);
    n = s * n + (a * -0x1.88b66ep-1f + 0x1.cp-1f);
    // d is in the unit of the exponential
    vec d = s * (a * (-0x1.27d64ap-4f * ONE_IN_UNITS) + 0x1.6d1022p-1f * ONE_IN_UNITS) +
            (a * (0x1.a4a578p+0f * ONE_IN_UNITS) - 0x1.0d5c68p+2f * ONE_IN_UNITS);
    d = s * d + (a * (-0x1.771522p+1f * ONE_IN_UNITS) + 0x1.cp+0f * ONE_IN_UNITS);
    const vec tail = quotient(times_gaussian(n, a), d);
    // The clamped |x| is used for positive x only, so that -infinity gives NaN, as a product with 0 does.
    return select(x, a, x > a) * tail + at_least(x, 0.0f);
}

#endif
