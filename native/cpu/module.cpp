// Bindings only: arguments are checked, results made, kernels called.
//
// For each kernel two functions are bound. `name_supports` returns None or the reason why the kernel does not take the
// arguments; `name` asks the same question, and returns NotImplemented where the answer is a reason.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdlib>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "cpu_features.h"
#include "numpy_array.h"
#include "parallel.h"
#include "pool.h"
#include "targets.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tensorops {

bool fork_happened = false;
std::atomic<int> thread_bound{0};

namespace {

// Results above this size are written past the caches: they would evict everything, themselves included, before
// anybody reads them. A few times a usual second-level cache; not tuned for any machine.
constexpr std::int64_t kStreamBytes = 8 * 1024 * 1024;
// Below this size a call is over before another thread could make use of the interpreter.
constexpr std::int64_t kGilBytes = 64 * 1024;

Reason refuse_rms_norm(nb::handle x, nb::handle weight, double eps, int axis) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    if (ndim == 0) return "x has 0 dimensions";
    if (axis != -1 && axis != ndim - 1) return "axis " + std::to_string(axis) + " is not the last of x";
    if (!(eps >= 0 && std::isfinite(eps))) return "eps is not a number of at least 0";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    if (weight.is_none()) return {};
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject* w = as_array(weight);
    const npy_intp n = PyArray_DIM(a, ndim - 1);
    if (PyArray_NDIM(w) != 1 || PyArray_DIM(w, 0) != n)
        return "weight has " + std::to_string(PyArray_SIZE(w)) + " elements, but axis -1 of x has " + std::to_string(n);
    if (!last_axis_contiguous(w)) return "weight is not contiguous";
    const Dtype dtype = dtype_of(w), half_or_same = dtype_of(a);
    const bool widened = dtype == Dtype::float32 && (half_or_same == Dtype::float16 || half_or_same == Dtype::bfloat16);
    if (dtype != half_or_same && !widened) return "weight has another dtype than x";
    return {};
}

nb::object rms_norm(nb::handle x, nb::handle weight, double eps, int axis, double weight_offset) {
    if (!refuse_rms_norm(x, weight, eps, axis).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    RmsNorm op{};
    op.x = rows_of(a);
    op.y = PyArray_BYTES(as_array(y));
    op.weight = weight.is_none() ? nullptr : PyArray_BYTES(as_array(weight));
    op.x_dtype = dtype_of(a);
    op.weight_dtype = weight.is_none() ? op.x_dtype : dtype_of(as_array(weight));
    op.eps = eps;
    op.weight_offset = weight_offset;
    op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    if (bytes < kGilBytes) {
        target().rms_norm(op);
    } else {
        nb::gil_scoped_release released;
        target().rms_norm(op);
    }
    return y;
}

nb::object rms_norm_supports(nb::handle x, nb::handle weight, double eps, int axis, double) {
    const Reason reason = refuse_rms_norm(x, weight, eps, axis);
    return reason.empty() ? nb::none() : nb::object(nb::cast(reason));
}

void choose_target() {
    const std::vector<std::string> runnable = runnable_targets();
    if (runnable.empty()) throw nb::import_error("this processor is older than any the kernels were compiled for");
    const char* forced = std::getenv("TENSOROPS_CPU_TARGET");
    if (use_target(forced ? forced : runnable.front())) return;
    std::string names;
    for (const std::string& name : runnable) names += " " + name;
    throw nb::import_error(
        ("TENSOROPS_CPU_TARGET is " + std::string(forced) + "; this machine can run:" + names).c_str());
}

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

}  // namespace
}  // namespace tensorops

NB_MODULE(_native, m) {
    using namespace tensorops;
    if (import_numpy() != 0) throw nb::python_error();
    find_bfloat16();
    choose_target();
#if !defined(_WIN32)
    pthread_atfork(pool::lock, pool::unlock, [] {
        pool::unlock();
        fork_happened = true;
    });
#endif

    m.def("rms_norm", &tensorops::rms_norm, "x"_a, "weight"_a = nb::none(), "eps"_a = 1e-6, nb::kw_only(),
          "axis"_a.noconvert() = -1, "weight_offset"_a = 0.0);
    m.def("rms_norm_supports", &rms_norm_supports, "x"_a, "weight"_a = nb::none(), "eps"_a = 1e-6, nb::kw_only(),
          "axis"_a.noconvert() = -1, "weight_offset"_a = 0.0);

    m.def("targets", &runnable_targets, "The targets that this machine can run, best first.");
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
    m.def("reset_peak", &pool::reset_peak, "Count the peak of bytes in use afresh, from what is in use now.");
    m.def("set_cache_limit", &pool::set_limit, "nbytes"_a, "Bound the memory kept for later results.");
    m.def("empty_cache", &pool::empty_cache, "Free the memory kept for later results; return the bytes freed.");

    m.def("cpu_features", &cpu_features, "What the processor and the operating system support, by name.");
    m.def(
        "set_num_threads",
        [](int n) {
            if (n < 0) throw nb::value_error("the number of threads must be at least 0");
            thread_bound = n;
        },
        "n"_a, "Bound the threads of these kernels, beside OpenMP's own bound; 0: no bound of their own.");
    m.def("num_threads", [] { return thread_bound.load(); }, "The bound that set_num_threads set; 0: none.");
}
