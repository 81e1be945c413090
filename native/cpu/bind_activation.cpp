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

Reason refuse_softmax(nb::handle x, nb::handle axis, nb::handle where = nb::none()) {
    if (Reason reason = refuse_elements("x", x); !reason.empty()) return reason;
    if (!is_last_axis(axis, PyArray_NDIM(as_array(x)))) return "axis is not the last of x";
    if (!where.is_none()) return "where is given";
    return {};
}

Reason refuse_logsumexp(nb::handle x, nb::handle axis, Flag keepdims) {
    if (!keepdims.known) return "keepdims is not a bool";
    if (Reason reason = refuse_softmax(x, axis); !reason.empty()) return reason;
    PyArrayObject* a = as_array(x);
    return PyArray_DIM(a, PyArray_NDIM(a) - 1) == 0 ? "the last axis of x is empty" : Reason{};
}

void normalize(Normalized kind, PyArrayObject* a, nb::handle y) {
    const std::int64_t bytes = PyArray_SIZE(a) * PyArray_ITEMSIZE(a);
    if (bytes == 0) return;
    Softmax op{};
    op.kind = kind;
    op.x = rows_of(a);
    op.y = PyArray_BYTES(as_array(y));
    op.dtype = dtype_of(a);
    op.streaming = bytes >= kStreamBytes && op.x.length * PyArray_ITEMSIZE(a) % 64 == 0;
    const std::int64_t row_bytes = (kind == Normalized::logsumexp ? 1 : op.x.length) * PyArray_ITEMSIZE(a);
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
        [](nb::handle x, nb::handle axis, nb::handle where) {
            if (!refuse_softmax(x, axis, where).empty()) return nb::object(nb::borrow(Py_NotImplemented));
            nb::object y = empty_like(as_array(x));
            normalize(kKind, as_array(x), y);
            return y;
        },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "where"_a = nb::none());
    m.def(
        supports,
        [](nb::handle x, nb::handle axis, nb::handle where) { return none_or(refuse_softmax(x, axis, where)); }, "x"_a,
        nb::kw_only(), "axis"_a.none() = -1, "where"_a = nb::none());
}

nb::object logsumexp(nb::handle x, nb::handle axis, Flag keepdims) {
    if (!refuse_logsumexp(x, axis, keepdims).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    npy_intp shape[kMaxDims];
    const int ndim = PyArray_NDIM(a);
    for (int d = 0; d < ndim; ++d) shape[d] = d == ndim - 1 ? 1 : PyArray_DIM(a, d);
    nb::object y = empty(keepdims.value ? ndim : ndim - 1, shape, PyArray_DESCR(a));
    normalize(Normalized::logsumexp, a, y);
    return y;
}

}  // namespace

void bind_activation(nb::module_& m) {
    for (const Named& f : kUnary) bind_unary(m, f);
    for (const Named& f : kWithParameter) bind_with_parameter(m, f);
    for (const Named& f : kGated) bind_gated(m, f);
    bind_hard_sigmoid(m);
    bind_softmax<Normalized::softmax>(m, "softmax", "softmax_supports");
    bind_softmax<Normalized::log_softmax>(m, "log_softmax", "log_softmax_supports");
    m.def("logsumexp", &logsumexp, "x"_a, nb::kw_only(), "axis"_a.none() = -1, "keepdims"_a.none() = false);
    m.def(
        "logsumexp_supports",
        [](nb::handle x, nb::handle axis, Flag keepdims) { return none_or(refuse_logsumexp(x, axis, keepdims)); },
        "x"_a, nb::kw_only(), "axis"_a.none() = -1, "keepdims"_a.none() = false);
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
