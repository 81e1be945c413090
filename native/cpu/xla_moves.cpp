// What plans need besides operators: copies, single rows of arrays, conversions, simple arithmetic.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

void copy_axes(const Buffer& b, std::int64_t axis, const char* from, const Strides& of_from, char* to,
               const Strides& of_to) {
    if (axis == b.rank) {
        std::memcpy(to, from, static_cast<std::size_t>(itemsize(b)));
        return;
    }
    const std::int64_t step_from = of_from.bytes[axis], step_to = of_to.bytes[axis];
    if (axis == b.rank - 1 && step_from == itemsize(b) && step_to == itemsize(b)) {
        std::memcpy(to, from, static_cast<std::size_t>(b.dims[axis] * itemsize(b)));
        return;
    }
    for (std::int64_t i = 0; i < b.dims[axis]; ++i)
        copy_axes(b, axis + 1, from + i * step_from, of_from, to + i * step_to, of_to);
}

// An array into a result of the same shape; either may have strides: `from` and `to`.
Wrong copy(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    if (x.rank > Strides::kMost) return "an array of too many axes";
    copy_axes(y, 0, data(x), strides_of(call, x, "from"), data(y), strides_of(call, y, "to"));
    return nullptr;
}

// Parts of x (outer, n, inner) at indices along its second axis: (outer, indices, inner)
Wrong take(const Call& call) {
    if (call.arguments() != 2 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer &x = call.argument(0), &indices = call.argument(1), &y = call.result();
    if (x.rank != 3 || y.rank != 3 || indices.rank != 1 || !is_integer(indices)) return "arrays without parts";
    if (y.dtype != x.dtype || y.dims[0] != x.dims[0] || y.dims[1] != indices.dims[0] || y.dims[2] != x.dims[2])
        return "a result of another shape or dtype";
    const std::int64_t bytes = x.dims[2] * itemsize(x);
    const std::vector<std::int64_t> numbers = read_integers(indices);
    for (const std::int64_t n : numbers)
        if (n < 0 || n >= x.dims[1]) return "an index that is out of range";
    char* to = data(y);
    for (std::int64_t outer = 0; outer < x.dims[0]; ++outer)
        for (const std::int64_t n : numbers) {
            std::memcpy(to, data(x) + (outer * x.dims[1] + n) * bytes, static_cast<std::size_t>(bytes));
            to += bytes;
        }
    return nullptr;
}

// The reverse: parts (outer, indices, inner) into the result (outer, n, inner)
Wrong put(const Call& call) {
    if (call.arguments() != 2 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer &parts = call.argument(0), &indices = call.argument(1), &y = call.result();
    if (parts.rank != 3 || y.rank != 3 || indices.rank != 1 || !is_integer(indices)) return "arrays without parts";
    if (y.dtype != parts.dtype || y.dims[0] != parts.dims[0] || parts.dims[1] != indices.dims[0] ||
        y.dims[2] != parts.dims[2])
        return "a result of another shape or dtype";
    const std::int64_t bytes = y.dims[2] * itemsize(y);
    const std::vector<std::int64_t> numbers = read_integers(indices);
    for (const std::int64_t n : numbers)
        if (n < 0 || n >= y.dims[1]) return "an index that is out of range";
    const char* from = data(parts);
    for (std::int64_t outer = 0; outer < y.dims[0]; ++outer)
        for (const std::int64_t n : numbers) {
            std::memcpy(data(y) + (outer * y.dims[1] + n) * bytes, from, static_cast<std::size_t>(bytes));
            from += bytes;
        }
    return nullptr;
}

template <class T, class From>
void write(const std::vector<From>& values, const Buffer& y) {
    std::transform(values.begin(), values.end(), static_cast<T*>(y.data), [](From v) { return static_cast<T>(v); });
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
void write_halves(const std::vector<double>& values, const Buffer& y) {
    std::transform(values.begin(), values.end(), static_cast<std::uint16_t*>(y.data), half_of<kExponentBits>);
}

// Numbers to another dtype: integers to those of 32 and 64 bits, all to floating-point numbers, rounded once
Wrong convert(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer &x = call.argument(0), &y = call.result();
    if (elements(x) != elements(y)) return "a result of another shape";
    if (!is_integer(x) && dtype_of(x) == Dtype::other) return "a dtype that is not a number";
    if (y.dtype == kFloat32)
        write<float>(read_doubles(x), y);
    else if (y.dtype == kFloat64)
        write<double>(read_doubles(x), y);
    else if (y.dtype == kFloat16)
        write_halves<5>(read_doubles(x), y);
    else if (y.dtype == kBFloat16)
        write_halves<8>(read_doubles(x), y);
    else if (y.dtype == kInt32 && is_integer(x))
        write<std::int32_t>(read_integers(x), y);
    else if (y.dtype == kInt64 && is_integer(x))
        write<std::int64_t>(read_integers(x), y);
    else
        return "a dtype that it cannot convert to";
    return nullptr;
}

template <class T, class F>
void each(const Call& call, F f) {
    const Buffer &a = call.argument(0), &b = call.argument(1), &y = call.result();
    const T *p = static_cast<const T*>(a.data), *q = static_cast<const T*>(b.data);
    T* const to = static_cast<T*>(y.data);
    const std::int64_t n = elements(y);
    // Three loops, as compilers vectorize only those whose steps they know.
    if (elements(a) == n && elements(b) == n)
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(p[i], q[i]);
    else if (elements(b) == 1)
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(p[i], *q);
    else
        for (std::int64_t i = 0; i < n; ++i) to[i] = f(*p, q[i]);
}

template <class F>
Wrong arithmetic(const Call& call, F f) {
    if (call.arguments() != 2 || call.frame.results.count != 1) return "another number of arrays";
    const Buffer& y = call.result();
    for (std::int64_t i = 0; i < 2; ++i) {
        const Buffer& x = call.argument(i);
        if (x.dtype != y.dtype || (elements(x) != 1 && elements(x) != elements(y))) return "arrays that do not fit";
    }
    switch (y.dtype) {
        case kFloat32:
            each<float>(call, f);
            return nullptr;
        case kFloat64:
            each<double>(call, f);
            return nullptr;
        case kInt32:  // unsigned: what does not fit wraps around
            each<std::uint32_t>(call, f);
            return nullptr;
        case kInt64:
            each<std::uint64_t>(call, f);
            return nullptr;
        default:
            return "a dtype without arithmetic";
    }
}

Wrong add(const Call& call) {
    return arithmetic(call, [](auto a, auto b) { return a + b; });
}
Wrong subtract(const Call& call) {
    return arithmetic(call, [](auto a, auto b) { return a - b; });
}
Wrong multiply(const Call& call) {
    return arithmetic(call, [](auto a, auto b) { return a * b; });
}

}  // namespace

Handlers moves_handlers() {
    return {
        {"copy", handle<copy>},         {"take", handle<take>}, {"put", handle<put>},
        {"convert", handle<convert>},   {"add", handle<add>},   {"subtract", handle<subtract>},
        {"multiply", handle<multiply>},
    };
}

}  // namespace tensorops::xla
