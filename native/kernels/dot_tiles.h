// x · Wᵀ in float32: dot products of a few rows of x with a few rows of W at a time, both contiguous.
//
// A tile keeps one vector of partial sums for each pair of rows in a register, so that each loaded vector is used in
// several products, and nothing is transposed. For each tile row the weights' rows come from the second-level cache:
// rows of x are processed in chunks, and outputs in blocks, whose sizes together fit in it.
#pragma once

#include <algorithm>
#include <type_traits>

#include "convert.h"
#include "float_panels.h"
#include "interruption.h"
#include "parallel.h"
#include "rows.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 6, kTileColumns = 4;  // 24 of 32 registers hold sums
#else
inline constexpr int kTileRows = 4, kTileColumns = 3;  // 12 of 16 (aarch64: of 32)
#endif
inline constexpr std::int64_t kBlockOutputs = 8 * kTileColumns, kChunkRows = 24 * kTileRows;

// out[r][c] = x[r] · w[c]. Not inlined, because the sums need nearly all registers.
template <int kRows, int kColumns, class X, class W>
__attribute__((noinline)) void dot_tile(const X* const* x, const W* const* w, std::int64_t n,
                                        float (*out)[kBlockOutputs]) {
    constexpr std::int64_t lanes = kFloats;
    // An addition takes four cycles, in which two could begin: for a single row, neighbouring vectors have their own
    // sums.
    constexpr int kChains = kRows == 1 ? 2 : 1;
    Vec<float> sum[kChains][kRows][kColumns] = {};
    const auto add = [&](auto& to, auto load_x, auto load_w) {
        Vec<float> b[kColumns];
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) b[c] = load_w(w[c]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const Vec<float> a = load_x(x[r]);
#pragma GCC unroll 8
            for (int c = 0; c < kColumns; ++c) to[r][c] += a * b[c];
        }
    };
    const auto add_whole = [&](auto& to, std::int64_t i) {
        add(to, [i](const X* p) { return load(p + i); }, [i](const W* p) { return load(p + i); });
    };
    std::int64_t i = 0;
    for (; i + kChains * lanes <= n; i += kChains * lanes)
#pragma GCC unroll 2
        for (int chain = 0; chain < kChains; ++chain) add_whole(sum[chain], i + chain * lanes);
    for (; i + lanes <= n; i += lanes) add_whole(sum[0], i);
    if (i < n)
        add(
            sum[0], [i, n](const X* p) { return load_part(p + i, n - i); },
            [i, n](const W* p) { return load_part(p + i, n - i); });
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) {
            for (int chain = 1; chain < kChains; ++chain) sum[0][r][c] += sum[chain][r][c];
            out[r][c] = sum_of_lanes<float>(sum[0][r][c]);
        }
}

// The same for rows of any length: a long row is summed in blocks, so that the error does not grow with it.
template <int kRows, int kColumns, class X, class W>
inline void dot_products(const X* const* x, const W* const* w, std::int64_t n, float (*out)[kBlockOutputs]) {
    constexpr std::int64_t block = 256 * static_cast<std::int64_t>(kFloats);
    if (n <= block) return dot_tile<kRows, kColumns>(x, w, n, out);
    double total[kRows][kColumns] = {};
    for (std::int64_t begin = 0; begin < n; begin += block) {
        const X* x_from[kRows];
        const W* w_from[kColumns];
        for (int r = 0; r < kRows; ++r) x_from[r] = x[r] + begin;
        for (int c = 0; c < kColumns; ++c) w_from[c] = w[c] + begin;
        dot_tile<kRows, kColumns>(x_from, w_from, std::min(block, n - begin), out);
        for (int r = 0; r < kRows; ++r)
            for (int c = 0; c < kColumns; ++c) total[r][c] += static_cast<double>(out[r][c]);
    }
    for (int r = 0; r < kRows; ++r)
        for (int c = 0; c < kColumns; ++c) out[r][c] = static_cast<float>(total[r][c]);
}

// Stores a row of results, with the bias if there is one.
template <class T>
inline void store_outputs(T* y, const float* sums, const float* bias, std::int64_t n) {
    constexpr std::int64_t lanes = kFloats;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(y + i, bias ? load(sums + i) + load(bias + i) : load(sums + i));
    if (i == n) return;
    const Vec<float> rest = load_part(sums + i, n - i);
    store_part(y + i, bias ? rest + load_part(bias + i, n - i) : rest, n - i);
}

