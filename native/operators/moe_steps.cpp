// Tokens are computed in chunks in which every expert has enough rows on average that its weights are hardly read more
// often than for all tokens together. What is kept between the steps therefore does not grow with the tokens.
#include "moe_steps.h"

#include <algorithm>

#include "interruption.h"
#include "scratch.h"
#include "targets.h"

namespace tensorops {

namespace {

constexpr std::int64_t kRowsPerExpert = 256;  // on average, in a chunk

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
    op.lines = lines_of(x, reinterpret_cast<char*>(y), sizeof(float));
    op.dtype = op.y_dtype = Dtype::float32;
    target().softmax(op);
}

void multiply(const Projection& by, const Rows& x, const Groups& groups, float* y) {
    const auto call = [&](auto op, auto kernel) {
        op.linear.x = x;
        op.linear.y = reinterpret_cast<char*>(y);
        op.linear.x_dtype = Dtype::float32;
        op.linear.outputs = op.y_stride = by.outputs;
        op.groups = groups;
        kernel(op);
    };
    if (by.is_quantized) return call(by.quantized, target().grouped_quantized_linear);
    call(by.plain, target().grouped_linear);
}

// `both` and `unit` are memory for the results of the first projection and of the gated unit.
void feed_forward(const FeedForward& block, const Rows& x, const Groups& groups, Function function, float* both,
                  float* unit, float* y) {
    const std::int64_t hidden = block.hidden, wide = 2 * hidden;
    multiply(block.gate_up, x, groups, both);
    activate(function, rows_at(both, x.count, hidden, wide), rows_at(both + hidden, x.count, hidden, wide), unit);
    multiply(block.down, rows_at(unit, x.count, hidden), groups, y);
}

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
    feed_forward(op.shared, x, every.groups(), op.function, scratch.at<float>(at.both), scratch.at<float>(at.unit), y);
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
    feed_forward(op.routed, repeated, sorted.groups(), op.function, scratch.at<float>(routed.both),
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

}  // namespace

void mixture_of_experts(const MixtureOfExperts& op) {
    const std::int64_t step = std::max<std::int64_t>(op.experts() * kRowsPerExpert / op.top_k, 1);
    Interruption* const at = interruption;
    for (std::int64_t begin = 0; begin < op.x.count && !(at && at->happened()); begin += step)
        compute_chunk(op, begin, std::min(begin + step, op.x.count));
}

}  // namespace tensorops
