#include "xla_call.h"

namespace tensorops::xla {

namespace {

template <int kArrays>
Wrong rms_norm(const Call& call) {
    if (call.arguments() < kArrays || call.arguments() > kArrays + 1 || call.frame.results.count != kArrays)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, kArrays)) return wrong;
    if (Wrong wrong = check_parameters(call, kArrays, call.argument(0).rank - 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result(0);
    if (!same(x, y) || !same(x, call.result(kArrays - 1))) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    const bool weighted = call.arguments() > kArrays;
    RmsNorm op{};
    op.x = rows_of(x);
    if (kArrays == 2) op.residual = rows_of(call.argument(1));
    op.weight = weighted ? data(call.argument(kArrays)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.weight_dtype = weighted ? dtype_of(call.argument(kArrays)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    op.weight_offset = call.number("weight_offset", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * kArrays * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        RmsNorm part = op;
        take_part(part.x, begin, end);
        if (kArrays == 2) {
            take_part(part.residual, begin, end);
            part.sum = data(call.result(1)) + begin * row;
        }
        part.y = data(y) + begin * row;
        target().rms_norm(part);
    });
    return nullptr;
}

Wrong layer_norm(const Call& call) {
    if (call.arguments() < 1 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (Wrong wrong = check_parameters(call, 1, call.argument(0).rank - 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    LayerNorm op{};
    op.x = rows_of(x);
    op.weight = call.arguments() > 1 ? data(call.argument(1)) : nullptr;
    op.bias = call.arguments() > 2 ? data(call.argument(2)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.parameter_dtype = call.arguments() > 1 ? dtype_of(call.argument(1)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        LayerNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().layer_norm(part);
    });
    return nullptr;
}

Wrong group_norm(const Call& call) {
    if (call.arguments() < 1 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (x.rank < 2) return "an array without channels";
    if (Wrong wrong = check_parameters(call, 1, 1)) return wrong;
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    const std::int64_t channels = x.dims[1];
    GroupNorm op{};
    op.groups = static_cast<std::int64_t>(call.number("num_groups", static_cast<double>(channels)));
    if (op.groups < 1 || channels % op.groups != 0) return "channels that cannot be grouped";
    op.span = elements(x) / (x.dims[0] * channels);
    op.x = rows_of(x);
    op.x.count = op.x.shape[0] = x.dims[0] * op.groups;
    op.x.length = elements(x) / op.x.count;
    const std::int64_t row = op.x.stride[0] = op.x.length * itemsize(x);
    op.weight = call.arguments() > 1 ? data(call.argument(1)) : nullptr;
    op.bias = call.arguments() > 2 ? data(call.argument(2)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.weight_dtype = op.bias_dtype = call.arguments() > 1 ? dtype_of(call.argument(1)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        GroupNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().group_norm(part);
    });
    return nullptr;
}

Wrong l2_norm(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    RmsNorm op{};
    op.by_length = true;
    op.x = rows_of(x);
    op.x_dtype = op.weight_dtype = dtype_of(x);
    op.eps = call.number("eps", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        RmsNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().rms_norm(part);
    });
    return nullptr;
}

}  // namespace

Handlers normalization_handlers() {
    return {
        {"rms_norm", handle<rms_norm<1>>},  {"add_rms_norm", handle<rms_norm<2>>}, {"layer_norm", handle<layer_norm>},
        {"group_norm", handle<group_norm>}, {"instance_norm", handle<group_norm>}, {"l2_norm", handle<l2_norm>},
    };
}

}  // namespace tensorops::xla
