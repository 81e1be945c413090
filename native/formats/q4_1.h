#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

struct q4_1 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 20, kGroup = 32, kMax = 15;
    static constexpr bool kHasMinima = true;

    static constexpr Field low(int eight) { return {4 + nibbles_of_32(eight).offset, nibbles_of_32(eight).shift}; }
    static Factors<8> scales(const std::uint8_t* p) { return halves_at<kBytes>(p); }
    static Factors<8> minima(const std::uint8_t* p) { return halves_at<kBytes>(p + 2); }
#if defined(__AVX512F__)
    static Vec<float> pairs(const std::uint8_t* p) { return pairs_at<kBytes>(p); }
#endif

    static constexpr bool kIsInterleaved = true;
};

}  // namespace tensorops::TENSOROPS_TARGET
