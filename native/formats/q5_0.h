#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

struct q5_0 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 22, kGroup = 32, kMax = 31, kOffset = 16;
    static constexpr bool kHasFifthBits = true;

    static constexpr Field low(int eight) { return {6 + nibbles_of_32(eight).offset, nibbles_of_32(eight).shift}; }
    static constexpr int fifth_bits(int eight) { return 2 + eight; }
    static Factors<8> scales(const std::uint8_t* p) { return halves_at<kBytes>(p); }

    static constexpr bool kIsInterleaved = true;
};

}  // namespace tensorops::TENSOROPS_TARGET
