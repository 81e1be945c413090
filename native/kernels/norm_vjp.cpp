// With g = dy · weight and x̂ = x / d for the divisor d of a row, whose mean is subtracted from x first by layer_norm:
//   dx = (g - x̂ mean(g x̂)) / d           rms_norm
//   dx = (g - mean(g) - x̂ mean(g x̂)) / d layer_norm
//   dx = (g - x̂ sum(g x̂)) / d            l2_norm; without the sum where eps is the divisor
//   dweight = sum(dy x̂), dbias = sum(dy)  over rows
//
// Work: a thread takes blocks of rows. A row is read for its divisor and the means, and for the results, all at once;
//   after the first time it comes from the first- or second-level cache. Each block has sums of its own for weight and
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
#include "convert.h"
#include "moments.h"
#include "over_rows.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kLeastRows = 16, kMostRows = 256;  // of a block

// In double, in a unit in which no square overflows or vanishes
template <class T>
[[gnu::noinline]] void careful_gradient(const NormVjp& op, const T* x, const T* dy, const T* dsum, T* dx,
                                        const Compute<T>* weight, Compute<T>* of_weight, Compute<T>* of_bias) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length;
    const bool centred = op.norm == Norm::deviation, by_length = op.norm == Norm::length;
    const double unit = unit_for_row(careful(kDtype<T>, reinterpret_cast<const char*>(x)), n,
                                     by_length ? op.eps : std::sqrt(op.eps)),
                 count = static_cast<double>(n);
    const auto element = [=](std::int64_t i) { return static_cast<double>(load_one(x + i)) * unit; };
    const auto slope = [=](std::int64_t i) {
        return static_cast<double>(load_one(dy + i)) * static_cast<double>(weight[i]);
    };
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
        if (dsum) d += static_cast<double>(load_one(dsum + i));
        const double dyi = static_cast<double>(load_one(dy + i));
        if (op.dx) store_one(dx + i, static_cast<C>(d));
        if (of_weight) of_weight[i] += static_cast<C>(dyi * normal);
        if (of_bias) of_bias[i] += static_cast<C>(dyi);
    }
}

// A row's factors: with x̂ = (x - mean) r, dx = (g - shift - (x - mean) · along) · r
template <class C>
struct Factors {
    C mean, r, shift, along;
};

// A row of dx, and what it adds to the sums for weight and bias
template <bool kStream, class T>
void write_row(const NormVjp& op, const T* x, const T* dy, const T* dsum, T* dx, const Compute<T>* weight,
               const Factors<Compute<T>>& factors, Compute<T>* of_weight, Compute<T>* of_bias) {
    using C = Compute<T>;
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
    const std::int64_t n = op.x.length;
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
void one_row(const NormVjp& op, std::int64_t index, const Compute<T>* weights, Compute<T>* of_weight,
             Compute<T>* of_bias) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length;
    const T *x = reinterpret_cast<const T*>(op.x.row(index)), *dy = reinterpret_cast<const T*>(op.dy.row(index));
    const T* dsum = op.dsum.data ? reinterpret_cast<const T*>(op.dsum.row(index)) : nullptr;
    const C* weight = weights + index % op.groups * n;
    T* dx = op.dx ? reinterpret_cast<T*>(op.dx) + index * n : nullptr;
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
        return careful_gradient(op, x, dy, dsum, dx, weight, of_weight, of_bias);
    const double terms = op.norm == Norm::length ? 1 : count;
    const Factors<C> factors{mean, static_cast<C>(1 / std::sqrt(square)),
                             static_cast<C>(static_cast<double>(sums.second) / count),
                             static_cast<C>(static_cast<double>(sums.first) / square / terms)};
    write_row<kStream>(op, x, dy, dsum, dx, weight, factors, of_weight, of_bias);
}

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
void widen_weights(const NormVjp& op, C* to) {
    const std::int64_t all = op.groups * op.x.length;
    if (!op.weight) return std::fill_n(to, all, C{1}), void();
    const C offset = static_cast<C>(op.weight_offset);
    const auto widen = [=, span = op.span](auto* from) {
        if (span == 1)
            return put_row<false>(to, all,
                                  [=](std::int64_t i, std::int64_t k) { return load_some(from + i, k) + offset; });
        for (std::int64_t i = 0; i < all / span; ++i) std::fill_n(to + i * span, span, load_one(from + i) + offset);
    };
    if constexpr (is_same<C, double>)
        widen(reinterpret_cast<const double*>(op.weight));
    else
        for_narrow_dtype(op.weight_dtype, [&](auto w) { widen(reinterpret_cast<const decltype(w)*>(op.weight)); });
}

template <class T>
void every_row(const NormVjp& op) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length, all = op.groups * n, rows = op.x.count / op.groups;
    const std::int64_t of_block = std::clamp(rows / 64, kLeastRows, kMostRows),
                       blocks = (rows + of_block - 1) / of_block;
    // Of each block, and then of all
    const std::int64_t size = (blocks + 1) * all * static_cast<std::int64_t>(sizeof(C));
    const std::int64_t of_all = all * static_cast<std::int64_t>(sizeof(C));
    const Scratch scratch((!!op.dweight + !!op.dbias) * size + of_all);
    C* const weights = scratch.at<C>(0);
    widen_weights(op, weights);
    C* const of_weights = op.dweight ? scratch.at<C>(of_all) : nullptr;
    C* const of_biases = op.dbias ? scratch.at<C>(of_all + (op.dweight ? size : 0)) : nullptr;
    const int threads = threads_for_rows(blocks * op.groups, 3 * rows * all * static_cast<std::int64_t>(sizeof(T)));
    over_shares(threads, blocks * op.groups, 1, [&](Share mine) {
        for (std::int64_t item = mine.begin; item < mine.end; ++item) {
            const std::int64_t block = item / op.groups, group = item % op.groups;
            C* const of_weight = of_weights ? of_weights + block * all + group * n : nullptr;
            C* const of_bias = of_biases ? of_biases + block * all + group * n : nullptr;
            for (C* sum : {of_weight, of_bias})
                if (sum) std::fill_n(sum, n, C{});
            const std::int64_t end = std::min(rows, (block + 1) * of_block);
            for (std::int64_t row = block * of_block; row < end; ++row) {
                const std::int64_t index = row * op.groups + group;
                op.streaming ? one_row<true, T>(op, index, weights, of_weight, of_bias)
                             : one_row<false, T>(op, index, weights, of_weight, of_bias);
            }
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
    for_dtype(op.dtype, [&op](auto x) { every_row<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
