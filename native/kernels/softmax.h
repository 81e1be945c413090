// softmax, its logarithm, and the logarithm of the sum of exponentials, along rows.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

enum class Normalized : int { softmax, log_softmax, logsumexp };

struct Softmax {
    Normalized kind;
    Rows x;
    char* y;         // C-contiguous: of the shape of x, or one element for each row (logsumexp)
    Dtype dtype;     // of x
    Dtype y_dtype;   // the same or, if that is a half type, float32
    bool streaming;  // write past the caches; y and every row of it are aligned to 64 bytes
};

}  // namespace tensorops
