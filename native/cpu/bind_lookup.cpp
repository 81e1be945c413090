// Bindings of what looks up by integers: embedding and cross_entropy.
#include <algorithm>
#include <cstring>
#include <vector>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_integers(const char* name, nb::handle h) {
    if (!PyArray_CheckExact(h.ptr())) return std::string(name) + " is not a numpy.ndarray";
    PyArrayObject* a = as_array(h);
    if (!PyArray_ISINTEGER(a) || PyArray_ISBOOL(a)) return std::string(name) + " has a dtype that is no integer";
    return PyArray_ISNOTSWAPPED(a) ? Reason{} : std::string(name) + " is in foreign byte order";
}

// Contiguous int64 of integers; those of uint64 beyond it become negative. Always a copy: another thread may write to
// the caller's integers between a look at them and their use.
nb::object as_int64(nb::handle h) {
    constexpr int copied = NPY_ARRAY_CARRAY | NPY_ARRAY_FORCECAST | NPY_ARRAY_ENSURECOPY;
    if (product(PyArray_SIZE(as_array(h)), sizeof(std::int64_t)) == INT64_MAX) throw std::bad_alloc();
    PyObject* wide = PyArray_FROMANY(h.ptr(), NPY_INT64, 0, 0, copied);
    if (!wide) throw nb::python_error();
    return nb::steal(wide);
}

std::int64_t* int64s(const nb::object& a) { return static_cast<std::int64_t*>(PyArray_DATA(as_array(a))); }

// ---------------------------------------------------------------------------------------------------- embedding

Reason refuse_embedding(nb::handle ids, nb::handle weight, nb::object& wide_ids) {
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    if (Reason reason = refuse_integers("ids", ids); !reason.empty()) return reason;
    PyArrayObject *w = as_array(weight), *i = as_array(ids);
    if (PyArray_NDIM(w) != 2) return "weight does not have 2 dimensions";
    if (PyArray_NDIM(i) == kMaxDims) return "ids has as many dimensions as NumPy allows";
    if (PyArray_SIZE(w) == 0) return "weight is empty";
    if (!last_axis_contiguous(w)) return "the last axis of weight is not contiguous";
    wide_ids = as_int64(ids);
    const std::int64_t count = PyArray_SIZE(i), rows = PyArray_DIM(w, 0);
    const std::int64_t* id = int64s(wide_ids);
    const bool within = std::all_of(id, id + count, [rows](std::int64_t value) { return value >= 0 && value < rows; });
    return within ? Reason{} : "an id is out of range";
}

