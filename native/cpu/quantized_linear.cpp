// y = x · Wᵀ with W = scales · q + biases, for integers q of 4 or 8 bits.
//
// Three ways, by what the processor has and how many rows x has:
//
// * A few rows, AVX512_VNNI: whole numbers throughout. 32 neighbours of x become fixed-point numbers of 24 bits beside
//   a common scale, written as three digits of base 256, -128 … 127; vpdpbusd multiplies bytes of weights by bytes of
//   digits and adds four products exactly. The result is as exact as one in float32, at three such instructions for
//   64 weights.
// * A few rows, other processors: q · x in float32, scaled once for each group.
// * More rows: the weights of a block of outputs become float32 once for many rows; then dot_tiles.h. So do rows with
//   infinities, NaN or extreme numbers, as only this way multiplies by the weights themselves.
//
// Four bits: a row of x is put in another order first, the elements of low nibbles, then those of high ones, so that
//   the weights need not be.
// Biases: the sum of x over each group, times the group's bias, in float32.
// Bytes: the weights, scales and biases once, which for a few rows is the memory's speed.
#include <cmath>

#include "dot_tiles.h"
#include "linear.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

#if defined(__AVX512VNNI__)
constexpr std::int64_t kFewRows = 48;  // where the third way overtook, with two threads and two thousand columns
#else
constexpr std::int64_t kFewRows = 8;
#endif
constexpr std::int64_t kTogether = 4;  // rows that are multiplied at once
constexpr std::int64_t kUnit = 16;     // outputs are given to threads in multiples of so many
constexpr std::int64_t kOutputs = 64;  // and computed in blocks of at most so many
// A row with larger x takes the third way: integers times x would overflow.
constexpr float kLargest = 1e30f;

// ----------------------------------------------------------------------------------------------- parts of a row

typedef std::uint8_t U8 __attribute__((vector_size(kFloats)));
typedef std::int8_t S8 __attribute__((vector_size(kFloats)));
typedef std::int32_t S32 __attribute__((vector_size(kVectorBytes)));

struct Pair {
    Vec<float> low, high;
};

inline Vec<float> to_floats(U32 q) { return __builtin_convertvector(reinterpret_cast<S32>(q), Vec<float>); }

inline Pair load_nibbles(const std::uint8_t* packed) {
    const U32 bytes = __builtin_convertvector(load_bits<U8>(packed), U32);
    return {to_floats(bytes & 15u), to_floats(bytes >> 4)};
}

template <bool kSigned>
inline Vec<float> load_bytes(const std::uint8_t* packed) {
    if constexpr (kSigned)
        return __builtin_convertvector(__builtin_convertvector(load_bits<S8>(packed), S32), Vec<float>);
    else
        return to_floats(__builtin_convertvector(load_bits<U8>(packed), U32));
}

// A row of x as float32; for 4 bits first what low nibbles multiply, then the rest.
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

// Where things are that belong to one output.
struct Output {
    const std::uint8_t* weight;
    const char *scales, *biases;
};

inline Output output(const QuantizedLinear& op, std::int64_t index) {
    return {reinterpret_cast<const std::uint8_t*>(op.weight + index * op.weight_stride),
            op.scales + index * op.scale_stride, op.biases ? op.biases + index * op.bias_stride : nullptr};
}

// ------------------------------------------------------------------------------- the third way: weights as float32

// Weights of a group as float32, in the order of `arrange`. `high` belongs to the high nibbles.
template <int kBits, bool kSigned>
void dequantize_group(const std::uint8_t* q, std::int64_t bytes, float s, float b, float* low, float* high) {
    constexpr std::int64_t lanes = kFloats;
    std::int64_t i = 0;
    for (; i + lanes <= bytes; i += lanes) {
        if constexpr (kBits == 4) {
            const Pair pair = load_nibbles(q + i);
            store(low + i, pair.low * s + b);
            store(high + i, pair.high * s + b);
        } else {
            store(low + i, load_bytes<kSigned>(q + i) * s + b);
        }
    }
    for (; i < bytes; ++i) {
        const int byte = kSigned ? static_cast<std::int8_t>(q[i]) : q[i];
        low[i] = static_cast<float>(kBits == 4 ? byte & 15 : byte) * s + b;
        if constexpr (kBits == 4) high[i] = static_cast<float>(byte >> 4) * s + b;
    }
}

