// y = f(x), or f(gate) · up, for every element.
//
// Work: arrays that one step leads through are one row, which is cut into pieces of `span` elements; else, rows are. A
//   piece is computed by THREADS threads in turn: on a processor by one, so that it accesses memory in order.
// Precision: see math.h; half types are computed in float32.
// Bytes: each element once in (a gated unit: two), once out, as in a copy.
#include "rows.h"
#include "math.h"

// f, chosen by FUNCTION; alpha, beta and shift are parameters of the kernel. NaN passes through all of them.
#define relu(x) select(x, splat(0), x <= R(0.0))
#define relu_squared(x) (relu(x) * relu(x))
#define silu(x) (x * sigmoid(x))
#define softplus(x) (at_least(x, 0) + log1p_unit(exp_of_negative(-fabs(x))))
// (1 + tanh(u)) / 2 is sigmoid(2 u), without cancellation, and 0 or 1 where u overflows. The constant is 2 sqrt(2 / pi).
#define gelu_tanh(x) (x * sigmoid(x * (x * x * (R(1.5957691216057307117) * R(0.044715)) + R(1.5957691216057307117))))
#define quick_gelu(x) (x * sigmoid(x * alpha))
#define mish(x) (x * tanh_of_softplus(x))
#define hard_sigmoid(x) at_most(at_least((x + shift) * alpha + beta, 0), 1)
#define hard_swish(x) (x * at_most(at_least((x + R(3.0)) * (R(1.0) / R(6.0)), 0), 1))
#define elu(x) select(x, expm1_of_negative(x) * alpha, x < R(0.0))
#define selu(x) select(x * R(1.0507009873554804934), expm1_of_negative(x) * R(1.7580993408473768599), x < R(0.0))
#define leaky_relu(x) select(x * alpha, x, x > R(0.0))

// With e = exp(x), tanh(log(1 + e)) is (e² + 2 e) / (e² + 2 e + 2), which is 1 long before x is 20.
INLINE vec tanh_of_softplus(vec x) {
    const vec e = exp_in_units(at_most(x, 20)), n = e * (e * (1 / ONE_IN_UNITS) + R(2.0));
    return quotient(n, n + 2 * ONE_IN_UNITS);
}

// Elements i to i + VEC of a row, some of which may be beyond its end
#define GET(p, step, i)                                   \
    (DENSE && (i) + VEC <= n ? JOIN(load_, X)((p) + (i)) \
                             : JOIN(load_part_, X)((p) + (index_t)(i) * (step), step, n - (i), 0))
#define PUT(p, step, i, value)                                                                \
    do {                                                                                      \
        if (DENSE && (i) + VEC <= n)                                                          \
            JOIN(store_, X)((p) + (i), value);                                                \
        else                                                                                  \
            JOIN(store_part_, X)((p) + (index_t)(i) * (step), step, n - (i), value);          \
    } while (0)

#if GATED
#define VALUE(a, b) (FUNCTION(a) * (b))
#else
#define VALUE(a, b) FUNCTION(a)
#endif

SMALL_KERNEL(activation)
(IN(X, x),
#if GATED
 IN(X, up),
#endif
 OUT(X, y), ROW_SHAPE, int span, real alpha, real beta, real shift) {
    const int pieces = (n - 1) / span + 1, vectors = KEPT ? KEPT : span / (THREADS * VEC);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn);
        if (at >= rows * pieces) break;
        // Rows that are cut are fewer than 2^32 pieces: that many would be 2^40 bytes.
        const index_t row = rows == 1 ? 0 : pieces == 1 ? at : (index_t)((uint)at / (uint)pieces);
        const int begin = (int)(at - row * pieces) * span;
        const GLOBAL STORAGE(X) *from = ROW(x, row);
#if GATED
        const GLOBAL STORAGE(X) *ups = ROW(up, row);
#endif
        GLOBAL STORAGE(X) *to = ROW(y, row);
#if KEPT
        if (DENSE && begin + span <= n) {  // without branches, all vectors are read before the first is needed
            vec a[KEPT], b[GATED ? KEPT : 1];
            UNROLL_KEPT for (int k = 0; k < KEPT; ++k) {
                a[k] = JOIN(load_, X)(from + begin + ELEMENT(k));
#if GATED
                b[k] = JOIN(load_, X)(ups + begin + ELEMENT(k));
#endif
            }
            UNROLL_KEPT for (int k = 0; k < KEPT; ++k) JOIN(store_, X)(to + begin + ELEMENT(k), VALUE(a[k], b[k]));
            continue;
        }
#endif
        int whole = 0;
#if THREADS == 1 && DENSE
        whole = (n - begin < span ? n - begin : span) / VEC;
        EACH_WHOLE(k, 0, whole) {
            const int i = begin + k * VEC;
            const vec a = JOIN(load_, X)(from + i);
#if GATED
            const vec b = JOIN(load_, X)(ups + i);
#endif
            JOIN(store_, X)(to + i, VALUE(a, b));
        }
#endif
        for (int k = whole; k < vectors; ++k) {
            const int i = begin + ELEMENT(k);
            if (i >= n) break;
            const vec a = GET(from, x_step, i);
#if GATED
            const vec b = GET(ups, up_step, i);
#endif
            PUT(to, y_step, i, VALUE(a, b));
        }
    }
}
