// The arguments of the kernel in rope.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

// Cosines and sines by position.
struct RopeTables {
    Rows cosines, sines;  // a row of dims / 2 for each position
    Dtype dtype;
};

struct Rope {
    char* y;     // rows one after another
    Rows batch;  // of x: where each begins, with `heads` times `length` rows of contiguous features
    std::int64_t head_stride, stride;  // of x, in bytes: from head to head, and from one position to the next
    std::int64_t heads, length, features;
    std::int64_t dims;          // the number of features that rotate
    const double* positions;    // one for each row of a head; NaN gives NaN
    bool positions_of_batch;    // every batch has its own, one batch after another
    const double* frequencies;  // dims / 2
    const RopeTables* tables;   // instead of frequencies, or null
    double factor;              // of the features that rotate
    bool interleaved;
    bool inverse;  // rotate backwards, as derivatives do
    Dtype dtype;
};

}  // namespace tensorops
