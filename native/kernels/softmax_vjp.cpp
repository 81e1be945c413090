// The vector-Jacobian products of softmax, log_softmax and logsumexp along lines:
//   dx = y (dy - sum(dy y)), dx = dy - exp(y) sum(dy), dx = dy softmax(x)
//
// Work: lines go to threads in contiguous blocks. A line is read for the sum and again, from the first- or second-level
//   cache, for the result; for logsumexp, exponentials are computed twice. Short lines, and those that are no rows, are
//   computed side by side, a lane for each.
// Precision: float64 in float64, everything else in float32, sums in blocks.
// Bytes: each element once in (of y and dy, or of x), once out.
#include "softmax_vjp.h"

#include <cmath>

#include "beside.h"
#include "exponentials.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <bool kStream, class T>
void one_row(const SoftmaxVjp& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const Line line = op.lines.line(index);
    const T *y = reinterpret_cast<const T*>(line.x), *dy = reinterpret_cast<const T*>(op.dy.line(index).x);
    T* dx = reinterpret_cast<T*>(line.y);
    if (op.kind == Normalized::softmax) {
        const C total = sum_of_row<T>(
            n, [=](std::int64_t i, std::int64_t k) { return load_some(y + i, k) * load_some(dy + i, k); });
        return put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
            return load_some(y + i, k) * (load_some(dy + i, k) - total);
        });
    }
    const C total = sum_of_row<T>(n, [dy](std::int64_t i, std::int64_t k) { return load_some(dy + i, k); });
    put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
        return load_some(dy + i, k) - exp_of_negative(at_most(load_some(y + i, k), 0)) * total;
    });
}

// y is x here: its sum is not kept, as it would be rounded to the dtype of x.
template <bool kStream, class T>
void one_sum(const SoftmaxVjp& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const Line line = op.lines.line(index);
    const T* x = reinterpret_cast<const T*>(line.x);
    T* dx = reinterpret_cast<T*>(line.y);
    const C largest = maximum<T>(x, n);
    const C d_of_row = load_one(reinterpret_cast<const T*>(op.dy.line(index).x));
    if (largest == -std::numeric_limits<C>::infinity()) {  // all elements count alike, as in softmax's limit
        const C share = d_of_row / static_cast<C>(n);
        return put_row<kStream>(dx, n, [share](std::int64_t, std::int64_t) { return Vec<C>{} + share; });
    }
    if (largest == std::numeric_limits<C>::infinity()) {  // a share of infinity is 0, but for another infinity NaN
        const C share = nan_or<T>(C{0}, x, n) * d_of_row;
        return put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
            const Vec<C> a = load_some(x + i, k);
            return a == largest ? a - largest : Vec<C>{} + share;
        });
    }
    const double total = sum_of_exponentials<T>(x, n, largest, nullptr, x) * static_cast<double>(kOneInUnits<C>);
    const C d = static_cast<C>(static_cast<double>(d_of_row) / total);
    put_row<kStream>(dx, n,
                     [=](std::int64_t i, std::int64_t k) { return exp_in_units(load_some(x + i, k) - largest) * d; });
}

// ---- lines side by side, a lane for each

