// Cross entropy of rows of logits: log(sum(exp(x - max))) - (x[target] - max), smoothed towards the mean of all
// classes.
//
// Work: rows go to threads in contiguous blocks. A row is read for its maximum and again for the exponentials.
// Precision: as softmax.cpp; the loss of a row is rounded to the type of computation, as the caller would see it.
// Bytes: each logit once, as long as a row stays in the second-level cache.
#include "cross_entropy.h"

#include <cmath>

#include "exponentials.h"
#include "parallel.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T>
double mean_above(const T* x, std::int64_t n, Compute<T> largest) {
    using C = Compute<T>;
    double total = 0;
    for (std::int64_t begin = 0; begin < n; begin += kSummed) {
        const std::int64_t end = n - begin > kSummed ? begin + kSummed : n;
        Vec<C> sum{};
        std::int64_t i = begin;
        for (; i + kLanes<C> <= end; i += kLanes<C>) sum += load(x + i) - largest;
        total += static_cast<double>(sum_of_lanes<C>(sum));
        for (; i < end; ++i) total += static_cast<double>(load_one(x + i) - largest);
    }
    return total / static_cast<double>(n);
}

template <class T>
double loss_of_row(const CrossEntropy& op, std::int64_t index) {
    using C = Compute<T>;
    const std::int64_t n = op.logits.length, target = op.targets[index];
    if (target < 0) return 0;
    const T* x = reinterpret_cast<const T*>(op.logits.row(index));
    const C largest = maximum(x, n);
    const double log_total = std::log(sum_of_exponentials<T>(x, n, largest, nullptr, x));
    double loss = log_total - static_cast<double>(load_one(x + target) - largest);
    if (op.label_smoothing != 0)
        loss = (1 - op.label_smoothing) * loss + op.label_smoothing * (log_total - mean_above(x, n, largest));
    return static_cast<double>(static_cast<C>(loss));
}

template <class T>
void reduce(const CrossEntropy& op, T* y) {
    double total = 0, counted = 0;
    for (std::int64_t i = 0; i < op.logits.count; ++i) {
        if (op.reduction == Reduction::none) store_one(y + i, static_cast<Compute<T>>(op.losses[i]));
        total += op.losses[i];
        counted += op.targets[i] >= 0;
    }
    if (op.reduction == Reduction::sum) store_one(y, static_cast<Compute<T>>(total));
    if (op.reduction == Reduction::mean) store_one(y, static_cast<Compute<T>>(total / counted));
}

template <class T>
void all_rows(const CrossEntropy& op) {
    const std::int64_t rows = op.logits.count;
    const int threads = threads_for(rows, 2 * rows * op.logits.length * static_cast<std::int64_t>(sizeof(T)));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t i = 0; i < rows; ++i) op.losses[i] = loss_of_row<T>(op, i);
    reduce(op, reinterpret_cast<T*>(op.y));
}

}  // namespace

void cross_entropy(const CrossEntropy& op) {
    switch (op.dtype) {
        case Dtype::float64:
            return all_rows<double>(op);
        case Dtype::float32:
            return all_rows<float>(op);
        case Dtype::float16:
            return all_rows<Float16>(op);
        case Dtype::bfloat16:
            return all_rows<BFloat16>(op);
        case Dtype::other:
            return;  // the binding has refused it
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
