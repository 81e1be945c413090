// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset), along rows; add_rms_norm adds a residual to x first.
//
// Work: rows go to threads in contiguous blocks. A row is read twice, first for the sum, then for the result; the
// second
//   time it comes from the first- or second-level cache (16 KiB for 4096 floats).
// Precision: float64 in float64, everything else in float32, summed in four vectors of partial sums. If the mean
//   square leaves the range in which float32 squares neither overflow nor vanish, the row is done again
//   with a scaled sum in double precision: exact for any finite input, IEEE for the others.
// Bytes: each element once in, once out, which is a copy's. The benchmark's rows `copy` and `numpy/cpu` show what
//   fraction of a copy's speed is reached: asv run --bench Normalization
#include "rms_norm.h"

#include <cmath>

#include "parallel.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T>
Compute<T> mean_square(const T* x, std::int64_t n) {
    const auto square = [x](std::int64_t i, std::int64_t k) {
        const auto a = load_some(x + i, k);
        return a * a;
    };
    return sum_of_row<T>(n, square) / static_cast<Compute<T>>(n);
}

// The row again, where squares leave the range: scaled by a power of two, summed and multiplied in double.
template <class T, class W>
void careful_row(const T* x, const W* weight, T* y, std::int64_t n, double eps, double offset) {
    double largest = std::sqrt(eps);
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) {
        const double a = std::fabs(static_cast<double>(load_one(x + i)));
        finite = finite && std::isfinite(a);
        if (a > largest) largest = a;
    }
    int exponent = finite && largest > 0 ? std::ilogb(largest) : 0;
    if (exponent > 1021) exponent = 1021;  // 2^-exponent stays a normal number
    if (exponent < -1021) exponent = -1021;
    const double unit = std::ldexp(1.0, -exponent);
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const double a = static_cast<double>(load_one(x + i)) * unit;
        sum += a * a;
    }
    const double root = std::sqrt(sum / static_cast<double>(n) + eps * unit * unit);
    for (std::int64_t i = 0; i < n; ++i) {
        double a = static_cast<double>(load_one(x + i)) * unit / root;
        if (weight) a *= static_cast<double>(load_one(weight + i)) + offset;
        store_one(y + i, static_cast<Compute<T>>(a));
    }
}

template <bool kStream, class T, class W>
void scale_row(const T* x, const W* weight, T* y, std::int64_t n, Compute<T> r, Compute<T> offset) {
    if (weight)
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) {
            return load_some(x + i, k) * r * (load_some(weight + i, k) + offset);
        });
    else
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) * r; });
}

template <class T, class W>
void one_row(const RmsNorm& op, std::int64_t index) {
    using C = Compute<T>;
    // Squares of float32 below 1e-38 vanish; they do not matter beside a mean of 1e-30.
    constexpr double kSmall = sizeof(C) == 4 ? 1e-30 : 1e-290, kLarge = sizeof(C) == 4 ? 1e30 : 1e290;
    const std::int64_t n = op.x.length;
    const T* x = reinterpret_cast<const T*>(op.x.row(index));
    const W* weight = reinterpret_cast<const W*>(op.weight);
    T* y = reinterpret_cast<T*>(op.y) + index * n;
    if (op.sum) {
        T* sum = reinterpret_cast<T*>(op.sum) + index * n;
        const T* residual = reinterpret_cast<const T*>(op.residual.row(index));
        put_row<false>(
            sum, n, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) + load_some(residual + i, k); });
        x = sum;  // rounded, as the caller sees it
    }
    const double mean = static_cast<double>(mean_square(x, n)) + op.eps;
    if (!(mean >= kSmall && mean <= kLarge)) {
        careful_row(x, weight, y, n, op.eps, op.weight_offset);
        return;
    }
    const C r = static_cast<C>(1.0 / std::sqrt(mean));
    const C offset = static_cast<C>(op.weight_offset);
    if (op.streaming)
        scale_row<true>(x, weight, y, n, r, offset);
    else
        scale_row<false>(x, weight, y, n, r, offset);
}

template <class T, class W>
void all_rows(const RmsNorm& op) {
    const std::int64_t rows = op.x.count;
    const int threads = threads_for(rows, (op.sum ? 4 : 2) * rows * op.x.length * static_cast<std::int64_t>(sizeof(T)));
    if (threads == 1) {
        for (std::int64_t i = 0; i < rows; ++i) one_row<T, W>(op, i);
        if (op.streaming) stream_fence();
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < rows; ++i) one_row<T, W>(op, i);
        if (op.streaming) stream_fence();
    }
}

}  // namespace

void rms_norm(const RmsNorm& op) {
    const bool float_weight = op.weight_dtype == Dtype::float32;
    switch (op.x_dtype) {
        case Dtype::float64:
            return all_rows<double, double>(op);
        case Dtype::float32:
            return all_rows<float, float>(op);
        case Dtype::float16:
            return float_weight ? all_rows<Float16, float>(op) : all_rows<Float16, Float16>(op);
        case Dtype::bfloat16:
            return float_weight ? all_rows<BFloat16, float>(op) : all_rows<BFloat16, BFloat16>(op);
        case Dtype::other:
            return;  // the binding has refused it
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
