// The vector-Jacobian products of rms_norm, add_rms_norm, layer_norm, l2_norm, group_norm and instance_norm.
#pragma once

#include "line_norm.h"
#include "rows.h"

namespace tensorops {

struct NormVjp {
    Norm norm;
    Rows x, dy;  // of the same shape
    Rows dsum;   // added to dx, if it has data
    Dtype dtype;
    const char* weight;  // one element for each of a row or, with groups, for each span of all of them; or nullptr
    Dtype weight_dtype;  // float64 with rows of that, any other with others
    double weight_offset;
    char* dx;               // rows one after another, or nullptr
    char *dweight, *dbias;  // one row of sums over rows, or nullptr
    Dtype dweight_dtype, dbias_dtype;
    double eps;
    std::int64_t groups;  // the rows of x alternate between groups; 1 without groups
    std::int64_t span;    // how many neighbours share an element of weight and bias
    bool streaming;       // dx is aligned to a cache line and larger than the caches
};

}  // namespace tensorops
