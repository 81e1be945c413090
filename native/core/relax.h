// A pause in a loop that waits for another thread.
#pragma once

namespace tensorops {

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");
#endif
}

}  // namespace tensorops
