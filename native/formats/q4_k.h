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

// That of a group, in lanes; `first` is the word with the first four, and the upper bits of the others.
template <int g, class Blocks>
inline I32 six_bits_of(const Blocks& blocks, int v, int first, int shift_of_last) {
    U32 six;
    if (g < 4)
        six = blocks.word(first, v) >> static_cast<std::uint32_t>(8 * g) & 63;
    else
        six = (blocks.word(12, v) >> static_cast<std::uint32_t>(8 * (g - 4) + shift_of_last) & 15) |
              (blocks.word(first, v) >> static_cast<std::uint32_t>(8 * (g - 4) + 2) & 48);
    return reinterpret_cast<I32>(six);
}

#if defined(__AVX512F__)
// Both, each scale before its minimum, from the beginning of a block
inline __m128i six_bit_pairs(const std::uint8_t* p) {
    const __m128i all = load_bits<__m128i>(p);
    // Scales 0 to 3, 4 to 7, minima 0 to 3, 4 to 7: the lower bits, and the upper ones of the second and the fourth.
    const __m128i lower = _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(all, 0xed), _mm_setr_epi32(0, 0, 0, 4)),
                                        _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    const __m128i upper = _mm_srli_epi32(_mm_shuffle_epi32(all, 0xa5), 2);
    const __m128i bytes = _mm_ternarylogic_epi32(lower, upper, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030), 0xf8);
    return _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
}
#endif

struct q4_k : BlockDefaults {
    static constexpr int kElements = 256, kBytes = 144, kGroup = 32, kMax = 15;
    static constexpr bool kHasMinima = true;

    static constexpr Field low(int eight) { return {16 + eight / 8 * 32 + eight % 4 * 8, eight / 4 % 2 * 4}; }
    static Factors<8> scales(const std::uint8_t* p) { return bytes_times<8>(half_at(p), six_bit_scales(p + 4)); }
    static Factors<8> minima(const std::uint8_t* p) { return bytes_times<8>(-half_at(p + 2), six_bit_minima(p + 4)); }
#if defined(__AVX512F__)
    static Vec<float> pairs(const std::uint8_t* p) {
        const __m512 wide = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bit_pairs(p)));
        return reinterpret_cast<Vec<float>>(wide) * pair_at(load_32(p) ^ 0x80000000u);  // minima are subtracted
    }
#endif

    static constexpr bool kIsInterleaved = true;
    static constexpr int kUnit = 0, kUnitOfMinima = 2;
    template <int g, class Blocks>
    static I32 units_of_scale(const Blocks& blocks, int v) {
        return six_bits_of<g>(blocks, v, 4, 0);
    }
    template <int g, class Blocks>
    static I32 units_of_minimum(const Blocks& blocks, int v) {
        return six_bits_of<g>(blocks, v, 8, 4);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
