// The targets that kernels were compiled for, and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "activation.h"
#include "attention.h"
#include "layer_norm.h"
#include "rms_norm.h"
#include "softmax.h"

namespace tensorops {

// The kernels of one target. A new kernel adds a line here and two in targets.cpp.
struct Target {
    const char* name;
    void (*rms_norm)(const RmsNorm&);
    void (*layer_norm)(const LayerNorm&);
    void (*activation)(const Activation&);
    void (*softmax)(const Softmax&);
    void (*attention)(const Attention&);
};

// The names of the targets that this machine can run, best first.
std::vector<std::string> runnable_targets();

// The target in use: the best, or what use_target chose.
const Target& target();

// Chooses a target by name; false if this machine cannot run it.
bool use_target(const std::string& name);

}  // namespace tensorops
