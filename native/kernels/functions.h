// Functions of one element that more than one kernel computes.
#pragma once

#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

template <class V>
using Element = decltype(V{}[0] + 0);

struct Relu {
    template <class V>
    V operator()(V x) const {
        return x <= 0 ? V{} : x;  // NaN passes
    }
};
struct Sigmoid {
    template <class V>
    V operator()(V x) const {
        return sigmoid(x);
    }
};
struct Silu {
    template <class V>
    V operator()(V x) const {
        return x * sigmoid(x);
    }
};
struct Gelu {
    template <class V>
    V operator()(V x) const {
        return gelu(x);
    }
};
struct GeluTanh {
    // (1 + tanh(u)) / 2 is sigmoid(2 u), without cancellation, and 0 or 1 where u overflows
    template <class V>
    V operator()(V x) const {
        using C = Element<V>;
        constexpr double k = 1.5957691216057307117;  // 2 sqrt(2 / pi)
        return x * sigmoid(x * (x * x * static_cast<C>(k * 0.044715) + static_cast<C>(k)));
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
