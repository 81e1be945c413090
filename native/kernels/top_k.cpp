// top_k: the k best elements of each row, best first, and their indices.
//
// Work: rows go to threads in contiguous blocks. If there are fewer rows than threads, long rows are divided: each
// thread finds the best of its part, and the best of those are the row's. Nothing but the candidates is sorted:
//   * Smallest elements become largest ones by flipping bits as they are loaded: the sign of floats, all bits of
//   integers.
//   * A sample of the row in small parts: the maxima of at least 2k different lanes of them. The k-th largest of these
//   is
//     a lower bound of the k-th largest element. The sample is so large that reading it costs about as much as the
//     candidates which a larger one would have spared.
//   * One pass over the row collects the elements that reach the bound. If they are more than expected, such as equal
//     ones, all but the k best are dropped, and the rest of the row must exceed the k-th of them.
//   * The candidates are sorted, few by counting for each how many are better, many digit by digit.
// If k is more than an eighth of the row, all its elements are candidates.
// A candidate is one integer: above, the element as an integer of the same order (-0 as 0, NaN as the least); below,
// the complement of its index, so that of equal elements the first is the largest. No two are equal. Precision:
// elements are compared, and copied bit by bit. Bytes: a row once, and the sample once more.
#include "top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "over_rows.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// ------------------------------------------------------------------------------------ elements as they are compared

// The type of the lanes in which elements of T are compared
template <class T>
struct LaneOf {
    using type = std::int32_t;  // integers of up to 32 bits
};
template <>
struct LaneOf<Float16> {
    using type = float;
};
template <>
struct LaneOf<BFloat16> {
    using type = float;
};
template <>
struct LaneOf<float> {
    using type = float;
};
template <>
struct LaneOf<double> {
    using type = double;
};
template <>
struct LaneOf<std::int64_t> {
    using type = std::int64_t;
};
template <class T>
using Lane = typename LaneOf<T>::type;

template <class C>
inline constexpr bool kIsFloat = is_same<C, float> || is_same<C, double>;
// Signed integers of the width of a lane
template <class C>
using Bits = decltype((Vec<C>{} < Vec<C>{})[0] + 0);
template <class C>
inline constexpr std::int64_t kCount = kVectorBytes / sizeof(C);
template <class C>
inline constexpr C kLeast = kIsFloat<C> ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::lowest();

// A candidate, and the integers that it consists of
template <class C>
struct CandidateOf {
    using type = std::int64_t;
    using Index = std::uint32_t;
};
template <>
struct CandidateOf<double> {
    using type = __int128;
    using Index = std::uint64_t;
};
template <>
struct CandidateOf<std::int64_t> : CandidateOf<double> {};
template <class C>
using Candidate = typename CandidateOf<C>::type;
template <class C>
using Index = typename CandidateOf<C>::Index;

// The lanes in which a comparison's result is true, as bits, the first lane's last
template <class M>
inline std::uint32_t bits_of_lanes(M mask) {
    [[maybe_unused]] constexpr bool narrow = sizeof(mask[0]) == 4;
#if defined(__AVX512F__)
    const auto lanes = reinterpret_cast<__m512i>(mask);
    return narrow ? _mm512_movepi32_mask(lanes) : _mm512_movepi64_mask(lanes);
#elif defined(__AVX2__)
    const auto bits = narrow ? _mm256_movemask_ps(reinterpret_cast<__m256>(mask))
                             : _mm256_movemask_pd(reinterpret_cast<__m256d>(mask));
    return static_cast<std::uint32_t>(bits);
#elif defined(__x86_64__)
    const auto bits =
        narrow ? _mm_movemask_ps(reinterpret_cast<__m128>(mask)) : _mm_movemask_pd(reinterpret_cast<__m128d>(mask));
    return static_cast<std::uint32_t>(bits);
#else
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < sizeof(M) / sizeof(mask[0]); ++i) bits |= (mask[i] ? 1u : 0u) << i;
    return bits;
#endif
}

template <class T>
inline Vec<Lane<T>> load_lanes(const T* p) {
    using C = Lane<T>;
    if constexpr (kIsFloat<C>) {
        return load(p);
    } else {
        typedef T Part __attribute__((vector_size(kCount<C> * sizeof(T))));
        return __builtin_convertvector(load_bits<Part>(p), Vec<C>);
    }
}

