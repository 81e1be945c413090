// Elementwise functions of one array, and gated units.
//
// Work: the elements go to threads in contiguous spans, whatever the rows; contiguous arrays are one row.
// Precision: float64 in float64, everything else in float32, see vector_math.h.
// Bytes: each element once in (a gated unit: two), once out, as in a copy.
#include "activation.h"

#include "parallel.h"
#include "simd.h"
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class V>
using Element = decltype(V{}[0] + 0);

struct Relu {
    template <class V>
    V operator()(V x) const {
        return x <= 0 ? V{} : x;  // NaN passes
    }
};
struct ReluSquared {
    template <class V>
    V operator()(V x) const {
        const V positive = Relu{}(x);
        return positive * positive;
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
struct Softplus {
    template <class V>
    V operator()(V x) const {
        return at_least(x, 0) + log1p_unit(exp_of_negative(minus_magnitude(x)));
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
// Parameters are members: loops keep them in registers, as they keep constants.
struct QuickGelu {
    double alpha;
    template <class V>
    V operator()(V x) const {
        return x * sigmoid(x * static_cast<Element<V>>(alpha));
    }
};
struct Mish {
    template <class V>
    V operator()(V x) const {
        using C = Element<V>;
        constexpr C one = kOneInUnits<C>;
        // With e = exp(x), tanh(log(1 + e)) is (e² + 2 e) / (e² + 2 e + 2), which is 1 long before x is 20.
        const V e = exp_in_units(at_most(x, 20)), n = e * (e * (1 / one) + 2);
        return x * (n / (n + 2 * one));
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
    V operator()(V x) const {
        using C = Element<V>;
        return at_most(at_least((x + static_cast<C>(shift)) * static_cast<C>(alpha) + static_cast<C>(beta), 0), 1);
    }
};
struct HardSwish {
    template <class V>
    V operator()(V x) const {
        constexpr auto sixth = static_cast<Element<V>>(1.0 / 6);
        return x * at_most(at_least((x + 3) * sixth, 0), 1);
    }
};
struct Elu {
    double alpha;
    template <class V>
    V operator()(V x) const {
        return x < 0 ? expm1_of_negative(x) * static_cast<Element<V>>(alpha) : x;
    }
};
struct Selu {
    template <class V>
    V operator()(V x) const {
        using C = Element<V>;
        constexpr double scale = 1.0507009873554804934, alpha = 1.6732632423543772848;
        return x < 0 ? expm1_of_negative(x) * static_cast<C>(scale * alpha) : x * static_cast<C>(scale);
    }
};
struct LeakyRelu {
    double slope;
    template <class V>
    V operator()(V x) const {
        return x > 0 ? x : x * static_cast<Element<V>>(slope);
    }
};
struct Squareplus {
    double root_of_b;
    // Of (x + √(x² + b)) / 2, the square overflows and the sum cancels where x is negative: there it is b / 2 over the
    // sum of the magnitudes.
    template <class V>
    V operator()(V x) const {
        using C = Element<V>;
        const C c = static_cast<C>(root_of_b);
        const V a = x < 0 ? -x : x, r = (a > c ? V{} + c : a) / (a > c ? a : V{} + c);
        const V half_root = (a > c ? a : V{} + c) * (square_root(r * r + 1) * C(0.5)), half = a * C(0.5);
        return x < 0 ? c / (half_root + half) * (c * C(0.25)) : half_root + half;
    }
};
template <class F>
struct Gated {
    template <class V>
    V operator()(V gate, V up) const {
        return F{}(gate)*up;
    }
};

// relu on the bits of half types: of the negative integers above that of -infinity, all are NaN, and they stay.
template <bool kStream, class T>
void relu_halves(T* y, std::int64_t n, const T* x) {
    typedef std::int16_t I16 __attribute__((vector_size(kVectorBytes)));
    constexpr auto lowest = static_cast<std::int16_t>(is_same<T, BFloat16> ? 0xff80 : 0xfc00);
    constexpr auto lanes = static_cast<std::int64_t>(kVectorBytes / sizeof(T));
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const I16 bits = load_bits<I16>(x + i);
        put_bits<kStream>(y + i, bits & (bits > lowest));
    }
    for (; i < n; ++i) {
        std::int16_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        if (bits <= lowest) bits = 0;
        std::memcpy(y + i, &bits, sizeof bits);
    }
}

// y = f(x...) for n elements. A separate function, so that its constants stay in registers.
template <bool kStream, class F, class T, class... X>
[[gnu::noinline, gnu::flatten]] void span(F f, T* y, std::int64_t n, const X*... x) {
    if constexpr (is_same<F, Relu> && sizeof(T) == 2)
        relu_halves<kStream>(y, n, x...);
    else
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) { return f(load_some(x + i, k)...); });
}

constexpr std::int64_t kBlock = 4096;

template <class T>
inline void fetch(const T* p, std::int64_t n) {
    const char* bytes = reinterpret_cast<const char*>(p);
    for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += 64) __builtin_prefetch(bytes + i);
}

// Elements [begin, end) of the arrays, row by row
template <bool kStream, class F, class T, class... R>
void elements(F f, T* y, std::int64_t length, std::int64_t begin, std::int64_t end, const R&... rows) {
    while (begin < end) {
        const std::int64_t row = begin / length, from = begin % length;
        std::int64_t n = end - begin < length - from ? end - begin : length - from;
        if constexpr (kStream) {
            // A block is fetched first and then written in one go: memory is slow to switch between the two.
            if (n > kBlock) n = kBlock;
            (fetch(reinterpret_cast<const T*>(rows.row(row)) + from, n), ...);
        }
        span<kStream>(f, y + begin, n, reinterpret_cast<const T*>(rows.row(row)) + from...);
        begin += n;
    }
}

template <class T, class F, class... R>
void run(F f, const Activation& op, const R&... rows) {
    T* y = reinterpret_cast<T*>(op.y);
    const std::int64_t total = op.x.count * op.x.length, length = op.x.length;
    const int threads = threads_for_rows(total / 64, (1 + sizeof...(R)) * total * static_cast<std::int64_t>(sizeof(T)));
    over_shares(threads, total, 64, [&](Share mine) {  // aligned results stay aligned to a cache line
        if (!op.streaming) return elements<false>(f, y, length, mine.begin, mine.end, rows...);
        elements<true>(f, y, length, mine.begin, mine.end, rows...);
        stream_fence();
    });
}

template <class F>
void unary(F f, const Activation& op) {
    for_dtype(op.dtype, [f, &op](auto x) { run<decltype(x)>(f, op, op.x); });
}

template <class F>
void gated(F, const Activation& op) {
    for_dtype(op.dtype, [&op](auto x) { run<decltype(x)>(Gated<F>{}, op, op.x, op.up); });
}

}  // namespace

