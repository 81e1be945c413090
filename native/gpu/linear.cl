// y = x · Wᵀ + bias for a few rows of x; see products.h.
//
// Bytes: it takes the time in which W is read once.
#include "rows.h"

#define PRODUCTS linear
#define HAS_REST 1
#define CHUNK VEC
#define PARTS 1
#if HAS_BIAS
#define MATRIX IN(WEIGHT, weight), IN(BIAS, bias)
#define FINISH(sum, output) ((sum) + JOIN(get_, BIAS)(bias + bias_start + (output)*bias_step))
#else
#define MATRIX IN(WEIGHT, weight)
#define FINISH(sum, output) (sum)
#endif

typedef vec Chunk;
#define ROW_OF_WEIGHTS(row) (weight + weight_start + (row)*weight_along0)
#define SOME_GROUPS(begin, end)
#define READ_CHUNK(chunk, o, k) chunk = JOIN(load_, WEIGHT)(ROW_OF_WEIGHTS(output + o) + (k)*VEC)
#define WEIGHTS(chunk, p) (chunk)
#define WEIGHT_AT(row, i) JOIN(get_, WEIGHT)(ROW_OF_WEIGHTS(row) + (i)*weight_step)
#define X_PART(x, k, p) JOIN(load_, X)((x) + (k)*VEC)

// A processor prefetches only within a page, and rows are short: this asks for those of the next tile.
#if THREADS == 1
#define FETCH_ROW(row, k) EACH_OUTPUT FETCH(ROW_OF_WEIGHTS(row + o) + (k)*VEC)
#else
#define FETCH_ROW(row, k)
#endif
#if TILED
#include "tiles.h"
#else
#include "products.h"
#endif
