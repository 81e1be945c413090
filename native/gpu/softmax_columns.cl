// softmax, log_softmax and logsumexp across memory: of rows that begin with adjacent elements and step over each other.
//
// Work: each thread has VEC such rows, one in each lane. Neighbouring threads access neighbouring memory.
// Precision: as in softmax.cl, the sums of blocks are added together with their rounding errors.
// Bytes: each element twice in, once out.
#include "rows.h"
#include "math.h"
#include "softmax.h"

#define BLOCK_ELEMENTS 8  // of each row, which registers can keep

#define ELEMENTS(i) \
    (count >= VEC ? JOIN(load_, X)(from + (i) * x_step) : JOIN(load_part_, X)(from + (i) * x_step, 1, count, 0))
#if WHERE
#define TERMS(i) select(splat(LOWEST), ELEMENTS(i), counted(flags + (i) * where_step, where_beside, count))
#else
#define TERMS(i) ELEMENTS(i)
#endif
#define PUT(p, value)                                    \
    do {                                                 \
        if (count >= VEC)                                \
            JOIN(store_, Y)(p, value);                   \
        else                                             \
            JOIN(store_part_, Y)(p, 1, count, value);    \
    } while (0)

// `beside` is the number of rows that begin one after another, and where_beside the step of `where` from each to the next
KERNEL(softmax_columns)
(IN(X, x),
#if WHERE
 IN(u8, where), index_t where_beside,
#endif
 OUT(Y, y), ROW_SHAPE, index_t beside) {
    const index_t vectors = (beside + VEC - 1) / VEC, all = rows / beside * vectors;
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = (block_id() * rows_each + turn) * BLOCK + thread_id();
        if (at >= all) break;
        const index_t first = at % vectors * VEC, row = at / vectors * beside + first;
        const int count = beside - first < VEC ? (int)(beside - first) : VEC;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
#if WHERE
        const GLOBAL uchar *flags = ROW(where, row);
#endif
        GLOBAL STORAGE(Y) *to = ROW(y, row);
        vec largest = splat(LOWEST), shift = splat(0), sum = splat(0), rest = splat(0);
        for (index_t begin = 0; begin < n; begin += BLOCK_ELEMENTS) {
            const index_t end = begin + BLOCK_ELEMENTS < n ? begin + BLOCK_ELEMENTS : n;
            vec top = largest, block = splat(0);
            for (index_t i = begin; i < end; ++i) top = larger(top, TERMS(i));
            shift = select(splat(0), top, fabs(top) <= REAL_MAX);
            const vec factor = EXPONENTIALS(largest, shift) * (1 / ONE_IN_UNITS);
            sum *= factor;
            rest *= factor;
            largest = top;
            for (index_t i = begin; i < end; ++i) block += EXPONENTIALS(TERMS(i), shift);
            const vec both = sum + block, added = both - sum;
            rest += (sum - (both - added)) + (block - added);
            sum = both;
        }
        vec total = sum + rest;
#if KIND == LOGSUMEXP
        const vec infinite = total + largest;  // NaN, if there was one
        PUT(to, select(infinite, log(total * (1 / ONE_IN_UNITS)) + largest, fabs(largest) <= REAL_MAX));
#else
        const mask none = largest == splat(LOWEST) && total == total;
        total = WHERE ? select(total + (largest - largest), total, none) : total + (largest - largest);
        vec factor = 1 / total, minus = log(total * (1 / ONE_IN_UNITS));
        if (WHERE) {
            factor = select(factor, splat(0), none);
            minus = select(minus, splat(0), none);
        }
        for (index_t i = 0; i < n; ++i) {
            const vec a = TERMS(i);
            PUT(to + i * y_step, KIND == SOFTMAX ? EXPONENTIALS(a, shift) * factor : a - shift - minus);
        }
#endif
    }
}
