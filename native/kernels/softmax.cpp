// softmax: exp(x - max) / sum(exp(x - max)); log_softmax: x - max - log(sum); logsumexp: max + log(sum); along lines.
//
// Work: lines go to threads in contiguous blocks.
//   A line of neighbours in memory is a row: it is read for its maximum, and again for the exponentials, which softmax
//   keeps, in the result or memory of its thread, and then scales; those of rows too long for that are computed twice.
//   Exponentials are bound by arithmetic, so the next row is fetched meanwhile.
//   Lines side by side in memory are computed together, a lane for each, in blocks of a few vectors; the exponentials
//   are kept in the result. Short rows are brought into this form in a buffer.
//   Other lines are rows whose elements are gathered one by one.
// Precision: float64 in float64, everything else in float32; sums are taken in blocks, so that the error does not grow
//   with the line; a row's logarithm in double.
// Bytes: each element once in, once out, as in a copy, as long as a row, or a block of lines, stays in the second-level
//   cache. Float32 results of half types are written as they are computed.
#include "softmax.h"

#include <algorithm>
#include <cmath>

#include "beside.h"
#include "exponentials.h"
#include "over_rows.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kMostKept = 64 * 1024;  // bytes of exponentials that a thread keeps

// R is the type of the result's elements, P a pointer to T or Strided<T>; `kept` has room for the exponentials of a row
// that are kept, or is nullptr.
template <bool kStream, class T, class R, class P>
void one_row(const Softmax& op, P x, P next, char* result, Compute<T>* kept) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    R* y = reinterpret_cast<R*>(result);
    const C largest = maximum<T>(x, n);
    if (op.kind == Normalized::logsumexp) {
        if (std::isinf(largest)) return store_one(y, nan_or<T>(largest, x, n));
        const double total =
            std::log(sum_of_exponentials<T>(x, n, largest, nullptr, next)) + static_cast<double>(largest);
        return store_one(y, static_cast<C>(total));
    }
    if (op.kind == Normalized::log_softmax) {
        const C log_total = static_cast<C>(std::log(sum_of_exponentials<T>(x, n, largest, nullptr, next)));
        return put_row<kStream>(
            y, n, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) - largest - log_total; });
    }
    if (kept) {
        const C scale = static_cast<C>(1 / kOneInUnits<C> / sum_of_exponentials<T>(x, n, largest, kept, next));
        const C* e = kept;
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) { return load_some(e + i, k) * scale; });
    } else {
        const C scale = static_cast<C>(1 / kOneInUnits<C> / sum_of_exponentials<T>(x, n, largest, nullptr, next));
        put_row<kStream>(
            y, n, [=](std::int64_t i, std::int64_t k) { return exp_in_units(load_some(x + i, k) - largest) * scale; });
    }
}

// ---- lines side by side, a lane for each

// Lines where they are
template <bool kNeighbours, class T, class R>
struct InPlace {
    using C = Compute<T>;
    Beside<kNeighbours, T> x;
    Beside<kNeighbours, R> y;

    static constexpr bool kKeeps = is_same<R, C>;  // exponentials are kept in the result

    InPlace(const Lines& lines, const Line& at, std::int64_t count)
        : x{at.x, lines.step.x, lines.stride.x, count}, y{at.y, lines.step.y, lines.stride.y, count} {}
    Vec<C> get(std::int64_t i, std::int64_t lane) const { return x.get(i, lane); }
    void put(std::int64_t i, std::int64_t lane, Vec<C> v) const { y.put(i, lane, v); }
    void keep(std::int64_t i, std::int64_t lane, Vec<C> v) const {
        if constexpr (kKeeps) y.put(i, lane, v);
    }
    Vec<C> kept(std::int64_t i, std::int64_t lane, Vec<C> shift) const {
        if constexpr (kKeeps)
            return y.get(i, lane);
        else
            return exp_in_units(x.get(i, lane) - shift);
    }
};

// Short lines in a buffer, where they are side by side
template <class T, class R>
struct Short {
    using C = Compute<T>;
    const Lines& lines;
    Line at;
    std::int64_t count;
    C* buffer;  // lines.length vectors

    Short(const Lines& of, Line line, std::int64_t lanes, C* memory)
        : lines(of), at(line), count(lanes), buffer(memory) {
        for (std::int64_t i = 0; i < lines.length; ++i)
            store(buffer + i * kLanes<C>, load_part(Strided<T>{at.x + i * lines.step.x, lines.stride.x}, count));
    }
    Vec<C> get(std::int64_t i, std::int64_t) const { return load(buffer + i * kLanes<C>); }
    void put(std::int64_t i, std::int64_t, Vec<C> v) const {
        store_strided<R>(at.y + i * lines.step.y, lines.stride.y, v, count);
    }
    void keep(std::int64_t i, std::int64_t, Vec<C> v) const { store(buffer + i * kLanes<C>, v); }
    Vec<C> kept(std::int64_t i, std::int64_t lane, Vec<C>) const { return get(i, lane); }
};

