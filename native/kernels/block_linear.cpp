// y = x · Wᵀ for weights in blocks of a format, as files store them; see formats/formats.h.
//
// Work: with a few rows of x, threads take outputs in order, as memory is read fastest; blocks are multiplied as they
//   are, by the integers of block_digits.h. With more rows, a thread unpacks the codes of 32 outputs into a panel,
//   whose words hold four neighbours of an output and whose vectors hold outputs, and multiplies it by all rows:
//   nothing is summed over lanes: see block_panels.h. Without such instructions, for rows with infinities, NaN or
//   extreme numbers, and for formats of floating-point numbers, weights become float32 instead; then dot_tiles.h.
// Precision: integers are exact. Products of a group are scaled in float32, and long rows are summed in blocks.
// Bytes: the blocks once for every kPanelRows rows of x.
#include "block_linear.h"

#include <memory>

#include "block_outputs.h"
#include "block_panels.h"
#include "every_format.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// The number of rows up to which blocks are multiplied as they are
constexpr std::int64_t kFewRows = 4, kFewRowsWithoutPanels = 16;
constexpr std::int64_t kAhead = 8192;  // how many bytes ahead blocks are fetched

// ------------------------------------------------------------------------------------------------- a few rows of x

#if defined(TENSOROPS_DOTS)

// The vectors of a piece's codes whose products are added up before they are scaled; the j-th of all; and the scales
// of the lanes of the n-th sum
#if defined(__AVX512VNNI__)
template <class F>
inline constexpr int kAdded = 4;

template <class F, int j>
inline __attribute__((always_inline)) Codes added_codes(const std::uint8_t* p) {
    return reinterpret_cast<Codes>(codes_by_group<F, j>(p, std::make_index_sequence<kFloats>{}));
}
template <class F, int n>
inline Vec<float> scales_of_lanes(const Factors<kPiece / F::kGroup>& scales) {
    const Vec<float> s = scales.vector[n];
    if constexpr (kHasPairs<F>) return reinterpret_cast<Vec<float>>(_mm512_moveldup_ps(reinterpret_cast<__m512>(s)));
    return F::kGroup == 32 ? chosen(s, numbers_of_lanes(std::make_index_sequence<kFloats>{}) / 2) : s;
}
#else
template <class F>
inline constexpr int kAdded = F::kGroup / kCodes;

template <class F, int j>
inline __attribute__((always_inline)) Codes added_codes(const std::uint8_t* p) {
    return codes<F, j, true>(p);
}
template <class F, int n>
inline float scales_of_lanes(const Factors<kPiece / F::kGroup>& scales) {
    return scales.vector[n / static_cast<int>(kFloats)][n % static_cast<int>(kFloats)];
}
#endif

// A sum of products as float32. Those of a few small codes fit one integer for all digits.
template <class F, class D>
inline __attribute__((always_inline)) Vec<float> value_of(const I32 (&sums)[D::kCount]) {
    constexpr int kLargest = std::max(F::kOffset, F::kMax - F::kOffset);
    if constexpr (D::kCount == 1)
        return __builtin_convertvector(sums[0], Vec<float>);
    else if constexpr (kLargest * 4 * kAdded<F> <= 256)
        return __builtin_convertvector((((sums[0] << 8) + sums[1]) << 8) + sums[2], Vec<float>);
    else
        return value_of_digits(sums);
}

