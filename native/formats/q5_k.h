#pragma once

#include "q4_k.h"

namespace tensorops::TENSOROPS_TARGET {

// As q4_k, with the fifth bits of codes before the others
struct q5_k : q4_k {
    static constexpr int kBytes = 176, kMax = 31, kHighBits = 1;

    static constexpr Field low(int eight) { return {32 + q4_k::low(eight).offset, q4_k::low(eight).shift}; }
    static constexpr Field high(int eight) { return {16 + eight % 4 * 8, eight / 4}; }
};

}  // namespace tensorops::TENSOROPS_TARGET
