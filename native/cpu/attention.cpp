// y = softmax(scale q·kᵀ) v, with masks, a soft cap and sinks, for every head.
//
// Work: the query rows of all heads that share a key head are processed together, in blocks of at most 144 rows; a
//   block goes through the keys in tiles of 128 and keeps the scores of one tile. If there are few blocks, the keys are
//   also split into spans, whose results are merged; their number depends only on the shapes, so that the number of
//   threads does not affect a result. Threads take blocks as they become free. Tiles to which a block may not attend at
//   all are skipped, unless they contain values that are not finite: these turn a weight of 0 into NaN.
// Scores: up to 8 rows (decoding) are multiplied by the keys in place. For more rows the tile of keys is transposed
//   first; a register block is then 6 rows by 4 vectors of keys (by 2 if there are 16 registers).
// Precision: float64 in float64, everything else in float32. Weights are exp(s - largest so far), divided by a power of
//   two near the number of keys: otherwise a sum of values could overflow before the division by the sum of weights.
//   Rows in which a product of finite numbers leaves the range are recorded and computed again: see wide_scores.h.
// Bytes: decoding reads each key and value once for all heads that share them. A block of 144 rows is bound by
//   arithmetic: 4 · dim operations for each query and key.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "interruption.h"
#include "lanes.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"
#include "vector_math.h"
#include "wide_scores.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr int kRows = 6;  // of a register block
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kColumns = 4;  // vectors of it: 24 sums, 4 operands and a broadcast fit 32 registers
#else
constexpr int kColumns = 2;  // 12 sums, 2 operands and a broadcast fit 16
#endif
constexpr std::int64_t kGroups = 24, kBlockRows = kGroups * kRows;
constexpr std::int64_t kTile = 128;      // keys
constexpr std::int64_t kDirectRows = 8;  // up to this number of rows, keys are not transposed
// With fewer items than kEnoughItems, the keys are split into spans of at least kSpanTiles tiles.
constexpr std::int64_t kSpanTiles = 4, kEnoughItems = 32;

template <class C>
constexpr C kNothing = -std::numeric_limits<C>::infinity();

inline std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class T>
inline const T* at(const char* p) {
    return reinterpret_cast<const T*>(p);
}

// ---- register blocks

// sums[r][c] += a(r, i) · b(i, c) for i below n; b's vectors lie in rows that are `stride` bytes apart.
template <std::int64_t kStep, std::int64_t kRow, std::size_t R, std::size_t N, class S>
inline __attribute__((always_inline)) void multiply_add(Vec<Compute<S>> (&sums)[R][N], const Compute<S>* a,
                                                        const char* b, std::int64_t b_stride, std::int64_t n) {
    constexpr std::size_t lanes = kLanes<Compute<S>>;
    for (std::int64_t i = 0; i < n; ++i, b += b_stride, a += kStep) {
        Vec<Compute<S>> column[N];
        for_each<N>([&](auto c) { column[c] = load(at<S>(b) + c * lanes); });
        for_each<R>([&](auto r) {
            const Compute<S> x = a[r * kRow];
            for_each<N>([&](auto c) { sums[r][c] += x * column[c]; });
        });
    }
}

// y[r] = y[r] · correction[r] + Σ weights(r, key) · value(key), for N vectors of features.
template <class S, int R, int N>
void weigh_block(const Compute<S>* weights, const char* v, std::int64_t v_stride, std::int64_t keys,
                 const Compute<S>* correction, Compute<S>* y, std::int64_t width) {
    constexpr std::size_t lanes = kLanes<Compute<S>>;
    Vec<Compute<S>> sums[R][N];
    for_each<R>(
        [&](auto r) { for_each<N>([&](auto c) { sums[r][c] = load(y + r * width + c * lanes) * correction[r]; }); });
    multiply_add<1, kTile, R, N, S>(sums, weights, v, v_stride, keys);
    for_each<R>([&](auto r) { for_each<N>([&](auto c) { store(y + r * width + c * lanes, sums[r][c]); }); });
}

template <class S>
using Weigh = void (*)(const Compute<S>*, const char*, std::int64_t, std::int64_t, const Compute<S>*, Compute<S>*,
                       std::int64_t);

// The block for the given numbers of rows and vectors of features.
template <class S, int R = kRows, int N = kColumns>
Weigh<S> weigh_for(int rows, int columns) {
    if constexpr (R > 1) {
        if (rows < R) return weigh_for<S, R - 1, N>(rows, columns);
    }
    if constexpr (N > 1) {
        if (columns < N) return weigh_for<S, R, N - 1>(rows, columns);
    }
    return &weigh_block<S, R, N>;
}

