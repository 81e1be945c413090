// y = x · Wᵀ for quantized weights in panels, whose lanes are outputs: see panel_linear.h.
//
// Work: chunks of rows, converted to integers once (fixed_point.h); each thread takes its own panels, then those of
//   others, and multiplies them by three rows at a time. AVX512_VNNI multiplies four neighbours by bytes in one
//   instruction: 32 weights of 16 outputs need 24 of these for each row, and six others. In quantized_linear's order,
//   whose lanes are inputs, there are six others for each three to six.
// Precision: integers, exact within 32 neighbours; their sums in float32, as accurate as those of float32 products.
//   Rows with infinities, NaN or extreme numbers are multiplied by the weights themselves, in float32; so are all rows
//   on targets without AVX512_VNNI, where quantized_linear is the faster kernel.
// Bytes: the weights, scales and biases once for each chunk of rows, in order. For up to three rows nothing is fetched
//   ahead: processors do that by themselves for one stream, and with a prefetch of each line a step of SmolLM2
//   took 1.03 to 1.06 of the time (Zen 4, from memory), one product from the second-level cache 1.06 to 1.4. With more
//   rows memory would rest while a panel is multiplied by the second three, so that all of them fetch their part of the
//   next panel: a step for eight sequences takes 0.87 to 0.92 of the time.
#include "panel_linear.h"

#include "dot_tiles.h"
#include "fixed_point.h"
#include "lanes.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kRowsOfChunk = 64;  // whose digits stay in the second-level cache
constexpr int kTogether = 3;  // rows that are multiplied at once: the sums of four do not fit the registers
constexpr int kVectors = kPanelOutputs / static_cast<int>(kFloats);
constexpr std::int64_t kWordBytes = 4 * kPanelOutputs;  // one word of each output

// 32 neighbours of x as integers with three digits of base 256.
struct Fixed {
    std::int8_t digits[3][32];  // by significance; those that multiply the same word, low nibbles first, side by side
    std::int32_t start[3];      // the initial sums of products: signed weights have 128 added
    float scale;
};

// What to fetch while a group is multiplied, in bytes from the group's beginning
struct Ahead {
    std::int64_t begin = 0, end = 0;
};

// A row of x: integers and the sums over groups, or float32 if there are no integers.
struct Row {
    const Fixed* fixed;
    const float *sums, *wide;
};

// A row with four bytes for each element of x has room for either.
static_assert(sizeof(Fixed) + sizeof(float) <= kFixed * sizeof(float));

template <class S>
inline Vec<float> load_lanes(const char* scales, int vector) {
    return load(reinterpret_cast<const S*>(scales) + vector * static_cast<int>(kFloats));
}

inline void store_total(float* to, const Total<float>& total) {
    const Vec<float> all = total.sum + total.rest;
    store(to, all == all ? all : total.sum);  // the compensation of an infinity is NaN
}

// A panel for one row of float32.
template <int kBits, bool kBiases, class S>
void multiply_floats(const PanelFormat& format, const float* x, const char* panel, float* y) {
    constexpr int kPerWord = 32 / kBits;
    for (int v = 0; v < kVectors; ++v) {
        Total<float> total;
        const char* group = panel;
        for (std::int64_t g = 0; g < format.groups(); ++g, group += format.group_bytes()) {
            const char* scales = group + kWordBytes * format.words_of_group();
            const Vec<float> s = load_lanes<S>(scales, v);
            const Vec<float> b = kBiases ? load_lanes<S>(scales, kVectors + v) : Vec<float>{};
            const float* from = x + g * format.group_size;
            Vec<float> sum{};
            for (std::int64_t i = 0; i < format.words_of_group(); ++i) {
                const U32 word = load_bits<U32>(group + kWordBytes * i + static_cast<int>(kVectorBytes) * v);
                for (int k = 0; k < kPerWord; ++k) {
                    const U32 q = (word >> (kBits * k)) & ((1u << kBits) - 1);
                    const auto w =
                        __builtin_convertvector(reinterpret_cast<I32>(q), Vec<float>) - (kBiases ? 0 : 128.0f);
                    sum += (w * s + b) * from[kPerWord * i + k];
                }
            }
            total.add(sum);
        }
        store_total(y + v * static_cast<int>(kFloats), total);
    }
}

