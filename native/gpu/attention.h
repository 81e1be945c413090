// What the kernels of attention share: their arguments, which keys a query attends to, and where those are.
//
// Queries that share a key head are its rows: row r is query r % queries of head r / queries of the group. A block
// computes some rows of a sequence and key head against a span of their keys.
//
// The launcher defines, besides what dialect.h says:
//   DIM, VALUE_DIM     features of a key and of a value
//   MASK, MASK_BOOL    the element type of the mask; not defined without one. Whether it is boolean
//   SINKS, LENGTHS, PAGE_TABLE   their element types; not defined without them
//   SPLIT              1 if the keys are divided among several blocks, whose results attention_merge puts together
//
// Precision: float32, or float64 for such arrays. If a score is not finite, the rows are computed again in a unit that
//   keeps products of finite queries and keys finite, as tensorops/ops/attention.py does. Weights are powers of e times
//   weight_unit, at most the reciprocal of the number of keys: then no sum of weighted values exceeds the largest of
//   them.

// Launches without barriers: a processor's compiler divides kernels at each
#if BLOCK > 1
#define TOGETHER() BARRIER()
#else
#define TOGETHER()
#endif

// Loops over what is to be in registers: EACH_… of the vectors that are multiplied, and IN_REGISTERS of the others,
// which on a processor are in memory. OpenCL's compilers for GPUs unroll such loops by themselves; told to do so, that
// for Intel's processors takes three times as long.
#if THREADS == 1 || defined(__cplusplus)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif
#ifdef __cplusplus
#define IN_REGISTERS UNROLLED
#else
#define IN_REGISTERS
#endif

#ifdef MASK
#define MASK_ARGUMENTS                                                                                 \
    , const GLOBAL STORAGE(MASK) * allowed, index_t mask_start, index_t mask_batch, index_t mask_head, \
        index_t mask_query, index_t mask_key
#define SET_MASK(a)                                                                                                  \
    a.allowed = allowed + mask_start, a.mask_batch = mask_batch, a.mask_head = mask_head, a.mask_query = mask_query, \
    a.mask_key = mask_key
#else
#define MASK_ARGUMENTS
#define SET_MASK(a)
#endif
#ifdef SINKS
#define SINKS_ARGUMENTS , const GLOBAL STORAGE(SINKS) * sinks, index_t sinks_start, index_t sinks_head
#define SINK(head) JOIN(get_, SINKS)(sinks + sinks_start + (index_t)(head) * sinks_head)
#else
#define SINKS_ARGUMENTS
#define SINK(head) (-REAL_INFINITY)
#endif
#ifdef LENGTHS
#define LENGTHS_ARGUMENTS , const GLOBAL STORAGE(LENGTHS) * lengths, index_t lengths_start, index_t lengths_batch
#define LENGTH(batch) ((int)CLAMPED(lengths[lengths_start + (batch) * lengths_batch], keys))
#else
#define LENGTHS_ARGUMENTS
#define LENGTH(batch) keys
#endif
#ifdef PAGE_TABLE
#define PAGE_ARGUMENTS                                                                                        \
    , const GLOBAL STORAGE(PAGE_TABLE) * pages, index_t pages_start, index_t pages_batch, index_t pages_page, \
        index_t last_page, int page_size
#define SET_PAGES(a, batch)                                                                                    \
    a.pages = pages + pages_start + (batch) * pages_batch, a.pages_page = pages_page, a.last_page = last_page, \
    a.page_size = page_size
#else
#define PAGE_ARGUMENTS
#define SET_PAGES(a, batch)
#endif
// An integer of any type, from 0 to most. Both branches have the type of the comparison.
#define CLAMPED(x, most) ((x) < 0 ? 0 : (x) > (most) ? (most) : (x))

// Offsets and strides are in elements. left and right: how many keys before and after its own position a query attends
// to
#define ATTENTION_ARGUMENTS                                                                                     \
    const GLOBAL STORAGE(X)*restrict q, index_t q_start, index_t q_batch, index_t q_head, index_t q_query,      \
        const GLOBAL STORAGE(X)*restrict k, index_t k_start, index_t k_owner, index_t k_head, index_t k_key,    \
        const GLOBAL STORAGE(X)*restrict v, index_t v_start, index_t v_owner, index_t v_head,                   \
        index_t v_key MASK_ARGUMENTS SINKS_ARGUMENTS LENGTHS_ARGUMENTS PAGE_ARGUMENTS, int kv_heads, int group, \
        int queries, int keys, index_t left, index_t right, real scale, real softcap, real weight_unit,         \
        int row_blocks, int splits

