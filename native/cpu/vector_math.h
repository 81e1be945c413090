// exp, log1p, sigmoid and the error function on vectors: written once for all targets.
//
// float32: polynomials fitted to the least largest relative error. The largest errors seen on the three x86 targets, in
// eps times the result: exp 0.9, sigmoid 1.9, log1p 1.0, the normal distribution function 3.7
// (tests/test_cpu_activation.py bounds them). float64: the C library's functions, lane by lane, as no kernel's speed in
// float64 has mattered yet.
#pragma once

#include <cmath>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

typedef std::int32_t I32 __attribute__((vector_size(kVectorBytes)));

template <class F>
inline Vec<double> by_lane(Vec<double> x, F f) {
    constexpr int lanes = kVectorBytes / sizeof(double);
    for (int i = 0; i < lanes; ++i) x[i] = f(x[i]);
    return x;
}

inline Vec<float> absolute(Vec<float> x) { return floats_of(bits_of(x) & 0x7fffffffu); }
inline Vec<double> absolute(Vec<double> x) {
    return by_lane(x, [](double a) { return std::fabs(a); });
}

// The larger and the smaller of x and a bound; NaN stays NaN.
inline Vec<float> at_least(Vec<float> x, float bound) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_max_ps(_mm512_set1_ps(bound), reinterpret_cast<__m512>(x)));
#else
    return x < bound ? Vec<float>{} + bound : x;
#endif
}
inline Vec<float> at_most(Vec<float> x, float bound) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_min_ps(_mm512_set1_ps(bound), reinterpret_cast<__m512>(x)));
#else
    return x > bound ? Vec<float>{} + bound : x;
#endif
}

// x times 2^k for a whole number k (with AVX-512: for its floor), rounded once where the result is below the normal
// numbers
inline Vec<float> times_power_of_two(Vec<float> x, Vec<float> k) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_scalef_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(k)));
#else
    // In two steps, of which the first stays among the normal numbers.
    const I32 n = __builtin_convertvector(k, I32), half = n >> 1;
    const Vec<float> first = reinterpret_cast<Vec<float>>((half + 127) << 23);
    return x * first * reinterpret_cast<Vec<float>>((n - half + 127) << 23);
#endif
}

// 1 / x for x far from the ends of the range, correct to one unit in the last place
inline Vec<float> reciprocal(Vec<float> x) {
#if defined(__AVX512F__)
    // One step of Newton's method from 14 bits is quicker than a division of so many lanes.
    const Vec<float> r = reinterpret_cast<Vec<float>>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
    return r * (1.0f - x * r) + r;
#else
    return 1.0f / x;
#endif
}

// exp(x + tail(…)) within the bounds beyond which the result is infinity or 0 in any case; `tail` takes the reduced
// argument and adds to it what is left of a product that was rounded.
template <class F>
inline Vec<float> bounded_exp(Vec<float> x, F tail) {
#if defined(__AVX512F__)
    // In steps of 1/16: a register holds the powers of two between, and what remains needs three terms.
    const __m512 powers =
        _mm512_setr_ps(0x1p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f, 0x1.3dea64p+0f,
                       0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
                       0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f);
    const Vec<float> shifted = x * 0x1.715476p+0f + 0x1.8p19f, y = shifted - 0x1.8p19f;
    const Vec<float> r = tail(x - y * 0x1.62e43p-1f - y * -0x1.05c61p-29f);
    const Vec<float> power =
        reinterpret_cast<Vec<float>>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(shifted), powers));
    const Vec<float> q = (r * 0x1.55563ap-3f + 0x1.00022p-1f) * (r * r) + r;
    return times_power_of_two(power * q + power, y);
#else
    // Adding 1.5 * 2^23 rounds to a whole number.
    const Vec<float> k = (x * 0x1.715476p+0f + 0x1.8p23f) - 0x1.8p23f;
    // ln 2 in two parts, the first of 15 bits: its product with k is exact with and without a fused multiply-add.
    Vec<float> r = x - k * 0x1.62e4p-1f;
    r = tail(r - k * 0x1.7f7d1cp-20f);
    Vec<float> p = 0x1.6a234ap-10f * r + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.55549p-3f;
    p = p * r + 0x1.fffffcp-2f;
    // 1 + r is kept in two parts, so that one rounding remains.
    const Vec<float> sum = r + 1.0f;
    return times_power_of_two(sum + (p * (r * r) + (r - (sum - 1.0f))), k);
