// The products of quantized_linear and grouped_quantized_linear: rows of x with rows of W = scales · q + biases, for
// integers q of 4 or 8 bits.
//
// Two methods, by the number of rows of x:
//
// * A few: integers throughout, see fixed_point.h; the result is as accurate as in float32.
// * More: the weights of a block of outputs become float32 once for many rows; then dot_tiles.h. This method is also
//   used for rows with infinities, NaN or extreme numbers, because only it multiplies by the weights themselves, and
//   for groups that no vector of scales fits.
//
// Four bits: x is reordered, the elements of low nibbles, then those of high ones, so that the weights need not be; in
//   the first method 32 neighbours, in the second a row.
// Biases: the sum of x over each group, times the group's bias, in float32.
// Bytes: the weights, scales and biases once; a few rows are memory-bound.
#pragma once

#include "dot_tiles.h"
#include "fixed_point.h"
#include "lanes.h"
#include "linear.h"

namespace tensorops::TENSOROPS_TARGET {

// The number of rows up to which the first method is faster, with two threads and two thousand columns
#if defined(__AVX512VNNI__)
inline constexpr std::int64_t kFewRows = 48;
#elif defined(__AVX2__)
inline constexpr std::int64_t kFewRows = 32;
#else
inline constexpr std::int64_t kFewRows = 16;
#endif
inline constexpr std::int64_t kTogether = 4;     // rows that are multiplied at once
inline constexpr std::int64_t kOutputUnit = 16;  // outputs go to threads in multiples of this
inline constexpr std::int64_t kOutputs = 64;     // and are computed in blocks of at most this

// ----------------------------------------------------------------------------------------------- parts of a row

struct Pair {
    Vec<float> low, high;
};

inline Vec<float> to_floats(U32 q) { return __builtin_convertvector(reinterpret_cast<I32>(q), Vec<float>); }

inline Pair load_nibbles(const std::uint8_t* packed) {
    const auto bytes = reinterpret_cast<U32>(bytes_to_words<false>(packed));
    return {to_floats(bytes & 15u), to_floats(bytes >> 4)};
}

template <bool kSigned>
inline Vec<float> load_bytes(const std::uint8_t* packed) {
    return __builtin_convertvector(bytes_to_words<kSigned>(packed), Vec<float>);
}

// The positions of the data of one output.
struct Output {
    const std::uint8_t* weight;
    const char *scales, *biases;
};

inline Output output(const QuantizedLinear& op, std::int64_t index) {
    return {reinterpret_cast<const std::uint8_t*>(op.weight + index * op.weight_stride),
            op.scales + index * op.scale_stride, op.biases ? op.biases + index * op.bias_stride : nullptr};
}

// ---------------------------------------------------------------------------- the second method: weights as float32

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
        TENSOROPS_ONE_BY_ONE(i);
        const int byte = kSigned ? static_cast<std::int8_t>(q[i]) : q[i];
        low[i] = static_cast<float>(kBits == 4 ? byte & 15 : byte) * s + b;
        if constexpr (kBits == 4) high[i] = static_cast<float>(byte >> 4) * s + b;
    }
}

template <int kBits, bool kSigned>
[[gnu::noinline]] void dequantize_row(const QuantizedLinear& op, std::int64_t index, float* w) {
    const Output o = output(op, index);
    const std::int64_t bytes = op.group_size * kBits / 8, n = op.x.length;
    // Groups whose numbers become float32 together: one alone takes as long as eight.
    constexpr std::int64_t kPiece = 64;
    float s[kPiece], b[kPiece] = {};
    const std::int64_t groups = n / op.group_size;
    float* high = w + n / 2;
    for (std::int64_t begin = 0, i = 0; begin < groups; begin += kPiece) {
        const std::int64_t count = std::min(kPiece, groups - begin);
        const std::int64_t offset = begin * size_of(op.scale_dtype);
        widen(op.scale_dtype, o.scales + offset, s, count);
        if (!kSigned) widen(op.scale_dtype, o.biases + offset, b, count);
        for (std::int64_t g = 0; g < count; ++g, i += bytes)
            dequantize_group<kBits, kSigned>(o.weight + i, bytes, s[g], b[g], w + i, high + i);
    }
}

