// softmax, log_softmax and logsumexp across memory: of rows that begin with adjacent elements and step over each other.
//
// Work: each thread has WIDTH vectors of such rows, one in each lane. Neighbouring threads access neighbouring memory.
//   FILLED says that all rows that begin one after another fill their vectors.
// Precision: as in softmax.cl, the sums of blocks are added together with their rounding errors.
// Bytes: each element twice in, once out.
#include "rows.h"
#include "math.h"
#include "softmax.h"

#define BLOCK_ELEMENTS 8  // of each row, which registers can keep

// Elements i of the rows in vector w
#define COUNT(w) (beside - first - (w) * VEC < VEC ? (int)(beside - first) - (w) * VEC : VEC)
#define ELEMENTS(i, w)                                                        \
    (FILLED || COUNT(w) >= VEC ? JOIN(load_, X)(from + (i) * x_step + (w) * VEC) \
                              : JOIN(load_part_, X)(from + (i) * x_step + (w) * VEC, 1, COUNT(w), 0))
#if WHERE
#define TERMS(i, w)                             \
    select(splat(LOWEST), ELEMENTS(i, w),       \
           counted(flags + (i) * where_step + (w) * VEC * where_beside, where_beside, COUNT(w)))
#else
#define TERMS(i, w) ELEMENTS(i, w)
#endif
#define PUT(p, w, value)                                              \
    do {                                                              \
        const vec result = value;                                     \
        if (FILLED || COUNT(w) >= VEC)                                 \
            JOIN(store_, Y)((p) + (w) * VEC, result);                 \
        else                                                          \
            JOIN(store_part_, Y)((p) + (w) * VEC, 1, COUNT(w), result); \
    } while (0)
#define EACH(w) _Pragma("unroll") for (int w = 0; w < WIDTH; ++w)

// `beside` is the number of rows that begin one after another, and where_beside the step of `where` from each to the next
SMALL_KERNEL(softmax_columns)
(IN(X, x),
#if WHERE
 IN(u8, where), index_t where_beside,
#endif
 OUT(Y, y), ROW_SHAPE, index_t beside) {
    const index_t vectors = (beside + VEC * WIDTH - 1) / (VEC * WIDTH), all = rows / beside * vectors;
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = (block_id() * rows_each + turn) * BLOCK + thread_id();
        if (at >= all) break;
        const index_t first = at % vectors * (VEC * WIDTH), row = at / vectors * beside + first;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
#if WHERE
        const GLOBAL uchar *flags = ROW(where, row);
#endif
        GLOBAL STORAGE(Y) *to = ROW(y, row);
        vec largest[WIDTH], shift[WIDTH], sum[WIDTH], rest[WIDTH];
        EACH(w) {
            largest[w] = splat(LOWEST);
            shift[w] = sum[w] = rest[w] = splat(0);
        }
        for (index_t begin = 0; begin < n; begin += BLOCK_ELEMENTS) {
            const index_t end = begin + BLOCK_ELEMENTS < n ? begin + BLOCK_ELEMENTS : n;
            vec top[WIDTH], block[WIDTH];
            EACH(w) top[w] = largest[w];
            for (index_t i = begin; i < end; ++i) EACH(w) top[w] = larger(top[w], TERMS(i, w));
            EACH(w) {
                shift[w] = select(splat(0), top[w], fabs(top[w]) <= REAL_MAX);
                const vec factor = EXPONENTIALS(largest[w], shift[w]) * (1 / ONE_IN_UNITS);
                sum[w] *= factor;
                rest[w] *= factor;
                largest[w] = top[w];
                block[w] = splat(0);
            }
            for (index_t i = begin; i < end; ++i) EACH(w) block[w] += EXPONENTIALS(TERMS(i, w), shift[w]);
            EACH(w) {
                const vec both = sum[w] + block[w], added = both - sum[w];
                rest[w] += (sum[w] - (both - added)) + (block[w] - added);
                sum[w] = both;
            }
        }
#if KIND == LOGSUMEXP
        EACH(w) {
            const vec total = sum[w] + rest[w], infinite = total + largest[w];  // NaN, if there was one
            const vec usual = log(total * (1 / ONE_IN_UNITS)) + largest[w];
            PUT(to, w, select(infinite, usual, fabs(largest[w]) <= REAL_MAX));
        }
#else
        vec factor[WIDTH], minus[WIDTH];
        EACH(w) {
            vec total = sum[w] + rest[w];
            const mask none = largest[w] == splat(LOWEST) && total == total;
            const vec finite = total + (largest[w] - largest[w]);  // NaN if it is infinite
            total = WHERE ? select(finite, total, none) : finite;
            factor[w] = 1 / total;
            minus[w] = log(total * (1 / ONE_IN_UNITS));
            if (WHERE) {
                factor[w] = select(factor[w], splat(0), none);
                minus[w] = select(minus[w], splat(0), none);
            }
        }
        for (index_t i = 0; i < n; ++i)
            EACH(w) {
                const vec a = TERMS(i, w);
                PUT(to + i * y_step, w,
                    KIND == SOFTMAX ? EXPONENTIALS(a, shift[w]) * factor[w] : a - shift[w] - minus[w]);
            }
#endif
    }
}
