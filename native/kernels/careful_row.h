// A row of a norm whose squares leave the range of the type of computation: scaled by a power of two, in double
// precision. Exact for any finite input, with IEEE results for the others.
#pragma once

#include <cmath>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// What the elements of a row are divided by: the deviation from their mean, which is subtracted first, or the root of
// their mean square, both with eps below the root; or their Euclidean length, but at least by eps.
enum class Divisor { deviation, root_mean_square, length };

// Whether the square of a divisor says that no square was too large or too small. Squares of float32 below 1e-38
// vanish; they are negligible compared with a mean of 1e-30.
template <class C>
bool is_usual(double square) {
    return square >= (sizeof(C) == 4 ? 1e-30 : 1e-290) && square <= (sizeof(C) == 4 ? 1e30 : 1e290);
}

// A power of two that scales the elements of a row and the least divisor so that neither is large and one is not small.
template <class T>
double unit_for_row(const T* x, std::int64_t n, double least) {
    double largest = least;
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

// y = (x - mean) / divisor · (weight + offset) + bias, where the mean is 0 unless the divisor is a deviation, and
// weight and bias may be nullptr; `span` neighbours share one element of them. Not inlined, because few rows need it.
template <class T, class W>
[[gnu::noinline]] void careful_row(const T* x, const W* weight, const W* bias, T* y, std::int64_t n, double eps,
                                   double offset, Divisor divisor, std::int64_t span = 1) {
    const bool centred = divisor == Divisor::deviation, length = divisor == Divisor::length;
    const double unit = unit_for_row(x, n, length ? eps : std::sqrt(eps)), count = static_cast<double>(n);
    const auto scaled = [x, unit](std::int64_t i, std::int64_t k) { return doubles_of(x + i, k) * unit; };
    const double mean = centred ? sum_of_row<double>(n, scaled) / count : 0;
    const double square = sum_of_row<double>(n, [=](std::int64_t i, std::int64_t k) {
        Vec<double> a = scaled(i, k) - mean;
        for (std::int64_t j = k; j < kLanes<double>; ++j) a[j] = 0;
        return a * a;
    });
    double root = std::sqrt(length ? square : square / count + eps * unit * unit);
    if (length && root < eps * unit) root = eps * unit;
    // If eps underflowed and all elements are zero: 0 divided by anything. Rows of length 0 are always 0.
    if (root == 0 && (length || eps > 0)) root = 1;
    for (std::int64_t i = 0, of_span = 0; i < n; ++i) {
        double a = (static_cast<double>(load_one(x + i)) * unit - mean) / root;
        if (weight) a *= static_cast<double>(load_one(weight)) + offset;
        if (bias) a += static_cast<double>(load_one(bias));
        store_one(y + i, static_cast<Compute<T>>(a));
        if (++of_span < span) continue;
        of_span = 0;
        if (weight) ++weight;
        if (bias) ++bias;
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
