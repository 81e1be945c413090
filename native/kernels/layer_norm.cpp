// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along rows; add_layer_norm adds a residual to x
// first.
//
// Work: rows go to threads in contiguous blocks. A row is read twice, for its moments and for the result; the second
//   time it comes from the first- or second-level cache, and the next row is fetched meanwhile. Moments are computed
//   about the mean of the row's first elements; if that is more than a standard deviation from the row's mean, they are
//   computed again about the mean of all. A sum with a residual is written first, and then read from a cache.
// Precision: float64 in float64, everything else in float32, summed in blocks, so that the error does not grow with the
//   row. The mean of the differences corrects both moments. If the variance leaves the range in which float32 squares
//   neither overflow nor vanish, the row is computed again: see careful_row.h.
// Bytes: each element once in, once out, as in a copy.
#include "layer_norm.h"

#include <cmath>

#include "careful_row.h"
#include "moments.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <bool kStream, class T, class W>
void one_row(const LayerNorm& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length;
    const T* x = reinterpret_cast<const T*>(op.x.row(index));
    const T* next = reinterpret_cast<const T*>(op.x.row(index + 1 < op.x.count ? index + 1 : index));
    if (op.sum) {
        const T* residual = reinterpret_cast<const T*>(op.residual.row(index));
        T* const sum = reinterpret_cast<T*>(op.sum) + index * n;
        put_row<false>(
            sum, n, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) + load_some(residual + i, k); });
        x = sum;
    }
    const W* weight = reinterpret_cast<const W*>(op.weight);
    const W* bias = reinterpret_cast<const W*>(op.bias);
    T* y = reinterpret_cast<T*>(op.y) + index * n;
    const Moments<C> m = moments(x, n);
    const double spread = m.variance + op.eps;
    if (!is_usual<C>(spread))
        return careful_row(op.x_dtype, reinterpret_cast<const char*>(x), op.parameter_dtype, op.weight, op.bias,
                           reinterpret_cast<char*>(y), n, op.eps, -0.0,  // -0 does not change any weight
                           Divisor::deviation);
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    if (weight && bias) return write_row<kStream, true, true>(x, next, weight, bias, y, n, m.mean, r);
    if (weight) return write_row<kStream, true, false>(x, next, weight, bias, y, n, m.mean, r);
    if (bias) return write_row<kStream, false, true>(x, next, weight, bias, y, n, m.mean, r);
    write_row<kStream, false, false>(x, next, weight, bias, y, n, m.mean, r);
}

}  // namespace

TENSOROPS_KERNEL(layer_norm, LayerNorm) {
    for_dtypes(op.x_dtype, op.parameter_dtype, [&op](auto x, auto parameter) {
        const std::int64_t bytes = op.x.count * op.x.length * static_cast<std::int64_t>(sizeof x);
        over_rows(op.x.count, (op.sum ? 4 : 2) * bytes, op.streaming, [&op](auto streaming, std::int64_t i) {
            one_row<streaming, decltype(x), decltype(parameter)>(op, i);
        });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
