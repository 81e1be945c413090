// y = x · Wᵀ for weights in interleaved blocks: those of 32 outputs are side by side, see formats/formats.h.
//
// Work: the lanes of a vector are outputs, so that nothing is summed over lanes, and a scale needs no place found for
//   it: a word of a block has neighbouring codes of an output, which one instruction multiplies by digits of x and
//   adds. With AVX2, two do, for codes whose products fit 16 bits; the one that adds neighbours also multiplies them by
//   what is an integer of scales. Larger codes become words of 16 bits, those at even and at odd places apart. A few
//   rows of x are multiplied by blocks as they are; for more, codes become bytes first, as for blocks in the order of
//   files: see block_panels.h.
// Precision: as block_linear.cpp.
// Bytes: the blocks once for every kPanelRows rows of x. They are fetched ahead, as the codes of a group are not next
//   to those of the one before, where the processor does not find what comes next.
#include "block_linear.h"
#include "block_outputs.h"
#include "block_panels.h"
#include "every_format.h"
#include "interleaved_products.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

#if defined(TENSOROPS_INTERLEAVED)

constexpr std::int64_t kAhead = 16384;  // how many bytes ahead blocks are fetched

// The rows of x that are multiplied by blocks as they are: more if others become float32 or, with AVX-512, three digits
constexpr std::int64_t kMostFewRows = 32;
template <class F, class D>
constexpr std::int64_t kFewRows = D::kCount > 1 && (kHasPanels<D> || F::kGroup == 32) ? kMostFewRows : 16;
static_assert(kFewOfExpert <= 16);

// Of a block, which are multiplied one after the other
constexpr int kSlices = static_cast<int>(kInterleavedRows / kPanelOutputs);

// Whether blocks are fetched ahead. Of one row with AVX-512, the processor does that by itself for codes that are read
// in order, if the products do not take longer.
template <class F, class D, int kRows>
inline constexpr bool kFetches = kSlices > 1 || kRows > 1 || F::kHighBits > 0 || (F::kLowBits < 8 && D::kCount > 1);

// The products of interleaved rows with some of x. Not inlined, because the sums need nearly all registers.
template <class F, class D, int kRows>
[[gnu::noinline]] void outputs(const char* weight, const XRow<D>* x, std::int64_t length,
                               float (*y)[kInterleavedRows]) {
    using Fetches = Ahead<F, kFetches<F, D, kRows>>;
    constexpr int kOfBlock = F::kElements / F::kGroup;
    constexpr std::int64_t kBlockBytes = kInterleavedRows * F::kBytes;
    constexpr std::int64_t kPlainly = kAddedPlainly / kOfBlock;  // blocks
    const std::int64_t count = length / F::kElements;
    Total<float> total[kSlices][kRows][kPanelVectors];
    for (std::int64_t b = 0; b < count;) {
        Vec<float> sums[kSlices][kRows][kPanelVectors] = {};
        for (const std::int64_t end = std::min(b + kPlainly, count); b < end; ++b, weight += kBlockBytes) {
            for (int h = 0; h < kSlices; ++h) {
                if (kSlices > 1) asm("" : "+r"(h));  // so that instructions exist once: the cache does not hold more
                const Fetches ahead{weight + kAhead + h * Fetches::kBytes};
                const InterleavedBlocks<F> blocks(weight, h * kPanelVectors);
                const auto index = static_cast<std::size_t>(b);
                Vec<float> sum[kRows][kPanelVectors];
                std::memcpy(sum, sums[h], sizeof sum);
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
    std::int64_t few;          // rows that are multiplied by blocks as they are, at most
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
