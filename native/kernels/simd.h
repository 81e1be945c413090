// Vectors that fill one register of the target, written once for all targets.
//
// Vec<float> and Vec<double> are GCC/Clang vector extensions: `a * b + c` compiles to the target's own instructions.
// load and store convert from and to the element types of arrays; half types round to nearest, ties to even, and
// keep NaN. Loads and stores need no alignment except stream, which bypasses the cache.
//
// Everything is in a namespace named after the target: the same code is compiled for several targets, and one target's
// version of an inline function must never replace another's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "elements.h"

#if !defined(TENSOROPS_TARGET)
#error "compile kernels with TENSOROPS_TARGET"
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors are passed between inlined functions only
#endif

namespace tensorops::TENSOROPS_TARGET {

#if defined(__AVX512F__)
inline constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr std::size_t kVectorBytes = 32;
#else
inline constexpr std::size_t kVectorBytes = 16;
#endif

template <class T>
struct VecOf {
    typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;

// In a loop over fewer elements than a vector has: keeps compilers from making vectors of them, which takes kilobytes.
#define TENSOROPS_ONE_BY_ONE(i) asm("" : "+r"(i))

inline constexpr std::size_t kFloats = kVectorBytes / sizeof(float);
// The number of elements of an array of T that fill a vector
template <class T>
inline constexpr std::int64_t kLanes = kVectorBytes / sizeof(Compute<T>);
// Integers for the lanes of a vector of float
typedef std::int32_t I32 __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t U32 __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t U16 __attribute__((vector_size(kVectorBytes / 2)));
// And for the lanes of a vector of double
typedef std::int64_t I64 __attribute__((vector_size(kVectorBytes)));
typedef std::uint64_t U64 __attribute__((vector_size(kVectorBytes)));
typedef std::int8_t I8 __attribute__((vector_size(kFloats)));
typedef std::uint8_t U8 __attribute__((vector_size(kFloats)));

template <class V, class T>
inline V load_bits(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline U32 bits_of(Vec<float> v) { return reinterpret_cast<U32>(v); }
inline U64 bits_of(Vec<double> v) { return reinterpret_cast<U64>(v); }
inline Vec<float> floats_of(U32 v) { return reinterpret_cast<Vec<float>>(v); }
inline Vec<double> floats_of(U64 v) { return reinterpret_cast<Vec<double>>(v); }

// ---- load: kVectorBytes / sizeof(Compute) elements, widened to the type in which kernels compute

inline Vec<float> load(const float* p) { return load_bits<Vec<float>>(p); }
inline Vec<double> load(const double* p) { return load_bits<Vec<double>>(p); }

// 16 bits in the upper halves of lanes, with zeros below. GCC's own conversions take several times as long.
inline U32 in_upper_halves(U16 h) {
#if defined(__AVX512F__)
    return reinterpret_cast<U32>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(h))) << 16;
#elif defined(__AVX2__)
    return reinterpret_cast<U32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(h))) << 16;
#elif defined(__x86_64__)
    const __m128i all = _mm_cvtsi64_si128(reinterpret_cast<long long>(h));
    return reinterpret_cast<U32>(_mm_unpacklo_epi16(__m128i{}, all));
#else
    return __builtin_convertvector(h, U32) << 16;
#endif
}

inline Vec<float> load(const BFloat16* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    // Both halves of the register get all elements, and one instruction selects and shifts.
    const __m256i all = _mm256_broadcastsi128_si256(load_bits<__m128i>(p));
    const __m256i places = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                            -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    return reinterpret_cast<Vec<float>>(_mm256_shuffle_epi8(all, places));
#else
    return floats_of(in_upper_halves(load_bits<U16>(p)));
#endif
}

inline Vec<float> widened_float16(U16 h) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(h)));
#elif defined(__F16C__)
    return reinterpret_cast<Vec<float>>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(h)));
#elif defined(__aarch64__)
    return reinterpret_cast<Vec<float>>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(h)));
#else
    const U32 bits = in_upper_halves(h);
    // The sign, and exponent and fraction at float's places: a product with 2^112 rebases the exponent, including that
    // of subnormals. The exponent of infinity and NaN is corrected afterwards.
    const U32 moved = reinterpret_cast<U32>(reinterpret_cast<I32>(bits) >> 3) & 0x8fffe000u;
    const U32 special = (bits & 0x7c000000u) == 0x7c000000u ? U32{} + 0x7f800000u : U32{};
    return floats_of(bits_of(floats_of(moved) * 0x1p112f) | special);