#if defined(__AVX512VNNI__)

// 32 neighbours; false if some are too large or too small to have a scale.
template <int kBits, bool kBiases, class T>
inline __attribute__((always_inline)) bool make_fixed(const T* x, Fixed& to) {
    constexpr float kUnits = 127 * 65536 + 127 * 256;  // the largest is 127 more, which rounding must not exceed
    const float largest = largest_magnitude(x, kFixed);
    if (!has_scale(largest)) return false;
    const float per_unit = largest > 0 ? kUnits / largest : 0;
    for (int half = 0; half < 2; ++half) {
        Vec<float> v = load(x + 16 * half);
        if (kBits == 4) v = pick(v, v, std::index_sequence<0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15>{});
        store_digits(v, per_unit, to.digits[0] + 16 * half, to.digits[1] + 16 * half, to.digits[2] + 16 * half);
    }
    to.scale = largest / kUnits;
    for (int d = 0; d < 3; ++d) {
        to.start[d] = 0;
        for (int i = 0; !kBiases && i < kFixed; ++i) to.start[d] -= 128 * to.digits[d][i];
    }
    return true;
}

template <int kBits, bool kBiases, class T>
bool make_fixed(const PanelFormat& format, const T* x, Fixed* fixed, float* sums) {
    for (std::int64_t begin = 0; begin < format.inputs; begin += format.group_size) {
        Vec<float> sum{};
        for (std::int64_t i = begin; i < begin + format.group_size; i += kFixed) {
            if (!make_fixed<kBits, kBiases>(x + i, fixed[i / kFixed])) return false;
            sum += load(x + i) + load(x + i + 16);
        }
        sums[begin / format.group_size] = sum_of_lanes<float>(sum);
    }
    return true;
}

inline __m512i four_digits(const std::int8_t* digits) {
    std::int32_t four;
    std::memcpy(&four, digits, sizeof four);
    return _mm512_set1_epi32(four);
}

// The sums of products of one, two and three digits as one number.
inline Vec<float> value_of(const __m512i (&sum)[3]) {
    const __m512i rest = _mm512_add_epi32(_mm512_slli_epi32(sum[1], 8), sum[2]);
    return reinterpret_cast<Vec<float>>(
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0]), _mm512_set1_ps(65536), _mm512_cvtepi32_ps(rest)));
}

// Adds the products of 32 inputs, without the weights' scales.
template <int kRows, int kBits, bool kBiases>
inline __attribute__((always_inline)) void add_products(const Row* x, std::int64_t index, const char* words,
                                                        Vec<float> (&to)[kRows][kVectors]) {
    __m512i sum[kRows][kVectors][3];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v)
            for (int d = 0; d < 3; ++d)
                sum[r][v][d] = kBiases ? _mm512_setzero_si512() : _mm512_set1_epi32(x[r].fixed[index].start[d]);
    const auto add = [&](const __m512i(&q)[kVectors], int four) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
            for (int d = 0; d < 3; ++d) {
                const __m512i digits = four_digits(x[r].fixed[index].digits[d] + 4 * four);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; ++v) sum[r][v][d] = _mm512_dpbusd_epi32(sum[r][v][d], q[v], digits);
            }
    };
