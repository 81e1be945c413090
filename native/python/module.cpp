// The module: initialization, and functions that are not operators.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdlib>
#include <utility>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#define TENSOROPS_IMPORTS_NUMPY
#include "bind.h"
#include "cpu_features.h"
#include "handlers.h"
#include "interpreter_lock.h"
#include "numpy_array.h"
#include "parallel.h"
#include "pool.h"
#include "targets.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorops {

namespace {

int import_numpy() {
    import_array1(-1);
    return 0;
}

void find_bfloat16() {
    nb::object type = nb::module_::import_("ml_dtypes").attr("bfloat16");
    PyArray_Descr* descr = nullptr;
    if (!PyArray_DescrConverter(type.ptr(), &descr)) throw nb::python_error();
    bfloat16_type = descr->type_num;
    Py_DECREF(descr);
}

// Runs the handlers of pending signals; returns whether one of them raised an exception, which stays set.
bool signal_raised() {
    nb::gil_scoped_acquire held;
    return PyErr_CheckSignals() != 0;
}

// The interpreter's main thread, once it has been asked for; 0: not yet. A child of fork() may have another one.
std::atomic<unsigned long> main_thread{0};

}  // namespace

bool on_main_thread() {
    unsigned long main = main_thread.load(std::memory_order_relaxed);
    if (main == 0) {
        main = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
        main_thread.store(main, std::memory_order_relaxed);
    }
    return main == PyThread_get_thread_ident();
}

void compute_interruptibly(const std::function<void()>& kernel) {
    Interruption at(signal_raised);
    {
        const WithoutLock released;
        kernel();
    }
    if (at.happened()) throw nb::python_error();
}

}  // namespace tensorops

NB_MODULE(_native, m) {
    using namespace tensorops;
    if (import_numpy() != 0) throw nb::python_error();
    find_bfloat16();
    if (const std::string why = choose_target(); !why.empty()) throw nb::import_error(why.c_str());
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { main_thread = 0; });
#endif

    bind_operator_calls(m);
    bind_operators(m);
    bind_panels(m);
    bind_plans(m);
    bind_torch_calls(m);
    bind_torch_gradients(m);
    m.def(
        "xla_handlers",
        [] {
            nb::dict handlers;
            for (const auto& [name, handler] : xla::handlers())
                handlers[name.c_str()] = nb::capsule(reinterpret_cast<void*>(handler));
            return handlers;
        },
        "The operators as handlers of XLA's foreign function interface, in capsules by name.");
    m.def(
        "linear_configuration",
        [] {
            std::int64_t few_rows = 0, outputs = 0;
            target().linear_choice({&few_rows, &outputs});
            nb::dict chosen;
            chosen["few_rows"] = few_rows;
            return chosen;
        },
        "What the kernel of linear chooses for every call that it supports.");
    m.def(
        "packed_outputs",
        [] {
            std::int64_t few_rows = 0, outputs = 0;
            target().linear_choice({&few_rows, &outputs});
            return outputs;
        },
        "How many outputs have their columns together in the weights of packed_linear.");

    m.def("targets", &runnable_targets, "The targets that this machine can run, best first.");
    m.def("better_targets", &better_targets,
          "Targets better than these that this machine could run, but that were not compiled, best first.");
    m.def("uses_openmp", &uses_openmp, "Whether threads of OpenMP share the work of calls from Python.");
    m.def("target", [] { return std::string(target().name); }, "The target in use.");
    m.def(
        "use_target",
        [](const std::string& name) {
            if (!use_target(name)) throw nb::value_error(("this machine cannot run target " + name).c_str());
        },
        "name"_a, "Use another target; for tests.");
    m.def(
        "memory_stats",
        [] {
            const pool::Statistics s = pool::statistics();
            nb::dict stats;
            stats["in_use"] = s.in_use;
            stats["peak"] = s.peak;
            stats["cached"] = s.cached;
            stats["limit"] = s.limit;
            return stats;
        },
        "Bytes of results in use, most in use since the start or reset_peak, kept for later results, and at most "
        "kept.");
    m.def(
        "empty_like",
        [](nb::handle array) {
            if (!PyArray_Check(array.ptr())) throw nb::type_error("expected a numpy.ndarray");
            return empty_like(as_array(array));
        },
        "array"_a, "A new array of the shape and dtype of another one, in memory as results have it.");
    m.def("reset_peak", &pool::reset_peak, "Count the peak of bytes in use afresh, from what is in use now.");
    m.def("set_cache_limit", &pool::set_limit, "nbytes"_a, "Bound the memory kept for later results.");
    m.def("empty_cache", &pool::empty_cache, "Free the memory kept for later results; return the bytes freed.");

    m.def("cpu_features", &cpu_features, "What the processor and the operating system support, by name.");
    m.def(
        "set_num_threads",
        [](int n) {
            if (n < 0) throw nb::value_error("the number of threads must be at least 0");
            bound_threads(n);
        },
        "n"_a, "Bound the threads of these kernels, in addition to OpenMP's own bound; 0: no bound of their own.");
    m.def("use_one_thread", &use_one_thread, "only"_a,
          "Whether kernels that this thread calls stay on it, as the caller shares out the work; return what held.");
    m.def("use_processors", &use_processors, "n"_a,
          "Bound the threads of all calls together by the number of processors; 0: no bound.");
    m.def("num_threads", &bound_of_threads, "The bound that set_num_threads set; 0: none.");
}
