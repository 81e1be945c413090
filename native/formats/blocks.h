// What formats are written with; see formats.h.
#pragma once

#include "formats.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// Kernels read 256 weights at a time, a piece: one block or several, one after another.
inline constexpr int kPiece = 256;

// Where eight neighbours have some of their bits: in as many bytes, each shifted right by this.
struct Field {
    int offset, shift;
};

// What a format leaves out
struct BlockDefaults {
    static constexpr bool kIsFloat = false;  // has `unpack` instead of what follows
    static constexpr bool kHasMinima = false;
    static constexpr int kMax = 0;                     // the largest code
    static constexpr int kOffset = 0;                  // is subtracted from codes
    static constexpr int kLowBits = 4, kHighBits = 0;  // of a code
    static constexpr Field high(int) { return {}; }    // where the upper bits are
    static constexpr bool kHasFifthBits = false;
    static constexpr int fifth_bits(int) { return 0; }  // the byte with those of eight neighbours
    static constexpr bool kHasTable = false;            // of values, in which codes are places: kTable
    static constexpr std::uint8_t kSign = 0;            // is added to signed bytes
    static constexpr bool kIsInterleaved = false;       // its products have a kernel for interleaved blocks, too
    // Where a half is that `units_of_scale<g>(blocks, v)`, which are integers, are multiplied by; none without these.
    // Minima have one, too, and are negative.
    static constexpr int kUnit = -1, kUnitOfMinima = -1;
    // Without units, of the g-th group of these, for a vector of outputs: halves in front of codes, unless the format
    // says otherwise
    template <int g, class Blocks>
    static Vec<float> scale_of(const Blocks& blocks, int v) {
        return blocks.template half<0>(v);
    }
    template <int g, class Blocks>
    static Vec<float> minimum_of(const Blocks& blocks, int v) {
        return blocks.template half<2>(v);
    }
};

// Eight neighbours of a row of nibbles, where 32 are the low halves of 16 bytes, then their high ones
constexpr Field nibbles_of_32(int eight) { return {eight % 2 * 8, eight / 2 * 4}; }

// Interleaved blocks: vectors whose lanes are rows, numbered from the `first` one on. Words have an address of their
// own, so that their places are numbers in instructions.
template <class F>
struct InterleavedBlocks {
    const std::uint8_t *p, *words;
    std::int64_t first;

    InterleavedBlocks(const char* blocks, std::int64_t vector)
        : p(reinterpret_cast<const std::uint8_t*>(blocks)), words(p + kVectorBytes * vector), first(vector) {}
    void next() {
        p += kInterleavedRows * F::kBytes;
        words += kInterleavedRows * F::kBytes;
    }
    U32 word(int offset, int v) const { return load_bits<U32>(words + kInterleavedRows * offset + kVectorBytes * v); }
    I32 signed_byte(int offset, int v) const {
        const auto shift = static_cast<std::uint32_t>(24 - offset % 4 * 8);
        return reinterpret_cast<I32>(word(offset - offset % 4, v) << shift) >> 24;
    }
#if defined(__AVX2__) || defined(__aarch64__)
    // That in front of all words
    U32 first_byte(int v) const {
        const std::uint8_t* at = p + kVectorBytes / 4 * (first + v);
#if defined(__AVX512F__)
        return reinterpret_cast<U32>(_mm512_cvtepu8_epi32(load_bits<__m128i>(at)));
#elif defined(__AVX2__)
        return reinterpret_cast<U32>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
#else
        return __builtin_convertvector(load_bits<U8>(at), U32);
#endif
    }
    // A half that is alone, or one of the two in a word
    template <int kOffset>
    Vec<float> half(int v) const {
        constexpr int odd = F::kBytes % 4, lead = F::kElements == 32 ? odd : 0;
        constexpr bool is_alone = odd == 2 && (lead == 2 ? kOffset == 0 : kOffset == F::kBytes - 2);
        const std::uint8_t* alone = p + kInterleavedRows * kOffset + kVectorBytes / 2 * (first + v);
        if constexpr (is_alone) return widened_float16(load_bits<U16>(alone));
        const U32 words = word(kOffset - kOffset % 4, v) >> kOffset % 4 * 8 & 0xffff;
#if defined(__AVX2__) && !defined(__AVX512F__)
        const auto all = reinterpret_cast<__m256i>(words);
        const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        return widened_float16(reinterpret_cast<U16>(halves));
#else
        return widened_float16(__builtin_convertvector(words, U16));
#endif
    }
#endif
};

// One number for each group of a piece
template <int kGroups>
struct Factors {
    static constexpr int kVectors = (kGroups + static_cast<int>(kFloats) - 1) / static_cast<int>(kFloats);
    Vec<float> vector[kVectors];  // lanes without a group are 0
};

