// Whether it pays to ask other threads for help, decided by how the last calls went.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tensorops {

// Times are nanoseconds of any clock. Threads may call the functions at any time: one decision holds for all of them.
class Help {
  public:
    // After a call with help that took so much longer than without it; less than 0 if it was quicker.
    void note_lost(std::int64_t lost, std::int64_t now) {
        if (lost < kUnnoticed) {
            if (losses_.load(std::memory_order_relaxed) != 0) losses_.store(0, std::memory_order_relaxed);
            return;
        }
        const int before = std::min(losses_.fetch_add(1, std::memory_order_relaxed), kDoublings);
        const std::int64_t pause = std::min(std::min(lost, kLongestPause) * (kPauses << before), kLongestPause);
        alone_until_.store(now + pause, std::memory_order_relaxed);
    }

    // Whether there is a pause; clock() returns the time, and is called only if there was a loss.
    template <class F>
    bool is_paused(const F& clock) {
        const std::int64_t until = alone_until_.load(std::memory_order_relaxed);
        if (until == 0) return false;
        if (clock() < until) return true;
        alone_until_.store(0, std::memory_order_relaxed);
        return false;
    }

  private:
    static constexpr std::int64_t kUnnoticed = 20'000, kLongestPause = 1'000'000'000;
    // The first pause as a multiple of the loss, and how often a further loss doubles that. Beside programs that never
    // pause, a loss is one or two time slices of 4 ms, so that about a hundredth of the time is lost.
    static constexpr int kPauses = 16, kDoublings = 6;

    std::atomic<std::int64_t> alone_until_{0};
    std::atomic<int> losses_{0};  // in a row
};

}  // namespace tensorops
