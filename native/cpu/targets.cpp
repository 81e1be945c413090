#include "targets.h"

#include <atomic>

namespace tensorops {

#define TENSOROPS_DECLARE(kernel, Arguments) void kernel(const Arguments&);
#define TENSOROPS_FUNCTION(kernel, Arguments) kernel,
#define TENSOROPS_DECLARE_TARGET(target, gains_by_panels)                                                 \
    namespace target {                                                                                    \
    TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_DECLARE)                                                          \
    constexpr Target kTarget = {#target, gains_by_panels, TENSOROPS_FOR_EACH_KERNEL(TENSOROPS_FUNCTION)}; \
    }

#if defined(TENSOROPS_HAS_v4_bf16)
TENSOROPS_DECLARE_TARGET(v4_bf16, true)
#endif
#if defined(TENSOROPS_HAS_v4)
TENSOROPS_DECLARE_TARGET(v4, false)
#endif
#if defined(TENSOROPS_HAS_v4_vnni)
namespace v4_vnni {
void panel_linear(const PanelLinear&);
void quantized_linear(const QuantizedLinear&);
constexpr Target make_target() {
    Target made = v4::kTarget;
    made.name = "v4_vnni";
    made.gains_by_panels = true;
    made.panel_linear = panel_linear;
    made.quantized_linear = quantized_linear;
    return made;
}
constexpr Target kTarget = make_target();
}  // namespace v4_vnni
#endif
#if defined(TENSOROPS_HAS_v3)
TENSOROPS_DECLARE_TARGET(v3, false)
#endif
#if defined(TENSOROPS_HAS_v2)
TENSOROPS_DECLARE_TARGET(v2, false)
#endif
#if defined(TENSOROPS_HAS_baseline)
TENSOROPS_DECLARE_TARGET(baseline, false)
#endif

namespace {

struct Candidate {
    Target target;
    bool runnable;
};

#if defined(TENSOROPS_HAS_v4)
bool has_v4() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

// Best first. The conditions are those of the x86-64 psABI's levels, as far as no processor has some without others;
// __builtin_cpu_supports also asks whether the operating system saves the registers.
const std::vector<Candidate>& candidates() {
    static const std::vector<Candidate> all = {
#if defined(TENSOROPS_HAS_v4_bf16)
        {v4_bf16::kTarget, has_v4() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")},
#endif
#if defined(TENSOROPS_HAS_v4_vnni)
        {v4_vnni::kTarget, has_v4() && __builtin_cpu_supports("avx512vnni")},
#endif
#if defined(TENSOROPS_HAS_v4)
        {v4::kTarget, has_v4()},
#endif
#if defined(TENSOROPS_HAS_v3)
        {v3::kTarget, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")},
#endif
#if defined(TENSOROPS_HAS_v2)
        {v2::kTarget, __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")},
#endif
#if defined(TENSOROPS_HAS_baseline)
        {baseline::kTarget, true},
#endif
    };
    return all;
}

std::atomic<const Target*> in_use{nullptr};

}  // namespace

std::vector<std::string> runnable_targets() {
    std::vector<std::string> names;
    for (const Candidate& c : candidates())
        if (c.runnable) names.emplace_back(c.target.name);
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

const Target& target() { return *in_use; }

}  // namespace tensorops
