// x · Wᵀ in float32 for many rows of x: outputs are lanes, so nothing is summed over lanes.
//
// Some outputs' rows of W are transposed, a stretch of them at a time, into a panel that the first-level cache holds.
// Its vectors are multiplied by elements of a few rows of x, whose sums stay in registers for a part of the stretch.
// The error grows with a part, their number in a stretch and the number of stretches, not with the product of these.
// Transposing costs as much as multiplying by about ten rows, so that fewer rows are left to dot_tiles.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "lanes.h"
#include "scratch.h"

namespace tensorops::TENSOROPS_TARGET {

inline constexpr std::int64_t kLeastRowsOfPanels = 32;
inline constexpr std::int64_t kMostOfPanels =
    16384;  // elements of a row: sums of 64 stretches are as accurate as one's

template <std::int64_t kOutputs>
class FloatPanel {
    static constexpr std::int64_t kLength = 256;       // of a stretch
    static constexpr std::int64_t kAddedInOrder = 64;  // products, before their sum is added to others
    static constexpr std::size_t kVectors = kOutputs / kFloats;
#if defined(__AVX512F__)
    static constexpr int kRows = 12;  // times 2 vectors: 24 of 32 registers hold sums
#else
    static constexpr int kRows = 4;  // times 3 vectors of AVX2: 12 of 16 registers
#endif
    using Sums = float[kOutputs];  // one for each output; a row of the panel as well

  public:
    // Calls put(r, sums) for the products of each row of x, which begins at from(r), and of W.
    template <class From, class Put>
    static void each_row(std::int64_t count, std::int64_t n, const float* const* w, const From& from, const Put& put) {
        // The last vector of a row may have lanes that are not used.
        const std::int64_t room = whole_lines((std::min(n, kLength) + kLanes<float>)*std::int64_t{sizeof(Sums)});
        const std::int64_t stretches = (n + kLength - 1) / kLength;
        const bool keeps = stretches > 1;  // else the sums of a few rows are all that is held
        const Scratch scratch(room + (keeps ? count : kRows) * std::int64_t{sizeof(Sums)});
        auto *const panel = scratch.at<Sums>(0), *const sums = scratch.at<Sums>(room);
        for (std::int64_t s = 0; s < stretches; ++s) {
            const std::int64_t begin = n * s / stretches, length = n * (s + 1) / stretches - begin;
            put_stretch(w, begin, length, panel);
            for (std::int64_t r = 0; r < count; r += kRows) {
                const std::int64_t height = std::min<std::int64_t>(kRows, count - r);
                Sums* const to = sums + (keeps ? r : 0);
                if (s == 0) std::memset(to, 0, static_cast<std::size_t>(height) * sizeof(Sums));
                const float* x[kRows];
                for (std::int64_t i = 0; i < kRows; ++i) x[i] = from(std::min(r + i, count - 1)) + begin;
                multiply(x, length, panel, to, height);
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

    // Adds to the sums of the first `count` rows. Not inlined, because the sums need nearly all registers.
    [[gnu::noinline]] static void multiply(const float* const* x, std::int64_t length, const Sums* panel, Sums* to,
                                           std::int64_t count) {
        Sums all[kRows];
        for (std::int64_t begin = 0; begin < length; begin += kAddedInOrder) {
            Vec<float> sums[kRows][kVectors];
            for_each<kRows>([&](auto r) { for_each<kVectors>([&](auto v) { sums[r][v] = Vec<float>{}; }); });
            for (std::int64_t i = begin, end = std::min(begin + kAddedInOrder, length); i < end; ++i) {
                Vec<float> w[kVectors];
                for_each<kVectors>([&](auto v) { w[v] = load(panel[i] + v * kFloats); });
                for_each<kRows>([&](auto r) {
                    const float a = load_one(x[r] + i);
                    for_each<kVectors>([&](auto v) { sums[r][v] += a * w[v]; });
                });
            }
            for_each<kRows>([&](auto r) {
                for_each<kVectors>([&](auto v) {
                    float* const at = all[r] + v * kFloats;
                    store(at, begin == 0 ? sums[r][v] : load(at) + sums[r][v]);
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