// Scores of kRows rows with one panel of transposed keys.
template <class C>
void score_panel(const C* q, const C* panel, std::int64_t dim, C* scores) {
    constexpr std::size_t lanes = kLanes<C>;
    Vec<C> sums[kRows][kColumns];
    for_each<kRows>([&](auto r) { for_each<kColumns>([&](auto c) { sums[r][c] = Vec<C>{}; }); });
    multiply_add<kRows, 1, kRows, kColumns, C>(sums, q, reinterpret_cast<const char*>(panel), sizeof(Vec<C>) * kColumns,
                                               dim);
    for_each<kRows>(
        [&](auto r) { for_each<kColumns>([&](auto c) { store(scores + r * kTile + c * lanes, sums[r][c]); }); });
}

// Scores of some rows with n keys in place, as many keys at a time as a vector has lanes; dim is a multiple of the
// lanes.
template <class T>
void score_direct(const Compute<T>* q, std::int64_t rows, const char* k, std::int64_t stride, std::int64_t n,
                  std::int64_t dim, Compute<T>* scores) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    for (std::int64_t key = 0; key < n; key += lanes) {
        const char* row[lanes];
        for (std::int64_t j = 0; j < lanes; ++j) row[j] = k + std::min(key + j, n - 1) * stride;
        for (std::int64_t r = 0; r < rows; ++r) {
            Vec<C> sums[lanes];
            for_each<lanes>([&](auto j) { sums[j] = Vec<C>{}; });
            for (std::int64_t i = 0; i < dim; i += lanes) {
                const Vec<C> a = load(q + r * dim + i);
                for_each<lanes>([&](auto j) { sums[j] += a * load(at<T>(row[j]) + i); });
            }
            store(scores + r * kTile + key, join_lanes<C>(sums, [](Vec<C> a, Vec<C> b) { return a + b; }));
        }
    }
}

// ---- masks

// As many bytes as a vector has lanes
template <class C>
struct BytesOf {
    using type = U8;
};
template <>
struct BytesOf<double> {
    typedef std::uint8_t type __attribute__((vector_size(kLanes<double>)));
};

template <class C>
inline Vec<C> where_allowed(const char* allowed, Vec<C> scores) {
    using Words = decltype(scores < scores);
    const auto words = __builtin_convertvector(load_bits<typename BytesOf<C>::type>(allowed), Words);
    return words != 0 ? scores : Vec<C>{} + kNothing<C>;
}

template <class C>
void apply_bool_mask(const char* allowed, std::int64_t stride, C* s, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t lanes = kLanes<C>;
    std::int64_t j = begin;
    if (stride == 1)
        for (; j + lanes <= end; j += lanes) store(s + j, where_allowed<C>(allowed + j, load(s + j)));
    for (; j < end; ++j)
        if (!allowed[j * stride]) s[j] = kNothing<C>;
}

template <class M, class C>
void add_mask(const char* mask, std::int64_t stride, C* s, std::int64_t begin, std::int64_t end) {
    std::int64_t j = begin;
    if constexpr (is_same<Compute<M>, C>) {
        constexpr std::int64_t lanes = kLanes<C>;
        if (stride == sizeof(M))
            for (; j + lanes <= end; j += lanes) store(s + j, load(s + j) + load(at<M>(mask) + j));
    }
    for (; j < end; ++j) s[j] += static_cast<C>(load_one(at<M>(mask + j * stride)));
}

template <class C>
C load_as(const char* p, Dtype dtype) {
    return for_dtype(dtype, [p](auto element) { return static_cast<C>(load_one(at<decltype(element)>(p))); });
}

template <class C>
void apply_mask(const Attention& op, const char* mask, C* s, std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = op.mask_stride[3];
    if (op.mask_kind == MaskKind::boolean) return apply_bool_mask(mask, stride, s, begin, end);
    for_dtype(op.mask_dtype, [=](auto element) { add_mask<decltype(element)>(mask, stride, s, begin, end); });
}

// ---- the work, cut into items

template <class T>
struct Plan {
    using C = Compute<T>;
    static constexpr std::int64_t lanes = kLanes<C>;
    static constexpr std::int64_t panel = kColumns * lanes;  // keys of a panel

    const Attention& op;
    std::int64_t rows;        // of one key head
    std::int64_t block_rows;  // at most, of one item; a multiple of kRows unless direct
    std::int64_t blocks;      // of one key head
    std::int64_t tiles, spans, items;
    std::int64_t width;  // value_dim in whole vectors
    bool direct, packs_values;
    C scale, unit;  // unit: the power of two by which weights are multiplied

