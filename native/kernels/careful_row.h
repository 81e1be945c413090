// A row of a norm whose squares leave the range of the type of computation: scaled by a power of two, in double
// precision. Exact for any finite input, with IEEE results for the others.
#pragma once

#include <cmath>

#include "line_norm.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// Where the square of a divisor says that no square was too large or too small. Squares of float32 below 1e-38 vanish;
// they are negligible compared with a mean of 1e-30.
template <class C>
inline constexpr C kLeastSquare = static_cast<C>(sizeof(C) == 4 ? 1e-30 : 1e-290);
template <class C>
inline constexpr C kLargestSquare = static_cast<C>(sizeof(C) == 4 ? 1e30 : 1e290);
template <class C>
bool is_usual(double square) {
    return square >= static_cast<double>(kLeastSquare<C>) && square <= static_cast<double>(kLargestSquare<C>);
}

// A row of some dtype, whose elements are `step` bytes apart
struct CarefulRow {
    Dtype dtype;
    const char* first;
    std::int64_t step;
};
inline CarefulRow careful(Dtype dtype, const char* first) { return {dtype, first, size_of(dtype)}; }

// n elements from i on as double. Not inlined, as nothing here is: few rows need it.
[[gnu::noinline]] inline void widen_to_doubles(const CarefulRow& row, std::int64_t i, double* to, std::int64_t n) {
    for_dtype(row.dtype, [=, &row](auto element) {
        const char* p = row.first + i * row.step;
        for (std::int64_t j = 0; j < n; ++j) {
            TENSOROPS_ONE_BY_ONE(j);
            to[j] = static_cast<double>(load_one(reinterpret_cast<const decltype(element)*>(p + j * row.step)));
        }
    });
}

// Up to a vector of a row: k elements from i on, the others 0
[[gnu::noinline]] inline Vec<double> doubles_of_row(const CarefulRow& row, std::int64_t i, std::int64_t k) {
    double some[kLanes<double>] = {};
    widen_to_doubles(row, i, some, k);
    return load(some);
}

inline constexpr std::int64_t kSome = 64;  // elements that are converted at a time

// A power of two that scales the elements of a row and the least divisor so that neither is large and one is not small.
inline double unit_for_row(const CarefulRow& x, std::int64_t n, double least) {
    double largest = least, some[kSome];
    for (std::int64_t i = 0; i < n; i += kSome) {
        const std::int64_t count = n - i < kSome ? n - i : kSome;
        widen_to_doubles(x, i, some, count);
        for (std::int64_t j = 0; j < count; ++j) {
            TENSOROPS_ONE_BY_ONE(j);
            const double a = std::fabs(some[j]);
            if (!std::isfinite(a)) return 1;
            if (a > largest) largest = a;
        }
    }
    int exponent = largest > 0 ? std::ilogb(largest) : 0;
    if (exponent > 1021) exponent = 1021;  // 2^-exponent stays a normal number
    if (exponent < -1021) exponent = -1021;
    return std::ldexp(1.0, -exponent);
}

// y = (x - mean) / divisor · (weight + offset) + bias, where the mean is 0 unless the divisor is a deviation, and
// weight and bias may be nullptr; `span` neighbours share one element of them. One function for all dtypes.
[[gnu::noinline]] inline void careful_row(const CarefulRow& x, Dtype parameter_dtype, const char* weight,
                                          const char* bias, char* y, std::int64_t y_step, std::int64_t n, double eps,
                                          double offset, Norm norm, std::int64_t span = 1) {
    const bool centred = norm == Norm::deviation, length = norm == Norm::length;
    const double unit = unit_for_row(x, n, length ? eps : std::sqrt(eps)), count = static_cast<double>(n);
    const auto scaled = [=, &x](std::int64_t i, std::int64_t k) { return doubles_of_row(x, i, k) * unit; };
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
    double a[kSome], w[kSome], b[kSome];
    for (std::int64_t i = 0; i < n; i += kSome) {
        const std::int64_t some = n - i < kSome ? n - i : kSome;
        const auto parameters = [=](const char* of_channels, double* to) {
            const auto widen = [=](std::int64_t channel, double* first, std::int64_t channels) {
                widen_to_doubles(careful(parameter_dtype, of_channels), channel, first, channels);
            };
            if (span == 1) return widen(i, to, some);
            for (std::int64_t j = 0; j < some; ++j)
                if (j > 0 && (i + j) % span != 0)
                    to[j] = to[j - 1];
                else
                    widen((i + j) / span, to + j, 1);
        };
        widen_to_doubles(x, i, a, some);
        if (weight) parameters(weight, w);
        if (bias) parameters(bias, b);
        const auto each = [&](auto f) {  // one after another, so that no product is fused with a sum
            for (std::int64_t j = 0; j < some; ++j) {
                TENSOROPS_ONE_BY_ONE(j);
                a[j] = f(j);
            }
        };
        each([&](std::int64_t j) { return (a[j] * unit - mean) / root; });
        if (weight) each([&](std::int64_t j) { return a[j] * (w[j] + offset); });
        if (bias) each([&](std::int64_t j) { return a[j] + b[j]; });
        for_dtype(x.dtype, [&](auto element) {
            using T = decltype(element);
            for (std::int64_t j = 0; j < some; ++j) {
                TENSOROPS_ONE_BY_ONE(j);
                store_one(reinterpret_cast<T*>(y + (i + j) * y_step), static_cast<Compute<T>>(a[j]));
            }
        });
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
