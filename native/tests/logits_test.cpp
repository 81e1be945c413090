// What is computed of rows of logits: cross entropy, and indices that are drawn.
#include <numeric>

#include "tests.h"

namespace tensorops::tests {
namespace {

// Whole numbers for a kernel: the bytes of int64.
Input words(const std::vector<std::int64_t>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    Input input{Dtype::other, {}, true};
    input.values.assign(bytes, bytes + values.size() * sizeof(std::int64_t));
    return input;
}

struct Loss {
    Real value, scale;
};

Loss loss_of_row(const Real* x, std::int64_t n, std::int64_t target, Real smoothing) {
    if (target < 0) return {0, 0};
    const Real largest = *std::max_element(x, x + n);
    Real sum = 0, mean = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
    for (std::int64_t i = 0; i < n && smoothing != 0; ++i) mean += (largest - x[i]) / static_cast<Real>(n);
    const Real distance = largest - x[target];
    return {std::log(sum) + (1 - smoothing) * distance + smoothing * mean, std::log(sum) + distance + mean};
}

struct Sharing {
    const char* name;
    bool probable, weighted;
    double smoothing, z_loss;
};

// The loss of a row whose classes count as their shares say, the magnitude of its terms, and its squared logarithm
struct WeightedLoss {
    Real value, scale, square;
};

WeightedLoss weighted_loss(const Real* x, const Real* shares, std::int64_t n) {
    const Real largest = *std::max_element(x, x + n);
    Real sum = 0, loss = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
    const Real log_sum = std::log(sum) + largest;
    for (std::int64_t i = 0; i < n; ++i)
        if (shares[i] != 0) loss += shares[i] * (log_sum - x[i]);
    return {loss, loss, log_sum * log_sum};
}

void check_weighted(Test& t, const Sharing& how) {
    const std::int64_t n = t.length, rows = t.rows;
    const Input x = t.random_rows();
    Input weight{t.length % 2 && t.dtype != Dtype::float64 ? Dtype::float32 : t.dtype, {}};
    Input probabilities{weight.dtype, {}};
    for (std::int64_t i = 0; i < n; ++i)
        weight.values.push_back(rounded(format_of(weight.dtype), static_cast<Real>(t.integer(0, 16)) / 8));
    std::vector<std::int64_t> targets;
    for (std::int64_t row = 0; row < rows; ++row) targets.push_back(row % 3 == 1 ? -1 : t.integer(0, n - 1));
    for (std::int64_t i = 0; i < n * rows; ++i)
        probabilities.values.push_back(
            rounded(format_of(weight.dtype), static_cast<Real>(t.integer(0, 8)) / (4 * static_cast<Real>(n))));
    probabilities = laid_out(probabilities, {rows, n}, {0}, 0);
    std::vector<Input> in{x, how.probable ? probabilities : words(targets)};
    if (how.weighted) in.push_back(weight);
    Expected expected;
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t target = targets[static_cast<std::size_t>(row)];
        std::vector<Real> shares(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < shares.size(); ++i) {
            const Real own = how.probable ? probabilities.values[static_cast<std::size_t>(row * n) + i]
                                          : static_cast<Real>(static_cast<std::int64_t>(i) == target);
            shares[i] = ((1 - how.smoothing) * own + how.smoothing / static_cast<Real>(n)) *
                        (how.weighted ? weight.values[i] : 1);
        }
        WeightedLoss loss = weighted_loss(x.values.data() + row * n, shares.data(), n);
        if (!how.probable && target < 0) loss = {0, 0, 0};
        expected.value.push_back(loss.value + how.z_loss * loss.square);
        expected.scale.push_back(loss.scale + how.z_loss * (loss.square + 1));
    }
    t.check(how.name, {16, 16}, in, expected, [&](const Test::Call& call) {
        std::vector<double> room(static_cast<std::size_t>(rows));
        CrossEntropy op{};
        op.logits = rows_of(x, call.in[0]);
        Rows rows_of_probabilities;
        if (how.probable) {
            rows_of_probabilities = rows_of(probabilities, call.in[1]);
            op.probabilities = &rows_of_probabilities;
        }
        if (!how.probable) op.targets = reinterpret_cast<const std::int64_t*>(call.in[1]);
        op.weight = how.weighted ? call.in[2] : nullptr;
        op.label_smoothing = how.smoothing;
        op.z_loss = how.z_loss;
        op.losses = room.data();
        op.reduction = Reduction::none;
        op.y = call.out;
        op.dtype = t.dtype;
        op.weight_dtype = weight.dtype;
        op.probability_dtype = probabilities.dtype;
        target().cross_entropy(op);
    });
}

void weighted_cross_entropy(Test& t) {
    for (const Sharing& how : {Sharing{"cross_entropy, weights", false, true, 0, 0},
                               {"cross_entropy, smoothed weights", false, true, 0.25, 0.125},
                               {"cross_entropy, squares", false, false, 0, 0.125},
                               {"cross_entropy, probabilities", true, false, 0, 0},
                               {"cross_entropy, weighted probabilities", true, true, 0.25, 0.125}})
        check_weighted(t, how);
}

}  // namespace

