// y = x · Wᵀ + bias for weights in float32 and half types.
//
// Work: see dot_tiles.h. Up to as many rows as a tile has read every weight once and are memory-bound; half types are
//   then widened in registers, and for more rows once for all of them.
// Precision: products and sums in float32; long rows in blocks that are added in double; one rounding to x's dtype.
// Bytes: the weights once for every chunk of rows.
#include "linear.h"

#include "dot_tiles.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// The number of rows up to which half types are widened in registers: more rows read a weight several times.
std::int64_t few_rows(const Linear& op) { return op.few_rows > 0 ? op.few_rows : kTileRows; }

template <class T, class W>
void products(const Linear& op) {
    const std::int64_t n = op.x.length;
    const Scratch scratch(op.bias ? op.outputs * static_cast<std::int64_t>(sizeof(float)) : 0);
    float* bias = op.bias ? scratch.at<float>(0) : nullptr;
    if (bias) widen(op.bias_dtype, op.bias, bias, op.outputs);
    T* y = reinterpret_cast<T*>(op.y);
    const std::int64_t blocks = (op.outputs + kBlockOutputs - 1) / kBlockOutputs;
    const int threads = threads_for(blocks, matrix_work(op.x.count, op.outputs, n, sizeof(W)));
    const auto weight = [&op](std::int64_t i) { return reinterpret_cast<const W*>(op.weight + i * op.weight_stride); };
    const auto as_it_is = [weight](std::int64_t i, float*) { return weight(i); };
    const auto widened = [weight, n](std::int64_t i, float* buffer) {
        convert(weight(i), buffer, n);
        return buffer;
    };
    const auto widen_x = [n](const T* from, float* to) { convert(from, to, n); };
    if (op.x.count <= few_rows(op))
        products_with_rows<T, W>(op.x, y, op.outputs, bias, as_it_is, AsItIs{}, threads);
    else if constexpr (sizeof(T) == 4 && sizeof(W) == 4)
        products_with_rows<T, W>(op.x, y, op.outputs, bias, as_it_is, AsItIs{}, threads);
    else if constexpr (sizeof(T) == 4)
        products_with_rows<T, float>(op.x, y, op.outputs, bias, widened, AsItIs{}, threads);
    else if constexpr (sizeof(W) == 4)
        products_with_rows<T, float>(op.x, y, op.outputs, bias, as_it_is, widen_x, threads);
    else
        products_with_rows<T, float>(op.x, y, op.outputs, bias, widened, widen_x, threads);
}

}  // namespace

void linear_choice(const LinearChoice& choice) { *choice.few_rows = few_rows(choice.call); }

void linear(const Linear& op) {
    for_narrow_dtype(op.x_dtype, [&op](auto x) {
        for_narrow_dtype(op.weight_dtype, [&op](auto weight) { products<decltype(x), decltype(weight)>(op); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
