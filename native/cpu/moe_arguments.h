// The arguments of a mixture of experts, and why the kernels do not support some.
#pragma once

#include <cmath>
#include <utility>

#include "matrices.h"
#include "moe_steps.h"

namespace tensorops {

namespace {  // part of bind_experts.cpp

// The arguments of the operator.
struct Given {
    nb::handle x, router_logits, gate_up_proj, down_proj, gate_up_scales, gate_up_biases, down_scales, down_biases,
        e_score_correction_bias, shared_gate_up_proj, shared_down_proj, shared_gate_up_scales, shared_gate_up_biases,
        shared_down_scales, shared_down_biases, shared_expert_gate;
    Integer top_k;
    Choice scoring_func;
    Flag renormalize;
    Number routed_scaling_factor;
    Choice activation;
    Integer bits, group_size;
};

// The arrays of a projection; the names of the two others begin as that of `proj` does.
struct Part {
    const char* name;
    nb::handle proj, scales, biases;
};

Reason refuse_narrow(const std::string& name, nb::handle h) {
    if (Reason reason = refuse_array(name.c_str(), h); !reason.empty()) return reason;
    return dtype_of(as_array(h)) == Dtype::float64 ? name + " has dtype float64" : Reason{};
}

Reason refuse_vector(const std::string& name, nb::handle h, npy_intp n) {
    if (Reason reason = refuse_narrow(name, h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != n)
        return name + " does not have " + std::to_string(n) + " elements along a single axis";
    return last_axis_contiguous(a) ? Reason{} : name + " is not contiguous";
}

// A stack of matrices or, if there are 0 experts, one matrix, of rows for `columns` inputs.
Reason refuse_matrices(const std::string& name, nb::handle h, npy_intp experts, npy_intp rows, npy_intp columns) {
    PyArrayObject* a = as_array(h);
    if (experts == 0) return refuse_matrix(name, a, rows, columns);
    if (Reason reason = refuse_stack(name, a, experts, rows, columns); !reason.empty()) return reason;
    return rows_per_expert(a) > 0 ? Reason{} : "the matrices of " + name + " do not follow each other after whole rows";
}

std::int64_t row_stride(nb::handle h) { return PyArray_STRIDE(as_array(h), PyArray_NDIM(as_array(h)) - 2); }

std::int64_t per_expert(nb::handle h) {
    PyArrayObject* a = as_array(h);
    return PyArray_NDIM(a) == 3 ? rows_per_expert(a) : PyArray_DIM(a, 0);
}

Reason refuse_plain(const Part& part, npy_intp experts, npy_intp columns, Projection& projection) {
    const std::string name = std::string(part.name) + "_proj";
    if (!part.biases.is_none()) return std::string(part.name) + "_biases is given without scales";
    if (Reason reason = refuse_narrow(name, part.proj); !reason.empty()) return reason;
    if (Reason reason = refuse_matrices(name, part.proj, experts, kAny, columns); !reason.empty()) return reason;
    PyArrayObject* w = as_array(part.proj);
    projection.outputs = PyArray_DIM(w, PyArray_NDIM(w) - 2);
    projection.plain.linear.weight = PyArray_BYTES(w);
    projection.plain.linear.weight_stride = row_stride(part.proj);
    projection.plain.linear.weight_dtype = projection.plain.linear.bias_dtype = dtype_of(w);
    projection.plain.per_expert = per_expert(part.proj);
    return {};
}

Reason refuse_quantized(const Part& part, npy_intp experts, npy_intp columns, Integer bits, Integer group_size,
                        Projection& projection) {
    const std::string prefix = part.name, name = prefix + "_proj";
    if (!PyArray_CheckExact(part.proj.ptr())) return name + " is not a numpy.ndarray";
    PyArrayObject *w = as_array(part.proj), *s = as_array(part.scales);
    if (PyArray_TYPE(w) != NPY_UINT8) return name + " does not have dtype uint8";
    if (Reason reason = refuse_product(part.biases, bits, group_size, columns); !reason.empty()) return reason;
    if (Reason reason = refuse_matrices(name, part.proj, experts, kAny, columns * bits / 8); !reason.empty())
        return reason;
    const npy_intp rows = PyArray_DIM(w, PyArray_NDIM(w) - 2);
    for (const auto& [what, h] : {std::pair{"_scales", part.scales}, std::pair{"_biases", part.biases}}) {
        if (h.is_none()) continue;
        if (Reason reason = refuse_narrow(prefix + what, h); !reason.empty()) return reason;
        if (Reason reason = refuse_matrices(prefix + what, h, experts, rows, columns / group_size); !reason.empty())
            return reason;
        if (dtype_of(as_array(h)) != dtype_of(s)) return prefix + "_biases has another dtype than the scales";
        if (per_expert(h) != per_expert(part.proj)) return prefix + what + " is not laid out as " + name;
    }
    QuantizedLinear& op = projection.quantized.linear;
    projection.is_quantized = true;
    projection.outputs = rows;
    projection.quantized.per_expert = per_expert(part.proj);
    op.weight = PyArray_BYTES(w);
    op.weight_stride = row_stride(part.proj);
    op.scales = PyArray_BYTES(s);
    op.scale_stride = row_stride(part.scales);
    if (!part.biases.is_none()) {
        op.biases = PyArray_BYTES(as_array(part.biases));
        op.bias_stride = row_stride(part.biases);
    }
    op.group_size = group_size;
    op.bits = static_cast<int>(bits.value);
    op.scale_dtype = dtype_of(s);
    return {};
}

Reason refuse_projection(const Part& part, npy_intp experts, npy_intp columns, const Given& given,
                         Projection& projection) {
    if (part.scales.is_none()) return refuse_plain(part, experts, columns, projection);
    return refuse_quantized(part, experts, columns, given.bits, given.group_size, projection);
}

Reason refuse_feed_forward(const Part& gate_up, const Part& down, npy_intp experts, npy_intp features,
                           const Given& given, FeedForward& block) {
    if (Reason reason = refuse_projection(gate_up, experts, features, given, block.gate_up); !reason.empty())
        return reason;
    if (block.gate_up.outputs == 0 || block.gate_up.outputs % 2 != 0)
        return std::string(gate_up.name) + "_proj does not have an even number of rows";
    block.hidden = block.gate_up.outputs / 2;
    if (Reason reason = refuse_projection(down, experts, block.hidden, given, block.down); !reason.empty())
        return reason;
    return block.down.outputs == features ? Reason{} : std::string(down.name) + "_proj does not have a row per feature";
}

Reason refuse_shared(const Given& given, npy_intp features, MixtureOfExperts& op) {
    op.has_shared = !given.shared_gate_up_proj.is_none() && !given.shared_down_proj.is_none();
    if (!op.has_shared) {
        for (nb::handle h : {given.shared_gate_up_proj, given.shared_down_proj, given.shared_gate_up_scales,
                             given.shared_gate_up_biases, given.shared_down_scales, given.shared_down_biases,
                             given.shared_expert_gate})
            if (!h.is_none()) return "not both projections of the shared block are given";
        return {};
    }
    const Part gate_up{"shared_gate_up", given.shared_gate_up_proj, given.shared_gate_up_scales,
                       given.shared_gate_up_biases};
    const Part down{"shared_down", given.shared_down_proj, given.shared_down_scales, given.shared_down_biases};
    if (Reason reason = refuse_feed_forward(gate_up, down, 0, features, given, op.shared); !reason.empty())
        return reason;
    for (const auto& [part, projection] : {std::pair{&gate_up, &op.shared.gate_up}, std::pair{&down, &op.shared.down}})
        if (op.x.count > kMostRows && !projection->is_quantized &&
            projection->plain.linear.weight_dtype == Dtype::float32)
            return "x has more than " + std::to_string(kMostRows) + " rows, which numpy.matmul multiplies by " +
                   part->name + "_proj faster";
    if (given.shared_expert_gate.is_none()) return {};
    const char* name = "shared_expert_gate";
    if (Reason reason = refuse_narrow(name, given.shared_expert_gate); !reason.empty()) return reason;
    PyArrayObject* gate = as_array(given.shared_expert_gate);
    op.gate.weight = PyArray_BYTES(gate);
    op.gate.outputs = 1;
    op.gate.x_dtype = Dtype::float32;
    op.gate.weight_dtype = op.gate.bias_dtype = dtype_of(gate);
    return refuse_matrix(name, gate, 1, features);
}

Reason refuse_options(const Given& given, npy_intp experts, MixtureOfExperts& op) {
    if (given.top_k < 1 || given.top_k > experts) return "top_k is not a number of experts";
    if (given.scoring_func != "softmax" && given.scoring_func != "sigmoid")
        return "scoring_func is neither 'softmax' nor 'sigmoid'";
    if (given.activation != "swiglu" && given.activation != "geglu")
        return "activation is neither 'swiglu' nor 'geglu'";
    if (!given.renormalize.known) return "renormalize is not a bool";
    if (!std::isfinite(given.routed_scaling_factor.value)) return "routed_scaling_factor is not a finite number";
    if (given.bits != 4 && given.bits != 8) return "bits is neither 4 nor 8";
    if (given.group_size < 1 || (given.bits == 4 && given.group_size % 2 != 0))
        return "group_size does not fill whole bytes";
    op.top_k = given.top_k;
    op.is_softmax = given.scoring_func == "softmax";
    op.function = given.activation == "swiglu" ? Function::swiglu : Function::geglu;
    op.renormalizes = given.renormalize.value;
    op.factor = static_cast<float>(given.routed_scaling_factor.value);
    return {};
}

Reason refuse_tokens(const Given& given, MixtureOfExperts& op) {
    if (Reason reason = refuse_array("x", given.x); !reason.empty()) return reason;
    if (Reason reason = refuse_narrow("router_logits", given.router_logits); !reason.empty()) return reason;
    if (PyArray_SIZE(as_array(given.x)) == 0 || PyArray_SIZE(as_array(given.router_logits)) == 0)
        return "x or router_logits is empty";
    if (Reason reason = refuse_factor(given.x); !reason.empty()) return reason;
    PyArrayObject *x = as_array(given.x), *logits = as_array(given.router_logits);
    const int axes = PyArray_NDIM(x) - 1;
    if (PyArray_NDIM(logits) != axes + 1 || !std::equal(PyArray_DIMS(x), PyArray_DIMS(x) + axes, PyArray_DIMS(logits)))
        return "router_logits does not have the rows of x";
    if (!last_axis_contiguous(logits)) return "the last axis of router_logits is not contiguous";
    if (length_of(logits) > INT32_MAX) return "router_logits has too many experts";
    op.x = rows_of(x);
    op.logits = rows_of(logits);
    op.x_dtype = dtype_of(x);
    op.logits_dtype = dtype_of(logits);
    return {};
}

Reason refuse_moe(const Given& given, MixtureOfExperts& op) {
    if (Reason reason = refuse_tokens(given, op); !reason.empty()) return reason;
    const npy_intp features = op.x.length, experts = op.logits.length;
    if (Reason reason = refuse_options(given, experts, op); !reason.empty()) return reason;
    if (!given.e_score_correction_bias.is_none()) {
        Reason reason = refuse_vector("e_score_correction_bias", given.e_score_correction_bias, experts);
        if (!reason.empty()) return reason;
        op.correction = rows_of(as_array(given.e_score_correction_bias));
        op.correction_dtype = dtype_of(as_array(given.e_score_correction_bias));
    }
    const Part gate_up{"gate_up", given.gate_up_proj, given.gate_up_scales, given.gate_up_biases};
    const Part down{"down", given.down_proj, given.down_scales, given.down_biases};
    if (Reason reason = refuse_feed_forward(gate_up, down, experts, features, given, op.routed); !reason.empty())
        return reason;
    return refuse_shared(given, features, op);
}

}  // namespace

}  // namespace tensorops
