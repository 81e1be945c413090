// How rms_norm, l2_norm and layer_norm go through lines:
//   A long line of neighbours in memory is a row, which the kernel computes. If only its results are neighbours, its
//   elements are first copied to where they are.
//   Short rows are computed as many at once as a vector has lanes: each row is in a few vectors, whose sums are joined
//   so that every lane has that of one row.
//   Lines side by side in memory are computed together, a lane for each, in blocks of a few vectors, which stay in the
//   first- or second-level cache.
#pragma once

#include <type_traits>

#include "careful_row.h"
#include "gathered.h"
#include "lanes.h"
#include "moments.h"
#include "over_rows.h"
#include "parameters.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // functions of one source each, which compilers inline more readily

template <class T>
struct NormRow {
    const T *x, *next, *residual;  // `next` is fetched meanwhile
    T *sum, *y;                    // no residual, no sum
};

// Some lines: the first one's number, where it is, and that of its residual and sum
struct SomeLines {
    std::int64_t first, count;
    Line at, of_sum;
};

// A line in double precision
[[gnu::noinline]] inline void careful_line(const LineNorm& op, std::int64_t index) {
    const Line line = op.lines.line(index);
    CarefulRow x{op.x_dtype, line.x, op.lines.step.x};
    if (op.sums.y) x = {op.x_dtype, op.sums.line(index).y, op.sums.step.y};
    const double offset = op.norm == Norm::deviation ? -0.0 : op.weight_offset;  // -0 does not change any weight
    careful_row(x, op.parameter_dtype, op.weight, op.bias, line.y, op.lines.step.y, op.lines.length, op.eps, offset,
                op.norm);
}

// What lines are multiplied by, given their mean squares or, for lengths, the sums of squares; a lane for each
template <class V>
struct Scale {
    V r;
    decltype(V{} < V{}) is_usual;

    void find(const LineNorm& op, V square) {
        using C = Element<V>;
        const C eps = static_cast<C>(op.eps);
        const V spread = op.norm == Norm::length ? at_least(square, V{} + eps * eps) : square + eps;
        is_usual = (spread >= kLeastSquare<C>)&(spread <= kLargestSquare<C>);
        r = 1 / square_root(spread);
    }
    // Computes again those among lines whose squares were too large or too small.
    void mend(const LineNorm& op, std::int64_t first, std::int64_t count) const {
        if (__builtin_expect(!any(~is_usual), 1)) return;
        const std::int64_t lanes = sizeof(V) / sizeof(r[0]);
        for (std::int64_t lane = 0; lane < std::min(count, lanes); ++lane)
            if (!is_usual[lane]) careful_line(op, first + lane);
    }
};

// ---- lines side by side

template <bool kCentred, int kVectors, bool kNeighbours, class T, class C>
[[gnu::noinline]] void side_by_side(const LineNorm& op, const C* weight, const C* bias, const SomeLines& some) {
    using V = Vec<C>;
    using Some = Beside<kNeighbours, T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const Lines &lines = op.lines, &sums = op.sums;
    const std::int64_t n = lines.length;
    Some x{some.at.x, lines.step.x, lines.stride.x, some.count};
    const Some y{some.at.y, lines.step.y, lines.stride.y, some.count};
    if (sums.y) {
        const Some residual{some.of_sum.x, sums.step.x, sums.stride.x, some.count};
        const Some sum{some.of_sum.y, sums.step.y, sums.stride.y, some.count};
        for (std::int64_t i = 0; i < n; ++i)
            for (int u = 0; u < kVectors; ++u) sum.put(i, u * lanes, x.get(i, u * lanes) + residual.get(i, u * lanes));
        x = sum;
    }
    V mean[kVectors] = {}, square[kVectors];
    Scale<V> scale[kVectors];
    if constexpr (kCentred) {
        moments_of_lines(n, x, mean, square);
    } else {
        sums_of_lines(n, square, [&](std::int64_t i, int u) {
            const V a = x.get(i, u * lanes);
            return a * a;
        });
        for (int u = 0; u < kVectors && op.norm != Norm::length; ++u) square[u] /= static_cast<C>(n);
    }
    for (int u = 0; u < kVectors; ++u) scale[u].find(op, square[u]);
    for (std::int64_t i = 0; i < n; ++i)
        for (int u = 0; u < kVectors; ++u) {
            V v = x.get(i, u * lanes);
            if constexpr (kCentred) v -= mean[u];
            v = v * scale[u].r * weight[i];
            if constexpr (kCentred) v += bias[i];
            y.put(i, u * lanes, v);
        }
    for (int u = 0; u < kVectors; ++u) scale[u].mend(op, some.first + u * lanes, some.count - u * lanes);
}

