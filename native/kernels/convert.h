// Conversion between element types with the same type of computation: half types to float32, and back.
#pragma once

#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

template <class From, class To>
inline void convert(const From* from, To* to, std::int64_t n) {
    static_assert(is_same<Compute<From>, Compute<To>>);
    put_row<false>(to, n, [from](std::int64_t i, std::int64_t k) { return load_some(from + i, k); });
}

}  // namespace tensorops::TENSOROPS_TARGET
