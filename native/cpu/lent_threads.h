// Threads for callers whose kernels follow each other closely; parallel.cpp explains which threads there are.
#pragma once

#include "parallel.h"

namespace tensorops {

// A team of threads of our own, of at most so many; 0: as many as kernels may use. They stay awake for a moment after
// each part, and whoever calls while they serve another call does its work alone.
Lender lent_threads(int most);

// What calls after the present one read, as rows of bytes: threads of the team that wait fetch it into their caches.
// They may find any mixture of old and new numbers, which is harmless, because fetching takes any address.
struct ReadNext {
    struct Part {
        std::atomic<const char*> begin{nullptr};
        std::atomic<std::int64_t> rows{0}, bytes{0}, stride{0};
        std::atomic<std::int64_t> pieces{0};  // which over_stretches hands out, one after another; 0: it does not
    };
    static constexpr int kMost = 3;  // a cache's keys and values, and weights

    Part parts[kMost];
    std::atomic<int> count{0};
    std::atomic<std::uint32_t> changes{0};

    // Where the stretch of a thread begins in the weights that are read next, or nullptr if that is not known.
    const char* stretch(Member member) const {
        const int all = count.load(std::memory_order_relaxed);
        if (all == 0) return nullptr;
        const Part& weights = parts[all - 1];
        const std::int64_t of = weights.pieces.load(std::memory_order_relaxed);
        if (of == 0) return nullptr;
        const std::int64_t first = of * member.index / member.count;
        return weights.begin.load(std::memory_order_relaxed) +
               weights.bytes.load(std::memory_order_relaxed) / of * first;
    }
};
inline ReadNext read_next;

}  // namespace tensorops