// ---- short rows

// As many short rows as a vector has lanes, or fewer; elements of their results up to `end` may be written before the
// rows that have them are computed.
template <bool kCentred, class T, class C>
[[gnu::noinline]] void short_rows(const LineNorm& op, const C* weight, const C* bias, const SomeLines& some,
                                  const char* end) {
    using V = Vec<C>;
    constexpr std::int64_t lanes = kLanes<C>;
    const Lines &lines = op.lines, &sums = op.sums;
    const std::int64_t n = lines.length, count = some.count, whole = n / lanes * lanes, rest = n - whole;
    const char* first = some.at.x;
    std::int64_t stride = lines.stride.x;
    T gathered[kFewElements<T> * lanes];
    if (sums.y) {
        for (std::int64_t row = 0; row < count; ++row) {
            const Strided<T> x{first + row * stride, lines.step.x},
                residual{some.of_sum.x + row * sums.stride.x, sums.step.x};
            put_row<false>(
                reinterpret_cast<T*>(some.of_sum.y + row * sums.stride.y), n,
                [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) + load_some(residual + i, k); });
        }
        first = some.of_sum.y;
        stride = sums.stride.y;
    } else if (lines.step.x != sizeof(T)) {
        for (std::int64_t row = 0; row < count; ++row)
            gather_elements(gathered + row * n, first + row * stride, n, lines.step.x);
        first = reinterpret_cast<const char*>(gathered);
        stride = n * static_cast<std::int64_t>(sizeof(T));
    }
    const auto at = [=](std::int64_t row) { return reinterpret_cast<const T*>(first + row * stride); };
    const auto is_element = first_lanes_of<C>(rest);
    // Sums of f(x, row) over rows, one in each lane
    const auto sums_of = [&](auto f) {
        V rows[lanes] = {};
        for (std::int64_t row = 0; row < count; ++row) {
            const T* x = at(row);
            V total{};
            for (std::int64_t i = 0; i < whole; i += lanes) total += f(load(x + i), row);
            if (rest) {
                const V last = f(load_part(x + whole, rest), row);
                total += is_element ? last : V{};
            }
            rows[row] = total;
        }
        return join_lanes<C>(rows, [](V a, V b) { return a + b; });
    };
    C mean[lanes] = {}, r[lanes];
    Scale<V> scale;
    if constexpr (kCentred) {
        const V about = sums_of([](V x, std::int64_t) { return x; }) / static_cast<C>(n);
        store(mean, about);
        const V left = sums_of([&](V x, std::int64_t row) { return x - mean[row]; }) / static_cast<C>(n);
        const V square = sums_of([&](V x, std::int64_t row) {
            const V a = x - mean[row];
            return a * a;
        });
        store(mean, about + left);
        scale.find(op, square / static_cast<C>(n) - left * left);
    } else {
        const V square = sums_of([](V x, std::int64_t) { return x * x; });
        scale.find(op, op.norm == Norm::length ? square : square / static_cast<C>(n));
    }
    store(r, scale.r);
    for (std::int64_t row = 0; row < count; ++row) {
        const T* x = at(row);
        char* const result = some.at.y + row * lines.stride.y;
        T* const y = reinterpret_cast<T*>(result);
        const auto value = [&](std::int64_t i, std::int64_t k) {
            V v = load_some(x + i, k);
            if constexpr (kCentred) v -= mean[row];
            v = v * r[row] * load_some(weight + i, k);
            if constexpr (kCentred) v += load_some(bias + i, k);
            return v;
        };
        for (std::int64_t i = 0; i < whole; i += lanes) store(y + i, value(i, lanes));
        if (!rest) continue;
        if (reinterpret_cast<const char*>(y + whole + lanes) <= end)
            store(y + whole, value(whole, rest));
        else
            store_part(y + whole, value(whole, rest), rest);
    }
    scale.mend(op, some.first, count);
}

// ---- all lines

