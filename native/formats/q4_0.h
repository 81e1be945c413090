#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

struct q4_0 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 18, kGroup = 32, kMax = 15, kOffset = 8;

    static constexpr Field low(int eight) { return {2 + nibbles_of_32(eight).offset, nibbles_of_32(eight).shift}; }
    static Factors<8> scales(const std::uint8_t* p) { return halves_at<kBytes>(p); }

    static constexpr bool kIsInterleaved = true;
};

}  // namespace tensorops::TENSOROPS_TARGET
