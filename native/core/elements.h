// Element types of arrays, and the type in which kernels compute with them.
#pragma once

#include <cstdint>
#include <string_view>

namespace tensorops {

// Defines a kernel, which is compiled for each target: void name(const Arguments& op).
#define TENSOROPS_KERNEL(name, Arguments) void name(const Arguments& op)

struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};

enum class Dtype : int {
    float16,
    bfloat16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    other
};
inline constexpr const char* kDtypeNames[] = {"float16", "bfloat16", "float32", "float64", "int8",
                                              "int16",   "int32",    "int64",   "uint8",   "uint16",
                                              "uint32",  "uint64",   "bool",    "another"};

constexpr bool is_floating(Dtype dtype) { return dtype <= Dtype::float64; }
constexpr bool is_half(Dtype dtype) { return dtype <= Dtype::bfloat16; }
constexpr bool is_integer(Dtype dtype) { return dtype >= Dtype::int8 && dtype <= Dtype::uint64; }
constexpr bool is_signed(Dtype dtype) { return dtype <= Dtype::int64; }
constexpr std::int64_t size_of(Dtype dtype) {  // in bytes
    constexpr std::int64_t sizes[] = {2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1};
    return sizes[static_cast<int>(dtype)];
}

// The integers of 1, 2, 4 or 8 bytes
constexpr Dtype integer_of(std::int64_t size, bool is_signed) {
    const int place = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    return static_cast<Dtype>(static_cast<int>(is_signed ? Dtype::int8 : Dtype::uint8) + place);
}
// Dtype::other if there is none of this name
constexpr Dtype dtype_of(std::string_view name) {
    int i = 0;
    while (i < static_cast<int>(Dtype::other) && name != kDtypeNames[i]) ++i;
    return static_cast<Dtype>(i);
}

template <class T>
struct ComputeOf {
    using type = float;  // half types
};
template <>
struct ComputeOf<double> {
    using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

template <class T>
inline constexpr Dtype kDtype = is_same<T, Float16>    ? Dtype::float16
                                : is_same<T, BFloat16> ? Dtype::bfloat16
                                : is_same<T, float>    ? Dtype::float32
                                                       : Dtype::float64;

// Calls f with an element of the given type, float32 or a half type. Operators refuse other dtypes.
template <class F>
inline auto for_narrow_dtype(Dtype dtype, F f) {
    if (dtype == Dtype::float16) return f(Float16{});
    if (dtype == Dtype::bfloat16) return f(BFloat16{});
    return f(float{});
}

// The same for all dtypes.
template <class F>
inline auto for_dtype(Dtype dtype, F f) {
    return dtype == Dtype::float64 ? f(double{}) : for_narrow_dtype(dtype, f);
}

// The same for rows and their parameters, which have the rows' dtype, or float32 with a half type.
template <class F>
inline void for_dtypes(Dtype rows, Dtype parameters, F f) {
    for_dtype(rows, [=](auto x) {
        if constexpr (sizeof(x) == 2) {
            if (parameters == Dtype::float32) return f(x, float{});
        }
        f(x, x);
    });
}

}  // namespace tensorops
