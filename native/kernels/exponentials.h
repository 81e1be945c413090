// The largest element of a row and the sum of its exponentials, for softmax and cross_entropy.
#pragma once

#include <limits>

#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

// P is a pointer to T, or Strided<T>.

// The largest element of a row; NaN is ignored.
template <class T, class P>
Compute<T> maximum(P x, std::int64_t n) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const Vec<C> lowest = Vec<C>{} - std::numeric_limits<C>::infinity();
    Vec<C> m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
    std::int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
        m0 = larger_ignoring_nan(m0, load(x + i));  // a NaN shows in the sum
        m1 = larger_ignoring_nan(m1, load(x + i + lanes));
        m2 = larger_ignoring_nan(m2, load(x + i + 2 * lanes));
        m3 = larger_ignoring_nan(m3, load(x + i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) m0 = larger_ignoring_nan(m0, load(x + i));
    const Vec<C> m = larger_ignoring_nan(larger_ignoring_nan(m0, m1), larger_ignoring_nan(m2, m3));
    C largest = largest_of_lanes(m);
    for (; i < n; ++i) {
        const C a = load_one(x + i);
        largest = a > largest ? a : largest;
    }
    return largest;
}

// The value, unless a row has a NaN
template <class T, class P>
Compute<T> nan_or(Compute<T> value, P x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i)
        if (const Compute<T> a = load_one(x + i); a != a) return a;
    return value;
}

// The exponentials of the last n elements of a row in units, fewer than a vector; 0 in the other lanes.
template <class T, class P>
inline Vec<Compute<T>> last_exponentials(P x, std::int64_t n, Compute<T> shift) {
    Vec<Compute<T>> e = exp_in_units(load_part(x, n) - shift);
    for (std::int64_t k = n; k < kLanes<Compute<T>>; ++k) e[k] = 0;
    return e;
}

// The sum of exp(x - shift) for a shift that is not below x; the exponentials go to the buffer, if any, in units.
// Meanwhile as much is fetched from `next` on.
template <class T, class P>
double sum_of_exponentials(P x, std::int64_t n, Compute<T> shift, Compute<T>* buffer, P next) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>, block = kAddedPlainly * 2 * lanes;
    Total<C> total;
    std::int64_t i = 0;
    while (i + lanes <= n) {
        const std::int64_t end = n - i < block ? n : i + block;
        Vec<C> s0{}, s1{};
        for (; i + 2 * lanes <= end; i += 2 * lanes) {
            fetch(next + i);
            fetch(next + i + lanes);
            const Vec<C> a = exp_in_units(load(x + i) - shift), b = exp_in_units(load(x + i + lanes) - shift);
            if (buffer) {
                store(buffer + i, a);
                store(buffer + i + lanes, b);
            }
            s0 += a;
            s1 += b;
        }
        if (i + lanes <= end) {
            const Vec<C> a = exp_in_units(load(x + i) - shift);
            if (buffer) store(buffer + i, a);
            s0 += a;
            i += lanes;
        }
        total.add(s0 + s1);
    }
    if (i < n) {
        const Vec<C> e = last_exponentials<T>(x + i, n - i, shift);
        if (buffer) store_part(buffer + i, e, n - i);
        total.add(e);
    }
    return static_cast<double>(total.value()) / static_cast<double>(kOneInUnits<C>);
}

}  // namespace tensorops::TENSOROPS_TARGET
