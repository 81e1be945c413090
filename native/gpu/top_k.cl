// top_k: the k largest or smallest elements of rows, best first, equal ones in the order of their indices, NaN last.
//
// Work: as rows.h deals out rows. Each of k passes finds the best element after the one found before.
// Bytes: a row once, if it fits registers (KEPT) or a processor's cache; else k times.
#include "rows.h"
#include "indices.h"

// The first NaN after an index, or n
RARE int next_nan(const GLOBAL STORAGE(X) *x, index_t step, int n, int after) {
    for (int k = 0; k < CHUNKS; ++k)
        for (int i = ELEMENT(k), j = 0; j < VEC && i + j < n; ++j)
            if (i + j > after && isnan(JOIN(get_, X)(x + (i + j) * step))) return i + j;
    return n;
}

KERNEL(top_k)
(IN(X, x), OUT(X, values), OUT(i64, indices), ROW_SHAPE, int count, int largest) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    real lanes[VEC];
    for (int j = 0; j < VEC; ++j) lanes[j] = j;
    const vec lane = from_memory(lanes);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
        GLOBAL STORAGE(X) *to = ROW(values, row);
        GLOBAL storage_i64 *places = ROW(indices, row);
        KEPT_ARRAY(kept);
        for (int k = 0; KEPT && k < CHUNKS; ++k)
            kept[KEPT ? k : 0] = ELEMENT(k) < n ? READ(X, from, x_step, ELEMENT(k), NOT_A_NUMBER) : splat(NOT_A_NUMBER);
        // What was found before, and the NaN that was
        real last = INFINITE;
        int last_index = -1, last_nan = -1;
        for (int rank = 0; rank < count; ++rank) {
            vec best = splat(-INFINITE), where = splat(n);
            for (int k = 0; k < CHUNKS; ++k) {
                const int i = ELEMENT(k);
                if (i >= n) break;
                vec a = KEPT ? kept[KEPT ? k : 0] : READ(X, from, x_step, i, NOT_A_NUMBER);
                if (!largest) a = -a;
                const vec index = lane + (real)i;
                const mask follows = a < last || (a == last && index > (real)last_index);
                const mask better = follows && (a > best || (where == (real)n && a == best));
                best = select(best, a, better);
                where = select(where, index, better);
            }
            const real top = row_max(FOLD(best, MAX), scratch);
            const vec equals = select(splat(n), where, best == top);
            int found = least_of_row((int)FOLD(equals, MIN), n, scratch);
            const bool is_nan = found == n;
            if (any_row(is_nan, scratch)) {
                const int nan = least_of_row(next_nan(from, x_step, n, last_nan), n, scratch);
                if (is_nan) found = last_nan = nan;
            }
            if (!is_nan) {
                last = top;
                last_index = found;
            }
            if (at >= rows || lane_id() > 0) continue;
            JOIN(put_, X)(to + rank * values_step, JOIN(get_, X)(from + found * x_step));
            places[rank * indices_step] = found;
        }
    }
}
