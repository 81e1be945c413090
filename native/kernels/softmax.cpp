// softmax: exp(x - max) / sum(exp(x - max)); log_softmax: x - max - log(sum); logsumexp: max + log(sum); along rows.
//
// Work: rows go to threads in contiguous blocks. A row is read for its maximum, and again for the exponentials, which
//   softmax keeps in a buffer of its thread and then scales; for rows longer than the buffer the exponentials are
//   computed twice. Exponentials are bound by arithmetic, so the next row is fetched meanwhile.
// Precision: float64 in float64, everything else in float32; sums are taken in blocks, so that the error does not grow
//   with the row, and their logarithm in double.
// Bytes: each element once in, once out, as in a copy, as long as a row stays in the second-level cache. Float32
//   results of half types are written as they are computed.
#include "softmax.h"

#include <cmath>

#include "exponentials.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kBufferBytes = 64 * 1024;  // of the stack of each thread
// R is the type of the result's elements.
template <bool kStream, class T, class R>
void one_row(const Softmax& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length;
    const T* x = reinterpret_cast<const T*>(op.x.row(index));
    const T* next = reinterpret_cast<const T*>(op.x.row(index + 1 < op.x.count ? index + 1 : index));
    R* y = reinterpret_cast<R*>(op.y);
    const C largest = maximum(x, n);
    if (op.kind == Normalized::logsumexp) {
        if (std::isinf(largest)) return store_one(y + index, nan_or(largest, x, n));
        const double total =
            std::log(sum_of_exponentials<T>(x, n, largest, nullptr, next)) + static_cast<double>(largest);
        return store_one(y + index, static_cast<C>(total));
    }
    y += index * n;
    if (op.kind == Normalized::log_softmax) {
        const C log_total = static_cast<C>(std::log(sum_of_exponentials<T>(x, n, largest, nullptr, next)));
        return put_row<kStream>(
            y, n, [=](std::int64_t i, std::int64_t k) { return load_some(x + i, k) - largest - log_total; });
    }
    alignas(64) C buffer[kBufferBytes / sizeof(C)];
    if (n <= static_cast<std::int64_t>(kBufferBytes / sizeof(C))) {
        const C scale = static_cast<C>(1 / kOneInUnits<C> / sum_of_exponentials<T>(x, n, largest, buffer, next));
        const C* e = buffer;
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) { return load_some(e + i, k) * scale; });
    } else {
        const C scale = static_cast<C>(1 / kOneInUnits<C> / sum_of_exponentials<T>(x, n, largest, nullptr, next));
        put_row<kStream>(
            y, n, [=](std::int64_t i, std::int64_t k) { return exp_in_units(load_some(x + i, k) - largest) * scale; });
    }
}

template <class T, class R>
void every_row(const Softmax& op) {
    const std::int64_t bytes = op.x.count * op.x.length * static_cast<std::int64_t>(sizeof(T) + sizeof(R));
    over_rows(op.x.count, bytes, op.streaming,
              [&op](auto streaming, std::int64_t i) { one_row<streaming, T, R>(op, i); });
}

}  // namespace

TENSOROPS_KERNEL(softmax, Softmax) {
    for_dtype(op.dtype, [&op](auto x) {
        using T = decltype(x);
        if constexpr (sizeof(T) == 2)
            if (op.y_dtype == Dtype::float32) return every_row<T, float>(op);
        every_row<T, T>(op);
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
