// Binding of a whole mixture of experts: the steps of the operator's body, each by its kernel.
//
// Tokens are computed in chunks in which every expert has so many rows on average that its weights are read no more
// often than for all tokens together. What is kept between the steps therefore never takes much more memory than the
// weights.
#include <cmath>

#include "bind.h"
#include "matrices.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

constexpr std::int64_t kRowsPerExpert = 256;  // on average, in a chunk

// ------------------------------------------------------------------------------------------------- what is computed

// Rows of contiguous floats, `stride` apart.
Rows rows_at(const float* data, std::int64_t count, std::int64_t length, std::int64_t stride) {
    Rows rows{};
    rows.data = reinterpret_cast<const char*>(data);
    rows.count = 1;
    rows.length = length;
    add_axis(rows, count, stride * static_cast<std::int64_t>(sizeof(float)));
    return rows;
}
Rows rows_at(const float* data, std::int64_t count, std::int64_t length) {
    return rows_at(data, count, length, length);
}

// Rows that are widened if they are not float32, with the memory for that.
Rows in_float32(const Rows& rows, Dtype dtype, float* room) {
    if (dtype == Dtype::float32) return rows;
    target().widened_rows({rows, dtype, room});
    return rows_at(room, rows.count, rows.length);
}

// y = f(x...) for arrays one after another
void activate(Function function, const Rows& x, const Rows& up, float* y) {
    Activation op{};
    op.function = function;
    op.x = x;
    op.up = up;
    op.y = reinterpret_cast<char*>(y);
    op.dtype = Dtype::float32;
    target().activation(op);
}
void activate(Function function, const float* x, std::int64_t n, float* y) {
    activate(function, rows_at(x, 1, n), {}, y);
}

void softmax(const Rows& x, float* y) {
    Softmax op{};
    op.kind = Normalized::softmax;
    op.x = x;
    op.y = reinterpret_cast<char*>(y);
    op.dtype = op.y_dtype = Dtype::float32;
    target().softmax(op);
}

// The matrices of experts, or that of the shared block as of a single expert.
struct Projection {
    std::int64_t outputs;
    bool is_quantized;
    GroupedLinear plain;
    GroupedQuantizedLinear quantized;

    void multiply(const Rows& x, const Groups& groups, float* y) const {
        const auto call = [&](auto op, auto kernel) {
            op.linear.x = x;
            op.linear.y = reinterpret_cast<char*>(y);
            op.linear.x_dtype = Dtype::float32;
            op.linear.outputs = op.y_stride = outputs;
            op.groups = groups;
            kernel(op);
        };
        if (is_quantized) return call(quantized, target().grouped_quantized_linear);
        call(plain, target().grouped_linear);
    }
};

struct FeedForward {
    Projection gate_up, down;
    std::int64_t hidden;

    // `both` and `unit` are memory for the results of the first projection and of the gated unit.
    void compute(const Rows& x, const Groups& groups, Function function, float* both, float* unit, float* y) const {
        gate_up.multiply(x, groups, both);
        const std::int64_t wide = 2 * hidden;
        activate(function, rows_at(both, x.count, hidden, wide), rows_at(both + hidden, x.count, hidden, wide), unit);
        down.multiply(rows_at(unit, x.count, hidden), groups, y);
    }
};

struct MixtureOfExperts {
    Rows x, logits;
    Dtype x_dtype, logits_dtype;
    Rows correction;  // one row, or none
    Dtype correction_dtype;
    std::int64_t top_k;
    bool is_softmax, renormalizes;
    float factor;
    Function function;
    FeedForward routed;
    bool has_shared;
    FeedForward shared;
    Linear gate;  // of the shared block, if it has weights
    char* y;

    std::int64_t experts() const { return logits.length; }
};

// Memory for the steps of a chunk, one part after another.
class Room {
  public:
    template <class T>
    std::int64_t add(std::int64_t count) {
        const std::int64_t begin = bytes_;
        bytes_ += whole_lines(count * static_cast<std::int64_t>(sizeof(T)));
        return begin;
    }
    std::int64_t bytes() const { return bytes_; }

