// The vector-Jacobian products of rms_norm, add_rms_norm, layer_norm, l2_norm, group_norm and instance_norm.
#pragma once

#include "line_norm.h"

namespace tensorops {

struct NormVjp {
    Norm norm;
    Lines lines;     // of x, and of dx, unless that is nullptr
    Lines dy, dsum;  // of the same shape, their results unused; the latter is added to dx, if it has data
    Dtype dtype;
    const char* weight;  // one element for each of a line or, with groups, for each span of all of them; or nullptr
    Dtype weight_dtype;  // float64 with lines of that, any other with others
    double weight_offset;
    char *dweight, *dbias;  // a row of sums over lines, or nullptr
    Dtype dweight_dtype, dbias_dtype;
    double eps;
    std::int64_t groups;  // lines, which are rows, alternate between groups; 1 without groups
    std::int64_t span;    // how many neighbours in a row share an element of weight and bias
    bool streaming;       // lines of dx are rows, aligned to a cache line and larger than the caches
};

}  // namespace tensorops
