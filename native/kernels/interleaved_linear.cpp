// y = x · Wᵀ for weights in interleaved blocks: those of 32 outputs are side by side, see formats/formats.h.
//
// Work: the lanes of a vector are outputs, so that nothing is summed over lanes, and a scale needs no place found for
//   it: a word of a block has neighbouring codes of an output, which one instruction multiplies by digits of x and
//   adds. With AVX2, two do, for codes whose products fit 16 bits; the one that adds neighbours also multiplies them by
//   what is an integer of scales. Larger codes become words of 16 bits, those at even and at odd places apart. A few
//   rows of x are multiplied by blocks as they are; for more, codes become bytes first, as for blocks in the order of
//   files: see block_panels.h.
// Precision: as block_linear.cpp.
// Bytes: the blocks once for every kPanelRows rows of x. They are fetched ahead, as the codes of a group are not next to
//   those of the one before, where the processor does not find what comes next.
#include "block_linear.h"
#include "block_outputs.h"
#include "block_panels.h"
#include "every_format.h"
#include "interleaved_codes.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

#if defined(TENSOROPS_INTERLEAVED)

constexpr std::int64_t kAhead = 16384;  // how many bytes ahead blocks are fetched

// The rows of x that are multiplied by blocks as they are: more if others become float32 or, with AVX-512, three digits
constexpr std::int64_t kMostFewRows = 32;
template <class F, class D>
constexpr std::int64_t kFewRows = D::kCount > 1 && (kHasPanels<D> || F::kGroup == 32) ? kMostFewRows : 16;
static_assert(kFewOfExpert <= 16);

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

// Whether what is an integer of scales is multiplied as one
#if defined(TENSOROPS_DOTS)
template <class F, class D>
inline constexpr bool kMultipliesUnits = false;
#else
template <class F, class D>
inline constexpr bool kMultipliesUnits = F::kUnit >= 0 && D::kOfBytes;

// GCC would add products in another order, for which registers do not suffice.
template <class V>
inline __attribute__((always_inline)) void add_in_order(V& to, V products) {
    V sum = to + products;
    asm("" : "+x"(sum));
    to = sum;
}
#endif

// `units` are the integers of the group's scales.
template <class F, class D, int kRows, int g, class Fetches>
inline __attribute__((always_inline)) void add_products(const Group<F, g>& codes_of,
                                                        const std::int8_t* const (&digits)[kRows],
                                                        [[maybe_unused]] const I32 (&units)[kPanelVectors],
                                                        const Fetches& ahead, Sums<kRows, D>& sums) {
    using X = XGroup<F, D>;
    constexpr int kWords = F::kGroup / 4;
#if defined(TENSOROPS_DOTS)
    constexpr int kLoaded = RowDigits::kDots;
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
#else
    const auto digits_of = [&digits](int r, int d, int place) TENSOROPS_INLINED {
        return load_bits<std::int32_t>(digits[r] + d * X::kOfDigit + place);
    };
    if constexpr (!D::kOfBytes) {
        for_each<kWords>([&](auto number) TENSOROPS_INLINED {
            constexpr int i = static_cast<int>(number), kOdd = X::kOfDigit / 2;
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
                for (int d = 0; d < D::kCount; ++d)
                    for (int v = 0; v < kPanelVectors; ++v) {
                        const __m256i of_even = _mm256_set1_epi32(digits_of(r, d, X::place(i)));
                        const __m256i of_odd = _mm256_set1_epi32(digits_of(r, d, kOdd + X::place(i)));
                        add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(even[v], of_even)));
                        add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(odd[v], of_odd)));
                    }
        });
    } else {
        constexpr int kPlain = plain_fours(F::kMax, kWords), kTwo = std::min(kPlain, 2);
        __m256i factors[kPanelVectors];  // twice in each lane
        const __m256i twice =
            _mm256_broadcastsi128_si256(_mm_setr_epi32(0x01000100, 0x05040504, 0x09080908, 0x0d0c0d0c));
        for (int v = 0; v < kPanelVectors; ++v)
            factors[v] = kMultipliesUnits<F, D> ? _mm256_shuffle_epi8(reinterpret_cast<__m256i>(units[v]), twice)
                                                : _mm256_set1_epi16(1);
        for_each<kWords / kPlain>([&](auto turn) TENSOROPS_INLINED {
            I16 pairs[kRows][D::kCount][kPanelVectors];
            for_each<kPlain / kTwo>([&](auto pair) TENSOROPS_INLINED {
                constexpr int first = static_cast<int>(turn) * kPlain + static_cast<int>(pair) * kTwo;
                __m256i codes[kTwo][kPanelVectors];
                for_each<kTwo>([&](auto k) TENSOROPS_INLINED {
                    ahead.fetch(g * kWords + first + static_cast<int>(k));
                    for (int v = 0; v < kPanelVectors; ++v)
                        codes[k][v] =
                            reinterpret_cast<__m256i>(codes_of.template codes<first + static_cast<int>(k)>(v));
                });
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                    for (int d = 0; d < D::kCount; ++d) {
                        if (pair == 0) pairs[r][d][0] = pairs[r][d][1] = I16{};
                        for (int k = 0; k < kTwo; ++k) {
                            const __m256i four = _mm256_set1_epi32(digits_of(r, d, X::place(first + k)));
                            for (int v = 0; v < kPanelVectors; ++v)
                                add_in_order(pairs[r][d][v],
                                             reinterpret_cast<I16>(_mm256_maddubs_epi16(codes[k][v], four)));
                        }
                        for (int v = 0; pair == kPlain / kTwo - 1 && v < kPanelVectors; ++v) {
                            const auto all = reinterpret_cast<__m256i>(pairs[r][d][v]);
                            add_in_order(sums[r][d][v], reinterpret_cast<I32>(_mm256_madd_epi16(all, factors[v])));
                        }
                    }
            });
        });
    }
