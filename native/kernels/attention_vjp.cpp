// The gradients of scaled dot-product attention. With scores s, which may be capped at c, weights p = softmax(s) and
// cotangents dy of the results:
//   dv = pᵀ dy, dp = dy vᵀ, ds = p (dp - sum(p dp)) (1 - (s / c)²), dq = scale ds k, dk = scale dsᵀ q
//
// Work: a head of keys, with all heads of queries that share it, is one item, and a thread takes items as it becomes
//   free: the sums of dk and dv are in one order, however many threads there are. Blocks of queries go through all keys
//   they attend to: their weights are computed again, and kept until their five products are done. Operands are copied
//   to panels first, so that every product is one kind of register block.
// Precision: float64 in float64, everything else in float32. Keys whose weight is 0 have no part in ds, whatever they
//   are. Rows in which a product of finite numbers leaves the range are computed again: see wide_scores.h.
// Bytes: each array once in, each gradient once out; the panels of a head of 1024 keys stay in the second-level cache.
#include "attention_vjp.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_masks.h"
#include "convert.h"
#include "lanes.h"
#include "parallel.h"
#include "scratch.h"
#include "vector_math.h"
#include "wide_scores.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::size_t kStrip = 2;  // vectors of columns of a register block
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr std::size_t kMostGroup = 12;  // rows: 24 sums, 2 operands and a broadcast fit 32 registers
#else
constexpr std::size_t kMostGroup = 6;
#endif
constexpr std::int64_t kMostQueries = 64, kSliceKeys = 128;

template <class C>
constexpr std::int64_t kWidth = kStrip * kLanes<C>;  // columns of a strip

// A matrix in strips of kWidth columns, each of which has its rows one after another
template <class C>
struct Strips {
    C* data;
    std::int64_t rows;  // for which there is room
    C* at(std::int64_t strip, std::int64_t row) const { return data + (strip * rows + row) * kWidth<C>; }
};

// Any element of a matrix: a[row * of_row + i * of_step]
template <class C>
struct Left {
    const C* data;
    std::int64_t of_row, of_step;
};

// out[r][·] += Σ a(r, i) b(i, ·) for i below n, or = without a sum to add to
template <class C, std::size_t R>
[[gnu::noinline]] void block(const C* a, std::int64_t of_row, std::int64_t of_step, const C* b, std::int64_t n, C* out,
                             std::int64_t out_stride, bool adds) {
    constexpr std::int64_t lanes = kLanes<C>;
    Vec<C> sums[R][kStrip];
    for_each<R>([&](auto r) {
        for_each<kStrip>(
            [&](auto c) { sums[r][c] = adds ? load(out + std::int64_t{r} * out_stride + c * lanes) : Vec<C>{}; });
    });
    for (std::int64_t i = 0; i < n; ++i, b += kWidth<C>, a += of_step) {
        Vec<C> column[kStrip];
        for_each<kStrip>([&](auto c) { column[c] = load(b + c * lanes); });
        for_each<R>([&](auto r) {
            const C x = a[std::int64_t{r} * of_row];
            for_each<kStrip>([&](auto c) { sums[r][c] += x * column[c]; });
        });
    }
    for_each<R>([&](auto r) {
        for_each<kStrip>([&](auto c) { store(out + std::int64_t{r} * out_stride + c * lanes, sums[r][c]); });
    });
}

template <class C, std::size_t R = kMostGroup>
void block_of(std::int64_t rows, const C* a, std::int64_t of_row, std::int64_t of_step, const C* b, std::int64_t n,
              C* out, std::int64_t out_stride, bool adds) {
    if constexpr (R > 1) {
        if (rows < std::int64_t{R}) return block_of<C, R - 1>(rows, a, of_row, of_step, b, n, out, out_stride, adds);
    }
    block<C, R>(a, of_row, of_step, b, n, out, out_stride, adds);
}

