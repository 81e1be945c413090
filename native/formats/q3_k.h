#pragma once

#include "q2_k.h"

namespace tensorops::TENSOROPS_TARGET {

struct q3_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 110, kGroup = 16, kMax = 7, kOffset = 4, kLowBits = 2, kHighBits = 1;

    static constexpr Field low(int eight) { return {32 + two_bits(eight).offset, two_bits(eight).shift}; }
    static constexpr Field high(int eight) { return {eight % 4 * 8, eight / 4}; }
    static Factors<16> scales(const std::uint8_t* p) {
        constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f, kOffsets = 0x2020202020202020;
        const std::uint32_t upper = load_32(p + 104);
        const auto pair = [upper](int shift) { return ((upper >> shift) & 0x03030303u) << 4; };
        // A byte less 32, in six bits: what is borrowed becomes the sign.
        const auto less_32 = [](std::uint64_t six) {
            const std::uint64_t flipped = six ^ kOffsets, sign = flipped & kOffsets;
            return flipped | sign << 1 | sign << 2;
        };
        const std::uint64_t low = load_64(p + 96);
        return bytes_times<16>(half_at(p + 108), less_32((low & kNibbles) | in_order(pair(0), pair(2))),
                               less_32(((low >> 4) & kNibbles) | in_order(pair(4), pair(6))));
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
