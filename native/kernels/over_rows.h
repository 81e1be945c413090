// Distributes independent rows over threads, in contiguous blocks.
#pragma once

#include <type_traits>

#include "parallel.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// Calls row(i) for a number of rows that together move a number of bytes.
template <class F>
void over_rows(std::int64_t rows, std::int64_t bytes, const F& row) {
    over_shares(threads_for_rows(rows, bytes), rows, 1, [&row](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end; ++i) row(i);
    });
}

// Calls row(streaming, i) for the rows of a share, where `streaming`, whether to write past the caches, is a constant.
template <class F>
void rows_of_share(Share mine, bool streaming, const F& row) {
    if (!streaming) {
        for (std::int64_t i = mine.begin; i < mine.end; ++i) row(std::false_type{}, i);
        return;
    }
    for (std::int64_t i = mine.begin; i < mine.end; ++i) row(std::true_type{}, i);
    stream_fence();
}

// The same for a number of rows that together move a number of bytes
template <class F>
void over_rows(std::int64_t rows, std::int64_t bytes, bool streaming, const F& row) {
    over_shares(threads_for_rows(rows, bytes), rows, 1,
                [&row, streaming](Share mine) { rows_of_share(mine, streaming, row); });
}

}  // namespace tensorops::TENSOROPS_TARGET
