// Cross entropy of rows of logits: log(sum(exp(x - max))) - (x[target] - max), smoothed towards the mean of all
// classes.
//
// Work: rows go to threads in contiguous blocks. A row is read for its maximum and again for the exponentials.
// Precision: as in softmax.cpp; losses are in double until they have been summed.
// Bytes: each logit once, as long as a row stays in the second-level cache.
#include "cross_entropy.h"

#include <cmath>

#include "exponentials.h"
#include "interruption.h"
#include "over_rows.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// Losses are kept in this unit, a power of two: neither a difference of logits nor a sum of losses overflows in it.
// What underflows is negligible compared with the logarithm of the sum.
constexpr double kUnit = 0x1p-64;

// The mean of x - largest over a row, in units
template <class T>
double mean_above(const T* x, std::int64_t n, Compute<T> largest) {
    using C = Compute<T>;
    const C unit = static_cast<C>(kUnit), most = largest * unit;
    const C total = sum_of_row<T>(n, [=](std::int64_t i, std::int64_t k) {
        Vec<C> above = load_some(x + i, k) * unit - most;
        for (std::int64_t j = k; j < kLanes<T>; ++j) above[j] = 0;
        return above;
    });
    return static_cast<double>(total) / static_cast<double>(n);
}

// In units
template <class T>
double loss_of_row(const CrossEntropy& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.logits.length, target = op.targets[index];
    if (target < 0) return 0;
    const T* x = reinterpret_cast<const T*>(op.logits.row(index));
    const C largest = maximum(x, n);
    const double log_total = std::log(sum_of_exponentials<T>(x, n, largest, nullptr, x)) * kUnit;
    const double above = static_cast<double>(load_one(x + target)) * kUnit - static_cast<double>(largest) * kUnit;
    if (op.label_smoothing == 0) return log_total - above;
    const double even = log_total - mean_above(x, n, largest);
    return (1 - op.label_smoothing) * (log_total - above) + op.label_smoothing * even;
}

template <class T>
void reduce(const CrossEntropy& op, T* y) {
    const auto put = [](T* to, double loss) { store_one(to, static_cast<Compute<T>>(loss / kUnit)); };
    const std::int64_t rows = op.logits.count;
    if (op.reduction == Reduction::none) {
        for (std::int64_t i = 0; i < rows; ++i) put(y + i, op.losses[i]);
        return;
    }
    const double total =
        sum_of_row<double>(rows, [&op](std::int64_t i, std::int64_t k) { return load_some(op.losses + i, k); });
    double counted = 0;
    for (std::int64_t i = 0; i < rows; ++i) counted += op.targets[i] >= 0;
    put(y, op.reduction == Reduction::sum ? total : total / counted);
}

template <class T>
void all_rows(const CrossEntropy& op) {
    const std::int64_t row_bytes = op.logits.length * static_cast<std::int64_t>(sizeof(T));
    Interruption* const at = interruption;
    over_rows(op.logits.count, 2 * op.logits.count * row_bytes, [&op, at, row_bytes](std::int64_t i) {
        if (!leaves(at, row_bytes)) op.losses[i] = loss_of_row<T>(op, i);
    });
    if (!leaves(at, 0)) reduce(op, reinterpret_cast<T*>(op.y));
}

}  // namespace

void cross_entropy(const CrossEntropy& op) {
    for_dtype(op.dtype, [&op](auto x) { all_rows<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
