#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// Two bits of a code: 32 neighbours in each pair of bits of 32 bytes
constexpr Field two_bits(int eight) { return {eight / 16 * 32 + eight % 4 * 8, eight % 16 / 4 * 2}; }

struct q2_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 84, kGroup = 16, kMax = 3, kLowBits = 2;
    static constexpr bool kHasMinima = true;

    static constexpr Field low(int eight) { return {16 + two_bits(eight).offset, two_bits(eight).shift}; }
    static Factors<16> scales(const std::uint8_t* p) {
        return bytes_times<16>(half_at(p + 80), load_64(p) & kNibbles, load_64(p + 8) & kNibbles);
    }
    static Factors<16> minima(const std::uint8_t* p) {
        return bytes_times<16>(-half_at(p + 82), (load_64(p) >> 4) & kNibbles, (load_64(p + 8) >> 4) & kNibbles);
    }

    static constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;
};

}  // namespace tensorops::TENSOROPS_TARGET
