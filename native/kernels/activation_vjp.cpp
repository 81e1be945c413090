// dx = dy · f'(x) for elementwise functions; for gated units f(gate) · up also dup = dy · f(gate).
//
// Work: the elements go to threads in contiguous spans. Blocks of them are computed in the first-level cache in the
// type
//   of computation, so that a function is compiled for two types, not for four, and not again for results that are
//   written past the caches.
// Precision: float64 in float64, everything else in float32. Derivatives are written so that nothing overflows where
//   they are finite, and factors that approach 0 do not cancel.
// Bytes: each element of x and dy once in, of dx once out; of gated units three in, two out.
#include "activation_vjp.h"

#include <limits>

#include "convert.h"
#include "parallel.h"
#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class V>
using Element = decltype(V{}[0] + 0);

// sigmoid(x) and 1 - sigmoid(x), without cancellation
template <class V>
struct Sigmoids {
    V value, rest;
};
template <class V>
inline Sigmoids<V> sigmoids(V x) {
    constexpr auto one = kOneInUnits<Element<V>>;
    const V e = exp_in_units(minus_magnitude(x)), r = 1 / (e + one), large = r * one, small = r * e;
    return {x < 0 ? small : large, x < 0 ? large : small};
}

// x within bounds beyond which derivatives do not change any more: an infinity would become NaN times 0.
template <class V>
inline V bounded(V x) {
    constexpr auto bound = static_cast<Element<V>>(sizeof(Element<V>) == 4 ? 120 : 800);
    return at_most(at_least(x, -bound), bound);
}

