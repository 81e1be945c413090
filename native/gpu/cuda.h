// The prelude for CUDA C++, as NVRTC compiles it: without any header.
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
typedef unsigned long long ulong;

#define INLINE static __device__ __forceinline__
#define RARE INLINE
#define GLOBAL
#define LOCAL
#define restrict __restrict__
// A kernel may define RESIDENT as `, n`: it can do with n blocks of a multiprocessor at a time, and have their registers.
#define RESIDENT
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(BLOCK RESIDENT) name
#define LOCAL_ARRAY(type, name, n) __shared__ type name[n]
#define BARRIER() __syncthreads()
#define thread_id() ((int)threadIdx.x)
#define block_id() ((index_t)blockIdx.x)
#define block_any(x, scratch) __syncthreads_or(x)
#define shuffle_xor(x, distance) __shfl_xor_sync(0xffffffffu, x, distance)

INLINE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
INLINE unsigned bits_of_float(float x) { return __float_as_uint(x); }
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
