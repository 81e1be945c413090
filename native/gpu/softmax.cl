// softmax: exp(x - max) / sum(exp(x - max)); log_softmax: x - max - log(sum); logsumexp: max + log(sum); along rows.
//
// Work: THREADS threads for each row; on a processor one, with vectors as wide as its registers.
// Precision: each thread and lane adds the exponentials of a block, then those sums together with their rounding errors,
//   then lanes and threads in pairs: the error does not grow with the row.
// Bytes: each element once in, once out, while a row fits registers (KEPT) or a processor's cache; else twice in: a
//   thread scales its sum whenever a block has a larger maximum.
#include "rows.h"
#include "math.h"
#include "softmax.h"

// Vectors whose exponentials have one maximum, and those that are added plainly. A processor keeps the former in its
// second-level cache, as it reads them twice, and the exponentials of rows that are not longer in a buffer; the launcher
// says how many fit there.
#if THREADS == 1
#define BLOCK_VECTORS 64
#else
#define SPAN_VECTORS 8
#define BLOCK_VECTORS 8
#endif
#define BUFFERED (THREADS == 1 && KIND == SOFTMAX)
#ifndef FETCH
#define FETCH(p)
#endif
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define IS_FINITE(x) ((x) >= -REAL_MAX && (x) <= REAL_MAX)

// Elements i to i + VEC of the row; those beyond its end, and where `where` is false, have no part in the sum.
#define ROW_TERMS(i) READ(X, from, x_step, i, LOWEST)
#if WHERE == ADJACENT || WHERE == APART
#define TERMS(i)                                                                                             \
    select(splat(LOWEST), ROW_TERMS(i),                                                                      \
           counted(flags + (index_t)(i) * where_step, where_step, n - (i)))
#elif WHERE == SAME
#define TERMS(i) (*flags ? ROW_TERMS(i) : splat(LOWEST))
#else
#define TERMS(i) ROW_TERMS(i)
#endif
// Whether all vectors before number `end` are within the row, and how they are then read, without a test for each
#define WITHIN_ROW_UNTIL(end) (DENSE && WHERE != APART && (end) * (THREADS * VEC) <= n)
#if WHERE == ADJACENT
#define VECTOR_OF_TERMS(i) select(splat(LOWEST), JOIN(load_, X)(from + (i)), flags_of(flags + (i)))
#elif WHERE == SAME
#define VECTOR_OF_TERMS(i) (*flags ? JOIN(load_, X)(from + (i)) : splat(LOWEST))
#else
#define VECTOR_OF_TERMS(i) JOIN(load_, X)(from + (i))
#endif

// Exponentials of vector k, given its terms; and its results, given either
#if BUFFERED
#define ADD_EXPONENTIALS(k, terms)                     \
    do {                                               \
        const vec e = EXPONENTIALS(terms, shift);      \
        to_memory(e, buffer + (k) % SPAN_VECTORS * VEC); \
        block += e;                                    \
    } while (0)
#else
#define ADD_EXPONENTIALS(k, terms) block += EXPONENTIALS(terms, shift)
#endif
#define RESULT(a) (KIND == SOFTMAX ? EXPONENTIALS(a, shift) * factor : (a) - shift - minus)

KERNEL(softmax)
(IN(X, x),
#if WHERE
 IN(u8, where),
#endif
 OUT(Y, y), ROW_SHAPE) {
    LOCAL_ARRAY(real, scratch, BLOCK);
#if BUFFERED
    LOCAL_ARRAY(real, buffer, SPAN_VECTORS * VEC);
#endif
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row), *next = ROW(x, row + 1 < rows ? row + 1 : row);
#if WHERE
        const GLOBAL uchar *flags = ROW(where, row);
#endif
        GLOBAL STORAGE(Y) *to = ROW(y, row);
        real largest = LOWEST, shift, total;
#if KEPT
        vec kept[KEPT], top = splat(LOWEST), sum = splat(0);
        UNROLL_KEPT for (int k = 0; k < KEPT; ++k) {
            const int i = ELEMENT(k);
            kept[k] = i < n ? TERMS(i) : splat(LOWEST);
            top = larger(top, kept[k]);
        }
        largest = row_max(FOLD(top, LARGER), scratch);
        shift = IS_FINITE(largest) ? largest : 0;
        UNROLL_KEPT for (int k = 0; k < KEPT; ++k) {
            const vec e = EXPONENTIALS(kept[k], shift);
            sum += e;
            if (KIND == SOFTMAX) kept[k] = e;
        }
        total = row_sum(FOLD(sum, ADD), scratch);
