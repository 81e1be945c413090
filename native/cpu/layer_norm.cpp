// y = (x - mean) / sqrt(mean((x - mean)²) + eps) · weight + bias, along rows; for group_norm and instance_norm, rows
// are groups of channels, each with one weight and one bias.
//
// Work: rows go to threads in contiguous blocks; all threads share each row if there are fewer than threads, and they
//   are long. A row is read twice, for its moments and for the result; the second
//   time it comes from the first- or second-level cache, and the next row is fetched meanwhile. Moments are computed
//   about the mean of the row's first elements; if that is more than a standard deviation from the row's mean, they are
//   computed again about the mean of all.
// Precision: float64 in float64, everything else in float32, summed in blocks, so that the error does not grow with the
//   row. The mean of the differences corrects both moments. If the variance leaves the range in which float32 squares
//   neither overflow nor vanish, the row is computed again: see careful_row.h.
// Bytes: each element once in, once out, as in a copy.
#include "layer_norm.h"

#include <cmath>

#include "careful_row.h"
#include "over_rows.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class C>
struct Moments {
    C mean;
    double variance;
};

template <class T>
Compute<T> mean(const T* x, std::int64_t n) {
    return sum_of_row<T>(n, [x](std::int64_t i, std::int64_t k) { return load_some(x + i, k); }) /
           static_cast<Compute<T>>(n);
}

// Sums of the differences from a value and of their squares
template <class C>
struct Sums {
    Vec<C> difference, square;
};

// Long rows are summed in pieces of so many elements, whether or not several threads share them.
constexpr std::int64_t kPiece = 1 << 16;

// Over the whole vectors from begin to end
template <class T>
inline Sums<Compute<T>> plain_sums(const T* x, std::int64_t begin, std::int64_t end, Compute<T> about) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>;
    Vec<C> d[4] = {}, s[4] = {};
    const auto take = [&](int j, std::int64_t at) {
        const Vec<C> a = load(x + at) - about;
        d[j] += a;
        s[j] += a * a;
    };
    std::int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes)
        for (int j = 0; j < 4; ++j) take(j, i + j * lanes);
    for (; i + lanes <= end; i += lanes) take(0, i);
    return {(d[0] + d[1]) + (d[2] + d[3]), (s[0] + s[1]) + (s[2] + s[3])};
}

// The sums over the elements from begin to end of a long row, of at most a piece
struct PieceSums {
    double difference, square;
};

template <class T>
PieceSums piece_sums(const T* x, std::int64_t begin, std::int64_t end, Compute<T> about) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>, block = kAddedPlainly * 4 * lanes;
    Total<C> differences, squares;
    for (std::int64_t i = begin; i < end; i += block) {
        const Sums<C> sums = plain_sums(x, i, end - i < block ? end : i + block, about);
        differences.add(sums.difference);
        squares.add(sums.square);
    }
    C difference = differences.value(), square = squares.value();
    for (std::int64_t i = begin + (end - begin) / lanes * lanes; i < end; ++i) {
        const C a = load_one(x + i) - about;
        difference += a;
        square += a * a;
    }
    return {static_cast<double>(difference), static_cast<double>(square)};
}

// The same over a whole long row, whose pieces threads share
template <class T>
[[gnu::noinline]] PieceSums sums_of_pieces(int threads, const T* x, std::int64_t n, Compute<T> about) {
    const Scratch scratch((n + kPiece - 1) / kPiece * static_cast<std::int64_t>(sizeof(PieceSums)));
    PieceSums* const pieces = scratch.at<PieceSums>(0);
    over_shares(threads, n, kPiece, [=](Share mine) {
        for (std::int64_t i = mine.begin; i < mine.end; i += kPiece)
            pieces[i / kPiece] = piece_sums(x, i, mine.end - i < kPiece ? mine.end : i + kPiece, about);
    });
    PieceSums all{};
    for (std::int64_t i = 0; i * kPiece < n; ++i) {
        all.difference += pieces[i].difference;
        all.square += pieces[i].square;
    }
    return all;
}

