#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// Twice the numbers of four bits, which are E2M1
inline constexpr std::int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct mxfp4 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 17, kGroup = 32, kMax = 24, kOffset = 12;
    static constexpr bool kHasTable = true;
    static constexpr const std::int8_t* kTable = kE2M1;

    static constexpr Field low(int eight) { return {1 + nibbles_of_32(eight).offset, nibbles_of_32(eight).shift}; }
    // Powers of two, half of what E8M0 says. The smallest two are subnormal.
    static Factors<8> scales(const std::uint8_t* p) {
        float powers[8];
        for (int b = 0; b < 8; ++b) {
            const std::uint32_t e = p[b * kBytes], bits = e > 1 ? (e - 1) << 23 : 0x200000u << e;
            std::memcpy(powers + b, &bits, sizeof bits);
        }
        return from_memory(powers);
    }

    static constexpr bool kIsInterleaved = true;
    template <int, class Blocks>
    static Vec<float> scale_of(const Blocks& blocks, int v) {
        const U32 e = blocks.first_byte(v), subnormal = (U32{} + 0x200000u) << e, normal = (e - 1) << 23;
        const U32 bits = e > 1 ? normal : subnormal;
        return reinterpret_cast<Vec<float>>(bits);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
