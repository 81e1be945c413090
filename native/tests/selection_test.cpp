// top_k against a sort of whole rows.
#include <numeric>

#include "tests.h"

namespace tensorops::tests {

namespace {

// Many equal numbers among others, or special ones, or few that are not NaN.
Input rows_to_select(Test& t) {
    Input x = t.random_rows();
    if (t.length % 3 == 0) strew_extremes(x);
    if (t.length % 3 == 1)
        for (Real& value : x.values) value = std::trunc(value);  // also to -0
    if (t.length % 10 == 7)
        for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = i % 5 ? NAN : x.values[i];
    return x;
}

std::vector<char> best_of(const Test& t, const Input& x, std::int64_t k, bool largest) {
    const std::int64_t element = format_of(t.dtype).bytes;
    std::vector<char> values, indices;
    for (std::int64_t row = 0; row < t.rows; ++row) {
        const Real* numbers = x.values.data() + row * t.length;
        std::vector<std::int64_t> order(static_cast<std::size_t>(t.length));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
            if (std::isnan(numbers[i]) || std::isnan(numbers[j]))
                return !std::isnan(numbers[i]) && std::isnan(numbers[j]);
            return largest ? numbers[i] > numbers[j] : numbers[i] < numbers[j];
        });
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t index = order[static_cast<std::size_t>(j)];
            char value[8];
            put_element(value, t.dtype, numbers[index]);
            values.insert(values.end(), value, value + element);
            const char* bytes = reinterpret_cast<const char*>(&index);
            indices.insert(indices.end(), bytes, bytes + sizeof index);
        }
    }
    values.insert(values.end(), indices.begin(), indices.end());
    return values;
}

}  // namespace

void top_k(Test& t) {
    const Input x = rows_to_select(t);
    for (const std::int64_t k : {std::int64_t{1}, (t.length + 15) / 16, (t.length + 2) / 3, t.length})
        for (const bool largest : {true, false}) {
            const Expected expected = Expected::exactly(best_of(t, x, k, largest));
            t.check(largest ? "top_k" : "top_k, the smallest", {0, 0}, {x}, expected, [&](const Test::Call& call) {
                TopK op{};
                op.x = rows_of(x, call.in[0]);
                op.k = k;
                op.largest = largest;
                op.values = call.out;
                op.indices = call.out + t.rows * k * format_of(t.dtype).bytes;
                op.index_bytes = 8;
                op.dtype = t.dtype;
                target().top_k(op);
            });
        }
}

}  // namespace tensorops::tests
