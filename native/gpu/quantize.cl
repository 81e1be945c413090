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
#define STORED_f32(p, x) (x)
#define STORED_f64(p, x) (x)
#define STORED_f16(p, x) get_f16(p)
#define STORED_bf16(p, x) get_bf16(p)
// With such a scale, the distance of two elements may overflow. Halving is exact.
#if DOUBLE
#define LARGE_SCALE 3.511119404027961e305
#else
#define LARGE_SCALE 6.64613998e35f
#endif

// NaN where one of them is
#define NAN_MAX_OF_LANES(a, b) select(b, a, (a) >= (b) || isnan(a))
#define LEAST_OF_LANES(a, b) select(b, a, (a) < (b))
#define MIN(a, b) fmin(a, b)
#if THREADS == 1
// In halves, which are vectors: a processor compares whole ones.
#if VEC == 16
#define FOLD_HALVES(combine)                                     \
    const JOIN(real, 8) eight = combine(v.lo, v.hi);             \
    const JOIN(real, 4) four = combine(eight.lo, eight.hi);
#elif VEC == 8
#define FOLD_HALVES(combine) const JOIN(real, 4) four = combine(v.lo, v.hi);
#endif
#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
INLINE real largest_lane(vec v) {
    FOLD_HALVES(LARGER)
    const JOIN(real, 2) two = LARGER(four.lo, four.hi);
    return LARGER(two.x, two.y);
}
INLINE real smallest_lane(vec v) {
    FOLD_HALVES(SMALLER)
    const JOIN(real, 2) two = SMALLER(four.lo, four.hi);
    return SMALLER(two.x, two.y);
}
#endif

// EVEN says that groups are whole vectors of adjacent elements.
#if EVEN
#define ELEMENTS(i) JOIN(load_, X)(from + (i))
#else
#define ELEMENTS(i) READ(X, from, x_step, i, some)
#endif

// Writes the integers of elements i to i + VEC of a group, whose bytes begin at p.
#if THREADS == 1
#if VEC == 16
#define HALF_VEC 8
#else
#define HALF_VEC 4
#endif
INLINE void put_whole(GLOBAL uchar *p, vec q) {
    const JOIN(int, VEC) codes = JOIN(convert_, JOIN(int, VEC))(q);
#if BITS == 4
    JOIN(vstore, HALF_VEC)(JOIN(convert_, JOIN(uchar, HALF_VEC))(codes.even | codes.odd << 4), 0, p);
#else
    JOIN(vstore, VEC)(JOIN(convert_, JOIN(uchar, VEC))(codes), 0, p);
#endif
}
#else
INLINE void put_whole(GLOBAL uchar *p, vec q) {
    real a[VEC];
    to_memory(q, a);
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
    to_memory(q, a);
    for (int k = 0; k < count; k += 8 / BITS)
        p[k * BITS / 8] = (uchar)(BITS == 4 ? (int)a[k] | (int)a[k + 1] << 4 : (int)a[k]);
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
#if THREADS == 1
        vec lows = splat(REAL_MAX), highs = HAS_BIASES ? -lows : splat(0);
        lows = lows * 2;
        highs = highs * 2;
        mask odd = lows != lows;
        for (int k = 0; k < CHUNKS; ++k) {
            const vec a = ELEMENTS(ELEMENT(k)), b = HAS_BIASES ? a : fabs(a);
            odd = odd || isnan(a);
            highs = LARGER(b, highs);
            lows = SMALLER(b, lows);
        }
        const real high = any(odd) ? NAN : largest_lane(highs);
        real low = 0, scale = high / STEPS;
#else
        vec lows = splat(some), highs = HAS_BIASES ? lows : splat(0);
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            const vec a = i < n ? ELEMENTS(i) : splat(some);
            if (KEPT) kept[KEPT ? k : 0] = a;
            const vec b = HAS_BIASES ? a : fabs(a);
            highs = NAN_MAX_OF_LANES(highs, b);
            lows = fmin(lows, b);
        }
        const real high = row_max(FOLD(highs, NAN_MAX), scratch);
        real low = 0, scale = high / STEPS;
#endif
#if HAS_BIASES
        
#if THREADS == 1
low = smallest_lane(lows);
#else
low = -row_max(-FOLD(lows, MIN), scratch);
#endif

        if (high != high) low = high;
        scale = ((real)0.5 * high - (real)0.5 * low) / ((real)0.5 * STEPS);
#endif
        if (at >= rows) continue;
        if (lane_id() == 0) {
            // A scale that was rounded up may take the largest element out of range: then it is a little less.
            JOIN(put_, X)(scales + row, scale);
            const real stored = JOIN(STORED_, X)(scales + row, scale);
            if (STEPS * (stored * (real)0.5) + low * (real)0.5 > (real)0.5 * JOIN(LARGEST_, X))
                JOIN(put_, X)(scales + row, scale * (1 - 2 * JOIN(EPSILON_, X)));
#if HAS_BIASES
            JOIN(put_, X)(biases + row, low);
#endif
        }
        // All elements are equal, or one is infinite or NaN: then the integers are 0.
        const bool usual = scale > 0 && scale <= REAL_MAX;
        const real unit = scale >= LARGE_SCALE ? (real)0.5 : 1, step = usual ? scale * unit : 1, lowest = low * unit;
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            if (i >= n) break;
            const vec a = KEPT ? kept[KEPT ? k : 0] : ELEMENTS(i);
            vec q = rint((HAS_BIASES ? a * unit - lowest : a * unit) / step);
            q = usual ? fmin(fmax(q, splat(LEAST)), splat(STEPS)) : splat(0);
            GLOBAL uchar *to = codes + (row * n + i) * BITS / 8;
            if (EVEN)
                put_whole(to, q);
            else
                put_part(to, n - i < VEC ? n - i : VEC, q);
        }
    }
}