// Rows, or parts of them, whose best elements are the largest once `flip` has been applied to their bits.
template <class T>
struct Source {
    using C = Lane<T>;
    const T* x;
    std::int64_t n;
    Bits<C> flip;

    Vec<C> directed(Vec<C> v) const {
        typedef Bits<C> B __attribute__((vector_size(kVectorBytes)));
        return reinterpret_cast<Vec<C>>(reinterpret_cast<B>(v) ^ flip);
    }
    Vec<C> at(std::int64_t i) const { return directed(load_lanes(x + i)); }
    // The last elements, fewer than a vector; what the other lanes hold is of no consequence.
    Vec<C> tail(std::int64_t i) const {
        T part[kCount<C>] = {};
        std::memcpy(part, x + i, static_cast<std::size_t>(n - i) * sizeof(T));
        return directed(load_lanes(part));
    }
};

template <class C>
inline Candidate<C> candidate(C value, std::int64_t index) {
    Bits<C> order;
    if constexpr (kIsFloat<C>) {
        value += C(0);  // -0 becomes 0
        std::memcpy(&order, &value, sizeof order);
        order ^= (order >> (8 * sizeof order - 1)) & std::numeric_limits<Bits<C>>::max();
        if (value != value) order = std::numeric_limits<Bits<C>>::min();
    } else {
        order = value;
    }
    using I = Index<C>;
    const auto high = static_cast<Candidate<C>>(order) * (static_cast<Candidate<C>>(1) << (8 * sizeof(I)));
    return high + static_cast<Candidate<C>>(static_cast<I>(~static_cast<I>(index)));
}

template <class C>
inline std::int64_t index_of(Candidate<C> c) {
    return static_cast<std::int64_t>(static_cast<Index<C>>(~static_cast<Index<C>>(c)));
}

// ------------------------------------------------------------------------------------------------- the lower bound

// The k-th largest of some lanes, none of them NaN; changes their order. Not inlined, as all that a row calls once: it
// is the same for several dtypes.
template <class C>
[[gnu::noinline]] C kth_largest(C* lanes, std::int64_t count, std::int64_t k) {
    constexpr std::int64_t few = 64, width = kCount<C>;
    if (count > few) {
        std::nth_element(lanes, lanes + (k - 1), lanes + count, std::greater<C>());
        return lanes[k - 1];
    }
    // The smallest of those that fewer than k others exceed
    Vec<C> found = Vec<C>{} + std::numeric_limits<C>::max();
    for (std::int64_t i = 0; i < count; i += width) {
        const auto mine = load_bits<Vec<C>>(lanes + i);
        decltype(mine < mine) larger{};
        for (std::int64_t j = 0; j < count; ++j) larger += mine < lanes[j];
        const Vec<C> counted = larger > -static_cast<Bits<C>>(k) ? mine : found;
        found = counted < found ? counted : found;
    }
    C least = found[0];
    for (std::int64_t i = 1; i < width; ++i) least = std::min<C>(least, found[i]);
    return least;
}

// How many vectors of the row a bound is made of, in how many parts; none: there is no bound.
struct Sample {
    std::int64_t parts = 0, vectors = 0;  // of each part

    Sample(std::int64_t n, std::int64_t k, std::int64_t width) {
        const std::int64_t available = n / width;
        if (8 * k > n || available < 2) return;
        // The cost of an element in the sample is a 250th of that of a candidate.
        const double best = 16 * std::sqrt(static_cast<double>(k) * static_cast<double>(n));
        parts = (2 * k + width - 1) / width;
        vectors = std::min(static_cast<std::int64_t>(best) / width / parts + 1, available / parts);
    }
};

template <class T>
Lane<T> lower_bound(const Source<T>& row, std::int64_t k, const Sample& sample, Lane<T>* maxima) {
    using C = Lane<T>;
    constexpr std::int64_t width = kCount<C>;
    const std::int64_t apart = row.n / width / sample.parts * width;
    for (std::int64_t part = 0; part < sample.parts; ++part) {
        Vec<C> a = Vec<C>{} + kLeast<C>, b = a;
        std::int64_t i = part * apart;
        const std::int64_t end = i + sample.vectors * width;
        for (; i + 2 * width <= end; i += 2 * width) {
            a = larger_ignoring_nan(a, row.at(i));
            b = larger_ignoring_nan(b, row.at(i + width));
        }
        if (i < end) a = larger_ignoring_nan(a, row.at(i));
        a = larger_ignoring_nan(a, b);
        std::memcpy(maxima + part * width, &a, sizeof a);
    }
    return kth_largest(maxima, sample.parts * width, k);
}

