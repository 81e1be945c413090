// What the launchers of GPU kernels have in common: what tells one call from another is collected from its arguments,
// and what runs the call is found by it.
//
// Launchers do only what most calls need. All else, such as arrays on several devices and wrong arguments, they leave
// to the function in Python that they were made with, so results and errors are the same without the compiled module.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

namespace tensorops::calls {

namespace nb = nanobind;

constexpr int kMost = 16;  // arrays of a call; those with more are left to Python

template <class T, int kCapacity>
class Few {
  public:
    bool add(T value) {
        if (count_ == kCapacity) return false;
        values_[count_++] = std::move(value);
        return true;
    }
    int size() const { return count_; }
    T& operator[](int i) { return values_[i]; }
    T* data() { return values_.data(); }

  private:
    std::array<T, kCapacity> values_;
    int count_ = 0;
};

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

// The result of a function; null with an exception
inline nb::object called(PyObject* function) { return nb::steal(PyObject_CallNoArgs(function)); }
inline nb::object called(PyObject* function, PyObject* x) { return nb::steal(PyObject_CallOneArg(function, x)); }

// An attribute or the result of a function, as a truth value; negative with or without an exception
inline int truth(const nb::object& x) { return x.is_valid() ? PyObject_IsTrue(x.ptr()) : -1; }

// An integer of Python's own type within 64 bits
inline bool read(PyObject* x, std::int64_t& value) {
    if (!x || !PyLong_CheckExact(x)) return false;
    value = PyLong_AsLongLong(x);
    return value != -1 || !PyErr_Occurred();
}

// A pointer as an integer of Python
inline bool read_address(PyObject* x, std::uint64_t& value) {
    if (!x || !PyLong_CheckExact(x)) return false;
    value = PyLong_AsUnsignedLongLong(x);
    return value != ~std::uint64_t{0} || !PyErr_Occurred();
}

// What tells one call from another: numbers, and objects that are compared as Python does.
class Key {
  public:
    bool add(std::int64_t word) { return words_.add(word); }

    // By identity: whoever remembers the key must keep the object.
    bool add_same(nb::object x) {
        return x.is_valid() && words_.add(reinterpret_cast<std::intptr_t>(x.ptr())) && kept_.add(std::move(x));
    }

    bool add_integers(PyObject* tuple) {
        if (!tuple || !PyTuple_CheckExact(tuple) || !add(PyTuple_GET_SIZE(tuple))) return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
            std::int64_t value = 0;
            if (!read(PyTuple_GET_ITEM(tuple, i), value) || !add(value)) return false;
        }
        return true;
    }

    // By value; the reference is the caller's.
    bool add_equal(PyObject* x) { return others_.add(x); }

    // The key of a dictionary
    nb::object made() {
        PyObject* words =
            PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words_.data()), words_.size() * Py_ssize_t{8});
        if (!words || others_.size() == 0) return nb::steal(words);
        return tuple_of(others_, words);
    }

    nb::object kept() { return tuple_of(kept_, nullptr); }

  private:
    static PyObject* pointer(const nb::object& x) { return x.ptr(); }
    static PyObject* pointer(PyObject* x) { return x; }

    // Takes over the reference to `first`, if any
    template <class T, int kCapacity>
    static nb::object tuple_of(Few<T, kCapacity>& values, PyObject* first) {
        const int before = first ? 1 : 0;
        PyObject* tuple = PyTuple_New(before + values.size());
        if (!tuple) {
            Py_XDECREF(first);
            return {};
        }
        if (first) PyTuple_SET_ITEM(tuple, 0, first);
        for (int i = 0; i < values.size(); ++i) PyTuple_SET_ITEM(tuple, before + i, Py_NewRef(pointer(values[i])));
        return nb::steal(tuple);
    }

    Few<std::int64_t, 256> words_;
    Few<nb::object, kMost> kept_;
    Few<PyObject*, 4 * kMost> others_;
};

// What an argument is; a word of the key
enum Kind : std::int64_t { kOther, kGenerator, kArray, kWrapper };

inline bool add_other(Key& key, PyObject* x) {
    return key.add(kOther) && key.add_equal(reinterpret_cast<PyObject*>(Py_TYPE(x))) && key.add_equal(x);
}

// How many arguments a call has by position and, with their names, altogether
inline bool add_names(Key& key, Py_ssize_t count, PyObject* names) {
    return key.add(count) && (!names || key.add_equal(names));
}

inline Py_ssize_t all_of(Py_ssize_t count, PyObject* names) { return count + (names ? PyTuple_GET_SIZE(names) : 0); }

// Calls a function that plans a call with what it was given, as `args` and `kwargs` are in Python.
inline nb::object plan(PyObject* function, const nb::object& key, Key& made_of, PyObject* where, PyObject* const* args,
                       Py_ssize_t count, PyObject* names) {
    nb::object by_position = nb::steal(PyTuple_New(count)), by_name = nb::steal(PyDict_New()), kept = made_of.kept();
    if (!by_position.is_valid() || !by_name.is_valid() || !kept.is_valid()) return {};
    for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(by_position.ptr(), i, Py_NewRef(args[i]));
    for (Py_ssize_t i = count; i < all_of(count, names); ++i)
        if (PyDict_SetItem(by_name.ptr(), PyTuple_GET_ITEM(names, i - count), args[i]) != 0) return {};
    PyObject* const given[] = {key.ptr(), kept.ptr(), where, by_position.ptr(), by_name.ptr()};
    return nb::steal(PyObject_Vectorcall(function, given, 5, nullptr));
}

using Function = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names);

// A built-in function with the given members; nanobind's own take longer to be called.
inline nb::object function(PyMethodDef& definition, nb::object members) {
    return nb::steal(PyCFunction_NewEx(&definition, members.ptr(), nullptr));
}

inline PyMethodDef definition(const char* name, Function call) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)), METH_FASTCALL | METH_KEYWORDS, nullptr};
}

}  // namespace tensorops::calls