#endif
}

inline Vec<float> load(const Float16* p) { return widened_float16(load_bits<U16>(p)); }

// As many bytes as a vector of float has lanes. GCC 12 splits conversions of whole vectors.
template <bool kSigned>
inline I32 bytes_to_words(const std::uint8_t* p) {
#if defined(__AVX512F__)
    const __m128i bytes = load_bits<__m128i>(p);
    return reinterpret_cast<I32>(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<I32>(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#elif defined(__SSE4_1__)
    const __m128i bytes = _mm_cvtsi32_si128(load_bits<std::int32_t>(p));
    return reinterpret_cast<I32>(kSigned ? _mm_cvtepi8_epi32(bytes) : _mm_cvtepu8_epi32(bytes));
#else
    using Either = std::conditional_t<kSigned, I8, U8>;
    return __builtin_convertvector(load_bits<Either>(p), I32);
#endif
}

// ---- store

inline void store(float* p, Vec<float> v) { std::memcpy(p, &v, sizeof v); }
inline void store(double* p, Vec<double> v) { std::memcpy(p, &v, sizeof v); }

#if defined(__AVX512BF16__)
// The instructions that round to bfloat16 treat subnormal numbers as zeros.
inline bool has_subnormal(Vec<float> a, Vec<float> b) {
    constexpr int kSubnormal = 0x20;
    const __mmask16 of_a = _mm512_fpclass_ps_mask(reinterpret_cast<__m512>(a), kSubnormal);
    const __mmask16 of_b = _mm512_fpclass_ps_mask(reinterpret_cast<__m512>(b), kSubnormal);
    return __builtin_expect(!_kortestz_mask16_u8(of_a, of_b), 0);
}
#endif

// The upper halves of the lanes are v rounded to bfloat16. Rounding could carry a NaN into infinity.
inline U32 rounded_to_bfloat16(Vec<float> v) {
    const U32 b = bits_of(v);
    const U32 rounded = b + 0x7fffu + ((b >> 16) & 1u);
#if defined(__AVX512F__)
    return v != v ? b | 0x400000u : rounded;
#else
    return rounded | reinterpret_cast<U32>(v != v);  // fewer instructions; a NaN then has all bits
#endif
}

#if defined(__SSE4_1__) && !defined(__AVX512F__)
// Two vectors become one of half their elements' width, in order; their lanes are below 2^16.
typedef std::uint16_t TwoU16 __attribute__((vector_size(kVectorBytes)));

inline TwoU16 joined(U32 a, U32 b) {
#if defined(__AVX2__)
    const __m256i packed = _mm256_packus_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
    return reinterpret_cast<TwoU16>(_mm256_permute4x64_epi64(packed, 0xd8));
#else
    return reinterpret_cast<TwoU16>(_mm_packus_epi32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
}

inline U16 narrowed(U32 v) {
    const TwoU16 both = joined(v, v);
    U16 one;
    std::memcpy(&one, &both, sizeof one);
    return one;
}
#else
inline U16 narrowed(U32 v) { return __builtin_convertvector(v, U16); }
#endif

inline U16 round_to_bfloat16(Vec<float> v) {
#if defined(__AVX512BF16__)
    if (!has_subnormal(v, v)) return reinterpret_cast<U16>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return reinterpret_cast<U16>(vcvt_bf16_f32(reinterpret_cast<float32x4_t>(v)));
#endif
    return narrowed(rounded_to_bfloat16(v) >> 16);
}

#if !defined(__F16C__) && !defined(__AVX512F__) && !defined(__aarch64__)
// Bits of float16 in the lanes. A sum with a large number of the right exponent ends at the last place of a half, so
// that the processor rounds; its last bits then count such places. From 2^16 on, which is infinity, all are alike.
inline U32 rounded_to_float16(Vec<float> v) {
    const U32 b = bits_of(v);
    const Vec<float> infinity = Vec<float>{} + 0x1p16f, magnitude = floats_of(b & 0x7fffffffu);
#if defined(__x86_64__)
    const auto size = reinterpret_cast<Vec<float>>(
        _mm_min_ps(reinterpret_cast<__m128>(magnitude), reinterpret_cast<__m128>(infinity)));
#else
    const Vec<float> size = magnitude < infinity ? magnitude : infinity;
#endif
    const I32 exponent = reinterpret_cast<I32>(bits_of(size) & 0x7f800000u);
    const I32 lowest = I32{} + 0x38800000;  // of the normal halves
    const U32 large = reinterpret_cast<U32>(exponent > lowest ? exponent : lowest) + (13u << 23);
    const U32 h = bits_of(size + floats_of(large)) - large + (large >> 13) - (126u << 10);
    const U32 nan = reinterpret_cast<U32>(v != v) & 0x200u;
    return h | nan | ((b >> 16) & 0x8000u);
}
#endif

inline U16 round_to_float16(Vec<float> v) {
#if defined(__AVX512F__)
    const __m256i h = _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_cast<U16>(h);
#elif defined(__F16C__)
    return reinterpret_cast<U16>(_mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    return reinterpret_cast<U16>(vcvt_f16_f32(reinterpret_cast<float32x4_t>(v)));
#else
    return narrowed(rounded_to_float16(v));
#endif
}

inline void store(BFloat16* p, Vec<float> v) {
    const U16 h = round_to_bfloat16(v);
    std::memcpy(p, &h, sizeof h);
}
inline void store(Float16* p, Vec<float> v) {
    const U16 h = round_to_float16(v);
    std::memcpy(p, &h, sizeof h);
}

// ---- stream: store without reading the line into the cache first; p is aligned to the bytes stored

#if defined(__AVX512F__)
inline void stream_bits(void* p, __m512i v) { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
#endif
#if defined(__AVX2__)
inline void stream_bits(void* p, __m256i v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
#endif
#if defined(__x86_64__)
inline void stream_bits(void* p, __m128i v) { _mm_stream_si128(static_cast<__m128i*>(p), v); }
inline void stream_bits(void* p, std::uint64_t v) {
    _mm_stream_si64(static_cast<long long*>(p), static_cast<long long>(v));
}
inline void stream_fence() { _mm_sfence(); }
#else
inline void stream_fence() {}
#endif

// A whole vector of any elements, as it is
template <bool kStream, class V>
inline void put_bits(void* p, V v) {
    static_assert(sizeof v == kVectorBytes);
#if defined(__AVX512F__)
    if constexpr (kStream) return stream_bits(p, reinterpret_cast<__m512i>(v));
#elif defined(__AVX2__)
    if constexpr (kStream) return stream_bits(p, reinterpret_cast<__m256i>(v));
#elif defined(__x86_64__)
    if constexpr (kStream) return stream_bits(p, reinterpret_cast<__m128i>(v));
#endif
    std::memcpy(p, &v, sizeof v);
}

// To an address that is aligned to a vector
inline void stream_bytes(char* to, const char* from, std::int64_t bytes) {
    constexpr std::int64_t whole = kVectorBytes;
    std::int64_t i = 0;
    for (; i + whole <= bytes; i += whole) put_bits<true>(to + i, load_bits<I32>(from + i));
    std::memcpy(to + i, from + i, static_cast<std::size_t>(bytes - i));
}

template <class T, class V>
inline void stream(T* p, V v) {
#if defined(__AVX512F__)
    if constexpr (is_same<T, BFloat16>)
        stream_bits(p, reinterpret_cast<__m256i>(round_to_bfloat16(v)));
    else if constexpr (is_same<T, Float16>)
        stream_bits(p, reinterpret_cast<__m256i>(round_to_float16(v)));
    else
        stream_bits(p, reinterpret_cast<__m512i>(v));
#elif defined(__AVX2__)
    if constexpr (is_same<T, BFloat16>)
        stream_bits(p, reinterpret_cast<__m128i>(round_to_bfloat16(v)));
    else if constexpr (is_same<T, Float16>)
        stream_bits(p, reinterpret_cast<__m128i>(round_to_float16(v)));
    else
        stream_bits(p, reinterpret_cast<__m256i>(v));
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 2)
        store(p, v);  // the pairs of put_two are streamed
    else
        stream_bits(p, reinterpret_cast<__m128i>(v));
#else
    store(p, v);
#endif
}

template <bool kStream, class T, class V>
inline void put(T* p, V v) {
    if constexpr (kStream)
        stream(p, v);
    else
        store(p, v);
}

// The same for two vectors, one after another
template <bool kStream, class T, class V>
inline void put_two(T* p, V a, V b) {
#if defined(__AVX512BF16__)
    if constexpr (is_same<T, BFloat16>) {
        if (!has_subnormal(a, b)) {
            const __m512bh both = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a));
            return put_bits<kStream>(p, reinterpret_cast<__m512i>(both));
        }
    }
#elif defined(__SSE4_1__) && !defined(__AVX512F__)
    if constexpr (is_same<T, BFloat16>)
        return put_bits<kStream>(p, joined(rounded_to_bfloat16(a) >> 16, rounded_to_bfloat16(b) >> 16));
#if !defined(__F16C__)
    if constexpr (is_same<T, Float16>)
        return put_bits<kStream>(p, joined(rounded_to_float16(a), rounded_to_float16(b)));
#endif
#endif
    put<kStream>(p, a);
    put<kStream>(p + kLanes<T>, b);
}

// v as rounded by storing it in an array of T
template <class T, class V>
inline V as_stored(V v) {
    if constexpr (is_same<T, Float16>)
        return widened_float16(round_to_float16(v));
    else if constexpr (is_same<T, BFloat16>)
        return floats_of(rounded_to_bfloat16(v) & 0xffff0000u);
    else
        return v;
}

// ---- fewer elements than a vector has, for the tail of a row

#if defined(__AVX512BW__) && defined(__AVX512VL__)
inline __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline auto load_part(const float* p, std::int64_t n) {
    return reinterpret_cast<Vec<float>>(_mm512_maskz_loadu_ps(first_lanes(n), p));
}
inline auto load_part(const double* p, std::int64_t n) {
    return reinterpret_cast<Vec<double>>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(n)), p));
}
inline auto load_part(const Float16* p, std::int64_t n) {
    return widened_float16(reinterpret_cast<U16>(_mm256_maskz_loadu_epi16(first_lanes(n), p)));
}
inline auto load_part(const BFloat16* p, std::int64_t n) {
    return floats_of(in_upper_halves(reinterpret_cast<U16>(_mm256_maskz_loadu_epi16(first_lanes(n), p))));
}