// --------------------------------------------------------------------------------------------- sorting candidates

// Puts the larger of at most kFew candidates first, by counting for each how many exceed it. There is room for one more
// vector of them.
constexpr std::int64_t kFew = 128;

[[gnu::noinline]] inline void sort_few(std::int64_t* all, std::int64_t count) {
    constexpr std::int64_t width = kCount<std::int64_t>;
    typedef Vec<std::int64_t> V;
    std::int64_t sorted[kFew];
    for (std::int64_t i = 0; i < count; i += width) {
        const auto mine = load_bits<V>(all + i);
        V larger{};
        for (std::int64_t j = 0; j < count; ++j) larger -= mine < all[j];
        for (std::int64_t lane = 0; lane < std::min(width, count - i); ++lane) sorted[larger[lane]] = mine[lane];
    }
    std::copy(sorted, sorted + count, all);
}

[[gnu::noinline]] inline void sort_few(__int128* all, std::int64_t count) {
    std::sort(all, all + count, std::greater<__int128>());
}

// The digits of the upper half, a byte each
template <class P>
constexpr int kDigits = sizeof(P) / 2;

// The same for any number, digit by digit of the upper half from the last. Equal ones must be in the right order, and
// remain so. There is room for a count of each value of each digit.
template <class P>
[[gnu::noinline]] void sort_many(P* all, std::int64_t count, P* other, std::int64_t (*counts)[256]) {
    constexpr int digits = kDigits<P>, lower = 8 * digits;
    const auto digit = [](P c, int d) {
        const auto byte = static_cast<std::uint8_t>(c >> (lower + 8 * d));
        return static_cast<std::uint8_t>(d == digits - 1 ? byte ^ 0x7f : ~byte);  // descending, the sign in the first
    };
    std::fill(counts[0], counts[digits], 0);
    for (std::int64_t i = 0; i < count; ++i)
        for (int d = 0; d < digits; ++d) ++counts[d][digit(all[i], d)];
    P *from = all, *to = other;
    for (int d = 0; d < digits; ++d) {
        std::int64_t* place = counts[d];
        if (place[digit(from[0], d)] == count) continue;
        for (std::int64_t value = 0, sum = 0; value < 256; ++value) {
            const std::int64_t mine = place[value];
            place[value] = sum;
            sum += mine;
        }
        for (std::int64_t i = 0; i < count; ++i) to[place[digit(from[i], d)]++] = from[i];
        std::swap(from, to);
    }
    if (from != all) std::copy(from, from + count, all);
}

// -------------------------------------------------------------------------------------------------- one row's best

// Memory for the best of one row
template <class T>
struct Room {
    using C = Lane<T>;
    using P = Candidate<C>;
    P *all, *other;
    C* maxima;
    std::int64_t (*counts)[256];
    std::int64_t most;  // candidates

    static std::int64_t candidates(std::int64_t n, std::int64_t k) { return 8 * k > n ? n : std::min(n, 8 * k + 256); }
    static std::int64_t size_of_all(std::int64_t n, std::int64_t k) {
        return whole_lines((candidates(n, k) + kCount<C> + kCount<P>)*static_cast<std::int64_t>(sizeof(P)));
    }
    static std::int64_t size_of_maxima(std::int64_t k) {
        return whole_lines((2 * k + kCount<C>)*static_cast<std::int64_t>(sizeof(C)));
    }
    static std::int64_t size_of_counts(std::int64_t n, std::int64_t k) {
        return candidates(n, k) > kFew ? kDigits<P> * static_cast<std::int64_t>(sizeof(*counts)) : 0;
    }
    static std::int64_t bytes(std::int64_t n, std::int64_t k) {
        return 2 * size_of_all(n, k) + size_of_maxima(k) + size_of_counts(n, k);
    }