// --------------------------------------------------------------------------------- the first method: a few rows

#if defined(__AVX512F__)
inline constexpr bool kMasks = true;
#else
inline constexpr bool kMasks = false;
#endif

// The first n elements as float32, at most a vector of them, and 0 in the other lanes; quick only with masks.
template <class T>
inline Vec<float> load_first(const T* p, std::int64_t n) {
#if defined(__AVX512F__)
    const auto mask = static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
    if constexpr (sizeof(T) == 4)
        return reinterpret_cast<Vec<float>>(_mm512_maskz_loadu_ps(mask, p));
    else if constexpr (is_same<T, Float16>)
        return reinterpret_cast<Vec<float>>(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)));
    else
        return floats_of(reinterpret_cast<U32>(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p))) << 16);
#else
    return n >= kLanes<float> ? load(p) : load_part(p, n);
#endif
}

// The same for scales and biases. One row of x is bound by how fast weights arrive, and has products for each dtype S
// of these; for more rows S is void, and the dtype is looked at for each vector: it is a quarter of the time to
// compile.
template <class S>
inline Vec<float> load_numbers(const char* p, std::int64_t index, std::int64_t n, Dtype dtype) {
    if constexpr (!is_same<S, void>) {
        return load_first(reinterpret_cast<const S*>(p) + index, n);
    } else {
        return for_narrow_dtype(dtype,
                                [=](auto s) { return load_first(reinterpret_cast<const decltype(s)*>(p) + index, n); });
    }
}

// The last vector of a row's numbers, one for each group. Without masks it ends with the row, so that it also has
// groups that were read before, unless the row has fewer than a vector of them.
struct LastGroups {
    std::int64_t begin, first;  // where it is read from, and the first group that is new in it

    explicit LastGroups(std::int64_t groups)
        : begin(std::max<std::int64_t>(groups - kLanes<float>, 0)), first(groups / kLanes<float> * kLanes<float>) {
        if (kMasks) begin = first;
    }
};

inline constexpr std::int64_t kChunk = 32 * kLanes<float>;  // weights, whose scales fit a vector

// A row of x for the first method: integers, a scale for each kFixed of them in the order of ChunkScales, and the sums
// over groups. The scales and sums are multiplied by a power of two, so that the largest scale is about 1, and products
// with tiny scales of weights are not below the normal numbers; so are the outputs, until they are multiplied by
// `back`.
template <int kBits>
struct FixedRow {
    const Block<kBits>* blocks;
    const float *scales, *sums;
    float back;
    const float *small_scales, *small_sums;  // the same times kSmall, for outputs that would overflow

    static constexpr float kSmall = 0x1p-64f;

    FixedRow small() const { return {blocks, small_scales, small_sums, back / kSmall, nullptr, nullptr}; }
};

// The first n bytes, at most a vector of them and in multiples of 16, and 0 for the others.
inline U32 load_packed(const std::uint8_t* p, std::int64_t n) {
#if defined(__AVX512BW__)
    const auto mask = _bzhi_u64(~std::uint64_t{0}, static_cast<unsigned>(std::min<std::int64_t>(n, kVectorBytes)));
    return reinterpret_cast<U32>(_mm512_maskz_loadu_epi8(mask, p));
#else
    if (n >= static_cast<std::int64_t>(kVectorBytes)) return load_bits<U32>(p);
#if defined(__AVX2__)
    return reinterpret_cast<U32>(_mm256_zextsi128_si256(load_bits<__m128i>(p)));
#else
    U32 packed{};
    std::memcpy(&packed, p, static_cast<std::size_t>(n));
    return packed;
#endif
#endif
}

// In each four lanes, the one of them with this number, four times.
template <std::size_t kNumber, std::size_t... k>
inline Vec<float> one_of_four(Vec<float> v, std::index_sequence<k...>) {
    return pick(v, v, std::index_sequence<(k / 4 * 4 + kNumber)...>{});
}

// The smallest group of the first method: four lanes of signed bytes. A chunk has more of these than a vector has
// scales.
inline constexpr std::int64_t kSmallGroup = 16;

