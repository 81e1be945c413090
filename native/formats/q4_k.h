#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// The scales of q4_k and q5_k; see six_bit_scales in tensorops/formats/_bits.py.
inline std::uint64_t six_bit_scales(const std::uint8_t* p) {
    const std::uint32_t first = load_32(p), last = load_32(p + 8);
    return in_order(first & 0x3f3f3f3fu, (last & 0x0f0f0f0fu) | ((first >> 6) & 0x03030303u) << 4);
}

inline std::uint64_t six_bit_minima(const std::uint8_t* p) {
    const std::uint32_t second = load_32(p + 4), last = load_32(p + 8);
    return in_order(second & 0x3f3f3f3fu, ((last >> 4) & 0x0f0f0f0fu) | ((second >> 6) & 0x03030303u) << 4);
}

struct q4_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 144, kGroup = 32, kMax = 15;
    static constexpr bool kHasMinima = true;

    static constexpr Field low(int eight) { return {16 + eight / 8 * 32 + eight % 4 * 8, eight / 4 % 2 * 4}; }
    static Factors<8> scales(const std::uint8_t* p) { return bytes_times<8>(half_at(p), six_bit_scales(p + 4)); }
    static Factors<8> minima(const std::uint8_t* p) { return bytes_times<8>(-half_at(p + 2), six_bit_minima(p + 4)); }
};

}  // namespace tensorops::TENSOROPS_TARGET