    explicit Plan(const Attention& attention) : op(attention) {
        rows = op.heads / op.kv_heads * op.queries;
        direct = rows <= kDirectRows && op.dim % lanes == 0;
        block_rows = direct ? rows : std::min(kBlockRows, round_up(rows, kRows));
        blocks = (rows + block_rows - 1) / block_rows;
        tiles = (op.keys + kTile - 1) / kTile;
        const std::int64_t units = op.batch * op.kv_heads * blocks;
        const std::int64_t wanted = (kEnoughItems + units - 1) / units;
        spans = std::max<std::int64_t>(1, std::min(wanted, tiles / kSpanTiles));
        items = units * spans;
        width = round_up(op.value_dim, lanes);
        packs_values = !direct || op.value_dim != width;
        scale = static_cast<C>(op.scale);
        unit = static_cast<C>(std::ldexp(1.0, -std::ilogb(static_cast<double>(op.keys) * 2 - 1)));
    }

    std::int64_t padded_rows() const { return direct ? block_rows : round_up(block_rows, kRows); }
    // Elements of each part of a thread's memory; all are multiples of a vector's
    std::int64_t query_size() const { return round_up(padded_rows() * op.dim, lanes); }
    std::int64_t key_size() const { return direct ? 0 : panel * op.dim; }
    std::int64_t value_size() const { return packs_values ? kTile * panel : 0; }
    std::int64_t score_size() const { return padded_rows() * kTile; }
    std::int64_t result_size() const { return padded_rows() * width; }
    std::int64_t sum_size() const { return padded_rows() * lanes; }
    std::int64_t top_size() const { return round_up(padded_rows(), lanes) * lanes; }
    std::int64_t thread_size() const {
        return query_size() + key_size() + value_size() + score_size() + result_size() + sum_size() + top_size();
    }
    // The results of a span for the merge: for each row its values, its largest score and its sum of weights
    std::int64_t partial_size() const { return spans == 1 ? 0 : round_up(block_rows * (width + 2), lanes); }
    std::int64_t flags_size() const { return round_up(op.batch * op.kv_heads * tiles, 64); }  // bytes
    std::int64_t all_rows() const { return op.batch * op.kv_heads * rows; }
};

// ---- one thread's work

// Keys of a tile: from begin, a multiple of the lanes, to end.
struct Range {
    std::int64_t begin, end;
};

template <class T>
class Worker {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr std::int64_t lanes = kLanes<C>;

  public:
    // flags: plan.flags_size(), and one for each row
    Worker(const Plan<T>& plan, C* memory, std::uint8_t* flags, C* partials)
        : plan_(plan), op_(plan.op), flags_(flags), wide_(flags + plan.flags_size()), partials_(partials) {
        queries_ = memory;
        keys_ = queries_ + plan.query_size();
        values_ = keys_ + plan.key_size();
        scores_ = values_ + plan.value_size();
        y_ = scores_ + plan.score_size();
        sums_ = y_ + plan.result_size();
        tops_ = sums_ + plan.sum_size();
    }

    // The last blocks come first: under a causal mask they have the most work.
    void run(std::int64_t item, Interruption* at) {
        const std::int64_t span = item % plan_.spans;
        begin_block(item / plan_.spans);
        const std::int64_t first = plan_.tiles * span / plan_.spans, last = plan_.tiles * (span + 1) / plan_.spans;
        for (std::int64_t tile = first; tile < last; ++tile) {
            if (leaves(at, count_ * kTile * (op_.dim + op_.value_dim))) return;
            one_tile(tile);
        }
        for (std::int64_t r = 0; r < count_; ++r) {
            const C sum = sum_of_lanes<C>(load(sums_ + r * lanes));
            if (plan_.spans == 1)
                finish(r, largest_[r], sum, y_ + r * plan_.width);
            else
                keep(partials_ + item * plan_.partial_size(), r, sum);
        }
    }

    // Puts the spans of a block together.
    void merge(std::int64_t block) {
        begin_block(block);
        const std::int64_t stride = plan_.partial_size(), width = plan_.width;
        const C* first = partials_ + block * plan_.spans * stride;
        for (std::int64_t r = 0; r < count_; ++r) {
            const std::int64_t state = plan_.block_rows * width + 2 * r;
            C largest = kNothing<C>, sum = 0;
            for (std::int64_t s = 0; s < plan_.spans; ++s) largest = std::max(largest, first[s * stride + state]);
            C* y = y_ + r * width;
            for (std::int64_t s = 0; s < plan_.spans; ++s) {
                const C* part = first + s * stride;
                const C weight = correction_of(part[state], largest);
                sum += part[state + 1] * weight;
                for (std::int64_t i = 0; i < width; i += lanes)
                    store(y + i, load(y + i) + load(part + r * width + i) * weight);
            }
            finish(r, largest, sum, y);
        }
    }

