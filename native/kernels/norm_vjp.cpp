// With g = dy · weight and x̂ = x / d for the divisor d of a row, whose mean is subtracted from x first by layer_norm:
//   dx = (g - x̂ mean(g x̂)) / d           rms_norm
//   dx = (g - mean(g) - x̂ mean(g x̂)) / d layer_norm
//   dx = (g - x̂ sum(g x̂)) / d            l2_norm; without the sum where eps is the divisor
//   dweight = sum(dy x̂), dbias = sum(dy)  over rows
//
// Work: a thread takes blocks of lines. A line is read for its divisor and the means, and for the results, all at once;
//   after the first time it comes from the first- or second-level cache. Short rows are computed several at once, lines
//   side by side a lane for each, as in norm_lines.h. Each block has sums of its own for weight and
//   bias, and those of all blocks are added at the end: blocks depend on the shape only, so results do not depend on
//   the number of threads.
// Precision: float64 in float64, everything else in float32; sums over a row are taken in blocks, sums over rows in
//   blocks of at most 256 rows, and those of blocks with compensation. A row whose squares leave the range of float32
//   is computed in float64, scaled by a power of two.
// Bytes: each element of x and dy once in, of dx once out, and for the sums over rows at most a sixteenth of that.
#include "norm_vjp.h"

#include <algorithm>
#include <cmath>

#include "careful_row.h"
#include "gathered.h"
#include "lanes.h"
#include "moments.h"
#include "over_rows.h"
#include "parameters.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kLeastRows = 16, kMostRows = 256;  // of a block

bool is_centred(const NormVjp& op) { return op.norm == Norm::deviation; }

// The line with this number, in double, in a unit in which no square overflows or vanishes
template <class T>
[[gnu::noinline]] void careful_gradient(const NormVjp& op, std::int64_t index, const Compute<T>* weight,
                                        Compute<T>* of_weight, Compute<T>* of_bias) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const Line line = op.lines.line(index);
    const char* const of_dy = op.dy.line(index).x;
    const char* const of_dsum = op.dsum.x ? op.dsum.line(index).x : nullptr;
    const bool centred = op.norm == Norm::deviation, by_length = op.norm == Norm::length;
    const CarefulRow x{kDtype<T>, line.x, op.lines.step.x};
    const double unit = unit_for_row(x, n, by_length ? op.eps : std::sqrt(op.eps)), count = static_cast<double>(n);
    const auto at = [](const char* first, std::int64_t step, std::int64_t i) {
        return static_cast<double>(load_one(reinterpret_cast<const T*>(first + i * step)));
    };
    const auto element = [=, &x](std::int64_t i) { return at(x.first, x.step, i) * unit; };
    const auto slope = [=, &op](std::int64_t i) { return at(of_dy, op.dy.step.x, i) * static_cast<double>(weight[i]); };
    double mean = 0, square = 0, total = 0, along = 0;
    for (std::int64_t i = 0; i < n && centred; ++i) mean += element(i) / count;
    for (std::int64_t i = 0; i < n; ++i) square += (element(i) - mean) * (element(i) - mean);
    double root = std::sqrt(by_length ? square : square / count + op.eps * unit * unit);
    const bool is_least = by_length && root <= op.eps * unit;
    if (is_least) root = op.eps * unit;
    if (root == 0) root = 1;
    for (std::int64_t i = 0; i < n; ++i) {
        total += slope(i);
        along += slope(i) * ((element(i) - mean) / root);
    }
    if (is_least) along = 0;
    if (!by_length) along /= count;
    total = centred ? total / count : 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const double normal = (element(i) - mean) / root;
        double d = (slope(i) - total - normal * along) / root * unit;
        if (of_dsum) d += at(of_dsum, op.dsum.step.x, i);
        const double dyi = at(of_dy, op.dy.step.x, i);
        if (op.lines.y) store_one(reinterpret_cast<T*>(line.y + i * op.lines.step.y), static_cast<C>(d));
        if (of_weight) of_weight[i] += static_cast<C>(dyi * normal);
        if (of_bias) of_bias[i] += static_cast<C>(dyi);
    }
}

