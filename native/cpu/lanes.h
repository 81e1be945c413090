// Vectors whose lanes change places: transposition, and sums and maxima over lanes.
#pragma once

#include <utility>

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

template <class C>
inline constexpr std::size_t kLanes = kVectorBytes / sizeof(C);

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

// Rows become columns: as many vectors as a vector has lanes.
template <class C>
inline void transpose(Vec<C> (&rows)[kLanes<C>]) {
    constexpr std::size_t n = kLanes<C>;
    constexpr auto all = std::make_index_sequence<n>{};
    for (std::size_t done = 1; done < n; done *= 2) {
        Vec<C> next[n];
        for (std::size_t i = 0; i < n / 2; ++i) {
            next[2 * i] = alternate<0>(rows[i], rows[i + n / 2], all);
            next[2 * i + 1] = alternate<1>(rows[i], rows[i + n / 2], all);
        }
        for (std::size_t i = 0; i < n; ++i) rows[i] = next[i];
    }
}

// Lane i of the result is the sum of the lanes of rows[i].
template <class C>
inline Vec<C> sums_of_rows(Vec<C> (&rows)[kLanes<C>]) {
    constexpr auto all = std::make_index_sequence<kLanes<C>>{};
    for (std::size_t n = kLanes<C> / 2; n > 0; n /= 2)
        for (std::size_t i = 0; i < n; ++i)
            rows[i] = even_lanes(rows[2 * i], rows[2 * i + 1], all) + odd_lanes(rows[2 * i], rows[2 * i + 1], all);
    return rows[0];
}

// The largest lane; which one of NaN is not said.
template <class C>
inline C largest_lane(Vec<C> v) {
    constexpr auto all = std::make_index_sequence<kLanes<C>>{};
    for (std::size_t n = kLanes<C>; n > 1; n /= 2) {
        const Vec<C> a = even_lanes(v, v, all), b = odd_lanes(v, v, all);
        v = a < b ? b : a;
    }
    return v[0];
}

}  // namespace tensorops::TENSOROPS_TARGET
