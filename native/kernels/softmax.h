// softmax, its logarithm, and the logarithm of the sum of exponentials, along lines.
#pragma once

#include "elements.h"
#include "lines.h"

namespace tensorops {

enum class Normalized : int { softmax, log_softmax, logsumexp };

struct Softmax {
    Normalized kind;
    Lines lines;     // of logsumexp, a result has one element for each line
    Dtype dtype;     // of x
    Dtype y_dtype;   // the same or, if that is a half type, float32
    bool streaming;  // write past the caches; y is C-contiguous, and every line of it aligned to 64 bytes
};

}  // namespace tensorops
