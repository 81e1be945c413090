// sample: one index for each row of logits, drawn from their softmax or, at temperature 0 (GREEDY), that of the largest.
//
// Work: a block for each row, so what is the same for a row is the same for its barriers. Nothing is sorted.
//   * Weights, exp((x - largest) / temperature), go to memory; each thread reads only what it wrote.
//   * top_k, top_p: the threshold is found by its bits. Each pass over the row takes PIVOTS sums of what is larger than
//     a pivot, and so divides the range by PIVOTS + 1.
//   * The draw: sums over TILE vectors of each thread find the part of the row, and smaller sums the element in it.
// Precision: sums in a fixed order, of which none is longer than the row divided by THREADS * VEC.
// Bytes: a row once for temperature 0; else twice, and its weights in and several times out of the cache.
#include "rows.h"
#include "indices.h"
#include "parts.h"

#define INFINITE (1 / (real)0)
#define TILE 16
#define PIVOTS 7

// The smallest of a number from 0 to `limit` of each thread of a row
INLINE int least_of_row(int mine, int limit, LOCAL real *scratch) { return limit - (int)row_max(limit - mine, scratch); }

#if GREEDY
// The first NaN
RARE int first_nan(const GLOBAL STORAGE(X) *x, index_t step, int n) {
    for (int k = 0; k < CHUNKS; ++k)
        for (int i = ELEMENT(k), j = 0; j < VEC && i + j < n; ++j)
            if (isnan(JOIN(get_, X)(x + (i + j) * step))) return i + j;
    return n;
}

KERNEL(sample)
(IN(X, logits), GLOBAL storage_i64 *restrict chosen, ROW_SHAPE) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
        const GLOBAL STORAGE(X) *x = ROW(logits, row);
        // Of each lane: the largest element, in which vector it is, and whether there is a NaN
        vec most = splat(-INFINITE), where = splat(0), unordered = splat(0);
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            if (i >= n) break;
            const vec a = READ(X, x, logits_step, i, -INFINITE);
            where = select(where, splat(k), a > most);
            most = select(most, a, a > most);
            unordered = select(unordered, splat(1), isnan(a));
        }
        real values[VEC], vectors[VEC];
        to_memory(most, values);
        to_memory(where, vectors);
        const real largest = row_max(FOLD(most, MAX), scratch);
        int found = n;
        for (int j = 0; j < VEC; ++j) {
            const int i = ELEMENT((int)vectors[j]) + j;
            if (values[j] == largest && i < found) found = i;
        }
        if (row_max(FOLD(unordered, MAX), scratch) > 0) found = first_nan(x, logits_step, n);
        const int first = least_of_row(found, n, scratch);
        if (lane_id() == 0) chosen[row] = first;
    }
}
#else

// Float64 beside logits of another type comes as its bits
#if UNIFORM_BITS == 64
#define UNIFORM_AT(p) real_of_parts(PARTS_OF_BITS(*(p)))
#else
#define UNIFORM_AT(p) JOIN(get_, UNIFORM)(p)
#endif
#define WEIGHTS(i) JOIN(load_, REAL)(weights + (i))
#define WITHIN(k) (ELEMENT(k) < n)

// The smallest number such that the sum over those that are larger, or how many there are, is below a bound
INLINE real threshold(const GLOBAL real *weights, int n, uint highest, bool counted, real bound, LOCAL real *scratch) {
    uint least = 0, most = highest;
    while (least < most) {
        const uint step = (most - least) / (PIVOTS + 1) + 1;
        vec sums[PIVOTS];
        real pivots[PIVOTS];
        for (int j = 0; j < PIVOTS; ++j) {
            const uint bits = least + (j + 1) * step - 1;
            pivots[j] = float_of_bits(bits < most ? bits : most);
            sums[j] = splat(0);
        }
        for (int k = 0; k < CHUNKS && WITHIN(k); ++k) {
            const vec w = WEIGHTS(ELEMENT(k)), amount = counted ? splat(1) : w;
            for (int j = 0; j < PIVOTS; ++j) sums[j] += select(splat(0), amount, w > pivots[j]);
        }
        // Of the pivots that are high enough the first, and the last that is not
        uint high = most, low = least;
        for (int j = PIVOTS - 1; j >= 0; --j) {
            const real sum = row_sum(FOLD(sums[j], ADD), scratch);
            const uint bits = least + (j + 1) * step - 1;
            if (bits >= most) continue;
            if (sum < bound)
                high = bits;
            else if (low == least)
                low = bits + 1;
        }
        least = low < high ? low : high;
        most = high;
    }
    return float_of_bits(least);
}

// Of the weights that a thread has in vectors first to last, those that are at least `least`
INLINE real sum_of_vectors(const GLOBAL real *weights, int n, int first, int last, real least) {
    vec sum = splat(0);
    for (int k = first; k < last && WITHIN(k); ++k) {
        const vec w = WEIGHTS(ELEMENT(k));
        sum += select(splat(0), w, w >= least);
    }
    return FOLD(sum, ADD);
}

