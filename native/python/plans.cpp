// Plans of recorded calls; tensorops/persistent makes them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "bind.h"
#include "interpreter_lock.h"
#include "plan.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// An array's memory: with its strides or, if the shape is another one, contiguous, which the caller has checked
std::int64_t add_array(Plan& plan, nb::handle array, std::vector<std::int64_t> shape) {
    if (!PyArray_Check(array.ptr())) throw nb::type_error("expected a numpy.ndarray");
    PyArrayObject* a = as_array(array);
    const Dtype dtype = dtype_of_type(PyArray_TYPE(a));
    if (dtype == Dtype::other || !PyArray_ISNOTSWAPPED(a)) throw nb::type_error("the dtype has no kernel");
    std::vector<std::int64_t> strides;
    if (!PyArray_IS_C_CONTIGUOUS(a)) strides.assign(PyArray_STRIDES(a), PyArray_STRIDES(a) + PyArray_NDIM(a));
    return plan.add_array(dtype, PyArray_BYTES(a), std::move(shape), std::move(strides));
}

void move_array(Plan& plan, std::int64_t array, nb::handle to, std::int64_t offset) {
    if (!PyArray_Check(to.ptr())) throw nb::type_error("expected a numpy.ndarray");
    plan.move_array(array, PyArray_BYTES(as_array(to)) + offset);
}

// The value of an option of a call
Plan::Option option_of(nb::handle h) {
    const Value v = read_value(h);
    switch (v.kind) {
        case Value::number:
            return v.as_number;
        case Value::integer:
            return v.as_integer;
        case Value::flag:
            return v.as_flag;
        case Value::text:
            return std::string(v.view());
        case Value::dtype:
            return std::string(kDtypeNames[static_cast<int>(v.as_dtype)]);
        default:
            break;
    }
    if (!PyTuple_Check(h.ptr())) throw nb::type_error("expected a number, a string, a dtype or a tuple of integers");
    std::vector<std::int64_t> items;
    for (nb::handle item : nb::borrow<nb::tuple>(h))
        items.push_back(item.is_none() ? kNoInteger : nb::cast<std::int64_t>(item));
    return items;
}

void add_call(Plan& plan, const std::string& name, const std::vector<std::pair<std::string, std::int64_t>>& arguments,
              const std::vector<std::int64_t>& results, const nb::dict& options) {
    std::map<std::string, Plan::Option> read;
    for (const auto& [parameter, value] : options)
        if (!value.is_none()) read.emplace(nb::cast<std::string>(parameter), option_of(value));
    plan.add_call(name, arguments, results, read);
}

void run_by_rows(Plan& plan, std::size_t begin, std::int64_t rows, std::int64_t block, std::int64_t threads,
                 const std::vector<std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>>>& arrays) {
    std::vector<std::vector<Plan::Rows>> all;
    for (const auto& of_call : arrays) {
        std::vector<Plan::Rows>& added = all.emplace_back();
        for (const auto& [axis, bytes, each_thread] : of_call) added.push_back({axis, bytes, each_thread});
    }
    plan.run_by_rows(begin, rows, block, threads, std::move(all));
}

// Where a part of a plan ends, the last call by default
std::size_t end_of(const Plan& plan, std::size_t begin, std::optional<std::size_t> end) {
    const std::size_t found = end.value_or(plan.calls());
    if (begin > found || found > plan.calls()) throw nb::index_error("a plan has no such calls");
    if (plan.is_within(begin) || plan.is_within(found))
        throw nb::index_error("calls that are run by rows are one part");
    return found;
}

void run(Plan& plan, std::size_t begin, std::size_t end, double* seconds) {
    std::string message;
    std::size_t done = 0;
    const auto all = [&] { done = plan.run(begin, end, message, seconds); };
    if (on_main_thread()) {
        compute_interruptibly(all);
    } else {
        const WithoutLock released;
        all();
    }
    if (done < end) throw nb::value_error((std::to_string(done) + " " + message).c_str());
}

