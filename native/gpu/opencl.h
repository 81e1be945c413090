// The prelude for OpenCL C 1.2 and later. The dialect is OpenCL C; the other preludes imitate it.
#if DOUBLE
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#define real double
#define REAL_MAX DBL_MAX
#define REAL_INFINITY ((double)INFINITY)
#define integer long
#else
#define real float
#define REAL_MAX FLT_MAX
#define REAL_INFINITY INFINITY
#define integer int
#endif
#define vec JOIN(real, VEC)
#define mask JOIN(integer, VEC)
typedef long index_t;

#define INLINE static inline
// Few calls: on a processor such a function, if inlined, would cost the others their registers
#if THREADS == 1
#define RARE __attribute__((noinline))
#else
#define RARE INLINE
#endif
#define GLOBAL __global
#define LOCAL __local
// A processor's compiler must not vectorize across work-items what has vectors already. Where work-items exchange
// values, the compiler must use subgroups of the size that the program counts on.
#if THREADS == 1
#define HINT __attribute__((vec_type_hint(vec)))
#elif WARP
#define HINT __attribute__((intel_reqd_sub_group_size(WARP)))
#else
#define HINT
#endif
#define KERNEL(name) __kernel HINT __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void name
#define LOCAL_ARRAY(type, name, n) __local type name[n]
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define thread_id() ((int)get_local_id(0))
#define block_id() ((index_t)get_group_id(0))
#if WARP
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define shuffle_xor(x, distance) sub_group_shuffle_xor(x, distance)
#endif

// Whether x holds for any thread of the block
INLINE bool block_any(bool x, LOCAL real* scratch) {
    BARRIER();
    scratch[thread_id()] = x;
    BARRIER();
    for (int d = BLOCK / 2; d > 0; d /= 2) {
        if (thread_id() < d) scratch[thread_id()] += scratch[thread_id() + d];
        BARRIER();
    }
    return scratch[0] != 0;
}

#define splat(x) ((vec)(x))
// A quotient of numbers far from the limits of their type; CUDA's is not rounded correctly
#define quotient(a, b) ((a) / (b))
// Which of VEC bytes are not 0
#define flags_of(p) (JOIN(convert_, mask)(JOIN(vload, VEC)(0, p)) != 0)
// The bits of each float32, shifted into its exponent
#define lifted(x) as_floats(as_bits(x) << 23)
#define reals_of(x) JOIN(convert_, vec)(x)
#define from_memory(p) JOIN(vload, VEC)(0, p)  // of reals in private memory
#define to_memory(v, p) JOIN(vstore, VEC)(v, 0, p)

#define LANE(v, k) v.s##k
#define DEFINE_FOLD(combine)                                                                        \
    INLINE real fold_2_##combine(JOIN(real, 2) v) { return combine(v.lo, v.hi); }                   \
    INLINE real fold_4_##combine(JOIN(real, 4) v) { return fold_2_##combine(combine(v.lo, v.hi)); } \
    INLINE real fold_8_##combine(JOIN(real, 8) v) { return fold_4_##combine(combine(v.lo, v.hi)); } \
    INLINE real fold_16_##combine(JOIN(real, 16) v) { return fold_8_##combine(combine(v.lo, v.hi)); }
// Lanes 2i and 2i + 1 exchanged
INLINE vec with_neighbours_swapped(vec v) {
    vec r;
    r.even = v.odd;
    r.odd = v.even;
    return r;
}
#define bits_of_float(x) as_uint(x)
#define float_of_bits(bits) as_float(bits)

// A processor fetches what it needs next meanwhile, and writes what its caches cannot hold past them. Such writes are
// visible after the atomic operation by which other threads learn that the work is done.
#if THREADS == 1 && defined(__has_builtin)
#if __has_builtin(__builtin_prefetch)
#define FETCH(p) __builtin_prefetch(p)
#endif
#if STREAM && __has_builtin(__builtin_nontemporal_store)
#define STORE_PAST_CACHES(type, x, p)                      \
    if (((ulong)(p) & (sizeof(type) - 1)) == 0) {          \
        __builtin_nontemporal_store(x, (GLOBAL type*)(p)); \
        return;                                            \
    }
#endif
#endif
#ifndef FETCH
#define FETCH(p)
#endif
#ifndef STORE_PAST_CACHES
#define STORE_PAST_CACHES(type, x, p)
#endif

