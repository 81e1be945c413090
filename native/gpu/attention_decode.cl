// scaled_dot_product_attention for few queries: keys and values stream through, and what is kept is of the queries.
//
// Work: THREADS threads share a key, each with every THREADS-th vector of its features; ROWS such groups take KEYS keys
//   each in turn, and are put together in the end. Blocks share the keys if there are few sequences and heads (SPLIT).
// Bytes: each key and value once for up to QUERIES rows.
//
// The launcher defines, besides what dialect.h and attention.h say:
//   QUERIES   rows of a block
//   KEYS      keys of a group at a time, a multiple of VEC
#include "rows.h"
#include "attention.h"

#define VECTORS(n) (((n) + THREADS * VEC - 1) / (THREADS * VEC))
#define PER_PASS (QUERIES >= 8 ? 2 : QUERIES == 4 ? 4 : 8)  // vectors of values whose sums fit registers
#define PANEL (VECTORS(VALUE_DIM) < PER_PASS ? VECTORS(VALUE_DIM) : PER_PASS)
#define EACH_QUERY UNROLLED for (int r = 0; r < QUERIES; ++r)

// 0, 1, 2, … VEC - 1
INLINE vec lane_numbers(void) {
    real a[VEC];
    for (int k = 0; k < VEC; ++k) a[k] = k;
    return from_memory(a);
}

