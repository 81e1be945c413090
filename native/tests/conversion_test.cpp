// Conversions between float32 and half types: every half, and float32 at and next to the middles between halves.
#include "compiled_targets.h"
#include "tests.h"
#include "vector_functions.h"

namespace tensorops {

#define TENSOROPS_DECLARE(target, ...)                                                     \
    namespace target {                                                                     \
    void widen_half(Dtype, const char* x, float* y, std::int64_t n);                       \
    void narrow_to_half(Dtype, tests::Narrowing, const float* x, char* y, std::int64_t n); \
    }
TENSOROPS_FOR_EACH_TARGET(TENSOROPS_DECLARE, TENSOROPS_DECLARE, )

namespace tests {
namespace {

struct Conversions {
    void (*widen)(Dtype, const char*, float*, std::int64_t);
    void (*narrow)(Dtype, Narrowing, const float*, char*, std::int64_t);
};

Conversions in_use() {
#define TENSOROPS_NAMED(target, ...) {#target, {target::widen_half, target::narrow_to_half}},
    static const std::map<std::string, Conversions> all = {
        TENSOROPS_FOR_EACH_TARGET(TENSOROPS_NAMED, TENSOROPS_NAMED, )};
    return all.at(target().name);
}

float float_of(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

std::vector<std::uint16_t> all_halves() {
    std::vector<std::uint16_t> bits(1 << 16);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    return bits;
}

double number(Dtype dtype, std::uint16_t bits) { return static_cast<double>(value_of_half(format_of(dtype), bits)); }

// Numbers that a half type has, the middles between them, the neighbours of those, and NaN.
std::vector<float> numbers_to_narrow(Dtype dtype) {
    const Format f = format_of(dtype);
    std::vector<float> all;
    for (std::uint16_t bits : all_halves()) {
        const double x = number(dtype, bits);
        if (!std::isfinite(x)) continue;
        const double middle = x + std::copysign(unit_at(f, x) / 2, x);
        const auto tie = static_cast<float>(middle);  // exact, unless below float32's smallest
        for (float one : {static_cast<float>(x), tie, std::nextafterf(tie, INFINITY), std::nextafterf(tie, -INFINITY)})
            all.push_back(one);
    }
    for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f7fffffu, 0xff7fffffu, 1u, 0x80000001u, 0x007fffffu,
                               0x7fc00000u, 0xffc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u})
        for (int i = 0; i < 9; ++i) all.push_back(i % 3 ? float_of(bits) : float_of(bits ^ 0x00010001u));
    return all;
}

bool is_quiet_nan(const Format& f, std::uint16_t bits) {
    const int quiet = ((2 * f.bias + 1) << f.mantissa) | 1 << (f.mantissa - 1);
    return (bits & quiet) == quiet;
}

// Rows of t.length elements, so that each element is at several places of a vector and in rests of rows.
template <class F>
void by_rows(const Test& t, std::size_t count, F convert_row) {
    const auto length = static_cast<std::size_t>(t.length);
    for (std::size_t i = 0; i < count; i += length)
        convert_row(i, static_cast<std::int64_t>(std::min(length, count - i)));
}

bool widens(const Test& t, const std::vector<std::uint16_t>& x) {
    std::vector<float> y(x.size());
    by_rows(t, x.size(), [&](std::size_t i, std::int64_t n) {
        in_use().widen(t.dtype, reinterpret_cast<const char*>(&x[i]), &y[i], n);
    });
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = number(t.dtype, x[i]), found = static_cast<double>(y[i]);
        const bool same = found == expected && std::signbit(found) == std::signbit(expected);
        if (!(std::isnan(expected) ? std::isnan(found) : same)) return false;
    }
    return true;
}

bool narrows(const Test& t, const std::vector<float>& x, const std::vector<std::uint16_t>& expected, Narrowing how) {
    std::vector<char> room(2 * x.size() + 64);
    char* y = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64);
    by_rows(t, x.size(), [&](std::size_t i, std::int64_t n) { in_use().narrow(t.dtype, how, &x[i], y + 2 * i, n); });
    const Format f = format_of(t.dtype);
    std::map<std::uint32_t, std::uint16_t> nan;  // what became of each, wherever it was
    for (std::size_t i = 0; i < x.size(); ++i) {
        std::uint16_t found;
        std::memcpy(&found, y + 2 * i, sizeof found);
        std::uint32_t bits;
        std::memcpy(&bits, &x[i], sizeof bits);
        if (!std::isnan(x[i]) && found != expected[i]) return false;
        if (!std::isnan(x[i])) continue;
        if (!is_quiet_nan(f, found) || nan.try_emplace(bits, found).first->second != found) return false;
    }
    return true;
}

}  // namespace

void conversion(Test& t) {
    if (format_of(t.dtype).bytes != 2) return;
    const std::vector<std::uint16_t> halves = all_halves();
    const std::vector<float> numbers = numbers_to_narrow(t.dtype);
    std::vector<std::uint16_t> expected;
    for (float x : numbers) expected.push_back(half_bits(format_of(t.dtype), static_cast<double>(x)));
    for (const std::string& name : t.targets) {
        use_target(name);
        const auto note = [&](const char* what, bool right) {
            t.record(name, what, {0, 0}, right ? Real{0} : Real{INFINITY});
        };
        note("widening", widens(t, halves));
        note("narrowing", narrows(t, numbers, expected, Narrowing::stored));
        note("narrowing, registers", narrows(t, numbers, expected, Narrowing::as_stored));
        if (t.length % 32 == 0) note("narrowing, streamed", narrows(t, numbers, expected, Narrowing::streamed));
    }
}

}  // namespace tests
}  // namespace tensorops