// Mean and variance from the differences from a value: the nearer it is to the mean, the smaller the rounding error.
template <class T>
Moments<Compute<T>> moments_about(int threads, const T* x, std::int64_t n, Compute<T> about) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<T>, block = kAddedPlainly * 4 * lanes;
    if (n > block) {
        const PieceSums sums = n > kPiece ? sums_of_pieces(threads, x, n, about) : piece_sums(x, 0, n, about);
        const double count = static_cast<double>(n), left = sums.difference / count;
        return {static_cast<C>(static_cast<double>(about) + left), sums.square / count - left * left};
    }
    const Sums<C> sums = plain_sums(x, 0, n, about);
    C difference = sum_of_lanes<C>(sums.difference), square = sum_of_lanes<C>(sums.square);
    for (std::int64_t i = n / lanes * lanes; i < n; ++i) {
        const C a = load_one(x + i) - about;
        difference += a;
        square += a * a;
    }
    const C count = static_cast<C>(n), left = difference / count;
    return {about + left, static_cast<double>(square / count) - static_cast<double>(left) * static_cast<double>(left)};
}

template <class T>
Moments<Compute<T>> moments(int threads, const T* x, std::int64_t n) {
    using C = Compute<T>;
    // About the mean of the first few elements, which is usually as good as the mean.
    if (constexpr std::int64_t few = 4 * kLanes<T>; n >= 4 * few) {
        const C about = mean(x, few);
        const Moments<C> m = moments_about(threads, x, n, about);
        const double distance = static_cast<double>(m.mean) - static_cast<double>(about);
        if (distance * distance <= m.variance) return m;
    }
    return moments_about(threads, x, n, mean(x, n));
}

// Results from begin to end are those of the elements there: pointers are to the first of them.
template <bool kStream, bool kWeight, bool kBias, class T, class W>
void write_row(const T* x, const T* next, const W* weight, const W* bias, T* y, std::int64_t n, Compute<T> mean,
               Compute<T> r) {
    using C = Compute<T>;
    put_row<kStream>(y, n, next, [=](std::int64_t i, std::int64_t k) {
        Vec<C> v = (load_some(x + i, k) - mean) * r;
        if constexpr (kWeight) v *= load_some(weight + i, k);
        if constexpr (kBias) v += load_some(bias + i, k);
        return v;
    });
}

// A row whose elements have weights and biases of their own
template <class T, class W>
struct Row {
    const T *x, *next;
    const W *weight, *bias;  // or nullptr
    T* y;
    std::int64_t n;

    template <bool kStream>
    void write(std::int64_t i, std::int64_t end, Compute<T> mean, Compute<T> r) const {
        const std::int64_t k = end - i;
        if (weight && bias)
            return write_row<kStream, true, true>(x + i, next + i, weight + i, bias + i, y + i, k, mean, r);
        if (weight) return write_row<kStream, true, false>(x + i, next + i, weight + i, bias, y + i, k, mean, r);
        if (bias) return write_row<kStream, false, true>(x + i, next + i, weight, bias + i, y + i, k, mean, r);
        write_row<kStream, false, false>(x + i, next + i, weight, bias, y + i, k, mean, r);
    }
    void write_carefully(double eps) const {
        careful_row(x, weight, bias, y, n, eps, -0.0, Divisor::deviation);  // -0 does not change any weight
    }
};

// A row of channels, each with its weight and bias for `span` elements
template <class T>
struct ChannelsRow {
    using C = Compute<T>;
    const T *x, *next;
    const C *weight, *bias;
    T* y;
    std::int64_t n, span;

