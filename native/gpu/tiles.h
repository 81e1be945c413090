// y = x · Wᵀ for many rows of x, on a GPU: a block computes a tile of the result from tiles of x and W in local memory.
//
// The kernel that includes this defines PRODUCTS, MATRIX, WEIGHT_AT and FINISH as for products.h; instead of WEIGHT_AT,
// EIGHT_AT(row, i, w) may set w to eight weights from column i on, where 32 divides the columns. A thread computes 4 ×
// 4 products; VEC is 4, and a block has TILE / 4 · TILE / 4 threads.
//
// Precision: products and sums in the type of computation.
#define TILE 64              // rows of x, and outputs
#define DEPTH 32             // columns that are in local memory at once
#define LINE (TILE / 4 + 1)  // vectors of a column; one more, so that threads write to different banks

KERNEL(PRODUCTS)
(IN(X, x), MATRIX, GLOBAL STORAGE(X)* restrict y, ROW_SHAPE, index_t outputs, index_t tiles, index_t tiles_of_rows) {
    LOCAL_ARRAY(vec, some_x, DEPTH * LINE);
    LOCAL_ARRAY(vec, some_w, DEPTH * LINE);
    const index_t row = block_id() % tiles_of_rows * TILE, output = block_id() / tiles_of_rows * TILE;
    const int of_x = thread_id() / (TILE / 4), of_w = thread_id() % (TILE / 4);
    vec sum[4];
    UNROLL for (int r = 0; r < 4; ++r) sum[r] = splat(0);
    for (int begin = 0; begin < n; begin += DEPTH) {
        // Eight threads read neighbouring columns of a row: a sector of memory.
        for (int k = thread_id() % 8; k < DEPTH; k += 8) {
            const int i = begin + k;
            for (int r = thread_id() / 8; r < TILE; r += BLOCK / 8) {
                const index_t at = row + r < rows ? row + r : rows - 1,
                              of = output + r < outputs ? output + r : outputs - 1;
                const int place = k * LINE * 4 + r;
                ((LOCAL real*)some_x)[place] = i < n ? JOIN(get_, X)(ROW(x, at) + i * x_step) : 0;
#ifndef EIGHT_AT
                ((LOCAL real*)some_w)[place] = i < n ? WEIGHT_AT(of, i) : 0;
#endif
            }
        }
#ifdef EIGHT_AT
        {
            const int k = thread_id() % (DEPTH / 8) * 8, r = thread_id() / (DEPTH / 8);  // one for each thread
            real w[8];
            EIGHT_AT(output + r < outputs ? output + r : outputs - 1, begin + k, w);
            UNROLL for (int j = 0; j < 8; ++j)((LOCAL real*)some_w)[(k + j) * LINE * 4 + r] = w[j];
        }
#endif
        BARRIER();
        for (int k = 0; k < DEPTH; ++k) {
            const vec a = some_x[k * LINE + of_x], w = some_w[k * LINE + of_w];
            sum[0] = fma(splat(LANE(a, 0)), w, sum[0]);
            sum[1] = fma(splat(LANE(a, 1)), w, sum[1]);
            sum[2] = fma(splat(LANE(a, 2)), w, sum[2]);
            sum[3] = fma(splat(LANE(a, 3)), w, sum[3]);
        }
        BARRIER();
    }
    UNROLL for (int r = 0; r < 4; ++r) {
        real a[4];
        to_memory(sum[r], a);
        UNROLL for (int o = 0; o < 4; ++o) {
            const index_t at = row + of_x * 4 + r, of = output + of_w * 4 + o;
            if (at < rows && of < outputs) JOIN(put_, X)(y + at * outputs + of, FINISH(a[o], of));
        }
    }
}
