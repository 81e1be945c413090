// What runs kernels of host.h: the blocks of a launch one after another, and each thread of a block as a fiber that
// runs until it waits. Those that wait for a warp or for the block go on when all its threads wait at the same line.
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // as GCC says it
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdlib.h>
#define PLAIN __attribute__((noinline, no_sanitize("address")))
#define START_SWITCH(from, to) __sanitizer_start_switch_fiber(from, (to).stack, (to).size)
#define FINISH_SWITCH(fake, stack, size) __sanitizer_finish_switch_fiber(fake, stack, size)
#else
#define PLAIN __attribute__((noinline))
#define START_SWITCH(from, to)
#define FINISH_SWITCH(fake, stack, size)
#endif

extern "C" {
int host_thread;
long long host_block;
void host_barrier(int line);
bool host_any(bool x, int line);
void host_exchange(void* value, int size, int mask, int line);
void host_local(void* array, long long size, long long* seen);
// For tests: run a launch and return null or what went wrong; memory with surroundings that cannot be accessed, before
// or after
const char* host_launch(void (*call)(void**), void** arguments, int block, int warp, long long groups,
                        long long local_bytes, int descending);
void* host_allocate(long long bytes, int at_end);
void host_free(void* memory);
}

namespace {
constexpr int most_threads = 1024, most_bytes = 32;
constexpr size_t stack_size = 1 << 18;

enum State { READY, AT_BARRIER, AT_EXCHANGE, ENDED };
struct Fiber {
    void* jump[5];  // as __builtin_setjmp has it
    bool started;
    const void* stack;
    size_t size;
    void* fake_stack;  // of the sanitizer
    State state;
    int line, mask, exchanges;
    char slots[2][most_bytes];  // what it gives others; in turn, so that the next does not overwrite what others read
};
Fiber fibers[most_threads], scheduler, *current = &scheduler;
int threads, warp_size;
void (*kernel)(void**);
void** kernel_arguments;
long long serial, local_used, local_limit;  // `serial` counts the blocks of all launches
bool any[2];
int votes;
char message[1024];

void fail(const char* format, ...) {
    if (message[0]) return;  // the first is the cause
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
}

void switch_to(Fiber& to);

void begin() {
    FINISH_SWITCH(nullptr, &scheduler.stack, &scheduler.size);
    for (;;) {
        kernel(kernel_arguments);
        current->state = ENDED;
        switch_to(scheduler);
    }
}

[[noreturn]] PLAIN void jump_to(Fiber& to) {
    if (to.started) __builtin_longjmp(to.jump, 1);
    to.started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = const_cast<void*>(to.stack);
    context.uc_stack.ss_size = to.size;
    context.uc_link = nullptr;
    makecontext(&context, begin, 0);
    setcontext(&context);
    __builtin_unreachable();
}

PLAIN void switch_to(Fiber& to) {
    START_SWITCH(&current->fake_stack, to);
    Fiber& from = *current;
    current = &to;
    if (__builtin_setjmp(from.jump) == 0) jump_to(to);
    FINISH_SWITCH(current->fake_stack, nullptr, nullptr);
}

void wait(State state, int line) {
    current->state = state;
    current->line = line;
    switch_to(scheduler);
}

// Memory between pages that cannot be accessed: it begins after one, or ends before one as close as 16 bytes allow
struct Memory {
    char *pages, *begin;
    size_t mapped, bytes;
};
constexpr int most_memories = 256;
Memory memories[most_memories];

void describe_address(const char* address) {
    for (const Memory& m : memories) {
        if (!m.pages || address < m.pages || address >= m.pages + m.mapped) continue;
        const long long after = address - (m.begin + m.bytes), before = m.begin - address;
        fail("thread %d of block %lld accesses memory %lld bytes %s an array of %zu bytes", host_thread, host_block,
             after >= 0 ? after : before, after >= 0 ? "after the end of" : "before", m.bytes);
        return;
    }
    fail("thread %d of block %lld accesses address %p, which is in no array", host_thread, host_block, address);
}

void on_fault(int number, siginfo_t* info, void*) {
    if (current == &scheduler) {  // not a kernel's
        signal(number, SIG_DFL);
        return;
    }
    describe_address(static_cast<const char*>(info->si_addr));
    switch_to(scheduler);
}

// Let threads go on whose warps, or all of whom, have arrived at one line
bool release() {
    bool any_warp = false;
    for (int first = 0; warp_size && first < threads; first += warp_size) {
        const int end = first + warp_size < threads ? first + warp_size : threads;
        bool together = true;
        for (int i = first; i < end; ++i)
            together = together && fibers[i].state == AT_EXCHANGE && fibers[i].line == fibers[first].line &&
                       fibers[i].mask == fibers[first].mask;
        for (int i = first; together && i < end; ++i) fibers[i].state = READY;
        any_warp = any_warp || together;
    }
    if (any_warp) return true;
    for (int i = 0; i < threads; ++i)
        if (fibers[i].state != AT_BARRIER || fibers[i].line != fibers[0].line) return false;
    for (int i = 0; i < threads; ++i) fibers[i].state = READY;
    any[++votes & 1] = false;
    return true;
}

void describe_divergence() {
    char text[800] = "";
    size_t length = 0;
    for (int i = 0; i < threads && length < sizeof text - 100;) {
        int last = i;
        while (last + 1 < threads && fibers[last + 1].state == fibers[i].state &&
               fibers[last + 1].line == fibers[i].line)
            ++last;
        const char* how = fibers[i].state == ENDED        ? "ended"
                          : fibers[i].state == AT_BARRIER ? "at barrier"
                                                          : "at shuffle";
        length += snprintf(text + length, sizeof text - length, "; threads %d to %d %s", i, last, how);
        if (fibers[i].state != ENDED)
            length += snprintf(text + length, sizeof text - length, " line %d", fibers[i].line);
        i = last + 1;
    }
    fail("threads of block %lld wait for others that do not arrive%s", host_block, text);
}

void run_block(bool descending) {
    ++serial;
    local_used = 0;
    any[0] = any[1] = false;
    for (int i = 0; i < threads; ++i) fibers[i].state = READY;
    do {
        for (int i = 0; i < threads; ++i) {
            host_thread = descending ? threads - 1 - i : i;
            if (fibers[host_thread].state == READY) switch_to(fibers[host_thread]);
            if (message[0]) return;
        }
    } while (release());
    for (int i = 0; i < threads; ++i)
        if (fibers[i].state != ENDED) return describe_divergence();
}
}  // namespace

