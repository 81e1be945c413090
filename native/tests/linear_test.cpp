// x · Wᵀ for weights that are numbers and for weights that are packed integers.
#include "tests.h"

namespace tensorops::tests {
namespace {

// x · Wᵀ + bias; errors are counted in units of the sum of the products' sizes.
Expected products(const std::vector<Real>& x, const std::vector<double>& w, const std::vector<double>& size_of_w,
                  const std::vector<Real>& bias, std::int64_t rows, std::int64_t outputs, std::int64_t n) {
    Expected expected;
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < outputs; ++o) {
            const double b = bias.empty() ? 0 : static_cast<double>(bias[static_cast<std::size_t>(o)]);
            double sum = b, size = std::fabs(b);
            for (std::int64_t i = 0; i < n; ++i) {
                const auto factor = static_cast<double>(x[static_cast<std::size_t>(r * n + i)]);
                sum += factor * w[static_cast<std::size_t>(o * n + i)];
                size += std::fabs(factor) * size_of_w[static_cast<std::size_t>(o * n + i)];
            }
            expected.value.push_back(sum);
            expected.scale.push_back(std::isfinite(size) ? size : 0);
        }
    return expected;
}

Input matrix(Input x, std::int64_t rows, std::int64_t columns, std::int64_t gap) {
    return laid_out(std::move(x), {rows, columns}, {0}, gap);
}

// Rows in two axes, of which the first changes faster in memory.
Input strided_rows(Input x, std::int64_t rows, std::int64_t columns, std::int64_t gap) {
    if (rows % 2 != 0) return matrix(std::move(x), rows, columns, gap);
    return laid_out(std::move(x), {2, rows / 2, columns}, {1, 0}, gap);
}

constexpr Dtype kSingleOrHalf[] = {Dtype::float16, Dtype::bfloat16, Dtype::float32};

}  // namespace

void linear(Test& t) {
    if (t.dtype == Dtype::float64) return;  // BLAS serves it
    const std::int64_t few_rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 150}, few_outputs[] = {1, 2, 4, 31, 32, 33, 67};
    const std::int64_t n = t.length, rows = t.many_threads ? t.rows : few_rows[n % 9],
                       outputs = t.many_threads ? 70 : few_outputs[n % 7];
    Input x = strided_rows(t.random(rows * n), rows, n, n % 3 ? 0 : 7);
    const bool is_long = n >= kLongRow;
    if (is_long) std::fill(x.values.begin(), x.values.end(), rounded(format_of(t.dtype), 1.1L));
    if (n % 10 == 0) x.values[static_cast<std::size_t>(n / 2)] = n % 20 ? NAN : INFINITY;
    for (Dtype weight_dtype : kSingleOrHalf) {
        Input weight = matrix(t.random(outputs * n, weight_dtype, 1.0), outputs, n, n % 2 ? 0 : 5);
        if (is_long) std::fill(weight.values.begin(), weight.values.end(), rounded(format_of(weight_dtype), 0.7L));
        const Input bias = t.random(n % 4 ? outputs : 0, n % 4 == 1 ? t.dtype : weight_dtype, 3.0);
        const std::vector<double> w(weight.values.begin(), weight.values.end());
        std::vector<double> size;
        for (double a : w) size.push_back(std::fabs(a));
        std::vector<Input> in{x, weight};
        if (!bias.values.empty()) in.push_back(bias);
        t.check("linear", {is_long ? 64.0L : 16.0L, 0}, in, products(x.values, w, size, bias.values, rows, outputs, n),
                [&](const Test::Call& call) {
                    Linear op{};
                    op.x = rows_of(x, call.in[0]);
                    op.weight = call.in[1];
                    op.weight_stride = weight.stride[0];
                    op.outputs = outputs;
                    op.bias = bias.values.empty() ? nullptr : call.in[2];
                    op.y = call.out;
                    op.x_dtype = t.dtype;
                    op.weight_dtype = weight_dtype;
                    op.bias_dtype = bias.dtype;
                    op.few_rows = n % 3 * 8;  // 0: as the kernel chooses
                    target().linear(op);
                });
    }
}

