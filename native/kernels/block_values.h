// Rows of blocks as float32.
#pragma once

#include "formats.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// The weights of a row, rounded as the format's definition says.
void unpack_row(Format format, const char* blocks, std::int64_t length, float* to);

// Some of those of row `index` of a matrix, from a whole block on; `stride` is from row to row, in bytes.
void unpack_some(Format format, bool is_interleaved, const char* blocks, std::int64_t stride, std::int64_t index,
                 std::int64_t begin, std::int64_t length, float* to);

}  // namespace tensorops::TENSOROPS_TARGET
