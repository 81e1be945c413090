// top_k: the k largest or smallest elements of rows, best first, equal ones in the order of their indices, NaN last.
//
// Work: as rows.h deals out rows. A thread divides its vectors into parts and knows the best element that is left in each.
// The best of these is the next result; only then its part is searched, for where that is and for the best that is left.
// A processor keeps a short row in registers. Few long rows are divided into shares, each of which is a row of its own;
// a second launch finds the best of what these found, one share after another, so that equal ones remain in order.
// Bytes: a row once, and for each result one part of it, which a cache holds.
//
// Macros, besides those of rows.h:
//   SHORT     the number of vectors of a short row, 0 if rows are not short
//   SHARED    1 if rows are divided: `n` is the length of the longest share
//   OF_SHARES 1 if x is what the shares of rows found: `places` says where in the row each element was
#include "rows.h"
#include "indices.h"
#include "math.h"

#define MOST_PARTS (THREADS == 1 ? 128 : 1)
#define LEAST (-INFINITE)

// Elements i to i + VEC as they are compared: the largest is the best. NaN is never larger.
#define COMPARED(i) (largest ? READ(X, x, step, i, NOT_A_NUMBER) : -READ(X, x, step, i, NOT_A_NUMBER))

// The best of the elements of vectors first to end
RARE real best_of_part(const GLOBAL STORAGE(X) *x, index_t step, int n, int first, int end, int largest) {
    vec best = splat(LEAST);
    for (int k = first; k < end && ELEMENT(k) < n; ++k) best = larger(best, COMPARED(ELEMENT(k)));
    return FOLD(best, LARGER);
}

// Where the best of these elements is, the first one after an index if there are equal ones, and the best that is left
typedef struct {
    int index;
    real left;
} Found;
RARE Found find_in_part(const GLOBAL STORAGE(X) *x, index_t step, int n, int first, int end, real best, int after,
                        int largest) {
    Found found;
    found.index = n;
    found.left = best;
    real numbers[VEC];
    for (int j = 0; j < VEC; ++j) numbers[j] = j;
    const vec lane = from_memory(numbers);
    vec left = splat(LEAST);
    for (int k = first; k < end && ELEMENT(k) < n; ++k) {
        const vec a = COMPARED(ELEMENT(k));
        if (any(a == best)) {
            const vec index = lane + (real)ELEMENT(k);
            const vec equals = select(splat(n), index, a == best && index > (real)after);
            const int least = FOLD(equals, MIN);
            if (found.index == n) found.index = least;
            if (any(equals > (real)found.index && equals < (real)n)) return found;
        }
        left = larger(left, select(a, splat(LEAST), a >= best));
    }
    found.left = FOLD(left, LARGER);
    return found;
}

// The first element after an index that is infinitely bad, or NaN; n if there is none
RARE int next_of_worst(const GLOBAL STORAGE(X) *x, index_t step, int n, int after, bool is_nan, int largest) {
    const real worst = largest ? LEAST : INFINITE;
    for (int k = (after + 1) / (THREADS * VEC); k < CHUNKS; ++k)
        for (int i = ELEMENT(k), j = 0; j < VEC && i + j < n; ++j) {
            const real a = JOIN(get_, X)(x + (i + j) * step);
            if (i + j > after && (is_nan ? isnan(a) : a == worst)) return i + j;
        }
    return n;
}

#if SHORT
// The elements of a short row, NaN as the least
INLINE void load_short(const GLOBAL STORAGE(X) *x, index_t step, int n, int largest, vec* left) {
    UNROLL for (int k = 0; k < SHORT; ++k) left[k] = larger(splat(LEAST), COMPARED(ELEMENT(k)));
}

// Where the best of them is that is left, and takes it; n if none is better than the least.
INLINE int take_best(vec* left, int n) {
    real numbers[VEC];
    for (int j = 0; j < VEC; ++j) numbers[j] = j;
    const vec lane = from_memory(numbers);
    vec bests = left[0], index = splat(n);
    UNROLL for (int k = 1; k < SHORT; ++k) bests = larger(bests, left[k]);
    const real best = FOLD(bests, LARGER);
    UNROLL for (int k = SHORT - 1; k >= 0; --k) index = select(index, lane + (real)ELEMENT(k), left[k] == best);
    const real found = FOLD(index, MIN);
    UNROLL for (int k = 0; k < SHORT; ++k)
        left[k] = select(left[k], splat(LEAST), lane + (real)ELEMENT(k) == found);
    return best > LEAST ? (int)found : n;
}
#endif

#if SHARED
// Shares begin where vectors do.
INLINE int first_of_share(int length, int share, int shares) {
    return share == shares ? length : (int)((index_t)(length / 16) * share / shares) * 16;
}
#endif

KERNEL(top_k)
(IN(X, x), OUT(X, values), OUT(i64, indices), ROW_SHAPE, int count, int largest
#if SHARED
 , int length, int shares
#elif OF_SHARES
 , const GLOBAL storage_i64 *restrict places
#endif
) {
    LOCAL_ARRAY(real, scratch, BLOCK);
#if !SHORT
    // There are about twice as many parts as vectors in each: what is searched for a result is then least.
    int size = 1;
    while (2 * size * size < CHUNKS || size * MOST_PARTS < CHUNKS) size *= 2;
    const int parts = (CHUNKS + size - 1) / size;
#endif
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
#if SHARED
        const int first = first_of_share(length, row % shares, shares);
        const int n = first_of_share(length, row % shares + 1, shares) - first;
        const GLOBAL STORAGE(X) *from = ROW(x, row / shares) + first * STEP(x_step);
#else
        const GLOBAL STORAGE(X) *from = ROW(x, row);
#endif
        GLOBAL STORAGE(X) *to = ROW(values, row);
        GLOBAL storage_i64 *where = ROW(indices, row);
#if SHORT
        vec left[SHORT];
        load_short(from, x_step, n, largest, left);
#else
        real bests[MOST_PARTS], last = INFINITE;
        for (int p = 0; p < parts; ++p) bests[p] = best_of_part(from, x_step, n, p * size, (p + 1) * size, largest);
        int after = -1;
#endif
        int worst = -1, nan = -1;
        for (int rank = 0; rank < count; ++rank) {
#if SHORT
            int found = take_best(left, n);
#else
            int part = 0;
            real own = bests[0];
            for (int p = 1; p < parts; ++p) {
                part = bests[p] > own ? p : part;
                own = LARGER(own, bests[p]);
            }
            const real best = row_max(own, scratch);
            Found mine;
            mine.index = n;
            if (best != last) after = -1;
            if (best > LEAST && own == best)
                mine = find_in_part(from, x_step, n, part * size, (part + 1) * size, best, after, largest);
            int found = least_of_row(mine.index, n, scratch);
            if (found < n && mine.index == found) bests[part] = mine.left;
            last = best;
            after = found;
#endif
            const bool is_rest = found == n;
            if (any_row(is_rest, scratch)) {
                const int low = least_of_row(next_of_worst(from, x_step, n, worst, false, largest), n, scratch);
                const int unordered = least_of_row(next_of_worst(from, x_step, n, nan, true, largest), n, scratch);
                if (is_rest && low < n) found = worst = low;
                if (is_rest && low == n) found = nan = unordered;
            }
            if (at >= rows || lane_id() > 0) continue;
            JOIN(put_, X)(to + rank * values_step, JOIN(get_, X)(from + found * x_step));
#if SHARED
            where[rank * indices_step] = first + found;
#elif OF_SHARES
            where[rank * indices_step] = places[row * n + found];
#else
            where[rank * indices_step] = found;
#endif
        }
    }
}
