// What a torch.autograd.Function of an operator does for every call, without Python's share of the time, which small
// tensors notice: kernels/torch_cpu/_derivatives.py has the class, and does the same in Python for calls that
// are unusual.
#include <algorithm>

#include "bind.h"
#include "calls.h"

namespace tensorops {

using namespace nb::literals;

namespace {

using calls::attribute;

// The tuple of members of `call`. `kOthers` are the places of arguments that are not differentiated.
enum Followed { kApply, kOthers, kCallInPython };
// The tuple of members of `forward`
enum Forward { kCompute, kTensor, kParameter, kDropped, kKeptResults, kForwardInPython };
// The tuple of members of `backward`. A source is (0: argument, 1: kept result, 2: cotangent; which of them), and
// `kKnown` has the option `wanted` and the places of gradients among the results, by what gradients are needed.
enum Backward { kDifferentiate, kRecords, kSources, kOptions, kKnown, kBackwardInPython };

constexpr int kMost = 32;  // arguments; calls with more are left to Python

struct {
    PyObject *save_for_backward, *saved_tensors, *kept, *needs_input_grad, *dtype;
} names;

PyObject* member(PyObject* self, int which) { return PyTuple_GET_ITEM(self, which); }

// A member that is a tuple of small integers
Py_ssize_t integer(PyObject* tuple, Py_ssize_t i) { return PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)); }

bool is_tensor(PyObject* self, PyObject* x) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(x));
    return type == member(self, kTensor) || type == member(self, kParameter);
}

// call(*args, **options): apply(options, *args)
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
    bool is_usual = !by_name && count < kMost;
    for (Py_ssize_t o = 0; is_usual && o < PyTuple_GET_SIZE(member(self, kOthers)); ++o)
        is_usual = integer(member(self, kOthers), o) >= count;
    if (!is_usual) return PyObject_Vectorcall(member(self, kCallInPython), args, count, by_name);
    const nb::object options = nb::steal(PyDict_New());
    if (!options.is_valid()) return nullptr;
    PyObject* all[kMost + 1] = {options.ptr()};
    std::copy_n(args, count, all + 1);
    return PyObject_Vectorcall(member(self, kApply), all, static_cast<std::size_t>(count) + 1, nullptr);
}

// forward(ctx, options, *args)
PyObject* forward(PyObject* self, PyObject* const* all, Py_ssize_t count) {
    PyObject *const ctx = all[0], *const options = all[1], *const *args = all + 2, *name, *value;
    const Py_ssize_t n = count - 2;
    bool is_usual = n <= kMost;
    for (Py_ssize_t i = 0; PyDict_Next(options, &i, &name, &value);) is_usual &= !is_tensor(self, value);
    if (!is_usual) return PyObject_Vectorcall(member(self, kForwardInPython), all, count, nullptr);

    nb::object found = nb::steal(PyObject_VectorcallDict(member(self, kCompute), args, n, options));
    if (!found.is_valid() || found.ptr() == Py_NotImplemented) return found.release().ptr();

    PyObject* const kept_results = member(self, kKeptResults);
    const Py_ssize_t results = PyTuple_GET_SIZE(kept_results);
    nb::object saved = nb::steal(PyTuple_New(n + results)), rest = nb::steal(PyList_New(n));
    if (!saved.is_valid() || !rest.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < n; ++i) {
        const bool saves = is_tensor(self, args[i]);
        PyTuple_SET_ITEM(saved.ptr(), i, Py_NewRef(saves ? args[i] : Py_None));
        PyList_SET_ITEM(rest.ptr(), i, Py_NewRef(saves ? Py_None : args[i]));
    }
    for (Py_ssize_t d = 0; d < PyTuple_GET_SIZE(member(self, kDropped)); ++d) {
        const Py_ssize_t i = integer(member(self, kDropped), d);
        if (i >= n) continue;
        nb::object dtype = attribute(args[i], names.dtype);
        if (!dtype.is_valid() || PyTuple_SetItem(saved.ptr(), i, Py_NewRef(Py_None)) != 0 ||
            PyList_SetItem(rest.ptr(), i, dtype.release().ptr()) != 0)
            return nullptr;
    }
    for (Py_ssize_t r = 0; r < results; ++r) {
        PyObject* const y =
            PyTuple_CheckExact(found.ptr()) ? PyTuple_GET_ITEM(found.ptr(), integer(kept_results, r)) : found.ptr();
        PyTuple_SET_ITEM(saved.ptr(), n + r, Py_NewRef(y));
    }
    nb::object save = attribute(ctx, names.save_for_backward);
    if (!save.is_valid() || !nb::steal(PyObject_CallObject(save.ptr(), saved.ptr())).is_valid()) return nullptr;
    nb::object kept = nb::steal(PyTuple_Pack(3, rest.ptr(), options, nb::tuple().ptr()));
    if (!kept.is_valid() || PyObject_SetAttr(ctx, names.kept, kept.ptr()) != 0) return nullptr;
    return found.release().ptr();
}

