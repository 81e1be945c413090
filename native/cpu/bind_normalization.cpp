// Bindings of normalization.
#include <cmath>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// A weight or bias: None, or one element for each of a row, of the row's dtype, or float32 with half types.
Reason refuse_parameter(const char* name, nb::handle h, PyArrayObject* x) {
    if (h.is_none()) return {};
    if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
    PyArrayObject* p = as_array(h);
    const std::string parameter = name;
    const npy_intp n = PyArray_DIM(x, PyArray_NDIM(x) - 1);
    if (PyArray_NDIM(p) != 1 || PyArray_DIM(p, 0) != n)
        return parameter + " has " + std::to_string(PyArray_SIZE(p)) + " elements, but axis -1 of x has " +
               std::to_string(n);
    if (!last_axis_contiguous(p)) return parameter + " is not contiguous";
    const Dtype dtype = dtype_of(p), of_x = dtype_of(x);
    const bool widened = dtype == Dtype::float32 && (of_x == Dtype::float16 || of_x == Dtype::bfloat16);
    return dtype == of_x || widened ? Reason{} : parameter + " has another dtype than x";
}

Reason refuse_rms_norm(nb::handle x, nb::handle weight, Number eps, Integer axis, Number weight_offset = {0}) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    if (ndim == 0) return "x has 0 dimensions";
    if (axis == kNoInteger) return "axis is not an integer";
    if (axis != -1 && axis != ndim - 1) return "axis " + std::to_string(axis) + " is not the last of x";
    if (!(eps >= 0 && std::isfinite(eps))) return "eps is not a number of at least 0";
    if (!std::isfinite(weight_offset)) return "weight_offset is not a finite number";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    return refuse_parameter("weight", weight, a);
}

void compute_norm(const RmsNorm& op, std::int64_t bytes) {
    const auto cut = [bytes, &op](RmsNorm& part, std::int64_t begin, std::int64_t end) {
        const std::int64_t row_bytes = bytes / op.x.count;
        take_part(part.x, begin, end);
        take_part(part.residual, begin, end);
        part.y += begin * row_bytes;
        if (part.sum) part.sum += begin * row_bytes;
    };
    compute_parts(target().rms_norm, op, op.x.count, 1, bytes, cut);
}

