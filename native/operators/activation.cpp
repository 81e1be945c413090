// Elementwise functions, gated units, and functions along the last axes.
#include "activation.h"

#include "activation_vjp.h"
#include "checks.h"
#include "lines.h"
#include "softmax.h"
#include "softmax_vjp.h"
#include "targets.h"

namespace tensorops {
namespace {

// A contiguous array is one row: elements then go to threads whatever the shape.
Rows elements_of(const Array& a) {
    Rows rows{};
    rows.data = a.data;
    rows.count = 1;
    rows.length = a.size();
    return rows;
}

// The order in which elementwise functions of arrays of one shape go, and whether all of these are dense in it
struct Way {
    Order order;
    bool is_flat;

    // The caller may have made the result C-contiguous all the same.
    Way(const Array& y, const Order& wanted, std::initializer_list<const Array*> arrays)
        : order(y.strides ? wanted : Order{{0, 1, 2, 3, 4, 5, 6, 7}, true}), is_flat(true) {
        static_assert(kMaxAxes == 8);
        for (const Array* a : arrays) is_flat &= !a || is_dense(*a, order);
    }
    Rows rows(const Array& a) const { return is_flat ? elements_of(a) : elements_in_order(a, order); }
    // Whether a result may be written past the caches, row by row
    bool may_stream(const Rows& x, const Rows& other, std::int64_t item) const {
        return is_flat || (x.length * item % 64 == 0 && x.are_neighbours() && other.are_neighbours());
    }
};

Reason activate(Call& call, Activation& op, const Array& x, const Array* up = nullptr) {
    const Order order = memory_order(x);
    Array y;
    Result result{y, x};
    if (!order.is_usual) result.order = order.axes;
    if (!call.make({result})) return call.reason;
    const std::int64_t bytes = x.bytes(), item = x.item();
    if (bytes == 0) return {};
    const Way way(y, order, {&x, up});
    const bool flat = way.is_flat;  // one row, which is cut by elements
    op.x = way.rows(x);
    if (up) op.up = way.rows(*up);
    op.y = y.data;
    op.dtype = x.dtype;
    op.streaming = call.streams && bytes >= kStreamBytes && way.may_stream(op.x, op.up, item);
    const auto cut = [flat, item](Activation& part, std::int64_t begin, std::int64_t end) {
        part.y += begin * (flat ? 1 : part.x.length) * item;
        for (Rows* rows : {&part.x, &part.up}) {
            if (!flat) {
                take_part(*rows, begin, end);
            } else if (rows->data) {
                rows->data += begin * item;
                rows->length = end - begin;
            }
        }
    };
    call.compute_parts(target().activation, op, flat ? op.x.length : op.x.count, flat ? 64 : 1, bytes, cut);
    return {};
}

// A function of one array, and of up to two numbers
Reason unary(Call& call, Function function) {
    Reader in(call);
    Activation op{};
    op.function = function;
    const Array& x = in.array();
    for (double* parameter : {&op.alpha, &op.beta})
        if (in.has_more()) *parameter = in.finite();
    return in.failed() ? in.reason : activate(call, op, x);
}

Reason gated(Call& call, Function function) {
    Reader in(call);
    Activation op{};
    op.function = function;
    const Array &gate = in.array(), &up = in.array();
    in.require(gate.dtype == up.dtype, "gate and up differ in dtype");
    in.require(gate.has_shape(up), "gate and up differ in shape");
    return in.failed() ? in.reason : activate(call, op, gate, &up);
}

}  // namespace

TENSOROPS_OPERATOR(relu, "x") { return unary(call, Function::relu); }
TENSOROPS_OPERATOR(relu_squared, "x") { return unary(call, Function::relu_squared); }
TENSOROPS_OPERATOR(sigmoid, "x") { return unary(call, Function::sigmoid); }
TENSOROPS_OPERATOR(silu, "x") { return unary(call, Function::silu); }
TENSOROPS_OPERATOR(softplus, "x") { return unary(call, Function::softplus); }
TENSOROPS_OPERATOR(mish, "x") { return unary(call, Function::mish); }
TENSOROPS_OPERATOR(hard_swish, "x") { return unary(call, Function::hard_swish); }
TENSOROPS_OPERATOR(selu, "x") { return unary(call, Function::selu); }
TENSOROPS_OPERATOR(quick_gelu, "x, *, alpha=1.702") { return unary(call, Function::quick_gelu); }
TENSOROPS_OPERATOR(elu, "x, *, alpha=1.0") { return unary(call, Function::elu); }
TENSOROPS_OPERATOR(leaky_relu, "x, *, negative_slope=0.01") { return unary(call, Function::leaky_relu); }
TENSOROPS_OPERATOR(hard_sigmoid, "x, *, alpha=0.16666666666666666, beta=0.5") {
    return unary(call, Function::hard_sigmoid);
}
TENSOROPS_OPERATOR(squareplus, "x, *, b=4.0") {
    Reader in(call);
    Activation op{};
    op.function = Function::squareplus;
    const Array& x = in.array();
    op.alpha = in.finite();
    const double root = std::sqrt(op.alpha);
    in.require(root > 0, "b is not a positive number");
    in.require(x.dtype == Dtype::float64 || std::isnormal(static_cast<float>(root)),
               "b is beyond the range of float32");
    return in.failed() ? in.reason : activate(call, op, x);
}
TENSOROPS_OPERATOR(swiglu, "gate, up") { return gated(call, Function::swiglu); }
TENSOROPS_OPERATOR(geglu, "gate, up") { return gated(call, Function::geglu); }
TENSOROPS_OPERATOR(reglu, "gate, up") { return gated(call, Function::reglu); }

TENSOROPS_OPERATOR(gelu, "x, *, approximate='none'") {
    Reader in(call);
    Activation op{};
    const Array& x = in.array();
    op.function = in.choice({"none", "tanh"}) == 0 ? Function::gelu : Function::gelu_tanh;
    return in.failed() ? in.reason : activate(call, op, x);
}

// ------------------------------------------------------------------------------------------- their derivatives

namespace {

Reason differentiate(Call& call, ActivationVjp& op, const Array& x, const Array& dy, const Array* up = nullptr) {
    const Order order = memory_order(x);
    Array dx, dup{};
    Result of_x{dx, x}, of_up{dup, up, true};
    if (!order.is_usual) of_x.order = of_up.order = order.axes;
    if (!call.make({of_x, of_up})) return call.reason;
    const std::int64_t bytes = x.bytes(), item = x.item();
    if (bytes == 0) return {};
    const Way way(dx, order, {&x, &dy, up});
    op.x = way.rows(x);
    op.dy = way.rows(dy);
    if (up) op.up = way.rows(*up);
    op.dx = dx.data;
    op.dup = dup.data;
    op.dtype = x.dtype;
    op.streaming = call.streams && bytes >= kStreamBytes && way.may_stream(op.x, op.dy, item) && op.up.are_neighbours();
    call.compute(bytes, [&op] { target().activation_vjp(op); });
    return {};
}

Reason refuse_cotangent(const Array& dy, const Array& of, const char* name = "dy") {
    if (dy.dtype != of.dtype) return std::string(name) + " has another dtype than the result";
    return dy.has_shape(of) ? Reason{} : std::string(name) + " has another shape than the result";
}

Reason unary_vjp(Call& call, Function function) {
    Reader in(call);
    ActivationVjp op{};
    op.function = function;
    const Array &x = in.array(), &dy = in.array();
    for (double* parameter : {&op.alpha, &op.beta})
        if (in.has_more()) *parameter = in.finite();
    return in.require(refuse_cotangent(dy, x)) ? differentiate(call, op, x, dy) : in.reason;
}

Reason gated_vjp(Call& call, Function function) {
    Reader in(call);
    ActivationVjp op{};
    op.function = function;
    const Array &gate = in.array(), &up = in.array(), &dy = in.array();
    in.require(gate.dtype == up.dtype, "gate and up differ in dtype");
    in.require(gate.has_shape(up), "gate and up differ in shape");
    return in.require(refuse_cotangent(dy, gate)) ? differentiate(call, op, gate, dy, &up) : in.reason;
}

}  // namespace

TENSOROPS_OPERATOR(relu_vjp, "x, dy -> dx") { return unary_vjp(call, Function::relu); }
TENSOROPS_OPERATOR(relu_squared_vjp, "x, dy -> dx") { return unary_vjp(call, Function::relu_squared); }
TENSOROPS_OPERATOR(sigmoid_vjp, "x, dy -> dx") { return unary_vjp(call, Function::sigmoid); }
TENSOROPS_OPERATOR(silu_vjp, "x, dy -> dx") { return unary_vjp(call, Function::silu); }
TENSOROPS_OPERATOR(softplus_vjp, "x, dy -> dx") { return unary_vjp(call, Function::softplus); }
TENSOROPS_OPERATOR(mish_vjp, "x, dy -> dx") { return unary_vjp(call, Function::mish); }
TENSOROPS_OPERATOR(hard_swish_vjp, "x, dy -> dx") { return unary_vjp(call, Function::hard_swish); }
TENSOROPS_OPERATOR(selu_vjp, "x, dy -> dx") { return unary_vjp(call, Function::selu); }
TENSOROPS_OPERATOR(quick_gelu_vjp, "x, dy, *, alpha=1.702 -> dx") { return unary_vjp(call, Function::quick_gelu); }
TENSOROPS_OPERATOR(elu_vjp, "x, dy, *, alpha=1.0 -> dx") { return unary_vjp(call, Function::elu); }
TENSOROPS_OPERATOR(leaky_relu_vjp, "x, dy, *, negative_slope=0.01 -> dx") {
    return unary_vjp(call, Function::leaky_relu);
}
TENSOROPS_OPERATOR(hard_sigmoid_vjp, "x, dy, *, alpha=0.16666666666666666, beta=0.5 -> dx") {
    return unary_vjp(call, Function::hard_sigmoid);
}
TENSOROPS_OPERATOR(squareplus_vjp, "x, dy, *, b=4.0 -> dx") {
    if (call.values[2].kind == Value::number && !(call.values[2].as_number > 0)) return "b is not a positive number";
    return unary_vjp(call, Function::squareplus);
}
TENSOROPS_OPERATOR(gelu_vjp, "x, dy, *, approximate='none' -> dx") {
    Reader in(call);
    ActivationVjp op{};
    const Array &x = in.array(), &dy = in.array();
    op.function = in.choice({"none", "tanh"}) == 0 ? Function::gelu : Function::gelu_tanh;
    return in.require(refuse_cotangent(dy, x)) ? differentiate(call, op, x, dy) : in.reason;
}
TENSOROPS_OPERATOR(swiglu_vjp, "gate, up, dy -> dgate, dup") { return gated_vjp(call, Function::swiglu); }
TENSOROPS_OPERATOR(geglu_vjp, "gate, up, dy -> dgate, dup") { return gated_vjp(call, Function::geglu); }
TENSOROPS_OPERATOR(reglu_vjp, "gate, up, dy -> dgate, dup") { return gated_vjp(call, Function::reglu); }

// ------------------------------------------------------------------------------------- along the last axes

namespace {

Reason refuse_widening(const Array& x, Dtype dtype) {
    const bool widens = is_half(x.dtype) && dtype == Dtype::float32;
    return dtype == x.dtype || widens ? Reason{} : "dtype is neither the dtype of x nor, for half types, float32";
}

// `shape` is the result's, which for logsumexp has no axis of those in `along`, or one element for each.
Reason normalize(Call& call, Normalized kind, const Array& x, std::uint32_t along, Dtype dtype, int ndim,
                 const std::int64_t* shape) {
    const bool of_sums = kind == Normalized::logsumexp;
    const Order order = memory_order(x);
    Array y;
    Result result{y, ndim, shape, dtype};
    if (!of_sums && !order.is_usual) result.order = order.axes;
    std::int64_t strides[kMaxAxes] = {};
    Softmax op{};
    constexpr const char* kApart = "the axes of x are not one run of memory";
    if ((along & (along - 1)) != 0 && !find_lines(op.lines, x, along, order, strides)) return kApart;
    if (!call.make({result})) return call.reason;
    const std::int64_t item = y.item(), bytes = x.size() * item;
    if (bytes == 0) return {};
    for (int d = 0, of_y = 0; d < x.ndim; ++d) {
        const bool is_along = along >> d & 1;
        strides[d] = of_sums && is_along ? 0 : y.stride(of_y);
        of_y += !(of_sums && is_along && ndim < x.ndim);
    }
    op.kind = kind;
    if (!find_lines(op.lines, x, along, order, strides)) return kApart;
    op.lines.x = x.data;
    op.lines.y = y.data;
    op.dtype = x.dtype;
    op.y_dtype = dtype;
    op.streaming = call.streams && bytes >= kStreamBytes && !y.strides && op.lines.step.y == item &&
                   op.lines.length * item % 64 == 0;
    const auto cut = [](Softmax& part, std::int64_t begin, std::int64_t end) { part.lines.take_part(begin, end); };
    call.compute_parts(target().softmax, op, op.lines.count, 1, bytes, cut);
    return {};
}

Reason softmax_of(Call& call, Normalized kind) {
    Reader in(call);
    const Array& x = in.array();
    const std::uint32_t along = in.axes(x, "x");
    const bool has_where = in.value().kind != Value::none;
    const Dtype dtype = in.dtype(x.dtype);
    if (!in.require(refuse_widening(x, dtype)) || !in.require(!has_where, "where is given")) return in.reason;
    return normalize(call, kind, x, along, dtype, x.ndim, x.shape);
}

}  // namespace

TENSOROPS_OPERATOR(softmax, "x, *, axis=-1, where=None, dtype=None") { return softmax_of(call, Normalized::softmax); }
TENSOROPS_OPERATOR(log_softmax, "x, *, axis=-1, where=None, dtype=None") {
    return softmax_of(call, Normalized::log_softmax);
}

TENSOROPS_OPERATOR(logsumexp, "x, *, axis=-1, keepdims=False, where=None, b=None, return_sign=False, dtype=None") {
    Reader in(call);
    const Array& x = in.array();
    const std::uint32_t along = in.axes(x, "x");
    const bool keepdims = in.flag(), has_where = in.value().kind != Value::none, has_b = in.value().kind != Value::none;
    in.require(!has_where, "where is given");
    in.require(!has_b, "b is given");
    in.require(!in.flag(), "return_sign is given");
    const Dtype dtype = in.dtype(x.dtype);
    if (!in.require(refuse_widening(x, dtype))) return in.reason;
    std::int64_t shape[kMaxAxes];
    int ndim = 0;
    for (int d = 0; d < x.ndim; ++d) {
        const bool is_along = along >> d & 1;
        if (is_along && x.shape[d] == 0) return "an axis of x along which it reduces is empty";
        if (!is_along || keepdims) shape[ndim++] = is_along ? 1 : x.shape[d];
    }
    return normalize(call, Normalized::logsumexp, x, along, dtype, ndim, shape);
}

namespace {

// `y` is x for logsumexp, of whose sums dy is the cotangent: without the axes of a line, or with a length of 1 there
Reason differentiate(Call& call, Normalized kind, const Array& y, const Array& dy, std::uint32_t along) {
    const bool of_sums = kind == Normalized::logsumexp;
    const Order order = memory_order(y);
    SoftmaxVjp op{};
    op.kind = kind;
    std::int64_t strides[kMaxAxes] = {}, of_dy[kMaxAxes];
    for (int d = 0, axis = 0; d < y.ndim; ++d) {
        const bool is_along = along >> d & 1;
        of_dy[d] = of_sums && is_along ? 0 : dy.stride(axis);
        axis += !(of_sums && is_along && dy.ndim < y.ndim);
    }
    const Array shaped{dy.data, y.shape, of_dy, y.dtype, y.ndim};
    constexpr const char* kApart = "the axes of the arrays are not one run of memory";
    if (!find_lines(op.lines, y, along, order, strides) || !find_lines(op.dy, shaped, along, order, strides))
        return kApart;
    Array dx;
    Result result{dx, y};
    if (!order.is_usual) result.order = order.axes;
    if (!call.make({result})) return call.reason;
    if (y.size() == 0) return {};
    for (int d = 0; d < y.ndim; ++d) strides[d] = dx.stride(d);
    if (!find_lines(op.lines, y, along, order, strides)) return kApart;
    op.lines.x = y.data;
    op.lines.y = dx.data;
    op.dy.x = dy.data;
    op.dtype = y.dtype;
    op.streaming = call.streams && y.bytes() >= kStreamBytes && !dx.strides && op.lines.step.y == y.item() &&
                   op.lines.length * y.item() % 64 == 0;
    call.compute(y.bytes(), [&op] { target().softmax_vjp(op); });
    return {};
}

Reason softmax_vjp_of(Call& call, Normalized kind) {
    Reader in(call);
    const Array &y = in.array(), &dy = in.array();
    const std::uint32_t along = in.axes(y, "y");
    return in.require(refuse_cotangent(dy, y)) ? differentiate(call, kind, y, dy, along) : in.reason;
}

}  // namespace

TENSOROPS_OPERATOR(softmax_vjp, "y, dy, *, axis=-1 -> dx") { return softmax_vjp_of(call, Normalized::softmax); }
TENSOROPS_OPERATOR(log_softmax_vjp, "y, dy, *, axis=-1 -> dx") { return softmax_vjp_of(call, Normalized::log_softmax); }

TENSOROPS_OPERATOR(logsumexp_vjp, "x, dy, *, axis=-1 -> dx") {
    Reader in(call);
    const Array &x = in.array(), &dy = in.array();
    const std::uint32_t along = in.axes(x, "x");
    in.require(dy.dtype == x.dtype, "dy has another dtype than x");
    if (in.failed()) return in.reason;
    bool fits = dy.ndim == x.ndim || dy.ndim == x.ndim - __builtin_popcount(along);
    for (int d = 0, axis = 0; fits && d < x.ndim; ++d) {
        const bool is_along = along >> d & 1;
        if (is_along && dy.ndim < x.ndim) continue;
        fits = dy.shape[axis++] == (is_along ? 1 : x.shape[d]);
    }
    return fits ? differentiate(call, Normalized::logsumexp, x, dy, along) : "dy has another shape than y";
}

}  // namespace tensorops