// The gradients of backward(ctx, *cotangents); `None` if the call is unusual, null with an exception. `saved` becomes
// the tensors that were kept, unless that was clear before: torch hands them out once.
nb::object gradients(PyObject* self, PyObject* ctx, PyObject* const* cotangents, Py_ssize_t count, nb::object& saved) {
    const nb::object records = nb::steal(PyObject_CallNoArgs(member(self, kRecords)));
    if (!records.is_valid()) return {};
    if (records.ptr() != Py_False) return nb::none();
    const nb::object kept = attribute(ctx, names.kept), needed = attribute(ctx, names.needs_input_grad);
    if (!kept.is_valid() || !needed.is_valid()) return {};
    PyObject *const rest = PyTuple_GET_ITEM(kept.ptr(), 0), *const by_name = PyTuple_GET_ITEM(kept.ptr(), 1);
    const nb::object known = calls::entry(member(self, kKnown), needed.ptr());
    if (PyErr_Occurred()) return {};
    if (!known.is_valid() || PyTuple_GET_SIZE(PyTuple_GET_ITEM(kept.ptr(), 2)) != 0) return nb::none();
    saved = attribute(ctx, names.saved_tensors);  // an exception if one was overwritten
    if (!saved.is_valid()) return {};

    nb::object options = nb::borrow(PyTuple_GET_ITEM(known.ptr(), 0));
    if (PyDict_GET_SIZE(by_name)) {
        options = nb::steal(PyDict_Copy(options.ptr()));
        if (!options.is_valid()) return {};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(member(self, kOptions)); ++i) {
            PyObject* const name = PyTuple_GET_ITEM(member(self, kOptions), i);
            const nb::object value = calls::entry(by_name, name);
            if (value.is_valid() && PyDict_SetItem(options.ptr(), name, value.ptr()) != 0) return {};
        }
        if (PyErr_Occurred()) return {};
    }

    const Py_ssize_t arguments = PyList_GET_SIZE(rest);
    const auto argument = [&](Py_ssize_t i) {
        PyObject* const x = PyTuple_GET_ITEM(saved.ptr(), i);
        return x == Py_None ? PyList_GET_ITEM(rest, i) : x;
    };
    PyObject* const sources = member(self, kSources);
    PyObject* given[kMost];
    Py_ssize_t n = PyTuple_GET_SIZE(sources);
    for (Py_ssize_t s = 0; s < n; ++s) {
        const Py_ssize_t of = integer(PyTuple_GET_ITEM(sources, s), 0), i = integer(PyTuple_GET_ITEM(sources, s), 1);
        if (of == 0)
            given[s] = i < arguments ? argument(i) : Py_None;
        else if (of == 1)
            given[s] = PyTuple_GET_ITEM(saved.ptr(), arguments + i);
        else
            given[s] = i < count ? cotangents[i] : Py_None;
    }
    while (given[n - 1] == Py_None) --n;  // options at the end that were not given have defaults
    const nb::object found = nb::steal(PyObject_VectorcallDict(member(self, kDifferentiate), given, n, options.ptr()));
    if (!found.is_valid()) return {};
    if (found.ptr() == Py_NotImplemented) return nb::none();

    PyObject* const places = PyTuple_GET_ITEM(known.ptr(), 1);
    nb::object all = nb::steal(PyTuple_New(arguments + 1));
    if (!all.is_valid()) return {};
    PyTuple_SET_ITEM(all.ptr(), 0, Py_NewRef(Py_None));
    for (Py_ssize_t i = 0; i < arguments; ++i) {
        PyObject *const place = PyTuple_GET_ITEM(places, i), *y = Py_None;
        if (place != Py_None)
            y = PyTuple_CheckExact(found.ptr()) ? PyTuple_GET_ITEM(found.ptr(), PyLong_AsSsize_t(place)) : found.ptr();
        PyTuple_SET_ITEM(all.ptr(), i + 1, Py_NewRef(y));
        if (y == Py_None) continue;
        nb::object of_argument = attribute(argument(i), names.dtype), of_gradient = attribute(y, names.dtype);
        if (!of_argument.is_valid()) {  // the dtype of a tensor that was not kept
            PyErr_Clear();
            of_argument = nb::borrow(argument(i));
        }
        if (of_argument.ptr() != of_gradient.ptr()) return nb::none();
    }
    return all;
}

PyObject* backward(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    nb::object saved = nb::none();
    const nb::object found = gradients(self, args[0], args + 1, count - 1, saved);
    if (!found.is_valid() || !found.is_none()) return nb::object(found).release().ptr();
    nb::object all = nb::steal(PyTuple_New(count + 1));
    if (!all.is_valid()) return nullptr;
    for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(all.ptr(), i ? i + 1 : 0, Py_NewRef(args[i]));
    PyTuple_SET_ITEM(all.ptr(), 1, saved.release().ptr());
    return PyObject_CallObject(member(self, kBackwardInPython), all.ptr());
}

PyMethodDef call_definition = {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};
PyMethodDef forward_definition = {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(forward)),
                                  METH_FASTCALL, nullptr};
PyMethodDef backward_definition = {"backward", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(backward)),
                                   METH_FASTCALL, nullptr};

}  // namespace

void bind_torch_gradients(nb::module_& m) {
    names = {calls::interned("save_for_backward"), calls::interned("saved_tensors"), calls::interned("kept"),
             calls::interned("needs_input_grad"), calls::interned("dtype")};
    m.def(
        "torch_apply",
        [](nb::typed<nb::tuple, nb::object, nb::ellipsis> members) {
            return nb::steal(PyCFunction_NewEx(&call_definition, members.ptr(), nullptr));
        },
        "members"_a, "A call of a `torch.autograd.Function`; the last member does the same in Python.");
    m.def(
        "torch_forward",
        [](nb::typed<nb::tuple, nb::object, nb::ellipsis> members) {
            return nb::steal(PyCFunction_NewEx(&forward_definition, members.ptr(), nullptr));
        },
        "members"_a, "The method `forward` of a `torch.autograd.Function`; the last member does the same in Python.");
    m.def(
        "torch_backward",
        [](nb::typed<nb::tuple, nb::object, nb::ellipsis> members) {
            return nb::steal(PyCFunction_NewEx(&backward_definition, members.ptr(), nullptr));
        },
        "members"_a, "The method `backward` of a `torch.autograd.Function`; the last member does the same in Python.");
}

}  // namespace tensorops
