// The products of interleaved blocks with a few rows of x: groups of a block, and a whole one; see
// interleaved_linear.cpp.
#pragma once

#include "block_panels.h"
#include "interleaved_codes.h"

namespace tensorops::TENSOROPS_TARGET {

#if defined(TENSOROPS_INTERLEAVED)

// The scales, and minima if there are any, of some outputs of blocks, group by group
template <class F>
inline __attribute__((always_inline)) void find_factors(InterleavedBlocks<F> blocks, float* scales, float* minima) {
    for_each<F::kElements / F::kGroup>([&](auto number) TENSOROPS_INLINED {
        constexpr int g = static_cast<int>(number);
        for (int v = 0; v < kPanelVectors; ++v) {
            const int place = g * static_cast<int>(kPanelOutputs) + v * static_cast<int>(kFloats);
            store(scales + place, scale_of<F, g>(blocks, v));
            if constexpr (F::kHasMinima) store(minima + place, minimum_of<F, g>(blocks, v));
        }
    });
}

// The g-th group of the b-th block, of a row of x: where its digits are, and what the sums of products with them start
// from
template <class F, class D>
struct XGroup {
    static constexpr int place(int number) { return place_in_block<F::kGroup>(4 * number); }
#if defined(TENSOROPS_DOTS)
    static constexpr int kBlocks = kPiece / F::kElements, kOfDigit = kPiece;
    XGroup(const XRow<D>& x, std::size_t b, int g)
        : block(x.blocks[b / kBlocks]),
          group(static_cast<int>(b % kBlocks) * (F::kElements / F::kGroup) + g),
          digits(block.digits[0][0] + place_in_block<F::kGroup>(group * F::kGroup)) {}
    void start(std::int32_t (&to)[D::kCount]) const {
        for (int d = 0; d < D::kCount; ++d) {
            const std::int32_t* lanes = block.start[d];
            to[d] = F::kGroup == 32 ? lanes[2 * group] + lanes[2 * group + 1] : lanes[group];
        }
    }
#else
    static constexpr int kOfDigit = sizeof(XBlock<D>::digits[0]);
    XGroup(const XRow<D>& x, std::size_t b, int g)
        : block(x.blocks[b * (F::kElements / kCodes) + static_cast<std::size_t>(g * F::kGroup / kCodes)]),
          group(g % (kCodes / F::kGroup)),
          digits(reinterpret_cast<const std::int8_t*>(block.digits) + group * F::kGroup) {}
    void start(std::int32_t (&to)[D::kCount]) const {  // of gather_starts
        const int lane = group * (F::kGroup / 4);
        if constexpr (D::kSums == D::kCount) {
            for (int d = 0; d < D::kCount; ++d) to[d] = block.start[d][lane];
        } else {
            to[0] = block.start[0][lane];
            to[1] = 0;
            to[2] = block.start[0][lane + 1];
        }
    }
#endif
    const XBlock<D>& block;
    int group;  // of the block
    const std::int8_t* digits;
};

// Fetches lines of a later block, a few for each word that is multiplied. GCC would put those of all words in front of
// the products, which wait then; and it would keep words on the stack of which several groups have bits.
template <class F, bool kFetches>
struct Ahead {
    static constexpr std::int64_t kBytes = kPanelOutputs * F::kBytes, kWords = F::kElements / 4;
    const char* from;

