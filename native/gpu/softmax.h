// What the kernels of softmax along rows and across them have in common.
//
// KIND is one of
#define SOFTMAX 0
#define LOG_SOFTMAX 1
#define LOGSUMEXP 2
// WHERE is 0, or says that an operand has a byte for each element, adjacent in a row or apart, or one for each row.
#define ADJACENT 1
#define APART 2
#define SAME 3
#define LOWEST (-REAL_INFINITY)

// Which of up to VEC bytes are not 0
INLINE mask counted(const GLOBAL uchar* p, index_t step, int count) {
    real a[VEC];
    for (int k = 0; k < VEC; ++k) a[k] = k < count && p[k * step] != 0;
    return from_memory(a) != splat(0);
}

// A difference from the maximum is above 0 only if that is infinite. softmax and log_softmax are NaN then, whatever the
// sum is; logsumexp is infinite, so its sum must not become NaN.
#if KIND == LOGSUMEXP
#define EXPONENTIALS(a, shift) exp_in_units(at_most((a) - (shift), 0))
#else
#define EXPONENTIALS(a, shift) exp_in_units((a) - (shift))
#endif
