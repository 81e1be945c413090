// What plans need besides operators: copies, single rows of arrays, conversions, simple arithmetic. Results are the
// plan's arrays, of which a step may write a part.
#include <cmath>
#include <cstring>

#include "checks.h"

namespace tensorops {
namespace {

void copy_axes(const Array& x, const Array& y, int axis, const char* from, char* to) {
    if (axis == x.ndim) {
        std::memcpy(to, from, static_cast<std::size_t>(x.item()));
        return;
    }
    const std::int64_t step_from = x.stride(axis), step_to = y.stride(axis), item = x.item();
    if (axis == x.ndim - 1 && step_from == item && step_to == item) {
        std::memcpy(to, from, static_cast<std::size_t>(x.shape[axis] * item));
        return;
    }
    for (std::int64_t i = 0; i < x.shape[axis]; ++i) copy_axes(x, y, axis + 1, from + i * step_from, to + i * step_to);
}

// Copies parts along the second axis of a contiguous array of 3 axes, which are elsewhere one after another.
template <bool kPut>
Reason move_parts(const Array& whole, const Array& parts, const Array& indices) {
    if (whole.ndim != 3 || parts.ndim != 3 || indices.ndim != 1) return "the arrays have no parts";
    if (whole.dtype != parts.dtype || whole.shape[0] != parts.shape[0] || parts.shape[1] != indices.shape[0] ||
        whole.shape[2] != parts.shape[2] || !whole.is_contiguous() || !parts.is_contiguous())
        return "the parts have another shape or dtype";
    const std::int64_t bytes = whole.shape[2] * whole.item();
    const std::vector<std::int64_t> numbers = read_integers(indices);
    for (const std::int64_t n : numbers)
        if (n < 0 || n >= whole.shape[1]) return "an index is out of range";
    char* part = parts.data;
    for (std::int64_t outer = 0; outer < whole.shape[0]; ++outer)
        for (const std::int64_t n : numbers) {
            char* const there = whole.data + (outer * whole.shape[1] + n) * bytes;
            std::memcpy(kPut ? there : part, kPut ? part : there, static_cast<std::size_t>(bytes));
            part += bytes;
        }
    return {};
}

template <class T, class From>
void write(const std::vector<From>& values, const Array& y) {
    std::transform(values.begin(), values.end(), reinterpret_cast<T*>(y.data),
                   [](From v) { return static_cast<T>(v); });
}

// The bits of the nearest number of a half type, ties to even
template <int kExponentBits>
std::uint16_t half_of(double value) {
    constexpr int kFractionBits = 15 - kExponentBits, kBias = (1 << (kExponentBits - 1)) - 1;
    constexpr int kLargest = (1 << kExponentBits) - 1;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const auto infinity = static_cast<std::uint16_t>(sign | kLargest << kFractionBits);
    if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1 << (kFractionBits - 1));
    if (std::isinf(value)) return infinity;
    if (value == 0) return sign;
    int exponent;
    const double magnitude = std::frexp(std::fabs(value), &exponent);
    const int least = std::max(exponent - 1, 1 - kBias);  // of subnormal numbers, the smallest
    const double units = std::nearbyint(std::ldexp(magnitude, exponent - least + kFractionBits));
    // Adding the units to the exponent's bits also carries into the exponent, and from subnormal to normal numbers.
    const double bits = std::ldexp(least + kBias - 1, kFractionBits) + units;
    return bits >= std::ldexp(kLargest, kFractionBits) ? infinity
                                                       : static_cast<std::uint16_t>(sign | static_cast<int>(bits));
}

template <int kExponentBits>
void write_halves(const std::vector<double>& values, const Array& y) {
    std::transform(values.begin(), values.end(), reinterpret_cast<std::uint16_t*>(y.data), half_of<kExponentBits>);
}

template <class T, class F>
void each(const Array& a, const Array& b, const Array& y, F f) {
    const T *p = reinterpret_cast<const T*>(a.data), *q = reinterpret_cast<const T*>(b.data);
    T* const to = reinterpret_cast<T*>(y.data);
    const std::int64_t n = y.size();
    // Three loops, as compilers vectorize only those whose steps they know.
    if (a.size() == n && b.size() == n)
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(p[i], q[i]);
    else if (b.size() == 1)
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(p[i], *q);
    else
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(*p, q[i]);
}

template <class F>
Reason arithmetic(Call& call, F f) {
    Reader in(call);
    const Array &a = in.array(kAll), &b = in.array(kAll), &y = *call.given(0);
    if (in.failed()) return in.reason;
    if (!y.is_contiguous()) return "the result is not contiguous";
    for (const Array* x : {&a, &b})
        if (x->dtype != y.dtype || (x->size() != 1 && x->size() != y.size()) || !x->is_contiguous())
            return "the arrays do not fit";
    switch (y.dtype) {
        case Dtype::float32:
            each<float>(a, b, y, f);
            return {};
        case Dtype::float64:
            each<double>(a, b, y, f);
            return {};
        case Dtype::int32:  // unsigned: numbers wrap around
            each<std::uint32_t>(a, b, y, f);
            return {};
        case Dtype::int64:
            each<std::uint64_t>(a, b, y, f);
            return {};
        default:
            return "the dtype has no arithmetic";
    }
}

}  // namespace

