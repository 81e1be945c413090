// The formats of quantized weights that kernels read as files store them, in blocks of bytes.
//
// A format is a struct in a header of its own. It says where the codes of neighbouring weights are in a block, and
// which scales and minima belong to them: weight = scale · (code - kOffset) + minimum. What it means in numbers is in
// tensorops/formats; kernels/block_codes.h reads it for each target. A format of numbers that are not integers times a
// scale has `unpack` instead, which writes a block as float32.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace tensorops {

// Every format: its name, the weights in a block, the bytes, and whether products with interleaved blocks have a kernel
#define TENSOROPS_FOR_EACH_FORMAT(DO) \
    DO(fp8_e4m3, 128, 132, false)     \
    DO(fp8_e5m2, 128, 132, false)     \
    DO(iq4_nl, 32, 18, true)          \
    DO(iq4_xs, 256, 136, true)        \
    DO(mxfp4, 32, 17, true)           \
    DO(nvfp4, 64, 36, false)          \
    DO(q2_k, 256, 84, false)          \
    DO(q3_k, 256, 110, false)         \
    DO(q4_0, 32, 18, true)            \
    DO(q4_1, 32, 20, true)            \
    DO(q4_k, 256, 144, true)          \
    DO(q5_0, 32, 22, true)            \
    DO(q5_1, 32, 24, true)            \
    DO(q5_k, 256, 176, true)          \
    DO(q6_k, 256, 210, true)          \
    DO(q8_0, 32, 34, true)            \
    DO(sparse_2_4, 32, 36, false)

#define TENSOROPS_FORMAT_NAME(name, elements, bytes, is_interleaved) name,
enum class Format { TENSOROPS_FOR_EACH_FORMAT(TENSOROPS_FORMAT_NAME) none };
#undef TENSOROPS_FORMAT_NAME

struct FormatSize {
    std::string_view name;
    std::int64_t elements, bytes;
    bool is_interleaved;  // products with its interleaved blocks have a kernel

    // The bytes of a row; 0 if it would not be whole blocks.
    std::int64_t row_bytes(std::int64_t length) const { return length % elements == 0 ? length / elements * bytes : 0; }
};

#define TENSOROPS_FORMAT_SIZE(name, elements, bytes, is_interleaved) {#name, elements, bytes, is_interleaved},
inline constexpr FormatSize kFormats[] = {TENSOROPS_FOR_EACH_FORMAT(TENSOROPS_FORMAT_SIZE)};
#undef TENSOROPS_FORMAT_SIZE

// Blocks may also be interleaved, which a name's ending tells: those of 32 rows are side by side, word by word, so that
// the lanes of a vector are rows. A byte or two that are no whole word come first in blocks of 32 weights, as scales do
// there, else last: see tensorops/formats/_interleaved.py. A word at some place in a block is then at 32 times this.
inline constexpr std::int64_t kInterleavedRows = 32;
inline constexpr std::string_view kInterleaved = "_x32";

// The name without that ending
inline std::string_view without_ending(std::string_view name) {
    const std::size_t length = name.size(), ending = kInterleaved.size();
    const bool has_it = length > ending && name.substr(length - ending) == kInterleaved;
    return has_it ? name.substr(0, length - ending) : name;
}

// The format of this name, or Format::none.
inline Format find_format(std::string_view name) {
    int index = 0;
    for (const FormatSize& format : kFormats) {
        if (format.name == name) return static_cast<Format>(index);
        ++index;
    }
    return Format::none;
}

inline const FormatSize& size_of(Format format) { return kFormats[static_cast<int>(format)]; }

// Copies some blocks of a row out of interleaved ones; `blocks` are those of the 32 rows.
inline void copy_interleaved(const FormatSize& format, const char* blocks, std::int64_t row, std::int64_t count,
                             char* to) {
    const std::int64_t odd = format.bytes % 4, words = format.bytes / 4, lead = format.elements == 32 ? odd : 0;
    const auto copy = [&](std::int64_t size) {
        std::memcpy(to, blocks + row * size, static_cast<std::size_t>(size));
        to += size;
        blocks += kInterleavedRows * size;
    };
    for (std::int64_t block = 0; block < count; ++block) {
        if (lead != 0) copy(lead);
        for (std::int64_t word = 0; word < words; ++word) copy(4);
        if (odd != lead) copy(odd);
    }
}

// Interleaves some blocks of 32 rows, which are `stride` bytes apart.
inline void interleave(const FormatSize& format, const char* rows, std::int64_t stride, std::int64_t count, char* to) {
    const std::int64_t odd = format.bytes % 4, words = format.bytes / 4, lead = format.elements == 32 ? odd : 0;
    const auto copy = [&](auto size) {
        for (std::int64_t row = 0; row < kInterleavedRows; ++row)
            std::memcpy(to + row * size, rows + row * stride, static_cast<std::size_t>(size));
        to += kInterleavedRows * size;
        rows += size;
    };
    constexpr std::integral_constant<std::int64_t, 4> kWord;  // its copies need no call
    for (std::int64_t block = 0; block < count; ++block) {
        if (lead != 0) copy(lead);
        for (std::int64_t word = 0; word < words; ++word) copy(kWord);
        if (odd != lead) copy(odd);
    }
}

}  // namespace tensorops
