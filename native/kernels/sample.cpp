// sample: one index for each row of logits, drawn from their softmax or, at temperature 0, that of the largest.
//
// Work: rows go to threads in contiguous blocks. Nothing is sorted.
//   * The largest logit: one pass, which also keeps the maxima of small parts of the row.
//   * top_k: the k-th largest of those maxima is a lower bound for the k-th largest logit. A pass collects the logits
//     that reach it, usually little more than k, and only these are considered from there on.
//   * top_p: a histogram of weights by their leading bits; then the same for the bin with the threshold, until that bin
//     holds one value. Negligible weights are left out.
//   * The draw: sums of weights in blocks; one block is then searched element by element.
// Precision: float64 in float64, everything else in float32, as in the generic body; but sums are in double, over
//   blocks that are summed in vectors. If a uniform number or top_p is within the rounding error of the body's running
//   sums, the two may choose neighbours.
// No candidate: where a row has a NaN or nothing but -inf, the index is ~i, which is negative, for an index i of it.
// Bytes: a row once for temperature 0; else twice, and its weights once in, once or twice out of the second-level
// cache.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lanes.h"
#include "over_rows.h"
#include "scratch.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr std::int64_t kFew = 64;          // weights that are sorted
constexpr std::int64_t kLongestPart = 64;  // vectors for which one maximum per lane is kept

template <class C>
inline constexpr C kLowest = -std::numeric_limits<C>::infinity();

// At most a vector of elements; the other lanes are -infinity.
template <class T>
inline Vec<Compute<T>> load_or_lowest(const T* x, std::int64_t n) {
    constexpr std::int64_t lanes = kLanes<Compute<T>>;
    if (n >= lanes) return load(x);
    Vec<Compute<T>> v = load_part(x, n);
    for (std::int64_t i = n; i < lanes; ++i) v[i] = kLowest<Compute<T>>;
    return v;
}

// The largest elements in the lanes of some vectors, and whether there is a NaN.
template <class T>
struct LaneMaxima {
    Vec<Compute<T>> value = Vec<Compute<T>>{} + kLowest<Compute<T>>;
    decltype(value < value) nan{};

    LaneMaxima(const T* x, std::int64_t n) {
        constexpr std::int64_t lanes = kLanes<Compute<T>>;
        Vec<Compute<T>> other = value;
        std::int64_t i = 0;
        for (; i + 2 * lanes <= n; i += 2 * lanes) {
            const Vec<Compute<T>> a = load(x + i), b = load(x + i + lanes);
            nan |= (a != a) | (b != b);
            value = larger_ignoring_nan(value, a);
            other = larger_ignoring_nan(other, b);
        }
        for (; i < n; i += lanes) {
            const Vec<Compute<T>> a = load_or_lowest(x + i, n - i);
            nan |= a != a;
            value = larger_ignoring_nan(value, a);
        }
        value = larger_ignoring_nan(value, other);
    }
};

// ------------------------------------------------------------------------------------------------ temperature 0

template <class T, class F>
std::int64_t first_where(const T* x, std::int64_t n, F is_it) {
    constexpr std::int64_t lanes = kLanes<Compute<T>>;
    for (std::int64_t i = 0; i < n; i += lanes) {
        const auto found = is_it(load_or_lowest(x + i, n - i));
        if (!any(found)) continue;
        for (std::int64_t lane = 0; lane < std::min(lanes, n - i); ++lane)
            if (found[lane]) return i + lane;
    }
    return 0;
}

// The first NaN, or else the first of the largest: numpy.argmax's answer.
template <class T>
std::int64_t index_of_largest(const T* x, std::int64_t n) {
    using C = Compute<T>;
    C largest = kLowest<C>;
    std::int64_t where = 0;
    for (std::int64_t i = 0; i < n; i += kBlock) {
        const LaneMaxima<T> block(x + i, std::min(kBlock, n - i));
        if (any(block.nan)) return i + first_where(x + i, n - i, [](Vec<C> v) { return v != v; });
        const C value = largest_of_lanes(block.value);
        if (value > largest) {
            largest = value;
            where = i;
        }
    }
    return where + first_where(x + where, n - where, [largest](Vec<C> v) { return v == largest; });
}