    // Computes the recorded rows of a block again, with room for a query and its values.
    void widen(std::int64_t block, double* room, Interruption* at) {
        begin_block(block);
        for (std::int64_t r = 0; r < count_; ++r) {
            if (!*is_wide(r)) continue;
            if (leaves(at, op_.keys * (op_.dim + op_.value_dim) * 8)) return;
            widen_row(r, room);
        }
    }

  private:
    // ------------------------------------------------------------------ a block of rows

    void begin_block(std::int64_t index) {
        const std::int64_t block = plan_.blocks - 1 - index % plan_.blocks;
        head_index_ = index / plan_.blocks;
        batch_ = head_index_ / op_.kv_heads;
        kv_head_ = head_index_ % op_.kv_heads;
        k_ = op_.k + batch_ * op_.k_stride[0] + kv_head_ * op_.k_stride[1];
        v_ = op_.v + batch_ * op_.v_stride[0] + kv_head_ * op_.v_stride[1];
        first_ = block * plan_.block_rows;
        count_ = std::min(plan_.block_rows, plan_.rows - first_);
        groups_ = (count_ + kRows - 1) / kRows;
        for (std::int64_t r = 0; r < count_; ++r) begin_row(r);
        std::fill(largest_, largest_ + kBlockRows, kNothing<C>);
        std::fill(correction_, correction_ + kBlockRows, C{1});
        std::fill(tops_, tops_ + plan_.top_size(), kNothing<C>);
        std::fill(y_, y_ + plan_.result_size(), C{0});
        std::fill(sums_, sums_ + plan_.sum_size(), C{0});
        find_limits();
        pack_queries();
    }

    std::int64_t head_of(std::int64_t r) const {
        return kv_head_ * (op_.heads / op_.kv_heads) + (first_ + r) / op_.queries;
    }
    std::int64_t query_of(std::int64_t r) const { return (first_ + r) % op_.queries; }
    const T* query_at(std::int64_t r) const {
        return at<T>(op_.q + batch_ * op_.q_stride[0] + head_of(r) * op_.q_stride[1] + query_of(r) * op_.q_stride[2]);
    }
    T* result_at(std::int64_t r) const {
        return reinterpret_cast<T*>(op_.y) +
               ((batch_ * op_.heads + head_of(r)) * op_.queries + query_of(r)) * op_.value_dim;
    }

    // The keys to which the causal mask and the window let a row attend: low_ to high_.
    void begin_row(std::int64_t r) {
        const std::int64_t query = query_of(r), position = query + op_.keys - op_.queries;
        const std::int64_t window = op_.window;
        low_[r] = window ? std::max<std::int64_t>(0, position - window + 1) : 0;
        std::int64_t high = op_.keys;
        if (window) high = std::min(high, position + window);
        if (op_.is_causal) high = std::min(high, position + 1);
        high_[r] = std::max<std::int64_t>(high, 0);
        mask_[r] =
            op_.mask + batch_ * op_.mask_stride[0] + head_of(r) * op_.mask_stride[1] + query * op_.mask_stride[2];
    }

    void find_limits() {
        most_low_ = 0;
        least_high_ = op_.keys;
        limits_ = {op_.keys, 0};
        for (std::int64_t g = 0; g < groups_; ++g) {
            Range& limits = group_limits_[g] = {op_.keys, 0};
            for (std::int64_t r = g * kRows; r < std::min(count_, (g + 1) * kRows); ++r) {
                limits = {std::min(limits.begin, low_[r]), std::max(limits.end, high_[r])};
                most_low_ = std::max(most_low_, low_[r]);
                least_high_ = std::min(least_high_, high_[r]);
            }
            limits_ = {std::min(limits_.begin, limits.begin), std::max(limits_.end, limits.end)};
        }
    }

