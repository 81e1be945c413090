// The element types of arrays, one number at a time and from their definition: what the kernels' conversions are
// compared with.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "elements.h"

namespace tensorops::tests {

using Real = long double;  // wider than a double where the compiler has such a type

struct Format {
    const char* name;
    int bytes, mantissa, bias;  // the leading 1 of the mantissa is not counted
};

inline Format format_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::float16:
            return {"float16", 2, 10, 15};
        case Dtype::bfloat16:
            return {"bfloat16", 2, 7, 127};
        case Dtype::float32:
            return {"float32", 4, 23, 127};
        case Dtype::other:
            return {"bytes", 1, 0, 0};
        default:
            return {"float64", 8, 52, 1023};
    }
}

// R is Real, or double for numbers that are doubles: on AArch64 a long double is computed with in software.

// The distance between neighbours at x
template <class R>
R unit_at(const Format& f, R x) {
    const R a = std::fabs(x);
    const int lowest = 1 - f.bias, exponent = a > 0 && std::isfinite(a) ? std::ilogb(a) : lowest;
    return std::ldexp(R{1}, (exponent > lowest ? exponent : lowest) - f.mantissa);
}

// The neighbour nearest to x, of two equally near the even one; beyond the largest number, infinity
template <class R>
R rounded(const Format& f, R x) {
    if (!std::isfinite(x)) return x;
    const R unit = unit_at(f, x), y = std::nearbyint(x / unit) * unit;
    return std::fabs(y) < std::ldexp(R{1}, f.bias + 1) ? y : std::copysign(R{INFINITY}, x);
}

inline std::uint16_t half_bits(const Format& f, double x) {
    const int infinity = (2 * f.bias + 1) << f.mantissa, sign = std::signbit(x) ? 0x8000 : 0;
    x = std::fabs(rounded(f, x));
    if (std::isnan(x)) return static_cast<std::uint16_t>(infinity | 1 << (f.mantissa - 1));
    if (std::isinf(x)) return static_cast<std::uint16_t>(sign | infinity);
    const double unit = unit_at(f, x);
    const int exponent = std::ilogb(unit) + f.mantissa + f.bias;  // of a normal number; its leading 1 adds the last
    return static_cast<std::uint16_t>(sign | (((exponent - 1) << f.mantissa) + static_cast<int>(x / unit)));
}

inline Real value_of_half(const Format& f, std::uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> f.mantissa, fraction = bits & ((1 << f.mantissa) - 1);
    const Real sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 2 * f.bias + 1) return fraction ? Real{NAN} : sign * Real{INFINITY};
    if (exponent == 0) return sign * std::ldexp(Real(fraction), 1 - f.bias - f.mantissa);
    return sign * std::ldexp(Real(fraction + (1 << f.mantissa)), exponent - f.bias - f.mantissa);
}

// x is a number that the dtype has.
inline void put_element(char* p, Dtype dtype, Real x) {
    const float single = static_cast<float>(x);
    const double wide = static_cast<double>(x);
    const Format f = format_of(dtype);
    if (f.bytes == 1) {
        *p = static_cast<char>(static_cast<unsigned char>(x));
        return;
    }
    const std::uint16_t half = f.bytes == 2 ? half_bits(f, wide) : std::uint16_t{};
    const void* source = &half;
    if (f.bytes == 4) source = &single;
    if (f.bytes == 8) source = &wide;
    std::memcpy(p, source, static_cast<std::size_t>(f.bytes));
}

inline Real get_element(const char* p, Dtype dtype) {
    const Format f = format_of(dtype);
    std::uint16_t half;
    float single;
    double wide;
    switch (f.bytes) {
        case 2:
            std::memcpy(&half, p, sizeof half);
            return value_of_half(f, half);
        case 4:
            std::memcpy(&single, p, sizeof single);
            return Real{single};
        default:
            std::memcpy(&wide, p, sizeof wide);
            return Real{wide};
    }
}

}  // namespace tensorops::tests
