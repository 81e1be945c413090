// Rows of x as integers, for products with the codes of blocks; see fixed_point.h for the idea.
//
// 32 neighbours share a scale. Their integers are split into digits in the order of the codes, so that one
// instruction multiplies a vector of codes:
//
// * AVX512_VNNI: digits of base 256, in the order of codes_by_group. Three are as accurate as float32.
// * AArch64 with dotprod, and AVX2 for codes up to 63: the same digits, in the order of the row.
// * Others: words of base 4096, apart for codes at even and at odd places. Two are as accurate as float32.
//
// A code with an offset o gives sums that are too large by o times the sum of x: what they start from makes up for it,
// without rounding. With dotprod, codes are signed bytes without an offset.
#pragma once

#include "block_codes.h"
#include "fixed_point.h"

namespace tensorops::TENSOROPS_TARGET {

#if defined(__AVX2__) && !defined(__AVX512F__)
template <class F>
inline constexpr bool kMultipliesBytes = F::kMax <= 63;
#else
template <class F>
inline constexpr bool kMultipliesBytes = false;
#endif

// How x is split: into how many digits, and whether the sums of all digits' products start as one integer of 32 bits.
template <bool kBytes, int kNumber, bool kMerges>
struct Digits {
    static constexpr bool kOfBytes = kBytes, kAreMerged = kMerges;
    static constexpr int kCount = kNumber, kSums = kMerges ? 1 : kNumber;
    // The largest integer. Rounding must not exceed it, as upper digits stop at 127 or 2047.
    static constexpr float kUnits = !kBytes        ? (kNumber == 1 ? 2047 : 2047 * 4096 + 2046)
                                    : kNumber == 1 ? 127
                                                   : 127 * 65536 + 127 * 256;
};

#if defined(TENSOROPS_DOTS)

template <class F, int kAsked>
using DigitsFor = Digits<true, kAsked, false>;

// What is multiplied by the codes of a piece
template <class D>
struct XBlock {
    static constexpr int kLength = kPiece;
    std::int8_t digits[D::kCount][kPiece / kCodes][kCodes];
    std::int32_t start[D::kCount][kFloats];
};

#else

// Those for a format, where x is to be as accurate as with `kAsked` digits of bytes. The sums of four small codes fit
// one integer.
template <class F, int kAsked>
using DigitsFor = Digits<kMultipliesBytes<F>, kMultipliesBytes<F> || kAsked == 1 ? kAsked : 2,
                         kAsked == 1 || (kMultipliesBytes<F> && F::kMax <= 63)>;

// What is multiplied by a vector of codes
template <class D>
struct XBlock {
    static constexpr int kLength = kCodes;
    static constexpr int kParts = D::kOfBytes ? 1 : 2;  // codes at even and at odd places
    using Digit = std::conditional_t<D::kOfBytes, std::int8_t, std::int16_t>;
    Digit digits[D::kCount][kParts][kCodes / kParts];
    std::int32_t start[D::kSums][kFloats];
};

#endif

// Whether the scales and minima of a piece come as one vector, group by group: with AVX512_VNNI, for groups of 32
template <class F>
#if defined(__AVX512VNNI__)
inline constexpr bool kHasPairs = F::kHasMinima && F::kGroup == 32;
#else
inline constexpr bool kHasPairs = false;
#endif

// A row of x. Scales and sums are multiplied by a power of two, so that the largest scale is about 1 and products with
// tiny scales of weights are not below the normal numbers; outputs are multiplied by `back`.
template <class D>
struct XRow {
    const XBlock<D>* blocks;
    const float *scales, *sums;  // of the groups of weights
    const float* pairs;          // both, group by group, if kHasPairs
    float back;
};

// The conversion of rows for weights in groups of 16 or 32
template <class D>
struct XRows {
    static constexpr int kBlocks = kPiece / XBlock<D>::kLength;  // of a piece
    std::int64_t length, group, pieces, blocks_bytes, factors;   // `factors`: the number of scales, with some to spare
    std::int32_t offset;                                         // of codes
    bool has_minima, has_pairs;

    template <class F>
    XRows(F, std::int64_t n)
        : length(n),
          group(F::kGroup),
          pieces((n + kPiece - 1) / kPiece),
          blocks_bytes(whole_lines(pieces * kBlocks * static_cast<std::int64_t>(sizeof(XBlock<D>)))),
          factors(pieces * kPiece / group + 16),
          offset(kSignedCodes ? 0 : F::kOffset),
          has_minima(F::kHasMinima),
          has_pairs(kHasPairs<F>) {}
    std::int64_t room() const {
        return blocks_bytes + whole_lines((has_pairs ? 4 : 2) * factors * static_cast<std::int64_t>(sizeof(float)));
    }

