// One thread's work on attention: a block of query rows goes through the keys of a span, tile by tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <type_traits>

#include "attention.h"
#include "attention_blocks.h"
#include "attention_masks.h"
#include "attention_plan.h"
#include "block_values.h"
#include "interruption.h"
#include "scratch.h"
#include "vector_math.h"
#include "wide_scores.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // part of attention.cpp

template <class T>
class Worker {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr std::int64_t lanes = kLanes<C>, kBytes = sizeof(T);

  public:
    // The elements of a thread's memory: it holds a worker as well, which is too large for the stack.
    static std::int64_t size(const Plan<T>& plan) { return plan.thread_size() + own_size(); }

    // That of a thread. flags: plan.flags_size(), and one for each row
    static Worker& in(const Plan<T>& plan, C* memory, std::int64_t thread, std::uint8_t* flags) {
        static_assert(std::is_trivially_destructible_v<Worker>);
        C* const own = memory + thread * size(plan);
        return *new (own) Worker(plan, own + own_size(), flags);
    }

    // The last blocks come first: under a causal mask they have the most work. `partial` is the item's, for the merge.
    // `next` is the item that this thread is likely to take next, or nullptr.
    void run(Item item, C* partial, Interruption* at, const Item* next) {
        begin_block(item.block);
        const auto [first, last] = tiles_of(item, keys_count_);
        for (std::int64_t tile = first; tile < last; ++tile) {
            if (leaves(at, count_ * kTile * (op_.dim + op_.value_dim))) return;
            next_ = tile + 1 == last ? next : nullptr;
            one_tile(tile);
        }
        for (std::int64_t r = 0; r < count_; ++r) {
            const C sum = sum_of_lanes<C>(load(sums_ + r * lanes));
            if (item.spans == 1)
                finish(r, largest_[r], sum, y_ + r * plan_.width);
            else
                keep(partial, r, sum);
        }
    }