template <int kBits, bool kSigned, class S>
void dequantize_row(const QuantizedLinear& op, std::int64_t index, float* w) {
    const Output o = output(op, index);
    const std::int64_t bytes = op.group_size * kBits / 8, n = op.x.length;
    const S *scales = reinterpret_cast<const S*>(o.scales), *biases = reinterpret_cast<const S*>(o.biases);
    float* high = w + n / 2;
    for (std::int64_t g = 0, i = 0; i < n * kBits / 8; ++g, i += bytes)
        dequantize_group<kBits, kSigned>(o.weight + i, bytes, load_one(scales + g),
                                         kSigned ? 0.0f : load_one(biases + g), w + i, high + i);
}

template <int kBits, bool kSigned, class T, class S>
void many_rows(const QuantizedLinear& op, int threads) {
    products_with_rows<T, float>(
        op.x, reinterpret_cast<T*>(op.y), op.outputs, nullptr,
        [&op](std::int64_t index, float* w) {
            dequantize_row<kBits, kSigned, S>(op, index, w);
            return w;
        },
        [&op](const T* from, float* to) { arrange(from, op.bits, op.x.length, to); }, threads);
}

// ------------------------------------------------------------------------------------ the other two: a few rows

// The sums of x over the groups, for the biases; `x` is arranged.
void sum_groups(const float* x, const QuantizedLinear& op, float* sums) {
    constexpr std::int64_t lanes = kFloats;
    const std::int64_t per_part = op.group_size * op.bits / 8, n = op.x.length;  // a group has two parts for 4 bits
    for (std::int64_t g = 0; g < n / op.group_size; ++g) {
        Vec<float> sum{};
        for (int part = 0; part < 8 / op.bits; ++part)
            for (std::int64_t i = 0; i < per_part; i += lanes) sum += load(x + part * (n / 2) + g * per_part + i);
        sums[g] = sum_of_lanes<float>(sum);
    }
}

bool is_moderate(const float* x, std::int64_t n) {
    bool moderate = true;
    for (std::int64_t i = 0; i < n; ++i) moderate &= std::fabs(x[i]) <= kLargest;
    return moderate;
}

#if defined(__AVX512VNNI__)

constexpr std::int64_t kChunk = 512;  // weights, whose scales fit a vector
constexpr std::int64_t kFixed = 32;   // neighbours of x with a common scale

template <int kBits>
inline constexpr std::int64_t kBlockWeights = 64 * 8 / kBits;  // in a vector of packed integers

// A block of x, multiplied by a vector of packed integers.
template <int kBits>
struct Block {
    std::int8_t digits[3][8 / kBits][64];  // by significance, low and high nibbles
    std::int32_t start[3][16];             // what the products' sums start from: signed weights have 128 added
    float scales[16];                      // of the sums of each lane
};

// A row of x for the first way.
template <int kBits>
struct FixedRow {
    const Block<kBits>* blocks;
    const float* sums;
};

// Fixed-point numbers of the given scale: three digits of each of 16.
inline void store_digits(Vec<float> x, float per_unit, std::int8_t* high, std::int8_t* middle, std::int8_t* low) {
    __m512i q = _mm512_cvtps_epi32(reinterpret_cast<__m512>(x * per_unit));
    for (std::int8_t* digit : {low, middle, high}) {
        const __m128i bytes = _mm512_cvtepi32_epi8(q);
        std::memcpy(digit, &bytes, sizeof bytes);
        q = _mm512_srai_epi32(_mm512_sub_epi32(q, _mm512_cvtepi8_epi32(bytes)), 8);
    }
}

