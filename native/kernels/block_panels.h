// Products of many rows of x with weights in blocks: codes are unpacked into panels, and these are multiplied by
// digits of x; see block_linear.cpp. With AVX512_VNNI and dotprod for one digit or three, with AVX2 for one.
//
// A word of a panel has four neighbouring codes of an output, and a vector the words of neighbouring outputs, so that
// nothing is summed over lanes. With i8mm a word has eight, and is multiplied by two rows of x at once.
#pragma once

#include <memory>
#include <numeric>

#include "block_digits.h"
#include "block_linear.h"
#include "lanes.h"

namespace tensorops::TENSOROPS_TARGET {

// Whether a target has such products at all, and whether those with some digits
#if defined(TENSOROPS_DOTS)
#define TENSOROPS_PANELS
template <class D>
inline constexpr bool kHasPanels = true;
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define TENSOROPS_PANELS
template <class D>
inline constexpr bool kHasPanels = D::kCount == 1;
#else
template <class D>
inline constexpr bool kHasPanels = false;
#endif

// Multiplies outputs, which have room for whole vectors, by the factor that is left; false if one is not finite then.
inline bool finish_outputs(float* y, std::int64_t width, float back) {
    I32 is_odd{};
    for (std::int64_t i = 0; i < width; i += kLanes<float>) {
        const Vec<float> v = load(y + i) * back;
        is_odd |= reinterpret_cast<I32>(v - v != 0);
        store(y + i, v);
    }
    return !any(is_odd);
}

#if defined(TENSOROPS_PANELS)

inline constexpr int kPanelVectors = 2;
inline constexpr std::int64_t kPanelOutputs = kPanelVectors * static_cast<std::int64_t>(kFloats);
inline constexpr std::int64_t kPanelRows = 512;  // of x, that are converted at a time

// What one instruction multiplies: a vector of words, of that many neighbours each, by those of some rows of x
#if defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr int kDotInputs = 8, kDotRows = 2;
#else
inline constexpr int kDotInputs = 4, kDotRows = 1;
#endif
inline constexpr int kDotOutputs = kCodes / kDotInputs;
inline constexpr std::int64_t kWords = kPanelOutputs * kDotInputs;  // bytes of a word of every output

// Without vpdpbusd, bytes of which one has no sign are multiplied by AVX2, and sums of two such products fit 16 bits:
// larger codes are stored with a sign, which goes to the digit when they are multiplied.
#if defined(TENSOROPS_DOTS)
template <class F>
inline constexpr bool kHasSigns = kSignedCodes;
#else
template <class F>
inline constexpr bool kHasSigns = F::kMax > 63;
#endif

// Turns neighbours of a vector of outputs into words of every output.
[[gnu::noinline]] inline void put_words(const std::uint8_t (&q)[kFloats][kPiece], char* to) {
    using Word = std::conditional_t<kDotInputs == 8, double, float>;
    constexpr auto words = static_cast<std::size_t>(kLanes<Word>);
    for (int begin = 0; begin < kPiece; begin += kCodes) {
        char* at = to + begin * kPanelOutputs;
        for (std::size_t o = 0; o < kFloats; o += words, at += kVectorBytes) {
            Vec<Word> rows[words];
            for (std::size_t i = 0; i < words; ++i) rows[i] = load_bits<Vec<Word>>(q[o + i] + begin);
            transpose<Word>(rows);
            for (std::size_t i = 0; i < words; ++i) std::memcpy(at + i * kWords, &rows[i], sizeof rows[i]);
        }
    }
}

// The factors of a vector of outputs, group by group
[[gnu::noinline]] inline void put_factors(Vec<float> (&rows)[kFloats], int groups, float* to) {
    transpose<float>(rows);
    for (int g = 0; g < groups; ++g) store(to + g * kPanelOutputs, rows[g]);
}

// Where the codes of outputs are, and their scales and minima, group by group
struct Panel {
    char* words;
    float *scales, *minima;

