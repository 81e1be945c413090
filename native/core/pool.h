// Memory for results, kept for the next result of the same size.
//
// Fresh memory costs more than computing into it: the operating system provides it page by page, zeroed. Blocks of
// 64 KiB and more are therefore kept when an array is freed, up to a limit, and reused; from 2 MiB on they are aligned
// to 2 MiB and request huge pages. NumPy allocates smaller results itself.
#pragma once

#include <cstddef>
#include <memory>

namespace tensorops::pool {

inline constexpr std::size_t kSmallest = 64 * 1024;

// A block of at least `bytes`, aligned to 64 bytes; nullptr if there is no memory.
void* take(std::size_t bytes);

// Returns a block that came from take(bytes).
void give(void* block, std::size_t bytes);

// Lets those huge pages that lie within a block, if any, come as such when they are first written.
void request_huge_pages(void* block, std::size_t bytes);

// Memory for a model's weights, in blocks side by side: most are smaller than a huge page, and a step that reads all of
// them took 0.97 of the time with huge pages. A shelf of several blocks is given back with the last of them. Throws
// std::bad_alloc.
std::shared_ptr<char> take_on_shelf(std::size_t bytes);

struct Statistics {
    std::size_t in_use, peak, cached, limit;  // bytes; peak is the highest in_use since the start or reset_peak
};
Statistics statistics();
void reset_peak();
void set_limit(std::size_t bytes);
std::size_t empty_cache();  // returns the bytes freed

// Around fork(): the child must not inherit the mutex locked by a thread it does not have.
void lock();
void unlock();

}  // namespace tensorops::pool