// The scales of a chunk, in an order in which those of a block are found by one_of_four: lane 4 j + b of vector v
// belongs to the lanes from 4 j on of block 4 v + b. Several neighbouring lanes have the same scale of x, and several
// of these the same scale of weights.
template <int kBits>
struct ChunkScales {
    static constexpr std::int64_t kBlocks = kChunk / kBlockWeights<kBits>, kVectors = kBlocks / 4;
    static constexpr std::int64_t kFours = kFloats / 4;                                // of lanes in a vector
    static constexpr std::int64_t kFoursOfScale = kFixed / (4 * kLaneWeights<kBits>);  // with the same scale of x

    I32 group[kVectors];  // which scale of weights belongs to a lane: of a vector of them for each chunk, or each of
                          // these
    I32 first_of_four = index_of(numbers_of_lanes(std::make_index_sequence<kFloats>{}) / 4 * 4);

    // The size of a group divides a chunk, so that it is a power of two; of others, nothing is used.
    explicit ChunkScales(std::int64_t group_size) {
        const int log2 = __builtin_ctzll(static_cast<unsigned long long>(group_size | std::int64_t{1} << 31));
        const std::int64_t shift = std::clamp(log2 - 5, 0, 31);
        for (std::int64_t four = 0; four < kBlocks * kFours; ++four) {
            const std::int64_t scale = group_size == kSmallGroup ? four % kFloats : four / kFoursOfScale >> shift;
            group[four / kFours / 4][four % kFours * 4 + four / kFours % 4] = static_cast<std::int32_t>(scale);
        }
        for (I32& each : group) each = index_of(each);
    }

    static std::int64_t floats(std::int64_t scales) { return (scales + kFloats - 1) / kFloats * kVectors * kFloats; }

    // Stores the scale of the `index`th kFixed numbers of a row.
    static void store(float scale, std::int64_t index, float* scales) {
        scales += index / kFloats * kVectors * kFloats;
        for (std::int64_t i = 0; i < kFoursOfScale; ++i) {
            const std::int64_t four = index % kFloats * kFoursOfScale + i, block = four / kFours;
            scales[block / 4 * kFloats + four % kFours * 4 + block % 4] = scale;
        }
    }
};

#if defined(__AVX512F__)
// The sums of the lanes of four vectors, in the order of sum_of_lanes: halves first.
inline void store_sums_of_lanes(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d, float* y) {
    const auto halves = [](__m512 v, __m512 w) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(v, w, 0x44), _mm512_shuffle_f32x4(v, w, 0xee));
    };
    const __m512 ab = halves(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b));
    const __m512 cd = halves(reinterpret_cast<__m512>(c), reinterpret_cast<__m512>(d));
    __m512 v = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
    v = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
    _mm_storeu_ps(y, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, v)));
}
#else
inline void store_sums_of_lanes(Vec<float> a, Vec<float> b, Vec<float> c, Vec<float> d, float* y) {
    for (const Vec<float>& v : {a, b, c, d}) *y++ = sum_of_lanes<float>(v);
}
#endif

// How many bytes ahead weights are fetched. Their rows are short, and processors prefetch only within a page.
inline constexpr std::int64_t kAhead = 8192;

// The numbers that are the same for all outputs
template <int kBits>
struct Lengths {
    std::int64_t bytes, groups, groups_of_chunk;
    std::int64_t ahead, scales_ahead, biases_ahead;  // bytes from what is read to what is fetched, whole rows
    ChunkScales<kBits> scales;
    LastGroups last;

    explicit Lengths(const QuantizedLinear& op)
        : bytes(op.x.length * kBits / 8),
          groups(op.x.length / op.group_size),
          groups_of_chunk(kChunk / op.group_size),
          ahead(rows_ahead(bytes) * op.weight_stride),
          scales_ahead(rows_ahead(bytes) * op.scale_stride),
          biases_ahead(rows_ahead(bytes) * op.bias_stride),
          scales(op.group_size),
          last(groups) {}

    static std::int64_t rows_ahead(std::int64_t bytes) { return bytes > 0 ? kAhead / bytes + 1 : 0; }
};

