// y[i] = x[i] · W[e[i]]ᵀ + bias[e[i]] for weights in float32 and half types: each row has an expert with its own
// matrix.
//
// Work: rows are sorted by expert. Whole experts with few rows, or parts of one with many, make a batch; threads take
//   blocks of its experts' outputs as they become free, so that all of them are busy even if every expert has a single
//   row. As in linear.cpp, each expert's weights are read once for every chunk of its rows, and half types are widened
//   in registers for few rows, else once for all of them. Experts without rows cost nothing.
// Precision: as in linear.cpp.
// Bytes: the weights of the experts that have rows, once for every chunk of rows.
#include "grouped_linear.h"

#include "groups.h"
#include "linear_products.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T, class W>
void products(const GroupedLinear& grouped) {
    const Linear& op = grouped.linear;
    const std::int64_t n = op.x.length, line = whole_lines(n * static_cast<std::int64_t>(sizeof(float)));
    const Extent extent = extent_of(grouped.groups, op.outputs, n, sizeof(W));
    const std::int64_t blocks = (op.outputs + kBlockOutputs - 1) / kBlockOutputs;
    const int threads = threads_for(extent.experts * blocks, extent.work);
    constexpr bool kWidensX = sizeof(T) < 4, kWidensWeights = sizeof(W) < 4;
    const bool any_many = extent.most > kTileRows;
    const std::int64_t buffers = any_many && kWidensWeights ? kBlockOutputs * threads : 0;
    const Scratch scratch(line * (buffers + (any_many && kWidensX ? kChunkRows : 0)));
    const auto widened_x = [&](std::int64_t place) { return scratch.at<float>(line * (buffers + place)); };
    const auto x = [&op](std::int64_t row) { return reinterpret_cast<const T*>(op.x.row(row)); };
    T* const y = reinterpret_cast<T*>(op.y);
    const std::int64_t bias_bytes = op.bias_dtype == Dtype::float32 ? 4 : 2;
    Interruption* const at = interruption;
    const auto compute = [&](const Segment& s, std::int64_t first, std::int64_t width, int member) {
        if (leaves(at, matrix_work(s.count, width, n, sizeof(W)))) return;
        const std::int64_t index = s.expert * grouped.per_expert + first;
        float bias[kBlockOutputs];
        if (op.bias) widen(op.bias_dtype, op.bias + s.expert * grouped.bias_stride + first * bias_bytes, bias, width);
        const auto weight = [&op](std::int64_t i) {
            return reinterpret_cast<const W*>(op.weight + i * op.weight_stride);
        };
        const auto raw_x = [&](std::int64_t r) { return x(s.rows[r]); };
        const auto put = [&](std::int64_t r, const float* sums) {
            store_outputs(y + s.rows[r] * grouped.y_stride + first, sums, op.bias ? bias : nullptr, width);
        };
        if (s.count <= kTileRows || (!kWidensX && !kWidensWeights))
            return outputs_of_rows<T, W>(s.count, n, index, width, weight, nullptr, 0, raw_x, put);
        using X = std::conditional_t<kWidensX, float, T>;
        const auto wide_x = [&](std::int64_t r) -> const X* {
            if constexpr (kWidensX) return widened_x(s.place + r);
            return reinterpret_cast<const X*>(x(s.rows[r]));
        };
        if constexpr (kWidensWeights) {
            const auto widened = [&](std::int64_t i, float* buffer) {
                convert(weight(i), buffer, n);
                return buffer;
            };
            outputs_of_rows<X, float>(s.count, n, index, width, widened,
                                      scratch.at<char>(line * kBlockOutputs * member), line, wide_x, put);
        } else {
            outputs_of_rows<X, W>(s.count, n, index, width, weight, nullptr, 0, wide_x, put);
        }
    };
    over_batches(grouped.groups, [&](const Batch& batch) {
        if (at && at->happened()) return;
        if (kWidensX && any_many)
            over_segments(batch, threads, [&](const Segment& s) {
                for (std::int64_t r = 0; s.count > kTileRows && r < s.count; ++r)
                    convert(x(s.rows[r]), widened_x(s.place + r), n);
            });
        over_outputs(batch, op.outputs, kBlockOutputs, threads, compute);
    });
}

}  // namespace

TENSOROPS_KERNEL(grouped_linear, GroupedLinear) {
    for_narrow_dtype(op.linear.x_dtype, [&op](auto x) {
        for_narrow_dtype(op.linear.weight_dtype, [&op](auto weight) { products<decltype(x), decltype(weight)>(op); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
