// Cross entropy of rows of logits x · Wᵀ + bias, which exist for a tile of rows and classes only.
//
// Work: that of linear.cpp; what is done of a logit is small compared with its product with more than a few features.
// Each
//   thread keeps the largest logit of a row that it has seen, and the sum of exponentials; at the end those
//   of all threads are joined.
// Precision: logits as in linear.cpp, not rounded to half types; sums of exponentials and losses in double.
// Bytes: the weights once for every chunk of rows; a few dozen for each row and thread.
#include "linear_cross_entropy.h"

#include <cmath>
#include <limits>

#include "linear_products.h"
#include "losses.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Of the logits of a row that a thread has seen
struct Seen {
    float largest = kLowest;
    double sum = 0;   // of exp(x - largest), in units of exp_in_units; NaN if a logit is
    double even = 0;  // of logits times the weights with which they count in a smoothed loss
};

// A block of logits of one row, padded by the lowest number to whole vectors.
void add_block(Seen& seen, const float* x, const Vec<float>& largest_of_each, std::int64_t padded) {
    const float largest = largest_of_lanes(largest_of_each);
    if (largest > seen.largest) {
        if (seen.sum != 0) seen.sum *= std::exp(static_cast<double>(seen.largest) - static_cast<double>(largest));
        seen.largest = largest;
    }
    Vec<float> sum{};
    if (seen.largest == kLowest) {  // no exponential differs from 0, but NaN shows
        for (std::int64_t i = 0; i < padded; i += kLanes<float>) {
            const Vec<float> a = load(x + i);
            sum += a == a ? Vec<float>{} : a;
        }
    } else {
        for (std::int64_t i = 0; i < padded; i += kLanes<float>) sum += exp_in_units(load(x + i) - seen.largest);
    }
    seen.sum += static_cast<double>(sum_of_lanes<float>(sum));
}

// What the logits of a block add to a smoothed loss; those without weight count nothing even if they are infinite.
double evenly(const float* x, const float* weight, std::int64_t width) {
    double total = 0;
    for (std::int64_t i = 0; i < width; ++i)
        if (!weight || weight[i] != 0 || x[i] != x[i])
            total += static_cast<double>(x[i]) * (weight ? static_cast<double>(weight[i]) : 1);
    return total;
}

struct Call {
    const LinearCrossEntropy& op;
    const float *bias, *ce_weight;  // or nullptr
    Seen* seen;                     // of each thread and row
    float* chosen;                  // the logits of the targets

    void put(std::int64_t row, std::int64_t first, std::int64_t width, float* x, int member) const {
        constexpr std::int64_t lanes = kLanes<float>;
        const std::int64_t padded = (width + lanes - 1) / lanes * lanes;
        for (std::int64_t i = width; i < padded; ++i) x[i] = kLowest;
        Vec<float> largest = Vec<float>{} + kLowest;
        for (std::int64_t i = 0; i < padded; i += lanes) {
            Vec<float> a = load(x + i);
            if (bias) store(x + i, a += load_some(bias + first + i, std::min(width - i, lanes)));
            largest = larger_ignoring_nan(largest, a);
        }
        Seen& mine = seen[member * op.product.x.count + row];
        add_block(mine, x, largest, padded);
        if (op.label_smoothing != 0) mine.even += evenly(x, ce_weight ? ce_weight + first : nullptr, width);
        const std::int64_t place = op.targets[row] - first;
        if (place >= 0 && place < width) chosen[row] = x[place];
    }
};

// The logarithm of a row's sum of exponentials, and what its logits add to a smoothed loss
struct Joined {
    double log_sum, even;
};

Joined joined(const Seen* seen, std::int64_t rows, int threads) {
    float largest = kLowest;
    for (int k = 0; k < threads; ++k) largest = std::max(largest, seen[k * rows].largest);
    double sum = 0, even = 0;
    for (int k = 0; k < threads; ++k) {
        const Seen& part = seen[k * rows];
        even += part.even;
        if (part.largest == kLowest && part.sum == 0 && largest != kLowest) continue;
        sum += part.sum * std::exp(static_cast<double>(part.largest) - static_cast<double>(largest));
    }
    return {std::log(sum / static_cast<double>(kOneInUnits<float>)) + static_cast<double>(largest), even};
}

