// The codes of interleaved blocks, as vectors whose lanes are outputs with four neighbours each; see formats/formats.h.
#pragma once

#include "block_digits.h"

#if defined(TENSOROPS_DOTS) || (defined(__AVX2__) && !defined(__AVX512F__))
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

    // The i-th four neighbours, of a vector of outputs; or as signed bytes, without the offset
    template <int i, bool kSigned = kSignedCodes>
    __attribute__((always_inline)) Codes codes(int v) const {
        constexpr int eight = g * (F::kGroup / 8) + i / 2, place = i % 2 * 4;
        constexpr Field kLow = F::low(eight), kHigh = F::high(eight);
        const U32 word = blocks.word(kLow.offset + place, v);
#if defined(__aarch64__)
        Codes found = bits_of<F::kLowBits, kLow.shift>(word);
        if constexpr (F::kSign != 0 && !kSigned) found ^= F::kSign;
        if constexpr (F::kHighBits != 0) {
            const Codes upper = bits_of<F::kHighBits, kHigh.shift>(blocks.word(kHigh.offset + place, v));
            found = reinterpret_cast<Codes>(
                vsliq_n_u8(reinterpret_cast<uint8x16_t>(found), reinterpret_cast<uint8x16_t>(upper), F::kLowBits));
        }
#else
        Codes found = reinterpret_cast<Codes>(word >> static_cast<std::uint32_t>(kLow.shift));
        if constexpr (F::kLowBits < 8) found &= static_cast<std::uint8_t>((1 << F::kLowBits) - 1);
        if constexpr (F::kSign != 0 && !kSigned) found ^= F::kSign;
        if constexpr (F::kHighBits != 0) {
            constexpr int kTurn = F::kLowBits - kHigh.shift;  // to the places above the lower bits
            U32 upper = blocks.word(kHigh.offset + place, v);
            if constexpr (kTurn > 0) upper = upper << static_cast<std::uint32_t>(kTurn);
            if constexpr (kTurn < 0) upper = upper >> static_cast<std::uint32_t>(-kTurn);
            found |= reinterpret_cast<Codes>(upper) & std::uint8_t{((1 << F::kHighBits) - 1) << F::kLowBits};
        }
#endif
        if constexpr (F::kHasFifthBits) found |= fifth_bits<i>(blocks.word(F::fifth_bits(0), v));
        if constexpr (F::kHasTable) return looked_up<F, kSigned ? 0 : F::kOffset>(found);
        if constexpr (kSigned && F::kSign == 0) found -= static_cast<std::uint8_t>(F::kOffset);
        return found;
    }

  private:
#if defined(__aarch64__)
    // Of each byte. Those that are shifted down from the uppermost place are alone.
    template <int kBits, int kShift>
    static Codes bits_of(U32 word) {
        const Codes bytes = reinterpret_cast<Codes>(word) >> static_cast<std::uint8_t>(kShift);
        return kBits + kShift < 8 ? bytes & static_cast<std::uint8_t>((1 << kBits) - 1) : bytes;
    }
#endif

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
#elif defined(__aarch64__)
        const uint8x16_t places =
            reinterpret_cast<uint8x16_t>(U32{0, 0x04040404, 0x08080808, 0x0c0c0c0c} + static_cast<std::uint32_t>(byte));
        const uint8x16_t own = vqtbl1q_u8(reinterpret_cast<uint8x16_t>(word), places);
        const uint8x16_t is_set = vtstq_u8(own, vreinterpretq_u8_s32(vdupq_n_s32(bits)));
        return reinterpret_cast<Codes>(vandq_u8(is_set, vdupq_n_u8(16)));
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
