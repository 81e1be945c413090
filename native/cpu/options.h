// Options of operators: Python and NumPy numbers and booleans, and strings, but never arrays.
//
// A parameter of one of these types accepts any object. A value that the operator refuses or the type cannot hold
// becomes one that no kernel supports: the binding then declines, and the operator raises its own error.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "numpy_array.h"

namespace tensorops {

constexpr std::int64_t kNoInteger = std::numeric_limits<std::int64_t>::min();

struct Number {
    double value = std::numeric_limits<double>::quiet_NaN();
    operator double() const { return value; }
};

struct Integer {
    std::int64_t value = kNoInteger;
    operator std::int64_t() const { return value; }
};

struct Flag {
    bool known = false, value = false;
};

struct Choice {
    std::string_view value;  // empty if it is not a string; valid while the argument lives
    bool operator==(std::string_view other) const { return value == other; }
    bool operator!=(std::string_view other) const { return value != other; }
};

inline Number read_number(nb::handle h) {
    PyObject* p = h.ptr();
    const bool exact = PyFloat_CheckExact(p) || PyLong_CheckExact(p);
    if (!exact && (PyBool_Check(p) || !(PyFloat_Check(p) || PyLong_Check(p) || PyArray_IsScalar(p, Floating) ||
                                        PyArray_IsScalar(p, Integer))))
        return {};
    const double value = PyFloat_AsDouble(p);
    if (value != -1 || !PyErr_Occurred()) return {value};
    PyErr_Clear();  // an integer beyond the range of double
    return {};
}

inline Integer read_integer(nb::handle h) {
    PyObject* p = h.ptr();
    if (PyBool_Check(p) || !(PyLong_Check(p) || PyArray_IsScalar(p, Integer))) return {};
    nb::object index = nb::steal(PyNumber_Index(p));
    int overflow = 0;
    const long long value = index.is_valid() ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : kNoInteger;
    if (overflow == 0 && !PyErr_Occurred()) return {value};
    PyErr_Clear();
    return {};
}

inline Flag read_flag(nb::handle h) {
    if (PyBool_Check(h.ptr())) return {true, h.ptr() == Py_True};
    if (PyArray_IsScalar(h.ptr(), Bool)) return {true, PyObject_IsTrue(h.ptr()) == 1};
    return {};
}

inline Choice read_choice(nb::handle h) {
    if (!PyUnicode_Check(h.ptr())) return {};
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(h.ptr(), &size);
    if (text) return {{text, static_cast<std::size_t>(size)}};
    PyErr_Clear();  // a lone surrogate
    return {};
}

}  // namespace tensorops

namespace nanobind::detail {

template <class T, T (*kRead)(handle)>
struct option_caster {
    NB_TYPE_CASTER(T, const_name("object"))
    bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
        value = kRead(source);
        return true;
    }
};

template <>
struct type_caster<tensorops::Number> : option_caster<tensorops::Number, tensorops::read_number> {};
template <>
struct type_caster<tensorops::Integer> : option_caster<tensorops::Integer, tensorops::read_integer> {};
template <>
struct type_caster<tensorops::Flag> : option_caster<tensorops::Flag, tensorops::read_flag> {};
template <>
struct type_caster<tensorops::Choice> : option_caster<tensorops::Choice, tensorops::read_choice> {};

}  // namespace nanobind::detail
