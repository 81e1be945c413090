// Sums whose error does not grow with the row: each lane adds 64 values, then those sums. A processor has two such sums
// of alternate vectors, because an addition takes it longer than to begin the next.
typedef struct {
    vec block, other, blocks;
} Sum;
INLINE Sum no_sum() {
    Sum s;
    s.block = s.other = s.blocks = splat(0);
    return s;
}
// With the value of vector k
INLINE Sum plus(Sum s, vec value, int k) {
    if (THREADS == 1 && k % 2 == 0)
        s.other += value;
    else
        s.block += value;
    if (k % 64 == 63) {
        s.blocks += THREADS == 1 ? s.block + s.other : s.block;
        s.block = s.other = splat(0);
    }
    return s;
}
INLINE real total(Sum s) {
    const vec both = THREADS == 1 ? s.block + s.other + s.blocks : s.block + s.blocks;
    return FOLD(both, ADD);
}

// Whether no square in a mean was too large or too small. Those that vanished are negligible compared with such a mean.
#define LEAST_USUAL (DOUBLE ? (real)1e-290 : (real)1e-30f)
#define MOST_USUAL (DOUBLE ? (real)1e290 : (real)1e30f)
INLINE bool is_usual(real mean) { return mean >= LEAST_USUAL && mean <= MOST_USUAL; }
// A power of two by which |x| comes close to 1, without a loss for numbers below the normal ones; 1 for 0 and infinity
INLINE real power_of_two_near(real x) {
    if (!(x > 0 && x <= REAL_MAX)) return 1;
    const int limit = DOUBLE ? 1021 : 125, exponent = ilogb(x);
    return ldexp((real)1, -(exponent > limit ? limit : exponent < -limit ? -limit : exponent));
}
