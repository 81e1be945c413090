// Elementwise functions: relu, relu_squared, sigmoid, silu, softplus, both forms of gelu; gated units: swiglu, geglu.
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
        using C = decltype(x[0] + 0);
        constexpr double k = 1.5957691216057307117;  // 2 sqrt(2 / pi)
        return x * sigmoid(x * (x * x * static_cast<C>(k * 0.044715) + static_cast<C>(k)));
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
[[gnu::noinline, gnu::flatten]] void span(T* y, std::int64_t n, const X*... x) {
    if constexpr (is_same<F, Relu> && sizeof(T) == 2)
        relu_halves<kStream>(y, n, x...);
    else
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) { return F{}(load_some(x + i, k)...); });
}

constexpr std::int64_t kBlock = 4096;

template <class T>
inline void fetch(const T* p, std::int64_t n) {
    const char* bytes = reinterpret_cast<const char*>(p);
    for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += 64) __builtin_prefetch(bytes + i);
}

// Elements [begin, end) of the arrays, row by row
template <bool kStream, class F, class T, class... R>
void elements(T* y, std::int64_t length, std::int64_t begin, std::int64_t end, const R&... rows) {
    while (begin < end) {
        const std::int64_t row = begin / length, from = begin % length;
        std::int64_t n = end - begin < length - from ? end - begin : length - from;
        if constexpr (kStream) {
            // A block is fetched first and then written in one go: memory is slow to switch between the two.
            if (n > kBlock) n = kBlock;
            (fetch(reinterpret_cast<const T*>(rows.row(row)) + from, n), ...);
        }
        span<kStream, F>(y + begin, n, reinterpret_cast<const T*>(rows.row(row)) + from...);
        begin += n;
    }
}

template <class F, class T, class... R>
void run(const Activation& op, const R&... rows) {
    T* y = reinterpret_cast<T*>(op.y);
    const std::int64_t total = op.x.count * op.x.length, length = op.x.length;
    const int threads = threads_for(total / 64, (1 + sizeof...(R)) * total * static_cast<std::int64_t>(sizeof(T)));
    over_shares(threads, total, 64, [&](Share mine) {  // aligned results stay aligned to a cache line
        if (!op.streaming) return elements<false, F>(y, length, mine.begin, mine.end, rows...);
        elements<true, F>(y, length, mine.begin, mine.end, rows...);
        stream_fence();
    });
}

template <class F>
void unary(const Activation& op) {
    for_dtype(op.dtype, [&op](auto x) { run<F, decltype(x)>(op, op.x); });
}

template <class F>
void gated(const Activation& op) {
    for_dtype(op.dtype, [&op](auto x) { run<Gated<F>, decltype(x)>(op, op.x, op.up); });
}

}  // namespace

void activation(const Activation& op) {
    switch (op.function) {
        case Function::relu:
            return unary<Relu>(op);
        case Function::relu_squared:
            return unary<ReluSquared>(op);
        case Function::sigmoid:
            return unary<Sigmoid>(op);
        case Function::silu:
            return unary<Silu>(op);
        case Function::softplus:
            return unary<Softplus>(op);
        case Function::gelu:
            return unary<Gelu>(op);
        case Function::gelu_tanh:
            return unary<GeluTanh>(op);
        case Function::swiglu:
            return gated<Silu>(op);
        case Function::geglu:
            return gated<Gelu>(op);
    }
}

}  // namespace tensorops::TENSOROPS_TARGET
