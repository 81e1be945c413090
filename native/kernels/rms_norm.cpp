// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset), along lines; add_rms_norm adds a residual to x first.
// y = x / max(sqrt(sum(x²)), eps) for l2_norm.
//
// Work: lines go to threads in contiguous blocks. A line is read twice, for the sum of squares and for the result; the
//   second time it comes from the first- or second-level cache (16 KiB for 4096 floats), and the next row is fetched
//   meanwhile. A sum with a residual is written while its squares are added up. Lines that are no long rows: see
//   norm_lines.h.
// Precision: float64 in float64, everything else in float32, summed in blocks, so that the error does not grow with the
//   row. If the mean square, or the sum, leaves the range in which float32 squares neither overflow nor vanish, the row
//   is computed again: see careful_row.h.
// Bytes: each element once in, once out, as in a copy. The benchmark's rows `copy` and `numpy/cpu` show which fraction
//   of a copy's speed is reached: asv run --bench Normalization
#include <cmath>

#include "line_norm.h"
#include "norm_lines.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T>
Compute<T> sum_of_squares(const T* x, std::int64_t n) {
    const auto square = [x](std::int64_t i, std::int64_t k) {
        const auto a = load_some(x + i, k);
        return a * a;
    };
    return sum_of_row<T>(n, square);
}

// Elements of x + residual, rounded to the caller's dtype
template <class T>
inline auto sum_of_two(const T* x, const T* residual, std::int64_t k) {
    return as_stored<T>(load_some(x, k) + load_some(residual, k));
}

// The mean square of x + residual; the sum is stored in the same pass
template <bool kStream, class T>
Compute<T> write_sum(const T* x, const T* residual, T* sum, std::int64_t n) {
    constexpr std::int64_t lanes = kLanes<T>, block = kAddedPlainly * 2 * lanes;
    const auto write = [=](std::int64_t i, std::int64_t end) {
        Vec<Compute<T>> s0{}, s1{};
        for (; i + 2 * lanes <= end; i += 2 * lanes) {
            const auto a = sum_of_two(x + i, residual + i, lanes),
                       b = sum_of_two(x + i + lanes, residual + i + lanes, lanes);
            put_two<kStream>(sum + i, a, b);
            s0 += a * a;
            s1 += b * b;
        }
        for (; i < end; i += lanes) {
            const std::int64_t k = end - i < lanes ? end - i : lanes;
            const auto a = sum_of_two(x + i, residual + i, k);
            k == lanes ? store(sum + i, a) : store_part(sum + i, a, k);
            s0 += a * a;
        }
        return s0 + s1;
    };
    const auto count = static_cast<Compute<T>>(n);
    if (n <= block) return sum_of_lanes<Compute<T>>(write(0, n)) / count;
    Total<Compute<T>> total;
    for (std::int64_t i = 0; i < n; i += block) total.add(write(i, n - i < block ? n : i + block));
    return total.value() / count;
}

// y = value(i, k) · r · (weight + offset); meanwhile the next row is fetched
template <bool kStream, class T, class W, class F>
void scale_row(F value, const W* weight, T* y, std::int64_t n, const T* next, Compute<T> r, Compute<T> offset) {
    if (weight)
        put_row<kStream>(y, n, next, [=](std::int64_t i, std::int64_t k) {
            return value(i, k) * r * (load_some(weight + i, k) + offset);
        });
    else
        put_row<kStream>(y, n, next, [=](std::int64_t i, std::int64_t k) { return value(i, k) * r; });
}

template <bool kStream, class W, class T>
void one_row(const LineNorm& op, std::int64_t index, const NormRow<T>& row) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const T *x = row.x, *residual = row.residual;
    T *const sum = row.sum, *const y = row.y;
    const W* weight = reinterpret_cast<const W*>(op.weight);
    const C mean = sum ? write_sum<kStream>(x, residual, sum, n) : sum_of_squares(x, n) / static_cast<C>(n);
    const double spread = static_cast<double>(mean) + op.eps;
    if (!is_usual<C>(spread)) return careful_line(op, index);
    const C r = static_cast<C>(1.0 / std::sqrt(spread)), offset = static_cast<C>(op.weight_offset);
    const T* from = sum && !kStream ? sum : x;
    if (sum && kStream)  // a sum that was written past the caches is faster to compute again than to read
        scale_row<kStream>([=](std::int64_t i, std::int64_t k) { return sum_of_two(x + i, residual + i, k); }, weight,
                           y, n, row.next, r, offset);
    else
        scale_row<kStream>([=](std::int64_t i, std::int64_t k) { return load_some(from + i, k); }, weight, y, n,
                           row.next, r, offset);
}

template <bool kStream, class T>
void one_vector(const LineNorm& op, std::int64_t index, const NormRow<T>& row) {
    using C = Compute<T>;
    const std::int64_t n = op.lines.length;
    const T* x = row.x;
    const double square = static_cast<double>(sum_of_squares(x, n)), least = op.eps * op.eps;
    const double spread = square < least ? least : square;  // NaN if the square is
    if (!is_usual<C>(spread)) return careful_line(op, index);
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    put_row<kStream>(row.y, n, row.next, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) * r; });
}

}  // namespace

TENSOROPS_KERNEL(rms_norm, LineNorm) {
    for_dtypes(op.x_dtype, op.parameter_dtype, [&op](auto x, auto weight) {
        using W = decltype(weight);
        every_line<false, decltype(x)>(op, [&op](auto streaming, std::int64_t i, const auto& row) {
            op.norm == Norm::length ? one_vector<streaming>(op, i, row) : one_row<streaming, W>(op, i, row);
        });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
