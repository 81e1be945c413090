// The arguments of the kernels in quantize.cpp.
#pragma once

#include "elements.h"

namespace tensorops {

// Matrices whose rows consist of whole groups; strides are from one row to the next, in bytes.
struct Quantize {
    const char* w;
    std::int64_t w_stride, rows, columns, group_size;
    int bits;
    char *weight, *scales, *biases;  // C-contiguous; without biases the integers are int8, else unsigned
    Dtype dtype;                     // of w, scales and biases
};

// Rows of numbers in float32, finite and within the range of scales, that become blocks of q8_0
struct QuantizeBlocks {
    const char* w;
    std::int64_t w_stride, rows, columns;
    char* blocks;  // C-contiguous
};

struct Dequantize {
    const char *weight, *scales, *biases;  // without biases the integers are int8, else unsigned
    std::int64_t weight_stride, scale_stride, bias_stride, rows, columns, group_size;
    int bits;
    char* w;         // C-contiguous
    Dtype dtype;     // of w, scales and biases
    bool streaming;  // write past the caches; w is aligned to 64 bytes, and group_size is a multiple of 16
};

}  // namespace tensorops
