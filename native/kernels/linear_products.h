// The products of linear.cpp, for all that begins with x · Wᵀ.
#pragma once

#include "dot_tiles.h"
#include "linear.h"

namespace tensorops::TENSOROPS_TARGET {

TENSOROPS_BLOCKS_OF_OUTPUTS(extern)

// The number of rows up to which half types are widened in registers: more rows read a weight several times.
inline std::int64_t few_rows(const Linear& op) { return op.few_rows > 0 ? op.few_rows : kTileRows; }

template <class W>
int threads_of(const Linear& op) {
    const std::int64_t blocks = (op.outputs + kBlockOutputs - 1) / kBlockOutputs;
    return threads_for(blocks * parts_of(op.x.count), matrix_work(op.x.count, op.outputs, op.x.length, sizeof(W)));
}

// Calls `put` and `fetch` of dot_tiles.h with all products of x and W, without the bias.
template <class T, class W, class Put, class Fetch = NoFetch>
void each_product(const Linear& op, int threads, const Put& put, const Fetch& fetch = {}) {
    const std::int64_t n = op.x.length;
    const auto weight = [&op](std::int64_t i) { return reinterpret_cast<const W*>(op.weight + i * op.weight_stride); };
    const auto widened = [weight, n](std::int64_t i, float* buffer) {
        convert(weight(i), buffer, n);
        return buffer;
    };
    const auto widen_x = [n](const T* from, float* to) { convert(from, to, n); };
    if constexpr (sizeof(W) == 4) {
        const PackedRows packed{reinterpret_cast<const float*>(op.weight)};
        if (op.is_packed) {
            if constexpr (sizeof(T) == 4)
                return each_product<T, W>(op.x, op.outputs, packed, AsItIs{}, threads, put, fetch);
            else
                return each_product<T, W>(op.x, op.outputs, packed, widen_x, threads, put, fetch);
        }
    }
    if (op.x.count <= few_rows(op))
        each_product<T, W>(op.x, op.outputs, weight, AsItIs{}, threads, put, fetch);
    else if constexpr (sizeof(T) == 4 && sizeof(W) == 4)
        each_product<T, W>(op.x, op.outputs, weight, AsItIs{}, threads, put, fetch);
    else if constexpr (sizeof(T) == 4)
        each_product<T, float>(op.x, op.outputs, widened, AsItIs{}, threads, put, fetch);
    else if constexpr (sizeof(W) == 4)
        each_product<T, float>(op.x, op.outputs, weight, widen_x, threads, put, fetch);
    else
        each_product<T, float>(op.x, op.outputs, widened, widen_x, threads, put, fetch);
}

}  // namespace tensorops::TENSOROPS_TARGET
