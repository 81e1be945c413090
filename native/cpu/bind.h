// Bindings: arguments are checked, results made, kernels called. One file for each family of operators.
//
// For each kernel two functions are bound. `name_supports` returns None or the reason why the kernel does not take the
// arguments; `name` asks the same question, and returns NotImplemented where the answer is a reason.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "numpy_array.h"
#include "options.h"

namespace tensorops {

// Results above this size are written past the caches: they would evict everything, themselves included, before
// anybody reads them. A few times a usual second-level cache. Where source and result fit into a third-level cache of
// 480 MB, results of 32 MiB were written past it 1.0 to 1.5 times as fast as into it, those of 128 MiB 1.1 to 1.6
// times.
constexpr std::int64_t kStreamBytes = 8 * 1024 * 1024;
// Below this size a call is over before another thread could make use of the interpreter.
constexpr std::int64_t kGilBytes = 64 * 1024;

// Calls a kernel that moves so many bytes, with the interpreter released if that takes long.
template <class F>
void compute(std::int64_t bytes, F kernel) {
    if (bytes < kGilBytes) return kernel();
    nb::gil_scoped_release released;
    kernel();
}

inline nb::object none_or(const Reason& reason) { return reason.empty() ? nb::none() : nb::object(nb::cast(reason)); }

// Whether an operator's `axis`, an integer or a tuple of them, is the last of so many.
inline bool is_last_axis(nb::handle axis, int ndim) {
    if (PyTuple_CheckExact(axis.ptr()) && PyTuple_GET_SIZE(axis.ptr()) == 1) axis = PyTuple_GET_ITEM(axis.ptr(), 0);
    const std::int64_t value = read_integer(axis);
    return value == -1 || value == ndim - 1;
}

void bind_activation(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_lookup(nb::module_& m);
void bind_normalization(nb::module_& m);
void bind_positional(nb::module_& m);
void bind_xla(nb::module_& m);
void bind_quantization(nb::module_& m);
void bind_sampling(nb::module_& m);

}  // namespace tensorops
