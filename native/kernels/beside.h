// Lines side by side, of which each lane of a vector takes one.
#pragma once

#include <algorithm>
#include <limits>

#include "lines.h"
#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

// Rows of up to as many elements are computed side by side as well.
inline constexpr std::int64_t kShort = 32;
// The same for rows that are computed in vectors of their own, several rows at once
template <class T>
constexpr std::int64_t kFewElements = 4 * kLanes<T>;

// Some lines of elements E; kNeighbours: those side by side are known to be neighbours in memory
template <bool kNeighbours, class E>
struct Beside {
    using C = Compute<E>;
    const char* at;
    std::int64_t step, stride, count;

    // The elements with number i of the lines from `lane` on
    Vec<C> get(std::int64_t i, std::int64_t lane) const {
        const char* p = at + i * step + lane * stride;
        if (are_neighbours()) return load_some(reinterpret_cast<const E*>(p), lanes_at(lane));
        return load_some(Strided<E>{p, stride}, lanes_at(lane));
    }
    void put(std::int64_t i, std::int64_t lane, Vec<C> v) const {
        char* p = const_cast<char*>(at) + i * step + lane * stride;
        const std::int64_t k = lanes_at(lane);
        if (!are_neighbours())
            store_strided<E>(p, stride, v, k);
        else if (k == kLanes<C>)
            store(reinterpret_cast<E*>(p), v);
        else
            store_part(reinterpret_cast<E*>(p), v, k);
    }

  private:
    bool are_neighbours() const { return kNeighbours || stride == static_cast<std::int64_t>(sizeof(E)); }
    std::int64_t lanes_at(std::int64_t lane) const { return std::clamp<std::int64_t>(count - lane, 0, kLanes<C>); }
};

// The sums of f(i, u) over the elements of kVectors of lines
template <int kVectors, class V, class F>
inline __attribute__((always_inline)) void sums_of_lines(std::int64_t n, V (&result)[kVectors], F f) {
    using C = Element<V>;
    Total<C> totals[kVectors];
    for (std::int64_t begin = 0; begin < n; begin += kAddedPlainly) {
        V sums[kVectors] = {};
        const std::int64_t end = std::min(begin + kAddedPlainly, n);
        for (std::int64_t i = begin; i < end; ++i)
            for (int u = 0; u < kVectors; ++u) sums[u] += f(i, u);
        for (int u = 0; u < kVectors; ++u) totals[u].add(sums[u]);
    }
    for (int u = 0; u < kVectors; ++u) result[u] = totals[u].of_lanes();
}

// Two such sums at once; f returns both.
template <int kVectors, class V, class F>
inline __attribute__((always_inline)) void two_sums_of_lines(std::int64_t n, V (&first)[kVectors],
                                                             V (&second)[kVectors], F f) {
    using C = Element<V>;
    Total<C> firsts[kVectors], seconds[kVectors];
    for (std::int64_t begin = 0; begin < n; begin += kAddedPlainly) {
        V a[kVectors] = {}, b[kVectors] = {};
        const std::int64_t end = std::min(begin + kAddedPlainly, n);
        for (std::int64_t i = begin; i < end; ++i)
            for (int u = 0; u < kVectors; ++u) {
                const Two<V> both = f(i, u);
                a[u] += both.first;
                b[u] += both.second;
            }
        for (int u = 0; u < kVectors; ++u) {
            firsts[u].add(a[u]);
            seconds[u].add(b[u]);
        }
    }
    for (int u = 0; u < kVectors; ++u) {
        first[u] = firsts[u].of_lanes();
        second[u] = seconds[u].of_lanes();
    }
}

// The largest elements of lines; NaN is ignored.
template <int kVectors, class V, class Side>
inline void largest_of_lines(std::int64_t n, const Side& x, V (&largest)[kVectors]) {
    using C = Element<V>;
    for (int u = 0; u < kVectors; ++u) largest[u] = V{} - std::numeric_limits<C>::infinity();
    for (std::int64_t i = 0; i < n; ++i)
        for (int u = 0; u < kVectors; ++u) largest[u] = larger_ignoring_nan(largest[u], x.get(i, u * kLanes<C>));
}

}  // namespace tensorops::TENSOROPS_TARGET
