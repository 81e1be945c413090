// Layers with a state.
#include "tests.h"

namespace tensorops::tests {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

void add(Expected& expected, Real value, Real scale) {
    expected.value.push_back(value);
    expected.scale.push_back(std::isfinite(value) ? scale : 0);
}

struct Convolution {
    std::int64_t batch, tokens, channels, width;
    bool has_state, has_bias, silu;
    Input x, weight, bias, state;

    Real input(std::int64_t b, std::int64_t place, std::int64_t c) const {
        if (place >= width - 1) return x.values[at((b * tokens + place - (width - 1)) * channels + c)];
        return has_state ? state.values[at((b * (width - 1) + place) * channels + c)] : 0;
    }
};

// The results, and the new state after them
Expected expected_of(const Convolution& c) {
    Expected expected;
    for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t t = 0; t < c.tokens; ++t)
            for (std::int64_t i = 0; i < c.channels; ++i) {
                Real sum = c.has_bias ? c.bias.values[at(i)] : 0, scale = std::fabs(sum);
                for (std::int64_t k = 0; k < c.width; ++k) {
                    const Real term = c.input(b, t + k, i) * c.weight.values[at(i * c.width + k)];
                    sum += term;
                    scale += std::fabs(term);
                }
                add(expected, c.silu ? sum / (1 + std::exp(-sum)) : sum, scale);
            }
    for (std::int64_t b = 0; b < c.batch; ++b)
        for (std::int64_t k = 0; k < c.width - 1; ++k)
            for (std::int64_t i = 0; i < c.channels; ++i) add(expected, c.input(b, c.tokens + k, i), 0);
    return expected;
}

struct Rule {
    std::int64_t batch, heads, key_heads, tokens, key_dim, value_dim;
    double scale;
    bool has_state;
    Input q, k, v, g, beta, state;
};

struct Results {
    Expected y, state;
};

// A state of one head, and how large it could be if nothing cancelled
struct State {
    std::vector<Real> value, size;
};

void update(const Rule& c, State& s, const Real* key, const Real* v, Real decay, Real beta) {
    for (std::size_t i = 0; i < s.value.size(); ++i) {
        s.value[i] *= decay;
        s.size[i] *= decay;
    }
    for (std::int64_t j = 0; j < c.value_dim; ++j) {
        Real stored = 0, size = 0;
        for (std::int64_t i = 0; i < c.key_dim; ++i) {
            stored += s.value[at(i * c.value_dim + j)] * key[i];
            size += s.size[at(i * c.value_dim + j)] * std::fabs(key[i]);
        }
        for (std::int64_t i = 0; i < c.key_dim; ++i) {
            s.value[at(i * c.value_dim + j)] += key[i] * beta * (v[j] - stored);
            s.size[at(i * c.value_dim + j)] += std::fabs(key[i]) * beta * (std::fabs(v[j]) + size);
        }
    }
}

Results expected_of(const Rule& c) {
    Results expected;
    const auto n = static_cast<std::size_t>(c.key_dim * c.value_dim);
    for (std::int64_t head = 0; head < c.batch * c.heads; ++head) {
        State s{std::vector<Real>(n), std::vector<Real>(n)};
        for (std::size_t i = 0; i < n && c.has_state; ++i) {
            s.value[i] = c.state.values[static_cast<std::size_t>(head) * n + i];
            s.size[i] = std::fabs(s.value[i]);
        }
        const std::int64_t of_keys = head / c.heads * c.key_heads + head % c.heads * c.key_heads / c.heads;
        for (std::int64_t t = 0; t < c.tokens; ++t) {
            const std::int64_t token = head * c.tokens + t, of_key = (of_keys * c.tokens + t) * c.key_dim;
            update(c, s, c.k.values.data() + of_key, c.v.values.data() + token * c.value_dim,
                   std::exp(c.g.values[at(token)]), c.beta.values[at(token)]);
            for (std::int64_t j = 0; j < c.value_dim; ++j) {
                Real y = 0, size = 0;
                for (std::int64_t i = 0; i < c.key_dim; ++i) {
                    const Real q = c.q.values[at(of_key + i)] * c.scale;
                    y += s.value[at(i * c.value_dim + j)] * q;
                    size += s.size[at(i * c.value_dim + j)] * std::fabs(q);
                }
                add(expected.y, y, size);
            }
        }
        for (std::size_t i = 0; i < n; ++i) add(expected.state, s.value[i], s.size[i]);
    }
    return expected;
}

// An array as the kernel takes it; one that has no fourth axis has elements for rows.
Strided strided(const Input& a, const char* data) { return {data, {a.stride[0], a.stride[1], a.stride[2]}}; }

}  // namespace