// Rows of a times n rows of b from `begin` on, in strips; out(strip) is where the first row's results are.
template <class C, class F>
void multiply(Left<C> a, std::int64_t rows, const Strips<C>& b, std::int64_t begin, std::int64_t n, std::int64_t strips,
              F out, std::int64_t out_stride, bool adds) {
    constexpr std::int64_t group = kMostGroup;
    for (std::int64_t strip = 0; strip < strips; ++strip) {
        C* const to = out(strip);
        for (std::int64_t r = 0; r < rows; r += group)
            block_of(std::min(group, rows - r), a.data + r * a.of_row, a.of_row, a.of_step, b.at(strip, begin), n,
                     to + r * out_stride, out_stride, adds);
    }
}

std::int64_t strips_of(std::int64_t columns, std::int64_t width) { return (columns + width - 1) / width; }

// What a thread needs for an item
template <class C>
struct Room {
    static constexpr std::int64_t width = kWidth<C>, kParts = 12;

    std::int64_t queries, keys, stride;  // of a block, of a sequence, and from one row of scores to the next
    std::int64_t dims, value_dims;       // in strips
    std::int64_t dim, value_dim;         // in whole strips of columns
    std::int64_t sizes[kParts];

    Room(const Attention& op, std::int64_t most_keys) {
        keys = strips_of(most_keys, width) * width;
        // The weights of a block are in the second-level cache.
        queries = std::clamp<std::int64_t>((std::int64_t{1} << 16) / std::max<std::int64_t>(keys, 1), 16, kMostQueries);
        queries = std::min(queries, op.queries);
        stride = keys + 16;  // rows of a power of two would be in the same places of a cache
        dims = strips_of(op.dim, width);
        value_dims = strips_of(op.value_dim, width);
        dim = dims * width;
        value_dim = value_dims * width;
        const std::int64_t all[kParts] = {
            keys * dim,                                                      // k
            keys * op.dim,                                                   // kᵀ
            keys * op.value_dim,                                             // vᵀ
            keys * dim,                                                      // dk
            keys * value_dim,                                                // dv
            queries * dim,                                                   // q
            queries * value_dim,                                             // dy
            queries * stride,                                                // p
            queries * stride,                                                // dp, then ds
            queries * dim + (op.softcap != 0 ? queries * stride : 0),        // dq, and capped scores
            std::max(op.dim, op.value_dim),                                  // a row
            op.dim * static_cast<std::int64_t>(sizeof(double) / sizeof(C)),  // a row in double
        };
        std::copy_n(all, kParts, sizes);
    }
    std::int64_t bytes() const {
        std::int64_t all = 0;
        for (const std::int64_t n : sizes) all += whole_lines(n * static_cast<std::int64_t>(sizeof(C)));
        return all;
    }
};

template <class T>
class Item {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr std::int64_t lanes = kLanes<C>, width = kWidth<C>;

  public:
    Item(const AttentionVjp& op, const Room<C>& room, char* memory) : op_(op.forward), vjp_(op), room_(room) {
        C* at[Room<C>::kParts];
        for (std::int64_t i = 0; i < Room<C>::kParts; ++i) {
            at[i] = reinterpret_cast<C*>(memory);
            memory += whole_lines(room.sizes[i] * static_cast<std::int64_t>(sizeof(C)));
        }
        k_ = {at[0], room.keys};
        k_across_ = {at[1], op_.dim};
        v_across_ = {at[2], op_.value_dim};
        dk_ = at[3];
        dv_ = at[4];
        q_ = {at[5], room.queries};
        dy_ = {at[6], room.queries};
        p_ = at[7];
        ds_ = at[8];
        dq_ = at[9];
        capped_ = at[9] + room.queries * room.dim;
        row_ = at[10];
        wide_ = reinterpret_cast<double*>(at[11]);
    }

