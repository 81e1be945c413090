// Groups of neighbours in a row become integers of BITS bits, a scale and a bias; without biases (HAS_BIASES 0), signed ones.
//
// Work: each group is a row of rows.h.
// Precision: rounded after every operation as in the operator's body, so that integers and scales are the same.
// Bytes: each element once in, while a group fits registers (KEPT) or a processor's cache.
#include "rows.h"

#define STEPS (HAS_BIASES ? (1 << BITS) - 1 : 127)
#define LEAST (HAS_BIASES ? 0 : -127)

// The largest number of each type, and the distance from 1 to the next one
#define LARGEST_f32 REAL_MAX
#define LARGEST_f64 REAL_MAX
#define LARGEST_f16 65504.0f
#define LARGEST_bf16 3.38953139e38f
#define EPSILON_f32 1.1920929e-07f
#define EPSILON_f64 2.220446049250313e-16
#define EPSILON_f16 9.765625e-04f
#define EPSILON_bf16 7.8125e-03f
// The smallest positive number of the types that may round a scale
#define SMALLEST_f32 0
#define SMALLEST_f64 0
#define SMALLEST_f16 5.9604645e-08f
#define SMALLEST_bf16 9.1835496e-41f
// With a larger scale, the distance of two elements may overflow; halving is exact. With a smaller one, quotients may be
// out of range.
#if DOUBLE
#define LARGE_SCALE 3.511119404027961e305
#define SMALL_SCALE 1e-300
#else
#define LARGE_SCALE 6.64613998e35f
#define SMALL_SCALE 1e-33f
#endif

#if THREADS == 1
// Processors have instructions for these. NaN is seen to apart.
#define HIGHER LARGER
#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHEST(v) (any(odd) ? NAN : FOLD(v, LARGER))
#define LOWEST(v) FOLD(v, LOWER)
#else
#define HIGHER(a, b) select(b, a, (a) >= (b) || isnan(a))
#define LOWER(a, b) fmin(a, b)
#define HIGHEST(v) row_max(FOLD(v, NAN_MAX), scratch)
#define LOWEST(v) (-row_max(-FOLD(v, LOWER), scratch))
#endif
DEFINE_FOLD(LOWER)

// EVEN says that groups are whole vectors of adjacent elements.
#if EVEN
#define ELEMENTS(i) JOIN(load_, X)(from + (i))
#else
#define ELEMENTS(i) READ(X, from, x_step, i, some)
#endif

// Rounds quotients to integers and writes them; their bytes begin at p.
#if THREADS == 1
#if VEC == 16
#define HALF_VEC 8
#else
#define HALF_VEC 4
#endif
#if DOUBLE
#define BITS_OF(v) JOIN(as_, JOIN(long, VEC))(v)
#define ROUND_AT 6755399441055744.0
#else
#define BITS_OF(v) JOIN(as_, JOIN(int, VEC))(v)
#define ROUND_AT 12582912.0f
#endif
INLINE void put_whole(GLOBAL uchar *p, vec q) {
    const vec sum = q + (real)ROUND_AT;  // in which the last bits count ones
#if BITS == 4
    const JOIN(uchar, VEC) codes = JOIN(convert_, JOIN(uchar, VEC))(BITS_OF(sum) & 15);
    JOIN(vstore, HALF_VEC)(codes.even | codes.odd << (JOIN(uchar, HALF_VEC))(4), 0, p);
#else
    JOIN(vstore, VEC)(JOIN(convert_, JOIN(uchar, VEC))(BITS_OF(sum) & 255), 0, p);
#endif
}
#else
INLINE void put_whole(GLOBAL uchar *p, vec q) {
    real a[VEC];
    to_memory(rint(q), a);
#if VEC * BITS >= 32
    UNROLL for (int first = 0; first < VEC; first += 32 / BITS) {
        uint word = 0;
        UNROLL for (int k = 0; k < 32 / BITS; ++k) word |= ((uint)(int)a[first + k] & ((1u << BITS) - 1)) << k * BITS;
        ((GLOBAL uint *)p)[first * BITS / 32] = word;
    }
#else
    UNROLL for (int byte = 0; byte < VEC * BITS / 8; ++byte) {
        const int first = byte * 8 / BITS;
        p[byte] = (uchar)(BITS == 4 ? (int)a[first] | (int)a[first + 1] << 4 : (int)a[first]);
    }
#endif
}
#endif
RARE void put_part(GLOBAL uchar *p, int count, vec q) {
    real a[VEC];
    to_memory(rint(q), a);
    for (int k = 0; k < count; k += 8 / BITS)
        p[k * BITS / 8] = (uchar)(BITS == 4 ? (int)a[k] | (int)a[k + 1] << 4 : (int)a[k]);
}

