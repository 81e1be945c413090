// The features of this machine's processor, for reports and for the choice of kernels; no instruction is tried.
//
// A name is listed if the processor has the instructions and the operating system saves the registers they use. AMX is
// listed if Linux offers it: a process must still request the tile registers (arch_prctl) before it uses them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tensorops {

// x86: sse4_2, avx, avx2, fma, f16c, avx512 (F, BW, CD, DQ and VL together), avx512_bf16, avx512_fp16, avx512_vnni,
// avx_vnni, amx_tile, amx_int8, amx_bf16. AArch64 on Linux and macOS: neon, fp16, dotprod, bf16, i8mm, sve, sve2.
// Empty on others.
std::vector<std::string> cpu_features();

// Whether a name is among them.
bool has_cpu_feature(std::string_view name);

}  // namespace tensorops
