// y[i] = weight[ids[i]], along rows of features.
//
// Work: as rows.h deals out rows; each is copied. A processor fetches the next one meanwhile, which may be anywhere.
// Bytes: each element once in, once out. Pairs of half types are copied as one float32; `missing` is in place of a row
//   that there is not.
#include "rows.h"
#include "indices.h"

#define ROW_OF_WEIGHT(id) (weight + weight_start + (is_within(id, vocabulary) ? (id) : 0) * weight_along0)

KERNEL(embedding)
(IN(IDS, ids), IN(X, weight), OUT(X, y), ROW_SHAPE, index_t vocabulary, real missing) {
    for (index_t turn = 0; turn < rows_each; ++turn) {
        const index_t row = ROW_INDEX(turn);
        if (row >= rows) break;
        const index_t id = (index_t)*ROW(ids, row), next_id = (index_t)*ROW(ids, row + 1 < rows ? row + 1 : row);
        const bool found = is_within(id, vocabulary);
        const GLOBAL STORAGE(X) *from = ROW_OF_WEIGHT(id), *next = ROW_OF_WEIGHT(next_id);
        GLOBAL STORAGE(X) *to = ROW(y, row);
        for (int k = 0; k < CHUNKS; ++k) {
            const int i = ELEMENT(k);
            if (i >= n) break;
            FETCH(next + i);
            const vec a = found ? READ(X, from, weight_step, i, 0) : splat(missing);
            WRITE(X, to, y_step, i, a);
        }
    }
}
