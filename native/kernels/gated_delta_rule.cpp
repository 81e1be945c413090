// S ← exp(g_t) S; S ← S + k_t ⊗ beta_t (v_t - Sᵀ k_t), or k_t ⊗ v_t without beta; y_t = scale Sᵀ q_t, token by token
// for each head.
//
// Work: columns of the state do not depend on each other. Threads take strips of up to kVectors vectors of columns, and
//   compute all tokens of one before the next. Between tokens a strip is in memory of its own, as its rows would share
//   few sets of the first-level cache where the state has them. It is read twice per token, for Sᵀ k and for the new
//   state, whose products with q are taken on the way.
// Precision: float64 in float64, everything else in float32, the state too; a sum of key_dim products for each element.
// Bytes: the state once in and once out, which is nearly all for one token; q and k once for each strip, v and y once.
#include "gated_delta_rule.h"

#include <algorithm>
#include <cmath>

#include "convert.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr int kVectors = 4;

template <class C>
C read_one(const char* p, Dtype dtype) {
    return for_dtype(dtype, [p](auto x) { return static_cast<C>(load_one(reinterpret_cast<const decltype(x)*>(p))); });
}

// The rows of a state in the columns of a strip, `step` bytes apart
template <class C>
struct StripRows {
    char* data;
    std::int64_t step;

    C* operator[](std::int64_t i) const { return reinterpret_cast<C*>(data + i * step); }
};

// Some neighbouring columns of the state of one head; all vectors are full unless they are the last.
template <class T, bool kFull>
class Strip {
    using C = Compute<T>;
    using Rows = StripRows<C>;
    static constexpr std::int64_t kLane = kLanes<C>, kSize = sizeof(C);

  public:
    static constexpr std::int64_t kColumns = kVectors * kLane;
    // What a thread needs for its strips: a key, a query and a state
    static std::int64_t scratch_bytes(std::int64_t key_dim) { return key_dim * (2 + kColumns) * kSize; }

    Strip(const GatedDeltaRule& op, std::int64_t head, std::int64_t column, char* scratch)
        : op_(op),
          batch_(head / op.heads),
          head_(head % op.heads),
          column_(column),
          columns_(op.value_dim - column),
          kept_{scratch, kColumns * kSize},
          key_(kept_[op.key_dim]),
          query_(key_ + op.key_dim),
          result_{op.new_state + (head * op.key_dim * op.value_dim + column) * kSize, op.value_dim * kSize},
          y_(reinterpret_cast<T*>(op.y) + head * op.tokens * op.value_dim + column) {}

    void run() const {
        if (op_.tokens == 0) return begin(result_);
        const bool is_given = op_.state.data && op_.state_dtype == kDtype<C>;
        if (!is_given) begin(kept_);
        const Rows given{const_cast<char*>(state_row<C>(0)), op_.state.stride[2]};
        for (std::int64_t t = 0; t < op_.tokens; ++t)
            token(t, t == 0 && is_given ? given : kept_, t + 1 == op_.tokens ? result_ : kept_);
    }

  private:
    template <class E>
    const char* state_row(std::int64_t i) const {
        return op_.state.at(batch_, head_, i) + column_ * static_cast<std::int64_t>(sizeof(E));
    }

    // The state before the first token: that which is given, in another dtype perhaps, or zeros
    void begin(Rows to) const {
        for_dtype(op_.state.data ? op_.state_dtype : kDtype<C>, [this, to](auto e) {
            using E = decltype(e);
            if constexpr (is_same<Compute<E>, C>)
                for (std::int64_t i = 0; i < op_.key_dim; ++i)
                    for (int r = 0; r < kVectors; ++r) {
                        const auto* const row = reinterpret_cast<const E*>(state_row<E>(i));
                        put_vector(to[i], r, op_.state.data ? get_vector(row, r) : Vec<C>{});
                    }
        });
    }

