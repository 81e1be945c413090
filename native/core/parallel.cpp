// Which threads compute.
//
// OpenMP's, because other libraries in the process use them too: where calls of torch and kernels alternate, both find
// the same threads awake. A parallel region of OpenMP ends only when all threads have finished, and begins only when
// all have left the previous one. Beside programs that keep the processors busy, that is whole time slices of waiting,
// for microseconds of work. Every call therefore measures how much longer it took than it would have taken alone; if it
// lost time, this thread and all others work alone for many times as long, before they ask for help again.
//
// Where there is no OpenMP, and in a child of fork(), where GNU's runtime waits for threads that are gone, a team of
// our own. Its caller never waits for threads that have not begun: it does their parts itself. Before fork(), OpenMP's
// threads of the caller end, so that other libraries that share the runtime can use it in the child.
#include "parallel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "helper_backoff.h"
#include "interruption.h"
#include "lent_threads.h"
#include "pool.h"
#include "relax.h"

namespace tensorops {
namespace {

using Work = void (*)(const void* context, Member member);
using Clock = std::chrono::steady_clock;
constexpr int kLine = 64;  // bytes of a line of the caches

// Waits until `others` threads have finished. A long call keeps checking for signals.
template <class F>
void await(const std::atomic<int>& finished, int others, F idle) {
    constexpr int kTurns = 2000;  // some tens of microseconds
    for (int turn = 0; finished.load(std::memory_order_acquire) < others; ++turn) {
        if (turn < kTurns) {
            idle();
            continue;
        }
        if (interruption && !interruption->happened()) interruption->look();
        std::this_thread::yield();
    }
}

// ------------------------------------------------------------------------------------------------- our own threads

// Fetches what is read next, step by step: otherwise memory would be idle while threads wait for one of them.
class Fetching {
  public:
    // Each of `shares` threads begins with its share, and goes on with those of others. Does nothing but pause when
    // enough is fetched.
    void step(int share, int shares) {
        const std::uint32_t changes = read_next.changes.load(std::memory_order_acquire);
        if (changes != changes_) {
            changes_ = changes;
            part_ = -1;
            left_ = 0;
        }
        while (left_ <= 0)
            if (!begin_part(share, shares)) return relax();
        for (int i = 0; i < kLines; ++i) {
            __builtin_prefetch(begin_ + row_ * stride_ + byte_, 0, 2);
            byte_ += kLine;
            if (byte_ < bytes_) continue;
            byte_ = 0;
            if (++row_ >= rows_) row_ = 0;
        }
        left_ -= kLines * kLine;
        relax();
    }

  private:
    // Between two pauses. Zen 4 drops prefetches that come much faster than memory answers, and fewer of them leave
    // memory idle: with 8 lines, paused or not, a step of SmolLM2-135M took 1.02 of the time.
    static constexpr int kLines = 16;
    static constexpr std::int64_t kMost = 128 * 1024;  // of each part, so that all stay in the second-level cache

    bool begin_part(int share, int shares) {
        if (part_ + 1 >= read_next.count.load(std::memory_order_relaxed)) return false;
        const ReadNext::Part& part = read_next.parts[++part_];
        begin_ = part.begin.load(std::memory_order_relaxed);
        rows_ = part.rows.load(std::memory_order_relaxed);
        bytes_ = part.bytes.load(std::memory_order_relaxed);
        stride_ = part.stride.load(std::memory_order_relaxed);
        left_ = std::min(rows_ * bytes_, kMost);
        const std::int64_t first = rows_ * bytes_ / shares * share;
        row_ = bytes_ > 0 ? first / bytes_ : 0;
        byte_ = bytes_ > 0 ? first % bytes_ : 0;
        return true;
    }

    std::uint32_t changes_ = 0;
    int part_ = ReadNext::kMost;
    const char* begin_ = nullptr;
    std::int64_t rows_ = 0, bytes_ = 0, stride_ = 0, row_ = 0, byte_ = 0, left_ = 0;
};

class Team {
  public:
    // Does all parts and returns true, or returns false if the team serves another call.
    bool run(int parts, Work work, const void* context) {
        if (taken_.exchange(true, std::memory_order_acquire)) return false;
        start(parts - 1);
        work_ = work;
        context_ = context;
        finished_.store(0, std::memory_order_relaxed);
        state_.store(State{++calls_, static_cast<std::uint16_t>(parts), 0}.bits());
        const bool asked = ask(parts - 1);
        int mine = 0;
        for (Member member; claim(member); ++mine) work(context, member);
        const int others = parts - mine;
        if (others > 0)
            in_vain_ = calls_to_refrain_ = 0;
        else if (asked)
            refrain();
        await(finished_, others, [this] { fetching_.step(0, started_ + 1); });
        taken_.store(false, std::memory_order_release);
        return true;
    }

