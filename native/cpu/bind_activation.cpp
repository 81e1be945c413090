// Bindings of elementwise functions.
#include <cmath>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

Reason refuse_elements(const char* name, nb::handle x) {
    if (Reason reason = refuse_array(name, x); !reason.empty()) return reason;
    if (PyArray_NDIM(as_array(x)) == 0) return std::string(name) + " has 0 dimensions";
    if (!last_axis_contiguous(as_array(x))) return "the last axis of " + std::string(name) + " is not contiguous";
    return {};
}

Reason refuse_gated(nb::handle gate, nb::handle up) {
    if (Reason reason = refuse_elements("gate", gate); !reason.empty()) return reason;
    if (Reason reason = refuse_elements("up", up); !reason.empty()) return reason;
    PyArrayObject *a = as_array(gate), *b = as_array(up);
    if (dtype_of(a) != dtype_of(b)) return "gate and up differ in dtype";
    if (!PyArray_SAMESHAPE(a, b)) return "gate and up differ in shape";
    return {};
}

Reason refuse_gelu(nb::handle x, Choice approximate) {
    if (approximate != "none" && approximate != "tanh") return "approximate is neither 'none' nor 'tanh'";
    return refuse_elements("x", x);
}

// Contiguous arrays are one row: elements then go to threads whatever the shape.
Rows elements_of(PyArrayObject* a) {
    if (!PyArray_IS_C_CONTIGUOUS(a)) return rows_of(a);
    Rows rows{};
    rows.data = PyArray_BYTES(a);
    rows.count = 1;
    rows.length = PyArray_SIZE(a);
    return rows;
}

struct Parameters {
    double alpha = 0, beta = 0;
};

nb::object activate(Function function, nb::handle x, nb::handle up = {}, Parameters parameters = {}) {
    PyArrayObject* a = as_array(x);
    nb::object y = empty_like(a);
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return y;
    Activation op{};
    op.function = function;
    op.alpha = parameters.alpha;
    op.beta = parameters.beta;
    op.dtype = dtype_of(a);
    op.y = PyArray_BYTES(as_array(y));
    if (!up.is_valid()) {
        op.x = elements_of(a);
    } else if (PyArrayObject* b = as_array(up); PyArray_IS_C_CONTIGUOUS(a) && PyArray_IS_C_CONTIGUOUS(b)) {
        op.x = elements_of(a);
        op.up = elements_of(b);
    } else {  // both with the same rows
        op.x = rows_of(a);
        op.up = rows_of(b);
    }
    const bool aligned = op.x.count == 1 || op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    op.streaming = bytes >= kStreamBytes && aligned;
    const bool flat = op.x.count == 1;  // one row, which is cut by elements
    const auto cut = [flat, item = PyArray_ITEMSIZE(a)](Activation& part, std::int64_t begin, std::int64_t end) {
        part.y += begin * (flat ? 1 : part.x.length) * item;
        for (Rows* rows : {&part.x, &part.up}) {
            if (!flat) {
                take_part(*rows, begin, end);
            } else if (rows->data) {
                rows->data += begin * item;
                rows->length = end - begin;
            }
        }
    };
    compute_parts(target().activation, op, flat ? op.x.length : op.x.count, flat ? 64 : 1, bytes, cut);
    return y;
}

// Functions of one array; those with a parameter; gated units.
struct Named {
    const char* name;
    Function function;
    const char* parameter = nullptr;
    double otherwise = 0;
};
constexpr Named kUnary[] = {
    {"relu", Function::relu},
    {"relu_squared", Function::relu_squared},
    {"sigmoid", Function::sigmoid},
    {"silu", Function::silu},
    {"softplus", Function::softplus},
    {"mish", Function::mish},
    {"hard_swish", Function::hard_swish},
    {"selu", Function::selu},
};
constexpr Named kWithParameter[] = {
    {"quick_gelu", Function::quick_gelu, "alpha", 1.702},
    {"elu", Function::elu, "alpha", 1.0},
    {"leaky_relu", Function::leaky_relu, "negative_slope", 0.01},
};
constexpr Named kGated[] = {
    {"swiglu", Function::swiglu},
    {"geglu", Function::geglu},
    {"reglu", Function::reglu},
};

// The kernel unless it refuses the arguments.
template <class F>
nb::object unless(const Reason& reason, F kernel) {
    return reason.empty() ? kernel() : nb::object(nb::borrow(Py_NotImplemented));
}

std::string supports(const Named& f) { return std::string(f.name) + "_supports"; }

void bind_unary(nb::module_& m, Named f) {
    m.def(
        f.name,
        [function = f.function](nb::handle x) {
            return unless(refuse_elements("x", x), [&] { return activate(function, x); });
        },
        "x"_a);
    m.def(supports(f).c_str(), [](nb::handle x) { return none_or(refuse_elements("x", x)); }, "x"_a);
}