// ---- rows

template <class T>
struct VjpRow {
    const T *x, *dy, *dsum;
    T* dx;
};

// A row's factors: with x̂ = (x - mean) r, dx = (g - shift - (x - mean) · along) · r
template <class C>
struct Factors {
    C mean, r, shift, along;
};

// A row of dx, and what it adds to the sums for weight and bias
template <bool kStream, class T>
void write_row(std::int64_t n, const VjpRow<T>& row, const Compute<T>* weight, const Factors<Compute<T>>& factors,
               Compute<T>* of_weight, Compute<T>* of_bias) {
    using C = Compute<T>;
    const T *x = row.x, *dy = row.dy, *dsum = row.dsum;
    T* const dx = row.dx;
    const C mean = factors.mean, r = factors.r, shift = factors.shift, along = factors.along;
    const auto part = [=](std::int64_t i, std::int64_t k, auto put_k, auto add_k) {
        const Vec<C> d = load_some(dy + i, k), centred = load_some(x + i, k) - mean;
        if (dx) {
            Vec<C> v = (d * load_some(weight + i, k) - shift - centred * along) * r;
            if (dsum) v += load_some(dsum + i, k);
            put_k(dx + i, v, k);
        }
        if (of_weight) add_k(of_weight + i, d * (centred * r), k);
        if (of_bias) add_k(of_bias + i, d, k);
    };
    std::int64_t i = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>)
        part(
            i, kLanes<T>, [](T* to, Vec<C> v, std::int64_t) { put<kStream>(to, v); },
            [](C* sums, Vec<C> v, std::int64_t) { store(sums, load(sums) + v); });
    if (i < n)
        part(
            i, n - i, [](T* to, Vec<C> v, std::int64_t k) { store_part(to, v, k); },
            [](C* sums, Vec<C> v, std::int64_t k) { store_part(sums, load_part(sums, k) + v, k); });
}

template <bool kStream, class T>
void one_row(const NormVjp& op, std::int64_t index, const VjpRow<T>& row, const Compute<T>* weight,
             Compute<T>* of_weight, Compute<T>* of_bias) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const T *x = row.x, *dy = row.dy;
    const double count = static_cast<double>(n);
    C mean = 0;
    double square;  // of the divisor
    Two<C> sums;    // of g (x - mean), and of g where its mean is subtracted
    if (op.norm == Norm::deviation) {
        const Moments<C> m = moments(x, n);
        mean = m.mean;
        square = m.variance + op.eps;
        sums = two_sums<T>(n, [=](std::int64_t i, std::int64_t k) {
            const Vec<C> g = load_some(dy + i, k) * load_some(weight + i, k);
            return Two<Vec<C>>{g * (load_some(x + i, k) - mean), g};
        });
    } else {
        const Two<C> both = two_sums<T>(n, [=](std::int64_t i, std::int64_t k) {
            const Vec<C> a = load_some(x + i, k);
            return Two<Vec<C>>{a * a, load_some(dy + i, k) * load_some(weight + i, k) * a};
        });
        square = static_cast<double>(both.first);
        sums = {both.second, 0};
        if (op.norm == Norm::root_mean_square) square = square / count + op.eps;
    }
    if (!is_usual<C>(square) || (op.norm == Norm::length && square <= op.eps * op.eps))
        return careful_gradient<T>(op, index, weight, of_weight, of_bias);
    const double terms = op.norm == Norm::length ? 1 : count;
    const Factors<C> factors{mean, static_cast<C>(1 / std::sqrt(square)),
                             static_cast<C>(static_cast<double>(sums.second) / count),
                             static_cast<C>(static_cast<double>(sums.first) / square / terms)};
    write_row<kStream>(n, row, weight, factors, of_weight, of_bias);
}

