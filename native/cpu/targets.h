// The targets for which kernels were compiled, and the choice among them at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "activation.h"
#include "attention.h"
#include "cross_entropy.h"
#include "group_norm.h"
#include "grouped_linear.h"
#include "layer_norm.h"
#include "linear.h"
#include "linear_cross_entropy.h"
#include "moe.h"
#include "panel_linear.h"
#include "quantize.h"
#include "rms_norm.h"
#include "rope.h"
#include "sample.h"
#include "softmax.h"
#include "top_k.h"

namespace tensorops {

// Every kernel and the struct of its arguments.
#define TENSOROPS_FOR_EACH_KERNEL(DO)                    \
    DO(activation, Activation)                           \
    DO(attention, Attention)                             \
    DO(dequantize, Dequantize)                           \
    DO(cross_entropy, CrossEntropy)                      \
    DO(group_norm, GroupNorm)                            \
    DO(grouped_linear, GroupedLinear)                    \
    DO(grouped_quantized_linear, GroupedQuantizedLinear) \
    DO(layer_norm, LayerNorm)                            \
    DO(linear, Linear)                                   \
    DO(linear_choice, LinearChoice)                      \
    DO(linear_cross_entropy, LinearCrossEntropy)         \
    DO(panel_linear, PanelLinear)                        \
    DO(quantize, Quantize)                               \
    DO(quantized_linear, QuantizedLinear)                \
    DO(rms_norm, RmsNorm)                                \
    DO(rope, Rope)                                       \
    DO(sample, Sample)                                   \
    DO(softmax, Softmax)                                 \
    DO(top_k, TopK)                                      \
    DO(weighted_sums, WeightedSums)                      \
    DO(widened_rows, WidenedRows)

// The kernels of one target.
struct Target {
    const char* name;
    std::string_view needs;  // what the processor must have, in C++
#define TENSOROPS_MEMBER(kernel, Arguments) void (*kernel)(const Arguments&);
    TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_MEMBER)
#undef TENSOROPS_MEMBER

    // Whether panel_linear is quicker than quantized_linear: products of bytes must be one instruction.
    bool gains_by_panels() const { return needs.find("avx512vnni") != std::string_view::npos; }
};

// The names of the targets that this machine can run, best first.
std::vector<std::string> runnable_targets();

// Targets that this machine could run and that are better than all of these, but were not compiled; best first.
std::vector<std::string> better_targets();

// The target in use: the best, or the choice of use_target.
const Target& target();

// Chooses a target by name; false if this machine cannot run it.
bool use_target(const std::string& name);

}  // namespace tensorops