#pragma GCC unroll 8
    for (int i = 0; i < kBits; ++i, words += kWordBytes) {  // kBits words are 32 weights
        __m512i q[kVectors], high[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            q[v] = _mm512_loadu_si512(words + 64 * v);
            if constexpr (kBits == 4) {
                high[v] = _mm512_and_si512(_mm512_srli_epi16(q[v], 4), _mm512_set1_epi8(15));
                q[v] = _mm512_and_si512(q[v], _mm512_set1_epi8(15));
            }
        }
        add(q, i * 8 / kBits);
        if constexpr (kBits == 4) add(high, 2 * i + 1);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) to[r][v] += value_of(sum[r][v]) * x[r].fixed[index].scale;
}

// A panel for some rows of integers; with kShort, groups have 32 inputs. Not inlined, because the sums need nearly all
// registers: a loop over a group's inputs spills some, which costs 5 of 100 where it has one turn.
template <int kRows, int kBits, bool kBiases, bool kShort, class S>
__attribute__((noinline)) void multiply_fixed(const PanelFormat& format, const Row* x, const char* panel,
                                              float (*y)[kPanelOutputs], Ahead ahead) {
    const std::int64_t words = kShort ? kBits : format.words_of_group(), groups = format.groups();
    Total<float> total[kRows][kVectors];
    for (std::int64_t g = 0, index = 0; g < groups;) {
        Vec<float> sum[kRows][kVectors] = {};
        for (const std::int64_t end = std::min(g + kAddedPlainly, groups); g < end; ++g) {
            for (std::int64_t i = ahead.begin; i < ahead.end; i += 64) __builtin_prefetch(panel + i, 0, 2);
            Vec<float> of_group[kRows][kVectors] = {};
            for (std::int64_t i = 0; i < words; i += kBits, ++index, panel += kBits * kWordBytes)
                add_products<kRows, kBits, kBiases>(x, index, panel, of_group);
            for (int v = 0; v < kVectors; ++v) {
                const Vec<float> s = load_lanes<S>(panel, v);
                const Vec<float> b = kBiases ? load_lanes<S>(panel, kVectors + v) : Vec<float>{};
                for (int r = 0; r < kRows; ++r) {
                    sum[r][v] += of_group[r][v] * s;
                    if (kBiases) sum[r][v] += b * x[r].sums[g];
                }
            }
            panel += (kBiases ? 2 : 1) * kPanelOutputs * static_cast<std::int64_t>(sizeof(S));
        }
        for (int r = 0; r < kRows; ++r)
            for (int v = 0; v < kVectors; ++v) total[r][v].add(sum[r][v]);
    }
    for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVectors; ++v) store_total(y[r] + 16 * v, total[r][v]);
}

template <int kBits, bool kBiases, bool kShort, class S>
void multiply_fixed(std::int64_t rows, const PanelFormat& format, const Row* x, const char* panel,
                    float (*y)[kPanelOutputs], Ahead ahead) {
    static_assert(kTogether == 3);
    if (rows == 1) return multiply_fixed<1, kBits, kBiases, kShort, S>(format, x, panel, y, ahead);
    if (rows == 2) return multiply_fixed<2, kBits, kBiases, kShort, S>(format, x, panel, y, ahead);
    multiply_fixed<3, kBits, kBiases, kShort, S>(format, x, panel, y, ahead);
}

#endif

template <int kBits, bool kBiases, class T>
[[gnu::noinline]] Row make_row(const PanelFormat& format, const T* x, char* memory) {
#if defined(__AVX512VNNI__)
    auto* fixed = reinterpret_cast<Fixed*>(memory);
    auto* sums = reinterpret_cast<float*>(fixed + format.inputs / kFixed);
    if (make_fixed<kBits, kBiases>(format, x, fixed, sums)) return {fixed, sums, nullptr};
#endif
    auto* wide = reinterpret_cast<float*>(memory);
    convert(x, wide, format.inputs);
    return {nullptr, nullptr, wide};
}

