// The arguments of the kernels in rms_norm.cpp, which has rms_norm and l2_norm, and in layer_norm.cpp.
#pragma once

#include "elements.h"
#include "lines.h"

namespace tensorops {

// What the elements of a line are divided by: the root of their mean square, or the deviation from their mean, which is
// subtracted first, both with eps below the root; or their Euclidean length, but at least by eps.
enum class Norm : int { root_mean_square, deviation, length };

struct LineNorm {
    Norm norm;
    Lines lines;         // of x, and of y, which has its element type
    Lines sums;          // of a residual, and of x + residual, which is then normalized; without a sum, if y is nullptr
    const char* weight;  // an element for each of a line, one after another, or nullptr
    const char* bias;    // the same; for deviations only
    Dtype x_dtype, parameter_dtype;
    double eps, weight_offset;
    bool streaming;  // lines of y are rows, aligned to a cache line and larger than the caches
};

}  // namespace tensorops
