// The prelude for C++, which emulates a GPU in tests: host.cpp runs the threads of a block as fibers, one after another
// between barriers. Warps are emulated as CUDA has them, so kernels take the paths that they take there.
#include <math.h>
#include <string.h>

#include <utility>

#if DOUBLE
typedef double real;
#define REAL_MAX 1.7976931348623157e308
#else
typedef float real;
#define REAL_MAX 3.402823466e38f
#endif
typedef long long index_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
#define ulong unsigned long long  // C's own headers may declare another

#define INLINE static inline
#define RARE INLINE
#define GLOBAL
#define LOCAL
#define restrict __restrict__
#define REAL_INFINITY ((real)INFINITY)
#define KERNEL(name) static void name

// What host.cpp does for the thread that runs. Lines tell barriers apart: all threads must wait at the same one.
extern "C" {
extern int host_thread;
extern long long host_block;
void host_barrier(int line);
bool host_any(bool x, int line);
// Wait for the warp, and replace a value by that of the lane whose number differs by `mask`
void host_exchange(void* value, int size, int mask, int line);
// Fill an array that a block shares before it is first seen there; `*seen` is the block that saw it last
void host_local(void* array, long long size, long long* seen);
}
#define thread_id() host_thread
#define block_id() ((index_t)host_block)
#define BARRIER() host_barrier(__LINE__)
#define block_any(x, scratch) host_any(x, __LINE__)
#define LOCAL_ARRAY(type, name, n)      \
    static type name[n];                \
    static long long name##_block = -1; \
    host_local(name, sizeof(type) * (n), &name##_block)
#if WARP
#define shuffle_xor(x, distance) shuffled(x, distance, __LINE__)
template <class T>
static inline T shuffled(T x, int distance, int line) {
    host_exchange(&x, sizeof x, distance, line);
    return x;
}
#endif

INLINE float float_of_bits(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
INLINE unsigned bits_of_float(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
// The bytes of two words that the lower four numbers of four bits of `places` name
INLINE uint bytes_of(uint a, uint b, uint places) {
    const ulong both = (ulong)b << 32 | a;
    uint bytes = 0;
    for (int k = 0; k < 4; ++k) bytes |= (uint)(both >> (places >> 4 * k & 7) * 8 & 255) << 8 * k;
    return bytes;
}
INLINE float float_of_half(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ffu;
    if (exponent == 0) {  // the fraction counts units of 2^-24
        const float x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    return float_of_bits(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13);
}
INLINE unsigned short half_of_float(float x) {
    const unsigned bits = bits_of_float(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // 65520: half way beyond the largest
    if (rest < 0x38800000u) {  // below 2^-14: the sum's last digit is 2^-24, so that the sum is rounded to it
        return (unsigned short)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u));
    }
    return (unsigned short)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13));
}

#include "vectors.h"

// What a test calls: the kernel with pointers to its arguments, and what the arguments must be
template <class T>
struct HostType {
    static constexpr const char *name = "unknown", *pointer = "unknown*", *constant = "const unknown*";
};
template <class T>
struct HostType<T*> {
    static constexpr const char* name = HostType<T>::pointer;
};
template <class T>
struct HostType<const T*> {
    static constexpr const char* name = HostType<T>::constant;
};
#define HOST_TYPE(type, text)                                                                         \
    template <>                                                                                       \
    struct HostType<type> {                                                                           \
        static constexpr const char *name = text, *pointer = text "*", *constant = "const " text "*"; \
    };
HOST_TYPE(float, "float32")
HOST_TYPE(double, "float64")
HOST_TYPE(half_bits, "float16")
HOST_TYPE(bfloat16_bits, "bfloat16")
HOST_TYPE(signed char, "int8")
HOST_TYPE(unsigned char, "uint8")
HOST_TYPE(short, "int16")
HOST_TYPE(unsigned short, "uint16")
HOST_TYPE(int, "int32")
HOST_TYPE(unsigned, "uint32")
HOST_TYPE(long long, "int64")
HOST_TYPE(unsigned long long, "uint64")

template <class... A>
const char* host_types(void (*)(A...)) {
    static const char* names[] = {HostType<A>::name...};
    static char text[8192];
    text[0] = 0;
    for (const char* name : names) strcat(strcat(text, name), ",");
    return text;
}
template <class... A, size_t... I>
void host_apply(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void host_apply(void (*kernel)(A...), void** arguments) {
    host_apply(kernel, arguments, std::index_sequence_for<A...>());
}
#define HOST_ENTRY(kernel)                                                               \
    extern "C" __attribute__((visibility("default"))) const int host_block_size = BLOCK; \
    extern "C" const char* host_parameters() { return host_types(kernel); }              \
    extern "C" void host_call(void** arguments) { host_apply(kernel, arguments); }
