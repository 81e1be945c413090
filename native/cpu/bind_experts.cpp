// Bindings of products with the matrices of experts.
#include "bind.h"
#include "grouped_linear.h"
#include "integers.h"
#include "matrices.h"
#include "moe_arguments.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// The rows of a call: those of x and their experts, both repeated to a common shape.
struct ExpertRows {
    npy_intp shape[kMaxDims];  // of the result
    int ndim;
    Rows x;
    nb::object experts;  // as contiguous int64
    Rows numbers;

    std::int64_t expert(std::int64_t row) const { return *reinterpret_cast<const std::int64_t*>(numbers.row(row)); }
    SortedRows sorted(std::int64_t number) const {
        return {x.count, number, [this](std::int64_t row) { return expert(row); }};
    }
    nb::object empty_result(PyArrayObject* a, npy_intp outputs) {
        shape[ndim - 1] = outputs;
        return empty(ndim, shape, PyArray_DESCR(a));
    }
};

Reason refuse_rows(nb::handle x, nb::handle experts, npy_intp number, ExpertRows& rows) {
    if (Reason reason = refuse_integers("experts", experts); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *e = as_array(experts);
    const int axes = PyArray_NDIM(a) - 1, less = axes - PyArray_NDIM(e);
    if (less < 0) return "experts has more dimensions than x has rows";
    rows.ndim = axes + 1;
    for (int d = 0; d < axes; ++d) {
        const npy_intp n = PyArray_DIM(a, d), m = d < less ? 1 : PyArray_DIM(e, d - less);
        if (n != m && n != 1 && m != 1) return "experts does not broadcast with the rows of x";
        rows.shape[d] = n == 1 ? m : n;
    }
    rows.x =
        broadcast_rows(PyArray_BYTES(a), length_of(a), axes, PyArray_DIMS(a), PyArray_STRIDES(a), axes, rows.shape);
    if (rows.x.count == 0) return "x has no rows";
    rows.experts = as_int64(experts);
    PyArrayObject* wide = as_array(rows.experts);
    rows.numbers = broadcast_rows(PyArray_BYTES(wide), 1, axes - less, PyArray_DIMS(wide), PyArray_STRIDES(wide), axes,
                                  rows.shape);
    const std::int64_t* first = int64s(rows.experts);
    const bool within =
        std::all_of(first, first + PyArray_SIZE(wide), [number](std::int64_t e) { return e >= 0 && e < number; });
    return within ? Reason{} : "an index in experts is out of range";
}

Reason refuse_grouped_linear(nb::handle x, nb::handle experts, nb::handle weight, nb::handle bias, ExpertRows& rows) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    if (Reason reason = refuse_array("weight", weight); !reason.empty()) return reason;
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    if (dtype_of(w) == Dtype::float64) return "weight has dtype float64";
    if (Reason reason = refuse_stack("weight", w, kAny, kAny, length_of(a)); !reason.empty()) return reason;
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    if (rows_per_expert(w) == 0) return "the matrices of weight do not follow each other after whole rows";
    if (Reason reason = refuse_rows(x, experts, PyArray_DIM(w, 0), rows); !reason.empty()) return reason;
    if (bias.is_none()) return {};
    if (Reason reason = refuse_array("bias", bias); !reason.empty()) return reason;
    PyArrayObject* b = as_array(bias);
    if (dtype_of(b) == Dtype::float64) return "bias has dtype float64";
    return refuse_matrix("bias", b, PyArray_DIM(w, 0), PyArray_DIM(w, 1));
}