    // Puts the spans of a block together.
    void merge(std::int64_t block, std::int64_t spans, const C* partials) {
        begin_block(block);
        const std::int64_t stride = plan_.partial_size(), width = plan_.width;
        for (std::int64_t r = 0; r < count_; ++r) {
            const std::int64_t state = plan_.block_rows * width + 2 * r;
            C largest = kNothing<C>, sum = 0;
            for (std::int64_t s = 0; s < spans; ++s) largest = std::max(largest, partials[s * stride + state]);
            C* y = y_ + r * width;
            for (std::int64_t s = 0; s < spans; ++s) {
                const C* part = partials + s * stride;
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
            if (leaves(at, keys_count_ * (op_.dim + op_.value_dim) * 8)) return;
            widen_row(r, room);
        }
    }

  private:
    static std::int64_t own_size() {  // whole cache lines
        return whole_lines(static_cast<std::int64_t>(sizeof(Worker))) / static_cast<std::int64_t>(sizeof(C));
    }

    Worker(const Plan<T>& plan, C* memory, std::uint8_t* flags)
        : plan_(plan), op_(plan.op), flags_(flags), wide_(flags + plan.flags_size()) {
        queries_ = memory;
        keys_ = queries_ + plan.query_size();
        values_ = keys_ + plan.key_size();
        unpacked_keys_ = values_ + plan.value_size();
        unpacked_values_ = unpacked_keys_ + (plan.in_blocks ? kTile * op_.dim : 0);
        scores_ = unpacked_keys_ + plan.unpacked_size();
        y_ = scores_ + plan.score_size();
        sums_ = y_ + plan.result_size();
        tops_ = sums_ + plan.sum_size();
    }

    static Range tiles_of(Item item, std::int64_t keys) {
        const std::int64_t tiles = Plan<T>::tiles_for(keys);
        return {tiles * item.span / item.spans, tiles * (item.span + 1) / item.spans};
    }

    // ------------------------------------------------------------------ a block of rows

    void begin_block(std::int64_t index) {
        const std::int64_t block = plan_.blocks - 1 - index % plan_.blocks;
        head_index_ = index / plan_.blocks;
        batch_ = head_index_ / op_.kv_heads;
        kv_head_ = head_index_ % op_.kv_heads;
        const Reach reach = reach_of(op_, batch_);
        first_key_ = reach.first;
        keys_count_ = reach.keys();
        k_ = op_.k + kv_head_ * op_.k_stride[1];
        v_ = op_.v + kv_head_ * op_.v_stride[1];
        first_ = block * plan_.block_rows;
        count_ = std::min(plan_.block_rows, plan_.rows - first_);
        groups_ = (count_ + kRows - 1) / kRows;
        begin_rows();
        const std::int64_t tops = plan_.top_size();  // a vector for each row of whole vectors
        std::fill(largest_, largest_ + tops / lanes, kNothing<C>);
        std::fill(correction_, correction_ + tops / lanes, C{1});
        std::fill(tops_, tops_ + tops, kNothing<C>);
        std::fill(y_, y_ + plan_.result_size(), C{0});
        std::fill(sums_, sums_ + plan_.sum_size(), C{0});
        find_limits();
        pack_queries();
    }

    std::int64_t head_of(std::int64_t r) const { return kv_head_ * plan_.group + (first_ + r) / op_.queries; }
    // Index of a row among those of the call: the rows of a key head are adjacent in the result.
    std::int64_t row_of(std::int64_t r) const { return head_index_ * plan_.rows + first_ + r; }
    T* result_at(std::int64_t r) const { return reinterpret_cast<T*>(op_.y) + row_of(r) * op_.value_dim; }

    // From here on, keys count from first_key_. The window lets a row attend to keys from low_ to high_.
    void begin_rows() {
        std::int64_t head = head_of(0), query = first_ % op_.queries;
        for (std::int64_t r = 0; r < count_; ++r) {
            const std::int64_t position = query + keys_count_ - op_.queries;
            low_[r] = std::max<std::int64_t>(0, position - op_.left);
            high_[r] = std::max<std::int64_t>(0, std::min(keys_count_, position + op_.right + 1));
            query_[r] = op_.q + batch_ * op_.q_stride[0] + head * op_.q_stride[1] + query * op_.q_stride[2];
            mask_[r] = op_.mask + batch_ * op_.mask_stride[0] + head * op_.mask_stride[1] + query * op_.mask_stride[2] +
                       first_key_ * op_.mask_stride[3];
            if (++query < op_.queries) continue;
            query = 0;
            ++head;
        }
    }

    void find_limits() {
        most_low_ = 0;
        least_high_ = keys_count_;
        limits_ = {keys_count_, 0};
        for (std::int64_t g = 0; g < groups_; ++g) {
            Range& limits = group_limits_[g] = {keys_count_, 0};
            for (std::int64_t r = g * kRows; r < std::min(count_, (g + 1) * kRows); ++r) {
                limits = {std::min(limits.begin, low_[r]), std::max(limits.end, high_[r])};
                most_low_ = std::max(most_low_, low_[r]);
                least_high_ = std::min(least_high_, high_[r]);
            }
            limits_ = {std::min(limits_.begin, limits.begin), std::max(limits_.end, limits.end)};
        }
    }

    // ------------------------------------------------------------------ where keys and values are

    // Where a key is: in which piece, a page of the sequence or all of it, and how many follow there, including this
    // one
    struct Cursor {
        std::int64_t page, position, left;
    };
    Cursor cursor_at(std::int64_t key) const { return cursor_of(first_key_ + key); }
    Cursor cursor_of(std::int64_t position) const {
        if (!op_.pages) return {0, position, kUnbounded};
        const std::int64_t page = position / op_.page_size, within = position - page * op_.page_size;
        return {page, within, op_.page_size - within};
    }
    void advance(Cursor& cursor, std::int64_t n) const {
        cursor.position += n;
        cursor.left -= n;
        if (cursor.left == 0) cursor = {cursor.page + 1, 0, op_.page_size};
    }
    const char* place_of(const Cursor& at, const char* first, const std::int64_t* stride) const {
        return place_of(at, first, stride, batch_);
    }
    const char* place_of(const Cursor& at, const char* first, const std::int64_t* stride, std::int64_t batch) const {
        const std::int64_t owner = op_.pages ? op_.pages[batch * op_.pages_each + at.page] : batch;
        return first + owner * stride[0] + at.position * stride[2];
    }

    // Where n keys and values from `start` on are, and what is to be prefetched meanwhile.
    void find_places(std::int64_t start, std::int64_t n) {
        Cursor here = cursor_at(start), ahead = cursor_at(start + plan_.ahead);
        const std::int64_t fetched = plan_.ahead == 0 ? 0 : keys_count_ - plan_.ahead - start;
        std::int64_t begin = 0;
        for (std::int64_t i = 0; begin < n; ++i) {
            const bool fetches = begin < fetched;
            std::int64_t count = std::min(n - begin, here.left);
            if (fetches) count = std::min({count, ahead.left, fetched - begin});
            const auto part = [&](const char* first, const std::int64_t* stride) {
                return Part{place_of(here, first, stride), fetches ? place_of(ahead, first, stride) : nullptr, begin,
                            begin + count};
            };
            key_parts_[i] = part(k_, op_.k_stride);
            value_parts_[i] = part(v_, op_.v_stride);
            if (plan_.fetches_values) key_parts_[i].ahead = value_parts_[i].first;
            advance(here, count);
            if (fetches) advance(ahead, count);
            begin += count;
        }
        if (plan_.fetches_values && next_) fetch_next_keys(n);
        if (plan_.in_blocks) {
            unpack(key_parts_, op_.k_stride[2], n, op_.dim, unpacked_keys_);
            unpack(value_parts_, op_.v_stride[2], n, op_.value_dim, unpacked_values_);
        }
    }
    // Lets n keys or values in blocks be where they are unpacked, one after another.
    void unpack(Part* parts, std::int64_t stride, std::int64_t n, std::int64_t features, C* to) {
        if constexpr (is_same<T, float>) {
            C* out = to;
            Places{parts, stride}.for_first(n, [&](const char* place) {
                unpack_row(op_.format, place, features, out);
                out += features;
            });
            parts[0] = {reinterpret_cast<const char*>(to), nullptr, 0, n};
        }
    }
    // Lets n values fetch as many of the first keys of the next item. Where a page of that one ends before a part of
    // the values, some lines are fetched in vain.
    void fetch_next_keys(std::int64_t n) {
        const std::int64_t head = next_->block / plan_.blocks, batch = head / op_.kv_heads;
        const Reach reach = reach_of(op_, batch);
        const std::int64_t start = tiles_of(*next_, reach.keys()).begin * kTile, count = reach.keys() - start;
        const char* k = op_.k + head % op_.kv_heads * op_.k_stride[1];
        for (Part* part = value_parts_; part->begin < std::min(n, count); ++part) {
            part->ahead = place_of(cursor_of(reach.first + start + part->begin), k, op_.k_stride, batch);
            if (part->end == n) return;
        }
    }
    Places keys() const { return {key_parts_, plan_.in_blocks ? op_.dim * kBytes : op_.k_stride[2]}; }
    Places values() const { return {value_parts_, plan_.in_blocks ? op_.value_dim * kBytes : op_.v_stride[2]}; }

    // Scaled and widened, with zeros in the rows that fill the last register block.
    void pack_queries() {
        const std::int64_t dim = op_.dim;
        C* out = queries_;
        for (std::int64_t r = 0; r < count_; ++r, out += dim) {
            const T* q = at<T>(query_[r]);
            std::int64_t i = 0;
            for (; i + lanes <= dim; i += lanes) store(out + i, load(q + i) * plan_.scale);
            if (i < dim) store_part(out + i, load_part(q + i, dim - i) * plan_.scale, dim - i);
        }
        std::fill(out, queries_ + plan_.query_size(), C{0});
    }

    // ------------------------------------------------------------------ a tile of keys

    void one_tile(std::int64_t tile) {
        const std::int64_t start = tile * kTile, n = std::min(kTile, keys_count_ - start);
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
        find_places(start, n);
        score(n, all);
        for_each_row([&](std::int64_t r, Range range) { mask_row(r, start, n, range); });
        raise_largest();
        for_each_row([&](std::int64_t r, Range range) { exponentiate(r, range); });
        weigh(n);
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
            find_places(start, n);
            values().for_first(n, [&](const char* place) {
                const T* v = at<T>(place);
                std::int64_t i = 0;
                for (; i + lanes <= op_.value_dim; i += lanes) zero += load(v + i) * C{0};
                if (i < op_.value_dim) zero += load_part(v + i, op_.value_dim - i) * C{0};
            });
            known = sum_of_lanes<C>(zero) == 0 ? finite : not_finite;
            __atomic_store_n(flag, known, __ATOMIC_RELAXED);
        }
        return known == finite;
    }

