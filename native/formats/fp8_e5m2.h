#pragma once

#include "fp8_e4m3.h"

namespace tensorops::TENSOROPS_TARGET {

// The upper bytes of float16
struct fp8_e5m2 : Fp8<fp8_e5m2> {
    static constexpr float kUnit = 1;

    static U16 halves(U16 bits) { return bits << 8; }
};

}  // namespace tensorops::TENSOROPS_TARGET
