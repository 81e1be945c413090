// Functions of one element that more than one kernel computes.
#pragma once

#include <cmath>

#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {

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
struct HardSigmoid {
    double shift, alpha, beta;
    // alpha (x + beta / alpha) does not cancel near its zero, where alpha x + beta does.
    static HardSigmoid of(double alpha, double beta) {
        if (std::fabs(beta) > 1024 * std::fabs(alpha)) return {0, alpha, beta};
        return {alpha == 0 ? 0 : beta / alpha, alpha, 0};
    }
    template <class V>
    V line(V x) const {
        using C = Element<V>;
        return (x + static_cast<C>(shift)) * static_cast<C>(alpha) + static_cast<C>(beta);
    }
    template <class V>
    V operator()(V x) const {
        return at_most(at_least(line(x), 0), 1);
    }
};

}  // namespace tensorops::TENSOROPS_TARGET
