// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along rows.
//
// Work: rows go to threads in contiguous blocks. A row is read twice, for its moments and for the result; the second
//   time it comes from the first- or second-level cache, and the next row is fetched meanwhile. Moments are computed
//   about the mean of the row's first elements; if that is more than a standard deviation from the row's mean, they are
//   computed again about the mean of all.
// Precision: float64 in float64, everything else in float32, summed in blocks, so that the error does not grow with the
//   row. The mean of the differences corrects both moments. If the variance leaves the range in which float32 squares
//   neither overflow nor vanish, the row is computed again: see careful_row.h.
// Bytes: each element once in, once out, as in a copy.
#include "layer_norm.h"

#include <cmath>

#include "careful_row.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

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

// Sums of the differences from a value and of their squares
template <class C>
struct Sums {
    Vec<C> difference, square;
};

// Over the whole vectors from begin to end
template <class T>
inline Sums<Compute<T>> plain_sums(const T* x, std::int64_t begin, std::int64_t end, Compute<T> about) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>;
    Vec<C> d[4] = {}, s[4] = {};
    const auto take = [&](int j, std::int64_t at) {
        const Vec<C> a = load(x + at) - about;
        d[j] += a;
        s[j] += a * a;
    };
    std::int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes)
        for (int j = 0; j < 4; ++j) take(j, i + j * lanes);
    for (; i + lanes <= end; i += lanes) take(0, i);
    return {(d[0] + d[1]) + (d[2] + d[3]), (s[0] + s[1]) + (s[2] + s[3])};
}

// Mean and variance from the differences from a value: the nearer it is to the mean, the smaller the rounding error.
template <class T>
Moments<Compute<T>> moments_about(const T* x, std::int64_t n, Compute<T> about) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>, block = kAddedPlainly * 4 * lanes;
    C difference, square;
    if (n <= block) {
        const Sums<C> sums = plain_sums(x, 0, n, about);
        difference = sum_of_lanes<C>(sums.difference);
        square = sum_of_lanes<C>(sums.square);
    } else {
        Total<C> differences, squares;
        for (std::int64_t begin = 0; begin < n; begin += block) {
            const Sums<C> sums = plain_sums(x, begin, n - begin < block ? n : begin + block, about);
            differences.add(sums.difference);
            squares.add(sums.square);
        }
        difference = differences.value();
        square = squares.value();
    }
    for (std::int64_t i = n / lanes * lanes; i < n; ++i) {
        const C a = load_one(x + i) - about;
        difference += a;
        square += a * a;
    }
    const C count = static_cast<C>(n), left = difference / count;
    return {about + left, static_cast<double>(square / count) - static_cast<double>(left) * static_cast<double>(left)};
}

template <class T>
Moments<Compute<T>> moments(const T* x, std::int64_t n) {
    using C = Compute<T>;
    // About the mean of the first few elements, which is usually as good as the mean.
    if (constexpr std::int64_t few = 4 * kLanes<T>; n >= 4 * few) {
        const C about = mean(x, few);
        const Moments<C> m = moments_about(x, n, about);
        const double distance = static_cast<double>(m.mean) - static_cast<double>(about);
        if (distance * distance <= m.variance) return m;
    }
    return moments_about(x, n, mean(x, n));
}

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

template <bool kStream, class T, class W>
void one_row(const LayerNorm& op, std::int64_t index) {
    using C = Compute<T>;
    // Squares of float32 below 1e-38 vanish; they are negligible compared with a variance of 1e-30.
    constexpr double kSmall = sizeof(C) == 4 ? 1e-30 : 1e-290, kLarge = sizeof(C) == 4 ? 1e30 : 1e290;
    const std::int64_t n = op.x.length;
    const T* x = reinterpret_cast<const T*>(op.x.row(index));
    const T* next = reinterpret_cast<const T*>(op.x.row(index + 1 < op.x.count ? index + 1 : index));
    const W* weight = reinterpret_cast<const W*>(op.weight);
    const W* bias = reinterpret_cast<const W*>(op.bias);
    T* y = reinterpret_cast<T*>(op.y) + index * n;
    const Moments<C> m = moments(x, n);
    const double spread = m.variance + op.eps;
    if (!(spread >= kSmall && spread <= kLarge))
        return careful_row(x, weight, bias, y, n, op.eps, -0.0, true);  // -0 does not change any weight
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    if (weight && bias) return write_row<kStream, true, true>(x, next, weight, bias, y, n, m.mean, r);
    if (weight) return write_row<kStream, true, false>(x, next, weight, bias, y, n, m.mean, r);
    if (bias) return write_row<kStream, false, true>(x, next, weight, bias, y, n, m.mean, r);
    write_row<kStream, false, false>(x, next, weight, bias, y, n, m.mean, r);
}

}  // namespace

void layer_norm(const LayerNorm& op) {
    for_dtypes(op.x_dtype, op.parameter_dtype, [&op](auto x, auto parameter) {
        const std::int64_t bytes = op.x.count * op.x.length * static_cast<std::int64_t>(sizeof x);
        over_rows(op.x.count, 2 * bytes, op.streaming, [&op](auto streaming, std::int64_t i) {
            one_row<streaming, decltype(x), decltype(parameter)>(op, i);
        });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
