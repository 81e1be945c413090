// Bindings of attention.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bind.h"
#include "integers.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// Beyond these, products with a number may leave the range of float32 in other ways than in the operator's body.
constexpr double kSmallest = 1e-30, kLargest = 1e30;
constexpr std::int64_t kWidest = 16384;  // features of a head: a thread keeps 128 rows of them

// The operator's arguments, unchanged.
struct Arguments {
    nb::handle q, k, v, mask, is_causal, scale, window, softcap, sinks, lengths, page_table;
};

// A call as the kernel takes it, and the integers that it points to.
struct Bound {
    Attention op{};
    nb::object lengths, pages;
};

Reason refuse_heads(const char* name, nb::handle h) {
    if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 4)
        return std::string(name) + " has " + std::to_string(PyArray_NDIM(a)) + " dimensions, not 4";
    if (!last_axis_contiguous(a) && PyArray_SIZE(a) != 0)
        return "the last axis of " + std::string(name) + " is not contiguous";
    if (PyArray_DIM(a, 3) > kWidest)
        return std::string(name) + " has more than " + std::to_string(kWidest) + " features";
    return {};
}

Reason refuse_shapes(PyArrayObject* q, PyArrayObject* k, PyArrayObject* v, bool in_pages) {
    const npy_intp *of_q = PyArray_DIMS(q), *of_k = PyArray_DIMS(k), *of_v = PyArray_DIMS(v);
    if (dtype_of(q) != dtype_of(k) || dtype_of(q) != dtype_of(v)) return "q, k and v differ in dtype";
    if (in_pages && of_k[0] != of_v[0]) return "k and v differ in pages";
    if (!in_pages && (of_q[0] != of_k[0] || of_q[0] != of_v[0])) return "q, k and v differ in batch size";
    if (of_q[3] != of_k[3]) return "q and k differ in head dimension";
    if (of_k[1] != of_v[1] || of_k[2] != of_v[2]) return "k and v differ in heads or keys";
    if (of_k[1] == 0 || of_q[1] % of_k[1] != 0) return "the heads of k do not divide those of q";
    if (of_q[3] == 0) return "the head dimension is 0";
    return {};
}

Reason refuse_mask(nb::handle h, const npy_intp* scores) {
    if (h.is_none()) return {};
    if (!PyArray_CheckExact(h.ptr())) return "mask is not a numpy.ndarray";
    PyArrayObject* a = as_array(h);
    if (PyArray_TYPE(a) != NPY_BOOL) {
        if (Reason reason = refuse_array("mask", h); !reason.empty()) return reason;
    }
    const int ndim = PyArray_NDIM(a);
    if (ndim > 4) return "mask has more than 4 dimensions";
    for (int d = 0; d < ndim; ++d) {
        const npy_intp n = PyArray_DIM(a, d);
        if (n != 1 && n != scores[4 - ndim + d]) return "mask does not broadcast to (batch, heads, queries, keys)";
    }
    return {};
}

