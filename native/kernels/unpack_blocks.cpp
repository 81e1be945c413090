// Weights in blocks of a format as float32; compiled without contraction, as definitions round products before sums.
//
// Work: threads take rows. Codes are unpacked a vector at a time, see block_codes.h; those of q8_0 are bytes already.
// Bytes: the blocks once, and the result.
#include "unpack_blocks.h"

#include "block_codes.h"
#include "block_values.h"
#include "every_format.h"
#include "interruption.h"
#include "lanes.h"
#include "parallel.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class F>
void unpack_piece(const std::uint8_t* p, std::int64_t length, float* to) {
    constexpr int kGroups = kPiece / F::kGroup;
    std::uint8_t q[kPiece];
    for_each<kPiece / kCodes>([&](auto j) {
        const Codes of_vector = codes<F, static_cast<int>(j)>(p);
        std::memcpy(q + static_cast<std::size_t>(j) * kCodes, &of_vector, sizeof of_vector);
    });
    const Factors<kGroups> s = F::scales(p);
    Factors<kGroups> m{};
    if constexpr (F::kHasMinima) m = F::minima(p);
    const auto of_group = [](const Factors<kGroups>& f, std::int64_t g) {
        return f.vector[g / static_cast<int>(kFloats)][static_cast<std::size_t>(g) % kFloats];
    };
    for (std::int64_t g = 0; g * F::kGroup < length; ++g) {
        const float scale = of_group(s, g), minimum = of_group(m, g);
        for (std::int64_t i = g * F::kGroup; i < (g + 1) * F::kGroup; i += kLanes<float>) {
            const auto integers = __builtin_convertvector(load_bits<U8>(q + i), I32) - F::kOffset;
            const Vec<float> w = __builtin_convertvector(integers, Vec<float>) * scale;
            store(to + i, F::kHasMinima ? w + minimum : w);
        }
    }
}

// Block by block, as rows of a cache's keys and values are shorter than a piece
void unpack_bytes(const std::uint8_t* p, std::int64_t length, float* to) {
    for (std::int64_t i = 0; i < length; i += q8_0::kElements, p += q8_0::kBytes) {
        const float scale = half_at(p);
        for (std::int64_t j = 0; j < q8_0::kElements; j += kLanes<float>)
            store(to + i + j, __builtin_convertvector(bytes_to_words<true>(p + 2 + j), Vec<float>) * scale);
    }
}

template <class F>
void unpack(const char* blocks, std::int64_t length, float* to) {
    const auto* p = reinterpret_cast<const std::uint8_t*>(blocks);
    std::int64_t i = 0;
    if constexpr (is_same<F, q8_0>) {
        unpack_bytes(p, length, to);
    } else if constexpr (F::kIsFloat) {
        for (; i < length; i += F::kElements, p += F::kBytes) F::unpack(p, to + i);
    } else {
        constexpr int kPieceBytes = kPiece / F::kElements * F::kBytes;
        for (; i + kPiece <= length; i += kPiece, p += kPieceBytes) unpack_piece<F>(p, kPiece, to + i);
        if (i == length) return;
        std::uint8_t last[kPieceBytes] = {};
        std::memcpy(last, p, static_cast<std::size_t>((length - i) / F::kElements * F::kBytes));
        unpack_piece<F>(last, length - i, to + i);
    }
}

}  // namespace

void unpack_row(Format format, const char* blocks, std::int64_t length, float* to) {
    for_format(format, [=](auto f) { unpack<decltype(f)>(blocks, length, to); });
}

void unpack_some(Format format, bool is_interleaved, const char* blocks, std::int64_t stride, std::int64_t index,
                 std::int64_t begin, std::int64_t length, float* to) {
    const FormatSize& size = size_of(format);
    if (!is_interleaved) return unpack_row(format, blocks + index * stride + size.row_bytes(begin), length, to);
    const std::int64_t row = index % kInterleavedRows;
    blocks += (index - row) * stride + kInterleavedRows * size.row_bytes(begin);
    constexpr std::int64_t kAtOnce = 1024;  // of every format, whole blocks
    char own[2 * kAtOnce];
    for (std::int64_t i = 0; i < length; i += kAtOnce) {
        const std::int64_t n = std::min(kAtOnce, length - i);
        copy_interleaved(size, blocks + kInterleavedRows * size.row_bytes(i), row, n / size.elements, own);
        unpack_row(format, own, n, to + i);
    }
}

TENSOROPS_KERNEL(unpack_blocks, UnpackBlocks) {
    Interruption* const at = interruption;
    over_shares(threads_for(op.rows, op.rows * op.length * 4), op.rows, 1, [&](Share share) {
        for (std::int64_t r = share.begin; r < share.end && !leaves(at, op.length * 4); ++r)
            unpack_some(op.format, op.is_interleaved, op.blocks, op.stride, op.first + r, 0, op.length,
                        op.to + r * op.length);
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
