// y = x · Wᵀ with W = scales · q + biases, for integers q of 4 or 8 bits; see quantized_products.h.
//
// Work: many rows are multiplied in integers where there are instructions for these, as weights in blocks are: see
// quantized_panels.h. Elsewhere, and for rows with infinities, NaN or extreme numbers, weights become float32.
// Bytes: the weights, scales and biases once; a few rows are memory-bound.
#include "linear.h"
#include "quantized_panels.h"
#include "quantized_products.h"

namespace tensorops::TENSOROPS_TARGET {

TENSOROPS_COMPUTE_EACH()

namespace {

std::int64_t units_of_outputs(const QuantizedLinear& op) { return (op.outputs + kOutputUnit - 1) / kOutputUnit; }

template <int kBits, bool kSigned, class T>
void many_rows(const QuantizedLinear& op, int threads) {
    products_with_rows<T, float>(
        op.x, reinterpret_cast<T*>(op.y), op.outputs, nullptr,
        [&op](std::int64_t index, float* w) {
            dequantize_row<kBits, kSigned>(op, index, w);
            return w;
        },
        [&op](const T* from, float* to) { arrange(from, op.bits, op.x.length, to); }, threads);
}

// The first method; false if some x is too large or too small for it.
template <int kBits, bool kSigned, class T>
bool few_rows(const QuantizedLinear& op, int threads) {
    const FewRowsProduct<kBits, kSigned> product(op);
    const Scratch scratch(op.x.count * product.room());
    typename FewRowsProduct<kBits, kSigned>::Row rows[kFewRows];
    for (std::int64_t r = 0; r < op.x.count; ++r)
        if (!product.make_row(reinterpret_cast<const T*>(op.x.row(r)), scratch.at<char>(r * product.room()), rows[r]))
            return false;
    T* y = reinterpret_cast<T*>(op.y);
    over_stretches(threads, units_of_outputs(op), [&](std::int64_t unit) {
        const std::int64_t begin = unit * kOutputUnit;
        some_outputs<T>(op.x.count, product, rows, begin, std::min(kOutputUnit, op.outputs - begin),
                        [&](std::int64_t r) { return y + r * op.outputs + begin; });
    });
    return true;
}

template <int kBits, bool kSigned, class T>
void products(const QuantizedLinear& op) {
    const std::int64_t work = matrix_work(op.x.count, op.outputs, op.x.length, kBits / 8.0);
    const int threads = threads_for(units_of_outputs(op), work);
#if defined(TENSOROPS_DOTS)
    if constexpr (kHasPanelsOf<kBits, kSigned>) {
        // Words of 4 bits are quicker in their own order for longer.
        const bool are_many = op.x.count > (kBits == 4 ? kFewRows : 4);
        if (are_many && op.group_size % 32 == 0 && many_rows_of_integers<kBits, kSigned>(op, threads)) return;
    }
#endif
    if (op.x.count > kFewRows || !takes_few(op) || !few_rows<kBits, kSigned, T>(op, threads))
        many_rows<kBits, kSigned, T>(op, threads);
}

template <class T>
void products_of(const QuantizedLinear& op) {
    if (op.bits == 4) return products<4, false, T>(op);
    return op.biases ? products<8, false, T>(op) : products<8, true, T>(op);
}

}  // namespace

TENSOROPS_KERNEL(quantized_linear, QuantizedLinear) {
    for_narrow_dtype(op.x_dtype, [&op](auto x) { products_of<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
