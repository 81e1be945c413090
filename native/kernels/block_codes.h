// The codes of neighbouring weights, as a vector of bytes, from blocks of any format; see formats/formats.h.
//
// Where the bytes come from is known when this is compiled, so that each format has the loads that suit it.
#pragma once

#include <utility>

#include "blocks.h"
#include "byte_dots.h"

namespace tensorops::TENSOROPS_TARGET {

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
            _mm512_inserti64x4(_mm512_castsi256_si512((load_half<W, 0>(p))), (load_half<W, 4>(p)), 1));
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
#if defined(__aarch64__)
    if constexpr (W::fields.has_one_shift()) {  // bytes can be shifted, and then the uppermost bits are alone
        const Codes shifted = bytes >> static_cast<std::uint8_t>(W::fields.shift[0]);
        return W::fields.shift[0] + kBits == 8 ? shifted : shifted & static_cast<std::uint8_t>((1 << kBits) - 1);
    }
#endif
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
#elif defined(__aarch64__)
    const uint8x16_t all = vcombine_u8(vdup_n_u8(*eight(0)), vdup_n_u8(*eight(1)));
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    return reinterpret_cast<Codes>(vandq_u8(vtstq_u8(all, bit), vdupq_n_u8(16)));
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

template <class F, int kOffset = F::kOffset>
inline Codes looked_up(Codes places) {
    std::uint8_t values[16];
    for (int i = 0; i < 16; ++i) values[i] = static_cast<std::uint8_t>(F::kTable[i] + kOffset);
#if defined(__AVX512F__)
    return reinterpret_cast<Codes>(
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_bits<__m128i>(values)), reinterpret_cast<__m512i>(places)));
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

// The codes of the j-th vector of a piece, each from 0 to kMax; or as signed bytes, without the offset
template <class F, int j, bool kSigned = false>
inline __attribute__((always_inline)) Codes codes(const std::uint8_t* p) {
    Codes found = bits_of_fields<F::kLowBits, Where<F, j, false>>(p);
    if constexpr (F::kSign != 0 && !kSigned) found ^= F::kSign;
    if constexpr (F::kHighBits != 0) {
        const Codes upper = bits_of_fields<F::kHighBits, Where<F, j, true>>(p);
        found |= reinterpret_cast<Codes>(reinterpret_cast<U32>(upper) << static_cast<std::uint32_t>(F::kLowBits));
    }
    if constexpr (F::kHasFifthBits) found |= fifth_bits<F, j>(p);
    if constexpr (F::kHasTable) return looked_up<F, kSigned ? 0 : F::kOffset>(found);
    if constexpr (kSigned && F::kSign == 0) found -= static_cast<std::uint8_t>(F::kOffset);
    return found;
}

#if defined(__AVX512VNNI__)

// The codes of a piece in an order in which a lane has codes of one group in each of four vectors: their products are
// added up before they are scaled. With groups of 32, two lanes are a group and a vector has eight codes of each; with
// groups of 16, one lane and four.
template <class F>
constexpr int element_of(int vector, int lane) {
    return F::kGroup == 32 ? lane / 2 * 32 + vector * 8 + lane % 2 * 4 : lane * 16 + vector * 4;
}

// What a field's bytes are as numbers of 32 bits, one after another without what lies between them in blocks: its
// windows are vectors of these.
template <class F, bool kUpper>
struct Packed {
    static constexpr int kBits = kUpper ? F::kHighBits : F::kLowBits;
    static constexpr int kRun = F::kElements * kBits / 8;  // bytes in a block
    static constexpr int kBytes = kPiece * kBits / 8;
    static constexpr int kWindows = (kBytes + 63) / 64;

    static constexpr Field field(int eight) { return kUpper ? F::high(eight) : F::low(eight); }
    static constexpr int kStart = field(0).offset;
    static constexpr int index(int element) {
        const int eight = element % F::kElements / 8;
        return (element / F::kElements * kRun + field(eight).offset - kStart + element % 8) / 4;
    }
    static constexpr int shift(int element) { return field(element % F::kElements / 8).shift; }

    template <int kBytesOfIt>
    static const std::uint8_t* at(const std::uint8_t* p) {
        return p + kBytesOfIt / kRun * F::kBytes + kStart + kBytesOfIt % kRun;
    }
    template <int w>
    static __m512i window(const std::uint8_t* p) {
        if constexpr (kBytes == 32)
            return _mm512_castsi256_si512(load_bits<__m256i>(at<0>(p)));
        else if constexpr (kRun % 64 == 0)
            return load_bits<__m512i>(at<64 * w>(p));
        else if constexpr (kRun % 32 == 0)
            return _mm512_inserti64x4(_mm512_castsi256_si512(load_bits<__m256i>(at<64 * w>(p))),
                                      load_bits<__m256i>(at<64 * w + 32>(p)), 1);
        else
            return _mm512_inserti64x4(_mm512_castsi256_si512(two_chunks<64 * w>(p)), two_chunks<64 * w + 32>(p), 1);
    }

