// exp, log1p, sigmoid and the error function on vectors: written once for all targets.
//
// float32: polynomials fitted to the least largest relative error. AVX-512 looks up those of a segment in registers,
// where other targets have one for all arguments. The largest errors seen on x86, in eps times the result: exp 0.9,
// sigmoid 2.0, softplus 1.9, gelu 2.3 with AVX-512 and 3.9 without (tests/test_cpu_activation.py bounds them).
// float64: the C library's functions, lane by lane, as no kernel's speed in float64 has mattered yet.
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
// -|x|
inline Vec<float> negative(Vec<float> x) { return floats_of(bits_of(x) | 0x80000000u); }
inline Vec<double> negative(Vec<double> x) {
    return by_lane(x, [](double a) { return -std::fabs(a); });
}

// The larger and the smaller of x and a bound; NaN stays NaN.
inline Vec<float> at_least(Vec<float> x, float bound) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_max_ps(_mm512_set1_ps(bound), reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec<float>>(_mm256_max_ps(_mm256_set1_ps(bound), reinterpret_cast<__m256>(x)));
#elif defined(__x86_64__)
    return reinterpret_cast<Vec<float>>(_mm_max_ps(_mm_set1_ps(bound), reinterpret_cast<__m128>(x)));
#else
    return x < bound ? Vec<float>{} + bound : x;
#endif
}
inline Vec<double> at_least(Vec<double> x, double bound) { return x < bound ? Vec<double>{} + bound : x; }
inline Vec<float> at_most(Vec<float> x, float bound) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_min_ps(_mm512_set1_ps(bound), reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec<float>>(_mm256_min_ps(_mm256_set1_ps(bound), reinterpret_cast<__m256>(x)));
#elif defined(__x86_64__)
    return reinterpret_cast<Vec<float>>(_mm_min_ps(_mm_set1_ps(bound), reinterpret_cast<__m128>(x)));
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
    const Vec<float> e = exp_of_negative(negative(x)), q = reciprocal(e + 1.0f);
    return x >= 0 ? q : e * q;
}
inline Vec<double> sigmoid(Vec<double> x) {
    const Vec<double> e = exp(negative(x));
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
// log(1 + t) for t within [0, 1]: 2 atanh(s) with s = t / (2 + t), written as t less what rounding cannot hurt much
inline Vec<float> log1p_unit(Vec<float> t) {
    const Vec<float> s = t / (t + 2.0f), u = s * s;
    Vec<float> p = 0x1.1ef87ap-2f * u + 0x1.1eb60ep-2f;
    p = p * u + 0x1.99d27cp-2f;
    p = p * u + 0x1.5555p-1f;
    return t - s * (t - u * p);
}
#endif
inline Vec<double> log1p_unit(Vec<double> t) {
    return by_lane(t, [](double a) { return std::log1p(a); });
}

#if defined(__AVX512F__)
// Φ(-a) exp(a²/2) for a from 0 to 15, smooth and slowly falling. 1 + a chooses one of 32 segments, eight to an octave;
// the five bits that number them, counted from those of [2, 2.25), are the last of its exponent and the first three of
// its mantissa. In each the function is a polynomial of degree 4 in the distance from a centre, where its value happens
// to be very nearly a float32. Largest relative error of the polynomials: 6e-8, most are below 1e-8.
alignas(64) inline constexpr float kNormalTail[6][32] = {
    {0x1.1ff598p+0f, 0x1.602f1ep+0f, 0x1.a02dacp+0f, 0x1.e002e4p+0f, 0x1.102672p+1f, 0x1.2fc88p+1f,  0x1.4feef2p+1f,
     0x1.700fe6p+1f, 0x1.a00bdap+1f, 0x1.dfb288p+1f, 0x1.0fd098p+2f, 0x1.3031b8p+2f, 0x1.4feef2p+2f, 0x1.6fea52p+2f,
     0x1.9038f2p+2f, 0x1.b04e0cp+2f, 0x1.e038f2p+2f, 0x1.100094p+3f, 0x1.30176ap+3f, 0x1.504a4ap+3f, 0x1.6fc2b8p+3f,
     0x1.8fc508p+3f, 0x1.afda6cp+3f, 0x1.d0435ap+3f, 0x1.ffdb4cp-5f, 0x1.7fa6dep-3f, 0x1.401adep-2f, 0x1.c027fap-2f,
     0x1.202ac8p-1f, 0x1.6005c8p-1f, 0x1.9fe0c8p-1f, 0x1.e00d4cp-1f},  // centres
    {0x1.f67a8ap-3f, 0x1.bd9462p-3f, 0x1.8f4a5p-3f,  0x1.69099ep-3f, 0x1.48babcp-3f, 0x1.2dbf44p-3f, 0x1.163c8ap-3f,
     0x1.01eedcp-3f, 0x1.d0a7a6p-4f, 0x1.99fdbcp-4f, 0x1.6e3e38p-4f, 0x1.4a404p-4f,  0x1.2d1054p-4f, 0x1.14551p-4f,
     0x1.fe290ep-5f, 0x1.d9da78p-5f, 0x1.ac317p-5f,  0x1.7b5e6ap-5f, 0x1.5438fp-5f,  0x1.343d62p-5f, 0x1.1a43c6p-5f,
     0x1.03f4dep-5f, 0x1.e1b75p-6f,  0x1.c06948p-6f, 0x1.e77128p-2f, 0x1.bba24ep-2f, 0x1.95b12ap-2f, 0x1.74ce54p-2f,
     0x1.580e88p-2f, 0x1.3ee66ap-2f, 0x1.28b00ap-2f, 0x1.14e32p-2f},  // terms, from the constant one on
    {-0x1.f7a63ep-4f, -0x1.98151ap-4f, -0x1.4fd13cp-4f, -0x1.182508p-4f, -0x1.d86458p-5f, -0x1.9394ep-5f,
     -0x1.5b3b32p-5f, -0x1.2d678cp-5f, -0x1.ef1536p-6f, -0x1.86477cp-6f, -0x1.3a607ap-6f, -0x1.017e24p-6f,
     -0x1.ae5e56p-7f, -0x1.6c2e5p-7f,  -0x1.37704ap-7f, -0x1.0d784cp-7f, -0x1.b99616p-8f, -0x1.5bc98ep-8f,
     -0x1.1865ecp-8f, -0x1.cd27bap-9f, -0x1.833bfap-9f, -0x1.48ccc6p-9f, -0x1.1a8154p-9f, -0x1.e9ed58p-10f,
     -0x1.7a0f68p-2f, -0x1.45692ep-2f, -0x1.19b24ep-2f, -0x1.eab6fcp-3f, -0x1.adbecap-3f, -0x1.7a849ep-3f,
     -0x1.4f0ec2p-3f, -0x1.29d066p-3f},
    {0x1.b66e5p-5f,   0x1.49c054p-5f,  0x1.f948fap-6f,  0x1.89950ep-6f,  0x1.36878ap-6f,  0x1.f254ecp-7f,
     0x1.9349eap-7f,  0x1.4a186ap-7f,  0x1.f2d42ap-8f,  0x1.62ac82p-8f,  0x1.038e6p-8f,   0x1.848536p-9f,
     0x1.2b0afcp-9f,  0x1.d464ccp-10f, 0x1.7443dp-10f,  0x1.2cd412p-10f, 0x1.c063p-11f,   0x1.3ae5ep-11f,
     0x1.c9856ep-12f, 0x1.561232p-12f, 0x1.07bc7cp-12f, 0x1.9d5acep-13f, 0x1.499e92p-13f, 0x1.0a6c42p-13f,
     0x1.cfd1e4p-3f,  0x1.7eacbep-3f,  0x1.3da20ap-3f,  0x1.096cb2p-3f,  0x1.be3dd2p-4f,  0x1.798d5cp-4f,
     0x1.41387cp-4f,  0x1.128b1ep-4f},
    {-0x1.578e08p-6f,  -0x1.e45eccp-7f,  -0x1.5c89f6p-7f,  -0x1.fefd34p-8f,  -0x1.7bf7eep-8f,  -0x1.20268p-8f,
     -0x1.b93858p-9f,  -0x1.564c9ep-9f,  -0x1.e08386p-10f, -0x1.364594p-10f, -0x1.9ee4bcp-11f, -0x1.1d1088p-11f,
     -0x1.95ac4cp-12f, -0x1.26f10ap-12f, -0x1.b4d5f8p-13f, -0x1.4a677ap-13f, -0x1.c2af6p-14f,  -0x1.1ac8fp-14f,
     -0x1.72c062p-15f, -0x1.f89eccp-16f, -0x1.658606p-16f, -0x1.02c21cp-16f, -0x1.7f3986p-17f, -0x1.20ddeap-17f,
     -0x1.e537ecp-4f,  -0x1.826ec4p-4f,  -0x1.35a926p-4f,  -0x1.f3cbf6p-5f,  -0x1.95dba4p-5f,  -0x1.4bdea8p-5f,
     -0x1.10fa9p-5f,   -0x1.c33d22p-6f},
    {0x1.ebfd72p-8f,  0x1.47d958p-8f,  0x1.be0f52p-9f,  0x1.35525p-9f,   0x1.b49d3ep-10f, 0x1.396f56p-10f,
     0x1.c8d222p-11f, 0x1.51bf12p-11f, 0x1.b94fb2p-12f, 0x1.03edcap-12f, 0x1.3f486ep-13f, 0x1.96ab0ap-14f,
     0x1.0bb46ap-14f, 0x1.6a7c42p-15f, 0x1.f7476p-16f,  0x1.6551e8p-16f, 0x1.bd3d06p-17f, 0x1.f41992p-18f,
     0x1.29010cp-18f, 0x1.71ab4p-19f,  0x1.def022p-20f, 0x1.40a1ep-20f,  0x1.b9e242p-21f, 0x1.3834d2p-21f,
     0x1.c0e788p-5f,  0x1.5a9f78p-5f,  0x1.0d773p-5f,   0x1.a5f0bp-6f,   0x1.4c6228p-6f,  0x1.07b1c4p-6f,
     0x1.a50d04p-7f,  0x1.51e94cp-7f},
};
inline Vec<float> scaled_normal_tail(Vec<float> a) {
    const __m512i segment = _mm512_srli_epi32(reinterpret_cast<__m512i>(a + 1.0f), 20);
    const auto of_segment = [segment](const float* values) {
        return reinterpret_cast<Vec<float>>(
            _mm512_permutex2var_ps(_mm512_load_ps(values), segment, _mm512_load_ps(values + 16)));
    };
    const Vec<float> d = a - of_segment(kNormalTail[0]);
    Vec<float> p = of_segment(kNormalTail[5]) * d + of_segment(kNormalTail[4]);
    p = p * d + of_segment(kNormalTail[3]);
    p = p * d + of_segment(kNormalTail[2]);
    return p * d + of_segment(kNormalTail[1]);
}
#endif

// The standard normal distribution function, without cancellation in either tail.
//
// It is exp(-x²/2) times a function of |x|, and 1 less that for positive x. AVX-512 looks that function up. Elsewhere
// it is t · p(t) with t = 1 / (1 + |x|/4), and near 0 the whole is 1/2 + x q(x²).
inline Vec<float> normal_cdf(Vec<float> x) {
    const Vec<float> a = at_most(absolute(x), 14.5f);  // exp(-14.5²/2) is 0 in float32
#if defined(__AVX512F__)
    // -a²/2 in two parts, since exp magnifies the rounding error of a large exponent
    const Vec<float> half = -0.5f * a, exponent = half * a;
    const Vec<float> rest = reinterpret_cast<Vec<float>>(_mm512_fmsub_ps(
        reinterpret_cast<__m512>(half), reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(exponent)));
    const Vec<float> e = bounded_exp(exponent, [rest](Vec<float> r) { return r + rest; });
    const Vec<float> tail = scaled_normal_tail(a) * e;
    return x < 0 ? tail : 1.0f - tail;
#else
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
#endif
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