    // Scaled and widened: row by row if direct, else in adjacent groups of kRows.
    void pack_queries() {
        const std::int64_t dim = op_.dim;
        if (!plan_.direct) std::fill(queries_, queries_ + plan_.query_size(), C{0});
        for (std::int64_t r = 0; r < count_; ++r) {
            const T* q = query_at(r);
            C* out = plan_.direct ? queries_ + r * dim : queries_ + r / kRows * kRows * dim + r % kRows;
            for (std::int64_t i = 0; i < dim; i += lanes) {
                const std::int64_t n = std::min(lanes, dim - i);
                const V x = (n == lanes ? load(q + i) : load_part(q + i, n)) * plan_.scale;
                if (plan_.direct)
                    store(out + i, x);
                else
                    for (std::int64_t j = 0; j < n; ++j) out[(i + j) * kRows] = x[j];
            }
        }
    }

    // ------------------------------------------------------------------ a tile of keys

    void one_tile(std::int64_t tile) {
        const std::int64_t start = tile * kTile, n = std::min(kTile, op_.keys - start);
        const bool whole = most_low_ <= start && least_high_ >= start + n;
        const bool hidden = limits_.end <= start || limits_.begin >= start + n || mask_hides(start, n);
        // If all values are finite, those of weight 0 can be ignored.
        const bool narrow = (!whole || hidden) && values_are_finite(tile, start, n);
        if (hidden && narrow) return;
        Range all{kTile, 0};
        for (std::int64_t g = 0; g < groups_; ++g) {
            ranges_[g] = narrow ? part_of(group_limits_[g], start, n) : Range{0, n};
            all = {std::min(all.begin, ranges_[g].begin), std::max(all.end, ranges_[g].end)};
        }
        score(start, n, all);
        for_each_row([&](std::int64_t r, Range range) { mask_row(r, start, n, range); });
        raise_largest();
        for_each_row([&](std::int64_t r, Range range) { exponentiate(r, range); });
        weigh(start, n);
    }

    template <class F>
    void for_each_row(F f) const {
        for (std::int64_t g = 0; g < groups_; ++g)
            for (std::int64_t r = g * kRows; r < std::min(count_, (g + 1) * kRows); ++r) f(r, ranges_[g]);
    }

    static Range part_of(Range limits, std::int64_t start, std::int64_t n) {
        const std::int64_t begin = std::max<std::int64_t>(limits.begin - start, 0),
                           end = std::min(limits.end - start, n);
        if (begin >= end) return {0, 0};
        return {begin / lanes * lanes, end};
    }

    bool mask_hides(std::int64_t start, std::int64_t n) const {
        if (op_.mask_kind != MaskKind::boolean) return false;
        const std::int64_t stride = op_.mask_stride[3];
        for (std::int64_t r = 0; r < count_; ++r) {
            if (r > 0 && mask_[r] == mask_[r - 1]) continue;
            const char* p = mask_[r] + start * stride;
            char any = 0;
            if (stride == 1)
                for (std::int64_t j = 0; j < n; ++j) any |= p[j];
            else
                for (std::int64_t j = 0; j < n; ++j) any |= p[j * stride];
            if (any) return false;
        }
        return true;
    }

    // Checked once for each tile and head; threads that check at the same time get the same answer.
    bool values_are_finite(std::int64_t tile, std::int64_t start, std::int64_t n) {
        enum : std::uint8_t { unknown, finite, not_finite };
        std::uint8_t* flag = flags_ + head_index_ * plan_.tiles + tile;
        std::uint8_t known = __atomic_load_n(flag, __ATOMIC_RELAXED);
        if (known == unknown) {
            V zero{};
            for (std::int64_t j = 0; j < n; ++j) {
                const T* v = at<T>(v_ + (start + j) * op_.v_stride[2]);
                std::int64_t i = 0;
                for (; i + lanes <= op_.value_dim; i += lanes) zero += load(v + i) * C{0};
                if (i < op_.value_dim) zero += load_part(v + i, op_.value_dim - i) * C{0};
            }
            known = sum_of_lanes<C>(zero) == 0 ? finite : not_finite;
            __atomic_store_n(flag, known, __ATOMIC_RELAXED);
        }
        return known == finite;
    }

    // ------------------------------------------------------------------ scores

    void score(std::int64_t start, std::int64_t n, Range range) {
        if (range.end <= range.begin) return;
        const char* k = k_ + start * op_.k_stride[2];
        if (plan_.direct)
            return score_direct<T>(queries_, count_, k + range.begin * op_.k_stride[2], op_.k_stride[2],
                                   range.end - range.begin, op_.dim, scores_ + range.begin);
        constexpr std::int64_t panel = Plan<T>::panel;
        for (std::int64_t p = range.begin / panel * panel; p < range.end; p += panel) {
            pack_keys(k + p * op_.k_stride[2], n - p);
            for (std::int64_t g = 0; g < groups_; ++g)
                if (ranges_[g].begin < p + panel && ranges_[g].end > p)
                    score_panel(queries_ + g * kRows * op_.dim, keys_, op_.dim, scores_ + g * kRows * kTile + p);
        }
    }

