// Bindings of quantization, and of products with quantized matrices.
#include "bind.h"
#include "matrices.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_format(Integer bits, Integer group_size, Choice mode, npy_intp columns) {
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (mode != "affine" && mode != "symmetric") return "mode is neither 'affine' nor 'symmetric'";
    if (group_size < 1 || group_size > columns || columns % group_size != 0) return "group_size does not divide a row";
    return group_size * bits % 8 == 0 ? Reason{} : "group_size does not fill whole bytes";
}

Reason refuse_quantize(nb::handle w, Integer bits, Integer group_size, Choice mode) {
    if (Reason reason = refuse_array("w", w); !reason.empty()) return reason;
    if (Reason reason = refuse_matrix("w", as_array(w)); !reason.empty()) return reason;
    if (PyArray_SIZE(as_array(w)) == 0) return "w is empty";
    if (mode == "symmetric" && bits != 8) return "mode 'symmetric' has 8 bits";
    return refuse_format(bits, group_size, mode, PyArray_DIM(as_array(w), 1));
}

Reason refuse_dequantize(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size,
                         Choice mode) {
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject* w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (Reason reason = refuse_matrix("weight", w); !reason.empty()) return reason;
    if (PyArray_SIZE(w) == 0) return "weight is empty";
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    const npy_intp rows = PyArray_DIM(w, 0), columns = PyArray_DIM(w, 1) * (8 / bits);
    if (Reason reason = refuse_format(bits, group_size, mode, columns); !reason.empty()) return reason;
    if (biases.is_none() && bits != 8) return "biases are missing";
    if (!biases.is_none() && mode == "symmetric") return "mode 'symmetric' has no biases";
    return refuse_scales(scales, biases, rows, columns / group_size);
}

nb::object empty_bytes(npy_intp rows, npy_intp columns) {
    const npy_intp shape[] = {rows, columns};
    nb::object descr = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_UINT8)));
    return empty(2, shape, reinterpret_cast<PyArray_Descr*>(descr.ptr()));
}

nb::object quantize(nb::handle w, Integer bits, Integer group_size, Choice mode) {
    if (!refuse_quantize(w, bits, group_size, mode).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(w);
    Quantize op{};
    op.w = PyArray_BYTES(a);
    op.w_stride = PyArray_STRIDE(a, 0);
    op.rows = PyArray_DIM(a, 0);
    op.columns = PyArray_DIM(a, 1);
    op.group_size = group_size;
    op.bits = static_cast<int>(bits.value);
    op.dtype = dtype_of(a);
    const npy_intp groups[] = {op.rows, op.columns / group_size};
    nb::object weight = empty_bytes(op.rows, op.columns * bits / 8);
    nb::object scales = empty(2, groups, PyArray_DESCR(a));
    nb::object biases = mode == "affine" ? empty(2, groups, PyArray_DESCR(a)) : nb::none();
    op.weight = PyArray_BYTES(as_array(weight));
    op.scales = PyArray_BYTES(as_array(scales));
    op.biases = biases.is_none() ? nullptr : PyArray_BYTES(as_array(biases));
    const std::int64_t row_bytes = op.columns * bits / 8, of_groups = groups[1] * PyArray_ITEMSIZE(a);
    const auto cut = [row_bytes, of_groups](Quantize& part, std::int64_t begin, std::int64_t end) {
        part.rows = end - begin;
        part.w += begin * part.w_stride;
        part.weight += begin * row_bytes;
        part.scales += begin * of_groups;
        if (part.biases) part.biases += begin * of_groups;
    };
    compute_parts(target().quantize, op, op.rows, 1, PyArray_NBYTES(a), cut);
    return nb::make_tuple(weight, scales, biases);
}

nb::object dequantize(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size,
                      Choice mode) {
    if (!refuse_dequantize(weight, scales, biases, bits, group_size, mode).empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject *q = as_array(weight), *s = as_array(scales);
    Dequantize op{};
    op.weight = PyArray_BYTES(q);
    op.weight_stride = PyArray_STRIDE(q, 0);
    op.scales = PyArray_BYTES(s);
    op.scale_stride = PyArray_STRIDE(s, 0);
    if (!biases.is_none()) {
        op.biases = PyArray_BYTES(as_array(biases));
        op.bias_stride = PyArray_STRIDE(as_array(biases), 0);
    }
    op.rows = PyArray_DIM(q, 0);
    op.columns = PyArray_DIM(q, 1) * (8 / bits);
    op.group_size = group_size;
    op.bits = static_cast<int>(bits.value);
    op.dtype = dtype_of(s);
    const npy_intp shape[] = {op.rows, op.columns};
    nb::object w = empty(2, shape, PyArray_DESCR(s));
    op.w = PyArray_BYTES(as_array(w));
    const npy_intp bytes = PyArray_NBYTES(as_array(w));
    op.streaming = bytes >= kStreamBytes && group_size % 16 == 0;
    const auto cut = [row_bytes = bytes / op.rows](Dequantize& part, std::int64_t begin, std::int64_t end) {
        part.rows = end - begin;
        part.weight += begin * part.weight_stride;
        part.scales += begin * part.scale_stride;
        if (part.biases) part.biases += begin * part.bias_stride;
        part.w += begin * row_bytes;
    };
    compute_parts(target().dequantize, op, op.rows, 64, bytes, cut);  // 64 rows end at a cache line
    return w;
}

Reason refuse_quantized_linear(nb::handle x, nb::handle weight, nb::handle scales, nb::handle biases, Integer bits,
                               Integer group_size) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject* w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    const npy_intp columns = length_of(a);
    if (Reason reason = refuse_product(biases, bits, group_size, columns); !reason.empty()) return reason;
    if (Reason reason = refuse_matrix("weight", w, kAny, columns * bits / 8); !reason.empty()) return reason;
    return refuse_scales(scales, biases, PyArray_DIM(w, 0), columns / group_size, false);
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

void bind_quantization(nb::module_& m) {
    m.def("quantize", &quantize, "w"_a, nb::kw_only(), "bits"_a.none(), "group_size"_a.none(),
          "mode"_a.none() = "affine");
    m.def(
        "quantize_supports",
        [](nb::handle w, Integer bits, Integer group_size, Choice mode) {
            return none_or(refuse_quantize(w, bits, group_size, mode));
        },
        "w"_a, nb::kw_only(), "bits"_a.none(), "group_size"_a.none(), "mode"_a.none() = "affine");
    m.def("dequantize", &dequantize, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(),
          "bits"_a.none() = 4, "group_size"_a.none() = 32, "mode"_a.none() = "affine");
    m.def(
        "dequantize_supports",
        [](nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size, Choice mode) {
            return none_or(refuse_dequantize(weight, scales, biases, bits, group_size, mode));
        },
        "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4, "group_size"_a.none() = 32,
        "mode"_a.none() = "affine");
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
