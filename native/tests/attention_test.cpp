// Attention, compared with its formula in double.
#include "tests.h"

namespace tensorops::tests {
namespace {

enum class Mask { none, boolean, transposed_boolean, floating };

struct Variant {
    const char* name;
    Mask mask = Mask::none;
    bool is_causal = false, sinks = false, infinite_value = false;
    std::int64_t window = 0;
    double softcap = 0;
    bool beyond_range = false;   // queries and keys whose products are: all scores are then the cap or its negative
    std::int64_t page_size = 0;  // of keys and values in pages, the last of which are not used
    bool in_blocks = false;      // of q8_0
};
const Variant kVariants[] = {
    {"attention"},
    {"attention, causal", Mask::none, true},
    {"attention, window", Mask::none, false, false, false, 5},
    {"attention, all of them", Mask::boolean, true, true, false, 40, 3.0},
    {"attention, bool mask", Mask::boolean},
    {"attention, strided mask", Mask::transposed_boolean},
    {"attention, float mask", Mask::floating, false, true},
    {"attention, infinity", Mask::none, true, false, true},
    {"attention, beyond the range", Mask::none, true, true, false, 0, 3.0, true},
    {"attention, lengths and pages", Mask::none, true, true, false, 0, 0, false, 5},
    {"attention, window of lengths and pages", Mask::boolean, false, false, false, 40, 0, false, 16},
    {"attention, blocks", Mask::none, true, true, false, 0, 0, false, 0, true},
    {"attention, blocks in pages", Mask::boolean, false, false, false, 40, 3.0, false, 5, true},
};

struct Case {
    const Variant& variant;
    std::int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
    Input q, k, v, mask, sinks;
    double scale;
    std::vector<std::int64_t> lengths = {}, pages = {};  // if keys are in pages
    Input k_blocks = {}, v_blocks = {};                  // if they are in blocks, which hold the numbers of k and v

