// Elementwise functions of one array, and of a gate and an array.
#pragma once

#include "elements.h"
#include "rows.h"

namespace tensorops {

enum class Function : int { relu, relu_squared, sigmoid, silu, softplus, gelu, gelu_tanh, swiglu, geglu };

struct Activation {
    Function function;
    Rows x;   // the gate of a gated unit
    Rows up;  // of the same shape; only for a gated unit
    char* y;  // C-contiguous
    Dtype dtype;
    bool streaming;  // write past the caches; y is aligned to 64 bytes
};

}  // namespace tensorops