void cross_entropy(Test& t) {
    const std::int64_t n = t.length, rows = t.rows;
    const double smoothing = n % 3 ? 0.0 : 0.1;
    Input x = t.random_rows();
    std::vector<std::int64_t> targets;
    for (std::int64_t row = 0; row < rows; ++row)
        targets.push_back(n % 5 == 0 || (n % 5 == 1 && row == 0) ? -1 : t.integer(0, n - 1));
    for (std::size_t i = 1; i < x.values.size() && smoothing == 0; i += 9)
        if (static_cast<std::int64_t>(i) % n != targets[i / static_cast<std::size_t>(n)]) x.values[i] = -INFINITY;
    if (n > 2) x.values[static_cast<std::size_t>(targets[0] == 1 ? 0 : 1)] = 30;  // a loss much larger than others
    std::vector<Loss> losses;
    for (std::int64_t row = 0; row < rows; ++row)
        losses.push_back(loss_of_row(x.values.data() + row * n, n, targets[static_cast<std::size_t>(row)],
                                     static_cast<Real>(smoothing)));
    const Input target_words = words(targets);
    for (auto [name, reduction] : {std::pair{"cross_entropy", Reduction::none},
                                   {"cross_entropy, sum", Reduction::sum},
                                   {"cross_entropy, mean", Reduction::mean}}) {
        Expected expected;
        if (reduction == Reduction::none) {
            for (const Loss& loss : losses) {
                expected.value.push_back(loss.value);
                expected.scale.push_back(loss.scale);
            }
        } else {
            Real counted = 0;
            Loss total{0, 0};
            for (std::size_t row = 0; row < losses.size(); ++row) {
                total = {total.value + losses[row].value, total.scale + losses[row].scale};
                counted += targets[row] >= 0 ? 1 : 0;
            }
            const Real divisor = reduction == Reduction::sum ? 1 : counted;
            expected = {{total.value / divisor}, {counted > 0 ? total.scale / divisor : 0}};
        }
        t.check(name, {8, 16}, {x, target_words}, expected, [&, reduction = reduction](const Test::Call& call) {
            std::vector<double> room(static_cast<std::size_t>(rows));
            CrossEntropy op{};
            op.logits = rows_of(x, call.in[0]);
            op.targets = reinterpret_cast<const std::int64_t*>(call.in[1]);
            op.label_smoothing = smoothing;
            op.losses = room.data();
            op.reduction = reduction;
            op.y = call.out;
            op.dtype = t.dtype;
            target().cross_entropy(op);
        });
    }
    weighted_cross_entropy(t);
}

