// top_k: the k largest or smallest elements of rows, best first, equal ones in the order of their indices, NaN last.
//
// Work: as rows.h deals out rows. A thread divides its vectors into PARTS and knows the best element of each. The best of
// all is the next result; then its part is searched again, for the best element after that one.
// Bytes: a row once, and for each result one part of it, which a cache holds.
#include "rows.h"
#include "indices.h"

#define PARTS (THREADS == 1 ? 64 : 1)

typedef struct {
    real value;
    int index;
} Found;
// Whether b comes after a
INLINE bool follows(Found a, Found b) { return b.value < a.value || (b.value == a.value && b.index > a.index); }

// The best of the elements of vectors first to end that come after `last`; index n if there is none. -x is compared if
// the smallest are wanted.
RARE Found best_of_part(const GLOBAL STORAGE(X) *x, index_t step, int n, int first, int end, Found last, int largest) {
    real lanes[VEC];
    for (int j = 0; j < VEC; ++j) lanes[j] = j;
    const vec lane = from_memory(lanes);
    const real last_index = last.index;
    vec best = splat(-INFINITE), where = splat(n);
    for (int k = first; k < end; ++k) {
        const int i = ELEMENT(k);
        if (i >= n) break;
        vec a = READ(X, x, step, i, NOT_A_NUMBER);
        if (!largest) a = -a;
        const vec index = lane + (real)i;
        const mask after = a < last.value || (a == last.value && index > last_index);
        const mask better = after && (a > best || (where == (real)n && a == best));
        best = select(best, a, better);
        where = select(where, index, better);
    }
    Found found;
    found.value = FOLD(best, MAX);
    const vec equals = select(splat(n), where, best == found.value);
    found.index = (int)FOLD(equals, MIN);
    return found;
}

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
    const int size = (CHUNKS + PARTS - 1) / PARTS, parts = size ? (CHUNKS + size - 1) / size : 0;
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
        GLOBAL STORAGE(X) *to = ROW(values, row);
        GLOBAL storage_i64 *places = ROW(indices, row);
        Found bests[PARTS], last;
        last.value = INFINITE;
        last.index = -1;
        for (int p = 0; p < parts; ++p)
            bests[p] = best_of_part(from, x_step, n, p * size, (p + 1) * size, last, largest);
        int last_nan = -1;
        for (int rank = 0; rank < count; ++rank) {
            int part = 0;
            for (int p = 1; p < parts; ++p)
                if (bests[p].index < n && (bests[part].index == n || follows(bests[p], bests[part]))) part = p;
            const real top = row_max(bests[part].value, scratch);
            int found = least_of_row(bests[part].value == top ? bests[part].index : n, n, scratch);
            const bool is_nan = found == n;
            if (any_row(is_nan, scratch)) {
                const int nan = least_of_row(next_nan(from, x_step, n, last_nan), n, scratch);
                if (is_nan) found = last_nan = nan;
            }
            if (!is_nan) {
                last.value = top;
                last.index = found;
            }
            if (!is_nan && bests[part].index == found)
                bests[part] = best_of_part(from, x_step, n, part * size, (part + 1) * size, last, largest);
            if (at >= rows || lane_id() > 0) continue;
            JOIN(put_, X)(to + rank * values_step, JOIN(get_, X)(from + found * x_step));
            places[rank * indices_step] = found;
        }
    }
}
