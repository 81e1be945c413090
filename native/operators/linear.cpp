// Linear maps, and the lookup of rows.
#include "linear.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "checks.h"
#include "parallel.h"
#include "targets.h"
#include "unpack_blocks.h"

namespace tensorops {
namespace {

Reason refuse(const Call& call, const Array& x, const Array& weight, const Array* bias) {
    if (Reason reason = refuse_double(call, x); !reason.empty()) return reason;
    if (weight.dtype == Dtype::float64) return "weight has dtype float64";
    if (Reason reason = refuse_matrix("weight", weight, kAny, x.length()); !reason.empty()) return reason;
    if (x.size() == 0 || weight.size() == 0) return "x or weight is empty";
    if (bias && bias->dtype == Dtype::float64) return "bias has dtype float64";
    return refuse_vector("bias", bias, weight.shape[0], "row of weight");
}

// The function of the sums, of those that the kernel computes.
Reason read_function(const Value& activation, std::optional<Function>& function) {
#define TENSOROPS_NAMED(name, Type) {#name, Function::name},
    constexpr std::pair<std::string_view, Function> kNames[] = {TENSOROPS_FUNCTIONS_OF_LINEAR(TENSOROPS_NAMED)};
#undef TENSOROPS_NAMED
    if (activation.kind == Value::text)
        for (const auto& [name, own] : kNames)
            if (activation.view() == name) function = own;
    return function ? Reason{} : "activation has no compiled kernel";
}

// Computes what `op` says of the weights, of arrays that have been checked.
Reason compute(Call& call, Linear op, const Array& x, const Array& weight, const Array* bias) {
    Array y;
    if (!call.make({{y, x.ndim, OutputShape(x, op.outputs).dims(), x.dtype}})) return call.reason;
    op.x = rows_of(x);
    op.weight = weight.data;
    op.bias = bias ? bias->data : nullptr;
    op.x_dtype = x.dtype;
    op.weight_dtype = weight.dtype;
    op.bias_dtype = bias ? bias->dtype : weight.dtype;
    op.y = y.data;
    call.compute(product(weight.bytes(), op.x.count), [&op] { target().linear(op); });
    return {};
}

Reason product_of(Call& call, Reader& in, Linear op, const Array& x, const Array& weight, const Array* bias) {
    if (!in.require(refuse(call, x, weight, bias))) return in.reason;
    op.outputs = weight.shape[0];
    op.weight_stride = weight.stride(0);
    return compute(call, op, x, weight, bias);
}

}  // namespace

TENSOROPS_OPERATOR(linear, "x, weight, bias=None") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array();
    const Array* bias = in.optional();
    return product_of(call, in, {}, x, weight, bias);
}

TENSOROPS_OPERATOR(linear_activation, "x, weight, bias=None, *, activation") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array();
    const Array* bias = in.optional();
    Linear op{};
    in.require(read_function(in.value(), op.function));
    return product_of(call, in, op, x, weight, bias);
}

// With `few_rows` of the kernel: an operator of its own, as `linear` takes what its callers may write.
TENSOROPS_OPERATOR_FOR(python, linear_tuned, "x, weight, bias=None, *, few_rows=None") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array();
    const Array* bias = in.optional();
    const Value& rows = in.value();
    Linear op{};
    op.few_rows = rows.kind == Value::integer ? rows.as_integer : 0;
    in.require(rows.kind == Value::none || op.few_rows > 0, "few_rows is not a positive integer");
    return product_of(call, in, op, x, weight, bias);
}