// Adds the products of a piece.
template <class F, class D>
inline __attribute__((always_inline)) void add_piece(const std::uint8_t* p, const XBlock<D>* x, const float* scales,
                                                     Vec<float> (&sum)[2], Vec<float>& minima) {
    Factors<kPiece / F::kGroup> s;
    for_each<kPiece / kCodes / kAdded<F>>([&](auto number) TENSOROPS_INLINED {
        constexpr int n = static_cast<int>(number);
        I32 sums[D::kCount];
        for (int d = 0; d < D::kCount; ++d)
            sums[d] = F::kOffset != 0 && !kSignedCodes ? load_bits<I32>(x->start[d]) : I32{};
        for_each<static_cast<std::size_t>(kAdded<F>)>([&](auto i) TENSOROPS_INLINED {
            constexpr int j = n * kAdded<F> + static_cast<int>(i);
            const Codes q = added_codes<F, j>(p);
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d) sums[d] = dot(sums[d], q, x->digits[d][j]);
        });
        if constexpr (n == 0) {  // not before, which takes GCC up to a fifth more instructions for AVX-512
            if constexpr (kHasPairs<F>) {
                s.vector[0] = F::pairs(p) * load(scales);
                minima += s.vector[0];
            } else {
                s = F::scales(p);
                for (int k = 0; k < s.kVectors; ++k) s.vector[k] *= load(scales + k * static_cast<int>(kFloats));
            }
        }
        sum[n % 2] += value_of<F, D>(sums) * scales_of_lanes<F, n>(s);
    });
}

#else

// Products of words, the sums of two neighbours each
template <class V>
inline I32 pair_products_of(V a, const std::int16_t* b) {
    return pair_products(reinterpret_cast<I16>(a), load_bits<I16>(b));
}

template <class D>
inline __attribute__((always_inline)) Vec<float> products(Codes codes, const XBlock<D>& x, bool has_start) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (D::kOfBytes) {
        const auto dot = [&](int d, std::int16_t factor) {
            const __m256i pairs = _mm256_maddubs_epi16(reinterpret_cast<__m256i>(codes),
                                                       load_bits<__m256i>(x.digits[d][0]));  // at most 2 · 63 · 128
            return _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor));
        };
        __m256i all;
        if constexpr (D::kCount == 1) {
            all = dot(0, 1);
        } else {
            const __m256i upper = _mm256_add_epi32(dot(0, 256), dot(1, 1));
            all = _mm256_add_epi32(_mm256_slli_epi32(upper, 8), dot(2, 1));
        }
        if (has_start) all = _mm256_add_epi32(all, load_bits<__m256i>(x.start[0]));
        return reinterpret_cast<Vec<float>>(_mm256_cvtepi32_ps(all));
    }
#endif
    if constexpr (!D::kOfBytes) {
        const auto words = reinterpret_cast<Words>(codes);
        const auto dot = [&](int d) TENSOROPS_INLINED {
            const I32 sum =
                pair_products_of(words & 255, x.digits[d][0]) + pair_products_of(words >> 8, x.digits[d][1]);
            return has_start && !D::kAreMerged ? sum + load_bits<I32>(x.start[d]) : sum;
        };
        if constexpr (D::kCount == 1) {
            const I32 sum = dot(0);
            return __builtin_convertvector(has_start ? sum + load_bits<I32>(x.start[0]) : sum, Vec<float>);
        } else {
            return __builtin_convertvector(dot(0), Vec<float>) * 4096.0f + __builtin_convertvector(dot(1), Vec<float>);
        }
    }
}

// Which of a piece's groups the lanes of its j-th vector belong to, in the vector of factors that has them
template <class F, int j>
inline I32 groups_of_lanes() {
    constexpr int first = j * kCodes / F::kGroup;
    const I32 lane = numbers_of_lanes(std::make_index_sequence<kFloats>{});
    return index_of(lane * 4 / F::kGroup + first % static_cast<int>(kFloats));
}

template <class F, class D>
inline __attribute__((always_inline)) void add_piece(const std::uint8_t* p, const XBlock<D>* x, const float* scales,
                                                     Vec<float> (&sum)[2], Vec<float>&) {
    Factors<kPiece / F::kGroup> s = F::scales(p);
    for (int k = 0; k < s.kVectors; ++k) s.vector[k] *= load(scales + k * static_cast<int>(kFloats));
    for_each<kPiece / kCodes>([&](auto number) TENSOROPS_INLINED {
        constexpr int j = static_cast<int>(number);
        constexpr int of_scales = j * kCodes / F::kGroup / static_cast<int>(kFloats);
        sum[j % 2] +=
            products<D>(codes<F, j>(p), x[j], F::kOffset != 0) * chosen(s.vector[of_scales], groups_of_lanes<F, j>());
    });
}

