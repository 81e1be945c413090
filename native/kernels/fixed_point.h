// A row of x as integers, for products with integers of 4 or 8 bits that are as accurate as those in float32.
//
// 32 neighbours of x become fixed-point numbers of 24 bits with a common scale. Processors multiply small integers and
// add neighbouring products exactly, so the numbers are split into digits:
//
// * AVX512_VNNI and AArch64's dotprod: three digits of base 256, -128 … 127. One instruction multiplies bytes and adds
//   four products to a sum.
// * AVX2, weights of 4 bits: the same digits. vpmaddubsw multiplies bytes and adds two products; four fit 16 bits. A
//   vector of packed weights takes 20 instructions, with two digits of base 4096 it would be 24.
// * Other processors, and weights of 8 bits: two digits of base 4096, -2048 … 2047. Words of 16 bits are multiplied,
//   two products added.
//
// Either way each 32 bits of packed weights give one sum of products, which is scaled in float32.
#pragma once

#include <cmath>

#include "byte_dots.h"
#include "dot_tiles.h"
#include "lanes.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

inline constexpr std::int64_t kFixed = 32;  // neighbours of x with a common scale
// Numbers below this have no scale in float32.
inline constexpr float kSmallestFixed = 1e-31f;
// Integers times larger ones would overflow.
inline constexpr float kLargestFixed = 1e30f;

// The number of weights in a packed vector
template <int kBits>
inline constexpr std::int64_t kBlockWeights = kVectorBytes * 8 / kBits;
// And in one lane of it
template <int kBits>
inline constexpr std::int64_t kLaneWeights = 32 / kBits;

// A row of x as float32; for 4 bits, first the elements multiplied by low nibbles, then those by high ones.
template <class T>
void arrange(const T* x, int bits, std::int64_t n, float* to) {
    if (bits == 8) return convert(x, to, n);
    constexpr std::int64_t kPiece = 256;
    float piece[kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
        const std::int64_t pairs = std::min(kPiece, n - begin) / 2;
        convert(x + begin, piece, 2 * pairs);
        float *low = to + begin / 2, *high = low + n / 2;
        for (std::int64_t i = 0; i < pairs; ++i) {
            low[i] = piece[2 * i];
            high[i] = piece[2 * i + 1];
        }
    }
}

// The largest magnitude of some numbers, in whole vectors; NaN if one is NaN. As integers, the bits of magnitudes have
// the order of the numbers, and those of NaN are above all.
template <class T>
float largest_magnitude(const T* x, std::int64_t n) {
    I32 m{};
    for (std::int64_t i = 0; i < n; i += kLanes<float>) {
        const I32 bits = reinterpret_cast<I32>(absolute(load(x + i)));
        m = bits > m ? bits : m;
    }
    std::int32_t largest = m[0];
#if defined(__AVX512F__)
    largest = _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(m));
#elif defined(__AVX2__)
    const __m256i all = reinterpret_cast<__m256i>(m);
    __m128i v = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    largest = _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
#else
    for (std::size_t k = 1; k < sizeof m / sizeof largest; ++k) largest = m[k] > largest ? m[k] : largest;
#endif
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

// Whether numbers with this largest magnitude have a scale; those that are all 0 have any.
inline bool has_scale(float largest) { return largest == 0 || (largest >= kSmallestFixed && largest <= kLargestFixed); }

#if defined(TENSOROPS_DOTS)

// A block of x, multiplied by a vector of packed integers.
template <int kBits>
struct Block {
    static constexpr float kUnits = 127 * 65536 + 127 * 256;  // the largest is 127 more, which rounding must not exceed
    static constexpr int kDigits = 3, kDigitBits = 8;
    static constexpr std::int64_t kParts = 8 / kBits;
    std::int8_t digits[kDigits][kParts][kVectorBytes];  // by significance, low and high nibbles
    std::int32_t start[kDigits][kFloats];               // the initial sums of products: some weights have 128 added
};

#else

typedef std::int16_t I16 __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t Words __attribute__((vector_size(kVectorBytes)));

