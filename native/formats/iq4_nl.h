#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// Values, to which kOffset is added
inline constexpr std::int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct iq4_nl : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 18, kGroup = 32, kMax = 240, kOffset = 127;
    static constexpr bool kHasTable = true;
    static constexpr const std::int8_t* kTable = kIq4;

    static constexpr Field low(int eight) { return {2 + nibbles_of_32(eight).offset, nibbles_of_32(eight).shift}; }
    static Factors<8> scales(const std::uint8_t* p) { return halves_at<kBytes>(p); }

    static constexpr bool kIsInterleaved = true;
};

}  // namespace tensorops::TENSOROPS_TARGET