KERNEL(attention_decode)(ATTENTION_ARGUMENTS RESULT_ARGUMENTS) {
    LOCAL_ARRAY(real, scratch, BLOCK);
#if ROWS > 1
    LOCAL_ARRAY(vec, gathered, BLOCK *VECTORS(VALUE_DIM));
    LOCAL_ARRAY(real, group_states, ROWS * 2);
#endif
    BEGIN_ATTENTION(a, QUERIES);
    const int own_group = thread_id() / THREADS;
    const Span any = part_of(span_of_rows(&a, a.row, QUERIES, true), a.split, splits, ROWS * KEYS);
    const Span all = span_of_rows(&a, a.row, QUERIES, false);
    const vec numbers = lane_numbers();

    vec y[QUERIES][VECTORS(VALUE_DIM)];
    real largest[QUERIES], sum[QUERIES], per_unit[QUERIES], per_score[QUERIES];
    int excess[QUERIES];
    EACH_QUERY per_unit[r] = per_score[r] = 1, excess[r] = 0;
    for (bool again = false;; again = true) {
        vec query[QUERIES][VECTORS(DIM)];
        EACH_QUERY {
            const GLOBAL STORAGE(X) *from = query_at(&a, a.row + r < a.rows ? a.row + r : a.rows - 1);
            const real unit = ldexp((real)1, -excess[r] / 2), rest = ldexp((real)1, -(excess[r] - excess[r] / 2));
            for (int i = 0; i < VECTORS(DIM); ++i)
                query[r][i] = FEATURES(from, ELEMENT(i), DIM) * unit * rest * a.scale;
            for (int i = 0; i < VECTORS(VALUE_DIM); ++i) y[r][i] = splat(0);
            largest[r] = -REAL_INFINITY;
            sum[r] = 0;
        }
        real strange = 0;  // NaN if a score was not finite
        for (int start = any.begin; start < any.end; start += ROWS * KEYS) {
            const int first = start + own_group * KEYS, n = any.end - first < KEYS ? any.end - first : KEYS;
            real scores[QUERIES][KEYS], correction[QUERIES];
            IN_REGISTERS for (int j = 0; j < KEYS; ++j) {
                const GLOBAL STORAGE(X) *key = key_at(&a, j < n ? first + j : any.end - 1);
                vec sums[QUERIES];
                EACH_QUERY sums[r] = splat(0);
                for (int i = 0; i < VECTORS(DIM); ++i) {
                    const vec x = FEATURES(key, ELEMENT(i), DIM);
                    EACH_QUERY sums[r] = fma(query[r][i], x, sums[r]);
                }
                EACH_QUERY scores[r][j] = row_sum(FOLD(sums[r], ADD), scratch);
            }
            const bool whole = n == KEYS && all.begin <= first && all.end >= first + KEYS;
            EACH_QUERY {
                const Span span = span_of_row(&a, a.row + r);
                const int end = span.end < any.end ? span.end : any.end;
                const vec low = splat(span.begin < first ? 0 : span.begin - first < KEYS ? span.begin - first : KEYS);
                const vec high = splat(end < first ? 0 : end - first < KEYS ? end - first : KEYS);
                vec top = splat(largest[r]), odd = splat(0);
                IN_REGISTERS for (int j = 0; j < KEYS; j += VEC) {
                    vec s = from_memory(scores[r] + j);
                    odd = fma(s, splat(0), odd);
                    if (a.softcap != 0) s = tanh(s * (per_score[r] / a.softcap)) * a.softcap;
#ifdef MASK
                    real lanes[VEC];
                    to_memory(s, lanes);
                    const GLOBAL STORAGE(MASK) *allowed_at = mask_at(&a, a.row + r);
                    for (int k = 0; k < VEC; ++k)
                        if (j + k < n)
                            lanes[k] = MASKED(lanes[k], allowed_at + (index_t)(first + j + k) * a.mask_key, 1 / per_unit[r]);
                    s = from_memory(lanes);
#endif
                    if (!whole) s = select(s, splat(-REAL_INFINITY), numbers + (real)j < low || numbers + (real)j >= high);
                    top = fmax(top, s);
                    to_memory(s, scores[r] + j);
                }
                strange += FOLD(odd, ADD);
                const real most = FOLD(top, MAX), shift = SHIFT(most);
                correction[r] = most == largest[r] ? 1 : weight(largest[r], most, per_unit[r]);
                largest[r] = most;
                vec total = splat(0);
                IN_REGISTERS for (int j = 0; j < KEYS; j += VEC) {
                    const vec w = weights_of(from_memory(scores[r] + j), splat(shift), splat(per_unit[r])) * a.weight_unit;
                    total += w;
                    to_memory(w, scores[r] + j);
                }
                sum[r] = sum[r] * correction[r] + FOLD(total, ADD);
            }
            UNROLLED for (int i = 0; i < VECTORS(VALUE_DIM); i += PANEL) {
                vec sums[QUERIES][PANEL];
                EACH_QUERY UNROLLED for (int p = 0; p < PANEL; ++p)
                    sums[r][p] = i + p < VECTORS(VALUE_DIM) ? y[r][i + p] * correction[r] : splat(0);
                IN_REGISTERS for (int j = 0; j < KEYS; ++j) {
                    if (j >= n) break;
                    const GLOBAL STORAGE(X) *value = value_at(&a, first + j);
                    UNROLLED for (int p = 0; p < PANEL; ++p) {
                        const vec x = FEATURES(value, ELEMENT(i + p), VALUE_DIM);
                        EACH_QUERY sums[r][p] = fma(splat(scores[r][j]), x, sums[r][p]);
                    }
                }
                EACH_QUERY UNROLLED for (int p = 0; p < PANEL; ++p)
                    if (i + p < VECTORS(VALUE_DIM)) y[r][i + p] = sums[r][p];
            }
        }
        if (again || !block_any(strange != 0, scratch)) break;
        const real key = largest_key(&a, any);
        EACH_QUERY {
            excess[r] = excess_of(&a, a.row + r, key);
            per_score[r] = per_unit_of(excess[r]);
            if (a.softcap == 0) per_unit[r] = per_score[r];
        }
    }

    EACH_QUERY {
        real top = largest[r], total = sum[r];
#if ROWS > 1
        // The groups of a block, one query after another
        BARRIER();
        if (lane_id() == 0) group_states[own_group] = largest[r], group_states[ROWS + own_group] = sum[r];
        for (int i = 0; i < VECTORS(VALUE_DIM); ++i) gathered[i * BLOCK + thread_id()] = y[r][i];
        BARRIER();
        for (int g = 0; g < ROWS; ++g) top = fmax(top, group_states[g]);
        total = 0;
        for (int i = 0; i < VECTORS(VALUE_DIM); ++i) y[r][i] = splat(0);
        for (int g = 0; g < ROWS; ++g) {
            const real part = group_states[g], own = part == top ? 1 : weight(part, top, per_unit[r]);
            total += own * group_states[ROWS + g];
            for (int i = 0; i < VECTORS(VALUE_DIM); ++i)
                y[r][i] += gathered[i * BLOCK + g * THREADS + lane_id()] * own;
        }
#endif
        if (own_group == 0 && a.row + r < a.rows) {
            real factor = 1;
#if SPLIT
            if (lane_id() == 0) {
                GLOBAL real *state = states + ((a.all_row + r) * splits + a.split) * STATES;
                state[0] = top, state[1] = total, state[2] = per_unit[r];
            }
#else
            factor = factor_of(top, total, SINK(a.first_head + (a.row + r) / a.queries), per_unit[r], a.weight_unit);
#endif
            GLOBAL STORAGE(Y) *to = y_of + ((a.all_row + r) * splits + a.split) * VALUE_DIM;
            for (int i = 0; i < VECTORS(VALUE_DIM); ++i) STORE_FEATURES(to, ELEMENT(i), y[r][i] * factor);
        }
    }
}
