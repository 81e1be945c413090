// Rows of blocks as float32.
#pragma once

#include "formats.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// The weights of a row, rounded as the format's definition says.
void unpack_row(Format format, const char* blocks, std::int64_t length, float* to);

}  // namespace tensorops::TENSOROPS_TARGET