// A block of x, multiplied by a vector of packed integers with several in each 16-bit word.
template <int kBits>
struct Block {
    static constexpr float kUnits = 2047 * 4096 + 2046;  // the largest is one more, which rounding must not exceed
    static constexpr int kDigits = 2, kDigitBits = 12;
    static constexpr std::int64_t kParts = 16 / kBits;
    std::int16_t digits[kDigits][kParts][kVectorBytes / 2];  // by significance and position in a word
};

#endif

#if defined(__AVX512VNNI__)

// Fixed-point numbers of the given scale: three digits of each of 16.
inline void store_digits(Vec<float> x, float per_unit, std::int8_t* high, std::int8_t* middle, std::int8_t* low) {
    // When 128 is added to each digit, none is negative, so that they are the number's bytes.
    const __m512i more = _mm512_set1_epi32(0x808080);
    const __m512i q = _mm512_cvtps_epi32(reinterpret_cast<__m512>(x * per_unit));
    const __m512i bytes = _mm512_xor_si512(_mm512_add_epi32(q, more), more);
    // Those of four neighbours that have the same place, then those of all.
    const __m128i by_place = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i of_four = _mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(by_place));
    const __m512i digits =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), of_four);
    const auto store_16 = [](std::int8_t* to, __m128i v) { std::memcpy(to, &v, sizeof v); };
    store_16(low, _mm512_castsi512_si128(digits));
    store_16(middle, _mm512_extracti32x4_epi32(digits, 1));
    store_16(high, _mm512_extracti32x4_epi32(digits, 2));
}

// The digits of the `index`th 32 neighbours of a row.
template <int kBits, class T>
void store_neighbours(const T* x, float per_unit, std::int64_t index, Block<kBits>* blocks) {
    constexpr std::size_t per_block = kBlockWeights<kBits> / kFixed;
    auto& d = blocks[static_cast<std::size_t>(index) / per_block].digits;
    const std::size_t place = static_cast<std::size_t>(index) % per_block;
    const Vec<float> a = load(x), b = load(x + 16);
    if constexpr (kBits == 4) {
        const auto lane = std::make_index_sequence<16>{};
        const Vec<float> of_low = even_lanes(a, b, lane), of_high = odd_lanes(a, b, lane);
        store_digits(of_low, per_unit, d[0][0] + 16 * place, d[1][0] + 16 * place, d[2][0] + 16 * place);
        store_digits(of_high, per_unit, d[0][1] + 16 * place, d[1][1] + 16 * place, d[2][1] + 16 * place);
    } else {
        store_digits(a, per_unit, d[0][0] + 32 * place, d[1][0] + 32 * place, d[2][0] + 32 * place);
        store_digits(b, per_unit, d[0][0] + 32 * place + 16, d[1][0] + 32 * place + 16, d[2][0] + 32 * place + 16);
    }
}

#else

// The digits of the `index`th 32 neighbours of a row.
template <int kBits, class T>
void store_neighbours(const T* x, float per_unit, std::int64_t index, Block<kBits>* blocks) {
    constexpr int kDigits = Block<kBits>::kDigits, kDigitBits = Block<kBits>::kDigitBits;
    std::int32_t digits[kDigits][kFixed];
    for (std::int64_t i = 0; i < kFixed; i += kLanes<float>) {
        const Vec<float> v = load(x + i) * per_unit;
        I32 q = __builtin_convertvector(v < 0 ? v - 0.5f : v + 0.5f, I32);
        for (int d = kDigits - 1; d >= 0; --d) {
            constexpr int kHalf = 1 << (kDigitBits - 1);
            const I32 digit = ((q + kHalf) & (2 * kHalf - 1)) - kHalf;
            std::memcpy(digits[d] + i, &digit, sizeof digit);
            q = (q - digit) >> kDigitBits;
        }
    }
    constexpr std::int64_t kParts = Block<kBits>::kParts, kStep = std::min(kFixed, kBlockWeights<kBits>);
    for (std::int64_t begin = 0; begin < kFixed; begin += kStep) {
        const std::int64_t first = (kFixed * index + begin) % kBlockWeights<kBits>;
        auto& to = blocks[(kFixed * index + begin) / kBlockWeights<kBits>].digits;
        using Digit = std::remove_reference_t<decltype(to[0][0][0])>;
        for (int d = 0; d < kDigits; ++d)
            for (std::int64_t part = 0; part < kParts; ++part)
                for (std::int64_t i = 0; i < kStep / kParts; ++i)
                    to[d][part][first / kParts + i] = static_cast<Digit>(digits[d][begin + kParts * i + part]);
    }
}