void causal_conv1d(Test& t) {
    Convolution c{2,
                  t.many_threads ? 70 : 1 + t.length % 5,
                  t.length,
                  t.length % 3 ? 4 : 1 + t.length % 7,
                  t.length % 4 != 1,
                  t.length % 5 != 2,
                  t.length % 2 != 0,
                  {},
                  {},
                  {},
                  {}};
    const Dtype of_parameters = t.length % 6 < 3 && t.dtype != Dtype::float64 ? Dtype::float32 : t.dtype;
    const std::int64_t gap = t.length % 3 ? 0 : 7, kept = c.width - 1;
    c.x = laid_out(t.random(c.batch * c.tokens * c.channels), {c.batch, c.tokens, c.channels}, {0, 1}, gap);
    c.state = t.random(c.batch * kept * c.channels);
    if (kept) c.state = laid_out(c.state, {c.batch, kept, c.channels}, {1, 0}, gap);
    c.weight = t.random(c.channels * c.width, of_parameters, 1.0);
    c.bias = t.random(c.channels, of_parameters, 1.0);
    if (t.length % 8 == 3) c.x.values[0] = t.length % 16 == 3 ? INFINITY : NAN;
    t.check("causal_conv1d", {4, 4}, {c.x, c.weight, c.bias, c.state}, expected_of(c), [&](const Test::Call& call) {
        CausalConv1d op{};
        op.x = {call.in[0], c.x.stride[0], c.x.stride[1]};
        if (c.has_state && kept) op.state = {call.in[3], c.state.stride[0], c.state.stride[1]};
        op.weight = call.in[1];
        op.bias = c.has_bias ? call.in[2] : nullptr;
        op.y = call.out;
        op.new_state = call.out + c.batch * c.tokens * c.channels * format_of(t.dtype).bytes;
        op.batch = c.batch;
        op.tokens = c.tokens;
        op.channels = c.channels;
        op.width = c.width;
        op.x_dtype = t.dtype;
        op.parameter_dtype = of_parameters;
        op.silu = c.silu;
        target().causal_conv1d(op);
    });
}

void gated_delta_rule(Test& t) {
    const std::int64_t key_dim = t.length % 9 + 1;
    Rule c{2, 4, 2, 1 + t.length % 3, key_dim, t.length, 0.5, t.length % 4 != 1, {}, {}, {}, {}, {}, {}};
    const Dtype wide = t.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
    const Dtype of_state = t.length % 5 == 2 ? t.dtype : wide, of_gates = t.length % 2 ? t.dtype : wide;
    const std::int64_t gap = t.length % 3 ? 0 : 7, keys = c.batch * c.key_heads * c.tokens;
    const std::vector<std::size_t> order =
        t.length % 2 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{1, 0, 2};
    const auto by_key = [&](double spread) {
        return laid_out(t.random(keys * key_dim, t.dtype, spread), {c.batch, c.key_heads, c.tokens, key_dim}, order,
                        gap);
    };
    const std::int64_t tokens = c.batch * c.heads * c.tokens;
    c.q = by_key(1.0);
    c.k = by_key(1 / std::sqrt(static_cast<double>(key_dim)));
    c.v = laid_out(t.random(tokens * c.value_dim), {c.batch, c.heads, c.tokens, c.value_dim}, order, gap);
    c.state = laid_out(t.random(c.batch * c.heads * key_dim * c.value_dim, of_state, 1.0),
                       {c.batch, c.heads, key_dim, c.value_dim}, {0, 1, 2}, gap);
    for (Input* gate : {&c.g, &c.beta}) {
        *gate = laid_out(t.random(tokens, of_gates, 0.5), {c.batch, c.heads, c.tokens, 1}, order, gap);
        for (Real& x : gate->values) x = gate == &c.g ? -std::fabs(x) : std::min(std::fabs(x), Real{1});
    }
    const Results expected = expected_of(c);
    const std::size_t state_bytes = expected.state.value.size() * at(format_of(wide).bytes);
    const std::size_t y_bytes = expected.y.value.size() * at(format_of(t.dtype).bytes);
    const auto compute = [&](const Test::Call& call, char* y, char* new_state) {
        GatedDeltaRule op{};
        op.q = strided(c.q, call.in[0]);
        op.k = strided(c.k, call.in[1]);
        op.v = strided(c.v, call.in[2]);
        op.g = strided(c.g, call.in[3]);
        op.beta = strided(c.beta, call.in[4]);
        if (c.has_state) op.state = strided(c.state, call.in[5]);
        op.y = y;
        op.new_state = new_state;
        op.end = c.batch * c.heads;
        op.heads = c.heads;
        op.key_heads = c.key_heads;
        op.tokens = c.tokens;
        op.key_dim = c.key_dim;
        op.value_dim = c.value_dim;
        op.scale = c.scale;
        op.dtype = t.dtype;
        op.g_dtype = op.beta_dtype = of_gates;
        op.state_dtype = of_state;
        target().gated_delta_rule(op);
    };
    const std::vector<Input> in = {c.q, c.k, c.v, c.g, c.beta, c.state};
    t.check("gated_delta_rule", {8, 8}, in, expected.y, [&](const Test::Call& call) {
        std::vector<char> state(state_bytes);
        compute(call, call.out, state.data());
    });
    if (t.dtype != wide) return;  // a result is one of t.dtype
    t.check("gated_delta_rule, state", {8, 8}, in, expected.state, [&](const Test::Call& call) {
        std::vector<char> y(y_bytes);
        compute(call, y.data(), call.out);
    });
}

}  // namespace tensorops::tests
