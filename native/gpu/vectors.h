// OpenCL C's vectors for C++: a struct of VEC reals, its operators and functions, and loads and stores of 16 bytes.
struct alignas(sizeof(real) * VEC < 16 ? sizeof(real) * VEC : 16) vec {
    real lane[VEC];
};
struct mask {
    bool lane[VEC];
};
#define EACH_LANE _Pragma("unroll") for (int k = 0; k < VEC; ++k)

#define DEFINE_OPERATOR(type, op)                     \
    INLINE type operator op(vec a, vec b) {           \
        type r;                                       \
        EACH_LANE r.lane[k] = a.lane[k] op b.lane[k]; \
        return r;                                     \
    }                                                 \
    INLINE type operator op(vec a, real b) {          \
        type r;                                       \
        EACH_LANE r.lane[k] = a.lane[k] op b;         \
        return r;                                     \
    }                                                 \
    INLINE type operator op(real a, vec b) {          \
        type r;                                       \
        EACH_LANE r.lane[k] = a op b.lane[k];         \
        return r;                                     \
    }
DEFINE_OPERATOR(vec, +)
DEFINE_OPERATOR(vec, -)
DEFINE_OPERATOR(vec, *)
DEFINE_OPERATOR(vec, /)
DEFINE_OPERATOR(mask, <)
DEFINE_OPERATOR(mask, <=)
DEFINE_OPERATOR(mask, >)
DEFINE_OPERATOR(mask, >=)
DEFINE_OPERATOR(mask, ==)
DEFINE_OPERATOR(mask, !=)

INLINE vec operator-(vec a) {
    EACH_LANE a.lane[k] = -a.lane[k];
    return a;
}
INLINE vec& operator+=(vec& a, vec b) { return a = a + b; }
INLINE vec& operator-=(vec& a, vec b) { return a = a - b; }
INLINE vec& operator*=(vec& a, vec b) { return a = a * b; }
INLINE vec& operator*=(vec& a, real b) { return a = a * b; }
INLINE mask operator&&(mask a, mask b) {
    EACH_LANE a.lane[k] = a.lane[k] && b.lane[k];
    return a;
}
INLINE mask operator||(mask a, mask b) {
    EACH_LANE a.lane[k] = a.lane[k] || b.lane[k];
    return a;
}
// Whether it holds for any lane
INLINE bool any(mask m) {
    bool r = false;
    EACH_LANE r = r || m.lane[k];
    return r;
}

INLINE vec splat(real x) {
    vec r;
    EACH_LANE r.lane[k] = x;
    return r;
}
// b where c holds, else a
INLINE vec select(vec a, vec b, mask c) {
    EACH_LANE a.lane[k] = c.lane[k] ? b.lane[k] : a.lane[k];
    return a;
}
INLINE vec fma(vec a, vec b, vec c) {
    EACH_LANE a.lane[k] = fma(a.lane[k], b.lane[k], c.lane[k]);
    return a;
}
#define DEFINE_FUNCTION(name)                  \
    INLINE vec name(vec a) {                   \
        EACH_LANE a.lane[k] = name(a.lane[k]); \
        return a;                              \
    }
DEFINE_FUNCTION(exp)
DEFINE_FUNCTION(expm1)
DEFINE_FUNCTION(log)
DEFINE_FUNCTION(log1p)
DEFINE_FUNCTION(tanh)
DEFINE_FUNCTION(erf)
DEFINE_FUNCTION(erfc)
DEFINE_FUNCTION(fabs)
DEFINE_FUNCTION(rint)
DEFINE_FUNCTION(sqrt)
INLINE vec fmax(vec a, vec b) {
    EACH_LANE a.lane[k] = fmax(a.lane[k], b.lane[k]);
    return a;
}
INLINE vec fmin(vec a, vec b) {
    EACH_LANE a.lane[k] = fmin(a.lane[k], b.lane[k]);
    return a;
}
INLINE mask isnan(vec a) { return a != a; }
#if NEAR_FUNCTIONS
DEFINE_FUNCTION(exp2_near)
DEFINE_FUNCTION(reciprocal_near)
// A quotient of numbers far from the limits of their type
INLINE vec quotient(vec a, vec b) { return a * reciprocal_near(b); }
#else
INLINE vec quotient(vec a, vec b) { return a / b; }
#endif
// Which of VEC bytes are not 0
INLINE mask flags_of(const uchar* p) {
    mask r;
    EACH_LANE r.lane[k] = p[k] != 0;
    return r;
}
#if !DOUBLE
// The bits of each float32, shifted into its exponent
INLINE vec lifted(vec a) {
    EACH_LANE a.lane[k] = float_of_bits(bits_of_float(a.lane[k]) << 23);
    return a;
}
#endif

#define LANE(v, k) v.lane[0x##k]
#define DEFINE_FOLD(combine)                                                                                 \
    INLINE real JOIN(JOIN(fold_, VEC), _##combine)(vec v) {                                                  \
        _Pragma("unroll") for (int n = VEC / 2; n > 0; n /= 2) _Pragma("unroll") for (int k = 0; k < n; ++k) \
            v.lane[k] = combine(v.lane[k], v.lane[k + n]);                                                   \
        return v.lane[0];                                                                                    \
    }
