// The interface between the binding and the kernel in cross_entropy.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

enum class Reduction : int { mean, sum, none };

struct CrossEntropy {
    Rows logits;
    const std::int64_t* targets;  // one for each row: within the row, or negative to ignore the row
    double label_smoothing;
    double* losses;  // room for one per row
    Reduction reduction;
    char* y;  // the losses, or one number, in the dtype of the logits
    Dtype dtype;
};

}  // namespace tensorops
