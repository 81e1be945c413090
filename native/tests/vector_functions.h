#pragma once

#include <cstdint>

namespace tensorops::tests {

enum class VectorFunction { exp, log1p_unit, tanh, sigmoid, gelu };

}  // namespace tensorops::tests
