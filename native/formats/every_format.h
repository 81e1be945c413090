// The structs of all formats, and the choice of one at run time.
#pragma once

#include "formats.h"
#include "fp8_e4m3.h"
#include "fp8_e5m2.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "nvfp4.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"
#include "sparse_2_4.h"

namespace tensorops::TENSOROPS_TARGET {

#define TENSOROPS_FORMAT_CASE(name, elements, bytes, is_interleaved)             \
    case Format::name:                                                           \
        static_assert(name::kElements == elements && name::kBytes == bytes, ""); \
        static_assert(name::kIsInterleaved == is_interleaved, "");               \
        return f(name{});

// Calls f with an object of the struct of a format, which is not Format::none: operators refuse that.
template <class Fn>
inline auto for_format(Format format, const Fn& f) {
    switch (format) {
        TENSOROPS_FOR_EACH_FORMAT(TENSOROPS_FORMAT_CASE)
        case Format::none:
            break;
    }
    __builtin_unreachable();
}
#undef TENSOROPS_FORMAT_CASE

}  // namespace tensorops::TENSOROPS_TARGET