Reason refuse_parameter(const char* name, Number value, nb::handle x) {
    return std::isfinite(value.value) ? refuse_elements("x", x) : std::string(name) + " is not a finite number";
}

void bind_with_parameter(nb::module_& m, Named f) {
    m.def(
        f.name,
        [function = f.function, name = f.parameter](nb::handle x, Number value) {
            return unless(refuse_parameter(name, value, x), [&] { return activate(function, x, {}, {value}); });
        },
        "x"_a, nb::kw_only(), nb::arg(f.parameter).none() = f.otherwise);
    m.def(
        supports(f).c_str(),
        [name = f.parameter](nb::handle x, Number value) { return none_or(refuse_parameter(name, value, x)); }, "x"_a,
        nb::kw_only(), nb::arg(f.parameter).none() = f.otherwise);
}

void bind_gated(nb::module_& m, Named f) {
    m.def(
        f.name,
        [function = f.function](nb::handle gate, nb::handle up) {
            return unless(refuse_gated(gate, up), [&] { return activate(function, gate, up); });
        },
        "gate"_a, "up"_a);
    m.def(
        supports(f).c_str(), [](nb::handle gate, nb::handle up) { return none_or(refuse_gated(gate, up)); }, "gate"_a,
        "up"_a);
}

Reason refuse_hard_sigmoid(nb::handle x, Number alpha, Number beta) {
    if (!std::isfinite(alpha.value)) return "alpha is not a finite number";
    return refuse_parameter("beta", beta, x);
}

void bind_hard_sigmoid(nb::module_& m) {
    m.def(
        "hard_sigmoid",
        [](nb::handle x, Number alpha, Number beta) {
            return unless(refuse_hard_sigmoid(x, alpha, beta),
                          [&] { return activate(Function::hard_sigmoid, x, {}, {alpha, beta}); });
        },
        "x"_a, nb::kw_only(), "alpha"_a.none() = 1.0 / 6, "beta"_a.none() = 0.5);
    m.def(
        "hard_sigmoid_supports",
        [](nb::handle x, Number alpha, Number beta) { return none_or(refuse_hard_sigmoid(x, alpha, beta)); }, "x"_a,
        nb::kw_only(), "alpha"_a.none() = 1.0 / 6, "beta"_a.none() = 0.5);
}

// The dtype of the result for an option `dtype`, a NumPy dtype or scalar type, if the kernels have it.
Dtype dtype_of_result(PyArrayObject* x, nb::handle dtype) {
    const Dtype own = dtype_of(x), widened = own == Dtype::float64 ? Dtype::other : Dtype::float32;
    if (dtype.is_none()) return own;
    if (PyArray_DescrCheck(dtype.ptr())) {
        PyArray_Descr* given = reinterpret_cast<PyArray_Descr*>(dtype.ptr());
        if (!PyArray_ISNBO(given->byteorder)) return Dtype::other;
        if (given->type_num == PyArray_TYPE(x)) return own;
        return given->type_num == NPY_FLOAT32 ? widened : Dtype::other;
    }
    if (dtype.ptr() == reinterpret_cast<PyObject*>(PyArray_DESCR(x)->typeobj)) return own;
    return dtype.ptr() == reinterpret_cast<PyObject*>(&PyFloatArrType_Type) ? widened : Dtype::other;
}

// What the options of a call say: how many of the last axes are one row, and the dtype of the result.
struct Reduction {
    int axes;
    Dtype result;
};