    Room(const Scratch& scratch, std::int64_t offset, std::int64_t n, std::int64_t k)
        : all(scratch.at<P>(offset)),
          other(scratch.at<P>(offset + size_of_all(n, k))),
          maxima(scratch.at<C>(offset + 2 * size_of_all(n, k))),
          counts(scratch.at<std::int64_t[256]>(offset + 2 * size_of_all(n, k) + size_of_maxima(k))),
          most(candidates(n, k)) {}
};

template <class T>
class Best {
    using C = Lane<T>;
    using P = Candidate<C>;
    static constexpr std::int64_t width = kCount<C>;

  public:
    Best(const Source<T>& row, std::int64_t first, std::int64_t k, const Room<T>& room)
        : row_(row), first_(first), k_(k), room_(room) {}

    // Puts the k best first. Indices are counted from `first`.
    void find() {
        const Sample sample(row_.n, k_, width);
        C bound = kLeast<C>;
        if (sample.parts) bound = lower_bound(row_, k_, sample, room_.maxima);
        std::int64_t i = 0;
        // Elements that are equal to the least, or NaN, may be among the best.
        if (bound == kLeast<C>)
            i = collect(0, [](Vec<C> v) { return v == v || v != v; });
        else
            i = collect(0, [bound](Vec<C> v) { return v >= bound; });
        while (i < row_.n) {
            keep_best();
            const C last = worst_;
            if (last != last)
                i = collect(i, [](Vec<C> v) { return v == v; });
            else
                i = collect(i, [last](Vec<C> v) { return v > last; });
        }
        sort();
    }

    // For candidates that are already there
    void sort() {
        if (count_ <= kFew)
            sort_few(room_.all, count_);
        else
            sort_many(room_.all, count_, room_.other, room_.counts);
    }

    void add(const P* candidates) {
        std::copy(candidates, candidates + k_, room_.all + count_);
        count_ += k_;
    }

  private:
    // Adds the elements from `begin` on that may be among the best, until there is no room for more; returns where.
    template <class F>
    std::int64_t collect(std::int64_t begin, F may_be_best) {
        const Source<T> row = row_;
        const auto found = [&](std::int64_t i) { return may_be_best(row.at(i)); };
        const auto full = [&] { return count_ + 4 * width > room_.most && room_.most < row.n; };
        std::int64_t i = begin;
        for (; i + 4 * width <= row.n; i += 4 * width) {
            const auto first = found(i) | found(i + width), second = found(i + 2 * width) | found(i + 3 * width);
            if (!any(first | second)) continue;
            if (full()) return i;
            for (int part = 0; part < 4; ++part) add(row.at(i + part * width), may_be_best, i + part * width, width);
        }
        if (full()) return i;
        for (; i + width <= row.n; i += width) add(row.at(i), may_be_best, i, width);
        if (i < row.n) add(row.tail(i), may_be_best, i, row.n - i);
        return row_.n;
    }

    template <class F>
    void add(Vec<C> v, F may_be_best, std::int64_t i, std::int64_t valid) {
        C part[width];
        std::memcpy(part, &v, sizeof v);
        std::uint32_t lanes = bits_of_lanes(may_be_best(v)) & ((1u << valid) - 1);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            room_.all[count_++] = candidate<C>(part[lane], first_ + i + lane);
        }
    }

    void keep_best() {
        sort();
        count_ = std::min(count_, k_);
        const std::int64_t index = index_of<C>(room_.all[count_ - 1]) - first_;
        const Source<T> one{row_.x + index, 1, row_.flip};
        worst_ = one.tail(0)[0];
    }

    Source<T> row_;
    std::int64_t first_, k_;
    Room<T> room_;
    std::int64_t count_ = 0;
    C worst_{};  // of the k best so far
};

template <class T>
void put(const TopK& op, std::int64_t row, const Candidate<Lane<T>>* best) {
    const T* x = reinterpret_cast<const T*>(op.x.row(row));
    T* values = reinterpret_cast<T*>(op.values) + row * op.k;
    char* indices = op.indices + row * op.k * op.index_bytes;
    for (std::int64_t j = 0; j < op.k; ++j) {
        const std::int64_t index = index_of<Lane<T>>(best[j]);
        std::memcpy(values + j, x + index, sizeof(T));
        if (op.index_bytes == 8) {
            std::memcpy(indices + 8 * j, &index, 8);
        } else {
            const auto narrow = static_cast<std::int32_t>(index);
            std::memcpy(indices + 4 * j, &narrow, 4);
        }
    }
}