// Each function's derivative is slope(x). A gate also has its value: value_and_slope.
struct ReluSlope {
    template <class V>
    V slope(V x) const {
        return x <= 0 ? V{} : V{} + 1;
    }
    template <class V>
    V value(V x) const {
        return x <= 0 ? V{} : x;
    }
};
struct ReluSquaredSlope {
    template <class V>
    V slope(V x) const {
        return x <= 0 ? V{} : 2 * x;
    }
};
struct SigmoidSlope {
    template <class V>
    V slope(V x) const {
        const Sigmoids<V> s = sigmoids(x);
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
        const V u = bounded(x);
        const Sigmoids<V> s = sigmoids(u);
        return s.value * (u * s.rest + 1);
    }
    template <class V>
    V value(V x) const {
        return x * sigmoid(x);
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
        using C = Element<V>;
        constexpr auto density = static_cast<C>(0.39894228040143267794);  // 1 / sqrt(2 pi)
        return normal_cdf(x) + bounded(x) * (gaussian(x) * density);
    }
    template <class V>
    V value(V x) const {
        return gelu(x);
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
struct HardSigmoidSlope {
    double alpha, beta;
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        const V y = x * static_cast<C>(alpha) + static_cast<C>(beta);
        return y > 0 ? (y < 1 ? V{} + static_cast<C>(alpha) : V{}) : V{};
    }
};
struct HardSwishSlope {
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        const V middle = x * static_cast<C>(1.0 / 3) + static_cast<C>(0.5);
        return x <= -3 ? V{} : (x < 3 ? middle : V{} + 1);
    }
};
struct EluSlope {
    double alpha, scale;
    template <class V>
    V slope(V x) const {
        using C = Element<V>;
        return x <= 0 ? exp_of_negative(at_most(x, 0)) * static_cast<C>(alpha) : V{} + static_cast<C>(scale);
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

constexpr std::int64_t kBlock = 1024;

// A block of elements in the type of computation. The results may be where x, up or dy are.
template <class C>
struct Block {
    const C *x, *up, *dy;
    C *dx, *dup;
    std::int64_t n;
};

template <class F, class C>
[[gnu::noinline, gnu::flatten]] void slopes(const void* function, const Block<C>& b) {
    const F f = *static_cast<const F*>(function);
    const C *x = b.x, *dy = b.dy;
    put_row<false>(b.dx, b.n,
                   [=](std::int64_t i, std::int64_t k) { return f.slope(load_some(x + i, k)) * load_some(dy + i, k); });
}

template <class F, class C>
[[gnu::noinline, gnu::flatten]] void gates(const void* function, const Block<C>& b) {
    const F f = *static_cast<const F*>(function);
    constexpr std::int64_t lanes = kLanes<C>;
    const auto put = [&b, f](std::int64_t i, std::int64_t k, auto load_k, auto store_k) {
        const Vec<C> x = load_k(b.x + i, k), d = load_k(b.dy + i, k), up = load_k(b.up + i, k);
        store_k(b.dx + i, d * up * f.slope(x), k);
        store_k(b.dup + i, d * f.value(x), k);
    };
    std::int64_t i = 0;
    for (; i + lanes <= b.n; i += lanes)
        put(
            i, lanes, [](const C* p, std::int64_t) { return load(p); },
            [](C* p, Vec<C> v, std::int64_t) { store(p, v); });
    if (i < b.n)
        put(
            i, b.n - i, [](const C* p, std::int64_t k) { return load_part(p, k); },
            [](C* p, Vec<C> v, std::int64_t k) { store_part(p, v, k); });
}

template <class C>
using ComputeBlock = void (*)(const void* function, const Block<C>& block);

// Elements [begin, end), row by row
template <class T>
void elements(const ActivationVjp& op, const void* function, ComputeBlock<Compute<T>> compute, std::int64_t begin,
              std::int64_t end) {
    using C = Compute<T>;
    const std::int64_t length = op.x.length;
    const bool gated = op.dup;
    alignas(64) C buffers[3][kBlock];
    while (begin < end) {
        const std::int64_t row = begin / length, from = begin % length;
        std::int64_t n = end - begin < length - from ? end - begin : length - from;
        if (n > kBlock) n = kBlock;
        const auto at = [row, from](const Rows& rows) { return reinterpret_cast<const T*>(rows.row(row)) + from; };
        T *dx = reinterpret_cast<T*>(op.dx) + begin, *dup = gated ? reinterpret_cast<T*>(op.dup) + begin : nullptr;
        Block<C> block{nullptr, nullptr, nullptr, buffers[0], buffers[1], n};
        if constexpr (is_same<T, C>) {
            block.x = at(op.x);
            block.dy = at(op.dy);
            if (gated) block.up = at(op.up);
            if (!op.streaming) {
                block.dx = dx;
                block.dup = dup;
            }
        } else {
            convert(at(op.x), buffers[0], n);
            convert(at(op.dy), buffers[2], n);
            if (gated) convert(at(op.up), buffers[1], n);
            block.x = buffers[0];
            block.up = buffers[1];
            block.dy = buffers[2];
        }
        compute(function, block);
        const auto put = [n](const C* from_buffer, T* to, auto streaming) {
            put_row<streaming>(to, n, [=](std::int64_t i, std::int64_t k) { return load_some(from_buffer + i, k); });
        };
        if (op.streaming) {
            put(buffers[0], dx, std::true_type{});
            if (gated) put(buffers[1], dup, std::true_type{});
        } else if (!is_same<T, C>) {
            put(buffers[0], dx, std::false_type{});
            if (gated) put(buffers[1], dup, std::false_type{});
        }
        begin += n;
    }
    if (op.streaming) stream_fence();
}

template <class T>
void run(const ActivationVjp& op, const void* function, ComputeBlock<Compute<T>> compute) {
    const std::int64_t total = op.x.count * op.x.length, arrays = op.dup ? 5 : 3;
    const int threads = threads_for_rows(total / 64, arrays * total * static_cast<std::int64_t>(sizeof(T)));
    over_shares(threads, total, 64, [&](Share mine) { elements<T>(op, function, compute, mine.begin, mine.end); });
}

void run(const ActivationVjp& op, const void* function, ComputeBlock<float> narrow, ComputeBlock<double> wide) {
    for_dtype(op.dtype, [&](auto x) {
        if constexpr (is_same<decltype(x), double>)
            run<double>(op, function, wide);
        else
            run<decltype(x)>(op, function, narrow);
    });
}

template <class F>
void unary(F f, const ActivationVjp& op) {
    run(op, &f, slopes<F, float>, slopes<F, double>);
}

template <class F>
void gated(F f, const ActivationVjp& op) {
    run(op, &f, gates<F, float>, gates<F, double>);
}

}  // namespace

TENSOROPS_KERNEL(activation_vjp, ActivationVjp) {
    switch (op.function) {
        case Function::relu:
            return unary(ReluSlope{}, op);
        case Function::relu_squared:
            return unary(ReluSquaredSlope{}, op);
        case Function::sigmoid:
            return unary(SigmoidSlope{}, op);
        case Function::silu:
            return unary(SiluSlope{}, op);
        case Function::softplus:
            return unary(SoftplusSlope{}, op);
        case Function::gelu:
            return unary(GeluSlope{}, op);
        case Function::gelu_tanh:
            return unary(GeluTanhSlope{}, op);
        case Function::quick_gelu:
            return unary(QuickGeluSlope{op.alpha}, op);
        case Function::mish:
            return unary(MishSlope{}, op);
        case Function::hard_sigmoid:
            return unary(HardSigmoidSlope{op.alpha, op.beta}, op);
        case Function::hard_swish:
            return unary(HardSwishSlope{}, op);
        case Function::elu:
            return unary(EluSlope{op.alpha, 1}, op);
        case Function::selu:
            return unary(EluSlope{1.0507009873554804934 * 1.6732632423543772848, 1.0507009873554804934}, op);
        case Function::leaky_relu:
            return unary(LeakyReluSlope{op.alpha}, op);
        case Function::squareplus:
            return unary(SquareplusSlope{std::sqrt(op.alpha)}, op);
        case Function::swiglu:
            return gated(SiluSlope{}, op);
        case Function::geglu:
            return gated(GeluSlope{}, op);
        case Function::reglu:
            return gated(ReluSlope{}, op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
