// Normalization of rows, and of channels.
#include "checks.h"
#include "group_norm.h"
#include "line_norm.h"
#include "norm_vjp.h"
#include "targets.h"

namespace tensorops {
namespace {

// A weight or bias: not given, or `count` elements of any dtype, but for float64 with a narrower x.
Reason refuse_parameter(const char* name, const Array* p, const Array& x, std::int64_t count, const std::string& of_x) {
    if (!p) return {};
    if (p->ndim != 1 || p->shape[0] != count)
        return std::string(name) + " has " + std::to_string(p->size()) + " elements, but " + of_x + " has " +
               std::to_string(count);
    const bool is_wider = p->dtype == Dtype::float64 && x.dtype != Dtype::float64;
    return is_wider ? std::string(name) + " has dtype float64, and x a narrower one" : Reason{};
}

// The same for the axes along which lines go: their lengths are the parameter's shape.
Reason refuse_parameter(const char* name, const Array* p, const Array& x, std::uint32_t along) {
    if (!p) return {};
    std::int64_t shape[kMaxAxes];
    int axes = 0, axis = 0;
    for (int d = 0; d < x.ndim; ++d)
        if (along >> d & 1) shape[axes++] = x.shape[axis = d];
    if (axes == 1) return refuse_parameter(name, p, x, shape[0], "axis " + std::to_string(axis) + " of x");
    if (!p->has_shape(axes, shape)) return std::string(name) + " has another shape than the axes of x";
    const bool is_wider = p->dtype == Dtype::float64 && x.dtype != Dtype::float64;
    return is_wider ? std::string(name) + " has dtype float64, and x a narrower one" : Reason{};
}

Reason refuse_residual(const Array& residual, const Array& x) {
    if (residual.dtype != x.dtype) return "residual has another dtype than x";
    return residual.has_shape(x) ? Reason{} : "residual has another shape than x";
}

// Lines of x along one or several axes, in the order in which x has them in memory. Several must be one run of memory,
// along which parameters of them would be.
class Along {
  public:
    Along(const Array& x, std::uint32_t axes) : order_(memory_order(x)), axes_(axes) {}

    Reason refuse(const Array& x, bool has_parameters) const {
        if ((axes_ & (axes_ - 1)) == 0) return {};
        Lines lines;
        constexpr std::int64_t none[kMaxAxes] = {};
        if (!find_lines(lines, x, axes_, order_, none)) return "the axes of x are not one run of memory";
        int last = -1;
        for (int i = 0; i < x.ndim && has_parameters; ++i) {
            const int d = order_.axes[i];
            if (!(axes_ >> d & 1) || x.shape[d] == 1) continue;
            if (d < last) return "the axes of x are in another order in memory";
            last = d;
        }
        return {};
    }
    // A result of the shape of x
    Result result(Array& y, const Array& x) const {
        Result made{y, x};
        if (!order_.is_usual) made.order = order_.axes;
        return made;
    }
    // False if the axes of the lines of x or y are not one run of memory.
    bool find(Lines& lines, const Array& x, const Array& y) const {
        std::int64_t strides[kMaxAxes];
        for (int d = 0; d < x.ndim; ++d) strides[d] = y.stride(d);
        if (!find_lines(lines, x, axes_, order_, strides)) return false;
        if (lines.length == 1) lines.step = {x.item(), x.item()};
        lines.x = x.data;
        lines.y = y.data;
        return true;
    }

