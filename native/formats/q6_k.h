#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

struct q6_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 210, kGroup = 16, kMax = 63, kOffset = 32, kHighBits = 2;

    static constexpr Field low(int eight) { return {eight / 16 * 64 + eight % 8 * 8, eight % 16 / 8 * 4}; }
    static constexpr Field high(int eight) { return {128 + eight / 16 * 32 + eight % 4 * 8, eight % 16 / 4 * 2}; }
    static Factors<16> scales(const std::uint8_t* p) {
        return bytes_times<16>(half_at(p + 208), load_64(p + 192), load_64(p + 200));
    }

    static constexpr bool kIsInterleaved = true;
    static constexpr int kUnit = 208;
    template <int g, class Blocks>
    static I32 units_of_scale(const Blocks& blocks, int v) {
        return blocks.signed_byte(192 + g, v);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
