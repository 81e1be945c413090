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
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define BLOCK (THREADS * ROWS)

// Storage of the element types, as operands declare them: STORAGE(X)
#define STORAGE(T) JOIN(storage_, T)
