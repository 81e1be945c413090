// Work over threads.
//
// A call is divided into parts. Its thread does the first one and then every other that no thread has begun, and waits
// for those alone that somebody has: a thread that gets no processor, as other programs keep them busy, delays nobody.
// The threads are of this library; OpenMP's runtime, whose threads a caller would have to wait for, is only asked how
// many to use, so that OMP_NUM_THREADS and threadpoolctl hold.
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorops {

// Whether kernels that this thread calls are to stay on it, as somebody else shares out the work.
inline thread_local bool one_thread = false;

// At most so many threads, beside OpenMP's own bound; 0: OpenMP's alone. Any thread may set it while others compute.
inline std::atomic<int> thread_bound{0};

// Below this many bytes per thread, telling a thread costs what it saves: rms_norm that moves 64 KiB took 1.9 µs on one
// thread and 1.7 µs on two, one that moves 128 KiB 2.6 and 2.2 (medians of 7500 calls, 2 cores with AVX-512).
inline constexpr std::int64_t kBytesPerThread = 64 * 1024;

// Below this many bytes, waking a thread that sleeps costs more than it saves: 25 µs of the caller's time.
inline constexpr std::int64_t kBytesToWake = 4 * 1024 * 1024;

// OpenMP's bound, or without OpenMP the number of processors
int most_threads();

// As many of the threads as are awake, and now and then all of them, as more calls like this may follow.
int threads_in_reach(int threads);

inline int threads_for(std::int64_t rows, std::int64_t bytes) {
    if (bytes < 2 * kBytesPerThread || rows < 2 || one_thread) return 1;
    std::int64_t n = most_threads();
    if (const int bound = thread_bound.load(std::memory_order_relaxed); bound > 0 && n > bound) n = bound;
    if (n > bytes / kBytesPerThread) n = bytes / kBytesPerThread;
    if (n > rows) n = rows;
    if (n > 1 && bytes < kBytesToWake) return threads_in_reach(static_cast<int>(n));
    return static_cast<int>(n < 1 ? 1 : n);
}

// What a matrix of weights, each of so many bytes, times so many rows costs, in bytes moved by the operators that only
// move them: multiplying for one row is bound by the weights' bytes, for many by arithmetic.
inline std::int64_t matrix_work(std::int64_t rows, std::int64_t outputs, std::int64_t inputs, double weight_bytes) {
    return static_cast<std::int64_t>(static_cast<double>(outputs * inputs) *
                                     (4 * weight_bytes + static_cast<double>(rows)));
}

struct Share {
    std::int64_t begin, end;
};

struct Part {
    int index, count;

    // What this part is of `total` elements or rows: a contiguous span that begins at a multiple of `unit`.
    Share of(std::int64_t total, std::int64_t unit = 1) const {
        const std::int64_t units = (total + unit - 1) / unit;
        const std::int64_t begin = units * index / count * unit, end = units * (index + 1) / count * unit;
        return {begin, end < total ? end : total};
    }
};

// Calls run(work, part) once for each part, on this thread and on others. Returns when all are done; run must not
// throw.
void run_parts(int count, void (*run)(const void* work, Part part), const void* work);

// Calls work(part) for each of so many parts.
template <class F>
void in_parallel(int parts, const F& work) {
    run_parts(parts, [](const void* f, Part part) { (*static_cast<const F*>(f))(part); }, &work);
}

// In a child of fork(), which has none of its parent's threads: begins anew.
void forget_threads();

}  // namespace tensorops
