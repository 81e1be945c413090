// The arguments of the kernel in linear_cross_entropy.cpp.
#pragma once

#include "cross_entropy.h"
#include "linear.h"

namespace tensorops {

struct LinearCrossEntropy {
    Linear product;               // its results are the logits, and have no place
    const std::int64_t* targets;  // one for each row of x: below the outputs, or negative to ignore the row
    const char* ce_weight;        // one for each class, or nullptr
    Dtype ce_weight_dtype;
    double label_smoothing, z_loss;
    double* losses;  // room for one per row
    Reduction reduction;
    char* y;  // the losses, or one number, in the dtype of x
};

}  // namespace tensorops