// kVectors of lines. The loops over them are unrolled, so that their numbers stay in registers.
template <int kVectors, class T, class Side>
void side_by_side(Normalized kind, std::int64_t n, const Side& side) {
    using C = Compute<T>;
    using V = Vec<C>;
    constexpr std::int64_t lanes = kLanes<C>;
    V largest[kVectors], total[kVectors];
    largest_of_lines(n, side, largest);
    sums_of_lines(n, total, [&](std::int64_t i, int u) {
        const V e = exp_in_units(side.get(i, u * lanes) - largest[u]);
        if (kind == Normalized::softmax) side.keep(i, u * lanes, e);
        return e;
    });
    for (int u = 0; u < kVectors; ++u) total[u] *= 1 / kOneInUnits<C>;
    if (kind == Normalized::softmax) {
        V scale[kVectors];
        for (int u = 0; u < kVectors; ++u) scale[u] = (1 / kOneInUnits<C>) / total[u];
        for (std::int64_t i = 0; i < n; ++i)
            for (int u = 0; u < kVectors; ++u) side.put(i, u * lanes, side.kept(i, u * lanes, largest[u]) * scale[u]);
        return;
    }
    V log_total[kVectors];
    for (int u = 0; u < kVectors; ++u) log_total[u] = log_of_normal(total[u]);
    if (kind == Normalized::log_softmax) {
        for (std::int64_t i = 0; i < n; ++i)
            for (int u = 0; u < kVectors; ++u)
                side.put(i, u * lanes, side.get(i, u * lanes) - largest[u] - log_total[u]);
        return;
    }
    for (int u = 0; u < kVectors; ++u) {
        // Beside an infinity the difference from it is NaN: the sum is that infinity unless the line has a NaN.
        const auto is_infinite = largest[u] - largest[u] != largest[u] - largest[u];
        V result = log_total[u] + largest[u];
        if (__builtin_expect(any(is_infinite), 0)) {
            V nan_or_largest = largest[u];
            for (std::int64_t i = 0; i < n; ++i) {
                const V x = side.get(i, u * lanes);
                nan_or_largest = x == x ? nan_or_largest : x;
            }
            result = is_infinite ? nan_or_largest : result;
        }
        side.put(0, u * lanes, result);
    }
}

// ---- all lines

// How many lines are computed together, and how
template <class T, class R>
void some_lines(const Softmax& op, bool neighbours, bool is_row, const Line& line, std::int64_t count) {
    constexpr std::int64_t lanes = kLanes<T>;
    const std::int64_t n = op.lines.length;
    if (is_row) {
        alignas(64) Compute<T> buffer[kShort * lanes];
        return side_by_side<1, T>(op.kind, n, Short<T, R>(op.lines, line, count, buffer));
    }
    if (!neighbours) return side_by_side<1, T>(op.kind, n, InPlace<false, T, R>(op.lines, line, count));
    const InPlace<true, T, R> side(op.lines, line, count);
    if (count <= lanes) return side_by_side<1, T>(op.kind, n, side);
    if (count <= 2 * lanes) return side_by_side<2, T>(op.kind, n, side);
    side_by_side<4, T>(op.kind, n, side);
}

// Lines of which each is computed by itself: rows, and others whose results are rows
template <class T, class R>
void one_by_one(const Softmax& op, bool is_row, std::int64_t bytes) {
    using C = Compute<T>;
    const Lines& lines = op.lines;
    const int threads = threads_for_rows(lines.count, bytes);
    const std::int64_t of_row = lines.length * static_cast<std::int64_t>(sizeof(C));
    const bool keeps = op.kind == Normalized::softmax && of_row <= kMostKept;
    // Exponentials are kept in the result, unless that is of another type or written past the caches.
    const bool in_result = is_same<R, C> && !op.streaming;
    const std::int64_t room = keeps && !in_result ? whole_lines(of_row) : 0;
    const Scratch scratch(threads * room);
    over_shares(threads, lines.count, 1, [&](Share mine) {
        const auto kept = [&](const Line& line) -> C* {
            if (!keeps) return nullptr;
            return in_result ? reinterpret_cast<C*>(line.y) : scratch.at<C>(mine.member * room);
        };
        if (is_row)
            return rows_of_share(mine, op.streaming, [&](auto streaming, std::int64_t i) {
                const Line line = lines.line(i), next = lines.line(i + 1 < lines.count ? i + 1 : i);
                one_row<streaming, T, R>(op, reinterpret_cast<const T*>(line.x), reinterpret_cast<const T*>(next.x),
                                         line.y, kept(line));
            });
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            const Line line = lines.line(i);
            const Strided<T> x{line.x, lines.step.x};
            one_row<false, T, R>(op, x, x, line.y, kept(line));
        }
    });
}

template <class T, class R>
void every_line(const Softmax& op) {
    const Lines& lines = op.lines;
    constexpr std::int64_t lanes = kLanes<T>, item = sizeof(T), y_item = sizeof(R);
    const bool of_sums = op.kind == Normalized::logsumexp;
    const std::int64_t n = lines.length, bytes = lines.count * (n * item + (of_sums ? 1 : n) * y_item);
    const bool is_row = lines.step.x == item && (of_sums || lines.step.y == y_item);
    const bool neighbours = lines.stride.x == item && lines.stride.y == y_item;
    if (is_row ? n > kShort : !neighbours && (of_sums || lines.step.y == y_item))
        return one_by_one<T, R>(op, is_row, bytes);
    const std::int64_t most = neighbours && !is_row ? 4 * lanes : lanes;
    over_shares(threads_for_rows(lines.count, bytes), lines.count, 1, [&](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end;) {
            const Line line = lines.line(i);
            const std::int64_t count = std::min({most, line.beside, mine.end - i});
            some_lines<T, R>(op, neighbours, is_row, line, count);
            i += count;
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(softmax, Softmax) {
    for_dtype(op.dtype, [&op](auto x) {
        using T = decltype(x);
        if constexpr (sizeof(T) == 2)
            if (op.y_dtype == Dtype::float32) return every_line<T, float>(op);
        every_line<T, T>(op);
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