#endif
}
inline Vec<float> exp(Vec<float> x) {
    return bounded_exp(at_least(at_most(x, 89.0f), -104.0f), [](Vec<float> r) { return r; });
}
// The same for an x that is not positive, and for x + tail
inline Vec<float> exp_of_negative(Vec<float> x) {
    return bounded_exp(at_least(x, -104.0f), [](Vec<float> r) { return r; });
}
inline Vec<float> exp_of_negative(Vec<float> x, Vec<float> tail) {
    return bounded_exp(at_least(x, -104.0f), [tail](Vec<float> r) { return r + tail; });
}
inline Vec<double> exp(Vec<double> x) {
    return by_lane(x, [](double a) { return std::exp(a); });
}
inline Vec<double> exp_of_negative(Vec<double> x) { return exp(x); }

// 1 / (1 + exp(-x)), from an exponential that cannot overflow
inline Vec<float> sigmoid(Vec<float> x) {
    const Vec<float> e = exp_of_negative(-absolute(x)), q = reciprocal(e + 1.0f);
    return x >= 0 ? q : e * q;
}
inline Vec<double> sigmoid(Vec<double> x) {
    const Vec<double> e = exp(-absolute(x));
    return (x >= 0 ? Vec<double>{} + 1 : e) / (e + 1);
}

// tanh: near 0 a polynomial in x², as the quotient would cancel
inline Vec<float> tanh(Vec<float> x) {
    const Vec<float> a = absolute(x), u = x * x;
    Vec<float> p = 0x1.1a7c08p-6f * u - 0x1.b28c76p-5f;
    p = p * u + 0x1.10e9fcp-3f;
    p = p * u - 0x1.5554d6p-2f;
    const Vec<float> e = exp_of_negative(-2.0f * a), q = (1.0f - e) / (1.0f + e);
    return a < 0.5f ? x + x * (u * p) : (x < 0 ? -q : q);
}
inline Vec<double> tanh(Vec<double> x) {
    return by_lane(x, [](double a) { return std::tanh(a); });
}

// log(1 + t) for t within [0, 1]: 2 atanh(s) with s = t / (2 + t), written as t less what rounding cannot hurt much
inline Vec<float> log1p_unit(Vec<float> t) {
    const Vec<float> s = t / (t + 2.0f), u = s * s;
    Vec<float> p = 0x1.1ef87ap-2f * u + 0x1.1eb60ep-2f;
    p = p * u + 0x1.99d27cp-2f;
    p = p * u + 0x1.5555p-1f;
    return t - s * (t - u * p);
}
inline Vec<double> log1p_unit(Vec<double> t) {
    return by_lane(t, [](double a) { return std::log1p(a); });
}

// The standard normal distribution function, without cancellation in either tail.
//
// Near 0 it is 1/2 + x q(x²); beyond, exp(-x²/2) · t · p(t) with t = 1 / (1 + |x|/4), and 1 less that for positive x.
inline Vec<float> normal_cdf(Vec<float> x) {
    const Vec<float> a = at_most(absolute(x), 14.5f);  // exp(-14.5²/2) is 0 in float32
    const Vec<float> square = a * a;
    Vec<float> q = 0x1.a3c77cp-14f * square - 0x1.34bf2cp-10f;
    q = q * square + 0x1.46ba28p-7f;
    q = q * square - 0x1.1057e8p-4f;
    q = q * square + 0x1.988452p-2f;
    const Vec<float> t = reciprocal(a * 0.25f + 1.0f);
    Vec<float> p = 0x1.96655cp-6f * t - 0x1.a6af6ap-4f;
    p = p * t + 0x1.1a4eap-3f;
    p = p * t - 0x1.3824c4p-4f;
    p = p * t + 0x1.79e548p-4f;
    p = p * t + 0x1.84b304p-5f;
    p = p * t + 0x1.5a2a94p-4f;
    p = p * t + 0x1.7d072ap-4f;
    p = p * t + 0x1.98abaep-4f;
    p = p * t + 0x1.9882fcp-4f;
    // x² in two parts, since exp magnifies the rounding error of a large exponent; the head has 8 bits.
    const Vec<float> head = floats_of(bits_of(a) & 0xffff0000u);
    const Vec<float> rest = (head * head - square) + (a - head) * (a + head);
    const Vec<float> tail = t * p * exp_of_negative(-0.5f * square, -0.5f * rest);
    const Vec<float> centre = x * q + 0.5f;
    return a < 0.8f ? centre : (x < 0 ? tail : 1.0f - tail);
}
inline Vec<double> normal_cdf(Vec<double> x) {
    return by_lane(x, [](double a) {
        constexpr double kRoot = 0x1.6a09e667f3bcdp-1, kRest = -0x1.bdd3413b26456p-55;  // together 1 / sqrt 2
        const double z = a * -kRoot;
        if (!(std::fabs(a) < 40)) return 0.5 * std::erfc(z);
        // erfc magnifies the rounding of a large z: what was rounded off, times its derivative
        const double rest = std::fma(a, -kRoot, -z) - a * kRest;
        return 0.5 * (std::erfc(z) - 0x1.20dd750429b6dp+0 * std::exp(-z * z) * rest);
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
