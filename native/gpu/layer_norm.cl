// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along rows; for group_norm (SPANS) rows are groups of
// channels, each with one element of weight and bias for its `span` neighbours.
//
// Work: as in rms_norm. Moments are those of the differences from a value near the mean: from the mean itself if the row
//   is in registers; else from that of the first elements, and if this is more than a standard deviation from the mean,
//   again from the mean.
// Precision: as in rms_norm; the mean of the differences corrects both moments.
// Bytes: each element once in, once out, while a row fits registers (KEPT) or a processor's cache; else twice in.
#include "rows.h"
#include "sums.h"
#define DIVISOR DEVIATION
#include "careful_row.h"

#if SPANS
// The elements of a vector usually belong to one channel.
#define DEFINE_SPAN(T)                                                                                  \
    RARE vec several_##T(const GLOBAL storage_##T *p, index_t step, int span, int i, int n) {           \
        real a[VEC];                                                                                    \
        for (int k = 0; k < VEC; ++k) a[k] = get_##T(p + (i + k < n ? (i + k) / span : 0) * step);      \
        return from_memory(a);                                                                          \
    }                                                                                                   \
    INLINE vec of_channels_##T(const GLOBAL storage_##T *p, index_t step, int span, int i, int n) {     \
        const int channel = i / span, begin = channel * span;                                           \
        if (i - begin + VEC <= span || n - begin <= span) return splat(get_##T(p + channel * step)); \
        return several_##T(p, step, span, i, n);                                                        \
    }
DEFINE_SPAN(f32)
#if DOUBLE
DEFINE_SPAN(f64)
#endif
DEFINE_SPAN(f16)
DEFINE_SPAN(bf16)
#define PARAMETER(T, name, i) JOIN(of_channels_, T)(name##_row, name##_step, span, i, n)
#else
#define PARAMETER(T, name, i) READ(T, name##_row, name##_step, i, 0)
#endif

KERNEL(layer_norm)
(IN(X, x),
#if HAS_WEIGHT
 IN(WEIGHT, weight),
#endif
#if HAS_BIAS
 IN(BIAS, bias),
#endif
 OUT(X, y), ROW_SHAPE, real eps, real least, int span) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *from = ROW(x, row), *next = ROW(x, row + 1 < rows ? row + 1 : row);
        GLOBAL STORAGE(X) *to = ROW(y, row);
#if HAS_WEIGHT
        const GLOBAL STORAGE(WEIGHT) *weight_row = ROW(weight, row);
#endif
#if HAS_BIAS
        const GLOBAL STORAGE(BIAS) *bias_row = ROW(bias, row);
#endif
        KEPT_ARRAY(kept);
        real about;
        if (KEPT) {
            Sum sum = no_sum();
            EACH_VECTOR(k) {
                const int i = ELEMENT(k);
                kept[KEPT ? k : 0] = READ(X, from, x_step, i, 0);
                sum = plus(sum, kept[KEPT ? k : 0], k);
            }
            about = row_sum(total(sum), scratch) / n;
        } else {
            const vec first = READ(X, from, x_step, ELEMENT(0), 0);
            about = row_sum(FOLD(first, ADD), scratch) / (n < THREADS * VEC ? n : THREADS * VEC);
        }
        real mean = 0, variance = 0;
        for (int again = 0; again < (KEPT ? 1 : 2); ++again) {
            Sum differences = no_sum(), squares = no_sum();
            EACH_VECTOR(k) {
                const int i = ELEMENT(k);
                const vec a = WITHIN_ROW(i, (KEPT ? kept[KEPT ? k : 0] : READ(X, from, x_step, i, 0)) - about);
                differences = plus(differences, a, k);
                squares = plus(squares, a * a, k);
            }
            const real distance = row_sum(total(differences), scratch) / n;
            mean = about + distance;
            variance = row_sum(total(squares), scratch) / n - distance * distance;
            if (!any_row(distance * distance > variance, scratch)) break;
            about = mean;
        }
        const real spread = variance + eps;
        Scaling s = scaling(1, mean, 1 / sqrt(spread));
        if (any_row(!is_usual(spread), scratch)) BE_CAREFUL(from, x_step);
        if (at >= rows) continue;
        EACH_VECTOR(k) {
            const int i = ELEMENT(k);
            if (!IN_ROW(i)) continue;
            FETCH(next + i);
            vec a = KEPT ? kept[KEPT ? k : 0] : READ(X, from, x_step, i, 0);
            a = (a * s.unit - s.mean) * s.factor;
#if HAS_WEIGHT
            a *= PARAMETER(WEIGHT, weight, i);
#endif
#if HAS_BIAS
            a += PARAMETER(BIAS, bias, i);
#endif
            WRITE(X, to, y_step, i, a);
        }
    }
}
