// Temporary memory for a call: a little on the stack, more from the pool of results.
//
// Threads may have stacks of 48 KiB, of which Python's own calls and the storage of threads take half. What depends on
// sizes is therefore here, taken before the work is shared among threads, and frames of functions are bounded: see
// FRAME in CMakeLists.txt.
#pragma once

#include <cstdint>
#include <new>

#include "pool.h"

namespace tensorops {

class Scratch {
  public:
    explicit Scratch(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
        if (bytes_ <= sizeof little_) return;
        block_ = static_cast<char*>(pool::take(bytes_));
        if (!block_) throw std::bad_alloc();
    }
    ~Scratch() {
        if (block_ != little_) pool::give(block_, bytes_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // Aligned to a cache line.
    template <class T>
    T* at(std::int64_t byte) const {
        return reinterpret_cast<T*>(block_ + byte);
    }

  private:
    alignas(64) mutable char little_[4 * 1024];
    char* block_ = little_;
    std::size_t bytes_;
};

inline std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace tensorops
