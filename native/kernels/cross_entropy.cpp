// Cross entropy of rows of logits: log(sum(exp(x - max))) - (x[target] - max), smoothed towards the mean of all
// classes. Weights of classes, probabilities as targets and squared logarithms have functions of their own, so that
// calls without them cost nothing more.
//
// Work: rows go to threads in contiguous blocks. A row is read for its maximum and again for the exponentials.
// Precision: as in softmax.cpp; losses are in double until they have been summed.
// Bytes: each logit once, as long as a row stays in the second-level cache.
#include "cross_entropy.h"

#include <cmath>

#include "convert.h"
#include "exponentials.h"
#include "interruption.h"
#include "losses.h"
#include "over_rows.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// The mean of x - largest over a row, in units
template <class T>
double mean_above(const T* x, std::int64_t n, Compute<T> largest) {
    using C = Compute<T>;
    const C unit = static_cast<C>(kLossUnit), most = largest * unit;
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
    const C largest = maximum<T>(x, n);
    const double log_total = std::log(sum_of_exponentials<T>(x, n, largest, nullptr, x)) * kLossUnit;
    const double above =
        static_cast<double>(load_one(x + target)) * kLossUnit - static_cast<double>(largest) * kLossUnit;
    if (op.label_smoothing == 0) return log_total - above;
    const double even = log_total - mean_above(x, n, largest);
    return (1 - op.label_smoothing) * (log_total - above) + op.label_smoothing * even;
}

// The sum of -share * log(p) over a row, in units; share(i, k) returns the vector of k shares from i on, and any
// others.
template <class T, class F>
double spread(const T* x, std::int64_t n, Compute<T> largest, double log_total, F share) {
    using C = Compute<T>;
    const C unit = static_cast<C>(kLossUnit), most = largest * unit, offset = static_cast<C>(log_total);
    const C infinity = std::numeric_limits<C>::infinity();
    return static_cast<double>(sum_of_row<T>(n, [=](std::int64_t i, std::int64_t k) {
        const Vec<C> shares = share(i, k), loss = offset - (load_some(x + i, k) * unit - most);
        Vec<C> part = ((shares == 0) & (loss == infinity)) ? Vec<C>{} : shares * loss;
        for (std::int64_t j = k; j < kLanes<T>; ++j) part[j] = 0;
        return part;
    }));
}

// What a call with weights, probabilities or squares computes of all rows
template <class T>
struct Weighted {
    const Compute<T>* weight;  // or nullptr
    double divisor;            // of a mean of losses
    double squares;            // the factor of squared logarithms that are added to losses

    double share_of(std::int64_t target) const { return weight ? static_cast<double>(load_one(weight + target)) : 1; }
};

template <class T>
double loss_of_class(const CrossEntropy& op, const Weighted<T>& all, const T* x, std::int64_t target,
                     Compute<T> largest, double log_total) {
    using C = Compute<T>;
    const std::int64_t n = op.logits.length;
    const double above =
        static_cast<double>(load_one(x + target)) * kLossUnit - static_cast<double>(largest) * kLossUnit;
    const double loss = times(all.share_of(target), log_total - above), smoothing = op.label_smoothing;
    if (smoothing == 0) return loss;
    if (!all.weight) return (1 - smoothing) * loss + smoothing * (log_total - mean_above(x, n, largest));
    const C* weight = all.weight;
    const double even =
        spread(x, n, largest, log_total, [weight](std::int64_t i, std::int64_t k) { return load_some(weight + i, k); });
    return (1 - smoothing) * loss + smoothing * even / static_cast<double>(n);
}

template <class T, class P>
double loss_of_probabilities(const CrossEntropy& op, const Weighted<T>& all, const T* x, const P* p, Compute<T> largest,
                             double log_total) {
    using C = Compute<T>;
    const C* weight = all.weight;
    const C own = static_cast<C>(1 - op.label_smoothing);
    const C even = static_cast<C>(op.label_smoothing / static_cast<double>(op.logits.length));
    return spread(x, op.logits.length, largest, log_total, [=](std::int64_t i, std::int64_t k) -> Vec<C> {
        const Vec<C> shares = load_some(p + i, k) * own + even;
        return weight ? shares * load_some(weight + i, k) : shares;
    });
}

