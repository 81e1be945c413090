// The arguments of the kernel in sample.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

struct Sample {
    Rows logits;           // at least one row and one candidate
    std::int64_t* chosen;  // an index for each row; ~index if none of it is a candidate
    const char* uniform;   // a number for each row, one after another; nullptr: take the largest
    double temperature;    // positive and finite, also in the dtype in which the kernel computes
    std::int64_t top_k;    // 0: no restriction
    double top_p;          // 1: no restriction
    double min_p;          // 0: no restriction
    Dtype dtype, uniform_dtype;
};

}  // namespace tensorops
