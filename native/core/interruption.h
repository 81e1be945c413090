// Ending a long call early on Ctrl-C.
//
// The binding of a long call puts an Interruption in force for its thread. Kernels check it between pieces of work, and
// skip the rest once it is set: the result is discarded. Short calls have none, and cost one comparison.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tensorops {

class Interruption {
  public:
    // `asked` returns whether the call should end; only the thread that made the object calls it.
    explicit Interruption(bool (*asked)());
    ~Interruption();
    Interruption(const Interruption&) = delete;
    Interruption& operator=(const Interruption&) = delete;

    bool happened() const { return happened_.load(std::memory_order_relaxed); }

    // Whether to skip the rest, checked before a piece of `work` in bytes. Any thread of a team checks; the one that
    // made the object also reads the clock.
    bool leaves(std::int64_t work);

    // Checks for signals, if that was not done lately. Only the thread that made the object calls it.
    void look();

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kPause{50};
    static constexpr std::int64_t kWorkPerLook = 1024 * 1024;  // reading the clock takes as long as 1 KiB

    bool (*asked_)();
    Interruption* outer_;
    Clock::time_point next_;
    std::int64_t work_ = 0;
    std::atomic<bool> happened_{false};
};

// The interruption of the calling thread; the thread that calls a team must pass it on.
inline thread_local Interruption* interruption = nullptr;

inline bool Interruption::leaves(std::int64_t work) {
    if (interruption == this && !happened()) {
        work_ += work;
        if (work_ >= kWorkPerLook) look();
    }
    return happened();
}

inline bool leaves(Interruption* at, std::int64_t work) { return at && at->leaves(work); }

}  // namespace tensorops
