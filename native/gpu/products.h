// y = x · Wᵀ for a few rows of x at a time: W is read once for every X_ROWS of them.
//
// A team of THREADS threads computes OUTPUTS outputs for X_ROWS rows of x; the chunks of their columns are dealt out to
// its threads in turn. The last tile begins with fewer new outputs: it has no outputs beyond the last one. On a
// processor a thread is a team. The kernel that includes this says how W is read:
//   PRODUCTS              the kernel's name
//   MATRIX                its parameters that describe W
//   CHUNK, PARTS          the columns of a chunk, and the vectors that it becomes
//   Chunk                 a chunk of a row of W, as it is in memory
//   SOME_GROUPS(begin, end) reads what some chunks of rows `output + o` need, or nothing
//   READ_CHUNK(c, o, k)   sets c to chunk k of row `output + o`
//   FETCH_ROW(row, k)         says that chunk k of this row and the next ones is read soon
//   WEIGHTS(chunk, p)     vector p of the weights of a chunk
//   X_PART(x, k, p)       the vector of a row of x that they are multiplied by
//   WEIGHT_AT(row, i)     one weight
//   HAS_REST              whether there are columns that fill no chunk
//   FINISH(sum, output)   the result, such as with a bias
// WHOLE says that there are chunks: the elements of rows are adjacent, in W and in x. Else weights are read one by one.
//
// Precision: products and sums in the type of computation: of each thread, in blocks of some chunks, then of the team.

// Sums are those of a thread on a GPU, and of each lane on a processor.
#if THREADS == 1
#define SUM vec
#define NOTHING splat(0)
#define PLUS_PRODUCT(sum, a, b) fma(a, b, sum)
#define SUM_OF_LANES(sum) FOLD(sum, ADD)
#define TURNS rows_each
#else
#define SUM real
#define NOTHING 0
#define PLUS_PRODUCT(sum, a, b) plus_product(sum, a, b)
#define SUM_OF_LANES(sum) (sum)
#define TURNS 1
#if X_ROWS > 1  // memory is then kept busy by many loads of each thread rather than by many threads
#undef RESIDENT
#define RESIDENT , 256 / BLOCK
#endif
INLINE real plus_product(real sum, vec a, vec b) {
#define PLUS_LANE(k) sum = fma(LANE(a, k), LANE(b, k), sum)
    PLUS_LANE(0);
    PLUS_LANE(1);
#if VEC > 2
    PLUS_LANE(2);
    PLUS_LANE(3);
#endif
#if VEC > 4
    PLUS_LANE(4);
    PLUS_LANE(5);
    PLUS_LANE(6);
    PLUS_LANE(7);
#endif
    return sum;
}
#endif

#ifndef BLOCK_CHUNKS
#define BLOCK_CHUNKS 64  // of a sum
#endif
#define EACH_OUTPUT UNROLL for (int o = 0; o < OUTPUTS; ++o)
#define EACH_X_ROW UNROLL for (int r = 0; r < X_ROWS; ++r)

// Tiles of the same outputs follow one another: a processor then finds their weights in its caches.
KERNEL(PRODUCTS)
(IN(X, x), MATRIX, GLOBAL STORAGE(X)* restrict y, ROW_SHAPE, index_t outputs, index_t tiles, index_t tiles_of_rows) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    const int chunks = WHOLE ? n / CHUNK : 0;
    for (index_t turn = 0; turn < TURNS; ++turn) {
        const index_t at = ROW_INDEX(turn), tile = at < tiles ? at : tiles - 1;
        const index_t first = tile / tiles_of_rows * OUTPUTS, row = tile % tiles_of_rows * X_ROWS;
        const index_t output = first < outputs - OUTPUTS ? first : outputs - OUTPUTS;
        const GLOBAL STORAGE(X) * from[X_ROWS];
        real total[X_ROWS][OUTPUTS];
        EACH_X_ROW {
            const index_t it = row + r < rows ? row + r : rows - 1;
            from[r] = ROW(x, it);
            EACH_OUTPUT total[r][o] = 0;
        }
        for (int begin = 0; begin < chunks; begin += BLOCK_CHUNKS * THREADS) {
            const int end = chunks - begin < BLOCK_CHUNKS * THREADS ? chunks : begin + BLOCK_CHUNKS * THREADS;
            SOME_GROUPS(begin, end);
            SUM sum[X_ROWS][OUTPUTS];
            EACH_X_ROW EACH_OUTPUT sum[r][o] = NOTHING;
            for (int k = begin + lane_id(); k < end; k += THREADS) {
                FETCH_ROW(output + OUTPUTS, k);
                Chunk chunk[OUTPUTS];
                EACH_OUTPUT READ_CHUNK(chunk[o], o, k);
                UNROLL for (int p = 0; p < PARTS; ++p) {
                    vec w[OUTPUTS];
                    EACH_OUTPUT w[o] = WEIGHTS(chunk[o], p);
                    EACH_X_ROW {
                        const vec a = X_PART(from[r], k, p);
                        EACH_OUTPUT sum[r][o] = PLUS_PRODUCT(sum[r][o], a, w[o]);
                    }
                }
            }
            EACH_X_ROW EACH_OUTPUT total[r][o] += SUM_OF_LANES(sum[r][o]);
        }
#if HAS_REST
        for (int i = chunks * CHUNK + lane_id(); i < n; i += THREADS) {
            EACH_OUTPUT {
                const real w = WEIGHT_AT(output + o, i);
                EACH_X_ROW total[r][o] = fma(JOIN(get_, X)(from[r] + i * x_step), w, total[r][o]);
            }
        }
#endif
        EACH_X_ROW EACH_OUTPUT {
            const real all = row_sum(total[r][o], scratch);
            if (lane_id() == 0 && at < tiles && row + r < rows && output + o >= first)
                JOIN(put_, X)(y + (row + r) * outputs + output + o, FINISH(all, output + o));
        }
    }
}
