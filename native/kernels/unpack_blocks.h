// The arguments of the kernel in unpack_blocks.cpp.
#pragma once

#include "formats.h"

namespace tensorops {

// Rows of blocks as float32
struct UnpackBlocks {
    const char* blocks;
    std::int64_t stride, rows, length;  // of a row, in weights
    Format format;
    float* to;
    bool is_interleaved;
    std::int64_t first;  // row to unpack
};

}  // namespace tensorops
