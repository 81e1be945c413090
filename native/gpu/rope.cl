// Rotary position embedding: pairs of features rotate by position times frequency.
//
// A row of the launch is a position: the features of all its heads, or of some, which share cosines and sines.
// INTERLEAVED: neighbours are a pair, so n counts features and each angle occurs twice, with both signs of the sine.
// Else n counts pairs, of which the second elements follow all first ones.
//
// Work: as rows.h deals out rows; KEPT vectors of cosines and sines are computed, then used for every head.
// Precision: angles as integers (turns.h), so they are exact for every position; cosines and sines in `real`.
// Bytes: each element once in, once out.
#include "rows.h"
#include "indices.h"
#include "turns.h"

// The pair of a row that lane k of the vector at element i belongs to
#define PAIR(i, k) (INTERLEAVED ? ((i) + (k)) / 2 : (i) + (k))
#define PAIRS (INTERLEAVED ? n / 2 : n)

#ifdef FREQUENCY_BITS
#if FREQUENCY_BITS == 64
#define PARTS_OF_FREQUENCY(p) PARTS_OF_BITS(*(p))
#else
#define PARTS_OF_FREQUENCY(p) PARTS_OF_FLOAT((float)JOIN(get_, FREQUENCIES)(p))
#endif
#endif
#if POSITION_BITS == 64
#define PARTS_OF_POSITION(p) PARTS_OF_BITS(*(p))
#elif POSITION_BITS == 32
#define PARTS_OF_POSITION(p) PARTS_OF_FLOAT((float)JOIN(get_, POSITIONS)(p))
#endif

// Features that do not rotate
INLINE void copy_row(const GLOBAL STORAGE(X) *from, index_t from_step, GLOBAL STORAGE(X) *to, index_t to_step,
                     int n) {
    for (int i = lane_id() * VEC; i < n; i += THREADS * VEC) {
        const vec a = READ(X, from, from_step, i, 0);
        WRITE(X, to, to_step, i, a);
    }
}

KERNEL(rope)
(IN(X, x),
#ifdef POSITIONS
 IN(POSITIONS, positions),
#endif
#ifdef TABLES
 IN(TABLES, cosines), IN(TABLES, sines), index_t table_rows, index_t cosine_row_step, index_t sine_row_step,
#elif defined(FREQUENCIES)
 IN(FREQUENCIES, frequencies),
#else
 const GLOBAL ulong *restrict frequencies,
#endif
 OUT(X, y), ROW_SHAPE, int heads, index_t x_head, index_t y_head, int unchanged, real factor) {
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
#ifdef TABLES
        const GLOBAL STORAGE(TABLES) *cosine_row = ROW(cosines, row), *sine_row = ROW(sines, row);
        bool found = true;
#ifdef POSITIONS
        const index_t position = (index_t)*ROW(positions, row);
        found = is_within(position, table_rows);
        cosine_row += (found ? position : 0) * cosine_row_step;
        sine_row += (found ? position : 0) * sine_row_step;
#endif
#elif defined(POSITION_BITS)
        const Parts position = PARTS_OF_POSITION(ROW(positions, row));
#else
        const ulong position = (ulong)*ROW(positions, row);
#endif
        for (int first = 0; first < n; first += KEPT * THREADS * VEC) {
            KEPT_ARRAY(cosine);
            KEPT_ARRAY(sine);
            for (int j = 0; j < KEPT; ++j) {
                const int i = first + ELEMENT(j);
                if (i >= n) break;
                real sign[VEC], valid[VEC];
                for (int k = 0; k < VEC; ++k) sign[k] = INTERLEAVED && k % 2 == 0 ? -1 : 1;
#ifdef TABLES
                real c[VEC], s[VEC];
                for (int k = 0; k < VEC; ++k) {
                    const int pair = PAIR(i, k) < PAIRS ? PAIR(i, k) : 0;
                    c[k] = found ? JOIN(get_, TABLES)(cosine_row + pair * cosines_step) : NOT_A_NUMBER;
                    s[k] = found ? JOIN(get_, TABLES)(sine_row + pair * sines_step) : NOT_A_NUMBER;
                }
                cosine[j] = from_memory(c);
                sine[j] = from_memory(s);
#else
                ulong angles[VEC];
                for (int k = 0; k < VEC; ++k) {
                    const int pair = PAIR(i, k) < PAIRS ? PAIR(i, k) : 0;
                    bool finite = true;
#ifdef FREQUENCIES
                    const Parts f = PARTS_OF_FREQUENCY(frequencies + frequencies_start + pair * frequencies_step);
                    const ulong frequency = turns_of_radians(f);
                    finite = f.finite;
#else
                    const ulong frequency = frequencies[pair];
#endif
#ifdef POSITION_BITS
                    angles[k] = turns_times(frequency, position);
                    finite = finite && position.finite;
#else
                    angles[k] = position * frequency;
#endif
                    valid[k] = finite ? 1 : NOT_A_NUMBER;
                }
                const Directions d = directions_of(angles);
                cosine[j] = d.cosines * from_memory(valid);
                sine[j] = d.sines * from_memory(valid);
#endif
                cosine[j] *= factor;
                sine[j] = sine[j] * factor * from_memory(sign);
            }
            for (int h = 0; h < heads; ++h) {
                const GLOBAL STORAGE(X) *from = ROW(x, row) + h * x_head;
                GLOBAL STORAGE(X) *to = ROW(y, row) + h * y_head;
                for (int j = 0; j < KEPT; ++j) {
                    const int i = first + ELEMENT(j);
                    if (i >= n) break;
                    const vec a = READ(X, from, x_step, i, 0);
#if INTERLEAVED
                    WRITE(X, to, y_step, i, a * cosine[j] + with_neighbours_swapped(a) * sine[j]);
#else
                    const vec b = READ(X, from + n * x_step, x_step, i, 0);
                    WRITE(X, to, y_step, i, a * cosine[j] - b * sine[j]);
                    WRITE(X, to + n * y_step, y_step, i, b * cosine[j] + a * sine[j]);
#endif
                }
            }
        }
        const int rotated = INTERLEAVED ? n : 2 * n;
        for (int h = 0; unchanged > 0 && h < heads; ++h)
            copy_row(ROW(x, row) + h * x_head + rotated * x_step, x_step, ROW(y, row) + h * y_head + rotated * y_step,
                     y_step, unchanged);
    }
}
