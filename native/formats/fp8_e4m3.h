#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// 128 numbers of 8 bits after their scale in float32. `halves` turns numbers into float16, which is kUnit less.
template <class F>
struct Fp8 : BlockDefaults {
    static constexpr int kElements = 128, kBytes = 132;
    static constexpr bool kIsFloat = true;

    static void unpack(const std::uint8_t* p, float* to) {
        const auto scale = load_bits<float>(p);
        for (int i = 0; i < kElements; i += static_cast<int>(kFloats)) {
            const U16 bits = __builtin_convertvector(load_bits<U8>(p + 4 + i), U16);
            store(to + i, widened_float16(F::halves(bits)) * F::kUnit * scale);
        }
    }
};

// Without infinities; the largest number of each sign is NaN.
struct fp8_e4m3 : Fp8<fp8_e4m3> {
    static constexpr float kUnit = 256;

    static U16 halves(U16 bits) {
        const U16 magnitude = bits & 0x7f;
        const U16 is_nan = reinterpret_cast<U16>(magnitude == 0x7f);
        return (bits & 0x80) << 8 | magnitude << 7 | (is_nan & 0x7fff);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