// 32 neighbours of x, of which `a` and `b` are in the order of `arrange`: their digits, and the scale. False if they
// are too small for one.
template <int kBits>
bool store_fixed(Vec<float> a, Vec<float> b, std::int64_t index, Block<kBits>* blocks) {
    constexpr float kUnits = 127 * 65536 + 127 * 256;  // the largest is 127 more, which rounding must not pass
    constexpr float kSmallest = 1e-31f;
    const Vec<float> of_a = floats_of(bits_of(a) & 0x7fffffffu), of_b = floats_of(bits_of(b) & 0x7fffffffu);
    const float largest = _mm512_reduce_max_ps(reinterpret_cast<__m512>(of_a > of_b ? of_a : of_b));
    if (largest == 0) return true;  // as all blocks are at first
    const float per_unit = kUnits / largest;
    constexpr std::int64_t per_block = kBlockWeights<kBits> / kFixed, lanes = 16 / per_block;
    Block<kBits>& block = blocks[index / per_block];
    const std::int64_t place = index % per_block;
    auto& d = block.digits;
    if constexpr (kBits == 4) {
        store_digits(a, per_unit, d[0][0] + 16 * place, d[1][0] + 16 * place, d[2][0] + 16 * place);
        store_digits(b, per_unit, d[0][1] + 16 * place, d[1][1] + 16 * place, d[2][1] + 16 * place);
    } else {
        store_digits(a, per_unit, d[0][0] + 32 * place, d[1][0] + 32 * place, d[2][0] + 32 * place);
        store_digits(b, per_unit, d[0][0] + 32 * place + 16, d[1][0] + 32 * place + 16, d[2][0] + 32 * place + 16);
    }
    for (std::int64_t i = 0; i < lanes; ++i) block.scales[lanes * place + i] = largest / kUnits;
    return largest >= kSmallest;
}

template <int kBits, bool kSigned>
bool make_fixed(const float* x, std::int64_t n, Block<kBits>* blocks, std::int64_t count) {
    std::memset(static_cast<void*>(blocks), 0, static_cast<std::size_t>(count) * sizeof *blocks);
    for (std::int64_t g = 0; g < n / kFixed; ++g) {
        const float* a = x + (kBits == 4 ? 16 * g : 32 * g);
        if (!store_fixed<kBits>(load(a), load(a + (kBits == 4 ? n / 2 : 16)), g, blocks)) return false;
    }
    for (std::int64_t b = 0; kSigned && b < count; ++b)
        for (int d = 0; d < 3; ++d) {
            const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(-128),
                                                    _mm512_loadu_si512(blocks[b].digits[d][0]));
            _mm512_storeu_si512(blocks[b].start[d], _mm512_sub_epi32(_mm512_setzero_si512(), sum));
        }
    return true;
}

// Sums of four products of a lane, for all digits together.
template <int kBits, bool kSigned>
inline __m512 products_of_block(__m512i packed, const Block<kBits>& x) {
    const auto dot = [](__m512i sum, __m512i q, const std::int8_t* digits) {
        return _mm512_dpbusd_epi32(sum, q, _mm512_loadu_si512(digits));
    };
    if constexpr (kBits == 4) {  // all three sums together fit 32 bits
        const __m512i nibble = _mm512_set1_epi8(15);
        const __m512i low = _mm512_and_si512(packed, nibble);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble);
        const __m512i zero = _mm512_setzero_si512();
        const __m512i a = dot(dot(zero, low, x.digits[0][0]), high, x.digits[0][1]);
        const __m512i b = dot(dot(zero, low, x.digits[1][0]), high, x.digits[1][1]);
        const __m512i c = dot(dot(zero, low, x.digits[2][0]), high, x.digits[2][1]);
        const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(a, 8), b);
        return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), c));
    } else {
        if (kSigned) packed = _mm512_xor_si512(packed, _mm512_set1_epi8(-128));  // adds 128
        const auto start = [&x](int d) { return kSigned ? _mm512_loadu_si512(x.start[d]) : _mm512_setzero_si512(); };
        const __m512i a = dot(start(0), packed, x.digits[0][0]);
        const __m512i b = dot(start(1), packed, x.digits[1][0]);
        const __m512i c = dot(start(2), packed, x.digits[2][0]);
        const __m512i rest = _mm512_add_epi32(_mm512_slli_epi32(b, 8), c);
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), _mm512_set1_ps(65536), _mm512_cvtepi32_ps(rest));
    }
}

