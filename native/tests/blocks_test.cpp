// Weights in blocks of formats: their values, each found by its index from the definitions, and products with them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "../formats/formats.h"
#include "block_linear.h"
#include "tests.h"
#include "unpack_blocks.h"

namespace tensorops::tests {
namespace {

using Bytes = const unsigned char*;

float half(Bytes p) {
    const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return static_cast<float>(bits >> 15 ? -value : value);
}

int nibble(int byte, int upper) { return byte >> (4 * upper) & 15; }
int of_32(Bytes p, int i) { return nibble(p[i % 16], i / 16); }
int fifth(Bytes p, int i) { return (p[i / 8] >> (i % 8) & 1) << 4; }
int two_bits(Bytes p, int i) { return p[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3; }
int as_signed(int byte) { return byte < 128 ? byte : byte - 256; }

constexpr int kIq4Values[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int kE2M1Values[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// What is multiplied and added: the scale, the code, and the minimum, each in float32
struct Parts {
    float scale;
    int code;
    float minimum = 0;
};

Parts k_quant(Bytes p, int i, Bytes nibbles, bool has_fifth) {
    const int g = i / 32;
    int q = nibble(nibbles[32 * (g / 2) + i % 32], g % 2);
    if (has_fifth) q |= (p[16 + i % 32] >> g & 1) << 4;
    const Bytes s = p + 4;
    const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    const int minimum = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | (s[g] >> 6) << 4;
    return {half(p) * static_cast<float>(scale), q, -(half(p + 2) * static_cast<float>(minimum))};
}

Parts fp8(Bytes p, int bits, int mantissa, int bias) {
    float scale;
    std::memcpy(&scale, p, sizeof scale);
    const int exponent = (bits & 127) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    const int code = exponent == 0 ? fraction : fraction + (1 << mantissa);
    const float unit = std::ldexp(scale, std::max(exponent, 1) - bias - mantissa);
    return {bits > 127 ? -unit : unit, code};  // zeros have signs, integers do not
}

Parts parts_of(tensorops::Format format, Bytes p, int i) {
    const int g = i / 16;
    switch (format) {
        case tensorops::Format::q4_0:
            return {half(p), of_32(p + 2, i) - 8};
        case tensorops::Format::q4_1:
            return {half(p), of_32(p + 4, i), half(p + 2)};
        case tensorops::Format::q5_0:
            return {half(p), (of_32(p + 6, i) | fifth(p + 2, i)) - 16};
        case tensorops::Format::q5_1:
            return {half(p), of_32(p + 8, i) | fifth(p + 4, i), half(p + 2)};
        case tensorops::Format::q8_0:
            return {half(p), as_signed(p[2 + i])};
        case tensorops::Format::q2_k:
            return {half(p + 80) * static_cast<float>(p[g] & 15), two_bits(p + 16, i),
                    -(half(p + 82) * static_cast<float>(p[g] >> 4))};
        case tensorops::Format::q3_k: {
            const int q = two_bits(p + 32, i) + 4 * (p[i % 32] >> (i / 32) & 1) - 4;
            const int s = (p[96 + g % 8] >> (4 * (g / 8)) & 15) | (p[104 + g % 4] >> (2 * (g / 4)) & 3) << 4;
            return {half(p + 108) * static_cast<float>(s - 32), q};
        }
        case tensorops::Format::q4_k:
            return k_quant(p, i, p + 16, false);
        case tensorops::Format::q5_k:
            return k_quant(p, i, p + 48, true);
        case tensorops::Format::q6_k: {
            const int of_half = i % 128, upper = p[128 + 32 * (i / 128) + of_half % 32] >> (2 * (of_half / 32)) & 3;
            const int q = nibble(p[64 * (i / 128) + of_half % 64], of_half / 64) | upper << 4;
            return {half(p + 208) * static_cast<float>(as_signed(p[192 + g])), q - 32};
        }
        case tensorops::Format::iq4_nl:
            return {half(p), kIq4Values[of_32(p + 2, i)]};
        case tensorops::Format::iq4_xs: {
            const int n = i / 32, s = nibble(p[4 + n / 2], n % 2) | (p[2 + n / 4] >> (2 * (n % 4)) & 3) << 4;
            return {half(p) * static_cast<float>(s - 32), kIq4Values[of_32(p + 8 + 16 * n, i % 32)]};
        }
        case tensorops::Format::mxfp4:
            return {std::ldexp(1.0f, p[0] - 128), kE2M1Values[of_32(p + 1, i)]};
        case tensorops::Format::nvfp4: {
            const int e = p[g] >> 3 & 15, m = p[g] & 7;
            const double scale = e == 0 ? std::ldexp(m, -10) : std::ldexp(8 + m, e - 11);
            const int q = nibble(p[4 + 8 * g + i % 8], i % 16 / 8);
            return {static_cast<float>(p[g] == 127 ? 0 : scale), kE2M1Values[q]};
        }
        case tensorops::Format::fp8_e4m3:
            return fp8(p, p[4 + i], 3, 7);
        case tensorops::Format::fp8_e5m2:
            return fp8(p, p[4 + i], 2, 15);
        case tensorops::Format::sparse_2_4: {
            const int places = p[i / 8] >> (i / 4 % 2 * 4);
            const Bytes two = p + 4 + i / 4 * 4;
            if ((places >> 2 & 3) == i % 4) return {half(two + 2), 1};
            return {(places & 3) == i % 4 ? half(two) : 0, 1};
        }
        case tensorops::Format::none:
            break;
    }
    return {};
}

bool has_minima(tensorops::Format format) {
    using F = tensorops::Format;
    return format == F::q2_k || format == F::q4_1 || format == F::q4_k || format == F::q5_1 || format == F::q5_k;
}

// Random blocks whose factors are finite and of one order.
Input random_blocks(Test& t, tensorops::Format format, std::int64_t blocks) {
    const FormatSize& size = size_of(format);
    Input stored = t.random_bytes(blocks * size.bytes);
    std::vector<int> upper_bytes;
    switch (format) {
        case tensorops::Format::mxfp4:
            upper_bytes = {0};
            break;
        case tensorops::Format::nvfp4:
            break;
        case tensorops::Format::fp8_e4m3:
        case tensorops::Format::fp8_e5m2:
            upper_bytes = {3};
            break;
        case tensorops::Format::sparse_2_4:
            for (int place = 5; place < 36; place += 2) upper_bytes.push_back(place);
            break;
        case tensorops::Format::q2_k:
            upper_bytes = {81, 83};
            break;
        case tensorops::Format::q3_k:
            upper_bytes = {109};
            break;
        case tensorops::Format::q6_k:
            upper_bytes = {209};
            break;
        case tensorops::Format::q4_1:
        case tensorops::Format::q5_1:
        case tensorops::Format::q4_k:
        case tensorops::Format::q5_k:
            upper_bytes = {1, 3};
            break;
        default:
            upper_bytes = {1};
    }
    const bool is_e5m2 = format == tensorops::Format::fp8_e5m2;
    if (is_e5m2 || format == tensorops::Format::fp8_e4m3)  // without infinities and NaN
        for (Real& byte : stored.values)
            if (const int largest = is_e5m2 ? 0x7c : 0x7f; (static_cast<int>(byte) & largest) == largest) byte = 1;
    for (std::int64_t b = 0; b < blocks; ++b)
        for (int place : upper_bytes) {
            Real& byte = stored.values[static_cast<std::size_t>(b * size.bytes + place)];
            const int given = static_cast<int>(byte);
            byte = (given & 0x83) | 0x28;
            if (format == tensorops::Format::mxfp4) byte = 120 + given % 8;
            if (upper_bytes[0] == 3) byte = (given & 0x80) | 0x38;
        }
    return stored;
}

// Blocks of rows of `blocks`, those of 32 rows word by word
std::vector<Real> interleaved(const std::vector<Real>& stored, const FormatSize& size, std::int64_t blocks) {
    const std::int64_t odd = size.bytes % 4, lead = size.elements == 32 ? odd : 0;
    std::vector<Real> made;
    for (std::int64_t unit = 0; unit < static_cast<std::int64_t>(stored.size()) / (32 * size.bytes); ++unit) {
        const std::int64_t band = unit / blocks, block = unit % blocks;
        for (std::int64_t start = 0, length; start < size.bytes; start += length) {
            length = start < lead ? lead : std::min<std::int64_t>(4, size.bytes - start);
            for (std::int64_t row = 32 * band; row < 32 * (band + 1); ++row)
                for (std::int64_t i = start; i < start + length; ++i)
                    made.push_back(stored[static_cast<std::size_t>((row * blocks + block) * size.bytes + i)]);
        }
    }
    return made;
}

void blocks_of(Test& t, tensorops::Format format, std::int64_t rows, std::int64_t outputs, int digits,
               bool is_interleaved) {
    const FormatSize& size = size_of(format);
    const std::int64_t blocks = t.many_threads ? t.length / 16 : t.length;
    const std::int64_t n = blocks * size.elements, row_bytes = blocks * size.bytes;
    const Input plain = random_blocks(t, format, outputs * blocks);
    Input stored = plain;
    if (is_interleaved) stored.values = interleaved(plain.values, size, blocks);
    stored = laid_out(stored, {outputs, row_bytes}, {0}, t.length % 2 && !is_interleaved ? 3 : 0);
    const Input x = laid_out(t.random(rows * n), {rows, n}, {0}, t.length % 2 ? 0 : 7);
    std::vector<float> values;
    std::vector<unsigned char> bytes;
    for (const Real& byte : plain.values) bytes.push_back(static_cast<unsigned char>(byte));
    for (std::int64_t i = 0; i < outputs * n; ++i) {
        const Parts found =
            parts_of(format, bytes.data() + i / size.elements * size.bytes, static_cast<int>(i % size.elements));
        const volatile float product = found.scale * static_cast<float>(found.code);
        values.push_back(has_minima(format) ? product + found.minimum : product);
    }
    const std::string name(size.name);
    if (digits == 3 && t.dtype == Dtype::float32)
        t.check("unpack " + name, {0, 0}, {stored}, Expected::exactly(values), [&](const Test::Call& call) {
            const std::int64_t stride = stored.stride[0];
            target().unpack_blocks(
                {call.in[0], stride, outputs, n, format, reinterpret_cast<float*>(call.out), is_interleaved, 0});
        });
    Expected expected;
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < outputs; ++o) {
            Real sum = 0, magnitude = 0;
            for (std::int64_t i = 0; i < n; ++i) {
                const Real product =
                    x.values[static_cast<std::size_t>(r * n + i)] * values[static_cast<std::size_t>(o * n + i)];
                sum += product;
                magnitude += std::fabs(product);
            }
            expected.value.push_back(sum);
            expected.scale.push_back(t.dtype == Dtype::float32 ? magnitude : magnitude / 16);  // cancellation
        }
    if (digits == 1 && t.dtype != Dtype::float32) return;
    const Bound bound{digits == 1 ? Real{400000} : Real{16}, 0};
    t.check(name + (digits == 1 ? ", low" : ""), bound, {stored, x}, expected, [&](const Test::Call& call) {
        BlockLinear op{};
        op.x = rows_of(x, call.in[1]);
        op.weight = call.in[0];
        op.weight_stride = stored.stride[0];
        op.outputs = outputs;
        op.format = format;
        op.digits = digits;
        op.y = call.out;
        op.x_dtype = t.dtype;
        op.is_interleaved = is_interleaved;
        (is_interleaved ? target().interleaved_linear : target().block_linear)(op);
    });
}

}  // namespace

void block_linear(Test& t) {
    if (t.dtype == Dtype::float64 || (t.length > 17 && !t.many_threads)) return;
    const std::int64_t few_rows[] = {1, 2, 5, 9, 20}, few_outputs[] = {1, 2, 17, 33};
    std::int64_t index = t.length;
    for (int format = 0; format < static_cast<int>(tensorops::Format::none); ++format)
        for (int digits : {3, 1}) {
            ++index;
            blocks_of(t, static_cast<tensorops::Format>(format), few_rows[index % 5],
                      t.many_threads ? 300 : few_outputs[index % 4], digits, false);
        }
}

void interleaved_linear(Test& t) {
    if (t.dtype == Dtype::float64 || (t.length > 17 && !t.many_threads)) return;
    const std::int64_t few_rows[] = {1, 2, 3, 9, 40};
    std::int64_t index = t.length;
    for (int format = 0; format < static_cast<int>(tensorops::Format::none); ++format)
        for (int digits : {3, 1}) {
            ++index;
            blocks_of(t, static_cast<tensorops::Format>(format), few_rows[index % 5],
                      t.many_threads ? 320 : 32 * (1 + index % 2), digits, true);
        }
}

}  // namespace tensorops::tests