// The number of outputs that are computed together for one row of x if rows of weights are short: its digits are then
// loaded once for all. Longer rows come from memory a little faster one after another (288 bytes: 0.85 of the time,
// 576 and 768 bytes: 1.1).
inline constexpr int kOutputsOfOneRow = kMasks ? 4 : 2;
inline constexpr std::int64_t kShortRow = 512;  // bytes

// Some neighbouring outputs for some rows. Sums of long rows are taken in blocks. What is of one output or row has an
// index that is known when this is compiled: otherwise it would not stay in registers.
template <int kRows, int kCount, int kBits, bool kSigned, class S>
inline __attribute__((always_inline)) void outputs_together(const QuantizedLinear& op, const Lengths<kBits>& lengths,
                                                            const FixedRow<kBits>* x, std::int64_t index, bool is_long,
                                                            float (*y)[kOutputs]) {
    using Scales = ChunkScales<kBits>;
    constexpr std::int64_t block_bytes = kVectorBytes;
    constexpr auto lanes = std::make_index_sequence<kFloats>{};
    const std::int64_t bytes = lengths.bytes, groups = lengths.groups;
    const auto each_output = [](auto f) TENSOROPS_INLINED { for_each<kCount>(f); };
    const auto each_row = [](auto f) TENSOROPS_INLINED { for_each<kRows>(f); };
    Output of[kCount];
    each_output([&](auto i) TENSOROPS_INLINED { of[i] = output(op, index + static_cast<std::int64_t>(i)); });
    const Dtype dtype = op.scale_dtype;
    std::int64_t size = size_of(dtype);
    if constexpr (!is_same<S, void>) size = sizeof(S);
    Vec<float> sum[kCount][kRows] = {}, s[kCount];
    Total<float> total[kCount][kRows];  // unused unless the row is long, so that it may be in memory
    const auto end_block_of_sums = [&]() TENSOROPS_INLINED {
        each_output([&](auto i) TENSOROPS_INLINED {
            each_row([&](auto r) TENSOROPS_INLINED {
                total[i][r].add(sum[i][r]);
                sum[i][r] = Vec<float>{};
            });
        });
    };
    // The scales of four blocks: those of x times those of weights, of which the chunk's first is at `shift` in s.
    using ScalesOfBlocks = Vec<float>[kCount][kRows];
    const auto scales_of_blocks = [&](auto v, std::int64_t chunk, std::int32_t shift,
                                      ScalesOfBlocks& to) TENSOROPS_INLINED {
        const std::int64_t place = (chunk * Scales::kVectors + static_cast<std::int64_t>(v)) * kLanes<float>;
        each_output([&](auto i) TENSOROPS_INLINED {
            const Vec<float> of_weights = chosen(s[i], lengths.scales.group[v] + shift * kIndexUnit);
            each_row([&](auto r) TENSOROPS_INLINED { to[i][r] = of_weights * load(x[r].scales + place); });
        });
    };
    const auto add = [&](auto i, U32 packed, std::int64_t block, auto scale) TENSOROPS_INLINED {
        each_row([&](auto r) TENSOROPS_INLINED {
            sum[i][r] += products_of_block<kBits, kSigned>(packed, x[r].blocks[block]) * scale(r);
        });
    };
    const bool has_small_groups = kSigned && op.group_size == kSmallGroup;
    const auto load_scales = [&](std::int64_t group, std::int64_t count) TENSOROPS_INLINED {
        each_output([&](auto i) TENSOROPS_INLINED {
            s[i] = load_numbers<S>(of[i].scales, group, count, dtype);
            fetch(of[i].scales + group * size + lengths.scales_ahead);
        });
    };
    // Loads the scales of the groups from the `v`th vector of a chunk on; returns the place of the first of them.
    const auto load_small_groups = [&](auto v, std::int64_t group) TENSOROPS_INLINED {
        const std::int64_t first = group + static_cast<std::int64_t>(v) * kLanes<float>;
        const std::int64_t begin = kMasks ? first : std::min(first, lengths.last.begin);
        load_scales(begin, std::min<std::int64_t>(groups - begin, kLanes<float>));
        return static_cast<std::int32_t>(first - begin);
    };
    ScalesOfBlocks scale;
    std::int64_t chunk = 0, group = 0;
    while (true) {
        const std::int64_t end_of_sums = chunk + kAddedPlainly;
        for (; chunk < end_of_sums && group + lengths.groups_of_chunk <= groups;
             group += lengths.groups_of_chunk, ++chunk) {
            const std::int64_t begin = kMasks ? group : std::min(group, lengths.last.begin);
            if (!has_small_groups) load_scales(begin, kMasks ? lengths.groups_of_chunk : groups - begin);
            for_each<Scales::kVectors>([&](auto v) TENSOROPS_INLINED {
                const std::int32_t shift = has_small_groups ? load_small_groups(v, group)
                                           : kMasks         ? 0
                                                            : static_cast<std::int32_t>(group - begin);
                scales_of_blocks(v, chunk, shift, scale);
                for_each<4>([&](auto b) TENSOROPS_INLINED {
                    const std::int64_t block = chunk * Scales::kBlocks + static_cast<std::int64_t>(4 * v + b);
                    each_output([&](auto i) TENSOROPS_INLINED {
                        const std::uint8_t* weights = of[i].weight + block_bytes * block;
                        fetch(weights + lengths.ahead);
                        add(i, load_bits<U32>(weights), block,
                            [&](auto r) TENSOROPS_INLINED { return one_of_four<b>(scale[i][r], lanes); });
                    });
                });
            });
        }
        if (__builtin_expect(group + lengths.groups_of_chunk > groups, 1)) break;
        end_block_of_sums();
    }
    if (group < groups) {  // a part of a chunk
        const std::int64_t begin = kMasks ? group : lengths.last.begin;
        if (!has_small_groups) load_scales(begin, groups - begin);
        std::int64_t block = chunk * Scales::kBlocks;
        for_each<Scales::kVectors>([&](auto v) TENSOROPS_INLINED {
            if (block_bytes * block >= bytes) return;
            const std::int32_t shift =
                has_small_groups ? load_small_groups(v, group) : static_cast<std::int32_t>(group - begin);
            scales_of_blocks(v, chunk, shift, scale);
            I32 of_block = lengths.scales.first_of_four;
            for (int b = 0; b < 4 && block_bytes * block < bytes; ++b, ++block, of_block += kIndexUnit)
                each_output([&](auto i) TENSOROPS_INLINED {
                    const std::uint8_t* weights = of[i].weight + block_bytes * block;
                    fetch(weights + lengths.ahead);
                    add(i, load_packed(weights, bytes - block_bytes * block), block,
                        [&](auto r) TENSOROPS_INLINED { return chosen(scale[i][r], of_block); });
                });
        });
    }
    if constexpr (!kSigned) {
        const auto add_biases = [&](auto i, Vec<float> b, std::int64_t g) TENSOROPS_INLINED {
            each_row([&](auto r) TENSOROPS_INLINED { sum[i][r] += b * load(x[r].sums + g); });
        };
        std::int64_t g = 0;
        for (; g + kLanes<float> <= groups; g += kLanes<float>) {
            if (__builtin_expect(g % (kAddedPlainly * kLanes<float>) == 0 && g > 0, 0)) end_block_of_sums();
            each_output([&](auto i) TENSOROPS_INLINED {
                add_biases(i, load_numbers<S>(of[i].biases, g, kLanes<float>, dtype), g);
                fetch(of[i].biases + g * size + lengths.biases_ahead);
            });
        }
        const std::int64_t last = lengths.last.begin;
        if (g < groups)
            each_output([&](auto i) TENSOROPS_INLINED {
                add_biases(i, load_numbers<S>(of[i].biases, last, groups - last, dtype), g);
            });
    }
    if (__builtin_expect(is_long, 0)) {
        end_block_of_sums();
        each_row([&](auto r) TENSOROPS_INLINED {
            each_output([&](auto i) TENSOROPS_INLINED { y[r][i] = total[i][r].value(); });
        });
        return;
    }
    each_row([&](auto r) TENSOROPS_INLINED {
        if constexpr (kCount == 4)
            store_sums_of_lanes(sum[0][r], sum[1][r], sum[2][r], sum[3][r], y[r]);
        else
            each_output([&](auto i) TENSOROPS_INLINED { y[r][i] = sum_of_lanes<float>(sum[i][r]); });
    });
}