// At most 16 elements as float32, and 0 for those that the mask leaves out.
inline __m512 load_some(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline __m512 load_some(const Float16* p, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)); }
inline __m512 load_some(const BFloat16* p, __mmask16 mask) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

inline __mmask16 first_lanes(std::int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1); }

// Which of the scales of a chunk belongs to each lane of each block.
template <int kBits>
struct ScaleOfLane {
    __m512i index[kChunk / kBlockWeights<kBits>];

    explicit ScaleOfLane(std::int64_t group_size) {
        constexpr std::int64_t per_lane = 32 / kBits;  // weights
        for (std::int64_t b = 0; b < kChunk / kBlockWeights<kBits>; ++b) {
            std::int32_t of_lane[16];
            for (std::int64_t i = 0; i < 16; ++i)
                of_lane[i] = static_cast<std::int32_t>((16 * b + i) * per_lane / group_size);
            index[b] = _mm512_loadu_si512(of_lane);
        }
    }
};

// One output for some rows.
template <int kRows, int kBits, bool kSigned, class S>
inline void one_output(const QuantizedLinear& op, const ScaleOfLane<kBits>& lanes, const FixedRow<kBits>* x,
                       std::int64_t index, float (*y)[kOutputs]) {
    constexpr std::int64_t per_chunk = kChunk / kBlockWeights<kBits>;
    const Output o = output(op, index);
    const S *scales = reinterpret_cast<const S*>(o.scales), *biases = reinterpret_cast<const S*>(o.biases);
    const std::int64_t bytes = op.x.length * kBits / 8, groups = op.x.length / op.group_size;
    const std::int64_t groups_of_chunk = kChunk / op.group_size;
    __m512 sum[kRows] = {};
    const auto add = [&](__m512i packed, std::int64_t block, __m512 scale) {
        for (int r = 0; r < kRows; ++r) {
            const Block<kBits>& b = x[r].blocks[block];
            sum[r] = _mm512_fmadd_ps(products_of_block<kBits, kSigned>(packed, b),
                                     _mm512_mul_ps(scale, _mm512_loadu_ps(b.scales)), sum[r]);
        }
    };
    std::int64_t block = 0, group = 0;
    for (; 64 * (block + per_chunk) <= bytes; group += groups_of_chunk) {
        const __m512 s = load_some(scales + group, first_lanes(groups_of_chunk));
#pragma GCC unroll 8
        for (std::int64_t b = 0; b < per_chunk; ++b, ++block)
            add(_mm512_loadu_si512(o.weight + 64 * block), block, _mm512_permutexvar_ps(lanes.index[b], s));
    }
    const __m512 s = load_some(scales + group, first_lanes(groups - group));
    for (std::int64_t b = 0; 64 * block < bytes; ++b, ++block) {
        const std::int64_t left = bytes - 64 * block;
        const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
        add(_mm512_maskz_loadu_epi8(mask, o.weight + 64 * block), block, _mm512_permutexvar_ps(lanes.index[b], s));
    }
    for (std::int64_t g = 0; !kSigned && g < groups; g += 16) {
        const __m512 b = load_some(biases + g, first_lanes(groups - g));
        for (int r = 0; r < kRows; ++r) sum[r] = _mm512_fmadd_ps(b, _mm512_loadu_ps(x[r].sums + g), sum[r]);
    }
    for (int r = 0; r < kRows; ++r) y[r][0] = _mm512_reduce_add_ps(sum[r]);
}

inline bool takes_few(const QuantizedLinear& op) { return op.group_size % kFixed == 0 && kChunk % op.group_size == 0; }

