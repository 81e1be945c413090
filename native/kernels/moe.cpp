// What a mixture of experts needs besides other kernels: rows in float32, and weighted sums of rows.
//
// Work: rows go to threads in contiguous blocks.
// Precision: sums in float32; one rounding to the dtype of y.
// Bytes: each element once in, once out.
#include "moe.h"

#include "convert.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T>
void sum_of_rows(const WeightedSums& op, std::int64_t row) {
    const std::int64_t n = op.length, terms = op.terms;
    const float *x = op.x + row * terms * n, *weights = op.weights + row * terms;
    const float* last = op.last ? op.last + row * n : nullptr;
    const float last_weight = op.last_weights ? load_one(op.last_weights + row) : 1;
    put_row<false>(reinterpret_cast<T*>(op.y) + row * n, n, [=](std::int64_t i, std::int64_t k) {
        Vec<float> sum = load_some(x + i, k) * load_one(weights);
        for (std::int64_t j = 1; j < terms; ++j) sum += load_some(x + j * n + i, k) * load_one(weights + j);
        if (last) sum += load_some(last + i, k) * last_weight;
        return sum;
    });
}

}  // namespace

TENSOROPS_KERNEL(widened_rows, WidenedRows) {
    const std::int64_t n = op.x.length;
    for_narrow_dtype(op.dtype, [&op, n](auto element) {
        using T = decltype(element);
        over_rows(op.x.count, op.x.count * n * static_cast<std::int64_t>(sizeof(T) + sizeof(float)),
                  [&op, n](std::int64_t i) { convert(reinterpret_cast<const T*>(op.x.row(i)), op.y + i * n, n); });
    });
}

TENSOROPS_KERNEL(weighted_sums, WeightedSums) {
    const std::int64_t elements = op.rows * (op.terms + (op.last ? 1 : 0)) * op.length;
    for_narrow_dtype(op.y_dtype, [&op, elements](auto y) {
        over_rows(op.rows, elements * static_cast<std::int64_t>(sizeof(float)),
                  [&op](std::int64_t i) { sum_of_rows<decltype(y)>(op, i); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