// Columns of as many outputs as the target takes, one after another, and then those of the next ones; zeros fill the
// last.
TENSOROPS_OPERATOR_FOR(python, packed_linear, "x, weight, bias=None, *, outputs, activation=None") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array();
    const Array* bias = in.optional();
    const Value& number = in.value();
    if (Reason reason = refuse_double(call, x); !reason.empty()) return reason;
    std::int64_t few_rows = 0, width = 0;
    target().linear_choice({&few_rows, &width});
    Linear op{};
    op.outputs = number.kind == Value::integer ? number.as_integer : 0;
    const Value& activation = in.value();
    if (activation.kind != Value::none) in.require(read_function(activation, op.function));
    in.require(weight.dtype == Dtype::float32, "weight does not have dtype float32");
    in.require(weight.ndim == 3 && weight.is_contiguous(), "weight is not contiguous with 3 dimensions");
    if (in.failed()) return in.reason;
    in.require(weight.shape[2] == width, "weight was packed for another target");
    in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty");
    in.require(op.outputs > product(weight.shape[0] - 1, width) && op.outputs <= product(weight.shape[0], width),
               "outputs are not those of weight");
    in.require(!bias || bias->dtype != Dtype::float64, "bias has dtype float64");
    if (!in.require(refuse_vector("bias", bias, op.outputs, "output"))) return in.reason;
    if (x.length() != weight.shape[1])
        return "the last axis of x has " + std::to_string(x.length()) + " elements, and weight has rows of " +
               std::to_string(weight.shape[1]);
    op.is_packed = true;
    return compute(call, op, x, weight, bias);
}

TENSOROPS_OPERATOR(embedding, "ids, weight, *, format=None") {
    Reader in(call);
    const Array &ids = in.array(kIntegers), &weight = in.array(kAll);
    const Value& named = in.value();
    const Format format = named.kind == Value::text ? find_format(without_ending(named.view())) : Format::none;
    const bool interleaved = named.kind == Value::text && is_interleaved(named.view());
    const bool has_blocks = format != Format::none;
    in.require(named.kind == Value::none || has_blocks, "format has no compiled kernel");
    in.require(has_blocks ? weight.dtype == Dtype::uint8 : is_floating(weight.dtype),
               has_blocks ? "weight does not have dtype uint8" : "weight has a dtype without a kernel");
    in.require(weight.ndim == 2, "weight does not have 2 dimensions");
    in.require(ids.ndim < kMaxAxes, "ids has as many dimensions as an array can have");
    in.require(weight.size() != 0, "weight is empty");
    if (!in.require(weight.is_contiguous_from(weight.ndim - 1), "the last axis of weight is not contiguous"))
        return in.reason;
    if (interleaved && !in.require(refuse_interleaved(weight))) return in.reason;
    const std::int64_t rows = weight.shape[0], width = weight.shape[1];
    if (has_blocks && width % size_of(format).bytes != 0) return "the rows of weight are not whole blocks";
    std::vector<std::int64_t> numbers;
    if (call.has_values) {
        numbers = read_integers(ids);
        for (std::int64_t& n : numbers)
            if (n < 0 || n >= rows) return "an id is out of range";
    }
    std::int64_t shape[kMaxAxes];
    std::copy_n(ids.shape, ids.ndim, shape);
    shape[ids.ndim] = has_blocks ? width / size_of(format).bytes * size_of(format).elements : width;
    Array y;
    if (!call.make({{y, ids.ndim + 1, shape, has_blocks ? Dtype::float32 : weight.dtype}})) return call.reason;
    const std::int64_t length = shape[ids.ndim], bytes = length * y.item(), stride = weight.stride(0),
                       count = ids.size();
    const char* from = weight.data;
    char* to = y.data;
    const std::int64_t* id = numbers.data();
    call.compute(count * bytes, [=] {
        Interruption* const at = interruption;
        over_shares(threads_for(count, 2 * count * bytes), count, 1, [=](Share mine) {
            for (std::int64_t k = mine.begin; k < mine.end && !leaves(at, bytes); ++k) {
                if (has_blocks)
                    target().unpack_blocks({from, stride, 1, length, format, reinterpret_cast<float*>(to + k * bytes),
                                            interleaved, id[k]});
                else
                    std::memcpy(to + k * bytes, from + id[k] * stride, static_cast<std::size_t>(bytes));
            }
        });
    });
    return {};
}

}  // namespace tensorops
