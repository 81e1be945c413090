// Elementwise functions of one array, and gated units.
//
// Work: the elements go to threads in contiguous spans, whatever the rows; contiguous arrays are one row.
// Precision: float64 in float64, everything else in float32, see vector_math.h.
//   Elements that are no neighbours in memory are gathered into the first-level cache, part by part.
// Bytes: each element once in (a gated unit: two), once out, as in a copy.
#include "activation.h"

#include <algorithm>

#include "functions.h"
#include "gathered.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

struct ReluSquared {
    template <class V>
    V operator()(V x) const {
        const V positive = Relu{}(x);
        return positive * positive;
    }
};
struct Softplus {
    template <class V>
    V operator()(V x) const {
        return at_least(x, 0) + log1p_unit(exp_of_negative(minus_magnitude(x)));
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
// relu on the bits of half types: of the negative integers above that of -infinity, all are NaN, and they stay.
template <class T>
void relu_halves(T* y, std::int64_t n, const T* x) {
    typedef std::int16_t I16 __attribute__((vector_size(kVectorBytes)));
    constexpr auto lowest = static_cast<std::int16_t>(is_same<T, BFloat16> ? 0xff80 : 0xfc00);
    constexpr auto lanes = static_cast<std::int64_t>(kVectorBytes / sizeof(T));
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        const I16 bits = load_bits<I16>(x + i);
        put_bits<false>(y + i, bits & (bits > lowest));
    }
    for (; i < n; ++i) {
        TENSOROPS_ONE_BY_ONE(i);
        std::int16_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        if (bits <= lowest) bits = 0;
        std::memcpy(y + i, &bits, sizeof bits);
    }
}

// y = f(x), or f(x) · up, for n elements. A separate function, so that its constants stay in registers.
template <bool kStream, bool kGated, class F, class T>
[[gnu::noinline, gnu::flatten]] void span(const void* function, char* result, std::int64_t n, const char* first,
                                          const char* second) {
    const F f = *static_cast<const F*>(function);
    T* const y = reinterpret_cast<T*>(result);
    const T *x = reinterpret_cast<const T*>(first), *up = reinterpret_cast<const T*>(second);
    if constexpr (is_same<F, Relu> && !kGated && sizeof(T) == 2)
        relu_halves(y, n, x);
    else
        put_row<kStream>(y, n, [=](std::int64_t i, std::int64_t k) {
            if constexpr (kGated)
                return f(load_some(x + i, k)) * load_some(up + i, k);
            else
                return f(load_some(x + i, k));
        });
}

// What is the same for all functions and dtypes is compiled once: a call, with the span of its function and dtype.
struct Elements {
    const Activation& op;
    const void* function;
    void (*span)(const void*, char*, std::int64_t, const char*, const char*);
    decltype(span) streaming_span;  // which writes past the caches; nullptr for half types
    std::int64_t item;              // bytes of an element

    static constexpr std::int64_t kPart = 4096;

    // The bytes that a thread needs: for the elements of an operand, and for what is written past the caches
    std::int64_t room() const {
        return gathered_room(op.x, item) + gathered_room(op.up, item) + (op.streaming && !streaming_span ? kPart : 0);
    }

    // Elements [begin, end), row by row
    void compute(std::int64_t begin, std::int64_t end, char* memory) const {
        char *const of_up = memory + gathered_room(op.x, item), *const part = of_up + gathered_room(op.up, item);
        while (begin < end) {
            const std::int64_t row = begin / op.x.length, from = begin % op.x.length;
            std::int64_t n = std::min(end - begin, op.x.length - from);
            if (!op.x.are_neighbours() || !op.up.are_neighbours()) n = std::min(n, kGatheredBytes / item);
            const char* x = elements_of_row(op.x, row, from, n, item, memory);
            const char* up = op.up.data ? elements_of_row(op.up, row, from, n, item, of_up) : nullptr;
            if (op.streaming)
                stream(op.y + begin * item, n * item, x, up, part);
            else
                span(function, op.y + begin * item, n, x, up);
            begin += n;
        }
        if (op.streaming) stream_fence();
    }

    // A block is fetched first and then written in one go: memory is slow to switch between the two. Half types are
    // computed in the caches, part by part, and written from there, which is as fast; float32 took up to 1.4 times as
    // long.
    void stream(char* y, std::int64_t bytes, const char* x, const char* up, char* part) const {
        constexpr std::int64_t kBlock = 16384;
        for (std::int64_t i = 0; i < bytes; i += kBlock) {
            const std::int64_t end = std::min(i + kBlock, bytes);
            for (std::int64_t j = i; j < end; j += 64) {
                __builtin_prefetch(x + j);
                if (up) __builtin_prefetch(up + j);
            }
            if (streaming_span) {
                streaming_span(function, y + i, (end - i) / item, x + i, up ? up + i : nullptr);
                continue;
            }
            for (std::int64_t j = i; j < end; j += kPart) {
                const std::int64_t size = std::min(kPart, end - j);
                span(function, part, size / item, x + j, up ? up + j : nullptr);
                stream_bytes(y + j, part, size);
            }
        }
    }
};

void run(const Elements& elements) {
    const Activation& op = elements.op;
    const std::int64_t total = op.x.count * op.x.length;
    const int threads = threads_for_rows(total / 64, (op.up.data ? 3 : 2) * total * elements.item);
    const std::int64_t room = elements.room();
    const Scratch scratch(threads * room);
    // Aligned results stay aligned to a cache line.
    over_shares(threads, total, 64,
                [&](Share mine) { elements.compute(mine.begin, mine.end, scratch.at<char>(mine.member * room)); });
}

template <bool kGated, class F>
void run(F f, const Activation& op) {
    for_dtype(op.dtype, [&op, &f](auto x) {
        using T = decltype(x);
        Elements elements{op, &f, &span<false, kGated, F, T>, nullptr, static_cast<std::int64_t>(sizeof x)};
        if constexpr (sizeof(T) > 2) elements.streaming_span = &span<true, kGated, F, T>;
        run(elements);
    });
}

template <class F>
void unary(F f, const Activation& op) {
    run<false>(f, op);
}

template <class F>
void gated(F f, const Activation& op) {
    run<true>(f, op);
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