typedef struct {
    const GLOBAL STORAGE(X) * q, *k, *v;  // of the sequence and key head; keys in pages: of the first page
    index_t q_head, q_query, k_owner, k_key, v_owner, v_key;
#ifdef MASK
    const GLOBAL STORAGE(MASK) * allowed;  // of the sequence
    index_t mask_batch, mask_head, mask_query, mask_key;
#endif
#ifdef PAGE_TABLE
    const GLOBAL STORAGE(PAGE_TABLE) * pages;  // of the sequence
    index_t pages_page, last_page;
    int page_size;
#endif
    index_t left, right;
    real scale, softcap, weight_unit;
    int queries, rows, first_head;  // rows of the key head, and its first query head
    int first, end;                 // the keys that any query of the sequence may attend to
    int row, split;                 // the first row of the block, and its span
    index_t all_row;                // that row among those of the call
} Attention;

// Keys from begin to end - 1
typedef struct {
    int begin, end;
} Span;

#define BEGIN_ATTENTION(a, block_rows)                                                \
    Attention a;                                                                      \
    {                                                                                 \
        index_t index = block_id();                                                   \
        a.split = (int)(index % splits);                                              \
        index /= splits;                                                              \
        /* Under a causal mask the last rows have the most work: they come first. */  \
        a.row = (row_blocks - 1 - (int)(index % row_blocks)) * (block_rows);          \
        index /= row_blocks;                                                          \
        const int kv_head = (int)(index % kv_heads);                                  \
        const index_t batch = index / kv_heads;                                       \
        a.queries = queries;                                                          \
        a.rows = group * queries;                                                     \
        a.first_head = kv_head * group;                                               \
        a.all_row = index * a.rows + a.row;                                           \
        a.q = q + q_start + batch * q_batch + a.first_head * q_head;                  \
        a.k = k + k_start + kv_head * k_head + (HAS_PAGES ? 0 : batch * k_owner);     \
        a.v = v + v_start + kv_head * v_head + (HAS_PAGES ? 0 : batch * v_owner);     \
        a.q_head = q_head, a.q_query = q_query, a.k_owner = k_owner, a.k_key = k_key; \
        a.v_owner = v_owner, a.v_key = v_key, a.left = left, a.right = right;         \
        a.scale = scale, a.softcap = softcap, a.weight_unit = weight_unit;            \
        SET_MASK(a);                                                                  \
        SET_MASK_OF(a, batch);                                                        \
        SET_PAGES(a, batch);                                                          \
        a.end = LENGTH(batch);                                                        \
        a.first = (int)limited(a.end - (queries + left), a.end);                      \
    }
#ifdef MASK
#define SET_MASK_OF(a, batch) a.allowed += (batch) * mask_batch
#else
#define SET_MASK_OF(a, batch)
#endif
#ifdef PAGE_TABLE
#define HAS_PAGES 1
#else
#define HAS_PAGES 0
#endif

INLINE index_t limited(index_t x, index_t most) { return x < 0 ? 0 : x > most ? most : x; }

// ---- which keys

// Those that a query attends to, as far as lengths, causality and the window say
INLINE Span span_of(const Attention* a, int query) {
    const index_t position = (index_t)query + a->end - a->queries;
    const index_t low = limited(position - a->left, a->end);
    Span s;
    s.begin = (int)(low < a->first ? a->first : low);
    s.end = (int)limited(position + a->right + 1, a->end);
    return s;
}
INLINE Span span_of_row(const Attention* a, int r) { return span_of(a, (r < a->rows ? r : a->rows - 1) % a->queries); }
// The keys that any of n rows from `row` on attends to (`any`), or all of them do
INLINE Span span_of_rows(const Attention* a, int row, int n, bool any) {
    const int last = row + n < a->rows ? row + n - 1 : a->rows - 1;
    const bool wraps = row / a->queries != last / a->queries;
    const Span low = span_of(a, wraps ? 0 : row % a->queries),
               high = span_of(a, wraps ? a->queries - 1 : last % a->queries);
    Span s;
    s.begin = any ? low.begin : high.begin;
    s.end = any ? high.end : low.end;
    return s;
}
// One of n parts of about the same length, in whole tiles; the last ones may be empty.
INLINE Span part_of(Span s, int part, int n, int tile) {
    const index_t length = s.end > s.begin ? s.end - s.begin : 0;
    const index_t each = ((length + n - 1) / n + tile - 1) / tile * tile, begin = limited(part * each, length);
    Span own;
    own.begin = (int)(s.begin + begin);
    own.end = (int)(s.begin + limited(begin + each, length));
    return own;
}

// ---- where they are

#ifdef PAGE_TABLE
#define PLACE(a, owner, position, key)           \
    const int position = (key) % (a)->page_size; \
    const index_t owner = (index_t)CLAMPED((a)->pages[(key) / (a)->page_size * (a)->pages_page], (a)->last_page)
#else
#define PLACE(a, owner, position, key) \
    const int position = key;          \
    const index_t owner = 0
#endif
INLINE const GLOBAL STORAGE(X) * key_at(const Attention* a, int key) {
    PLACE(a, owner, position, key);
    return a->k + owner * a->k_owner + position * a->k_key;
}
INLINE const GLOBAL STORAGE(X) * value_at(const Attention* a, int key) {
    PLACE(a, owner, position, key);
    return a->v + owner * a->v_owner + position * a->v_key;
}
INLINE const GLOBAL STORAGE(X) * query_at(const Attention* a, int r) {
    return a->q + r / a->queries * a->q_head + r % a->queries * a->q_query;
}

