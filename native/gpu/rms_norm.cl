// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset), along rows; with a residual, which is added to x first, also
// the sum.
//
// Work: THREADS threads for each row; on a processor one, with vectors as wide as its registers.
// Precision: sums in the type of computation, per thread and lane in blocks of 64 vectors, then over the threads. If the
//   mean square leaves the range in which squares neither overflow nor vanish: see careful_row.h. A sum is rounded to
//   its element type before it is normalized.
// Bytes: each element once in, once out, while a row fits registers (KEPT) or a processor's cache; else twice in.
#include "rows.h"
#include "sums.h"
#define DIVISOR ROOT_MEAN_SQUARE
#include "careful_row.h"

#if HAS_RESIDUAL
#define SUM_OF_TWO(i) \
    JOIN(rounded_, X)(READ(X, from, x_step, i, 0) + READ(X, other, residual_step, i, 0))
// A sum that was written past the caches is faster to compute again than to read.
#define VALUE(i) (STREAM ? SUM_OF_TWO(i) : READ(X, sum_to, sum_step, i, 0))
#else
#define VALUE(i) READ(X, from, x_step, i, 0)
#endif

KERNEL(rms_norm)
(IN(X, x),
#if HAS_RESIDUAL
 IN(X, residual),
#endif
#if HAS_WEIGHT
 IN(WEIGHT, weight),
#endif
 OUT(X, y),
#if HAS_RESIDUAL
 OUT(X, sum),
#endif
 ROW_SHAPE, real eps, real least, real weight_offset) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1, after = row + 1 < rows ? row + 1 : row;
        const GLOBAL STORAGE(X) *from = ROW(x, row), *next = ROW(x, after);
        GLOBAL STORAGE(X) *to = ROW(y, row);
#if HAS_RESIDUAL
        const GLOBAL STORAGE(X) *other = ROW(residual, row), *next_other = ROW(residual, after);
        GLOBAL STORAGE(X) *sum_to = ROW(sum, row);
#endif
        KEPT_ARRAY(kept);
        Sum squares = no_sum();
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
#if HAS_RESIDUAL
            const vec a = SUM_OF_TWO(i);
            if (at < rows) WRITE(X, sum_to, sum_step, i, a);
#else
            const vec a = VALUE(i);
#endif
            if (KEPT) kept[KEPT ? k : 0] = a;
            squares = plus(squares, a * a, k);
        }
        const real spread = row_sum(total(squares), scratch) / n + eps;
        Scaling s = scaling(1, 0, 1 / sqrt(spread));
        if (any_row(!is_usual(spread), scratch)) {
#if HAS_RESIDUAL
            // Those beyond the last row, whose values are not used, must not read what others write.
            BE_CAREFUL(at < rows ? sum_to : from, at < rows ? sum_step : x_step);
#else
            BE_CAREFUL(from, x_step);
#endif
        }
        if (at >= rows) continue;
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            if (!IN_ROW(i)) continue;
            FETCH(next + i);
#if HAS_RESIDUAL
            FETCH(next_other + i);
#endif
            vec a = KEPT ? kept[KEPT ? k : 0] : VALUE(i);
            a = a * s.unit * s.factor;
#if HAS_WEIGHT
            a *= READ(WEIGHT, weight + weight_start, weight_step, i, 0) + weight_offset;
#endif
            WRITE(X, to, y_step, i, a);
        }
    }
}
