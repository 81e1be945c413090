// Products with the matrices of experts.
#include <optional>

#include "block_products.h"
#include "checks.h"
#include "grouped_linear.h"
#include "moe_steps.h"
#include "scratch.h"
#include "targets.h"

namespace tensorops {
namespace {

// The rows of a call: those of x and their experts, both repeated to a common shape.
struct ExpertRows {
    std::int64_t shape[kMaxAxes];  // of the result
    int ndim;
    Rows x;
    std::vector<std::int64_t> experts;
    Rows numbers;

    std::int64_t expert(std::int64_t row) const { return *reinterpret_cast<const std::int64_t*>(numbers.row(row)); }
    SortedRows sorted(std::int64_t number) const {
        return {x.count, number, [this](std::int64_t row) { return expert(row); }};
    }
};

// `rows` of a given length in some axes, broadcast to a shape
Rows broadcast(const Array& a, std::int64_t length, int axes, const std::int64_t* shape, int ndim) {
    std::int64_t strides[kMaxAxes];
    for (int d = 0; d < axes; ++d) strides[d] = a.stride(d);
    return broadcast_rows(a.data, length, axes, a.shape, strides, ndim, shape);
}

Reason find_rows(const Call& call, const Array& x, const Array& experts, std::int64_t number, std::int64_t outputs,
                 ExpertRows& rows) {
    const int axes = x.ndim - 1, less = axes - experts.ndim;
    if (less < 0) return "experts has more dimensions than x has rows";
    rows.ndim = axes + 1;
    for (int d = 0; d < axes; ++d) {
        const std::int64_t n = x.shape[d], m = d < less ? 1 : experts.shape[d - less];
        if (n != m && n != 1 && m != 1) return "experts does not broadcast with the rows of x";
        rows.shape[d] = n == 1 ? m : n;
    }
    rows.shape[axes] = outputs;
    rows.x = broadcast(x, x.length(), axes, rows.shape, axes);
    if (rows.x.count == 0) return "x has no rows";
    if (!call.has_values) return {};
    rows.experts = read_integers(experts);
    for (const std::int64_t e : rows.experts)
        if (e < 0 || e >= number) return "an index in experts is out of range";
    Array wide = experts;
    wide.data = reinterpret_cast<char*>(rows.experts.data());
    wide.strides = nullptr;
    wide.dtype = Dtype::int64;
    rows.numbers = broadcast(wide, 1, experts.ndim, rows.shape, axes);
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(grouped_linear, "x, experts, weight, bias=None") {
    Reader in(call);
    const Array &x = in.rows(), &experts = in.array(kIntegers), &weight = in.array();
    const Array* bias = in.optional();
    in.require(refuse_double(call, x));
    in.require(weight.dtype != Dtype::float64, "weight has dtype float64");
    in.require(refuse_stack("weight", weight, kAny, kAny, x.length()));
    in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty");
    if (in.failed()) return in.reason;
    const std::int64_t number = weight.shape[0], outputs = weight.shape[1];
    GroupedLinear op{};
    op.per_expert = rows_per_expert(weight);
    in.require(op.per_expert != 0, "the matrices of weight do not follow each other after whole rows");
    ExpertRows rows;
    in.require(find_rows(call, x, experts, number, outputs, rows));
    if (bias) {
        in.require(bias->dtype != Dtype::float64, "bias has dtype float64");
        in.require(refuse_matrix("bias", *bias, number, outputs));
    }
    if (in.failed()) return in.reason;
    Array y;
    if (!call.make({{y, rows.ndim, rows.shape, x.dtype}})) return call.reason;
    op.linear.x = rows.x;
    op.linear.weight = weight.data;
    op.linear.weight_stride = weight.stride(1);
    op.linear.outputs = op.y_stride = outputs;
    op.linear.x_dtype = x.dtype;
    op.linear.weight_dtype = op.linear.bias_dtype = weight.dtype;
    if (bias) {
        op.linear.bias = bias->data;
        op.linear.bias_dtype = bias->dtype;
        op.bias_stride = bias->stride(0);
    }
    op.linear.y = y.data;
    const SortedRows sorted = rows.sorted(number);
    op.groups = sorted.groups();
    call.compute(product(weight.bytes() / number, rows.x.count), [&op] { target().grouped_linear(op); });
    return {};
}

namespace {

// Products with blocks, expert by expert: their rows of x become neighbours, and the results go to their rows.
void multiply_by_expert(const BlockLinear& whole, const Groups& groups, std::int64_t expert_stride) {
    std::int64_t most = 0;
    for (std::int64_t e = 0; e < groups.experts; ++e) most = std::max(most, groups.count(e));
    if (whole.is_interleaved && most <= kFewOfExpert && whole.x.count <= kFewOfExperts) {  // all at once
        BlockLinear op = whole;
        op.groups = groups;
        op.expert_stride = expert_stride;
        return multiply_blocks(op);
    }
    const std::int64_t item = size_of(whole.x_dtype), x_bytes = whole.x.length * item, y_bytes = whole.outputs * item;
    const Scratch scratch(whole_lines(most * x_bytes) + most * y_bytes);
    char *x = scratch.at<char>(0), *y = scratch.at<char>(whole_lines(most * x_bytes));
    for (std::int64_t e = 0; e < groups.experts; ++e) {
        const std::int64_t count = groups.count(e), *rows = groups.order + groups.begin(e);
        if (count == 0 || (interruption && interruption->happened())) continue;
        for (std::int64_t r = 0; r < count; ++r)
            std::memcpy(x + r * x_bytes, whole.x.row(rows[r]), static_cast<std::size_t>(x_bytes));
        BlockLinear op = whole;
        op.x = {x, count, whole.x.length, 1, {count}, {x_bytes}, 0};
        op.weight += e * expert_stride;
        op.y = y;
        multiply_blocks(op);
        for (std::int64_t r = 0; r < count; ++r)
            std::memcpy(whole.y + rows[r] * y_bytes, y + r * y_bytes, static_cast<std::size_t>(y_bytes));
    }
}

Reason grouped_products_with_blocks(Call& call, Reader& in, const Array& x, const Array& experts, const Array& weight,
                                    std::string_view format, int digits) {
    std::int64_t row_bytes = 0;
    BlockLinear op{};
    if (!in.require(read_format(format, x.length(), op, row_bytes))) return in.reason;
    in.require(refuse_stack("weight", weight, kAny, kAny, row_bytes));
    if (!in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty")) return in.reason;
    if (op.is_interleaved && !in.require(refuse_interleaved(weight))) return in.reason;
    const std::int64_t number = weight.shape[0];
    op.outputs = weight.shape[1];
    ExpertRows rows;
    if (!in.require(find_rows(call, x, experts, number, op.outputs, rows))) return in.reason;
    Array y;
    if (!call.make({{y, rows.ndim, rows.shape, x.dtype}})) return call.reason;
    op.x = rows.x;
    op.weight = weight.data;
    op.weight_stride = weight.stride(1);
    op.digits = digits;
    op.y = y.data;
    op.x_dtype = x.dtype;
    const SortedRows sorted = rows.sorted(number);
    call.compute(product(weight.bytes() / number, rows.x.count),
                 [&] { multiply_by_expert(op, sorted.groups(), weight.stride(0)); });
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(grouped_quantized_linear,
                   "x, experts, weight, scales=None, biases=None, *, bits=4, group_size=32, "
                   "format='affine', precision='highest'") {
    Reader in(call);
    const Array &x = in.rows(), &experts = in.array(kIntegers), &weight = in.array(kBytes);
    const Array *given_scales = in.optional(kNarrow), *biases = in.optional(kNarrow);
    GroupedQuantizedLinear op{};
    const std::int64_t bits = in.integer(), group_size = in.integer();
    const std::string_view format = in.text();
    const int digits = read_digits(in);
    in.require(refuse_double(call, x));
    if (format != kAffine) {
        in.require(!given_scales && !biases, kHoldScales);
        return in.failed() ? in.reason : grouped_products_with_blocks(call, in, x, experts, weight, format, digits);
    }
    if (!in.require(given_scales, "scales are missing")) return in.reason;
    const Array& scales = *given_scales;
    in.require(refuse_product(biases, bits, group_size, x.length()));
    if (in.failed() || !in.require(refuse_stack("weight", weight, kAny, kAny, x.length() * bits / 8))) return in.reason;
    if (!in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty")) return in.reason;
    const std::int64_t number = weight.shape[0], outputs = weight.shape[1];
    op.per_expert = rows_per_expert(weight);
    for (const auto& [name, p] : {std::pair{"scales", &scales}, std::pair{"biases", biases}}) {
        if (!p || !in.require(p->dtype == scales.dtype, "biases has another dtype than scales")) continue;
        if (in.require(refuse_stack(name, *p, number, outputs, x.length() / group_size)))
            in.require(rows_per_expert(*p) == op.per_expert, "weight, scales and biases are not laid out alike");
    }
    in.require(op.per_expert != 0, "the matrices of weight do not follow each other after whole rows");
    ExpertRows rows;
    if (in.failed() || !in.require(find_rows(call, x, experts, number, outputs, rows))) return in.reason;
    Array y;
    if (!call.make({{y, rows.ndim, rows.shape, x.dtype}})) return call.reason;
    op.linear.x = rows.x;
    set_quantized(op.linear, weight, scales, biases);
    op.linear.outputs = op.y_stride = outputs;
    op.linear.group_size = group_size;
    op.linear.bits = static_cast<int>(bits);
    op.linear.y = y.data;
    op.linear.x_dtype = x.dtype;
    op.linear.scale_dtype = scales.dtype;
    const SortedRows sorted = rows.sorted(number);
    op.groups = sorted.groups();
    call.compute(product(weight.bytes() / number, rows.x.count), [&op] { target().grouped_quantized_linear(op); });
    return {};
}

// --------------------------------------------------------------------------------------------- mixture of experts

namespace {

constexpr Dtypes kWeights{[](Dtype d) { return is_floating(d) || d == Dtype::uint8; }, "has a dtype without a kernel"};

// The arrays of a projection; the names of the two others begin as that of `proj` does.
struct Part {
    const char* name;
    const Array *proj, *scales, *biases;
};

struct AffineFormat {
    std::int64_t bits, group_size;
};

// A stack of matrices or, if there are 0 experts, one matrix, of rows for `columns` inputs
Reason refuse_matrices(const std::string& name, const Array& a, std::int64_t experts, std::int64_t rows,
                       std::int64_t columns) {
    if (experts == 0) return refuse_matrix(name, a, rows, columns);
    if (Reason reason = refuse_stack(name, a, experts, rows, columns); !reason.empty()) return reason;
    return rows_per_expert(a) > 0 ? Reason{} : "the matrices of " + name + " do not follow each other after whole rows";
}

std::int64_t row_stride(const Array& a) { return a.stride(a.ndim - 2); }

std::int64_t per_expert(const Array& a) { return a.ndim == 3 ? rows_per_expert(a) : a.shape[0]; }

Reason read_plain(const Part& part, std::int64_t experts, std::int64_t columns, Projection& projection) {
    const std::string name = std::string(part.name) + "_proj";
    const Array& w = *part.proj;
    if (part.biases) return std::string(part.name) + "_biases is given without scales";
    if (!is_narrow(w.dtype))
        return name + (is_floating(w.dtype) ? " has dtype float64" : " has a dtype without a kernel");
    if (Reason reason = refuse_matrices(name, w, experts, kAny, columns); !reason.empty()) return reason;
    projection.outputs = w.shape[w.ndim - 2];
    projection.plain.linear.weight = w.data;
    projection.plain.linear.weight_stride = row_stride(w);
    projection.plain.linear.weight_dtype = projection.plain.linear.bias_dtype = w.dtype;
    projection.plain.per_expert = per_expert(w);
    return {};
}

Reason read_quantized(const Part& part, std::int64_t experts, std::int64_t columns, const AffineFormat& format,
                      Projection& projection) {
    const std::string prefix = part.name, name = prefix + "_proj";
    const Array &w = *part.proj, &s = *part.scales;
    if (w.dtype != Dtype::uint8) return name + " does not have dtype uint8";
    if (Reason reason = refuse_product(part.biases, format.bits, format.group_size, columns); !reason.empty())
        return reason;
    if (Reason reason = refuse_matrices(name, w, experts, kAny, columns * format.bits / 8); !reason.empty())
        return reason;
    const std::int64_t rows = w.shape[w.ndim - 2];
    for (const auto& [what, p] : {std::pair{"_scales", part.scales}, std::pair{"_biases", part.biases}}) {
        if (!p) continue;
        if (Reason reason = refuse_matrices(prefix + what, *p, experts, rows, columns / format.group_size);
            !reason.empty())
            return reason;
        if (p->dtype != s.dtype) return prefix + "_biases has another dtype than the scales";
        if (per_expert(*p) != per_expert(w)) return prefix + what + " is not laid out as " + name;
    }
    QuantizedLinear& op = projection.quantized.linear;
    projection.is_quantized = true;
    projection.outputs = rows;
    projection.quantized.per_expert = per_expert(w);
    set_quantized(op, w, s, part.biases);
    op.group_size = format.group_size;
    op.bits = static_cast<int>(format.bits);
    op.scale_dtype = s.dtype;
    return {};
}

Reason read_projection(const Part& part, std::int64_t experts, std::int64_t columns, const AffineFormat& format,
                       Projection& projection) {
    return part.scales ? read_quantized(part, experts, columns, format, projection)
                       : read_plain(part, experts, columns, projection);
}

Reason read_feed_forward(const Part& gate_up, const Part& down, std::int64_t experts, std::int64_t features,
                         const AffineFormat& format, FeedForward& block) {
    if (Reason reason = read_projection(gate_up, experts, features, format, block.gate_up); !reason.empty())
        return reason;
    if (block.gate_up.outputs == 0 || block.gate_up.outputs % 2 != 0)
        return std::string(gate_up.name) + "_proj does not have an even number of rows";
    block.hidden = block.gate_up.outputs / 2;
    if (Reason reason = read_projection(down, experts, block.hidden, format, block.down); !reason.empty())
        return reason;
    return block.down.outputs == features ? Reason{} : std::string(down.name) + "_proj does not have a row per feature";
}

Reason read_shared(const Part& gate_up, const Part& down, const Array* gate, std::int64_t features,
                   const AffineFormat& format, MixtureOfExperts& op) {
    op.has_shared = gate_up.proj && down.proj;
    if (!op.has_shared) {
        for (const Array* a : {gate_up.proj, down.proj, gate_up.scales, gate_up.biases, down.scales, down.biases, gate})
            if (a) return "not both projections of the shared block are given";
        return {};
    }
    if (Reason reason = read_feed_forward(gate_up, down, 0, features, format, op.shared); !reason.empty())
        return reason;
    if (!gate) return {};
    op.gate.weight = gate->data;
    op.gate.outputs = 1;
    op.gate.x_dtype = Dtype::float32;
    op.gate.weight_dtype = op.gate.bias_dtype = gate->dtype;
    return refuse_matrix("shared_expert_gate", *gate, 1, features);
}

Reason read_tokens(const Call& call, const Array& x, const Array& logits, MixtureOfExperts& op) {
    if (x.size() == 0 || logits.size() == 0) return "x or router_logits is empty";
    if (Reason reason = refuse_double(call, x); !reason.empty()) return reason;
    if (!logits.has_shape(x.ndim, OutputShape(x, logits.length()).dims()))
        return "router_logits does not have the rows of x";
    if (logits.length() > INT32_MAX) return "router_logits has too many experts";
    op.x = rows_of(x);
    op.logits = rows_of(logits);
    op.x_dtype = x.dtype;
    op.logits_dtype = logits.dtype;
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(moe,
                   "x, router_logits, gate_up_proj, down_proj, *, gate_up_scales=None, gate_up_biases=None, "
                   "down_scales=None, down_biases=None, e_score_correction_bias=None, shared_gate_up_proj=None, "
                   "shared_down_proj=None, shared_gate_up_scales=None, shared_gate_up_biases=None, "
                   "shared_down_scales=None, shared_down_biases=None, shared_expert_gate=None, top_k, "
                   "scoring_func='softmax', renormalize=True, routed_scaling_factor=1.0, activation='swiglu', bits=4, "
                   "group_size=32, gate_up_format='affine', down_format='affine', shared_gate_up_format='affine', "
                   "shared_down_format='affine', precision='highest'") {
    Reader in(call);
    const Array &x = in.rows(), &logits = in.rows(kNarrow);
    Part gate_up{"gate_up", &in.array(kWeights), nullptr, nullptr}, down{"down", &in.array(kWeights), nullptr, nullptr};
    for (Part* part : {&gate_up, &down}) {
        part->scales = in.optional(kNarrow);
        part->biases = in.optional(kNarrow);
    }
    const Array* correction = in.optional(kNarrow);
    Part shared_gate_up{"shared_gate_up", in.optional(kWeights), nullptr, nullptr};
    Part shared_down{"shared_down", in.optional(kWeights), nullptr, nullptr};
    for (Part* part : {&shared_gate_up, &shared_down}) {
        part->scales = in.optional(kNarrow);
        part->biases = in.optional(kNarrow);
    }
    const Array* gate = in.optional(kNarrow);
    MixtureOfExperts op{};
    op.top_k = in.integer("is not a number of experts");
    op.is_softmax = in.choice({"softmax", "sigmoid"}) == 0;
    op.renormalizes = in.flag();
    op.factor = static_cast<float>(in.finite());
    op.function = in.choice({"swiglu", "geglu"}) == 0 ? Function::swiglu : Function::geglu;
    AffineFormat format{};
    format.bits = in.integer("is neither 4 nor 8");
    in.require(format.bits == 4 || format.bits == 8, "bits is neither 4 nor 8");
    format.group_size = in.integer("does not fill whole bytes");
    in.require(format.group_size >= 1 && (format.bits == 8 || format.group_size % 2 == 0),
               "group_size does not fill whole bytes");
    for (int part = 0; part < 4; ++part)
        in.require(in.text() == kAffine, "the weights are blocks, whose products are composed");
    read_digits(in);  // a choice; products with groups are as accurate as any asks for
    if (in.failed() || !in.require(read_tokens(call, x, logits, op))) return in.reason;
    const std::int64_t features = op.x.length, experts = op.logits.length;
    in.require(op.top_k >= 1 && op.top_k <= experts, "top_k is not a number of experts");
    if (correction) {
        if (correction->ndim != 1 || correction->shape[0] != experts)
            return "e_score_correction_bias does not have " + std::to_string(experts) + " elements along a single axis";
        if (!in.require(correction->is_contiguous(), "e_score_correction_bias is not contiguous")) return in.reason;
        op.correction = rows_of(*correction);
        op.correction_dtype = correction->dtype;
    }
    if (in.failed() || !in.require(read_feed_forward(gate_up, down, experts, features, format, op.routed)))
        return in.reason;
    if (!in.require(read_shared(shared_gate_up, shared_down, gate, features, format, op))) return in.reason;
    Array y;
    if (!call.make({{y, x}})) return call.reason;
    op.y = y.data;
    const std::int64_t bytes = gate_up.proj->bytes() + down.proj->bytes();
    call.compute(product(bytes / experts, op.x.count * op.top_k), [&op] { mixture_of_experts(op); });
    return {};
}

}  // namespace tensorops
