// A row of a norm whose squares leave the range of the type of computation: scaled by a power of two, in double
// precision. Exact for any finite input, with IEEE results for the others.
#pragma once

#include <cmath>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// A power of two that scales the elements of a row and the root of eps so that neither is large and one is not small.
template <class T>
double unit_for_row(const T* x, std::int64_t n, double eps) {
    double largest = std::sqrt(eps);
    for (std::int64_t i = 0; i < n; ++i) {
        const double a = std::fabs(static_cast<double>(load_one(x + i)));
        if (!std::isfinite(a)) return 1;
        if (a > largest) largest = a;
    }
    int exponent = largest > 0 ? std::ilogb(largest) : 0;
    if (exponent > 1021) exponent = 1021;  // 2^-exponent stays a normal number
    if (exponent < -1021) exponent = -1021;
    return std::ldexp(1.0, -exponent);
}

// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · (weight + offset) + bias, where the mean is 0 unless the row is
// centred, and weight and bias may be nullptr. Not inlined, because few rows need it.
template <class T, class W>
[[gnu::noinline]] void careful_row(const T* x, const W* weight, const W* bias, T* y, std::int64_t n, double eps,
                                   double offset, bool centred) {
    const double unit = unit_for_row(x, n, eps), count = static_cast<double>(n);
    const auto scaled = [x, unit](std::int64_t i, std::int64_t k) { return doubles_of(x + i, k) * unit; };
    const double mean = centred ? sum_of_row<double>(n, scaled) / count : 0;
    const double square = sum_of_row<double>(n, [=](std::int64_t i, std::int64_t k) {
        Vec<double> a = scaled(i, k) - mean;
        for (std::int64_t j = k; j < kLanes<double>; ++j) a[j] = 0;
        return a * a;
    });
    const double square_and_eps = square / count + eps * unit * unit;
    // If eps underflowed and all elements are zero: 0 divided by anything
    const double root = eps > 0 && square_and_eps == 0 ? 1 : std::sqrt(square_and_eps);
    for (std::int64_t i = 0; i < n; ++i) {
        double a = (static_cast<double>(load_one(x + i)) * unit - mean) / root;
        if (weight) a *= static_cast<double>(load_one(weight + i)) + offset;
        if (bias) a += static_cast<double>(load_one(bias + i));
        store_one(y + i, static_cast<Compute<T>>(a));
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