// --------------------------------------------------------------------------------------- memory for one row's draw

// The bins of a range of weights, by the bits that distinguish them. A larger weight has a smaller number.
struct Bins {
    std::uint32_t first = 0x3f800000u;  // the bits of 1, the largest weight
    int shift = 19;
    std::int64_t chosen = 0;
    static constexpr std::int64_t kCount = 2048;
    static constexpr std::int64_t kApart = 4;  // histograms, so that one addition need not wait for another

    template <class B>
    B number(B bits) const {
        return (first - bits) >> shift;
    }
    bool exact() const { return shift == 0; }
    // The bins within one of these bins
    Bins within(std::int64_t bin) const {
        return {first - (static_cast<std::uint32_t>(bin) << shift), shift > 10 ? shift - 10 : 0, 0};
    }
};

template <class C>
struct Room {
    C *weights, *values;
    std::int64_t* indices;
    double *sums, *bins;

    // Elements are written in whole vectors, beyond the last candidate.
    static std::int64_t elements(std::int64_t n) { return n + kLongestPart * static_cast<std::int64_t>(kLanes<C>); }
    static std::int64_t size_of_elements(std::int64_t n) {
        return whole_lines(elements(n) * static_cast<std::int64_t>(sizeof(C)));
    }
    static std::int64_t size_of_indices(std::int64_t n) {
        return whole_lines(n * static_cast<std::int64_t>(sizeof(std::int64_t)));
    }
    static std::int64_t size_of_sums(std::int64_t n) {
        return whole_lines((n / kBlock + 1) * static_cast<std::int64_t>(sizeof(double)));
    }
    static std::int64_t size_of_bins(std::int64_t n) {
        return n > kFew ? (1 + Bins::kApart) * Bins::kCount * static_cast<std::int64_t>(sizeof(double)) : 0;
    }
    static std::int64_t bytes(std::int64_t n) {
        return 2 * size_of_elements(n) + size_of_indices(n) + size_of_sums(n) + size_of_bins(n);
    }

    Room(const Scratch& scratch, std::int64_t offset, std::int64_t n)
        : weights(scratch.at<C>(offset)),
          values(scratch.at<C>(offset + size_of_elements(n))),
          indices(scratch.at<std::int64_t>(offset + 2 * size_of_elements(n))),
          sums(scratch.at<double>(offset + 2 * size_of_elements(n) + size_of_indices(n))),
          bins(scratch.at<double>(offset + 2 * size_of_elements(n) + size_of_indices(n) + size_of_sums(n))) {}
};

// ------------------------------------------------------------------------------------------------------- top_k

// Collects the elements that reach `least`, and where they are; returns their number.
template <class T>
std::int64_t collect(const T* x, std::int64_t n, Compute<T> least, Compute<T>* values, std::int64_t* indices) {
    constexpr std::int64_t lanes = kLanes<Compute<T>>;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < n; i += lanes) {
        const Vec<Compute<T>> v = load_or_lowest(x + i, n - i);
        if (!any(v >= least)) continue;
        Compute<T> part[lanes];
        store(part, v);
        for (std::int64_t lane = 0; lane < std::min(lanes, n - i); ++lane) {
            if (!(part[lane] >= least)) continue;
            values[count] = part[lane];
            indices[count++] = i + lane;
        }
    }
    return count;
}

template <class C>
C kth_largest(C* values, std::int64_t n, std::int64_t k) {
    std::nth_element(values, values + (k - 1), values + n, std::greater<C>());
    return values[k - 1];
}

// A lower bound for the elements whose quotients are among the k largest, including ties. `maxima` are those of
// different elements.
template <class C>
C bound_of_top_k(C* maxima, std::int64_t count, std::int64_t k, C largest, C temperature) {
    // Quotients below the normal numbers may be equal however far apart the logits are.
    if (temperature > C(1e25)) return kLowest<C>;
    const C least = kth_largest(maxima, count, k);
    // Distances to the largest logit, and their quotients, are equal for logits that differ by a few units.
    return least - 4 * std::numeric_limits<C>::epsilon() * (largest - least);
}

// ------------------------------------------------------------------------------------------------------ weights

