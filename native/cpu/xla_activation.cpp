#include "xla_call.h"

namespace tensorops::xla {

namespace {

template <Function kFunction, int kArrays>
Wrong activation(const Call& call) {
    if (call.arguments() != kArrays || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, kArrays)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    const std::int64_t total = elements(x);
    if (total == 0) return nullptr;
    Activation op{};
    op.function = kFunction;
    op.alpha = call.number("alpha", call.number("negative_slope", 0));
    op.beta = call.number("beta", 0);
    op.dtype = dtype_of(x);
    const std::int64_t bytes = (1 + kArrays) * bytes_of(x);
    if (kArrays == 2 && (call.has_strides("gate") || call.has_strides("up"))) {
        op.x = rows_of(call, x, "gate");
        op.up = rows_of(call, call.argument(1), "up");
        over_threads(call, op.x.count, 1, bytes, [&](std::int64_t begin, std::int64_t end) {
            Activation part = op;
            take_part(part.x, begin, end);
            take_part(part.up, begin, end);
            part.y = data(y) + begin * length(x) * itemsize(y);
            target().activation(part);
        });
        return nullptr;
    }
    over_threads(call, total, 64, bytes, [&](std::int64_t begin, std::int64_t end) {
        Activation part = op;
        part.x = span_of(x, begin, end);
        if (kArrays == 2) part.up = span_of(call.argument(1), begin, end);
        part.y = data(y) + begin * itemsize(y);
        target().activation(part);
    });
    return nullptr;
}

template <Normalized kKind>
Wrong softmax(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    const std::int64_t total = elements(x);
    if (total == 0) return nullptr;
    const auto axes = static_cast<std::int64_t>(call.number("axes", 1));
    if (axes < 1 || axes > x.rank) return "another number of axes";
    Softmax op{};
    op.kind = kKind;
    op.x = rows_of(x, axes);
    op.dtype = dtype_of(x);
    op.y_dtype = dtype_of(y);
    const bool widened = itemsize(x) == 2 && op.y_dtype == Dtype::float32;
    const std::int64_t expected = kKind == Normalized::logsumexp ? op.x.count : total;
    if ((y.dtype != x.dtype && !widened) || elements(y) != expected) return "a result of another shape or dtype";
    const std::int64_t row = bytes_of(y) / op.x.count;
    over_threads(call, op.x.count, 1, bytes_of(x) + total * itemsize(y), [&](std::int64_t begin, std::int64_t end) {
        Softmax part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().softmax(part);
    });
    return nullptr;
}

}  // namespace

Handlers activation_handlers() {
    return {
        {"relu", handle<activation<Function::relu, 1>>},
        {"relu_squared", handle<activation<Function::relu_squared, 1>>},
        {"leaky_relu", handle<activation<Function::leaky_relu, 1>>},
        {"hard_sigmoid", handle<activation<Function::hard_sigmoid, 1>>},
        {"hard_swish", handle<activation<Function::hard_swish, 1>>},
        {"sigmoid", handle<activation<Function::sigmoid, 1>>},
        {"silu", handle<activation<Function::silu, 1>>},
        {"softplus", handle<activation<Function::softplus, 1>>},
        {"gelu", handle<activation<Function::gelu, 1>>},
        {"gelu_tanh", handle<activation<Function::gelu_tanh, 1>>},
        {"quick_gelu", handle<activation<Function::quick_gelu, 1>>},
        {"mish", handle<activation<Function::mish, 1>>},
        {"elu", handle<activation<Function::elu, 1>>},
        {"selu", handle<activation<Function::selu, 1>>},
        {"swiglu", handle<activation<Function::swiglu, 2>>},
        {"geglu", handle<activation<Function::geglu, 2>>},
        {"reglu", handle<activation<Function::reglu, 2>>},
        {"softmax", handle<softmax<Normalized::softmax>>},
        {"log_softmax", handle<softmax<Normalized::log_softmax>>},
        {"logsumexp", handle<softmax<Normalized::logsumexp>>},
    };
}

}  // namespace tensorops::xla