#endif

// One output for one row of x. Up to `readable`, what follows a row may be read with its last piece: x is 0 there, and
// a scale that is not finite gives an output that is mended.
template <class F, class D>
inline __attribute__((always_inline)) float output(const std::uint8_t* weight, const std::uint8_t* readable,
                                                   const XRow<D>& x, std::int64_t length, std::int64_t ahead) {
    constexpr int kGroups = kPiece / F::kGroup, kPieceBytes = kPiece / F::kElements * F::kBytes;
    Total<float> total;
    Vec<float> sum[2] = {}, minima{};
    const auto add = [&](const std::uint8_t* p, std::int64_t piece) TENSOROPS_INLINED {
        const float* factors = kHasPairs<F> ? x.pairs + 2 * piece * kGroups : x.scales + piece * kGroups;
        add_piece<F>(p, x.blocks + piece * XRows<D>::kBlocks, factors, sum, minima);
        if constexpr (F::kHasMinima && !kHasPairs<F>) {
            const Factors<kGroups> m = F::minima(p);
            for (int k = 0; k < m.kVectors; ++k)
                minima += m.vector[k] * load(x.sums + piece * kGroups + k * static_cast<int>(kFloats));
        }
    };
    const std::int64_t rest = length % kPiece, pieces = (length + kPiece - 1) / kPiece;
    std::uint8_t last[kPieceBytes];
    for (std::int64_t piece = 0;;) {
        for (const std::int64_t end = std::min(piece + kAddedPlainly, pieces); piece < end; ++piece) {
            const std::uint8_t* p = weight + piece * kPieceBytes;
            if (__builtin_expect(readable - p < kPieceBytes, 0)) {
                std::memset(last, 0, sizeof last);
                std::memcpy(last, p, static_cast<std::size_t>(rest / F::kElements * F::kBytes));
                p = last;
            } else {
                for (int line = 0; line < kPieceBytes; line += 64) fetch(p + ahead + line);
            }
            add(p, piece);
        }
        if constexpr (kHasPairs<F>) minima = odd_lanes_alone(minima);
        if (__builtin_expect(pieces <= kAddedPlainly, 1)) return sum_of_lanes<float>(sum[0] + sum[1] + minima);
        total.add(sum[0] + sum[1] + minima);
        if (piece == pieces) return total.value();
        sum[0] = sum[1] = minima = Vec<float>{};
    }
}

constexpr std::int64_t kOutputs = 16;  // computed one after another

template <class F, class D>
[[gnu::noinline]] void outputs(const BlockLinear& op, const XRow<D>& x, std::int64_t first, std::int64_t width,
                               float* y) {
    const std::int64_t bytes = op.x.length / F::kElements * F::kBytes, ahead = (kAhead / bytes + 1) * op.weight_stride;
    const auto* weight = reinterpret_cast<const std::uint8_t*>(op.weight);
    const std::uint8_t* end = weight + op.outputs * bytes;
    for (std::int64_t i = 0; i < width; ++i) {
        const std::uint8_t* row = weight + (first + i) * op.weight_stride;
        y[i] = output<F, D>(row, op.weight_stride == bytes ? end : row + bytes, x, op.x.length, ahead);
    }
}

template <class D>
using Outputs = void (*)(const BlockLinear& op, const XRow<D>& x, std::int64_t first, std::int64_t width, float* y);

