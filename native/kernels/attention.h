// The arguments of the kernel in attention.cpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elements.h"
#include "formats.h"

namespace tensorops {

enum class MaskKind : int { none, boolean, floating };

constexpr std::int64_t kUnbounded = std::int64_t{1} << 62;

struct Attention {
    // Axes (batch, heads, positions, features), the last contiguous; strides of the others, in bytes. If there are
    // pages, the first axis of k and v counts them.
    const char *q, *k, *v;
    std::int64_t q_stride[3], k_stride[3], v_stride[3];
    char* y;  // (batch, heads, queries, value_dim), C-contiguous
    std::int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;  // none is 0
    Dtype dtype;    // of q and y and, unless they are in blocks, of k and v
    Format format;  // of the blocks that each key and value is a row of, for queries of float32; or Format::none

    const std::int64_t* lengths;  // how many keys of each sequence are valid, or nullptr: all
    const std::int64_t* pages;    // those of each sequence, pages_each of them, or nullptr
    std::int64_t page_size, pages_each;

    MaskKind mask_kind;
    const char* mask;
    std::int64_t mask_stride[4];  // in bytes; 0 along axes that are broadcast
    Dtype mask_dtype;             // of a floating mask

    const char* sinks;  // one for each head, or nullptr
    std::int64_t sinks_stride;
    Dtype sinks_dtype;

    double scale;
    double softcap;            // 0: none
    std::int64_t left, right;  // how many keys before and after its own position a query attends to; kUnbounded: all

    // The kernel's work, in bytes moved or operations that take as long: see threads_for.
    std::int64_t work;
};

// The keys of a sequence to which any of its queries may attend: first to end - 1. No other is read.
struct Reach {
    std::int64_t first, end;
    std::int64_t keys() const { return end - first; }
};

inline Reach reach_of(const Attention& op, std::int64_t sequence) {
    const std::int64_t end = op.lengths ? op.lengths[sequence] : op.keys;
    return {std::max<std::int64_t>(0, end - op.queries - op.left), end};
}

// The keys to which queries may attend, in all sequences
inline double keys_of(const Attention& op) {
    if (!op.lengths) return static_cast<double>(op.batch) * static_cast<double>(reach_of(op, 0).keys());
    double keys = 0;
    for (std::int64_t b = 0; b < op.batch; ++b) keys += static_cast<double>(reach_of(op, b).keys());
    return keys;
}

// Bytes that must move, or operations that take as long: about two for each byte.
inline std::int64_t work_of(const Attention& op, double keys, std::int64_t item) {
    const double features = static_cast<double>(op.dim + op.value_dim), queries = static_cast<double>(op.queries);
    const double kv_rows = static_cast<double>(op.kv_heads) * keys;
    const double rows = static_cast<double>(op.batch * op.heads) * queries;
    const double bytes = (kv_rows + rows) * features * static_cast<double>(item);
    const double work = std::max(bytes, static_cast<double>(op.heads) * queries * keys * features);
    return static_cast<std::int64_t>(std::min(work, 1e18));
}

}  // namespace tensorops