// ---- several lines at once, a lane for each

// The first one's number, and where they are
struct SomeLines {
    std::int64_t first, count;
    Line at, dy, dsum;
};

template <class V>
struct LaneFactors {
    V mean{}, r, shift{}, along;
    decltype(V{} < V{}) is_usual;

    // The mean is known; `square` is that of the deviation, the mean square, or the sum of squares.
    void find(const NormVjp& op, V square, V of_products, V of_slopes) {
        using C = Element<V>;
        const C count = static_cast<C>(op.lines.length), eps = static_cast<C>(op.eps);
        const bool by_length = op.norm == Norm::length;
        if (!by_length) square += eps;
        is_usual = (square >= kLeastSquare<C>)&(square <= kLargestSquare<C>);
        if (by_length) is_usual &= square > V{} + eps * eps;
        r = is_usual ? 1 / square_root(square) : V{};
        along = of_products / square / (by_length ? C{1} : count);
        shift = of_slopes / count;
    }
    bool are_usual() const { return !any(~is_usual); }
    // What is added to sums: nothing in lanes that are computed again
    V counted(V v) const { return is_usual ? v : V{}; }
};

// Computes again those among lines whose squares were too large or too small.
template <class T, class V>
void mend(const NormVjp& op, const LaneFactors<V>& factors, std::int64_t first, std::int64_t count,
          const Compute<T>* weight, Compute<T>* of_weight, Compute<T>* of_bias) {
    if (__builtin_expect(factors.are_usual(), 1)) return;
    for (std::int64_t lane = 0; lane < std::min(count, kLanes<T>); ++lane)
        if (!factors.is_usual[lane]) careful_gradient<T>(op, first + lane, weight, of_weight, of_bias);
}

template <int kVectors, bool kNeighbours, class T, class C>
[[gnu::noinline]] void side_by_side(const NormVjp& op, const SomeLines& some, const C* weight, C* of_weight,
                                    C* of_bias) {
    using V = Vec<C>;
    using Some = Beside<kNeighbours, T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const Lines& lines = op.lines;
    const std::int64_t n = lines.length;
    const Some x{some.at.x, lines.step.x, lines.stride.x, some.count};
    const Some dx{some.at.y, lines.step.y, lines.stride.y, some.count};
    const Some dy{some.dy.x, op.dy.step.x, op.dy.stride.x, some.count};
    const Some dsum{some.dsum.x, op.dsum.step.x, op.dsum.stride.x, some.count};
    V mean[kVectors] = {}, square[kVectors], of_products[kVectors], of_slopes[kVectors] = {};
    if (op.norm == Norm::deviation) {
        moments_of_lines(n, x, mean, square);
        two_sums_of_lines(n, of_products, of_slopes, [&](std::int64_t i, int u) {
            const V g = dy.get(i, u * lanes) * weight[i];
            return Two<V>{g * (x.get(i, u * lanes) - mean[u]), g};
        });
    } else {
        two_sums_of_lines(n, square, of_products, [&](std::int64_t i, int u) {
            const V a = x.get(i, u * lanes);
            return Two<V>{a * a, dy.get(i, u * lanes) * weight[i] * a};
        });
        for (int u = 0; u < kVectors && op.norm != Norm::length; ++u) square[u] /= static_cast<C>(n);
    }
    LaneFactors<V> factors[kVectors];
    bool all_usual = true;
    for (int u = 0; u < kVectors; ++u) {
        factors[u].mean = mean[u];
        factors[u].find(op, square[u], of_products[u], of_slopes[u]);
        all_usual &= factors[u].are_usual();
    }
    for (std::int64_t i = 0; i < n; ++i) {
        V for_weight{}, for_bias{};
        for (int u = 0; u < kVectors; ++u) {
            const LaneFactors<V>& f = factors[u];
            const V d = dy.get(i, u * lanes), centred = x.get(i, u * lanes) - f.mean;
            if (dx.at) {
                V v = (d * weight[i] - f.shift - centred * f.along) * f.r;
                if (dsum.at) v += dsum.get(i, u * lanes);
                dx.put(i, u * lanes, v);
            }
            const V of_x = d * (centred * f.r);
            for_weight += all_usual ? of_x : f.counted(of_x);
            for_bias += all_usual ? d : f.counted(d);
        }
        if (of_weight) of_weight[i] += sum_of_lanes<C>(for_weight);
        if (of_bias) of_bias[i] += sum_of_lanes<C>(for_bias);
    }
    for (int u = 0; u < kVectors && !all_usual; ++u)
        mend<T>(op, factors[u], some.first + u * lanes, some.count - u * lanes, weight, of_weight, of_bias);
}

