// y[i] = x[i] · W[e[i]]ᵀ with W = scales · q + biases: each row has an expert with its own matrix of packed integers.
//
// Work: distributed as in grouped_linear.cpp; the methods are those of quantized_products.h, chosen for each expert by
//   the number of its rows and by what they hold.
// Bytes: the weights, scales and biases of the experts that have rows, once for every chunk of rows.
#include "grouped_linear.h"
#include "groups.h"
#include "quantized_products.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kPiecesPerThread = 16;

template <int kBits, bool kSigned, class T>
void products(const GroupedQuantizedLinear& grouped) {
    const QuantizedLinear& op = grouped.linear;
    const FewRowsProduct<kBits, kSigned> product(op);
    const std::int64_t n = op.x.length, line = whole_lines(n * static_cast<std::int64_t>(sizeof(float)));
    const Extent extent = extent_of(grouped.groups, op.outputs, n, kBits / 8.0);
    const int threads = threads_for(extent.experts * ((op.outputs + kOutputs - 1) / kOutputs), extent.work);
    const bool takes = takes_few(op);
    const std::int64_t room = takes ? std::max(line, product.room()) : line;  // of a row, for either method
    using Fixed = typename FewRowsProduct<kBits, kSigned>::Row;
    const std::int64_t places = std::min(kChunkRows, op.x.count), rows = places * room;
    const std::int64_t buffers = line * kBlockOutputs * threads;
    const Scratch scratch(rows + buffers + places * static_cast<std::int64_t>(sizeof(Fixed)));
    const auto arranged = [&](std::int64_t place) { return scratch.at<float>(room * place); };
    const auto x = [&op](std::int64_t row) { return reinterpret_cast<const T*>(op.x.row(row)); };
    T* const y = reinterpret_cast<T*>(op.y);
    Fixed* const fixed = scratch.at<Fixed>(rows + buffers);
    bool is_fixed[kChunkRows];  // for the first row of a segment, whether all of them are
    const auto prepare = [&](const Segment& s) {
        bool few = takes && s.count <= kFewRows;
        for (std::int64_t r = 0, place = s.place; few && r < s.count; ++r, ++place)
            few = product.make_row(x(s.rows[r]), scratch.at<char>(room * place), fixed[place]);
        for (std::int64_t r = 0; !few && r < s.count; ++r) arrange(x(s.rows[r]), kBits, n, arranged(s.place + r));
        is_fixed[s.place] = few;
    };
    Interruption* const at = interruption;
    const auto compute = [&](const Segment& s, std::int64_t first, std::int64_t width, int member) {
        if (leaves(at, matrix_work(s.count, width, n, kBits / 8.0))) return;
        const std::int64_t index = s.expert * grouped.per_expert + first;
        const auto dequantized = [&op](std::int64_t i, float* w) {
            dequantize_row<kBits, kSigned>(op, i, w);
            return w;
        };
        const bool few = is_fixed[s.place];
        const std::int64_t step = few ? kOutputs : kBlockOutputs;
        for (std::int64_t done = 0; done < width; done += step) {
            const std::int64_t some = std::min(step, width - done);
            const auto to = [&](std::int64_t r) { return y + s.rows[r] * grouped.y_stride + first + done; };
            if (few)
                some_outputs<T>(s.count, product, fixed + s.place, index + done, some, to);
            else
                outputs_of_rows<float, float>(
                    s.count, n, index + done, some, dequantized, scratch.at<char>(rows + line * kBlockOutputs * member),
                    line, [&](std::int64_t r) { return arranged(s.place + r); },
                    [&](std::int64_t r, const float* sums) { store_outputs(to(r), sums, nullptr, some); });
        }
    };
    over_batches(grouped.groups, [&](const Batch& batch) {
        if (at && at->happened()) return;
        over_segments(batch, threads, prepare);
        // Long pieces, as what is fetched ahead at the end of one is another thread's; enough to share them out evenly.
        const std::int64_t share = batch.count * op.outputs / (kPiecesPerThread * threads * kOutputs);
        over_outputs(batch, op.outputs, std::max<std::int64_t>(share, 1) * kOutputs, threads, compute);
    });
}

template <class T>
void products_of(const GroupedQuantizedLinear& op) {
    if (op.linear.bits == 4) return products<4, false, T>(op);
    return op.linear.biases ? products<8, false, T>(op) : products<8, true, T>(op);
}

}  // namespace

TENSOROPS_KERNEL(grouped_quantized_linear, GroupedQuantizedLinear) {
    for_narrow_dtype(op.linear.x_dtype, [&op](auto x) { products_of<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
