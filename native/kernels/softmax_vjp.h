// The arguments of the kernel in softmax_vjp.cpp.
#pragma once

#include "softmax.h"

namespace tensorops {

struct SoftmaxVjp {
    Normalized kind;
    Rows y, dy;         // of logsumexp, y is x, and there is no dy
    const char* dsums;  // of logsumexp: dy, one element for each row
    char* dx;           // C-contiguous
    Dtype dtype;
    bool streaming;
};

}  // namespace tensorops