    // One panel of keys, transposed; the last of n again beyond it.
    void pack_keys(const char* k, std::int64_t n) {
        constexpr std::int64_t panel = Plan<T>::panel;
        for (std::int64_t key = 0; key < panel; key += lanes) {
            const T* from[lanes];
            for (std::int64_t j = 0; j < lanes; ++j) from[j] = at<T>(k + std::min(key + j, n - 1) * op_.k_stride[2]);
            for (std::int64_t i = 0; i < op_.dim; i += lanes) {
                const std::int64_t features = std::min(lanes, op_.dim - i);
                V rows[lanes];
                if (features == lanes)
                    for_each<lanes>([&](auto j) { rows[j] = load(from[j] + i); });
                else
                    for_each<lanes>([&](auto j) { rows[j] = load_part(from[j] + i, features); });
                transpose<C>(rows);
                C* out = keys_ + i * panel + key;
                for_each<lanes>([&](auto j) {
                    if (static_cast<std::int64_t>(j) < features) store(out + j * panel, rows[j]);
                });
            }
        }
    }

    // ------------------------------------------------------------------ softmax, one tile after another

    static V correction_of(V before, V after) {
        const V one = V{} + C{1};
        return before == after ? one : exp_of_negative(before - after);  // infinities would give NaN
    }
    static C correction_of(C before, C after) { return correction_of(V{} + before, V{} + after)[0]; }

    // Caps and masks the scores of a row, and finds the largest in each part.
    void mask_row(std::int64_t r, std::int64_t start, std::int64_t n, Range range) {
        C* s = scores_ + r * kTile;
        const std::int64_t begin = range.begin, end = round_up(range.end, lanes);
        V top = V{} + kNothing<C>;
        if (end > begin) {
            if (!all_finite(s + begin, end - begin)) find_overflow(r, start, range);
            if (op_.softcap != 0) cap(s, begin, end);
            if (op_.mask_kind != MaskKind::none)
                apply_mask(op_, mask_[r] + start * op_.mask_stride[3], s, begin, range.end);
            const std::int64_t low = std::min(low_[r] - start, end), high = std::min(high_[r] - start, n);
            for (std::int64_t j = begin; j < low; ++j) s[j] = kNothing<C>;
            for (std::int64_t j = std::max(high, begin); j < end; ++j) s[j] = kNothing<C>;
            for (std::int64_t j = begin; j < end; j += lanes)
                top = larger_ignoring_nan(top, load(s + j));  // a NaN shows in the sum
        }
        store(tops_ + r * lanes, top);
    }

    // Processes the new scores, as many rows at a time as a vector has lanes.
    void raise_largest() {
        for (std::int64_t r = 0; r < count_; r += lanes) {
            V tops[lanes];
            for_each<lanes>([&](auto i) { tops[i] = load(tops_ + (r + static_cast<std::int64_t>(i)) * lanes); });
            const V before = load(largest_ + r),
                    after = larger_ignoring_nan(before, join_lanes<C>(tops, larger_ignoring_nan<V>));
            store(correction_ + r, correction_of(before, after));
            store(largest_ + r, after);
        }
    }

    // Turns the scores of a row into weights, and adds them up.
    void exponentiate(std::int64_t r, Range range) {
        if (range.end <= range.begin) return;
        C* s = scores_ + r * kTile;
        const C shift = largest_[r] == kNothing<C> ? C{0} : largest_[r];
        V sum = load(sums_ + r * lanes) * correction_[r];
        for (std::int64_t j = range.begin; j < range.end; j += lanes) {
            const V weight = exp_of_negative(load(s + j) - shift) * plan_.unit;
            store(s + j, weight);
            sum += weight;
        }
        store(sums_ + r * lanes, sum);
    }

    void cap(C* s, std::int64_t begin, std::int64_t end) const {
        const C bound = static_cast<C>(op_.softcap);
        for (std::int64_t j = begin; j < end; j += lanes) store(s + j, tanh(load(s + j) / bound) * bound);
    }

    // ------------------------------------------------------------------ values

    // Values go panel by panel through the first-level cache: a panel is kColumns vectors of features.
    void weigh(std::int64_t start, std::int64_t n) {
        constexpr std::int64_t panel = kColumns * lanes;
        for (std::int64_t i = 0; i < plan_.width; i += panel) {
            const int columns = static_cast<int>(std::min(panel, plan_.width - i) / lanes);
            const char* v = v_ + start * op_.v_stride[2] + i * static_cast<std::int64_t>(sizeof(T));
            if (plan_.packs_values) {
                pack_values(v, n, op_.value_dim - i, columns);
                weigh_panel<C>(reinterpret_cast<const char*>(values_), columns * sizeof(V), i, columns);
            } else {
                weigh_panel<T>(v, op_.v_stride[2], i, columns);
            }
        }
    }