void linear_cross_entropy(Test& t) {
    if (t.dtype == Dtype::float64) return;  // BLAS serves it
    constexpr std::int64_t kFeatures = 19;
    const std::int64_t classes = t.length, rows = t.many_threads ? t.rows : 1 + t.length % 8;
    const double smoothing = classes % 3 ? 0.0 : 0.25, z_loss = classes % 4 ? 0.0 : 0.125;
    const auto index = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    for (Dtype weight_dtype : {Dtype::float16, Dtype::bfloat16, Dtype::float32}) {
        const Input x = laid_out(t.random(rows * kFeatures), {rows, kFeatures}, {0}, 0);
        const Input weight =
            laid_out(t.random(classes * kFeatures, weight_dtype, 1.0), {classes, kFeatures}, {0}, classes % 2 ? 0 : 6);
        const Input bias = t.random(classes, weight_dtype, 1.0);
        std::vector<std::int64_t> targets;
        for (std::int64_t row = 0; row < rows; ++row) targets.push_back(row % 5 == 4 ? -1 : t.integer(0, classes - 1));
        Expected expected;
        for (std::int64_t row = 0; row < rows; ++row) {
            std::vector<Real> logits, sizes;
            for (std::int64_t c = 0; c < classes; ++c) {
                Real sum = bias.values[index(c)], size = std::fabs(sum);
                for (std::int64_t k = 0; k < kFeatures; ++k) {
                    const Real product = x.values[index(row * kFeatures + k)] * weight.values[index(c * kFeatures + k)];
                    sum += product;
                    size += std::fabs(product);
                }
                logits.push_back(sum);
                sizes.push_back(size);
            }
            const std::int64_t target = targets[index(row)];
            std::vector<Real> shares(index(classes), smoothing / static_cast<Real>(classes));
            if (target >= 0) shares[index(target)] += 1 - smoothing;
            WeightedLoss loss = weighted_loss(logits.data(), shares.data(), classes);
            const Real size = *std::max_element(sizes.begin(), sizes.end());
            if (target < 0) loss = {0, 0, 0};
            expected.value.push_back(loss.value + z_loss * loss.square);
            expected.scale.push_back(target < 0 ? 0 : loss.scale + size + z_loss * (loss.square + size * size));
        }
        t.check("linear_cross_entropy", {16, 0}, {x, weight, bias, words(targets)}, expected,
                [&](const Test::Call& call) {
                    std::vector<double> room(index(rows));
                    LinearCrossEntropy op{};
                    op.product.x = rows_of(x, call.in[0]);
                    op.product.weight = call.in[1];
                    op.product.weight_stride = weight.stride[0];
                    op.product.outputs = classes;
                    op.product.bias = call.in[2];
                    op.product.x_dtype = t.dtype;
                    op.product.weight_dtype = op.product.bias_dtype = weight_dtype;
                    op.targets = reinterpret_cast<const std::int64_t*>(call.in[3]);
                    op.label_smoothing = smoothing;
                    op.z_loss = z_loss;
                    op.losses = room.data();
                    op.reduction = Reduction::none;
                    op.y = call.out;
                    target().linear_cross_entropy(op);
                });
    }
}

