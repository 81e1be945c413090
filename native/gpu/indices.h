// Indices that arrays in device memory hold. They may be any numbers: nothing is read through one before it was asked
// whether it is within; what it names is NaN otherwise.
#define NOT_A_NUMBER ((real)0 / (real)0)
INLINE bool is_within(index_t i, index_t length) { return i >= 0 && i < length; }

#define MIN(a, b) ((b) < (a) ? (b) : (a))
DEFINE_FOLD(MIN)
#define INFINITE (1 / (real)0)
// The smallest of a number from 0 to `limit` of each thread of a row
INLINE int least_of_row(int mine, int limit, LOCAL real* scratch) {
    return limit - (int)row_max(limit - mine, scratch);
}
