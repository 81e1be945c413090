#pragma once

#include "blocks.h"

namespace tensorops::TENSOROPS_TARGET {

// Two of every four numbers, in float16, after their places in two bits each
struct sparse_2_4 : BlockDefaults {
    static constexpr int kElements = 32, kBytes = 36;
    static constexpr bool kIsFloat = true;

    static void unpack(const std::uint8_t* p, float* to) {
        float values[kElements / 2];
        for (int i = 0; i < kElements / 2; i += static_cast<int>(kFloats))
            store(values + i, widened_float16(load_bits<U16>(p + 4 + 2 * i)));
        std::memset(to, 0, kElements * sizeof(float));
        for (int four = 0; four < kElements / 4; ++four, to += 4) {
            const int places = p[four / 2] >> four % 2 * 4;
            to[places & 3] = values[2 * four];
            to[places >> 2 & 3] = values[2 * four + 1];
        }
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
