// Products of many rows of x with integers of 4 or 8 bits that have scales and biases by groups: these become panels,
// as blocks do; see block_panels.h.
#pragma once

#include "block_panels.h"
#include "quantized_products.h"

namespace tensorops::TENSOROPS_TARGET {

#if defined(TENSOROPS_DOTS)

// Whether panels take such integers: unsigned bytes are no signed codes.
template <int kBits, bool kSigned>
inline constexpr bool kHasPanelsOf = !kSignedCodes || kBits == 4 || kSigned;

// What block_panels.h has to know of integers whose groups are 32, or several of 32 with the same scale; it stores
// signed ones with 128 added, but for targets whose codes are signed.
template <int kBits, bool kSigned>
struct Integers : BlockDefaults {
    static constexpr int kElements = 32, kGroup = 32, kMax = (1 << kBits) - 1, kOffset = kSigned ? 128 : 0;
    static constexpr bool kHasMinima = !kSigned;
};

// Puts a piece of a vector of outputs into a panel; `width` are wanted from the `first` on.
template <int kBits, bool kSigned>
void fill_piece(const QuantizedLinear& op, std::int64_t first, std::int64_t width, std::int64_t vector,
                std::int64_t piece, const Panel& to) {
    constexpr int kGroups = kPiece / kFixed, kFactors = Factors<kGroups>::kVectors;
    constexpr auto lanes = static_cast<std::int64_t>(kFloats);
    const std::int64_t begin = piece * kPiece, length = std::min<std::int64_t>(op.x.length - begin, kPiece);
    alignas(64) std::uint8_t q[kFloats][kPiece] = {};
    Vec<float> scales[kFactors][kFloats], minima[kFactors][kFloats];
    for (std::int64_t o = 0; o < lanes; ++o) {
        const Output from = output(op, first + std::min(lanes * vector + o, width - 1));
        const auto* weight = reinterpret_cast<const std::uint8_t*>(from.weight) + begin * kBits / 8;
        for (std::int64_t i = 0; i < length * kBits / 8; ++i) {
            if (kBits == 4) {
                q[o][2 * i] = weight[i] & 15;
                q[o][2 * i + 1] = weight[i] >> 4;
            } else {
                q[o][i] = static_cast<std::uint8_t>(weight[i] ^ (kSigned && !kSignedCodes ? 128 : 0));
            }
        }
        float s[kGroups] = {}, b[kGroups] = {};
        for (std::int64_t g = 0; g < length / kFixed; ++g) {
            const std::int64_t offset = (begin + kFixed * g) / op.group_size * size_of(op.scale_dtype);
            widen(op.scale_dtype, from.scales + offset, s + g, 1);
            if (!kSigned) widen(op.scale_dtype, from.biases + offset, b + g, 1);
        }
        const Factors<kGroups> of_scales = from_memory(s), of_biases = from_memory(b);
        for (int k = 0; k < kFactors; ++k) {
            scales[k][o] = of_scales.vector[k];
            minima[k][o] = of_biases.vector[k];
        }
    }
    put_piece<kGroups, !kSigned>(q, scales, minima, vector, piece, to);
}

// False if some x is too large or too small, or a result is not finite: sums may overflow where it does not.
template <int kBits, bool kSigned>
[[gnu::noinline]] bool many_rows_of_integers(const QuantizedLinear& op, int threads) {
    using D = Digits<true, 3, false>;
    const XRows<D> conversion(Integers<kBits, kSigned>{}, op.x.length);
    std::atomic<bool> are_finite{true};
    const bool are_made = many_rows(
        op.x, op.x_dtype, op.outputs, conversion, threads,
        [&](std::int64_t first, std::int64_t width, const Panel& panel) {
            for (std::int64_t v = 0; v < kPanelVectors; ++v)
                for (std::int64_t k = 0; k < conversion.pieces; ++k)
                    fill_piece<kBits, kSigned>(op, first, width, v, k, panel);
        },
        &panel_products<kFixed, !kSigned, 1, kSignedCodes, D>,
        [&](std::int64_t row, std::int64_t first, std::int64_t width, float back, float* y) {
            if (!finish_outputs(y, width, back)) are_finite = false;
            for_narrow_dtype(op.x_dtype, [&](auto t) {
                store_outputs(reinterpret_cast<decltype(t)*>(op.y) + row * op.outputs + first, y, nullptr, width);
            });
        });
    return are_made && are_finite;
}

#endif

}  // namespace tensorops::TENSOROPS_TARGET
