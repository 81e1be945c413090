// dx = dy · f'(x) for elementwise functions; for gated units f(gate) · up also dup = dy · f(gate).
//
// Work: the elements go to threads in contiguous spans.
// Precision: float64 in float64, everything else in float32. Derivatives are written so that nothing overflows where
//   they are finite, and factors that approach 0 do not cancel. Where a function is constant, its gradient is 0
//   whatever the cotangent is.
// Bytes: each element of x and dy once in, of dx once out; of gated units three in, two out.
#include "activation_vjp.h"

#include <algorithm>
#include <limits>

#include "functions.h"
#include "gathered.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

// sigmoid(x) and 1 - sigmoid(x), without cancellation
template <class V>
struct Sigmoids {
    V value, rest;
};
// The same of -|x|
template <class V>
inline Sigmoids<V> sigmoids_of_negative(V x) {
    constexpr auto one = kOneInUnits<Element<V>>;
    const V e = exp_in_units(minus_magnitude(x)), r = 1 / (e + one);
    return {r * e, r * one};
}
#if defined(__AVX512F__)
inline Sigmoids<Vec<float>> sigmoids_of_negative(Vec<float> x) {
    const Vec<float> tail = sigmoid_tail(x);
    return {tail, 1.0f - tail};
}
#endif
template <class V>
inline Sigmoids<V> sigmoids(V x) {
    const Sigmoids<V> s = sigmoids_of_negative(x);
    return {x < 0 ? s.value : s.rest, x < 0 ? s.rest : s.value};
}

template <class V>
struct Both {
    V slope, value;
};

// x within bounds beyond which derivatives do not change any more: an infinity would become NaN times 0.
template <class V>
inline V bounded(V x) {
    constexpr auto bound = static_cast<Element<V>>(sizeof(Element<V>) == 4 ? 120 : 800);
    return at_most(at_least(x, -bound), bound);
}

// The derivative of a smooth function is slope(x); a gate also has its value: both(x).
struct SigmoidSlope {
    template <class V>
    V slope(V x) const {
        const Sigmoids<V> s = sigmoids_of_negative(x);
        return s.value * s.rest;
    }
};
// x sigmoid(alpha x)
struct QuickGeluSlope {
    double alpha;
    template <class V>
    V slope(V x) const {
        const V u = bounded(x * static_cast<Element<V>>(alpha));
        const Sigmoids<V> s = sigmoids(u);
        return s.value * (u * s.rest + 1);
    }
};
struct SiluSlope {
    template <class V>
    V slope(V x) const {
        return both(x).slope;
    }
    template <class V>
    Both<V> both(V x) const {
        const V u = bounded(x);
        const Sigmoids<V> s = sigmoids(u);
        return {s.value * (u * s.rest + 1), x * s.value};
    }
};
struct SoftplusSlope {
    template <class V>
    V slope(V x) const {
        return sigmoid(x);
    }
};
struct GeluSlope {
    template <class V>
    V slope(V x) const {
        return gelu_slope(x);
    }
    template <class V>
    Both<V> both(V x) const {
        return {slope(x), gelu(x)};
    }
};
struct GeluTanhSlope {
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        constexpr double k = 1.5957691216057307117;  // 2 sqrt(2 / pi)
        const V u = at_most(at_least(x, -30), 30), square = u * u;
        const Sigmoids<V> s = sigmoids(u * (square * static_cast<C>(k * 0.044715) + static_cast<C>(k)));
        const V steepness = square * static_cast<C>(3 * k * 0.044715) + static_cast<C>(k);
        return s.value * (u * steepness * s.rest + 1);
    }
};
struct MishSlope {
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        // With e = exp(x), tanh(log(1 + e)) is n / d with n = e² + 2 e and d = n + 2, and its derivative
        // 4 e (1 + e) / d².
        const V u = bounded(x), e = exp_in_units(at_most(u, 20)) * (1 / kOneInUnits<C>), n = e * (e + 2),
                r = 1 / (n + 2);
        return n * r + u * ((e * r) * ((e + 1) * r) * 4);
    }
};
struct EluSlope {
    double alpha, scale;
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        return x > 0 ? V{} + static_cast<C>(scale) : exp_of_negative(at_most(x, 0)) * static_cast<C>(alpha);
    }
};
struct LeakyReluSlope {
    double negative;
    template <class V>
    V slope(V x) const {
        return x > 0 ? V{} + 1 : V{} + static_cast<Element<V>>(negative);
    }
};
struct SquareplusSlope {
    double root_of_b;
    // (1 + x / h) / 2 with h = √(x² + b). Where x is negative, the sum cancels: it is b / (h (h - x)).
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        const C c = static_cast<C>(root_of_b);
        const V a = x < 0 ? -x : x, large = a > c ? a : V{} + c, small = a > c ? V{} + c : a, r = small / large;
        const V root = square_root(r * r + 1);                                             // h / large
        const V of_a = (a > c ? V{} + 1 : r) / root, of_c = (a > c ? r : V{} + 1) / root;  // a / h and c / h
        return (x < 0 ? of_c * (of_c / (of_a + 1)) : of_a + 1) * C(0.5);
    }
};

