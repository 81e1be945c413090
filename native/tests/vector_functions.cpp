// The functions of vector_math.h by themselves, for the test of them. Compiled once for each target.
#include "vector_functions.h"

#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class F>
void each(const float* x, float* y, std::int64_t n, F f) {
    put_row<false>(y, n, [=](std::int64_t i, std::int64_t k) { return f(load_some(x + i, k)); });
}

}  // namespace

void vector_function(tests::VectorFunction function, const float* x, float* y, std::int64_t n) {
    using V = Vec<float>;
    switch (function) {
        case tests::VectorFunction::exp:
            return each(x, y, n, [](V v) { return exp_of_negative(v); });
        case tests::VectorFunction::log1p_unit:
            return each(x, y, n, [](V v) { return log1p_unit(v); });
        case tests::VectorFunction::tanh:
            return each(x, y, n, [](V v) { return tanh(v); });
        case tests::VectorFunction::sigmoid:
            return each(x, y, n, [](V v) { return sigmoid(v); });
        case tests::VectorFunction::gelu:
            return each(x, y, n, [](V v) { return gelu(v); });
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
