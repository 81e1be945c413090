// y = x · Wᵀ for weights in interleaved blocks: those of 32 outputs are side by side, see formats/formats.h.
//
// Work: the lanes of a vector are outputs, so that nothing is summed over lanes, and a scale needs no place found for
//   it: a word of a block has neighbouring codes of an output, which one instruction multiplies by digits of x and
//   adds. A few rows of x are multiplied by blocks as they are; for more, codes become bytes first, 32 outputs at a
//   time, as for blocks in the order of files: see block_panels.h.
// Precision: as block_linear.cpp.
// Bytes: the blocks once for every kPanelRows rows of x, in order: nothing is fetched ahead, as processors do that by
//   themselves for one stream.
#include "block_linear.h"
#include "block_outputs.h"
#include "block_panels.h"
#include "every_format.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

#if defined(__AVX512VNNI__)

constexpr std::int64_t kAhead = 16384;  // how many bytes ahead blocks are fetched that are not read in order
constexpr std::int64_t kFewRows = 4;    // of x that are multiplied by blocks as they are

static_assert(kPanelOutputs == kInterleavedRows);

// Where the codes of a group are. Within a group, offsets and shifts are what they are in the first one, and more.
template <class F>
struct Group {
    static constexpr int kEightsOfGroup = F::kGroup / 8;

    InterleavedBlocks<F> blocks;
    int low, high, fifth;
    std::uint32_t low_shift, high_turn;

    Group(InterleavedBlocks<F> of, int number) : blocks(of) {
        const int eight = number * kEightsOfGroup;
        low = F::low(eight).offset;
        low_shift = static_cast<std::uint32_t>(F::low(eight).shift);
        high = F::high(eight).offset;
        high_turn = static_cast<std::uint32_t>(32 + F::kLowBits - F::high(eight).shift);
        fifth = F::fifth_bits(eight);
    }

    // Four neighbours of each output, the i-th of the group's
    template <int i>
    __m512i codes(int v) const {
        constexpr int eight = i / 2, place = i % 2 * 4;
        const auto all_bytes = [](int bits) { return _mm512_set1_epi8(static_cast<char>(bits)); };
        constexpr Field kLow{F::low(eight).offset - F::low(0).offset, F::low(eight).shift - F::low(0).shift};
        U32 word = blocks.word(low + kLow.offset + place, v);
        if constexpr (F::kElements > F::kGroup && kShifts) word = word >> low_shift;
        if constexpr (kLow.shift != 0) word = word >> static_cast<std::uint32_t>(kLow.shift);
        auto found = reinterpret_cast<__m512i>(word);
        if constexpr (F::kLowBits < 8) found = _mm512_and_si512(found, all_bytes((1 << F::kLowBits) - 1));
        if constexpr (F::kSign != 0) found = _mm512_xor_si512(found, all_bytes(F::kSign));
        if constexpr (F::kHighBits != 0) {
            constexpr int kUpper = ((1 << F::kHighBits) - 1) << F::kLowBits;
            static_assert(F::high(eight).shift == F::high(0).shift);
            const int offset = high + F::high(eight).offset - F::high(0).offset + place;
            // To the places above the lower bits; in a rotation, only neighbours' bits come in from beside.
            const __m512i turned = _mm512_rolv_epi32(reinterpret_cast<__m512i>(blocks.word(offset, v)),
                                                     _mm512_set1_epi32(static_cast<int>(high_turn)));
            found = _mm512_ternarylogic_epi32(found, turned, all_bytes(kUpper), 0xf8);  // found | (turned & kUpper)
        }
        if constexpr (F::kHasFifthBits) {
            constexpr int byte = 0x01010101 * (i / 2);
            constexpr std::uint32_t bits = 0x08040201u << (i % 2 * 4);
            const auto all = reinterpret_cast<__m512i>(blocks.word(fifth, v));
            const __m512i own = _mm512_shuffle_epi8(
                all, _mm512_set4_epi32(byte + 0x0c0c0c0c, byte + 0x08080808, byte + 0x04040404, byte));
            const __mmask64 is_set = _mm512_test_epi8_mask(own, _mm512_set1_epi32(static_cast<int>(bits)));
            found = _mm512_or_si512(found, _mm512_maskz_set1_epi8(is_set, 16));
        }
        if constexpr (F::kHasTable) return reinterpret_cast<__m512i>(looked_up<F>(reinterpret_cast<Codes>(found)));
        return found;
    }

