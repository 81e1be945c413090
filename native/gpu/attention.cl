// scaled_dot_product_attention for many queries: tiles of rows against tiles of keys, in one pass with a running softmax.
//
// Work: a block computes ROWS * ROW_VECTORS * VEC rows. Their lanes are rows: each thread has ROW_VECTORS vectors of them,
//   and of the THREADS that share these each has some keys of the scores and some features of the result. On a processor
//   one thread has all.
// Memory: tiles go through local memory, in slices of SLICE features, as `real`; the results stay in registers.
// Bytes: keys and values once for each block; those that lengths, causality and the window hide from it not at all.
//
// The launcher defines, besides what dialect.h and attention.h say:
//   ROW_VECTORS   vectors of rows of a thread
//   FACTORS       keys, or features, by which a thread multiplies them at a time; a divisor of VEC
//   KEYS          keys of a tile, a multiple of THREADS * FACTORS
//   SLICE         features of a tile, a multiple of THREADS * VEC
#include "rows.h"
#include "attention.h"

#define PITCH (SLICE + VEC)  // of a tile's rows: threads read several at a time
#define SLICES(n) (((n) + SLICE - 1) / SLICE)
#define OWN (SLICES(VALUE_DIM) * SLICE / THREADS)  // features of the result that a thread has
#define OWN_ROWS (ROW_VECTORS * VEC)
#define EACH_FACTOR UNROLLED for (int u = 0; u < FACTORS; ++u)
#define EACH_ROW_VECTOR UNROLLED for (int t = 0; t < ROW_VECTORS; ++t)
// The first of a thread's vectors of rows, in local arrays of [key or feature][vector]
#define VECTORS_AT(array, i) (array + ((i)*ROWS + rows_at) * ROW_VECTORS)
// The place in its slice of the i-th feature of a thread; VEC of them are adjacent
#define OWN_FEATURE(i) (((i) / VEC * THREADS + column) * VEC + (i) % VEC)

// Features of n keys or values, from `feature` on; 0 beyond
#define DEFINE_LOAD_TILE(name, place, dim)                                                 \
    INLINE void name(LOCAL vec* tile, const Attention* a, int start, int n, int feature) { \
        for (int e = thread_id(); e < KEYS * SLICE / VEC; e += BLOCK) {                    \
            const int key = e / (SLICE / VEC), i = e % (SLICE / VEC) * VEC;                \
            vec part = splat(0);                                                           \
            if (key < n) {                                                                 \
                const GLOBAL STORAGE(X)* row = place(a, start + key);                      \
                part = FEATURES(row, feature + i, dim);                                    \
            }                                                                              \
            tile[(key * PITCH + i) / VEC] = part;                                          \
        }                                                                                  \
    }
DEFINE_LOAD_TILE(load_keys, key_at, DIM)
DEFINE_LOAD_TILE(load_values, value_at, VALUE_DIM)

// Features of a thread's rows, from `feature` on: scaled, and transposed, so that rows become lanes
INLINE void load_queries(LOCAL vec* queries, const Attention* a, int row, const int* excess, int feature) {
    LOCAL real* lanes = (LOCAL real*)(queries + thread_id() / THREADS * ROW_VECTORS);
    for (int r = 0; r < OWN_ROWS; ++r) {
        const GLOBAL STORAGE(X)* from = query_at(a, row + r < a->rows ? row + r : a->rows - 1);
        for (int i = lane_id() * VEC; i < SLICE; i += THREADS * VEC) {
            real part[VEC];
            to_memory(FEATURES(from, feature + i, DIM), part);
            for (int u = 0; u < VEC; ++u) {
                const real x = excess[r] ? ldexp(part[u], -excess[r]) : part[u];
                lanes[(i + u) * ROWS * OWN_ROWS + r] = x * a->scale;
            }
        }
    }
}

// Over the threads that share rows
#define DEFINE_OVER_THREADS(name, reduction)                                         \
    INLINE vec name(vec x, LOCAL real* scratch) {                                    \
        if (THREADS == 1) return x;                                                  \
        real lanes[VEC];                                                             \
        to_memory(x, lanes);                                                         \
        IN_REGISTERS for (int k = 0; k < VEC; ++k) lanes[k] = reduction(lanes[k], scratch); \
        return from_memory(lanes);                                                   \
    }
DEFINE_OVER_THREADS(largest_of_rows, row_max)
DEFINE_OVER_THREADS(sum_of_rows, row_sum)