    std::int64_t length(std::int64_t b) const { return lengths.empty() ? keys : lengths[static_cast<std::size_t>(b)]; }
    // The row of k and v that holds a key.
    std::int64_t row_of(std::int64_t b, std::int64_t kv_head, std::int64_t key) const {
        if (pages.empty()) return (b * kv_heads + kv_head) * keys + key;
        const std::int64_t size = variant.page_size, page = pages[static_cast<std::size_t>((b * keys + key) / size)];
        return (page * kv_heads + kv_head) * size + key % size;
    }
};

std::vector<double> doubles(const Input& x) { return {x.values.begin(), x.values.end()}; }

// The score of a key for a query, which is -infinity where it is hidden.
double masked(const Case& c, Real product, std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key) {
    const std::int64_t position = query + c.length(b) - c.queries, window = c.variant.window;
    const Real cap = c.variant.softcap;
    auto score = static_cast<double>(cap != 0 ? cap * std::tanh(product / cap) : product);
    if (c.variant.mask != Mask::none) {
        const std::int64_t row = (b * c.mask.shape[1] + h % c.mask.shape[1]) * c.queries + query;
        const auto m = static_cast<double>(c.mask.values[static_cast<std::size_t>(row * c.keys + key)]);
        score = c.variant.mask == Mask::floating ? score + m : m != 0 ? score : -INFINITY;
    }
    if (c.variant.is_causal && key > position) return -INFINITY;
    if (window != 0 && std::abs(key - position) >= window) return -INFINITY;
    return score;
}

Expected expected_of(const Case& c) {
    const std::vector<double> q = doubles(c.q), k = doubles(c.k), v = doubles(c.v), sinks = doubles(c.sinks);
    Expected expected;
    for (std::int64_t row = 0; row < c.batch * c.heads * c.queries; ++row) {
        const std::int64_t query = row % c.queries, h = row / c.queries % c.heads, b = row / c.queries / c.heads;
        const std::int64_t kv_head = h / (c.heads / c.kv_heads);
        std::vector<double> weights(static_cast<std::size_t>(c.length(b)));
        double largest = sinks.empty() ? -INFINITY : sinks[static_cast<std::size_t>(h)];
        for (std::int64_t j = 0; j < c.length(b); ++j) {
            Real score = 0;  // whose range holds the product of any two numbers
            const std::int64_t at = c.row_of(b, kv_head, j) * c.dim;
            for (std::int64_t i = 0; i < c.dim; ++i) score += Real{q[row * c.dim + i]} * k[at + i];
            weights[j] = masked(c, score * c.scale, b, h, query, j);
            largest = std::max(largest, weights[j]);
        }
        double sum = sinks.empty() ? 0 : std::exp(sinks[static_cast<std::size_t>(h)] - largest);
        for (double& weight : weights) {
            weight = largest == -INFINITY ? 0 : std::exp(weight - largest);
            sum += weight;
        }
        for (std::int64_t i = 0; i < c.value_dim; ++i) {
            double y = 0, size = 0;
            for (std::int64_t j = 0; j < c.length(b); ++j) {
                const double product = weights[j] * v[c.row_of(b, kv_head, j) * c.value_dim + i];
                y += product;
                size += std::isfinite(product) ? std::fabs(product) : 0;
            }
            expected.value.push_back(sum == 0 ? y : y / sum);
            expected.scale.push_back(sum == 0 ? 0 : size / sum);
        }
    }
    return expected;
}

// Some keys hidden from each query, all of them from every seventh. Half precision holds the numbers, whatever the
// dtype.
Input mask_of(Test& t, const Case& c) {
    const bool floating = c.variant.mask == Mask::floating;
    const Dtype dtypes[] = {Dtype::float16, Dtype::bfloat16, Dtype::float32, Dtype::float64};
    const std::int64_t heads = c.variant.mask == Mask::transposed_boolean ? 1 : c.heads;
    const std::vector<std::int64_t> shape{c.batch, heads, c.queries, c.keys};
    const std::int64_t rows = c.batch * heads * c.queries;
    Input mask{floating ? dtypes[c.keys % 4] : Dtype::other, {}};
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t key = 0; key < c.keys; ++key) {
            const bool hidden = row % 7 == 6 || t.integer(0, 2) == 0 || (c.keys > 300 && key < 200);
            const Real value = static_cast<Real>(t.integer(-64, 64)) / 16;
            mask.values.push_back(floating ? (hidden ? -Real{INFINITY} : value) : Real{hidden ? 0.0L : 1.0L});
        }
    return laid_out(mask, shape, {0, 1, 2}, c.keys % 3);
}

Attention arguments(const Case& c, const Test& t, const Test::Call& call) {
    Attention op{};
    op.q = call.in[0];
    op.k = call.in[1];
    op.v = call.in[2];
    std::copy_n(c.q.stride.begin(), 3, op.q_stride);
    std::copy_n((c.variant.in_blocks ? c.k_blocks : c.k).stride.begin(), 3, op.k_stride);
    std::copy_n((c.variant.in_blocks ? c.v_blocks : c.v).stride.begin(), 3, op.v_stride);
    op.format = c.variant.in_blocks ? tensorops::Format::q8_0 : tensorops::Format::none;
    op.y = call.out;
    op.batch = c.batch;
    op.heads = c.heads;
    op.kv_heads = c.kv_heads;
    op.queries = c.queries;
    op.keys = c.keys;
    op.dim = c.dim;
    op.value_dim = c.value_dim;
    op.dtype = t.dtype;
    if (c.variant.mask != Mask::none) {
        op.mask_kind = c.variant.mask == Mask::floating ? MaskKind::floating : MaskKind::boolean;
        op.mask = call.in[3];
        std::copy_n(c.mask.stride.begin(), 3, op.mask_stride);
        if (c.mask.shape[1] == 1) op.mask_stride[1] = 0;
        op.mask_stride[3] = c.mask.element();
        op.mask_dtype = c.mask.dtype;
    }
    if (c.variant.sinks) {
        op.sinks = call.in.back();
        op.sinks_stride = c.sinks.element();
        op.sinks_dtype = c.sinks.dtype;
    }
    op.scale = c.scale;
    op.softcap = c.variant.softcap;
    op.left = op.right = c.variant.window ? c.variant.window - 1 : kUnbounded;
    if (c.variant.is_causal) op.right = 0;
    if (!c.pages.empty()) {
        op.lengths = c.lengths.data();
        op.pages = c.pages.data();
        op.page_size = c.variant.page_size;
        op.pages_each = c.keys / c.variant.page_size;
    }
    op.work = t.many_threads || c.keys % 2 ? 1 << 24 : 0;
    return op;
}

// Keys whose mask lies between other columns: each has a byte after it.
Input spread_keys(const Input& mask) {
    Input wide{mask.dtype, {}};
    for (Real x : mask.values) wide.values.insert(wide.values.end(), {x, 1});
    std::vector<std::int64_t> shape = mask.shape;
    shape.back() *= 2;
    return laid_out(wide, shape, {0, 1, 2}, 0);
}

void check(Test& t, const Case& c) {
    Case used = c;
    const bool transposed = c.variant.mask == Mask::transposed_boolean;
    std::vector<Input> in{c.q, c.k, c.v};
    if (c.variant.in_blocks) in = {c.q, c.k_blocks, c.v_blocks};
    if (transposed) used.mask = spread_keys(c.mask);
    if (c.variant.mask != Mask::none) in.push_back(used.mask);
    if (c.variant.sinks) in.push_back(c.sinks);
    // The reference rounds as often as the kernel in float64.
    t.check(c.variant.name, {16, 48}, in, expected_of(c), [&](const Test::Call& call) {
        Attention op = arguments(used, t, call);
        if (transposed) op.mask_stride[3] = 2;
        target().attention(op);
    });
}

// (batch, heads, positions, features); positions and heads change places in memory for every other length.
Input array(Test& t, std::int64_t batch, std::int64_t heads, std::int64_t positions, std::int64_t features,
            double size = 1) {
    const std::vector<std::size_t> order =
        t.length % 2 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{0, 1, 2};
    return laid_out(t.random(batch * heads * positions * features, t.dtype, size), {batch, heads, positions, features},
                    order, t.length % 3 ? 0 : 7);
}

// Lets keys or values be those that random blocks of q8_0 hold, and returns these, laid out in the same way.
Input in_blocks(Test& t, Input& x) {
    constexpr std::size_t kElements = 32, kBytes = 34;
    const std::size_t count = x.values.size() / kElements;
    Input blocks = t.random_bytes(static_cast<std::int64_t>(count * kBytes));
    for (std::size_t i = 0; i < count; ++i) {
        Real* const block = blocks.values.data() + i * kBytes;
        block[1] = 0x20 + t.integer(0, 3);  // the upper byte of a half near 1/128
        const int half = static_cast<int>(block[0]) + 256 * static_cast<int>(block[1]);
        const Real scale = value_of_half(format_of(Dtype::float16), static_cast<std::uint16_t>(half));
        for (std::size_t j = 0; j < kElements; ++j) {
            const auto byte = static_cast<std::int8_t>(static_cast<int>(block[2 + j]));
            x.values[i * kElements + j] = scale * Real(byte);
        }
    }
    std::vector<std::int64_t> shape = x.shape;
    shape.back() = shape.back() / 32 * 34;
    return laid_out(blocks, shape, {0, 2, 1}, t.length % 3);
}

// Puts the keys and values of a case into pages in backward order, with room for more of them than there are.
void put_in_pages(Test& t, Case& c) {
    const std::int64_t size = c.variant.page_size, each = c.keys / size + 2;
    for (std::int64_t b = 0; b < c.batch; ++b) {
        const std::int64_t length = b == 0 ? c.keys : c.keys / 2;
        c.lengths.push_back(length);
        for (std::int64_t i = 0; i < each; ++i) c.pages.push_back(i * size < length ? (c.batch - b) * each - i : -1);
    }
    c.keys = each * size;
    c.k = array(t, c.batch * each + 1, c.kv_heads, size, c.dim);
    c.v = array(t, c.batch * each + 1, c.kv_heads, size, c.value_dim);
}

}  // namespace