  private:
    static constexpr bool shifts() {
        for (int eight = 0; eight < F::kElements / 8; eight += kEightsOfGroup)
            if (F::low(eight).shift != 0) return true;
        return false;
    }
    static constexpr bool kShifts = shifts();
};

// The scales, and minima if there are any, of the outputs of blocks, group by group
template <class F>
inline __attribute__((always_inline)) void find_factors(InterleavedBlocks<F> blocks, float* scales, float* minima) {
    for_each<F::kElements / F::kGroup>([&](auto number) TENSOROPS_INLINED {
        constexpr int g = static_cast<int>(number);
        for (int v = 0; v < kPanelVectors; ++v) {
            const int place = g * static_cast<int>(kPanelOutputs) + v * static_cast<int>(kFloats);
            store(scales + place, F::template scale_of<g>(blocks, v));
            if constexpr (F::kHasMinima) store(minima + place, F::template minimum_of<g>(blocks, v));
        }
    });
}

// A group of a row of x, whose digits are in the order of codes_by_group.
template <class F, class D>
inline __attribute__((always_inline)) std::int32_t start_of(const XBlock<D>& x, int d, std::int64_t group) {
    const std::int32_t* start = x.start[d];
    return F::kGroup == 32 ? start[2 * group] + start[2 * group + 1] : start[group];
}

// The products of 32 outputs with some rows. Not inlined, because the sums need nearly all registers.
template <class F, class D, int kRows>
[[gnu::noinline]] void outputs(const char* weight, const XRow<D>* x, std::int64_t length, float (*y)[kPanelOutputs]) {
    constexpr int kGroups = kPiece / F::kGroup, kOfBlock = F::kElements / F::kGroup;
    constexpr std::int64_t kBlockBytes = kInterleavedRows * F::kBytes;
    constexpr int kFetched = (static_cast<int>(kBlockBytes) / kOfBlock + 63) / 64 * 64;  // for each group
    constexpr std::int64_t kPlainly = kAddedPlainly / kGroups;                           // pieces
    const std::int64_t groups = length / F::kGroup, pieces = (groups + kGroups - 1) / kGroups;
    InterleavedBlocks<F> blocks{reinterpret_cast<const std::uint8_t*>(weight)};
    Total<float> total[kRows][kPanelVectors];
    for (std::int64_t piece = 0; piece < pieces;) {
        Vec<float> sum[kRows][kPanelVectors] = {};
        for (const std::int64_t end = std::min(piece + kPlainly, pieces); piece < end; ++piece) {
            const std::int64_t here = std::min<std::int64_t>(kGroups, groups - piece * kGroups);
            alignas(64) float scales[kOfBlock][kPanelOutputs], minima[kOfBlock][kPanelOutputs];
            for (std::int64_t g = 0; g < here; ++g) {
                const int of_block = static_cast<int>(g) % kOfBlock;
                if (of_block == 0) find_factors(blocks, scales[0], minima[0]);
                if constexpr (F::kLowBits < 8)
                    for (int line = 0; line < kFetched; line += 64)
                        __builtin_prefetch(blocks.p + kAhead + of_block * kFetched + line, 0, 2);
                const Group<F> group(blocks, of_block);
                I32 q[kRows][D::kCount][kPanelVectors];
                const std::int8_t* digits[kRows];
                for (int r = 0; r < kRows; ++r) {
                    const XBlock<D>& block = x[r].blocks[piece];
                    digits[r] = block.digits[0][0] + g * (F::kGroup / 4);
                    for (int d = 0; d < D::kCount; ++d)
                        q[r][d][0] = q[r][d][1] = I32{} + (F::kOffset == 0 ? 0 : start_of<F>(block, d, g));
                }
                for_each<F::kGroup / 4>([&](auto number) TENSOROPS_INLINED {
                    constexpr int i = static_cast<int>(number), place = place_in_block<F::kGroup>(4 * i);
                    __m512i codes[kPanelVectors];
                    for (int v = 0; v < kPanelVectors; ++v) codes[v] = group.template codes<i>(v);
#pragma GCC unroll 4
                    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
                        for (int d = 0; d < D::kCount; ++d) {
                            const LoadedDigits four(digits[r] + d * kPiece + place);
                            for (int v = 0; v < kPanelVectors; ++v)
                                q[r][d][v] = four.template dot<0>(q[r][d][v], reinterpret_cast<Codes>(codes[v]));
                        }
                });
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
                        const std::int64_t place = piece * kGroups + g;
                        sum[r][v] += value * (s * x[r].scales[place]);
                        if constexpr (F::kHasMinima)
                            sum[r][v] += load(minima[of_block] + v * static_cast<int>(kFloats)) * x[r].sums[place];
                    }
                }
                if (of_block == kOfBlock - 1) blocks.p += kBlockBytes;
            }
        }
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kPanelVectors; ++v) total[r][v].add(sum[r][v]);
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVectors; ++v)
            store(y[r] + v * static_cast<int>(kFloats), total[r][v].sum + total[r][v].rest);
}

