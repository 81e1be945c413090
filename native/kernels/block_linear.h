// The arguments of the kernels in block_linear.cpp and interleaved_linear.cpp.
#pragma once

#include "elements.h"
#include "formats.h"
#include "grouped_linear.h"
#include "rows.h"

namespace tensorops {

// y = x · Wᵀ for weights in blocks of a format
struct BlockLinear {
    Rows x;
    const char* weight;  // rows of whole blocks
    std::int64_t weight_stride, outputs;
    Format format;
    int digits;  // of x: 1 of 8 bits, or 3, which is as accurate as float32
    char* y;
    Dtype x_dtype;
    bool is_interleaved;         // for interleaved_linear
    Groups groups;               // of rows, if there are experts: for interleaved_linear, if they are few
    std::int64_t expert_stride;  // from one expert's matrix to the next, in bytes
};

inline constexpr std::int64_t kFewOfExperts = 64, kFewOfExpert = 4;  // rows of all, and of each

}  // namespace tensorops