template <class C>
inline Vec<C> weights_of(Vec<C> scaled) {
    const Vec<C> e = exp_of_negative(scaled);
    return e > 1 ? Vec<C>{} + C(1) : e;
}

// exp((x - largest) / temperature) of all elements, padded with 0 to a whole vector.
template <class T>
void make_weights(const T* x, std::int64_t n, Compute<T> largest, Compute<T> temperature, Compute<T>* weights) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const auto make = [&](auto scale) {
        std::int64_t i = 0;
        for (; i + lanes <= n; i += lanes) store(weights + i, weights_of<C>(scale(load(x + i) - largest)));
        if (i < n) store(weights + i, weights_of<C>(scale(load_or_lowest(x + i, n - i) - largest)));
    };
    if (temperature == 1)
        make([](Vec<C> v) { return v; });
    else
        make([temperature](Vec<C> v) { return v / temperature; });
}

// The same for collected elements, with 0 for those that are not among the k largest.
template <class C>
void make_weights_of_top_k(C* values, std::int64_t n, std::int64_t k, C largest, C temperature, C* weights) {
    constexpr std::int64_t lanes = kLanes<C>;
    for (std::int64_t i = 0; i < n; ++i) weights[i] = values[i] = (values[i] - largest) / temperature;
    const C least = kth_largest(weights, n, k);
    for (std::int64_t i = 0; i < n; i += lanes) {
        const Vec<C> scaled = load_or_lowest(values + i, n - i);
        const Vec<C> e = weights_of<C>(scaled);
        store(weights + i, scaled >= least ? e : Vec<C>{});
    }
}

// ------------------------------------------------------------------------------------------------------- top_p

inline std::uint32_t float_bits(float w) {
    std::uint32_t bits;
    std::memcpy(&bits, &w, sizeof bits);
    return bits;
}
inline std::uint32_t float_bits(double w) { return float_bits(static_cast<float>(w)); }
inline U32 float_bits(Vec<float> w) { return bits_of(w); }

// Adds weights to their bins. Neighbours have separate histograms, in memory that follows that of the sums.
template <class C>
void add_to_bins(const C* weights, std::int64_t n, Bins bins, double* sums) {
    constexpr std::int64_t kApart = Bins::kApart;
    auto* const apart = reinterpret_cast<double (*)[Bins::kCount]>(sums + Bins::kCount);
    std::fill(apart[0], apart[kApart], 0.0);
    std::int64_t i = 0;
    for (; i + kApart <= n; i += kApart)
        for (std::int64_t k = 0; k < kApart; ++k)
            apart[k][bins.number(float_bits(weights[i + k]))] += static_cast<double>(weights[i + k]);
    for (; i < n; ++i) apart[0][bins.number(float_bits(weights[i]))] += static_cast<double>(weights[i]);
    for (i = 0; i < Bins::kCount; ++i) sums[i] = (apart[0][i] + apart[1][i]) + (apart[2][i] + apart[3][i]);
}

// Copies the selected weights to `to`, which has room for one more vector and may be where they come from.
template <class C, class F>
std::int64_t copy_where(const C* weights, std::int64_t n, C* to, F wanted) {
    std::int64_t count = 0, i = 0;
    if constexpr (sizeof(C) == 4) {
        constexpr std::int64_t lanes = kLanes<C>;
        for (; i + lanes <= n; i += lanes) {
            const Vec<float> v = load(weights + i);
            const auto mask = wanted(v);
#if defined(__AVX512F__)
            const __mmask16 bits = _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
            _mm512_storeu_ps(to + count, _mm512_maskz_compress_ps(bits, reinterpret_cast<__m512>(v)));
            count += __builtin_popcount(bits);
#else
            if (!any(mask)) continue;
            for (std::int64_t lane = 0; lane < lanes; ++lane) {
                to[count] = v[lane];
                count -= mask[lane];
            }
#endif
        }
    }
    for (; i < n; ++i) {
        const C w = weights[i];
        to[count] = w;
        count += wanted(w);
    }
    return count;
}

