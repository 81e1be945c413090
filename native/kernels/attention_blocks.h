// Register blocks of attention: scores of some rows and keys, and sums of weighted values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lanes.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // part of attention.cpp

constexpr int kRows = 6;  // of a register block
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kColumns = 4;  // vectors of it: 24 sums, 4 operands and a broadcast fit 32 registers
#else
constexpr int kColumns = 2;  // 12 sums, 2 operands and a broadcast fit 16
#endif
constexpr std::int64_t kGroups = 24, kBlockRows = kGroups * kRows;
constexpr std::int64_t kTile = 128;      // keys
constexpr std::int64_t kDirectRows = 8;  // up to this number of rows, keys are not transposed
// Keys and values are prefetched, adjacent ones and those in pages, if they have more bytes than the second-level
// cache. The processor's own prefetching begins anew with every page, and alone it reached half to three quarters of
// the speed with adjacent keys. Lines are fetched one by one on the way, as far ahead as still fits the first-level
// cache; farther where registers hold fewer features of a value, as each pass is shorter.
constexpr std::int64_t kFetchBytes = 2 << 20, kLine = 64;
constexpr std::int64_t kAheadBytes = (kColumns * kLanes<float> >= 64 ? 16 : 32) << 10;

template <class C>
constexpr C kNothing = -std::numeric_limits<C>::infinity();

inline std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class T>
inline const T* at(const char* p) {
    return reinterpret_cast<const T*>(p);
}

// Keys of a tile: from begin, a multiple of the lanes, to end.
struct Range {
    std::int64_t begin, end;
};

// Keys or values of a tile, from begin to end, that lie at equal distances, and what is to be prefetched meanwhile, at
// the same distances, unless it is null.
struct Part {
    const char *first, *ahead;
    std::int64_t begin, end;
};

// Where the keys or values of a tile are: in few parts, or at least one for each page.
struct Places {
    const Part* parts;
    std::int64_t stride;  // in bytes, from one to the next

    // The place of one, in this part or a later one, which becomes `part`.
    const char* find(std::int64_t i, const Part*& part) const {
        while (part->end <= i) ++part;
        return part->first + (i - part->begin) * stride;
    }
    // What to prefetch with one in this part
    const char* ahead_of(std::int64_t i, const Part* part) const {
        return part->ahead ? part->ahead + (i - part->begin) * stride : nullptr;
    }
    const char* find(std::int64_t i) const {
        const Part* part = parts;
        return find(i, part);
    }

    // Calls f(place) for the first n.
    template <class F>
    void for_first(std::int64_t n, F f) const {
        for (const Part* part = parts;; ++part) {
            const char* p = part->first;
            for (std::int64_t i = part->begin, end = std::min(n, part->end); i < end; ++i, p += stride) f(p);
            if (part->end >= n) return;
        }
    }

    // The places of those from i on, which is in `part` or a later one; beyond `end`, that of the last one again.
    template <class T, std::size_t n>
    void find(std::int64_t i, std::int64_t end, const Part*& part, const T* (&found)[n]) const {
        const char* first = find(i, part);
        if (std::min(i + std::int64_t{n}, end) <= part->end) {
            for (std::int64_t j = 0; j < std::int64_t{n}; ++j)
                found[j] = at<T>(first + std::min(j, end - 1 - i) * stride);
            return;
        }
        const Part* current = part;
        for (std::int64_t j = 0; j < std::int64_t{n}; ++j) found[j] = at<T>(find(std::min(i + j, end - 1), current));
    }
};

// ---- register blocks

// sums[r][c] += a(r, i) · b(i, c) for i below n; a's rows are `a_stride` elements apart, and b's vectors lie in rows
// that are `b_stride` bytes apart. Rows from `ahead` on are prefetched meanwhile, unless it is null.
template <std::size_t R, std::size_t N, class S>
inline __attribute__((always_inline)) void multiply_add(Vec<Compute<S>> (&sums)[R][N], const Compute<S>* a,
                                                        std::int64_t a_stride, const char* b, std::int64_t b_stride,
                                                        std::int64_t n, const char* ahead) {
    constexpr std::size_t lanes = kLanes<Compute<S>>;
    for (std::int64_t i = 0; i < n; ++i, b += b_stride, ++a) {
        if (ahead) {
            for_each<N>([&](auto c) {
                if constexpr (c * lanes * sizeof(S) % kLine == 0) fetch(ahead + c * lanes * sizeof(S));
            });
            ahead += b_stride;
        }
        Vec<Compute<S>> column[N];
        for_each<N>([&](auto c) { column[c] = load(at<S>(b) + c * lanes); });
        for_each<R>([&](auto r) {
            const Compute<S> x = a[static_cast<std::int64_t>(r) * a_stride];
            for_each<N>([&](auto c) { sums[r][c] += x * column[c]; });
        });
    }
}