// A panel for at most kTogether rows.
template <int kBits, bool kBiases, class S>
void multiply(std::int64_t rows, const PanelFormat& format, const Row* x, const char* panel, float (*y)[kPanelOutputs],
              [[maybe_unused]] Ahead ahead) {
#if defined(__AVX512VNNI__)
    if (std::all_of(x, x + rows, [](const Row& row) { return row.fixed; }))
        return format.group_size == kFixed ? multiply_fixed<kBits, kBiases, true, S>(rows, format, x, panel, y, ahead)
                                           : multiply_fixed<kBits, kBiases, false, S>(rows, format, x, panel, y, ahead);
#endif
    for (std::int64_t r = 0; r < rows; ++r) {
#if defined(__AVX512VNNI__)
        if (x[r].fixed) {
            multiply_fixed<1, kBits, kBiases, false, S>(format, x + r, panel, y + r, ahead);
            continue;
        }
#endif
        multiply_floats<kBits, kBiases, S>(format, x[r].wide, panel, y[r]);
    }
}

template <int kBits, bool kBiases, class S>
void products(const PanelLinear& op) {
    const PanelFormat& format = op.format;
    const std::int64_t n = format.inputs, line = n * static_cast<std::int64_t>(sizeof(float));
    const int threads = threads_for(format.panels(), matrix_work(op.x.count, format.outputs, n, kBits / 8.0));
    const Scratch scratch(std::min(kRowsOfChunk, op.x.count) * line);
    Interruption* const at = interruption;
    for (std::int64_t begin = 0; begin < op.x.count; begin += kRowsOfChunk) {
        if (at && at->happened()) return;
        const std::int64_t count = std::min(kRowsOfChunk, op.x.count - begin);
        Row rows[kRowsOfChunk];
        over_shares(count > kTogether ? threads : 1, count, 1, [&](Share share) {
            for (std::int64_t r = share.begin; r < share.end; ++r)
                rows[r] = for_narrow_dtype(op.x_dtype, [&](auto x) {
                    return make_row<kBits, kBiases>(format, reinterpret_cast<const decltype(x)*>(op.x.row(begin + r)),
                                                    scratch.at<char>(r * line));
                });
        });
        over_stretches(threads, format.panels(), [&](std::int64_t panel) {
            const char* const weights = op.panels + panel * format.panel_bytes();
            const std::int64_t first = panel * kPanelOutputs;
            const std::int64_t width = std::min(kPanelOutputs, format.outputs - first);
            if (leaves(at, matrix_work(count, width, n, kBits / 8.0))) return;
            float sums[kRowsOfChunk][kPanelOutputs];
            for (std::int64_t r = 0, height; r < count; r += height) {
                const std::int64_t left = count - r, times = (left + kTogether - 1) / kTogether;
                height = (left + times - 1) / times;  // four rows are two times two
                Ahead ahead;
                if (count > kTogether)
                    ahead = {format.panel_bytes() + format.group_bytes() * r / count,
                             format.panel_bytes() + format.group_bytes() * (r + height) / count};
                multiply<kBits, kBiases, S>(height, format, rows + r, weights, sums + r, ahead);
            }
            // Not between the products: without a common cache these lines belong to another processor, and a step for
            // eight sequences takes 0.96 of the time if all are asked for at once.
            for_narrow_dtype(op.x_dtype, [&](auto x) {
                auto* y = reinterpret_cast<decltype(x)*>(op.y) + begin * format.outputs + first;
                for (std::int64_t i = 0; i < count; ++i) store_outputs(y + i * format.outputs, sums[i], nullptr, width);
            });
        });
    }
}

template <class S>
void products_of(const PanelLinear& op) {
    if (op.format.bits == 4) return products<4, true, S>(op);
    return op.format.has_biases ? products<8, true, S>(op) : products<8, false, S>(op);
}

}  // namespace

TENSOROPS_KERNEL(panel_linear, PanelLinear) {
    for_narrow_dtype(op.format.scale_dtype, [&op](auto scale) { products_of<decltype(scale)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
