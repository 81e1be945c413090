// The interface between moe_steps.cpp and the kernels in moe.cpp.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

// y = x in float32
struct WidenedRows {
    Rows x;
    Dtype dtype;
    float* y;  // rows one after another
};

// y = Σ weights · x + last_weight · last, of neighbouring rows of x
struct WeightedSums {
    const float* x;        // `terms` rows for each row of y, one after another
    const float* weights;  // one for each row of x
    std::int64_t rows, terms, length;
    const float* last;          // a row for each row of y, or nullptr
    const float* last_weights;  // one for each of them, or nullptr: 1
    char* y;                    // rows one after another
    Dtype y_dtype;
};

}  // namespace tensorops
