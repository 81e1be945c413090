#include "cpu_features.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tensorops {
namespace {

struct Feature {
    const char* name;
    bool present;
};

std::vector<std::string> names_of(std::initializer_list<Feature> features) {
    std::vector<std::string> names;
    for (const Feature& f : features)
        if (f.present) names.emplace_back(f.name);
    return names;
}

#if defined(__x86_64__) || defined(__i386__)

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero if the processor has no such leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return {};
    return r;
}

bool bit(unsigned value, int index) { return value >> index & 1; }

// The register states that the operating system saves (XCR0); zero if it saves none beyond SSE's.
std::uint64_t saved_states(const Registers& leaf1) {
    if (!bit(leaf1.ecx, 27)) return 0;  // OSXSAVE: without it the instruction would trap
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

#elif defined(__aarch64__) && defined(__APPLE__)

bool reports(const char* name) {
    int value = 0;
    std::size_t size = sizeof(value);
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

#endif

}  // namespace

#if defined(__x86_64__) || defined(__i386__)

// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID; volume 1, 13.3 for XCR0.
std::vector<std::string> cpu_features() {
    const Registers leaf1 = cpuid(1, 0), leaf7 = cpuid(7, 0);
    const Registers leaf7_1 = leaf7.eax >= 1 ? cpuid(7, 1) : Registers{};
    const std::uint64_t saved = saved_states(leaf1);
    const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
    const bool avx512 = zmm && bit(leaf7.ebx, 16) && bit(leaf7.ebx, 17) && bit(leaf7.ebx, 28) && bit(leaf7.ebx, 30) &&
                        bit(leaf7.ebx, 31);
    return names_of({
        {"sse4_2", bit(leaf1.ecx, 20)},
        {"avx", ymm && bit(leaf1.ecx, 28)},
        {"avx2", ymm && bit(leaf7.ebx, 5)},
        {"fma", ymm && bit(leaf1.ecx, 12)},
        {"f16c", ymm && bit(leaf1.ecx, 29)},
        {"avx512", avx512},
        {"avx512_bf16", avx512 && bit(leaf7_1.eax, 5)},
        {"avx512_fp16", avx512 && bit(leaf7.edx, 23)},
        {"avx512_vnni", avx512 && bit(leaf7.ecx, 11)},
        {"avx_vnni", ymm && bit(leaf7_1.eax, 4)},
        {"amx_tile", tiles && bit(leaf7.edx, 24)},
        {"amx_int8", tiles && bit(leaf7.edx, 25)},
        {"amx_bf16", tiles && bit(leaf7.edx, 22)},
    });
}

#elif defined(__aarch64__) && defined(__linux__)

// Bits: the kernel's arch/arm64/include/uapi/asm/hwcap.h; written out, because older headers lack the newer ones.
std::vector<std::string> cpu_features() {
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return names_of({
        {"neon", (first >> 1 & 1) != 0},
        {"fp16", (first >> 9 & 1) != 0 && (first >> 10 & 1) != 0},  // scalar and vector
        {"dotprod", (first >> 20 & 1) != 0},
        {"bf16", (second >> 14 & 1) != 0},
        {"i8mm", (second >> 13 & 1) != 0},
        {"sve", (first >> 22 & 1) != 0},
        {"sve2", (second >> 1 & 1) != 0},
    });
}

#elif defined(__aarch64__) && defined(__APPLE__)

std::vector<std::string> cpu_features() {
    return names_of({
        {"neon", reports("hw.optional.AdvSIMD") || reports("hw.optional.arm.AdvSIMD")},
        {"fp16", reports("hw.optional.arm.FEAT_FP16")},
        {"dotprod", reports("hw.optional.arm.FEAT_DotProd")},
        {"bf16", reports("hw.optional.arm.FEAT_BF16")},
        {"i8mm", reports("hw.optional.arm.FEAT_I8MM")},
    });
}

#else

std::vector<std::string> cpu_features() { return names_of({}); }

#endif

bool has_cpu_feature(std::string_view name) {
    const std::vector<std::string> all = cpu_features();
    return std::find(all.begin(), all.end(), name) != all.end();
}

}  // namespace tensorops
