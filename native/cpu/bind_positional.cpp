// Bindings of positional encodings.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "bind.h"
#include "positions.h"
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

// The arguments of the operator.
struct Arguments {
    nb::handle x, positions;
    Number base;
    nb::handle freqs, cos, sin;
    Flag interleaved;
    nb::handle dims;
    Number attention_factor;

    bool has_tables() const { return !cos.is_none() || !sin.is_none(); }
};

constexpr double kDefaultBase = 10000;

// What has one element or row for each position: its first `axes` axes broadcast to those of x without heads and
// features.
Reason refuse_shape(const char* name, PyArrayObject* x, PyArrayObject* a, int axes) {
    const int ndim = PyArray_NDIM(x), missing = ndim - 2 - axes;
    if (axes < 1 || missing < 0) return std::string(name) + " has another number of dimensions than x wants";
    for (int d = 0; d < axes; ++d) {
        const bool is_last = d == axes - 1;  // the heads' axis is before the last but one of x
        const npy_intp wanted = PyArray_DIM(x, is_last ? ndim - 2 : d + missing);
        if (PyArray_DIM(a, d) != wanted && PyArray_DIM(a, d) != 1)
            return std::string(name) + " does not broadcast to x";
    }
    return {};
}

Reason refuse_positions(PyArrayObject* x, nb::handle positions) {
    if (!PyArray_CheckExact(positions.ptr())) return "positions is not a numpy.ndarray";
    PyArrayObject* p = as_array(positions);
    if (!is_numeric(p)) return "positions has a dtype without a kernel";
    return refuse_shape("positions", x, p, PyArray_NDIM(p));
}

Reason refuse_freqs(nb::handle freqs, std::int64_t pairs) {
    if (freqs.is_none()) return {};
    if (Reason reason = refuse_array("freqs", freqs); !reason.empty()) return reason;
    if (PyArray_NDIM(as_array(freqs)) != 1 || PyArray_DIM(as_array(freqs), 0) != pairs)
        return "freqs does not have one element for each pair";
    return {};
}

Reason refuse_tables(const Arguments& given, std::int64_t pairs) {
    if (!given.freqs.is_none()) return "freqs and tables are given";
    if (given.base != kDefaultBase) return "base and tables are given";
    if (Reason reason = refuse_array("cos", given.cos); !reason.empty()) return reason;
    if (Reason reason = refuse_array("sin", given.sin); !reason.empty()) return reason;
    PyArrayObject *x = as_array(given.x), *cos = as_array(given.cos), *sin = as_array(given.sin);
    const int ndim = PyArray_NDIM(cos);
    if (PyArray_TYPE(cos) != PyArray_TYPE(sin)) return "cos and sin have different dtypes";
    if (!PyArray_SAMESHAPE(cos, sin)) return "cos and sin have different shapes";
    if (ndim < 2 || PyArray_DIM(cos, ndim - 1) != pairs) return "cos does not have one column for each pair";
    if (!last_axis_contiguous(cos) || !last_axis_contiguous(sin))
        return "the last axis of cos or sin is not contiguous";
    if (given.positions.is_none()) return refuse_shape("cos", x, cos, ndim - 1);
    if (ndim != 2) return "cos does not have 2 dimensions";
    if (Reason reason = refuse_positions(x, given.positions); !reason.empty()) return reason;
    return PyArray_ISINTEGER(as_array(given.positions)) ? Reason{} : "positions has a dtype that is no integer";
}

// All but the values of positions.
Reason refuse_rope(const Arguments& given) {
    if (Reason reason = refuse_array("x", given.x); !reason.empty()) return reason;
    PyArrayObject* x = as_array(given.x);
    const int ndim = PyArray_NDIM(x);
    if (ndim < 3) return "x has less than 3 dimensions";
    if (PyArray_SIZE(x) == 0) return "x is empty";
    if (!last_axis_contiguous(x)) return "the last axis of x is not contiguous";
    if (!(given.base > 0 && std::isfinite(given.base))) return "base is not a positive number";
    if (!(given.attention_factor > 0 && std::isfinite(given.attention_factor)))
        return "attention_factor is not a positive number";
    if (!given.interleaved.known) return "interleaved is not a bool";
    const std::int64_t count = rotating(given.dims, PyArray_DIM(x, ndim - 1));
    if (count <= 0) return "dims is no even number of features of x";
    if (given.has_tables()) return refuse_tables(given, count / 2);
    if (Reason reason = refuse_positions(x, given.positions); !reason.empty()) return reason;
    return refuse_freqs(given.freqs, count / 2);
}

// A contiguous float64 copy of an array, or the array itself.
nb::object as_doubles(nb::handle h) {
    if (product(PyArray_SIZE(as_array(h)), sizeof(double)) == INT64_MAX) throw std::bad_alloc();
    PyObject* doubles = PyArray_FROMANY(h.ptr(), NPY_FLOAT64, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST);
    if (!doubles) throw nb::python_error();
    return nb::steal(doubles);
}

