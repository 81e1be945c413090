// y = softmax(scale q·kᵀ) v, with masks, a soft cap and sinks, for every head.
//
// Work: the query rows of all heads that share a key head are processed together, in blocks of at most 144 rows; a
//   block goes through the keys in tiles of 128 and keeps the scores of one tile. If there are few blocks, the keys of
//   long sequences are also split into spans, whose results are merged; their number depends only on shapes and
//   lengths, so that the number of threads does not affect a result. Threads take blocks as they become free. Only
//   those keys of a sequence exist that are valid and in the window of some query. Of these, tiles to which a block may
//   not attend at all are skipped, unless they contain values that are not finite: these turn a weight of 0 into NaN.
// Pages: keys and values are read in place; a tile has a list of the parts that are adjacent in memory (Places).
// Blocks: keys and values in a quantized format are unpacked tile by tile, to float32 in the thread's own memory, where
//   everything else reads them.
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
#include <cstring>

#include "attention_plan.h"
#include "attention_worker.h"
#include "interruption.h"
#include "parallel.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

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
        Worker<T>& worker = Worker<T>::in(plan, memory, member.index, flags);
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < heads * plan.blocks;)
            if (noted(i / plan.blocks)) worker.widen(i, rooms + member.index * room, at);
    });
}

template <class T>
void attend(const Attention& op) {
    using C = Compute<T>;
    const Plan<T> plan(op);
    const int threads = threads_for(plan.items, op.work);
    const std::int64_t of_threads = threads * Worker<T>::size(plan), partial = plan.partial_size();
    const std::int64_t flags = plan.flags_size() + round_up(plan.all_rows(), 64);
    const std::int64_t numbers = whole_lines(op.batch * static_cast<std::int64_t>(sizeof(std::int64_t)));
    const std::int64_t elements = of_threads + plan.items * partial;
    const Scratch scratch(numbers + flags + elements * static_cast<std::int64_t>(sizeof(C)));
    std::int64_t* first_items = scratch.at<std::int64_t>(0);
    plan.number_items(first_items);
    std::uint8_t* known = scratch.at<std::uint8_t>(numbers);
    std::fill(known, known + flags, std::uint8_t{0});
    C* memory = scratch.at<C>(numbers + flags);
    C* partials = memory + of_threads;
    Interruption* const at = interruption;
    std::atomic<std::int64_t> next{0};
    // One thread counts by itself: an atomic addition takes as long as a few keys.
    const auto after = [&](std::int64_t i) {
        return threads == 1 ? i + 1 : next.fetch_add(1, std::memory_order_relaxed);
    };
    on_team(threads, [&](Member member) {
        Worker<T>& worker = Worker<T>::in(plan, memory, member.index, known);
        for (std::int64_t i = -1; (i = after(i)) < plan.items;) {
            const std::int64_t later = i + member.count;  // if threads take items alternately
            const Item next = plan.item_at(first_items, std::min(later, plan.items - 1));
            worker.run(plan.item_at(first_items, i), partials + i * partial, at, later < plan.items ? &next : nullptr);
        }
    });
    if (plan.has_spans && !leaves(at, 0)) {
        Worker<T>& worker = Worker<T>::in(plan, memory, 0, known);
        for (std::int64_t i = 0; i < plan.items; ++i) {
            const Item item = plan.item_at(first_items, i);
            if (item.spans > 1 && item.span == 0) worker.merge(item.block, item.spans, partials + i * partial);
        }
    }
    if (!leaves(at, 0)) widen_rows(plan, memory, known, threads, at);
}

}  // namespace

TENSOROPS_KERNEL(attention, Attention) {
    for_dtype(op.dtype, [&op](auto x) { attend<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