inline bool takes_few(const QuantizedLinear& op) {
    const bool has_small_groups =
        op.group_size == kSmallGroup && op.bits == 8 && !op.biases && op.x.length % kFixed == 0;
    return has_small_groups || (op.group_size % kFixed == 0 && kChunk % op.group_size == 0);
}

template <int kBits, bool kSigned>
struct FewRowsProduct {
    using Row = FixedRow<kBits>;
    const QuantizedLinear& op;
    const Lengths<kBits> lengths;
    const std::int64_t count, blocks_bytes, scales_bytes, sums_bytes;

    explicit FewRowsProduct(const QuantizedLinear& op_)
        : op(op_),
          lengths(op),
          count((op.x.length + kBlockWeights<kBits> - 1) / kBlockWeights<kBits>),
          blocks_bytes(whole_lines(count * static_cast<std::int64_t>(sizeof(Block<kBits>)))),
          scales_bytes(
              whole_lines(ChunkScales<kBits>::floats(op.x.length / kFixed) * static_cast<std::int64_t>(sizeof(float)))),
          sums_bytes(whole_lines((op.x.length / op.group_size + 16) * static_cast<std::int64_t>(sizeof(float)))) {}

    std::int64_t room() const { return blocks_bytes + 2 * (scales_bytes + sums_bytes); }

