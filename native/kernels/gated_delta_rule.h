// The arguments of the kernel in gated_delta_rule.cpp.
#pragma once

#include "elements.h"

namespace tensorops {

// An array whose first three axes have any strides, in bytes; a fourth is contiguous.
struct Strided {
    const char* data;
    std::int64_t stride[3];

    const char* at(std::int64_t i, std::int64_t j, std::int64_t k) const {
        return data + i * stride[0] + j * stride[1] + k * stride[2];
    }
};

struct GatedDeltaRule {
    Strided q, k, v;  // rows for each sequence, head and token; q and k have `key_heads` heads
    Strided g, beta;  // an element for each of them; without data of beta, values are added to what the state has
    Strided state;    // rows of values for each sequence, head and feature of a key; without data they are zeros
    char* y;          // rows for each sequence, head and token, one after another
    char* new_state;  // like the state, one after another, in the type in which the dtype is computed
    std::int64_t begin, end;  // which of all heads of all sequences
    std::int64_t heads, key_heads, tokens, key_dim, value_dim;
    double scale;
    Dtype dtype, g_dtype, beta_dtype, state_dtype;  // of q, k and v, and of the others
};

}  // namespace tensorops
