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

// All lanes of a vector into one value, in halves: FOLD(v, ADD), after DEFINE_FOLD(ADD). A macro like ADD must combine
// two reals, and in OpenCL C two vectors as well.
#define FOLD(v, combine) JOIN(JOIN(fold_, VEC), JOIN(_, combine))(v)
