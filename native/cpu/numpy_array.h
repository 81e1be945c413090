// NumPy arrays as kernels see them, and results in pooled memory.
//
// nanobind's own ndarray does not support ml_dtypes' bfloat16, and requests a buffer from every array. With NumPy's C
// API the same checks read a few fields, which makes calls on small arrays cheap.
#pragma once

#include <nanobind/nanobind.h>

// One table of NumPy's functions for all files; module.cpp fills it.
#define PY_ARRAY_UNIQUE_SYMBOL tensorops_numpy
#if !defined(TENSOROPS_IMPORTS_NUMPY)
#define NO_IMPORT_ARRAY
#endif
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "elements.h"
#include "pool.h"
#include "rows.h"

namespace tensorops {

namespace nb = nanobind;

// Why a kernel does not support an argument; empty if it does.
using Reason = std::string;

inline int bfloat16_type = -1;  // NumPy's number for ml_dtypes.bfloat16, set when the module is loaded

inline PyArrayObject* as_array(nb::handle h) { return reinterpret_cast<PyArrayObject*>(h.ptr()); }

inline Dtype dtype_of(PyArrayObject* a) {
    const int type = PyArray_TYPE(a);
    if (type == NPY_FLOAT32) return Dtype::float32;
    if (type == NPY_FLOAT64) return Dtype::float64;
    if (type == NPY_FLOAT16) return Dtype::float16;
    return type == bfloat16_type ? Dtype::bfloat16 : Dtype::other;
}

// Checks what every kernel needs: a plain NumPy array of a floating-point dtype in this machine's byte order.
inline Reason refuse_array(const char* name, nb::handle h) {
    if (!PyArray_CheckExact(h.ptr())) return std::string(name) + " is not a numpy.ndarray";
    PyArrayObject* a = as_array(h);
    if (dtype_of(a) == Dtype::other) return std::string(name) + " has a dtype without a kernel";
    if (!PyArray_ISNOTSWAPPED(a)) return std::string(name) + " is in foreign byte order";
    return {};
}

inline bool last_axis_contiguous(PyArrayObject* a) {
    const int last = PyArray_NDIM(a) - 1;
    return PyArray_DIM(a, last) <= 1 || PyArray_STRIDE(a, last) == PyArray_ITEMSIZE(a);
}

// Whether the axes from one on, together, are contiguous.
inline bool contiguous_from(PyArrayObject* a, int axis) {
    npy_intp stride = PyArray_ITEMSIZE(a);
    for (int d = PyArray_NDIM(a) - 1; d >= axis; stride *= PyArray_DIM(a, d), --d)
        if (PyArray_DIM(a, d) > 1 && PyArray_STRIDE(a, d) != stride) return false;
    return true;
}

// The axes before one as rows, without their length. Inlined, as Rows is more than a kilobyte.
inline __attribute__((always_inline)) Rows rows_before(PyArrayObject* a, int axis) {
    Rows rows{};
    rows.data = PyArray_BYTES(a);
    rows.count = 1;
    rows.outer = 0;
    for (int d = 0; d < axis; ++d) add_axis(rows, PyArray_DIM(a, d), PyArray_STRIDE(a, d));
    return rows;
}

// Rows along the last axis, or along several of them that are contiguous.
inline Rows rows_of(PyArrayObject* a, int trailing = 1) {
    const int first = PyArray_NDIM(a) - trailing;
    Rows rows = rows_before(a, first);
    rows.length = 1;
    for (int d = first; d < PyArray_NDIM(a); ++d) rows.length *= PyArray_DIM(a, d);
    return rows;
}

// The product of nonnegative sizes, or the largest number if it overflows.
inline std::int64_t product(std::int64_t a, std::int64_t b) {
    std::int64_t c = 0;
    return __builtin_mul_overflow(a, b, &c) ? INT64_MAX : c;
}

// A new C-contiguous array; throws if there is no memory.
inline nb::object empty(int ndim, const npy_intp* shape, PyArray_Descr* descr) {
    Py_INCREF(descr);  // PyArray_NewFromDescr steals the reference
    std::int64_t size = PyDataType_ELSIZE(descr);
    for (int d = 0; d < ndim; ++d) size = product(size, shape[d]);
    if (std::find(shape, shape + ndim, 0) != shape + ndim) size = 0;
    const auto bytes = static_cast<std::size_t>(size);
    if (bytes < pool::kSmallest) {
        PyObject* small = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, nullptr, 0, nullptr);
        if (!small) throw nb::python_error();
        return nb::steal(small);
    }
    void* block = pool::take(bytes);
    if (!block) {
        Py_DECREF(descr);
        throw std::bad_alloc();
    }
    PyObject* array =
        PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, block, NPY_ARRAY_CARRAY, nullptr);
    PyObject* owner = array
                          ? PyCapsule_New(block, nullptr,
                                          [](PyObject* capsule) {
                                              auto size = reinterpret_cast<std::size_t>(PyCapsule_GetContext(capsule));
                                              pool::give(PyCapsule_GetPointer(capsule, nullptr), size);
                                          })
                          : nullptr;
    if (!owner) {
        Py_XDECREF(array);
        pool::give(block, bytes);
        throw nb::python_error();
    }
    PyCapsule_SetContext(owner, reinterpret_cast<void*>(bytes));
    if (PyArray_SetBaseObject(as_array(array), owner) != 0) {  // steals the owner, even when it fails
        Py_DECREF(array);
        throw nb::python_error();
    }
    return nb::steal(array);
}

// The same, with the shape and dtype of another.
inline nb::object empty_like(PyArrayObject* like) {
    return empty(PyArray_NDIM(like), PyArray_DIMS(like), PyArray_DESCR(like));
}

}  // namespace tensorops
