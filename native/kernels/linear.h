// The arguments of the kernels in linear.cpp and quantized_linear.cpp.
#pragma once

#include <optional>

#include "activation.h"
#include "elements.h"
#include "rows.h"

namespace tensorops {

// The functions f by their names, with their types in functions.h.
#define TENSOROPS_FUNCTIONS_OF_LINEAR(one) \
    one(relu, Relu) one(sigmoid, Sigmoid) one(silu, Silu) one(gelu, Gelu) one(gelu_tanh, GeluTanh)

// y = f(x · Wᵀ + bias)
struct Linear {
    Rows x;
    const char* weight;          // rows of contiguous elements, one for each output
    std::int64_t weight_stride;  // from one row to the next, in bytes
    std::int64_t outputs;
    const char* bias;  // one element for each output, or nullptr
    char* y;           // rows one after another, of the same element type as x
    Dtype x_dtype, weight_dtype, bias_dtype;
    std::int64_t few_rows = 0;  // what LinearChoice calls so, or 0: as it says
    bool is_packed = false;     // whether `weight` has columns instead, of a block of outputs after the other
    std::optional<Function> function = {};  // f, one of the above; without it, the sum itself
};

// What linear chooses for every call: up to how many rows of x half types are widened in registers, each time that they
// are read, instead of once for all rows; and how many outputs a block of packed weights has.
struct LinearChoice {
    std::int64_t *few_rows, *outputs;
};

// y = x · Wᵀ with W = scales · q + biases; scales and biases belong to groups of neighbours in a row
struct QuantizedLinear {
    Rows x;
    const char* weight;           // rows of packed integers, weight_stride apart
    const char *scales, *biases;  // without biases the integers are int8, else unsigned
    std::int64_t weight_stride, scale_stride, bias_stride;
    std::int64_t outputs, group_size;
    int bits;
    char* y;
    Dtype x_dtype, scale_dtype;
};

}  // namespace tensorops
