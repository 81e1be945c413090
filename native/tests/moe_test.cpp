// What a mixture of experts needs besides other kernels.
#include "tests.h"

namespace tensorops::tests {

void widened_rows(Test& t) {
    if (t.dtype == Dtype::float64) return;
    Input x = t.random_rows();
    if (t.length % 3 == 0) strew_extremes(x);
    std::vector<char> expected(x.values.size() * sizeof(float));
    for (std::size_t i = 0; i < x.values.size(); ++i)
        put_element(expected.data() + i * sizeof(float), Dtype::float32, x.values[i]);
    t.check("widened_rows", {0, 0}, {x}, Expected::exactly(expected), [&](const Test::Call& call) {
        target().widened_rows({rows_of(x, call.in[0]), t.dtype, reinterpret_cast<float*>(call.out)});
    });
}

void weighted_sums(Test& t) {
    if (t.dtype == Dtype::float64) return;
    const std::int64_t terms = 1 + t.length % 9, n = t.length;
    for (const bool has_last : {false, true})
        for (const bool is_weighted : {false, true}) {
            if (is_weighted && !has_last) continue;
            const Input x = t.random(t.rows * terms * n, Dtype::float32, 2.0);
            const Input weights = t.random(t.rows * terms, Dtype::float32, 1.0);
            const Input last = t.random(t.rows * n, Dtype::float32, 2.0);
            const Input last_weights = t.random(t.rows, Dtype::float32, 1.0);
            Expected expected;
            for (std::int64_t row = 0; row < t.rows; ++row)
                for (std::int64_t i = 0; i < n; ++i) {
                    Real sum = 0, size = 0;
                    const auto add = [&](Real a, Real weight) {
                        sum += a * weight;
                        size += std::fabs(a * weight);
                    };
                    for (std::int64_t j = row * terms; j < (row + 1) * terms; ++j)
                        add(x.values[static_cast<std::size_t>(j * n + i)], weights.values[static_cast<std::size_t>(j)]);
                    if (has_last)
                        add(last.values[static_cast<std::size_t>(row * n + i)],
                            is_weighted ? last_weights.values[static_cast<std::size_t>(row)] : 1);
                    expected.value.push_back(sum);
                    expected.scale.push_back(size);
                }
            t.check("weighted_sums", {4, 0}, {x, weights, last, last_weights}, expected, [&](const Test::Call& call) {
                const auto floats = [&](int i) { return reinterpret_cast<const float*>(call.in[i]); };
                WeightedSums op{};
                op.x = floats(0);
                op.weights = floats(1);
                op.rows = t.rows;
                op.terms = terms;
                op.length = n;
                op.last = has_last ? floats(2) : nullptr;
                op.last_weights = is_weighted ? floats(3) : nullptr;
                op.y = call.out;
                op.y_dtype = t.dtype;
                target().weighted_sums(op);
            });
        }
}

}  // namespace tensorops::tests
