// Element types of arrays, and the type in which kernels compute with them.
#pragma once

#include <cstdint>

namespace tensorops {

struct Float16 {
    std::uint16_t bits;
};
struct BFloat16 {
    std::uint16_t bits;
};

enum class Dtype : int { float16, bfloat16, float32, float64, other };

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

}  // namespace tensorops