INLINE void load_words_1(const GLOBAL uint* p, uint* words) { *words = *p; }
INLINE void load_words_2(const GLOBAL uint* p, uint* words) { vstore2(vload2(0, p), 0, words); }
INLINE void load_words_4(const GLOBAL uint* p, uint* words) { vstore4(vload4(0, p), 0, words); }
INLINE uint load_bytes_4(const GLOBAL uchar* p) { return as_uint(vload4(0, p)); }
// Of 16 bytes in four words, those at the places that the bytes of `places` have
INLINE uint looked_up(uint a, uint b, uint c, uint d, uint places) {
    return as_uint(shuffle(as_uchar16((uint4)(a, b, c, d)), as_uchar4(places)));
}
INLINE float float_of_half(ushort bits) { return vload_half(0, (const half*)&bits); }

// One element, and VEC adjacent ones, of each element type. bfloat16 is the upper half of a float32.
#define storage_f32 float
#define storage_f64 double
#define storage_f16 half
#define storage_bf16 ushort
#define storage_i8 char
#define storage_u8 uchar
#define storage_i16 short
#define storage_u16 ushort
#define storage_i32 int
#define storage_u32 uint
#define storage_i64 long
#define storage_u64 ulong

INLINE real get_f32(const GLOBAL float* p) { return *p; }
INLINE void put_f32(GLOBAL float* p, real x) { *p = (float)x; }
INLINE vec load_f32(const GLOBAL float* p) { return reals_of(JOIN(vload, VEC)(0, p)); }
INLINE void store_f32(GLOBAL float* p, vec x) {
    const JOIN(float, VEC) values = JOIN(convert_, JOIN(float, VEC))(x);
    STORE_PAST_CACHES(JOIN(float, VEC), values, p)
    JOIN(vstore, VEC)(values, 0, p);
}
#if DOUBLE
INLINE real get_f64(const GLOBAL double* p) { return *p; }
INLINE void put_f64(GLOBAL double* p, real x) { *p = x; }
INLINE vec load_f64(const GLOBAL double* p) { return JOIN(vload, VEC)(0, p); }
INLINE void store_f64(GLOBAL double* p, vec x) {
    STORE_PAST_CACHES(vec, x, p)
    JOIN(vstore, VEC)(x, 0, p);
}
#endif
INLINE real get_f16(const GLOBAL half* p) { return vload_half(0, p); }
INLINE void put_f16(GLOBAL half* p, real x) { vstore_half_rte((float)x, 0, p); }
INLINE vec load_f16(const GLOBAL half* p) { return reals_of(JOIN(vload_half, VEC)(0, p)); }
INLINE void store_f16(GLOBAL half* p, vec x) {
    const JOIN(float, VEC) values = JOIN(convert_, JOIN(float, VEC))(x);
#if STREAM
    JOIN(ushort, VEC) bits;
    JOIN(JOIN(vstore_half, VEC), _rte)(values, 0, (half*)&bits);
    STORE_PAST_CACHES(JOIN(ushort, VEC), bits, p)
#endif
    JOIN(JOIN(vstore_half, VEC), _rte)(values, 0, p);
}
#define as_floats(x) JOIN(as_, JOIN(float, VEC))(x)
#define as_bits(x) JOIN(as_, JOIN(uint, VEC))(x)
#define bits_of(x) JOIN(convert_, JOIN(uint, VEC))(x)
INLINE JOIN(ushort, VEC) bits_bf16(vec x) {
    const JOIN(float, VEC) wide = JOIN(convert_, JOIN(float, VEC))(x);
    const JOIN(uint, VEC) bits = as_bits(wide);
    const JOIN(uint, VEC) rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return JOIN(convert_, JOIN(ushort, VEC))(select(rounded, (JOIN(uint, VEC))(0x7fc0), isnan(wide)));
}
INLINE real get_bf16(const GLOBAL ushort* p) { return as_float((uint)*p << 16); }
INLINE void put_bf16(GLOBAL ushort* p, real x) {
    const uint bits = as_uint((float)x);
    *p = isnan(x) ? 0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE vec load_bf16(const GLOBAL ushort* p) { return reals_of(as_floats(bits_of(JOIN(vload, VEC)(0, p)) << 16)); }
INLINE void store_bf16(GLOBAL ushort* p, vec x) { JOIN(vstore, VEC)(bits_bf16(x), 0, p); }

// What an element of a type would keep of each value
INLINE vec rounded_f32(vec x) { return reals_of(JOIN(convert_, JOIN(float, VEC))(x)); }
#if DOUBLE
INLINE vec rounded_f64(vec x) { return x; }
#endif
INLINE vec rounded_f16(vec x) {
    ushort bits[VEC];
    JOIN(JOIN(vstore_half, VEC), _rte)(JOIN(convert_, JOIN(float, VEC))(x), 0, (half*)bits);
    return reals_of(JOIN(vload_half, VEC)(0, (const half*)bits));
}
INLINE vec rounded_bf16(vec x) { return reals_of(as_floats(bits_of(bits_bf16(x)) << 16)); }
