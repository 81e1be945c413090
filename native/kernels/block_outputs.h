// What the products of blocks share that does not depend on how blocks are read: where outputs go, and those that
// integers do not give.
#pragma once

#include "block_linear.h"
#include "block_panels.h"
#include "block_values.h"
#include "dot_tiles.h"

namespace tensorops::TENSOROPS_TARGET {

inline void put_outputs(const BlockLinear& op, std::int64_t row, std::int64_t first, std::int64_t width,
                        const float* y) {
    for_narrow_dtype(op.x_dtype, [&](auto t) {
        store_outputs(reinterpret_cast<decltype(t)*>(op.y) + row * op.outputs + first, y, nullptr, width);
    });
}

// Weights of an output, from a whole block on
inline void weights_of(const BlockLinear& op, std::int64_t index, std::int64_t begin, std::int64_t length, float* to) {
    unpack_some(op.format, op.is_interleaved, op.weight, op.weight_stride, index, begin, length, to);
}

// An output that integers do not give: their sums overflow where the result may not.
inline float careful_output(const BlockLinear& op, std::int64_t row, std::int64_t index) {
    const char* from = op.x.row(row);
    float w[kPiece], x[kPiece];
    double sum = 0;
    for (std::int64_t begin = 0; begin < op.x.length; begin += kPiece) {
        const std::int64_t n = std::min<std::int64_t>(op.x.length - begin, kPiece);
        weights_of(op, index, begin, n, w);
        widen(op.x_dtype, from + begin * size_of(op.x_dtype), x, n);
        for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(w[i]) * static_cast<double>(x[i]);
    }
    return static_cast<float>(sum);
}

// Multiplies outputs of a row of x by the factor that is left, and mends those that are not finite.
inline void finish(const BlockLinear& op, std::int64_t row, std::int64_t first, std::int64_t width, float back,
                   float* y) {
    if (__builtin_expect(finish_outputs(y, width, back), 1)) return;
    for (std::int64_t i = 0; i < width; ++i)
        if (y[i] - y[i] != 0) y[i] = careful_output(op, row, first + i);
}

// All products, by weights as float32
inline void products_in_float(const BlockLinear& op, int threads) {
    for_narrow_dtype(op.x_dtype, [&](auto t) {
        using T = decltype(t);
        products_with_rows<T, float>(
            op.x, reinterpret_cast<T*>(op.y), op.outputs, nullptr,
            [&op](std::int64_t index, float* w) {
                weights_of(op, index, 0, op.x.length, w);
                return w;
            },
            [&op](const T* from, float* to) { convert(from, to, op.x.length); }, threads);
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
