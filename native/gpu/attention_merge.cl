// The results of attention's spans of keys, put together.
//
// Work: THREADS threads for each row, ROWS rows a block. `parts` and `states` have for each row and span what
//   attention.h calls a state, and the sums of weighted values. Units differ only where scores leave the range.
#include "rows.h"
#include "attention.h"

KERNEL(attention_merge)
(const GLOBAL real *restrict parts, const GLOBAL real *restrict states SINKS_ARGUMENTS, GLOBAL STORAGE(X) *restrict y_of,
 index_t rows, int splits, int queries, int heads, real weight_unit) {
    const index_t row = block_id() * ROWS + thread_id() / THREADS;
    if (row >= rows) return;
    const GLOBAL real *state = states + row * splits * STATES;
    real per_unit = 1, top = -REAL_INFINITY, sum = 0;
    for (int s = 0; s < splits; ++s) per_unit = fmax(per_unit, state[s * STATES + 2]);
    for (int s = 0; s < splits; ++s) top = fmax(top, state[s * STATES] * (state[s * STATES + 2] / per_unit));
#define PART_WEIGHT(s) weight(state[(s)*STATES] * (state[(s)*STATES + 2] / per_unit), SHIFT(top), per_unit)
    for (int s = 0; s < splits; ++s) sum += state[s * STATES + 1] * PART_WEIGHT(s);
    const real factor = factor_of(top, sum, SINK(row / queries % heads), per_unit, weight_unit);
    for (int i = lane_id() * VEC; i < VALUE_DIM; i += THREADS * VEC) {
        vec total = splat(0);
        const GLOBAL real *part = parts + row * splits * VALUE_DIM;
        for (int s = 0; s < splits; ++s, part += VALUE_DIM) {
            const vec x = i + VEC <= VALUE_DIM ? JOIN(load_, REAL_NAME)(part + i)
                                               : JOIN(load_part_, REAL_NAME)(part + i, 1, VALUE_DIM - i, 0);
            total = fma(splat(PART_WEIGHT(s)), x, total);
        }
        STORE_FEATURES(y_of + row * VALUE_DIM, i, total * factor);
    }
}