  private:
    Order order_;
    std::uint32_t axes_;
};

// Whether a result is one of rows that may be written past the caches
bool may_stream(const Call& call, const Lines& lines, const Array& y) {
    return call.streams && y.bytes() >= kStreamBytes && !y.strides && lines.step.y == y.item() &&
           lines.length * y.item() % 64 == 0;
}

constexpr const char* kApart = "the axes of the arrays are not one run of memory";

// Makes the result, after the sum with a residual if there is one, and computes both.
Reason normalize(Call& call, LineNorm& op, const Array& x, std::uint32_t along, const Array* residual,
                 const Array* weight, const Array* bias) {
    const Along lines(x, along);
    Array y, sum;
    Result of_sum = lines.result(sum, x);
    of_sum.is_wanted = residual;
    if (Reason reason = lines.refuse(x, weight || bias); !reason.empty()) return reason;
    if (!(residual ? call.make({lines.result(y, x), of_sum}) : call.make({lines.result(y, x)}))) return call.reason;
    if (x.size() == 0) return {};
    if (!lines.find(op.lines, x, y)) return kApart;
    if (residual && !lines.find(op.sums, *residual, sum)) return kApart;
    const bool differ =
        weight && bias && (weight->dtype != bias->dtype || !weight->is_contiguous() || !bias->is_contiguous());
    const RowParameter scale(weight, x, differ), shift(bias, x, differ);
    op.weight = scale.data();
    op.bias = shift.data();
    op.x_dtype = x.dtype;
    op.parameter_dtype = weight ? scale.dtype() : bias ? shift.dtype() : x.dtype;
    op.streaming = may_stream(call, op.lines, y);
    const auto cut = [](LineNorm& part, std::int64_t begin, std::int64_t end) {
        part.lines.take_part(begin, end);
        part.sums.take_part(begin, end);
    };
    const auto kernel = op.norm == Norm::deviation ? target().layer_norm : target().rms_norm;
    call.compute_parts(kernel, op, op.lines.count, 1, x.bytes(), cut);
    return {};
}

// One axis
std::uint32_t read_axis(Reader& in, const Array& x, const char* name = "x") {
    const std::uint32_t along = in.axes(x, name);
    in.require((along & (along - 1)) == 0, "axis is not one axis");
    return along;
}

}  // namespace

TENSOROPS_OPERATOR(rms_norm, "x, weight=None, eps=1e-06, *, axis=-1, weight_offset=0.0") {
    Reader in(call);
    const Array& x = in.array();
    const Array* weight = in.optional();
    LineNorm op{};
    op.norm = Norm::root_mean_square;
    op.eps = in.nonnegative();
    const std::uint32_t along = read_axis(in, x);
    op.weight_offset = in.finite();
    if (!in.require(refuse_parameter("weight", weight, x, along))) return in.reason;
    return normalize(call, op, x, along, nullptr, weight, nullptr);
}

TENSOROPS_OPERATOR(add_rms_norm, "x, residual, weight=None, eps=1e-06, *, axis=-1 -> y, sum") {
    Reader in(call);
    const Array &x = in.array(), &residual = in.array();
    const Array* weight = in.optional();
    LineNorm op{};
    op.norm = Norm::root_mean_square;
    op.eps = in.nonnegative();
    const std::uint32_t along = read_axis(in, x);
    in.require(refuse_residual(residual, x));
    if (!in.require(refuse_parameter("weight", weight, x, along))) return in.reason;
    return normalize(call, op, x, along, &residual, weight, nullptr);
}

TENSOROPS_OPERATOR(l2_norm, "x, eps=1e-12, *, axis=-1") {
    Reader in(call);
    const Array& x = in.array();
    LineNorm op{};
    op.norm = Norm::length;
    op.eps = in.nonnegative();
    const std::uint32_t along = in.axes(x, "x");
    return in.failed() ? in.reason : normalize(call, op, x, along, nullptr, nullptr, nullptr);
}

TENSOROPS_OPERATOR(layer_norm, "x, weight=None, bias=None, eps=1e-05, *, axis=-1") {
    Reader in(call);
    const Array& x = in.array();
    const Array *weight = in.optional(), *bias = in.optional();
    LineNorm op{};
    op.norm = Norm::deviation;
    op.eps = in.nonnegative();
    const std::uint32_t along = in.axes(x, "x");
    in.require(refuse_parameter("weight", weight, x, along));
    if (!in.require(refuse_parameter("bias", bias, x, along))) return in.reason;
    return normalize(call, op, x, along, nullptr, weight, bias);
}

TENSOROPS_OPERATOR(add_layer_norm, "x, residual, weight=None, bias=None, eps=1e-05, *, axis=-1 -> y, sum") {
    Reader in(call);
    const Array &x = in.array(), &residual = in.array();
    const Array *weight = in.optional(), *bias = in.optional();
    LineNorm op{};
    op.norm = Norm::deviation;
    op.eps = in.nonnegative();
    const std::uint32_t along = read_axis(in, x);
    in.require(refuse_residual(residual, x));
    in.require(refuse_parameter("weight", weight, x, along));
    if (!in.require(refuse_parameter("bias", bias, x, along))) return in.reason;
    return normalize(call, op, x, along, &residual, weight, bias);
}

// ----------------------------------------------------------------------------------------- their derivatives

namespace {

Reason refuse_cotangent(const char* name, const Array& dy, const Array& x) {
    if (dy.dtype != x.dtype) return std::string(name) + " has another dtype than x";
    return dy.has_shape(x) ? Reason{} : std::string(name) + " has another shape than x";
}

struct NormGradients {
    const Array& x;
    const Array *weight, *bias;
    std::int64_t wanted;  // a bit for each result: of x, weight and bias
    double offset = 0;
};

Reason refuse_narrow(const NormGradients& of) {
    for (const auto& [name, p] : {std::pair{"weight", of.weight}, std::pair{"bias", of.bias}})
        if (p && (p->dtype == Dtype::float64) != (of.x.dtype == Dtype::float64))
            return std::string(name) + " has another dtype than x";
    return {};
}

// Makes the results, of which that of x is `of_x` unless it is not wanted, and sets all of op but the lines; false if
// the call ends here.
bool make_gradients(Call& call, NormVjp& op, const NormGradients& of, Result of_x, const RowParameter& weight) {
    Array dweight{}, dbias{};
    of_x.is_wanted = (of.wanted & 1) != 0;
    if (!call.make({of_x, {dweight, of.weight, (of.wanted & 2) != 0}, {dbias, of.bias, (of.wanted & 4) != 0}}))
        return false;
    op.dtype = of.x.dtype;
    op.weight = weight.data();
    op.weight_dtype = of.weight ? weight.dtype() : of.x.dtype;
    op.weight_offset = of.weight ? of.offset : 0;
    op.dweight = dweight.data;
    op.dbias = dbias.data;
    op.dweight_dtype = dweight.dtype;
    op.dbias_dtype = dbias.dtype;
    return true;
}

Reason differentiate(Call& call, NormVjp& op, const NormGradients& of, const Array& dy, const Array* dsum,
                     std::uint32_t along) {
    const Array& x = of.x;
    if (Reason reason = refuse_cotangent("dy", dy, x); !reason.empty()) return reason;
    if (Reason reason = refuse_parameter("weight", of.weight, x, along); !reason.empty()) return reason;
    if (Reason reason = refuse_parameter("bias", of.bias, x, along); !reason.empty()) return reason;
    if (Reason reason = refuse_narrow(of); !reason.empty()) return reason;
    const Along lines(x, along);
    if (Reason reason = lines.refuse(x, of.weight || of.bias); !reason.empty()) return reason;
    Lines of_dy;
    if (!lines.find(op.lines, x, x) || !lines.find(of_dy, dy, dy)) return kApart;
    const RowParameter weight(of.weight, x);
    Array dx{};
    if (!make_gradients(call, op, of, lines.result(dx, x), weight)) return call.reason;
    op.groups = op.span = 1;
    op.dy = of_dy;
    op.lines.y = nullptr;
    if (dx.data && !lines.find(op.lines, x, dx)) return kApart;
    if (dsum && !lines.find(op.dsum, *dsum, *dsum)) return kApart;
    op.streaming = dx.data && may_stream(call, op.lines, dx);
    call.compute(x.bytes(), [&op] { target().norm_vjp(op); });
    return {};
}

// The same of a sum that is a result, too.
Reason differentiate_sum(Call& call, Norm norm) {
    Reader in(call);
    NormVjp op{};
    op.norm = norm;
    const Array& sum = in.array();
    const Array *weight = in.optional(), *bias = norm == Norm::deviation ? in.optional() : nullptr;
    const Array &dy = in.array(), &dsum = in.array();
    op.eps = in.nonnegative();
    const std::uint32_t along = read_axis(in, sum, "sum");
    const std::int64_t wanted = in.integer();
    if (!in.require(refuse_cotangent("dsum", dsum, sum))) return in.reason;
    return differentiate(call, op, {sum, weight, bias, wanted}, dy, &dsum, along);
}

}  // namespace

TENSOROPS_OPERATOR(rms_norm_vjp, "x, weight, dy, eps=1e-06, *, axis=-1, weight_offset=0.0, wanted=-1 -> dx, dweight") {
    Reader in(call);
    NormVjp op{};
    op.norm = Norm::root_mean_square;
    const Array& x = in.array();
    const Array* weight = in.optional();
    const Array& dy = in.array();
    op.eps = in.nonnegative();
    const std::uint32_t along = read_axis(in, x);
    const double offset = in.finite();
    const std::int64_t wanted = in.integer();
    if (in.failed()) return in.reason;
    return differentiate(call, op, {x, weight, nullptr, wanted, offset}, dy, nullptr, along);
}

TENSOROPS_OPERATOR(add_rms_norm_vjp,
                   "sum, weight, dy, dsum, eps=1e-06, *, axis=-1, wanted=-1 -> dx=dresidual, dweight") {
    return differentiate_sum(call, Norm::root_mean_square);
}

TENSOROPS_OPERATOR(add_layer_norm_vjp,
                   "sum, weight, bias, dy, dsum, eps=1e-05, *, axis=-1, wanted=-1 -> dx=dresidual, dweight, dbias") {
    return differentiate_sum(call, Norm::deviation);
}

TENSOROPS_OPERATOR(l2_norm_vjp, "x, dy, eps=1e-12, *, axis=-1 -> dx") {
    Reader in(call);
    NormVjp op{};
    op.norm = Norm::length;
    const Array &x = in.array(), &dy = in.array();
    op.eps = in.nonnegative();
    const std::uint32_t along = in.axes(x, "x");
    return in.failed() ? in.reason : differentiate(call, op, {x, nullptr, nullptr, 1}, dy, nullptr, along);
}

TENSOROPS_OPERATOR(layer_norm_vjp, "x, weight, bias, dy, eps=1e-05, *, axis=-1, wanted=-1 -> dx, dweight, dbias") {
    Reader in(call);
    NormVjp op{};
    op.norm = Norm::deviation;
    const Array& x = in.array();
    const Array *weight = in.optional(), *bias = in.optional();
    const Array& dy = in.array();
    op.eps = in.nonnegative();
    const std::uint32_t along = in.axes(x, "x");
    const std::int64_t wanted = in.integer();
    if (in.failed()) return in.reason;
    return differentiate(call, op, {x, weight, bias, wanted}, dy, nullptr, along);
}

// ---------------------------------------------------------------------------------------- of channels

namespace {

// The groups of every element of a batch as rows
Rows groups_of(const Array& x, std::int64_t groups) {
    Rows rows{};
    rows.data = x.data;
    rows.count = 1;
    rows.length = x.size_from(1) / groups;
    add_axis(rows, x.shape[0], x.stride(0));
    add_axis(rows, groups, rows.length * x.item());
    return rows;
}

// Without a number of groups, each channel is one.
Reason normalize_groups(Call& call, Reader& in, const Array& x, const std::int64_t* num_groups, const Array* weight,
                        const Array* bias) {
    GroupNorm op{};
    op.eps = in.nonnegative();
    const std::int64_t axis = in.integer();
    if (in.failed()) return in.reason;
    if (x.ndim < 2) return "x has fewer than 2 dimensions";
    if (axis != 1 && axis != 1 - x.ndim) return "channel_axis " + std::to_string(axis) + " is not the second of x";
    if (!x.is_contiguous_from(1)) return "x is not contiguous from its second axis on";
    const std::int64_t channels = x.shape[1];
    const std::int64_t groups = num_groups ? *num_groups : channels;
    for (const auto& [name, p] : {std::pair{"weight", weight}, std::pair{"bias", bias}})
        if (Reason reason = refuse_parameter(name, p, x, channels, "axis 1 of x"); !reason.empty()) return reason;
    if (num_groups && (groups < 1 || channels % groups != 0))
        return "num_groups does not divide the " + std::to_string(channels) + " channels of x";
    Array y;
    if (!call.make({{y, x}})) return call.reason;
    if (x.size() == 0) return {};
    op.groups = groups;
    op.span = x.size_from(2);
    op.x = groups_of(x, groups);
    op.y = y.data;
    op.x_dtype = x.dtype;
    if (weight) {
        op.weight = weight->data;
        op.weight_dtype = weight->dtype;
    }
    if (bias) {
        op.bias = bias->data;
        op.bias_dtype = bias->dtype;
    }
    op.streaming = call.streams && x.bytes() >= kStreamBytes && op.x.length * x.item() % 64 == 0;
    const auto cut = [row = op.x.length * x.item()](GroupNorm& part, std::int64_t begin, std::int64_t end) {
        take_part(part.x, begin, end);
        part.y += begin * row;
    };
    call.compute_parts(target().group_norm, op, op.x.count, 1, x.bytes(), cut);
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(group_norm, "x, num_groups, weight=None, bias=None, eps=1e-05, *, channel_axis=1") {
    Reader in(call);
    const Array& x = in.array();
    const std::int64_t groups = in.integer();
    const Array *weight = in.optional(), *bias = in.optional();
    return normalize_groups(call, in, x, &groups, weight, bias);
}

TENSOROPS_OPERATOR(instance_norm, "x, weight=None, bias=None, eps=1e-05, *, channel_axis=1") {
    Reader in(call);
    const Array& x = in.array();
    const Array *weight = in.optional(), *bias = in.optional();
    return normalize_groups(call, in, x, nullptr, weight, bias);
}

namespace {

Reason differentiate_groups(Call& call, Reader& in, const Array& x, const std::int64_t* num_groups, const Array* weight,
                            const Array* bias, const Array& dy) {
    NormVjp op{};
    op.norm = Norm::deviation;
    op.eps = in.nonnegative();
    const std::int64_t axis = in.integer(), wanted = in.integer();
    if (in.failed()) return in.reason;
    if (x.ndim < 2) return "x has fewer than 2 dimensions";
    if (axis != 1 && axis != 1 - x.ndim) return "channel_axis " + std::to_string(axis) + " is not the second of x";
    if (!x.is_contiguous_from(1) || !dy.is_contiguous_from(1)) return "x or dy is not contiguous from axis 1 on";
    const std::int64_t channels = x.shape[1], groups = num_groups ? *num_groups : channels;
    if (x.size() == 0) return "x is empty";
    if (groups < 1 || channels % groups != 0)
        return "num_groups does not divide the " + std::to_string(channels) + " channels of x";
    const NormGradients of{x, weight, bias, wanted};
    if (Reason reason = refuse_cotangent("dy", dy, x); !reason.empty()) return reason;
    for (const auto& [name, p] : {std::pair{"weight", weight}, std::pair{"bias", bias}})
        if (Reason reason = refuse_parameter(name, p, x, channels, "axis 1 of x"); !reason.empty()) return reason;
    if (Reason reason = refuse_narrow(of); !reason.empty()) return reason;
    const RowParameter scale(weight, x);
    Array dx{};
    if (!make_gradients(call, op, of, Result(dx, x), scale)) return call.reason;
    op.span = x.size_from(2);
    op.groups = groups;
    op.lines = lines_of(groups_of(x, groups), dx.data, x.item());
    op.dy = lines_of(groups_of(dy, groups), nullptr, x.item());
    op.streaming = dx.data && may_stream(call, op.lines, dx);
    call.compute(x.bytes(), [&op] { target().norm_vjp(op); });
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(group_norm_vjp,
                   "x, num_groups, weight, bias, dy, eps=1e-05, *, channel_axis=1, wanted=-1 -> dx, dweight, dbias") {
    Reader in(call);
    const Array& x = in.array();
    const std::int64_t groups = in.integer();
    const Array *weight = in.optional(), *bias = in.optional();
    const Array& dy = in.array();
    return differentiate_groups(call, in, x, &groups, weight, bias, dy);
}

TENSOROPS_OPERATOR(instance_norm_vjp,
                   "x, weight, bias, dy, eps=1e-05, *, channel_axis=1, wanted=-1 -> dx, dweight, dbias") {
    Reader in(call);
    const Array& x = in.array();
    const Array *weight = in.optional(), *bias = in.optional();
    const Array& dy = in.array();
    return differentiate_groups(call, in, x, nullptr, weight, bias, dy);
}

}  // namespace tensorops
