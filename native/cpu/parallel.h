// Rows over threads: OpenMP where the compiler has it.
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

// Whether kernels that this thread calls are to stay on it, as somebody else shares out the work.
inline thread_local bool one_thread = false;

// At most so many threads, beside OpenMP's own bound; 0: OpenMP's alone. Any thread may set it while others compute.
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

// What a matrix of weights, each of so many bytes, times so many rows costs, in bytes moved by the operators that only
// move them: multiplying for one row is bound by the weights' bytes, for many by arithmetic.
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

// How many threads the innermost parallel region has.
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

// Calls f(share) on each of so many threads, for parts of `total` that begin at multiples of `unit`.
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
