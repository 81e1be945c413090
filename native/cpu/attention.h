// The interface between the binding and the kernel in attention.cpp.
#pragma once

#include <cstdint>

#include "elements.h"

namespace tensorops {

enum class MaskKind : int { none, boolean, floating };

struct Attention {
    // Axes (batch, heads, positions, features), the last contiguous; strides of the others, in bytes.
    const char *q, *k, *v;
    std::int64_t q_stride[3], k_stride[3], v_stride[3];
    char* y;  // (batch, heads, queries, value_dim), C-contiguous
    std::int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;  // none is 0
    Dtype dtype;

    MaskKind mask_kind;
    const char* mask;
    std::int64_t mask_stride[4];  // in bytes; 0 along axes that are broadcast
    Dtype mask_dtype;             // of a floating mask

    const char* sinks;  // one for each head, or nullptr
    std::int64_t sinks_stride;
    Dtype sinks_dtype;

    double scale;
    double softcap;       // 0: none
    std::int64_t window;  // 0: none
    bool is_causal;

    // The kernel's work, in bytes moved or operations that take as long: see threads_for.
    std::int64_t work;
};

}  // namespace tensorops