void attention(Test& t) {
    const std::int64_t dims[] = {16, 5, 32, 48, 1, 67, 64};
    const std::int64_t keys = t.length, dim = dims[keys % 7], value_dim = dims[(keys / 2 + 3) % 7];
    const std::int64_t batch = keys > 300 ? 1 : 2, heads = 4, kv_heads = 2;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{t.many_threads ? 20 : 7}}) {
        const Input q = array(t, batch, heads, queries, dim), k = array(t, batch, kv_heads, keys, dim),
                    v = array(t, batch, kv_heads, keys, value_dim);
        for (const Variant& variant : kVariants) {
            if (t.many_threads && variant.window != 40 && !variant.beyond_range) continue;  // the one with all of them
            if (variant.infinite_value && queries > keys) continue;  // 0 or NaN where all keys are hidden
            Case c{variant, batch, heads, kv_heads, queries, keys, dim, value_dim, q, k, v, {}, {}, scale};
            if (variant.infinite_value) c.v.values.back() = -INFINITY;
            if (variant.beyond_range) {
                if (t.dtype == Dtype::float16 || sizeof(Real) == sizeof(double)) continue;  // none are, or none is held
                const double size = t.dtype == Dtype::float64 ? 1e250 : 1e32;
                c.q = array(t, batch, heads, queries, dim, size);
                c.k = array(t, batch, kv_heads, keys, dim, size);
            }
            if (variant.in_blocks) {
                if (t.dtype != Dtype::float32) continue;
                c.dim = 32 * (keys % 3 + 1);
                c.value_dim = 32 * (keys / 3 % 3 + 1);
                c.scale = 1 / std::sqrt(static_cast<double>(c.dim));
                c.q = array(t, batch, heads, queries, c.dim);
                c.k = array(t, batch, kv_heads, keys, c.dim);
                c.v = array(t, batch, kv_heads, keys, c.value_dim);
            }
            if (variant.page_size != 0) put_in_pages(t, c);
            if (variant.in_blocks) {
                c.k_blocks = in_blocks(t, c.k);
                c.v_blocks = in_blocks(t, c.v);
            }
            if (variant.mask != Mask::none) c.mask = mask_of(t, c);
            if (variant.sinks) c.sinks = t.random(heads, keys % 2 ? Dtype::float32 : t.dtype, 1.0);
            check(t, c);
        }
    }
}

}  // namespace tensorops::tests
