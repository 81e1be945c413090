// Distribution of rows over threads, with OpenMP if the compiler has it.
//
// GNU's OpenMP runtime cannot start threads in a child of fork() once the parent has run a parallel region; a child
// therefore stays on one thread (fork_happened, set by a handler that module.cpp installs).
#pragma once

#include <atomic>
#include <cstdint>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace tensorops {

inline bool fork_happened = false;

// Whether kernels called by this thread must stay on it, because the caller distributes the work.
inline thread_local bool one_thread = false;

// The maximum number of threads, besides OpenMP's own limit; 0: only OpenMP's. Any thread may set it at any time.
inline std::atomic<int> thread_bound{0};

// Below this many bytes per thread, waking a thread costs what it saves: rms_norm that moves 256 KiB took 3.4 µs on one
// thread and 3.3 µs on two, one that moves 768 KiB 11.9 and 6.9 (medians of 4000 calls, 2 cores with AVX-512).
inline constexpr std::int64_t kBytesPerThread = 128 * 1024;

inline int threads_for(std::int64_t rows, std::int64_t bytes) {
#if defined(_OPENMP)
    if (bytes < 2 * kBytesPerThread || rows < 2 || fork_happened || one_thread || omp_in_parallel()) return 1;
    std::int64_t n = omp_get_max_threads();
    if (const int bound = thread_bound.load(std::memory_order_relaxed); bound > 0 && n > bound) n = bound;
    if (n > bytes / kBytesPerThread) n = bytes / kBytesPerThread;
    if (n > rows) n = rows;
    return static_cast<int>(n < 1 ? 1 : n);
#else
    (void)rows, (void)bytes;
    return 1;
#endif
}

// The cost of multiplying a number of rows by a matrix of weights of a given size, in bytes moved by memory-bound
// operators: one row is bound by the weights' bytes, many rows by arithmetic.
inline std::int64_t matrix_work(std::int64_t rows, std::int64_t outputs, std::int64_t inputs, double weight_bytes) {
    const double work =
        static_cast<double>(outputs) * static_cast<double>(inputs) * (4 * weight_bytes + static_cast<double>(rows));
    return static_cast<std::int64_t>(work < 1e18 ? work : 1e18);
}

// The number of the calling thread of a parallel region, from 0 on.
inline int thread_index() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// The number of threads of the innermost parallel region.
inline int team_size() {
#if defined(_OPENMP)
    return omp_get_num_threads();
#else
    return 1;
#endif
}

// A contiguous part of some elements or rows, and the number of the thread that takes it.
struct Share {
    std::int64_t begin, end;
    int thread;
};

// Calls f(share) on each of a number of threads, for parts of `total` that begin at multiples of `unit`.
template <class F>
void over_shares(int threads, std::int64_t total, std::int64_t unit, const F& f) {
    if (threads == 1) return f(Share{0, total, 0});
#pragma omp parallel num_threads(threads)
    {
        const std::int64_t count = team_size(), mine = thread_index(), units = (total + unit - 1) / unit;
        const std::int64_t begin = units * mine / count * unit, end = units * (mine + 1) / count * unit;
        f(Share{begin, end < total ? end : total, static_cast<int>(mine)});
    }
}

}  // namespace tensorops
