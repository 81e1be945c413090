// Mean and variance of rows and lines, and a row with both taken out: what layer_norm and group_norm share.
#pragma once

#include <cmath>

#include "beside.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // functions of one source each, which compilers inline more readily

template <class C>
struct Moments {
    C mean;
    double variance;
};

template <class T>
Compute<T> mean(const T* x, std::int64_t n) {
    return sum_of_row<T>(n, [x](std::int64_t i, std::int64_t k) { return load_some(x + i, k); }) /
           static_cast<Compute<T>>(n);
}

// Sums over a row of the differences from a value and of their squares
template <class C>
struct RowSums {
    C difference, square;
};

template <class T>
inline __attribute__((always_inline)) RowSums<Compute<T>> row_sums(const T* x, std::int64_t n, Compute<T> about) {
    using C = Compute<T>;
    const std::int64_t whole = n / kLanes<T> * kLanes<T>;
    const Two<C> sums = two_sums<T>(whole, [=](std::int64_t i, std::int64_t) {
        const Vec<C> a = load(x + i) - about;
        return Two<Vec<C>>{a, a * a};
    });
    C difference = sums.first, square = sums.second;
    if constexpr (sizeof(T) == 2) {  // reading an element alone takes as long as reading a vector
        if (whole < n) {
            C rest[kLanes<T>];
            store(rest, load_part(x + whole, n - whole) - about);
            for (std::int64_t j = 0; j < n - whole; ++j) {
                difference += rest[j];
                square += rest[j] * rest[j];
            }
        }
        return {difference, square};
    }
    for (std::int64_t i = whole; i < n; ++i) {
        const C a = load_one(x + i) - about;
        difference += a;
        square += a * a;
    }
    return {difference, square};
}

// Mean and variance from the differences from a value: the nearer it is to the mean, the smaller the rounding error.
template <class T>
Moments<Compute<T>> moments_about(const T* x, std::int64_t n, Compute<T> about) {
    using C = Compute<T>;
    const RowSums<C> sums = row_sums(x, n, about);
    const C count = static_cast<C>(n), left = sums.difference / count;
    return {about + left,
            static_cast<double>(sums.square / count) - static_cast<double>(left) * static_cast<double>(left)};
}

// Whether moments about a value are as good as those about the mean
template <class C>
inline bool is_good(const Moments<C>& m, C about) {
    const double distance = static_cast<double>(m.mean) - static_cast<double>(about);
    return distance * distance <= m.variance;
}

// From rows of four times as many elements on, their first ones have a mean that is usually as good as that of all.
template <class T>
constexpr std::int64_t kFirst = 4 * kLanes<T>;

template <class T>
Moments<Compute<T>> moments(const T* x, std::int64_t n) {
    using C = Compute<T>;
    if (n >= 4 * kFirst<T>) {
        const C about = mean(x, kFirst<T>);
        const Moments<C> m = moments_about(x, n, about);
        if (is_good(m, about)) return m;
    }
    return moments_about(x, n, mean(x, n));
}

// ---- lines side by side

// Mean and variance about the mean of the first elements, or, in lanes where that is far from the mean, about that
template <int kVectors, class Side, class V>
inline __attribute__((always_inline)) void moments_of_lines(std::int64_t n, const Side& x, V (&mean)[kVectors],
                                                            V (&variance)[kVectors]) {
    using C = Element<V>;
    constexpr std::int64_t lanes = kLanes<C>, first = 16;
    const C count = static_cast<C>(n);
    V about[kVectors];
    sums_of_lines(std::min(n, first), about, [&](std::int64_t i, int u) { return x.get(i, u * lanes); });
    for (int u = 0; u < kVectors; ++u) about[u] /= static_cast<C>(std::min(n, first));
    decltype(V{} < V{}) is_settled[kVectors] = {};
    for (int pass = 0; pass < 2; ++pass) {
        V difference[kVectors], square[kVectors];
        two_sums_of_lines(n, difference, square, [&](std::int64_t i, int u) {
            const V a = x.get(i, u * lanes) - about[u];
            return Two<V>{a, a * a};
        });
        bool all_settled = true;
        for (int u = 0; u < kVectors; ++u) {
            const V left = difference[u] / count, found = square[u] / count - left * left, center = about[u] + left;
            mean[u] = is_settled[u] ? mean[u] : center;
            variance[u] = is_settled[u] ? variance[u] : found;
            is_settled[u] = left * left <= found;
            all_settled &= !any(~is_settled[u]);
            about[u] = center;
        }
        if (__builtin_expect(all_settled, 1)) return;
    }
}

// ---- results

// The results of a row, while the next one is fetched
template <bool kStream, bool kWeight, bool kBias, class T, class W>
void write_row(const T* x, const T* next, const W* weight, const W* bias, T* y, std::int64_t n, Compute<T> mean,
               Compute<T> r) {
    using C = Compute<T>;
    put_row<kStream>(y, n, next, [=](std::int64_t i, std::int64_t k) {
        Vec<C> v = (load_some(x + i, k) - mean) * r;
        if constexpr (kWeight) v *= load_some(weight + i, k);
        if constexpr (kBias) v += load_some(bias + i, k);
        return v;
    });
}

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
