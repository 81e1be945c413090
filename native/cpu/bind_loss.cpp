// Binding of losses.
#include <algorithm>
#include <vector>

#include "bind.h"
#include "integers.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

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

// The targets, with -1 for ignored ones; false if another one is out of range.
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

// The same check, and the range of the targets, whose values must be read for it.
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

void bind_loss(nb::module_& m) {
    m.def("cross_entropy", &cross_entropy, "logits"_a, "targets"_a, nb::kw_only(), "reduction"_a.none() = "mean",
          "ignore_index"_a.none() = -100, "label_smoothing"_a.none() = 0.0);
    m.def("cross_entropy_supports", &cross_entropy_supports, "logits"_a, "targets"_a, nb::kw_only(),
          "reduction"_a.none() = "mean", "ignore_index"_a.none() = -100, "label_smoothing"_a.none() = 0.0);
}

}  // namespace tensorops
