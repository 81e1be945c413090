// What the preludes of OpenCL C, CUDA C++ and C++ have in common: names made of names, and the sizes of a launch.
//
// A program is compiled for one element type per operand (X=f32, …), one type of computation and one geometry. The
// launcher defines:
//   DOUBLE    1 to compute in float64, else 0: float32
//   VEC       elements in a vector: 16 bytes on a GPU, the widest register on a processor
//   THREADS   threads that share a row, a power of two
//   ROWS      rows of a block; a block has THREADS * ROWS threads
//   KEPT      vectors of a row that each thread keeps in registers; 0: a row is read again
//   WARP      lanes that can exchange values without memory, a power of two; 0: none
//   ROW_DIMS  axes of rows that cannot be joined, 1 to 3
//   DENSE     1 if the elements of each row are adjacent in all arrays
//   STREAM    1 if the results are larger than a processor's caches
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define BLOCK (THREADS * ROWS)
#ifndef STREAM
#define STREAM 0
#endif
#define UNROLL _Pragma("unroll")  // before a loop whose arrays are to be in registers
#if KEPT                          // before a loop over vectors that a thread keeps in registers, which have no address
#define UNROLL_KEPT UNROLL
#else
#define UNROLL_KEPT
#endif

// Storage of the element types, as operands declare them: STORAGE(X)
#define STORAGE(T) JOIN(storage_, T)

// A kernel that needs few registers: as many blocks are to run at once as keep the memory busy. Only CUDA must be told.
#define SMALL_KERNEL(name) KERNEL(name)

// All lanes of a vector into one value, in pairs: FOLD(v, ADD)
#if VEC == 2
#define FOLD(v, combine) combine(LANE(v, 0), LANE(v, 1))
#elif VEC == 4
#define FOLD(v, combine) combine(combine(LANE(v, 0), LANE(v, 1)), combine(LANE(v, 2), LANE(v, 3)))
#elif VEC == 8
#define FOLD(v, combine)                                                               \
    combine(combine(combine(LANE(v, 0), LANE(v, 1)), combine(LANE(v, 2), LANE(v, 3))), \
            combine(combine(LANE(v, 4), LANE(v, 5)), combine(LANE(v, 6), LANE(v, 7))))
#elif VEC == 16
#define FOLD(v, combine)                                                                        \
    combine(combine(combine(combine(LANE(v, 0), LANE(v, 1)), combine(LANE(v, 2), LANE(v, 3))),  \
                    combine(combine(LANE(v, 4), LANE(v, 5)), combine(LANE(v, 6), LANE(v, 7)))), \
            combine(combine(combine(LANE(v, 8), LANE(v, 9)), combine(LANE(v, a), LANE(v, b))),  \
                    combine(combine(LANE(v, c), LANE(v, d)), combine(LANE(v, e), LANE(v, f)))))
#endif
