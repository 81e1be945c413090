// The derivatives of activation.cpp's functions: products of cotangents with them.
#pragma once

#include "activation.h"

namespace tensorops {

struct ActivationVjp {
    Function function;
    Rows x;       // the gate of a gated unit
    Rows up, dy;  // of the same shape; `up` only of a gated unit
    char* dx;     // C-contiguous, of the same dtype
    char* dup;    // the same; only of a gated unit
    Dtype dtype;
    double alpha, beta;  // as in Activation
    bool streaming;      // write past the caches; results are aligned to 64 bytes
};

}  // namespace tensorops