#endif

#if defined(TENSOROPS_DOTS)

// Weights of 8 bits that must get another sign for `dot`
template <bool kSigned>
inline constexpr bool kIsShifted = kSigned != kSignedCodes;

// The excess of weights to which 128 is added or, where codes have signs, from which it is subtracted
template <int kBits>
void finish_block(Block<kBits>& block) {
    for (int d = 0; d < 3; ++d) {
        const I32 start = -dot(I32{}, Codes{} + std::uint8_t{128}, block.digits[d][0]);
        std::memcpy(block.start[d], &start, sizeof start);
    }
}

// For each lane, the sum of the products of its weights, without the scales.
template <int kBits, bool kSigned>
inline Vec<float> products_of_block(U32 weights, const Block<kBits>& x) {
    const Codes packed = reinterpret_cast<Codes>(weights);
    if constexpr (kBits == 4) {  // all three sums together fit 32 bits
        const Codes low = packed & 15, high = packed >> 4;
        I32 sum = dot(dot(I32{}, low, x.digits[0][0]), high, x.digits[0][1]);
        sum = dot(dot(sum << 8, low, x.digits[1][0]), high, x.digits[1][1]);
        sum = dot(dot(sum << 8, low, x.digits[2][0]), high, x.digits[2][1]);
        return __builtin_convertvector(sum, Vec<float>);
    } else {
        const Codes q = kIsShifted<kSigned> ? packed ^ 128 : packed;
        I32 sums[3];
        for (int d = 0; d < 3; ++d)
            sums[d] = dot(kIsShifted<kSigned> ? load_bits<I32>(x.start[d]) : I32{}, q, x.digits[d][0]);
        return value_of_digits(sums);
    }
}

#else  // words of 16 bits

template <int kBits>
void finish_block(Block<kBits>&) {}