void host_barrier(int line) { wait(AT_BARRIER, line); }

bool host_any(bool x, int line) {
    const int vote = votes & 1;
    any[vote] = any[vote] || x;
    wait(AT_BARRIER, line);
    return any[vote];
}

void host_exchange(void* value, int size, int mask, int line) {
    const int other = host_thread ^ mask, turn = current->exchanges++ & 1;
    if (mask <= 0 || mask >= warp_size || other >= threads || size > most_bytes) {
        fail("line %d: thread %d asks for the value of thread %d, the block has %d threads in warps of %d", line,
             host_thread, other, threads, warp_size);
        return switch_to(scheduler);
    }
    memcpy(current->slots[turn], value, size);
    current->mask = mask;
    wait(AT_EXCHANGE, line);
    memcpy(value, fibers[other].slots[turn], size);
}

void host_local(void* array, long long size, long long* seen) {
    if (*seen == serial) return;
    *seen = serial;
    memset(array, 0xff, size);  // NaN, -1
    local_used += size;
    if (local_used <= local_limit) return;
    fail("a block shares %lld bytes, of which the device has %lld", local_used, local_limit);
    switch_to(scheduler);
}

const char* host_launch(void (*call)(void**), void** arguments, int block, int warp, long long groups,
                        long long local_bytes, int descending) {
    message[0] = 0;
    if (block < 1 || block > most_threads) {
        fail("a block has %d threads, at most %d are possible", block, most_threads);
        return message;
    }
    threads = block, warp_size = warp, local_limit = local_bytes, kernel = call, kernel_arguments = arguments;
    const size_t size = stack_size * block;
    char* stacks = static_cast<char*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks == MAP_FAILED) return "no memory for the stacks of threads";
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stacks, size);
#endif
    for (int i = 0; i < block; ++i) {
        fibers[i] = Fiber();
        fibers[i].stack = stacks + stack_size * i;
        fibers[i].size = stack_size;
    }
    scheduler.started = true;
    struct sigaction ours = {}, before[2];
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &ours, &before[0]);
    sigaction(SIGBUS, &ours, &before[1]);
    for (host_block = 0; host_block < groups && !message[0]; ++host_block) run_block(descending);
    sigaction(SIGSEGV, &before[0], nullptr);
    sigaction(SIGBUS, &before[1], nullptr);
    munmap(stacks, size);
    return message[0] ? message : nullptr;
}

#ifdef __SANITIZE_ADDRESS__
// The sanitizer knows the end of each array to the byte.
void* host_allocate(long long bytes, int) { return malloc(bytes); }
void host_free(void* memory) { free(memory); }
#else
void* host_allocate(long long bytes, int at_end) {
    const size_t page = sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page, mapped = body + 2 * page;
    for (Memory& m : memories) {
        if (m.pages) continue;
        void* pages = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) return nullptr;
        m.pages = static_cast<char*>(pages);
        if (body) mprotect(m.pages + page, body, PROT_READ | PROT_WRITE);
        memset(m.pages + page, 0xff, body);
        m.begin = m.pages + page + (at_end ? body - (bytes + 15) / 16 * 16 : 0);
        m.mapped = mapped, m.bytes = bytes;
        return m.begin;
    }
    return nullptr;
}
void host_free(void* memory) {
    for (Memory& m : memories)
        if (m.pages && m.begin == memory) {
            munmap(m.pages, m.mapped);
            m = Memory();
            return;
        }
}
#endif
