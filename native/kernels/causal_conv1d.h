// The arguments of the kernel in causal_conv1d.cpp.
#pragma once

#include "elements.h"

namespace tensorops {

// Rows of channels, which are contiguous, for each token of each sequence
struct TokenRows {
    const char* data;
    std::int64_t of_batch, of_token;  // bytes from one to the next

    const char* row(std::int64_t batch, std::int64_t token) const { return data + batch * of_batch + token * of_token; }
};

struct CausalConv1d {
    TokenRows x;
    TokenRows state;     // of the width - 1 tokens before x; without data they are zeros
    const char* weight;  // `width` elements for each channel
    const char* bias;    // an element for each channel, or nullptr
    char* y;             // rows one after another, of the same element type as x
    char* new_state;     // the same
    std::int64_t batch, tokens, channels, width;
    Dtype x_dtype, parameter_dtype;
    bool silu;
};

}  // namespace tensorops
