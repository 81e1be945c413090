// y = f(x · Wᵀ + bias) for weights in float32 and half types.
//
// Work: see dot_tiles.h, and float_panels.h for many rows. Up to as many rows as a tile has read every weight once and
//   are memory-bound; half types are then widened in registers, and for more rows once for all of them.
// Precision: products, sums and f in float32; long rows in blocks that are added in double; one rounding to x's dtype.
// Bytes: the weights once for every chunk of rows.
#include "linear.h"

#include "functions.h"
#include "linear_products.h"

namespace tensorops::TENSOROPS_TARGET {

TENSOROPS_BLOCKS_OF_OUTPUTS()

namespace {

// Stores a function of some sums, with the bias if there is one. Called by its address, so that products are compiled
// once for all functions: a call is nothing next to the products of as many outputs.
template <class T>
using Store = void (*)(T* y, const float* sums, const float* bias, std::int64_t n);

template <class F, class T>
[[gnu::noinline, gnu::flatten]] void store_function(T* y, const float* sums, const float* bias, std::int64_t n) {
    put_row<false>(y, n, [=](std::int64_t i, std::int64_t k) {
        return F{}(bias ? load_some(sums + i, k) + load_some(bias + i, k) : load_some(sums + i, k));
    });
}

template <class T>
Store<T> store_of(Function function) {
    switch (function) {
#define TENSOROPS_STORE(name, Type) \
    case Function::name:            \
        return store_function<Type, T>;
        TENSOROPS_FUNCTIONS_OF_LINEAR(TENSOROPS_STORE)
#undef TENSOROPS_STORE
        default:
            return nullptr;
    }
}

template <class T, class W>
void products(const Linear& op) {
    const Scratch scratch(op.bias ? op.outputs * static_cast<std::int64_t>(sizeof(float)) : 0);
    float* bias = op.bias ? scratch.at<float>(0) : nullptr;
    if (bias) widen(op.bias_dtype, op.bias, bias, op.outputs);
    T* y = reinterpret_cast<T*>(op.y);
    const Store<T> store = op.function ? store_of<T>(*op.function) : nullptr;
    each_product<T, W>(
        op, threads_of<W>(op),
        [=, outputs = op.outputs](std::int64_t row, std::int64_t first, std::int64_t width, const float* sums, int) {
            T* const to = y + row * outputs + first;
            const float* const own_bias = bias ? bias + first : nullptr;
            store ? store(to, sums, own_bias, width) : store_outputs(to, sums, own_bias, width);
        },
        [=, outputs = op.outputs](std::int64_t row, std::int64_t first, std::int64_t width) {
            for (std::int64_t i = 0; i < width; i += 64 / sizeof(T))
                __builtin_prefetch(y + row * outputs + first + i, 1);
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
