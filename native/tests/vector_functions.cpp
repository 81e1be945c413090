// The functions of vector_math.h and the conversions of simd.h by themselves, for the tests of them. Compiled once for
// each target.
#include "vector_functions.h"

#include "convert.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class T, class F>
void each(const T* x, T* y, std::int64_t n, F f) {
    put_row<false>(y, n, [=](std::int64_t i, std::int64_t k) { return f(load_some(x + i, k)); });
}

template <class T>
void apply(tests::VectorFunction function, const T* x, T* y, std::int64_t n) {
    using V = Vec<T>;
    switch (function) {
        case tests::VectorFunction::exp:
            return each(x, y, n, [](V v) { return exp_of_negative(v); });
        case tests::VectorFunction::expm1:
            return each(x, y, n, [](V v) { return expm1_of_negative(v); });
        case tests::VectorFunction::log1p_unit:
            return each(x, y, n, [](V v) { return log1p_unit(v); });
        case tests::VectorFunction::tanh:
            return each(x, y, n, [](V v) { return tanh(v); });
        case tests::VectorFunction::sigmoid:
            return each(x, y, n, [](V v) { return sigmoid(v); });
        case tests::VectorFunction::gelu:
            return each(x, y, n, [](V v) { return gelu(v); });
        case tests::VectorFunction::log:
            return each(x, y, n, [](V v) { return log_of_normal(v); });
    }
}

}  // namespace

void vector_function(tests::VectorFunction function, Dtype dtype, const char* x, char* y, std::int64_t n) {
    if (dtype == Dtype::float64)
        return apply(function, reinterpret_cast<const double*>(x), reinterpret_cast<double*>(y), n);
    apply(function, reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), n);
}

void widen_half(Dtype dtype, const char* x, float* y, std::int64_t n) {
    for_narrow_dtype(dtype, [=](auto element) { convert(reinterpret_cast<const decltype(element)*>(x), y, n); });
}

void narrow_to_half(Dtype dtype, tests::Narrowing how, const float* x, char* y, std::int64_t n) {
    for_narrow_dtype(dtype, [=](auto element) {
        using T = decltype(element);
        T* to = reinterpret_cast<T*>(y);
        const auto number = [x](std::int64_t i, std::int64_t k) { return load_some(x + i, k); };
        if (how == tests::Narrowing::stored) return put_row<false>(to, n, number);
        if (how == tests::Narrowing::streamed) {
            put_row<true>(to, n, number);
            return stream_fence();
        }
        put_row<false>(to, n, [=](std::int64_t i, std::int64_t k) { return as_stored<T>(number(i, k)); });
    });
}

}  // namespace tensorops::TENSOROPS_TARGET
