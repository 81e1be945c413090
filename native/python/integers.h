// Integers of Python and NumPy, but neither booleans nor arrays.
#pragma once

#include <cstdint>

#include "numpy_array.h"

namespace tensorops {

// Whether an object is an integer within 64 bits
inline bool read_integer(PyObject* p, std::int64_t& value) {
    if (PyBool_Check(p) || !(PyLong_Check(p) || PyArray_IsScalar(p, Integer))) return false;
    nb::object index = nb::steal(PyNumber_Index(p));
    int overflow = 0;
    value = index.is_valid() ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : 0;
    if (index.is_valid() && overflow == 0 && !(value == -1 && PyErr_Occurred())) return true;
    PyErr_Clear();
    return false;
}

}  // namespace tensorops