KERNEL(attention)(ATTENTION_ARGUMENTS RESULT_ARGUMENTS) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    LOCAL_ARRAY(vec, queries_of, SLICE * ROWS * ROW_VECTORS);  // [feature][vector of rows]
    LOCAL_ARRAY(vec, tile, KEYS * PITCH / VEC);                // [key][feature]
    LOCAL_ARRAY(vec, scores, KEYS * ROWS * ROW_VECTORS);       // [key][vector of rows]: scores, then weights
    BEGIN_ATTENTION(a, ROWS * OWN_ROWS);
    const LOCAL real* tile_at = (const LOCAL real*)tile;
    const int column = lane_id(), rows_at = thread_id() / THREADS, row = a.row + rows_at * OWN_ROWS;
    const Span any = part_of(span_of_rows(&a, a.row, ROWS * OWN_ROWS, true), a.split, splits, KEYS);
    const Span all = span_of_rows(&a, a.row, ROWS * OWN_ROWS, false);
    Span spans[OWN_ROWS];
    int excess[OWN_ROWS];
    IN_REGISTERS for (int r = 0; r < OWN_ROWS; ++r) spans[r] = span_of_row(&a, row + r), excess[r] = 0;

    vec y[OWN][ROW_VECTORS], largest[ROW_VECTORS], sum[ROW_VECTORS], per_unit[ROW_VECTORS], per_score[ROW_VECTORS];
    EACH_ROW_VECTOR per_unit[t] = per_score[t] = splat(1);
    for (bool again = false;; again = true) {
        IN_REGISTERS for (int i = 0; i < OWN; ++i) EACH_ROW_VECTOR y[i][t] = splat(0);
        EACH_ROW_VECTOR largest[t] = splat(-REAL_INFINITY), sum[t] = splat(0);
        vec strange = splat(0);  // NaN where a score was not finite
        for (int start = any.begin; start < any.end; start += KEYS) {
            const int n = start + KEYS < any.end ? KEYS : any.end - start;
            for (int feature = 0; feature < DIM; feature += SLICE) {
                TOGETHER();
                if (SLICE < DIM || start == any.begin) load_queries(queries_of, &a, row, excess, feature);
                load_keys(tile, &a, start, n, feature);
                TOGETHER();
                for (int j = column; j < n; j += THREADS * FACTORS) {
                    vec sums[ROW_VECTORS][FACTORS];
                    EACH_FACTOR EACH_ROW_VECTOR
                        sums[t][u] = feature ? VECTORS_AT(scores, j + u * THREADS)[t] : splat(0);
                    const LOCAL real* key = tile_at + j * PITCH;
                    for (int i = 0; i < SLICE; ++i) {
                        const LOCAL vec* query = VECTORS_AT(queries_of, i);
                        EACH_FACTOR {
                            const vec x = splat(key[u * THREADS * PITCH + i]);
                            EACH_ROW_VECTOR sums[t][u] = fma(x, query[t], sums[t][u]);
                        }
                    }
                    EACH_FACTOR EACH_ROW_VECTOR VECTORS_AT(scores, j + u * THREADS)[t] = sums[t][u];
                }
            }

            const bool whole = all.begin <= start && all.end >= start + n;
            vec correction[ROW_VECTORS];
            IN_REGISTERS for (int t = 0; t < ROW_VECTORS; ++t) {
                vec low = splat(0), high = splat(n), top = largest[t];
                if (!whole) {
                    real ends[2][VEC];
                    for (int k = 0; k < VEC; ++k) {
                        const Span span = spans[t * VEC + k];
                        ends[0][k] = span.begin < start ? 0 : span.begin - start;
                        ends[1][k] = span.end > start + n ? n : span.end - start;
                    }
                    low = from_memory(ends[0]);
                    high = from_memory(ends[1]);
                }
                for (int j = column; j < n; j += THREADS) {
                    vec s = VECTORS_AT(scores, j)[t];
                    strange = fma(s, splat(0), strange);
                    if (a.softcap != 0) s = tanh(s * per_score[t] * (1 / a.softcap)) * a.softcap;
#ifdef MASK
                    real lanes[VEC], units[VEC];
                    to_memory(s, lanes);
                    to_memory(per_unit[t], units);
                    for (int k = 0; k < VEC; ++k)
                        lanes[k] = MASKED(lanes[k], mask_at(&a, row + t * VEC + k) + (index_t)(start + j) * a.mask_key,
                                          1 / units[k]);
                    s = from_memory(lanes);
#endif
                    if (!whole) s = select(s, splat(-REAL_INFINITY), (real)j < low || (real)j >= high);
                    top = fmax(top, s);
                    VECTORS_AT(scores, j)[t] = s;
                }
                top = largest_of_rows(top, scratch);
                correction[t] = correction_of(largest[t], top, per_unit[t]);
                largest[t] = top;
                sum[t] *= correction[t];
                const vec shift = shift_of(top);
                for (int j = column; j < n; j += THREADS) {
                    const vec w = weights_of(VECTORS_AT(scores, j)[t], shift, per_unit[t]) * a.weight_unit;
                    VECTORS_AT(scores, j)[t] = w;
                    sum[t] += w;
                }
            }

            IN_REGISTERS for (int slice = 0; slice < SLICES(VALUE_DIM); ++slice) {
                TOGETHER();
                load_values(tile, &a, start, n, slice * SLICE);
                TOGETHER();
                IN_REGISTERS for (int i = 0; i < SLICE / THREADS; i += FACTORS) {
                    vec sums[ROW_VECTORS][FACTORS];
                    const int at = slice * (SLICE / THREADS) + i;
                    EACH_FACTOR EACH_ROW_VECTOR sums[t][u] = y[at + u][t] * correction[t];
                    const LOCAL real* value = tile_at + OWN_FEATURE(i);
                    for (int j = 0; j < n; ++j) {
                        const LOCAL vec* weights = VECTORS_AT(scores, j);
                        EACH_FACTOR {
                            const vec x = splat(value[j * PITCH + u]);
                            EACH_ROW_VECTOR sums[t][u] = fma(x, weights[t], sums[t][u]);
                        }
                    }
                    EACH_FACTOR EACH_ROW_VECTOR y[at + u][t] = sums[t][u];
                }
            }
        }
        if (again || !block_any(FOLD(strange, ADD) != 0, scratch)) break;
        const real key = largest_key(&a, any);
        IN_REGISTERS for (int t = 0; t < ROW_VECTORS; ++t) {
            real units[VEC];
            for (int k = 0; k < VEC; ++k) {
                excess[t * VEC + k] = excess_of(&a, row + t * VEC + k, key);
                units[k] = per_unit_of(excess[t * VEC + k]);
            }
            per_score[t] = from_memory(units);
            if (a.softcap == 0) per_unit[t] = per_score[t];
        }
    }

    IN_REGISTERS for (int t = 0; t < ROW_VECTORS; ++t) {
        real tops[VEC], sums[VEC], units[VEC], factors[VEC];
        to_memory(largest[t], tops);
        to_memory(sum_of_rows(sum[t], scratch), sums);
        to_memory(per_unit[t], units);
        const int first = row + t * VEC;
        GLOBAL STORAGE(Y)* to[VEC];
        for (int k = 0; k < VEC; ++k) {
            const index_t at = (a.all_row + (first - a.row) + k) * splits + a.split;
            to[k] = y_of + at * VALUE_DIM;
#if SPLIT
            factors[k] = 1;
            if (first + k < a.rows && column == 0) {
                GLOBAL real* state = states + at * STATES;
                state[0] = tops[k], state[1] = sums[k], state[2] = units[k];
            }
#else
            const int head = a.first_head + (first + k < a.rows ? first + k : a.rows - 1) / a.queries;
            factors[k] = factor_of(tops[k], sums[k], SINK(head), units[k], a.weight_unit);
#endif
        }
        const vec factor = from_memory(factors);
        IN_REGISTERS for (int slice = 0; slice < SLICES(VALUE_DIM); ++slice)
            IN_REGISTERS for (int i = 0; i < SLICE / THREADS; i += VEC) {
                real transposed[VEC * VEC], part[VEC];
                IN_REGISTERS for (int u = 0; u < VEC; ++u)
                    to_memory(y[slice * (SLICE / THREADS) + i + u][t] * factor, transposed + u * VEC);
                IN_REGISTERS for (int k = 0; k < VEC; ++k) {
                    IN_REGISTERS for (int u = 0; u < VEC; ++u) part[u] = transposed[u * VEC + k];
                    if (first + k < a.rows) STORE_FEATURES(to[k], slice * SLICE + OWN_FEATURE(i), from_memory(part));
                }
            }
    }
}
