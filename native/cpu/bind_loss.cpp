// Binding of losses.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "bind.h"
#include "integers.h"
#include "matrices.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// Whether an array's dtype is that of the logits, or float32 with half types
bool goes_with(PyArrayObject* a, PyArrayObject* logits) {
    const Dtype dtype = dtype_of(a), of_logits = dtype_of(logits);
    return dtype == of_logits ||
           (dtype == Dtype::float32 && (of_logits == Dtype::float16 || of_logits == Dtype::bfloat16));
}

// Weights of classes, or None
Reason refuse_weight(nb::handle weight, PyArrayObject* logits, npy_intp classes) {
    if (weight.is_none()) return {};
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject* w = as_array(weight);
    if (PyArray_NDIM(w) != 1 || PyArray_DIM(w, 0) != classes) return "weight does not have one element for each class";
    if (!last_axis_contiguous(w)) return "weight is not contiguous";
    return goes_with(w, logits) ? Reason{} : "weight has another dtype than logits";
}

bool are_probabilities(nb::handle targets) {
    return PyArray_CheckExact(targets.ptr()) && dtype_of(as_array(targets)) != Dtype::other;
}

// Class numbers or probabilities of rows of logits
Reason refuse_targets(nb::handle targets, PyArrayObject* logits, Integer ignore_index, const char* name = "logits") {
    const bool probable = are_probabilities(targets);
    if (Reason reason = probable ? refuse_array("targets", targets) : refuse_integers("targets", targets);
        !reason.empty())
        return reason;
    PyArrayObject* t = as_array(targets);
    const int ndim = PyArray_NDIM(logits), expected = probable ? ndim : ndim - 1;
    if (PyArray_NDIM(t) != expected || !std::equal(PyArray_DIMS(t), PyArray_DIMS(t) + expected, PyArray_DIMS(logits)))
        return std::string("targets does not have the shape of ") + name + (probable ? "" : " without the last axis");
    if (ignore_index == kNoInteger) return "ignore_index is not an int64";
    if (!probable) return {};
    if (ignore_index >= 0) return "ignore_index is not negative, but targets are probabilities";
    if (!last_axis_contiguous(t)) return "the last axis of targets is not contiguous";
    return goes_with(t, logits) ? Reason{} : "targets has another dtype than logits";
}

Reason refuse_loss_options(Choice reduction, Number label_smoothing, Number z_loss) {
    if (reduction != "mean" && reduction != "sum" && reduction != "none") return "reduction is unknown";
    if (!(z_loss >= 0 && std::isfinite(z_loss))) return "z_loss is not a finite number of at least 0";
    return label_smoothing >= 0 && label_smoothing <= 1 ? Reason{} : "label_smoothing is not within 0 … 1";
}