// Functions that are constant somewhere: the product of the derivative and the cotangent
struct ReluGradient {
    template <class V>
    V operator()(V x, V dy) const {
        return x <= 0 ? V{} : dy;
    }
};
struct ReluSquaredGradient {
    template <class V>
    V operator()(V x, V dy) const {
        return x <= 0 ? V{} : 2 * (x * dy);
    }
};
struct HardSigmoidGradient {
    HardSigmoid function;
    double first, last;  // the kinks, where the line, which is rounded, may miss 0 or 1
    static HardSigmoidGradient of(double alpha, double beta) {
        const double zero = -beta / alpha, one = (1 - beta) / alpha;
        return {HardSigmoid::of(alpha, beta), std::min(zero, one), std::max(zero, one)};
    }
    template <class V>
    V operator()(V x, V dy) const {
        using C = Element<V>;
        const V y = function.line(x), inside = y <= 0 ? V{} : (y >= 1 ? V{} : dy * static_cast<C>(function.alpha));
        return x <= static_cast<C>(first) ? V{} : (x >= static_cast<C>(last) ? V{} : inside);
    }
};
struct HardSwishGradient {
    template <class V>
    V operator()(V x, V dy) const {
        using C = Element<V>;
        const V middle = x * static_cast<C>(1.0 / 3) + static_cast<C>(0.5);
        return x <= -3 ? V{} : (x >= 3 ? dy : middle * dy);
    }
};
struct RegluGradients {
    template <class V>
    Two<V> operator()(V gate, V up, V dy) const {
        return {gate <= 0 ? V{} : dy * up, dy * Relu{}(gate)};
    }
};

// Elements that follow each other in memory
struct Span {
    const char *x, *up, *dy;
    char *dx, *dup;
    std::int64_t n;
};

template <class F, class T>
[[gnu::noinline, gnu::flatten]] void slopes(const void* function, const Span& s) {
    const F f = *static_cast<const F*>(function);
    const T *x = reinterpret_cast<const T*>(s.x), *dy = reinterpret_cast<const T*>(s.dy);
    put_row<false>(reinterpret_cast<T*>(s.dx), s.n,
                   [=](std::int64_t i, std::int64_t k) { return f(load_some(x + i, k), load_some(dy + i, k)); });
}

template <class F, class T>
[[gnu::noinline, gnu::flatten]] void gates(const void* function, const Span& s) {
    const F f = *static_cast<const F*>(function);
    const T *x = reinterpret_cast<const T*>(s.x), *up = reinterpret_cast<const T*>(s.up),
            *dy = reinterpret_cast<const T*>(s.dy);
    T *dx = reinterpret_cast<T*>(s.dx), *dup = reinterpret_cast<T*>(s.dup);
    constexpr std::int64_t lanes = kLanes<T>;
    const auto put = [=](std::int64_t i, std::int64_t k, auto store_k) {
        const auto both = f(load_some(x + i, k), load_some(up + i, k), load_some(dy + i, k));
        store_k(dx + i, both.first, k);
        store_k(dup + i, both.second, k);
    };
    std::int64_t i = 0;
    for (; i + lanes <= s.n; i += lanes) put(i, lanes, [](T* to, auto v, std::int64_t) { store(to, v); });
    if (i < s.n) put(i, s.n - i, [](T* to, auto v, std::int64_t k) { store_part(to, v, k); });
}

using ComputeSpan = void (*)(const void* function, const Span& span);

constexpr std::int64_t kPart = kGatheredBytes;

