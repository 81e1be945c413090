// The arguments of the kernel in cross_entropy.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

enum class Reduction : int { mean, sum, none };

struct CrossEntropy {
    Rows logits;
    const std::int64_t* targets;  // one for each row: within the row, or negative to ignore the row; or nullptr, and
    const Rows* probabilities;    // as many rows of probabilities
    const char* weight;           // one for each class, or nullptr
    double label_smoothing, z_loss;
    double* losses;  // room for one per row
    Reduction reduction;
    char* y;  // the losses, or one number, in the dtype of the logits
    // Those of probabilities and weights are the logits', or float32 with half types.
    Dtype dtype, probability_dtype, weight_dtype;
};

}  // namespace tensorops