inline void store_part(float* p, Vec<float> v, std::int64_t n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), reinterpret_cast<__m512>(v));
}
inline void store_part(double* p, Vec<double> v, std::int64_t n) {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_lanes(n)), reinterpret_cast<__m512d>(v));
}
inline void store_part(Float16* p, Vec<float> v, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), reinterpret_cast<__m256i>(round_to_float16(v)));
}
inline void store_part(BFloat16* p, Vec<float> v, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), reinterpret_cast<__m256i>(round_to_bfloat16(v)));
}
#endif

template <class T>
inline auto load_part(const T* p, std::int64_t n) {
    T part[kVectorBytes / sizeof(Compute<T>)] = {};
    std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(T));
    return load(part);
}

template <class T, class V>
inline void store_part(T* p, V v, std::int64_t n) {
    T part[kVectorBytes / sizeof(Compute<T>)];
    store(part, v);
    std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(T));
}

// ---- the larger of two vectors, lane by lane

// A NaN in b is ignored.
template <class V>
inline V larger_ignoring_nan(V a, V b) {
    return a < b ? b : a;
}
// NaN if either is NaN.
template <class V>
inline V larger_or_nan(V a, V b) {
    const V larger = b > a ? b : a;
    return b == b ? larger : b;
}

// ---- whether a lane of a comparison's result is true

