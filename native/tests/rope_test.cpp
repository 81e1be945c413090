// Rotary position embedding.
#include "tests.h"

namespace tensorops::tests {
namespace {

struct Case {
    std::int64_t batch, heads, length, features, dims;
    bool interleaved, positions_of_batch, has_tables;
    double factor;
    Input x, positions, frequencies, cosines, sines;
};

constexpr std::int64_t kTableRows = 37;

// The cosine and the sine of a pair, times the factor.
std::array<Real, 2> turn_of(const Case& c, double position, std::int64_t pair) {
    if (c.has_tables) {
        const auto i = static_cast<std::size_t>(static_cast<std::int64_t>(position) * c.dims / 2 + pair);
        return {c.cosines.values[i] * c.factor, c.sines.values[i] * c.factor};
    }
    const Real angle = position * static_cast<double>(c.frequencies.values[static_cast<std::size_t>(pair)]);
    return {std::cos(angle) * c.factor, std::sin(angle) * c.factor};
}

// A row: pairs of the first `dims` features turn.
void turn(const Case& c, const Real* x, double position, Expected& expected) {
    std::vector<Real> y(x, x + c.features), scale(static_cast<std::size_t>(c.features), 0);
    for (std::int64_t i = 0; i < c.dims / 2; ++i) {
        const auto a = static_cast<std::size_t>(c.interleaved ? 2 * i : i), b = c.interleaved ? a + 1 : a + c.dims / 2;
        const auto [cosine, sine] = turn_of(c, position, i);
        y[a] = x[a] * cosine - x[b] * sine;
        y[b] = x[b] * cosine + x[a] * sine;
        const bool finite = std::isfinite(x[a]) && std::isfinite(x[b]);
        scale[a] = scale[b] = finite ? std::hypot(x[a], x[b]) * std::hypot(cosine, sine) : 0;
    }
    expected.value.insert(expected.value.end(), y.begin(), y.end());
    expected.scale.insert(expected.scale.end(), scale.begin(), scale.end());
}

Expected expected_of(const Case& c) {
    Expected expected;
    for (std::int64_t row = 0; row < c.batch * c.heads * c.length; ++row) {
        const std::int64_t of_batch = c.positions_of_batch ? row / c.length / c.heads * c.length : 0;
        const Real position = c.positions.values[static_cast<std::size_t>(of_batch + row % c.length)];
        turn(c, c.x.values.data() + row * c.features, static_cast<double>(position), expected);
    }
    return expected;
}

}  // namespace

void rope(Test& t) {
    Case c{2,
           3,
           t.many_threads ? 16 : 3,
           t.length,
           0,
           t.length % 4 < 2,
           t.length % 5 < 2,
           t.length % 11 < 5,
           1,
           {},
           {},
           {},
           {},
           {}};
    if (t.length % 13 < 5) c.factor = 1.25;
    c.dims = (t.length % 7 ? t.length : t.length / 2) / 2 * 2;
    if (c.dims == 0) return;
    const std::vector<std::size_t> order =
        t.length % 2 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{1, 0, 2};
    c.x = laid_out(t.random(c.batch * c.heads * c.length * c.features), {c.batch, c.heads, c.length, c.features}, order,
                   t.length % 3 ? 0 : 7);
    if (t.length % 6 == 5) c.x.values[static_cast<std::size_t>(t.length / 2)] = t.length % 12 == 5 ? INFINITY : NAN;
    c.positions = t.random((c.positions_of_batch ? c.batch : 1) * c.length, Dtype::float64, 1.0);
    for (Real& position : c.positions.values)
        position = c.has_tables ? static_cast<Real>(t.integer(0, kTableRows - 1)) : std::round(position * 8192);
    const Dtype of_tables = std::array{t.dtype, Dtype::float32, Dtype::float64, Dtype::bfloat16}[t.length % 4];
    for (Input* table : {&c.cosines, &c.sines})
        *table = laid_out(t.random(kTableRows * c.dims / 2, of_tables, 1.0), {kTableRows, c.dims / 2}, {0},
                          t.length % 3 ? 0 : 5);
    c.frequencies = t.random(c.dims / 2, Dtype::float64, 1.0);
    c.positions.aligned = c.frequencies.aligned = true;
    const Bound bound = c.factor != 1 ? Bound{3, 3} : Bound{2, 2};  // the product is rounded as well
    t.check("rope", bound, {c.x, c.positions, c.frequencies, c.cosines, c.sines}, expected_of(c),
            [&](const Test::Call& call) {
                Rope op{};
                op.y = call.out;
                op.batch.data = call.in[0];
                op.batch.count = op.batch.shape[0] = c.batch;
                op.batch.outer = 1;
                op.batch.stride[0] = c.x.stride[0];
                op.head_stride = c.x.stride[1];
                op.stride = c.x.stride[2];
                op.heads = c.heads;
                op.length = c.length;
                op.features = c.features;
                op.dims = c.dims;
                op.positions = reinterpret_cast<const double*>(call.in[1]);
                op.positions_of_batch = c.positions_of_batch;
                op.frequencies = reinterpret_cast<const double*>(call.in[2]);
                const RopeTables tables{rows_of(c.cosines, call.in[3]), rows_of(c.sines, call.in[4]), of_tables};
                if (c.has_tables) op.tables = &tables;
                op.factor = c.factor;
                op.interleaved = c.interleaved;
                op.dtype = t.dtype;
                target().rope(op);
            });
}

}  // namespace tensorops::tests