    // ------------------------------------------------------------------ scores

    void score(std::int64_t n, Range range) {
        if (range.end <= range.begin) return;
        if (plan_.direct)
            return (plan_.ahead > 0 || plan_.fetches_values
                        ? score_direct<T, true>
                        : score_direct<T, false>)(queries_, count_, keys(), range, op_.dim, scores_);
        constexpr std::int64_t panel = Plan<T>::panel;
        const Part* part = key_parts_;
        for (std::int64_t p = range.begin / panel * panel; p < range.end; p += panel) {
            const int columns = static_cast<int>((std::min(panel, range.end - p) + lanes - 1) / lanes);
            pack_keys(p, n, columns, part);
            for (std::int64_t g = 0; g < groups_; ++g)
                if (ranges_[g].begin < p + panel && ranges_[g].end > p)
                    score_panel(columns, queries_ + g * kRows * op_.dim, keys_, op_.dim,
                                scores_ + g * kRows * kTile + p);
        }
    }

    // The first vectors of a panel of keys, transposed; the last of n again beyond it. The first key is in `part` or a
    // later one.
    void pack_keys(std::int64_t first, std::int64_t n, int columns, const Part*& part) {
        constexpr std::int64_t panel = Plan<T>::panel;
        for (std::int64_t key = 0; key < columns * lanes; key += lanes) {
            const T* from[lanes];
            keys().find(std::min(first + key, n - 1), n, part, from);
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
    void weigh(std::int64_t n) {
        constexpr std::int64_t panel = kColumns * lanes;
        for (std::int64_t i = 0; i < plan_.width; i += panel) {
            const int columns = static_cast<int>(std::min(panel, plan_.width - i) / lanes);
            if (plan_.packs_values) {
                pack_values(n, i, columns);
                const Part packed{reinterpret_cast<const char*>(values_), nullptr, 0, n};
                weigh_panel<C>({&packed, columns * static_cast<std::int64_t>(sizeof(V))}, 0, i, columns);
            } else {
                weigh_panel<T>(values(), i * kBytes, i, columns);
            }
        }
    }

    void pack_values(std::int64_t n, std::int64_t first, int columns) {
        C* out = values_;
        values().for_first(n, [&](const char* place) {
            const T* row = at<T>(place) + first;
            for (std::int64_t c = 0; c < columns; ++c, out += lanes) {
                const std::int64_t rest = op_.value_dim - first - c * lanes;
                store(out, rest >= lanes ? load(row + c * lanes) : load_part(row + c * lanes, rest));
            }
        });
    }

    template <class S>
    void weigh_panel(const Places& values, std::int64_t offset, std::int64_t first, int columns) {
        for (std::int64_t g = 0; g < groups_; ++g) {
            if (ranges_[g].end <= ranges_[g].begin) continue;
            const std::int64_t row = g * kRows;
            const int rows = plan_.direct ? static_cast<int>(std::min<std::int64_t>(kRows, count_ - row)) : kRows;
            weigh_for<S>(rows, columns)(scores_ + row * kTile, values, offset, ranges_[g], g == 0, correction_ + row,
                                        y_ + row * plan_.width + first, plan_.width);
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
    std::uint8_t* is_wide(std::int64_t r) const { return wide_ + row_of(r); }

    // Records a row with a score that is not finite although the query and the key are. Spans of its keys may do so at
    // the same time.
    void find_overflow(std::int64_t r, std::int64_t start, Range range) {
        if (!all_finite(at<T>(query_[r]), op_.dim)) return;
        const C* s = scores_ + r * kTile;
        const std::int64_t end = std::min(range.end, high_[r] - start);
        for (std::int64_t j = std::max(range.begin, low_[r] - start); j < end; ++j) {
            if (std::isfinite(s[j]) || mask_forbids(op_, mask_[r], start + j)) continue;
            if (!all_finite(at<T>(keys().find(j)), op_.dim)) continue;
            return __atomic_store_n(is_wide(r), std::uint8_t{1}, __ATOMIC_RELAXED);
        }
    }

    // The score of the first key that find_places has found
    Score wide_score(const WideQuery<T>& query, std::int64_t r, std::int64_t key) const {
        const Score hidden{kNothing<double>, false};
        if (key < low_[r] || key >= high_[r] || mask_forbids(op_, mask_[r], key)) return hidden;
        Score score = query.score(at<T>(key_parts_->first));
        if (op_.softcap != 0) score = capped(score, op_.softcap);
        return masked<C>(op_, score, mask_[r], key);
    }

    void widen_row(std::int64_t r, double* room) {
        const WideQuery<T> query(at<T>(query_[r]), op_.dim, op_.scale, room);
        const Score sink{op_.sinks ? static_cast<double>(sink_of(r)) : kNothing<double>, false};
        Score largest = sink;
        for (std::int64_t key = 0; key < keys_count_; ++key) {
            find_places(key, 1);
            const Score score = wide_score(query, r, key);
            if (below(largest, score)) largest = score;
        }
        if (largest.value == kNothing<double>) largest.value = 0;
        const double unit = static_cast<double>(plan_.unit);
        double* y = room + op_.dim;
        std::fill(y, y + op_.value_dim, 0.0);
        double sum = weight_of(sink, largest) * unit;
        for (std::int64_t key = 0; key < keys_count_; ++key) {
            find_places(key, 1);
            const double weight = weight_of(wide_score(query, r, key), largest) * unit;
            const T* v = at<T>(value_parts_->first);
            sum += weight;
            for (std::int64_t i = 0; i < op_.value_dim; ++i) y[i] += weight * static_cast<double>(load_one(v + i));
        }
        for (std::int64_t i = 0; i < op_.value_dim; ++i)
            store_one(result_at(r) + i, static_cast<C>(sum == 0 ? y[i] : y[i] / sum));
    }

    const Plan<T>& plan_;
    const Attention& op_;
    C *queries_, *keys_, *values_, *unpacked_keys_, *unpacked_values_, *scores_, *y_, *sums_, *tops_;
    std::uint8_t *flags_, *wide_;

    // The current block
    std::int64_t head_index_, batch_, kv_head_, first_, count_, groups_;
    std::int64_t first_key_, keys_count_;
    const char *k_, *v_;  // of the head, in the first sequence or page
    std::int64_t most_low_, least_high_;
    Range limits_, group_limits_[kGroups], ranges_[kGroups];
    std::int64_t low_[kBlockRows], high_[kBlockRows];
    const char *query_[kBlockRows], *mask_[kBlockRows];
    C largest_[kBlockRows], correction_[kBlockRows];

    // The current tile
    const Item* next_ = nullptr;  // to be fetched meanwhile
    Part key_parts_[kTile], value_parts_[kTile];
};

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
