// y = x / max(sqrt(sum(x²)), eps), along rows. Work, precision and bytes as in rms_norm.
#include "rows.h"
#include "sums.h"
#define DIVISOR LENGTH
#include "careful_row.h"

KERNEL(l2_norm)
(IN(X, x), OUT(X, y), ROW_SHAPE, real least) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row), *next = ROW(x, row + 1 < rows ? row + 1 : row);
        GLOBAL STORAGE(X) *to = ROW(y, row);
        KEPT_ARRAY(kept);
        Sum squares = no_sum();
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            const vec a = READ(X, from, x_step, i, 0);
            if (KEPT) kept[KEPT ? k : 0] = a;
            squares = plus(squares, a * a, k);
        }
        const real square = row_sum(total(squares), scratch), smallest = least * least;
        const real spread = square < smallest ? smallest : square;  // NaN if the square is
        Scaling s = scaling(1, 0, 1 / sqrt(spread));
        if (any_row(!is_usual(spread), scratch)) BE_CAREFUL(from, x_step);
        if (at >= rows) continue;
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            if (!IN_ROW(i)) continue;
            FETCH(next + i);
            const vec a = KEPT ? kept[KEPT ? k : 0] : READ(X, from, x_step, i, 0);
            WRITE(X, to, y_step, i, a * s.unit * s.factor);
        }
    }
}
