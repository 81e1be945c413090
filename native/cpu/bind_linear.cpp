// Bindings of linear maps and of the lookup of rows.
#include <algorithm>
#include <cstring>

#include "bind.h"
#include "integers.h"
#include "matrices.h"
#include "parallel.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_linear(nb::handle x, nb::handle weight, nb::handle bias) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    if (dtype_of(w) == Dtype::float64) return "weight has dtype float64";
    if (Reason reason = refuse_matrix("weight", w, kAny, length_of(a)); !reason.empty()) return reason;
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    if (dtype_of(a) == Dtype::float32 && dtype_of(w) == Dtype::float32 && PyArray_SIZE(a) / length_of(a) > kMostRows)
        return "x has more than " + std::to_string(kMostRows) + " rows, which numpy.matmul multiplies faster";
    if (bias.is_none()) return {};
    if (Reason reason = refuse_array("bias", bias); !reason.empty()) return reason;
    PyArrayObject* b = as_array(bias);
    if (dtype_of(b) == Dtype::float64) return "bias has dtype float64";
    if (PyArray_NDIM(b) != 1 || PyArray_DIM(b, 0) != PyArray_DIM(w, 0))
        return "bias does not have one element for each row of weight";
    return last_axis_contiguous(b) ? Reason{} : "bias is not contiguous";
}

// A call whose arguments are not refused, but for the place of the result. Inlined, as Rows is more than a kilobyte: a
// call of this function cost small products 4 %.
inline __attribute__((always_inline)) Linear linear_of(nb::handle x, nb::handle weight, nb::handle bias) {
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    Linear op{};
    op.x = rows_of(a);
    op.weight = PyArray_BYTES(w);
    op.weight_stride = PyArray_STRIDE(w, 0);
    op.outputs = PyArray_DIM(w, 0);
    op.bias = bias.is_none() ? nullptr : PyArray_BYTES(as_array(bias));
    op.x_dtype = dtype_of(a);
    op.weight_dtype = dtype_of(w);
    op.bias_dtype = bias.is_none() ? op.weight_dtype : dtype_of(as_array(bias));
    return op;
}

nb::object linear_with(nb::handle x, nb::handle weight, nb::handle bias, std::int64_t few_rows) {
    if (!refuse_linear(x, weight, bias).empty()) return nb::borrow(Py_NotImplemented);
    Linear op = linear_of(x, weight, bias);
    op.few_rows = few_rows;
    nb::object y = empty_outputs(as_array(x), op.outputs);
    op.y = PyArray_BYTES(as_array(y));
    compute(product(PyArray_NBYTES(as_array(weight)), op.x.count), [&op] { target().linear(op); });
    return y;
}

nb::object linear(nb::handle x, nb::handle weight, nb::handle bias) { return linear_with(x, weight, bias, 0); }

// A function of its own, as what is called with a caller's arguments takes those of the operator only.
nb::object linear_tuned(nb::handle x, nb::handle weight, nb::handle bias, nb::handle few_rows) {
    if (few_rows.is_none()) return linear(x, weight, bias);
    const std::int64_t rows = read_integer(few_rows);
    return rows < 1 ? nb::borrow(Py_NotImplemented) : linear_with(x, weight, bias, rows);
}

nb::object linear_configuration(nb::handle x, nb::handle weight, nb::handle bias) {
    if (!refuse_linear(x, weight, bias).empty()) return nb::borrow(Py_NotImplemented);
    std::int64_t few_rows = 0;
    target().linear_choice({linear_of(x, weight, bias), &few_rows});
    nb::dict chosen;
    chosen["few_rows"] = few_rows;
    return chosen;
}

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
        over_shares(threads_for(count, 2 * count * bytes), count, 1, [=](Share mine) {
            for (std::int64_t k = mine.begin; k < mine.end && !leaves(at, bytes); ++k)
                std::memcpy(to + k * bytes, from + id[k] * stride, static_cast<std::size_t>(bytes));
        });
    });
    return y;
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("linear", &linear, "x"_a, "weight"_a, "bias"_a = nb::none());
    m.def(
        "linear_supports",
        [](nb::handle x, nb::handle weight, nb::handle bias) { return none_or(refuse_linear(x, weight, bias)); }, "x"_a,
        "weight"_a, "bias"_a = nb::none());
    m.def("linear_tuned", &linear_tuned, "x"_a, "weight"_a, "bias"_a = nb::none(), nb::kw_only(),
          "few_rows"_a = nb::none());
    m.def("linear_configuration", &linear_configuration, "x"_a, "weight"_a, "bias"_a = nb::none());
    m.def("embedding", &embedding, "ids"_a, "weight"_a);
    m.def(
        "embedding_supports",
        [](nb::handle ids, nb::handle weight) {
            nb::object wide_ids;
            return none_or(refuse_embedding(ids, weight, wide_ids));
        },
        "ids"_a, "weight"_a);
}

}  // namespace tensorops