nb::object rms_norm(nb::handle x, nb::handle weight, Number eps, Integer axis, Number weight_offset) {
    if (!refuse_rms_norm(x, weight, eps, axis, weight_offset).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    RmsNorm op{};
    op.x = rows_of(a);
    op.y = PyArray_BYTES(as_array(y));
    op.weight = weight.is_none() ? nullptr : PyArray_BYTES(as_array(weight));
    op.x_dtype = dtype_of(a);
    op.weight_dtype = weight.is_none() ? op.x_dtype : dtype_of(as_array(weight));
    op.eps = eps;
    op.weight_offset = weight_offset;
    op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    compute_norm(op, bytes);
    return y;
}

nb::object rms_norm_supports(nb::handle x, nb::handle weight, Number eps, Integer axis, Number weight_offset) {
    return none_or(refuse_rms_norm(x, weight, eps, axis, weight_offset));
}

Reason refuse_add_rms_norm(nb::handle x, nb::handle residual, nb::handle weight, Number eps, Integer axis) {
    if (Reason reason = refuse_rms_norm(x, weight, eps, axis); !reason.empty()) return reason;
    if (Reason reason = refuse_array("residual", residual); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *r = as_array(residual);
    if (dtype_of(r) != dtype_of(a)) return "residual has another dtype than x";
    if (!PyArray_SAMESHAPE(a, r)) return "residual has another shape than x";
    if (!last_axis_contiguous(r)) return "the last axis of residual is not contiguous";
    return {};
}

nb::object add_rms_norm(nb::handle x, nb::handle residual, nb::handle weight, Number eps, Integer axis) {
    if (!refuse_add_rms_norm(x, residual, weight, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a), sum = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes > 0) {
        RmsNorm op{};
        op.x = rows_of(a);
        op.residual = rows_of(as_array(residual));
        op.sum = PyArray_BYTES(as_array(sum));
        op.y = PyArray_BYTES(as_array(y));
        op.weight = weight.is_none() ? nullptr : PyArray_BYTES(as_array(weight));
        op.x_dtype = dtype_of(a);
        op.weight_dtype = weight.is_none() ? op.x_dtype : dtype_of(as_array(weight));
        op.eps = eps;
        op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
        compute_norm(op, bytes);
    }
    return nb::make_tuple(y, sum);
}

Reason refuse_layer_norm(nb::handle x, nb::handle weight, nb::handle bias, Number eps, nb::handle axis) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    if (PyArray_NDIM(a) == 0) return "x has 0 dimensions";
    if (!is_last_axis(axis, PyArray_NDIM(a))) return "axis is not the last of x";
    if (!(eps >= 0 && std::isfinite(eps))) return "eps is not a number of at least 0";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    if (Reason reason = refuse_parameter("weight", weight, a); !reason.empty()) return reason;
    if (Reason reason = refuse_parameter("bias", bias, a); !reason.empty()) return reason;
    if (!weight.is_none() && !bias.is_none() && dtype_of(as_array(weight)) != dtype_of(as_array(bias)))
        return "bias has another dtype than weight";
    return {};
}

nb::object layer_norm(nb::handle x, nb::handle weight, nb::handle bias, Number eps, nb::handle axis) {
    if (!refuse_layer_norm(x, weight, bias, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    LayerNorm op{};
    op.x = rows_of(a);
    op.y = PyArray_BYTES(as_array(y));
    op.x_dtype = op.parameter_dtype = dtype_of(a);
    for (auto [parameter, field] : {std::pair{bias, &op.bias}, std::pair{weight, &op.weight}}) {
        if (parameter.is_none()) continue;
        *field = PyArray_BYTES(as_array(parameter));
        op.parameter_dtype = dtype_of(as_array(parameter));
    }
    op.eps = eps;
    op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    const auto cut = [bytes, &op](LayerNorm& part, std::int64_t begin, std::int64_t end) {
        const std::int64_t row_bytes = bytes / op.x.count;
        take_part(part.x, begin, end);
        part.y += begin * row_bytes;
    };
    compute_parts(target().layer_norm, op, op.x.count, 1, bytes, cut);
    return y;
}

}  // namespace

void bind_normalization(nb::module_& m) {
    m.def("rms_norm", &rms_norm, "x"_a, "weight"_a = nb::none(), "eps"_a.none() = 1e-6, nb::kw_only(),
          "axis"_a.none() = -1, "weight_offset"_a.none() = 0.0);
    m.def("rms_norm_supports", &rms_norm_supports, "x"_a, "weight"_a = nb::none(), "eps"_a.none() = 1e-6, nb::kw_only(),
          "axis"_a.none() = -1, "weight_offset"_a.none() = 0.0);
    m.def("add_rms_norm", &add_rms_norm, "x"_a, "residual"_a, "weight"_a = nb::none(), "eps"_a.none() = 1e-6,
          nb::kw_only(), "axis"_a.none() = -1);
    m.def(
        "add_rms_norm_supports",
        [](nb::handle x, nb::handle residual, nb::handle weight, Number eps, Integer axis) {
            return none_or(refuse_add_rms_norm(x, residual, weight, eps, axis));
        },
        "x"_a, "residual"_a, "weight"_a = nb::none(), "eps"_a.none() = 1e-6, nb::kw_only(), "axis"_a.none() = -1);
    m.def("layer_norm", &layer_norm, "x"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a.none() = 1e-5,
          nb::kw_only(), "axis"_a.none() = -1);
    m.def(
        "layer_norm_supports",
        [](nb::handle x, nb::handle weight, nb::handle bias, Number eps, nb::handle axis) {
            return none_or(refuse_layer_norm(x, weight, bias, eps, axis));
        },
        "x"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a.none() = 1e-5, nb::kw_only(),
        "axis"_a.none() = -1);
}

}  // namespace tensorops
