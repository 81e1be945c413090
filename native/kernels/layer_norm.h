// The arguments of the kernel in layer_norm.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

struct LayerNorm {
    Rows x;
    Rows residual;       // of the same shape and element type, if there is a `sum`
    char* sum;           // where x + residual goes, which is then normalised; rows like those of y, or nullptr
    char* y;             // rows one after another, of the same element type as x
    const char* weight;  // one row, or nullptr
    const char* bias;    // one row, or nullptr
    Dtype x_dtype, parameter_dtype;
    double eps;
    bool streaming;  // y is aligned to a cache line and larger than the caches
};

}  // namespace tensorops