inline std::uint64_t load_64(const std::uint8_t* p) { return load_bits<std::uint64_t>(p); }
inline std::uint32_t load_32(const std::uint8_t* p) { return load_bits<std::uint32_t>(p); }
inline std::uint64_t in_order(std::uint32_t low, std::uint32_t high) {
    return low | static_cast<std::uint64_t>(high) << 32;
}

inline float half_at(const std::uint8_t* p) {
#if defined(__F16C__) || defined(__AVX512F__)
    return _cvtsh_ss(load_bits<std::uint16_t>(p));
#elif defined(__aarch64__)
    __fp16 h;
    std::memcpy(&h, p, sizeof h);
    return static_cast<float>(h);
#else
    U16 h{};
    h[0] = load_bits<std::uint16_t>(p);
    return widened_float16(h)[0];
#endif
}

// Eight halves that are kStride bytes apart. They are joined in general registers: what inserts them into a vector
// competes with products for its ports.
template <int kStride>
inline Factors<8> halves_at(const std::uint8_t* p) {
    const auto four = [](const std::uint8_t* from) {
        std::uint64_t joined = 0;
        for (int i = 3; i >= 0; --i) joined = joined << 16 | load_bits<std::uint16_t>(from + i * kStride);
        return joined;
    };
    const std::uint64_t low = four(p), high = four(p + 4 * kStride);
#if defined(__AVX512F__)
    const __m256 all = _mm256_cvtph_ps(_mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)));
    return {{reinterpret_cast<Vec<float>>(_mm512_zextps256_ps512(all))}};
#elif defined(__AVX2__)
    return {{reinterpret_cast<Vec<float>>(
        _mm256_cvtph_ps(_mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low))))}};
#else
    return {{widened_float16(reinterpret_cast<U16>(low)), widened_float16(reinterpret_cast<U16>(high))}};
#endif
}

#if defined(__AVX512F__)
// Eight pairs of halves that are kStride bytes apart
template <int kStride>
inline Vec<float> pairs_at(const std::uint8_t* p) {
    const auto two = [p](int first) {
        return static_cast<long long>(in_order(load_32(p + first * kStride), load_32(p + (first + 1) * kStride)));
    };
    return reinterpret_cast<Vec<float>>(_mm512_cvtph_ps(_mm256_setr_epi64x(two(0), two(2), two(4), two(6))));
}

// A pair of halves, eight times
inline Vec<float> pair_at(std::uint32_t halves) {
    return reinterpret_cast<Vec<float>>(_mm512_cvtph_ps(_mm256_set1_epi32(static_cast<int>(halves))));
}
#endif

// Signed bytes times a factor, eight or sixteen of them
template <int kGroups>
inline Factors<kGroups> bytes_times(float factor, std::uint64_t low, std::uint64_t high = 0) {
#if defined(__AVX512F__)
    const __m128i all = _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
    return {{reinterpret_cast<Vec<float>>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all))) * factor}};
#else
    Factors<kGroups> found;
    for (int i = 0; i < Factors<kGroups>::kVectors; ++i) {
        const int first = i * static_cast<int>(kFloats);
        const std::uint64_t eight = first < 8 ? low : high;
#if defined(__AVX2__)
        const __m256i wide = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<long long>(eight)));
        found.vector[i] = reinterpret_cast<Vec<float>>(_mm256_cvtepi32_ps(wide)) * factor;
#elif defined(__aarch64__)
        const int16x8_t words = vmovl_s8(vcreate_s8(eight));
        const int32x4_t wide = vmovl_s16(first % 8 == 0 ? vget_low_s16(words) : vget_high_s16(words));
        found.vector[i] = reinterpret_cast<Vec<float>>(vcvtq_f32_s32(wide)) * factor;
#else
        const auto four = static_cast<std::uint32_t>(eight >> (first % 8 * 8));
        found.vector[i] = __builtin_convertvector(load_bits<I8>(&four), Vec<float>) * factor;
#endif
    }
    return found;
#endif
}

// Numbers that only memory has
template <int kGroups>
inline Factors<kGroups> from_memory(const float (&numbers)[kGroups]) {
    Factors<kGroups> found{};
    for (int i = 0; i < Factors<kGroups>::kVectors; ++i) {
        const std::size_t first = static_cast<std::size_t>(i) * kFloats;
        std::memcpy(&found.vector[i], numbers + first, sizeof(float) * std::min<std::size_t>(kFloats, kGroups - first));
    }
    return found;
}

}  // namespace tensorops::TENSOROPS_TARGET
