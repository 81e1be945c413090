#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

struct q8_0 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 34, kGroup = 32, kMax = 255, kOffset = 128, kLowBits = 8;
    static constexpr std::uint8_t kSign = 128;

    static constexpr Field low(int eight) { return {2 + 8 * eight, 0}; }
    static Factors<8> scales(const std::uint8_t* p) { return halves_at<kBytes>(p); }

    static constexpr bool kIsInterleaved = true;
};

}  // namespace tensorops::TENSOROPS_TARGET
