// Rows: which thread computes which elements, how it reads and writes them, and sums over a row's threads.
//
// A block has ROWS rows and THREADS threads for each; the vectors of a row are dealt out to them in turn, so that
// neighbouring threads access neighbouring memory. An operand is a pointer, an offset, a step along the row, and
// strides along up to three axes of rows, all in elements.

#define IN(T, name)                                                                                          \
    const GLOBAL STORAGE(T)*restrict name, index_t name##_start, index_t name##_step, index_t name##_along0, \
        index_t name##_along1, index_t name##_along2
#define OUT(T, name)                                                                                   \
    GLOBAL STORAGE(T)*restrict name, index_t name##_start, index_t name##_step, index_t name##_along0, \
        index_t name##_along1, index_t name##_along2
// The number of rows, how many each thread computes one after another, and the lengths of the second and third axis
#define ROW_SHAPE int n, index_t rows, index_t rows_each, index_t length1, index_t length2

#if ROW_DIMS == 1
#define ROW_OFFSET(name, row) ((row) * name##_along0)
#elif ROW_DIMS == 2
#define ROW_OFFSET(name, row) ((row) / length1 * name##_along0 + (row) % length1 * name##_along1)
#else
#define ROW_OFFSET(name, row)                                                                \
    ((row) / length2 / length1 * name##_along0 + (row) / length2 % length1 * name##_along1 + \
     (row) % length2 * name##_along2)
#endif
#define ROW(name, row) (name + name##_start + ROW_OFFSET(name, row))

#define lane_id() (ROWS == 1 ? thread_id() : thread_id() % THREADS)
#define row_of_block() (ROWS == 1 ? 0 : thread_id() / THREADS)
// The row that a thread computes in its turn. Beyond the last row there is nothing to write, but every thread of a
// block comes along, because of the barriers.
#define ROW_INDEX(turn) ((block_id() * rows_each + (turn)) * ROWS + row_of_block())

// The vectors of a row that each thread computes; vector k begins with element ELEMENT(k), which may be beyond the row.
#define CHUNKS (KEPT ? KEPT : (n + THREADS * VEC - 1) / (THREADS * VEC))
#define ELEMENT(k) (((k) * THREADS + lane_id()) * VEC)
#define IN_ROW(i) (THREADS == 1 || (i) < n)
#define KEPT_ARRAY(name) vec name[KEPT ? KEPT : 1]

// A loop over whole vectors, on a processor two at a time: its own instructions take as long as those for a vector.
#if THREADS == 1
#define IN_STEPS(i, first, stop)                                                                  \
    UNROLL for (int AT_ONCE = 2; AT_ONCE > 0;                                                     \
                --AT_ONCE) for (int i = AT_ONCE == 2 ? (first) : (stop) - ((stop) - (first)) % 2; \
                                i + AT_ONCE <= (stop); i += AT_ONCE)
#define EACH_WHOLE(k, first, stop) IN_STEPS(step_, first, stop) UNROLL for (int k = step_; k < step_ + AT_ONCE; ++k)
#else
#define EACH_WHOLE(k, first, stop) for (int k = first; k < (stop); ++k)
#endif

// A loop over these vectors, for (k = 0; k < CHUNKS; ++k). On a processor its body is compiled for pairs of whole
// vectors, and for the last ones, which may reach beyond the row, so that nothing is called in the loop over many. READ
// and WRITE test where they are only if PART, which any other loop leaves at 1. ALIGNED says that all vectors are
// whole.
enum { PART = !ALIGNED };
#if THREADS == 1
#define PAIRED (DENSE ? n / (2 * VEC) * 2 : 0)
#define PAIRS_OR_PARTS(i) for (int i = PART ? PAIRED : 0, end = PART ? CHUNKS : PAIRED; i < end; i += PART ? 1 : 2)
#define EACH_VECTOR(k)                                                \
    UNROLL for (int PART = 0; PART < 2; ++PART) PAIRS_OR_PARTS(first) \
        UNROLL for (int k = first; k < first + (PART ? 1 : 2); ++k)
#elif KEPT
#define EACH_VECTOR(k) UNROLL for (int k = 0; k < KEPT; ++k)
#else
#define EACH_VECTOR(k) _Pragma("unroll 4") for (int k = 0; k < CHUNKS; ++k)
#endif
// The same for code that few rows need, which is to take little room
#define EACH_RARE_VECTOR(k) _Pragma("unroll 1") for (int k = 0; k < CHUNKS; ++k)

// Elements i to i + VEC of a row; beyond its end `fill`, and nothing is written there. If vectors may reach beyond it,
// neighbouring threads of a GPU read and write single elements: two ways for each vector would take the registers that
// keep the row.
#define IS_WHOLE(i) (ALIGNED ? IN_ROW(i) : !PART || (THREADS == 1 && DENSE && (i) + VEC <= n))
#define READ(T, p, step, i, fill)            \
    (IS_WHOLE(i) ? JOIN(load_, T)((p) + (i)) \
     : ALIGNED   ? splat(fill)               \
                 : JOIN(load_part_, T)((p) + (index_t)(i) * STEP(step), STEP(step), n - (i), fill))
#define WRITE(T, p, step, i, x)                                                            \
    do {                                                                                   \
        if (IS_WHOLE(i))                                                                   \
            JOIN(store_, T)((p) + (i), x);                                                 \
        else if (!ALIGNED)                                                                 \
            JOIN(store_part_, T)((p) + (index_t)(i) * STEP(step), STEP(step), n - (i), x); \
    } while (0)
#define STEP(step) (DENSE ? 1 : (step))

#define DEFINE_PARTS(T)                                                                       \
    RARE vec load_part_##T(const GLOBAL storage_##T* p, index_t step, int count, real fill) { \
        real a[VEC];                                                                          \
        for (int k = 0; k < VEC; ++k) a[k] = k < count ? get_##T(p + k * step) : fill;        \
        return from_memory(a);                                                                \
    }                                                                                         \
    RARE void store_part_##T(GLOBAL storage_##T* p, index_t step, int count, vec x) {         \
        real a[VEC];                                                                          \
        to_memory(x, a);                                                                      \
        for (int k = 0; k < VEC; ++k)                                                         \
            if (k < count) put_##T(p + k * step, a[k]);                                       \
    }
