// The kernels without Python: lengths, alignments, strides and element types on every target, against references
// written here.
//
//     kernels_test [kernel]...            rows of 1 to 300 elements, to and from the edges of readable memory, and, of
//                                         kernels that sum over rows, of 70000
//     kernels_test threads [kernel]...    larger ones, each from many threads at once
//     kernels_test own_threads [kernel]...    the same without OpenMP, as in a child of fork()
//     kernels_test parallel               the distribution of work itself
//     kernels_test xla                    the same over XLA's threads, and handlers of its foreign functions
//     kernels_test plan                   the same for calls of a plan that are run by rows
//
// All targets that this machine can run are tested, or the one that TENSOROPS_CPU_TARGET names.
//
// Here are the tests of kernels that go through rows, the table of all tests, and what is run. A kernel is added as one
// function, in TESTS below. ThreadSanitizer sees no accesses of more than 16 bytes, so that of the targets of x86 only
// v2 is fully under its eyes.
#include "tests.h"

namespace tensorops::tests {
namespace {

constexpr Real kRoot2 = 1.41421356237309504880168872420969808L;
constexpr Real kRootOf2OverPi = 0.797884560802865355879892119868763737L;

// Values of a row, given its inputs, each row of `length` elements.
template <class F>
Expected by_row(const Test& t, const Input& x, F row) {
    Expected expected;
    for (std::int64_t i = 0; i < t.rows; ++i) row(x.values.data() + i * t.length, expected);
    return expected;
}

// The last row's largest value is the scale of its errors: elements near 0 are differences of such.
void scale_by_largest(Expected& expected, std::int64_t length) {
    const auto smaller = [](Real a, Real b) { return std::fabs(a) < std::fabs(b); };
    const Real largest = *std::max_element(expected.value.end() - length, expected.value.end(), smaller);
    expected.scale.resize(expected.value.size(), std::fabs(largest));
}

// Parameters of a row: None, of the dtype of x, and float32 with half types.
std::vector<std::vector<Input>> parameters(Test& t, int count) {
    std::vector<std::vector<Input>> choices{{}};
    for (Dtype dtype : {t.dtype, Dtype::float32}) {
        if (dtype != t.dtype && t.dtype == Dtype::float64) continue;
        choices.emplace_back();
        for (int i = 0; i < count; ++i) choices.back().push_back(t.random(t.length, dtype, 1.0));
        if (t.dtype == Dtype::float32) break;
    }
    return choices;
}

// Every few lengths, numbers whose squares leave the range of the type in which kernels compute.
double spread_of_rows(const Test& t) {
    if (t.length % 7 != 0) return 2.0;
    return t.dtype == Dtype::float64 ? 1e-160 : t.dtype == Dtype::float16 ? 1e-3 : 1e-20;
}

// Rows on whose sums rounding errors add up if they can: long ones have equal elements, but for the first.
Input rows_to_sum(Test& t, double spread = 2.0) {
    if (t.length < kLongRow) return t.random_rows(spread);
    const Format f = format_of(t.dtype);
    Input x{t.dtype, std::vector<Real>(static_cast<std::size_t>(t.rows * t.length), rounded(f, 1.1L))};
    for (std::int64_t i = 0; i < t.rows; ++i) x.values[static_cast<std::size_t>(i * t.length)] = rounded(f, 1.2L);
    return laid_out(std::move(x), {t.rows, t.length}, {0}, 7);
}

// Where the elements of lines are in memory: one after another, line after line; those of one place in all lines after
// each other, of x and of the results; or, of x, with as much space after each
enum class Layout { rows, columns, stepped };
constexpr Layout kLayouts[] = {Layout::rows, Layout::columns, Layout::stepped};

template <class Each>
std::vector<Each> transposed(const Test& t, const std::vector<Each>& rows) {
    std::vector<Each> columns;
    for (std::int64_t i = 0; i < t.length && !rows.empty(); ++i)
        for (std::int64_t row = 0; row < t.rows; ++row)
            columns.push_back(rows[static_cast<std::size_t>(row * t.length + i)]);
    return columns;
}

Input in_layout(const Test& t, const Input& x, Layout layout) {
    if (layout == Layout::rows) return x;
    if (layout == Layout::columns) return {x.dtype, transposed(t, x.values)};
    return laid_out(Input{x.dtype, x.values}, {t.rows * t.length, 1}, {0}, x.element());
}

Expected in_layout(const Test& t, const Expected& expected, Layout layout) {
    if (layout != Layout::columns) return expected;
    return {transposed(t, expected.value), transposed(t, expected.scale)};
}

Lines lines_of(const Test& t, const Input& x, Layout layout, const char* data, char* y) {
    const std::int64_t item = x.element();
    if (layout == Layout::rows) return lines_of(rows_of(x, data), y, item);
    Lines lines{};
    lines.x = data;
    lines.y = y;
    lines.length = t.length;
    lines.count = lines.width = t.rows;
    const bool columns = layout == Layout::columns;
    lines.step = columns ? Lines::Strides{t.rows * item, t.rows * item} : Lines::Strides{2 * item, item};
    lines.stride = columns ? Lines::Strides{item, item} : Lines::Strides{2 * t.length * item, t.length * item};
    return lines;
}

Expected rms_norm_of(const Test& t, const Input& x, const std::vector<Input>& weight, double eps, double offset) {
    return by_row(t, x, [&](const Real* row, Expected& expected) {
        Real sum = 0;
        for (std::int64_t i = 0; i < t.length; ++i) sum += row[i] * row[i];
        const Real root = std::sqrt(sum / t.length + static_cast<Real>(eps));
        for (std::int64_t i = 0; i < t.length; ++i)
            expected.value.push_back(row[i] / root * (weight.empty() ? 1 : weight[0].values[i] + offset));
    });
}

void rms_norm(Test& t) {
    const Input x = rows_to_sum(t, spread_of_rows(t));
    const double eps = t.length % 7 ? 1e-6 : 0.0, offset = t.length % 2 ? 0.0 : 1.0;
    for (const std::vector<Input>& weight : parameters(t, 1)) {
        const Expected expected = rms_norm_of(t, x, weight, eps, offset);
        for (const Layout layout : kLayouts) {
            std::vector<Input> in{in_layout(t, x, layout)};
            in.insert(in.end(), weight.begin(), weight.end());
            t.check("rms_norm", {8, 32}, in, in_layout(t, expected, layout), [&](const Test::Call& call) {
                LineNorm op{};
                op.norm = Norm::root_mean_square;
                op.lines = lines_of(t, x, layout, call.in[0], call.out);
                op.weight = weight.empty() ? nullptr : call.in[1];
                op.x_dtype = t.dtype;
                op.parameter_dtype = weight.empty() ? t.dtype : weight[0].dtype;
                op.eps = eps;
                op.weight_offset = offset;
                op.streaming = call.streaming && layout == Layout::rows;
                target().rms_norm(op);
            });
        }
    }
}

// The norm of a sum with a residual, which norm(sum) expects, and the sum: results of one call of the kernel, run(op).
void add_and_normalize(Test& t, const std::string& name, Norm norm, void (*Target::*kernel)(const LineNorm&),
                       const std::function<Expected(const Input&)>& of_sum) {
    const Input x = rows_to_sum(t), residual = rows_to_sum(t);
    Input sum = x;
    const Format half = format_of(t.dtype), wide = format_of(t.dtype == Dtype::float64 ? t.dtype : Dtype::float32);
    for (std::size_t i = 0; i < sum.values.size(); ++i)
        sum.values[i] = rounded(half, rounded(wide, x.values[i] + residual.values[i]));
    const auto check = [&](const std::string& what, Bound bound, const Expected& expected, bool is_sum) {
        t.check(what, bound, {x, residual}, expected, [&](const Test::Call& call) {
            std::vector<char> elsewhere(sum.bytes() + 64);
            char* const other = elsewhere.data() + (64 - reinterpret_cast<std::uintptr_t>(elsewhere.data()) % 64);
            LineNorm op{};
            op.norm = norm;
            op.lines = lines_of(rows_of(x, call.in[0]), is_sum ? other : call.out, x.element());
            op.sums = lines_of(rows_of(residual, call.in[1]), is_sum ? call.out : other, x.element());
            op.x_dtype = op.parameter_dtype = t.dtype;
            op.eps = 1e-6;
            op.streaming = call.streaming;
            (target().*kernel)(op);
        });
    };
    check(name, {8, 8}, of_sum(sum), false);
    check(name + ", the sum", {0, 0}, {sum.values, {}}, true);
}

void add_rms_norm(Test& t) {
    add_and_normalize(t, "add_rms_norm", Norm::root_mean_square, &Target::rms_norm,
                      [&t](const Input& sum) { return rms_norm_of(t, sum, {}, 1e-6, 0.0); });
}

void l2_norm(Test& t) {
    const Input x = rows_to_sum(t, spread_of_rows(t));
    const Real least = t.length % 7 ? 1e-12 : t.length % 2 ? 0.0 : 1e3;
    const Expected expected = by_row(t, x, [&](const Real* row, Expected& expected) {
        Real sum = 0;
        for (std::int64_t i = 0; i < t.length; ++i) sum += row[i] * row[i];
        for (std::int64_t i = 0; i < t.length; ++i) expected.value.push_back(row[i] / std::max(std::sqrt(sum), least));
    });
    for (const Layout layout : kLayouts)
        t.check("l2_norm", {8, 8}, {in_layout(t, x, layout)}, in_layout(t, expected, layout),
                [&](const Test::Call& call) {
                    LineNorm op{};
                    op.norm = Norm::length;
                    op.lines = lines_of(t, x, layout, call.in[0], call.out);
                    op.x_dtype = op.parameter_dtype = t.dtype;
                    op.eps = static_cast<double>(least);
                    op.streaming = call.streaming && layout == Layout::rows;
                    target().rms_norm(op);
                });
}

// `span` elements share one of the parameters, of which every row has its own.
Expected layer_norm_of(const Test& t, const Input& x, const std::vector<Input>& parameters, double eps,
                       std::int64_t span = 0) {
    std::size_t index = 0;
    return by_row(t, x, [&, index](const Real* row, Expected& expected) mutable {
        const auto of = [&, first = span ? index * static_cast<std::size_t>(t.length / span) : 0](const Input& p,
                                                                                                  std::int64_t i) {
            return p.values[first + static_cast<std::size_t>(span ? i / span : i)];
        };
        ++index;
        Real mean = 0, square = 0;
        for (int pass = 0; pass < 2; ++pass) {  // the second takes away what the first rounded off
            Real sum = 0;
            for (std::int64_t i = 0; i < t.length; ++i) sum += row[i] - mean;
            mean += sum / t.length;
        }
        for (std::int64_t i = 0; i < t.length; ++i) square += (row[i] - mean) * (row[i] - mean);
        const Real root = std::sqrt(square / t.length + static_cast<Real>(eps));
        for (std::int64_t i = 0; i < t.length; ++i) {
            const Real y = (row[i] - mean) / root;
            expected.value.push_back(parameters.empty() ? y : y * of(parameters[0], i) + of(parameters[1], i));
        }
        scale_by_largest(expected, t.length);
    });
}

void layer_norm(Test& t) {
    const bool tiny = t.length % 7 == 0;
    const Input x = rows_to_sum(t, spread_of_rows(t));
    const double eps = tiny ? 0.0 : 1e-5;
    for (const std::vector<Input>& both : parameters(t, 2)) {
        const Expected expected = layer_norm_of(t, x, both, eps);
        for (const Layout layout : kLayouts) {
            std::vector<Input> in{in_layout(t, x, layout)};
            in.insert(in.end(), both.begin(), both.end());
            t.check("layer_norm", {8, 32}, in, in_layout(t, expected, layout), [&](const Test::Call& call) {
                LineNorm op{};
                op.norm = Norm::deviation;
                op.lines = lines_of(t, x, layout, call.in[0], call.out);
                op.weight = both.empty() ? nullptr : call.in[1];
                op.bias = both.empty() ? nullptr : call.in[2];
                op.x_dtype = t.dtype;
                op.parameter_dtype = both.empty() ? t.dtype : both[0].dtype;
                op.eps = eps;
                op.streaming = call.streaming && layout == Layout::rows;
                target().layer_norm(op);
            });
        }
    }
}

void add_layer_norm(Test& t) {
    add_and_normalize(t, "add_layer_norm", Norm::deviation, &Target::layer_norm,
                      [&t](const Input& sum) { return layer_norm_of(t, sum, {}, 1e-6); });
}

// The rows are groups of the channels of one element of a batch. Weight and bias have dtypes of their own.
void group_norm(Test& t) {
    const Input x = rows_to_sum(t, spread_of_rows(t));
    const double eps = t.length % 7 == 0 ? 0.0 : 1e-5;
    for (std::int64_t span = 1; span <= t.length; ++span) {
        if (t.length % span != 0 || (t.length > 300 && span > 3 && span < t.length / 3)) continue;
        const std::int64_t channels = t.rows * (t.length / span);
        const Dtype other = t.dtype == Dtype::float64 ? t.dtype : Dtype::float32;
        std::vector<Input> both{t.random(channels, t.dtype, 1.0), t.random(channels, other, 1.0)};
        // A row's largest result must not have the smallest weight: errors of the mean would be larger.
        for (Real& w : both[0].values) w = rounded(format_of(t.dtype), w < 0 ? w - 0.5L : w + 0.5L);
        for (const bool given : {true, false}) {
            const std::vector<Input> in = given ? std::vector<Input>{x, both[0], both[1]} : std::vector<Input>{x};
            const std::vector<Input> parameters = given ? both : std::vector<Input>{};
            const Expected expected = layer_norm_of(t, x, parameters, eps, span);
            // The bias may cancel most of a short row.
            t.check("group_norm", {16, 64}, in, expected, [&](const Test::Call& call) {
                GroupNorm op{};
                op.x = rows_of(x, call.in[0]);
                op.y = call.out;
                op.groups = t.rows;
                op.span = span;
                op.weight = given ? call.in[1] : nullptr;
                op.bias = given ? call.in[2] : nullptr;
                op.x_dtype = op.weight_dtype = t.dtype;
                op.bias_dtype = other;
                op.eps = eps;
                op.streaming = call.streaming;
                target().group_norm(op);
            });
        }
    }
}

Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }
Real silu(Real x) { return x * sigmoid(x); }
Real gelu(Real x) { return x * (std::erfc(-x / kRoot2) / 2); }

struct Elementwise {
    const char* name;
    Function function;
    Bound bound;
    Real (*value)(Real x);
    bool gated = false;
    double alpha = 0, beta = 0;
};
Real elu(Real x) { return x > 0 ? x : std::expm1(x); }
const Elementwise kElementwise[] = {
    {"relu", Function::relu, {0, 0}, [](Real x) { return x <= 0 ? 0 : x; }},
    {"relu_squared", Function::relu_squared, {1, 1}, [](Real x) { return x <= 0 ? 0 : x * x; }},
    {"sigmoid", Function::sigmoid, {3, 4}, sigmoid},
    {"silu", Function::silu, {4, 5}, silu},
    {"softplus",
     Function::softplus,
     {3, 3},
     [](Real x) { return std::max(x, Real{0}) + std::log1p(std::exp(-std::fabs(x))); }},
    {"gelu", Function::gelu, {6.5, 8}, gelu},
    {"gelu_tanh",
     Function::gelu_tanh,
     {512, 512},  // whose exponential magnifies the rounding of a large argument
     [](Real x) { return x * sigmoid(2 * kRootOf2OverPi * (x + 0.044715L * x * x * x)); }},
    {"quick_gelu", Function::quick_gelu, {128, 128}, [](Real x) { return x * sigmoid(1.702L * x); }, false, 1.702},
    {"mish", Function::mish, {5, 6}, [](Real x) { return x * std::tanh(std::log1p(std::exp(x))); }},
    {"hard_sigmoid",
     Function::hard_sigmoid,
     {2, 2},
     [](Real x) { return std::clamp((x + Real{2.5}) / 5, Real{0}, Real{1}); },
     false,
     0.2,
     0.5},
    {"hard_swish", Function::hard_swish, {3, 3}, [](Real x) { return x * std::clamp((x + 3) / 6, Real{0}, Real{1}); }},
    {"elu", Function::elu, {2, 3}, [](Real x) { return x > 0 ? x : 0.75L * elu(x); }, false, 0.75},
    {"selu",
     Function::selu,
     {3, 3},
     [](Real x) { return 1.0507009873554804934L * (x > 0 ? x : 1.6732632423543772848L * elu(x)); }},
    {"leaky_relu", Function::leaky_relu, {1, 1}, [](Real x) { return x > 0 ? x : x / 8; }, false, 0.125},
    {"swiglu", Function::swiglu, {5, 6}, silu, true},
    {"geglu", Function::geglu, {7, 9}, gelu, true},
    {"reglu", Function::reglu, {1, 1}, [](Real x) { return x <= 0 ? 0 : x; }, true},
};

void activation(Test& t) {
    Input x = t.random_rows(3.0);
    const Input up = t.random_rows();
    strew_extremes(x);
    const Real least_normal = std::ldexp(Real{1}, 1 - format_of(t.dtype).bias);
    for (const Elementwise& f : kElementwise) {
        Expected expected;
        for (std::size_t i = 0; i < x.values.size(); ++i) {
            const Real factor = f.gated ? up.values[i] : 1;
            expected.value.push_back(f.value(x.values[i]) * factor);
            // A sigmoid below the normal numbers has fewer digits, and a product with it no more.
            expected.scale.push_back(std::isfinite(x.values[i]) ? std::fabs(x.values[i] * factor) * least_normal : 0);
        }
        std::vector<Input> in{x};
        if (f.gated) in.push_back(up);
        t.check(f.name, f.bound, in, expected, [&](const Test::Call& call) {
            Activation op{};
            op.function = f.function;
            op.alpha = f.alpha;
            op.beta = f.beta;
            op.x = rows_of(x, call.in[0]);
            if (f.gated) op.up = rows_of(up, call.in[1]);
            op.y = call.out;
            op.dtype = t.dtype;
            op.streaming = call.streaming;
            target().activation(op);
        });
    }
}

void softmax(Test& t) {
    const Input x = rows_to_sum(t);
    const auto expected_of = [&](Normalized kind) {
        return by_row(t, x, [&](const Real* row, Expected& expected) {
            const Real largest = *std::max_element(row, row + t.length);
            Real sum = 0;
            for (std::int64_t i = 0; i < t.length; ++i) sum += std::exp(row[i] - largest);
            if (kind == Normalized::logsumexp) {
                expected.value.push_back(largest + std::log(sum));
                expected.scale.push_back(std::fabs(largest));
                return;
            }
            for (std::int64_t i = 0; i < t.length; ++i) {
                const Real difference = row[i] - largest;
                expected.value.push_back(kind == Normalized::softmax ? std::exp(difference) / sum
                                                                     : difference - std::log(sum));
            }
            if (kind == Normalized::log_softmax) scale_by_largest(expected, t.length);
        });
    };
    const Dtype own = t.dtype;
    const auto check = [&](Dtype result, const char* name, Normalized kind) {
        t.dtype = result;
        t.check(name, {24, 32}, {x}, expected_of(kind), [&](const Test::Call& call) {
            Softmax op{};
            op.kind = kind;
            op.lines = lines_of(rows_of(x, call.in[0]), call.out, x.element());
            const std::int64_t y_item = size_of(result);
            op.lines.step.y = y_item;
            op.lines.stride.y = kind == Normalized::logsumexp ? y_item : t.length * y_item;
            op.dtype = own;
            op.y_dtype = result;
            op.streaming = call.streaming;
            target().softmax(op);
        });
        t.dtype = own;
    };
    for (const Dtype result : {own, Dtype::float32}) {
        if (result != own && own == Dtype::float64) continue;
        check(result, "softmax", Normalized::softmax);
        check(result, "log_softmax", Normalized::log_softmax);
        check(result, "logsumexp", Normalized::logsumexp);
        if (own == Dtype::float32) break;
    }
}

// What is tested, and on which lengths: all of 1 to 300 that may make a difference, or a few of them; and a long one of
// what is summed up.
enum class Lengths { few, all, all_and_long };
struct Entry {
    const char* name;
    void (*test)(Test&);
    Lengths lengths;
};
constexpr Entry TESTS[] = {
    {"rms_norm", rms_norm, Lengths::all_and_long},
    {"add_rms_norm", add_rms_norm, Lengths::all_and_long},
    {"layer_norm", layer_norm, Lengths::all_and_long},
    {"add_layer_norm", add_layer_norm, Lengths::all_and_long},
    {"group_norm", group_norm, Lengths::all_and_long},
    {"l2_norm", l2_norm, Lengths::all_and_long},
    {"activation", activation, Lengths::all},
    {"softmax", softmax, Lengths::all_and_long},
    {"cross_entropy", cross_entropy, Lengths::all},
    {"linear_cross_entropy", linear_cross_entropy, Lengths::all},
    {"sample", sample, Lengths::all},
    {"top_k", top_k, Lengths::all_and_long},
    {"rope", rope, Lengths::all},
    {"causal_conv1d", causal_conv1d, Lengths::all},
    {"gated_delta_rule", gated_delta_rule, Lengths::all},
    {"grouped_linear", grouped_linear, Lengths::all},
    {"grouped_quantized_linear", grouped_quantized_linear, Lengths::few},
    {"linear", linear, Lengths::all_and_long},
    {"block_linear", block_linear, Lengths::few},
    {"interleaved_linear", interleaved_linear, Lengths::few},
    {"quantize", quantize, Lengths::few},
    {"dequantize", dequantize, Lengths::few},
    {"quantized_linear", quantized_linear, Lengths::few},
    {"panel_linear", panel_linear, Lengths::few},
    {"attention", attention, Lengths::few},
    {"weighted_sums", weighted_sums, Lengths::all},
    {"widened_rows", widened_rows, Lengths::all},
    {"vector_math", vector_math, Lengths::few},
    {"conversion", conversion, Lengths::few},
};
static_assert(std::size(TESTS) == TENSOROPS_TESTED, "a name is missing in TESTED of CMakeLists.txt");

std::vector<std::int64_t> lengths_of(const Entry& entry, bool many_threads) {
    if (entry.test == vector_math) return {10000, 10003};
    if (entry.test == conversion) return {1, 3, 8, 17, 33, 64, 4096};
    if (many_threads && entry.test == attention) return {1100};          // keys in two spans
    if (many_threads && entry.lengths == Lengths::few) return {64, 65};  // groups
    if (many_threads) return {2048, 2051};  // one that may be written past the caches, one that may not
    if (entry.test == attention)
        return {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 150, 255, 257, 1030};
    if (entry.lengths == Lengths::few) return {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 19, 33};
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = 1; n <= 300; n += n < 2 * 4 * 16 + 20 ? 1 : 11) lengths.push_back(n);
    if (entry.lengths == Lengths::all_and_long) lengths.push_back(kLongRow);
    return lengths;
}

