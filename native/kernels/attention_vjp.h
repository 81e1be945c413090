// The arguments of the kernel in attention_vjp.cpp.
#pragma once

#include "attention.h"

namespace tensorops {

struct AttentionVjp {
    Attention forward;  // without a result or pages
    const char* dy;     // (batch, heads, queries, value_dim), the last axis contiguous
    std::int64_t dy_stride[3];
    char *dq, *dk, *dv;  // C-contiguous, of the shapes of q, k and v
};

}  // namespace tensorops