Reason refuse_cross_entropy(nb::handle logits, nb::handle targets, nb::handle weight, Choice reduction,
                            Integer ignore_index, Number label_smoothing, Number z_loss) {
    if (Reason reason = refuse_array("logits", logits); !reason.empty()) return reason;
    PyArrayObject* x = as_array(logits);
    const int ndim = PyArray_NDIM(x);
    if (ndim == 0) return "logits has 0 dimensions";
    if (PyArray_SIZE(x) == 0) return "logits is empty";
    if (!last_axis_contiguous(x)) return "the last axis of logits is not contiguous";
    if (Reason reason = refuse_targets(targets, x, ignore_index); !reason.empty()) return reason;
    if (Reason reason = refuse_weight(weight, x, PyArray_DIM(x, ndim - 1)); !reason.empty()) return reason;
    return refuse_loss_options(reduction, label_smoothing, z_loss);
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

Reduction reduction_of(Choice reduction) {
    return reduction == "mean" ? Reduction::mean : reduction == "sum" ? Reduction::sum : Reduction::none;
}

nb::object cross_entropy(nb::handle logits, nb::handle targets, nb::handle weight, Choice reduction,
                         Integer ignore_index, Number label_smoothing, Number z_loss) {
    if (!refuse_cross_entropy(logits, targets, weight, reduction, ignore_index, label_smoothing, z_loss).empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject* x = as_array(logits);
    nb::object found;
    CrossEntropy op{};
    op.logits = rows_of(x);
    op.dtype = dtype_of(x);
    std::unique_ptr<Rows> probabilities;  // Rows is more than a kilobyte
    if (are_probabilities(targets)) {
        probabilities = std::make_unique<Rows>(rows_of(as_array(targets)));
        op.probabilities = probabilities.get();
        op.probability_dtype = dtype_of(as_array(targets));
    } else {
        if (!find_targets(targets, ignore_index, op.logits.length, found)) return nb::borrow(Py_NotImplemented);
        op.targets = int64s(found);
    }
    if (!weight.is_none()) {
        op.weight = PyArray_BYTES(as_array(weight));
        op.weight_dtype = dtype_of(as_array(weight));
    }
    std::vector<double> losses(static_cast<std::size_t>(op.logits.count));
    op.label_smoothing = label_smoothing;
    op.z_loss = z_loss;
    op.losses = losses.data();
    op.reduction = reduction_of(reduction);
    const bool one = op.reduction != Reduction::none;
    nb::object y = empty(one ? 0 : PyArray_NDIM(x) - 1, PyArray_DIMS(x), PyArray_DESCR(x));
    op.y = PyArray_BYTES(as_array(y));
    compute(PyArray_NBYTES(x), [&op] { target().cross_entropy(op); });
    return y;
}

// The same check, and the range of the targets, whose values must be read for it.
nb::object cross_entropy_supports(nb::handle logits, nb::handle targets, nb::handle weight, Choice reduction,
                                  Integer ignore_index, Number label_smoothing, Number z_loss) {
    if (Reason reason = refuse_cross_entropy(logits, targets, weight, reduction, ignore_index, label_smoothing, z_loss);
        !reason.empty() || are_probabilities(targets))
        return none_or(reason);
    nb::object found;
    PyArrayObject* x = as_array(logits);
    const bool within = find_targets(targets, ignore_index, PyArray_DIM(x, PyArray_NDIM(x) - 1), found);
    return none_or(within ? Reason{} : "a target is out of range");
}

// One number for each class, or None, in float32 or a half type
Reason refuse_vector(const std::string& name, nb::handle h, npy_intp classes) {
    if (h.is_none()) return {};
    if (Reason reason = refuse_array(name.c_str(), h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (dtype_of(a) == Dtype::float64) return name + " has dtype float64";
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != classes) return name + " does not have one element for each class";
    return last_axis_contiguous(a) ? Reason{} : name + " is not contiguous";
}

Reason refuse_linear_cross_entropy(nb::handle x, nb::handle weight, nb::handle targets, nb::handle bias,
                                   nb::handle ce_weight, Choice reduction, Integer ignore_index, Number label_smoothing,
                                   Number z_loss) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    if (dtype_of(w) == Dtype::float64) return "weight has dtype float64";
    if (Reason reason = refuse_matrix("weight", w, kAny, length_of(a)); !reason.empty()) return reason;
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    if (are_probabilities(targets)) return "targets are probabilities";
    if (Reason reason = refuse_targets(targets, a, ignore_index, "x"); !reason.empty()) return reason;
    if (Reason reason = refuse_vector("bias", bias, PyArray_DIM(w, 0)); !reason.empty()) return reason;
    if (Reason reason = refuse_vector("ce_weight", ce_weight, PyArray_DIM(w, 0)); !reason.empty()) return reason;
    return refuse_loss_options(reduction, label_smoothing, z_loss);
}

nb::object linear_cross_entropy(nb::handle x, nb::handle weight, nb::handle targets, nb::handle bias,
                                nb::handle ce_weight, Choice reduction, Integer ignore_index, Number label_smoothing,
                                Number z_loss) {
    if (!refuse_linear_cross_entropy(x, weight, targets, bias, ce_weight, reduction, ignore_index, label_smoothing,
                                     z_loss)
             .empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    nb::object found;
    if (!find_targets(targets, ignore_index, PyArray_DIM(w, 0), found)) return nb::borrow(Py_NotImplemented);
    LinearCrossEntropy op{};
    Linear& product = op.product;
    product.x = rows_of(a);
    product.weight = PyArray_BYTES(w);
    product.weight_stride = PyArray_STRIDE(w, 0);
    product.outputs = PyArray_DIM(w, 0);
    product.x_dtype = dtype_of(a);
    product.weight_dtype = dtype_of(w);
    if (!bias.is_none()) {
        product.bias = PyArray_BYTES(as_array(bias));
        product.bias_dtype = dtype_of(as_array(bias));
    }
    if (!ce_weight.is_none()) {
        op.ce_weight = PyArray_BYTES(as_array(ce_weight));
        op.ce_weight_dtype = dtype_of(as_array(ce_weight));
    }
    std::vector<double> losses(static_cast<std::size_t>(product.x.count));
    op.targets = int64s(found);
    op.label_smoothing = label_smoothing;
    op.z_loss = z_loss;
    op.losses = losses.data();
    op.reduction = reduction_of(reduction);
    const bool one = op.reduction != Reduction::none;
    nb::object y = empty(one ? 0 : PyArray_NDIM(a) - 1, PyArray_DIMS(a), PyArray_DESCR(a));
    op.y = PyArray_BYTES(as_array(y));
    compute(tensorops::product(PyArray_NBYTES(w), product.x.count), [&op] { target().linear_cross_entropy(op); });
    return y;
}

nb::object linear_cross_entropy_supports(nb::handle x, nb::handle weight, nb::handle targets, nb::handle bias,
                                         nb::handle ce_weight, Choice reduction, Integer ignore_index,
                                         Number label_smoothing, Number z_loss) {
    if (Reason reason = refuse_linear_cross_entropy(x, weight, targets, bias, ce_weight, reduction, ignore_index,
                                                    label_smoothing, z_loss);
        !reason.empty())
        return none_or(reason);
    nb::object found;
    const bool within = find_targets(targets, ignore_index, PyArray_DIM(as_array(weight), 0), found);
    return none_or(within ? Reason{} : "a target is out of range");
}

}  // namespace

void bind_loss(nb::module_& m) {
    const auto bind = [&m](const char* name, auto function) {
        m.def(name, function, "logits"_a, "targets"_a, "weight"_a = nb::none(), nb::kw_only(),
              "reduction"_a.none() = "mean", "ignore_index"_a.none() = -100, "label_smoothing"_a.none() = 0.0,
              "z_loss"_a.none() = 0.0);
    };
    bind("cross_entropy", &cross_entropy);
    bind("cross_entropy_supports", &cross_entropy_supports);
    const auto bind_linear = [&m](const char* name, auto function) {
        m.def(name, function, "x"_a, "weight"_a, "targets"_a, "bias"_a = nb::none(), "ce_weight"_a = nb::none(),
              nb::kw_only(), "reduction"_a.none() = "mean", "ignore_index"_a.none() = -100,
              "label_smoothing"_a.none() = 0.0, "z_loss"_a.none() = 0.0);
    };
    bind_linear("linear_cross_entropy", &linear_cross_entropy);
    bind_linear("linear_cross_entropy_supports", &linear_cross_entropy_supports);
}

}  // namespace tensorops
