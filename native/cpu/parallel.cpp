// The threads of parallel.h: they look for parts of jobs, wait actively for a while, and then sleep.
#include "parallel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if !defined(_WIN32)
#include <csignal>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tensorops {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kJobs = 4;           // calls that are shared out at the same time; another one stays on its thread
constexpr int kMostThreads = 256;  // of a call

// How long a thread looks for work before it sleeps, and a caller whether the others have finished. To wake somebody
// takes tens of microseconds; whoever looks keeps a processor from others: products of matrices by torch, in turns with
// rms_norm, took 1.5 times as long where it was ten times this.
constexpr std::chrono::microseconds kPatience(200);

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits actively until `ready()`; false if that takes too long.
template <class F>
bool spin(F ready) {
    const Clock::time_point end = Clock::now() + kPatience;
    do
        for (int i = 0; i < 32; ++i) {
            if (ready()) return true;
            pause();
        }
    while (Clock::now() < end);
    return false;
}

// A call and how far it is. All that threads tell each other is in one line of the cache: to hand it over is what
// sharing out costs.
class alignas(64) Job {
  public:
    // The first part is the caller's. Ordered before what the caller looks at next, which is who sleeps.
    void begin(int parts, void (*run)(const void* work, Part part), const void* work) {
        run_ = run;
        work_ = work;
        state_.exchange(kNext | static_cast<std::uint64_t>(parts));
    }
    void run(Part part) const { run_(work_, part); }

    bool has_parts() const {
        const std::uint64_t state = state_.load();
        return next(state) < parts(state);
    }
    // A part that nobody has begun; an index of -1 says that there is none. It may be of a later call than the one that
    // the thread was told of, and then serves that.
    Part take() {
        std::uint64_t state = state_.load(std::memory_order_acquire);
        while (next(state) < parts(state))
            if (state_.compare_exchange_weak(state, state + kNext, std::memory_order_acq_rel))
                return {next(state), parts(state)};
        return {-1, 0};
    }
    // True if the caller sleeps until all are finished. From here on it may be another call.
    bool finish_part() { return state_.fetch_add(kDone, std::memory_order_release) & kAwaited; }
    int finished_parts() const { return static_cast<int>(state_.load(std::memory_order_acquire) >> 32 & 0xffff); }
    void await() { state_.fetch_or(kAwaited); }

  private:
    static constexpr std::uint64_t kNext = 1ull << 16, kDone = 1ull << 32, kAwaited = 1ull << 48;
    static int parts(std::uint64_t state) { return static_cast<int>(state & 0xffff); }
    static int next(std::uint64_t state) { return static_cast<int>(state >> 16 & 0xffff); }

    std::atomic<std::uint64_t> state_{0};  // how many parts there are, the next one, how many others finished, kAwaited
    void (*run_)(const void* work, Part part) = nullptr;
    const void* work_ = nullptr;
};

class Team {
  public:
    // False if too many calls are shared out already.
    bool run(int parts, void (*run)(const void* work, Part part), const void* work) {
        for (int i = 0; i < kJobs; ++i) {
            if (in_use_[i].exchange(true, std::memory_order_acquire)) continue;
            hire(parts - 1);
            jobs_[i].begin(parts, run, work);
            wake(parts - 1);
            take_part_in(jobs_[i], parts);
            in_use_[i].store(false, std::memory_order_release);
            return true;
        }
        return false;
    }
    int awake() const { return threads_.load() - sleeping_.load(); }

  private:
    void take_part_in(Job& job, int parts) {
        int mine = 0;
        for (Part part{0, parts}; part.index >= 0; part = job.take(), ++mine) job.run(part);
        const auto finished = [&] { return job.finished_parts() == parts - mine; };
        if (spin(finished)) return;
        std::unique_lock<std::mutex> lock(mutex_);
        job.await();  // before it looks once more, so that it misses nothing
        finished_.wait(lock, finished);
    }

    // Sees to it that there are so many threads, as far as the system gives them.
    void hire(int count) {
        if (threads_.load(std::memory_order_relaxed) >= count) return;
        const std::lock_guard<std::mutex> lock(mutex_);
#if !defined(_WIN32)
        sigset_t sent, before;  // signals that are sent are the business of the program's own threads
        sigfillset(&sent);
        for (int fault : {SIGBUS, SIGFPE, SIGILL, SIGSEGV}) sigdelset(&sent, fault);
        pthread_sigmask(SIG_SETMASK, &sent, &before);
#endif
        try {
            for (; threads_.load(std::memory_order_relaxed) < count; threads_.fetch_add(1, std::memory_order_relaxed))
                std::thread(&Team::serve, this).detach();
        } catch (const std::exception&) {  // the caller does what they would have done
        }
#if !defined(_WIN32)
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
    }

    // Who is about to sleep sleeps afterwards, and can be woken.
    void wait_for_sleepers() { const std::lock_guard<std::mutex> lock(mutex_); }

    void wake(int wanted) {
        int missing = wanted - awake();
        if (missing <= 0) return;
        wait_for_sleepers();
        for (; missing > 0; --missing) news_.notify_one();
    }

    [[noreturn]] void serve() {
        one_thread = true;
        const auto has_work = [this] {
            return std::any_of(std::begin(jobs_), std::end(jobs_), [](const Job& job) { return job.has_parts(); });
        };
        for (;;) {
            if (spin(has_work)) {
                serve_all();
                continue;
            }
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_.fetch_add(1);             // before it looks once more, so that it misses nothing
            if (!has_work()) news_.wait(lock);  // woken too late, it looks for more again
            sleeping_.fetch_sub(1);
        }
    }

    void serve_all() {
        for (Job& job : jobs_)
            for (Part part; (part = job.take()).index >= 0;) {
                job.run(part);
                if (!job.finish_part()) continue;
                wait_for_sleepers();
                finished_.notify_all();
            }
    }

    Job jobs_[kJobs];
    alignas(64) std::atomic<bool> in_use_[kJobs] = {};  // callers alone look at it
    alignas(64) std::mutex mutex_;
    std::condition_variable news_, finished_;
    std::atomic<int> sleeping_{0}, threads_{0};
};

// Never destroyed, as its threads may look at it until the process has ended.
std::atomic<Team*> current{nullptr};

Team& team() {
    if (Team* known = current.load(std::memory_order_acquire)) return *known;
    Team *made = new Team, *known = nullptr;
    if (current.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *known;
}

}  // namespace

int most_threads() {
#if defined(_OPENMP)
    if (omp_in_parallel()) return 1;
    return std::min({omp_get_max_threads(), omp_get_thread_limit(), kMostThreads});
#else
    return std::min(std::max(static_cast<int>(std::thread::hardware_concurrency()), 1), kMostThreads);
#endif
}

int threads_in_reach(int threads) {
    static std::atomic<unsigned> calls{0};
    const int awake = 1 + team().awake();
    if (threads <= awake || calls.fetch_add(1, std::memory_order_relaxed) % 8 == 0) return threads;
    return awake;
}

void run_parts(int count, void (*run)(const void* work, Part part), const void* work) {
    if (count > 1 && team().run(count, run, work)) return;
    for (int part = 0; part < count; ++part) run(work, {part, count});
}

void forget_threads() { current.store(nullptr, std::memory_order_release); }

}  // namespace tensorops