    void fetch(std::int64_t word) const {
        constexpr std::int64_t kLine = 64;
        const auto line = [](std::int64_t w) { return (w * kBytes / kWords + kLine - 1) / kLine; };
        if constexpr (!kFetches) return;
        for (std::int64_t l = line(word); l < line(word + 1); ++l) __builtin_prefetch(from + l * kLine, 0, 2);
        asm volatile("" ::: "memory");
    }
};

// Sums of products with a group of some rows, digit by digit
template <int kRows, class D>
using Sums = I32[kRows][D::kCount][kPanelVectors];

#if defined(TENSOROPS_DOTS)

// Adds the products of a group's codes with digits of some rows.
template <class F, class D, int kRows, int g, class Fetches>
inline __attribute__((always_inline)) void add_products(const Group<F, g>& codes_of,
                                                        const std::int8_t* const (&digits)[kRows], const Fetches& ahead,
                                                        Sums<kRows, D>& sums) {
    using X = XGroup<F, D>;
    constexpr int kWords = F::kGroup / 4, kLoaded = RowDigits::kDots;
    for_each<kWords / kLoaded>([&](auto unit) TENSOROPS_INLINED {
        constexpr int first = static_cast<int>(unit) * kLoaded;
        Codes codes[kLoaded][kPanelVectors];
        for_each<kLoaded>([&](auto k) TENSOROPS_INLINED {
            constexpr int i = first + static_cast<int>(k);
            for (int v = 0; v < kPanelVectors; ++v) codes[k][v] = codes_of.template codes<i>(v);
            ahead.fetch(g * kWords + i);
        });
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d) {
                const RowDigits loaded(digits[r] + d * X::kOfDigit + X::place(first));
                for_each<kLoaded>([&](auto k) TENSOROPS_INLINED {
                    for (int v = 0; v < kPanelVectors; ++v)
                        sums[r][d][v] = loaded.template dot<static_cast<int>(k)>(sums[r][d][v], codes[k][v]);
                });
            }
    });
}

#else

// GCC would add products in another order, for which registers do not suffice.
template <class V>
inline __attribute__((always_inline)) void add_in_order(V& to, V products) {
    V sum = to + products;
    asm("" : "+x"(sum));
    to = sum;
}

inline __m256i all_words(const std::int8_t* digits) { return _mm256_set1_epi32(load_bits<std::int32_t>(digits)); }

// Adds the products of a group's codes with digits of some rows: codes become words, at even and at odd places apart.
template <class F, class D, int kRows, int g, class Fetches>
inline __attribute__((always_inline)) void add_products_of_words(const Group<F, g>& codes_of,
                                                                 const std::int8_t* const (&digits)[kRows],
                                                                 const Fetches& ahead, Sums<kRows, D>& sums) {
    using X = XGroup<F, D>;
    constexpr int kWords = F::kGroup / 4, kOdd = X::kOfDigit / 2;
    for_each<kWords>([&](auto number) TENSOROPS_INLINED {
        constexpr int i = static_cast<int>(number);
        __m256i even[kPanelVectors], odd[kPanelVectors];
        ahead.fetch(g * kWords + i);
        for (int v = 0; v < kPanelVectors; ++v) {
            const auto codes = reinterpret_cast<__m256i>(codes_of.template codes<i>(v));
            even[v] = _mm256_and_si256(codes, _mm256_set1_epi16(255));
            odd[v] = _mm256_srli_epi16(codes, 8);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d) {
                const std::int8_t* at = digits[r] + d * X::kOfDigit + X::place(i);
                for (int v = 0; v < kPanelVectors; ++v) {
                    add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(even[v], all_words(at))));
                    add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(odd[v], all_words(at + kOdd))));
                }
            }
    });
}

