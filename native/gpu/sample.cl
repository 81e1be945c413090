// sample: one index for each row of logits, drawn from their softmax or, at temperature 0 (GREEDY), that
// of the largest.
//
// Work: a block for each row, so what is the same for a row is the same for its barriers. Nothing is sorted.
//   * Weights, exp((x - largest) / temperature), go to memory; each thread reads only what it wrote.
//   * top_k, top_p: the threshold is found by its bits. Each pass over the candidates takes PIVOTS sums of what is
//     larger than a pivot, and so divides the range by PIVOTS + 1.
//   * top_k of many: the k-th nearest of the minima of parts is a bound. Only the few candidates within it are counted.
//   * The draw: sums over TILE vectors of each thread find the part of the row, and smaller sums the element in it.
// Precision: sums in a fixed order, of which none is longer than the row divided by THREADS * VEC.
// Bytes: a row once for temperature 0; else twice, and its weights in and several times out of the cache.
#include "rows.h"
#include "indices.h"
#include "math.h"
#include "parts.h"

#define TILE 16
#define PIVOTS 7
// Passes after which those candidates are put together that may still be at the threshold; a GPU has them in its caches.
#define FULL_PASSES (THREADS == 1 ? 4 : 32)

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

// Float64 with logits of another type comes as its bits
#if UNIFORM_BITS == 64
#define UNIFORM_AT(p) real_of_parts(PARTS_OF_BITS(*(p)))
#else
#define UNIFORM_AT(p) JOIN(get_, UNIFORM)(p)
#endif
#define WEIGHTS(i) JOIN(load_, REAL)(weights + (i))
#define WITHIN(k) (ELEMENT(k) < n)
#define MOST_IN_PART 16

INLINE int smaller(int a, int b) { return a < b ? a : b; }

// How many vectors a part has of which only the nearest counts at first: so many that there are some more parts than
// elements wanted; 1 if those are too many
INLINE int vectors_in_part(int n, int top_k) {
    const int vectors = n / 8 / top_k;
    return vectors < 1 ? 1 : smaller(vectors, MOST_IN_PART);
}

// How many vectors of a row a thread has
INLINE int own_vectors(int n) {
    const int begin = lane_id() * VEC, apart = THREADS * VEC;
    return n > begin ? (n - begin + apart - 1) / apart : 0;
}

#if !DOUBLE
// Numbers by their bits
typedef struct {
    uint least, most;
} Range;
INLINE Range range_up_to(real highest) {
    Range r;
    r.least = 0;
    r.most = bits_of_float(highest);
    return r;
}