template <class T, class P>
double weighted_loss_of_row(const CrossEntropy& op, const Weighted<T>& all, std::int64_t index) {
    if (op.targets && op.targets[index] < 0) return 0;
    const T* x = reinterpret_cast<const T*>(op.logits.row(index));
    const Compute<T> largest = maximum<T>(x, op.logits.length);
    const double log_total = std::log(sum_of_exponentials<T>(x, op.logits.length, largest, nullptr, x)) * kLossUnit;
    double loss = 0;
    if (op.targets) {
        loss = loss_of_class(op, all, x, op.targets[index], largest, log_total);
    } else {
        const P* p = reinterpret_cast<const P*>(op.probabilities->row(index));
        loss = loss_of_probabilities(op, all, x, p, largest, log_total);
    }
    if (op.z_loss == 0) return loss;
    const double log_sum = log_total + static_cast<double>(largest) * kLossUnit;
    return loss + all.squares * log_sum * (log_sum / kLossUnit);
}

// Computes the losses of all rows, which loss(i) returns; false if the call is to end early.
template <class F>
bool every_loss(const CrossEntropy& op, std::int64_t row_bytes, F loss) {
    Interruption* const at = interruption;
    over_rows(op.logits.count, 2 * op.logits.count * row_bytes, [&op, at, row_bytes, &loss](std::int64_t i) {
        if (!leaves(at, row_bytes)) op.losses[i] = loss(i);
    });
    return !leaves(at, 0);
}

template <class T, class P>
void weighted_rows(const CrossEntropy& op) {
    using C = Compute<T>;
    const std::int64_t n = op.logits.length;
    const bool widens = op.weight && op.weight_dtype == op.dtype && sizeof(T) < sizeof(C);
    const Scratch scratch(widens ? n * static_cast<std::int64_t>(sizeof(C)) : 0);
    if (widens) convert(reinterpret_cast<const T*>(op.weight), scratch.at<C>(0), n);
    const double counted = static_cast<double>(counted_rows(op.targets, op.logits.count));
    Weighted<T> all{widens ? scratch.at<C>(0) : reinterpret_cast<const C*>(op.weight), counted, op.z_loss};
    if (op.weight && op.targets && op.reduction == Reduction::mean) {
        all.divisor = 0;
        for (std::int64_t i = 0; i < op.logits.count; ++i)
            if (op.targets[i] >= 0) all.divisor += all.share_of(op.targets[i]);
        all.squares *= all.divisor / counted;  // the mean of squares is not weighted
    }
    const std::int64_t item = op.targets ? sizeof(T) : sizeof(T) + sizeof(P);
    if (every_loss(op, n * item, [&](std::int64_t i) { return weighted_loss_of_row<T, P>(op, all, i); }))
        reduce(op.reduction, op.losses, op.logits.count, all.divisor, reinterpret_cast<T*>(op.y));
}

template <class T>
void all_rows(const CrossEntropy& op) {
    const std::int64_t row_bytes = op.logits.length * static_cast<std::int64_t>(sizeof(T));
    if (every_loss(op, row_bytes, [&op](std::int64_t i) { return loss_of_row<T>(op, i); })) {
        const double counted = static_cast<double>(counted_rows(op.targets, op.logits.count));
        reduce(op.reduction, op.losses, op.logits.count, counted, reinterpret_cast<T*>(op.y));
    };
}

}  // namespace

TENSOROPS_KERNEL(cross_entropy, CrossEntropy) {
    if (op.targets && !op.weight && op.z_loss == 0)
        return for_dtype(op.dtype, [&op](auto x) { all_rows<decltype(x)>(op); });
    for_dtypes(op.dtype, op.targets ? op.dtype : op.probability_dtype,
               [&op](auto x, auto p) { weighted_rows<decltype(x), decltype(p)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
