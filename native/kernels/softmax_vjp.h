// The arguments of the kernel in softmax_vjp.cpp.
#pragma once

#include "softmax.h"

namespace tensorops {

struct SoftmaxVjp {
    Normalized kind;
    Lines lines;  // of y, or for logsumexp of x, and of the result
    Lines dy;     // x is dy, of which logsumexp has one element for each line; the same lines, and no result
    Dtype dtype;
    bool streaming;  // write past the caches; the result is C-contiguous, and every line of it aligned to 64 bytes
};

}  // namespace tensorops