// Runs of a plan whose arguments are the same objects as before, or small ones to copy. They take no bytecode: once a
// model's weights have gone through the caches, the interpreter and all that it reads come from memory.
class Replay {
  public:
    // Arguments and results are arrays in lists and tuples. For each array of the arguments, in order, `copied` has the
    // one it is copied to, or None if it must be the same object, unchanged but for its values; for each array of the
    // results, `made` has whether every run makes a copy of it. No array to copy may share memory with those in
    // `written`.
    Replay(nb::object plan, nb::tuple arguments, nb::list copied, nb::object results, nb::list made, nb::list written)
        : plan_(std::move(plan)) {
        std::size_t place = 0;
        add_parts(arguments, arguments_, [&](nb::handle array) {
            const nb::object to = copied[place++];
            if (!to.is_none()) return Part{kCopied, 0, to};
            seen_.push_back(Seen::of(as_array(array)));
            return Part{kSame, static_cast<Py_ssize_t>(seen_.size()) - 1, nb::borrow(array)};
        });
        for (nb::handle array : written) {
            const char* begin = PyArray_BYTES(as_array(array));
            written_.emplace_back(begin, begin + PyArray_NBYTES(as_array(array)));
        }
        std::sort(written_.begin(), written_.end());
        place = 0;
        add_parts(results, results_, [&](nb::handle array) {
            return Part{nb::cast<bool>(made[place++]) ? kCopied : kSame, 0, nb::borrow(array)};
        });
    }

    // The results, or NotImplemented if the arguments are others.
    nb::object operator()(nb::handle arguments) const {
        const Part* part = arguments_.data();
        if (!take(arguments.ptr(), part)) return nb::borrow(Py_NotImplemented);
        Plan& plan = nb::cast<Plan&>(plan_);
        run(plan, 0, plan.calls(), nullptr);
        part = results_.data();
        return nb::steal(result(part));
    }

  private:
    enum Kind { kSame, kCopied, kList, kTuple };
    struct Part {
        Kind kind;
        Py_ssize_t
            count;  // the parts of a container, which follow; of an argument that must be the same: its place in seen_
        nb::object object;  // an array, or none
    };

    // What an array is besides its values; its owner may assign to its shape, or resize it.
    struct Seen {
        const char* data;
        PyArray_Descr* descr;
        int flags;
        std::vector<npy_intp> shape;

        static Seen of(PyArrayObject* a) {
            return {PyArray_BYTES(a),
                    PyArray_DESCR(a),
                    PyArray_FLAGS(a),
                    {PyArray_DIMS(a), PyArray_DIMS(a) + PyArray_NDIM(a)}};
        }

        bool is_still(PyArrayObject* a) const {
            return PyArray_BYTES(a) == data && PyArray_DESCR(a) == descr && PyArray_FLAGS(a) == flags &&
                   PyArray_NDIM(a) == static_cast<int>(shape.size()) &&
                   std::equal(shape.begin(), shape.end(), PyArray_DIMS(a));
        }
    };

    template <class F>
    static void add_parts(nb::handle tree, std::vector<Part>& parts, const F& of_array) {
        if (PyArray_CheckExact(tree.ptr())) return parts.push_back(of_array(tree));
        const bool is_list = PyList_CheckExact(tree.ptr());
        if (!is_list && !PyTuple_CheckExact(tree.ptr())) throw nb::type_error("expected arrays in lists and tuples");
        parts.push_back({is_list ? kList : kTuple, static_cast<Py_ssize_t>(nb::len(tree)), {}});
        for (nb::handle each : tree) add_parts(each, parts, of_array);
    }