// The bits by which elements of T, to be compared as signed lanes, are exchanged
template <class T>
Bits<Lane<T>> flip_of(const TopK& op) {
    using B = Bits<Lane<T>>;
    constexpr B sign = std::numeric_limits<B>::min();
    if constexpr (kIsFloat<Lane<T>>) return op.largest ? B(0) : sign;
    const B all = op.largest ? B(0) : ~B(0);
    return sizeof(T) == sizeof(B) && !op.integer.is_signed ? all ^ sign : all;
}

// Into how many parts each row is divided, if there are fewer rows than threads.
template <class T>
std::int64_t parts_of_rows(const TopK& op, std::int64_t all_bytes) {
    const std::int64_t rows = op.x.count, n = op.x.length;
    const std::int64_t parts = threads_for_rows(n, all_bytes) / rows;
    return parts < 2 || op.k > n / parts / 8 ? 1 : parts;
}

template <class T>
void divided_rows(const TopK& op, std::int64_t parts) {
    using P = Candidate<Lane<T>>;
    const std::int64_t rows = op.x.count, n = op.x.length, k = op.k;
    const std::int64_t part = (n + parts - 1) / parts;
    const std::int64_t bytes = Room<T>::bytes(part, k), of_best = whole_lines(parts * k * std::int64_t{sizeof(P)});
    const std::int64_t merged = Room<T>::bytes(parts * k, parts * k);
    const std::int64_t pieces = rows * parts;
    const Scratch scratch(pieces * bytes + rows * of_best + merged);
    const auto best = [&](std::int64_t row) { return scratch.at<P>(pieces * bytes + row * of_best); };
    over_pieces(static_cast<int>(pieces), pieces, [&](std::int64_t piece, int) {
        const std::int64_t row = piece / parts, begin = piece % parts * n / parts;
        const std::int64_t end = (piece % parts + 1) * n / parts;
        const T* x = reinterpret_cast<const T*>(op.x.row(row)) + begin;
        const Room<T> room(scratch, piece * bytes, part, k);
        Best<T>({x, end - begin, flip_of<T>(op)}, begin, k, room).find();
        std::copy(room.all, room.all + k, best(row) + piece % parts * k);
    });
    for (std::int64_t row = 0; row < rows; ++row) {
        const Room<T> room(scratch, pieces * bytes + rows * of_best, parts * k, parts * k);
        Best<T> all({nullptr, 0, 0}, 0, k, room);
        for (std::int64_t i = 0; i < parts; ++i) all.add(best(row) + i * k);
        all.sort();
        put<T>(op, row, room.all);
    }
}

template <class T>
void all_rows(const TopK& op) {
    const std::int64_t rows = op.x.count, n = op.x.length, k = op.k;
    const std::int64_t all_bytes = rows * n * static_cast<std::int64_t>(sizeof(T));
    if (const std::int64_t parts = parts_of_rows<T>(op, all_bytes); parts > 1) return divided_rows<T>(op, parts);
    const int threads = threads_for_rows(rows, 2 * all_bytes);
    const std::int64_t bytes = Room<T>::bytes(n, k);
    const Scratch scratch(threads * bytes);
    over_shares(threads, rows, 1, [&](Share mine) {
        const Room<T> room(scratch, mine.member * bytes, n, k);
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            Best<T>({reinterpret_cast<const T*>(op.x.row(i)), n, flip_of<T>(op)}, 0, k, room).find();
            put<T>(op, i, room.all);
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(top_k, TopK) {
    if (op.dtype != Dtype::other) return for_dtype(op.dtype, [&op](auto x) { all_rows<decltype(x)>(op); });
    switch (op.integer.bytes) {
        case 1:
            return op.integer.is_signed ? all_rows<std::int8_t>(op) : all_rows<std::uint8_t>(op);
        case 2:
            return op.integer.is_signed ? all_rows<std::int16_t>(op) : all_rows<std::uint16_t>(op);
        case 4:
            return all_rows<std::int32_t>(op);
        default:
            return all_rows<std::int64_t>(op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
