// quantize: groups of neighbours in a row become integers of 4 or 8 bits, a scale and a bias; dequantize: the inverse.
//
// Work: rows go to threads in contiguous blocks. quantize processes as many groups at a time as a vector has lanes: the
//   smallest and largest elements are found in vectors, whose lanes are then joined for all the groups at once. The
//   groups are read for that and again for the integers; the second time they come from the first-level cache.
// Precision: float64 in float64, everything else in float32, rounded after every operation as in the generic body (the
//   file is compiled with -ffp-contract=off): integers, scales and elements are identical.
//   quantize_blocks has no groups but blocks of q8_0, whose scales are halves: see tensorops/formats/q8_0.py.
// Bytes: dequantize writes its result, as a fill does; quantize reads w once.
#include "quantize.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "lanes.h"
#include "over_rows.h"
#include "q8_0.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// Integers for the lanes of a vector of float, two of them in a word of 64 bits; and a byte for each word.
typedef std::uint64_t Pairs __attribute__((vector_size(kVectorBytes)));
typedef std::uint8_t HalfBytes __attribute__((vector_size(kFloats / 2)));

// Bytes to words and back in one instruction, as for `bytes_to_words`.

inline Pairs bytes_to_pairs(const std::uint8_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<Pairs>(_mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
    return reinterpret_cast<Pairs>(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(load_bits<std::int32_t>(p))));
#else
    return __builtin_convertvector(load_bits<HalfBytes>(p), Pairs);
#endif
}

// The lowest bytes of words.
inline void store_bytes(std::uint8_t* p, U32 words) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(words)));
#elif defined(__AVX2__)
    const __m256i v = reinterpret_cast<__m256i>(words & 255u);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(halves, halves));
#elif defined(__SSE4_1__)
    const __m128i v = reinterpret_cast<__m128i>(words & 255u), halves = _mm_packus_epi32(v, v);
    const std::int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    std::memcpy(p, &bytes, sizeof bytes);
#else
    const auto bytes = __builtin_convertvector(words & 255u, U8);
    std::memcpy(p, &bytes, sizeof bytes);
#endif
}

// The lowest bytes of words of 64 bits.
inline void store_bytes(std::uint8_t* p, Pairs pairs) {
#if defined(__AVX512F__)
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm512_cvtepi64_epi8(reinterpret_cast<__m512i>(pairs)));
#elif defined(__AVX2__)
    const __m256i first = _mm256_set1_epi64x(0x0800);  // bytes 0 and 8 of either half
    const __m256i v = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(pairs), first);
    const __m128i halves = _mm_unpacklo_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const std::int32_t bytes = _mm_cvtsi128_si32(halves);
    std::memcpy(p, &bytes, sizeof bytes);
#elif defined(__SSE4_1__)
    const __m128i v = _mm_shuffle_epi8(reinterpret_cast<__m128i>(pairs), _mm_set1_epi64x(0x0800));
    const auto bytes = static_cast<std::int16_t>(_mm_cvtsi128_si32(v));
    std::memcpy(p, &bytes, sizeof bytes);
#else
    const auto bytes = __builtin_convertvector(pairs, HalfBytes);
    std::memcpy(p, &bytes, sizeof bytes);
#endif
}

// ---------------------------------------------------------------------------------------------------- dequantize

// A vector of packed integers.
template <class C, int kBits, bool kSigned>
inline Vec<C> unpack(const std::uint8_t* packed) {
    if constexpr (sizeof(C) == 8) {
        Vec<C> v{};
        for (std::size_t i = 0; i < kLanes<C>; ++i) {
            const int byte = packed[kBits == 4 ? i / 2 : i];
            v[i] = kBits == 4 ? byte >> (i % 2 * 4) & 15 : kSigned ? static_cast<std::int8_t>(byte) : byte;
        }
        return v;
    } else if constexpr (kBits == 4) {
        // Each byte becomes 64 bits; the upper word gets the high half.
        const Pairs bytes = bytes_to_pairs(packed), words = (bytes | (bytes << 28)) & 0x0000000f0000000fu;
        return __builtin_convertvector(reinterpret_cast<I32>(words), Vec<C>);
    } else {
        return __builtin_convertvector(bytes_to_words<kSigned>(packed), Vec<C>);
    }
}