  private:
    std::int64_t bytes_ = 0;
};

// The experts of some tokens, and their weights.
class Routes {
  public:
    Routes(const MixtureOfExperts& op, std::int64_t tokens, Room& room)
        : tokens_(tokens), rows_(tokens * op.top_k), experts_(op.experts()) {
        const std::int64_t all = tokens * experts_;
        logits_ = room.add<float>(op.logits_dtype == Dtype::float32 ? 0 : all);
        scores_ = room.add<float>(needs_scores(op) ? all : 0);
        choice_ = room.add<float>(op.correction.data ? all : 0);
        correction_ = room.add<float>(op.correction.data ? experts_ : 0);
        picked_ = room.add<float>(rows_);
        weights_ = room.add<float>(rows_);
        chosen_ = room.add<std::int64_t>(rows_);
    }

    const std::int64_t* chosen(const Scratch& scratch) const { return scratch.at<std::int64_t>(chosen_); }
    const float* weights(const Scratch& scratch) const { return scratch.at<float>(weights_); }

    void find(const MixtureOfExperts& op, const Rows& raw, const Scratch& scratch) const {
        const Rows logits = in_float32(raw, op.logits_dtype, scratch.at<float>(logits_));
        const Rows scores = needs_scores(op) ? scored(op, logits, scratch.at<float>(scores_)) : Rows{};
        choose(op, op.correction.data ? corrected(op, scores, scratch) : logits, scratch);
        float *picked = scratch.at<float>(picked_), *weights = scratch.at<float>(weights_);
        take(op.renormalizes ? logits : scores, chosen(scratch), op.renormalizes ? picked : weights);
        if (op.renormalizes) {
            // The logarithms of sigmoids are -softplus(-x).
            if (!op.is_softmax) {
                for (std::int64_t i = 0; i < rows_; ++i) picked[i] = -picked[i];
                activate(Function::softplus, picked, rows_, weights);
                for (std::int64_t i = 0; i < rows_; ++i) picked[i] = -weights[i];
            }
            softmax(rows_at(picked, tokens_, op.top_k), weights);
        }
        for (std::int64_t i = 0; op.factor != 1 && i < rows_; ++i) weights[i] *= op.factor;
    }

  private:
    static bool needs_scores(const MixtureOfExperts& op) { return op.correction.data || !op.renormalizes; }

    Rows scored(const MixtureOfExperts& op, const Rows& logits, float* scores) const {
        if (op.is_softmax)
            softmax(logits, scores);
        else
            activate(Function::sigmoid, logits, {}, scores);
        return rows_at(scores, tokens_, experts_);
    }

    Rows corrected(const MixtureOfExperts& op, const Rows& scores, const Scratch& scratch) const {
        const Rows correction = in_float32(op.correction, op.correction_dtype, scratch.at<float>(correction_));
        const float *b = reinterpret_cast<const float*>(correction.row(0)),
                    *s = reinterpret_cast<const float*>(scores.data);
        float* choice = scratch.at<float>(choice_);
        for (std::int64_t t = 0; t < tokens_; ++t)
            for (std::int64_t e = 0; e < experts_; ++e) choice[t * experts_ + e] = s[t * experts_ + e] + b[e];
        return rows_at(choice, tokens_, experts_);
    }

    void choose(const MixtureOfExperts& op, const Rows& choice, const Scratch& scratch) const {
        TopK best{};
        best.x = choice;
        best.k = op.top_k;
        best.largest = true;
        best.values = scratch.at<char>(picked_);
        best.indices = scratch.at<char>(chosen_);
        best.index_bytes = sizeof(std::int64_t);
        best.dtype = Dtype::float32;
        target().top_k(best);
    }

    void take(const Rows& from, const std::int64_t* index, float* to) const {
        const std::int64_t k = rows_ / tokens_;
        for (std::int64_t t = 0; t < tokens_; ++t) {
            const float* row = reinterpret_cast<const float*>(from.row(t));
            for (std::int64_t j = t * k; j < (t + 1) * k; ++j) to[j] = row[index[j]];
        }
    }