template <class C>
double sum_of(const C* weights, std::int64_t n) {
    constexpr std::int64_t lanes = kLanes<C>;
    double total = 0;
    for (std::int64_t i = 0; i < n;) {
        Vec<C> s0{}, s1{};
        const std::int64_t end = std::min(i + kBlock, n);
        for (; i + lanes < end; i += 2 * lanes) {
            s0 += load(weights + i);
            s1 += load(weights + i + lanes);
        }
        for (; i < end; i += lanes) s0 += load(weights + i);
        total += static_cast<double>(sum_of_lanes<C>(s0 + s1));
    }
    return total;
}

// The smallest of the most probable candidates whose weights reach the fraction top_p of all: a candidate is kept if
// the sum of larger weights is less than that. `sums` has room for those of bins, see add_to_bins.
template <class C>
C smallest_of_top_p(const C* weights, std::int64_t n, double top_p, C* room, double* sums) {
    double larger = 0;  // the sum of the weights that are larger than all in `room`
    const double total = sum_of(weights, n), enough = top_p * total;
    // So small that all together are less than the part that may be dropped.
    const C negligible = static_cast<C>(0.99 * (total - enough) / static_cast<double>(n));
    n = copy_where(weights, n, room, [negligible](auto w) { return w >= negligible; });
    for (Bins bins; n > kFew; bins = bins.within(bins.chosen)) {
        add_to_bins(room, n, bins, sums);
        for (std::int64_t bin = 0; bin < Bins::kCount; ++bin) {
            if (sums[bin] == 0) continue;
            bins.chosen = bin;
            if (larger + sums[bin] >= enough) break;
            larger += sums[bin];
        }
        const auto bin = static_cast<std::uint32_t>(bins.chosen);
        n = copy_where(room, n, room, [bins, bin](auto w) { return bins.number(float_bits(w)) == bin; });
        if (sizeof(C) == 4 && bins.exact()) return room[0];
        if (bins.exact()) break;
    }
    std::sort(room, room + n, std::greater<C>());
    C smallest = room[0];
    for (std::int64_t i = 0; i < n && larger < enough; ++i) {
        smallest = room[i];
        larger += static_cast<double>(smallest);
    }
    return smallest;
}

// ------------------------------------------------------------------------------------------------------ the draw

// Sums of blocks of the weights that reach `least`; returns the sum of all blocks. The last vector is zero-padded.
template <class C>
double sum_blocks(const C* weights, std::int64_t n, C least, double* sums) {
    constexpr std::int64_t lanes = kLanes<C>;
    double total = 0;
    for (std::int64_t begin = 0; begin < n; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, n);
        Vec<C> s0{}, s1{};
        std::int64_t i = begin;
        for (; i + 2 * lanes <= end; i += 2 * lanes) {
            const Vec<C> a = load(weights + i), b = load(weights + i + lanes);
            s0 += a >= least ? a : Vec<C>{};
            s1 += b >= least ? b : Vec<C>{};
        }
        for (; i < end; i += lanes) {
            const Vec<C> a = load(weights + i);
            s0 += a >= least ? a : Vec<C>{};
        }
        total += sums[begin / kBlock] = static_cast<double>(sum_of_lanes<C>(s0 + s1));
    }
    return total;
}

// The first candidate at which the running sum exceeds `target`; the last of positive weight, if rounding leaves none.
template <class C>
std::int64_t find(const C* weights, std::int64_t n, C least, const double* sums, double target) {
    double before = 0, sum = 0;
    std::int64_t block = 0, last = 0;
    for (std::int64_t b = 0; b * kBlock < n; ++b) {
        if (sums[b] == 0) continue;
        block = b;
        before = sum;
        sum += sums[b];
        if (sum > target) break;
    }
    sum = before;
    const std::int64_t end = std::min((block + 1) * kBlock, n);
    for (std::int64_t i = block * kBlock; i < end; ++i) {
        if (!(weights[i] >= least && weights[i] > 0)) continue;
        last = i;
        sum += static_cast<double>(weights[i]);
        if (sum > target) break;
    }
    return last;
}