nb::object grouped_linear(nb::handle x, nb::handle experts, nb::handle weight, nb::handle bias) {
    ExpertRows rows;
    if (!refuse_grouped_linear(x, experts, weight, bias, rows).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    const npy_intp number = PyArray_DIM(w, 0), outputs = PyArray_DIM(w, 1);
    nb::object y = rows.empty_result(a, outputs);
    GroupedLinear op{};
    op.linear.x = rows.x;
    op.linear.weight = PyArray_BYTES(w);
    op.linear.weight_stride = PyArray_STRIDE(w, 1);
    op.linear.outputs = op.y_stride = outputs;
    op.linear.x_dtype = dtype_of(a);
    op.linear.weight_dtype = op.linear.bias_dtype = dtype_of(w);
    if (!bias.is_none()) {
        op.linear.bias = PyArray_BYTES(as_array(bias));
        op.linear.bias_dtype = dtype_of(as_array(bias));
        op.bias_stride = PyArray_STRIDE(as_array(bias), 0);
    }
    op.per_expert = rows_per_expert(w);
    op.linear.y = PyArray_BYTES(as_array(y));
    const SortedRows sorted = rows.sorted(number);
    op.groups = sorted.groups();
    compute(product(PyArray_NBYTES(w) / number, rows.x.count), [&op] { target().grouped_linear(op); });
    return y;
}

Reason refuse_grouped_quantized_linear(nb::handle x, nb::handle experts, nb::handle weight, nb::handle scales,
                                       nb::handle biases, Integer bits, Integer group_size, ExpertRows& rows) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject *a = as_array(x), *w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (Reason reason = refuse_product(biases, bits, group_size, length_of(a)); !reason.empty()) return reason;
    const npy_intp columns = length_of(a);
    if (Reason reason = refuse_stack("weight", w, kAny, kAny, columns * bits / 8); !reason.empty()) return reason;
    if (PyArray_SIZE(a) == 0 || PyArray_SIZE(w) == 0) return "x or weight is empty";
    const std::int64_t per_expert = rows_per_expert(w);
    for (const auto& [name, h] : {std::pair{"scales", scales}, std::pair{"biases", biases}}) {
        if (h.is_none()) continue;
        if (Reason reason = refuse_array(name, h); !reason.empty()) return reason;
        PyArrayObject* p = as_array(h);
        if (dtype_of(p) == Dtype::float64) return std::string(name) + " has dtype float64";
        if (dtype_of(p) != dtype_of(as_array(scales))) return "biases has another dtype than scales";
        Reason reason = refuse_stack(name, p, PyArray_DIM(w, 0), PyArray_DIM(w, 1), columns / group_size);
        if (!reason.empty()) return reason;
        if (rows_per_expert(p) != per_expert) return "weight, scales and biases are not laid out alike";
    }
    if (per_expert == 0) return "the matrices of weight do not follow each other after whole rows";
    return refuse_rows(x, experts, PyArray_DIM(w, 0), rows);
}

nb::object grouped_quantized_linear(nb::handle x, nb::handle experts, nb::handle weight, nb::handle scales,
                                    nb::handle biases, Integer bits, Integer group_size) {
    ExpertRows rows;
    if (!refuse_grouped_quantized_linear(x, experts, weight, scales, biases, bits, group_size, rows).empty())
        return nb::borrow(Py_NotImplemented);
    PyArrayObject *a = as_array(x), *w = as_array(weight), *s = as_array(scales);
    const npy_intp number = PyArray_DIM(w, 0), outputs = PyArray_DIM(w, 1);
    nb::object y = rows.empty_result(a, outputs);
    GroupedQuantizedLinear op{};
    op.linear.x = rows.x;
    op.linear.weight = PyArray_BYTES(w);
    op.linear.weight_stride = PyArray_STRIDE(w, 1);
    op.linear.scales = PyArray_BYTES(s);
    op.linear.scale_stride = PyArray_STRIDE(s, 1);
    if (!biases.is_none()) {
        op.linear.biases = PyArray_BYTES(as_array(biases));
        op.linear.bias_stride = PyArray_STRIDE(as_array(biases), 1);
    }
    op.linear.outputs = op.y_stride = outputs;
    op.linear.group_size = group_size;
    op.linear.bits = static_cast<int>(bits.value);
    op.linear.y = PyArray_BYTES(as_array(y));
    op.linear.x_dtype = dtype_of(a);
    op.linear.scale_dtype = dtype_of(s);
    op.per_expert = rows_per_expert(w);
    const SortedRows sorted = rows.sorted(number);
    op.groups = sorted.groups();
    compute(product(PyArray_NBYTES(w) / number, rows.x.count), [&op] { target().grouped_quantized_linear(op); });
    return y;
}