    void pack_values(const char* v, std::int64_t n, std::int64_t features, int columns) {
        C* out = values_;
        for (std::int64_t key = 0; key < n; ++key) {
            const T* row = at<T>(v + key * op_.v_stride[2]);
            for (std::int64_t c = 0; c < columns; ++c, out += lanes) {
                const std::int64_t rest = features - c * lanes;
                store(out, rest >= lanes ? load(row + c * lanes) : load_part(row + c * lanes, rest));
            }
        }
    }

    template <class S>
    void weigh_panel(const char* v, std::int64_t stride, std::int64_t first, int columns) {
        for (std::int64_t g = 0; g < groups_; ++g) {
            const Range range = ranges_[g];
            if (range.end <= range.begin) continue;
            const std::int64_t row = g * kRows;
            const int rows = plan_.direct ? static_cast<int>(std::min<std::int64_t>(kRows, count_ - row)) : kRows;
            weigh_for<S>(rows, columns)(scores_ + row * kTile + range.begin, v + range.begin * stride, stride,
                                        range.end - range.begin, correction_ + row, y_ + row * plan_.width + first,
                                        plan_.width);
        }
    }

    // ------------------------------------------------------------------ results

    void keep(C* partial, std::int64_t r, C sum) const {
        const std::int64_t width = plan_.width;
        std::copy(y_ + r * width, y_ + (r + 1) * width, partial + r * width);
        partial[plan_.block_rows * width + 2 * r] = largest_[r];
        partial[plan_.block_rows * width + 2 * r + 1] = sum;
    }

    C sink_of(std::int64_t r) const { return load_as<C>(op_.sinks + head_of(r) * op_.sinks_stride, op_.sinks_dtype); }

    // Divides a row by its sum of weights, including the sink.
    void finish(std::int64_t r, C largest, C sum, const C* y) const {
        C factor = 1;
        if (op_.sinks) {
            const C sink = sink_of(r);
            const C top = largest < sink ? sink : largest, shift = top == kNothing<C> ? C{0} : top;
            factor = correction_of(largest, top);
            sum = sum * factor + std::exp(sink - shift) * plan_.unit;
        }
        if (sum != 0) factor /= sum;
        T* out = result_at(r);
        std::int64_t i = 0;
        for (; i + lanes <= op_.value_dim; i += lanes) store(out + i, load(y + i) * factor);
        if (i < op_.value_dim) store_part(out + i, load(y + i) * factor, op_.value_dim - i);
    }

    // ------------------------------------------------------------------ scores beyond the range

    // Whether a row is to be computed again
    std::uint8_t* is_wide(std::int64_t r) const { return wide_ + head_index_ * plan_.rows + first_ + r; }

    bool mask_forbids(std::int64_t r, std::int64_t key) const {
        return op_.mask_kind == MaskKind::boolean && !mask_[r][key * op_.mask_stride[3]];
    }

    // Records a row with a score that is not finite although the query and the key are. Spans of its keys may do so at
    // the same time.
    void find_overflow(std::int64_t r, std::int64_t start, Range range) {
        if (!all_finite(query_at(r), op_.dim)) return;
        const C* s = scores_ + r * kTile;
        const std::int64_t end = std::min(range.end, high_[r] - start);
        for (std::int64_t j = std::max(range.begin, low_[r] - start); j < end; ++j) {
            if (std::isfinite(s[j]) || mask_forbids(r, start + j)) continue;
            if (!all_finite(at<T>(k_ + (start + j) * op_.k_stride[2]), op_.dim)) continue;
            return __atomic_store_n(is_wide(r), std::uint8_t{1}, __ATOMIC_RELAXED);
        }
    }

    Score wide_score(const WideQuery<T>& query, std::int64_t r, std::int64_t key) const {
        const Score hidden{kNothing<double>, false};
        if (key < low_[r] || key >= high_[r] || mask_forbids(r, key)) return hidden;
        Score score = query.score(at<T>(k_ + key * op_.k_stride[2]));
        if (op_.softcap != 0) score = capped(score, op_.softcap);
        if (op_.mask_kind != MaskKind::floating) return score;
        return add(score, static_cast<double>(load_as<C>(mask_[r] + key * op_.mask_stride[3], op_.mask_dtype)));
    }

