// Bindings of normalization.
#include <cmath>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

bool is_half(Dtype dtype) { return dtype == Dtype::float16 || dtype == Dtype::bfloat16; }

// A weight or bias: None, or `count` elements of any dtype, but for float64 beside a narrower x.
Reason refuse_parameter(const char* name, nb::handle h, PyArrayObject* x, npy_intp count, const char* of_x) {
    if (h.is_none()) return {};
    if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
    PyArrayObject* p = as_array(h);
    const std::string parameter = name;
    if (PyArray_NDIM(p) != 1 || PyArray_DIM(p, 0) != count)
        return parameter + " has " + std::to_string(PyArray_SIZE(p)) + " elements, but " + of_x + " has " +
               std::to_string(count);
    if (!last_axis_contiguous(p)) return parameter + " is not contiguous";
    const bool is_wider = dtype_of(p) == Dtype::float64 && dtype_of(x) != Dtype::float64;
    return is_wider ? parameter + " has dtype float64, and x a narrower one" : Reason{};
}

// The same, with an element for each of a row.
Reason refuse_parameter(const char* name, nb::handle h, PyArrayObject* x) {
    return refuse_parameter(name, h, x, PyArray_DIM(x, PyArray_NDIM(x) - 1), "axis -1 of x");
}

// Whether a kernel reads parameters of this dtype beside rows of x, or they must be widened before.
bool fits(PyArrayObject* parameter, PyArrayObject* x) {
    const Dtype dtype = dtype_of(parameter), of_x = dtype_of(x);
    return dtype == of_x || (dtype == Dtype::float32 && is_half(of_x));
}

// A copy of a parameter in the type in which kernels compute with x.
nb::object widened(nb::handle parameter, PyArrayObject* x) {
    PyArray_Descr* descr = PyArray_DescrFromType(dtype_of(x) == Dtype::float64 ? NPY_FLOAT64 : NPY_FLOAT32);
    PyObject* wide = PyArray_FromAny(parameter.ptr(), descr, 1, 1, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST, nullptr);
    if (!wide) throw nb::python_error();
    return nb::steal(wide);
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
    nb::object y = empty_like(a), wide;
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    if (!weight.is_none() && !fits(as_array(weight), a)) weight = wide = widened(weight, a);
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
    nb::object y = empty_like(a), sum = empty_like(a), wide;
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes > 0) {
        if (!weight.is_none() && !fits(as_array(weight), a)) weight = wide = widened(weight, a);
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
    return refuse_parameter("bias", bias, a);
}

// Computes the rows of op, whose result is as large as x.
template <class Op>
void compute_rows(void (*kernel)(const Op&), const Op& op, std::int64_t bytes) {
    const auto cut = [bytes, &op](Op& part, std::int64_t begin, std::int64_t end) {
        const std::int64_t row_bytes = bytes / op.x.count;
        take_part(part.x, begin, end);
        part.y += begin * row_bytes;
    };
    compute_parts(kernel, op, op.x.count, 1, bytes, cut);
}

nb::object layer_norm(nb::handle x, nb::handle weight, nb::handle bias, Number eps, nb::handle axis) {
    if (!refuse_layer_norm(x, weight, bias, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a), wide_weight, wide_bias;
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    const bool both = !weight.is_none() && !bias.is_none();
    const bool differ = both && dtype_of(as_array(weight)) != dtype_of(as_array(bias));
    if (!weight.is_none() && (differ || !fits(as_array(weight), a))) weight = wide_weight = widened(weight, a);
    if (!bias.is_none() && (differ || !fits(as_array(bias), a))) bias = wide_bias = widened(bias, a);
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
    compute_rows(target().layer_norm, op, bytes);
    return y;
}

Reason refuse_instance_norm(nb::handle x, nb::handle weight, nb::handle bias, Number eps, Integer channel_axis) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    if (ndim < 2) return "x has less than 2 dimensions";
    if (channel_axis == kNoInteger) return "channel_axis is not an integer";
    if (channel_axis != 1 && channel_axis != 1 - ndim)
        return "channel_axis " + std::to_string(channel_axis) + " is not the second of x";
    if (!(eps >= 0 && std::isfinite(eps))) return "eps is not a number of at least 0";
    if (!contiguous_from(a, 1)) return "x is not contiguous from its second axis on";
    if (Reason reason = refuse_parameter("weight", weight, a, PyArray_DIM(a, 1), "axis 1 of x"); !reason.empty())
        return reason;
    return refuse_parameter("bias", bias, a, PyArray_DIM(a, 1), "axis 1 of x");
}

Reason refuse_group_norm(nb::handle x, Integer num_groups, nb::handle weight, nb::handle bias, Number eps,
                         Integer channel_axis) {
    if (Reason reason = refuse_instance_norm(x, weight, bias, eps, channel_axis); !reason.empty()) return reason;
    const npy_intp channels = PyArray_DIM(as_array(x), 1);
    if (num_groups < 1 || channels % num_groups != 0)
        return "num_groups is no divisor of the " + std::to_string(channels) + " channels of x";
    return {};
}

