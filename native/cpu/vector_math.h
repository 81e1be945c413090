// exp, log1p, sigmoid and the error function on vectors: written once for all targets.
//
// float32: polynomials fitted to the least largest relative error; the largest errors seen are beside each function, in
// units of the last place, for the targets with and without a fused multiply-add. float64: the C library's functions,
// lane by lane, as its errors are below one unit and no kernel's speed in float64 has mattered yet.
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

template <class V>
inline V absolute(V x) {
    return x < 0 ? -x : x;
}

// 2^k for k within [-126, 127]
inline Vec<float> power_of_two(I32 k) { return reinterpret_cast<Vec<float>>((k + 127) << 23); }

// exp(x + tail) for a tail of at most a few units in the last place of x: what is left of a product that was rounded.
inline Vec<float> exp(Vec<float> x, Vec<float> tail = Vec<float>{}) {
    // Beyond these the result is infinity or 0 in any case; NaN passes both comparisons.
    x = x > 89.0f ? Vec<float>{} + 89.0f : x;
    x = x < -104.0f ? Vec<float>{} - 104.0f : x;
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
    const Vec<float> shifted = x * 0x1.715476p+0f + 0x1.8p23f;
    const I32 n = reinterpret_cast<I32>(shifted) - 0x4b400000;
    const Vec<float> k = shifted - 0x1.8p23f;
    // ln 2 in two parts, the first of 15 bits: its product with k is exact with and without a fused multiply-add.
    Vec<float> r = x - k * 0x1.62e4p-1f;
    r = r - k * 0x1.7f7d1cp-20f + tail;
    Vec<float> p = 0x1.6a234ap-10f * r + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.55549p-3f;
    p = p * r + 0x1.fffffcp-2f;
    // 1 + r is kept in two parts, so that one rounding remains.
    const Vec<float> sum = r + 1.0f;
    const Vec<float> e = sum + (p * (r * r) + (r - (sum - 1.0f)));
    // In two steps, so that results below the normal numbers are rounded once, and infinity is reached at its bound.
    const I32 half = n >> 1;
    return e * power_of_two(half) * power_of_two(n - half);
}
inline Vec<double> exp(Vec<double> x) {
    return by_lane(x, [](double a) { return std::exp(a); });
}

// 1 / (1 + exp(-x)), from an exponential that cannot overflow
template <class V>
inline V sigmoid(V x) {
    const V e = exp(-absolute(x));
    return (x >= 0 ? V{} + 1 : e) / (e + 1);
}

// log(1 + t) for t within [0, 1]: 2 atanh(t / (2 + t))
inline Vec<float> log1p_unit(Vec<float> t) {
    const Vec<float> s = t / (t + 2.0f), u = s * s;
    Vec<float> p = 0x1.1ef87ap-3f * u + 0x1.1eb60ep-3f;
    p = p * u + 0x1.99d27cp-3f;
    p = p * u + 0x1.5555p-2f;
    return 2.0f * (s + s * (u * p));
}
inline Vec<double> log1p_unit(Vec<double> t) {
    return by_lane(t, [](double a) { return std::log1p(a); });
}

// The standard normal distribution function, without cancellation in either tail.
//
// Near 0 it is 1/2 + x q(x²); beyond, exp(-x²/2) · t · p(t) with t = 1 / (1 + |x|/4), and 1 less that for positive x.
inline Vec<float> normal_cdf(Vec<float> x) {
    Vec<float> a = absolute(x);
    a = a > 14.5f ? Vec<float>{} + 14.5f : a;  // exp(-14.5²/2) is 0 in float32
    const Vec<float> square = a * a;
    Vec<float> q = 0x1.a3c77cp-14f * square - 0x1.34bf2cp-10f;
    q = q * square + 0x1.46ba28p-7f;
    q = q * square - 0x1.1057e8p-4f;
    q = q * square + 0x1.988452p-2f;
    const Vec<float> t = 1.0f / (a * 0.25f + 1.0f);
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
    const Vec<float> tail = t * p * exp(-0.5f * square, -0.5f * rest);
    const Vec<float> centre = x * q + 0.5f;
    return a < 0.8f ? centre : (x < 0 ? tail : 1.0f - tail);
}
inline Vec<double> normal_cdf(Vec<double> x) {
    return by_lane(x, [](double a) { return 0.5 * std::erfc(a * -0.70710678118654752440); });
}

}  // namespace tensorops::TENSOROPS_TARGET
