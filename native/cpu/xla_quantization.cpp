#include "xla_call.h"

namespace tensorops::xla {

namespace {

Wrong quantized_linear(const Call& call) {
    if (call.arguments() < 3 || call.arguments() > 4 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(1), &scales = call.argument(2), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (dtype_of(x) == Dtype::float64 || weight.dtype != kUint8) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    const auto bits = static_cast<int>(call.number("bits", 0));
    const auto group_size = static_cast<std::int64_t>(call.number("group_size", 0));
    const bool biased = call.arguments() == 4;
    if (Wrong wrong = check_format(bits, group_size, biased, length(x))) return wrong;
    const std::int64_t outputs = weight.dims[0], groups = length(x) / group_size;
    if (!is_matrix(weight, outputs, length(x) * bits / 8)) return "weights that do not fit the last axis";
    for (std::int64_t i = 2; i < call.arguments(); ++i) {
        const Buffer& p = call.argument(i);
        if (dtype_of(p) == Dtype::other || dtype_of(p) == Dtype::float64) return "scales without a kernel";
        if (p.dtype != scales.dtype || !is_matrix(p, outputs, groups)) return "scales or biases that do not fit";
    }
    if (y.dtype != x.dtype || elements(y) != elements(x) / length(x) * outputs)
        return "a result of another shape or dtype";
    QuantizedLinear op{};
    op.x = rows_of(x);
    op.weight = data(weight);
    op.weight_stride = weight.dims[1];
    op.scales = data(scales);
    op.scale_stride = op.bias_stride = groups * itemsize(scales);
    op.biases = biased ? data(call.argument(3)) : nullptr;
    op.outputs = outputs;
    op.group_size = group_size;
    op.bits = bits;
    op.y = data(y);
    op.x_dtype = dtype_of(x);
    op.scale_dtype = dtype_of(scales);
    const Team team(call);
    target().quantized_linear(op);
    return nullptr;
}

// Rows of quantized weights. Plans only.
Wrong dequantize(const Call& call) {
    if (call.arguments() < 2 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &weight = call.argument(0), &scales = call.argument(1), &y = call.result();
    const auto bits = static_cast<int>(call.number("bits", 0));
    const auto group_size = static_cast<std::int64_t>(call.number("group_size", 0));
    const bool biased = call.arguments() == 3;
    if (weight.dtype != kUint8 || weight.rank != 2 || y.rank != 2) return "weights without a kernel";
    if (elements(weight) == 0) return "an empty array";
    if (dtype_of(scales) == Dtype::other || y.dtype != scales.dtype) return "scales without a kernel";
    const std::int64_t rows = weight.dims[0], columns = y.dims[1];
    if (Wrong wrong = check_format(bits, group_size, biased, columns)) return wrong;
    if (y.dims[0] != rows || weight.dims[1] != columns * bits / 8) return "a result of another shape";
    if (!is_matrix(scales, rows, columns / group_size)) return "scales that do not fit";
    if (biased && !same(scales, call.argument(2))) return "biases that do not fit";
    Dequantize op{};
    op.weight = data(weight);
    op.weight_stride = weight.dims[1];
    op.scales = data(scales);
    op.scale_stride = op.bias_stride = columns / group_size * itemsize(scales);
    op.biases = biased ? data(call.argument(2)) : nullptr;
    op.columns = columns;
    op.group_size = group_size;
    op.bits = bits;
    op.dtype = dtype_of(scales);
    over_threads(call, rows, 1, bytes_of(y), [&](std::int64_t begin, std::int64_t end) {
        Dequantize part = op;
        part.rows = end - begin;
        part.weight += begin * op.weight_stride;
        part.scales += begin * op.scale_stride;
        if (biased) part.biases += begin * op.bias_stride;
        part.w = data(y) + begin * columns * itemsize(y);
        target().dequantize(part);
    });
    return nullptr;
}

// Weights in panels, as bytes; what they are is said by the options. Plans only.
Wrong panel_linear(const Call& call) {
    if (call.arguments() != 2 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer &x = call.argument(0), &panels = call.argument(1), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const auto number = [&call](const char* name) { return static_cast<std::int64_t>(call.number(name, 0)); };
    PanelFormat format{};
    format.outputs = number("outputs");
    format.inputs = length(x);
    format.group_size = number("group_size");
    format.bits = static_cast<int>(number("bits"));
    format.has_biases = number("biased") != 0;
    format.scale_dtype = static_cast<Dtype>(number("scale_dtype"));
    if (elements(x) == 0 || dtype_of(x) == Dtype::float64) return "an array without a kernel";
    if (Wrong wrong = check_format(format.bits, format.group_size, format.has_biases, format.inputs)) return wrong;
    if (panels.dtype != kUint8 || panels.rank != 1 || panels.dims[0] != format.panels() * format.panel_bytes())
        return "panels of another format";
    if (y.dtype != x.dtype || elements(y) != elements(x) / length(x) * format.outputs)
        return "a result of another shape or dtype";
    const Team team(call);
    target().panel_linear({rows_of(x), data(panels), format, data(y), dtype_of(x)});
    return nullptr;
}

}  // namespace

Handlers quantization_handlers() {
    return {
        {"dequantize", handle<dequantize>},
        {"panel_linear", handle<panel_linear>},
        {"quantized_linear", handle<quantized_linear>},
    };
}

}  // namespace tensorops::xla
