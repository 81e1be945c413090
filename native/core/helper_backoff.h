// Whether it pays to ask other threads for help, decided by how the last calls went.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tensorops {

// Times are nanoseconds, roughly. Threads may call the functions at any time: one decision holds for all of them.
class HelperBackoff {
  public:
    // After a call with help that took `lost` longer than without it; negative if it was quicker.
    void note_lost(std::int64_t lost, std::int64_t now) {
        if (lost < kUnnoticed) return;
        const std::int64_t last = pause_.load(std::memory_order_relaxed);
        lost = std::min(lost, kLongestPause);
        std::int64_t pause = lost * kPauses;
        if (now - end_.load(std::memory_order_relaxed) < last) pause = std::max(pause, 2 * last);
        pause = std::min({pause, lost * kMostPauses, kLongestPause});
        pause_.store(pause, std::memory_order_relaxed);
        end_.store(now + pause, std::memory_order_relaxed);
        is_paused_.store(true, std::memory_order_relaxed);
    }

    // Whether there is a pause; clock() returns the time, and is called only after a loss.
    template <class F>
    bool is_paused(const F& clock) {
        if (!is_paused_.load(std::memory_order_relaxed)) return false;
        if (clock() < end_.load(std::memory_order_relaxed)) return true;
        is_paused_.store(false, std::memory_order_relaxed);
        return false;
    }

  private:
    static constexpr std::int64_t kUnnoticed = 20'000, kLongestPause = 1'000'000'000;
    // The first pause as a multiple of the loss. If a loss follows within the length of the last pause, the next one is
    // twice as long, up to another multiple: next to programs that never rest, a loss is one or two time slices of 4
    // ms, and soon comes about eight times in a second; a single loss costs a few calls their help. Hosts and
    // interrupts also take time on machines that are otherwise idle, some tens of microseconds several times in a
    // second and a time slice once. With pauses of a second, decoding ran at two thirds of the speed for minutes.
    static constexpr std::int64_t kPauses = 4, kMostPauses = 32;

    std::atomic<bool> is_paused_{false};
    std::atomic<std::int64_t> pause_{0}, end_{0};
};

}  // namespace tensorops
