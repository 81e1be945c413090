// Bindings of linear maps.
#include <algorithm>
#include <utility>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_x(nb::handle x) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    if (dtype_of(a) == Dtype::float64) return "x has dtype float64, whose products numpy.matmul computes";
    if (PyArray_NDIM(a) == 0) return "x has 0 dimensions";
    return last_axis_contiguous(a) ? Reason{} : "the last axis of x is not contiguous";
}

// A matrix of the given shape whose rows are contiguous; the dtype is the caller's affair.
Reason refuse_matrix(const std::string& name, PyArrayObject* a, npy_intp rows, npy_intp columns) {
    if (PyArray_NDIM(a) != 2) return name + " does not have 2 dimensions";
    if (PyArray_DIM(a, 0) != rows || PyArray_DIM(a, 1) != columns)
        return name + " has shape (" + std::to_string(PyArray_DIM(a, 0)) + ", " + std::to_string(PyArray_DIM(a, 1)) +
               "), not (" + std::to_string(rows) + ", " + std::to_string(columns) + ")";
    return last_axis_contiguous(a) ? Reason{} : "the last axis of " + name + " is not contiguous";
}

npy_intp length_of(PyArrayObject* a) { return PyArray_DIM(a, PyArray_NDIM(a) - 1); }

nb::object empty_outputs(PyArrayObject* x, npy_intp outputs) {
    npy_intp shape[kMaxDims];
    std::copy_n(PyArray_DIMS(x), PyArray_NDIM(x), shape);
    shape[PyArray_NDIM(x) - 1] = outputs;
    return empty(PyArray_NDIM(x), shape, PyArray_DESCR(x));
}

// NumPy multiplies float32 matrices with its own library, which a few rows leave waiting for memory.
constexpr npy_intp kMostRows = 8;

Reason refuse_linear(nb::handle x, nb::handle weight, nb::handle bias) {
    if (Reason reason = refuse_x(x); !reason.empty()) return reason;
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    if (dtype_of(w) == Dtype::float64) return "weight has dtype float64";
    if (PyArray_NDIM(w) != 2) return "weight does not have 2 dimensions";
    if (Reason reason = refuse_matrix("weight", w, PyArray_DIM(w, 0), length_of(a)); !reason.empty()) return reason;
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    if (dtype_of(a) == Dtype::float32 && dtype_of(w) == Dtype::float32 && PyArray_SIZE(a) / length_of(a) > kMostRows)
        return "x has more than " + std::to_string(kMostRows) + " rows, which numpy.matmul multiplies faster";
    if (bias.is_none()) return {};
    if (Reason reason = refuse_array("bias", bias); !reason.empty()) return reason;
    PyArrayObject* b = as_array(bias);
    if (dtype_of(b) == Dtype::float64) return "bias has dtype float64";
    if (PyArray_NDIM(b) != 1 || PyArray_DIM(b, 0) != PyArray_DIM(w, 0))
        return "bias does not have one element for each row of weight";
    return last_axis_contiguous(b) ? Reason{} : "bias is not contiguous";
}

nb::object linear(nb::handle x, nb::handle weight, nb::handle bias) {
    if (!refuse_linear(x, weight, bias).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    nb::object y = empty_outputs(a, PyArray_DIM(w, 0));
    Linear op{};
    op.x = rows_of(a);
    op.weight = PyArray_BYTES(w);
    op.weight_stride = PyArray_STRIDE(w, 0);
    op.outputs = PyArray_DIM(w, 0);
    op.bias = bias.is_none() ? nullptr : PyArray_BYTES(as_array(bias));
    op.y = PyArray_BYTES(as_array(y));
    op.x_dtype = dtype_of(a);
    op.weight_dtype = dtype_of(w);
    op.bias_dtype = bias.is_none() ? op.weight_dtype : dtype_of(as_array(bias));
    compute(product(PyArray_NBYTES(w), op.x.count), [&op] { target().linear(op); });
    return y;
}

Reason refuse_quantized_linear(nb::handle x, nb::handle weight, nb::handle scales, nb::handle biases, Integer bits,
                               Integer group_size) {
    if (Reason reason = refuse_x(x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject* w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (biases.is_none() && bits != 8) return "biases are missing";
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    if (group_size < 1 || group_size > PyArray_SIZE(a) || group_size * bits % 8 != 0)
        return "group_size does not fit x";
    if (PyArray_NDIM(w) != 2) return "weight does not have 2 dimensions";
    const npy_intp outputs = PyArray_DIM(w, 0), columns = length_of(a);
    if (columns % group_size != 0) return "the last axis of x is no multiple of group_size";
    if (Reason reason = refuse_matrix("weight", w, outputs, columns * bits / 8); !reason.empty()) return reason;
    for (auto [name, h] : {std::pair{"scales", scales}, std::pair{"biases", biases}}) {
        if (name[0] == 'b' && h.is_none()) continue;
        if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
        PyArrayObject* p = as_array(h);
        if (dtype_of(p) == Dtype::float64) return std::string(name) + " has dtype float64";
        if (dtype_of(p) != dtype_of(as_array(scales))) return "biases has another dtype than scales";
        if (Reason reason = refuse_matrix(name, p, outputs, columns / group_size); !reason.empty()) return reason;
    }
    return {};
}

nb::object quantized_linear(nb::handle x, nb::handle weight, nb::handle scales, nb::handle biases, Integer bits,
                            Integer group_size) {
    if (!refuse_quantized_linear(x, weight, scales, biases, bits, group_size).empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject *a = as_array(x), *w = as_array(weight), *s = as_array(scales);
    nb::object y = empty_outputs(a, PyArray_DIM(w, 0));
    QuantizedLinear op{};
    op.x = rows_of(a);
    op.weight = PyArray_BYTES(w);
    op.weight_stride = PyArray_STRIDE(w, 0);
    op.scales = PyArray_BYTES(s);
    op.scale_stride = PyArray_STRIDE(s, 0);
    if (!biases.is_none()) {
        op.biases = PyArray_BYTES(as_array(biases));
        op.bias_stride = PyArray_STRIDE(as_array(biases), 0);
    }
    op.outputs = PyArray_DIM(w, 0);
    op.group_size = group_size;
    op.bits = static_cast<int>(bits.value);
    op.y = PyArray_BYTES(as_array(y));
    op.x_dtype = dtype_of(a);
    op.scale_dtype = dtype_of(s);
    compute(product(PyArray_NBYTES(w), op.x.count), [&op] { target().quantized_linear(op); });
    return y;
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("linear", &linear, "x"_a, "weight"_a, "bias"_a = nb::none());
    m.def(
        "linear_supports",
        [](nb::handle x, nb::handle weight, nb::handle bias) { return none_or(refuse_linear(x, weight, bias)); }, "x"_a,
        "weight"_a, "bias"_a = nb::none());
    m.def("quantized_linear", &quantized_linear, "x"_a, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(),
          "bits"_a.none() = 4, "group_size"_a.none() = 32);
    m.def(
        "quantized_linear_supports",
        [](nb::handle x, nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
            return none_or(refuse_quantized_linear(x, weight, scales, biases, bits, group_size));
        },
        "x"_a, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4,
        "group_size"_a.none() = 32);
}

}  // namespace tensorops
