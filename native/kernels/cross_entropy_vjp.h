// The arguments of the kernel in cross_entropy_vjp.cpp.
#pragma once

#include "cross_entropy.h"

namespace tensorops {

struct CrossEntropyVjp {
    CrossEntropy loss;  // the weight in the type of computation; no room for losses and no results
    const char* dy;     // one element for each row or, if losses are reduced, one
    char* dx;           // C-contiguous
};

}  // namespace tensorops
