// The lengths and pages of a program are known only when it runs. A program of XLA cannot raise an error of its own, so
// those out of range are clamped, as the operator's body does; a plan reports them.
#include <algorithm>
#include <cstring>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

// Lets an integer of an array be one from 0 to `most`. Returns whether it was.
bool clamp(std::int64_t& n, const Buffer& b, std::int64_t most) {
    if (n >= 0 && n <= most) return true;
    n = n >= 0 || b.dtype == kUint64 ? most : 0;  // those of uint64 beyond int64 are negative here
    return false;
}

// A call as the kernel takes it, and the integers that it points to.
struct Bound {
    Attention op{};
    std::vector<std::int64_t> lengths, pages;
};

// The array with a name, of which the attribute says its place among the arguments; nullptr: it was not given.
const Buffer* named(const Call& call, std::string_view name) {
    const double place = call.number(name, 0);
    return place > 0 && place < static_cast<double>(call.arguments()) ? &call.argument(static_cast<std::int64_t>(place))
                                                                      : nullptr;
}

void set_strides(const Call& call, const Buffer& b, std::string_view name, std::int64_t* strides) {
    std::copy_n(strides_of(call, b, name).bytes, 3, strides);
}

Wrong read_heads(const Call& call, Bound& bound) {
    const Buffer &q = call.argument(0), &k = call.argument(1), &v = call.argument(2);
    if (q.rank != 4 || k.rank != 4 || v.rank != 4) return "queries, keys or values without 4 axes";
    if (dtype_of(q) == Dtype::other || k.dtype != q.dtype || v.dtype != q.dtype) return "a dtype without a kernel";
    const std::int64_t *of_q = q.dims, *of_k = k.dims, *of_v = v.dims;
    if (of_q[3] != of_k[3] || !std::equal(of_k, of_k + 3, of_v)) return "keys or values that do not fit";
    if (elements(q) == 0 || elements(k) == 0 || elements(v) == 0) return "an empty array";
    if (of_q[1] % of_k[1] != 0) return "key heads that do not divide the heads";
    Attention& op = bound.op;
    op.q = data(q);
    op.k = data(k);
    op.v = data(v);
    set_strides(call, q, "q", op.q_stride);
    set_strides(call, k, "k", op.k_stride);
    set_strides(call, v, "v", op.v_stride);
    op.batch = of_q[0];
    op.heads = of_q[1];
    op.kv_heads = of_k[1];
    op.queries = of_q[2];
    op.keys = of_k[2];
    op.dim = of_q[3];
    op.value_dim = of_v[3];
    op.dtype = dtype_of(q);
    return nullptr;
}

Wrong read_pages(const Call& call, Bound& bound) {
    const Buffer *table = named(call, "page_table"), &k = call.argument(1);
    Attention& op = bound.op;
    if (!table) return k.dims[0] == op.batch ? nullptr : "keys of another batch size";
    if (table->rank != 2 || table->dims[0] != op.batch || elements(*table) == 0) return "a table that does not fit";
    if (!is_integer(*table)) return "a table without integers";
    bound.pages = read_integers(*table);
    op.pages = bound.pages.data();
    op.page_size = k.dims[2];
    op.pages_each = table->dims[1];
    if (op.page_size > kUnbounded / op.pages_each) return "too many pages";
    op.keys = op.page_size * op.pages_each;
    return nullptr;
}

Wrong read_lengths(const Call& call, Bound& bound) {
    const Buffer* lengths = named(call, "lengths");
    if (!lengths) return nullptr;
    if (!is_vector(*lengths, bound.op.batch)) return "lengths that do not fit";
    if (!is_integer(*lengths)) return "lengths that are not integers";
    bound.lengths = read_integers(*lengths);
    for (std::int64_t& n : bound.lengths)
        if (!clamp(n, *lengths, bound.op.keys) && replaying) return "a length that is out of range";
    bound.op.lengths = bound.lengths.data();
    return nullptr;
}

