// The targets for which kernels were compiled, and the choice among them at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiled_kernels.h"  // made by kernels/CMakeLists.txt
#include "formats.h"

namespace tensorops {

// The kernels of one target.
struct Target {
    const char* name;
    std::string_view needs;  // what the processor must have, in C++
    const char* flags;       // of the compiler
#define TENSOROPS_MEMBER(kernel, Arguments) void (*kernel)(const Arguments&);
    TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_MEMBER)
#undef TENSOROPS_MEMBER

    // Whether panel_linear is quicker than quantized_linear: products of bytes must be one instruction.
    bool gains_by_panels() const { return needs.find("avx512vnni") != std::string_view::npos; }
    // Whether interleaved_linear multiplies blocks of a format: where it is quicker than block_linear
    bool interleaves(Format format) const {
        const auto has = [this](std::string_view feature) { return needs.find(feature) != needs.npos; };
        return size_of(format).is_interleaved &&
               (gains_by_panels() || has("dotprod") || (has("avx2") && !has("avx512")));
    }
};

// The names of the targets that this machine can run, best first.
std::vector<std::string> runnable_targets();

// Targets that this machine could run and that are better than all of these, but were not compiled; best first.
std::vector<std::string> better_targets();

// The target in use: the best, or the choice of use_target.
const Target& target();

// Chooses a target by name; false if this machine cannot run it.
bool use_target(const std::string& name);

// Chooses the target of the environment variable TENSOROPS_CPU_TARGET or the best one; returns why there is none, or an
// empty text.
std::string choose_target();
bool has_target();

}  // namespace tensorops