// As many short rows as a vector has lanes, or fewer, which are `stride` bytes apart; `end` as in norm_lines.h
template <class T>
struct ShortRows {
    std::int64_t first, count;
    const char *x, *dy, *dsum;
    char* dx;
    std::int64_t x_stride, dy_stride, dsum_stride, dx_stride;
    const char* end;
};

template <class T, class C>
[[gnu::noinline]] void short_rows(const NormVjp& op, const ShortRows<T>& rows, const C* weight, C* of_weight,
                                  C* of_bias) {
    using V = Vec<C>;
    constexpr std::int64_t lanes = kLanes<C>;
    const std::int64_t n = op.lines.length, count = rows.count, whole = n / lanes * lanes, rest = n - whole;
    const auto is_element = first_lanes_of<C>(rest);
    const auto x_of = [&](std::int64_t row) { return reinterpret_cast<const T*>(rows.x + row * rows.x_stride); };
    const auto dy_of = [&](std::int64_t row) { return reinterpret_cast<const T*>(rows.dy + row * rows.dy_stride); };
    // The sums of f(row, x, g) over rows, one in each lane; f returns two.
    C mean[lanes] = {};
    const auto sums_of = [&](auto f) {
        V firsts[lanes] = {}, seconds[lanes] = {};
        for (std::int64_t row = 0; row < count; ++row) {
            const T *x = x_of(row), *dy = dy_of(row);
            Two<V> total{};
            for (std::int64_t i = 0; i < n; i += lanes) {
                const std::int64_t k = std::min(lanes, n - i);
                const V a = load_some(x + i, k) - mean[row];
                const Two<V> found = f(i < whole || !is_centred(op) ? a : is_element ? a : V{}, dy + i, weight + i, k);
                total.first += found.first;
                total.second += found.second;
            }
            firsts[row] = total.first;
            seconds[row] = total.second;
        }
        const auto add = [](V a, V b) { return a + b; };
        return Two<V>{join_lanes<C>(firsts, add), join_lanes<C>(seconds, add)};
    };
    LaneFactors<V> factors;
    const auto slope = [](const T* dy, const C* w, std::int64_t k) { return load_some(dy, k) * load_some(w, k); };
    if (is_centred(op)) {
        // of the elements and, for later, of the slopes
        const Two<V> plain =
            sums_of([&](V x, const T* dy, const C* w, std::int64_t k) { return Two<V>{x, slope(dy, w, k)}; });
        const V about = plain.first / static_cast<C>(n);
        store(mean, about);
        const Two<V> squares = sums_of([](V x, const T*, const C*, std::int64_t) { return Two<V>{x, x * x}; });
        const V left = squares.first / static_cast<C>(n);
        factors.mean = about + left;
        store(mean, factors.mean);
        const Two<V> products =
            sums_of([&](V x, const T* dy, const C* w, std::int64_t k) { return Two<V>{x * slope(dy, w, k), V{}}; });
        factors.find(op, squares.second / static_cast<C>(n) - left * left, products.first, plain.second);
    } else {
        const Two<V> both =
            sums_of([&](V x, const T* dy, const C* w, std::int64_t k) { return Two<V>{x * x, x * slope(dy, w, k)}; });
        factors.find(op, op.norm == Norm::length ? both.first : both.first / static_cast<C>(n), both.second, V{});
    }
    const bool all_usual = factors.are_usual();
    C r[lanes], shift[lanes], along[lanes], counts[lanes];
    store(r, factors.r);
    store(shift, factors.shift);
    store(along, factors.along);
    store(counts, factors.counted(V{} + 1));
    for (std::int64_t i = 0; i < n; i += lanes) {
        const std::int64_t k = std::min(lanes, n - i);
        const V w = load_some(weight + i, k);
        V for_weight{}, for_bias{};
        for (std::int64_t row = 0; row < count; ++row) {
            const V d = load_some(dy_of(row) + i, k), centred = load_some(x_of(row) + i, k) - mean[row];
            if (rows.dx) {
                T* const dx = reinterpret_cast<T*>(rows.dx + row * rows.dx_stride) + i;
                V v = (d * w - shift[row] - centred * along[row]) * r[row];
                if (rows.dsum) v += load_some(reinterpret_cast<const T*>(rows.dsum + row * rows.dsum_stride) + i, k);
                if (k == lanes || (!whole && reinterpret_cast<const char*>(dx + lanes) <= rows.end))
                    store(dx, v);
                else
                    store_part(dx, v, k);
            }
            if (!all_usual && counts[row] == 0) continue;
            for_weight += d * (centred * r[row]);
            for_bias += d;
        }
        const auto add = [=](C* sums, V v) {
            if (!sums) return;
            if (k == lanes)
                store(sums + i, load(sums + i) + v);
            else
                store_part(sums + i, load_part(sums + i, k) + v, k);
        };
        add(of_weight, for_weight);
        add(of_bias, for_bias);
    }
    mend<T>(op, factors, rows.first, count, weight, of_weight, of_bias);
}