template <class M>
inline bool any(M mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask));
#elif defined(__SSE4_1__)
    return !_mm_testz_si128(reinterpret_cast<__m128i>(mask), reinterpret_cast<__m128i>(mask));
#else
    bool found = false;
    for (std::size_t i = 0; i < sizeof(M) / sizeof(mask[0]); ++i) found |= mask[i] != 0;
    return found;
#endif
}

template <class T>
inline auto load_some(const T* p, std::int64_t n) {
    return n == kLanes<T> ? load(p) : load_part(p, n);
}

// ---- elements with equal distances in memory, in place of a pointer to them

template <class T>
struct Strided {
    const char* first;
    std::int64_t step;  // in bytes

    Strided operator+(std::int64_t i) const { return {first + i * step, step}; }
};
template <class T>
inline auto load_part(Strided<T> x, std::int64_t n) {
    T part[kVectorBytes / sizeof(Compute<T>)] = {};
    for (std::int64_t i = 0; i < n; ++i) {
        TENSOROPS_ONE_BY_ONE(i);
        std::memcpy(part + i, x.first + i * x.step, sizeof(T));
    }
    return load(part);
}
template <class T>
inline auto load(Strided<T> x) {
    return load_part(x, kLanes<T>);
}
template <class T>
inline auto load_some(Strided<T> x, std::int64_t n) {
    return load_part(x, n);
}
template <class T, class V>
inline void store_strided(char* p, std::int64_t step, V v, std::int64_t n) {
    T part[kVectorBytes / sizeof(Compute<T>)];
    store(part, v);
    for (std::int64_t i = 0; i < n; ++i) {
        TENSOROPS_ONE_BY_ONE(i);
        std::memcpy(p + i * step, part + i, sizeof(T));
    }
}