// A running sum with its rounding error
typedef struct {
    real value, error;
} Running;
INLINE Running added(Running sum, real x) {
    const real y = x - sum.error, value = sum.value + y;
    sum.error = (value - sum.value) - y;
    sum.value = value;
    return sum;
}

// The part of `step` vectors, of those from first to last, in which the running sum exceeds the target; the last that is
// not 0, if rounding leaves none. `sum` becomes that before it.
INLINE int part_with(const GLOBAL real *weights, int n, int first, int last, int step, real least, real target, Running *sum, LOCAL real *scratch) {
    int found = first;
    Running before = *sum, now = *sum;
    for (int k = first; k < last; k += step) {
        const real part = row_sum(sum_of_vectors(weights, n, k, k + step < last ? k + step : last, least), scratch);
        if (part == 0) continue;
        found = k;
        before = now;
        now = added(now, part);
        if (now.value > target) break;
    }
    *sum = before;
    return found;
}

KERNEL(sample)
(IN(X, logits), IN(UNIFORM, uniform), GLOBAL storage_i64 *restrict chosen, GLOBAL real *restrict all_weights, ROW_SHAPE,
 index_t weights_along, real temperature, int top_k, real top_p, real min_p) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
        const GLOBAL STORAGE(X) *x = ROW(logits, row);
        GLOBAL real *weights = all_weights + block_id() * weights_along;
        const real drawn = UNIFORM_AT(ROW(uniform, row));
        vec most = splat(-INFINITE), unordered = splat(0);
        for (int k = 0; k < CHUNKS && WITHIN(k); ++k) {
            const vec a = READ(X, x, logits_step, ELEMENT(k), -INFINITE);
            most = select(most, a, a > most);
            unordered = select(unordered, splat(1), isnan(a));
        }
        const real largest = row_max(FOLD(most, MAX), scratch);
        // Without a finite maximum, or with a uniform number below 0, the body finds the first candidate.
        const bool usual = fabs(largest) <= REAL_MAX && !(drawn < 0) && row_max(FOLD(unordered, MAX), scratch) == 0;
        for (int k = 0; k < CHUNKS && WITHIN(k); ++k) {
            const vec below = (largest - READ(X, x, logits_step, ELEMENT(k), -INFINITE)) / temperature;
            JOIN(store_, REAL)(weights + ELEMENT(k), top_k ? below : exp(-below));
        }
#if !DOUBLE
        if (top_k) {
            const int padded = (n + VEC - 1) / VEC * VEC;  // the elements beyond the row are infinitely far below
            const real farthest = threshold(weights, n, 0x7f800000, true, padded - top_k + 1, scratch);
            for (int k = 0; k < CHUNKS && WITHIN(k); ++k) {
                const vec below = WEIGHTS(ELEMENT(k));
                JOIN(store_, REAL)(weights + ELEMENT(k), select(splat(0), exp(-below), below <= farthest));
            }
        }
#endif
        real least = min_p;
#if !DOUBLE
        if (top_p < 1) {
            const real total = row_sum(sum_of_vectors(weights, n, 0, CHUNKS, 0), scratch);
            least = fmax(least, threshold(weights, n, 0x3f800000, false, top_p * total, scratch));
        }
#endif
        Running sum = {0, 0};
        for (int k = 0; k < CHUNKS; k += TILE)
            sum = added(sum, row_sum(sum_of_vectors(weights, n, k, k + TILE, least), scratch));
        const real target = drawn * sum.value;
        sum.value = sum.error = 0;
        const int tile = part_with(weights, n, 0, CHUNKS, TILE, least, target, &sum, scratch);
        const int end = tile + TILE < CHUNKS ? tile + TILE : CHUNKS;
        const int vector = part_with(weights, n, tile, end, 1, least, target, &sum, scratch);
        // Running sums over the threads' vectors
        const int i = ELEMENT(vector);
        real mine[VEC];
        for (int j = 0; j < VEC; ++j) mine[j] = 0;
        if (i < n) {
            const vec w = WEIGHTS(i), kept = select(splat(0), w, w >= least);
            to_memory(kept, mine);
        }
        real own = 0;
        for (int j = 0; j < VEC; ++j) own += mine[j];
        BARRIER();
        scratch[lane_id()] = own;
        BARRIER();
        for (int d = 1; d < THREADS; d *= 2) {
            const real other = lane_id() >= d ? scratch[lane_id() - d] : 0;
            BARRIER();
            scratch[lane_id()] += other;
            BARRIER();
        }
        const real rest = target - sum.value, before = lane_id() > 0 ? scratch[lane_id() - 1] : 0;
        const bool reached = own > 0 && scratch[lane_id()] > rest;
        BARRIER();
        // The first thread that reaches the target; the last with a weight, if rounding leaves none
        const int first = least_of_row(reached ? lane_id() : THREADS, THREADS, scratch);
        const int last = (int)row_max(own > 0 ? lane_id() : 0, scratch);
        if (lane_id() != (first < THREADS ? first : last)) continue;
        real running = before;
        int index = 0;
        for (int j = 0; j < VEC; ++j) {
            if (mine[j] == 0) continue;
            index = i + j;
            running += mine[j];
            if (running > rest) break;
        }
        chosen[row] = usual ? index : 0;
    }
}
#endif
