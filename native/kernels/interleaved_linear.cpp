// y = x · Wᵀ for weights in interleaved blocks: those of 32 outputs are side by side, see formats/formats.h.
//
// Work: the lanes of a vector are outputs, so that nothing is summed over lanes, and a scale needs no place found for
//   it: a word of a block has neighbouring codes of an output, which one instruction multiplies by digits of x and
//   adds; with AVX2, two do. A few rows of x are multiplied by blocks as they are; for more, codes become bytes first,
//   as for blocks in the order of files: see block_panels.h.
// Precision: as block_linear.cpp.
// Bytes: the blocks once for every kPanelRows rows of x. Those of less than 8 bits are fetched ahead, as the codes of a
//   group are not next to those of the one before, and all for several rows, whose products leave memory idle.
#include "block_linear.h"
#include "block_outputs.h"
#include "block_panels.h"
#include "every_format.h"
#include "interleaved_codes.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

#if defined(TENSOROPS_INTERLEAVED)

constexpr std::int64_t kAhead = 16384;  // how many bytes ahead blocks are fetched

// The rows of x that are multiplied by blocks as they are
template <class D>
constexpr std::int64_t kFewRows = kHasPanels<D> && D::kCount == 3 ? 32 : 16;
static_assert(kFewOfExpert <= 16);

// The scales, and minima if there are any, of some outputs of blocks, group by group
template <class F>
inline __attribute__((always_inline)) void find_factors(InterleavedBlocks<F> blocks, int vector, float* scales,
                                                        float* minima) {
    for_each<F::kElements / F::kGroup>([&](auto number) TENSOROPS_INLINED {
        constexpr int g = static_cast<int>(number);
        for (int v = 0; v < kPanelVectors; ++v) {
            const int place = g * static_cast<int>(kPanelOutputs) + v * static_cast<int>(kFloats);
            store(scales + place, F::template scale_of<g>(blocks, vector + v));
            if constexpr (F::kHasMinima) store(minima + place, F::template minimum_of<g>(blocks, vector + v));
        }
    });
}

// A group of a row of x: where its digits are, and what the sums of products with them start from
template <class F, class D>
struct XGroup {
#if defined(__AVX512VNNI__)
    static constexpr int kOfDigit = kPiece;  // in the order of codes_by_group
    static constexpr int place(int number) { return place_in_block<F::kGroup>(4 * number); }
    XGroup(const XRow<D>& x, std::int64_t g)
        : block(x.blocks[g * F::kGroup / kPiece]),
          group(g % (kPiece / F::kGroup)),
          digits(block.digits[0][0] + group * (F::kGroup / 4)) {}
    void start(std::int32_t (&to)[D::kCount]) const {
        for (int d = 0; d < D::kCount; ++d) {
            const std::int32_t* lanes = block.start[d];
            to[d] = F::kGroup == 32 ? lanes[2 * group] + lanes[2 * group + 1] : lanes[group];
        }
    }
#else
    static constexpr int kOfDigit = kCodes;
    static constexpr int place(int number) { return 4 * number; }
    XGroup(const XRow<D>& x, std::int64_t g)
        : block(x.blocks[g * F::kGroup / kCodes]),
          group(g % (kCodes / F::kGroup)),
          digits(block.digits[0][0] + group * F::kGroup) {}
    void start(std::int32_t (&to)[D::kCount]) const {  // they are one number for all digits
        const std::int32_t* lanes = block.start[0] + group * (F::kGroup / 4);
        const auto all = std::accumulate(lanes, lanes + F::kGroup / 4, std::int64_t{0});
        if constexpr (D::kCount == 1) {
            to[0] = static_cast<std::int32_t>(all);
        } else {
            to[0] = static_cast<std::int32_t>(all >> 16);
            to[1] = 0;
            to[2] = static_cast<std::int32_t>(all & 0xffff);
        }
    }
#endif
    const XBlock<D>& block;
    std::int64_t group;  // of the block
    const std::int8_t* digits;
};

// Sums of products with a group of some rows, digit by digit
template <int kRows, class D>
using Sums = I32[kRows][D::kCount][kPanelVectors];

template <class F, class D, int kRows, int g>
inline __attribute__((always_inline)) void add_products(const Group<F, g>& codes_of, int vector,
                                                        const std::int8_t* const (&digits)[kRows],
                                                        Sums<kRows, D>& sums) {
    using X = XGroup<F, D>;
#if defined(__AVX512VNNI__)
    for_each<F::kGroup / 4>([&](auto number) TENSOROPS_INLINED {
        constexpr int i = static_cast<int>(number);
        Codes codes[kPanelVectors];
        for (int v = 0; v < kPanelVectors; ++v) codes[v] = codes_of.template codes<i>(vector + v);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d) {
                const LoadedDigits four(digits[r] + d * X::kOfDigit + X::place(i));
                for (int v = 0; v < kPanelVectors; ++v) sums[r][d][v] = four.template dot<0>(sums[r][d][v], codes[v]);
            }
    });