#endif
}

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

// Adds the products of the b-th block with some rows.
template <class F, class D, int kRows, class Fetches>
inline __attribute__((always_inline)) void add_block(InterleavedBlocks<F> blocks, const XRow<D>* x, std::size_t b,
                                                     Vec<float> (&sum)[kRows][kPanelVectors], const Fetches& ahead) {
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
        add_products<F, D, kRows>(Group<F, of_block>{blocks}, digits, {}, ahead, q);
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

// The same with the integers of scales, so that only a block's sum is scaled in float32
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
            add_products<F, D, kRows>(Group<F, of_block>{blocks}, digits, units, ahead, q);
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

constexpr int kSlices =
    static_cast<int>(kInterleavedRows / kPanelOutputs);  // of a block, one multiplied after the other

// Whether blocks are fetched ahead. Of one row with AVX-512, the processor does that by itself for codes that are read
// in order, if the products do not take longer.
template <class F, class D, int kRows>
inline constexpr bool kFetches = kSlices > 1 || kRows > 1 || F::kHighBits > 0 || (F::kLowBits < 8 && D::kCount > 1);

// The products of interleaved rows with some of x. Not inlined, because the sums need nearly all registers.
template <class F, class D, int kRows>
[[gnu::noinline]] void outputs(const char* weight, const XRow<D>* x, std::int64_t length,
                               float (*y)[kInterleavedRows]) {
    constexpr int kOfBlock = F::kElements / F::kGroup;
    constexpr std::int64_t kBlockBytes = kInterleavedRows * F::kBytes;
    constexpr std::int64_t kPlainly = kAddedPlainly / kOfBlock;  // blocks
    const std::int64_t count = length / F::kElements;
    Total<float> total[kSlices][kRows][kPanelVectors];
    for (std::int64_t b = 0; b < count;) {
        Vec<float> sums[kSlices][kRows][kPanelVectors] = {};
        for (const std::int64_t end = std::min(b + kPlainly, count); b < end; ++b, weight += kBlockBytes) {
            for (int h = 0; h < kSlices; ++h) {
                if (kSlices > 1)
                    asm("" : "+r"(h));  // so that their instructions exist once: all would not fit the cache
                const Ahead<F, kFetches<F, D, kRows>> ahead{weight + kAhead + h * Ahead<F, true>::kBytes};
                const InterleavedBlocks<F> blocks(weight, h * kPanelVectors);
                const auto index = static_cast<std::size_t>(b);
                Vec<float> sum[kRows][kPanelVectors];
                std::memcpy(sum, sums[h], sizeof sum);
                if constexpr (kMultipliesUnits<F, D>)
                    add_block_by_units<F, D, kRows>(blocks, x, index, sum, ahead);
                else
                    add_block<F, D, kRows>(blocks, x, index, sum, ahead);
                std::memcpy(sums[h], sum, sizeof sum);
            }
        }
        for (int h = 0; h < kSlices; ++h)
            for (int r = 0; r < kRows; ++r)
                for (int v = 0; v < kPanelVectors; ++v) total[h][r][v].add(sums[h][r][v]);
    }
    for (int h = 0; h < kSlices; ++h)
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kPanelVectors; ++v)
                store(y[r] + (h * kPanelVectors + v) * static_cast<int>(kFloats),
                      total[h][r][v].sum + total[h][r][v].rest);
}