    // Converts a row; false if some x is too large or too small for a scale.
    template <class T>
    bool make_row(const T* x, char* memory, Row& row) const {
        auto* blocks = reinterpret_cast<Block<kBits>*>(memory);
        auto* scales = reinterpret_cast<float*>(memory + blocks_bytes);
        auto* sums = reinterpret_cast<float*>(memory + blocks_bytes + scales_bytes);
        if (count > 0)
            std::memset(static_cast<void*>(blocks + count - 1), 0, sizeof *blocks);  // it may be in part used
        // Scales and sums without a group are also multiplied.
        std::memset(scales, 0, static_cast<std::size_t>(scales_bytes + sums_bytes));
        const std::int64_t in_group = std::max<std::int64_t>(op.group_size / kFixed, 1);
        const LastGroups& last = lengths.last;
        float largest = 0;
        for (std::int64_t g = 0; g < op.x.length / (in_group * kFixed); ++g) {
            Vec<float> sum{};
            for (std::int64_t i = in_group * g; i < in_group * (g + 1); ++i) {
                float scale;
                if (!store_fixed<kBits>(x, i, blocks, scale, sum)) return false;
                ChunkScales<kBits>::store(scale, i, scales);
                largest = std::max(largest, scale);
            }
            // In the order in which biases are read, and 0 for those that are read again.
            if (!kSigned) sums[g < last.first ? g : g + last.first - last.begin] = sum_of_lanes<float>(sum);
        }
        for (std::int64_t b = 0; kBits == 8 && kSigned != kSignedCodes && b < count; ++b) finish_block(blocks[b]);
        int exponent;
        std::frexp(largest, &exponent);
        const std::int64_t both = (scales_bytes + sums_bytes) / static_cast<std::int64_t>(sizeof(float));
        for (std::int64_t i = 0; i < both; i += kLanes<float>) {
            const Vec<float> v = load(scales + i) * std::ldexp(1.0f, -exponent);
            store(scales + i, v);
            store(scales + both + i, v * Row::kSmall);
        }
        row = {blocks, scales, sums, std::ldexp(1.0f, exponent), scales + both, sums + both};
        return true;
    }

    // Outputs for at most kTogether rows: `width` of them, from the `first` row of W on.
    void compute(std::int64_t count, const Row* rows, std::int64_t first, std::int64_t width,
                 float (*y)[kOutputs]) const;

  private:
    template <int kRows, class S>
    void compute_rows(const Row* rows, std::int64_t first, std::int64_t width, float (*y)[kOutputs]) const;

    // Outputs of one row, without the factor of its scales.
    void finish(const Row& row, std::int64_t first, std::int64_t width, float* y) const;
};

