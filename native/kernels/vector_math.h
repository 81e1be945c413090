// exp, expm1, log, log1p, tanh, sigmoid and gelu on vectors: written once for all targets, in float32 and float64.
//
// Polynomials and quotients of such, fitted to minimize the largest relative error. In float32, AVX-512 looks up those
// of a segment in registers; other targets have one for all arguments. Largest errors in units of the last place, of
// which a result has up to two for each eps (native/tests):
//
//              float32                                                    float64
//   exp        1                                                          1
//   expm1      1.5                                                        1.25
//   log        1                                                          1.35
//   log1p      1.5                                                        1.35
//   tanh       1.75                                                       2.5
//   sigmoid    2.5; 1.5 with AVX-512                                      2.5
//   gelu       5, less than 3 eps; 3 with AVX-512, 6.5 without a fused    4.75, less than 3 eps
//              multiply-add
//
// What an operator adds is in tests/kernels/cpu/test_activation.py.
#pragma once

#include <cmath>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

template <class V>
using Element = decltype(V{}[0] + 0);

inline Vec<float> absolute(Vec<float> x) { return floats_of(bits_of(x) & 0x7fffffffu); }
// -|x|
inline Vec<float> minus_magnitude(Vec<float> x) { return floats_of(bits_of(x) | 0x80000000u); }
inline Vec<double> minus_magnitude(Vec<double> x) { return floats_of(bits_of(x) | std::uint64_t{1} << 63); }

// Compilers make one instruction of the loop.
template <class V>
inline V square_root(V x) {
    for (std::size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) x[i] = std::sqrt(x[i]);
    return x;
}

// The larger and the smaller of x and a bound; NaN stays NaN, and a zero keeps its sign.
#if defined(__AVX512F__)
inline Vec<float> at_least(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm512_max_ps(reinterpret_cast<__m512>(bound), reinterpret_cast<__m512>(x)));
}
inline Vec<float> at_most(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm512_min_ps(reinterpret_cast<__m512>(bound), reinterpret_cast<__m512>(x)));
}
inline Vec<double> at_least(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm512_max_pd(reinterpret_cast<__m512d>(bound), reinterpret_cast<__m512d>(x)));
}
inline Vec<double> at_most(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm512_min_pd(reinterpret_cast<__m512d>(bound), reinterpret_cast<__m512d>(x)));
}
#elif defined(__AVX2__)
inline Vec<float> at_least(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm256_max_ps(reinterpret_cast<__m256>(bound), reinterpret_cast<__m256>(x)));
}
inline Vec<float> at_most(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm256_min_ps(reinterpret_cast<__m256>(bound), reinterpret_cast<__m256>(x)));
}
inline Vec<double> at_least(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm256_max_pd(reinterpret_cast<__m256d>(bound), reinterpret_cast<__m256d>(x)));
}
inline Vec<double> at_most(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm256_min_pd(reinterpret_cast<__m256d>(bound), reinterpret_cast<__m256d>(x)));
}
#elif defined(__x86_64__)
inline Vec<float> at_least(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm_max_ps(reinterpret_cast<__m128>(bound), reinterpret_cast<__m128>(x)));
}
inline Vec<float> at_most(Vec<float> x, Vec<float> bound) {
    return reinterpret_cast<Vec<float>>(_mm_min_ps(reinterpret_cast<__m128>(bound), reinterpret_cast<__m128>(x)));
}
inline Vec<double> at_least(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm_max_pd(reinterpret_cast<__m128d>(bound), reinterpret_cast<__m128d>(x)));
}
inline Vec<double> at_most(Vec<double> x, Vec<double> bound) {
    return reinterpret_cast<Vec<double>>(_mm_min_pd(reinterpret_cast<__m128d>(bound), reinterpret_cast<__m128d>(x)));
}
#else
template <class V>
inline V at_least(V x, V bound) {
    return x < bound ? bound : x;
}
template <class V>
inline V at_most(V x, V bound) {
    return x > bound ? bound : x;
}
#endif
inline Vec<float> at_least(Vec<float> x, float bound) { return at_least(x, Vec<float>{} + bound); }
inline Vec<float> at_most(Vec<float> x, float bound) { return at_most(x, Vec<float>{} + bound); }
inline Vec<double> at_least(Vec<double> x, double bound) { return at_least(x, Vec<double>{} + bound); }
inline Vec<double> at_most(Vec<double> x, double bound) { return at_most(x, Vec<double>{} + bound); }

