// A call of an operator finds its plan: `Operator.__call__` of tensorops/_operator.py, in whose place this runs.
#include "bind.h"
#include "calls.h"

namespace tensorops {

using namespace nb::literals;

namespace {

using calls::attribute;

PyObject* plans_name = nullptr;
PyObject* current = nullptr;    // the context variable that holds the settings in force
PyObject* in_python = nullptr;  // `Operator.__call__`
PyObject* unplanned = nullptr;  // what it does if no plan settles the call

// The plan of an operator for a type of array; null, perhaps with an exception, if there is none in a dictionary
nb::object plan_of(PyObject* op, PyObject* args) {
    PyObject* settings = nullptr;
    if (PyTuple_GET_SIZE(args) == 0 || PyContextVar_Get(current, nullptr, &settings) != 0) return {};
    const nb::object in_force = nb::steal(settings), plans = attribute(settings, plans_name);
    if (!plans.is_valid() || !PyDict_Check(plans.ptr())) return {};
    const nb::object of_operator = calls::entry(plans.ptr(), op);
    if (!of_operator.is_valid() || !PyDict_Check(of_operator.ptr())) return {};
    return calls::entry(of_operator.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(PyTuple_GET_ITEM(args, 0))));
}

PyObject* call(PyObject* function, PyObject* op, PyObject* args, PyObject* kwargs) {
    const nb::object bound = nb::steal(PyMethod_New(function, op));
    return bound.is_valid() ? PyObject_Call(bound.ptr(), args, kwargs) : nullptr;
}

PyObject* call_operator(PyObject* op, PyObject* args, PyObject* kwargs) {
    const nb::object plan = plan_of(op, args);
    if (!plan.is_valid()) {
        PyErr_Clear();
        return call(in_python, op, args, kwargs);
    }
    PyObject* const result = kwargs ? PyObject_Call(plan.ptr(), args, kwargs)
                                    : PyObject_Vectorcall(plan.ptr(), reinterpret_cast<PyTupleObject*>(args)->ob_item,
                                                          static_cast<std::size_t>(PyTuple_GET_SIZE(args)), nullptr);
    if (result ? result != Py_NotImplemented
               : !PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return result;
    PyErr_Clear();  // another library's error about an object that is not an array; the operator's own follows
    Py_XDECREF(result);
    return call(unplanned, op, args, kwargs);
}

}  // namespace

void bind_operator_calls(nb::module_& m) {
    plans_name = calls::interned("plans");
    m.def(
        "call_operators",
        [](nb::type_object type, nb::handle context_variable, nb::handle otherwise) {
            current = context_variable.inc_ref().ptr();
            unplanned = otherwise.inc_ref().ptr();
            in_python = nb::object(type.attr("__call__")).release().ptr();
            // Only the slot: TorchDynamo goes on tracing the function in Python.
            reinterpret_cast<PyTypeObject*>(type.ptr())->tp_call = call_operator;
        },
        "operator"_a, "current"_a, "unplanned"_a,
        "Call operators of this type without Python where a plan settles the call; assigning `__call__` ends that.");
}

}  // namespace tensorops