    // Of that many whole pieces
    static std::int64_t room(std::int64_t pieces, std::int64_t group) {
        const std::int64_t factors = pieces * (kPiece / group) * static_cast<std::int64_t>(sizeof(float));
        return (pieces * kPiece + 2 * factors) * kPanelOutputs;
    }
    Panel(char* memory, std::int64_t pieces, std::int64_t group)
        : words(memory),
          scales(reinterpret_cast<float*>(memory + pieces * kPiece * kPanelOutputs)),
          minima(scales + pieces * (kPiece / group) * kPanelOutputs) {}
};

template <int kGroups, bool kHasMinima, int kFactors>
void put_piece(const std::uint8_t (&q)[kFloats][kPiece], Vec<float> (&scales)[kFactors][kFloats],
               Vec<float> (&minima)[kFactors][kFloats], std::int64_t vector, std::int64_t piece, const Panel& to) {
    constexpr auto lanes = static_cast<std::int64_t>(kFloats);
    put_words(q, to.words + piece * kPiece * kPanelOutputs + lanes * kDotInputs * vector);
    for (int k = 0; k < kFactors; ++k) {
        const int begin = k * static_cast<int>(kFloats), count = std::min(kGroups - begin, static_cast<int>(kFloats));
        const std::int64_t place = (piece * kGroups + begin) * kPanelOutputs + lanes * vector;
        put_factors(scales[k], count, to.scales + place);
        if (kHasMinima) put_factors(minima[k], count, to.minima + place);
    }
}

// Unpacks a piece of a vector of outputs; `width` are wanted from the `first` on.
template <class F>
void fill_piece(const BlockLinear& op, std::int64_t first, std::int64_t width, std::int64_t vector, std::int64_t piece,
                const Panel& to) {
    constexpr int kPieceBytes = kPiece / F::kElements * F::kBytes, kGroups = kPiece / F::kGroup;
    constexpr int kFactors = Factors<kGroups>::kVectors;
    constexpr auto lanes = static_cast<std::int64_t>(kFloats);
    const std::int64_t length = std::min<std::int64_t>(op.x.length - piece * kPiece, kPiece);
    alignas(64) std::uint8_t q[kFloats][kPiece];
    Vec<float> scales[kFactors][kFloats], minima[kFactors][kFloats];
    for (std::int64_t o = 0; o < lanes; ++o) {
        const std::int64_t output = first + std::min(lanes * vector + o, width - 1);
        const auto* p =
            reinterpret_cast<const std::uint8_t*>(op.weight + output * op.weight_stride) + piece * kPieceBytes;
        std::uint8_t last[kPieceBytes];
        if (length < kPiece) {
            std::memset(last, 0, sizeof last);
            std::memcpy(last, p, static_cast<std::size_t>(length / F::kElements * F::kBytes));
            p = last;
        }
        for_each<kPiece / kCodes>([&](auto j) TENSOROPS_INLINED {
            const Codes of_vector = codes<F, static_cast<int>(j), kHasSigns<F>>(p);
            std::memcpy(q[o] + static_cast<std::size_t>(j) * kCodes, &of_vector, sizeof of_vector);
        });
        const Factors<kGroups> s = F::scales(p);
        for (int k = 0; k < kFactors; ++k) scales[k][o] = s.vector[k];
        if constexpr (F::kHasMinima) {
            const Factors<kGroups> m = F::minima(p);
            for (int k = 0; k < kFactors; ++k) minima[k][o] = m.vector[k];
        }
    }
    put_piece<kGroups, F::kHasMinima>(q, scales, minima, vector, piece, to);
}

// How many rows a panel is multiplied by at once: with as many sums as registers hold
#if defined(__AVX512VNNI__)
template <class D>
inline constexpr int kPanelRowsAtOnce = D::kCount == 1 ? 12 : 4;
#elif defined(TENSOROPS_DOTS)
template <class D>
inline constexpr int kPanelRowsAtOnce = D::kCount == 1 ? 4 : 2;
#else
template <class D>
inline constexpr int kPanelRowsAtOnce = 4;
#endif

// A unit of a row's digits follows that of the row before, so that a tile is read in order. It is as long as what is
// loaded of a row at a time: with AArch64, a register.
#if defined(__ARM_FEATURE_DOTPROD)
inline constexpr int kUnitBytes = 16;
#else
inline constexpr int kUnitBytes = 4;
#endif

// The rows of x that a panel is multiplied by at once
template <class D>
struct XTile {
    static constexpr int kRows = kPanelRowsAtOnce<D>;