    void widen_row(std::int64_t r, double* room) const {
        const WideQuery<T> query(query_at(r), op_.dim, op_.scale, room);
        const Score sink{op_.sinks ? static_cast<double>(sink_of(r)) : kNothing<double>, false};
        Score largest = sink;
        for (std::int64_t key = 0; key < op_.keys; ++key) {
            const Score score = wide_score(query, r, key);
            if (below(largest, score)) largest = score;
        }
        if (largest.value == kNothing<double>) largest.value = 0;
        const double unit = static_cast<double>(plan_.unit);
        double* y = room + op_.dim;
        std::fill(y, y + op_.value_dim, 0.0);
        double sum = weight_of(sink, largest) * unit;
        for (std::int64_t key = 0; key < op_.keys; ++key) {
            const double weight = weight_of(wide_score(query, r, key), largest) * unit;
            const T* v = at<T>(v_ + key * op_.v_stride[2]);
            sum += weight;
            for (std::int64_t i = 0; i < op_.value_dim; ++i) y[i] += weight * static_cast<double>(load_one(v + i));
        }
        for (std::int64_t i = 0; i < op_.value_dim; ++i)
            store_one(result_at(r) + i, static_cast<C>(sum == 0 ? y[i] : y[i] / sum));
    }

    const Plan<T>& plan_;
    const Attention& op_;
    C *queries_, *keys_, *values_, *scores_, *y_, *sums_, *tops_;
    std::uint8_t *flags_, *wide_;
    C* partials_;

    // The current block
    std::int64_t head_index_, batch_, kv_head_, first_, count_, groups_;
    const char *k_, *v_;
    std::int64_t most_low_, least_high_;
    Range limits_, group_limits_[kGroups], ranges_[kGroups];
    std::int64_t low_[kBlockRows], high_[kBlockRows];
    const char* mask_[kBlockRows];
    C largest_[kBlockRows], correction_[kBlockRows];
};

// Computes the recorded rows again, if there are any.
template <class T>
void widen_rows(const Plan<T>& plan, Compute<T>* memory, std::uint8_t* flags, int threads, Interruption* at) {
    const std::uint8_t* wide = flags + plan.flags_size();
    const auto noted = [&plan, wide](std::int64_t head) {  // whether a row of one key head is
        return std::memchr(wide + head * plan.rows, 1, static_cast<std::size_t>(plan.rows)) != nullptr;
    };
    const std::int64_t heads = plan.op.batch * plan.op.kv_heads, room = plan.op.dim + plan.op.value_dim;
    if (!std::memchr(wide, 1, static_cast<std::size_t>(plan.all_rows()))) return;
    const Scratch scratch(threads * room * static_cast<std::int64_t>(sizeof(double)));
    double* rooms = scratch.at<double>(0);
    std::atomic<std::int64_t> next{0};
    on_team(threads, [&](Member member) {
        Worker<T> worker(plan, memory + member.index * plan.thread_size(), flags, nullptr);
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < heads * plan.blocks;)
            if (noted(i / plan.blocks)) worker.widen(i, rooms + member.index * room, at);
    });
}

template <class T>
void attend(const Attention& op) {
    using C = Compute<T>;
    const Plan<T> plan(op);
    const int threads = threads_for(plan.items, op.work);
    const std::int64_t of_threads = threads * plan.thread_size(), of_spans = plan.items * plan.partial_size();
    const std::int64_t flags = plan.flags_size() + round_up(plan.all_rows(), 64);
    const Scratch scratch(flags + (of_threads + of_spans) * static_cast<std::int64_t>(sizeof(C)));
    std::uint8_t* known = scratch.at<std::uint8_t>(0);
    std::fill(known, known + flags, std::uint8_t{0});
    C* memory = scratch.at<C>(flags);
    C* partials = memory + of_threads;
    Interruption* const at = interruption;
    std::atomic<std::int64_t> next{0};
    on_team(threads, [&](Member member) {
        Worker<T> worker(plan, memory + member.index * plan.thread_size(), known, partials);
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.items;) worker.run(i, at);
    });
    if (plan.spans > 1 && !leaves(at, 0)) {
        Worker<T> worker(plan, memory, known, partials);
        for (std::int64_t i = 0; i < plan.items / plan.spans; ++i) worker.merge(i);
    }
    if (!leaves(at, 0)) widen_rows(plan, memory, known, threads, at);
}

}  // namespace

void attention(const Attention& op) {
    for_dtype(op.dtype, [&op](auto x) { attend<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