template <int kBits, bool kSigned>
struct Way {
    using Row = FixedRow<kBits>;
    const QuantizedLinear& op;
    const ScaleOfLane<kBits> lanes;
    const std::int64_t count, blocks_bytes, sums_bytes;

    explicit Way(const QuantizedLinear& op_)
        : op(op_),
          lanes(op.group_size),
          count((op.x.length + kBlockWeights<kBits> - 1) / kBlockWeights<kBits>),
          blocks_bytes(whole_lines(count * static_cast<std::int64_t>(sizeof(Block<kBits>)))),
          sums_bytes(whole_lines((op.x.length / op.group_size + 16) * static_cast<std::int64_t>(sizeof(float)))) {}

    std::int64_t room() const { return blocks_bytes + sums_bytes; }

    // Makes a row of an arranged one; false if some x is too small for a scale.
    bool make_row(const float* x, char* memory, Row& row) const {
        auto* blocks = reinterpret_cast<Block<kBits>*>(memory);
        auto* sums = reinterpret_cast<float*>(memory + blocks_bytes);
        std::memset(sums, 0, static_cast<std::size_t>(sums_bytes));  // those of no group are multiplied, too
        if (!kSigned) sum_groups(x, op, sums);
        row = {blocks, sums};
        return make_fixed<kBits, kSigned>(x, op.x.length, blocks, count);
    }

    template <int kRows, class S>
    void compute(const Row* rows, std::int64_t index, float (*y)[kOutputs]) const {
        one_output<kRows, kBits, kSigned, S>(op, lanes, rows, index, y);
    }
};

#else  // without AVX512_VNNI

inline bool takes_few(const QuantizedLinear& op) {
    return op.group_size * op.bits / 8 % static_cast<std::int64_t>(kFloats) == 0;
}

struct FloatRow {
    const float *x, *sums;
};

// One output for some rows: integers times x, scaled once for each group.
template <int kRows, int kBits, bool kSigned, class S>
inline void one_output(const QuantizedLinear& op, const FloatRow* rows, std::int64_t index, float (*y)[kOutputs]) {
    constexpr std::int64_t lanes = kFloats;
    const Output o = output(op, index);
    const S *scales = reinterpret_cast<const S*>(o.scales), *biases = reinterpret_cast<const S*>(o.biases);
    const std::int64_t bytes = op.group_size * kBits / 8, groups = op.x.length / op.group_size, half = op.x.length / 2;
    Vec<float> total[kRows] = {};
    float bias[kRows] = {};
    for (std::int64_t g = 0; g < groups; ++g) {
        Vec<float> sum[kRows] = {};
        for (std::int64_t i = g * bytes; i < (g + 1) * bytes; i += lanes) {
            if constexpr (kBits == 4) {
                const Pair q = load_nibbles(o.weight + i);
                for (int r = 0; r < kRows; ++r)
                    sum[r] += q.low * load(rows[r].x + i) + q.high * load(rows[r].x + half + i);
            } else {
                const Vec<float> q = load_bytes<kSigned>(o.weight + i);
                for (int r = 0; r < kRows; ++r) sum[r] += q * load(rows[r].x + i);
            }
        }
        const float s = load_one(scales + g), b = kSigned ? 0 : load_one(biases + g);
        for (int r = 0; r < kRows; ++r) {
            total[r] += sum[r] * s;
            if constexpr (!kSigned) bias[r] += b * rows[r].sums[g];
        }
    }
    for (int r = 0; r < kRows; ++r) y[r][0] = sum_of_lanes<float>(total[r]) + bias[r];
}

template <int kBits, bool kSigned>
struct Way {
    using Row = FloatRow;
    const QuantizedLinear& op;

    explicit Way(const QuantizedLinear& op_) : op(op_) {}

    std::int64_t room() const {
        return whole_lines(op.x.length / op.group_size * static_cast<std::int64_t>(sizeof(float)));
    }

    bool make_row(const float* x, char* memory, Row& row) const {
        auto* sums = reinterpret_cast<float*>(memory);
        if (!kSigned) sum_groups(x, op, sums);
        row = {x, sums};
        return true;
    }

