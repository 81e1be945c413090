// Mean and variance of a row, and the row with both taken out: what layer_norm and group_norm share.
#pragma once

#include <cmath>

#include "simd.h"

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