    std::int64_t tokens_, rows_, experts_;
    std::int64_t logits_, scores_, choice_, correction_, picked_, weights_, chosen_;
};

// The memory of a feed-forward block for a number of rows.
struct Steps {
    std::int64_t both, unit, y;

    Steps(const FeedForward& block, std::int64_t rows, Room& room)
        : both(room.add<float>(rows * 2 * block.hidden)),
          unit(room.add<float>(rows * block.hidden)),
          y(room.add<float>(rows * block.down.outputs)) {}
};

// The shared block for each row of x, and the weights of its results if it has a gate.
void add_shared(const MixtureOfExperts& op, const Rows& x, const Scratch& scratch, const Steps& at, float* gate,
                WeightedSums& sums) {
    const SortedRows every(x.count, 1, [](std::int64_t) { return 0; });
    float* const y = scratch.at<float>(at.y);
    op.shared.compute(x, every.groups(), op.function, scratch.at<float>(at.both), scratch.at<float>(at.unit), y);
    sums.last = y;
    if (!op.gate.weight) return;
    Linear of_gate = op.gate;
    of_gate.x = x;
    of_gate.y = reinterpret_cast<char*>(gate);
    target().linear(of_gate);
    activate(Function::sigmoid, gate, x.count, gate);
    sums.last_weights = gate;
}

void compute_chunk(const MixtureOfExperts& op, std::int64_t begin, std::int64_t end) {
    const std::int64_t tokens = end - begin, rows = tokens * op.top_k, features = op.x.length;
    Room room;
    const Routes routes(op, tokens, room);
    const Steps routed(op.routed, rows, room), shared(op.shared, op.has_shared ? tokens : 0, room);
    const std::int64_t widened = room.add<float>(op.x_dtype == Dtype::float32 ? 0 : tokens * features);
    const std::int64_t gate = room.add<float>(tokens);
    const Scratch scratch(room.bytes());

    Rows logits = op.logits, x = op.x;
    take_part(logits, begin, end);
    take_part(x, begin, end);
    routes.find(op, logits, scratch);
    x = in_float32(x, op.x_dtype, scratch.at<float>(widened));
    Rows repeated = x;  // for each of a token's experts
    add_axis(repeated, op.top_k, 0);
    repeated.first *= op.top_k;
    const std::int64_t* chosen = routes.chosen(scratch);
    const SortedRows sorted(rows, op.experts(), [chosen](std::int64_t row) { return chosen[row]; });
    float* const each = scratch.at<float>(routed.y);
    op.routed.compute(repeated, sorted.groups(), op.function, scratch.at<float>(routed.both),
                      scratch.at<float>(routed.unit), each);
    WeightedSums sums{};
    sums.x = each;
    sums.weights = routes.weights(scratch);
    sums.rows = tokens;
    sums.terms = op.top_k;
    sums.length = features;
    sums.y = op.y + begin * features * (op.x_dtype == Dtype::float32 ? 4 : 2);
    sums.y_dtype = op.x_dtype;
    if (op.has_shared) add_shared(op, x, scratch, shared, scratch.at<float>(gate), sums);
    target().weighted_sums(sums);
}

void compute_all(const MixtureOfExperts& op) {
    const std::int64_t step = std::max<std::int64_t>(op.experts() * kRowsPerExpert / op.top_k, 1);
    Interruption* const at = interruption;
    for (std::int64_t begin = 0; begin < op.x.count && !(at && at->happened()); begin += step)
        compute_chunk(op, begin, std::min(begin + step, op.x.count));
}

// ------------------------------------------------------------------------------------------------- what is supported

// The arguments of the operator.
struct Given {
    nb::handle x, router_logits, gate_up_proj, down_proj, gate_up_scales, gate_up_biases, down_scales, down_biases,
        e_score_correction_bias, shared_gate_up_proj, shared_down_proj, shared_gate_up_scales, shared_gate_up_biases,
        shared_down_scales, shared_down_biases, shared_expert_gate;
    Integer top_k;
    Choice scoring_func;
    Flag renormalize;
    Number routed_scaling_factor;
    Choice activation;
    Integer bits, group_size;
};

