// The interface between the binding and the kernel in layer_norm.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

struct LayerNorm {
    Rows x;
    char* y;             // rows one after another, of the same element type as x
    const char* weight;  // one row, or nullptr
    const char* bias;    // one row, or nullptr
    Dtype x_dtype, parameter_dtype;
    double eps;
    // For rows that are groups of channels: row i has the channels of group i % groups, each of `span` elements, which
    // share one element of weight and bias. Both have as many as there are channels, and bias has its own dtype.
    std::int64_t groups;  // 0: weight and bias apply to every row, element by element
    std::int64_t span;
    Dtype bias_dtype;
    bool streaming;  // y is aligned to a cache line and larger than the caches
};

}  // namespace tensorops