// ---- fetch: prefetch into the first-level cache; any address is valid. Always inlined: GCC takes a function that only
// prefetches for one without effects, and drops calls of it that it has not inlined by then.

inline __attribute__((always_inline)) void fetch(const void* p) { __builtin_prefetch(p); }
template <class T>
inline void fetch(Strided<T>) {}

// ---- a row of n results: f(i, k) returns the vector from i on, of which k elements are stored

template <bool kStream, class T, class F>
inline void put_row(T* y, std::int64_t n, F f) {
    constexpr std::int64_t lanes = kLanes<T>;
    std::int64_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        const auto a = f(i, lanes), b = f(i + lanes, lanes);
        put_two<kStream>(y + i, a, b);
    }
    for (; i < n; i += lanes) {
        const std::int64_t k = n - i < lanes ? n - i : lanes;
        const auto v = f(i, k);
        if (k == lanes)
            put<kStream>(y + i, v);
        else
            store_part(y + i, v, k);
    }
}

// The same, while as many elements of another row are fetched, line by line
template <bool kStream, class T, class F>
inline void put_row(T* y, std::int64_t n, const T* next, F f) {
    constexpr std::int64_t two = 2 * kLanes<T>, line = 64 / sizeof(T), step = two > line ? two : line;
    std::int64_t i = 0;
    for (; i + step <= n; i += step) {
        for (std::int64_t j = i; j < i + step; j += line) fetch(next + j);
        for (std::int64_t j = i; j < i + step; j += two) {
            const auto a = f(j, kLanes<T>), b = f(j + kLanes<T>, kLanes<T>);
            put_two<kStream>(y + j, a, b);
        }
    }
    fetch(next + i);
    put_row<kStream>(y + i, n - i, [=](std::int64_t j, std::int64_t k) { return f(i + j, k); });
}

// ---- one element, for the tail of a row: through a vector, so that it rounds like the others

template <class T>
inline Compute<T> load_one(const T* p) {
    if constexpr (sizeof(T) >= 4) {
        T x;
        std::memcpy(&x, p, sizeof x);
        return x;
    } else {
        T lanes[kFloats] = {};
        std::memcpy(lanes, p, sizeof(T));
        return load(lanes)[0];
    }
}

template <class T>
inline Compute<T> load_one(Strided<T> x) {
    return load_one(reinterpret_cast<const T*>(x.first));
}

template <class T>
inline void store_one(T* p, Compute<T> x) {
    T lanes[kVectorBytes / sizeof(Compute<T>)];
    store(lanes, x - Vec<Compute<T>>{});  // a sum with zero would lose the sign of -0
    std::memcpy(p, lanes, sizeof(T));
}

// The sum of a vector's elements: of its halves, then of the halves of that, and so on.
#if defined(__x86_64__)
inline float sum_of_lanes(__m128 v) {
    const __m128 pairs = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps(pairs, pairs, 1)));
}
inline double sum_of_lanes(__m128d v) { return _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v))); }
#endif

template <class T>
inline T sum_of_lanes(Vec<T> v) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
    else
        return _mm512_reduce_add_pd(reinterpret_cast<__m512d>(v));
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        const __m256 a = reinterpret_cast<__m256>(v);
        return sum_of_lanes(_mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
    } else {
        const __m256d a = reinterpret_cast<__m256d>(v);
        return sum_of_lanes(_mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1)));
    }
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 4)
        return sum_of_lanes(reinterpret_cast<__m128>(v));
    else
        return sum_of_lanes(reinterpret_cast<__m128d>(v));