// Products of words, the sums of two neighbours each
inline I32 pair_products(I16 a, I16 b) {
#if defined(__AVX512F__)
    return reinterpret_cast<I32>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<I32>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__x86_64__)
    return reinterpret_cast<I32>(_mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#elif defined(__aarch64__)
    const auto u = reinterpret_cast<int16x8_t>(a), v = reinterpret_cast<int16x8_t>(b);
    return reinterpret_cast<I32>(vpaddq_s32(vmull_s16(vget_low_s16(u), vget_low_s16(v)), vmull_high_s16(u, v)));
#else
    I32 sums;
    for (std::size_t i = 0; i < kFloats; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
}

// For each lane, the sum of the products of its weights, without the scales.
template <int kBits, bool kSigned>
inline Vec<float> products_of_block(U32 weights, const Block<kBits>& x) {
    const Words w = reinterpret_cast<Words>(weights);
    const auto sum_of_products = [&](const std::int16_t (*digits)[kVectorBytes / 2]) {
        const auto part = [&](I16 q, int k) { return pair_products(q, load_bits<I16>(digits[k])); };
        if constexpr (kBits == 4)
            return (part(reinterpret_cast<I16>(w & 15), 0) + part(reinterpret_cast<I16>((w >> 4) & 15), 1)) +
                   (part(reinterpret_cast<I16>((w >> 8) & 15), 2) + part(reinterpret_cast<I16>(w >> 12), 3));
        else if constexpr (kSigned)
            return part(reinterpret_cast<I16>(w << 8) >> 8, 0) + part(reinterpret_cast<I16>(w) >> 8, 1);
        else
            return part(reinterpret_cast<I16>(w & 255), 0) + part(reinterpret_cast<I16>(w >> 8), 1);
    };
    const I32 high = sum_of_products(x.digits[0]), low = sum_of_products(x.digits[1]);
    if constexpr (kBits == 4) return __builtin_convertvector((high << 12) + low, Vec<float>);  // which fits 32 bits
    return __builtin_convertvector(high, Vec<float>) * 4096.0f + __builtin_convertvector(low, Vec<float>);
}

#if defined(__AVX2__) && !defined(__AVX512F__)  // weights of 4 bits

template <>
struct Block<4> {
    static constexpr float kUnits = 127 * 65536 + 127 * 256;  // the largest is 127 more, which rounding must not exceed
    std::int8_t digits[3][2][32];                             // by significance, low and high nibbles
};

// Bytes from the vectors of 32 integers: those at even places, then those at odd ones.
inline __m256i even_and_odd_bytes(const __m256i (&q)[4]) {
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i in_order = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const __m128i even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i apart = _mm256_shuffle_epi8(in_order, _mm256_broadcastsi128_si256(even_odd));
    return _mm256_permute4x64_epi64(apart, 0xd8);
}

template <class T>
void store_neighbours(const T* x, float per_unit, std::int64_t index, Block<4>* blocks) {
    Block<4>& block = blocks[index / 2];
    const std::int64_t place = index % 2;
    __m256i q[4], digit[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(reinterpret_cast<__m256>(load(x + 8 * i) * per_unit));
    for (int d = 2; d >= 0; --d) {
        for (int i = 0; i < 4; ++i) {
            digit[i] = _mm256_srai_epi32(_mm256_slli_epi32(q[i], 24), 24);
            q[i] = _mm256_srai_epi32(_mm256_sub_epi32(q[i], digit[i]), 8);
        }
        const __m256i bytes = even_and_odd_bytes(digit);
        const __m128i of_low = _mm256_castsi256_si128(bytes), of_high = _mm256_extracti128_si256(bytes, 1);
        std::memcpy(block.digits[d][0] + 16 * place, &of_low, sizeof of_low);
        std::memcpy(block.digits[d][1] + 16 * place, &of_high, sizeof of_high);
    }
}

template <>
inline Vec<float> products_of_block<4, false>(U32 weights, const Block<4>& x) {
    const __m256i packed = reinterpret_cast<__m256i>(weights), nibble = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(packed, nibble);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble);
    const auto dot = [&](const std::int8_t (*digits)[32]) {  // at most 4 · 15 · 128
        return _mm256_add_epi16(_mm256_maddubs_epi16(low, load_bits<__m256i>(digits[0])),
                                _mm256_maddubs_epi16(high, load_bits<__m256i>(digits[1])));
    };
    const auto pairs_times = [](__m256i sums, std::int16_t factor) {
        return _mm256_madd_epi16(sums, _mm256_set1_epi16(factor));
    };
    const __m256i upper = _mm256_add_epi32(pairs_times(dot(x.digits[0]), 256), pairs_times(dot(x.digits[1]), 1));
    const __m256i all = _mm256_add_epi32(_mm256_slli_epi32(upper, 8), pairs_times(dot(x.digits[2]), 1));
    return reinterpret_cast<Vec<float> >(_mm256_cvtepi32_ps(all));
}

#endif

#endif

// The `index`th 32 neighbours of a row: their digits, and their scale. False if they have none. Adds them to `sum`.
template <int kBits, class T>
inline __attribute__((always_inline)) bool store_fixed(const T* x, std::int64_t index, Block<kBits>* blocks,
                                                       float& scale, Vec<float>& sum) {
    constexpr float kUnits = Block<kBits>::kUnits;
    x += kFixed * index;
    for (std::size_t i = 0; i < kFixed; i += kFloats) sum += load(x + i);
    const float largest = largest_magnitude(x, kFixed);
    if (!has_scale(largest)) return false;
    store_neighbours(x, largest > 0 ? kUnits / largest : 0, index, blocks);
    scale = largest / kUnits;
    return true;
}

}  // namespace tensorops::TENSOROPS_TARGET