    std::int8_t* digits;
    std::int32_t* starts;  // of sums of products with each digit, group by group, as the scales are
    float *scales, *sums;
    float back[kRows];

    static std::int64_t room(std::int64_t length, std::int64_t group) {
        const std::int64_t factors = length / group * static_cast<std::int64_t>(sizeof(float));
        return whole_lines(kRows * (length * D::kCount + factors * (D::kCount + 2)));
    }
    void place(char* memory, std::int64_t length, std::int64_t group) {
        digits = reinterpret_cast<std::int8_t*>(memory);
        starts = reinterpret_cast<std::int32_t*>(memory + kRows * length * D::kCount);
        scales = reinterpret_cast<float*>(starts + kRows * (length / group) * D::kCount);
        sums = scales + kRows * (length / group);
    }

    // Takes the r-th row.
    void put(int r, const XRow<D>& x, std::int64_t length, std::int64_t group) {
        group == 32 ? put_groups<32>(r, x, length) : put_groups<16>(r, x, length);
        back[r] = x.back;
    }

  private:
    template <int kGroup>
    void put_groups(int r, const XRow<D>& x, std::int64_t length) {
        std::int8_t* to = digits + r * kUnitBytes;
        for (std::int64_t g = 0; g < length / kGroup; ++g) {
            const int begin = static_cast<int>(g * kGroup % XBlock<D>::kLength);
            const XBlock<D>& block = x.blocks[g * kGroup / XBlock<D>::kLength];
            for (int k = 0; k < kGroup; k += kUnitBytes)
                for (int d = 0; d < D::kCount; ++d, to += kRows * kUnitBytes)
                    std::memcpy(to, block.digits[d][0] + place_in_block<kGroup>(begin + k), kUnitBytes);
            for (int d = 0; d < D::kCount; ++d) {
                const std::int32_t* lanes = block.start[d] + begin / kStartCodes;
                starts[(g * D::kCount + d) * kRows + r] =
                    kSignedCodes ? 0 : std::accumulate(lanes, lanes + kGroup / kStartCodes, 0);
            }
            scales[g * kRows + r] = x.scales[g];
            sums[g * kRows + r] = x.sums[g];
        }
    }

