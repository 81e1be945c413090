#pragma once

#include "iq4_nl.h"

namespace tensorops::TENSOROPS_TARGET {

struct iq4_xs : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 136, kGroup = 32, kMax = 240, kOffset = 127;
    static constexpr bool kHasTable = true;
    static constexpr const std::int8_t* kTable = kIq4;

    static constexpr Field low(int eight) {
        return {8 + eight / 4 * 16 + nibbles_of_32(eight % 4).offset, nibbles_of_32(eight % 4).shift};
    }
    static Factors<8> scales(const std::uint8_t* p) {
        const std::uint64_t upper = load_bits<std::uint16_t>(p + 2), lower = load_32(p + 4);
        std::uint64_t all = 0;
        for (int g = 0; g < 8; ++g) {
            const std::uint64_t six = ((lower >> 4 * g) & 15) | ((upper >> 2 * g) & 3) << 4;
            all |= ((six - 32) & 255) << 8 * g;
        }
        return bytes_times<8>(half_at(p), all);
    }

    static constexpr bool kIsInterleaved = true;
    static constexpr int kUnit = 0;
    template <int g, class Blocks>
    static I32 units_of_scale(const Blocks& blocks, int v) {
        const U32 lower = blocks.word(4, v) >> static_cast<std::uint32_t>(4 * g) & 15;
        const U32 upper = blocks.word(0, v) >> static_cast<std::uint32_t>(16 + 2 * g) & 3;
        return reinterpret_cast<I32>(lower | upper << 4) - 32;
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
