// Weights and biases of norms in the type in which kernels compute.
#pragma once

#include <algorithm>

#include "convert.h"

namespace tensorops::TENSOROPS_TARGET {

// Parameters plus an offset: where they are if that changes nothing, or at `to`, all the same if there are none
template <class C>
const C* widened(const char* parameters, Dtype dtype, C otherwise, C offset, C* to, std::int64_t n) {
    if (parameters && dtype == kDtype<C> && offset == 0) return reinterpret_cast<const C*>(parameters);
    if (!parameters) {
        std::fill_n(to, n, otherwise);
        return to;
    }
    const auto widen = [=](const auto* from) {
        if (offset == 0) return convert(from, to, n);
        put_row<false>(to, n, [=](std::int64_t i, std::int64_t k) { return load_some(from + i, k) + offset; });
    };
    if constexpr (is_same<C, double>) {
        if (dtype == Dtype::float64)
            widen(reinterpret_cast<const double*>(parameters));
        else
            for_narrow_dtype(dtype, [=](auto p) {
                const auto* from = reinterpret_cast<const decltype(p)*>(parameters);
                for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(load_one(from + i)) + offset;
            });
    } else {
        for_narrow_dtype(dtype, [=](auto p) { widen(reinterpret_cast<const decltype(p)*>(parameters)); });
    }
    return to;
}

}  // namespace tensorops::TENSOROPS_TARGET