// The arrays of a projection; the names of the two others begin as that of `proj` does.
struct Part {
    const char* name;
    nb::handle proj, scales, biases;
};

Reason refuse_narrow(const std::string& name, nb::handle h) {
    if (Reason reason = refuse_array(name.c_str(), h); !reason.empty()) return reason;
    return dtype_of(as_array(h)) == Dtype::float64 ? name + " has dtype float64" : Reason{};
}

Reason refuse_vector(const std::string& name, nb::handle h, npy_intp n) {
    if (Reason reason = refuse_narrow(name, h); !reason.empty()) return reason;
    PyArrayObject* a = as_array(h);
    if (PyArray_NDIM(a) != 1 || PyArray_DIM(a, 0) != n)
        return name + " does not have " + std::to_string(n) + " elements along a single axis";
    return last_axis_contiguous(a) ? Reason{} : name + " is not contiguous";
}

// A stack of matrices or, if there are 0 experts, one matrix, of rows for `columns` inputs.
Reason refuse_matrices(const std::string& name, nb::handle h, npy_intp experts, npy_intp rows, npy_intp columns) {
    PyArrayObject* a = as_array(h);
    if (experts == 0) return refuse_matrix(name, a, rows, columns);
    if (Reason reason = refuse_stack(name, a, experts, rows, columns); !reason.empty()) return reason;
    return rows_per_expert(a) > 0 ? Reason{} : "the matrices of " + name + " do not follow each other after whole rows";
}

std::int64_t row_stride(nb::handle h) { return PyArray_STRIDE(as_array(h), PyArray_NDIM(as_array(h)) - 2); }

std::int64_t per_expert(nb::handle h) {
    PyArrayObject* a = as_array(h);
    return PyArray_NDIM(a) == 3 ? rows_per_expert(a) : PyArray_DIM(a, 0);
}

Reason refuse_plain(const Part& part, npy_intp experts, npy_intp columns, Projection& projection) {
    const std::string name = std::string(part.name) + "_proj";
    if (!part.biases.is_none()) return std::string(part.name) + "_biases is given without scales";
    if (Reason reason = refuse_narrow(name, part.proj); !reason.empty()) return reason;
    if (Reason reason = refuse_matrices(name, part.proj, experts, kAny, columns); !reason.empty()) return reason;
    PyArrayObject* w = as_array(part.proj);
    projection.outputs = PyArray_DIM(w, PyArray_NDIM(w) - 2);
    projection.plain.linear.weight = PyArray_BYTES(w);
    projection.plain.linear.weight_stride = row_stride(part.proj);
    projection.plain.linear.weight_dtype = projection.plain.linear.bias_dtype = dtype_of(w);
    projection.plain.per_expert = per_expert(part.proj);
    return {};
}

Reason refuse_quantized(const Part& part, npy_intp experts, npy_intp columns, Integer bits, Integer group_size,
                        Projection& projection) {
    const std::string prefix = part.name, name = prefix + "_proj";
    if (!PyArray_CheckExact(part.proj.ptr())) return name + " is not a numpy.ndarray";
    PyArrayObject *w = as_array(part.proj), *s = as_array(part.scales);
    if (PyArray_TYPE(w) != NPY_UINT8) return name + " does not have dtype uint8";
    if (Reason reason = refuse_product(part.biases, bits, group_size, columns); !reason.empty()) return reason;
    if (Reason reason = refuse_matrices(name, part.proj, experts, kAny, columns * bits / 8); !reason.empty())
        return reason;
    const npy_intp rows = PyArray_DIM(w, PyArray_NDIM(w) - 2);
    for (const auto& [what, h] : {std::pair{"_scales", part.scales}, std::pair{"_biases", part.biases}}) {
        if (h.is_none()) continue;
        if (Reason reason = refuse_narrow(prefix + what, h); !reason.empty()) return reason;
        if (Reason reason = refuse_matrices(prefix + what, h, experts, rows, columns / group_size); !reason.empty())
            return reason;
        if (dtype_of(as_array(h)) != dtype_of(s)) return prefix + "_biases has another dtype than the scales";
        if (per_expert(h) != per_expert(part.proj)) return prefix + what + " is not laid out as " + name;
    }
    QuantizedLinear& op = projection.quantized.linear;
    projection.is_quantized = true;
    projection.outputs = rows;
    projection.quantized.per_expert = per_expert(part.proj);
    op.weight = PyArray_BYTES(w);
    op.weight_stride = row_stride(part.proj);
    op.scales = PyArray_BYTES(s);
    op.scale_stride = row_stride(part.scales);
    if (!part.biases.is_none()) {
        op.biases = PyArray_BYTES(as_array(part.biases));
        op.bias_stride = row_stride(part.biases);
    }
    op.group_size = group_size;
    op.bits = static_cast<int>(bits.value);
    op.scale_dtype = dtype_of(s);
    return {};
}

