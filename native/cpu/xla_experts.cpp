#include <vector>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

// The rows of x, and the expert of each, both repeated to a common shape.
struct ExpertRows {
    Rows x;
    std::vector<std::int64_t> experts;
};

Wrong read_rows(const Buffer& x, const Buffer& experts, std::int64_t number, ExpertRows& rows) {
    const std::int64_t axes = x.rank - 1, less = axes - experts.rank;
    const bool is_wide = experts.dtype == kInt64;
    if (!is_wide && experts.dtype != kInt32) return "experts of a dtype without a kernel";
    if (less < 0 || axes > kMaxDims) return "another number of axes";
    std::int64_t shape[kMaxDims], x_strides[kMaxDims], strides[kMaxDims];
    std::int64_t x_stride = length(x) * itemsize(x), stride = is_wide ? 8 : 4;
    for (std::int64_t d = axes - 1; d >= 0; --d) {
        const std::int64_t n = x.dims[d], m = d < less ? 1 : experts.dims[d - less];
        if (n != m && n != 1 && m != 1) return "experts that do not broadcast with the rows of x";
        shape[d] = n == 1 ? m : n;
        x_strides[d] = x_stride;
        x_stride *= n;
        if (d < less) continue;
        strides[d - less] = stride;
        stride *= m;
    }
    const int ndim = static_cast<int>(axes);
    rows.x = broadcast_rows(data(x), length(x), ndim, x.dims, x_strides, ndim, shape);
    const Rows numbers =
        broadcast_rows(data(experts), 1, static_cast<int>(experts.rank), experts.dims, strides, ndim, shape);
    rows.experts.resize(static_cast<std::size_t>(rows.x.count));
    for (std::int64_t r = 0; r < rows.x.count; ++r) {
        const char* p = numbers.row(r);
        const std::int64_t expert =
            is_wide ? *reinterpret_cast<const std::int64_t*>(p) : *reinterpret_cast<const std::int32_t*>(p);
        if (expert < 0 || expert >= number) return "an index in experts that is out of range";
        rows.experts[static_cast<std::size_t>(r)] = expert;
    }
    return nullptr;
}

bool is_stack(const Buffer& b, std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
    return b.rank == 3 && b.dims[0] == matrices && b.dims[1] == rows && b.dims[2] == columns;
}

// Calls a kernel for parts of the outputs, each with all rows: cut(part, begin) moves what belongs to an output.
template <class Op, class F>
void over_outputs(const Call& call, void (*kernel)(const Op&), Op op, const ExpertRows& rows, std::int64_t number,
                  const F& cut) {
    const SortedRows sorted(rows.x.count, number,
                            [&](std::int64_t r) { return rows.experts[static_cast<std::size_t>(r)]; });
    const std::int64_t outputs = op.linear.outputs;
    op.linear.x = rows.x;
    op.groups = sorted.groups();
    op.per_expert = op.y_stride = outputs;
    over_threads(call, outputs, 48, elements(call.argument(2)) / number * rows.x.count,
                 [&](std::int64_t begin, std::int64_t end) {
                     Op part = op;
                     part.linear.outputs = end - begin;
                     part.linear.weight += begin * op.linear.weight_stride;
                     part.linear.y += begin * itemsize(call.result());
                     cut(part, begin);
                     kernel(part);
                 });
}

Wrong grouped_linear(const Call& call) {
    if (call.arguments() < 3 || call.arguments() > 4 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(2), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (!is_narrow(x) || !is_narrow(weight)) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    if (!is_stack(weight, weight.dims[0], weight.rank == 3 ? weight.dims[1] : 0, length(x)))
        return "weights that do not fit the last axis";
    const std::int64_t number = weight.dims[0], outputs = weight.dims[1];
    ExpertRows rows;
    if (Wrong wrong = read_rows(x, call.argument(1), number, rows)) return wrong;
    if (y.dtype != x.dtype || elements(y) != rows.x.count * outputs) return "a result of another shape or dtype";
    GroupedLinear op{};
    op.linear.weight = data(weight);
    op.linear.weight_stride = length(x) * itemsize(weight);
    op.linear.outputs = outputs;
    op.linear.y = data(y);
    op.linear.x_dtype = dtype_of(x);
    op.linear.weight_dtype = op.linear.bias_dtype = dtype_of(weight);
    std::int64_t of_bias = 0;
    if (call.arguments() == 4) {
        const Buffer& bias = call.argument(3);
        if (!is_narrow(bias) || !is_matrix(bias, number, outputs)) return "a bias that does not fit";
        op.linear.bias = data(bias);
        op.linear.bias_dtype = dtype_of(bias);
        of_bias = itemsize(bias);
        op.bias_stride = outputs * of_bias;
    }
    over_outputs(call, target().grouped_linear, op, rows, number, [&](GroupedLinear& part, std::int64_t begin) {
        if (part.linear.bias) part.linear.bias += begin * of_bias;
    });
    return nullptr;
}

Wrong grouped_quantized_linear(const Call& call) {
    if (call.arguments() < 4 || call.arguments() > 5 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(2), &scales = call.argument(3), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (!is_narrow(x) || weight.dtype != kUint8) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    const bool biased = call.arguments() == 5;
    const auto bits = static_cast<int>(call.number("bits", 0));
    const auto group_size = static_cast<std::int64_t>(call.number("group_size", 0));
    if (Wrong wrong = check_format(bits, group_size, biased, length(x))) return wrong;
    const std::int64_t number = weight.dims[0], outputs = weight.rank == 3 ? weight.dims[1] : 0;
    if (!is_stack(weight, number, outputs, length(x) * bits / 8)) return "weights that do not fit the last axis";
    const std::int64_t groups = length(x) / group_size;
    for (std::int64_t i = 3; i < call.arguments(); ++i) {
        const Buffer& p = call.argument(i);
        if (!is_narrow(p)) return "scales without a kernel";
        if (p.dtype != scales.dtype || !is_stack(p, number, outputs, groups)) return "scales or biases that do not fit";
    }
    ExpertRows rows;
    if (Wrong wrong = read_rows(x, call.argument(1), number, rows)) return wrong;
    if (y.dtype != x.dtype || elements(y) != rows.x.count * outputs) return "a result of another shape or dtype";
    GroupedQuantizedLinear op{};
    op.linear.weight = data(weight);
    op.linear.weight_stride = weight.dims[2];
    op.linear.scales = data(scales);
    op.linear.scale_stride = op.linear.bias_stride = groups * itemsize(scales);
    op.linear.biases = biased ? data(call.argument(4)) : nullptr;
    op.linear.outputs = outputs;
    op.linear.group_size = group_size;
    op.linear.bits = bits;
    op.linear.y = data(y);
    op.linear.x_dtype = dtype_of(x);
    op.linear.scale_dtype = dtype_of(scales);
    over_outputs(call, target().grouped_quantized_linear, op, rows, number,
                 [&](GroupedQuantizedLinear& part, std::int64_t begin) {
                     part.linear.scales += begin * op.linear.scale_stride;
                     if (biased) part.linear.biases += begin * op.linear.bias_stride;
                 });
    return nullptr;
}

}  // namespace

Handlers experts_handlers() {
    return {
        {"grouped_linear", handle<grouped_linear>},
        {"grouped_quantized_linear", handle<grouped_quantized_linear>},
    };
}

}  // namespace tensorops::xla
