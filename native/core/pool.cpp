#include "pool.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_WIN32)
#include <malloc.h>
#endif

namespace tensorops::pool {
namespace {

constexpr std::size_t kHugePage = 2 * 1024 * 1024;
constexpr std::size_t kLargest = SIZE_MAX / 16;  // no machine has this much, and rounding up does not overflow

// Sizes are rounded up to one of four steps per power of two: a block serves sizes that differ a little, and at most a
// quarter of it is unused.
struct SizeClass {
    std::size_t size;
    int number;  // increases with the size

    static SizeClass of(std::size_t bytes) {
        std::size_t step = kSmallest / 4;
        int doublings = 0;
        for (; step * 8 <= bytes; step *= 2) ++doublings;
        const std::size_t steps =
            std::max<std::size_t>((bytes + step - 1) / step, 1);  // to 8, from 5 on after a doubling
        return {steps * step, 4 * doublings + static_cast<int>(steps)};
    }
};
constexpr int kClasses = 4 * 8 * static_cast<int>(sizeof(std::size_t));

void* allocate(std::size_t bytes) {
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
#if defined(_WIN32)
    return _aligned_malloc(bytes, alignment);
#else
    void* block = nullptr;
    if (posix_memalign(&block, alignment, bytes) != 0) return nullptr;
    request_huge_pages(block, bytes);
    return block;
#endif
}

void release(void* block) {
#if defined(_WIN32)
    _aligned_free(block);
#else
    std::free(block);
#endif
}

struct Pool {
    // The first bytes of a block that is kept: to keep it takes no other memory.
    struct Kept {
        Kept* next;
        std::size_t size;
    };

    std::mutex mutex;
    Kept* free[kClasses] = {};
    std::size_t in_use = 0, peak = 0, cached = 0, limit = std::size_t{1} << 30;

    // Counts a block that is handed out. The caller holds the mutex.
    void count(std::size_t size) {
        in_use += size;
        if (in_use > peak) peak = in_use;
    }

    // Frees blocks, the largest first, until at most `bytes` are kept. The caller holds the mutex.
    void shrink_to(std::size_t bytes) {
        for (int number = kClasses - 1; cached > bytes; --number)
            while (free[number] && cached > bytes) release(pop(number));
    }

    void* pop(int number) {
        Kept* const block = free[number];
        free[number] = block->next;
        cached -= block->size;
        return block;
    }
};

// Never destroyed: arrays may outlive the interpreter's shutdown and return their blocks after it.
Pool& the_pool() {
    static Pool* pool = new Pool;
    return *pool;
}

constexpr std::size_t kShelf = 4 * kHugePage;

// The shelf that has room, while any of its blocks is in use
struct Shelf {
    std::mutex mutex;
    std::weak_ptr<char> memory;
    std::size_t used = 0;
};

Shelf& the_shelf() {
    static Shelf* shelf = new Shelf;  // never destroyed, as the pool
    return *shelf;
}

std::shared_ptr<char> take_shared(std::size_t bytes) {
    void* block = take(bytes);
    if (!block) throw std::bad_alloc();
    return {static_cast<char*>(block), [bytes](char* p) { give(p, bytes); }};
}

}  // namespace

void request_huge_pages(void* block, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
    const auto begin = (reinterpret_cast<std::uintptr_t>(block) + kHugePage - 1) / kHugePage * kHugePage;
    const auto end = (reinterpret_cast<std::uintptr_t>(block) + bytes) / kHugePage * kHugePage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // it may be declined
#endif
}

void* take(std::size_t bytes) {
    if (bytes > kLargest) return nullptr;
    const auto [size, number] = SizeClass::of(bytes);
    Pool& pool = the_pool();
    {
        std::lock_guard lock(pool.mutex);
        if (pool.free[number]) {
            pool.count(size);
            return pool.pop(number);
        }
    }
    void* block = allocate(size);
    if (!block) {
        empty_cache();
        block = allocate(size);
    }
    if (block) {
        std::lock_guard lock(pool.mutex);
        pool.count(size);
    }
    return block;
}

void give(void* block, std::size_t bytes) {
    const auto [size, number] = SizeClass::of(bytes);
    Pool& pool = the_pool();
    std::lock_guard lock(pool.mutex);
    pool.in_use -= size;
    if (size > pool.limit) {
        release(block);
        return;
    }
    pool.shrink_to(pool.limit - size);
    pool.free[number] = new (block) Pool::Kept{pool.free[number], size};
    pool.cached += size;
}

std::shared_ptr<char> take_on_shelf(std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    if (bytes < kSmallest || bytes > kShelf / 2) return take_shared(bytes);
    Shelf& shelf = the_shelf();
    std::lock_guard lock(shelf.mutex);
    std::shared_ptr<char> memory = shelf.memory.lock();
    if (!memory || shelf.used + bytes > kShelf) {
        shelf.memory = memory = take_shared(kShelf);
        shelf.used = 0;
    }
    char* const block = memory.get() + shelf.used;
    shelf.used += (bytes + kLine - 1) / kLine * kLine;
    return {memory, block};
}

Statistics statistics() {
    Pool& pool = the_pool();
    std::lock_guard lock(pool.mutex);
    return {pool.in_use, pool.peak, pool.cached, pool.limit};
}

void reset_peak() {
    Pool& pool = the_pool();
    std::lock_guard lock(pool.mutex);
    pool.peak = pool.in_use;
}

void set_limit(std::size_t bytes) {
    Pool& pool = the_pool();
    std::lock_guard lock(pool.mutex);
    pool.limit = bytes;
    pool.shrink_to(bytes);
}

std::size_t empty_cache() {
    Pool& pool = the_pool();
    std::lock_guard lock(pool.mutex);
    const std::size_t before = pool.cached;
    pool.shrink_to(0);
    return before;
}

void lock() {
    the_shelf().mutex.lock();
    the_pool().mutex.lock();
}
void unlock() {
    the_pool().mutex.unlock();
    the_shelf().mutex.unlock();
}

}  // namespace tensorops::pool