#else
    constexpr int kWords = F::kGroup / 4, kPlain = plain_fours(F::kMax, kWords);
    for_each<kWords / kPlain>([&](auto turn) TENSOROPS_INLINED {
        __m256i pairs[kRows][D::kCount][kPanelVectors];
        for_each<kPlain>([&](auto number) TENSOROPS_INLINED {
            constexpr int i = static_cast<int>(turn) * kPlain + static_cast<int>(number);
            __m256i codes[kPanelVectors];
            for (int v = 0; v < kPanelVectors; ++v)
                codes[v] = reinterpret_cast<__m256i>(codes_of.template codes<i>(vector + v));
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                for (int d = 0; d < D::kCount; ++d) {
                    const __m256i four =
                        _mm256_set1_epi32(load_bits<std::int32_t>(digits[r] + d * X::kOfDigit + X::place(i)));
                    for (int v = 0; v < kPanelVectors; ++v) {
                        const __m256i products = _mm256_maddubs_epi16(codes[v], four);
                        __m256i& to = pairs[r][d][v];
                        to = number == 0 ? products : _mm256_add_epi16(to, products);
                        asm("" : "+x"(to));  // GCC would add in another order, for which registers do not suffice
                    }
                }
        });
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d)
                for (int v = 0; v < kPanelVectors; ++v)
                    sums[r][d][v] += reinterpret_cast<I32>(_mm256_madd_epi16(pairs[r][d][v], _mm256_set1_epi16(1)));
    });
#endif
}

// The products of two vectors of outputs with some rows. Not inlined, because the sums need nearly all registers.
template <class F, class D, int kRows>
[[gnu::noinline]] void outputs(const char* weight, int vector, const XRow<D>* x, std::int64_t length,
                               float (*y)[kPanelOutputs]) {
    constexpr int kOfBlock = F::kElements / F::kGroup;
    constexpr std::int64_t kBlockBytes = kInterleavedRows * F::kBytes;
    constexpr int kFetched = (static_cast<int>(kBlockBytes) / kOfBlock + 63) / 64 * 64;  // for each group
    constexpr std::int64_t kPlainly = kAddedPlainly / kOfBlock;                          // blocks
    const std::int64_t count = length / F::kElements;
    InterleavedBlocks<F> blocks{reinterpret_cast<const std::uint8_t*>(weight)};
    Total<float> total[kRows][kPanelVectors];
    for (std::int64_t b = 0; b < count;) {
        Vec<float> sum[kRows][kPanelVectors] = {};
        alignas(64) float scales[kOfBlock][kPanelOutputs], minima[kOfBlock][kPanelOutputs];
        for (const std::int64_t end = std::min(b + kPlainly, count); b < end; ++b, blocks.p += kBlockBytes) {
            find_factors(blocks, vector, scales[0], minima[0]);
            for_each<kOfBlock>([&](auto number) TENSOROPS_INLINED {
                constexpr int of_block = static_cast<int>(number);
                const std::int64_t g = b * kOfBlock + of_block;
                if ((F::kLowBits < 8 || kRows > 1) && vector == 0)
                    for (int line = 0; line < kFetched; line += 64)
                        __builtin_prefetch(blocks.p + kAhead + of_block * kFetched + line, 0, 2);
                Sums<kRows, D> q;
                const std::int8_t* digits[kRows];
                for (int r = 0; r < kRows; ++r) {
                    const XGroup<F, D> of_row(x[r], g);
                    digits[r] = of_row.digits;
                    std::int32_t start[D::kCount] = {};
                    if (F::kOffset != 0) of_row.start(start);
                    for (int d = 0; d < D::kCount; ++d) q[r][d][0] = q[r][d][1] = I32{} + start[d];
                }
                add_products<F, D, kRows>(Group<F, of_block>{blocks}, vector, digits, q);
                for (int v = 0; v < kPanelVectors; ++v) {
                    const Vec<float> s = load(scales[of_block] + v * static_cast<int>(kFloats));
                    for (int r = 0; r < kRows; ++r) {
                        I32 sums[D::kCount];
                        for (int d = 0; d < D::kCount; ++d) sums[d] = q[r][d][v];
                        Vec<float> value;
                        if constexpr (D::kCount == 1)
                            value = __builtin_convertvector(sums[0], Vec<float>);
                        else
                            value = value_of_digits(sums);
                        sum[r][v] += value * (s * x[r].scales[g]);
                        if constexpr (F::kHasMinima)
                            sum[r][v] += load(minima[of_block] + v * static_cast<int>(kFloats)) * x[r].sums[g];
                    }
                }
            });
        }
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kPanelVectors; ++v) total[r][v].add(sum[r][v]);
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVectors; ++v)
            store(y[r] + v * static_cast<int>(kFloats), total[r][v].sum + total[r][v].rest);
}

