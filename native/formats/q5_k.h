#pragma once

#include "q4_k.h"

namespace tensorops::TENSOROPS_TARGET {

struct q5_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 176, kGroup = 32, kMax = 31, kHighBits = 1;
    static constexpr bool kHasMinima = true;

    static constexpr Field low(int eight) { return {32 + q4_k::low(eight).offset, q4_k::low(eight).shift}; }
    static constexpr Field high(int eight) { return {16 + eight % 4 * 8, eight / 4}; }
    static Factors<8> scales(const std::uint8_t* p) { return q4_k::scales(p); }
    static Factors<8> minima(const std::uint8_t* p) { return q4_k::minima(p); }
#if defined(__AVX512F__)
    static Vec<float> pairs(const std::uint8_t* p) { return q4_k::pairs(p); }
#endif

    static constexpr bool kIsInterleaved = true;
    template <int g, class Blocks>
    static Vec<float> scale_of(const Blocks& blocks, int v) {
        return q4_k::scale_of<g>(blocks, v);
    }
    template <int g, class Blocks>
    static Vec<float> minimum_of(const Blocks& blocks, int v) {
        return q4_k::minimum_of<g>(blocks, v);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
