// The arguments of the kernel in rms_norm.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

struct RmsNorm {
    Rows x;
    Rows residual;       // of the same shape, if there is a sum
    char* sum;           // rows one after another: x + residual, which is then normalized; or nullptr
    char* y;             // rows one after another, of the same element type as x
    const char* weight;  // one row, or nullptr
    Dtype x_dtype, weight_dtype;
    double eps, weight_offset;
    bool
        by_length;  // divide by the rows' lengths instead, sqrt(sum(x²)), or by eps if that is larger; no weight or sum
    bool streaming;  // y is aligned to a cache line and larger than the caches
};

}  // namespace tensorops
