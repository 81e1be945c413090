// Attention.
#include "attention.h"

#include <cstring>

#include "attention_vjp.h"
#include "checks.h"
#include "targets.h"

namespace tensorops {
namespace {

// Beyond these, products with a number may leave the range of float32 in other ways than in the operator's body.
constexpr double kSmallest = 1e-30, kLargest = 1e30;
constexpr std::int64_t kWidest = 16384;  // features of a head: a thread keeps 128 rows of them

constexpr Dtypes kKept{[](Dtype d) { return is_floating(d) || d == Dtype::uint8; }, "has a dtype without a kernel"};
constexpr Dtypes kMask{[](Dtype d) { return is_floating(d) || d == Dtype::boolean; }, "has a dtype without a kernel"};

// A call as the kernel takes it, and the integers that it points to
struct Bound {
    Attention op{};
    std::vector<std::int64_t> lengths, pages;
};

// How many features queries, keys or values have, the latter two perhaps in blocks
std::int64_t features_of(const Array& a, Format format) {
    if (format == Format::none) return a.shape[3];
    return a.shape[3] / size_of(format).bytes * size_of(format).elements;
}

Reason refuse_heads(const char* name, const Array& a, Format format) {
    if (a.ndim != 4) return std::string(name) + " has " + std::to_string(a.ndim) + " dimensions, not 4";
    if (!a.is_contiguous_from(3) && a.size() != 0)
        return "the last axis of " + std::string(name) + " is not contiguous";
    if (features_of(a, format) > kWidest)
        return std::string(name) + " has more than " + std::to_string(kWidest) + " features";
    return {};
}

Reason refuse_dtypes(const Array& q, const Array& k, const Array& v, const Value& format_name, Format format) {
    if (format_name.kind == Value::none)
        return q.dtype != k.dtype || q.dtype != v.dtype ? "q, k and v differ in dtype" : Reason{};
    if (format == Format::none) return "kv_format has no compiled kernel";
    if (q.dtype != Dtype::float32) return "k and v are in blocks, which the kernel reads for queries of float32 only";
    if (k.dtype != Dtype::uint8 || v.dtype != Dtype::uint8) return "k or v does not have dtype uint8";
    const std::int64_t bytes = size_of(format).bytes;
    return k.shape[3] % bytes != 0 || v.shape[3] % bytes != 0 ? "the rows of k or v are not whole blocks" : Reason{};
}

Reason refuse_shapes(const Array& q, const Array& k, const Array& v, bool in_pages, const Attention& op) {
    const std::int64_t *of_q = q.shape, *of_k = k.shape, *of_v = v.shape;
    if (in_pages && of_k[0] != of_v[0]) return "k and v differ in pages";
    if (!in_pages && (of_q[0] != of_k[0] || of_q[0] != of_v[0])) return "q, k and v differ in batch size";
    if (op.dim != features_of(k, op.format)) return "q and k differ in head dimension";
    if (of_k[1] != of_v[1] || of_k[2] != of_v[2]) return "k and v differ in heads or keys";
    if (of_k[1] == 0 || of_q[1] % of_k[1] != 0) return "the heads of k do not divide those of q";
    if (op.dim == 0) return "the head dimension is 0";
    return {};
}

Reason refuse_mask(const Array* mask, const std::int64_t* scores) {
    if (!mask) return {};
    if (mask->ndim > 4) return "mask has more than 4 dimensions";
    for (int d = 0; d < mask->ndim; ++d) {
        const std::int64_t n = mask->shape[d];
        if (n != 1 && n != scores[4 - mask->ndim + d])
            return "mask does not broadcast to (batch, heads, queries, keys)";
    }
    return {};
}

Reason read_scale(const Value& v, std::int64_t dim, double* scale) {
    if (v.kind == Value::none) {
        *scale = 1 / std::sqrt(static_cast<double>(dim));
        return {};
    }
    *scale = v.kind == Value::number ? v.as_number : v.kind == Value::integer ? static_cast<double>(v.as_integer) : NAN;
    const double size = std::fabs(*scale);
    if (size != 0 && !(size >= kSmallest && size <= kLargest)) return "scale is not a usual number";
    return {};
}

Reason read_softcap(const Value& v, double* softcap) {
    *softcap = v.kind == Value::number    ? v.as_number
               : v.kind == Value::integer ? static_cast<double>(v.as_integer)
               : v.kind == Value::none    ? 0
                                          : NAN;
    if (v.kind != Value::none && !(*softcap >= kSmallest && *softcap <= kLargest))
        return "softcap is not a usual positive number";
    return {};
}

bool read_side(std::int64_t value, std::int64_t* side) {
    *side = value == -1 || value == kNoInteger ? kUnbounded : value;
    return *side >= 0 && *side <= kUnbounded;
}

Reason read_window(const Value& v, Attention* op) {
    op->left = op->right = kUnbounded;
    if (v.kind == Value::none) return {};
    if (v.kind == Value::integer) {
        if (v.as_integer < 1 || v.as_integer > kUnbounded)
            return "window is neither a usual positive integer nor a pair of usual integers from -1 on";
        op->left = op->right = v.as_integer - 1;
        return {};
    }
    if (v.kind != Value::integers)
        return "window is neither a usual positive integer nor a pair of usual integers from -1 on";
    const bool usual = v.as_integers.count == 2 && read_side(v.as_integers.items[0], &op->left) &&
                       read_side(v.as_integers.items[1], &op->right);
    return usual ? Reason{} : "window is neither a usual positive integer nor a pair of usual integers from -1 on";
}

// Also finds how many keys a sequence may have.
Reason refuse_page_table(const Array* table, const Array& q, const Array& k, Attention* op) {
    op->keys = k.shape[2];
    if (!table) return {};
    if (table->ndim != 2) return "page_table does not have 2 dimensions";
    if (table->shape[0] != q.shape[0]) return "page_table does not have one row for each sequence";
    if (k.shape[0] == 0 && table->size() != 0) return "there are no pages";
    op->page_size = k.shape[2];
    op->pages_each = table->shape[1];
    op->keys = product(op->page_size, op->pages_each);
    return op->keys > kUnbounded ? "page_table has too many pages" : Reason{};
}

// Lets an integer be one from 0 to `most`; returns whether it was.
bool clamp(std::int64_t& n, Dtype dtype, std::int64_t most) {
    if (n >= 0 && n <= most) return true;
    n = n >= 0 || dtype == Dtype::uint64 ? most : 0;  // those of uint64 beyond int64 are negative here
    return false;
}

Reason read_lengths(const Call& call, const Array* lengths, std::int64_t batch, Bound* bound) {
    if (!lengths) return {};
    if (lengths->ndim != 1 || lengths->shape[0] != batch) return "lengths does not have one number for each sequence";
    if (!call.has_values) return {};
    bound->lengths = read_integers(*lengths);
    for (std::int64_t& n : bound->lengths)
        if (!clamp(n, lengths->dtype, bound->op.keys) && call.may_fail)
            return "lengths has a number outside 0 … " + std::to_string(bound->op.keys);
    bound->op.lengths = bound->lengths.data();
    return {};
}

// Reads the table, of which only pages with keys that a query may attend to must be in range.
Reason read_pages(const Call& call, const Array* table, std::int64_t pages, Bound* bound) {
    Attention& op = bound->op;
    if (!table || op.keys == 0 || !call.has_values) return {};
    bound->pages = read_integers(*table);
    for (std::int64_t b = 0; b < op.batch; ++b) {
        std::int64_t* const row = bound->pages.data() + b * op.pages_each;
        const Reach reach = reach_of(op, b);
        for (std::int64_t i = 0; i < op.pages_each; ++i) {
            const bool is_used =
                reach.keys() > 0 && i >= reach.first / op.page_size && i <= (reach.end - 1) / op.page_size;
            if (!clamp(row[i], table->dtype, pages - 1) && is_used && call.may_fail)
                return "page_table has an index outside 0 … " + std::to_string(pages - 1) + " that is in use";
        }
    }
    op.pages = bound->pages.data();
    return {};
}

void set_mask(Attention& op, const Array* mask) {
    if (!mask) return;
    op.mask = mask->data;
    op.mask_dtype = mask->dtype;
    op.mask_kind = mask->dtype == Dtype::boolean ? MaskKind::boolean : MaskKind::floating;
    for (int d = 0; d < mask->ndim; ++d)
        if (mask->shape[d] != 1) op.mask_stride[4 - mask->ndim + d] = mask->stride(d);
}

void set_heads(const Array& a, const char*& data, std::int64_t* strides) {
    data = a.data;
    if (a.strides) {
        std::copy_n(a.strides, 3, strides);
        return;
    }
    strides[2] = a.shape[3] * a.item();
    strides[1] = strides[2] * a.shape[2];
    strides[0] = strides[1] * a.shape[1];
}

// The arguments of attention and, for its derivative, the cotangent
struct GivenAttention {
    const Array &q, &k, &v;
    const Array *dy, *table = nullptr;
    std::int64_t shape[4] = {};  // of the result

