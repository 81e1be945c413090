// Permutations of lanes: transposition, and reductions over lanes for many vectors at once.
#pragma once

#include <utility>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// Lanes of two vectors, a's numbered from 0 and b's after them.
template <class V, std::size_t... kIndex>
inline V pick(V a, V b, std::index_sequence<kIndex...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, static_cast<int>(kIndex)...);
#else
    using Index = decltype(a < b);  // integers of the lanes' width
    return __builtin_shuffle(a, b, Index{kIndex...});
#endif
}

// 0, 1, 2 …
template <std::size_t... k>
inline I32 numbers_of_lanes(std::index_sequence<k...>) {
    return I32{static_cast<std::int32_t>(k)...};
}

// Whether a lane is one of the first k
template <class C, std::size_t... i>
inline auto first_lanes_of(std::int64_t k, std::index_sequence<i...>) {
    return Vec<C>{static_cast<C>(i)...} < Vec<C>{} + static_cast<C>(k);
}
template <class C>
inline auto first_lanes_of(std::int64_t k) {
    return first_lanes_of<C>(k, std::make_index_sequence<kLanes<C>>{});
}

template <class V, std::size_t... k>
inline V even_lanes(V a, V b, std::index_sequence<k...>) {
    return pick(a, b, std::index_sequence<2 * k...>{});
}
template <class V, std::size_t... k>
inline V odd_lanes(V a, V b, std::index_sequence<k...>) {
    return pick(a, b, std::index_sequence<2 * k + 1 ...>{});
}
// a0 b0 a1 b1 …: the first or the second half of that
template <std::size_t kHalf, class V, std::size_t... k>
inline V alternate(V a, V b, std::index_sequence<k...>) {
    constexpr std::size_t n = sizeof...(k);
    return pick(a, b, std::index_sequence<kHalf*(n / 2) + k / 2 + k % 2 * n...>{});
}

// Every other lane, and 0 before it
inline Vec<float> odd_lanes_alone(Vec<float> v) {
    return (numbers_of_lanes(std::make_index_sequence<kFloats>{}) & 1) != 0 ? v : Vec<float>{};
}

// Indices of lanes as `chosen` takes them; a constant added to each is multiplied by kIndexUnit.
#if defined(__AVX2__)
inline constexpr std::int32_t kIndexUnit = 1;
inline I32 index_of(I32 lane) { return lane; }
#else
inline constexpr std::int32_t kIndexUnit = 0x04040404;  // the positions of four bytes
inline I32 index_of(I32 lane) { return lane * kIndexUnit + 0x03020100; }
#endif

// For each lane, the element given by `index`.
inline Vec<float> chosen(Vec<float> v, I32 index) {
#if defined(__AVX512F__)
    return reinterpret_cast<Vec<float>>(
        _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__)
    return reinterpret_cast<Vec<float>>(
        _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(v), reinterpret_cast<__m256i>(index)));
#elif defined(__SSSE3__)
    return reinterpret_cast<Vec<float>>(
        _mm_shuffle_epi8(reinterpret_cast<__m128i>(v), reinterpret_cast<__m128i>(index)));
#elif defined(__aarch64__)
    return reinterpret_cast<Vec<float>>(
        vqtbl1q_u8(reinterpret_cast<uint8x16_t>(v), reinterpret_cast<uint8x16_t>(index)));
#else
    Vec<float> found;
    for (std::size_t k = 0; k < kFloats; ++k) found[k] = v[index[k] / 4 % 4];
    return found;
#endif
}

// For lambdas that must not become functions, because what they capture would then be in memory.
#define TENSOROPS_INLINED __attribute__((always_inline))

// f(0), f(1) … f(N - 1) with constant indices: an array of vectors then stays in registers.
template <class F, std::size_t... k>
inline __attribute__((always_inline)) void for_each(std::index_sequence<k...>, F f) {
    (f(std::integral_constant<std::size_t, k>{}), ...);
}
template <std::size_t N, class F>
inline __attribute__((always_inline)) void for_each(F f) {
    for_each(std::make_index_sequence<N>{}, f);
}

// Transposes as many vectors as a vector has lanes. The first N of them are still to be interleaved.
template <class C, std::size_t N = kLanes<C>>
inline __attribute__((always_inline)) void transpose(Vec<C> (&rows)[kLanes<C>]) {
    constexpr std::size_t n = kLanes<C>;
    constexpr auto all = std::make_index_sequence<n>{};
    Vec<C> next[n];
    for_each<n / 2>([&](auto i) {
        next[2 * i] = alternate<0>(rows[i], rows[i + n / 2], all);
        next[2 * i + 1] = alternate<1>(rows[i], rows[i + n / 2], all);
    });
    for_each<n>([&](auto i) { rows[i] = next[i]; });
    if constexpr (N > 2) transpose<C, N / 2>(rows);
}

// Lane i of the result joins all lanes of rows[i], two at a time. The first N are still to be joined.
template <class C, std::size_t N = kLanes<C>, class F>
inline __attribute__((always_inline)) Vec<C> join_lanes(Vec<C> (&rows)[kLanes<C>], F join) {
    constexpr auto all = std::make_index_sequence<kLanes<C>>{};
    for_each<N / 2>([&](auto i) {
        const Vec<C> a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = join(even_lanes(a, b, all), odd_lanes(a, b, all));
    });
    if constexpr (N > 2) return join_lanes<C, N / 2>(rows, join);
    return rows[0];
}

}  // namespace tensorops::TENSOROPS_TARGET