namespace {

struct Restrictions {
    const char* name;
    double temperature = 1;
    std::int64_t top_k = 0;
    double top_p = 1, min_p = 0;
};

// What may be drawn from a row.
struct Choice {
    std::vector<Real> probabilities;  // 0 for candidates that are out
    bool certain = true;              // whether no rounding could make others of them
};

Choice choice_of(const Real* x, std::int64_t n, const Restrictions& r) {
    constexpr Real kMargin = 1e-4L;
    Choice choice;
    std::vector<Real>& p = choice.probabilities;
    const Real largest = *std::max_element(x, x + n);
    for (std::int64_t i = 0; i < n; ++i) p.push_back(std::exp((x[i] - largest) / static_cast<Real>(r.temperature)));
    std::vector<Real> sorted = p;
    std::sort(sorted.begin(), sorted.end(), std::greater<Real>());
    const auto keep_from = [&](Real least) {
        for (Real& weight : p)
            if (weight < least) weight = 0;
        while (!sorted.empty() && sorted.back() < least) sorted.pop_back();
    };
    if (r.top_k > 0 && r.top_k < n) {
        const Real least = sorted[static_cast<std::size_t>(r.top_k - 1)];
        const auto next = std::find_if(sorted.begin(), sorted.end(), [least](Real w) { return w < least; });
        if (next != sorted.end() && *next > least * (1 - kMargin)) choice.certain = false;
        keep_from(least);
    }
    if (r.top_p < 1) {
        const Real enough = static_cast<Real>(r.top_p) * std::accumulate(sorted.begin(), sorted.end(), Real{0});
        Real sum = 0, least = 0;
        for (std::size_t i = 0; i < sorted.size(); ++i) {
            if (sum < enough) least = sorted[i];
            sum += sorted[i];
            if (std::fabs(sum - enough) < kMargin * enough) choice.certain = false;
        }
        for (Real weight : sorted)
            if (weight != least && std::fabs(weight - least) < kMargin * least) choice.certain = false;
        keep_from(least);
    }
    if (r.min_p > 0) {
        for (Real weight : sorted)
            if (std::fabs(weight - static_cast<Real>(r.min_p)) < kMargin * weight) choice.certain = false;
        keep_from(static_cast<Real>(r.min_p));
    }
    const Real total = std::accumulate(p.begin(), p.end(), Real{0});
    for (Real& weight : p) weight /= total;
    return choice;
}

// The index that a uniform number chooses; -1 if rounding could make another of it.
std::int64_t drawn(const Choice& choice, Real uniform) {
    constexpr Real kMargin = 1e-5L;
    Real sum = 0;
    for (std::size_t i = 0; i < choice.probabilities.size(); ++i) {
        const Real before = sum;
        sum += choice.probabilities[i];
        if (choice.probabilities[i] > 0 && uniform > before + kMargin && uniform < sum - kMargin)
            return static_cast<std::int64_t>(i);
    }
    return -1;
}

void check_sample(Test& t, const Input& x, const Restrictions& r, const Input* uniform,
                  const std::vector<std::int64_t>& expected) {
    std::vector<Input> in{x};
    if (uniform) in.push_back(*uniform);
    t.check(r.name, {0, 0}, in, Expected::exactly(expected), [&](const Test::Call& call) {
        Sample op{};
        op.logits = rows_of(x, call.in[0]);
        op.chosen = reinterpret_cast<std::int64_t*>(call.out);
        op.uniform = uniform ? call.in[1] : nullptr;
        op.uniform_dtype = uniform ? uniform->dtype : Dtype::float32;
        op.temperature = r.temperature;
        op.top_k = r.top_k;
        op.top_p = r.top_p;
        op.min_p = r.min_p;
        op.dtype = t.dtype;
        target().sample(op);
    });
}

void largest(Test& t) {
    Input x = t.random_rows();
    if (t.length % 4 == 0) x.values[static_cast<std::size_t>(t.length / 2)] = NAN;
    if (t.length % 4 == 1) std::fill_n(x.values.begin(), t.length, -Real{INFINITY});
    if (t.length % 4 == 2) x.values.back() = INFINITY;
    std::vector<std::int64_t> expected;
    for (std::int64_t row = 0; row < t.rows; ++row) {
        const Real *begin = x.values.data() + row * t.length, *end = begin + t.length;
        const Real* nan = std::find_if(begin, end, [](Real value) { return std::isnan(value); });
        const std::int64_t index = (nan != end ? nan : std::max_element(begin, end)) - begin;
        expected.push_back(begin[index] > -Real{INFINITY} ? index : ~index);
    }
    check_sample(t, x, {"sample, the largest"}, nullptr, expected);
}

// Uniform numbers, one for each row, that leave no doubt about what they choose; none after many attempts.
bool draw(Test& t, const Input& x, const Restrictions& r, Input& uniform, std::vector<std::int64_t>& expected) {
    uniform.values.clear();
    expected.clear();
    for (std::int64_t row = 0; row < t.rows; ++row) {
        const Choice choice = choice_of(x.values.data() + row * t.length, t.length, r);
        if (!choice.certain) return false;
        for (int attempt = 0; attempt < 100 && expected.size() == uniform.values.size(); ++attempt) {
            const Real u = rounded(format_of(uniform.dtype), static_cast<Real>(t.integer(0, 999)) / 1000);
            const std::int64_t index = drawn(choice, u);
            if (index < 0) continue;
            uniform.values.push_back(u);
            expected.push_back(index);
            break;
        }
        if (static_cast<std::int64_t>(expected.size()) != row + 1) return false;
    }
    return true;
}

}  // namespace

void sample(Test& t) {
    largest(t);
    const Dtype dtypes[] = {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64};
    const std::int64_t k = 1 + t.length / 3;
    for (const Restrictions& r : {Restrictions{"sample"},
                                  {"sample, temperature", 0.7},
                                  {"sample, top_k", 1.0, k},
                                  {"sample, top_p", 1.0, 0, 0.83},
                                  {"sample, min_p", 1.0, 0, 1.0, 0.07},
                                  {"sample, all of them", 1.3, k, 0.91, 0.03}}) {
        Input uniform{dtypes[t.length % 4], {}};
        std::vector<std::int64_t> expected;
        int attempts = 0;
        Input x;
        do x = t.random_rows(t.many_threads ? 8.0 : 2.0);  // of many candidates few are to matter
        while (!draw(t, x, r, uniform, expected) && ++attempts < 100);
        if (attempts < 100)
            check_sample(t, x, r, &uniform, expected);
        else
            t.fail(r.name, "no rows whose answers are certain");
    }
}

}  // namespace tensorops::tests