    GivenAttention(Reader& in, bool has_cotangent)
        : q(in.array()), k(in.array(kKept)), v(in.array(kKept)), dy(has_cotangent ? &in.array() : nullptr) {}

    // Reads the others, and refuses what the kernels do not take. Fills everything but where arrays are.
    Reason read(Call& call, Reader& in, Bound* bound) {
        const Array* mask = in.optional(kMask);
        const bool is_causal = in.flag();
        const Value &scale = in.value(), &window = in.value(), &softcap = in.value();
        const Array *sinks = in.optional(), *lengths = in.optional(kIntegers);
        table = in.optional(kIntegers);
        const Value& format_name = in.value();
        Attention& op = bound->op;
        op.format = format_name.kind == Value::text ? find_format(format_name.view()) : Format::none;
        in.require(refuse_heads("q", q, Format::none));
        in.require(refuse_heads("k", k, op.format));
        if (!in.require(refuse_heads("v", v, op.format))) return in.reason;
        if (!in.require(refuse_dtypes(q, k, v, format_name, op.format))) return in.reason;
        op.dim = q.shape[3];
        op.value_dim = features_of(v, op.format);
        in.require(refuse_shapes(q, k, v, table != nullptr, op));
        if (!in.require(refuse_page_table(table, q, k, &op))) return in.reason;
        const std::int64_t scores[4] = {q.shape[0], q.shape[1], q.shape[2], op.keys};
        in.require(refuse_mask(mask, scores));
        if (sinks && (sinks->ndim != 1 || sinks->shape[0] != scores[1]))
            in.require(false, "sinks does not have one element for each head of q");
        in.require(read_scale(scale, q.shape[3], &op.scale));
        in.require(read_softcap(softcap, &op.softcap));
        if (!in.require(read_window(window, &op))) return in.reason;
        if (is_causal) op.right = 0;
        op.batch = scores[0];
        op.queries = scores[2];
        if (!in.require(read_lengths(call, lengths, op.batch, bound))) return in.reason;
        if (!in.require(read_pages(call, table, k.shape[0], bound))) return in.reason;
        std::copy_n(scores, 3, shape);
        shape[3] = op.value_dim;
        op.heads = shape[1];
        op.kv_heads = k.shape[1];
        op.dtype = q.dtype;
        set_mask(op, mask);
        if (sinks) {
            op.sinks = sinks->data;
            op.sinks_stride = sinks->stride(0);
            op.sinks_dtype = sinks->dtype;
        }
        return {};
    }

