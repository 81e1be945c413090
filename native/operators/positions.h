// Positions of rotary position embedding, and the frequencies that follow from a base: what rope's callers prepare.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace tensorops {

// Positions for each row of a head: of every batch, or once if all batches share them. `given` has `axes` axes, which
// broadcast to those of x, of shape (batch…, heads, length, features), without heads and features.
template <class Size>
std::vector<double> positions_for(int ndim, const Size* x, int axes, const Size* dims, const double* given,
                                  bool& of_batch) {
    const int batch_axes = ndim - 3, own = axes - 1;
    const std::int64_t length = x[batch_axes + 1], last = dims[own];
    std::int64_t batches = 1;
    of_batch = false;
    for (int d = 0; d < own; ++d) of_batch = of_batch || dims[d] > 1;
    for (int d = 0; of_batch && d < batch_axes; ++d) batches *= x[d];
    std::vector<double> all(static_cast<std::size_t>(batches * length));
    for (std::int64_t b = 0; b < batches; ++b) {
        std::int64_t row = 0, step = 1, rest = b;
        for (int d = batch_axes - 1; d >= 0; --d) {
            const std::int64_t index = rest % x[d], axis = d - (batch_axes - own);
            rest /= x[d];
            if (axis < 0) continue;
            if (dims[axis] != 1) row += index * step;
            step *= dims[axis];
        }
        for (std::int64_t i = 0; i < length; ++i)
            all[static_cast<std::size_t>(b * length + i)] = given[row * last + (last == 1 ? 0 : i)];
    }
    return all;
}

// One for each pair of features. A model has the same for every layer, and powers take as long as all the rest of a
// position.
inline std::vector<double> frequencies_for(double base, std::int64_t dims) {
    thread_local double last_base = 0;
    thread_local std::int64_t last_dims = 0;
    thread_local std::vector<double> frequencies;
    if (base == last_base && dims == last_dims) return frequencies;
    frequencies.resize(static_cast<std::size_t>(dims / 2));
    for (std::size_t i = 0; i < frequencies.size(); ++i)
        frequencies[i] = std::pow(base, static_cast<double>(i) * (-2.0 / static_cast<double>(dims)));
    last_base = base;
    last_dims = dims;
    return frequencies;
}

}  // namespace tensorops