bool run(bool many_threads, const std::vector<std::string>& names, Test& t) {
    t.many_threads = many_threads;
    t.rows = many_threads ? 33 : 2;
    for (const Entry& entry : TESTS) {
        if (!names.empty() && std::find(names.begin(), names.end(), entry.name) == names.end()) continue;
        std::printf("%s ...\n", entry.name);
        std::fflush(stdout);  // before a crash
        for (Dtype dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64})
            for (std::int64_t length : lengths_of(entry, many_threads)) {
                t.dtype = dtype;
                t.length = length;
                entry.test(t);
            }
    }
    return t.report();
}

bool is_known(const std::string& name) {
    return std::any_of(std::begin(TESTS), std::end(TESTS), [&name](const Entry& e) { return name == e.name; });
}

}  // namespace
}  // namespace tensorops::tests

int main(int argc, char** argv) {
    std::vector<std::string> names(argv + 1, argv + argc);
    if (names == std::vector<std::string>{"parallel"}) return tensorops::tests::parallel() ? 0 : 1;
    if (names == std::vector<std::string>{"xla"}) return tensorops::tests::xla_calls() ? 0 : 1;
    if (names == std::vector<std::string>{"plan"}) return tensorops::tests::plans() ? 0 : 1;
    const bool own_threads = !names.empty() && names[0] == "own_threads";
    if (own_threads) tensorops::use_own_threads();
    const bool many_threads = own_threads || (!names.empty() && names[0] == "threads");
    const bool every_float = names == std::vector<std::string>{"every_float"};
    if (many_threads || every_float) names.erase(names.begin());
    if (!std::all_of(names.begin(), names.end(), tensorops::tests::is_known)) {
        std::fprintf(stderr, "usage: %s [threads|own_threads] [kernel]...\n       %s every_float|parallel|plan|xla\n",
                     argv[0], argv[0]);
        return 2;
    }
    const char* target = std::getenv("TENSOROPS_CPU_TARGET");
    if (target && !*target) target = nullptr;  // as good as unset
    if (target && !tensorops::use_target(target)) {
        std::fprintf(stderr, "TENSOROPS_CPU_TARGET=%s is not a target that this machine can run\n", target);
        return 2;
    }
    tensorops::tests::Test t;
    if (target) t.targets = {target};
    if (!every_float) return tensorops::tests::run(many_threads, names, t) ? 0 : 1;
    tensorops::tests::vector_math_on_every_float(t);
    return t.report() ? 0 : 1;
}
