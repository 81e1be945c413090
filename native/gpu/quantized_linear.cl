// y = x · Wᵀ with W = scales · q + biases, for integers q of 4 or 8 bits; see codes.h and products.h.
//
// Bytes: a few rows of x take the time in which the integers, scales and biases are read once.
#include "rows.h"
#include "codes.h"

#define PRODUCTS quantized_linear
#define HAS_REST (!WHOLE)
#define MATRIX CODES
#define FINISH(sum, output) sum

// A processor prefetches only within a page, and rows are short: this asks for those of the next tile.
#if THREADS == 1
#if HAS_BIASES
#define FETCH_BIASES(row, k) FETCH(BIAS_AT(row, GROUP_OF(k)))
#else
#define FETCH_BIASES(row, k)
#endif
#define FETCH_ROW(row, k)                                                                          \
    do {                                                                                       \
        if (k % (64 / VEC) == 0) EACH_OUTPUT FETCH(CODES_OF(row + o) + (index_t)(k)*VEC);   \
        if (k % 16 == 0) EACH_OUTPUT {                                                         \
            FETCH(SCALE_AT(row + o, GROUP_OF(k))); \
            FETCH_BIASES(row + o, k);                                                          \
        }                                                                                      \
    } while (0)
#else
#define FETCH_ROW(row, k)
#endif

#if THREADS == 1 && BITS == 4
// The elements of even columns, then those of odd ones, as the parts of a chunk have them
#define HALF_OF(v, p) ((p) ? v.odd : v.even)
#define X_PART(x, k, p) \
    (vec)(HALF_OF(JOIN(load_, X)((x) + (k)*CHUNK), p), HALF_OF(JOIN(load_, X)((x) + (k)*CHUNK + VEC), p))
#else
#define X_PART(x, k, p) JOIN(load_, X)((x) + (k)*CHUNK + (p)*VEC)
#endif
#if TILED
#include "tiles.h"
#else
#include "products.h"
#endif