    void token(std::int64_t t, Rows from, Rows to) const {
        const std::int64_t of_keys = head_ * op_.key_heads / op_.heads, n = op_.key_dim;
        C *const key = key_, *const query = query_;
        convert(reinterpret_cast<const T*>(op_.k.at(batch_, of_keys, t)), key, n);
        convert(reinterpret_cast<const T*>(op_.q.at(batch_, of_keys, t)), query, n);
        const C decay = std::exp(read_one<C>(op_.g.at(batch_, head_, t), op_.g_dtype));
        const T* const v = reinterpret_cast<const T*>(op_.v.at(batch_, head_, t)) + column_;

        Vec<C> correction[kVectors]{}, y[kVectors]{};
        if (op_.beta.data) {
            const C beta = read_one<C>(op_.beta.at(batch_, head_, t), op_.beta_dtype);
            for (std::int64_t i = 0; i < n; ++i)
                for (int r = 0; r < kVectors; ++r) correction[r] += get_vector(from[i], r) * key[i];
            for (int r = 0; r < kVectors; ++r) correction[r] = (get_vector(v, r) - correction[r] * decay) * beta;
        } else {
            for (int r = 0; r < kVectors; ++r) correction[r] = get_vector(v, r);
        }
        for (std::int64_t i = 0; i < n; ++i)
            for (int r = 0; r < kVectors; ++r) {
                const Vec<C> s = get_vector(from[i], r) * decay + correction[r] * key[i];
                put_vector(to[i], r, s);
                y[r] += s * query[i];
            }
        const C scale = static_cast<C>(op_.scale);
        for (int r = 0; r < kVectors; ++r) put_vector(y_ + t * op_.value_dim, r, y[r] * scale);
    }

    std::int64_t count(int r) const { return std::clamp(columns_ - r * kLane, std::int64_t{0}, kLane); }

    template <class E>
    Vec<C> get_vector(const E* row, int r) const {
        if constexpr (kFull) return load(row + r * kLane);
        const std::int64_t n = count(r);
        return n == 0 ? Vec<C>{} : load_some(row + r * kLane, n);
    }
    template <class E>
    void put_vector(E* row, int r, Vec<C> x) const {
        const std::int64_t n = kFull ? kLane : count(r);
        if (n == kLane)
            store(row + r * kLane, x);
        else if (n > 0)
            store_part(row + r * kLane, x, n);
    }

    const GatedDeltaRule& op_;
    const std::int64_t batch_, head_, column_, columns_;
    const Rows kept_;  // between tokens
    C *const key_, *const query_;
    const Rows result_;
    T* const y_;
};

template <class T>
void every_head(const GatedDeltaRule& op) {
    constexpr std::int64_t columns = Strip<T, true>::kColumns;
    const std::int64_t strips = (op.value_dim + columns - 1) / columns, units = (op.end - op.begin) * strips;
    // A token in the cache takes about an eighth of the time of one whose state is read from memory.
    const double state = static_cast<double>(op.key_dim * op.value_dim) * sizeof(Compute<T>);
    const double work = static_cast<double>(op.end - op.begin) * state * (2 + static_cast<double>(op.tokens) / 4);
    over_shares(threads_for(units, static_cast<std::int64_t>(std::min(work, 1e18))), units, 1, [&](Share mine) {
        const Scratch scratch(Strip<T, true>::scratch_bytes(op.key_dim));
        for (std::int64_t unit = mine.begin; unit < mine.end; ++unit) {
            const std::int64_t head = op.begin + unit / strips, column = unit % strips * columns;
            if (op.value_dim - column >= columns)
                Strip<T, true>(op, head, column, scratch.at<char>(0)).run();
            else
                Strip<T, false>(op, head, column, scratch.at<char>(0)).run();
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(gated_delta_rule, GatedDeltaRule) {
    for_dtype(op.dtype, [&op](auto x) { every_head<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