    // The weight and the bias of each element of the vector from i on; a channel begins at or before it.
    template <class F>
    inline Vec<C> values_at(const C* of_channels, std::int64_t channel, std::int64_t i, F from) const {
        Vec<C> v = of_channels[channel] - Vec<C>{};  // a sum with zero would lose the sign of -0
        std::int64_t next_one = (channel + 1) * span;
        for (; next_one <= i; next_one += span) v = of_channels[++channel] - Vec<C>{};
        for (; next_one < i + kLanes<T> && next_one < n; next_one += span)
            v = from(next_one - i) ? of_channels[++channel] - Vec<C>{} : v;
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
            const C w = weight[channel], b = bias[channel];
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
    void write_carefully(double eps) const { careful_row(x, weight, bias, y, n, eps, -0.0, Divisor::deviation, span); }
};

// One row, which several threads may share
template <bool kStream, class R>
void one_row(int threads, const R& row, double eps) {
    const auto m = moments(threads, row.x, row.n);
    using C = decltype(m.mean + 0);
    const double spread = m.variance + eps;
    if (!is_usual<C>(spread)) return row.write_carefully(eps);
    const C r = static_cast<C>(1.0 / std::sqrt(spread));
    if (threads == 1) return row.template write<kStream>(0, row.n, m.mean, r);
    over_shares(threads, row.n, kPiece, [&](Share mine) {
        row.template write<kStream>(mine.begin, mine.end, m.mean, r);
        if (kStream) stream_fence();
    });
}

// row_at(i) is row i.
template <class T, class F>
void every_row(const LayerNorm& op, const F& row_at) {
    const std::int64_t bytes = 2 * op.x.count * op.x.length * static_cast<std::int64_t>(sizeof(T));
    if (op.x.length > kPiece) {
        const int threads = threads_for(op.x.count * (op.x.length / kPiece), bytes);
        if (op.x.count < threads) {
            for (std::int64_t i = 0; i < op.x.count; ++i)
                op.streaming ? one_row<true>(threads, row_at(i), op.eps) : one_row<false>(threads, row_at(i), op.eps);
            return;
        }
    }
    over_rows(op.x.count, bytes, op.streaming,
              [&](auto streaming, std::int64_t i) { one_row<streaming>(1, row_at(i), op.eps); });
}

template <class T>
const T* row_of(const LayerNorm& op, std::int64_t i) {
    return reinterpret_cast<const T*>(op.x.row(i));
}

template <class T, class W>
void rows(const LayerNorm& op) {
    every_row<T>(op, [&op](std::int64_t i) {
        return Row<T, W>{row_of<T>(op, i),
                         row_of<T>(op, i + 1 < op.x.count ? i + 1 : i),
                         reinterpret_cast<const W*>(op.weight),
                         reinterpret_cast<const W*>(op.bias),
                         reinterpret_cast<T*>(op.y) + i * op.x.length,
                         op.x.length};
    });
}

// Parameters in the type of computation; `otherwise` if there are none
template <class C>
void widen_parameters(const char* parameters, Dtype dtype, C otherwise, C* to, std::int64_t n) {
    if (!parameters) {
        for (std::int64_t i = 0; i < n; ++i) to[i] = otherwise;
        return;
    }
    for_dtype(dtype, [=](auto p) {
        const auto* from = reinterpret_cast<const decltype(p)*>(parameters);
        for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(load_one(from + i));
    });
}

template <class T>
void rows_of_channels(const LayerNorm& op) {
    using C = Compute<T>;
    const std::int64_t members = op.x.length / op.span, channels = op.groups * members;
    const std::int64_t bytes = whole_lines(channels * static_cast<std::int64_t>(sizeof(C)));
    const Scratch scratch(2 * bytes);
    C *const weight = scratch.at<C>(0), *const bias = scratch.at<C>(bytes);
    widen_parameters(op.weight, op.parameter_dtype, C{1}, weight, channels);
    widen_parameters(op.bias, op.bias_dtype, static_cast<C>(-0.0), bias, channels);  // -0 does not change any sum
    every_row<T>(op, [&](std::int64_t i) {
        const std::int64_t first = (op.x.first + i) % op.groups * members;
        return ChannelsRow<T>{row_of<T>(op, i), row_of<T>(op, i + 1 < op.x.count ? i + 1 : i), weight + first,
                              bias + first,     reinterpret_cast<T*>(op.y) + i * op.x.length,  op.x.length,
                              op.span};
    });
}

}  // namespace

void layer_norm(const LayerNorm& op) {
    if (op.groups) return for_dtype(op.x_dtype, [&op](auto x) { rows_of_channels<decltype(x)>(op); });
    for_dtypes(op.x_dtype, op.parameter_dtype,
               [&op](auto x, auto parameter) { rows<decltype(x), decltype(parameter)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
