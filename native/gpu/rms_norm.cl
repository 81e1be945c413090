// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset), along rows.
//
// Work: THREADS threads for each row; on a processor one, with vectors as wide as its registers.
// Precision: sums in the type of computation, per thread and lane in blocks of 64 vectors, then over the threads. If the
//   mean square leaves the range in which squares neither overflow nor vanish, the row is scaled by a power of two.
// Bytes: each element once in, once out, while a row fits registers (KEPT) or a processor's cache; else twice in.
#include "rows.h"
#include "sums.h"

// The same for a row whose squares leave the range of `real`: scaled so that its largest element is near 1.
RARE real careful_factor(const GLOBAL STORAGE(X) *x, index_t step, int n, real eps, real *unit, LOCAL real *scratch) {
    vec largest = splat(0);
    EACH_RARE_VECTOR(k) {
        const int i = ELEMENT(k);
        if (i < n) largest = fmax(largest, fabs(READ(X, x, step, i, 0)));
    }
    const real least = sqrt(eps);
    const real top = fmax(row_max(FOLD(largest, MAX), scratch), least);
    *unit = power_of_two_near(top);
    Sum sum = no_sum();
    EACH_RARE_VECTOR(k) {
        const int i = ELEMENT(k);
        if (i >= n) break;
        const vec a = READ(X, x, step, i, 0) * *unit;
        sum = plus(sum, a * a, k);
    }
    const real square = row_sum(total(sum), scratch) / n, floor = least * *unit;
    const real root = sqrt(square + floor * floor);
    return 1 / (root == 0 && eps > 0 ? 1 : root);
}

KERNEL(rms_norm)
(IN(X, x),
#if HAS_WEIGHT
 IN(WEIGHT, weight),
#endif
 OUT(X, y), ROW_SHAPE, real eps, real weight_offset) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row), *next = ROW(x, row + 1 < rows ? row + 1 : row);
        GLOBAL STORAGE(X) *to = ROW(y, row);
        KEPT_ARRAY(kept);
        Sum sum = no_sum();
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            const vec a = i < n ? READ(X, from, x_step, i, 0) : splat(0);
            if (KEPT) kept[KEPT ? k : 0] = a;
            sum = plus(sum, a * a, k);
        }
        const real spread = row_sum(total(sum), scratch) / n + eps;
        real unit = 1, factor = 1 / sqrt(spread);
        if (any_row(!is_usual(spread), scratch)) factor = careful_factor(from, x_step, n, eps, &unit, scratch);
        if (at >= rows) continue;
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            if (i >= n) break;
            FETCH(next + i);
            vec a = KEPT ? kept[KEPT ? k : 0] : READ(X, from, x_step, i, 0);
            a = a * unit * factor;
#if HAS_WEIGHT
            a *= READ(WEIGHT, weight + weight_start, weight_step, i, 0) + weight_offset;
#endif
            WRITE(X, to, y_step, i, a);
        }
    }
}