// Makes words of four neighbours those that a panel has.
inline void join_words([[maybe_unused]] Codes (&codes)[kDotInputs / 4]) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const auto a = reinterpret_cast<uint32x4_t>(codes[0]), b = reinterpret_cast<uint32x4_t>(codes[1]);
    codes[0] = reinterpret_cast<Codes>(vzip1q_u32(a, b));
    codes[1] = reinterpret_cast<Codes>(vzip2q_u32(a, b));
#endif
}

// Unpacks two vectors of outputs into a panel.
template <class F>
[[gnu::noinline]] void fill_panel(const char* weight, int vector, std::int64_t length, const Panel& to) {
    constexpr std::int64_t kOfBlock = F::kElements / F::kGroup;
    InterleavedBlocks<F> blocks(weight, vector);
    char* words = to.words;
    for (std::int64_t g = 0; g < length / F::kGroup; g += kOfBlock, blocks.next()) {
        find_factors(blocks, to.scales + g * kPanelOutputs, to.minima + g * kPanelOutputs);
        for_each<kOfBlock>([&](auto number) TENSOROPS_INLINED {
            const Group<F, static_cast<int>(number)> group{blocks};
            for_each<F::kGroup / kDotInputs>([&](auto i) TENSOROPS_INLINED {
                for (int v = 0; v < kPanelVectors; ++v) {
                    Codes codes[kDotInputs / 4];
                    for_each<kDotInputs / 4>([&](auto k) TENSOROPS_INLINED {
                        constexpr int word = static_cast<int>(i) * kDotInputs / 4 + static_cast<int>(k);
                        codes[k] = group.template codes<word, kHasSigns<F>>(v);
                    });
                    join_words(codes);
                    std::memcpy(words, codes, sizeof codes);
                    words += sizeof codes;
                }
            });
        });
    }
}

// How x is split for panels, which have bytes
template <class D>
using OfPanels = Digits<true, D::kCount, D::kAreMerged>;

// What of products depends on the format
template <class D>
struct Steps {
    using Outputs = void(const char* weight, const XRow<D>* x, std::int64_t length, float (*y)[kInterleavedRows]);
    std::int64_t few;          // rows, to which blocks are multiplied as they are
    Outputs *of_one, *of_two;  // for as many rows
    XRows<D> conversion;
    void (*fill)(const char* weight, int vector, std::int64_t length, const Panel& to);
    XRows<OfPanels<D>> conversion_for_panels;
    void (*multiply)(const XTile<OfPanels<D>>& x, const Panel& panel, std::int64_t groups, float (*y)[kPanelOutputs]);
};

// Rows of x that are multiplied by the same matrix
struct Matrix {
    BlockLinear op;
    const std::int64_t* rows;  // if these are not all
    std::int64_t count;

    std::int64_t row(std::int64_t r) const { return rows ? rows[r] : r; }
};

inline std::vector<Matrix> matrices_of(const BlockLinear& op) {
    if (op.groups.experts == 0) return {{op, nullptr, op.x.count}};
    std::vector<Matrix> found;
    for (std::int64_t e = 0; e < op.groups.experts; ++e) {
        if (op.groups.count(e) == 0) continue;
        found.push_back({op, op.groups.order + op.groups.begin(e), op.groups.count(e)});
        found.back().op.weight += e * op.expert_stride;
    }
    return found;
}

// With AVX2, puts the sum of the lanes that a group's sums of products start from into the first of them; where that is
// one number for all digits, its upper half there, and the lower one behind.
template <class D>
void gather_starts([[maybe_unused]] const XRows<D>& conversion, [[maybe_unused]] char* memory) {
#if !defined(TENSOROPS_DOTS)
    auto* blocks = reinterpret_cast<XBlock<D>*>(memory);
    for (std::int64_t b = 0; b < conversion.pieces * conversion.kBlocks; ++b)
        for (auto& lanes : blocks[b].start)
            for (std::int64_t i = 0; i < static_cast<std::int64_t>(kFloats); i += conversion.group / 4) {
                const auto all = std::accumulate(lanes + i, lanes + i + conversion.group / 4, std::int64_t{0});
                constexpr int kShift = D::kSums == D::kCount ? 0 : 16;
                lanes[i] = static_cast<std::int32_t>(all >> kShift);
                if (kShift != 0) lanes[i + 1] = static_cast<std::int32_t>(all & 0xffff);
            }
#endif
}

