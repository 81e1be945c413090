// Rows of norms whose squares leave the range of `real`: scaled by a power of two so that the largest element, or the
// least divisor, `least`, is near 1. A kernel says by DIVISOR what its rows are divided by.
#include "divisors.h"

// What becomes of an element: (x · unit - mean) · factor
typedef struct {
    real unit, mean, factor;
} Scaling;
INLINE Scaling scaling(real unit, real mean, real factor) {
    Scaling s;
    s.unit = unit;
    s.mean = mean;
    s.factor = factor;
    return s;
}

RARE Scaling careful_scaling(const GLOBAL STORAGE(X) * x, index_t step, int n, real least, LOCAL real* scratch) {
    vec largest = splat(0);
    EACH_RARE_VECTOR(k) {
        const int i = ELEMENT(k);
        largest = fmax(largest, fabs(READ(X, x, step, i, 0)));
    }
    const real unit = power_of_two_near(fmax(row_max(FOLD(largest, MAX), scratch), least));
    real mean = 0;
    // Twice, because a sum is rounded: the second time adds the mean of what the first one left.
    _Pragma("unroll 1") for (int time = 0; time < (DIVISOR == DEVIATION ? 2 : 0); ++time) {
        Sum sum = no_sum();
        EACH_RARE_VECTOR(k) {
            const int i = ELEMENT(k);
            sum = plus(sum, WITHIN_ROW(i, READ(X, x, step, i, 0) * unit - mean), k);
        }
        mean += row_sum(total(sum), scratch) / n;
    }
    Sum squares = no_sum();
    EACH_RARE_VECTOR(k) {
        const int i = ELEMENT(k);
        const vec a = WITHIN_ROW(i, READ(X, x, step, i, 0) * unit - mean);
        squares = plus(squares, a * a, k);
    }
    const real square = row_sum(total(squares), scratch), bound = least * unit;
    real root = sqrt(DIVISOR == LENGTH ? square : square / n + bound * bound);
    if (DIVISOR == LENGTH && root < bound) root = bound;
    // If the least one underflowed and all elements are 0: 0 divided by anything. Rows of length 0 are always 0.
    if (root == 0 && (DIVISOR == LENGTH || least > 0)) root = 1;
    return scaling(unit, mean, 1 / root);
}
// What a kernel does for a row of its block that is not usual: `s` from a function of the row, whose vectors are then
// read again, because keeping them meanwhile would take more registers than there are.
#define BE_CAREFUL(p, step)                                                      \
    do {                                                                         \
        s = careful_scaling(p, step, n, least, scratch);                         \
        if (KEPT) {                                                              \
            EACH_VECTOR(k) kept[KEPT ? k : 0] = READ(X, p, step, ELEMENT(k), 0); \
        }                                                                        \
    } while (0)
