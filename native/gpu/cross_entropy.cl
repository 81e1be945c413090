// Cross entropy of rows of logits: log(sum(exp(x - max))) - (x[target] - max), smoothed towards the mean of all
// classes, weighted, or for probabilities as targets (PROBABLE). SPREAD: every class may have a share in the loss.
//
// Work: as rows.h deals out rows. A mean or a sum is left to a second launch of one block, in a fixed order.
// Precision: losses are in 2^-64 until they are written: neither a difference of logits nor a sum overflows.
// Bytes: each logit once. Maxima and sums are kept for each lane; a sum is rescaled once for BATCH vectors.
#include "rows.h"
#include "sums.h"
#include "indices.h"
#include "math.h"

#define LOSS_UNIT ((real)5.421010862427522e-20)  // 2^-64
#define BATCH (THREADS == 1 ? 8 : (DOUBLE ? 16 : 32) / VEC)

// A loss that counts as much as its share says: an infinite one that counts nothing adds nothing.
INLINE real times(real share, real loss) { return share == 0 && loss > REAL_MAX ? 0 : share * loss; }
INLINE vec product(vec share, vec loss) {
    return select(share * loss, splat(0), share == splat(0) && loss > splat(REAL_MAX));
}

// 1 for the elements of the vector at element i that are within the row
RARE vec ones_of_part(int count) {
    real a[VEC];
    for (int k = 0; k < VEC; ++k) a[k] = k < count;
    return from_memory(a);
}
#define ONES(i) ((i) + VEC <= n ? splat(1) : ones_of_part(n - (i)))

KERNEL(cross_entropy)
(IN(X, logits), IN(TARGETS, targets),
#ifdef WEIGHT
 IN(WEIGHT, weight),
#endif
#if REDUCED
 GLOBAL real *restrict parts,
#else
 OUT(X, y),
#endif
 ROW_SHAPE, int ignores, index_t ignored, real smoothing, real z_loss) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t at = ROW_INDEX(turn), row = at < rows ? at : rows - 1;
        const GLOBAL STORAGE(X) *x = ROW(logits, row);
        const GLOBAL STORAGE(TARGETS) *target = ROW(targets, row);
        // Of each lane: the largest element, exponentials of the distances to it; shares, and their sum with distances
        vec most = splat(-REAL_MAX), sum = splat(0);
#if SPREAD
        vec shares = splat(0), below = splat(0);
#endif
        for (int first = 0; first < CHUNKS; first += BATCH) {
            vec a[BATCH], top = most;
            for (int j = 0; j < BATCH; ++j) {
                const int i = ELEMENT(first + j);
                a[j] = i < n ? READ(X, x, logits_step, i, -INFINITE) : splat(-INFINITE);
                top = select(top, a[j], a[j] > top);  // a NaN shows in the sum
            }
            sum *= exp_of_negative(most - top);
#if SPREAD
            below += shares * (top * LOSS_UNIT - most * LOSS_UNIT);
#endif
            most = top;
            vec part = splat(0);
            for (int j = 0; j < BATCH; ++j) part += exp_of_negative(a[j] - most);
            sum += part;
#if SPREAD
            for (int j = 0; j < BATCH; ++j) {
                const int i = ELEMENT(first + j);
                if (i >= n) break;
#if PROBABLE
                vec share = READ(TARGETS, target, targets_step, i, 0) * (1 - smoothing) + ONES(i) * (smoothing / n);
#else
                vec share = ONES(i);
#endif
#ifdef WEIGHT
                share *= READ(WEIGHT, weight + weight_start, weight_step, i, 0);
#endif
                shares += share;
                below += product(share, most * LOSS_UNIT - a[j] * LOSS_UNIT);
            }
#endif
        }
        const real largest = row_max(FOLD(most, MAX), scratch);
        const vec scaled = sum * exp_of_negative(most - largest);
        const real total = row_sum(FOLD(scaled, ADD), scratch);
        const real log_total = total == 0 ? NOT_A_NUMBER : log(total) * LOSS_UNIT;  // 0: every logit is -infinity
        real loss = 0;
#if SPREAD
        const vec distances = below + shares * (largest * LOSS_UNIT - most * LOSS_UNIT);
        const real all_below = row_sum(FOLD(distances, ADD), scratch), all_shares = row_sum(FOLD(shares, ADD), scratch);
        loss = all_below + all_shares * log_total;
#endif
#if PROBABLE
        const real counts = 1, share = 1;
#else
        const index_t number = (index_t)*target;
        const bool found = is_within(number, n);
        const real counts = !(ignores && number == ignored);
        real share = found ? 1 : NOT_A_NUMBER;
#ifdef WEIGHT
        if (found) share = JOIN(get_, WEIGHT)(weight + weight_start + number * weight_step);
#endif
        const real above = found ? JOIN(get_, X)(x + number * logits_step) : NOT_A_NUMBER;
        const real of_target = times(share, log_total + (largest * LOSS_UNIT - above * LOSS_UNIT));
        loss = SPREAD ? (1 - smoothing) * of_target + smoothing / n * loss : of_target;
#endif
        const real in_units = log_total + largest * LOSS_UNIT;
        real square = z_loss == 0 ? 0 : in_units * (in_units / LOSS_UNIT);
        if (counts == 0) loss = square = 0;
        if (at >= rows || lane_id() > 0) continue;
#if REDUCED
        parts[at] = loss;
        parts[rows + at] = square;
        parts[2 * rows + at] = counts == 0 ? 0 : share;
        parts[3 * rows + at] = counts;
#else
        JOIN(put_, X)(ROW(y, row), (z_loss == 0 ? loss : loss + z_loss * square) / LOSS_UNIT);
#endif
    }
}

#if REDUCED
// Of `n` rows
INLINE real sum_of_part(const GLOBAL real *part, int n, LOCAL real *scratch) {
    Sum sum = no_sum();
    for (int k = 0; k < CHUNKS; ++k) {
        const int i = ELEMENT(k);
        if (i < n) sum = plus(sum, READ(REAL, part, 1, i, 0), k);
    }
    return row_sum(total(sum), scratch);
}

KERNEL(reduced_losses)
(const GLOBAL real *restrict parts, GLOBAL STORAGE(X) *restrict y, int n, int mean, real z_loss) {
    LOCAL_ARRAY(real, scratch, BLOCK);
    real loss = sum_of_part(parts, n, scratch);
    real square = z_loss == 0 ? 0 : sum_of_part(parts + n, n, scratch) * z_loss;
    if (mean) {
        loss /= sum_of_part(parts + 2 * (index_t)n, n, scratch);
        square /= sum_of_part(parts + 3 * (index_t)n, n, scratch);
    }
    if (thread_id() == 0) JOIN(put_, X)(y, (z_loss == 0 ? loss : loss + square) / LOSS_UNIT);
}
#endif