  private:
    // The number of the call, its parts, and the first that no thread has begun: in one word, so that a thread that is
    // late cannot begin a part of a call that has ended.
    struct State {
        std::uint32_t call;
        std::uint16_t parts, next;

        static State of(std::uint64_t bits) {
            return {static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint16_t>(bits >> 16),
                    static_cast<std::uint16_t>(bits)};
        }
        std::uint64_t bits() const { return std::uint64_t{call} << 32 | std::uint64_t{parts} << 16 | next; }
        bool is_open() const { return next < parts; }
    };

    bool claim(Member& member) {
        std::uint64_t bits = state_.load(std::memory_order_acquire);
        for (;;) {
            const State state = State::of(bits);
            if (!state.is_open()) return false;
            member = {state.next, state.parts};
            if (state_.compare_exchange_weak(bits, bits + 1, std::memory_order_acq_rel)) return true;
        }
    }

    void start(int helpers) {
        try {
            for (; started_ < helpers; ++started_) std::thread(&Team::serve, this, started_ + 1).detach();
        } catch (const std::system_error&) {  // the system gives no more threads; the caller does the work
        }
    }

    // Wakes threads that sleep, which takes a system call; not if that was in vain lately. Returns whether it did.
    bool ask(int helpers) {
        if (sleeping_.load() == 0) return false;
        if (calls_to_refrain_ > 0) {
            --calls_to_refrain_;
            return false;
        }
        {
            const std::lock_guard lock(mutex_);  // whoever counted itself as sleeping does sleep by now
            ++asked_;
        }
        if (helpers == 1)
            opened_.notify_one();
        else
            opened_.notify_all();
        return true;
    }

    void refrain() {
        in_vain_ = std::min(in_vain_ + 1, 6);
        calls_to_refrain_ = (1 << in_vain_) - 1;
    }

    void serve(int number) {
        Fetching fetching;
        for (;;) {
            auto since = Clock::now();
            for (int turn = 1; turn % 64 != 0 || Clock::now() - since < kAwake; ++turn) {
                if (Member member; claim(member)) {
                    work_(context_, member);
                    finished_.fetch_add(1, std::memory_order_release);
                    since = Clock::now();
                    turn = 0;
                }
                fetching.step(number, started_ + 1);
            }
            std::unique_lock lock(mutex_);
            sleeping_.fetch_add(1);
            // Waking takes longer than a short call: a thread that is too late for it is awake for the next ones.
            opened_.wait(lock,
                         [this, asked = asked_] { return asked_ != asked || State::of(state_.load()).is_open(); });
            sleeping_.fetch_sub(1);
        }
    }

    static constexpr std::chrono::microseconds kAwake{200};  // longer than between two calls of a program in Python

    // Each of these is a line of the caches: what changes with each call and is read by all; what helpers write; what
    // they read and hardly ever changes; and what is the caller's alone. Between processors without a common cache a
    // line takes a third of a microsecond.
    alignas(kLine) std::atomic<std::uint64_t> state_{0};
    Work work_ = nullptr;
    const void* context_ = nullptr;
    alignas(kLine) std::atomic<int> finished_{0};
    alignas(kLine) std::atomic<int> sleeping_{0}, started_{0};
    std::uint32_t asked_ = 0;
    alignas(kLine) std::atomic<bool> taken_{false};
    std::uint32_t calls_ = 0;
    int in_vain_ = 0, calls_to_refrain_ = 0;
    Fetching fetching_;
    std::mutex mutex_;
    std::condition_variable opened_;
};

// Whether this process was made by fork() and has run no other program since: then another library may have used OpenMP
// in the parent, before this one was loaded.
[[maybe_unused]] bool is_forked() {
#if defined(__linux__)
    constexpr unsigned kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC of the kernel
    char text[512] = {};
    if (std::FILE* file = std::fopen("/proc/self/stat", "r")) {
        const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
        std::fclose(file);
        text[size] = '\0';
    }
    const char* name_end = std::strrchr(text, ')');  // the name may contain anything
    unsigned flags = 0;
    return name_end && std::sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 &&
           (flags & kForkedWithoutExec) != 0;
#else
    return false;
#endif
}

// Never deleted: its threads outlive main(), and a child of fork() cannot know in which state it is.
#if defined(_OPENMP)
Team* own_team = is_forked() ? new Team : nullptr;
#else
Team* own_team = new Team;
#endif

// ------------------------------------------------------------------------------------------------ OpenMP's threads

// Nanoseconds of some clock, roughly: losses are compared with each other and with durations of other magnitudes. The
// processor's counter makes about five ticks in two of them, and is read in a third of the time of the system's clock.
std::int64_t now() {
#if defined(__x86_64__)
    return static_cast<std::int64_t>(__builtin_ia32_rdtsc() / 5 * 2);
#else
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
#endif
}

HelperBackoff help;

thread_local int started_threads = 1;  // of the team that each thread has for the parallel regions that it begins

#if defined(_OPENMP)
void parallel_region(int threads, Work work, const void* context) {
    Interruption* const at = interruption;
    std::atomic<int> finished{0};
    int count = 1;
    const std::int64_t called = now();
    std::int64_t began = called, ended = called;
#pragma omp parallel num_threads(threads)
    {
        const Member member{omp_get_thread_num(), omp_get_num_threads()};
        if (member.index == 0) began = now();
        work(context, member);
        if (member.index == 0) {
            ended = now();
            count = member.count;
            if (at) await(finished, count - 1, relax);
        } else if (at) {
            finished.fetch_add(1, std::memory_order_release);
        }
    }
    // A call that starts threads takes longer for that reason.
    if (threads > started_threads) {
        started_threads = threads;
        return;
    }
    const std::int64_t returned = now();
    help.note_lost((returned - called) - count * (ended - began), returned);
}
#else
void parallel_region(int, Work, const void*) {}
#endif

Team* lent_team = new Team;  // never deleted, as own_team

// Asking the system takes longer than a short plan.
int hardware_threads() {
    static const int threads = static_cast<int>(std::thread::hardware_concurrency());
    return threads;
}

// Work for which a thread may find no memory: an exception that leaves a thread ends the process, so the caller throws
// it.
struct Guarded {
    Work work;
    const void* context;
    std::atomic<bool> lacks_memory{false};