// Unpacks blocks into a panel.
template <class F>
[[gnu::noinline]] void fill_panel(const char* weight, std::int64_t length, const Panel& to) {
    constexpr std::int64_t kOfBlock = F::kElements / F::kGroup;
    InterleavedBlocks<F> blocks{reinterpret_cast<const std::uint8_t*>(weight)};
    char* words = to.words;
    for (std::int64_t g = 0; g < length / F::kGroup; g += kOfBlock, blocks.p += kInterleavedRows * F::kBytes) {
        find_factors(blocks, to.scales + g * kPanelOutputs, to.minima + g * kPanelOutputs);
        for (int number = 0; number < kOfBlock; ++number) {
            const Group<F> group(blocks, number);
            for_each<F::kGroup / 4>([&](auto i) TENSOROPS_INLINED {
                for (int v = 0; v < kPanelVectors; ++v, words += kVectorBytes)
                    _mm512_storeu_si512(words, group.template codes<static_cast<int>(i)>(v));
            });
        }
    }
}

// What of products depends on the format
template <class D>
struct Steps {
    using Outputs = void(const char* weight, const XRow<D>* x, std::int64_t length, float (*y)[kPanelOutputs]);
    Outputs *of_one, *of_two;  // for as many rows
    void (*fill)(const char* weight, std::int64_t length, const Panel& to);
    void (*multiply)(const XTile<D>& x, const Panel& panel, std::int64_t groups, float (*y)[kPanelOutputs]);
};

template <class D>
bool few_rows(const BlockLinear& op, const XRows<D>& conversion, const Steps<D>& steps, int threads) {
    const std::int64_t room = conversion.room();
    const Scratch scratch(op.x.count * room + wide_room(op.x, op.x_dtype));
    XRow<D> rows[kFewRows];
    for (std::int64_t r = 0; r < op.x.count; ++r)
        if (!make_row(op.x, op.x_dtype, r, conversion, scratch.at<float>(op.x.count * room), scratch.at<char>(r * room),
                      rows[r]))
            return false;
    over_stretches(threads, op.outputs / kInterleavedRows, [&](std::int64_t band) {
        const std::int64_t first = band * kInterleavedRows;
        const char* weight = op.weight + first * op.weight_stride;
        float y[kFewRows][kPanelOutputs];
        std::int64_t r = 0;
        for (; r + 2 <= op.x.count; r += 2) steps.of_two(weight, rows + r, op.x.length, y + r);
        if (r < op.x.count) steps.of_one(weight, rows + r, op.x.length, y + r);
        for (r = 0; r < op.x.count; ++r) {
            finish(op, r, first, kInterleavedRows, rows[r].back, y[r]);
            put_outputs(op, r, first, kInterleavedRows, y[r]);
        }
    });
    return true;
}

template <class D>
bool products(const BlockLinear& op, const XRows<D>& conversion, const Steps<D>& steps, int threads) {
    if (op.x.count <= kFewRows) return few_rows(op, conversion, steps, threads);
    return many_rows(
        op.x, op.x_dtype, op.outputs, conversion, threads,
        [&](std::int64_t first, std::int64_t, const Panel& panel) {
            steps.fill(op.weight + first * op.weight_stride, op.x.length, panel);
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
    const Steps<D> steps{&outputs<F, D, 1>, &outputs<F, D, 2>, &fill_panel<F>,
                         &panel_products<F::kGroup, F::kHasMinima, 1, false, D>};
    return products(op, XRows<D>(F{}, op.x.length), steps, threads);
}

#endif

}  // namespace

TENSOROPS_KERNEL(interleaved_linear, BlockLinear) {
    const FormatSize& format = size_of(op.format);
    const double weight_bytes = static_cast<double>(format.bytes) / static_cast<double>(format.elements);
    const std::int64_t work = matrix_work(op.x.count, op.outputs, op.x.length, weight_bytes);
    const int threads = threads_for(op.outputs / kInterleavedRows, work);
    bool is_done = false;
#if defined(__AVX512VNNI__)
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
