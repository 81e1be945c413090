// Whether it pays to ask other threads for help, decided by how the last calls went.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace tensorops {

// What the operating system says: nanoseconds of any clock, and how often a thread of this process had to leave its
// processor to another process or thread.
struct Moment {
    std::int64_t time, evictions;
};

// Threads may call the functions at any time: one decision holds for all of them.
class Help {
  public:
    // After a call with help that took so much longer than without it; less than 0 if it was quicker.
    void note_lost(std::int64_t lost, Moment (*now)()) {
        if (lost < kUnnoticed) {
            if (losses_.load(std::memory_order_relaxed) != 0) losses_.store(0, std::memory_order_relaxed);
            return;
        }
        const int before = std::min(losses_.fetch_add(1, std::memory_order_relaxed), kDoublings);
        const std::int64_t pause = std::min(std::min(lost, kLongestPause) * (kPauses << before), kLongestPause);
        start_pause(pause, now());
    }

    // Whether there is a pause. It is repeated while the processors are evidently busy.
    bool is_paused(std::int64_t (*clock)(), Moment (*now)()) {
        const std::int64_t until = until_.load(std::memory_order_relaxed);
        if (until == 0) return false;
        if (clock() < until) return true;
        const Moment moment = now();
        const std::int64_t pause = pause_.load(std::memory_order_relaxed);
        if ((moment.evictions - evictions_.load(std::memory_order_relaxed)) * kBusySlice > pause) {
            start_pause(pause, moment);
            return true;
        }
        until_.store(0, std::memory_order_relaxed);
        return false;
    }

  private:
    void start_pause(std::int64_t pause, Moment moment) {
        pause_.store(pause, std::memory_order_relaxed);
        evictions_.store(moment.evictions, std::memory_order_relaxed);
        until_.store(moment.time + pause, std::memory_order_relaxed);
    }

    static constexpr std::int64_t kUnnoticed = 20'000, kLongestPause = 1'000'000'000;
    // The first pause as a multiple of the loss, and how often a further loss doubles that. A loss is usually one or
    // two time slices of 4 ms.
    static constexpr int kPauses = 16, kDoublings = 6;
    // Processors are busy if threads are evicted more often than this. It happens every few milliseconds where each
    // processor has more than one thread to run, and a few times in a second where not.
    static constexpr std::int64_t kBusySlice = 50'000'000;

    std::atomic<std::int64_t> until_{0}, pause_{0}, evictions_{0};
    std::atomic<int> losses_{0};  // in a row
};

}  // namespace tensorops
