// Bindings check arguments, allocate results and call kernels. There is one file for each family of operators.
//
// For each kernel two functions are bound. `name_supports` returns None or the reason why the kernel does not support
// the arguments; `name` makes the same check, and returns NotImplemented if there is a reason.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <functional>

#include "interruption.h"
#include "numpy_array.h"
#include "options.h"

namespace tensorops {

// Results above this size are written past the caches: they would evict everything, themselves included, before they
// are read. It is a few times a usual second-level cache. Where source and result fit into a third-level cache of
// 480 MB, results of 32 MiB were written past it 1.0 to 1.5 times as fast as into it, those of 128 MiB 1.1 to 1.6
// times.
constexpr std::int64_t kStreamBytes = 8 * 1024 * 1024;
// Below this size a call ends before another thread could use the interpreter.
constexpr std::int64_t kGilBytes = 64 * 1024;

// From this size on, a call in the main thread checks for signals, between parts of rows of about that many bytes. At
// 1 GB/s, a part takes 32 ms.
constexpr std::int64_t kLongBytes = 32 * 1024 * 1024;

// Whether this is the thread in which Python runs signal handlers.
bool on_main_thread();

// Calls a long kernel with the interpreter released; throws the exception of a signal handler, if any.
void compute_interruptibly(const std::function<void()>& kernel);

// Calls a kernel that moves a given number of bytes, with the interpreter released if that takes long.
template <class F>
void compute(std::int64_t bytes, F kernel) {
    if (bytes < kGilBytes) return kernel();
    if (bytes >= kLongBytes && on_main_thread()) return compute_interruptibly(kernel);
    nb::gil_scoped_release released;
    kernel();
}

// Calls a kernel for a number of independent rows or elements that together move a number of bytes: at once or, if the
// main thread would be busy for long, in parts that begin at multiples of `unit` and are made by cut(op, begin, end).
template <class Op, class F>
void compute_parts(void (*kernel)(const Op&), const Op& op, std::int64_t count, std::int64_t unit, std::int64_t bytes,
                   F cut) {
    if (bytes < kGilBytes) return kernel(op);
    compute(bytes, [&] {
        Interruption* const at = interruption;
        if (!at) return kernel(op);
        const std::int64_t of_one = std::max<std::int64_t>(bytes / count, 1);
        const std::int64_t step = std::max<std::int64_t>(kLongBytes / of_one / unit, 1) * unit;
        for (std::int64_t begin = 0; begin < count && !at->leaves(kLongBytes); begin += step) {
            Op part = op;
            cut(part, begin, std::min(begin + step, count));
            kernel(part);
        }
    });
}

inline nb::object none_or(const Reason& reason) { return reason.empty() ? nb::none() : nb::object(nb::cast(reason)); }

// Whether an operator's `axis`, an integer or a tuple of integers, is the last one.
inline bool is_last_axis(nb::handle axis, int ndim) {
    if (PyTuple_CheckExact(axis.ptr()) && PyTuple_GET_SIZE(axis.ptr()) == 1) axis = PyTuple_GET_ITEM(axis.ptr(), 0);
    const std::int64_t value = read_integer(axis);
    return value == -1 || value == ndim - 1;
}

// How many axes an operator's `axis` names, if they are the last ones in any order; otherwise 0.
inline int count_last_axes(nb::handle axis, int ndim) {
    if (!PyTuple_CheckExact(axis.ptr())) return is_last_axis(axis, ndim) ? 1 : 0;
    const Py_ssize_t count = PyTuple_GET_SIZE(axis.ptr());
    if (count > ndim || count > 63) return 0;
    std::uint64_t named = 0;  // a bit for each axis, from the last
    for (Py_ssize_t i = 0; i < count; ++i) {
        std::int64_t value = read_integer(PyTuple_GET_ITEM(axis.ptr(), i));
        if (value >= 0) value -= ndim;
        if (value < -count || value >= 0) return 0;
        named |= std::uint64_t{1} << (-1 - value);
    }
    return count > 0 && named == (std::uint64_t{1} << count) - 1 ? static_cast<int>(count) : 0;
}

void bind_activation(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_cuda_calls(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_loss(nb::module_& m);
void bind_normalization(nb::module_& m);
void bind_opencl_calls(nb::module_& m);
void bind_operator(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_positional(nb::module_& m);
void bind_xla(nb::module_& m);
void bind_panels(nb::module_& m);
void bind_quantization(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_selection(nb::module_& m);
void bind_torch_calls(nb::module_& m);

}  // namespace tensorops