    template <int kRows, class S>
    void compute(const Row* rows, std::int64_t index, float (*y)[kOutputs]) const {
        one_output<kRows, kBits, kSigned, S>(op, rows, index, y);
    }
};

#endif

// ------------------------------------------------------------------------------------------------------ the choice

// Some outputs for at most kTogether rows.
template <int kRows, class T, class S, class W>
void some_outputs(const W& way, const typename W::Row* rows, T* y, std::int64_t begin, std::int64_t width) {
    float sums[kRows][kOutputs];
    for (std::int64_t i = 0; i < width; ++i)
        way.template compute<kRows, S>(rows, begin + i, reinterpret_cast<float (*)[kOutputs]>(&sums[0][i]));
    for (int r = 0; r < kRows; ++r) store_outputs(y + r * way.op.outputs + begin, sums[r], nullptr, width);
}

template <class T, class S, class W>
void some_outputs(std::int64_t count, const W& way, const typename W::Row* rows, T* y, std::int64_t begin,
                  std::int64_t width) {
    static_assert(kTogether == 4);
    if (count == 1) return some_outputs<1, T, S>(way, rows, y, begin, width);
    if (count == 2) return some_outputs<2, T, S>(way, rows, y, begin, width);
    if (count == 3) return some_outputs<3, T, S>(way, rows, y, begin, width);
    some_outputs<4, T, S>(way, rows, y, begin, width);
}

// The first or second way; false if some x is too large or too small for it.
template <int kBits, bool kSigned, class T, class S>
bool few_rows(const QuantizedLinear& op, int threads) {
    const Way<kBits, kSigned> way(op);
    const std::int64_t n = op.x.length, count = op.x.count;
    const std::int64_t line = whole_lines(n * static_cast<std::int64_t>(sizeof(float)));
    const Scratch scratch(count * (line + way.room()));
    typename Way<kBits, kSigned>::Row rows[kFewRows];
    for (std::int64_t r = 0; r < count; ++r) {
        float* x = scratch.at<float>(r * (line + way.room()));
        arrange(reinterpret_cast<const T*>(op.x.row(r)), kBits, n, x);
        if (!is_moderate(x, n) || !way.make_row(x, reinterpret_cast<char*>(x) + line, rows[r])) return false;
    }
    T* y = reinterpret_cast<T*>(op.y);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const Share share = share_of(op.outputs, kUnit);
        for (std::int64_t begin = share.begin; begin < share.end; begin += kOutputs)
            for (std::int64_t r = 0; r < count; r += kTogether)
                some_outputs<T, S>(std::min(kTogether, count - r), way, rows + r, y + r * op.outputs, begin,
                                   std::min(kOutputs, share.end - begin));
    }
    return true;
}

template <int kBits, bool kSigned, class T, class S>
void products(const QuantizedLinear& op) {
    const std::int64_t work = matrix_work(op.x.count, op.outputs, op.x.length, kBits / 8.0);
    const int threads = threads_for((op.outputs + kUnit - 1) / kUnit, work);
    if (op.x.count > kFewRows || !takes_few(op) || !few_rows<kBits, kSigned, T, S>(op, threads))
        many_rows<kBits, kSigned, T, S>(op, threads);
}

template <class T, class S>
void products_of(const QuantizedLinear& op) {
    if (op.bits == 4) return products<4, false, T, S>(op);
    return op.biases ? products<8, false, T, S>(op) : products<8, true, T, S>(op);
}

template <class T>
void products_of(const QuantizedLinear& op) {
    switch (op.scale_dtype) {
        case Dtype::float16:
            return products_of<T, Float16>(op);
        case Dtype::bfloat16:
            return products_of<T, BFloat16>(op);
        default:
            return products_of<T, float>(op);
    }
}

}  // namespace

void quantized_linear(const QuantizedLinear& op) {
    switch (op.x_dtype) {
        case Dtype::float16:
            return products_of<Float16>(op);
        case Dtype::bfloat16:
            return products_of<BFloat16>(op);
        default:
            return products_of<float>(op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