// Those of keys that no query attends to may be anything; before a window, they are not told from others here.
Wrong limit_pages(const Call& call, Bound& bound) {
    const Attention& op = bound.op;
    if (bound.pages.empty()) return nullptr;
    const Buffer& table = *named(call, "page_table");
    for (std::int64_t b = 0; b < op.batch; ++b) {
        const std::int64_t keys = op.lengths ? op.lengths[b] : op.keys;
        for (std::int64_t i = 0; i < op.pages_each; ++i) {
            const bool known = clamp(bound.pages[static_cast<std::size_t>(b * op.pages_each + i)], table,
                                     call.argument(1).dims[0] - 1);
            if (!known && replaying && op.left == kUnbounded && i * op.page_size < keys)
                return "a page that is out of range";
        }
    }
    return nullptr;
}

Wrong read_mask(const Call& call, Attention& op) {
    const Buffer* mask = named(call, "mask");
    if (!mask) return nullptr;
    const bool boolean = mask->dtype == kBool;
    if (!boolean && dtype_of(*mask) == Dtype::other) return "a mask of a dtype without a kernel";
    if (mask->rank > 4) return "a mask of more than 4 axes";
    op.mask = data(*mask);
    op.mask_kind = boolean ? MaskKind::boolean : MaskKind::floating;
    op.mask_dtype = dtype_of(*mask);
    const std::int64_t scores[4] = {op.batch, op.heads, op.queries, op.keys};
    std::int64_t stride = boolean ? 1 : itemsize(*mask);
    for (std::int64_t own = mask->rank - 1, d = 3; own >= 0; --own, --d) {
        const std::int64_t n = mask->dims[own];
        if (n != 1 && n != scores[d]) return "a mask that does not broadcast to the scores";
        if (n != 1) op.mask_stride[d] = stride;
        stride *= n;
    }
    return nullptr;
}

Wrong read_sinks(const Call& call, Attention& op) {
    const Buffer* sinks = named(call, "sinks");
    if (!sinks) return nullptr;
    if (dtype_of(*sinks) == Dtype::other) return "sinks of a dtype without a kernel";
    if (!is_vector(*sinks, op.heads)) return "sinks that do not fit";
    op.sinks = data(*sinks);
    op.sinks_stride = itemsize(*sinks);
    op.sinks_dtype = dtype_of(*sinks);
    return nullptr;
}

std::int64_t side(const Call& call, std::string_view name) {
    const double keys = call.number(name, -1);
    return keys >= 0 && keys < static_cast<double>(kUnbounded) ? static_cast<std::int64_t>(keys) : kUnbounded;
}

Wrong attention(const Call& call) {
    if (call.arguments() < 3 || call.frame.results.count != 1) return "another number of arrays";
    Bound bound;
    if (Wrong wrong = read_heads(call, bound)) return wrong;
    if (Wrong wrong = read_pages(call, bound)) return wrong;
    if (Wrong wrong = read_lengths(call, bound)) return wrong;
    Attention& op = bound.op;
    if (Wrong wrong = read_mask(call, op)) return wrong;
    if (Wrong wrong = read_sinks(call, op)) return wrong;
    const Buffer& y = call.result();
    const std::int64_t shape[4] = {op.batch, op.heads, op.queries, op.value_dim};
    if (y.dtype != call.argument(0).dtype || y.rank != 4 || !std::equal(shape, shape + 4, y.dims))
        return "a result of another shape or dtype";
    op.y = data(y);
    op.scale = call.number("scale", 1);
    op.softcap = call.number("softcap", 0);
    op.left = side(call, "window_0");
    op.right = call.number("is_causal", 0) != 0 ? 0 : side(call, "window_1");
    if (Wrong wrong = limit_pages(call, bound)) return wrong;
    const double keys = keys_of(op);
    if (keys == 0) {
        std::memset(op.y, 0, static_cast<std::size_t>(bytes_of(y)));
        return nullptr;
    }
    op.work = work_of(op, keys, itemsize(y));
    const Team team(call);
    target().attention(op);
    return nullptr;
}

}  // namespace

Handlers attention_handlers() {
    return {
        {"scaled_dot_product_attention", handle<attention>},
    };
}

}  // namespace tensorops::xla
