// rms_norm, layer_norm, instance_norm and l2_norm across memory: of rows that begin with adjacent elements and step over
// each other.
//
// Work: each thread has WIDTH vectors of such rows, one in each lane. Neighbouring threads access neighbouring memory.
//   FILLED says that all rows that begin one after another fill their vectors.
// Precision: as in the kernels for rows one by one; if any row of a thread needs a power of two, all get theirs.
// Bytes: each element twice in, once out.
#include "rows.h"
#include "sums.h"
#include "divisors.h"

#define BLOCK_ELEMENTS 64  // of each row, which are added plainly
#define FIRST 8            // elements whose mean is usually near that of the row

// Elements i of the rows in vector w
#define COUNT(w) (beside - first - (w) * VEC < VEC ? (int)(beside - first) - (w) * VEC : VEC)
#define ELEMENTS(T, p, step, i, w)                                                \
    (FILLED || COUNT(w) >= VEC ? JOIN(load_, T)((p) + (i) * (step) + (w) * VEC) \
                               : JOIN(load_part_, T)((p) + (i) * (step) + (w) * VEC, 1, COUNT(w), 0))
#define PUT(p, w, value)                                                \
    do {                                                                \
        if (FILLED || COUNT(w) >= VEC)                                  \
            JOIN(store_, X)((p) + (w) * VEC, value);                    \
        else                                                            \
            JOIN(store_part_, X)((p) + (w) * VEC, 1, COUNT(w), value);  \
    } while (0)
#if HAS_RESIDUAL
#define VALUE(i, w) \
    JOIN(rounded_, X)(ELEMENTS(X, from, x_step, i, w) + ELEMENTS(X, other, residual_step, i, w))
#else
#define VALUE(i, w) ELEMENTS(X, from, x_step, i, w)
#endif
// Parameters are the same for all rows, or there is one for each row.
#define PARAMETER(T, name, i, w)                                          \
    (name##_beside == 0 ? splat(JOIN(get_, T)(name##_row + (i) * name##_step)) \
                        : JOIN(load_part_, T)(name##_row + (w) * VEC * name##_beside, name##_beside, COUNT(w), 0))
#define EACH(w) _Pragma("unroll") for (int w = 0; w < WIDTH; ++w)

// `beside` is the number of rows that begin one after another, and weight_beside the step of a weight from each to the
// next
KERNEL(norm_columns)
(IN(X, x),
#if HAS_RESIDUAL
 IN(X, residual),
#endif
#if HAS_WEIGHT
 IN(WEIGHT, weight), index_t weight_beside,
#endif
#if HAS_BIAS
 IN(BIAS, bias), index_t bias_beside,
#endif
 OUT(X, y),
#if HAS_RESIDUAL
 OUT(X, sum),
#endif
 ROW_SHAPE, real eps, real least, real weight_offset, index_t beside) {
    const index_t vectors = (beside + VEC * WIDTH - 1) / (VEC * WIDTH), all = rows / beside * vectors;
    const real count = n;
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = (block_id() * rows_each + turn) * BLOCK + thread_id();
        if (at >= all) break;
        const index_t first = at % vectors * (VEC * WIDTH), row = at / vectors * beside + first;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
        GLOBAL STORAGE(X) *to = ROW(y, row);
#if HAS_RESIDUAL
        const GLOBAL STORAGE(X) *other = ROW(residual, row);
        GLOBAL STORAGE(X) *sum_to = ROW(sum, row);
#endif
#if HAS_WEIGHT
        const GLOBAL STORAGE(WEIGHT) *weight_row = ROW(weight, row);
#endif
#if HAS_BIAS
        const GLOBAL STORAGE(BIAS) *bias_row = ROW(bias, row);
#endif
        vec unit[WIDTH], mean[WIDTH], square[WIDTH], factor[WIDTH];
        EACH(w) {
            unit[w] = splat(1);
            mean[w] = splat(0);
        }
        for (int careful = 0; careful < 2; ++careful) {
            if (DIVISOR == DEVIATION) {
                const int few = n < FIRST ? n : FIRST;
                EACH(w) mean[w] = splat(0);
                for (index_t i = 0; i < few; ++i) EACH(w) mean[w] += VALUE(i, w) * unit[w];
                EACH(w) mean[w] = mean[w] * (1 / (real)few);
            }
            for (int again = 0; again < (DIVISOR == DEVIATION ? 2 : 1); ++again) {
                vec differences[WIDTH];
                EACH(w) square[w] = differences[w] = splat(0);
                for (index_t begin = 0; begin < n; begin += BLOCK_ELEMENTS) {
                    const index_t end = begin + BLOCK_ELEMENTS < n ? begin + BLOCK_ELEMENTS : n;
                    vec d[WIDTH], s[WIDTH];
                    EACH(w) d[w] = s[w] = splat(0);
                    for (index_t i = begin; i < end; ++i)
                        EACH(w) {
                            const vec a = VALUE(i, w) * unit[w] - mean[w];
                            if (DIVISOR == DEVIATION) d[w] += a;
                            s[w] += a * a;
                        }
                    EACH(w) {
                        differences[w] += d[w];
                        square[w] += s[w];
                    }
                }
                vec far = splat(0);
                if (DIVISOR == DEVIATION)
                    EACH(w) {
                        const vec distance = differences[w] / count, squared = distance * distance;
                        mean[w] += distance;
                        square[w] = square[w] - squared * count;
                        far += select(splat(0), splat(1), squared * count > square[w]);
                    }
                if (FOLD(far, ADD) == 0) break;
            }
            vec unusual = splat(0);
            EACH(w) {
                const vec bound = unit[w] * least, added = careful ? bound * bound : splat(eps);
                const vec spread = DIVISOR == LENGTH ? square[w] : square[w] / count + added;
                vec root = sqrt(spread);
                if (DIVISOR == LENGTH) root = select(root, bound, root < bound);
                const vec checked = DIVISOR == LENGTH ? root * root : spread;
                unusual += select(splat(1), splat(0), checked >= splat(LEAST_USUAL) && checked <= splat(MOST_USUAL));
                if (DIVISOR == LENGTH || least > 0) root = select(root, splat(1), root == splat(0));
                factor[w] = splat(1) / root;
            }
            if (careful || FOLD(unusual, ADD) == 0) break;
            EACH(w) {
                vec largest = splat(least);
                for (index_t i = 0; i < n; ++i) largest = fmax(largest, fabs(VALUE(i, w)));
                real lanes[VEC];
                to_memory(largest, lanes);
                for (int k = 0; k < VEC; ++k) lanes[k] = power_of_two_near(lanes[k]);
                unit[w] = from_memory(lanes);
            }
        }
        for (index_t i = 0; i < n; ++i)
            EACH(w) {
                vec a = VALUE(i, w);
#if HAS_RESIDUAL
                PUT(sum_to + i * sum_step, w, a);
#endif
                a = (a * unit[w] - mean[w]) * factor[w];
#if HAS_WEIGHT
                a *= PARAMETER(WEIGHT, weight, i, w) + weight_offset;
#endif
#if HAS_BIAS
                a += PARAMETER(BIAS, bias, i, w);
#endif
                PUT(to + i * y_step, w, a);
            }
    }
}