    // Converts a row; false if some x is too large or too small for a scale.
    bool make(const float* x, char* memory, XRow<D>& row) const;
};

// Where a digit is among those of its significance in a block: with AVX512_VNNI, in the order of codes_by_group.
template <int kGroup>
constexpr int place_in_block(int place) {
#if defined(__AVX512VNNI__)
    constexpr int kRun = kGroup / 4;  // neighbours of a group in a vector
    return place % kGroup / kRun * kCodes + place / kGroup * kRun + place % kRun;
#else
    return place;
#endif
}

// Splits the integers of a vector of neighbours, which begin at `place` in a block.
template <int kGroup, class D>
inline void store_digits(I32 q, XBlock<D>& block, int place) {
    for_each<D::kCount>([&](auto number) {
        constexpr int d = D::kCount - 1 - static_cast<int>(number);
        if constexpr (D::kOfBytes) {
            const I32 digit = (q << 24) >> 24;
            const I8 bytes = __builtin_convertvector(digit, I8);
#if defined(__AVX512VNNI__)
            const auto* from = reinterpret_cast<const std::int8_t*>(&bytes);
            for (int i = 0; i < 16; i += kGroup / 4)
                std::memcpy(block.digits[d][0] + place_in_block<kGroup>(place + i), from + i, kGroup / 4);
#else
            std::memcpy(block.digits[d][0] + place, &bytes, sizeof bytes);
#endif
            q = (q - digit) >> 8;
        } else {
            const I32 digit = ((q + 2048) & 4095) - 2048;
            for (int k = 0; k < static_cast<int>(kFloats); ++k)
                block.digits[d][k % 2][(place + k) / 2] = static_cast<std::int16_t>(digit[static_cast<std::size_t>(k)]);
            q = (q - digit) >> 12;
        }
    });
}

// What sums start from, for codes with an offset
template <class D>
inline void store_start(std::int32_t offset, XBlock<D>& block) {
    const auto sums_of_lanes = [&block](int d) {
#if defined(__AVX512VNNI__)
        __m512i sums = _mm512_setzero_si512();
        for (const auto& vector : block.digits[d])
            sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), _mm512_loadu_si512(vector));
        return reinterpret_cast<I32>(sums);
#else
        I32 sums{};
        for (std::size_t place = 0; place < static_cast<std::size_t>(kCodes); ++place)
            sums[place / 4] += D::kOfBytes ? block.digits[d][0][place] : block.digits[d][place % 2][place / 2];
        return sums;
#endif
    };
    I32 all{};
    for (int d = 0; d < D::kCount; ++d) {
        const I32 sums = sums_of_lanes(d);
        all = all * (D::kOfBytes ? 256 : 4096) + sums;
        if (!D::kAreMerged) all = sums;
        if (D::kAreMerged && d + 1 < D::kCount) continue;
        const I32 start = all * -offset;
        std::memcpy(block.start[D::kAreMerged ? 0 : d], &start, sizeof start);
    }
}

template <class D>
bool XRows<D>::make(const float* x, char* memory, XRow<D>& row) const {
    auto* blocks = reinterpret_cast<XBlock<D>*>(memory);
    auto* scales = reinterpret_cast<float*>(memory + blocks_bytes);
    float* sums = scales + factors;
    std::memset(memory, 0, static_cast<std::size_t>(room()));
    float largest_scale = 0;
    for (std::int64_t i = 0; i < length; i += kFixed) {
        const float largest = largest_magnitude(x + i, kFixed);
        if (!has_scale(largest)) return false;
        const float per_unit = largest > 0 ? D::kUnits / largest : 0, scale = largest / D::kUnits;
        // What codes are multiplied by. Products with minima take the same numbers: the errors of rounding them are
        // then multiplied by weights, not by codes, which are larger.
        float multiplied[kFixed];
        for (std::int64_t k = i; k < i + kFixed; k += kLanes<float>) {
            const Vec<float> v = load(x + k) * per_unit;
            const I32 q = __builtin_convertvector(v < 0 ? v - 0.5f : v + 0.5f, I32);
            XBlock<D>& block = blocks[k / XBlock<D>::kLength];
            const int place = static_cast<int>(k % XBlock<D>::kLength);
            group == 32 ? store_digits<32>(q, block, place) : store_digits<16>(q, block, place);
            store(multiplied + (k - i), D::kCount == 1 ? __builtin_convertvector(q, Vec<float>) * scale : load(x + k));
        }
        for (std::int64_t k = i; k < i + kFixed; k += group) {
            scales[k / group] = scale;
            if (!has_minima) continue;
            Vec<float> sum{};
            for (std::int64_t l = k; l < k + group; l += kLanes<float>) sum += load(multiplied + (l - i));
            sums[k / group] = sum_of_lanes<float>(sum);
        }
        largest_scale = std::max(largest_scale, scale);
    }
    for (std::int64_t b = 0; offset != 0 && b < pieces * kBlocks; ++b) store_start(offset, blocks[b]);
    int exponent;
    std::frexp(largest_scale, &exponent);
    const float unit = std::ldexp(1.0f, -exponent);
    for (std::int64_t k = 0; k < 2 * factors; ++k) scales[k] *= unit;
    float* pairs = sums + factors;
    for (std::int64_t k = 0; has_pairs && k < factors; ++k) {
        pairs[2 * k] = scales[k];
        pairs[2 * k + 1] = sums[k];
    }
    row = {blocks, scales, sums, pairs, std::ldexp(1.0f, exponent)};
    return true;
}

// Memory in which a row of half types becomes float32
inline std::int64_t wide_room(const Rows& x, Dtype dtype) {
    return dtype == Dtype::float32 ? 0 : whole_lines(x.length * static_cast<std::int64_t>(sizeof(float)));
}

// Converts a row of x; false if some of it is too large or too small for a scale.
template <class D>
bool make_row(const Rows& x, Dtype dtype, std::int64_t index, const XRows<D>& conversion, float* wide, char* memory,
              XRow<D>& row) {
    if (dtype == Dtype::float32) return conversion.make(reinterpret_cast<const float*>(x.row(index)), memory, row);
    widen(dtype, x.row(index), wide, x.length);
    return conversion.make(wide, memory, row);
}

}  // namespace tensorops::TENSOROPS_TARGET
