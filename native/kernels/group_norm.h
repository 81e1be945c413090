// The arguments of the kernel in group_norm.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

// Row i holds the channels of group i % groups, each of them `span` elements.
struct GroupNorm {
    Rows x;
    char* y;             // rows one after another, of the same element type as x
    const char* weight;  // an element for each channel of all groups, or nullptr
    const char* bias;    // the same
    Dtype x_dtype, weight_dtype, bias_dtype;
    std::int64_t groups, span;
    double eps;
    bool streaming;  // y is aligned to a cache line and larger than the caches
};

}  // namespace tensorops