// The same of bytes, as long as sums of products fit 16 bits; these are multiplied by `factors` when neighbours are
// added.
template <class F, class D, int kRows, int g, class Fetches>
inline __attribute__((always_inline)) void add_products_of_bytes(const Group<F, g>& codes_of,
                                                                 const std::int8_t* const (&digits)[kRows],
                                                                 const __m256i (&factors)[kPanelVectors],
                                                                 const Fetches& ahead, Sums<kRows, D>& sums) {
    using X = XGroup<F, D>;
    constexpr int kWords = F::kGroup / 4, kPlain = plain_fours(F::kMax, kWords);
    for_each<kWords / kPlain>([&](auto turn) TENSOROPS_INLINED {
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVectors; ++v) {
            I16 pairs[kRows][D::kCount];
            for_each<kPlain>([&](auto number) TENSOROPS_INLINED {
                constexpr int i = static_cast<int>(turn) * kPlain + static_cast<int>(number);
                if (v == 0) ahead.fetch(g * kWords + i);
                const auto codes = reinterpret_cast<__m256i>(codes_of.template codes<i>(v));
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                    for (int d = 0; d < D::kCount; ++d) {
                        const __m256i four = all_words(digits[r] + d * X::kOfDigit + X::place(i));
                        const auto products = reinterpret_cast<I16>(_mm256_maddubs_epi16(codes, four));
                        if (number == 0)
                            pairs[r][d] = products;
                        else
                            add_in_order(pairs[r][d], products);
                    }
            });
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                for (int d = 0; d < D::kCount; ++d) {
                    const auto all = reinterpret_cast<__m256i>(pairs[r][d]);
                    add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(all, factors[v])));
                }
        }
    });
}

template <class F, class D, int kRows, int g, class Fetches>
inline __attribute__((always_inline)) void add_products(const Group<F, g>& codes_of,
                                                        const std::int8_t* const (&digits)[kRows], const Fetches& ahead,
                                                        Sums<kRows, D>& sums) {
    if constexpr (D::kOfBytes) {
        const __m256i ones = _mm256_set1_epi16(1);
        add_products_of_bytes<F, D, kRows>(codes_of, digits, {ones, ones}, ahead, sums);
    } else {
        add_products_of_words<F, D, kRows>(codes_of, digits, ahead, sums);
    }
}

// Integers of each lane, twice
inline __m256i in_pairs(I32 units) {
    const __m128i twice = _mm_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c);
    return _mm256_shuffle_epi8(reinterpret_cast<__m256i>(units), _mm256_broadcastsi128_si256(twice));
}

#endif

// The sums of a row and a vector of outputs as one number
template <class D, int kRows>
inline __attribute__((always_inline)) Vec<float> value_of(const Sums<kRows, D>& sums, int r, int v) {
    const auto as_float = [&](int d) { return __builtin_convertvector(sums[r][d][v], Vec<float>); };
    if constexpr (D::kCount == 1)
        return as_float(0);
    else if constexpr (!D::kOfBytes)
        return as_float(0) * 4096.0f + as_float(1);
    else
        return as_float(0) * 65536.0f + (as_float(1) * 256.0f + as_float(2));
}

// Adds the products of the b-th block with some rows, each group's scaled in float32.
template <class F, class D, int kRows, class Fetches>
inline __attribute__((always_inline)) void add_block_by_group(InterleavedBlocks<F> blocks, const XRow<D>* x,
                                                              std::size_t b, Vec<float> (&sum)[kRows][kPanelVectors],
                                                              const Fetches& ahead) {
    constexpr int kOfBlock = F::kElements / F::kGroup;
    alignas(64) float scales[kOfBlock][kPanelOutputs], minima[kOfBlock][kPanelOutputs];
    find_factors(blocks, scales[0], minima[0]);
    for_each<kOfBlock>([&](auto number) TENSOROPS_INLINED {
        constexpr int of_block = static_cast<int>(number);
        const std::size_t g = b * kOfBlock + of_block;
        Sums<kRows, D> q;
        const std::int8_t* digits[kRows];
        for (int r = 0; r < kRows; ++r) {
            const XGroup<F, D> of_row(x[r], b, of_block);
            digits[r] = of_row.digits;
            std::int32_t start[D::kCount] = {};
            if (F::kOffset != 0 && !kSignedCodes) of_row.start(start);
            for (int d = 0; d < D::kCount; ++d) q[r][d][0] = q[r][d][1] = I32{} + start[d];
        }
        add_products<F, D, kRows>(Group<F, of_block>{blocks}, digits, ahead, q);
        for (int v = 0; v < kPanelVectors; ++v) {
            const Vec<float> s = load(scales[of_block] + v * static_cast<int>(kFloats));
            for (int r = 0; r < kRows; ++r) {
                sum[r][v] += value_of<D, kRows>(q, r, v) * (s * x[r].scales[g]);
                if constexpr (F::kHasMinima)
                    sum[r][v] += load(minima[of_block] + v * static_cast<int>(kFloats)) * x[r].sums[g];
            }
        }
    });
}