template <bool kStream, class T, int kBits, bool kSigned>
inline void dequantize_group(const std::uint8_t* packed, std::int64_t n, Compute<T> s, Compute<T> b, T* w) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const auto elements = [s, b](const std::uint8_t* q) {
        const Vec<C> scaled = unpack<C, kBits, kSigned>(q) * s;
        return kSigned ? scaled : scaled + b;
    };
    if (n < lanes) {
        std::uint8_t part[lanes] = {};
        std::memcpy(part, packed, static_cast<std::size_t>(n * kBits / 8));
        return store_part(w, elements(part), n);
    }
    std::int64_t i = 0;
    if constexpr (sizeof(T) == 2)  // two vectors are narrowed together
        for (; i + 2 * lanes <= n; i += 2 * lanes)
            put_two<kStream>(w + i, elements(packed + i * kBits / 8), elements(packed + (i + lanes) * kBits / 8));
    for (; i + lanes <= n; i += lanes) put<kStream>(w + i, elements(packed + i * kBits / 8));
    if (i < n) store(w + n - lanes, elements(packed + (n - lanes) * kBits / 8));  // overlaps the previous vector
}

// Above this the product of a scale and an integer may overflow, whatever the element.
template <class C>
inline constexpr C kLargeScale = sizeof(C) == 4 ? C(0x1p119) : C(0x1p1015);

// A group with such a scale. Halving is exact, and an element overflows only if it is too large itself.
template <class T, int kBits, bool kSigned>
[[gnu::noinline]] void dequantize_halves(const std::uint8_t* packed, std::int64_t n, Compute<T> s, Compute<T> b, T* w) {
    using C = Compute<T>;
    for (std::int64_t i = 0; i < n; ++i) {
        const int byte = packed[i * kBits / 8];
        const int q = kBits == 4 ? byte >> (i % 2 * 4) & 15 : kSigned ? static_cast<std::int8_t>(byte) : byte;
        const C scaled = static_cast<C>(q) * (s * C(0.5));
        store_one(w + i, (kSigned ? scaled : scaled + b * C(0.5)) / C(0.5));
    }
}

template <bool kStream, class T, int kBits, bool kSigned>
void dequantize_row(const Dequantize& op, std::int64_t row) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const std::int64_t groups = op.columns / op.group_size, n = op.group_size;
    const auto* packed = reinterpret_cast<const std::uint8_t*>(op.weight + row * op.weight_stride);
    const T* scales = reinterpret_cast<const T*>(op.scales + row * op.scale_stride);
    const T* biases = reinterpret_cast<const T*>(op.biases + row * op.bias_stride);
    T* w = reinterpret_cast<T*>(op.w) + row * op.columns;
    for (std::int64_t first = 0; first < groups; first += lanes) {
        const std::int64_t count = groups - first < lanes ? groups - first : lanes;
        const auto some = [=](const T* p) { return count == lanes ? load(p + first) : load_part(p + first, count); };
        C s[lanes], b[lanes] = {};
        store(s, some(scales));
        if constexpr (!kSigned) store(b, some(biases));
        for (std::int64_t g = 0; g < count; ++g) {
            if (std::fabs(s[g]) >= kLargeScale<C>)
                dequantize_halves<T, kBits, kSigned>(packed, n, s[g], b[g], w);
            else
                dequantize_group<kStream, T, kBits, kSigned>(packed, n, s[g], b[g], w);
            packed += n * kBits / 8;
            w += n;
        }
    }
}

// ------------------------------------------------------------------------------------------------------ quantize

template <class V>
inline V smaller(V a, V b) {
    return b < a ? b : a;
}

template <class V>
inline V absolute(V v) {
    return v < 0 ? -v : v;
}

template <class T>
inline constexpr Compute<T> kLargest = std::numeric_limits<T>::max();
template <>
inline constexpr float kLargest<Float16> = 0x1.ffcp15f;
template <>
inline constexpr float kLargest<BFloat16> = 0x1.fep127f;
// The distance from 1 to the next number
template <class T>
inline constexpr Compute<T> kEpsilon = std::numeric_limits<T>::epsilon();
template <>
inline constexpr float kEpsilon<Float16> = 0x1p-10f;
template <>
inline constexpr float kEpsilon<BFloat16> = 0x1p-7f;

template <class T>
inline constexpr Compute<T> kSmallest = std::numeric_limits<T>::denorm_min();
template <>
inline constexpr float kSmallest<Float16> = 0x1p-24f;
template <>
inline constexpr float kSmallest<BFloat16> = 0x1p-133f;

// Scales as stored, rounded up so that the integers reach every element. Where that would take a group's largest
// element out of range, the scale is a little less.
template <class T>
inline Vec<Compute<T>> scale_as_stored(Vec<Compute<T>> scale, Vec<Compute<T>> low, Compute<T> steps) {
    using C = Compute<T>;
    Vec<C> stored = as_stored<T>(scale);
    if constexpr (sizeof(T) == 2) {
        const Vec<C> relative = stored * (C(0.625) * kEpsilon<T>), least = Vec<C>{} + C(0.75) * kSmallest<T>;
        stored = as_stored<T>(stored < scale ? stored + (relative > least ? relative : least) : stored);
    }
    const Vec<C> half_of_largest = steps * (stored * C(0.5)) + low * C(0.5);
    return half_of_largest > C(0.5) * kLargest<T> ? as_stored<T>(scale * (C(1) - 2 * kEpsilon<T>)) : stored;
}

