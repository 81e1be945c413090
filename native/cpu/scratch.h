// Memory for the time of a call, from the pool of results.
#pragma once

#include <cstdint>
#include <new>

#include "pool.h"

namespace tensorops {

class Scratch {
  public:
    explicit Scratch(std::int64_t bytes)
        : bytes_(static_cast<std::size_t>(bytes)), block_(bytes > 0 ? pool::take(bytes_) : nullptr) {
        if (bytes > 0 && !block_) throw std::bad_alloc();
    }
    ~Scratch() {
        if (block_) pool::give(block_, bytes_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // Aligned to a cache line.
    template <class T>
    T* at(std::int64_t byte) const {
        return reinterpret_cast<T*>(static_cast<char*>(block_) + byte);
    }

  private:
    std::size_t bytes_;
    void* block_;
};

inline std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace tensorops
