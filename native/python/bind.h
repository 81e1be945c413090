// What the files of the module share. python/operators.cpp has the operators, and the others all else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <functional>

#include "call.h"
#include "numpy_array.h"

namespace tensorops {

// Whether this is the thread in which Python runs signal handlers.
bool on_main_thread();

// Calls a long kernel with the interpreter released; throws the exception of a signal handler, if any.
void compute_interruptibly(const std::function<void()>& kernel);

// Python's value as that of a parameter, but no tuple
Value read_value(nb::handle h);

// Calls an operator with NumPy's arrays: its results, or NotImplemented if it refuses them. If it only checks, None or
// the reason.
nb::object call_with_numpy(const Operator& op, Value* values, bool only_checks);

void bind_operator_calls(nb::module_& m);
void bind_operators(nb::module_& m);
void bind_panels(nb::module_& m);
void bind_plans(nb::module_& m);
void bind_torch_calls(nb::module_& m);
void bind_torch_gradients(nb::module_& m);

}  // namespace tensorops