// Calls f with the vectors of a group and their positions. The last two may overlap; fewer elements than a vector are
// padded with the first of them.
template <class T, class F>
inline void for_vectors(const T* x, std::int64_t n, F f) {
    constexpr std::int64_t lanes = kLanes<Compute<T>>;
    if (n < lanes) {
        T part[lanes];
        for (T& p : part) std::memcpy(&p, x, sizeof p);  // x may be unaligned
        std::memcpy(part, x, static_cast<std::size_t>(n) * sizeof(T));
        return f(load(part), 0);
    }
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) f(load(x + i), i);
    if (i < n) f(load(x + n - lanes), n - lanes);
}

// Integers 0 … 255, or -127 … 127 in two's complement, as the lowest bytes of lanes.
template <class C, int kBits>
inline void pack(Vec<C> whole, std::uint8_t* packed) {
    constexpr std::size_t lanes = kLanes<C>;
    // In such a sum the last bits count ones.
    const Vec<C> sum = whole + (sizeof(C) == 4 ? C(0x1.8p23) : C(0x1.8p52));
    if constexpr (sizeof(C) == 8) {
        std::uint64_t bits[lanes];
        std::memcpy(bits, &sum, sizeof bits);
        for (std::size_t i = 0; i < lanes; i += 8 / kBits)
            packed[i * kBits / 8] = static_cast<std::uint8_t>(kBits == 4 ? (bits[i] & 15) | bits[i + 1] << 4 : bits[i]);
    } else if constexpr (kBits == 4) {
        const auto pairs = reinterpret_cast<Pairs>(bits_of(sum) & 15u);
        store_bytes(packed, pairs | (pairs >> 28));
    } else {
        store_bytes(packed, bits_of(sum));
    }
}

template <class T, int kBits, bool kSigned>
inline void quantize_group(const T* x, std::int64_t n, Compute<T> scale, Compute<T> low, std::uint8_t* packed) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    constexpr C most = kSigned ? 127 : (1 << kBits) - 1, least = kSigned ? -127 : 0;
    // All elements are equal, or one is infinite or NaN, and then every quotient is 0 or NaN: the integers are 0.
    if (!(scale > 0 && scale <= std::numeric_limits<C>::max())) {
        std::memset(packed, 0, static_cast<std::size_t>(n * kBits / 8));
        return;
    }
    std::uint8_t part[lanes];
    const auto pack_levels = [&](auto level) {
        for_vectors(x, n, [&](Vec<C> v, std::int64_t i) {
            v = level(v);
            v = v < least ? Vec<C>{} + least : v;
            v = v > most ? Vec<C>{} + most : v;
            pack<C, kBits>(v, n < lanes ? part : packed + i * kBits / 8);
        });
    };
    if constexpr (kSigned)
        pack_levels([scale](Vec<C> v) { return v / scale; });
    else if (scale < kLargeScale<C>)
        pack_levels([scale, low](Vec<C> v) { return (v - low) / scale; });
    else  // the distance from the lowest may also overflow
        pack_levels([half = scale * C(0.5), low = low * C(0.5)](Vec<C> v) { return (v * C(0.5) - low) / half; });
    if (n < lanes) std::memcpy(packed, part, static_cast<std::size_t>(n * kBits / 8));
}

// As many groups as a vector has lanes, or fewer.
template <class T, int kBits, bool kSigned>
void quantize_groups(const T* x, std::int64_t n, std::int64_t count, T* scales, T* biases, std::uint8_t* packed) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    constexpr C steps = kSigned ? 127 : (1 << kBits) - 1;
    Vec<C> lows[lanes] = {}, highs[lanes] = {};
    for (std::int64_t g = 0; g < count; ++g) {
        Vec<C> low = Vec<C>{} + std::numeric_limits<C>::infinity();
        Vec<C> high = kSigned ? Vec<C>{} : -low;
        for_vectors(x + g * n, n, [&](Vec<C> v, std::int64_t) {
            if (!kSigned) low = smaller(low, v);
            high = larger_or_nan(high, kSigned ? absolute(v) : v);
        });
        lows[g] = low;
        highs[g] = high;
    }
    const Vec<C> high = join_lanes<C>(highs, larger_or_nan<Vec<C>>);
    Vec<C> low{}, scale;
    if constexpr (kSigned) {
        scale = high / steps;
    } else {
        low = join_lanes<C>(lows, smaller<Vec<C>>);
        low = high == high ? low : high;
        scale = (C(0.5) * high - C(0.5) * low) / (C(0.5) * steps);
    }
    scale = scale_as_stored<T>(scale, low, steps);
    if (count == lanes) {
        store(scales, scale);
        if (!kSigned) store(biases, low);
    } else {
        store_part(scales, scale, count);
        if (!kSigned) store_part(biases, low, count);
    }
    C s[lanes], b[lanes];
    store(s, scale);
    store(b, low);
    for (std::int64_t g = 0; g < count; ++g)
        quantize_group<T, kBits, kSigned>(x + g * n, n, s[g], b[g], packed + g * n * kBits / 8);
}