Reason refuse_reduction(nb::handle x, nb::handle axis, nb::handle dtype, Reduction& read) {
    if (Reason reason = refuse_elements("x", x); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    read = {count_last_axes(axis, PyArray_NDIM(a)), dtype_of_result(a, dtype)};
    if (read.axes == 0) {
        const bool several = PyTuple_CheckExact(axis.ptr()) && PyTuple_GET_SIZE(axis.ptr()) > 1;
        return several ? "the axes are not the last of x" : "axis is not the last of x";
    }
    if (read.axes > 1 && !contiguous_from(a, PyArray_NDIM(a) - read.axes))
        return "the last " + std::to_string(read.axes) + " axes of x are not contiguous";
    if (read.result == Dtype::other) return "dtype is neither the dtype of x nor, for half types, float32";
    return {};
}

Reason refuse_softmax(nb::handle x, nb::handle axis, nb::handle where, nb::handle dtype, Reduction& read) {
    if (Reason reason = refuse_reduction(x, axis, dtype, read); !reason.empty()) return reason;
    return where.is_none() ? Reason{} : "where is given";
}

Reason refuse_logsumexp(nb::handle x, nb::handle axis, Flag keepdims, nb::handle dtype, Reduction& read) {
    if (!keepdims.known) return "keepdims is not a bool";
    if (Reason reason = refuse_reduction(x, axis, dtype, read); !reason.empty()) return reason;
    const npy_intp* end = PyArray_DIMS(as_array(x)) + PyArray_NDIM(as_array(x));
    if (std::find(end - read.axes, end, 0) == end) return {};
    return read.axes == 1 ? "the last axis of x is empty" : "one of the last axes of x is empty";
}

// A new array in the dtype of the result.
nb::object empty_result(PyArrayObject* x, int ndim, const npy_intp* shape, Dtype dtype) {
    if (dtype == dtype_of(x)) return empty(ndim, shape, PyArray_DESCR(x));
    PyArray_Descr* descr = PyArray_DescrFromType(NPY_FLOAT32);
    const nb::object owner = nb::steal(reinterpret_cast<PyObject*>(descr));
    return empty(ndim, shape, descr);
}

void normalize(Normalized kind, PyArrayObject* a, PyArrayObject* y, Reduction read) {
    const std::int64_t item = PyArray_ITEMSIZE(y), bytes = PyArray_SIZE(a) * item;
    if (bytes == 0) return;
    Softmax op{};
    op.kind = kind;
    op.x = rows_of(a, read.axes);
    op.y = PyArray_BYTES(y);
    op.dtype = dtype_of(a);
    op.y_dtype = read.result;
    op.streaming = bytes >= kStreamBytes && op.x.length * item % 64 == 0;
    const std::int64_t row_bytes = (kind == Normalized::logsumexp ? 1 : op.x.length) * item;
    const auto cut = [row_bytes](Softmax& part, std::int64_t begin, std::int64_t end) {
        take_part(part.x, begin, end);
        part.y += begin * row_bytes;
    };
    compute_parts(target().softmax, op, op.x.count, 1, bytes, cut);
}

template <Normalized kKind>
void bind_softmax(nb::module_& m, const char* name, const char* supports) {
    m.def(
        name,
        [](nb::handle x, nb::handle axis, nb::handle where, nb::handle dtype) {
            Reduction read{};
            return unless(refuse_softmax(x, axis, where, dtype, read), [&] {
                PyArrayObject* a = as_array(x);
                nb::object y = empty_result(a, PyArray_NDIM(a), PyArray_DIMS(a), read.result);
                normalize(kKind, a, as_array(y), read);
                return y;
            });
        },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "where"_a = nb::none(), "dtype"_a = nb::none());
    m.def(
        supports,
        [](nb::handle x, nb::handle axis, nb::handle where, nb::handle dtype) {
            Reduction read{};
            return none_or(refuse_softmax(x, axis, where, dtype, read));
        },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "where"_a = nb::none(), "dtype"_a = nb::none());
}

nb::object logsumexp(PyArrayObject* a, bool keepdims, Reduction read) {
    npy_intp shape[kMaxDims];
    const int ndim = PyArray_NDIM(a), outer = ndim - read.axes;
    for (int d = 0; d < ndim; ++d) shape[d] = d < outer ? PyArray_DIM(a, d) : 1;
    nb::object y = empty_result(a, keepdims ? ndim : outer, shape, read.result);
    normalize(Normalized::logsumexp, a, as_array(y), read);
    return y;
}

void bind_logsumexp(nb::module_& m) {
    m.def(
        "logsumexp",
        [](nb::handle x, nb::handle axis, Flag keepdims, nb::handle dtype) {
            Reduction read{};
            return unless(refuse_logsumexp(x, axis, keepdims, dtype, read),
                          [&] { return logsumexp(as_array(x), keepdims.value, read); });
        },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "keepdims"_a.none() = false, "dtype"_a = nb::none());
    m.def(
        "logsumexp_supports",
        [](nb::handle x, nb::handle axis, Flag keepdims, nb::handle dtype) {
            Reduction read{};
            return none_or(refuse_logsumexp(x, axis, keepdims, dtype, read));
        },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "keepdims"_a.none() = false, "dtype"_a = nb::none());
}

}  // namespace

void bind_activation(nb::module_& m) {
    for (const Named& f : kUnary) bind_unary(m, f);
    for (const Named& f : kWithParameter) bind_with_parameter(m, f);
    for (const Named& f : kGated) bind_gated(m, f);
    bind_hard_sigmoid(m);
    bind_softmax<Normalized::softmax>(m, "softmax", "softmax_supports");
    bind_softmax<Normalized::log_softmax>(m, "log_softmax", "log_softmax_supports");
    bind_logsumexp(m);
    m.def(
        "gelu",
        [](nb::handle x, Choice approximate) {
            return unless(refuse_gelu(x, approximate),
                          [&] { return activate(approximate == "none" ? Function::gelu : Function::gelu_tanh, x); });
        },
        "x"_a, nb::kw_only(), "approximate"_a.none() = "none");
    m.def(
        "gelu_supports", [](nb::handle x, Choice approximate) { return none_or(refuse_gelu(x, approximate)); }, "x"_a,
        nb::kw_only(), "approximate"_a.none() = "none");
}

}  // namespace tensorops