// Of all rows: what their losses are made of besides the logits
struct Shares {
    double counted, divisor, weights;  // rows that are not ignored; the divisor of a mean; the mean weight of a class
};

Shares shares_of(const LinearCrossEntropy& op, const float* ce_weight) {
    const std::int64_t rows = op.product.x.count, classes = op.product.outputs;
    const double counted = static_cast<double>(counted_rows(op.targets, rows));
    Shares shares{counted, counted, 1};
    if (!ce_weight) return shares;
    shares.divisor = shares.weights = 0;
    for (std::int64_t i = 0; i < rows; ++i)
        if (op.targets[i] >= 0) shares.divisor += static_cast<double>(ce_weight[op.targets[i]]);
    for (std::int64_t i = 0; i < classes && op.label_smoothing != 0; ++i)
        shares.weights += static_cast<double>(ce_weight[i]) / static_cast<double>(classes);
    return shares;
}

double loss_of_row(const Call& call, std::int64_t row, int threads, const Shares& shares) {
    const LinearCrossEntropy& op = call.op;
    const std::int64_t target = op.targets[row];
    if (target < 0) return 0;
    const Joined all = joined(call.seen + row, op.product.x.count, threads);
    const double own = call.ce_weight ? static_cast<double>(call.ce_weight[target]) : 1, s = op.label_smoothing;
    double loss = times(own, all.log_sum - static_cast<double>(call.chosen[row]));
    if (s != 0) {
        const double even = all.log_sum * shares.weights - all.even / static_cast<double>(op.product.outputs);
        loss = (1 - s) * loss + s * even;
    }
    if (op.z_loss == 0) return loss * kLossUnit;
    // The mean of squares is not weighted.
    const double factor = op.reduction == Reduction::mean ? op.z_loss * (shares.divisor / shares.counted) : op.z_loss;
    return loss * kLossUnit + factor * (all.log_sum * kLossUnit) * all.log_sum;
}

template <class T, class W>
void losses(const LinearCrossEntropy& op) {
    const std::int64_t rows = op.product.x.count, classes = op.product.outputs;
    const int threads = threads_of<W>(op.product);
    const std::int64_t line = whole_lines(classes * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t of_bias = op.product.bias ? line : 0, of_weights = op.ce_weight ? line : 0;
    const std::int64_t of_seen = whole_lines(threads * rows * static_cast<std::int64_t>(sizeof(Seen)));
    const Scratch scratch(of_bias + of_weights + of_seen + rows * static_cast<std::int64_t>(sizeof(float)));
    float* bias = op.product.bias ? scratch.at<float>(0) : nullptr;
    float* weights = op.ce_weight ? scratch.at<float>(of_bias) : nullptr;
    if (bias) widen(op.product.bias_dtype, op.product.bias, bias, classes);
    if (weights) widen(op.ce_weight_dtype, op.ce_weight, weights, classes);
    Seen* seen = scratch.at<Seen>(of_bias + of_weights);
    std::fill(seen, seen + threads * rows, Seen{});
    const Call call{op, bias, weights, seen, scratch.at<float>(of_bias + of_weights + of_seen)};
    each_product<T, W>(op.product, threads,
                       [&call](std::int64_t row, std::int64_t first, std::int64_t width, float* sums, int member) {
                           call.put(row, first, width, sums, member);
                       });
    if (interruption && interruption->happened()) return;
    const Shares shares = shares_of(op, weights);
    for (std::int64_t i = 0; i < rows; ++i) op.losses[i] = loss_of_row(call, i, threads, shares);
    reduce(op.reduction, op.losses, rows, shares.divisor, reinterpret_cast<T*>(op.y));
}

}  // namespace

TENSOROPS_KERNEL(linear_cross_entropy, LinearCrossEntropy) {
    for_narrow_dtype(op.product.x_dtype, [&op](auto x) {
        for_narrow_dtype(op.product.weight_dtype, [&op](auto weight) { losses<decltype(x), decltype(weight)>(op); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