nb::object moe(const Given& given) {
    MixtureOfExperts op{};
    if (!refuse_moe(given, op).empty()) return nb::borrow(Py_NotImplemented);
    nb::object y = empty_like(as_array(given.x));
    op.y = PyArray_BYTES(as_array(y));
    const std::int64_t bytes = PyArray_NBYTES(as_array(given.gate_up_proj)) + PyArray_NBYTES(as_array(given.down_proj));
    compute(product(bytes / op.experts(), op.x.count * op.top_k), [&op] { mixture_of_experts(op); });
    return y;
}

nb::object moe_supports(const Given& given) {
    MixtureOfExperts op{};
    return none_or(refuse_moe(given, op));
}

template <nb::object (*kCall)(const Given&)>
void define_moe(nb::module_& m, const char* name) {
    const nb::none none;
    m.def(
        name,
        [](nb::handle x, nb::handle router_logits, nb::handle gate_up_proj, nb::handle down_proj,
           nb::handle gate_up_scales, nb::handle gate_up_biases, nb::handle down_scales, nb::handle down_biases,
           nb::handle e_score_correction_bias, nb::handle shared_gate_up_proj, nb::handle shared_down_proj,
           nb::handle shared_gate_up_scales, nb::handle shared_gate_up_biases, nb::handle shared_down_scales,
           nb::handle shared_down_biases, nb::handle shared_expert_gate, Integer top_k, Choice scoring_func,
           Flag renormalize, Number routed_scaling_factor, Choice activation, Integer bits, Integer group_size) {
            return kCall({x,
                          router_logits,
                          gate_up_proj,
                          down_proj,
                          gate_up_scales,
                          gate_up_biases,
                          down_scales,
                          down_biases,
                          e_score_correction_bias,
                          shared_gate_up_proj,
                          shared_down_proj,
                          shared_gate_up_scales,
                          shared_gate_up_biases,
                          shared_down_scales,
                          shared_down_biases,
                          shared_expert_gate,
                          top_k,
                          scoring_func,
                          renormalize,
                          routed_scaling_factor,
                          activation,
                          bits,
                          group_size});
        },
        "x"_a, "router_logits"_a, "gate_up_proj"_a, "down_proj"_a, nb::kw_only(), "gate_up_scales"_a = none,
        "gate_up_biases"_a = none, "down_scales"_a = none, "down_biases"_a = none, "e_score_correction_bias"_a = none,
        "shared_gate_up_proj"_a = none, "shared_down_proj"_a = none, "shared_gate_up_scales"_a = none,
        "shared_gate_up_biases"_a = none, "shared_down_scales"_a = none, "shared_down_biases"_a = none,
        "shared_expert_gate"_a = none, "top_k"_a.none(), "scoring_func"_a.none() = "softmax",
        "renormalize"_a.none() = true, "routed_scaling_factor"_a.none() = 1.0, "activation"_a.none() = "swiglu",
        "bits"_a.none() = 4, "group_size"_a.none() = 32);
}

}  // namespace

void bind_experts(nb::module_& m) {
    define_moe<moe>(m, "moe");
    define_moe<moe_supports>(m, "moe_supports");
    m.def("grouped_linear", &grouped_linear, "x"_a, "experts"_a, "weight"_a, "bias"_a = nb::none());
    m.def(
        "grouped_linear_supports",
        [](nb::handle x, nb::handle experts, nb::handle weight, nb::handle bias) {
            ExpertRows rows;
            return none_or(refuse_grouped_linear(x, experts, weight, bias, rows));
        },
        "x"_a, "experts"_a, "weight"_a, "bias"_a = nb::none());
    m.def("grouped_quantized_linear", &grouped_quantized_linear, "x"_a, "experts"_a, "weight"_a, "scales"_a,
          "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4, "group_size"_a.none() = 32);
    m.def(
        "grouped_quantized_linear_supports",
        [](nb::handle x, nb::handle experts, nb::handle weight, nb::handle scales, nb::handle biases, Integer bits,
           Integer group_size) {
            ExpertRows rows;
            return none_or(refuse_grouped_quantized_linear(x, experts, weight, scales, biases, bits, group_size, rows));
        },
        "x"_a, "experts"_a, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4,
        "group_size"_a.none() = 32);
}

}  // namespace tensorops
