#pragma once

#include <cstdint>

namespace tensorops::tests {

enum class VectorFunction { exp, expm1, log1p_unit, tanh, sigmoid, gelu, log };

// How float32 become halves: stored, written past the caches, or rounded in registers and then stored
enum class Narrowing { stored, streamed, as_stored };

}  // namespace tensorops::tests
