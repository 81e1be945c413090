// Products with blocks: which kernel computes them.
#pragma once

#include "block_linear.h"
#include "checks.h"
#include "targets.h"

namespace tensorops {

// The format of blocks by which rows of `columns` inputs are multiplied, and the bytes of their rows
inline Reason read_format(std::string_view name, std::int64_t columns, BlockLinear& op, std::int64_t& row_bytes) {
    op.format = find_format(without_ending(name));
    op.is_interleaved = is_interleaved(name);
    if (op.format == Format::none) return "format '" + std::string(name) + "' has no compiled kernel";
    if (op.is_interleaved && !target().interleaves(op.format))
        return std::string("on the target ") + target().name + ", no kernel multiplies blocks of format '" +
               std::string(name) + "'";
    row_bytes = size_of(op.format).row_bytes(columns);
    return columns % size_of(op.format).elements == 0 ? Reason{} : "the last axis of x is not whole blocks";
}

inline void multiply_blocks(const BlockLinear& op) {
    (op.is_interleaved ? target().interleaved_linear : target().block_linear)(op);
}

}  // namespace tensorops
