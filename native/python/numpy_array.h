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

#include "array.h"
#include "pool.h"

namespace tensorops {

namespace nb = nanobind;

inline int bfloat16_type = -1;  // NumPy's number for ml_dtypes.bfloat16, set when the module is loaded

inline PyArrayObject* as_array(nb::handle h) { return reinterpret_cast<PyArrayObject*>(h.ptr()); }

// The dtype of NumPy's type of this number, or Dtype::other
Dtype dtype_of_type(int type);

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

// The same, of a dtype that kernels know
nb::object empty(int ndim, const npy_intp* shape, Dtype dtype);

// The same, with the axes in another order in memory, slowest first
nb::object empty(int ndim, const npy_intp* shape, Dtype dtype, const int* order);

// The same, with the shape and dtype of another.
inline nb::object empty_like(PyArrayObject* like) {
    return empty(PyArray_NDIM(like), PyArray_DIMS(like), PyArray_DESCR(like));
}

}  // namespace tensorops