// The range in which, after that many passes, the smallest number is such that the sum over those of each thread's vectors
// that are larger, or how many there are, is below a bound
INLINE Range narrowed(Range range, const GLOBAL real *weights, int vectors, bool counted, real bound, int passes,
                      LOCAL real *scratch) {
    uint least = range.least, most = range.most;
    for (; least < most && passes > 0; --passes) {
        const uint step = (most - least) / (PIVOTS + 1) + 1;
        vec sums[PIVOTS];
        real pivots[PIVOTS];
        for (int j = 0; j < PIVOTS; ++j) {
            const uint bits = least + (j + 1) * step - 1;
            pivots[j] = float_of_bits(bits < most ? bits : most);
            sums[j] = splat(0);
        }
        for (int k = 0; k < vectors; ++k) {
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
    range.least = least;
    range.most = most;
    return range;
}

// The distance of the k-th nearest, with ties. Elements beyond the row are infinitely far, as are those that
// fill vectors.
INLINE real farthest_of_top_k(const GLOBAL real *below, int vectors, real highest, int top_k, LOCAL real *scratch) {
    const real lanes = row_sum(vectors * VEC, scratch);
    const Range found = narrowed(range_up_to(highest), below, vectors, true, lanes - top_k + 1, 32, scratch);
    return float_of_bits(found.least);
}

// Fills a thread's list of that many numbers up to whole vectors; returns their number.
INLINE int filled(GLOBAL real *list, int count, real fill) {
    const int vectors = (count + VEC - 1) / VEC;
    for (; count < vectors * VEC; ++count) list[ELEMENT(count / VEC) + count % VEC] = fill;
    return vectors;
}

// Puts the distances of a thread that are within the bound one after another; returns how many vectors they fill.
INLINE int collect(const GLOBAL real *below, const GLOBAL real *minima, int own, int part, real bound,
                   GLOBAL real *list) {
    int count = 0;
    for (int p = 0; p * part < own; ++p) {
        const vec nearest = JOIN(load_, REAL)(minima + ELEMENT(p));
        if (FOLD(nearest, MIN) > bound) continue;
        for (int k = p * part; k < own && k < (p + 1) * part; ++k) {
            real a[VEC];
            to_memory(JOIN(load_, REAL)(below + ELEMENT(k)), a);
            for (int j = 0; j < VEC; ++j)
                if (a[j] <= bound) {
                    list[ELEMENT(count / VEC) + count % VEC] = a[j];
                    ++count;
                }
        }
    }
    return filled(list, count, INFINITE);
}

// Puts the weights of a thread that are above a bound, up to another, one after another, which may be where they are
// read; returns how many vectors they fill.
INLINE int collect_between(const GLOBAL real *weights, int vectors, real above, real most, GLOBAL real *list) {
    int count = 0;
    for (int k = 0; k < vectors; ++k) {
        const vec w = WEIGHTS(ELEMENT(k));
        if (!any(w > above && w <= most)) continue;
        real a[VEC];
        to_memory(w, a);
        for (int j = 0; j < VEC; ++j)
            if (a[j] > above && a[j] <= most) {
                list[ELEMENT(count / VEC) + count % VEC] = a[j];
                ++count;
            }
    }
    return filled(list, count, 0);
}

INLINE vec weights_within(vec below, real farthest) {
    return select(splat(0), exp_of_negative(-below), below <= farthest);
}
#endif

// Of the weights that a thread has in vectors first to last, those that are at least `least`
INLINE real sum_of_vectors(const GLOBAL real *weights, int first, int last, real least) {
    vec sum = splat(0);
    for (int k = first; k < last; ++k) {
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

// The part of `step` vectors, of those from first to last, in which the running sum exceeds the target; the last that
// is not 0, if rounding leaves none. `sum` becomes that before it.
INLINE int part_with(const GLOBAL real *weights, int own, int first, int last, int step, real least, real target,
                     Running *sum, LOCAL real *scratch) {
    int found = first;
    Running before = *sum, now = *sum;
    for (int k = first; k < last; k += step) {
        const real part = row_sum(sum_of_vectors(weights, k, smaller(k + step, smaller(last, own)), least), scratch);
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
 index_t padded, real temperature, int top_k, real top_p, real min_p) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
        const GLOBAL STORAGE(X) *x = ROW(logits, row);
        GLOBAL real *weights = all_weights + block_id() * padded * (top_k ? 3 : top_p < 1 ? 2 : 1);
        GLOBAL real *minima = weights + padded, *list = top_k ? minima + padded : minima;
        const real drawn = UNIFORM_AT(ROW(uniform, row));
        vec most = splat(-INFINITE), unordered = splat(0);
        for (int k = 0; k < CHUNKS && WITHIN(k); ++k) {
            const vec a = READ(X, x, logits_step, ELEMENT(k), -INFINITE);
            most = select(most, a, a > most);
            unordered = select(unordered, splat(1), isnan(a));
        }
        const real largest = row_max(FOLD(most, MAX), scratch);
        // Without a candidate, or with a uniform number below 0, the body finds the first index.
        const bool usual = largest > -INFINITE && !(drawn < 0) && row_max(FOLD(unordered, MAX), scratch) == 0;
        const int own = own_vectors(n), part = top_k ? vectors_in_part(n, top_k) : MOST_IN_PART;
        for (int p = 0; p * part < own; ++p) {
            vec nearest = splat(INFINITE);
            for (int k = p * part; k < own && k < (p + 1) * part; ++k) {
                const vec a = READ(X, x, logits_step, ELEMENT(k), -INFINITE);
                vec below = select(largest - a, splat(0), a == largest);  // the difference of infinities is not a number
                if (temperature != 1) below = below / temperature;
                if (top_k)
                    nearest = select(nearest, below, below < nearest);
                else
                    below = exp_of_negative(-below);
                JOIN(store_, REAL)(weights + ELEMENT(k), below);
            }
            if (top_k) JOIN(store_, REAL)(minima + ELEMENT(p), nearest);
        }
        real least = min_p;
#if !DOUBLE
        const GLOBAL real *candidates = weights;
        int vectors = own;
        if (top_k) {
            const int parts = (own + part - 1) / part;
            real farthest = INFINITE;
            if (part > 1) {
                farthest = farthest_of_top_k(minima, parts, farthest, top_k, scratch);
                vectors = collect(weights, minima, own, part, farthest, list);
                candidates = list;
            }
            farthest = farthest_of_top_k(candidates, vectors, farthest, top_k, scratch);
            for (int p = 0; p < parts; ++p) {
                const vec nearest = JOIN(load_, REAL)(minima + ELEMENT(p));
                const bool none = FOLD(nearest, MIN) > farthest;
                for (int k = p * part; k < own && k < (p + 1) * part; ++k) {
                    const vec w = none ? splat(0) : weights_within(WEIGHTS(ELEMENT(k)), farthest);
                    JOIN(store_, REAL)(weights + ELEMENT(k), w);
                }
            }
            for (int k = 0; part > 1 && k < vectors; ++k) {
                const vec w = weights_within(JOIN(load_, REAL)(list + ELEMENT(k)), farthest);
                JOIN(store_, REAL)(list + ELEMENT(k), w);
            }
        }
        if (top_p < 1) {
            const real bound = top_p * row_sum(sum_of_vectors(candidates, 0, vectors, 0), scratch);
            Range range = narrowed(range_up_to(1), candidates, vectors, false, bound, FULL_PASSES, scratch);
#if THREADS == 1
            const real most = float_of_bits(range.most), next = float_of_bits(range.most + 1);
            const real above = sum_of_vectors(candidates, 0, vectors, next);
            vectors = collect_between(candidates, vectors, float_of_bits(range.least), most, list);
            range = narrowed(range, list, vectors, false, bound - above, 32, scratch);
#endif
            least = fmax(least, float_of_bits(range.least));
        }
#endif
        Running sum = {0, 0};
        for (int k = 0; k < CHUNKS; k += TILE)
            sum = added(sum, row_sum(sum_of_vectors(weights, k, smaller(k + TILE, own), least), scratch));
        const real target = drawn * sum.value;
        sum.value = sum.error = 0;
        const int tile = part_with(weights, own, 0, CHUNKS, TILE, least, target, &sum, scratch);
        const int end = smaller(tile + TILE, CHUNKS);
        const int vector = part_with(weights, own, tile, end, 1, least, target, &sum, scratch);
        // Running sums over the threads' vectors
        const int i = ELEMENT(vector);
        real mine[VEC];
        for (int j = 0; j < VEC; ++j) mine[j] = 0;
        if (i < n) {
            const vec w = WEIGHTS(i), kept = select(splat(0), w, w >= least);
            to_memory(kept, mine);
        }
        real mine_all = 0;
        for (int j = 0; j < VEC; ++j) mine_all += mine[j];
        BARRIER();
        scratch[lane_id()] = mine_all;
        BARRIER();
        for (int d = 1; d < THREADS; d *= 2) {
            const real other = lane_id() >= d ? scratch[lane_id() - d] : 0;
            BARRIER();
            scratch[lane_id()] += other;
            BARRIER();
        }
        const real rest = target - sum.value, before = lane_id() > 0 ? scratch[lane_id() - 1] : 0;
        const bool reached = mine_all > 0 && scratch[lane_id()] > rest;
        BARRIER();
        // The first thread that reaches the target; the last with a weight, if rounding leaves none
        const int first = least_of_row(reached ? lane_id() : THREADS, THREADS, scratch);
        const int last = (int)row_max(mine_all > 0 ? lane_id() : 0, scratch);
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
