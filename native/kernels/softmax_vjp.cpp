// The vector-Jacobian products of softmax, log_softmax and logsumexp along rows:
//   dx = y (dy - sum(dy y)), dx = dy - exp(y) sum(dy), dx = dy softmax(x)
//
// Work: rows go to threads in contiguous blocks. A row is read for the sum and again, from the first- or second-level
//   cache, for the result; for logsumexp, exponentials are computed twice.
// Precision: float64 in float64, everything else in float32, sums in blocks.
// Bytes: each element once in (of y and dy, or of x), once out.
#include "softmax_vjp.h"

#include <cmath>

#include "exponentials.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <bool kStream, class T>
void one_row(const SoftmaxVjp& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.y.length;
    const T *y = reinterpret_cast<const T*>(op.y.row(index)), *dy = reinterpret_cast<const T*>(op.dy.row(index));
    T* dx = reinterpret_cast<T*>(op.dx) + index * n;
    if (op.kind == Normalized::softmax) {
        const C total = sum_of_row<T>(
            n, [=](std::int64_t i, std::int64_t k) { return load_some(y + i, k) * load_some(dy + i, k); });
        return put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
            return load_some(y + i, k) * (load_some(dy + i, k) - total);
        });
    }
    const C total = sum_of_row<T>(n, [dy](std::int64_t i, std::int64_t k) { return load_some(dy + i, k); });
    put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
        return load_some(dy + i, k) - exp_of_negative(at_most(load_some(y + i, k), 0)) * total;
    });
}

// y is x here: its sum is not kept, as it would be rounded to the dtype of x.
template <bool kStream, class T>
void one_sum(const SoftmaxVjp& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.y.length;
    const T* x = reinterpret_cast<const T*>(op.y.row(index));
    T* dx = reinterpret_cast<T*>(op.dx) + index * n;
    const C largest = maximum<T>(x, n);
    const C d_of_row = load_one(reinterpret_cast<const T*>(op.dsums) + index);
    if (largest == -std::numeric_limits<C>::infinity()) {  // all elements count alike, as in softmax's limit
        const C share = d_of_row / static_cast<C>(n);
        return put_row<kStream>(dx, n, [share](std::int64_t, std::int64_t) { return Vec<C>{} + share; });
    }
    if (largest == std::numeric_limits<C>::infinity()) {  // a share of infinity is 0, but for another infinity NaN
        const C share = nan_or<T>(C{0}, x, n) * d_of_row;
        return put_row<kStream>(dx, n, [=](std::int64_t i, std::int64_t k) {
            const Vec<C> a = load_some(x + i, k);
            return a == largest ? a - largest : Vec<C>{} + share;
        });
    }
    const double total = sum_of_exponentials<T>(x, n, largest, nullptr, x) * static_cast<double>(kOneInUnits<C>);
    const C d = static_cast<C>(static_cast<double>(d_of_row) / total);
    put_row<kStream>(dx, n,
                     [=](std::int64_t i, std::int64_t k) { return exp_in_units(load_some(x + i, k) - largest) * d; });
}

}  // namespace

TENSOROPS_KERNEL(softmax_vjp, SoftmaxVjp) {
    for_dtype(op.dtype, [&op](auto x) {
        const bool of_sums = op.kind == Normalized::logsumexp;
        const std::int64_t bytes = op.y.count * op.y.length * static_cast<std::int64_t>(sizeof x);
        over_rows(op.y.count, (of_sums ? 2 : 3) * bytes, op.streaming, [&op, of_sums](auto streaming, std::int64_t i) {
            of_sums ? one_sum<streaming, decltype(x)>(op, i) : one_row<streaming, decltype(x)>(op, i);
        });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