#else
        vec sum = splat(0), rest = splat(0);
        for (int begin = 0; begin < CHUNKS; begin += SPAN_VECTORS) {
            const int stop = LEAST(begin + SPAN_VECTORS, CHUNKS);
            vec top = splat(LOWEST);
            if (WITHIN_ROW_UNTIL(stop))
                EACH_WHOLE(k, begin, stop) top = larger(top, VECTOR_OF_TERMS(ELEMENT(k)));
            else
                for (int k = begin; k < stop && ELEMENT(k) < n; ++k) top = larger(top, TERMS(ELEMENT(k)));
            const real high = FOLD(top, LARGER);
            if (high > largest) {
                const real factor = largest > LOWEST ? exp(largest - high) : 0;
                sum *= factor;
                rest *= factor;
                largest = high;
            }
            shift = IS_FINITE(largest) ? largest : 0;
            // Exponentials are bound by arithmetic, so what is read next is fetched meanwhile.
            const GLOBAL STORAGE(X) *ahead = stop < CHUNKS ? from + SPAN_VECTORS * VEC : next - begin * VEC;
            for (int first = begin; first < stop; first += BLOCK_VECTORS) {
                const int end = LEAST(first + BLOCK_VECTORS, stop);
                vec block = splat(0);
                if (WITHIN_ROW_UNTIL(end))
                    EACH_WHOLE(k, first, end) {
                        FETCH(ahead + ELEMENT(k));
                        ADD_EXPONENTIALS(k, VECTOR_OF_TERMS(ELEMENT(k)));
                    }
                else
                    for (int k = first; k < end && ELEMENT(k) < n; ++k) ADD_EXPONENTIALS(k, TERMS(ELEMENT(k)));
                const vec both = sum + block, added = both - sum;
                rest += (sum - (both - added)) + (block - added);
                sum = both;
            }
        }
        const real mine = largest;
        largest = row_max(mine, scratch);
        shift = IS_FINITE(largest) ? largest : 0;
        const vec both = sum + rest;
        total = FOLD(both, ADD);
        total = row_sum(mine == largest ? total : total * exp(mine - largest), scratch);
#endif
        if (at >= rows) continue;
#if KIND == LOGSUMEXP
        if (IS_FINITE(largest))
            total = log(total * (1 / ONE_IN_UNITS)) + largest;
        else if (total == total)
            total = largest;
        if (lane_id() == 0) JOIN(put_, Y)(to, total);
#else
        const bool none = WHERE && largest == LOWEST;
        if (!none) total += largest - largest;  // NaN if it is infinite
        const real factor = none && total == total ? 0 : 1 / total;
        const real minus = none && total == total ? 0 : log(total * (1 / ONE_IN_UNITS));
#if KEPT
        UNROLL_KEPT for (int k = 0; k < KEPT; ++k) {
            const int i = ELEMENT(k);
            if (i < n) WRITE(Y, to, y_step, i, KIND == SOFTMAX ? kept[k] * factor : kept[k] - shift - minus);
        }
#else
        const int whole = WITHIN_ROW_UNTIL(0) ? n / (THREADS * VEC) : 0;
#if BUFFERED
        if (CHUNKS <= SPAN_VECTORS) {
            EACH_WHOLE(k, 0, whole) JOIN(store_, Y)(to + k * VEC, from_memory(buffer + k * VEC) * factor);
            for (int k = whole; k < CHUNKS; ++k)
                WRITE(Y, to, y_step, k * VEC, from_memory(buffer + k * VEC) * factor);
            continue;
        }
#endif
        EACH_WHOLE(k, 0, whole) {
            const vec a = VECTOR_OF_TERMS(ELEMENT(k));
            JOIN(store_, Y)(to + ELEMENT(k), RESULT(a));
        }
        for (int k = whole; k < CHUNKS && ELEMENT(k) < n; ++k) {
            const vec a = TERMS(ELEMENT(k));
            WRITE(Y, to, y_step, ELEMENT(k), RESULT(a));
        }
#endif
#endif
    }
}
