#include "xla_call.h"

namespace tensorops::xla {

namespace {

Wrong linear(const Call& call) {
    if (call.arguments() < 2 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(1), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (!is_narrow(x) || !is_narrow(weight)) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    const std::int64_t outputs = weight.dims[0];
    if (!is_matrix(weight, outputs, length(x))) return "weights that do not fit the last axis";
    if (y.dtype != x.dtype || elements(y) != elements(x) / length(x) * outputs)
        return "a result of another shape or dtype";
    Linear op{};
    op.x = rows_of(x);
    op.weight = data(weight);
    op.weight_stride = length(x) * itemsize(weight);
    op.outputs = outputs;
    op.y = data(y);
    op.x_dtype = dtype_of(x);
    op.weight_dtype = op.bias_dtype = dtype_of(weight);
    if (call.arguments() == 3) {
        const Buffer& bias = call.argument(2);
        if (!is_narrow(bias) || !is_vector(bias, outputs)) return "a bias that does not fit";
        op.bias = data(bias);
        op.bias_dtype = dtype_of(bias);
    }
    const Team team(call);
    target().linear(op);
    return nullptr;
}

}  // namespace

Handlers linear_handlers() {
    return {
        {"linear", handle<linear>},
    };
}

}  // namespace tensorops::xla