// Unpacks two vectors of outputs into a panel.
template <class F>
[[gnu::noinline]] void fill_panel(const char* weight, int vector, std::int64_t length, const Panel& to) {
    constexpr std::int64_t kOfBlock = F::kElements / F::kGroup;
    InterleavedBlocks<F> blocks{reinterpret_cast<const std::uint8_t*>(weight)};
    char* words = to.words;
    for (std::int64_t g = 0; g < length / F::kGroup; g += kOfBlock, blocks.p += kInterleavedRows * F::kBytes) {
        find_factors(blocks, vector, to.scales + g * kPanelOutputs, to.minima + g * kPanelOutputs);
        for_each<kOfBlock>([&](auto number) TENSOROPS_INLINED {
            for_each<F::kGroup / 4>([&](auto i) TENSOROPS_INLINED {
                for (int v = 0; v < kPanelVectors; ++v, words += kVectorBytes) {
                    const Group<F, static_cast<int>(number)> group{blocks};
                    const Codes codes = group.template codes<static_cast<int>(i)>(vector + v);
                    std::memcpy(words, &codes, sizeof codes);
                }
            });
        });
    }
}

// What of products depends on the format
template <class D>
struct Steps {
    using Outputs = void(const char* weight, int vector, const XRow<D>* x, std::int64_t length,
                         float (*y)[kPanelOutputs]);
    Outputs *of_one, *of_two;  // for as many rows
    void (*fill)(const char* weight, int vector, std::int64_t length, const Panel& to);
    void (*multiply)(const XTile<D>& x, const Panel& panel, std::int64_t groups, float (*y)[kPanelOutputs]);
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

template <class D>
void few_rows(const BlockLinear& op, const XRows<D>& conversion, const Steps<D>& steps, int threads) {
    const std::int64_t room = conversion.room();
    const Scratch scratch(op.x.count * room + wide_room(op.x, op.x_dtype));
    XRow<D> rows[kFewOfExperts];
    for (std::int64_t r = 0; r < op.x.count; ++r) {
        if (r > 0 && op.x.row(r) == op.x.row(r - 1))  // for another expert
            rows[r] = rows[r - 1];
        else if (!make_row(op.x, op.x_dtype, r, conversion, scratch.at<float>(op.x.count * room),
                           scratch.at<char>(r * room), rows[r]))
            rows[r].blocks = nullptr;
    }
    const std::vector<Matrix> matrices = matrices_of(op);
    const std::int64_t bands = op.outputs / kInterleavedRows;
    over_stretches(threads, static_cast<std::int64_t>(matrices.size()) * bands, [&](std::int64_t unit) {
        const Matrix& matrix = matrices[static_cast<std::size_t>(unit / bands)];
        const std::int64_t band = unit % bands * kInterleavedRows;
        const char* weight = matrix.op.weight + band * op.weight_stride;
        XRow<D> own[kFewRows<D>];
        for (std::int64_t r = 0; r < matrix.count; ++r) own[r] = rows[matrix.row(r)];
        const bool are_made =
            std::all_of(own, own + matrix.count, [](const XRow<D>& row) { return row.blocks != nullptr; });
        for (std::int64_t begin = 0; begin < kInterleavedRows; begin += kPanelOutputs) {
            const int vector = static_cast<int>(begin) / static_cast<int>(kFloats);
            float y[kFewRows<D>][kPanelOutputs];
            std::int64_t r = 0;
            if (are_made) {
                for (; r + 2 <= matrix.count; r += 2) steps.of_two(weight, vector, own + r, op.x.length, y + r);
                if (r < matrix.count) steps.of_one(weight, vector, own + r, op.x.length, y + r);
            }
            for (r = 0; r < matrix.count; ++r) {
                const std::int64_t row = matrix.row(r), first = band + begin;
                if (are_made)
                    finish(matrix.op, row, first, kPanelOutputs, own[r].back, y[r]);
                else
                    for (std::int64_t i = 0; i < kPanelOutputs; ++i)
                        y[r][i] = careful_output(matrix.op, row, first + i);
                put_outputs(op, row, first, kPanelOutputs, y[r]);
            }
        }
    });
}

template <class D>
bool products(const BlockLinear& op, const XRows<D>& conversion, const Steps<D>& steps, int threads) {
    if (op.groups.experts != 0 || op.x.count <= kFewRows<D>) {
        few_rows(op, conversion, steps, threads);
        return true;
    }
    if constexpr (!kHasPanels<D>)
        return false;
    else
        return many_rows(
            op.x, op.x_dtype, op.outputs, conversion, threads,
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
    Steps<D> steps{&outputs<F, D, 1>, &outputs<F, D, 2>, &fill_panel<F>, nullptr};
    if constexpr (kHasPanels<D>) {
        constexpr int kPlain = plain_fours(F::kMax, F::kGroup / 4);
        steps.multiply = &panel_products<F::kGroup, F::kHasMinima, kPlain, false, D>;
    }
    return products(op, XRows<D>(F{}, op.x.length), steps, threads);
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
        if constexpr (kInterleaves<F>)
            return op.digits == 1 ? products_of<F, 1>(op, threads) : products_of<F, 3>(op, threads);
        else
            return false;
    });
#endif
    if (!is_done) products_in_float(op, threads);
}

}  // namespace tensorops::TENSOROPS_TARGET
