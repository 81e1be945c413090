// All steps of a mixture of experts, each by its kernel: those of the operator's body.
#pragma once

#include "activation.h"
#include "grouped_linear.h"

namespace tensorops {

// The matrices of experts, or that of the shared block as of a single expert.
struct Projection {
    std::int64_t outputs;
    bool is_quantized;
    GroupedLinear plain;
    GroupedQuantizedLinear quantized;
};

struct FeedForward {
    Projection gate_up, down;
    std::int64_t hidden;
};

struct MixtureOfExperts {
    Rows x, logits;
    Dtype x_dtype, logits_dtype;
    Rows correction;  // one row, or none
    Dtype correction_dtype;
    std::int64_t top_k;
    bool is_softmax, renormalizes;
    float factor;
    Function function;
    FeedForward routed;
    bool has_shared;
    FeedForward shared;
    Linear gate;  // of the shared block, if it has weights
    char* y;

    std::int64_t experts() const { return logits.length; }
};

void mixture_of_experts(const MixtureOfExperts& op);

}  // namespace tensorops