// The numbers of the rows of a table that has one for each position already.
nb::object numbers_of_rows(PyArrayObject* table) {
    const int axes = PyArray_NDIM(table) - 1;
    const std::int64_t count = PyArray_MultiplyList(PyArray_DIMS(table), axes);
    if (product(count, sizeof(double)) == INT64_MAX) throw std::bad_alloc();
    const nb::object numbers = nb::steal(PyArray_Arange(0, static_cast<double>(count), 1, NPY_FLOAT64));
    if (!numbers.is_valid()) throw nb::python_error();
    PyArray_Dims shape{PyArray_DIMS(table), axes};
    PyObject* shaped = PyArray_Newshape(as_array(numbers), &shape, NPY_CORDER);
    if (!shaped) throw nb::python_error();
    return nb::steal(shaped);
}

std::vector<double> positions_of(const Arguments& given, bool& of_batch) {
    const bool gathered = given.positions.is_none();
    const nb::object doubles = gathered ? numbers_of_rows(as_array(given.cos)) : as_doubles(given.positions);
    PyArrayObject *x = as_array(given.x), *p = as_array(doubles);
    return positions_for(PyArray_NDIM(x), PyArray_DIMS(x), PyArray_NDIM(p), PyArray_DIMS(p),
                         static_cast<const double*>(PyArray_DATA(p)), of_batch);
}

// Whether the tables, if there are any, have a row for every position.
bool are_within(const Arguments& given, const std::vector<double>& positions) {
    if (!given.has_tables() || given.positions.is_none()) return true;
    const auto rows = static_cast<double>(PyArray_DIM(as_array(given.cos), 0));
    return std::all_of(positions.begin(), positions.end(), [rows](double p) { return p >= 0 && p < rows; });
}

std::vector<double> frequencies_of(const Arguments& given, std::int64_t dims) {
    if (given.freqs.is_none()) return frequencies_for(given.base, dims);
    const nb::object doubles = as_doubles(given.freqs);
    const double* first = static_cast<const double*>(PyArray_DATA(as_array(doubles)));
    return {first, first + dims / 2};
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

nb::object rope(const Arguments& given) {
    if (!refuse_rope(given).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(given.x);
    const int ndim = PyArray_NDIM(a);
    Rope op{};
    op.features = PyArray_DIM(a, ndim - 1);
    op.dims = rotating(given.dims, op.features);
    const std::vector<double> positions = positions_of(given, op.positions_of_batch);
    if (!are_within(given, positions)) return nb::borrow(Py_NotImplemented);
    std::vector<double> frequencies;
    std::optional<RopeTables> tables;
    if (given.has_tables()) {
        const auto of = [](nb::handle h) { return rows_of(as_array(h)); };
        op.tables = &tables.emplace(RopeTables{of(given.cos), of(given.sin), dtype_of(as_array(given.cos))});
    } else {
        frequencies = frequencies_of(given, op.dims);
        op.frequencies = frequencies.data();
    }
    nb::object y = empty_like(a);
    op.y = PyArray_BYTES(as_array(y));
    op.batch = batches_of(a);
    op.head_stride = PyArray_STRIDE(a, ndim - 3);
    op.stride = PyArray_STRIDE(a, ndim - 2);
    op.heads = PyArray_DIM(a, ndim - 3);
    op.length = PyArray_DIM(a, ndim - 2);
    op.positions = positions.data();
    op.factor = given.attention_factor;
    op.interleaved = given.interleaved.value;
    op.dtype = dtype_of(a);
    compute(PyArray_NBYTES(a), [&op] { target().rope(op); });
    return y;
}

// The same check, and that of the positions, whose values must be read for it.
nb::object rope_supports(const Arguments& given) {
    Reason reason = refuse_rope(given);
    bool of_batch = false;
    if (reason.empty() && given.has_tables() && !are_within(given, positions_of(given, of_batch)))
        reason = "a position is outside the tables";
    return none_or(reason);
}

template <nb::object (*kCompute)(const Arguments&)>
void bind(nb::module_& m, const char* name) {
    m.def(
        name,
        [](nb::handle x, nb::handle positions, Number base, nb::handle freqs, nb::handle cos, nb::handle sin,
           Flag interleaved, nb::handle dims, Number attention_factor) {
            return kCompute({x, positions, base, freqs, cos, sin, interleaved, dims, attention_factor});
        },
        "x"_a, "positions"_a = nb::none(), nb::kw_only(), "base"_a.none() = kDefaultBase, "freqs"_a = nb::none(),
        "cos"_a = nb::none(), "sin"_a = nb::none(), "interleaved"_a.none() = false, "dims"_a = nb::none(),
        "attention_factor"_a.none() = 1.0);
}

}  // namespace

void bind_positional(nb::module_& m) {
    bind<rope>(m, "rope");
    bind<rope_supports>(m, "rope_supports");
}

}  // namespace tensorops