    void run(std::int64_t item) {
        batch_ = item / op_.kv_heads;
        kv_head_ = item % op_.kv_heads;
        reach_ = reach_of(op_, batch_);
        const std::int64_t keys = std::max<std::int64_t>(0, reach_.keys()), group = op_.heads / op_.kv_heads;
        std::fill_n(dk_, room_.keys * room_.dim, C{0});
        std::fill_n(dv_, room_.keys * room_.value_dim, C{0});
        if (keys > 0) pack_keys(keys);
        for (std::int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
            for (std::int64_t first = 0; first < op_.queries; first += room_.queries)
                one_block(head, first, std::min(room_.queries, op_.queries - first), keys);
        put(vjp_.dk, op_.dim, dk_, room_.dim, keys);
        put(vjp_.dv, op_.value_dim, dv_, room_.value_dim, keys);
    }

  private:
    static void read(const char* row, std::int64_t n, C* to) {
        if constexpr (is_same<T, C>)
            std::memcpy(to, row, static_cast<std::size_t>(n) * sizeof(C));
        else
            convert(reinterpret_cast<const T*>(row), to, n);
    }

    // Rows of features become strips, and columns of strips of keys; what is beyond either is 0.
    void pack_keys(std::int64_t keys) {
        C* const row = row_;
        const auto features = [&](const char* from, const std::int64_t* stride, std::int64_t n, const Strips<C>& across,
                                  const Strips<C>* along) {
            const char* head = from + batch_ * stride[0] + kv_head_ * stride[1];
            for (std::int64_t key = 0; key < room_.keys; ++key) {
                if (key < keys)
                    read(head + (reach_.first + key) * stride[2], n, row);
                else
                    std::fill_n(row, n, C{0});
                C* const column = across.at(key / width, 0) + key % width;
                for (std::int64_t i = 0; i < n; ++i) column[i * width] = row[i];
                if (!along) continue;
                spread(row, n, *along, key, room_.dims);
                keys_magnitude_ += magnitude(row);
            }
        };
        keys_magnitude_ = 0;
        features(op_.k, op_.k_stride, op_.dim, k_across_, &k_);
        features(op_.v, op_.v_stride, op_.value_dim, v_across_, nullptr);
    }

    static void spread(const C* row, std::int64_t n, const Strips<C>& to, std::int64_t index, std::int64_t strips) {
        for (std::int64_t strip = 0; strip < strips; ++strip) {
            const std::int64_t count = std::min(width, n - strip * width);
            std::copy_n(row + strip * width, count, to.at(strip, index));
            std::fill(to.at(strip, index) + count, to.at(strip, index) + width, C{0});
        }
    }

    // The gradients of a head: keys beyond those that a query may attend to have none.
    void put(char* to, std::int64_t features, const C* from, std::int64_t stride, std::int64_t keys) {
        T* rows = reinterpret_cast<T*>(to) + (batch_ * op_.kv_heads + kv_head_) * op_.keys * features;
        const auto zeros = [&](std::int64_t begin, std::int64_t end) {
            if (begin < end)
                std::memset(static_cast<void*>(rows + begin * features), 0,
                            static_cast<std::size_t>((end - begin) * features) * sizeof(T));
        };
        const std::int64_t first = std::min(reach_.first, op_.keys);
        zeros(0, first);
        for (std::int64_t key = 0; key < keys; ++key)
            convert(from + key * stride, rows + (first + key) * features, features);
        zeros(first + keys, op_.keys);
    }

    void one_block(std::int64_t head, std::int64_t first, std::int64_t queries, std::int64_t keys) {
        T* const dq = reinterpret_cast<T*>(vjp_.dq) + ((batch_ * op_.heads + head) * op_.queries + first) * op_.dim;
        const char* q = op_.q + batch_ * op_.q_stride[0] + head * op_.q_stride[1] + first * op_.q_stride[2];
        const char* dy = vjp_.dy + batch_ * vjp_.dy_stride[0] + head * vjp_.dy_stride[1] + first * vjp_.dy_stride[2];
        // The keys to which any of these queries attends
        const std::int64_t position = first + keys - op_.queries;
        const std::int64_t low = std::max<std::int64_t>(0, position - op_.left) / width * width;
        const std::int64_t high = std::min(keys, position + queries - 1 + op_.right + 1);
        if (high <= low) {
            std::memset(static_cast<void*>(dq), 0, static_cast<std::size_t>(queries * op_.dim) * sizeof(T));
            return;
        }
        C* const row = row_;
        bool is_wide[kMostQueries];
        const auto query_at = [&](std::int64_t r) { return at<T>(q + r * op_.q_stride[2]); };
        for (std::int64_t r = 0; r < queries; ++r) {
            read(q + r * op_.q_stride[2], op_.dim, row);
            for (std::int64_t i = 0; i < op_.dim; ++i) row[i] *= static_cast<C>(op_.scale);
            is_wide[r] = !(magnitude(row) * keys_magnitude_ < std::numeric_limits<C>::max() / 2);
            spread(row, op_.dim, q_, r, room_.dims);
            read(dy + r * vjp_.dy_stride[2], op_.value_dim, row);
            spread(row, op_.value_dim, dy_, r, room_.value_dims);
        }
        const std::int64_t begin = low / width, strips = strips_of(high, width) - begin, stride = room_.stride;
        // Rows of q and dy are in strips too: their features are steps within a strip.
        times_strips(q_, op_.dim, queries, k_across_, begin, strips, p_);
        times_strips(dy_, op_.value_dim, queries, v_across_, begin, strips, ds_);
        const char* mask = op_.mask + batch_ * op_.mask_stride[0] + head * op_.mask_stride[1];
        const auto allowed_at = [&](std::int64_t r) {
            return Range{std::clamp<std::int64_t>(position + r - op_.left, low, high),
                         std::clamp<std::int64_t>(position + r + op_.right + 1, low, high)};
        };
        C sink = kNothing<C>;
        if (op_.sinks) sink = load_as<C>(op_.sinks + head * op_.sinks_stride, op_.sinks_dtype);
        for (std::int64_t r = 0; r < queries; ++r) {
            const char* of_row = mask + (first + r) * op_.mask_stride[2] + reach_.first * op_.mask_stride[3];
            const Range every{low, strips_of(high, width) * width}, allowed = allowed_at(r);
            is_wide[r] = is_wide[r] && leaves_range(r, allowed, of_row, query_at(r));
            const C total = is_wide[r] ? wide_exponentials(r, every, allowed, of_row, sink, query_at(r))
                                       : exponentials(r, every, allowed, of_row, sink);
            slopes(r, every, total);
            if (!is_wide[r]) continue;
            std::fill_n(row, op_.dim, C{0});  // what it adds to dk is computed below
            spread(row, op_.dim, q_, r, room_.dims);
        }
        // dv and dk, of slices of keys whose sums the first-level cache holds
        const std::int64_t end = strips_of(high, width) * width;
        for (std::int64_t key = low; key < end; key += kSliceKeys) {
            const std::int64_t n = std::min(kSliceKeys, end - key);
            multiply(
                Left<C>{p_ + key, 1, stride}, n, dy_, 0, queries, room_.value_dims,
                [&](std::int64_t strip) { return dv_ + key * room_.value_dim + strip * width; }, room_.value_dim, true);
            multiply(
                Left<C>{ds_ + key, 1, stride}, n, q_, 0, queries, room_.dims,
                [&](std::int64_t strip) { return dk_ + key * room_.dim + strip * width; }, room_.dim, true);
            multiply(
                Left<C>{ds_ + key, stride, 1}, queries, k_, key, n, room_.dims,
                [&](std::int64_t strip) { return dq_ + strip * width; }, room_.dim, key > low);
        }
        const C scale = static_cast<C>(op_.scale);
        for (std::int64_t r = 0; r < queries; ++r) {
            C* const from = dq_ + r * room_.dim;
            for (std::int64_t i = 0; i < op_.dim; ++i) from[i] *= scale;
            if (is_wide[r]) wide_gradients(r, allowed_at(r), query_at(r), from);
            convert(from, dq + r * op_.dim, op_.dim);
        }
    }

    // out[r][key] = Σ a(r, i) b(i, key) for strips of keys; a has its own features in strips.
    void times_strips(const Strips<C>& a, std::int64_t features, std::int64_t rows, const Strips<C>& b,
                      std::int64_t begin, std::int64_t strips, C* out) {
        for (std::int64_t i = 0; i < features; i += width) {
            const Strips<C> from{b.data + begin * b.rows * width, b.rows};
            multiply(
                Left<C>{a.at(i / width, 0), width, 1}, rows, from, i, std::min(width, features - i), strips,
                [&](std::int64_t strip) { return out + (begin + strip) * width; }, room_.stride, i > 0);
        }
    }

    // Scores become exponentials relative to the largest; returns their sum.
    C exponentials(std::int64_t r, Range all, Range allowed, const char* mask, C sink) {
        C *s = p_ + r * room_.stride, *capped = capped_ + r * room_.stride;
        const C bound = static_cast<C>(op_.softcap);
        if (op_.softcap != 0) {
            for (std::int64_t j = all.begin; j < all.end; j += lanes) {
                const V ratio = tanh(load(s + j) / bound);
                store(capped + j, ratio);
                store(s + j, ratio * bound);
            }
        }
        if (op_.mask_kind != MaskKind::none && allowed.end > allowed.begin)
            apply_mask(op_, mask, s, allowed.begin, allowed.end);
        for (std::int64_t j = all.begin; j < allowed.begin; ++j) s[j] = kNothing<C>;
        for (std::int64_t j = std::max(allowed.begin, allowed.end); j < all.end; ++j) s[j] = kNothing<C>;
        V top = V{} + sink;
        for (std::int64_t j = all.begin; j < all.end; j += lanes) top = larger_ignoring_nan(top, load(s + j));
        C largest = largest_of_lanes(top);
        if (largest == kNothing<C>) largest = 0;
        V sum{};
        for (std::int64_t j = all.begin; j < all.end; j += lanes) {
            const V e = exp_of_negative(load(s + j) - largest);
            store(s + j, e);
            sum += e;
        }
        C total = sum_of_lanes<C>(sum);
        if (op_.sinks) total += exp_of_negative(V{} + (sink - largest))[0];
        return total;
    }

    // Exponentials become weights, and products of cotangents and values become the gradients of scores.
    void slopes(std::int64_t r, Range all, C total) {
        C *s = p_ + r * room_.stride, *d = ds_ + r * room_.stride, *capped = capped_ + r * room_.stride;
        const C inverse = total == 0 ? C{0} : 1 / total;
        V along{};
        for (std::int64_t j = all.begin; j < all.end; j += lanes) {
            const V p = load(s + j) * inverse;
            store(s + j, p);
            along += p == 0 ? V{} : p * load(d + j);
        }
        const C mean = sum_of_lanes<C>(along);
        for (std::int64_t j = all.begin; j < all.end; j += lanes) {
            const V p = load(s + j);
            V slope = p * (load(d + j) - mean);
            if (op_.softcap != 0) {
                const V ratio = load(capped + j);
                slope = slope * (1 - ratio * ratio);
            }
            store(d + j, p == 0 ? V{} : slope);
        }
    }

    // ------------------------------------------------------------------ scores beyond the range

    const T* key_at(std::int64_t key) const {
        const char* head = op_.k + batch_ * op_.k_stride[0] + kv_head_ * op_.k_stride[1];
        return at<T>(head + (reach_.first + key) * op_.k_stride[2]);
    }

    // The sum of magnitudes of a query's or key's features. The product of two such sums bounds their score.
    C magnitude(const C* row) const {
        V sum{};
        for (std::int64_t i = 0; i < op_.dim; i += lanes)
            sum -= minus_magnitude(load_some(row + i, std::min(lanes, op_.dim - i)));
        return sum_of_lanes<C>(sum);
    }

    // Whether the scaled query, or a score that counts, is not finite although the query and the key are
    bool leaves_range(std::int64_t r, Range allowed, const char* mask, const T* query) const {
        if (!all_finite(query, op_.dim)) return false;
        for (std::int64_t i = 0; i < op_.dim; ++i)
            if (!std::isfinite(load_one(query + i) * static_cast<C>(op_.scale))) return true;
        const C* s = p_ + r * room_.stride;
        for (std::int64_t j = allowed.begin; j < allowed.end; ++j)
            if (!std::isfinite(s[j]) && !mask_forbids(op_, mask, j) && all_finite(key_at(j), op_.dim)) return true;
        return false;
    }

    // The same as exponentials(), whatever the scores
    [[gnu::noinline]] C wide_exponentials(std::int64_t r, Range all, Range allowed, const char* mask, C sink,
                                          const T* q) {
        const WideQuery<T> query(q, op_.dim, op_.scale, wide_);
        C *e = p_ + r * room_.stride, *ratios = capped_ + r * room_.stride;
        const auto score = [&](std::int64_t key) {
            if (mask_forbids(op_, mask, key)) return Score{kNothing<double>, false};
            Score s = query.score(key_at(key));
            if (op_.softcap != 0) {
                s = capped(s, op_.softcap);
                ratios[key] = static_cast<C>(s.value / op_.softcap);
            }
            return masked<C>(op_, s, mask, key);
        };
        const Score sink_score{static_cast<double>(sink), false};
        Score largest = sink_score;
        for (std::int64_t key = allowed.begin; key < allowed.end; ++key)
            if (const Score s = score(key); below(largest, s)) largest = s;
        if (largest.value == kNothing<double>) largest.value = 0;
        double sum = weight_of(sink_score, largest);
        std::fill(e + all.begin, e + all.end, C{0});
        for (std::int64_t key = allowed.begin; key < allowed.end; ++key) {
            const double weight = weight_of(score(key), largest);
            e[key] = static_cast<C>(weight);
            sum += weight;
        }
        return static_cast<C>(sum);
    }

    // dq of such a row, and what it adds to dk
    [[gnu::noinline]] void wide_gradients(std::int64_t r, Range allowed, const T* query, C* dq) {
        double* const sums = wide_;
        std::fill_n(sums, op_.dim, 0.0);
        for (std::int64_t j = allowed.begin; j < allowed.end; ++j) {
            const double slope = static_cast<double>(ds_[r * room_.stride + j]) * op_.scale;
            if (slope == 0) continue;
            const T* key = key_at(j);
            C* const dk = dk_ + j * room_.dim;
            for (std::int64_t i = 0; i < op_.dim; ++i) {
                sums[i] += slope * static_cast<double>(load_one(key + i));
                dk[i] += static_cast<C>(slope * static_cast<double>(load_one(query + i)));
            }
        }
        for (std::int64_t i = 0; i < op_.dim; ++i) dq[i] = static_cast<C>(sums[i]);
    }

    const Attention& op_;
    const AttentionVjp& vjp_;
    const Room<C>& room_;
    Strips<C> k_, k_across_, v_across_, q_, dy_;
    C *dk_, *dv_, *p_, *ds_, *dq_, *capped_, *row_;
    double* wide_;
    C keys_magnitude_ = 0;  // of all keys together
    std::int64_t batch_ = 0, kv_head_ = 0;
    Reach reach_{};
};

template <class T>
void every_item(const AttentionVjp& op) {
    using C = Compute<T>;
    const Attention& forward = op.forward;
    std::int64_t most = 0;
    for (std::int64_t b = 0; b < forward.batch; ++b) most = std::max(most, reach_of(forward, b).keys());
    const Room<C> room(forward, most);
    const std::int64_t items = forward.batch * forward.kv_heads;
    const int threads = threads_for(items, forward.work);
    const Scratch scratch(threads * room.bytes());
    over_pieces(threads, items, [&](std::int64_t item, int member) {
        Item<T>(op, room, scratch.at<char>(member * room.bytes())).run(item);
    });
}

}  // namespace

TENSOROPS_KERNEL(attention_vjp, AttentionVjp) {
    for_dtype(op.forward.dtype, [&op](auto x) { every_item<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