// Rows whose elements are copied to where they are neighbours
template <class T, class F>
void gathered_rows(const LineNorm& op, int threads, const F& one_row) {
    const Lines &lines = op.lines, &sums = op.sums;
    const std::int64_t n = lines.length, room = whole_lines(n * static_cast<std::int64_t>(sizeof(T)));
    const Scratch scratch(threads * 2 * room);
    over_shares(threads, lines.count, 1, [&](Share mine) {
        T* const x = scratch.at<T>(mine.member * 2 * room);
        T* const residual = scratch.at<T>((mine.member * 2 + 1) * room);
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            const Line line = lines.line(i), of_sum = sums.y ? sums.line(i) : Line{};
            gather_elements(x, line.x, n, lines.step.x);
            if (sums.y) gather_elements(residual, of_sum.x, n, sums.step.x);
            one_row(std::false_type{}, i,
                    NormRow<T>{x, x, residual, reinterpret_cast<T*>(of_sum.y), reinterpret_cast<T*>(line.y)});
        }
    });
}

// Calls one_row(streaming, index, NormRow) for long rows, and computes all other lines.
template <bool kCentred, class T, class F>
void every_line(const LineNorm& op, const F& one_row) {
    using C = Compute<T>;
    constexpr std::int64_t item = sizeof(T), lanes = kLanes<T>;
    const Lines &lines = op.lines, &sums = op.sums;
    const bool adds = sums.y;
    const std::int64_t n = lines.length, bytes = (adds ? 4 : 2) * lines.count * n * item;
    const bool of_rows = lines.step.y == item && (!adds || sums.step.y == item);  // the results are rows
    const bool is_row = of_rows && lines.step.x == item && (!adds || sums.step.x == item);
    const bool neighbours =
        lines.stride.x == item && lines.stride.y == item && (!adds || (sums.stride.x == item && sums.stride.y == item));
    if (is_row && n > kFewElements<T>)
        return over_rows(lines.count, bytes, op.streaming, [&](auto streaming, std::int64_t i) {
            const Line line = lines.line(i), next = lines.line(i + 1 < lines.count ? i + 1 : i);
            const Line of_sum = adds ? sums.line(i) : Line{};
            one_row(streaming, i,
                    NormRow<T>{reinterpret_cast<const T*>(line.x), reinterpret_cast<const T*>(next.x),
                               reinterpret_cast<const T*>(of_sum.x), reinterpret_cast<T*>(of_sum.y),
                               reinterpret_cast<T*>(line.y)});
        });
    const int threads = threads_for_rows(lines.count, bytes);
    if (of_rows && !neighbours && n > kFewElements<T>) return gathered_rows<T>(op, threads, one_row);

    const std::int64_t room = whole_lines(n * static_cast<std::int64_t>(sizeof(C)));
    const Scratch scratch(2 * room);
    const C* const weight = widened(op.weight, op.parameter_dtype, C{1},
                                    static_cast<C>(op.weight ? op.weight_offset : 0), scratch.at<C>(0), n);
    // -0 does not change any sum
    const C* const bias =
        kCentred ? widened(op.bias, op.parameter_dtype, static_cast<C>(-0.0), C{0}, scratch.at<C>(room), n) : nullptr;
    const std::int64_t most = neighbours ? 4 * lanes : lanes;
    over_shares(threads, lines.count, 1, [&](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end;) {
            SomeLines some{i, 0, lines.line(i), adds ? sums.line(i) : Line{}};
            const std::int64_t beside = std::min(some.at.beside, mine.end - i);
            some.count = std::min(most, adds ? std::min(beside, some.of_sum.beside) : beside);
            if (of_rows && !neighbours)
                short_rows<kCentred, T>(op, weight, bias, some,
                                        lines.stride.y == n * item ? some.at.y + beside * n * item : nullptr);
            else if (!neighbours)
                side_by_side<kCentred, 1, false, T>(op, weight, bias, some);
            else if (some.count <= lanes)
                side_by_side<kCentred, 1, true, T>(op, weight, bias, some);
            else if (some.count <= 2 * lanes)
                side_by_side<kCentred, 2, true, T>(op, weight, bias, some);
            else
                side_by_side<kCentred, 4, true, T>(op, weight, bias, some);
            i += some.count;
        }
    });
}

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