namespace {

struct Packing {
    const char* suffix;
    int bits;
    bool is_signed;
};
constexpr Packing kPackings[] = {{", 4", 4, false}, {", 8", 8, false}, {", int8", 8, true}};

int unpacked(const Input& packed, Packing packing, std::size_t index) {
    const int byte = static_cast<int>(packed.values[packing.bits == 4 ? index / 2 : index]);
    if (packing.bits == 4) return index % 2 ? byte / 16 : byte % 16;
    return packing.is_signed && byte > 127 ? byte - 256 : byte;
}

// Rows that only some of the kernel's ways can take: numbers that are large, tiny, or none.
void make_extreme(Input& x, std::int64_t n, std::int64_t choice) {
    const Real large = x.dtype == Dtype::float16 ? 6e4L : 1e33L, tiny = x.dtype == Dtype::float16 ? 6e-8L : 1e-34L;
    const auto at = static_cast<std::size_t>(n / 2);
    if (choice == 0) x.values[at] = INFINITY;
    if (choice == 1) x.values[at] = NAN;
    if (choice == 2) x.values[at] = rounded(format_of(x.dtype), large);
    if (choice == 3)
        for (Real& value : x.values) value = rounded(format_of(x.dtype), value * tiny);
    if (choice == 4) std::fill(x.values.begin(), x.values.begin() + n, Real{0});
}

// Calls one of the two kernels with what quantized_linear takes.
using Multiply = void (*)(const QuantizedLinear&);

void quantized(Test& t, const std::string& name, Multiply multiply, Packing packing, Dtype scale_dtype,
               std::int64_t group_size, std::int64_t rows, std::int64_t outputs) {
    const std::int64_t groups = t.length, n = groups * group_size, row_bytes = n * packing.bits / 8;
    Input x = strided_rows(t.random(rows * n), rows, n, groups % 2 ? 0 : 7);
    if (groups % 4 == 3) make_extreme(x, n, t.integer(0, 4));
    const Input weight = matrix(t.random_bytes(outputs * row_bytes), outputs, row_bytes, groups % 2 ? 3 : 0);
    const Input scales = matrix(t.random(outputs * groups, scale_dtype, 0.1), outputs, groups, groups % 3 ? 0 : 5);
    const Input biases = matrix(t.random(outputs * groups, scale_dtype, 1.0), outputs, groups, groups % 3 ? 3 : 0);
    std::vector<double> w, size;
    for (std::int64_t i = 0; i < outputs * n; ++i) {
        const auto group = static_cast<std::size_t>(i / group_size);
        const double product =
            static_cast<double>(scales.values[group]) * unpacked(weight, packing, static_cast<std::size_t>(i));
        const double bias = packing.is_signed ? 0 : static_cast<double>(biases.values[group]);
        w.push_back(product + bias);
        size.push_back(std::fabs(product) + std::fabs(bias));
    }
    std::vector<Input> in{x, weight, scales};
    if (!packing.is_signed) in.push_back(biases);
    t.check(name + packing.suffix, {16, 0}, in, products(x.values, w, size, {}, rows, outputs, n),
            [&](const Test::Call& call) {
                QuantizedLinear op{};
                op.x = rows_of(x, call.in[0]);
                op.weight = call.in[1];
                op.weight_stride = weight.stride[0];
                op.scales = call.in[2];
                op.scale_stride = scales.stride[0];
                op.biases = packing.is_signed ? nullptr : call.in[3];
                op.bias_stride = biases.stride[0];
                op.outputs = outputs;
                op.group_size = group_size;
                op.bits = packing.bits;
                op.y = call.out;
                op.x_dtype = t.dtype;
                op.scale_dtype = scale_dtype;
                multiply(op);
            });
}

void by_plain_weights(const QuantizedLinear& op) { target().quantized_linear(op); }

void by_panels(const QuantizedLinear& op) {
    const PlainWeights plain{const_cast<char*>(op.weight),
                             const_cast<char*>(op.scales),
                             const_cast<char*>(op.biases),
                             op.weight_stride,
                             op.scale_stride,
                             op.bias_stride};
    const PanelFormat format{op.outputs, op.x.length, op.group_size, op.bits, op.biases != nullptr, op.scale_dtype};
    const WeightPanels panels(format, plain);
    target().panel_linear({op.x, panels.data(), format, op.y, op.x_dtype});
}

}  // namespace

void quantized_linear(Test& t) {
    if (t.dtype == Dtype::float64) return;
    const std::int64_t few_rows[] = {1, 2, 3, 4, 5, 9, 50}, few_outputs[] = {1, 2, 17, 65, 67};
    std::int64_t index = t.length;
    for (const Packing& packing : kPackings)
        for (std::int64_t group_size : {2, 6, 16, 32, 64, 128}) {
            if (t.many_threads && group_size != 32) continue;
            ++index;
            quantized(t, "quantized_linear", by_plain_weights, packing, kSingleOrHalf[index % 3], group_size,
                      t.many_threads ? 5 : few_rows[index % 7], t.many_threads ? 300 : few_outputs[index % 5]);
        }
}

void panel_linear(Test& t) {
    if (t.dtype == Dtype::float64) return;
    const std::int64_t few_rows[] = {1, 2, 3, 4, 5, 9, 70}, few_outputs[] = {1, 17, 32, 65, 67};
    std::int64_t index = t.length;
    for (const Packing& packing : kPackings)
        for (std::int64_t group_size : {32, 64, 128}) {
            if (t.many_threads && group_size != 32) continue;
            ++index;
            quantized(t, "panel_linear", by_panels, packing, kSingleOrHalf[index % 3], group_size,
                      t.many_threads ? 5 : few_rows[index % 7], t.many_threads ? 300 : few_outputs[index % 5]);
        }
}

}  // namespace tensorops::tests
