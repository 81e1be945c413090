// quantize and dequantize, whose results must be those of the formula in every bit.
#include <limits>

#include "tests.h"

namespace tensorops::tests {
namespace {

struct Packing {
    const char* suffix;
    int bits;
    bool is_signed;
};
constexpr Packing kFormats[] = {{", 4", 4, false}, {", 8", 8, false}, {", int8", 8, true}};

std::int64_t rows_for(const Test& t) { return t.many_threads ? t.rows : 3; }

// C is the type of computation. Each operation is a statement, so that no two become one.
template <class C>
C dequantized(C scale, C bias, int q, bool is_signed) {
    const C product = scale * static_cast<C>(q);
    if (is_signed) return product;
    const volatile C rounded_product = product;
    return rounded_product + bias;
}

struct Group {
    Real scale, low;
    std::vector<int> codes;
};

// A scale in the dtype of the array: the next larger number for half types, so that the integers reach every element,
// but a smaller one where the largest element would be beyond the dtype.
template <class C>
C as_stored(C scale, C low, C steps, const Format& format) {
    const auto in_dtype = [&format](C x) { return static_cast<C>(rounded(format, Real{x})); };
    const C epsilon = std::ldexp(C(1), -format.mantissa), least = std::ldexp(C(1), 1 - format.bias - format.mantissa);
    const C largest = (2 - epsilon) * std::ldexp(C(1), format.bias);
    C stored = in_dtype(scale);
    if (format.bytes == 2 && stored < scale)
        stored = in_dtype(stored + std::max(stored * (C(0.625) * epsilon), C(0.75) * least));
    const volatile C half_extent = steps * (stored * C(0.5)), half_low = low * C(0.5), half = half_extent + half_low;
    return half > C(0.5) * largest ? in_dtype(scale * (C(1) - 2 * epsilon)) : stored;
}

template <class C>
Group quantized(const Real* x, std::int64_t n, Packing format, const Format& stored) {
    const int steps = format.is_signed ? 127 : (1 << format.bits) - 1;
    C low = static_cast<C>(x[0]), high = low, size = 0;
    bool finite = true, nan = false;
    for (std::int64_t i = 0; i < n; ++i) {
        const C value = static_cast<C>(x[i]);
        low = std::min(low, value);
        high = std::max(high, value);
        size = std::max(size, std::fabs(value));
        finite = finite && std::isfinite(value);
        nan = nan || std::isnan(value);
    }
    if (nan) low = high = size = std::numeric_limits<C>::quiet_NaN();
    const volatile C half_high = C(0.5) * high, half_low = C(0.5) * low, extent = half_high - half_low;
    const C exact = format.is_signed ? size / static_cast<C>(steps) : extent / (C(0.5) * static_cast<C>(steps));
    const C scale = as_stored(exact, format.is_signed ? C(0) : low, static_cast<C>(steps), stored);
    Group group{scale, format.is_signed ? 0 : low, {}};
    for (std::int64_t i = 0; i < n; ++i) {
        if (!finite || !(scale > 0)) {
            group.codes.push_back(0);
            continue;
        }
        const volatile C distance = format.is_signed ? static_cast<C>(x[i]) : static_cast<C>(x[i]) - low;
        const C code = std::nearbyint(distance / scale);
        group.codes.push_back(
            static_cast<int>(std::clamp(code, static_cast<C>(format.is_signed ? -steps : 0), static_cast<C>(steps))));
    }
    return group;
}

void pack(const std::vector<int>& codes, int bits, std::vector<char>& bytes) {
    for (std::size_t i = 0; i < codes.size(); i += static_cast<std::size_t>(8 / bits))
        bytes.push_back(static_cast<char>(bits == 4 ? codes[i] | codes[i + 1] << 4 : codes[i]));
}

void quantize(Test& t, Packing format, std::int64_t group_size) {
    const std::int64_t rows = rows_for(t), columns = t.length * group_size;
    Input w = laid_out(t.random(rows * columns), {rows, columns}, {0}, t.length % 3 ? 0 : 7);
    for (std::int64_t i = 0; i < std::min(columns, group_size); ++i)
        w.values[static_cast<std::size_t>(i)] = 1;  // no extent
    if (t.length % 4 == 3) w.values.back() = t.length % 8 == 3 ? NAN : INFINITY;
    Expected scales, biases;
    std::vector<char> bytes;
    for (std::int64_t g = 0; g < rows * t.length; ++g) {
        const Real* x = w.values.data() + g * group_size;
        const Group group = t.dtype == Dtype::float64 ? quantized<double>(x, group_size, format, format_of(t.dtype))
                                                      : quantized<float>(x, group_size, format, format_of(t.dtype));
        scales.value.push_back(rounded(format_of(t.dtype), group.scale));
        biases.value.push_back(rounded(format_of(t.dtype), group.low));
        pack(group.codes, format.bits, bytes);
    }
    const auto check = [&](const std::string& name, const Expected& expected, char* Quantize::* result) {
        t.check("quantize" + name + format.suffix, {0, 0}, {w}, expected, [&](const Test::Call& call) {
            std::vector<double> elsewhere(3 * static_cast<std::size_t>(rows * columns));
            Quantize op{};
            op.w = call.in[0];
            op.w_stride = w.stride[0];
            op.rows = rows;
            op.columns = columns;
            op.group_size = group_size;
            op.bits = format.bits;
            op.weight = reinterpret_cast<char*>(elsewhere.data());
            op.scales = reinterpret_cast<char*>(elsewhere.data() + rows * columns);
            op.biases = format.is_signed ? nullptr : reinterpret_cast<char*>(elsewhere.data() + 2 * rows * columns);
            op.dtype = t.dtype;
            op.*result = call.out;
            target().quantize(op);
        });
    };
    check("", Expected::exactly(bytes), &Quantize::weight);
    check(" scales", scales, &Quantize::scales);
    if (!format.is_signed) check(" biases", biases, &Quantize::biases);
}

void dequantize(Test& t, Packing format, std::int64_t group_size) {
    const std::int64_t rows = rows_for(t), columns = t.length * group_size, row_bytes = columns * format.bits / 8;
    const std::int64_t gap = t.length % 3 ? 0 : 5;
    const Input weight = laid_out(t.random_bytes(rows * row_bytes), {rows, row_bytes}, {0}, gap);
    Input scales = laid_out(t.random(rows * t.length), {rows, t.length}, {0}, gap);
    const Input biases = laid_out(t.random(rows * t.length), {rows, t.length}, {0}, 2 * gap);
    if (t.length % 4 == 3) scales.values.back() = t.length % 8 == 3 ? NAN : INFINITY;
    Expected expected;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
        const int byte = static_cast<int>(weight.values[static_cast<std::size_t>(i * format.bits / 8)]);
        const int q = format.bits == 4 ? byte >> 4 * (i % 2) & 15 : format.is_signed && byte > 127 ? byte - 256 : byte;
        const Real s = scales.values[static_cast<std::size_t>(i / group_size)];
        const Real b = biases.values[static_cast<std::size_t>(i / group_size)];
        const Real w = t.dtype == Dtype::float64 ? Real{dequantized<double>(s, b, q, format.is_signed)}
                                                 : Real{dequantized<float>(s, b, q, format.is_signed)};
        expected.value.push_back(rounded(format_of(t.dtype), w));
    }
    std::vector<Input> in{weight, scales};
    if (!format.is_signed) in.push_back(biases);
    t.check(std::string("dequantize") + format.suffix, {0, 0}, in, expected, [&](const Test::Call& call) {
        Dequantize op{};
        op.weight = call.in[0];
        op.weight_stride = weight.stride[0];
        op.scales = call.in[1];
        op.scale_stride = scales.stride[0];
        op.biases = format.is_signed ? nullptr : call.in[2];
        op.bias_stride = biases.stride[0];
        op.rows = rows;
        op.columns = columns;
        op.group_size = group_size;
        op.bits = format.bits;
        op.w = call.out;
        op.dtype = t.dtype;
        op.streaming = call.streaming && group_size % 16 == 0;
        target().dequantize(op);
    });
}

template <class F>
void for_groups(const Test& t, F f) {
    for (Packing format : kFormats)
        for (std::int64_t group_size : {2, 6, 16, 22, 32, 50, 64})
            if (!t.many_threads || group_size == 32) f(format, group_size);
}

}  // namespace

void quantize(Test& t) {
    for_groups(t, [&t](Packing format, std::int64_t group_size) { quantize(t, format, group_size); });
}

void dequantize(Test& t) {
    for_groups(t, [&t](Packing format, std::int64_t group_size) { dequantize(t, format, group_size); });
}

}  // namespace tensorops::tests