template <class D>
void few_rows(const BlockLinear& op, const Steps<D>& steps, int threads) {
    const std::int64_t room = steps.conversion.room();
    const Scratch scratch(op.x.count * room + wide_room(op.x, op.x_dtype));
    XRow<D> rows[kFewOfExperts];
    for (std::int64_t r = 0; r < op.x.count; ++r) {
        if (r > 0 && op.x.row(r) == op.x.row(r - 1))  // for another expert
            rows[r] = rows[r - 1];
        else if (!make_row(op.x, op.x_dtype, r, steps.conversion, scratch.at<float>(op.x.count * room),
                           scratch.at<char>(r * room), rows[r]))
            rows[r].blocks = nullptr;
        else
            gather_starts(steps.conversion, scratch.at<char>(r * room));
    }
    const std::vector<Matrix> matrices = matrices_of(op);
    const std::int64_t bands = op.outputs / kInterleavedRows;
    over_stretches(threads, static_cast<std::int64_t>(matrices.size()) * bands, [&](std::int64_t unit) {
        const Matrix& matrix = matrices[static_cast<std::size_t>(unit / bands)];
        const std::int64_t band = unit % bands * kInterleavedRows;
        const char* weight = matrix.op.weight + band * op.weight_stride;
        XRow<D> own[kMostFewRows];
        for (std::int64_t r = 0; r < matrix.count; ++r) own[r] = rows[matrix.row(r)];
        const bool are_made =
            std::all_of(own, own + matrix.count, [](const XRow<D>& row) { return row.blocks != nullptr; });
        float y[kMostFewRows][kInterleavedRows];
        std::int64_t r = 0;
        if (are_made) {
            for (; r + 2 <= matrix.count; r += 2) steps.of_two(weight, own + r, op.x.length, y + r);
            if (r < matrix.count) steps.of_one(weight, own + r, op.x.length, y + r);
        }
        for (r = 0; r < matrix.count; ++r) {
            const std::int64_t row = matrix.row(r);
            if (are_made)
                finish(matrix.op, row, band, kInterleavedRows, own[r].back, y[r]);
            else
                for (std::int64_t i = 0; i < kInterleavedRows; ++i) y[r][i] = careful_output(matrix.op, row, band + i);
            put_outputs(op, row, band, kInterleavedRows, y[r]);
        }
    });
}

template <class D>
bool products(const BlockLinear& op, const Steps<D>& steps, int threads) {
    if (op.groups.experts != 0 || op.x.count <= steps.few) {
        few_rows(op, steps, threads);
        return true;
    }
    if constexpr (!kHasPanels<D>)
        return false;
    else
        return many_rows(
            op.x, op.x_dtype, op.outputs, steps.conversion_for_panels, threads,
            [&](std::int64_t first, std::int64_t, const Panel& panel) {
                const std::int64_t begin = first % kInterleavedRows;
                steps.fill(op.weight + (first - begin) * op.weight_stride,
                           static_cast<int>(begin) / static_cast<int>(kFloats), op.x.length, panel);
            },
            steps.multiply,
            [&](std::int64_t row, std::int64_t first, std::int64_t width, float back, float* y) {
                finish(op, row, first, width, back, y);
                put_outputs(op, row, first, width, y);
            });
}

template <class F, int kDigits>
bool products_of(const BlockLinear& op, int threads) {
    using D = DigitsFor<F, kDigits>;
    Steps<D> steps{kFewRows<F, D>,
                   &outputs<F, D, 1>,
                   &outputs<F, D, 2>,
                   XRows<D>(F{}, op.x.length),
                   &fill_panel<F>,
                   XRows<OfPanels<D>>(F{}, op.x.length),
                   nullptr};
    if constexpr (kHasPanels<D>) {
        constexpr int kLargest = kHasSigns<F> ? 128 : F::kMax, kPlain = plain_fours(kLargest, F::kGroup / 4);
        steps.multiply = &panel_products<F::kGroup, F::kHasMinima, kPlain, kHasSigns<F>, OfPanels<D>>;
        if (kHasSigns<F>) steps.conversion_for_panels.offset = 0;
    }
    return products(op, steps, threads);
}

#endif

}  // namespace

TENSOROPS_KERNEL(interleaved_linear, BlockLinear) {
    const FormatSize& format = size_of(op.format);
    const double weight_bytes = static_cast<double>(format.bytes) / static_cast<double>(format.elements);
    const std::int64_t work =
        matrix_work(op.groups.experts == 0 ? op.x.count : 1, op.outputs, op.x.length, weight_bytes);
    const std::int64_t matrices = op.groups.experts == 0 ? 1 : op.x.count;  // at most
    const int threads = threads_for(matrices * op.outputs / kInterleavedRows, matrices * work);
    bool is_done = false;
#if defined(TENSOROPS_INTERLEAVED)
    is_done = for_format(op.format, [&op, threads](auto f) {
        using F = decltype(f);
        if constexpr (F::kIsInterleaved)
            return op.digits == 1 ? products_of<F, 1>(op, threads) : products_of<F, 3>(op, threads);
        else
            return false;
    });
#endif
    if (!is_done) products_in_float(op, threads);
}

}  // namespace tensorops::TENSOROPS_TARGET
