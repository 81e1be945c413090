// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along lines; add_layer_norm adds a residual to x
// first.
//
// Work: lines go to threads in contiguous blocks. A row is read twice, for its moments and for the result; the second
//   time it comes from the first- or second-level cache, and the next row is fetched meanwhile. Moments are computed
//   about the mean of the row's first elements; if that is more than a standard deviation from the row's mean, they are
//   computed again about the mean of all. A sum with a residual is written first, and then read from a cache. Lines
//   that are no long rows: see norm_lines.h.
// Precision: float64 in float64, everything else in float32, summed in blocks, so that the error does not grow with the
//   row. The mean of the differences corrects both moments. If the variance leaves the range in which float32 squares
//   neither overflow nor vanish, the row is computed again: see careful_row.h.
// Bytes: each element once in, once out, as in a copy.
#include <cmath>

#include "line_norm.h"
#include "moments.h"
#include "norm_lines.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <bool kStream, class W, class T>
void one_row(const LineNorm& op, std::int64_t index, const NormRow<T>& row) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const T *x = row.x, *next = row.next;
    if (row.sum) {
        const T* residual = row.residual;
        put_row<false>(row.sum, n, [=](std::int64_t i, std::int64_t k) {
            return load_some(x + i, k) + load_some(residual + i, k);
        });
        x = row.sum;
    }
    const W* weight = reinterpret_cast<const W*>(op.weight);
    const W* bias = reinterpret_cast<const W*>(op.bias);
    T* y = row.y;
    const Moments<C> m = moments(x, n);
    const double spread = m.variance + op.eps;
    if (!is_usual<C>(spread)) return careful_line(op, index);
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    if (weight && bias) return write_row<kStream, true, true>(x, next, weight, bias, y, n, m.mean, r);
    if (weight) return write_row<kStream, true, false>(x, next, weight, bias, y, n, m.mean, r);
    if (bias) return write_row<kStream, false, true>(x, next, weight, bias, y, n, m.mean, r);
    write_row<kStream, false, false>(x, next, weight, bias, y, n, m.mean, r);
}

}  // namespace

TENSOROPS_KERNEL(layer_norm, LineNorm) {
    for_dtypes(op.x_dtype, op.parameter_dtype, [&op](auto x, auto parameter) {
        using W = decltype(parameter);
        every_line<true, decltype(x)>(
            op, [&op](auto streaming, std::int64_t i, const auto& row) { one_row<streaming, W>(op, i, row); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