#if EVEN
#define PUT(to, i, q) put_whole((to) + (i) * BITS / 8, q)
#else
#define PUT(to, i, q) put_part((to) + (i) * BITS / 8, n - (i) < VEC ? n - (i) : VEC, q)
#endif

INLINE real as_stored(real x) {
    real a[VEC];
    to_memory(JOIN(rounded_, X)(splat(x)), a);
    return a[0];
}

// A scale as it is stored, rounded up so that the integers reach every element. Where that would take the largest element
// out of range, the scale is a little less.
INLINE real scale_as_stored(real scale, real low) {
    real stored = as_stored(scale);
    if (stored < scale)
        stored = as_stored(stored + fmax(stored * (real)(0.625f * JOIN(EPSILON_, X)), (real)(0.75f * JOIN(SMALLEST_, X))));
    const int is_out = STEPS * (stored * (real)0.5) + low * (real)0.5 > (real)0.5 * JOIN(LARGEST_, X);
    return is_out ? as_stored(scale * (1 - 2 * JOIN(EPSILON_, X))) : stored;
}

// The integers of a group with any scale. All elements are equal, or one is infinite or NaN: then they are 0.
RARE void put_carefully(const GLOBAL STORAGE(X) *from, index_t x_step, int n, GLOBAL uchar *to, real scale, real low) {
    const real some = 0, unit = scale >= LARGE_SCALE ? (real)0.5 : 1, step = scale * unit, lowest = low * unit;
    for (int k = 0; k < CHUNKS; ++k) {
        const int i = ELEMENT(k);
        if (i >= n) break;
        vec q = splat(0);
        if (scale > 0 && scale <= REAL_MAX)
            q = fmin(fmax((ELEMENTS(i) * unit - lowest) / step, splat(LEAST)), splat(STEPS));
        PUT(to, i, q);
    }
}

KERNEL(quantize)
(IN(X, x), GLOBAL uchar *restrict codes, GLOBAL STORAGE(X) *scales,
#if HAS_BIASES
 GLOBAL STORAGE(X) *restrict biases,
#endif
 ROW_SHAPE) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
        const real some = JOIN(get_, X)(from);
        KEPT_ARRAY(kept);
        vec lows = splat(some), highs = HAS_BIASES ? lows : splat(0);
#if THREADS == 1
        mask odd = isnan(lows);
#endif
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            const vec a = i < n ? ELEMENTS(i) : splat(some), b = HAS_BIASES ? a : fabs(a);
            if (KEPT) kept[KEPT ? k : 0] = a;
            highs = HIGHER(highs, b);
            lows = LOWER(lows, b);
#if THREADS == 1
            odd = odd || isnan(a);
#endif
        }
        const real high = HIGHEST(highs);
#if HAS_BIASES
        const real least = LOWEST(lows), low = high == high ? least : high;
        const real scale = scale_as_stored(((real)0.5 * high - (real)0.5 * low) / ((real)0.5 * STEPS), low);
#else
        const real low = 0, scale = scale_as_stored(high / STEPS, 0);
#endif
        if (at >= rows) continue;
        if (lane_id() == 0) {
            JOIN(put_, X)(scales + row, scale);
#if HAS_BIASES
            JOIN(put_, X)(biases + row, low);
#endif
        }
        GLOBAL uchar *to = codes + row * n * BITS / 8;
        if (!(scale >= SMALL_SCALE && scale < LARGE_SCALE)) {
            put_carefully(from, x_step, n, to, scale, low);
            continue;
        }
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            if (i >= n) break;
            const vec a = KEPT ? kept[KEPT ? k : 0] : ELEMENTS(i);
            PUT(to, i, (HAS_BIASES ? a - low : a) / scale);
        }
    }
}