// Elements [begin, end), row by row; what is written past the caches is computed in them, part by part. `memory` has
// room for the gathered elements of each operand, and then for two parts.
void elements(const ActivationVjp& op, const void* function, ComputeSpan compute, std::int64_t item, std::int64_t begin,
              std::int64_t end, char* memory) {
    char* const of_up = memory + gathered_room(op.x, item);
    char* const of_dy = of_up + gathered_room(op.up, item);
    char* const parts = of_dy + gathered_room(op.dy, item);
    const std::int64_t length = op.x.length;
    while (begin < end) {
        const std::int64_t row = begin / length, from = begin % length;
        std::int64_t n = std::min(end - begin, length - from);
        if (op.streaming || !op.x.are_neighbours() || !op.up.are_neighbours() || !op.dy.are_neighbours())
            n = std::min(n, kPart / item);
        const auto at = [&](const Rows& rows, char* room) { return elements_of_row(rows, row, from, n, item, room); };
        char *const dx = op.dx + begin * item, *const dup = op.dup ? op.dup + begin * item : nullptr;
        Span span{at(op.x, memory), dup ? at(op.up, of_up) : nullptr, at(op.dy, of_dy), dx, dup, n};
        if (op.streaming) {
            span.dx = parts;
            span.dup = parts + kPart;
        }
        compute(function, span);
        if (op.streaming) stream_bytes(dx, parts, n * item);
        if (op.streaming && dup) stream_bytes(dup, parts + kPart, n * item);
        begin += n;
    }
    if (op.streaming) stream_fence();
}

void run(const ActivationVjp& op, const void* function, ComputeSpan compute, std::int64_t item) {
    const std::int64_t total = op.x.count * op.x.length;
    const int threads = threads_for_rows(total / 64, (op.dup ? 5 : 3) * total * item);
    const std::int64_t room = gathered_room(op.x, item) + gathered_room(op.up, item) + gathered_room(op.dy, item) +
                              (op.streaming ? 2 * kPart : 0);
    const Scratch scratch(threads * room);
    over_shares(threads, total, 64, [&](Share mine) {
        elements(op, function, compute, item, mine.begin, mine.end, scratch.at<char>(mine.member * room));
    });
}

template <class F>
void unary(F f, const ActivationVjp& op) {
    for_dtype(op.dtype, [&](auto x) { run(op, &f, slopes<F, decltype(x)>, sizeof x); });
}

template <class F>
void smooth(F f, const ActivationVjp& op) {
    unary([f](auto x, auto dy) { return f.slope(x) * dy; }, op);
}

template <class F>
void gated(F f, const ActivationVjp& op) {
    for_dtype(op.dtype, [&](auto x) { run(op, &f, gates<F, decltype(x)>, sizeof x); });
}

template <class F>
void smooth_gate(F f, const ActivationVjp& op) {
    const auto gradients = [f](auto gate, auto up, auto dy) {
        const auto of_gate = f.both(gate);
        // In this order, as the product of up and dy may overflow where the slope is almost 0.
        return Two<decltype(gate)>{up * of_gate.slope * dy, dy * of_gate.value};
    };
    gated(gradients, op);
}

}  // namespace

TENSOROPS_KERNEL(activation_vjp, ActivationVjp) {
    switch (op.function) {
        case Function::relu:
            return unary(ReluGradient{}, op);
        case Function::relu_squared:
            return unary(ReluSquaredGradient{}, op);
        case Function::sigmoid:
            return smooth(SigmoidSlope{}, op);
        case Function::silu:
            return smooth(SiluSlope{}, op);
        case Function::softplus:
            return smooth(SoftplusSlope{}, op);
        case Function::gelu:
            return smooth(GeluSlope{}, op);
        case Function::gelu_tanh:
            return smooth(GeluTanhSlope{}, op);
        case Function::quick_gelu:
            return smooth(QuickGeluSlope{op.alpha}, op);
        case Function::mish:
            return smooth(MishSlope{}, op);
        case Function::hard_sigmoid:
            return unary(HardSigmoidGradient::of(op.alpha, op.beta), op);
        case Function::hard_swish:
            return unary(HardSwishGradient{}, op);
        case Function::elu:
            return smooth(EluSlope{op.alpha, 1}, op);
        case Function::selu:
            return smooth(EluSlope{1.0507009873554804934 * 1.6732632423543772848, 1.0507009873554804934}, op);
        case Function::leaky_relu:
            return smooth(LeakyReluSlope{op.alpha}, op);
        case Function::squareplus:
            return smooth(SquareplusSlope{std::sqrt(op.alpha)}, op);
        case Function::swiglu:
            return smooth_gate(SiluSlope{}, op);
        case Function::geglu:
            return smooth_gate(GeluSlope{}, op);
        case Function::reglu:
            return gated(RegluGradients{}, op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
