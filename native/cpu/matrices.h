// Checks and results that the bindings of weight matrices share.
#pragma once

#include "bind.h"

namespace tensorops {

inline constexpr npy_intp kAny = -1;

// NumPy multiplies float32 matrices with its own library, which is memory-bound for a few rows.
inline constexpr npy_intp kMostRows = 8;

// Whether an array is a matrix of the given shape with contiguous rows; the caller checks the dtype.
inline Reason refuse_matrix(const std::string& name, PyArrayObject* a, npy_intp rows = kAny, npy_intp columns = kAny) {
    if (PyArray_NDIM(a) != 2) return name + " does not have 2 dimensions";
    const npy_intp* shape = PyArray_DIMS(a);
    if (rows == kAny) rows = shape[0];
    if (columns == kAny) columns = shape[1];
    if (shape[0] != rows || shape[1] != columns)
        return name + " has shape (" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "), not (" +
               std::to_string(rows) + ", " + std::to_string(columns) + ")";
    return last_axis_contiguous(a) ? Reason{} : "the last axis of " + name + " is not contiguous";
}

// Stacks of matrices, one for each expert, whose rows are contiguous.
inline Reason refuse_stack(const std::string& name, PyArrayObject* a, npy_intp experts = kAny, npy_intp rows = kAny,
                           npy_intp columns = kAny) {
    if (PyArray_NDIM(a) != 3) return name + " does not have 3 dimensions";
    const npy_intp* shape = PyArray_DIMS(a);
    if ((experts != kAny && shape[0] != experts) || (rows != kAny && shape[1] != rows) ||
        (columns != kAny && shape[2] != columns))
        return name + " has another shape than the other arrays need";
    return last_axis_contiguous(a) ? Reason{} : "the last axis of " + name + " is not contiguous";
}

// After how many rows the matrix of the next expert begins; 0 if that is not after whole rows.
inline std::int64_t rows_per_expert(PyArrayObject* a) {
    if (PyArray_DIM(a, 0) == 1) return PyArray_DIM(a, 1);
    const npy_intp row = PyArray_STRIDE(a, 1), expert = PyArray_STRIDE(a, 0);
    return row > 0 && expert > 0 && expert % row == 0 ? expert / row : 0;
}

// Scales, and biases or None: matrices of one dtype that have an element for each group.
inline Reason refuse_scales(nb::handle scales, nb::handle biases, npy_intp rows, npy_intp groups,
                            bool takes_float64 = true) {
    const auto refuse = [=](const char* name, nb::handle h) -> Reason {
        if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
        PyArrayObject* p = as_array(h);
        if (!takes_float64 && dtype_of(p) == Dtype::float64) return std::string(name) + " has dtype float64";
        if (dtype_of(p) != dtype_of(as_array(scales))) return "biases has another dtype than scales";
        return refuse_matrix(name, p, rows, groups);
    };
    if (Reason reason = refuse("scales", scales); !reason.empty()) return reason;
    return biases.is_none() ? Reason{} : refuse("biases", biases);
}

// The array that is multiplied by a matrix of weights, in float32
inline Reason refuse_factor(nb::handle x) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    if (dtype_of(a) == Dtype::float64) return "x has dtype float64, whose products numpy.matmul computes";
    if (PyArray_NDIM(a) == 0) return "x has 0 dimensions";
    return last_axis_contiguous(a) ? Reason{} : "the last axis of x is not contiguous";
}

// The format of quantized matrices that rows of `columns` elements are multiplied by
inline Reason refuse_product(nb::handle biases, Integer bits, Integer group_size, npy_intp columns) {
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (biases.is_none() && bits != 8) return "biases are missing";
    if (group_size < 1 || group_size > columns || group_size * bits % 8 != 0) return "group_size does not fit x";
    return columns % group_size == 0 ? Reason{} : "the last axis of x is no multiple of group_size";
}

inline npy_intp length_of(PyArrayObject* a) { return PyArray_DIM(a, PyArray_NDIM(a) - 1); }

// Room for the outputs of each row of x
inline nb::object empty_outputs(PyArrayObject* x, npy_intp outputs) {
    npy_intp shape[kMaxDims];
    std::copy_n(PyArray_DIMS(x), PyArray_NDIM(x), shape);
    shape[PyArray_NDIM(x) - 1] = outputs;
    return empty(PyArray_NDIM(x), shape, PyArray_DESCR(x));
}

}  // namespace tensorops
