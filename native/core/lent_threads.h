// Threads for callers whose kernels follow each other closely; parallel.cpp explains which threads there are.
#pragma once

#include "parallel.h"

namespace tensorops {

// A team of threads of our own, of at most `most`; 0: as many as kernels may use. They stay awake for a moment after
// each part, and whoever calls while they serve another call does its work alone.
Lender lent_threads(int most);

// What calls after the present one read, as rows of bytes: threads of the team that wait fetch it into their caches.
// They may find any mixture of old and new numbers, which is harmless, because fetching takes any address.
struct alignas(64) ReadNext {
    struct Part {
        std::atomic<const char*> begin{nullptr};
        std::atomic<std::int64_t> rows{0}, bytes{0}, stride{0};
    };
    static constexpr int kMost = 3;  // a cache's keys and values, and weights

    std::atomic<std::uint32_t> changes{0};
    std::atomic<int> count{0};
    Part parts[kMost];
};
inline ReadNext read_next;

}  // namespace tensorops