  private:
    template <int kFirst>
    static __m256i two_chunks(const std::uint8_t* p) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(load_bits<__m128i>(at<kFirst>(p))),
                                       load_bits<__m128i>(at<kFirst + 16>(p)), 1);
    }
};

template <class F, bool kUpper, int j, std::size_t... lane>
inline __attribute__((always_inline)) __m512i words_by_group(const std::uint8_t* p, std::index_sequence<lane...>) {
    using P = Packed<F, kUpper>;
    const auto index = reinterpret_cast<__m512i>(
        U32{static_cast<std::uint32_t>(P::index(element_of<F>(j, static_cast<int>(lane))))...});
    if constexpr (P::kWindows == 1) {
        return _mm512_permutexvar_epi32(index, P::template window<0>(p));
    } else {
        const __m512i first = _mm512_permutex2var_epi32(P::template window<0>(p), index, P::template window<1>(p));
        if constexpr (P::kWindows == 2) return first;
        // The upper lanes have the second half of a piece.
        return _mm512_mask_mov_epi32(first, 0xff00,
                                     _mm512_permutex2var_epi32(P::template window<P::kWindows - 2>(p), index,
                                                               P::template window<P::kWindows - 1>(p)));
    }
}

// The fifth bits of a vector's codes, of which each block has 32 in order
template <class F, int j>
inline __attribute__((always_inline)) __m512i fifth_bits_by_group(const std::uint8_t* p) {
    const auto pair = [p](int block) {
        return static_cast<long long>(in_order(load_32(p + block * F::kBytes + F::fifth_bits(0)),
                                               load_32(p + (block + 1) * F::kBytes + F::fifth_bits(0))));
    };
    const __m256i each = _mm256_setr_epi64x(pair(0), pair(2), pair(4), pair(6));
    const __m512i twice = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                                   _mm512_castsi256_si512(each));
    const __m512i bytes =
        _mm512_shuffle_epi8(twice, _mm512_set4_epi32(0x0c0c0c0c + 0x01010101 * j, 0x08080808 + 0x01010101 * j,
                                                     0x04040404 + 0x01010101 * j, 0x01010101 * j));
    const __mmask64 is_set =
        _mm512_test_epi8_mask(bytes, _mm512_set1_epi64(static_cast<long long>(0x8040201008040201)));
    return _mm512_maskz_set1_epi8(is_set, 16);
}

template <class F, int j, std::size_t... lane>
inline __attribute__((always_inline)) __m512i codes_by_group(const std::uint8_t* p,
                                                             std::index_sequence<lane...> lanes) {
    const auto all_bytes = [](int bits) { return _mm512_set1_epi8(static_cast<char>(bits)); };
    __m512i found = words_by_group<F, false, j>(p, lanes);
    if constexpr (F::kLowBits < 8) {
        constexpr int of_lane[] = {Packed<F, false>::shift(element_of<F>(j, static_cast<int>(lane)))...};
        constexpr bool has_one = ((of_lane[lane] == of_lane[0]) && ...);
        if constexpr (!has_one)
            found = _mm512_srlv_epi32(found, reinterpret_cast<__m512i>(I32{of_lane[lane]...}));
        else if constexpr (of_lane[0] != 0)
            found = _mm512_srli_epi32(found, of_lane[0]);
        found = _mm512_and_si512(found, all_bytes((1 << F::kLowBits) - 1));
    }
    if constexpr (F::kSign != 0) found = _mm512_xor_si512(found, all_bytes(F::kSign));
    if constexpr (F::kHighBits != 0) {
        // To the places above the lower bits; in a rotation, only neighbours' bits come in from beside.
        constexpr int mask = ((1 << F::kHighBits) - 1) << F::kLowBits;
        const __m512i turned = _mm512_rolv_epi32(
            words_by_group<F, true, j>(p, lanes),
            reinterpret_cast<__m512i>(
                I32{(F::kLowBits - Packed<F, true>::shift(element_of<F>(j, static_cast<int>(lane))) + 32)...}));
        found = _mm512_ternarylogic_epi32(found, turned, all_bytes(mask), 0xf8);  // found | (turned & mask)
    }
    if constexpr (F::kHasFifthBits) found = _mm512_or_si512(found, fifth_bits_by_group<F, j>(p));
    if constexpr (F::kHasTable) found = reinterpret_cast<__m512i>(looked_up<F>(reinterpret_cast<Codes>(found)));
    return found;
}

#endif

}  // namespace tensorops::TENSOROPS_TARGET