    static void run(const void* at, Member member) {
        auto& guarded = *static_cast<Guarded*>(const_cast<void*>(at));
        try {
            guarded.work(guarded.context, member);
        } catch (const std::bad_alloc&) {
            guarded.lacks_memory.store(true, std::memory_order_relaxed);
        }
    }
    void rethrow() const {
        if (lacks_memory.load(std::memory_order_relaxed)) throw std::bad_alloc();
    }
};

// The threads that compute now, in calls that asked for more than one
std::atomic<int> computing{0};

}  // namespace

int available_threads() {
    if (lender) return static_cast<int>(lender->threads);
    if (!own_team && help.is_paused(now)) return 1;
#if defined(_OPENMP)
    if (omp_in_parallel()) return 1;
    int n = omp_get_max_threads();
#else
    int n = hardware_threads();
#endif
    if (const int bound = thread_bound.load(std::memory_order_relaxed); bound > 0) n = std::min(n, bound);
    if (const int all = processors.load(std::memory_order_relaxed); all > 0)
        n = std::min(n, all - computing.load(std::memory_order_relaxed));
    return n;
}

void on_team(int threads, Work work, const void* context) {
    Guarded guarded{work, context};
    if (lender) {
        lender->run(*lender, threads, Guarded::run, &guarded);
        return guarded.rethrow();
    }
    computing.fetch_add(threads, std::memory_order_relaxed);
    if (!own_team)
        parallel_region(threads, Guarded::run, &guarded);
    else if (!own_team->run(threads, Guarded::run, &guarded))
        Guarded::run(&guarded, Member{0, 1});
    computing.fetch_sub(threads, std::memory_order_relaxed);
    guarded.rethrow();
}

Lender lent_threads(int most) {
    Lender lent{};
    lent.threads = hardware_threads();
    for (const int bound : {most, thread_bound.load(), processors.load()})
        if (bound > 0) lent.threads = std::min<std::int64_t>(lent.threads, bound);
    lent.run = [](const Lender&, int parts, Work work, const void* context) {
        if (!lent_team->run(parts, work, context)) work(context, Member{0, 1});
    };
    return lent;
}

bool use_one_thread(bool only) { return std::exchange(one_thread, only); }
void bound_threads(int most) { thread_bound = most; }
int bound_of_threads() { return thread_bound.load(); }
void use_processors(int count) { processors = count; }

bool uses_openmp() {
#if defined(_OPENMP)
    return true;
#else
    return false;
#endif
}

void use_own_threads() {
    own_team = new Team;
    lent_team = new Team;
    computing = 0;
}

#if !defined(_WIN32)
namespace {

// Ends the threads that OpenMP keeps for this one, which would be missing in the child.
void end_openmp_threads() {
#if defined(_OPENMP) && (_OPENMP >= 201811 || __GNUC__ >= 9)
    if (started_threads > 1 && !omp_in_parallel()) omp_pause_resource_all(omp_pause_soft);
    started_threads = 1;
#endif
}

// A child of fork() has one thread, and memory that no other thread is about to change.
[[maybe_unused]] const int registered = pthread_atfork(
    [] {
        end_openmp_threads();
        pool::lock();
    },
    pool::unlock,
    [] {
        pool::unlock();
        use_own_threads();
    });

}  // namespace
#endif

}  // namespace tensorops