nb::object embedding(nb::handle ids, nb::handle weight) {
    nb::object wide_ids;
    if (!refuse_embedding(ids, weight, wide_ids).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject *i = as_array(ids), *w = as_array(weight);
    npy_intp shape[kMaxDims];
    std::copy_n(PyArray_DIMS(i), PyArray_NDIM(i), shape);
    shape[PyArray_NDIM(i)] = PyArray_DIM(w, 1);
    nb::object y = empty(PyArray_NDIM(i) + 1, shape, PyArray_DESCR(w));
    const std::int64_t bytes = PyArray_DIM(w, 1) * PyArray_ITEMSIZE(w), stride = PyArray_STRIDE(w, 0);
    const char* from = PyArray_BYTES(w);
    char* to = PyArray_BYTES(as_array(y));
    const std::int64_t count = PyArray_SIZE(i);
    const std::int64_t* id = int64s(wide_ids);
    compute(count * bytes, [=] {
        Interruption* const at = interruption;
        for (std::int64_t k = 0; k < count && !leaves(at, bytes); ++k)
            std::memcpy(to + k * bytes, from + id[k] * stride, static_cast<std::size_t>(bytes));
    });
    return y;
}

// ------------------------------------------------------------------------------------------------ cross_entropy

Reason refuse_cross_entropy(nb::handle logits, nb::handle targets, Choice reduction, Integer ignore_index,
                            Number label_smoothing) {
    if (Reason reason = refuse_array("logits", logits); !reason.empty()) return reason;
    if (Reason reason = refuse_integers("targets", targets); !reason.empty()) return reason;
    PyArrayObject *x = as_array(logits), *t = as_array(targets);
    const int ndim = PyArray_NDIM(x);
    if (ndim == 0) return "logits has 0 dimensions";
    if (PyArray_SIZE(x) == 0) return "logits is empty";
    if (!last_axis_contiguous(x)) return "the last axis of logits is not contiguous";
    if (PyArray_NDIM(t) != ndim - 1 || !std::equal(PyArray_DIMS(t), PyArray_DIMS(t) + ndim - 1, PyArray_DIMS(x)))
        return "targets does not have the shape of logits without the last axis";
    if (reduction != "mean" && reduction != "sum" && reduction != "none") return "reduction is unknown";
    if (ignore_index == kNoInteger) return "ignore_index is not an int64";
    return label_smoothing >= 0 && label_smoothing <= 1 ? Reason{} : "label_smoothing is not within 0 … 1";
}

// The targets with -1 for those to be ignored; false if another one is out of range.
bool find_targets(nb::handle targets, std::int64_t ignore_index, std::int64_t classes, nb::object& found) {
    const bool is_unsigned = PyArray_ISUNSIGNED(as_array(targets));
    found = as_int64(targets);
    const std::int64_t count = PyArray_SIZE(as_array(found));
    for (std::int64_t *target = int64s(found), *end = target + count; target != end; ++target) {
        if (*target == ignore_index && !(is_unsigned && *target < 0))
            *target = -1;
        else if (*target < 0 || *target >= classes)
            return false;
    }
    return true;
}

nb::object cross_entropy(nb::handle logits, nb::handle targets, Choice reduction, Integer ignore_index,
                         Number label_smoothing) {
    if (!refuse_cross_entropy(logits, targets, reduction, ignore_index, label_smoothing).empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject* x = as_array(logits);
    nb::object found;
    CrossEntropy op{};
    op.logits = rows_of(x);
    if (!find_targets(targets, ignore_index, op.logits.length, found)) return nb::borrow(Py_NotImplemented);
    std::vector<double> losses(static_cast<std::size_t>(op.logits.count));
    op.targets = int64s(found);
    op.label_smoothing = label_smoothing;
    op.losses = losses.data();
    op.dtype = dtype_of(x);
    op.reduction = reduction == "mean" ? Reduction::mean : reduction == "sum" ? Reduction::sum : Reduction::none;
    const bool one = op.reduction != Reduction::none;
    nb::object y = empty(one ? 0 : PyArray_NDIM(x) - 1, PyArray_DIMS(x), PyArray_DESCR(x));
    op.y = PyArray_BYTES(as_array(y));
    compute(PyArray_NBYTES(x), [&op] { target().cross_entropy(op); });
    return y;
}

// The same question, and the targets' range, which only a look at them answers.
nb::object cross_entropy_supports(nb::handle logits, nb::handle targets, Choice reduction, Integer ignore_index,
                                  Number label_smoothing) {
    if (Reason reason = refuse_cross_entropy(logits, targets, reduction, ignore_index, label_smoothing);
        !reason.empty())
        return none_or(reason);
    nb::object found;
    PyArrayObject* x = as_array(logits);
    const bool within = find_targets(targets, ignore_index, PyArray_DIM(x, PyArray_NDIM(x) - 1), found);
    return none_or(within ? Reason{} : "a target is out of range");
}

}  // namespace

void bind_lookup(nb::module_& m) {
    m.def("embedding", &embedding, "ids"_a, "weight"_a);
    m.def(
        "embedding_supports",
        [](nb::handle ids, nb::handle weight) {
            nb::object wide_ids;
            return none_or(refuse_embedding(ids, weight, wide_ids));
        },
        "ids"_a, "weight"_a);
    m.def("cross_entropy", &cross_entropy, "logits"_a, "targets"_a, nb::kw_only(), "reduction"_a.none() = "mean",
          "ignore_index"_a.none() = -100, "label_smoothing"_a.none() = 0.0);
    m.def("cross_entropy_supports", &cross_entropy_supports, "logits"_a, "targets"_a, nb::kw_only(),
          "reduction"_a.none() = "mean", "ignore_index"_a.none() = -100, "label_smoothing"_a.none() = 0.0);
}

}  // namespace tensorops
