// x · Wᵀ for weights that are numbers and for weights that are packed integers.
#include "tests.h"

namespace tensorops::tests {
namespace {

// For each row, the first row of its matrix of weights; none if all have the same one.
using Firsts = std::vector<std::int64_t>;

// x · Wᵀ + bias; errors are counted in units of the sum of the products' sizes.
Expected products(const std::vector<Real>& x, const std::vector<double>& w, const std::vector<double>& size_of_w,
                  const std::vector<Real>& bias, std::int64_t rows, std::int64_t outputs, std::int64_t n,
                  const Firsts& firsts = {}) {
    Expected expected;
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < outputs; ++i) {
            const std::int64_t o = firsts.empty() ? i : firsts[static_cast<std::size_t>(r)] + i;
            const double b = bias.empty() ? 0 : static_cast<double>(bias[static_cast<std::size_t>(o)]);
            double sum = b, size = std::fabs(b);
            for (std::int64_t k = 0; k < n; ++k) {
                const auto factor = static_cast<double>(x[static_cast<std::size_t>(r * n + k)]);
                sum += factor * w[static_cast<std::size_t>(o * n + k)];
                size += std::fabs(factor) * size_of_w[static_cast<std::size_t>(o * n + k)];
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

constexpr std::int64_t kMostPacked = 16384;  // elements of a row

constexpr std::int64_t kWidths[] = {24, 32};  // outputs of a block, on one target or another

// Columns of as many outputs, one after another, and then those of the next ones
Input packed(const std::vector<Real>& weight, std::int64_t outputs, std::int64_t n, std::int64_t width) {
    const std::int64_t blocks = (outputs + width - 1) / width;
    Input made{Dtype::float32, std::vector<Real>(static_cast<std::size_t>(blocks * n * width))};
    for (std::int64_t o = 0; o < outputs; ++o)
        for (std::int64_t i = 0; i < n; ++i)
            made.values[static_cast<std::size_t>((o / width * n + i) * width + o % width)] =
                weight[static_cast<std::size_t>(o * n + i)];
    return matrix(made, blocks * n, width, 0);
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
        const bool activates = n % 3 == 1;
        Expected expected = products(x.values, w, size, bias.values, rows, outputs, n);
        if (activates)
            for (auto& value : expected.value) value = value <= 0 ? 0 : value;
        t.check("linear", {is_long ? 64.0L : 16.0L, 0}, in, expected, [&](const Test::Call& call) {
            Linear op{};
            if (activates) op.function = Function::relu;
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
        if (weight_dtype != Dtype::float32 || n > kMostPacked) continue;
        in[1] = packed(weight.values, outputs, n, kWidths[0]);
        in.insert(in.begin() + 2, packed(weight.values, outputs, n, kWidths[1]));
        t.check("packed linear", {is_long ? 64.0L : 16.0L, 0}, in, expected, [&](const Test::Call& call) {
            std::int64_t few_rows = 0, width = 0;
            target().linear_choice({&few_rows, &width});
            Linear op{};
            if (activates) op.function = Function::relu;
            op.x = rows_of(x, call.in[0]);
            op.weight = call.in[width == kWidths[0] ? 1 : 2];
            op.outputs = outputs;
            op.bias = bias.values.empty() ? nullptr : call.in[3];
            op.y = call.out;
            op.x_dtype = t.dtype;
            op.weight_dtype = Dtype::float32;
            op.bias_dtype = bias.dtype;
            op.is_packed = true;
            target().linear(op);
        });
    }
}

namespace {

// Experts of rows: of some, that of the row before; some of them have no rows.
std::vector<std::int64_t> experts_of(Test& t, std::int64_t rows, std::int64_t experts) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t r = 0; r < rows; ++r)
        numbers.push_back(r > 0 && t.integer(0, 2) == 0 ? numbers.back() : t.integer(0, experts - 1));
    return numbers;
}

SortedRows sorted(const std::vector<std::int64_t>& numbers, std::int64_t experts) {
    return {static_cast<std::int64_t>(numbers.size()), experts,
            [&](std::int64_t r) { return numbers[static_cast<std::size_t>(r)]; }};
}

Firsts firsts_of(std::vector<std::int64_t> numbers, std::int64_t per_expert) {
    for (std::int64_t& number : numbers) number *= per_expert;
    return numbers;
}

}  // namespace

void grouped_linear(Test& t) {
    if (t.dtype == Dtype::float64) return;
    const std::int64_t few_rows[] = {1, 2, 5, 8, 13, 40, 350}, few_outputs[] = {1, 4, 31, 33, 67};
    const std::int64_t n = t.length, rows = t.many_threads ? t.rows : few_rows[n % 7], experts = 1 + n % 5,
                       outputs = t.many_threads ? 70 : few_outputs[n % 5], per_expert = outputs + n % 2 * 3;
    const Input x = strided_rows(t.random(rows * n), rows, n, n % 3 ? 0 : 7);
    const auto numbers = experts_of(t, rows, experts);
    const SortedRows order = sorted(numbers, experts);
    for (Dtype weight_dtype : kSingleOrHalf) {
        const Input weight =
            matrix(t.random(experts * per_expert * n, weight_dtype, 1.0), experts * per_expert, n, n % 2 ? 0 : 5);
        const Input bias = t.random(n % 4 ? experts * per_expert : 0, weight_dtype, 3.0);
        const std::vector<double> w(weight.values.begin(), weight.values.end());
        std::vector<double> size;
        for (double a : w) size.push_back(std::fabs(a));
        std::vector<Input> in{x, weight};
        if (!bias.values.empty()) in.push_back(bias);
        t.check("grouped_linear", {n >= kLongRow ? 64.0L : 16.0L, 0}, in,
                products(x.values, w, size, bias.values, rows, outputs, n, firsts_of(numbers, per_expert)),
                [&](const Test::Call& call) {
                    GroupedLinear op{};
                    op.linear.x = rows_of(x, call.in[0]);
                    op.linear.weight = call.in[1];
                    op.linear.weight_stride = weight.stride[0];
                    op.linear.outputs = op.y_stride = outputs;
                    op.linear.bias = bias.values.empty() ? nullptr : call.in[2];
                    op.bias_stride = per_expert * format_of(bias.dtype).bytes;
                    op.linear.y = call.out;
                    op.linear.x_dtype = t.dtype;
                    op.linear.weight_dtype = op.linear.bias_dtype = weight_dtype;
                    op.groups = order.groups();
                    op.per_expert = per_expert;
                    target().grouped_linear(op);
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
using Multiply = void (*)(const QuantizedLinear&, const Groups&);

void quantized(Test& t, const std::string& name, Multiply multiply, Packing packing, Dtype scale_dtype,
               std::int64_t group_size, std::int64_t rows, std::int64_t outputs, std::int64_t experts = 0) {
    const std::int64_t groups = t.length, n = groups * group_size, row_bytes = n * packing.bits / 8;
    const std::int64_t every = outputs * std::max<std::int64_t>(experts, 1);  // row of weights
    const std::vector<std::int64_t> numbers = experts > 0 ? experts_of(t, rows, experts) : std::vector<std::int64_t>{};
    const SortedRows order = sorted(numbers, experts);
    Input x = strided_rows(t.random(rows * n), rows, n, groups % 2 ? 0 : 7);
    if (groups % 4 == 3) make_extreme(x, n, t.integer(0, 4));
    const Input weight = matrix(t.random_bytes(every * row_bytes), every, row_bytes, groups % 2 ? 3 : 0);
    const Input scales = matrix(t.random(every * groups, scale_dtype, 0.1), every, groups, groups % 3 ? 0 : 5);
    const Input biases = matrix(t.random(every * groups, scale_dtype, 1.0), every, groups, groups % 3 ? 3 : 0);
    std::vector<double> w, size;
    for (std::int64_t i = 0; i < every * n; ++i) {
        const auto group = static_cast<std::size_t>(i / group_size);
        const double product =
            static_cast<double>(scales.values[group]) * unpacked(weight, packing, static_cast<std::size_t>(i));
        const double bias = packing.is_signed ? 0 : static_cast<double>(biases.values[group]);
        w.push_back(product + bias);
        size.push_back(std::fabs(product) + std::fabs(bias));
    }
    std::vector<Input> in{x, weight, scales};
    if (!packing.is_signed) in.push_back(biases);
    t.check(name + packing.suffix, {16, 0}, in,
            products(x.values, w, size, {}, rows, outputs, n, firsts_of(numbers, outputs)),
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
                multiply(op, order.groups());
            });
}

void by_plain_weights(const QuantizedLinear& op, const Groups&) { target().quantized_linear(op); }

void by_experts(const QuantizedLinear& op, const Groups& groups) {
    target().grouped_quantized_linear({op, groups, op.outputs, op.outputs});
}

void by_panels(const QuantizedLinear& op, const Groups&) {
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

void grouped_quantized_linear(Test& t) {
    if (t.dtype == Dtype::float64) return;
    const std::int64_t few_rows[] = {1, 2, 3, 5, 9, 60, 200}, few_outputs[] = {1, 17, 65, 67};
    std::int64_t index = t.length;
    for (const Packing& packing : kPackings)
        for (std::int64_t group_size : {6, 32, 64, 128}) {
            if (t.many_threads && group_size != 32) continue;
            ++index;
            quantized(t, "grouped_quantized_linear", by_experts, packing, kSingleOrHalf[index % 3], group_size,
                      t.many_threads ? 5 : few_rows[index % 7], t.many_threads ? 300 : few_outputs[index % 4],
                      1 + index % 4);
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
