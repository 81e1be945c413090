// Bindings of positional encodings.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// The number of features that rotate; -1 if `dims` is not valid.
std::int64_t rotating(nb::handle dims, std::int64_t features) {
    if (dims.is_none()) return features % 2 == 0 ? features : -1;
    const std::int64_t value = read_integer(dims);
    return value >= 0 && value <= features && value % 2 == 0 ? value : -1;
}

bool is_numeric(PyArrayObject* a) {
    return PyArray_ISNOTSWAPPED(a) && ((PyArray_ISINTEGER(a) && !PyArray_ISBOOL(a)) || dtype_of(a) != Dtype::other);
}

Reason refuse_rope(nb::handle x, nb::handle positions, Number base, nb::handle freqs, Flag interleaved,
                   nb::handle dims) {
    if (Reason reason = refuse_array("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    if (ndim < 3) return "x has less than 3 dimensions";
    if (PyArray_SIZE(a) == 0) return "x is empty";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    if (!(base > 0 && std::isfinite(base))) return "base is not a positive number";
    if (!interleaved.known) return "interleaved is not a bool";
    const std::int64_t count = rotating(dims, PyArray_DIM(a, ndim - 1));
    if (count <= 0) return "dims is no even number of features of x";
    if (!PyArray_CheckExact(positions.ptr())) return "positions is not a numpy.ndarray";
    PyArrayObject* p = as_array(positions);
    if (!is_numeric(p)) return "positions has a dtype without a kernel";
    const int missing = ndim - 2 - PyArray_NDIM(p);  // of the axes of x without those of heads and features
    if (PyArray_NDIM(p) < 1 || missing < 0) return "positions has another number of dimensions than x wants";
    for (int d = 0; d < PyArray_NDIM(p); ++d) {
        const bool is_last = d == PyArray_NDIM(p) - 1;  // the heads' axis is before the last but one of x
        const npy_intp wanted = PyArray_DIM(a, is_last ? ndim - 2 : d + missing);
        if (PyArray_DIM(p, d) != wanted && PyArray_DIM(p, d) != 1) return "positions does not broadcast to x";
    }
    if (freqs.is_none()) return {};
    if (Reason reason = refuse_array("freqs", freqs); !reason.empty()) return reason;
    if (PyArray_NDIM(as_array(freqs)) != 1 || PyArray_DIM(as_array(freqs), 0) != count / 2)
        return "freqs does not have one element for each pair";
    return {};
}

// A contiguous float64 copy of an array, or the array itself.
nb::object as_doubles(nb::handle h) {
    if (product(PyArray_SIZE(as_array(h)), sizeof(double)) == INT64_MAX) throw std::bad_alloc();
    PyObject* doubles = PyArray_FROMANY(h.ptr(), NPY_FLOAT64, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    if (!doubles) throw nb::python_error();
    return nb::steal(doubles);
}

// Positions for each row of a head: of every batch, or once if all batches share them.
std::vector<double> positions_for(PyArrayObject* x, PyArrayObject* p, bool& of_batch) {
    const int batch_axes = PyArray_NDIM(x) - 3, own = PyArray_NDIM(p) - 1;
    const double* data = static_cast<const double*>(PyArray_DATA(p));
    const std::int64_t length = PyArray_DIM(x, batch_axes + 1), given = PyArray_DIM(p, own);
    of_batch = PyArray_SIZE(p) > given;
    std::int64_t batches = 1;
    for (int d = 0; of_batch && d < batch_axes; ++d) batches *= PyArray_DIM(x, d);
    std::vector<double> all(static_cast<std::size_t>(batches * length));
    for (std::int64_t b = 0; b < batches; ++b) {
        std::int64_t row = 0, step = 1, rest = b;
        for (int d = batch_axes - 1; d >= 0; --d) {
            const std::int64_t index = rest % PyArray_DIM(x, d), axis = d - (batch_axes - own);
            rest /= PyArray_DIM(x, d);
            if (axis < 0) continue;
            if (PyArray_DIM(p, axis) != 1) row += index * step;
            step *= PyArray_DIM(p, axis);
        }
        for (std::int64_t i = 0; i < length; ++i)
            all[static_cast<std::size_t>(b * length + i)] = data[row * given + (given == 1 ? 0 : i)];
    }
    return all;
}

Rows batches_of(PyArrayObject* x) {
    Rows rows{};
    rows.data = PyArray_BYTES(x);
    rows.count = rows.length = 1;
    rows.outer = PyArray_NDIM(x) - 3;
    for (int d = 0; d < rows.outer; ++d) {
        rows.shape[d] = PyArray_DIM(x, d);
        rows.stride[d] = PyArray_STRIDE(x, d);
        rows.count *= rows.shape[d];
    }
    return rows;
}

nb::object rope(nb::handle x, nb::handle positions, Number base, nb::handle freqs, Flag interleaved, nb::handle dims) {
    if (!refuse_rope(x, positions, base, freqs, interleaved, dims).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    const int ndim = PyArray_NDIM(a);
    Rope op{};
    op.features = PyArray_DIM(a, ndim - 1);
    op.dims = rotating(dims, op.features);
    const nb::object doubles = as_doubles(positions);
    const std::vector<double> all = positions_for(a, as_array(doubles), op.positions_of_batch);
    std::vector<double> frequencies(static_cast<std::size_t>(op.dims / 2));
    if (freqs.is_none()) {
        for (std::size_t i = 0; i < frequencies.size(); ++i)
            frequencies[i] = std::pow(base.value, static_cast<double>(i) * (-2.0 / static_cast<double>(op.dims)));
    } else {
        const nb::object given = as_doubles(freqs);
        std::copy_n(static_cast<const double*>(PyArray_DATA(as_array(given))), frequencies.size(), frequencies.begin());
    }
    nb::object y = empty_like(a);
    op.y = PyArray_BYTES(as_array(y));
    op.batch = batches_of(a);
    op.head_stride = PyArray_STRIDE(a, ndim - 3);
    op.stride = PyArray_STRIDE(a, ndim - 2);
    op.heads = PyArray_DIM(a, ndim - 3);
    op.length = PyArray_DIM(a, ndim - 2);
    op.positions = all.data();
    op.frequencies = frequencies.data();
    op.interleaved = interleaved.value;
    op.dtype = dtype_of(a);
    compute(PyArray_NBYTES(a), [&op] { target().rope(op); });
    return y;
}

}  // namespace

void bind_positional(nb::module_& m) {
    m.def("rope", &rope, "x"_a, "positions"_a, nb::kw_only(), "base"_a.none() = 10000.0, "freqs"_a = nb::none(),
          "interleaved"_a.none() = false, "dims"_a = nb::none());
    m.def(
        "rope_supports",
        [](nb::handle x, nb::handle positions, Number base, nb::handle freqs, Flag interleaved, nb::handle dims) {
            return none_or(refuse_rope(x, positions, base, freqs, interleaved, dims));
        },
        "x"_a, "positions"_a, nb::kw_only(), "base"_a.none() = 10000.0, "freqs"_a = nb::none(),
        "interleaved"_a.none() = false, "dims"_a = nb::none());
}

}  // namespace tensorops