template <class T, int kBits, bool kSigned>
void quantize_row(const Quantize& op, std::int64_t row) {
    constexpr std::int64_t lanes = kLanes<Compute<T>>;
    const std::int64_t groups = op.columns / op.group_size, n = op.group_size;
    const T* x = reinterpret_cast<const T*>(op.w + row * op.w_stride);
    T* scales = reinterpret_cast<T*>(op.scales) + row * groups;
    T* biases = kSigned ? nullptr : reinterpret_cast<T*>(op.biases) + row * groups;
    auto* packed = reinterpret_cast<std::uint8_t*>(op.weight) + row * op.columns * kBits / 8;
    for (std::int64_t g = 0; g < groups; g += lanes)
        quantize_groups<T, kBits, kSigned>(x + g * n, n, groups - g < lanes ? groups - g : lanes, scales + g,
                                           kSigned ? nullptr : biases + g, packed + g * n * kBits / 8);
}

// ------------------------------------------------------------------------------------------------ blocks of q8_0

constexpr std::int64_t kBlock = q8_0::kElements;

void quantize_block(const float* x, std::uint8_t* block) {
    Vec<float> largest{};
    for (std::int64_t i = 0; i < kBlock; i += kLanes<float>)
        largest = larger_ignoring_nan(largest, absolute(load(x + i)));
    const float scale = largest_of_lanes(largest) / 127.0f, inverse = scale == 0 ? 0.0f : 1.0f / scale;
    const float factor = inverse > std::numeric_limits<float>::max() ? 0.0f : inverse;
    store_one(reinterpret_cast<Float16*>(block), scale);
    for (std::int64_t i = 0; i < kBlock; i += kLanes<float>) {
        const Vec<float> scaled = load(x + i) * factor, magnitude = absolute(scaled);
        I32 whole = __builtin_convertvector(magnitude, I32);
        whole -= magnitude - __builtin_convertvector(whole, Vec<float>) >= 0.5f;  // halves are rounded away from zero
        store_bytes(block + 2 + i, reinterpret_cast<U32>(scaled < 0 ? -whole : whole));
    }
}

void quantize_blocks_of_row(const QuantizeBlocks& op, std::int64_t row) {
    const auto* x = reinterpret_cast<const float*>(op.w + row * op.w_stride);
    auto* to = reinterpret_cast<std::uint8_t*>(op.blocks) + row * (op.columns / kBlock) * q8_0::kBytes;
    for (std::int64_t i = 0; i < op.columns; i += kBlock, to += q8_0::kBytes) quantize_block(x + i, to);
}

// ------------------------------------------------------------------------------------------------------ all rows

template <class T, int kBits, bool kSigned>
void dequantize_rows(const Dequantize& op) {
    over_rows(op.rows, op.rows * op.columns * static_cast<std::int64_t>(sizeof(T)), op.streaming,
              [&op](auto streaming, std::int64_t i) { dequantize_row<streaming, T, kBits, kSigned>(op, i); });
}

template <class T, int kBits, bool kSigned>
void quantize_rows(const Quantize& op) {
    over_rows(op.rows, op.rows * op.columns * static_cast<std::int64_t>(sizeof(Compute<T>)),
              [&op](std::int64_t i) { quantize_row<T, kBits, kSigned>(op, i); });
}

template <class T>
void dequantize_format(const Dequantize& op) {
    if (op.bits == 4) return dequantize_rows<T, 4, false>(op);
    return op.biases ? dequantize_rows<T, 8, false>(op) : dequantize_rows<T, 8, true>(op);
}

template <class T>
void quantize_format(const Quantize& op) {
    if (op.bits == 4) return quantize_rows<T, 4, false>(op);
    return op.biases ? quantize_rows<T, 8, false>(op) : quantize_rows<T, 8, true>(op);
}

}  // namespace

TENSOROPS_KERNEL(dequantize, Dequantize) {
    for_dtype(op.dtype, [&op](auto w) { dequantize_format<decltype(w)>(op); });
}

TENSOROPS_KERNEL(quantize_blocks, QuantizeBlocks) {
    over_rows(op.rows, op.rows * op.columns * static_cast<std::int64_t>(sizeof(float)),
              [&op](std::int64_t i) { quantize_blocks_of_row(op, i); });
}

TENSOROPS_KERNEL(quantize, Quantize) {
    for_dtype(op.dtype, [&op](auto w) { quantize_format<decltype(w)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
