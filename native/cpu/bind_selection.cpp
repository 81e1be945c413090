// Binding of selection.
#include <algorithm>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_top_k(nb::handle x, Integer k, Integer axis, Flag largest) {
    if (!PyArray_CheckExact(x.ptr())) return "x is not a numpy.ndarray";
    PyArrayObject* a = as_array(x);
    if (dtype_of(a) == Dtype::other && !PyArray_ISINTEGER(a)) return "x has a dtype without a kernel";
    if (!PyArray_ISNOTSWAPPED(a)) return "x is in foreign byte order";
    const int ndim = PyArray_NDIM(a);
    if (ndim == 0) return "x has 0 dimensions";
    if (axis != -1 && axis != ndim - 1) return "axis is not the last of x";
    const std::int64_t length = PyArray_DIM(a, ndim - 1);
    if (k < 0 || k > length) return "k is not within 0 … the length of x";
    if (!largest.known) return "largest is not True or False";
    if (!last_axis_contiguous(a)) return "the last axis of x is not contiguous";
    if (PyArray_ITEMSIZE(a) <= 4 && length >= std::numeric_limits<std::uint32_t>::max())
        return "x has 2**32 - 1 elements or more along axis";
    return {};
}

nb::object top_k(nb::handle x, Integer k, Integer axis, Flag largest) {
    if (!refuse_top_k(x, k, axis, largest).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    npy_intp shape[kMaxDims];
    std::copy_n(PyArray_DIMS(a), PyArray_NDIM(a), shape);
    shape[PyArray_NDIM(a) - 1] = k;
    nb::object index = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_INTP)));
    nb::object values = empty(PyArray_NDIM(a), shape, PyArray_DESCR(a));
    nb::object indices = empty(PyArray_NDIM(a), shape, reinterpret_cast<PyArray_Descr*>(index.ptr()));
    TopK op{};
    op.x = rows_of(a);
    op.k = k;
    op.largest = largest.value;
    op.values = PyArray_BYTES(as_array(values));
    op.indices = PyArray_BYTES(as_array(indices));
    op.index_bytes = sizeof(npy_intp);
    op.dtype = dtype_of(a);
    op.integer = {static_cast<int>(PyArray_ITEMSIZE(a)), static_cast<bool>(PyArray_ISSIGNED(a))};
    const std::int64_t row = k * PyArray_ITEMSIZE(a), row_of_indices = k * op.index_bytes;
    if (k > 0 && op.x.count > 0)
        compute_parts(target().top_k, op, op.x.count, 1, PyArray_NBYTES(a),
                      [row, row_of_indices](TopK& part, std::int64_t begin, std::int64_t end) {
                          take_part(part.x, begin, end);
                          part.values += begin * row;
                          part.indices += begin * row_of_indices;
                      });
    return nb::make_tuple(values, indices);
}

}  // namespace

void bind_selection(nb::module_& m) {
    m.def("top_k", &top_k, "x"_a, "k"_a.none(), nb::kw_only(), "axis"_a.none() = -1, "largest"_a.none() = true);
    m.def(
        "top_k_supports",
        [](nb::handle x, Integer k, Integer axis, Flag largest) { return none_or(refuse_top_k(x, k, axis, largest)); },
        "x"_a, "k"_a.none(), nb::kw_only(), "axis"_a.none() = -1, "largest"_a.none() = true);
}

}  // namespace tensorops
