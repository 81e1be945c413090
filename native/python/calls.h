// What Python's objects are asked without nanobind, by the functions that are called without it.
#pragma once

#include <nanobind/nanobind.h>

namespace tensorops::calls {

namespace nb = nanobind;

// A new reference, or null with an exception set
inline nb::object attribute(PyObject* of, PyObject* name) { return nb::steal(PyObject_GetAttr(of, name)); }

inline PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

// An entry of a dictionary; null without an exception if there is none
inline nb::object entry(PyObject* dictionary, PyObject* key) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* found = nullptr;
    PyDict_GetItemRef(dictionary, key, &found);
    return nb::steal(found);
#else
    return nb::borrow(PyDict_GetItemWithError(dictionary, key));
#endif
}

}  // namespace tensorops::calls
