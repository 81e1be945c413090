// Layers with a state.
#include <cmath>

#include "causal_conv1d.h"
#include "checks.h"
#include "gated_delta_rule.h"
#include "targets.h"

namespace tensorops {
namespace {

// float64 besides narrower arrays would have to be computed in float64.
Reason refuse_wider(const char* name, const Array* a, const Array& x, const char* x_name) {
    if (!a || a->dtype != Dtype::float64 || x.dtype == Dtype::float64) return {};
    return std::string(name) + " has dtype float64, and " + x_name + " a narrower one";
}

// The type in which a dtype is computed
Dtype wide(Dtype dtype) { return dtype == Dtype::float64 ? dtype : Dtype::float32; }

Reason refuse_shape(const char* name, const Array& a, std::initializer_list<std::int64_t> shape) {
    if (a.has_shape(static_cast<int>(shape.size()), shape.begin())) return {};
    return std::string(name) + " has another shape than the other arrays need";
}

// ---------------------------------------------------------------------------------------------- causal_conv1d

Reason refuse_convolution(const Array& x, const Array& weight, const Array* bias, const Array* state) {
    if (x.ndim != 3) return "x does not have 3 dimensions";
    if (weight.ndim != 2) return "weight does not have 2 dimensions";
    if (weight.shape[0] != x.length()) return "weight does not have one filter for each channel";
    if (weight.shape[1] < 1) return "weight has no elements for a channel";
    if (!weight.is_contiguous()) return "weight is not contiguous";
    for (const auto& [name, parameter] : {std::pair{"weight", &weight}, std::pair{"bias", bias}})
        if (Reason reason = refuse_wider(name, parameter, x, "x"); !reason.empty()) return reason;
    if (Reason reason = refuse_vector("bias", bias, x.length(), "channel"); !reason.empty() || !state) return reason;
    if (state->dtype != x.dtype) return "state has another dtype than x";
    if (!state->is_contiguous_from(state->ndim - 1)) return "the last axis of state is not contiguous";
    return refuse_shape("state", *state, {x.shape[0], weight.shape[1] - 1, x.length()});
}

Reason read_activation(const Value& activation, bool& silu) {
    silu = activation.kind == Value::text && (activation.view() == "silu" || activation.view() == "swish");
    return silu || activation.kind == Value::none ? Reason{} : "activation is neither 'silu' nor 'swish'";
}

TokenRows token_rows(const Array& a) { return {a.data, a.stride(0), a.stride(1)}; }

// ------------------------------------------------------------------------------------------- gated_delta_rule

Reason refuse_heads(const Array& q, const Array& k, const Array& v) {
    if (q.ndim != 4) return "q does not have 4 dimensions";
    if (v.ndim != 4) return "v does not have 4 dimensions";
    if (k.dtype != q.dtype) return "k has another dtype than q";
    if (v.dtype != q.dtype) return "v has another dtype than q";
    if (!k.has_shape(q)) return "k has another shape than q";
    if (v.shape[0] != q.shape[0] || v.shape[2] != q.shape[2]) return "v has other sequences or tokens than q";
    const std::int64_t key_heads = q.shape[1], heads = v.shape[1];
    const bool divides = key_heads == 0 ? heads == 0 : heads % key_heads == 0;
    return divides ? Reason{} : "the heads of q do not divide those of v";
}

Reason refuse_gates(const char* name, const Array& a, const Array& v) {
    if (Reason reason = refuse_wider(name, &a, v, "v"); !reason.empty()) return reason;
    return refuse_shape(name, a, {v.shape[0], v.shape[1], v.shape[2]});
}

Reason refuse_state(const Array* state, const Array& q, const Array& v) {
    if (!state) return {};
    if (wide(state->dtype) != wide(v.dtype))
        return "one of v and state has dtype float64, and the other a narrower one";
    if (!state->is_contiguous_from(state->ndim - 1)) return "the last axis of state is not contiguous";
    return refuse_shape("state", *state, {v.shape[0], v.shape[1], q.length(), v.length()});
}

Reason read_scale(const Value& v, std::int64_t key_dim, double& scale) {
    scale = v.kind == Value::none      ? 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(key_dim, 1)))
            : v.kind == Value::number  ? v.as_number
            : v.kind == Value::integer ? static_cast<double>(v.as_integer)
                                       : NAN;
    return std::isfinite(scale) ? Reason{} : "scale is not a finite number";
}