#if !defined(TENSOROPS_DOTS)

// The same with the integers of scales, so that only a block's sum is multiplied by their unit
template <class F, class D, int kRows, class Fetches>
inline __attribute__((always_inline)) void add_block_by_units(InterleavedBlocks<F> blocks, const XRow<D>* x,
                                                              std::size_t b, Vec<float> (&sum)[kRows][kPanelVectors],
                                                              const Fetches& ahead) {
    constexpr int kGroups = static_cast<int>(kFixed) / F::kGroup;  // that share a scale of x
    constexpr int kOfBlock = F::kElements / static_cast<int>(kFixed);
    Vec<float> products[kRows][kPanelVectors], minima[kRows][kPanelVectors];
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVectors; ++v) products[r][v] = minima[r][v] = Vec<float>{};
    for_each<kOfBlock>([&](auto number) TENSOROPS_INLINED {
        constexpr int first = static_cast<int>(number) * kGroups;
        const std::size_t g = b * (F::kElements / F::kGroup) + first;
        Sums<kRows, D> q;
        for (auto& of_row : q)
            for (auto& of_digit : of_row) of_digit[0] = of_digit[1] = I32{};
        for_each<kGroups>([&](auto k) TENSOROPS_INLINED {
            constexpr int of_block = first + static_cast<int>(k);
            I32 units[kPanelVectors];
            for (int v = 0; v < kPanelVectors; ++v) units[v] = F::template units_of_scale<of_block>(blocks, v);
            const std::int8_t* digits[kRows];
            for (int r = 0; r < kRows; ++r) {
                const XGroup<F, D> of_row(x[r], b, of_block);
                digits[r] = of_row.digits;
                if constexpr (F::kOffset != 0) {
                    std::int32_t start[D::kCount];
                    of_row.start(start);
                    for (int d = 0; d < D::kCount; ++d)
                        for (int v = 0; v < kPanelVectors; ++v) q[r][d][v] += units[v] * start[d];
                }
            }
            add_products_of_bytes<F, D, kRows>(Group<F, of_block>{blocks}, digits,
                                               {in_pairs(units[0]), in_pairs(units[1])}, ahead, q);
        });
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kPanelVectors; ++v) {
                products[r][v] += value_of<D, kRows>(q, r, v) * x[r].scales[g];
                if constexpr (F::kHasMinima) {
                    const I32 units = F::template units_of_minimum<first>(blocks, v);
                    minima[r][v] += __builtin_convertvector(units, Vec<float>) * x[r].sums[g];
                }
            }
    });
    for (int v = 0; v < kPanelVectors; ++v) {
        const Vec<float> unit = blocks.template half<F::kUnit>(v);
        for (int r = 0; r < kRows; ++r) {
            sum[r][v] += products[r][v] * unit;
            if constexpr (F::kHasMinima) sum[r][v] -= minima[r][v] * blocks.template half<F::kUnitOfMinima>(v);
        }
    }
}

#endif

template <class F, class D, int kRows, class Fetches>
inline __attribute__((always_inline)) void add_block(InterleavedBlocks<F> blocks, const XRow<D>* x, std::size_t b,
                                                     Vec<float> (&sum)[kRows][kPanelVectors], const Fetches& ahead) {
#if !defined(TENSOROPS_DOTS)
    if constexpr (F::kUnit >= 0 && D::kOfBytes) return add_block_by_units<F, D, kRows>(blocks, x, b, sum, ahead);
#endif
    add_block_by_group<F, D, kRows>(blocks, x, b, sum, ahead);
}

#endif

}  // namespace tensorops::TENSOROPS_TARGET
