// Quantized weights in another order, made once for many products: the format of the kernel in panel_linear.cpp.
//
// A panel has the weights of 32 outputs side by side, so that a vector's lanes are outputs: nothing is summed over
// lanes, and a scale belongs to a lane. Group by group it has, with no gaps,
//
// * the group's weights, in words of 32 bits that each are 8 or 4 neighbours of a row: the first word of every output,
//   then the second one of every output …; int8 weights have 128 added;
// * the group's scales, one for each output, and its biases, if there are any.
//
// The last panel is padded with zeros. No number is changed, so the plain arrays can be recovered.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "elements.h"
#include "pool.h"
#include "rows.h"

namespace tensorops {

inline constexpr std::int64_t kPanelOutputs = 32;

// Weights in the layout of quantized_linear, to be read or written; strides are from one row to the next, in bytes.
struct PlainWeights {
    char *weight, *scales, *biases;  // without biases the integers are int8, else unsigned
    std::int64_t weight_stride, scale_stride, bias_stride;
};

struct PanelFormat {
    std::int64_t outputs, inputs, group_size;
    int bits;
    bool has_biases;
    Dtype scale_dtype;

    std::int64_t groups() const { return inputs / group_size; }
    std::int64_t scale_bytes() const { return scale_dtype == Dtype::float32 ? 4 : 2; }
    std::int64_t words_of_group() const { return group_size * bits / 32; }
    std::int64_t panels() const { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }
    std::int64_t group_bytes() const {
        return kPanelOutputs * (4 * words_of_group() + (has_biases ? 2 : 1) * scale_bytes());
    }
    std::int64_t panel_bytes() const { return groups() * group_bytes(); }
};

// Calls move(address within the panels, address within the plain arrays, bytes, whether it is a word of weights) for
// every item, output by output.
template <class F>
void for_each_item(const PanelFormat& format, char* panels, const PlainWeights& plain, F move) {
    const std::int64_t words = format.words_of_group(), size = format.scale_bytes();
    for (std::int64_t output = 0; output < format.outputs; ++output) {
        const std::int64_t lane = output % kPanelOutputs;
        char* group = panels + output / kPanelOutputs * format.panel_bytes();
        char* weight = plain.weight + output * plain.weight_stride;
        for (std::int64_t g = 0; g < format.groups(); ++g, group += format.group_bytes(), weight += 4 * words) {
            for (std::int64_t i = 0; i < words; ++i)
                move(group + 4 * (kPanelOutputs * i + lane), weight + 4 * i, 4, true);
            char* scales = group + 4 * kPanelOutputs * words;
            move(scales + size * lane, plain.scales + output * plain.scale_stride + size * g, size, false);
            if (format.has_biases)
                move(scales + size * (kPanelOutputs + lane), plain.biases + output * plain.bias_stride + size * g, size,
                     false);
        }
    }
}

// Weights in panels
class WeightPanels {
  public:
    WeightPanels(const PanelFormat& format, const PlainWeights& plain)
        : format_(format), memory_(pool::take_on_shelf(std::max<std::size_t>(static_cast<std::size_t>(bytes()), 1))) {
        if (const std::int64_t rest = format_.outputs % kPanelOutputs; rest != 0)
            std::memset(memory_.get() + bytes() - format_.panel_bytes(), 0,
                        static_cast<std::size_t>(format_.panel_bytes()));
        for_each_item(format_, memory_.get(), plain,
                      [this](char* packed, const char* from, std::int64_t size, bool is_word) {
                          std::memcpy(packed, from, static_cast<std::size_t>(size));
                          if (is_word) flip(packed);
                      });
    }

    void unpack(const PlainWeights& plain) const {
        for_each_item(format_, memory_.get(), plain,
                      [this](const char* packed, char* to, std::int64_t size, bool is_word) {
                          std::memcpy(to, packed, static_cast<std::size_t>(size));
                          if (is_word) flip(to);
                      });
    }

    const PanelFormat& format() const { return format_; }
    const char* data() const { return memory_.get(); }
    std::int64_t bytes() const { return format_.panels() * format_.panel_bytes(); }

  private:
    // Adds 128 to int8 weights, or takes it away.
    void flip(char* word) const {
        std::uint32_t bits;
        std::memcpy(&bits, word, sizeof bits);
        if (!format_.has_biases) bits ^= 0x80808080u;
        std::memcpy(word, &bits, sizeof bits);
    }

    PanelFormat format_;
    std::shared_ptr<char> memory_;
};

// y = x · Wᵀ
struct PanelLinear {
    Rows x;
    const char* panels;
    PanelFormat format;
    char* y;  // rows one after another, of the same element type as x
    Dtype x_dtype;
};

}  // namespace tensorops
