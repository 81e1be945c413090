// Sums of products of bytes, where one instruction adds several products to each lane: AVX512_VNNI's vpdpbusd, and
// AArch64's sdot and smmla. TENSOROPS_DOTS is defined for such targets.
//
// Codes of weights are multiplied by digits of x, which have signs.
#pragma once

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

typedef std::uint8_t Codes __attribute__((vector_size(kVectorBytes)));

// Whether codes have signs as well: AVX512_VNNI takes those from 0 to 255, AArch64 those from -128 to 127.
#if defined(__ARM_FEATURE_DOTPROD)
inline constexpr bool kSignedCodes = true;
#else
inline constexpr bool kSignedCodes = false;
#endif

#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define TENSOROPS_DOTS

// Adds the products of four neighbours to each lane.
inline I32 dot(I32 sums, Codes codes, const std::int8_t* digits) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<I32>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(codes),
                                                     load_bits<__m512i>(digits)));
#else
    return reinterpret_cast<I32>(
        vdotq_s32(reinterpret_cast<int32x4_t>(sums), reinterpret_cast<int8x16_t>(codes), vld1q_s8(digits)));
#endif
}

#endif

// Sums of products with three digits as one number
inline Vec<float> value_of_digits(const I32 (&sums)[3]) {
    const auto as_float = [](I32 v) { return __builtin_convertvector(v, Vec<float>); };
    return as_float(sums[0]) * 65536.0f + as_float((sums[1] << 8) + sums[2]);
}

}  // namespace tensorops::TENSOROPS_TARGET