    void set_arrays(Attention& op) const {
        set_heads(q, op.q, op.q_stride);
        set_heads(k, op.k, op.k_stride);
        set_heads(v, op.v, op.v_stride);
    }
};

}  // namespace

TENSOROPS_OPERATOR(scaled_dot_product_attention,
                   "q, k, v, *, mask=None, is_causal=False, scale=None, window=None, softcap=None, sinks=None, "
                   "lengths=None, page_table=None, kv_format=None") {
    Reader in(call);
    Bound bound;
    GivenAttention given(in, false);
    if (Reason reason = given.read(call, in, &bound); !reason.empty()) return reason;
    Attention& op = bound.op;
    Array y;
    if (!call.make({{y, 4, given.shape, given.q.dtype}})) return call.reason;
    if (y.size() == 0) return {};
    op.y = y.data;
    const double keys = keys_of(op);
    if (keys == 0) {
        std::memset(op.y, 0, static_cast<std::size_t>(y.bytes()));
        return {};
    }
    given.set_arrays(op);
    op.work = work_of(op, keys, y.item());
    call.compute(op.work, [&op] { target().attention(op); });
    return {};
}

TENSOROPS_OPERATOR(scaled_dot_product_attention_vjp,
                   "q, k, v, dy, *, mask=None, is_causal=False, scale=None, window=None, softcap=None, sinks=None, "
                   "lengths=None, page_table=None, kv_format=None -> dq, dk, dv") {
    Reader in(call);
    Bound bound;
    GivenAttention given(in, true);
    if (Reason reason = given.read(call, in, &bound); !reason.empty()) return reason;
    if (given.table) return "keys and values are in pages";
    if (bound.op.format != Format::none) return "keys and values are in blocks";
    const Array &q = given.q, &k = given.k, &v = given.v, &dy = *given.dy;
    if (dy.dtype != q.dtype || !dy.has_shape(4, given.shape)) return "dy has another shape or dtype than the result";
    if (!dy.is_contiguous_from(3)) return "the last axis of dy is not contiguous";
    AttentionVjp op{};
    op.forward = bound.op;
    Array dq, dk, dv;
    if (!call.make({{dq, q}, {dk, k}, {dv, v}})) return call.reason;
    const bool is_empty = dq.size() == 0 || dk.size() == 0 || dv.size() == 0;
    for (const Array& zeros : {dq, dk, dv})
        if (is_empty) std::memset(zeros.data, 0, static_cast<std::size_t>(zeros.bytes()));
    if (is_empty) return {};
    given.set_arrays(op.forward);
    set_heads(dy, op.dy, op.dy_stride);
    op.dq = dq.data;
    op.dk = dk.data;
    op.dv = dv.data;
    op.forward.work = work_of(op.forward, keys_of(op.forward), q.item());
    call.compute(op.forward.work, [&op] { target().attention_vjp(op); });
    return {};
}

}  // namespace tensorops