// ---- all lines

// The sums of blocks, a row of n for each, become one row.
template <class C>
void add_blocks(const C* sums, std::int64_t blocks, std::int64_t n, C* to) {
    const int threads = threads_for_rows(n, blocks * n * static_cast<std::int64_t>(sizeof(C)));
    over_shares(threads, n, 64, [=](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end; i += kLanes<C>) {
            const std::int64_t k = mine.end - i < kLanes<C> ? mine.end - i : kLanes<C>;
            Vec<C> sum{}, rest{};
            for (std::int64_t block = 0; block < blocks; ++block) {
                const Vec<C> v = load_some(sums + block * n + i, k), next = sum + v, added = next - sum;
                rest += (sum - (next - added)) + (v - added);
                sum = next;
            }
            const Vec<C> all = sum + rest;
            const Vec<C> found = all == all ? all : sum;  // the compensation of an infinity is NaN
            k == kLanes<C> ? store(to + i, found) : store_part(to + i, found, k);
        }
    });
}

// Writes sums of spans to a row of another type.
template <class C, class W>
void put_sums(const C* sums, std::int64_t n, std::int64_t span, W* to) {
    if (span == 1) return convert(sums, to, n);
    for (std::int64_t i = 0; i < n / span; ++i) {
        const C* from = sums + i * span;
        store_one(to + i,
                  sum_of_row<C>(span, [from](std::int64_t j, std::int64_t k) { return load_some(from + j, k); }));
    }
}