TENSOROPS_STEP(copy, "x") {
    Reader in(call);
    const Array &x = in.array(kAll), &y = *call.given(0);
    if (in.failed()) return in.reason;
    if (x.dtype != y.dtype || !x.has_shape(y)) return "the result has another shape or dtype";
    copy_axes(x, y, 0, x.data, y.data);
    return {};
}

// Parts of x (outer, n, inner) at indices along its second axis: (outer, indices, inner)
TENSOROPS_STEP(take, "x, indices") {
    Reader in(call);
    const Array &x = in.array(kAll), &indices = in.array(kIntegers);
    return in.failed() ? in.reason : move_parts<false>(x, *call.given(0), indices);
}

// The reverse: parts (outer, indices, inner) into the result (outer, n, inner)
TENSOROPS_STEP(put, "x, indices") {
    Reader in(call);
    const Array &parts = in.array(kAll), &indices = in.array(kIntegers);
    return in.failed() ? in.reason : move_parts<true>(*call.given(0), parts, indices);
}

// Numbers to another dtype: integers to those of 32 and 64 bits, all to floating-point numbers, rounded once
TENSOROPS_STEP(convert, "x") {
    Reader in(call);
    const Array &x = in.array(kAll), &y = *call.given(0);
    if (in.failed()) return in.reason;
    if (x.size() != y.size() || !y.is_contiguous()) return "the result has another shape";
    if (!is_integer(x.dtype) && !is_floating(x.dtype)) return "x has a dtype that is not a number";
    if (y.dtype == Dtype::float32)
        write<float>(read_doubles(x), y);
    else if (y.dtype == Dtype::float64)
        write<double>(read_doubles(x), y);
    else if (y.dtype == Dtype::float16)
        write_halves<5>(read_doubles(x), y);
    else if (y.dtype == Dtype::bfloat16)
        write_halves<8>(read_doubles(x), y);
    else if (y.dtype == Dtype::int32 && is_integer(x.dtype))
        write<std::int32_t>(read_integers(x), y);
    else if (y.dtype == Dtype::int64 && is_integer(x.dtype))
        write<std::int64_t>(read_integers(x), y);
    else
        return "it cannot convert to the dtype of the result";
    return {};
}

TENSOROPS_STEP(add, "a, b") {
    return arithmetic(call, [](auto a, auto b) { return a + b; });
}
TENSOROPS_STEP(subtract, "a, b") {
    return arithmetic(call, [](auto a, auto b) { return a - b; });
}
TENSOROPS_STEP(multiply, "a, b") {
    return arithmetic(call, [](auto a, auto b) { return a * b; });
}
// Of floating-point numbers, as integers are computed without a sign here; NaN if one of them is NaN
TENSOROPS_STEP(minimum, "a, b") {
    return arithmetic(call, [](auto a, auto b) { return a < b || a != a ? a : b; });
}
TENSOROPS_STEP(maximum, "a, b") {
    return arithmetic(call, [](auto a, auto b) { return a > b || a != a ? a : b; });
}

}  // namespace tensorops