// One of the elements that are +infinity, each as likely as the others: no option keeps one of them without the others.
template <class T>
std::int64_t draw_among_infinite(const T* x, std::int64_t n, Compute<T> uniform) {
    const auto is_one = [x](std::int64_t i) { return load_one(x + i) == std::numeric_limits<Compute<T>>::infinity(); };
    std::int64_t count = 0, reached = 0, last = 0;
    for (std::int64_t i = 0; i < n; ++i) count += is_one(i);
    const double target = static_cast<double>(uniform) * static_cast<double>(count);
    for (std::int64_t i = 0; i < n; ++i) {
        if (!is_one(i)) continue;
        last = i;
        if (static_cast<double>(++reached) > target) break;
    }
    return last;
}

template <class T>
std::int64_t draw(const Sample& op, const T* x, Compute<T> uniform, const Room<Compute<T>>& room) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const std::int64_t n = op.logits.length;
    const C temperature = static_cast<C>(op.temperature);
    const bool restricted = op.top_k > 0 && op.top_k < n;

    const std::int64_t part = restricted ? std::clamp<std::int64_t>(n / op.top_k / 8, 1, kLongestPart) : kLongestPart;
    std::int64_t maxima = 0;
    Vec<C> tops = Vec<C>{} + kLowest<C>;
    for (std::int64_t i = 0; i < n; i += part * lanes, maxima += lanes) {
        const LaneMaxima<T> of_part(x + i, std::min(part * lanes, n - i));
        if (any(of_part.nan)) return ~std::int64_t{0};
        store(room.weights + maxima, of_part.value);
        tops = larger_ignoring_nan(tops, of_part.value);
    }
    const C largest = largest_of_lanes(tops);
    if (largest == kLowest<C>) return ~std::int64_t{0};
    if (uniform < 0) return 0;  // as the body finds
    if (!std::isfinite(largest)) return draw_among_infinite(x, n, uniform);

    std::int64_t count = n;
    if (restricted) {
        const C least = bound_of_top_k(room.weights, maxima, op.top_k, largest, temperature);
        count = collect(x, n, least, room.values, room.indices);
        make_weights_of_top_k(room.values, count, op.top_k, largest, temperature, room.weights);
    } else {
        make_weights(x, n, largest, temperature, room.weights);
    }
    C least = static_cast<C>(op.min_p);
    if (op.top_p < 1)
        least = std::max(least, smallest_of_top_p(room.weights, count, static_cast<double>(static_cast<C>(op.top_p)),
                                                  room.values, room.bins));
    const double total = sum_blocks(room.weights, count, least, room.sums);
    const C target = uniform * static_cast<C>(total);  // rounded as in the body
    const std::int64_t found = find(room.weights, count, least, room.sums, static_cast<double>(target));
    return restricted ? room.indices[found] : found;
}

template <class C>
C uniform_of(const Sample& op, std::int64_t row) {
    return for_dtype(op.uniform_dtype, [&op, row](auto element) {
        return static_cast<C>(load_one(reinterpret_cast<const decltype(element)*>(op.uniform) + row));
    });
}

template <class T>
void all_rows(const Sample& op) {
    using C = Compute<T>;
    const std::int64_t rows = op.logits.count, n = op.logits.length;
    const std::int64_t all_bytes = rows * n * static_cast<std::int64_t>(sizeof(T));
    const auto row = [&op](std::int64_t i) { return reinterpret_cast<const T*>(op.logits.row(i)); };
    if (!op.uniform)
        return over_rows(rows, all_bytes, [&](std::int64_t i) {
            const std::int64_t index = index_of_largest(row(i), n);
            op.chosen[i] = load_one(row(i) + index) > kLowest<C> ? index : ~index;
        });
    const int threads = threads_for(rows, 4 * all_bytes);  // a draw costs as much as moving four rows
    const std::int64_t bytes = Room<C>::bytes(n);
    const Scratch scratch(threads * bytes);
    over_shares(threads, rows, 1, [&](Share mine) {
        const Room<C> room(scratch, mine.member * bytes, n);
        for (std::int64_t i = mine.begin; i < mine.end; ++i)
            op.chosen[i] = draw(op, row(i), uniform_of<C>(op, i), room);
    });
}

}  // namespace

TENSOROPS_KERNEL(sample, Sample) {
    for_dtype(op.dtype, [&op](auto x) { all_rows<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
