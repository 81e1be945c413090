// Elementwise functions of one array, and of a gate and an array.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

enum class Function : int {
    relu,
    relu_squared,
    sigmoid,
    silu,
    softplus,
    gelu,
    gelu_tanh,
    quick_gelu,
    mish,
    hard_sigmoid,
    hard_swish,
    elu,
    selu,
    leaky_relu,
    squareplus,
    swiglu,
    geglu,
    reglu
};

struct Activation {
    Function function;
    Rows x;   // the gate of a gated unit
    Rows up;  // of the same shape; only for a gated unit
    char* y;  // C-contiguous
    Dtype dtype;
    double alpha, beta;  // parameters of the function, if it has any; the slope of leaky_relu is alpha
    bool streaming;      // write past the caches; y is aligned to 64 bytes
};

}  // namespace tensorops
