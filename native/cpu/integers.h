// Integer arrays whose values bindings read, such as indices: one out of range must be found before memory is touched.
#pragma once

#include "bind.h"

namespace tensorops {

inline Reason refuse_integers(const char* name, nb::handle h) {
    if (!PyArray_CheckExact(h.ptr())) return std::string(name) + " is not a numpy.ndarray";
    PyArrayObject* a = as_array(h);
    if (!PyArray_ISINTEGER(a) || PyArray_ISBOOL(a)) return std::string(name) + " has a dtype that is no integer";
    return PyArray_ISNOTSWAPPED(a) ? Reason{} : std::string(name) + " is in foreign byte order";
}

// The integers as contiguous int64; those of uint64 beyond its range become negative. Always a copy: another thread may
// write to the caller's integers between the check and their use.
inline nb::object as_int64(nb::handle h) {
    constexpr int copied = NPY_ARRAY_CARRAY | NPY_ARRAY_FORCECAST | NPY_ARRAY_ENSURECOPY;
    if (product(PyArray_SIZE(as_array(h)), sizeof(std::int64_t)) == INT64_MAX) throw std::bad_alloc();
    PyObject* wide = PyArray_FROMANY(h.ptr(), NPY_INT64, 0, 0, copied);
    if (!wide) throw nb::python_error();
    return nb::steal(wide);
}

inline std::int64_t* int64s(const nb::object& a) { return static_cast<std::int64_t*>(PyArray_DATA(as_array(a))); }

}  // namespace tensorops