Reason refuse_projection(const Part& part, npy_intp experts, npy_intp columns, const Given& given,
                         Projection& projection) {
    if (part.scales.is_none()) return refuse_plain(part, experts, columns, projection);
    return refuse_quantized(part, experts, columns, given.bits, given.group_size, projection);
}

Reason refuse_feed_forward(const Part& gate_up, const Part& down, npy_intp experts, npy_intp features,
                           const Given& given, FeedForward& block) {
    if (Reason reason = refuse_projection(gate_up, experts, features, given, block.gate_up); !reason.empty())
        return reason;
    if (block.gate_up.outputs == 0 || block.gate_up.outputs % 2 != 0)
        return std::string(gate_up.name) + "_proj does not have an even number of rows";
    block.hidden = block.gate_up.outputs / 2;
    if (Reason reason = refuse_projection(down, experts, block.hidden, given, block.down); !reason.empty())
        return reason;
    return block.down.outputs == features ? Reason{} : std::string(down.name) + "_proj does not have a row per feature";
}

Reason refuse_shared(const Given& given, npy_intp features, MixtureOfExperts& op) {
    op.has_shared = !given.shared_gate_up_proj.is_none() && !given.shared_down_proj.is_none();
    if (!op.has_shared) {
        for (nb::handle h : {given.shared_gate_up_proj, given.shared_down_proj, given.shared_gate_up_scales,
                             given.shared_gate_up_biases, given.shared_down_scales, given.shared_down_biases,
                             given.shared_expert_gate})
            if (!h.is_none()) return "not both projections of the shared block are given";
        return {};
    }
    const Part gate_up{"shared_gate_up", given.shared_gate_up_proj, given.shared_gate_up_scales,
                       given.shared_gate_up_biases};
    const Part down{"shared_down", given.shared_down_proj, given.shared_down_scales, given.shared_down_biases};
    if (Reason reason = refuse_feed_forward(gate_up, down, 0, features, given, op.shared); !reason.empty())
        return reason;
    for (const auto& [part, projection] : {std::pair{&gate_up, &op.shared.gate_up}, std::pair{&down, &op.shared.down}})
        if (op.x.count > kMostRows && !projection->is_quantized &&
            projection->plain.linear.weight_dtype == Dtype::float32)
            return "x has more than " + std::to_string(kMostRows) + " rows, which numpy.matmul multiplies by " +
                   part->name + "_proj faster";
    if (given.shared_expert_gate.is_none()) return {};
    const char* name = "shared_expert_gate";
    if (Reason reason = refuse_narrow(name, given.shared_expert_gate); !reason.empty()) return reason;
    PyArrayObject* gate = as_array(given.shared_expert_gate);
    op.gate.weight = PyArray_BYTES(gate);
    op.gate.outputs = 1;
    op.gate.x_dtype = Dtype::float32;
    op.gate.weight_dtype = op.gate.bias_dtype = dtype_of(gate);
    return refuse_matrix(name, gate, 1, features);
}

