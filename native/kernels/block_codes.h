// The codes of neighbouring weights, as a vector of bytes, from blocks of any format; see formats/formats.h.
//
// Where the bytes come from is known when this is compiled, so that each format has the loads that suit it.
#pragma once

#include <utility>

#include "blocks.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

typedef std::uint8_t Codes __attribute__((vector_size(kVectorBytes)));
inline constexpr int kCodes = static_cast<int>(kVectorBytes);  // weights in a vector
inline constexpr int kEights = kCodes / 8;

// The fields of the weights in a vector, by eights
struct Fields {
    int offset[kEights], shift[kEights];

    constexpr bool has_one_shift() const {
        for (int i = 1; i < kEights; ++i)
            if (shift[i] != shift[0]) return false;
        return true;
    }
    // Whether the bytes of the eights from `first` on follow each other
    constexpr bool are_neighbours(int first, int count) const {
        for (int i = 1; i < count; ++i)
            if (offset[first + i] != offset[first] + 8 * i) return false;
        return true;
    }
    // Whether the vector repeats its first eights
    constexpr bool repeats(int first, int period, int count) const {
        for (int i = period; i < count; ++i)
            if (offset[first + i] != offset[first + i % period]) return false;
        return are_neighbours(first, period);
    }
};

// `field` is that of an eight of a block; a piece has several blocks, and j vectors are before this one.
template <class F>
constexpr int block_of(int eight) {
    return eight * 8 / F::kElements;
}

// Where the lower bits of the j-th vector of a piece are, and the upper ones
template <class F, int j, bool kUpper>
struct Where {
    static constexpr Fields find() {
        Fields found{};
        for (int i = 0; i < kEights; ++i) {
            const int eight = j * kEights + i, within = eight % (F::kElements / 8);
            const Field f = kUpper ? F::high(within) : F::low(within);
            found.offset[i] = block_of<F>(eight) * F::kBytes + f.offset;
            found.shift[i] = f.shift;
        }
        return found;
    }
    static constexpr Fields fields = find();
};

#if defined(__AVX2__)
// 32 bytes, from the eight `first` on
template <class W, int first>
inline __m256i load_half(const std::uint8_t* p) {
    p += W::fields.offset[first];
    if constexpr (W::fields.are_neighbours(first, 4))
        return load_bits<__m256i>(p);
    else if constexpr (W::fields.repeats(first, 2, 4))
        return _mm256_broadcastsi128_si256(load_bits<__m128i>(p));
    else  // eights twice
        return _mm256_permute4x64_epi64(_mm256_castsi128_si256(load_bits<__m128i>(p)), 0x50);
}
#endif

template <class W>
inline Codes load_fields(const std::uint8_t* p) {
#if defined(__AVX512F__)
    if constexpr (W::fields.are_neighbours(0, 8))
        return load_bits<Codes>(p + W::fields.offset[0]);
    else if constexpr (W::fields.repeats(0, 4, 8))
        return reinterpret_cast<Codes>(_mm512_broadcast_i64x4(load_bits<__m256i>(p + W::fields.offset[0])));
    else
        return reinterpret_cast<Codes>(
            _mm512_inserti64x4(_mm512_castsi256_si512(load_half<W, 0>(p)), load_half<W, 4>(p), 1));
#elif defined(__AVX2__)
    return reinterpret_cast<Codes>(load_half<W, 0>(p));
#else
    if constexpr (W::fields.are_neighbours(0, 2)) return load_bits<Codes>(p + W::fields.offset[0]);
    const auto eight = load_bits<std::uint64_t>(p + W::fields.offset[0]);
    const std::uint64_t twice[2] = {eight, eight};
    return load_bits<Codes>(twice);
#endif
}

template <std::size_t... lane>
inline U32 shifts(const Fields& f, std::index_sequence<lane...>) {
    return U32{static_cast<std::uint32_t>(f.shift[lane / 2])...};
}