// a * b - c, rounded once; without a fused multiply-add almost so, if c is near the product
inline Vec<float> product_minus(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(
        _mm512_fmsub_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
    return reinterpret_cast<Vec<float>>(
        _mm256_fmsub_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
    return reinterpret_cast<Vec<float>>(vfmaq_f32(reinterpret_cast<float32x4_t>(-c), reinterpret_cast<float32x4_t>(a),
                                                  reinterpret_cast<float32x4_t>(b)));
#else
    // Halves of 12 bits, so that their products are exact
    const Vec<float> head_a = floats_of(bits_of(a) & 0xfffff000u), left_a = a - head_a;
    const Vec<float> head_b = floats_of(bits_of(b) & 0xfffff000u), left_b = b - head_b;
    return ((head_a * head_b - c) + head_a * left_b + left_a * head_b) + left_a * left_b;
#endif
}

inline Vec<double> product_minus(Vec<double> a, Vec<double> b, Vec<double> c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<double>>(
        _mm512_fmsub_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
    return reinterpret_cast<Vec<double>>(
        _mm256_fmsub_pd(reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#elif defined(__aarch64__)
    return reinterpret_cast<Vec<double>>(vfmaq_f64(reinterpret_cast<float64x2_t>(-c), reinterpret_cast<float64x2_t>(a),
                                                   reinterpret_cast<float64x2_t>(b)));
#else
    constexpr std::uint64_t upper = ~std::uint64_t{0} << 27;  // halves of 26 bits
    const Vec<double> head_a = floats_of(bits_of(a) & upper), left_a = a - head_a;
    const Vec<double> head_b = floats_of(bits_of(b) & upper), left_b = b - head_b;
    return ((head_a * head_b - c) + head_a * left_b + left_a * head_b) + left_a * left_b;
#endif
}

// exp(x) is 2^k (1 + q) with q = exp(x - k ln 2) - 1. Adding `to_integer` rounds to a whole number, which the last bits
// of the sum then hold. ln 2 is in two parts, the first of so few bits that its product with k is exact.
template <class C>
struct Exponential;
template <>
struct Exponential<float> {
    static constexpr float log2e = 0x1.715476p+0f, ln2 = 0x1.62e4p-1f, ln2_rest = 0x1.7f7d1cp-20f;
    static constexpr float to_integer = 0x1.8p23f;
    static constexpr int fraction_bits = 23, bias = 127;
    static constexpr float least = -104;       // 0 is the number nearest to its exponential
    static constexpr float least_expm1 = -20;  // -1 is nearest
    // exp(r - rest) - 1 for r within ±0.35 and a small rest, in few steps that depend on each other: processors overlap
    // those of several vectors
    static Vec<float> minus_1(Vec<float> exact, Vec<float> rest) {
        const Vec<float> r = exact - rest, u = r * r,
                         high = 0x1.6a234ap-10f * u + (0x1.123a6cp-7f * r + 0x1.5558f4p-5f);
        return (high * u + (0x1.55549p-3f * r + 0x1.fffffcp-2f)) * u + r;
    }
};
template <>
struct Exponential<double> {
    static constexpr double log2e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa2p-1, ln2_rest = 0x1.9ef35793c7673p-41;
    static constexpr double to_integer = 0x1.8p52;
    static constexpr int fraction_bits = 52, bias = 1023;
    static constexpr double least = -746, least_expm1 = -40;
    // The rounding of r - rest would add a quarter of a unit to the error.
    static Vec<double> minus_1(Vec<double> exact, Vec<double> rest) {
        const Vec<double> r = exact - rest, u = r * r;
        Vec<double> p = 0x1.ad85e3052f15ap-26 * r + 0x1.28ade61a86ef2p-22;
        p = p * u + (0x1.71df227e1c44fp-19 * r + 0x1.a0199995cbff5p-16);
        p = p * u + (0x1.a01a012b02849p-13 * r + 0x1.6c16c184530aap-10);
        p = p * u + (0x1.1111111127bddp-7 * r + 0x1.55555555507d2p-5);
        p = p * u + (0x1.55555555554f9p-3 * r + 0x1.000000000000ap-1);
        return (p * u - rest) + exact;
    }
};

// Exponentials are computed in a unit of 2^-32, in float64 2^-64, in which those that are below the normal numbers are
// normal; then 2^k is a number of which only the bits of the exponent are set. AVX-512 has scalef.
#if defined(__AVX512F__)
template <class C>
inline constexpr int kUnit = 0;
#else
template <class C>
inline constexpr int kUnit = 8 * sizeof(C);
#endif
template <class C>
inline constexpr C kOneInUnits = static_cast<C>(kUnit<C> == 0    ? 1.0
                                                : kUnit<C> == 32 ? 0x1p32
                                                                 : 0x1p64);

#if defined(__AVX512F__)
// x times 2^k for the floor of k, rounded once where the result is below the normal numbers
inline Vec<float> times_power_of_two(Vec<float> x, Vec<float> k) {
    return reinterpret_cast<Vec<float>>(_mm512_scalef_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(k)));
}
inline Vec<double> times_power_of_two(Vec<double> x, Vec<double> k) {
    return reinterpret_cast<Vec<double>>(_mm512_scalef_pd(reinterpret_cast<__m512d>(x), reinterpret_cast<__m512d>(k)));
}
#endif

// x exp(-a²/2) in units, for positive x that are neither small nor large, and an a whose result is not 0
template <class V>
inline V times_gaussian(V x, V a) {
    using C = Element<V>;
    using E = Exponential<C>;
    constexpr C shift = E::to_integer + kUnit<C>;
    const V half = C(-0.5) * a;
    const V shifted = a * half * E::log2e + shift, k = shifted - shift;
    // Not from the rounded square, because exp magnifies the rounding error of a large exponent
    const V q = E::minus_1(product_minus(a, half, k * E::ln2), k * E::ln2_rest);
#if defined(__AVX512F__)
    return times_power_of_two(x * q + x, k);
#else
    return floats_of(bits_of(x * q + x) + (bits_of(shifted) << E::fraction_bits));
#endif
}

// exp(x) in units, for x up to 60; what is below the least exponent counts as that.
#if defined(__AVX512F__)
// In steps of 1/16 or 1/8: a register holds the powers of two in between, and the remainder needs fewer terms.
inline Vec<float> exp_in_units(Vec<float> x) {
    x = at_least(x, Exponential<float>::least);
    const __m512 powers =
        _mm512_setr_ps(0x1p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f, 0x1.3dea64p+0f,
                       0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
                       0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f);
    const Vec<float> shifted = x * 0x1.715476p+0f + 0x1.8p19f, y = shifted - 0x1.8p19f;
    const Vec<float> r = x - y * 0x1.62e43p-1f - y * -0x1.05c61p-29f;
    const Vec<float> power =
        reinterpret_cast<Vec<float>>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(shifted), powers));
    const Vec<float> q = (r * 0x1.55563ap-3f + 0x1.00022p-1f) * (r * r) + r;
    return times_power_of_two(power * q + power, y);
}
inline Vec<double> exp_in_units(Vec<double> x) {
    using E = Exponential<double>;
    x = at_least(x, E::least);
    const __m512d powers =
        _mm512_setr_pd(0x1p+0, 0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0, 0x1.4bfdad5362a27p+0, 0x1.6a09e667f3bcdp+0,
                       0x1.8ace5422aa0dbp+0, 0x1.ae89f995ad3adp+0, 0x1.d5818dcfba487p+0);
    const __m512d rests =  // their rounding errors
        _mm512_setr_pd(0, -0x1.19041b9d78a76p-55, 0x1.6f46ad23182e4p-55, 0x1.d4397afec42e2p-56, -0x1.bdd3413b26456p-54,
                       0x1.6e9f156864b27p-54, 0x1.7a1cd345dcc81p-54, 0x1.2ed02d75b3707p-55);
    constexpr double shift = E::to_integer / 8;
    const Vec<double> shifted = x * E::log2e + shift, y = shifted - shift;
    const Vec<double> r = x - y * E::ln2 - y * E::ln2_rest, u = r * r;
    Vec<double> p = r * 0x1.a016f1a634b2bp-13 + 0x1.6c1cc41637e4cp-10;
    p = p * u + (r * 0x1.11111124163e7p-7 + 0x1.55555547f11c6p-5);
    p = p * u + (r * 0x1.555555555516fp-3 + 0x1.000000000010ep-1);
    const Vec<double> q = p * u + r;
    const auto of_step = [shifted](__m512d values) {
        return reinterpret_cast<Vec<double>>(_mm512_permutexvar_pd(reinterpret_cast<__m512i>(shifted), values));
    };
    const Vec<double> power = of_step(powers);
    return times_power_of_two((power * q + of_step(rests)) + power, y);
}
#else
template <class V>
inline V exp_in_units(V x) {
    using C = Element<V>;
    using E = Exponential<C>;
    x = at_least(x, E::least);
    constexpr C shift = E::to_integer + (E::bias + kUnit<C>);
    const V shifted = x * E::log2e + shift, k = shifted - shift;
    const V q = E::minus_1(x - k * E::ln2, k * E::ln2_rest), power = floats_of(bits_of(shifted) << E::fraction_bits);
    return power * q + power;
}
#endif
// exp(x) for nonpositive x
template <class V>
inline V exp_of_negative(V x) {
    return exp_in_units(x) * (1 / kOneInUnits<Element<V>>);
}

// exp(x) - 1 for negative x, in which nothing cancels: 2^k q + (2^k - 1), where k = 0 near 0. A table of powers, as
// AVX-512 has for exp, would have rounding errors that are large compared with such small results.
template <class V>
inline V expm1_of_negative(V x) {
    using E = Exponential<Element<V>>;
    x = at_least(x, E::least_expm1);
    constexpr Element<V> shift = E::to_integer + E::bias;
    const V shifted = x * E::log2e + shift, k = shifted - shift;
    const V q = E::minus_1(x - k * E::ln2, k * E::ln2_rest), power = floats_of(bits_of(shifted) << E::fraction_bits);
    return power * q + (power - 1);
}

#if defined(__AVX512F__)
// A function of a from 0 to 31.5 steps, by polynomials in the distance from k steps for k = 0 … 31, constant terms
// first. Beyond that, and for NaN, the result is undefined.
template <int kTerms>
inline Vec<float> by_segment(const float (&table)[kTerms][32], Vec<float> a, float step) {
    const Vec<float> shifted = a * (1 / step) + 0x1.8p23f, d = a - (shifted - 0x1.8p23f) * step;
    const __m512i segment = reinterpret_cast<__m512i>(shifted);
    const auto of_segment = [segment](const float* values) {
        return reinterpret_cast<Vec<float>>(
            _mm512_permutex2var_ps(_mm512_load_ps(values), segment, _mm512_load_ps(values + 16)));
    };
    Vec<float> p = of_segment(table[kTerms - 1]);
    for (int term = kTerms - 2; term >= 0; --term) p = p * d + of_segment(table[term]);
    return p;
}

// The same, and far(a) from 31.5 steps on. Lane by lane: a result does not depend on its neighbours.
template <int kTerms, class F>
inline Vec<float> by_segment_or(const float (&table)[kTerms][32], Vec<float> a, float step, F far) {
    const auto is_far = a >= 31.5f * step;
    const Vec<float> near = by_segment(table, a, step);
    return __builtin_expect(any(is_far), 0) ? (is_far ? far(a) : near) : near;
}

// 1 / (1 + exp(a)). Largest relative error: 5.0e-8, nearly all of it the rounding of the constant terms.
constexpr float kSigmoidStep = 0.25f;
alignas(64) inline constexpr float kSigmoid[5][32] = {
    {0x1p-1f,         0x1.c054cep-2f,  0x1.829a06p-2f,  0x1.488562p-2f,  0x1.136562p-2f,  0x1.c81702p-3f,
     0x1.759b84p-3f,  0x1.2f335ep-3f,  0x1.e84152p-4f,  0x1.868d2ap-4f,  0x1.36b712p-4f,  0x1.ec3ad6p-5f,
     0x1.848344p-5f,  0x1.31c828p-5f,  0x1.e04068p-6f,  0x1.787614p-6f,  0x1.26afa2p-6f,  0x1.ccd642p-7f,
     0x1.680528p-7f,  0x1.19112ap-7f,  0x1.b69f68p-8f,  0x1.561b2ep-8f,  0x1.0abd94p-8f,  0x1.9fd992p-9f,
     0x1.441778p-9f,  0x1.f914fap-10f, 0x1.8986a2p-10f, 0x1.329482p-10f, 0x1.dda738p-11f, 0x1.74125ap-11f,
     0x1.21d0b2p-11f, 0x1.c378cap-12f},
    {-0x1.fffffcp-3f,  -0x1.f81512p-3f,  -0x1.e14994p-3f,  -0x1.be3fb8p-3f,  -0x1.92a94cp-3f,  -0x1.6284ccp-3f,
     -0x1.3173bcp-3f,  -0x1.025014p-3f,  -0x1.ae0ddp-4f,   -0x1.61500cp-4f,  -0x1.1f251ap-4f,  -0x1.cea74ap-5f,
     -0x1.721654p-5f,  -0x1.265e32p-5f,  -0x1.d22c9ep-6f,  -0x1.6fcfap-6f,   -0x1.2162bcp-6f,  -0x1.c65b1p-7f,
     -0x1.64108p-7f,   -0x1.16a7f4p-7f,  -0x1.b3afd4p-8f,  -0x1.5451f4p-8f,  -0x1.09a79cp-8f,  -0x1.9e87cp-9f,
     -0x1.434a46p-9f,  -0x1.f81bc4p-10f, -0x1.88ef58p-10f, -0x1.3238acp-10f, -0x1.dd37bep-11f, -0x1.73ceb2p-11f,
     -0x1.21a7a2p-11f, -0x1.c346f4p-12f},
    {-0x1.52d4bep-19f, 0x1.f56e72p-7f, 0x1.d7779ep-6f,  0x1.3fcd96p-5f,  0x1.742152p-5f,  0x1.893ddap-5f,
     0x1.84011p-5f,    0x1.6ba9f4p-5f, 0x1.47882cp-5f,  0x1.1dedd2p-5f,  0x1.e725bp-6f,   0x1.970f6p-6f,
     0x1.4efb6ep-6f,   0x1.10648ap-6f, 0x1.b6d8a2p-7f,  0x1.5ee6c2p-7f,  0x1.16f9a4p-7f,  0x1.b991c2p-8f,
     0x1.5c3ce6p-8f,   0x1.11df9ap-8f, 0x1.addaa6p-9f,  0x1.50c2cp-9f,   0x1.077edap-9f,  0x1.9be6b2p-10f,
     0x1.41af7cp-10f,  0x1.f6299p-11f, 0x1.87c30cp-11f, 0x1.318026p-11f, 0x1.dc5aa8p-12f, 0x1.734638p-12f,
     0x1.21546ep-12f,  0x1.c2e24ep-13f},
    {0x1.56606p-6f,    0x1.3fe08ap-6f,   0x1.06bfecp-6f,   0x1.6d9508p-7f,   0x1.826ae8p-8f,   0x1.288d0cp-10f,
     -0x1.53f4b6p-9f,  -0x1.4de2cap-8f,  -0x1.a76f1cp-8f,  -0x1.c5ed7ap-8f,  -0x1.bb3e2cp-8f,  -0x1.97a93ap-8f,
     -0x1.67a4dp-8f,   -0x1.33e7cp-8f,   -0x1.01cbbep-8f,  -0x1.a88d32p-9f,  -0x1.592692p-9f,  -0x1.15e272p-9f,
     -0x1.bc1f8cp-10f, -0x1.60da7ap-10f, -0x1.1719p-10f,   -0x1.b800aep-11f, -0x1.59e5b6p-11f, -0x1.0f5bcp-11f,
     -0x1.a90e26p-12f, -0x1.4c81f8p-12f, -0x1.03d7c4p-12f, -0x1.95cfa6p-13f, -0x1.3cb61cp-13f, -0x1.ee1a3ap-14f,
     -0x1.814d02p-14f, -0x1.2c5ce6p-14f},
    {-0x1.4653fep-11f, -0x1.3d688ep-9f,  -0x1.15c0aap-8f,  -0x1.4b6508p-8f,  -0x1.4754bep-8f, -0x1.1e22bap-8f,
     -0x1.8f8e38p-9f,  -0x1.fffb44p-10f, -0x1.d8dee4p-11f, -0x1.eaacb6p-15f, 0x1.c63e3cp-12f, 0x1.54a9aep-11f,
     0x1.9b4266p-11f,  0x1.9c3026p-11f,  0x1.803e06p-11f,  0x1.5b8b82p-11f,  0x1.25aaacp-11f, 0x1.f04ad6p-12f,
     0x1.95e9ecp-12f,  0x1.49e2a4p-12f,  0x1.081f86p-12f,  0x1.aa769ep-13f,  0x1.4bb5dap-13f, 0x1.07d666p-13f,
     0x1.a53f4p-14f,   0x1.48b3c8p-14f,  0x1.fbbf32p-15f,  0x1.958dcep-15f,  0x1.37ddbp-15f,  0x1.ef8266p-16f,
     0x1.836298p-16f,  0x1.2d13ccp-16f},
};

// 1 / (1 + exp(a)) for nonnegative a. A separate function where it is rarely needed, because its constants would evict
// those of the usual case from the registers.
[[gnu::noinline]] inline Vec<float> far_sigmoid_tail(Vec<float> a) {
    const Vec<float> e = exp_of_negative(-a);  // at most 4e-4: 1 / (1 + e) is 1 - e + e²
    return e + e * (e * e - e);
}
// 1 / (1 + exp(|x|))
inline Vec<float> sigmoid_tail(Vec<float> x) {
    return by_segment_or(kSigmoid, absolute(x), kSigmoidStep, far_sigmoid_tail);
}
#endif

// 1 / (1 + exp(-x)); AVX-512 looks up polynomials where |x| is not large. Elsewhere it is exp(x) / (exp(x) + 1), which
// is 1 for all x above 30: a bound on x keeps the exponential from overflowing.
inline Vec<float> sigmoid(Vec<float> x) {
#if defined(__AVX512F__)
    const Vec<float> tail = sigmoid_tail(x);
    return x < 0 ? tail : 1.0f - tail;
#else
    const Vec<float> e = exp_in_units(at_most(x, 30.0f));
    return e / (e + kOneInUnits<float>);
#endif
}
inline Vec<double> sigmoid(Vec<double> x) {
    constexpr double one = kOneInUnits<double>;
    const Vec<double> e = exp_in_units(minus_magnitude(x));
    return (x >= 0 ? Vec<double>{} + one : e) / (e + one);
}

// tanh: a polynomial in x² up to where the quotient, which cancels near 0, is 1/2
inline Vec<float> tanh(Vec<float> x) {
    const Vec<float> a = absolute(x), u = x * x;
    Vec<float> p = 0x1.0d5034p-6f * u - 0x1.af7cccp-5f;
    p = p * u + 0x1.10cef6p-3f;
    p = p * u - 0x1.555452p-2f;
    const Vec<float> e = exp_in_units(-2.0f * a), q = (kOneInUnits<float> - e) / (kOneInUnits<float> + e);
    return a < 0.55f ? x + x * (u * p) : (x < 0 ? -q : q);
}
// With m = exp(-2|x|) - 1 it is -m / (m + 2), and a polynomial where m is small and its error counts
inline Vec<double> tanh(Vec<double> x) {
    const Vec<double> u = x * x, w = u * u, a = minus_magnitude(x);
    Vec<double> p = (-0x1.8710d9bf7ff83p-13 * u + 0x1.2e5d7c3ff5885p-11) * u - 0x1.7d238aab7b00dp-10;
    p = p * w + (0x1.d6ce40042a3ecp-9 * u - 0x1.226e222c187d4p-7);
    p = p * w + (0x1.664f483293252p-6 * u - 0x1.ba1ba1b95de7bp-5);
    p = p * w + (0x1.1111111110a2fp-3 * u - 0x1.5555555555553p-2);
    const Vec<double> m = expm1_of_negative(2 * a), q = m / (m + 2);
    return a > -0.35 ? x + x * (u * p) : (x < 0 ? q : -q);
}

// log(1 + t) for t from √½ - 1 to 1: 2 atanh(s) with s = t / (2 + t), written as t minus a term insensitive to rounding
inline Vec<float> log1p_near(Vec<float> t) {
    const Vec<float> s = t / (t + 2.0f), u = s * s;
    Vec<float> p = 0x1.1ef87ap-2f * u + 0x1.1eb60ep-2f;
    p = p * u + 0x1.99d27cp-2f;
    p = p * u + 0x1.5555p-1f;
    return t - s * (t - u * p);
}
inline Vec<double> log1p_near(Vec<double> t) {
    const Vec<double> s = t / (t + 2), u = s * s, w = u * u;
    Vec<double> p = 0x1.5c8a789730ec4p-3 * u + 0x1.559c2dc2d3715p-4;
    p = p * w + (0x1.efdd8a6430172p-4 * u + 0x1.10676832fdf81p-3);
    p = p * w + (0x1.3b1de32a76047p-3 * u + 0x1.745cb39b38d4ap-3);
    p = p * w + (0x1.c71c741f8cb74p-3 * u + 0x1.2492492085792p-2);
    p = p * w + (0x1.99999999a083fp-2 * u + 0x1.5555555555535p-1);
    return t - s * (t - u * p);
}
// The bits of the exponent, as integers with a sign
inline U32 floor_of_shift(U32 bits) { return reinterpret_cast<U32>(reinterpret_cast<I32>(bits) >> 23); }
inline U64 floor_of_shift(U64 bits) { return reinterpret_cast<U64>(reinterpret_cast<I64>(bits) >> 52); }

#if defined(__AVX512F__)
// log(1 + t) / t for t within [0, 1], by polynomials of degree 3 in 15 t - k about k = 0 … 15. Largest relative error:
// 5e-8, of which half is the rounding of the constant terms.
alignas(64) inline constexpr float kLog1p[4][16] = {
    {0x1p+0f, 0x1.efa7e6p-1f, 0x1.e0a06p-1f, 0x1.d2be42p-1f, 0x1.c5dddp-1f, 0x1.b9e132p-1f, 0x1.aeaf38p-1f,
     0x1.a4327cp-1f, 0x1.9a58a4p-1f, 0x1.9111dcp-1f, 0x1.885068p-1f, 0x1.800848p-1f, 0x1.782ef8p-1f, 0x1.70bb2ep-1f,
     0x1.69a4bp-1f, 0x1.62e43p-1f},
    {-0x1.1110e4p-5f, -0x1.f4fca8p-6f, -0x1.cdc9c6p-6f, -0x1.ab7b9ep-6f, -0x1.8d3f56p-6f, -0x1.726e0ap-6f,
     -0x1.5a81f2p-6f, -0x1.450ebp-6f, -0x1.31bb9cp-6f, -0x1.203f8p-6f, -0x1.105d74p-6f, -0x1.01e262p-6f,
     -0x1.e94658p-7f, -0x1.d0f654p-7f, -0x1.ba961p-7f, -0x1.a5ef34p-7f},
    {0x1.841652p-10f, 0x1.4fec32p-10f, 0x1.24ec14p-10f, 0x1.0143dap-10f, 0x1.c7079cp-11f, 0x1.94c3a6p-11f,
     0x1.6a35b8p-11f, 0x1.458a7ap-11f, 0x1.25dd22p-11f, 0x1.0a6d02p-11f, 0x1.e4d68ep-12f, 0x1.baf556p-12f,
     0x1.95bc36p-12f, 0x1.74d2dap-12f, 0x1.57d8d4p-12f, 0x1.3de734p-12f},
    {-0x1.275bb2p-14f, -0x1.f9a092p-15f, -0x1.a03954p-15f, -0x1.5a402ep-15f, -0x1.22e328p-15f, -0x1.ecec32p-16f,
     -0x1.a51034p-16f, -0x1.6a1b4ap-16f, -0x1.396c7cp-16f, -0x1.10eb08p-16f, -0x1.ddce1ap-17f, -0x1.a48a76p-17f,
     -0x1.73b53ep-17f, -0x1.49ff06p-17f, -0x1.26546ep-17f, -0x1.fc8a2p-18f},
};
inline Vec<float> log1p_unit(Vec<float> t) {
    const Vec<float> shifted = t * 15.0f + 0x1.8p23f, d = t * 15.0f - (shifted - 0x1.8p23f);
    const auto about = [shifted](const float* values) {
        return reinterpret_cast<Vec<float>>(
            _mm512_permutexvar_ps(reinterpret_cast<__m512i>(shifted), _mm512_load_ps(values)));
    };
    Vec<float> p = about(kLog1p[3]) * d + about(kLog1p[2]);
    p = p * d + about(kLog1p[1]);
    return t * (p * d + about(kLog1p[0]));
}
#else
inline Vec<float> log1p_unit(Vec<float> t) { return log1p_near(t); }
#endif
inline Vec<double> log1p_unit(Vec<double> t) { return log1p_near(t); }

// log(x) for positive normal numbers: of x / 2^k from √½ to √2, and k ln 2. NaN stays NaN.
inline Vec<float> log_of_normal(Vec<float> x) {
    constexpr std::uint32_t root_of_half = 0x3f3504f3;
    const U32 k = floor_of_shift(bits_of(x) - root_of_half);
    const Vec<float> exponent = floats_of(k + 0x4b400000u) - 0x1.8p23f, m = floats_of(bits_of(x) - (k << 23));
    const Vec<float> r =
        exponent * Exponential<float>::ln2 + (log1p_near(m - 1) + exponent * Exponential<float>::ln2_rest);
    return x == x ? r : x;
}
inline Vec<double> log_of_normal(Vec<double> x) {
    constexpr std::uint64_t root_of_half = 0x3fe6a09e667f3bcd;
    const U64 k = floor_of_shift(bits_of(x) - root_of_half);
    const Vec<double> exponent = floats_of(k + 0x4338000000000000u) - 0x1.8p52, m = floats_of(bits_of(x) - (k << 52));
    const Vec<double> r =
        exponent * Exponential<double>::ln2 + (log1p_near(m - 1) + exponent * Exponential<double>::ln2_rest);
    return x == x ? r : x;
}

#if defined(__AVX512F__)
// Φ(-a). Largest relative error: 5e-8, nearly all of it the rounding of the constant terms.
constexpr float kNormalStep = 0.1875f;
alignas(64) inline constexpr float kNormal[7][32] = {
    {0x1p-1f,         0x1.b3d97cp-2f,  0x1.6a527ap-2f,  0x1.25c5e4p-2f,  0x1.d022p-3f,    0x1.64dd8ep-3f,
     0x1.0ad7dap-3f,  0x1.83cab6p-4f,  0x1.11a46ep-4f,  0x1.76d04ep-5f,  0x1.f20394p-6f,  0x1.40cccep-6f,
     0x1.90925p-7f,   0x1.e49cecp-8f,  0x1.1bee6cp-8f,  0x1.42297ap-9f,  0x1.61de2p-10f,  0x1.7832e6p-11f,
     0x1.8301bep-12f, 0x1.812f0ep-13f, 0x1.72d956p-14f, 0x1.595676p-15f, 0x1.36feaep-16f, 0x1.0ed0e2p-17f,
     0x1.c80728p-19f, 0x1.733238p-20f, 0x1.24149ap-21f, 0x1.bc4ed8p-23f, 0x1.46a16cp-24f, 0x1.d02498p-26f,
     0x1.3eb346p-27f, 0x1.a6f212p-29f},
    {-0x1.988452p-2f,  -0x1.91661p-2f,   -0x1.7cc796p-2f,  -0x1.5cbdcp-2f,   -0x1.345d5ep-2f,  -0x1.073e62p-2f,
     -0x1.b1ec62p-3f,  -0x1.594762p-3f,  -0x1.094086p-3f,  -0x1.8977c8p-4f,  -0x1.19bfa2p-4f,  -0x1.858fbep-5f,
     -0x1.0402ep-5f,   -0x1.4f18bap-6f,  -0x1.a0f22ap-7f,  -0x1.f4dda6p-8f,  -0x1.227214p-8f,  -0x1.4536f2p-9f,
     -0x1.5f90f8p-10f, -0x1.6eec8ep-11f, -0x1.71b93p-12f,  -0x1.67aca6p-13f, -0x1.51cfa6p-14f, -0x1.3250fep-15f,
     -0x1.0c29a6p-16f, -0x1.c54d7ep-18f, -0x1.71e57ap-19f, -0x1.2368d6p-20f, -0x1.bb4a9p-22f,  -0x1.4584e4p-23f,
     -0x1.cd8eaap-25f, -0x1.3beb6cp-26f},
    {-0x1.1538fp-20f, 0x1.2cf458p-5f,  0x1.1d879ep-4f,  0x1.88521ep-4f,  0x1.ce8e72p-4f,  0x1.ed998ep-4f,
     0x1.e82a6p-4f,   0x1.c52e98p-4f,  0x1.8ddf24p-4f,  0x1.4bfdb2p-4f,  0x1.082478p-4f,  0x1.91bb5cp-5f,
     0x1.248278p-5f,  0x1.9865ep-6f,   0x1.119efp-6f,   0x1.602c2p-7f,   0x1.b3aac4p-8f,  0x1.03278p-8f,
     0x1.28a27p-9f,   0x1.46cad2p-10f, 0x1.5a9dcp-11f,  0x1.620dd8p-12f, 0x1.5c5e7cp-13f, 0x1.4a3f3ap-14f,
     0x1.2daf04p-15f, 0x1.099b7cp-16f, 0x1.c2cf98p-18f, 0x1.70d0ccp-19f, 0x1.22e912p-20f, 0x1.ba8096p-22f,
     0x1.44880ep-23f, 0x1.cb1204p-25f},
    {0x1.108624p-4f,   0x1.0231ap-4f,    0x1.b453fep-5f,   0x1.3dd8bcp-5f,   0x1.67bb2ep-6f,   0x1.53d3dep-8f,
     -0x1.334d9p-7f,   -0x1.4cab22p-6f,  -0x1.ba1726p-6f,  -0x1.e4ae12p-6f,  -0x1.d887ccp-6f,  -0x1.a68736p-6f,
     -0x1.6018c4p-6f,  -0x1.13fa68p-6f,  -0x1.995a4ap-7f,  -0x1.206c8ap-7f,  -0x1.8342cep-8f,  -0x1.f08138p-9f,
     -0x1.3069a8p-9f,  -0x1.657bfp-10f,  -0x1.92748cp-11f, -0x1.b2b84ep-12f, -0x1.c2d9d2p-13f, -0x1.c1337p-14f,
     -0x1.ae2c9p-15f,  -0x1.8c1de8p-16f, -0x1.5edce2p-17f, -0x1.2b09b8p-18f, -0x1.ea9b4cp-20f, -0x1.83706ep-21f,
     -0x1.269e98p-22f, -0x1.af89a4p-24f},
    {-0x1.bae3aep-11f, -0x1.a71f1p-8f,  -0x1.bc8e8cp-7f, -0x1.530766p-6f,  -0x1.8043fep-6f, -0x1.6d3432p-6f,
     -0x1.1bd30cp-6f,  -0x1.885888p-7f, -0x1.768f0ap-8f, -0x1.30d8e6p-10f, 0x1.549a84p-9f,  0x1.55ee96p-8f,
     0x1.9792dp-8f,    0x1.916298p-8f,  0x1.62d6cp-8f,   0x1.1fb8dep-8f,   0x1.b44a04p-9f,  0x1.35c65p-9f,
     0x1.9e9736p-10f,  0x1.07c952p-10f, 0x1.3f67b4p-11f, 0x1.7100fap-12f,  0x1.9693aap-13f, 0x1.ad5838p-14f,
     0x1.b189fp-15f,   0x1.a3debep-16f, 0x1.8615ccp-17f, 0x1.5bb1dp-18f,   0x1.29abb4p-19f, 0x1.e9d978p-21f,
     0x1.83655ep-22f,  0x1.2672aep-23f},
    {-0x1.3a17f2p-9f,  -0x1.2bf8fap-7f,  -0x1.c5488ep-8f,  -0x1.a9659ap-9f,  0x1.26f772p-12f,  0x1.c46828p-9f,
     0x1.4fff3cp-8f,   0x1.8a8878p-8f,   0x1.817164p-8f,   0x1.3f2536p-8f,   0x1.b85778p-9f,   0x1.c724f4p-10f,
     0x1.dd9242p-12f,  -0x1.c56e7ep-12f, -0x1.f1445ep-11f, -0x1.2c7e1p-10f,  -0x1.22306p-10f,  -0x1.e9f2cep-11f,
     -0x1.7a8184p-11f, -0x1.0da186p-11f, -0x1.678a0ep-12f, -0x1.c3cddep-13f, -0x1.0ccca2p-13f, -0x1.2fbd2ap-14f,
     -0x1.46dc72p-15f, -0x1.4fc50cp-16f, -0x1.497d9p-17f,  -0x1.35057p-18f,  -0x1.1599cap-19f, -0x1.de0d74p-21f,
     -0x1.8aaafp-22f,  -0x1.38a40ap-23f},
    {-0x1.a2f94ep-6f, -0x1.59f332p-3f,  -0x1.8fc1f6p-3f,  -0x1.69da62p-5f, 0x1.2a7bbcp-5f,   0x1.1054fcp-4f,
     0x1.fb692ap-8f,  0x1.aba366p-7f,   -0x1.853db8p-6f,  0x1.e5aa54p-8f,  0x1.3e22a6p-7f,   -0x1.de28dep-8f,
     -0x1.9bf874p-8f, -0x1.a28ce2p-10f, -0x1.409f84p-12f, 0x1.b9c6p-12f,   -0x1.98ea3ap-13f, -0x1.234e54p-14f,
     0x1.0a2392p-12f, 0x1.ae3fc6p-13f,  0x1.38eb64p-13f,  0x1.76691cp-14f, 0x1.2b961ap-14f,  0x1.354f3cp-15f,
     0x1.85348ep-16f, 0x1.a348e6p-17f,  0x1.a9b51ep-18f,  0x1.b08f2ap-19f, 0x1.9af62p-20f,   0x1.6b72aep-21f,
     0x1.34bd06p-22f, 0x1.0428c6p-23f},
};
// Φ(-a) exp(a²/2) for a from 5.9 to 14.5, smooth and slowly falling, by polynomials in the distance from 5.75 + k
// steps: the constant terms, then their rounding errors with the other terms. Largest relative error: 1.2e-9.
constexpr float kFarStart = 5.75f, kFarStep = 0.28125f;
alignas(64) inline constexpr float kFarConstant[1][32] = {
    {0x1.1445a6p-4f, 0x1.08073ep-4f, 0x1.f99adcp-5f, 0x1.e4f32p-5f,  0x1.d1e318p-5f, 0x1.c03e14p-5f, 0x1.afdd9ap-5f,
     0x1.a0a06p-5f,  0x1.926972p-5f, 0x1.851f8cp-5f, 0x1.78ac8p-5f,  0x1.6cfcccp-5f, 0x1.61ff32p-5f, 0x1.57a468p-5f,
     0x1.4ddedp-5f,  0x1.44a24ap-5f, 0x1.3be3f4p-5f, 0x1.339a0ep-5f, 0x1.2bbbccp-5f, 0x1.24414p-5f,  0x1.1d234p-5f,
     0x1.165b4ap-5f, 0x1.0fe37p-5f,  0x1.09b652p-5f, 0x1.03cf06p-5f, 0x1.fc521p-6f,  0x1.f1807ap-6f, 0x1.e721b4p-6f,
     0x1.dd2ecap-6f, 0x1.d3a154p-6f, 0x1.ca7364p-6f, 0x1.c19f86p-6f}};
alignas(64) inline constexpr float kFarTerms[5][32] = {
    {-0x1.a6909p-29f,  0x1.f9cffcp-29f,  0x1.f2d8ap-30f,   -0x1.dc6fbep-31f, -0x1.f8ebc6p-30f, -0x1.e59228p-30f,
     -0x1.7a3b0cp-31f, -0x1.33dc88p-30f, 0x1.7a866ep-32f,  -0x1.f73fa2p-30f, -0x1.17f772p-30f, -0x1.95852ep-33f,
     0x1.9a99c2p-36f,  -0x1.660448p-30f, 0x1.e32744p-30f,  0x1.786ebcp-31f,  0x1.60222cp-30f,  -0x1.12f4bep-30f,
     -0x1.eb853p-31f,  0x1.ac63d6p-30f,  0x1.52499cp-30f,  -0x1.9f606cp-30f, 0x1.00e0aep-31f,  0x1.1537b2p-30f,
     -0x1.f87cp-30f,   0x1.062056p-32f,  -0x1.54d5e6p-31f, -0x1.1dfd1ap-33f, 0x1.4f9038p-33f,  -0x1.eb1922p-31f,
     0x1.eb736ep-33f,  0x1.e4540ap-32f},
    {-0x1.6c06b8p-7f, -0x1.4d2cc8p-7f, -0x1.32041cp-7f, -0x1.19fe08p-7f, -0x1.04a56ep-7f, -0x1.e3330cp-8f,
     -0x1.c1139ap-8f, -0x1.a265ccp-8f, -0x1.86b842p-8f, -0x1.6dab14p-8f, -0x1.56ecb4p-8f, -0x1.423774p-8f,
     -0x1.2f4f8cp-8f, -0x1.1e0172p-8f, -0x1.0e208ep-8f, -0x1.ff0c48p-9f, -0x1.e420dep-9f, -0x1.cb43c2p-9f,
     -0x1.b44116p-9f, -0x1.9eeb2ap-9f, -0x1.8b19a6p-9f, -0x1.78a8ccp-9f, -0x1.6778dep-9f, -0x1.576d96p-9f,
     -0x1.486db4p-9f, -0x1.3a62ap-9f,  -0x1.2d3818p-9f, -0x1.20dbdep-9f, -0x1.153d8ap-9f, -0x1.0a4e48p-9f,
     -0x1.0000aep-9f, -0x1.ec9122p-10f},
    {0x1.d419f6p-10f, 0x1.9b0f7ap-10f, 0x1.6ac60ap-10f, 0x1.41a5e6p-10f, 0x1.1e6c0ap-10f, 0x1.00168cp-10f,
     0x1.cbac06p-11f, 0x1.9e04e4p-11f, 0x1.7625d6p-11f, 0x1.532e3ap-11f, 0x1.3464bep-11f, 0x1.192fa6p-11f,
     0x1.010ebcp-11f, 0x1.d72d16p-12f, 0x1.b0d93p-12f,  0x1.8e88b8p-12f, 0x1.6fb9a4p-12f, 0x1.53fd0cp-12f,
     0x1.3af3f8p-12f, 0x1.244cc8p-12f, 0x1.0fc118p-12f, 0x1.fa27f2p-13f, 0x1.d8210ap-13f, 0x1.b91154p-13f,
     0x1.9ca85p-13f,  0x1.829f7ap-13f, 0x1.6ab8dep-13f, 0x1.54bdecp-13f, 0x1.407e74p-13f, 0x1.2dcfd2p-13f,
     0x1.1c8c2ep-13f, 0x1.0c91e2p-13f},
    {-0x1.265672p-12f, -0x1.f0c5f4p-13f, -0x1.a5dc96p-13f, -0x1.685b46p-13f, -0x1.3583ep-13f,  -0x1.0b385cp-13f,
     -0x1.cfa5b6p-14f, -0x1.9410dap-14f, -0x1.61a726p-14f, -0x1.36c87p-14f,  -0x1.122762p-14f, -0x1.e56eap-15f,
     -0x1.af3ccap-15f, -0x1.8056p-15f,   -0x1.57970ap-15f, -0x1.340ff4p-15f, -0x1.14fa0ep-15f, -0x1.f36024p-16f,
     -0x1.c34fcep-16f, -0x1.98db56p-16f, -0x1.733f7ep-16f, -0x1.51d71ep-16f, -0x1.341608p-16f, -0x1.1984c8p-16f,
     -0x1.01bd42p-16f, -0x1.d8cfcap-17f, -0x1.b272a8p-17f, -0x1.8fe11p-17f,  -0x1.70aa72p-17f, -0x1.546d18p-17f,
     -0x1.3ad3fap-17f, -0x1.2394e2p-17f},
    {0x1.6a10d6p-15f, 0x1.260fd2p-15f, 0x1.e13ba6p-16f, 0x1.8c8772p-16f, 0x1.48e214p-16f, 0x1.127694p-16f,
     0x1.ccc2bep-17f, 0x1.84e02ap-17f, 0x1.49e738p-17f, 0x1.193dd2p-17f, 0x1.e1bb4cp-18f, 0x1.9e6128p-18f,
     0x1.65ec8p-18f,  0x1.3660dp-18f,  0x1.0e280cp-18f, 0x1.d7f83ep-19f, 0x1.9dab8ap-19f, 0x1.6bbea6p-19f,
     0x1.40d5p-19f,   0x1.1bd0f2p-19f, 0x1.f78eap-20f,  0x1.bfeb58p-20f, 0x1.8f7526p-20f, 0x1.651ee4p-20f,
     0x1.40075p-20f,  0x1.1f714p-20f,  0x1.02bd3ap-20f, 0x1.d2c8c2p-21f, 0x1.a5e884p-21f, 0x1.7e16e4p-21f,
     0x1.5aad82p-21f, 0x1.3b1deap-21f}};
// Φ(-a) for such an a. A separate function, because its constants would evict those of the usual case from the
// registers.
[[gnu::noinline]] inline Vec<float> far_normal_tail(Vec<float> a) {
    a = at_most(a, 14.5f);  // exp(-14.5²/2) is 0 in float32
    const Vec<float> e = times_gaussian(Vec<float>{} + 1, a), beyond = a - kFarStart;
    // In two parts, because their sum would be rounded before it is multiplied
    return e * by_segment(kFarConstant, beyond, kFarStep) + e * by_segment(kFarTerms, beyond, kFarStep);
}
#endif

constexpr double kDensity = 0.39894228040143267794;  // 1 / sqrt(2 pi), the normal density at 0

#if defined(__AVX512F__)
// Φ(-a) - a φ(a), gelu's derivative at -a, which is 0 at 0.75. Largest error: 4e-8 of it, and 2e-10 near that.
alignas(64) inline constexpr float kGeluSlope[7][32] = {
    {0x1p-1f,         0x1.689658p-2f,   0x1.b70f42p-3f,   0x1.866c9ep-4f,   0x1.95f1dep-11f,  -0x1.116ed2p-4f,
     -0x1.baa428p-4f, -0x1.034856p-3f,  -0x1.050e92p-3f,  -0x1.dc91fcp-4f,  -0x1.93c66cp-4f,  -0x1.418908p-4f,
     -0x1.e4e1e4p-5f, -0x1.5bd286p-5f,  -0x1.dc423ep-6f,  -0x1.37e6aap-6f,  -0x1.876f5ap-7f,  -0x1.d74936p-8f,
     -0x1.107234p-8f, -0x1.2eb7bcp-9f,  -0x1.437006p-10f, -0x1.4c788ap-11f, -0x1.48ee38p-12f, -0x1.395244p-13f,
     -0x1.1f6eap-14f, -0x1.fc03aap-16f, -0x1.b08e6p-17f,  -0x1.62ee34p-18f, -0x1.18b3ep-19f,  -0x1.abff7cp-21f,
     -0x1.3a92bp-22f, -0x1.bdda7ep-24f},
    {-0x1.988454p-1f, -0x1.8a57c4p-1f, -0x1.62018cp-1f, -0x1.2591bcp-1f, -0x1.bb4638p-2f, -0x1.271efp-2f,
     -0x1.3ea998p-3f, -0x1.7f0b32p-5f, 0x1.094086p-5f,  0x1.4d868ap-4f,  0x1.ab0674p-4f,  0x1.b7047cp-4f,
     0x1.8e2466p-4f,  0x1.4a301ep-4f,  0x1.fdc818p-5f,  0x1.72064p-5f,   0x1.fc47a2p-6f,  0x1.4bb9acp-6f,
     0x1.9cadaap-7f,  0x1.ea5dep-8f,   0x1.16bc9cp-8f,  0x1.2f9026p-9f,  0x1.3d072p-10f,  0x1.3dc224p-11f,
     0x1.31df8p-12f,  0x1.1aed44p-13f, 0x1.f73068p-15f, 0x1.ae5bp-16f,   0x1.621d0ep-17f, 0x1.186b2p-18f,
     0x1.ab86c2p-20f, 0x1.39cc6cp-21f},
    {0x1.5a1e3ap-19f,  0x1.2a6858p-3f,   0x1.138bf8p-2f,  0x1.694cfp-2f,    0x1.8d805cp-2f,   0x1.81212cp-2f,
     0x1.4db44ep-2f,   0x1.02033ap-2f,   0x1.5c26eap-3f,  0x1.7e91cap-4f,   0x1.ffb70ap-6f,   -0x1.97f4f6p-7f,
     -0x1.36cadp-5f,   -0x1.8c71bep-5f,  -0x1.8b78dp-5f,  -0x1.5841eep-5f,  -0x1.104af8p-5f,  -0x1.8f1c8ap-6f,
     -0x1.120a44p-6f,  -0x1.6308cp-7f,   -0x1.b3faa6p-8f, -0x1.fd20c2p-9f,  -0x1.1b63aap-9f,  -0x1.2d4d72p-10f,
     -0x1.3265d2p-11f, -0x1.2a5a6cp-12f, -0x1.16748p-13f, -0x1.f29144p-15f, -0x1.ac6928p-16f, -0x1.618956p-17f,
     -0x1.18523ep-18f, -0x1.ab4bfap-20f},
    {0x1.103cb4p-2f,  0x1.f66c1cp-3f,  0x1.81432ap-3f,  0x1.b656e4p-4f,  0x1.37868p-6f,   -0x1.e44edp-5f,
     -0x1.d72d4cp-4f, -0x1.24f852p-3f, -0x1.27a566p-3f, -0x1.008ed8p-3f, -0x1.836554p-4f, -0x1.f2bd76p-5f,
     -0x1.f76b2ap-6f, -0x1.ff6ffp-8f,  0x1.c32a9ap-8f,  0x1.d36fep-7f,   0x1.0a3f6p-6f,   0x1.e949e8p-7f,
     0x1.8b9948p-7f,  0x1.235ec6p-7f,  0x1.8de736p-8f,  0x1.fcf38cp-9f,  0x1.32e1f6p-9f,  0x1.5e7e7ap-10f,
     0x1.7c558cp-11f, 0x1.8915acp-12f, 0x1.83a978p-13f, 0x1.6d5928p-14f, 0x1.496f62p-15f, 0x1.1c7cc4p-16f,
     0x1.d6f236p-18f, 0x1.75e214p-19f},
    {0x1.02489cp-9f,   -0x1.bde93cp-5f,  -0x1.89e796p-4f,  -0x1.deda68p-4f,  -0x1.d37e8ep-4f,  -0x1.771d02p-4f,
     -0x1.cb94cep-5f,  -0x1.377788p-6f,  0x1.9ff1cep-7f,   0x1.1e7d8cp-5f,   0x1.742b7ep-5f,   0x1.62f714p-5f,
     0x1.2560eap-5f,   0x1.9eda36p-6f,   0x1.da6abp-7f,    0x1.738aaep-8f,   0x1.9c9d68p-20f,  -0x1.955448p-9f,
     -0x1.1457b2p-8f,  -0x1.0d08ccp-8f,  -0x1.b843a6p-9f,  -0x1.43824ep-9f,  -0x1.b49b7cp-10f, -0x1.11f71p-10f,
     -0x1.42664ep-11f, -0x1.669be2p-12f, -0x1.795238p-13f, -0x1.794e58p-14f, -0x1.676aeep-15f, -0x1.46c534p-16f,
     -0x1.1b93c8p-17f, -0x1.d6e3ap-19f},
    {-0x1.3c9624p-4f,  -0x1.acfcf8p-5f, -0x1.170bcep-5f, -0x1.50059cp-7f, 0x1.e4c93cp-7f,  0x1.080fb2p-5f,
     0x1.4b1806p-5f,   0x1.3b502p-5f,   0x1.dfefd6p-6f,  0x1.0f5f38p-6f,  0x1.0c08p-8f,    -0x1.6220dap-8f,
     -0x1.5d4cbcp-7f,  -0x1.884c06p-7f, -0x1.575e6ap-7f, -0x1.f5615ap-8f, -0x1.3314bp-8f,  -0x1.19760ep-9f,
     -0x1.9ecf36p-12f, 0x1.21b39p-11f,  0x1.e422ep-11f,  0x1.e9b7ap-11f,  0x1.92d016p-11f, 0x1.237decp-11f,
     0x1.815fe8p-12f,  0x1.d75a86p-13f, 0x1.0d79ccp-13f, 0x1.220672p-14f, 0x1.26d946p-15f, 0x1.1c5f06p-16f,
     0x1.04d09p-17f,   0x1.c7b4d6p-19f},
    {0x1.eb315ep-5f,   0x1.60ceb4p-5f,   0x1.928efcp-5f,   0x1.3169dap-5f,   0x1.3627e4p-6f,   0x1.5e3b86p-6f,
     -0x1.1fcaa4p-6f,  0x1.516026p-6f,   0x1.acaeb8p-5f,   0x1.2f3fa4p-8f,   -0x1.e70f8cp-5f,  0x1.2f1cc6p-6f,
     0x1.c24d8ap-10f,  -0x1.2406cep-6f,  -0x1.7a952p-8f,   0x1.2b9a14p-7f,   0x1.448498p-9f,   0x1.51e9c2p-13f,
     0x1.bd6342p-15f,  0x1.d4de9ap-11f,  -0x1.baae36p-13f, -0x1.37bca6p-12f, -0x1.cfceb2p-13f, -0x1.90bf8p-13f,
     -0x1.6ad062p-13f, -0x1.8a5da6p-14f, -0x1.177bcp-14f,  -0x1.58008p-15f,  -0x1.7690eap-16f, -0x1.6da934p-17f,
     -0x1.734c86p-18f, -0x1.585916p-19f},
};
// The same for an a from 5.9 on, from whose function value and density it is computed
[[gnu::noinline]] inline Vec<float> far_gelu_slope(Vec<float> a) {
    a = at_most(a, 14.5f);
    return far_normal_tail(a) - a * times_gaussian(Vec<float>{} + static_cast<float>(kDensity), a);
}
#endif

// With a = -|x| and s = -a²/2, Φ(a) is exp(s) n / d. `a` is clamped where the product of exp(s) and a is 0.
template <class V>
struct Fraction {
    V n, d;  // d is in the unit of the exponential
};
// Polynomials in a, summed in pairs of terms, none of which is negative, so that few rounding errors add up. Largest
// relative error before rounding: 6e-9.
[[maybe_unused]] inline Fraction<Vec<float>> normal_fraction(Vec<float> a) {
    const Vec<float> s = a * (-0.5f * a);
    Vec<float> n = s * 0x1.d817d8p-6f + (a * 0x1.23427cp-3f - 0x1.485b9ep-1f);
    n = s * n + (a * -0x1.88b66ep-1f + 0x1.cp-1f);
    constexpr float one = kOneInUnits<float>;
    Vec<float> d =
        s * (a * (-0x1.27d64ap-4f * one) + 0x1.6d1022p-1f * one) + (a * (0x1.a4a578p+0f * one) - 0x1.0d5c68p+2f * one);
    d = s * d + (a * (-0x1.771522p+1f * one) + 0x1.cp+0f * one);
    return {n, d};
}
// (1 + h) / (2 + √(2π) |a|), of which h is at most 0.19: h = p / q adds little of its rounding errors, and those of q
// are the same in both parts of (q + p) / (q (2 + √(2π) |a|)). No term is negative. Largest relative error before
// rounding: 1.2e-18.
inline Fraction<Vec<double>> normal_fraction(Vec<double> a) {
    const Vec<double> m = -a, s = a * a;
    Vec<double> p = 0x1.9884533d3ce82p-1 * s + 0x1.44a03dc469e32p+8,
                p_odd = 0x1.6eb1547db6911p+4 * s + 0x1.6e3620beaab13p+11;
    p = p * s + 0x1.1fd371b564adcp+14, p_odd = p_odd * s + 0x1.45cab1e3f7859p+16;
    p = p * s + 0x1.09992cbcee490p+18, p_odd = p_odd * s + 0x1.2dfa65e87772dp+19;
    p = p * s + 0x1.b694879cf421ep+19, p_odd = p_odd * s + 0x1.3c450a71d9724p+19;
    Vec<double> q = 0x1.dfa258ab437a4p+4 * s + 0x1.0a04db1457bc5p+12, q_odd = s + 0x1.bd6dd643a8ca7p+8;
    q = q * s + 0x1.17714cf45b61bp+17, q_odd = q_odd * s + 0x1.c13d4fb1b9751p+14;
    q = q * s + 0x1.679dc4597d0e2p+20, q_odd = q_odd * s + 0x1.03d9dd2b687a2p+19;
    q = q * s + 0x1.f5d5644ab7b6bp+21, q_odd = q_odd * s + 0x1.69a2483dd1496p+21;
    q = q * s + 0x1.5b38a67f607d4p+20, q_odd = q_odd * s + 0x1.af5a1015878d6p+21;
    q = q_odd * m + q;
    constexpr double one = kOneInUnits<double>, root = 0x1.40d931ff62706p+1;
    return {(p * m + p_odd) * m + q, q * (m * (root * one) + 2 * one)};
}
inline constexpr float normal_limit(float) { return -14.5f; }
inline constexpr double normal_limit(double) { return -38.75; }

// x Φ(x): with Φ(-|x|) it is x Φ(-|x|) for negative x, and else x - x Φ(-|x|).
template <class V>
inline V gelu(V x) {
    const V a = at_least(minus_magnitude(x), normal_limit(Element<V>{}));
    const Fraction<V> f = normal_fraction(a);
    // The clamped |x| is used for positive x only, so that -infinity gives NaN, as a product with 0 does.
    return at_most(x, a) * (times_gaussian(f.n, a) / f.d) + at_least(x, 0);
}
// The derivative of gelu, Φ(x) + x φ(x)
template <class V>
inline V gelu_slope(V x) {
    using C = Element<V>;
    const V a = at_least(minus_magnitude(x), normal_limit(C{}));
    const Fraction<V> f = normal_fraction(a);
    const V density = a * (static_cast<C>(kDensity) / kOneInUnits<C>);
    const V tail = times_gaussian(V{} + 1, a) * (f.n / f.d + density);
    return x < 0 ? tail : 1 - tail;
}
#if defined(__AVX512F__)
// Φ(-|x|), where Φ is the standard normal distribution function
inline Vec<float> normal_tail(Vec<float> x) {
    return by_segment_or(kNormal, absolute(x), kNormalStep, far_normal_tail);
}
inline Vec<float> gelu(Vec<float> x) {
    const Vec<float> tail = normal_tail(x);
    return x * (x < 0 ? tail : 1.0f - tail);
}
inline Vec<float> gelu_slope(Vec<float> x) {
    const Vec<float> tail = by_segment_or(kGeluSlope, absolute(x), kNormalStep, far_gelu_slope);
    return x < 0 ? tail : 1.0f - tail;
}
#endif

}  // namespace tensorops::TENSOROPS_TARGET