#define FETCH(p)  // for processors
// Lanes 2i and 2i + 1 exchanged
INLINE vec with_neighbours_swapped(vec v) {
    vec r;
    EACH_LANE r.lane[k] = v.lane[k ^ 1];
    return r;
}

INLINE vec from_memory(const real* p) {
    vec r;
    EACH_LANE r.lane[k] = p[k];
    return r;
}
INLINE void to_memory(vec v, real* p) { EACH_LANE p[k] = v.lane[k]; }

#define storage_f32 float
#define storage_f64 double
#define storage_f16 half_bits
#define storage_bf16 bfloat16_bits
#define storage_i8 signed char
#define storage_u8 unsigned char
#define storage_i16 short
#define storage_u16 unsigned short
#define storage_i32 int
#define storage_u32 unsigned
#define storage_i64 long long
#define storage_u64 unsigned long long
struct half_bits {
    unsigned short bits;
};
struct bfloat16_bits {
    unsigned short bits;
};

INLINE real get_f32(const float* p) { return *p; }
INLINE void put_f32(float* p, real x) { *p = (float)x; }
#if DOUBLE
INLINE real get_f64(const double* p) { return *p; }
INLINE void put_f64(double* p, real x) { *p = x; }
#endif
INLINE real get_f16(const half_bits* p) { return float_of_half(p->bits); }
INLINE void put_f16(half_bits* p, real x) { p->bits = half_of_float((float)x); }
INLINE real get_bf16(const bfloat16_bits* p) { return float_of_bits((unsigned)p->bits << 16); }
#if !defined(bf16_of_float)
INLINE unsigned short bf16_of_float(float x) {
    const unsigned bits = bits_of_float(x);
    return x != x ? 0x7fc0 : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif
INLINE void put_bf16(bfloat16_bits* p, real x) { p->bits = bf16_of_float((float)x); }

// 1, 2 or 4 words that begin at a multiple of their size
#define DEFINE_WORDS(count)                                                        \
    struct alignas(4 * count) words_##count {                                      \
        uint word[count];                                                          \
    };                                                                             \
    INLINE void load_words_##count(const uint* p, uint* words) {                   \
        const words_##count some = *reinterpret_cast<const words_##count*>(p);     \
        _Pragma("unroll") for (int k = 0; k < count; ++k) words[k] = some.word[k]; \
    }
DEFINE_WORDS(1)
DEFINE_WORDS(2)
DEFINE_WORDS(4)

INLINE uint load_bytes_4(const uchar* p) { return p[0] | p[1] << 8 | p[2] << 16 | (uint)p[3] << 24; }
// Of 16 bytes in four words, those at the places that the bytes of `places` have
INLINE uint looked_up(uint a, uint b, uint c, uint d, uint places) {
    uint selector = places & 0x07070707u;  // four numbers of four bits, in its lower half
    selector = (selector | selector >> 4) & 0x00ff00ffu;
    selector |= selector >> 8;
    const uint upper = (places >> 3 & 0x01010101u) * 255;
    return (bytes_of(a, b, selector) & ~upper) | (bytes_of(c, d, selector) & upper);
}

#ifndef STORE_PACK
#define STORE_PACK(type, p, pack) (*reinterpret_cast<type*>(p) = pack)
#endif

// VEC adjacent elements; ALIGNED says that they begin at multiples of 16 bytes, or of their size if that is less.
#define DEFINE_VECTOR_ACCESS(T)                                                                \
    struct alignas(sizeof(storage_##T) * VEC < 16 ? sizeof(storage_##T) * VEC : 16) pack_##T { \
        storage_##T element[VEC];                                                              \
    };                                                                                         \
    INLINE vec load_##T(const storage_##T* p) {                                                \
        pack_##T pack;                                                                         \
        if (ALIGNED)                                                                           \
            pack = *reinterpret_cast<const pack_##T*>(p);                                      \
        else                                                                                   \
            EACH_LANE pack.element[k] = p[k];                                                  \
        vec r;                                                                                 \
        EACH_LANE r.lane[k] = get_##T(&pack.element[k]);                                       \
        return r;                                                                              \
    }                                                                                          \
    INLINE void store_##T(storage_##T* p, vec x) {                                             \
        pack_##T pack;                                                                         \
        EACH_LANE put_##T(&pack.element[k], x.lane[k]);                                        \
        if (ALIGNED)                                                                           \
            STORE_PACK(pack_##T, p, pack);                                                     \
        else                                                                                   \
            EACH_LANE p[k] = pack.element[k];                                                  \
    }                                                                                          \
    /* What such an element would keep of each value */                                        \
    INLINE vec rounded_##T(vec x) {                                                            \
        storage_##T element;                                                                   \
        EACH_LANE {                                                                            \
            put_##T(&element, x.lane[k]);                                                      \
            x.lane[k] = get_##T(&element);                                                     \
        }                                                                                      \
        return x;                                                                              \
    }
DEFINE_VECTOR_ACCESS(f32)
#if DOUBLE
DEFINE_VECTOR_ACCESS(f64)
#endif
DEFINE_VECTOR_ACCESS(f16)
DEFINE_VECTOR_ACCESS(bf16)