// A block of outputs for some rows of x; the rows of W are given as pointers. Not inlined: those that take the outputs
// are many, and would each have products of their own.
template <int kRows, class X, class W>
inline void block_of_outputs(const X* const* x, const W* const* w, std::int64_t outputs, std::int64_t n,
                             float (*out)[kBlockOutputs]) {
    for (std::int64_t c = 0; c < outputs; c += kTileColumns)
        dot_products<kRows, kTileColumns>(x, w + c, n, reinterpret_cast<float (*)[kBlockOutputs]>(&out[0][c]));
}

template <class X, class W>
[[gnu::noinline]] void block_of_outputs(std::int64_t rows, const X* const* x, const W* const* w, std::int64_t outputs,
                                        std::int64_t n, float (*out)[kBlockOutputs]) {
    static_assert(kTileRows <= 6);
    switch (rows) {
        case 1:
            return block_of_outputs<1>(x, w, outputs, n, out);
        case 2:
            return block_of_outputs<2>(x, w, outputs, n, out);
        case 3:
            return block_of_outputs<3>(x, w, outputs, n, out);
        case 4:
            return block_of_outputs<4>(x, w, outputs, n, out);
#if defined(__AVX512F__)
        case 5:
            return block_of_outputs<5>(x, w, outputs, n, out);
        case 6:
            return block_of_outputs<6>(x, w, outputs, n, out);
#endif
    }
}

// Those of all dtypes, for a source that is to compile them, and for others to leave them to it: `extern`.
#define TENSOROPS_BLOCK_OF_OUTPUTS(keyword, X, W)                                                              \
    keyword template void block_of_outputs<X, W>(std::int64_t, const X* const*, const W* const*, std::int64_t, \
                                                 std::int64_t, float (*)[kBlockOutputs]);
#define TENSOROPS_BLOCKS_OF_OUTPUTS(keyword)                \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, Float16, Float16)   \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, Float16, BFloat16)  \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, Float16, float)     \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, BFloat16, Float16)  \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, BFloat16, BFloat16) \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, BFloat16, float)    \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, float, Float16)     \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, float, BFloat16)    \
    TENSOROPS_BLOCK_OF_OUTPUTS(keyword, float, float)

// Elements as float32.
inline void widen(Dtype dtype, const char* from, float* to, std::int64_t n) {
    for_narrow_dtype(dtype, [=](auto element) { convert(reinterpret_cast<const decltype(element)*>(from), to, n); });
}

// In place of a function that returns rows of W: its columns, for kBlockOutputs rows at a time, one block after
// another.
struct PackedRows {
    const float* columns;
};

// Whether rows of W are computed, by row(index, buffer), which returns the buffer, not where they are, at row(index)
template <class Row>
inline constexpr bool kIsComputed = std::is_invocable_v<Row, std::int64_t, float*>;

// Some outputs for a number of rows, from the `first` row of W on. If these are computed, `buffers` has room for
// kBlockOutputs of them, `line` bytes apart. Row r of x begins at from(r); put(r, sums) takes its products, and
// fetch(r) what it needs for that, if it is called.
template <class X, class W, class Row, class From, class Put, class Fetch = NoFetch>
inline void outputs_of_rows(std::int64_t count, std::int64_t n, std::int64_t first, std::int64_t width, const Row& row,
                            char* buffers, std::int64_t line, const From& from, const Put& put,
                            const Fetch& fetch = {}) {
    if constexpr (is_same<Row, PackedRows>) {
        FloatPanel<kBlockOutputs>::each_row(count, n, nullptr, row.columns + first * n, from, put, fetch);
    } else {
        const W* w[kBlockOutputs + kTileColumns];
        for (std::int64_t c = 0; c < width; ++c) {
            if constexpr (kIsComputed<Row>)
                w[c] = row(first + c, reinterpret_cast<float*>(buffers + line * c));
            else
                w[c] = row(first + c);
        }
        std::fill(w + width, w + kBlockOutputs + kTileColumns, w[width - 1]);  // fills the tile; these are unused
        if constexpr (is_same<X, float> && is_same<W, float>)
            if (count >= kLeastRowsOfPanels && n <= kMostOfPanels)
                return FloatPanel<kBlockOutputs>::each_row(count, n, w, nullptr, from, put, fetch);
        for (std::int64_t r = 0; r < count; r += kTileRows) {
            const std::int64_t height = std::min<std::int64_t>(kTileRows, count - r);
            const X* x[kTileRows];
            for (std::int64_t i = 0; i < height; ++i) x[i] = from(r + i);
            float out[kTileRows][kBlockOutputs];
            block_of_outputs<X, W>(height, x, w, width, n, out);
            for (std::int64_t i = 0; i < height; ++i) put(r + i, out[i]);
        }
    }
}

