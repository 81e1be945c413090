// Sums and means of losses, which are in double until they have been added.
#pragma once

#include <cmath>

#include "cross_entropy.h"
#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

// Losses are kept in this unit, a power of two: neither a difference of logits nor a sum of losses overflows in it.
// What underflows is negligible compared with the logarithm of the sum.
inline constexpr double kLossUnit = 0x1p-64;

// A loss that counts as much as its factor says: an infinite one that counts nothing adds nothing.
inline double times(double factor, double loss) { return factor == 0 && std::isinf(loss) ? 0 : factor * loss; }

// The number of rows that are not ignored; without targets all count.
inline std::int64_t counted_rows(const std::int64_t* targets, std::int64_t rows) {
    if (!targets) return rows;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < rows; ++i) counted += targets[i] >= 0;
    return counted;
}

// Writes the losses of rows, which are in units, or their sum or mean.
template <class T>
void reduce(Reduction reduction, const double* losses, std::int64_t rows, double divisor, T* y) {
    const auto put = [](T* to, double loss) { store_one(to, static_cast<Compute<T>>(loss / kLossUnit)); };
    if (reduction == Reduction::none) {
        for (std::int64_t i = 0; i < rows; ++i) put(y + i, losses[i]);
        return;
    }
    const double total =
        sum_of_row<double>(rows, [losses](std::int64_t i, std::int64_t k) { return load_some(losses + i, k); });
    put(y, reduction == Reduction::sum ? total : total / divisor);
}

}  // namespace tensorops::TENSOROPS_TARGET
