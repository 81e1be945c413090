#pragma once

#include "mxfp4.h"

namespace tensorops::TENSOROPS_TARGET {

struct nvfp4 : BlockDefaults {
    static constexpr int kElements = 64, kBytes = 36, kGroup = 16, kMax = 24, kOffset = 12;
    static constexpr bool kHasTable = true;
    static constexpr const std::int8_t* kTable = kE2M1;

    static constexpr Field low(int eight) { return {4 + eight / 2 * 8, eight % 2 * 4}; }
    // Half of what E4M3 says without the sign; a positive NaN is 0.
    static Factors<16> scales(const std::uint8_t* p) {
        float halves[16];
        for (int g = 0; g < 16; ++g) {
            const int bits = p[g / 4 * kBytes + g % 4], exponent = (bits >> 3) & 15, mantissa = bits & 7;
            const std::uint32_t normal = static_cast<std::uint32_t>((exponent + 119) << 23 | mantissa << 20);
            float value;
            std::memcpy(&value, &normal, sizeof value);
            halves[g] = bits == 127 ? 0 : exponent == 0 ? static_cast<float>(mantissa) * 0x1p-10f : value;
        }
        return from_memory(halves);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
