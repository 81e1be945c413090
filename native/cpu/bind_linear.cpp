// Bindings of linear maps.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "bind.h"
#include "panel_linear.h"
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

// Scales and, if there are any, biases of quantized weights.
Reason refuse_scales(nb::handle scales, nb::handle biases, npy_intp outputs, npy_intp groups) {
    for (auto [name, h] : {std::pair{"scales", scales}, std::pair{"biases", biases}}) {
        if (name[0] == 'b' && h.is_none()) continue;
        if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
        PyArrayObject* p = as_array(h);
        if (dtype_of(p) == Dtype::float64) return std::string(name) + " has dtype float64";
        if (dtype_of(p) != dtype_of(as_array(scales))) return "biases has another dtype than scales";
        if (Reason reason = refuse_matrix(name, p, outputs, groups); !reason.empty()) return reason;
    }
    return {};
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
    return refuse_scales(scales, biases, outputs, columns / group_size);
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

// ------------------------------------------------------------------------------------- weights in panels

// Sums within a group are taken plainly.
constexpr std::int64_t kLargestGroup = 1024;

Reason refuse_pack_panels(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
    if (!target().gains_by_panels)
        return std::string("on the target ") + target().name + " plain weights are multiplied as fast";
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject* w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (PyArray_NDIM(w) != 2) return "weight does not have 2 dimensions";
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (biases.is_none() && bits != 8) return "biases are missing";
    if (group_size < 32 || group_size > kLargestGroup || group_size % 32 != 0)
        return "group_size is not a multiple of 32 up to " + std::to_string(kLargestGroup);
    if (PyArray_SIZE(w) == 0) return "weight is empty";
    const npy_intp outputs = PyArray_DIM(w, 0), bytes = PyArray_DIM(w, 1), columns = bytes * 8 / bits;
    if (Reason reason = refuse_matrix("weight", w, outputs, bytes); !reason.empty()) return reason;
    if (columns % group_size != 0) return "the rows of weight are not whole groups";
    return refuse_scales(scales, biases, outputs, columns / group_size);
}

PlainWeights plain_weights(nb::handle weight, nb::handle scales, nb::handle biases) {
    PyArrayObject *w = as_array(weight), *s = as_array(scales), *b = biases.is_none() ? nullptr : as_array(biases);
    return {PyArray_BYTES(w),     PyArray_BYTES(s),     b ? PyArray_BYTES(b) : nullptr,
            PyArray_STRIDE(w, 0), PyArray_STRIDE(s, 0), b ? PyArray_STRIDE(b, 0) : 0};
}

nb::object pack_panels(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
    if (!refuse_pack_panels(weight, scales, biases, bits, group_size).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* w = as_array(weight);
    PanelFormat format{};
    format.outputs = PyArray_DIM(w, 0);
    format.inputs = PyArray_DIM(w, 1) * 8 / bits;
    format.group_size = group_size;
    format.bits = static_cast<int>(bits.value);
    format.has_biases = !biases.is_none();
    format.scale_dtype = dtype_of(as_array(scales));
    const PlainWeights plain = plain_weights(weight, scales, biases);
    std::unique_ptr<WeightPanels> panels;
    compute(PyArray_NBYTES(w), [&] { panels = std::make_unique<WeightPanels>(format, plain); });
    return nb::cast(panels.release(), nb::rv_policy::take_ownership);
}

nb::object empty_matrix(npy_intp rows, npy_intp columns, int type) {
    const npy_intp shape[] = {rows, columns};
    PyArray_Descr* descr = PyArray_DescrFromType(type);
    nb::object made = empty(2, shape, descr);
    Py_DECREF(descr);
    return made;
}

// The weight, scales and biases that the panels were made of.
std::tuple<nb::object, nb::object, nb::object> unpack_panels(const WeightPanels& panels) {
    const PanelFormat& format = panels.format();
    const int type = format.scale_dtype == Dtype::float16    ? static_cast<int>(NPY_FLOAT16)
                     : format.scale_dtype == Dtype::bfloat16 ? bfloat16_type
                                                             : static_cast<int>(NPY_FLOAT32);
    nb::object weight = empty_matrix(format.outputs, format.inputs * format.bits / 8, NPY_UINT8);
    nb::object scales = empty_matrix(format.outputs, format.groups(), type);
    nb::object biases = format.has_biases ? empty_matrix(format.outputs, format.groups(), type) : nb::none();
    const PlainWeights plain = plain_weights(weight, scales, biases);
    compute(panels.bytes(), [&] { panels.unpack(plain); });
    return {weight, scales, biases};
}

Reason refuse_panel_linear(nb::handle x, const WeightPanels& panels) {
    if (Reason reason = refuse_x(x); !reason.empty()) return reason;
    if (PyArray_SIZE(as_array(x)) == 0) return "x is empty";
    if (length_of(as_array(x)) == panels.format().inputs) return {};
    return "the last axis of x has " + std::to_string(length_of(as_array(x))) + " elements, and weight has rows of " +
           std::to_string(panels.format().inputs);
}

nb::object panel_linear(nb::handle x, const WeightPanels& panels) {
    if (!refuse_panel_linear(x, panels).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_outputs(a, panels.format().outputs);
    const PanelLinear op{rows_of(a), panels.data(), panels.format(), PyArray_BYTES(as_array(y)), dtype_of(a)};
    compute(product(panels.bytes(), op.x.count), [&op] { target().panel_linear(op); });
    return y;
}

void bind_panels(nb::module_& m) {
    nb::class_<WeightPanels>(m, "WeightPanels", "Quantized weights in the order that panel_linear takes.")
        .def_prop_ro("shape", [](const WeightPanels& p) { return std::tuple(p.format().outputs, p.format().inputs); })
        .def_prop_ro("bits", [](const WeightPanels& p) { return p.format().bits; })
        .def_prop_ro("group_size", [](const WeightPanels& p) { return p.format().group_size; })
        .def_prop_ro("nbytes", &WeightPanels::bytes)
        .def("unpack", &unpack_panels, "The weight, scales and biases that it was made of, as new arrays.");
    m.def("pack_panels", &pack_panels, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(),
          "bits"_a.none() = 4, "group_size"_a.none() = 32);
    m.def(
        "pack_panels_supports",
        [](nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
            return none_or(refuse_pack_panels(weight, scales, biases, bits, group_size));
        },
        "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4,
        "group_size"_a.none() = 32);
    m.def("panel_linear", &panel_linear, "x"_a, "weight"_a);
    m.def(
        "panel_linear_supports",
        [](nb::handle x, const WeightPanels& panels) { return none_or(refuse_panel_linear(x, panels)); }, "x"_a,
        "weight"_a);
}

}  // namespace

void bind_linear(nb::module_& m) {
    bind_panels(m);
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