TENSOROPS_KERNEL(activation, Activation) {
    switch (op.function) {
        case Function::relu:
            return unary(Relu{}, op);
        case Function::relu_squared:
            return unary(ReluSquared{}, op);
        case Function::sigmoid:
            return unary(Sigmoid{}, op);
        case Function::silu:
            return unary(Silu{}, op);
        case Function::softplus:
            return unary(Softplus{}, op);
        case Function::gelu:
            return unary(Gelu{}, op);
        case Function::gelu_tanh:
            return unary(GeluTanh{}, op);
        case Function::quick_gelu:
            return unary(QuickGelu{op.alpha}, op);
        case Function::mish:
            return unary(Mish{}, op);
        case Function::hard_sigmoid:
            return unary(HardSigmoid::of(op.alpha, op.beta), op);
        case Function::hard_swish:
            return unary(HardSwish{}, op);
        case Function::elu:
            return unary(Elu{op.alpha}, op);
        case Function::selu:
            return unary(Selu{}, op);
        case Function::leaky_relu:
            return unary(LeakyRelu{op.alpha}, op);
        case Function::squareplus:
            return unary(Squareplus{std::sqrt(op.alpha)}, op);
        case Function::swiglu:
            return gated(Silu{}, op);
        case Function::geglu:
            return gated(Gelu{}, op);
        case Function::reglu:
            return gated(Relu{}, op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
