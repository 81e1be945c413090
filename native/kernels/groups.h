// How products with the matrices of experts are distributed: see grouped_linear.cpp.
#pragma once

#include "dot_tiles.h"
#include "grouped_linear.h"

namespace tensorops::TENSOROPS_TARGET {

// Rows of one expert in a batch.
struct Segment {
    std::int64_t expert;
    const std::int64_t* rows;   // their numbers
    std::int64_t count, place;  // the place of the first in the batch
};

// Segments that are computed together, with at most kChunkRows rows.
struct Batch {
    Segment segments[kChunkRows];
    std::int64_t count = 0, rows = 0;
};

// Calls batch(batch) for all rows: whole experts as long as they fit, and parts of those that never do.
template <class F>
void over_batches(const Groups& groups, const F& f) {
    std::int64_t expert = 0, at = 0;
    const std::int64_t total = groups.ends[groups.experts - 1];
    while (at < total) {
        Batch batch;
        for (; expert < groups.experts; ++expert) {
            const std::int64_t left = groups.ends[expert] - at;
            if (left == 0) continue;
            if (batch.rows > 0 && batch.rows + left > kChunkRows) break;
            const std::int64_t taken = std::min(left, kChunkRows);
            batch.segments[batch.count++] = {expert, groups.order + at, taken, batch.rows};
            batch.rows += taken;
            at += taken;
            if (taken < left) break;
        }
        f(static_cast<const Batch&>(batch));
    }
}

// What the choice of the number of threads and of memory needs to know.
struct Extent {
    std::int64_t experts = 0;  // that have rows
    std::int64_t most = 0;     // rows of one expert
    std::int64_t work = 0;
};

inline Extent extent_of(const Groups& groups, std::int64_t outputs, std::int64_t n, double weight_bytes) {
    constexpr std::int64_t kEnough = std::int64_t{1} << 40;
    Extent extent;
    for (std::int64_t e = 0; e < groups.experts; ++e) {
        const std::int64_t count = groups.count(e);
        if (count == 0) continue;
        ++extent.experts;
        extent.most = std::max(extent.most, count);
        extent.work = std::min(kEnough, extent.work + std::min(kEnough, matrix_work(count, outputs, n, weight_bytes)));
    }
    return extent;
}

// Calls compute(segment, first, width, member) for all blocks of at most `block` outputs of every segment, which
// threads take as they become free.
template <class F>
void over_outputs(const Batch& batch, std::int64_t outputs, std::int64_t block, int threads, const F& compute) {
    const std::int64_t blocks = (outputs + block - 1) / block;
    over_pieces(threads, batch.count * blocks, [&](std::int64_t piece, int member) {
        const std::int64_t first = piece % blocks * block;
        compute(batch.segments[piece / blocks], first, std::min(block, outputs - first), member);
    });
}

// Calls prepare(segment) for the segments of a batch.
template <class F>
void over_segments(const Batch& batch, int threads, const F& prepare) {
    over_pieces(static_cast<int>(std::min<std::int64_t>(threads, batch.count)), batch.count,
                [&](std::int64_t index, int) { prepare(batch.segments[index]); });
}

}  // namespace tensorops::TENSOROPS_TARGET