// The weights of all groups, each as often as neighbours share it
template <class C>
const C* widen_weights(const NormVjp& op, C* to) {
    const std::int64_t all = op.groups * op.lines.length;
    const C offset = static_cast<C>(op.weight ? op.weight_offset : 0);
    if (op.span == 1) return widened(op.weight, op.weight_dtype, C{1}, offset, to, all);
    if (!op.weight) return widened(op.weight, op.weight_dtype, C{1}, offset, to, all);
    const auto widen = [=, span = op.span](auto* from) {
        for (std::int64_t i = 0; i < all / span; ++i) std::fill_n(to + i * span, span, load_one(from + i) + offset);
    };
    if constexpr (is_same<C, double>)
        widen(reinterpret_cast<const double*>(op.weight));
    else
        for_narrow_dtype(op.weight_dtype, [&](auto w) { widen(reinterpret_cast<const decltype(w)*>(op.weight)); });
    return to;
}

// How lines are computed: one row after another, several short rows at once, or lines side by side. Elements of rows
// that are no neighbours are copied to where they are, which takes `room` bytes of each array.
template <class T>
struct Way {
    static constexpr std::int64_t item = sizeof(T);
    bool neighbours, of_rows, gathers, one_by_one;
    std::int64_t room;

    explicit Way(const NormVjp& op) {
        const Lines* const all[] = {&op.lines, &op.dy, op.dsum.x ? &op.dsum : &op.dy};
        neighbours = !op.lines.y || op.lines.stride.y == item;
        of_rows = (op.lines.y ? op.lines.step.y : op.lines.step.x) == item;
        bool are_rows = of_rows;
        for (const Lines* lines : all) {
            neighbours &= lines->stride.x == item;
            are_rows &= lines->step.x == item;
        }
        neighbours &= (!are_rows || op.lines.length == 1) && op.groups == 1 && op.span == 1;
        of_rows &= !neighbours;
        gathers = of_rows && !are_rows;
        one_by_one = of_rows && (op.lines.length > kFewElements<T> || op.groups > 1 || op.span > 1);
        room = gathers ? whole_lines(op.lines.length * item * (one_by_one ? 1 : kLanes<T>)) : 0;
    }
};

// Some lines of a block, from one on; returns how many.
template <class T, class C>
std::int64_t some_lines(const NormVjp& op, const Way<T>& way, std::int64_t first, std::int64_t end, const C* weight,
                        C* of_weight, C* of_bias, char* memory) {
    constexpr std::int64_t lanes = kLanes<T>, item = sizeof(T);
    const std::int64_t n = op.lines.length, most = way.one_by_one ? 1 : way.neighbours ? 4 * lanes : lanes;
    SomeLines some{first, 0, op.lines.line(first), op.dy.line(first), op.dsum.x ? op.dsum.line(first) : Line{}};
    std::int64_t beside = std::min({end - first, some.at.beside, some.dy.beside});
    if (op.dsum.x) beside = std::min(beside, some.dsum.beside);
    const std::int64_t count = some.count = std::min(most, beside);
    if (!op.lines.y) some.at.y = nullptr;
    if (!way.of_rows) {
        if (!way.neighbours)
            side_by_side<1, false, T>(op, some, weight, of_weight, of_bias);
        else if (count <= lanes)
            side_by_side<1, true, T>(op, some, weight, of_weight, of_bias);
        else if (count <= 2 * lanes)
            side_by_side<2, true, T>(op, some, weight, of_weight, of_bias);
        else
            side_by_side<4, true, T>(op, some, weight, of_weight, of_bias);
        return count;
    }
    ShortRows<T> rows{first,
                      count,
                      some.at.x,
                      some.dy.x,
                      some.dsum.x,
                      some.at.y,
                      op.lines.stride.x,
                      op.dy.stride.x,
                      op.dsum.stride.x,
                      op.lines.stride.y,
                      nullptr};
    const auto gather = [&](const char*& at, std::int64_t& stride, std::int64_t step, std::int64_t place) {
        if (!at || step == item) return;
        char* const to = memory + place * way.room;
        for (std::int64_t row = 0; row < count; ++row)
            gather_elements(reinterpret_cast<T*>(to) + row * n, at + row * stride, n, step);
        at = to;
        stride = n * item;
    };
    if (way.gathers) {
        gather(rows.x, rows.x_stride, op.lines.step.x, 0);
        gather(rows.dy, rows.dy_stride, op.dy.step.x, 1);
        gather(rows.dsum, rows.dsum_stride, op.dsum.step.x, 2);
    }
    if (!way.one_by_one) {
        if (rows.dx && op.lines.stride.y == n * item) rows.end = rows.dx + beside * n * item;
        short_rows(op, rows, weight, of_weight, of_bias);
        return count;
    }
    const VjpRow<T> row{reinterpret_cast<const T*>(rows.x), reinterpret_cast<const T*>(rows.dy),
                        reinterpret_cast<const T*>(rows.dsum), reinterpret_cast<T*>(rows.dx)};
    op.streaming ? one_row<true>(op, first, row, weight, of_weight, of_bias)
                 : one_row<false>(op, first, row, weight, of_weight, of_bias);
    return 1;
}