template <int kVectors, bool kNeighbours, class T>
void some_lines(const SoftmaxVjp& op, const Line& line, const Line& of_dy, std::int64_t count) {
    using C = Compute<T>;
    using V = Vec<C>;
    using Some = Beside<kNeighbours, T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const std::int64_t n = op.lines.length;
    const Some y{line.x, op.lines.step.x, op.lines.stride.x, count},
        dx{line.y, op.lines.step.y, op.lines.stride.y, count}, dy{of_dy.x, op.dy.step.x, op.dy.stride.x, count};
    V total[kVectors];
    const auto put = [&](auto f) {
        for (std::int64_t i = 0; i < n; ++i)
            for (int u = 0; u < kVectors; ++u) dx.put(i, u * lanes, f(i, u * lanes, u));
    };
    if (op.kind == Normalized::softmax) {
        sums_of_lines(n, total, [&](std::int64_t i, int u) { return y.get(i, u * lanes) * dy.get(i, u * lanes); });
        return put(
            [&](std::int64_t i, std::int64_t lane, int u) { return y.get(i, lane) * (dy.get(i, lane) - total[u]); });
    }
    if (op.kind == Normalized::log_softmax) {
        sums_of_lines(n, total, [&](std::int64_t i, int u) { return dy.get(i, u * lanes); });
        return put([&](std::int64_t i, std::int64_t lane, int u) {
            return dy.get(i, lane) - exp_of_negative(at_most(y.get(i, lane), 0)) * total[u];
        });
    }
    V largest[kVectors], factor[kVectors];
    largest_of_lines(n, y, largest);
    sums_of_lines(n, total, [&](std::int64_t i, int u) { return exp_in_units(y.get(i, u * lanes) - largest[u]); });
    bool is_usual = true;
    for (int u = 0; u < kVectors; ++u) {
        factor[u] = dy.get(0, u * lanes) / total[u];
        is_usual &= !any(largest[u] - largest[u] != largest[u] - largest[u]);
    }
    if (__builtin_expect(is_usual, 1))
        return put([&](std::int64_t i, std::int64_t lane, int u) {
            return exp_in_units(y.get(i, lane) - largest[u]) * factor[u];
        });
    // As in one_sum
    V share[kVectors];
    const C infinity = std::numeric_limits<C>::infinity();
    for (int u = 0; u < kVectors; ++u) {
        V nan_or_0{};
        for (std::int64_t i = 0; i < n; ++i) {
            const V x = y.get(i, u * lanes);
            nan_or_0 = x == x ? nan_or_0 : x;
        }
        const V d = dy.get(0, u * lanes);
        share[u] = largest[u] == -infinity ? d / static_cast<C>(n) : nan_or_0 * d;
    }
    put([&](std::int64_t i, std::int64_t lane, int u) {
        const V x = y.get(i, lane), usual = exp_in_units(x - largest[u]) * factor[u];
        const V special = largest[u] == infinity ? (x == infinity ? x - x : share[u]) : share[u];
        return largest[u] - largest[u] == largest[u] - largest[u] ? usual : special;
    });
}

template <class T>
void every_line(const SoftmaxVjp& op) {
    constexpr std::int64_t item = sizeof(T), lanes = kLanes<T>;
    const Lines& lines = op.lines;
    const bool of_sums = op.kind == Normalized::logsumexp;
    const std::int64_t bytes = (of_sums ? 2 : 3) * lines.count * lines.length * item;
    const bool is_row = lines.step.x == item && lines.step.y == item && (of_sums || op.dy.step.x == item);
    if (is_row && lines.length > kShort)
        return over_rows(lines.count, bytes, op.streaming, [&op, of_sums](auto streaming, std::int64_t i) {
            of_sums ? one_sum<streaming, T>(op, i) : one_row<streaming, T>(op, i);
        });
    const bool neighbours = lines.stride.x == item && lines.stride.y == item && op.dy.stride.x == item;
    const std::int64_t most = neighbours && !is_row ? 2 * lanes : lanes;
    over_shares(threads_for_rows(lines.count, bytes), lines.count, 1, [&](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end;) {
            const Line line = lines.line(i), of_dy = op.dy.line(i);
            const std::int64_t count = std::min({most, line.beside, of_dy.beside, mine.end - i});
            if (!neighbours)
                some_lines<1, false, T>(op, line, of_dy, count);
            else if (count <= lanes)
                some_lines<1, true, T>(op, line, of_dy, count);
            else
                some_lines<2, true, T>(op, line, of_dy, count);
            i += count;
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(softmax_vjp, SoftmaxVjp) {
    for_dtype(op.dtype, [&op](auto x) { every_line<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