Reason refuse_options(const Given& given, npy_intp experts, MixtureOfExperts& op) {
    if (given.top_k < 1 || given.top_k > experts) return "top_k is not a number of experts";
    if (given.scoring_func != "softmax" && given.scoring_func != "sigmoid")
        return "scoring_func is neither 'softmax' nor 'sigmoid'";
    if (given.activation != "swiglu" && given.activation != "geglu")
        return "activation is neither 'swiglu' nor 'geglu'";
    if (!given.renormalize.known) return "renormalize is not a bool";
    if (!std::isfinite(given.routed_scaling_factor.value)) return "routed_scaling_factor is not a finite number";
    if (given.bits != 4 && given.bits != 8) return "bits is neither 4 nor 8";
    if (given.group_size < 1 || (given.bits == 4 && given.group_size % 2 != 0))
        return "group_size does not fill whole bytes";
    op.top_k = given.top_k;
    op.is_softmax = given.scoring_func == "softmax";
    op.function = given.activation == "swiglu" ? Function::swiglu : Function::geglu;
    op.renormalizes = given.renormalize.value;
    op.factor = static_cast<float>(given.routed_scaling_factor.value);
    return {};
}

Reason refuse_tokens(const Given& given, MixtureOfExperts& op) {
    if (Reason reason = refuse_array("x", given.x); !reason.empty()) return reason;
    if (Reason reason = refuse_narrow("router_logits", given.router_logits); !reason.empty()) return reason;
    if (PyArray_SIZE(as_array(given.x)) == 0 || PyArray_SIZE(as_array(given.router_logits)) == 0)
        return "x or router_logits is empty";
    if (Reason reason = refuse_factor(given.x); !reason.empty()) return reason;
    PyArrayObject *x = as_array(given.x), *logits = as_array(given.router_logits);
    const int axes = PyArray_NDIM(x) - 1;
    if (PyArray_NDIM(logits) != axes + 1 || !std::equal(PyArray_DIMS(x), PyArray_DIMS(x) + axes, PyArray_DIMS(logits)))
        return "router_logits does not have the rows of x";
    if (!last_axis_contiguous(logits)) return "the last axis of router_logits is not contiguous";
    if (length_of(logits) > INT32_MAX) return "router_logits has too many experts";
    op.x = rows_of(x);
    op.logits = rows_of(logits);
    op.x_dtype = dtype_of(x);
    op.logits_dtype = dtype_of(logits);
    return {};
}

Reason refuse_moe(const Given& given, MixtureOfExperts& op) {
    if (Reason reason = refuse_tokens(given, op); !reason.empty()) return reason;
    const npy_intp features = op.x.length, experts = op.logits.length;
    if (Reason reason = refuse_options(given, experts, op); !reason.empty()) return reason;
    if (!given.e_score_correction_bias.is_none()) {
        Reason reason = refuse_vector("e_score_correction_bias", given.e_score_correction_bias, experts);
        if (!reason.empty()) return reason;
        op.correction = rows_of(as_array(given.e_score_correction_bias));
        op.correction_dtype = dtype_of(as_array(given.e_score_correction_bias));
    }
    const Part gate_up{"gate_up", given.gate_up_proj, given.gate_up_scales, given.gate_up_biases};
    const Part down{"down", given.down_proj, given.down_scales, given.down_biases};
    if (Reason reason = refuse_feed_forward(gate_up, down, experts, features, given, op.routed); !reason.empty())
        return reason;
    return refuse_shared(given, features, op);
}

nb::object moe(const Given& given) {
    MixtureOfExperts op{};
    if (!refuse_moe(given, op).empty()) return nb::borrow(Py_NotImplemented);
    nb::object y = empty_like(as_array(given.x));
    op.y = PyArray_BYTES(as_array(y));
    const std::int64_t bytes = PyArray_NBYTES(as_array(given.gate_up_proj)) + PyArray_NBYTES(as_array(given.down_proj));
    compute(product(bytes / op.experts(), op.x.count * op.top_k), [&op] { compute_all(op); });
    return y;
}

nb::object moe_supports(const Given& given) {
    MixtureOfExperts op{};
    return none_or(refuse_moe(given, op));
}

template <nb::object (*kCall)(const Given&)>
void define(nb::module_& m, const char* name) {
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

void bind_moe(nb::module_& m) {
    define<moe>(m, "moe");
    define<moe_supports>(m, "moe_supports");
}

}  // namespace tensorops