    // Codes in a lane of what sums start from: with AVX512_VNNI, those of all vectors of a piece
#if defined(__AVX512VNNI__)
    static constexpr int kStartCodes = 16;
#else
    static constexpr int kStartCodes = 4;
#endif
};

// A panel times the rows of a tile. `sums_of_group(g, to)` gives the sums of a group as float32, without scales.
template <bool kHasMinima, class X, class Sums>
inline __attribute__((always_inline)) void scaled_sums(const X& x, const Panel& panel, std::int64_t groups,
                                                       float (*y)[kPanelOutputs], Sums sums_of_group) {
    constexpr int kRows = X::kRows;
    Total<float> total[kRows][kPanelVectors];
    for (std::int64_t g = 0; g < groups;) {
        Vec<float> sum[kRows][kPanelVectors] = {};
        for (const std::int64_t end = std::min(g + kAddedPlainly, groups); g < end; ++g) {
            const float *scales = x.scales + g * kRows, *sums = x.sums + g * kRows;
            const auto put = [&](int r, int v, Vec<float> value, Vec<float> s, Vec<float> m) TENSOROPS_INLINED {
                sum[r][v] += value * (s * scales[r]);
                if (kHasMinima) sum[r][v] += m * sums[r];
            };
            sums_of_group(g, [&](auto&& value_of) TENSOROPS_INLINED {
#pragma GCC unroll 2
                for (int v = 0; v < kPanelVectors; ++v) {
                    const std::int64_t place = g * kPanelOutputs + v * static_cast<std::int64_t>(kFloats);
                    const Vec<float> s = load(panel.scales + place);
                    const Vec<float> m = kHasMinima ? load(panel.minima + place) : Vec<float>{};
#pragma GCC unroll 12
                    for (int r = 0; r < kRows; ++r) put(r, v, value_of(r, v), s, m);
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

#if defined(TENSOROPS_DOTS)

// A unit of a row's digits, for one instruction or several: dot<i> adds the products of the i-th four.
struct RowDigits {
#if defined(__AVX512VNNI__)
    static constexpr int kDots = 1;
    __m512i four;

    explicit RowDigits(const std::int8_t* at) : four(_mm512_set1_epi32(load_bits<std::int32_t>(at))) {}
    template <int>
    I32 dot(I32 sums, Codes codes) const {
        return reinterpret_cast<I32>(
            _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(codes), four));
    }
#else
    static constexpr int kDots = 4;
    int8x16_t fours;

    explicit RowDigits(const std::int8_t* at) : fours(vld1q_s8(at)) {}
    template <int i>
    I32 dot(I32 sums, Codes codes) const {
        return reinterpret_cast<I32>(
            vdotq_laneq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<int8x16_t>(codes), fours, i));
    }
#endif
};

// Those of kDotRows rows
#if defined(__ARM_FEATURE_MATMUL_INT8)
struct LoadedDigits {
    static constexpr int kDots = 2;
    int8x16_t eights[kDots];

    explicit LoadedDigits(const std::int8_t* at) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(at)), b = vreinterpretq_s64_s8(vld1q_s8(at + kUnitBytes));
        eights[0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        eights[1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
    template <int i>
    I32 dot(I32 sums, Codes codes) const {
        return reinterpret_cast<I32>(
            vmmlaq_s32(reinterpret_cast<int32x4_t>(sums), eights[i], reinterpret_cast<int8x16_t>(codes)));
    }
};
#else
using LoadedDigits = RowDigits;
#endif

// The sums of one row and a vector of outputs, of those of kDotRows rows
inline I32 sums_of_row([[maybe_unused]] int row, const I32* sums) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    const auto a = reinterpret_cast<int64x2_t>(sums[0]), b = reinterpret_cast<int64x2_t>(sums[1]);
    return reinterpret_cast<I32>(row == 0 ? vzip1q_s64(a, b) : vzip2q_s64(a, b));
#else
    return sums[0];
#endif
}

// Not inlined, because the sums need nearly all registers.
template <int kGroup, bool kHasMinima, int kPlain, bool kSigns, class D>
[[gnu::noinline]] void panel_products(const XTile<D>& x, const Panel& panel, std::int64_t groups,
                                      float (*y)[kPanelOutputs]) {
    constexpr int kRows = XTile<D>::kRows, kBands = kRows / kDotRows, kDots = LoadedDigits::kDots;
    constexpr int kTiles = static_cast<int>(kPanelOutputs) / kDotOutputs;
    constexpr bool kStarts = !kHasMinima && !kSigns;  // codes with minima have no offset
    scaled_sums<kHasMinima>(x, panel, groups, y, [&](std::int64_t g, auto give) TENSOROPS_INLINED {
        const char* words = panel.words + g * kGroup * kPanelOutputs;
        const std::int8_t* digits = x.digits + g * kGroup * D::kCount * kRows;
        const std::int32_t* starts = x.starts + g * D::kCount * kRows;
        I32 q[kBands][D::kCount][kTiles];
#pragma GCC unroll 12
        for (int b = 0; b < kBands; ++b)
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d)
#pragma GCC unroll 4
                for (int t = 0; t < kTiles; ++t) q[b][d][t] = I32{} + (kStarts ? starts[d * kRows + b] : 0);
        for_each<kGroup / kDotInputs>([&](auto number) TENSOROPS_INLINED {
            constexpr int i = static_cast<int>(number), unit = i / kDots;
            Codes codes[kTiles];
#pragma GCC unroll 4
            for (int t = 0; t < kTiles; ++t) codes[t] = load_bits<Codes>(words + i * kWords + t * kCodes);
#pragma GCC unroll 12
            for (int b = 0; b < kBands; ++b)
#pragma GCC unroll 4
                for (int d = 0; d < D::kCount; ++d) {
                    const LoadedDigits loaded(digits + ((unit * D::kCount + d) * kRows + b * kDotRows) * kUnitBytes);
#pragma GCC unroll 4
                    for (int t = 0; t < kTiles; ++t) q[b][d][t] = loaded.template dot<i % kDots>(q[b][d][t], codes[t]);
                }
        });
        give([&](int r, int v) TENSOROPS_INLINED {
            I32 sums[D::kCount];
#pragma GCC unroll 4
            for (int d = 0; d < D::kCount; ++d)
                sums[d] = sums_of_row(r % kDotRows, &q[r / kDotRows][d][v * kTiles / kPanelVectors]);
            if constexpr (D::kCount == 1)
                return __builtin_convertvector(sums[0], Vec<float>);
            else
                return value_of_digits(sums);
        });
    });
}

#elif defined(__AVX2__) && !defined(__AVX512F__)

// kPlain: how many fours of codes have sums of products that fit 16 bits
template <int kGroup, bool kHasMinima, int kPlain, bool kSigns, class D>
[[gnu::noinline]] void panel_products(const XTile<D>& x, const Panel& panel, std::int64_t groups,
                                      float (*y)[kPanelOutputs]) {
    constexpr int kRows = XTile<D>::kRows;
    scaled_sums<kHasMinima>(x, panel, groups, y, [&](std::int64_t g, auto give) TENSOROPS_INLINED {
        const char* words = panel.words + g * kGroup * kPanelOutputs;
        const std::int8_t* digits = x.digits + g * kGroup * kRows;
        __m256i sums[kRows][kPanelVectors];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_set1_epi32(x.starts[g * kRows + r]);
#pragma GCC unroll 8
        for (int begin = 0; begin < kGroup / 4; begin += kPlain) {
            __m256i pairs[kRows][kPanelVectors];
#pragma GCC unroll 8
            for (int i = begin; i < begin + kPlain; ++i) {
                __m256i codes[kPanelVectors], sizes[kPanelVectors];
                for (int v = 0; v < kPanelVectors; ++v) {
                    codes[v] = load_bits<__m256i>(words + i * kWords + 32 * v);
                    sizes[v] = kSigns ? _mm256_abs_epi8(codes[v]) : codes[v];
                }
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) {
                    const __m256i all =
                        _mm256_set1_epi32(load_bits<std::int32_t>(digits + (i * kRows + r) * kUnitBytes));
#pragma GCC unroll 2
                    for (int v = 0; v < kPanelVectors; ++v) {
                        const __m256i with_signs = kSigns ? _mm256_sign_epi8(all, codes[v]) : all;
                        const __m256i products = _mm256_maddubs_epi16(sizes[v], with_signs);
                        pairs[r][v] = i == begin ? products : _mm256_add_epi16(pairs[r][v], products);
                    }
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
                for (int v = 0; v < kPanelVectors; ++v)
                    sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(pairs[r][v], _mm256_set1_epi16(1)));
        }
        give([&](int r, int v)
                 TENSOROPS_INLINED { return reinterpret_cast<Vec<float>>(_mm256_cvtepi32_ps(sums[r][v])); });
    });
}

#endif

// The most fours of codes up to a largest one whose sums of two products with digits up to 127 fit 16 bits
constexpr int plain_fours([[maybe_unused]] int largest, [[maybe_unused]] int most) {
#if defined(TENSOROPS_DOTS)
    return 1;  // they add in 32 bits
#else
    int fours = most;
    while (fours > 1 && 2 * 127 * largest * fours > 32767) fours /= 2;
    return fours;
#endif
}

// Multiplies all rows of x: fill(first, width, panel) puts some outputs into a panel, and finish(row, first, width,
// back, y) takes their products with a row, which are still to be multiplied by `back`.
template <class D, class Fill, class Finish>
bool many_rows(const Rows& x, Dtype x_dtype, std::int64_t outputs, const XRows<D>& conversion, int threads,
               const Fill& fill,
               void (*multiply)(const XTile<D>&, const Panel&, std::int64_t, float (*)[kPanelOutputs]),
               const Finish& finish) {
    using Tile = XTile<D>;
    constexpr std::int64_t kRows = Tile::kRows;
    const std::int64_t group = conversion.group, groups = x.length / group;
    const std::int64_t count = std::min((x.count + kRows - 1) / kRows, kPanelRows / kRows);
    const std::int64_t tile_room = Tile::room(x.length, group);
    const std::int64_t of_member =  // one after the other
        std::max(Panel::room(conversion.pieces, group), conversion.room() + wide_room(x, x_dtype));
    const Scratch scratch(count * tile_room + threads * of_member);
    const auto tiles = std::make_unique<Tile[]>(static_cast<std::size_t>(count));
    Interruption* const at = interruption;
    for (std::int64_t begin = 0; begin < x.count; begin += count * kRows) {
        const std::int64_t here = std::min(count * kRows, x.count - begin), used = (here + kRows - 1) / kRows;
        std::atomic<bool> are_made{true};
        over_shares(std::min<int>(threads, static_cast<int>(used)), used, 1, [&](Share share) {
            char* memory = scratch.at<char>(count * tile_room + share.member * of_member);
            for (std::int64_t t = share.begin; t < share.end; ++t) {
                tiles[t].place(scratch.at<char>(t * tile_room), x.length, group);
                const std::int64_t height = std::min(kRows, here - t * kRows);
                if (height < kRows) std::memset(tiles[t].digits, 0, static_cast<std::size_t>(tile_room));
                for (std::int64_t r = 0; r < height; ++r) {
                    XRow<D> row;
                    auto* wide = reinterpret_cast<float*>(memory + conversion.room());
                    if (!make_row(x, x_dtype, begin + t * kRows + r, conversion, wide, memory, row)) {
                        are_made = false;
                        return;
                    }
                    tiles[t].put(static_cast<int>(r), row, x.length, group);
                }
            }
        });
        if (!are_made) return false;
        over_pieces(threads, (outputs + kPanelOutputs - 1) / kPanelOutputs, [&](std::int64_t piece, int member) {
            const std::int64_t first = piece * kPanelOutputs, width = std::min(kPanelOutputs, outputs - first);
            if (leaves(at, matrix_work(here, width, x.length, 1))) return;
            const Panel panel(scratch.at<char>(count * tile_room + member * of_member), conversion.pieces, group);
            fill(first, width, panel);
            for (std::int64_t t = 0; t < used; ++t) {
                float y[kRows][kPanelOutputs];
                multiply(tiles[t], panel, groups, y);
                for (std::int64_t r = 0; r < std::min(kRows, here - t * kRows); ++r)
                    finish(begin + t * kRows + r, first, width, tiles[t].back[r], y[r]);
            }
        });
    }
    return true;
}

#endif

}  // namespace tensorops::TENSOROPS_TARGET