Strided strided(const Array& a) { return {a.data, {a.stride(0), a.stride(1), a.stride(2)}}; }

}  // namespace

TENSOROPS_OPERATOR(causal_conv1d, "x, weight, bias=None, state=None, *, activation=None -> y, new_state") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array();
    const Array *bias = in.optional(), *state = in.optional();
    CausalConv1d op{};
    in.require(read_activation(in.value(), op.silu));
    if (in.failed()) return in.reason;
    if (!in.require(refuse_convolution(x, weight, bias, state))) return in.reason;
    op.batch = x.shape[0];
    op.tokens = x.shape[1];
    op.channels = x.length();
    op.width = weight.shape[1];
    const std::int64_t of_state[] = {op.batch, op.width - 1, op.channels};
    Array y, new_state;
    if (!call.make({{y, x}, {new_state, 3, of_state, x.dtype}})) return call.reason;
    if (op.batch == 0 || op.channels == 0) return {};
    const bool differ = bias && bias->dtype != weight.dtype;
    const RowParameter filters(&weight, x, differ), shift(bias, x, differ);
    op.x = token_rows(x);
    if (state) op.state = token_rows(*state);
    op.weight = filters.data();
    op.bias = shift.data();
    op.y = y.data;
    op.new_state = new_state.data;
    op.x_dtype = x.dtype;
    op.parameter_dtype = filters.dtype();
    const std::int64_t of_one = y.stride(0), of_one_state = new_state.stride(0);
    call.compute_parts(target().causal_conv1d, op, op.batch, 1, x.bytes() + 2 * new_state.bytes(),
                       [of_one, of_one_state](CausalConv1d& part, std::int64_t begin, std::int64_t end) {
                           part.batch = end - begin;
                           part.x.data += begin * part.x.of_batch;
                           if (part.state.data) part.state.data += begin * part.state.of_batch;
                           part.y += begin * of_one;
                           part.new_state += begin * of_one_state;
                       });
    return {};
}

TENSOROPS_OPERATOR(gated_delta_rule, "q, k, v, g, beta=None, *, state=None, scale=None -> y, new_state") {
    Reader in(call);
    const Array &q = in.rows(), &k = in.rows(), &v = in.rows(), &g = in.array();
    const Array *beta = in.optional(), *state = in.optional();
    const Value& scale = in.value();
    if (in.failed()) return in.reason;
    if (!in.require(refuse_heads(q, k, v))) return in.reason;
    GatedDeltaRule op{};
    in.require(refuse_gates("g", g, v));
    if (beta) in.require(refuse_gates("beta", *beta, v));
    in.require(refuse_state(state, q, v));
    if (!in.require(read_scale(scale, q.length(), op.scale))) return in.reason;
    const std::int64_t of_state[] = {v.shape[0], v.shape[1], q.length(), v.length()};
    Array y, new_state;
    if (!call.make({{y, v}, {new_state, 4, of_state, wide(v.dtype)}})) return call.reason;
    op.q = strided(q);
    op.k = strided(k);
    op.v = strided(v);
    op.g = strided(g);
    if (beta) {
        op.beta = strided(*beta);
        op.beta_dtype = beta->dtype;
    }
    if (state) {
        op.state = strided(*state);
        op.state_dtype = state->dtype;
    }
    op.y = y.data;
    op.new_state = new_state.data;
    op.heads = v.shape[1];
    op.key_heads = q.shape[1];
    op.tokens = v.shape[2];
    op.key_dim = q.length();
    op.value_dim = v.length();
    op.end = product(v.shape[0], op.heads);
    op.dtype = v.dtype;
    op.g_dtype = g.dtype;
    if (op.end == 0 || op.value_dim == 0) return {};
    // A token in the cache takes about an eighth of the time of reading its state from memory and writing it back.
    const std::int64_t bytes = product(new_state.bytes(), 2 + op.tokens / 4);
    call.compute_parts(target().gated_delta_rule, op, op.end, 1, bytes,
                       [](GatedDeltaRule& part, std::int64_t begin, std::int64_t end) {
                           part.begin = begin;
                           part.end = end;
                       });
    return {};
}

}  // namespace tensorops
