// With shares s of the classes of a row, which are those of its target, smoothed and weighted, and p = softmax(x):
//   dx = dy (p sum(s) - s + 2 z log(sum(exp(x))) p), over the divisor of a mean
//
// Work: rows go to threads in contiguous blocks. A row is read for its maximum and again for the exponentials, which a
//   buffer of the thread keeps until their sum is known.
// Precision: as in cross_entropy.cpp.
// Bytes: each logit once in, once out, as long as a row and the buffer stay in the second-level cache.
#include "cross_entropy_vjp.h"

#include <cmath>

#include "convert.h"
#include "exponentials.h"
#include "losses.h"
#include "over_rows.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

struct OfAll {
    double divisor;      // of a mean of losses; else 1
    double squares;      // the factor of squared logarithms
    double mean_weight;  // of all classes
};

template <class C>
double weight_of(const CrossEntropy& op, std::int64_t index) {
    return op.weight ? static_cast<double>(reinterpret_cast<const C*>(op.weight)[index]) : 1;
}

// dx = e factor - shares(i, k)
template <class T, class F>
void write(T* dx, std::int64_t n, const Compute<T>* e, Compute<T> factor, F shares) {
    put_row<false>(dx, n, [=](std::int64_t i, std::int64_t k) { return load_some(e + i, k) * factor - shares(i, k); });
}

// `room` has two rows.
template <class T>
void one_row(const CrossEntropyVjp& op, const OfAll& all, std::int64_t index, Compute<T>* room) {
    using C = Compute<T>;
    const CrossEntropy& loss = op.loss;
    const std::int64_t n = loss.logits.length, target = loss.targets ? loss.targets[index] : 0;
    T* dx = reinterpret_cast<T*>(op.dx) + index * n;
    if (target < 0) return put_row<false>(dx, n, [](std::int64_t, std::int64_t) { return Vec<C>{}; });
    const T* x = reinterpret_cast<const T*>(loss.logits.row(index));
    const C* weight = reinterpret_cast<const C*>(loss.weight);
    const T* dy = reinterpret_cast<const T*>(op.dy) + (loss.reduction == Reduction::none ? index : 0);
    const double d = static_cast<double>(load_one(dy)) / all.divisor, own = 1 - loss.label_smoothing;
    const double even = loss.label_smoothing / static_cast<double>(n);
    const C largest = maximum<T>(x, n);
    C *e = room, *shares = room + n;
    const double total = sum_of_exponentials<T>(x, n, largest, e, x);
    double sum = loss.targets ? own * weight_of<C>(loss, target) + loss.label_smoothing * all.mean_weight : 0;
    if (!loss.targets) {
        for_dtype(loss.probability_dtype, [&](auto p) {
            using P = decltype(p);
            if constexpr (is_same<Compute<P>, C>)
                convert(reinterpret_cast<const P*>(loss.probabilities->row(index)), shares, n);
        });
        put_row<false>(shares, n, [=](std::int64_t i, std::int64_t k) {
            const Vec<C> s = load_some(shares + i, k) * static_cast<C>(own) + static_cast<C>(even);
            return weight ? s * load_some(weight + i, k) : s;
        });
        sum = static_cast<double>(
            sum_of_row<C>(n, [shares](std::int64_t i, std::int64_t k) { return load_some(shares + i, k); }));
    }
    if (loss.z_loss != 0) sum += 2 * all.squares * (std::log(total) + static_cast<double>(largest));
    const C factor = static_cast<C>(d * sum / total / static_cast<double>(kOneInUnits<C>));
    const C scale = static_cast<C>(loss.targets ? d * even : d);
    if (!loss.targets)
        write(dx, n, e, factor, [=](std::int64_t i, std::int64_t k) { return load_some(shares + i, k) * scale; });
    else if (weight && even != 0)
        write(dx, n, e, factor, [=](std::int64_t i, std::int64_t k) { return load_some(weight + i, k) * scale; });
    else
        write(dx, n, e, factor, [=](std::int64_t, std::int64_t) { return Vec<C>{} + scale; });
    if (!loss.targets) return;
    const double of_even = even == 0 ? 0 : static_cast<double>(scale) * weight_of<C>(loss, target);
    store_one(dx + target, static_cast<C>(static_cast<double>(e[target]) * static_cast<double>(factor) - of_even -
                                          d * own * weight_of<C>(loss, target)));
}

template <class T>
void every_row(const CrossEntropyVjp& op) {
    using C = Compute<T>;
    const CrossEntropy& loss = op.loss;
    const std::int64_t rows = loss.logits.count, n = loss.logits.length;
    const double counted = static_cast<double>(counted_rows(loss.targets, rows));
    OfAll all{1, loss.z_loss, 0};
    for (std::int64_t i = 0; i < n; ++i) all.mean_weight += weight_of<C>(loss, i);
    all.mean_weight /= static_cast<double>(n);
    if (loss.reduction == Reduction::mean) {
        all.divisor = counted;
        if (loss.weight && loss.targets) {
            all.divisor = 0;
            for (std::int64_t i = 0; i < rows; ++i)
                if (loss.targets[i] >= 0) all.divisor += weight_of<C>(loss, loss.targets[i]);
            all.squares *= all.divisor / counted;  // the mean of squares is not weighted
        }
    }
    const int threads = threads_for_rows(rows, 2 * rows * n * static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t room = whole_lines(2 * n * static_cast<std::int64_t>(sizeof(C)));
    const Scratch scratch(threads * room);
    over_shares(threads, rows, 1, [&](Share mine) {
        C* const own = scratch.at<C>(mine.member * room);
        for (std::int64_t i = mine.begin; i < mine.end; ++i) one_row<T>(op, all, i, own);
    });
}

}  // namespace

TENSOROPS_KERNEL(cross_entropy_vjp, CrossEntropyVjp) {
    for_dtype(op.loss.dtype, [&op](auto x) { every_row<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