// y[r] = y[r] · correction[r] + Σ weights(r, key) · value(key), for the keys of a range and N vectors of features.
template <class S, int R, int N>
void weigh_block(const Compute<S>* weights, const Places& values, std::int64_t offset, Range range, bool fetches,
                 const Compute<S>* correction, Compute<S>* y, std::int64_t width) {
    constexpr std::size_t lanes = kLanes<Compute<S>>;
    Vec<Compute<S>> sums[R][N];
    for_each<R>(
        [&](auto r) { for_each<N>([&](auto c) { sums[r][c] = load(y + r * width + c * lanes) * correction[r]; }); });
    const Part* part = values.parts;
    for (std::int64_t key = range.begin; key < range.end; key = part->end) {
        const char* v = values.find(key, part) + offset;
        const char* ahead = fetches ? values.ahead_of(key, part) : nullptr;
        multiply_add<R, N, S>(sums, weights + key, kTile, v, values.stride, std::min(range.end, part->end) - key,
                              ahead ? ahead + offset : nullptr);
    }
    for_each<R>([&](auto r) { for_each<N>([&](auto c) { store(y + r * width + c * lanes, sums[r][c]); }); });
}

template <class S>
using Weigh = void (*)(const Compute<S>*, const Places&, std::int64_t, Range, bool, const Compute<S>*, Compute<S>*,
                       std::int64_t);

// The block for the given numbers of rows and vectors of features.
template <class S, int R = kRows, int N = kColumns>
Weigh<S> weigh_for(int rows, int columns) {
    if constexpr (R > 1) {
        if (rows < R) return weigh_for<S, R - 1, N>(rows, columns);
    }
    if constexpr (N > 1) {
        if (columns < N) return weigh_for<S, R, N - 1>(rows, columns);
    }
    return &weigh_block<S, R, N>;
}

// Scores of kRows rows with one panel of transposed keys, of which the first vectors are used.
template <class C, int N = kColumns>
void score_panel(int columns, const C* q, const C* panel, std::int64_t dim, C* scores) {
    if constexpr (N > 1) {
        if (columns < N) return score_panel<C, N - 1>(columns, q, panel, dim, scores);
    }
    constexpr std::size_t lanes = kLanes<C>;
    Vec<C> sums[kRows][N];
    for_each<kRows>([&](auto r) { for_each<N>([&](auto c) { sums[r][c] = Vec<C>{}; }); });
    multiply_add<kRows, N, C>(sums, q, dim, reinterpret_cast<const char*>(panel), sizeof(Vec<C>) * kColumns, dim,
                              nullptr);
    for_each<kRows>([&](auto r) { for_each<N>([&](auto c) { store(scores + r * kTile + c * lanes, sums[r][c]); }); });
}

// Prefetches what lies ahead of the keys of a range, `bytes` of each, so that the work on `keys` of them, which is done
// in a number of steps, also fetches as many.
class Fetcher {
  public:
    Fetcher(const Places& places, Range range, std::int64_t bytes, std::int64_t keys, std::int64_t steps)
        : places_(places),
          part_(places.parts),
          end_(range.end),
          lines_((bytes + kLine - 1) / kLine),
          due_per_step_(keys * lines_),
          due_per_line_(steps) {
        begin(range.begin);
    }

    void step() {
        for (due_ += due_per_step_; due_ >= due_per_line_ && row_; due_ -= due_per_line_) {
            fetch(row_ + line_ * kLine);
            if (++line_ < lines_) continue;
            line_ = 0;
            row_ += places_.stride;
            if (++key_ == part_->end || key_ == end_) begin(key_);
        }
    }

  private:
    void begin(std::int64_t key) {
        key_ = key;
        row_ = nullptr;
        if (key >= end_) return;
        while (part_->end <= key) ++part_;
        row_ = places_.ahead_of(key, part_);
    }

    const Places& places_;
    const Part* part_;
    const char* row_;  // nullptr: there is no more
    std::int64_t key_, line_ = 0, due_ = 0;
    const std::int64_t end_, lines_, due_per_step_, due_per_line_;
};

// Scores of some rows with keys in place, as many keys at a time as a vector has lanes; dim is a multiple of the lanes.
template <class T, bool kFetches>
void score_direct(const Compute<T>* q, std::int64_t rows, const Places& keys, Range range, std::int64_t dim,
                  Compute<T>* scores) {
    using C = Compute<T>;
    constexpr std::int64_t lanes = kLanes<C>;
    const Part* part = keys.parts;
    Fetcher fetcher(keys, range, dim * std::int64_t{sizeof(T)}, lanes, rows * (dim / lanes));
    for (std::int64_t key = range.begin; key < range.end; key += lanes) {
        const T* row[lanes];
        keys.find(key, range.end, part, row);
        for (std::int64_t r = 0; r < rows; ++r) {
            Vec<C> sums[lanes];
            for_each<lanes>([&](auto j) { sums[j] = Vec<C>{}; });
            for (std::int64_t i = 0; i < dim; i += lanes) {
                if constexpr (kFetches) fetcher.step();
                const Vec<C> a = load(q + r * dim + i);
                for_each<lanes>([&](auto j) { sums[j] += a * load(row[j] + i); });
            }
            store(scores + r * kTile + key, join_lanes<C>(sums, [](Vec<C> a, Vec<C> b) { return a + b; }));
        }
    }
}

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
