// x · Wᵀ in float32 for many rows of x: outputs are lanes, so nothing is summed over lanes.
//
// Some outputs' rows of W are transposed, a stretch of them at a time, into a panel that the first-level cache holds.
// Its vectors are multiplied by elements of a few rows of x, whose sums stay in registers for a part of the stretch.
// The error grows with a part, their number in a stretch and the number of stretches, not with the product of these.
// Transposing costs as much as multiplying by about ten rows, so that fewer rows are left to dot_tiles.h, unless W was
// transposed before.
#pragma once

#include <algorithm>
#include <cstring>

#include "lanes.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {

inline constexpr std::int64_t kLeastRowsOfPanels = 32;
inline constexpr std::int64_t kMostOfPanels = 16384;  // elements of a row: few stretches are as accurate as one

// Fetches nothing.
struct NoFetch {
    template <class... Places>
    void operator()(Places...) const {}
};

template <std::int64_t kOutputs>
class FloatPanel {
    static constexpr std::int64_t kLength = 512;       // of a stretch
    static constexpr std::int64_t kAddedInOrder = 64;  // products, before their sum is added to others
    static constexpr std::size_t kVectors = kOutputs / kFloats;
#if defined(__AVX512F__)
    static constexpr int kRows = 12;  // times 2 vectors: 24 of 32 registers hold sums
#else
    static constexpr int kRows = 4;  // times 3 vectors of AVX2: 12 of 16 registers
#endif
    using Sums = float[kOutputs];  // one for each output; a row of the panel as well

  public:
    // Calls put(r, sums) for the products of each row of x, which begins at from(r), and of W: its rows, or its columns
    // one after the other in `packed`, if that is not null. Some thousand cycles before it calls fetch(r): stores to
    // lines that are in no cache would keep those after them waiting. Not inlined, as its frame is large.
    template <class From, class Put, class Fetch = NoFetch>
    [[gnu::noinline]] static void each_row(std::int64_t count, std::int64_t n, const float* const* w,
                                           const float* packed, const From& from, const Put& put,
                                           const Fetch& fetch = {}) {
        // The last vector of a row may have lanes that are not used.
        const std::int64_t own = packed ? 0 : std::min(n, kLength) + kLanes<float>;
        const std::int64_t room = whole_lines(own * std::int64_t{sizeof(Sums)});
        const std::int64_t stretches = (n + kLength - 1) / kLength;
        const bool keeps = stretches > 1;  // else the sums of a few rows are all that is held
        const Scratch scratch(room + (keeps ? count : kRows) * std::int64_t{sizeof(Sums)});
        auto *const made = scratch.at<Sums>(0), *const sums = scratch.at<Sums>(room);
        for (std::int64_t s = 0; s < stretches; ++s) {
            const std::int64_t begin = n * s / stretches, length = n * (s + 1) / stretches - begin;
            const Sums* const panel = packed ? reinterpret_cast<const Sums*>(packed) + begin : made;
            if (!packed) put_stretch(w, begin, length, made);
            for (std::int64_t r = 0; r < count; r += kRows) {
                const std::int64_t height = std::min<std::int64_t>(kRows, count - r);
                Sums* const to = sums + (keeps ? r : 0);
                if (s == 0) std::memset(to, 0, static_cast<std::size_t>(height) * sizeof(Sums));
                const float* x[kRows];
                for (std::int64_t i = 0; i < kRows; ++i) x[i] = from(std::min(r + i, count - 1)) + begin;
                for (std::int64_t i = 0; s + 1 == stretches && i < height; ++i) fetch(r + i);
                multiply_some<1>(x, length, panel, to, height);
                for (std::int64_t i = 0; s + 1 == stretches && i < height; ++i) put(r + i, to[i]);
            }
        }
    }

  private:
    static void put_stretch(const float* const* w, std::int64_t begin, std::int64_t length, Sums* panel) {
        for (std::int64_t i = 0; i < length; i += kLanes<float>)
            for (std::size_t c = 0; c < kOutputs; c += kFloats) {
                Vec<float> rows[kFloats];
                const std::int64_t n = std::min(length - i, kLanes<float>);
                for (std::size_t o = 0; o < kFloats; ++o) rows[o] = load_some(w[c + o] + begin + i, n);
                transpose<float>(rows);
                for (std::size_t k = 0; k < kFloats; ++k) store(panel[static_cast<std::size_t>(i) + k] + c, rows[k]);
            }
    }

    // Adds to the sums of the first `count` rows: computes as many, or the next power of two.
    template <int R>
    static void multiply_some(const float* const* x, std::int64_t length, const Sums* panel, Sums* to,
                              std::int64_t count) {
        if constexpr (2 * R < kRows) {
            if (count > R) return multiply_some<2 * R>(x, length, panel, to, count);
        }
        return count > R ? multiply<kRows>(x, length, panel, to, count) : multiply<R>(x, length, panel, to, count);
    }

    // Not inlined, because the sums need nearly all registers.
    template <int R>
    [[gnu::noinline]] static void multiply(const float* const* x, std::int64_t length, const Sums* panel, Sums* to,
                                           std::int64_t count) {
        // An addition takes four cycles: of a few rows, neighbouring products have sums of their own.
        constexpr std::int64_t kChains = R == 1 ? 4 : R == 2 ? 2 : 1;
        static_assert(kAddedInOrder % kChains == 0);
        Sums all[R];
        for (std::int64_t begin = 0; begin < length; begin += kAddedInOrder) {
            Vec<float> sums[kChains][R][kVectors] = {};
            const auto add = [&](std::int64_t i, auto& to_these) {
                Vec<float> w[kVectors];
                for_each<kVectors>([&](auto v) { w[v] = load(panel[i] + v * kFloats); });
                for_each<R>([&](auto r) {
                    const float a = load_one(x[r] + i);
                    for_each<kVectors>([&](auto v) { to_these[r][v] += a * w[v]; });
                });
            };
            const std::int64_t end = std::min(begin + kAddedInOrder, length);
            std::int64_t i = begin;
            for (; i + kChains <= end; i += kChains)
                for_each<kChains>([&](auto c) { add(i + static_cast<std::int64_t>(c), sums[c]); });
            for (; i < end; ++i) add(i, sums[0]);
            for_each<R>([&](auto r) {
                for_each<kVectors>([&](auto v) {
                    float* const at = all[r] + v * kFloats;
                    Vec<float> sum = sums[0][r][v];
                    for (std::int64_t c = 1; c < kChains; ++c) sum += sums[c][r][v];
                    store(at, begin == 0 ? sum : load(at) + sum);
                });
            });
        }
        for (std::int64_t r = 0; r < count; ++r)
            for_each<kVectors>([&](auto v) {
                float* const at = to[r] + v * kFloats;
                store(at, load(at) + load(all[r] + v * kFloats));
            });
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