// The fields' bits, lowest first. What is shifted into a byte from its neighbour is above them.
template <int kBits, class W>
inline Codes bits_of_fields(const std::uint8_t* p) {
    const Codes bytes = load_fields<W>(p);
    if constexpr (kBits == 8) return bytes;
    U32 words = reinterpret_cast<U32>(bytes);
    if constexpr (!W::fields.has_one_shift())
        words = words >> shifts(W::fields, std::make_index_sequence<kFloats>{});
    else if constexpr (W::fields.shift[0] != 0)
        words = words >> static_cast<std::uint32_t>(W::fields.shift[0]);
    return reinterpret_cast<Codes>(words & ((1u << kBits) - 1) * 0x01010101u);
}

// 16 for each weight whose bit is set, of which a byte has eight
template <class F, int j>
inline __attribute__((always_inline)) Codes fifth_bits(const std::uint8_t* p) {
    const auto eight = [p](int i) {
        const int number = j * kEights + i;
        return p + block_of<F>(number) * F::kBytes + F::fifth_bits(number % (F::kElements / 8));
    };
#if defined(__AVX512F__)
    const auto all = static_cast<std::uint64_t>(load_32(eight(4))) << 32 | load_32(eight(0));
    return reinterpret_cast<Codes>(_mm512_maskz_set1_epi8(all, 16));
#elif defined(__AVX2__)
    const __m256i all = _mm256_set1_epi32(static_cast<int>(load_32(eight(0))));
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(all, byte), bit), bit);
    return reinterpret_cast<Codes>(_mm256_and_si256(is_set, _mm256_set1_epi8(16)));
#else
    std::uint64_t of_eight[2];
    for (int i = 0; i < 2; ++i) {
        const std::uint64_t bits = *eight(i) * 0x0101010101010101u & 0x8040201008040201u;
        // The uppermost bit of a byte, unless that is 0
        of_eight[i] = (((bits & 0x7f7f7f7f7f7f7f7fu) + 0x7f7f7f7f7f7f7f7fu) | bits) >> 3 & 0x1010101010101010u;
    }
    return load_bits<Codes>(of_eight);
#endif
}

template <class F>
inline Codes looked_up(Codes places) {
    std::uint8_t values[16];
    for (int i = 0; i < 16; ++i) values[i] = static_cast<std::uint8_t>(F::kTable[i] + F::kOffset);
#if defined(__AVX512F__)
    return reinterpret_cast<Codes>(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_bits<__m128i>(values)),
                                                       reinterpret_cast<__m512i>(places)));
#elif defined(__AVX2__)
    return reinterpret_cast<Codes>(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_bits<__m128i>(values)),
                                                       reinterpret_cast<__m256i>(places)));
#elif defined(__SSSE3__)
    return reinterpret_cast<Codes>(_mm_shuffle_epi8(load_bits<__m128i>(values), reinterpret_cast<__m128i>(places)));
#elif defined(__aarch64__)
    return reinterpret_cast<Codes>(vqtbl1q_u8(vld1q_u8(values), reinterpret_cast<uint8x16_t>(places)));
#else
    Codes found;
    for (int i = 0; i < kCodes; ++i) found[i] = values[places[i]];
    return found;
#endif
}

// The codes of the j-th vector of a piece, each from 0 to kMax
template <class F, int j>
inline __attribute__((always_inline)) Codes codes(const std::uint8_t* p) {
    Codes found = bits_of_fields<F::kLowBits, Where<F, j, false>>(p);
    if constexpr (F::kSign != 0) found ^= F::kSign;
    if constexpr (F::kHighBits != 0) {
        const Codes upper = bits_of_fields<F::kHighBits, Where<F, j, true>>(p);
        found |= reinterpret_cast<Codes>(reinterpret_cast<U32>(upper) << static_cast<std::uint32_t>(F::kLowBits));
    }
    if constexpr (F::kHasFifthBits) found |= fifth_bits<F, j>(p);
    if constexpr (F::kTable != nullptr) found = looked_up<F>(found);
    return found;
}

}  // namespace tensorops::TENSOROPS_TARGET