template <class T>
void every_line(const NormVjp& op) {
    using C = Compute<T>;
    const Way<T> way(op);
    const std::int64_t n = op.lines.length, all = op.groups * n, rows = op.lines.count / op.groups;
    const std::int64_t unit = way.neighbours ? 4 * kLanes<T> : kLeastRows;
    const std::int64_t of_block = std::clamp((rows / 64 + unit - 1) / unit * unit, unit, std::max(unit, kMostRows)),
                       blocks = (rows + of_block - 1) / of_block;
    // Of each block, and then of all
    const std::int64_t size = (blocks + 1) * all * static_cast<std::int64_t>(sizeof(C));
    const std::int64_t of_all = whole_lines(all * static_cast<std::int64_t>(sizeof(C)));
    const int threads = threads_for_rows(blocks * op.groups, 3 * rows * all * static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t of_sums = whole_lines((!!op.dweight + !!op.dbias) * size) + of_all;
    const Scratch scratch(of_sums + threads * 3 * way.room);
    const C* const weights = widen_weights(op, scratch.at<C>(0));
    C* const of_weights = op.dweight ? scratch.at<C>(of_all) : nullptr;
    C* const of_biases = op.dbias ? scratch.at<C>(of_all + (op.dweight ? size : 0)) : nullptr;
    over_shares(threads, blocks * op.groups, 1, [&](Share mine) {
        char* const memory = scratch.at<char>(of_sums + mine.member * 3 * way.room);
        for (std::int64_t item = mine.begin; item < mine.end; ++item) {
            const std::int64_t block = item / op.groups, group = item % op.groups;
            C* const of_weight = of_weights ? of_weights + block * all + group * n : nullptr;
            C* const of_bias = of_biases ? of_biases + block * all + group * n : nullptr;
            for (C* sum : {of_weight, of_bias})
                if (sum) std::fill_n(sum, n, C{});
            const std::int64_t end = std::min(rows, (block + 1) * of_block);
            for (std::int64_t row = block * of_block; row < end;)
                row += some_lines<T>(op, way, row * op.groups + group, end * op.groups, weights + group * n, of_weight,
                                     of_bias, memory);
        }
        if (op.streaming) stream_fence();
    });
    const auto finish = [&](C* sums, char* to, Dtype dtype) {
        C* const total = sums + blocks * all;
        add_blocks(sums, blocks, all, total);
        if constexpr (is_same<C, double>)
            put_sums(total, all, op.span, reinterpret_cast<double*>(to));
        else
            for_narrow_dtype(dtype, [&](auto w) { put_sums(total, all, op.span, reinterpret_cast<decltype(w)*>(to)); });
    };
    if (op.dweight) finish(of_weights, op.dweight, op.dweight_dtype);
    if (op.dbias) finish(of_biases, op.dbias, op.dbias_dtype);
}

}  // namespace

TENSOROPS_KERNEL(norm_vjp, NormVjp) {
    for_dtype(op.dtype, [&op](auto x) { every_line<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
