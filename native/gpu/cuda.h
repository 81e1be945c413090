// The prelude for CUDA C++, as NVRTC compiles it: without any header.
#if DOUBLE
typedef double real;
#define REAL_MAX 1.7976931348623157e308
#else
typedef float real;
#define REAL_MAX 3.402823466e38f
#endif
#define REAL_INFINITY ((real)__int_as_float(0x7f800000))
typedef long long index_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;

#define INLINE static __device__ __forceinline__
#define RARE INLINE
#define GLOBAL
#define LOCAL
#define restrict __restrict__
// A kernel may define RESIDENT as `, n`: n blocks of a multiprocessor at a time, among which its registers are divided.
#define RESIDENT , 1
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(BLOCK RESIDENT) name
#define LOCAL_ARRAY(type, name, n) __shared__ type name[n]
#undef SMALL_KERNEL
#define SMALL_KERNEL(name) extern "C" __global__ void __launch_bounds__(BLOCK, BLOCK < 512 ? 512 / BLOCK : 1) name
#define BARRIER() __syncthreads()
#define thread_id() ((int)threadIdx.x)
#define block_id() ((index_t)blockIdx.x)
#define block_any(x, scratch) __syncthreads_or(x)
#define shuffle_xor(x, distance) __shfl_xor_sync(0xffffffffu, x, distance)

INLINE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
INLINE unsigned bits_of_float(float x) { return __float_as_uint(x); }
// The bytes of two words that the lower four numbers of four bits of `places` name
INLINE uint bytes_of(uint a, uint b, uint places) { return __byte_perm(a, b, places); }
// The hardware's own functions, where neither argument nor result is below the normal numbers: within 2 units of the
// last place
INLINE float exp2_near(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float reciprocal_near(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define NEAR_FUNCTIONS (!DOUBLE)
#if __CUDA_ARCH__ >= 800
INLINE unsigned short bf16_of_float(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#define bf16_of_float bf16_of_float
#endif
INLINE float float_of_half(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
INLINE unsigned short half_of_float(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
// 16 bytes at a time: a struct that is stored from registers may become as many stores as it has elements.
INLINE void store_words(void* p, const unsigned* words) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}
#define STORE_PACK(type, p, pack)                                                               \
    if (sizeof(type) % 16 == 0)                                                                 \
        for (int k = 0; k < (int)sizeof(type) / 16; ++k)                                        \
            store_words((char*)(p) + 16 * k, reinterpret_cast<const unsigned*>(&pack) + 4 * k); \
    else                                                                                        \
        *reinterpret_cast<type*>(p) = pack
