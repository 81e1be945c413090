// Conversion between element types with the same type of computation: half types to float32, and back.
#pragma once

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

template <class From, class To>
inline void convert(const From* from, To* to, std::int64_t n) {
    static_assert(is_same<Compute<From>, Compute<To>>);
    constexpr std::int64_t lanes = kLanes<From>;
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(to + i, load(from + i));
    if (i < n) store_part(to + i, load_part(from + i, n - i), n - i);
}

}  // namespace tensorops::TENSOROPS_TARGET