// The groups of every element of a batch as rows.
nb::object group_norm_of(PyArrayObject* a, std::int64_t groups, nb::handle weight, nb::handle bias, double eps) {
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a), batch = PyArray_DIM(a, 0);
    if (bytes == 0) return y;
    GroupNorm op{};
    op.groups = groups;
    op.span = PyArray_SIZE(a) / batch / PyArray_DIM(a, 1);
    op.x = rows_before(a, 1);
    op.x.count = batch * groups;
    op.x.length = PyArray_SIZE(a) / op.x.count;
    const std::int64_t row_bytes = op.x.length * PyArray_ITEMSIZE(a);
    if (op.x.outer == 0 || op.x.stride[0] == groups * row_bytes) {
        op.x.outer = 1;
        op.x.shape[0] = op.x.count;
        op.x.stride[0] = row_bytes;
    } else {
        op.x.outer = 2;
        op.x.shape[1] = groups;
        op.x.stride[1] = row_bytes;
    }
    op.y = PyArray_BYTES(as_array(y));
    op.x_dtype = dtype_of(a);
    if (!weight.is_none()) {
        op.weight = PyArray_BYTES(as_array(weight));
        op.weight_dtype = dtype_of(as_array(weight));
    }
    if (!bias.is_none()) {
        op.bias = PyArray_BYTES(as_array(bias));
        op.bias_dtype = dtype_of(as_array(bias));
    }
    op.eps = eps;
    op.streaming = bytes >= kStreamBytes && row_bytes % 64 == 0;
    compute_rows(target().group_norm, op, bytes);
    return y;
}

nb::object group_norm(nb::handle x, Integer num_groups, nb::handle weight, nb::handle bias, Number eps,
                      Integer channel_axis) {
    if (!refuse_group_norm(x, num_groups, weight, bias, eps, channel_axis).empty())
        return nb::borrow(Py_NotImplemented);
    return group_norm_of(as_array(x), num_groups, weight, bias, eps);
}

nb::object instance_norm(nb::handle x, nb::handle weight, nb::handle bias, Number eps, Integer channel_axis) {
    if (!refuse_instance_norm(x, weight, bias, eps, channel_axis).empty()) return nb::borrow(Py_NotImplemented);
    return group_norm_of(as_array(x), PyArray_DIM(as_array(x), 1), weight, bias, eps);
}

Reason refuse_l2_norm(nb::handle x, Number eps, nb::handle axis) {
    return refuse_layer_norm(x, nb::none(), nb::none(), eps, axis);
}

nb::object l2_norm(nb::handle x, Number eps, nb::handle axis) {
    if (!refuse_l2_norm(x, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    RmsNorm op{};
    op.by_length = true;
    op.x = rows_of(a);
    op.y = PyArray_BYTES(as_array(y));
    op.x_dtype = op.weight_dtype = dtype_of(a);
    op.eps = eps;
    op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    compute_rows(target().rms_norm, op, bytes);
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
    m.def("group_norm", &group_norm, "x"_a, "num_groups"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(),
          "eps"_a.none() = 1e-5, nb::kw_only(), "channel_axis"_a.none() = 1);
    m.def(
        "group_norm_supports",
        [](nb::handle x, Integer num_groups, nb::handle weight, nb::handle bias, Number eps, Integer channel_axis) {
            return none_or(refuse_group_norm(x, num_groups, weight, bias, eps, channel_axis));
        },
        "x"_a, "num_groups"_a.none(), "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a.none() = 1e-5,
        nb::kw_only(), "channel_axis"_a.none() = 1);
    m.def("instance_norm", &instance_norm, "x"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a.none() = 1e-5,
          nb::kw_only(), "channel_axis"_a.none() = 1);
    m.def(
        "instance_norm_supports",
        [](nb::handle x, nb::handle weight, nb::handle bias, Number eps, Integer channel_axis) {
            return none_or(refuse_instance_norm(x, weight, bias, eps, channel_axis));
        },
        "x"_a, "weight"_a = nb::none(), "bias"_a = nb::none(), "eps"_a.none() = 1e-5, nb::kw_only(),
        "channel_axis"_a.none() = 1);
    m.def("l2_norm", &l2_norm, "x"_a, "eps"_a.none() = 1e-12, nb::kw_only(), "axis"_a.none() = -1);
    m.def(
        "l2_norm_supports",
        [](nb::handle x, Number eps, nb::handle axis) { return none_or(refuse_l2_norm(x, eps, axis)); }, "x"_a,
        "eps"_a.none() = 1e-12, nb::kw_only(), "axis"_a.none() = -1);
}

}  // namespace tensorops