// Features i to i + VEC of n; 0 beyond
#define FEATURES(p, i, n)                                               \
    ((i) + VEC <= (n) ? JOIN(load_, X)((p) + (i))                       \
     : (i) < (n)      ? JOIN(load_part_, X)((p) + (i), 1, (n) - (i), 0) \
                      : splat(0))

// ---- scores

#ifdef MASK
INLINE const GLOBAL STORAGE(MASK) * mask_at(const Attention* a, int r) {
    r = r < a->rows ? r : a->rows - 1;
    return a->allowed + (a->first_head + r / a->queries) * a->mask_head + r % a->queries * a->mask_query;
}
#if MASK_BOOL
#define MASKED(score, allowed, unit) (*(allowed) ? (score) : -REAL_INFINITY)
#else
#define MASKED(score, allowed, unit) ((score) + JOIN(get_, MASK)(allowed) * (unit))
#endif
#endif

// What to subtract from scores before the exponential, where `largest` is -infinity without any score
#define SHIFT(largest) ((largest) == -REAL_INFINITY ? 0 : (largest))
INLINE vec shift_of(vec largest) { return select(largest, splat(0), largest == -REAL_INFINITY); }
// exp((x - shift) / unit), for differences up to 0
INLINE real weight(real x, real shift, real per_unit) { return exp((x - shift) * per_unit); }
INLINE vec weights_of(vec x, vec shift, vec per_unit) { return exp((x - shift) * per_unit); }
// The factor of sums so far, when the largest score grows
INLINE vec correction_of(vec before, vec after, vec per_unit) {
    return select(exp((before - after) * per_unit), splat(1), before == after);  // infinities would give NaN
}

// ---- scores beyond the range

#define SELDOM _Pragma("unroll 1")  // a loop that is not worth code
#define LARGEST_EXPONENT (DOUBLE ? 1020 : 124)
// The exponent by which queries are scaled down, so that no product or sum of a score leaves the range: 0 for all but
// enormous numbers. Every thread reads everything: this happens next to never.
RARE real largest_key(const Attention* a, Span span) {
    real largest = 0;
    for (int key = span.begin; key < span.end; ++key) {
        const GLOBAL STORAGE(X)* row = key_at(a, key);
        SELDOM for (int i = 0; i < DIM; ++i) largest = fmax(largest, fabs(JOIN(get_, X)(row + i)));
    }
    return largest;
}
#define EXPONENT(x) ((x) > 0 && (x) <= REAL_MAX ? ilogb(x) + 1 : 0)
RARE int excess_of(const Attention* a, int r, real key) {
    const GLOBAL STORAGE(X)* row = query_at(a, r < a -> rows ? r : a->rows - 1);
    real largest = 0;
    SELDOM for (int i = 0; i < DIM; ++i) largest = fmax(largest, fabs(JOIN(get_, X)(row + i)));
    int products = EXPONENT(key);
    for (int n = DIM; n > 0; n /= 2) ++products;
    const int excess = EXPONENT(largest) + EXPONENT(fabs(a->scale)) + (products > 0 ? products : 0) - LARGEST_EXPONENT;
    return excess > 0 ? excess : 0;
}
// The reciprocal of the unit. Beyond this power, the exponential cannot tell a difference of two scores from infinity.
INLINE real per_unit_of(int excess) { return ldexp((real)1, excess < LARGEST_EXPONENT ? excess : LARGEST_EXPONENT); }

// ---- results

#if DOUBLE
#define REAL_NAME f64
#else
#define REAL_NAME f32
#endif
#define STATES 3  // of a row and span: the largest score, the sum of weights, and the reciprocal of the unit
#if SPLIT
#define RESULT_ARGUMENTS , GLOBAL real* restrict y_of, GLOBAL real* restrict states
#define Y REAL_NAME
#else
#define RESULT_ARGUMENTS , GLOBAL STORAGE(X)* restrict y_of
#define Y X
#endif
#define STORE_FEATURES(p, i, x)                                     \
    do {                                                            \
        if ((i) + VEC <= VALUE_DIM)                                 \
            JOIN(store_, Y)((p) + (i), x);                          \
        else if ((i) < VALUE_DIM)                                   \
            JOIN(store_part_, Y)((p) + (i), 1, VALUE_DIM - (i), x); \
    } while (0)

// The factor of the sum of weighted values of a row, with the sink's part in the sum of weights
INLINE real factor_of(real largest, real sum, real sink, real per_unit, real weight_unit) {
    sink /= per_unit;
    const real top = largest < sink ? sink : largest, shift = SHIFT(top);
    const real correction = largest == top ? 1 : weight(largest, top, per_unit);
    if (sink != -REAL_INFINITY) sum = sum * correction + weight(sink, shift, per_unit) * weight_unit;
    return sum == 0 ? 1 : correction / sum;
}
