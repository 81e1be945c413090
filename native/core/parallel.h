// Distribution of work over a team of threads; parallel.cpp explains which threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace tensorops {

// Whether kernels called by this thread must stay on it, because the caller distributes the work.
inline thread_local bool one_thread = false;

// The maximum number of threads, besides OpenMP's own limit; 0: only OpenMP's. Any thread may set it at any time.
inline std::atomic<int> thread_bound{0};

// The processors that this process may use; 0: no bound. More threads than that only wait for each other.
inline std::atomic<int> processors{0};

// Below this many bytes per thread, waking a thread costs what it saves: rms_norm that moves 256 KiB took 3.4 µs on one
// thread and 3.3 µs on two, one that moves 768 KiB 11.9 and 6.9 (medians of 4000 calls, 2 cores with AVX-512).
inline constexpr std::int64_t kBytesPerThread = 128 * 1024;

// The same for the kernels called by this thread: less where a caller lends threads that are awake.
inline thread_local std::int64_t bytes_per_thread = kBytesPerThread;
// The same for operators on rows or elements, which do less for each byte
inline thread_local std::int64_t row_bytes_per_thread = kBytesPerThread;

// The number of threads that a kernel called by this thread may use for any amount of work.
int available_threads();

inline int threads_for(std::int64_t rows, std::int64_t bytes, std::int64_t bytes_of_each) {
    if (bytes < 2 * bytes_of_each || rows < 2 || one_thread) return 1;
    std::int64_t n = available_threads();
    if (n > bytes / bytes_of_each) n = bytes / bytes_of_each;
    if (n > rows) n = rows;
    return static_cast<int>(n < 1 ? 1 : n);
}
inline int threads_for(std::int64_t rows, std::int64_t bytes) { return threads_for(rows, bytes, bytes_per_thread); }
inline int threads_for_rows(std::int64_t rows, std::int64_t bytes) {
    return threads_for(rows, bytes, row_bytes_per_thread);
}

// One part of the work, and the number of parts. Parts must not wait for each other: a thread may take several.
struct Member {
    int index, count;
};

// Threads that a caller lends to the kernels it calls: they use these instead of those of parallel.cpp.
struct Lender {
    std::int64_t threads;
    // Calls work for all parts, of which a thread may take several, as on_team does.
    void (*run)(const Lender& lender, int parts, void (*work)(const void* context, Member member), const void* context);
};

// That of the kernels called by this thread, or nullptr
inline thread_local const Lender* lender = nullptr;

// The cost of multiplying a number of rows by a matrix of weights of a given size, in bytes moved by memory-bound
// operators: one row is bound by the weights' bytes, many rows by arithmetic.
inline std::int64_t matrix_work(std::int64_t rows, std::int64_t outputs, std::int64_t inputs, double weight_bytes) {
    const double work =
        static_cast<double>(outputs) * static_cast<double>(inputs) * (4 * weight_bytes + static_cast<double>(rows));
    return static_cast<std::int64_t>(work < 1e18 ? work : 1e18);
}

// Calls work(context, member) for every part of at most `threads`, on this and other threads. No work may throw.
void on_team(int threads, void (*work)(const void* context, Member member), const void* context);

template <class F>
void on_team(int threads, const F& f) {
    if (threads == 1) return f(Member{0, 1});
    on_team(threads, [](const void* context, Member member) { (*static_cast<const F*>(context))(member); }, &f);
}

// A contiguous part of some elements or rows, and the index of its part of the work.
struct Share {
    std::int64_t begin, end;
    int member;
};

// Calls f(share) for parts of `total` that begin at multiples of `unit`, one for each thread.
template <class F>
void over_shares(int threads, std::int64_t total, std::int64_t unit, const F& f) {
    if (threads == 1) return f(Share{0, total, 0});
    on_team(threads, [&](Member member) {
        const std::int64_t units = (total + unit - 1) / unit;
        const std::int64_t begin = units * member.index / member.count * unit;
        const std::int64_t end = units * (member.index + 1) / member.count * unit;
        f(Share{begin, end < total ? end : total, member.index});
    });
}

// Calls f(piece, member) for pieces 0 to count - 1, which threads take as they become free.
template <class F>
void over_pieces(int threads, std::int64_t count, const F& f) {
    std::atomic<std::int64_t> next{0};
    on_team(threads, [&](Member member) {
        for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i, member.index);
    });
}

// Calls f(i) for pieces 0 to count - 1. Each thread begins with its share and goes through it in order, as memory
// is read fastest; idle threads steal from the tail of another's range.
template <class F>
void over_stretches(int threads, std::int64_t count, const F& f) {
    constexpr int kMost = 64;
    struct alignas(64) Stretch {
        std::atomic<std::uint64_t> state;  // the first that is left, and in the upper half the end

        // Takes the first pieces, a quarter of what is left, or the last one. Not each piece by itself: a locked
        // instruction waits for the stores before it, a third of a microsecond if another processor has their lines.
        std::pair<std::int64_t, std::int64_t> take(bool first) {
            std::uint64_t old = state.load(std::memory_order_relaxed);
            for (;;) {
                const std::uint64_t begin = old & 0xffffffff, end = old >> 32;
                if (begin >= end) return {0, 0};
                const std::uint64_t count = first ? std::max<std::uint64_t>((end - begin) / 4, 1) : 1;
                const std::uint64_t left = first ? old + count : old - (count << 32);
                if (!state.compare_exchange_weak(old, left, std::memory_order_relaxed)) continue;
                const auto from = static_cast<std::int64_t>(first ? begin : end - count);
                return {from, from + static_cast<std::int64_t>(count)};
            }
        }
    };
    if (threads == 1 || threads > kMost || count > 0xffffffff)
        return over_shares(threads, count, 1, [&f](Share share) {
            for (std::int64_t i = share.begin; i < share.end; ++i) f(i);
        });
    Stretch stretches[kMost];
    for (int k = 0; k < threads; ++k) {
        const auto begin = static_cast<std::uint64_t>(count * k / threads);
        stretches[k].state = begin | static_cast<std::uint64_t>(count * (k + 1) / threads) << 32;
    }
    on_team(threads, [&](Member member) {
        for (int k = 0; k < threads; ++k) {
            Stretch& stretch = stretches[(member.index + k) % threads];
            for (auto taken = stretch.take(k == 0); taken.first < taken.second; taken = stretch.take(k == 0))
                for (std::int64_t i = taken.first; i < taken.second; ++i) f(i);
        }
    });
}

// For callers in other libraries, which do not see the variables above
bool use_one_thread(bool only);  // returns what held
void bound_threads(int most);
int bound_of_threads();
void use_processors(int count);
bool uses_openmp();

// Gives up OpenMP and the present threads, as a child of fork() does. For tests.
void use_own_threads();

}  // namespace tensorops
