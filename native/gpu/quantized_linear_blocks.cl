// y = x · Wᵀ with W in blocks of a format, as files store them; see blocks.h, products.h and tiles.h.
//
// Work: for a few rows of x, chunks of a row of blocks are dealt out in turn to the threads of a team, so that neighbours
//   read neighbouring bytes. For many rows, a thread decodes eight columns of a tile in local memory.
// Precision: weights as the formats define them, rounded once; products and sums in the type of computation.
// Bytes: up to eight rows of x take the time in which the blocks are read once, each byte of codes by one thread; every
//   tile of 64 rows of x reads them once.
#include "rows.h"
#include "blocks.h"

#define PRODUCTS quantized_linear_blocks
#define HAS_REST (!WHOLE)
#define MATRIX BLOCKS
#define FINISH(sum, output) sum
#define BLOCK_CHUNKS (1024 / CHUNK)
#define SOME_GROUPS(begin, end)
#define READ_CHUNK(chunk, o, k) chunk = chunk_of(BLOCK_OF(output + o, (k) / PER_BLOCK), (k) % PER_BLOCK)
// A processor prefetches only within a page, and rows are short: this asks for those of the next tile.
#define FETCH_ROW(row, k) \
    if (THREADS == 1) EACH_OUTPUT FETCH(BLOCKS_OF(row + o) + (index_t)(k) * BYTES / PER_BLOCK)
#define WEIGHTS(chunk, p) weights_in(&(chunk), p)
#define X_PART(x, k, p) JOIN(load_, X)((x) + (k) / PER_BLOCK * ELEMENTS + COLUMN_OF((k) % PER_BLOCK, p))
#define WEIGHT_AT(row, i) weight_in(BLOCKS_OF(row), i)
#define EIGHT_AT(row, i, w) eight_weights(BLOCKS_OF(row), i, w)
#if X_ROWS == 1
#undef RESIDENT
#define RESIDENT , 384 / BLOCK  // else few would run at once, with all that they read in registers
#endif
#if TILED
#include "tiles.h"
#else
#include "products.h"
#endif