// x · Wᵀ, where row is as in outputs_of_rows, and prepare(from, to) converts a row of x to float32; without it, rows of
// x are used directly.
//
// put(row, first, width, sums, member) takes the products of a row of x with some rows of W, at most kBlockOutputs;
// there is room for as many, and no two members of the team get the same ones. fetch(row, first, width) is called
// before that, where it helps.
//
// Work: threads take blocks of outputs as they become free.
struct AsItIs {};

// Rows of x that are multiplied at a time. Dot products want them in the second-level cache; panels read them in order,
// from any cache, and are made for as many rows as 16 MiB hold.
inline std::int64_t rows_of_chunk(std::int64_t count, std::int64_t line) {
    const std::int64_t most =
        count < kLeastRowsOfPanels ? kChunkRows : std::clamp((16 << 20) / line, kChunkRows, 5 * kChunkRows);
    const std::int64_t chunks = (count + most - 1) / most;
    return (count + chunks - 1) / chunks;
}

// Into how many parts rows may be divided that share an output: each makes a panel of its own.
inline std::int64_t parts_of(std::int64_t rows) { return std::max<std::int64_t>(1, rows / (2 * kLeastRowsOfPanels)); }

template <class T, class W, class Row, class Prepare, class Put, class Fetch = NoFetch>
void each_product(const Rows& x, std::int64_t outputs, const Row& row, const Prepare& prepare, int threads,
                  const Put& put, const Fetch& fetch = {}) {
    constexpr bool kPrepares = !is_same<Prepare, AsItIs>;
    using X = std::conditional_t<kPrepares, float, T>;
    const std::int64_t n = x.length, line = whole_lines(n * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t rows = rows_of_chunk(x.count, line);
    const std::int64_t of_member = kIsComputed<Row> ? line * kBlockOutputs : 0, buffers = of_member * threads;
    const Scratch scratch(buffers + (kPrepares ? line * rows : 0));
    Interruption* const at = interruption;
    for (std::int64_t begin = 0; begin < x.count; begin += rows) {
        if (at && at->happened()) return;
        const std::int64_t count = std::min(rows, x.count - begin);
        const auto x_row = [&](std::int64_t r) -> const X* {
            if constexpr (kPrepares) return scratch.at<float>(buffers + line * r);
            return reinterpret_cast<const X*>(x.row(begin + r));
        };
        if constexpr (kPrepares)
            over_shares(std::min<std::int64_t>(threads, count), count, 1, [&](Share share) {
                for (std::int64_t r = share.begin; r < share.end; ++r)
                    prepare(reinterpret_cast<const T*>(x.row(begin + r)), const_cast<float*>(x_row(r)));
            });
        const std::int64_t blocks = (outputs + kBlockOutputs - 1) / kBlockOutputs;
        // A few threads find enough blocks of outputs to share; many share the rows as well.
        const std::int64_t parts = std::clamp<std::int64_t>((2 * threads + blocks - 1) / blocks, 1, parts_of(count));
        over_pieces(threads, blocks * parts, [&](std::int64_t piece, int member) {
            const std::int64_t first = piece / parts * kBlockOutputs, width = std::min(kBlockOutputs, outputs - first);
            const std::int64_t from = count * (piece % parts) / parts, to = count * (piece % parts + 1) / parts;
            if (leaves(at, matrix_work(to - from, width, n, sizeof(W)))) return;
            outputs_of_rows<X, W>(
                to - from, n, first, width, row, scratch.at<char>(of_member * member), line,
                [&](std::int64_t r) { return x_row(from + r); },
                [&](std::int64_t r, float* sums) { put(begin + from + r, first, width, sums, member); },
                [&](std::int64_t r) { fetch(begin + from + r, first, width); });
        });
    }
}

// y = x · Wᵀ + bias
template <class T, class W, class Row, class Prepare>
void products_with_rows(const Rows& x, T* y, std::int64_t outputs, const float* bias, Row row, Prepare prepare,
                        int threads) {
    each_product<T, W>(x, outputs, row, prepare, threads,
                       [=](std::int64_t r, std::int64_t first, std::int64_t width, const float* sums, int) {
                           store_outputs(y + r * outputs + first, sums, bias ? bias + first : nullptr, width);
                       });
}

}  // namespace tensorops::TENSOROPS_TARGET
