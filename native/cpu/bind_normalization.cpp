// Bindings of normalization.
#include <cmath>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_rms_norm(nb::handle x, nb::handle weight, double eps, int axis) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    if (ndim == 0) return "x has 0 dimensions";
    if (axis != -1 && axis != ndim - 1) return "axis " + std::to_string(axis) + " is not the last of x";
    if (!(eps >= 0 && std::isfinite(eps))) return "eps is not a number of at least 0";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    if (weight.is_none()) return {};
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject* w = as_array(weight);
    const npy_intp n = PyArray_DIM(a, ndim - 1);
    if (PyArray_NDIM(w) != 1 || PyArray_DIM(w, 0) != n)
        return "weight has " + std::to_string(PyArray_SIZE(w)) + " elements, but axis -1 of x has " + std::to_string(n);
    if (!last_axis_contiguous(w)) return "weight is not contiguous";
    const Dtype dtype = dtype_of(w), half_or_same = dtype_of(a);
    const bool widened = dtype == Dtype::float32 && (half_or_same == Dtype::float16 || half_or_same == Dtype::bfloat16);
    if (dtype != half_or_same && !widened) return "weight has another dtype than x";
    return {};
}

nb::object rms_norm(nb::handle x, nb::handle weight, double eps, int axis, double weight_offset) {
    if (!refuse_rms_norm(x, weight, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
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
    compute(bytes, [&op] { target().rms_norm(op); });
    return y;
}

nb::object rms_norm_supports(nb::handle x, nb::handle weight, double eps, int axis, double) {
    return none_or(refuse_rms_norm(x, weight, eps, axis));
}

}  // namespace

void bind_normalization(nb::module_& m) {
    m.def("rms_norm", &rms_norm, "x"_a, "weight"_a = nb::none(), "eps"_a = 1e-6, nb::kw_only(),
          "axis"_a.noconvert() = -1, "weight_offset"_a = 0.0);
    m.def("rms_norm_supports", &rms_norm_supports, "x"_a, "weight"_a = nb::none(), "eps"_a = 1e-6, nb::kw_only(),
          "axis"_a.noconvert() = -1, "weight_offset"_a = 0.0);
}

}  // namespace tensorops
