// Plans of recorded calls; tensorops/persistent makes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.h"
#include "plan.h"

namespace tensorops {

using namespace nb::literals;

namespace {

int dtype_for_plan(PyArrayObject* a) {
    const int type = PyArray_TYPE(a);
    if (type == bfloat16_type) return xla::kBFloat16;
    switch (type) {
        case NPY_BOOL:
            return xla::kBool;
        case NPY_FLOAT16:
            return xla::kFloat16;
        case NPY_FLOAT32:
            return xla::kFloat32;
        case NPY_FLOAT64:
            return xla::kFloat64;
        default:
            break;
    }
    if (!PyTypeNum_ISINTEGER(type)) return 0;
    const bool is_signed = PyTypeNum_ISSIGNED(type);
    switch (PyArray_ITEMSIZE(a)) {
        case 1:
            return is_signed ? xla::kInt8 : xla::kUint8;
        case 2:
            return is_signed ? xla::kInt16 : xla::kUint16;
        case 4:
            return is_signed ? xla::kInt32 : xla::kUint32;
        default:
            return is_signed ? xla::kInt64 : xla::kUint64;
    }
}

// An array's memory with another shape, which the caller has checked
std::int64_t add_array(Plan& plan, nb::handle array, std::vector<std::int64_t> shape) {
    if (!PyArray_Check(array.ptr())) throw nb::type_error("expected a numpy.ndarray");
    const int dtype = dtype_for_plan(as_array(array));
    if (dtype == 0 || !PyArray_ISNOTSWAPPED(as_array(array))) throw nb::type_error("the dtype has no kernel");
    return plan.add_array(dtype, PyArray_DATA(as_array(array)), std::move(shape));
}

void move_array(Plan& plan, std::int64_t array, nb::handle to, std::int64_t offset) {
    if (!PyArray_Check(to.ptr())) throw nb::type_error("expected a numpy.ndarray");
    plan.move_array(array, PyArray_BYTES(as_array(to)) + offset);
}

// Where a part of a plan ends, which is at the last call if nobody says where
std::size_t end_of(const Plan& plan, std::size_t begin, std::optional<std::size_t> end) {
    const std::size_t found = end.value_or(plan.calls());
    if (begin > found || found > plan.calls()) throw nb::index_error("a plan has no such calls");
    return found;
}

void run(Plan& plan, std::size_t begin, std::size_t end, double* seconds) {
    std::string message;
    std::size_t done = 0;
    const auto all = [&] { done = plan.run(begin, end, message, seconds); };
    if (on_main_thread()) {
        compute_interruptibly(all);
    } else {
        nb::gil_scoped_release released;
        all();
    }
    if (done < end) throw nb::value_error((std::to_string(done) + " " + message).c_str());
}

}  // namespace

void bind_plan(nb::module_& m) {
    nb::class_<Plan>(m, "Plan", "Calls of kernels that run without the interpreter.")
        .def(nb::init<int>(), "threads"_a)
        .def("add_array", &add_array, "array"_a, "shape"_a, "Add an array, whose memory the caller keeps alive.")
        .def("move_array", &move_array, "number"_a, "to"_a, "offset"_a, "Let an array be elsewhere.")
        .def("add_call", &Plan::add_call, "handler"_a, "arguments"_a, "results"_a, "options"_a,
             "Add a call; return whether there is such a handler.")
        .def(
            "run",
            [](Plan& plan, std::size_t begin, std::optional<std::size_t> end) {
                run(plan, begin, end_of(plan, begin, end), nullptr);
            },
            "begin"_a = 0, "end"_a = nb::none(),
            "Run the calls from one to before another one. The message of an error begins with the number of the call.")
        .def(
            "profile",
            [](Plan& plan, std::size_t begin, std::optional<std::size_t> end) {
                const std::size_t found = end_of(plan, begin, end);
                std::vector<double> seconds(found - begin);
                run(plan, begin, found, seconds.data());
                return seconds;
            },
            "begin"_a = 0, "end"_a = nb::none(), "Run calls as `run` does; return how many seconds each took.");
}

}  // namespace tensorops