Reason refuse_sinks(nb::handle h, npy_intp heads) {
    if (h.is_none()) return {};
    if (Reason reason = refuse_array("sinks", h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != heads) return "sinks does not have one element for each head of q";
    return {};
}

Reason read_scale(nb::handle h, npy_intp dim, double* scale) {
    if (h.is_none()) {
        *scale = 1 / std::sqrt(static_cast<double>(dim));
        return {};
    }
    *scale = read_number(h);
    const double size = std::fabs(*scale);
    if (size != 0 && !(size >= kSmallest && size <= kLargest)) return "scale is not a usual number";
    return {};
}

Reason read_softcap(nb::handle h, double* softcap) {
    *softcap = 0;
    if (h.is_none()) return {};
    *softcap = read_number(h);
    if (!(*softcap >= kSmallest && *softcap <= kLargest)) return "softcap is not a usual positive number";
    return {};
}

bool read_side(nb::handle h, std::int64_t* side) {
    const std::int64_t value = h.is_none() ? -1 : read_integer(h).value;
    *side = value == -1 ? kUnbounded : value;
    return value >= -1 && value <= kUnbounded;
}

Reason read_window(nb::handle h, Attention* op) {
    op->left = op->right = kUnbounded;
    if (h.is_none()) return {};
    if (PyTuple_CheckExact(h.ptr())) {
        const bool usual = PyTuple_GET_SIZE(h.ptr()) == 2 && read_side(PyTuple_GET_ITEM(h.ptr(), 0), &op->left) &&
                           read_side(PyTuple_GET_ITEM(h.ptr(), 1), &op->right);
        return usual ? Reason{} : "window is not a pair of usual integers from -1 on";
    }
    const std::int64_t width = read_integer(h);
    if (width < 1 || width > kUnbounded) return "window is not a usual positive integer";
    op->left = op->right = width - 1;
    return {};
}

// Also finds how many keys a sequence may have.
Reason refuse_page_table(nb::handle h, const npy_intp* of_q, const npy_intp* of_k, Attention* op) {
    op->keys = of_k[2];
    if (h.is_none()) return {};
    if (Reason reason = refuse_integers("page_table", h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 2) return "page_table does not have 2 dimensions";
    if (PyArray_DIM(a, 0) != of_q[0]) return "page_table does not have one row for each sequence";
    if (of_k[0] == 0 && PyArray_SIZE(a) != 0) return "there are no pages";
    op->page_size = of_k[2];
    op->pages_each = PyArray_DIM(a, 1);
    op->keys = product(op->page_size, op->pages_each);
    return op->keys > kUnbounded ? "page_table has too many pages" : Reason{};
}

Reason read_lengths(nb::handle h, npy_intp batch, Bound* bound) {
    if (h.is_none()) return {};
    if (Reason reason = refuse_integers("lengths", h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != batch) return "lengths does not have one number for each sequence";
    bound->lengths = as_int64(h);
    bound->op.lengths = int64s(bound->lengths);
    for (npy_intp b = 0; b < batch; ++b)
        if (bound->op.lengths[b] < 0 || bound->op.lengths[b] > bound->op.keys)
            return "lengths has a number outside 0 … " + std::to_string(bound->op.keys);
    return {};
}

// Reads the table, of which only pages with keys that a query may attend to must be in range.
Reason read_pages(nb::handle h, npy_intp pages, Bound* bound) {
    if (h.is_none() || bound->op.keys == 0) return {};
    Attention& op = bound->op;
    bound->pages = as_int64(h);
    op.pages = int64s(bound->pages);
    for (std::int64_t b = 0; b < op.batch; ++b) {
        const Reach reach = reach_of(op, b);
        if (reach.keys() == 0) continue;
        const std::int64_t *row = op.pages + b * op.pages_each, *last = row + (reach.end - 1) / op.page_size;
        for (const std::int64_t* page = row + reach.first / op.page_size; page <= last; ++page)
            if (*page < 0 || *page >= pages)
                return "page_table has an index outside 0 … " + std::to_string(pages - 1) + " that is in use";
    }
    return {};
}

// Also fills in the options, including the integers in lengths and page_table.
Reason refuse_attention(const Arguments& a, Bound* bound) {
    if (Reason reason = refuse_heads("q", a.q); !reason.empty()) return reason;
    if (Reason reason = refuse_heads("k", a.k); !reason.empty()) return reason;
    if (Reason reason = refuse_heads("v", a.v); !reason.empty()) return reason;
    PyArrayObject *q = as_array(a.q), *k = as_array(a.k), *v = as_array(a.v);
    if (Reason reason = refuse_shapes(q, k, v, !a.page_table.is_none()); !reason.empty()) return reason;
    Attention* op = &bound->op;
    const npy_intp *of_q = PyArray_DIMS(q), *of_k = PyArray_DIMS(k);
    if (Reason reason = refuse_page_table(a.page_table, of_q, of_k, op); !reason.empty()) return reason;
    const npy_intp scores[4] = {of_q[0], of_q[1], of_q[2], static_cast<npy_intp>(op->keys)};
    if (Reason reason = refuse_mask(a.mask, scores); !reason.empty()) return reason;
    if (Reason reason = refuse_sinks(a.sinks, scores[1]); !reason.empty()) return reason;
    const Flag is_causal = read_flag(a.is_causal);
    if (!is_causal.known) return "is_causal is not a bool";
    if (Reason reason = read_scale(a.scale, of_q[3], &op->scale); !reason.empty()) return reason;
    if (Reason reason = read_softcap(a.softcap, &op->softcap); !reason.empty()) return reason;
    if (Reason reason = read_window(a.window, op); !reason.empty()) return reason;
    if (is_causal.value) op->right = 0;
    op->batch = of_q[0];
    op->queries = of_q[2];
    if (Reason reason = read_lengths(a.lengths, of_q[0], bound); !reason.empty()) return reason;
    return read_pages(a.page_table, of_k[0], bound);
}

void set_mask(Attention& op, nb::handle mask) {
    if (mask.is_none()) return;
    PyArrayObject* a = as_array(mask);
    const int ndim = PyArray_NDIM(a);
    op.mask = PyArray_BYTES(a);
    op.mask_dtype = dtype_of(a);
    op.mask_kind = PyArray_TYPE(a) == NPY_BOOL ? MaskKind::boolean : MaskKind::floating;
    for (int d = 0; d < ndim; ++d)
        if (PyArray_DIM(a, d) != 1) op.mask_stride[4 - ndim + d] = PyArray_STRIDE(a, d);
}

nb::object attention(const Arguments& a) {
    Bound bound;
    if (!refuse_attention(a, &bound).empty()) return nb::borrow(Py_NotImplemented);
    Attention& op = bound.op;
    PyArrayObject *q = as_array(a.q), *k = as_array(a.k), *v = as_array(a.v);
    const npy_intp shape[4] = {PyArray_DIM(q, 0), PyArray_DIM(q, 1), PyArray_DIM(q, 2), PyArray_DIM(v, 3)};
    nb::object y = empty(4, shape, PyArray_DESCR(q));
    if (PyArray_SIZE(as_array(y)) == 0) return y;
    op.y = PyArray_BYTES(as_array(y));
    const double keys = keys_of(op);
    if (keys == 0) {
        std::memset(op.y, 0, static_cast<std::size_t>(PyArray_NBYTES(as_array(y))));
        return y;
    }
    op.q = PyArray_BYTES(q);
    op.k = PyArray_BYTES(k);
    op.v = PyArray_BYTES(v);
    std::copy_n(PyArray_STRIDES(q), 3, op.q_stride);
    std::copy_n(PyArray_STRIDES(k), 3, op.k_stride);
    std::copy_n(PyArray_STRIDES(v), 3, op.v_stride);
    op.heads = shape[1];
    op.kv_heads = PyArray_DIM(k, 1);
    op.dim = PyArray_DIM(q, 3);
    op.value_dim = shape[3];
    op.dtype = dtype_of(q);
    set_mask(op, a.mask);
    if (!a.sinks.is_none()) {
        op.sinks = PyArray_BYTES(as_array(a.sinks));
        op.sinks_stride = PyArray_STRIDE(as_array(a.sinks), 0);
        op.sinks_dtype = dtype_of(as_array(a.sinks));
    }
    op.work = work_of(op, keys, PyArray_ITEMSIZE(q));
    compute(op.work, [&op] { target().attention(op); });
    return y;
}

// Binds a function of the operator's arguments.
template <class F>
void bind_with_arguments(nb::module_& m, const char* name, F function) {
    m.def(
        name,
        [function](nb::handle q, nb::handle k, nb::handle v, nb::handle mask, nb::handle is_causal, nb::handle scale,
                   nb::handle window, nb::handle softcap, nb::handle sinks, nb::handle lengths, nb::handle page_table) {
            return function(Arguments{q, k, v, mask, is_causal, scale, window, softcap, sinks, lengths, page_table});
        },
        "q"_a, "k"_a, "v"_a, nb::kw_only(), "mask"_a = nb::none(), "is_causal"_a.none() = false, "scale"_a = nb::none(),
        "window"_a = nb::none(), "softcap"_a = nb::none(), "sinks"_a = nb::none(), "lengths"_a = nb::none(),
        "page_table"_a = nb::none());
}

}  // namespace

void bind_attention(nb::module_& m) {
    bind_with_arguments(m, "scaled_dot_product_attention", [](const Arguments& a) { return attention(a); });
    bind_with_arguments(m, "scaled_dot_product_attention_supports", [](const Arguments& a) {
        Bound bound;
        return none_or(refuse_attention(a, &bound));
    });
}

}  // namespace tensorops