    bool take(PyObject* given, const Part*& part) const {
        const Part& expected = *part++;
        const auto take_items = [&](PyObject** items, Py_ssize_t count) {
            bool same = count == expected.count;
            for (Py_ssize_t i = 0; same && i < count; ++i) same = take(items[i], part);
            return same;
        };
        switch (expected.kind) {
            case kSame:
                return given == expected.object.ptr() &&
                       seen_[static_cast<std::size_t>(expected.count)].is_still(as_array(expected.object));
            case kCopied:
                return copy(given, as_array(expected.object));
            case kList:
                return PyList_CheckExact(given) && take_items(PySequence_Fast_ITEMS(given), PyList_GET_SIZE(given));
            default:
                return PyTuple_CheckExact(given) && take_items(PySequence_Fast_ITEMS(given), PyTuple_GET_SIZE(given));
        }
    }

    bool copy(PyObject* given, PyArrayObject* to) const {
        if (!PyArray_CheckExact(given)) return false;
        PyArrayObject* from = as_array(given);
        if (PyArray_DESCR(from) != PyArray_DESCR(to) || !PyArray_SAMESHAPE(from, to) || !PyArray_IS_C_CONTIGUOUS(from))
            return false;
        if (is_written(PyArray_BYTES(from), PyArray_BYTES(from) + PyArray_NBYTES(from))) return false;
        std::memcpy(PyArray_DATA(to), PyArray_DATA(from), static_cast<std::size_t>(PyArray_NBYTES(from)));
        return true;
    }

    // Whether memory overlaps with that of an array that the plan writes; those do not overlap with each other.
    bool is_written(const char* begin, const char* end) const {
        const auto after =
            std::lower_bound(written_.begin(), written_.end(), end,
                             [](const auto& range, const char* address) { return range.first < address; });
        return after != written_.begin() && std::prev(after)->second > begin;
    }

    // A new reference
    static PyObject* result(const Part*& part) {
        const Part& made = *part++;
        if (made.kind == kSame) return nb::object(made.object).release().ptr();
        PyObject* const found = made.kind == kCopied ? PyArray_NewCopy(as_array(made.object), NPY_CORDER)
                                : made.kind == kList ? PyList_New(made.count)
                                                     : PyTuple_New(made.count);
        if (!found) throw nb::python_error();
        const nb::object owner = nb::steal(found);
        for (Py_ssize_t i = 0; i < made.count; ++i) {
            PyObject* const item = result(part);
            if (made.kind == kList)
                PyList_SET_ITEM(found, i, item);
            else
                PyTuple_SET_ITEM(found, i, item);
        }
        return nb::object(owner).release().ptr();
    }

    nb::object plan_;
    std::vector<Part> arguments_, results_;
    std::vector<Seen> seen_;
    std::vector<std::pair<const char*, const char*>> written_;
};

}  // namespace

void bind_plans(nb::module_& m) {
    nb::class_<Plan>(m, "Plan", "Calls of kernels that run without the interpreter.")
        .def(nb::init<int>(), "threads"_a)
        .def("add_array", &add_array, "array"_a, "shape"_a, "Add an array, whose memory the caller keeps alive.")
        .def("move_array", &move_array, "number"_a, "to"_a, "offset"_a, "Let an array be elsewhere.")
        .def("add_call", &add_call, "operator"_a, "arguments"_a, "results"_a, "options"_a,
             "Add a call of an operator, with the numbers of arrays by parameter and of those of its results.")
        .def("run_by_rows", &run_by_rows, "begin"_a, "rows"_a, "block"_a, "threads"_a, "arrays"_a,
             "Let at most that many threads take blocks of rows through some calls. Each array has the axis of its "
             "rows, "
             "the bytes from one to the next, or 0 if all rows need all of it, and the bytes for each thread if no "
             "other call sees it.")
        .def_prop_ro("threads", &Plan::threads, "The number of threads of a run.")
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
    nb::class_<Replay>(m, "Replay", "Runs of a plan with the same arguments.")
        .def(nb::init<nb::object, nb::tuple, nb::list, nb::object, nb::list, nb::list>(), "plan"_a, "arguments"_a,
             "copied"_a, "results"_a, "made"_a, "written"_a)
        .def("__call__", &Replay::operator(), "arguments"_a,
             "Run the plan and return its results, or NotImplemented if the arguments are others.");
}

}  // namespace tensorops