DEFINE_PARTS(f32)
#if DOUBLE
DEFINE_PARTS(f64)
#endif
DEFINE_PARTS(f16)
DEFINE_PARTS(bf16)

// A vector of a row with 0 for what is beyond its end
INLINE vec first_lanes(vec x, int count) {
    real a[VEC];
    to_memory(x, a);
    for (int k = 0; k < VEC; ++k)
        if (k >= count) a[k] = 0;
    return from_memory(a);
}
#define WITHIN_ROW(i, x) (IS_WHOLE(i) ? (x) : ALIGNED ? splat(0) : first_lanes(x, n - (i)))

// One value of each thread, combined over the threads of a row, in an order that depends on nothing but the geometry.
// Every thread gets the result. `scratch` has an element for each thread of the block.
#define ADD(a, b) ((a) + (b))
#define MAX(a, b) fmax(a, b)
#define NAN_MAX(a, b) ((a) >= (b) || (a) != (a) ? (a) : (b))
#define LARGER(a, b) ((a) < (b) ? (b) : (a))  // ignoring a b that is NaN
DEFINE_FOLD(ADD)
DEFINE_FOLD(MAX)
DEFINE_FOLD(NAN_MAX)
DEFINE_FOLD(LARGER)
#if WARP
#define DEFINE_ROW_REDUCTION(name, combine)                                  \
    INLINE real name(real x, LOCAL real* scratch) {                          \
        for (int d = (THREADS < WARP ? THREADS : WARP) / 2; d > 0; d /= 2) { \
            const real other = shuffle_xor(x, d);                            \
            x = combine(x, other);                                           \
        }                                                                    \
        if (THREADS <= WARP) return x;                                       \
        LOCAL real* mine = scratch + row_of_block() * (THREADS / WARP);      \
        BARRIER();                                                           \
        if (lane_id() % WARP == 0) mine[lane_id() / WARP] = x;               \
        BARRIER();                                                           \
        x = mine[0];                                                         \
        for (int k = 1; k < THREADS / WARP; ++k) x = combine(x, mine[k]);    \
        return x;                                                            \
    }
#else
#define DEFINE_ROW_REDUCTION(name, combine)                                                     \
    INLINE real name(real x, LOCAL real* scratch) {                                             \
        if (THREADS == 1) return x;                                                             \
        LOCAL real* mine = scratch + row_of_block() * THREADS;                                  \
        BARRIER();                                                                              \
        mine[lane_id()] = x;                                                                    \
        BARRIER();                                                                              \
        for (int d = THREADS / 2; d > 0; d /= 2) {                                              \
            if (lane_id() < d) mine[lane_id()] = combine(mine[lane_id()], mine[lane_id() + d]); \
            BARRIER();                                                                          \
        }                                                                                       \
        return mine[0];                                                                         \
    }
#endif
DEFINE_ROW_REDUCTION(row_sum, ADD)
DEFINE_ROW_REDUCTION(row_max, NAN_MAX)

// Whether x holds for any row of the block: what decides about barriers must be the same for all its threads. `x` is
// the same for all threads of a row.
INLINE bool any_row(bool x, LOCAL real* scratch) {
    if (ROWS == 1) return x;
    return block_any(x, scratch);
}