#else
    constexpr std::size_t lanes = kVectorBytes / sizeof(T);
    T part[lanes];
    std::memcpy(part, &v, sizeof v);
    for (std::size_t half = lanes / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) part[i] += part[i + half];
    return part[0];
#endif
}

// The largest of a vector's elements, none of which is NaN.
template <class V>
inline auto largest_of_lanes(V v) {
    auto largest = v[0] + 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(largest) == 4) return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#endif
    for (std::size_t k = 1; k < sizeof(V) / sizeof(largest); ++k) largest = v[k] > largest ? v[k] : largest;
    return largest;
}

// A compensated sum of vectors, lane by lane: its error does not grow with the number of additions.
template <class C>
struct Total {
    Vec<C> sum{}, rest{};

    void add(Vec<C> v) {
        const Vec<C> next = sum + v, added = next - sum;
        rest += (sum - (next - added)) + (v - added);
        sum = next;
    }
    C value() const {
        const C all = sum_of_lanes<C>(sum + rest);
        return all == all ? all : sum_of_lanes<C>(sum);  // the compensation of an infinity is NaN
    }
    Vec<C> of_lanes() const {
        const Vec<C> all = sum + rest;
        return all == all ? all : sum;
    }
};

// Sums are taken in blocks: plainly within one, which adds a limited number of vectors to each vector of partial sums,
// and in a Total from block to block.
inline constexpr std::int64_t kAddedPlainly = 32;

// The sum of f(i, k) over the elements from begin to end, in four vectors of partial sums; f returns the vector of the
// elements from i on, of which k count and the others are 0.
template <class T, class F>
inline Vec<Compute<T>> plain_sum(std::int64_t begin, std::int64_t end, F f) {
    constexpr std::int64_t lanes = kLanes<T>;
    Vec<Compute<T>> s0{}, s1{}, s2{}, s3{};
    std::int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
        s0 += f(i, lanes);
        s1 += f(i + lanes, lanes);
        s2 += f(i + 2 * lanes, lanes);
        s3 += f(i + 3 * lanes, lanes);
    }
    for (; i < end; i += lanes) s0 += f(i, end - i < lanes ? end - i : lanes);
    return (s0 + s1) + (s2 + s3);
}

// The same over a row
template <class T, class F>
inline Compute<T> sum_of_row(std::int64_t n, F f) {
    using C = Compute<T>;
    constexpr std::int64_t block = kAddedPlainly * 4 * kLanes<T>;
    if (n <= block) return sum_of_lanes<C>(plain_sum<T>(0, n, f));
    Total<C> total;
    for (std::int64_t i = 0; i < n; i += block) total.add(plain_sum<T>(i, n - i < block ? n : i + block, f));
    return total.value();
}

// Two such sums at once; f returns the vectors of both.
template <class V>
struct Two {
    V first, second;
};
template <class T, class F>
inline Two<Vec<Compute<T>>> two_plain_sums(std::int64_t begin, std::int64_t end, F f) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>;
    Vec<C> a[4] = {}, b[4] = {};
    const auto take = [&](int j, std::int64_t i, std::int64_t k) {
        const Two<Vec<C>> v = f(i, k);
        a[j] += v.first;
        b[j] += v.second;
    };
    std::int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes)
        for (int j = 0; j < 4; ++j) take(j, i + j * lanes, lanes);
    for (; i + lanes <= end; i += lanes) take(0, i, lanes);
    if (i < end) take(0, i, end - i);
    return {(a[0] + a[1]) + (a[2] + a[3]), (b[0] + b[1]) + (b[2] + b[3])};
}
template <class T, class F>
inline __attribute__((always_inline)) Two<Compute<T>> two_sums(std::int64_t n, F f) {
    using C = Compute<T>;
    constexpr std::int64_t block = kAddedPlainly * 4 * kLanes<T>;
    if (n <= block) {
        const auto sums = two_plain_sums<T>(0, n, f);
        return {sum_of_lanes<C>(sums.first), sum_of_lanes<C>(sums.second)};
    }
    Total<C> firsts, seconds;
    for (std::int64_t i = 0; i < n; i += block) {
        const auto sums = two_plain_sums<T>(i, n - i < block ? n : i + block, f);
        firsts.add(sums.first);
        seconds.add(sums.second);
    }
    return {firsts.value(), seconds.value()};
}

}  // namespace tensorops::TENSOROPS_TARGET
