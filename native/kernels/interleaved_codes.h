// The codes of interleaved blocks, as vectors whose lanes are outputs with four neighbours each; see formats/formats.h.
#pragma once

#include "block_digits.h"

#if defined(__AVX512VNNI__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define TENSOROPS_INTERLEAVED
#endif

namespace tensorops::TENSOROPS_TARGET {

#if defined(TENSOROPS_INTERLEAVED)

// The scale of the g-th group of blocks, of a vector of outputs, and the minimum
template <class F, int g>
inline Vec<float> scale_of(InterleavedBlocks<F> blocks, int v) {
    if constexpr (F::kUnit < 0)
        return F::template scale_of<g>(blocks, v);
    else
        return blocks.template half<F::kUnit>(v) *
               __builtin_convertvector(F::template units_of_scale<g>(blocks, v), Vec<float>);
}
template <class F, int g>
inline Vec<float> minimum_of(InterleavedBlocks<F> blocks, int v) {
    if constexpr (F::kUnitOfMinima < 0)
        return F::template minimum_of<g>(blocks, v);
    else
        return -(blocks.template half<F::kUnitOfMinima>(v) *
                 __builtin_convertvector(F::template units_of_minimum<g>(blocks, v), Vec<float>));
}

// The codes of the g-th group of blocks
template <class F, int g>
struct Group {
    InterleavedBlocks<F> blocks;

    // The i-th four neighbours, of a vector of outputs
    template <int i>
    __attribute__((always_inline)) Codes codes(int v) const {
        constexpr int eight = g * (F::kGroup / 8) + i / 2, place = i % 2 * 4;
        constexpr Field kLow = F::low(eight);
        U32 word = blocks.word(kLow.offset + place, v);
        if constexpr (kLow.shift != 0) word = word >> static_cast<std::uint32_t>(kLow.shift);
        Codes found = reinterpret_cast<Codes>(word);
        if constexpr (F::kLowBits < 8) found &= static_cast<std::uint8_t>((1 << F::kLowBits) - 1);
        if constexpr (F::kSign != 0) found ^= F::kSign;
        if constexpr (F::kHighBits != 0) {
            constexpr Field kHigh = F::high(eight);
            constexpr int kTurn = F::kLowBits - kHigh.shift;  // to the places above the lower bits
            U32 upper = blocks.word(kHigh.offset + place, v);
            if constexpr (kTurn > 0) upper = upper << static_cast<std::uint32_t>(kTurn);
            if constexpr (kTurn < 0) upper = upper >> static_cast<std::uint32_t>(-kTurn);
            found |= reinterpret_cast<Codes>(upper) & std::uint8_t{((1 << F::kHighBits) - 1) << F::kLowBits};
        }
        if constexpr (F::kHasFifthBits) found |= fifth_bits<i>(blocks.word(F::fifth_bits(0), v));
        if constexpr (F::kHasTable) return looked_up<F>(found);
        return found;
    }

  private:
    // 16 for each weight whose bit is set, of which a byte has eight and a word of each output those of 32
    template <int i>
    static Codes fifth_bits(U32 word) {
        constexpr int byte = 0x01010101 * (i / 2);
        constexpr auto bits = static_cast<int>(0x08040201u << (i % 2 * 4));
#if defined(__AVX512F__)
        const __m512i own =
            _mm512_shuffle_epi8(reinterpret_cast<__m512i>(word),
                                _mm512_set4_epi32(byte + 0x0c0c0c0c, byte + 0x08080808, byte + 0x04040404, byte));
        return reinterpret_cast<Codes>(_mm512_maskz_set1_epi8(_mm512_test_epi8_mask(own, _mm512_set1_epi32(bits)), 16));
#else
        const __m256i own = _mm256_shuffle_epi8(
            reinterpret_cast<__m256i>(word),
            _mm256_broadcastsi128_si256(_mm_setr_epi32(byte, byte + 0x04040404, byte + 0x08080808, byte + 0x0c0c0c0c)));
        const __m256i bit = _mm256_set1_epi32(bits), is_set = _mm256_cmpeq_epi8(_mm256_and_si256(own, bit), bit);
        return reinterpret_cast<Codes>(_mm256_and_si256(is_set, _mm256_set1_epi8(16)));
#endif
    }
};

#endif

}  // namespace tensorops::TENSOROPS_TARGET
