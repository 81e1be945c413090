#include "targets.h"

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <type_traits>

#include "compiled_targets.h"
#include "cpu_features.h"

namespace tensorops {

// A namespace with the kernels of each target; a variant has those of its base, except some of its own.
#define TENSOROPS_DECLARE(kernel, Arguments) void kernel(const Arguments&);
#define TENSOROPS_DECLARE_ONE(kernel) std::remove_pointer_t<decltype(Target::kernel)> kernel;
#define TENSOROPS_FUNCTION(kernel, Arguments) kernel,
#define TENSOROPS_WHOLE(target, runnable)                                       \
    namespace target {                                                          \
    TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_DECLARE)                                \
    constexpr Target kTarget = {#target, #runnable, TENSOROPS_FLAGS_##target,   \
                                TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_FUNCTION)}; \
    }
#define TENSOROPS_VARIANT(target, base, own, runnable)                              \
    namespace target {                                                              \
    using namespace base;                                                           \
    own constexpr Target kTarget = {#target, #runnable, TENSOROPS_FLAGS_##target,   \
                                    TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_FUNCTION)}; \
    }
TENSOROPS_FOR_EACH_TARGET(TENSOROPS_WHOLE, TENSOROPS_VARIANT, TENSOROPS_DECLARE_ONE)

namespace {

struct Candidate {
    Target target;
    bool runnable;
};

// __builtin_cpu_supports and has_cpu_feature also check whether the operating system saves the registers.
#define TENSOROPS_CANDIDATE(target, runnable) {target::kTarget, runnable},
#define TENSOROPS_CANDIDATE_VARIANT(target, base, own, runnable) {target::kTarget, runnable},
const auto& candidates() {
    static const Candidate all[] = {TENSOROPS_FOR_EACH_TARGET(TENSOROPS_CANDIDATE, TENSOROPS_CANDIDATE_VARIANT, )};
    return all;
}

std::atomic<const Target*> in_use{nullptr};

}  // namespace

std::vector<std::string> runnable_targets() {
    std::vector<std::string> names;
    for (auto c = std::rbegin(candidates()); c != std::rend(candidates()); ++c)
        if (c->runnable) names.emplace_back(c->target.name);
    return names;
}

std::vector<std::string> better_targets() {
    std::vector<std::string> names;
#define TENSOROPS_NAME(target, runnable) \
    if (runnable) names.emplace(names.begin(), #target);
    TENSOROPS_FOR_EACH_BETTER_TARGET(TENSOROPS_NAME)
    return names;
}

bool use_target(const std::string& name) {
    for (const Candidate& c : candidates()) {
        if (c.runnable && name == c.target.name) {
            in_use = &c.target;
            return true;
        }
    }
    return false;
}

std::string choose_target() {
    const std::vector<std::string> runnable = runnable_targets();
    if (runnable.empty()) return "this processor is older than any the kernels were compiled for";
    const char* said = std::getenv("TENSOROPS_CPU_TARGET");
    const std::string forced = said ? said : "";
    const bool unset = forced.find_first_not_of(" \t\n\r\f\v") == std::string::npos;  // as for the other variables
    if (use_target(unset ? runnable.front() : forced)) return {};
    std::string names;
    for (const std::string& name : runnable) names += " " + name;
    return "TENSOROPS_CPU_TARGET is " + forced + "; this machine can run:" + names;
}

bool has_target() { return in_use != nullptr; }

const Target& target() { return *in_use; }

}  // namespace tensorops