template <int kBits, bool kSigned>
template <int kRows, class S>
void FewRowsProduct<kBits, kSigned>::compute_rows(const Row* rows, std::int64_t first, std::int64_t width,
                                                  float (*y)[kOutputs]) const {
    constexpr int kCount = kRows == 1 ? kOutputsOfOneRow : 1;
    const auto at = [y](std::int64_t i) { return reinterpret_cast<float (*)[kOutputs]>(&y[0][i]); };
    const bool is_long = op.x.length > kAddedPlainly * kChunk;
    std::int64_t i = 0;
    if (kCount > 1 && !is_long && lengths.bytes <= kShortRow)
        for (; i + kCount <= width; i += kCount)
            outputs_together<kRows, kCount, kBits, kSigned, S>(op, lengths, rows, first + i, false, at(i));
    for (; i < width; ++i) outputs_together<kRows, 1, kBits, kSigned, S>(op, lengths, rows, first + i, is_long, at(i));
}

template <int kBits, bool kSigned>
void FewRowsProduct<kBits, kSigned>::compute(std::int64_t count, const Row* rows, std::int64_t first,
                                             std::int64_t width, float (*y)[kOutputs]) const {
    static_assert(kTogether == 4);
    if (count == 1)
#if defined(__x86_64__) && !defined(__AVX2__)  // the oldest target, which every clone compiles
        compute_rows<1, void>(rows, first, width, y);
#else
        for_narrow_dtype(op.scale_dtype, [&](auto scale) { compute_rows<1, decltype(scale)>(rows, first, width, y); });
#endif
    else if (count == 2)
        compute_rows<2, void>(rows, first, width, y);
    else if (count == 3)
        compute_rows<3, void>(rows, first, width, y);
    else
        compute_rows<4, void>(rows, first, width, y);
    for (std::int64_t r = 0; r < count; ++r) finish(rows[r], first, width, y[r]);
}

template <int kBits, bool kSigned>
void FewRowsProduct<kBits, kSigned>::finish(const Row& row, std::int64_t first, std::int64_t width, float* y) const {
    const auto is_finite = [](float v) { return v - v == 0; };
    bool are_finite = true;
    for (std::int64_t i = 0; i < width; ++i) are_finite &= is_finite(y[i]);
    if (!are_finite && row.small_scales) {
        const Row small = row.small();
        float again[1][kOutputs];
        compute(1, &small, first, width, again);
        for (std::int64_t i = 0; i < width; ++i) y[i] = is_finite(y[i]) ? y[i] * row.back : again[0][i];
        return;
    }
    for (std::int64_t i = 0; i < width; ++i) y[i] *= row.back;
}

// Compiled by quantized_linear.cpp: nothing else takes as long.
#define TENSOROPS_COMPUTE(keyword, bits, is_signed)                                                                   \
    keyword template void dequantize_row<bits, is_signed>(const QuantizedLinear&, std::int64_t, float*);              \
    keyword template void FewRowsProduct<bits, is_signed>::compute(std::int64_t, const FixedRow<bits>*, std::int64_t, \
                                                                   std::int64_t, float (*)[kOutputs]) const;
#define TENSOROPS_COMPUTE_EACH(keyword)  \
    TENSOROPS_COMPUTE(keyword, 4, false) \
    TENSOROPS_COMPUTE(keyword, 8, false) \
    TENSOROPS_COMPUTE(keyword, 8, true)
TENSOROPS_COMPUTE_EACH(extern)

// ------------------------------------------------------------------------------------------------------ the choice

// Some outputs for any number of rows, from the `first` row of W on, where to(r) points to where those of row r go.
template <class T, class W, class To>
void some_outputs(std::int64_t count, const W& product, const typename W::Row* rows, std::int64_t first,
                  std::int64_t width, To to) {
    for (std::int64_t r = 0; r < count; r += kTogether) {
        const std::int64_t together = std::min(kTogether, count - r);
        float sums[kTogether][kOutputs];
        product.compute(together, rows + r, first, width, sums);
        for (std::int64_t i = 0; i < together; ++i) store_outputs<T>(to(r + i), sums[i], nullptr, width);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