template <class D>
bool few_rows(const BlockLinear& op, const XRows<D>& conversion, Outputs<D> compute, int threads) {
    const std::int64_t room = conversion.room();
    const Scratch scratch(op.x.count * room + wide_room(op.x, op.x_dtype));
    XRow<D> rows[kFewRowsWithoutPanels];
    for (std::int64_t r = 0; r < op.x.count; ++r)
        if (!make_row(op.x, op.x_dtype, r, conversion, scratch.at<float>(op.x.count * room), scratch.at<char>(r * room),
                      rows[r]))
            return false;
    over_stretches(threads, (op.outputs + kOutputs - 1) / kOutputs, [&](std::int64_t unit) {
        const std::int64_t first = unit * kOutputs, width = std::min(kOutputs, op.outputs - first);
        for (std::int64_t r = 0; r < op.x.count; ++r) {
            float y[kOutputs] = {};
            compute(op, rows[r], first, width, y);
            finish(op, r, first, width, rows[r].back, y);
            put_outputs(op, r, first, width, y);
        }
    });
    return true;
}

// ------------------------------------------------------------------------------------------------- many rows of x

#if defined(TENSOROPS_PANELS)

// What of many rows depends on the format
template <class D>
struct PanelSteps {
    void (*fill_piece)(const BlockLinear& op, std::int64_t first, std::int64_t width, std::int64_t vector,
                       std::int64_t piece, const Panel& to);
    void (*multiply)(const XTile<D>& x, const Panel& panel, std::int64_t groups, float (*y)[kPanelOutputs]);
};

template <class D>
bool many_rows(const BlockLinear& op, const XRows<D>& conversion, const PanelSteps<D>& steps, int threads) {
    const auto fill = [&](std::int64_t first, std::int64_t width, const Panel& panel) {
        for (std::int64_t v = 0; v < kPanelVectors; ++v)
            for (std::int64_t k = 0; k < conversion.pieces; ++k) steps.fill_piece(op, first, width, v, k, panel);
    };
    return many_rows(op.x, op.x_dtype, op.outputs, conversion, threads, fill, steps.multiply,
                     [&](std::int64_t row, std::int64_t first, std::int64_t width, float back, float* y) {
                         finish(op, row, first, width, back, y);
                         put_outputs(op, row, first, width, y);
                     });
}

#endif

template <class F, int kDigits>
bool products_of(const BlockLinear& op, int threads) {
    using D = DigitsFor<F, kDigits>;
    if (op.x.count <= (kHasPanels<D> ? kFewRows : kFewRowsWithoutPanels))
        return few_rows<D>(op, XRows<D>(F{}, op.x.length), &outputs<F, D>, threads);
#if defined(TENSOROPS_PANELS)
    if constexpr (kHasPanels<D>) {
        using OfPanels = Digits<true, D::kCount, D::kAreMerged>;
        constexpr int kLargest = kHasSigns<F> ? 128 : F::kMax, kPlain = plain_fours(kLargest, F::kGroup / 4);
        const PanelSteps<OfPanels> steps{&fill_piece<F>,
                                         &panel_products<F::kGroup, F::kHasMinima, kPlain, kHasSigns<F>, OfPanels>};
        XRows<OfPanels> conversion(F{}, op.x.length);
        if (kHasSigns<F>) conversion.offset = 0;
        return many_rows(op, conversion, steps, threads);
    }
#endif
    return false;
}

}  // namespace

TENSOROPS_KERNEL(block_linear, BlockLinear) {
    const FormatSize& format = size_of(op.format);
    const double weight_bytes = static_cast<double>(format.bytes) / static_cast<double>(format.elements);
    const std::int64_t work = matrix_work(op.x.count, op.outputs, op.x.length, weight_bytes);
    const int threads = threads_for((op.outputs + kOutputs - 1) / kOutputs, work);
    const bool is_done = for_format(op.format, [&op, threads](auto f) {
        using F = decltype(f);
        if constexpr (F::kIsFloat)
            return false;
        else
            return op.digits == 1 ? products_of<F, 1>(op, threads) : products_of<F, 3>(op, threads);
    });
    if (!is_done) products_in_float(op, threads);
}

}  // namespace tensorops::TENSOROPS_TARGET
