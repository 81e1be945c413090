#include "array.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace tensorops {

namespace {

template <class T, class To>
To read_one(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return static_cast<To>(value);
}

// The value of 16 bits, of which the given number are the exponent's
template <int kExponentBits>
double value_of_half(std::uint16_t bits) {
    constexpr int kFractionBits = 15 - kExponentBits, kLargest = (1 << kExponentBits) - 1;
    const int exponent = (bits >> kFractionBits) & kLargest;
    const int fraction = bits & ((1 << kFractionBits) - 1);
    const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == kLargest) {
        using Limits = std::numeric_limits<double>;
        return sign * (fraction == 0 ? Limits::infinity() : Limits::quiet_NaN());
    }
    const int significand = exponent == 0 ? fraction : fraction + (1 << kFractionBits);
    return sign * std::ldexp(significand, std::max(exponent, 1) - kLargest / 2 - kFractionBits);
}

template <int kExponentBits>
double read_half(const char* from) {
    return value_of_half<kExponentBits>(read_one<std::uint16_t, std::uint16_t>(from));
}

template <class To>
using Read = To (*)(const char*);

template <class To>
Read<To> reader_of_integers(Dtype dtype) {
    switch (dtype) {
        case Dtype::int8:
            return read_one<std::int8_t, To>;
        case Dtype::int16:
            return read_one<std::int16_t, To>;
        case Dtype::int32:
            return read_one<std::int32_t, To>;
        case Dtype::uint16:
            return read_one<std::uint16_t, To>;
        case Dtype::uint32:
            return read_one<std::uint32_t, To>;
        case Dtype::uint64:
            return read_one<std::uint64_t, To>;
        case Dtype::int64:
            return read_one<std::int64_t, To>;
        default:
            return read_one<std::uint8_t, To>;
    }
}

Read<double> reader_of_doubles(Dtype dtype) {
    if (dtype == Dtype::float16) return read_half<5>;
    if (dtype == Dtype::bfloat16) return read_half<8>;
    if (dtype == Dtype::float32) return read_one<float, double>;
    if (dtype == Dtype::float64) return read_one<double, double>;
    return reader_of_integers<double>(dtype);
}

template <class To>
void read_axes(const Array& a, int axis, const char* from, Read<To> read, To*& to) {
    if (axis == a.ndim) {
        *to++ = read(from);
        return;
    }
    const std::int64_t step = a.stride(axis);
    for (std::int64_t i = 0; i < a.shape[axis]; ++i) read_axes(a, axis + 1, from + i * step, read, to);
}

template <class To>
std::vector<To> read_all(const Array& a, Read<To> read) {
    std::vector<To> all(static_cast<std::size_t>(a.size()));
    To* to = all.data();
    read_axes(a, 0, a.data, read, to);
    return all;
}

}  // namespace

std::vector<std::int64_t> read_integers(const Array& a) {
    return read_all(a, reader_of_integers<std::int64_t>(a.dtype));
}

std::vector<double> read_doubles(const Array& a) { return read_all(a, reader_of_doubles(a.dtype)); }

}  // namespace tensorops
