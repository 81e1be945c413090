// y = x · Wᵀ + bias for weights in float32 and half types.
//
// Work: see dot_tiles.h, and float_panels.h for many rows. Up to as many rows as a tile has read every weight once and
//   are memory-bound; half types are then widened in registers, and for more rows once for all of them.
// Precision: products and sums in float32; long rows in blocks that are added in double; one rounding to x's dtype.
// Bytes: the weights once for every chunk of rows.
#include "linear.h"

#include "linear_products.h"

namespace tensorops::TENSOROPS_TARGET {

TENSOROPS_BLOCKS_OF_OUTPUTS()

namespace {

template <class T, class W>
void products(const Linear& op) {
    const Scratch scratch(op.bias ? op.outputs * static_cast<std::int64_t>(sizeof(float)) : 0);
    float* bias = op.bias ? scratch.at<float>(0) : nullptr;
    if (bias) widen(op.bias_dtype, op.bias, bias, op.outputs);
    T* y = reinterpret_cast<T*>(op.y);
    each_product<T, W>(
        op, threads_of<W>(op),
        [=, outputs = op.outputs](std::int64_t row, std::int64_t first, std::int64_t width, const float* sums, int) {
            store_outputs(y + row * outputs + first, sums, bias ? bias + first : nullptr, width);
        });
}

}  // namespace

TENSOROPS_KERNEL(linear_choice, LinearChoice) {
    *op.few_rows = kTileRows;
    *op.outputs = kBlockOutputs;
}

TENSOROPS_KERNEL(linear, Linear) {
    for_narrow_dtype(op.x_dtype, [&op](auto x) {
        for_narrow_dtype(op.weight_dtype, [&op](auto weight) { products<decltype(x), decltype(weight)>(op); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
