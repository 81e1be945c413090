// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along rows that are groups of channels, each channel
// with one weight and one bias.
//
// Work: rows go to threads in contiguous blocks; if there are fewer rows than threads, and they are long, all threads
//   share each of them. A row is read twice, as in layer_norm.
// Precision: as in layer_norm. Sums of long rows are taken in pieces, by however many threads, so that their number
// does
//   not change a result.
// Bytes: each element once in, once out, as in a copy.
#include "group_norm.h"

#include <cmath>

#include "careful_row.h"
#include "moments.h"
#include "over_rows.h"
#include "parameters.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kPiece = 1 << 16;

// The sums over a long row, whose pieces threads share
template <class T>
[[gnu::noinline]] RowSums<double> sums_of_pieces(int threads, const T* x, std::int64_t n, Compute<T> about) {
    const Scratch scratch((n + kPiece - 1) / kPiece * static_cast<std::int64_t>(sizeof(RowSums<double>)));
    auto* const pieces = scratch.at<RowSums<double>>(0);
    over_shares(threads, n, kPiece, [=](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end; i += kPiece) {
            const auto sums = row_sums(x + i, mine.end - i < kPiece ? mine.end - i : kPiece, about);
            pieces[i / kPiece] = {static_cast<double>(sums.difference), static_cast<double>(sums.square)};
        }
    });
    RowSums<double> all{};
    for (std::int64_t i = 0; i * kPiece < n; ++i) {
        all.difference += pieces[i].difference;
        all.square += pieces[i].square;
    }
    return all;
}

template <class T>
Moments<Compute<T>> long_moments_about(int threads, const T* x, std::int64_t n, Compute<T> about) {
    const RowSums<double> sums = sums_of_pieces(threads, x, n, about);
    const double count = static_cast<double>(n), left = sums.difference / count;
    return {static_cast<Compute<T>>(static_cast<double>(about) + left), sums.square / count - left * left};
}

template <class T>
Moments<Compute<T>> moments_of_group(int threads, const T* x, std::int64_t n) {
    if (n <= kPiece) return moments(x, n);
    const Compute<T> about = mean(x, kFirst<T>);
    const Moments<Compute<T>> m = long_moments_about(threads, x, n, about);
    return is_good(m, about) ? m : long_moments_about(threads, x, n, mean(x, n));
}

// A group of channels, each with its weight and bias for `span` elements
template <class T>
struct Group {
    using C = Compute<T>;
    const T *x, *next;
    const C *weight, *bias;
    T* y;
    std::int64_t n, span;

    // The weight and the bias of each element of the vector from i on; a channel begins at or before it.
    template <class F>
    inline Vec<C> values_at(const C* of_channels, std::int64_t channel, std::int64_t i, F from) const {
        Vec<C> v = load_one(of_channels + channel) - Vec<C>{};  // a sum with zero would lose the sign of -0
        std::int64_t next_one = (channel + 1) * span;
        for (; next_one <= i; next_one += span) v = load_one(of_channels + ++channel) - Vec<C>{};
        for (; next_one < i + kLanes<T> && next_one < n; next_one += span)
            v = from(next_one - i) ? load_one(of_channels + ++channel) - Vec<C>{} : v;
        return v;
    }

    template <bool kStream>
    void write(std::int64_t i, std::int64_t end, C mean, C r) const {
        if (span == 1)
            return write_row<kStream, true, true>(x + i, next + i, weight + i, bias + i, y + i, end - i, mean, r);
        constexpr std::int64_t two = 2 * kLanes<T>;
        Vec<C> place{};
        for (std::int64_t j = 0; j < kLanes<T>; ++j) place[j] = static_cast<C>(j);
        const auto from = [place](std::int64_t j) { return place >= static_cast<C>(j) - Vec<C>{}; };
        for (std::int64_t channel = i / span; i < end;) {
            const std::int64_t limit = (channel + 1) * span < end ? (channel + 1) * span : end;
            // Pairs of vectors within the channel
            const std::int64_t whole = (limit - i) / two * two;
            const T* const source = x + i;
            const C w = load_one(weight + channel), b = load_one(bias + channel);
            put_row<kStream>(y + i, whole, next + i, [=](std::int64_t j, std::int64_t k) {
                return (load_some(source + j, k) - mean) * r * w + b;
            });
            i += whole;
            if (i < limit) {
                // A pair in which channels change, or the end
                const std::int64_t rest = end - i < two ? end - i : two;
                put_row<kStream>(y + i, rest, [=](std::int64_t j, std::int64_t k) {
                    return (load_some(x + i + j, k) - mean) * r * values_at(weight, channel, i + j, from) +
                           values_at(bias, channel, i + j, from);
                });
                i += rest;
            }
            while ((channel + 1) * span <= i) ++channel;
        }
    }
    void write_carefully(double eps) const {
        const auto bytes = [](const auto* p) { return reinterpret_cast<const char*>(p); };
        careful_row(careful(kDtype<T>, bytes(x)), kDtype<C>, bytes(weight), bytes(bias), reinterpret_cast<char*>(y),
                    sizeof(T), n, eps, -0.0, Norm::deviation, span);
    }
};

// One group, which several threads may share
template <bool kStream, class T>
void one_group(int threads, const Group<T>& group, double eps) {
    using C = Compute<T>;
    const Moments<C> m = moments_of_group(threads, group.x, group.n);
    const double spread = m.variance + eps;
    if (!is_usual<C>(spread)) return group.write_carefully(eps);
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    over_shares(threads, group.n, kPiece, [&, mean = m.mean](Share mine) {
        group.template write<kStream>(mine.begin, mine.end, mean, r);
        if (kStream && threads > 1) stream_fence();
    });
}

template <class T>
void every_group(const GroupNorm& op) {
    using C = Compute<T>;
    const std::int64_t n = op.x.length, members = n / op.span, channels = op.groups * members;
    const std::int64_t room = whole_lines(channels * static_cast<std::int64_t>(sizeof(C)));
    const Scratch scratch(2 * room);
    const C* const weight = widened(op.weight, op.weight_dtype, C{1}, C{0}, scratch.at<C>(0), channels);
    // -0 does not change any sum
    const C* const bias = widened(op.bias, op.bias_dtype, static_cast<C>(-0.0), C{0}, scratch.at<C>(room), channels);
    const auto group_at = [&](std::int64_t i) {
        const auto row = [&](std::int64_t j) { return reinterpret_cast<const T*>(op.x.row(j)); };
        const std::int64_t first = (op.x.first + i) % op.groups * members;
        T* const y = reinterpret_cast<T*>(op.y) + i * n;
        return Group<T>{row(i), row(i + 1 < op.x.count ? i + 1 : i), weight + first, bias + first, y, n, op.span};
    };
    const std::int64_t bytes = 2 * op.x.count * n * static_cast<std::int64_t>(sizeof(T));
    const int threads = n > kPiece ? threads_for(op.x.count * (n / kPiece), bytes) : 1;
    if (op.x.count < threads) {
        for (std::int64_t i = 0; i < op.x.count; ++i)
            op.streaming ? one_group<true>(threads, group_at(i), op.eps)
                         : one_group<false>(threads, group_at(i), op.eps);
        return;
    }
    over_rows(op.x.count, bytes, op.streaming,
              [&](auto streaming, std::int64_t i) { one_group<streaming>(1, group_at(i), op.eps); });
}

}  // namespace

TENSOROPS_KERNEL(group_norm, GroupNorm) {
    for_dtype(op.x_dtype, [&op](auto x) { every_group<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
