// Sampling.
#include "checks.h"
#include "sample.h"
#include "targets.h"

namespace tensorops {
namespace {

double number_or(Reader& in, double otherwise) {
    const Value& v = in.value();
    if (v.kind == Value::none) return otherwise;
    return v.kind == Value::number ? v.as_number : v.kind == Value::integer ? static_cast<double>(v.as_integer) : NAN;
}

Reason refuse_uniforms(const Value& rng, const Array& logits) {
    if (rng.kind == Value::none) return "rng is missing";
    if (rng.kind == Value::object) return {};  // a generator
    if (rng.kind != Value::array)
        return "rng " + std::string(rng.kind == Value::refused ? rng.view() : "is not an array");
    const Array& u = rng.as_array;
    if (!is_floating(u.dtype)) return "rng has a dtype without a kernel";
    if (!u.has_shape(logits.ndim - 1, logits.shape)) return "rng does not have one element for each row of logits";
    return u.is_contiguous() ? Reason{} : "rng is not contiguous";
}

constexpr const char* kNoCandidate = "a row of logits has NaN or nothing but -inf";

bool has_row_without_candidate(Sample op) {
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(op.logits.count));
    op.chosen = chosen.data();
    op.uniform = nullptr;
    target().sample(op);
    return std::any_of(chosen.begin(), chosen.end(), [](std::int64_t index) { return index < 0; });
}

}  // namespace

TENSOROPS_OPERATOR(sample, "logits, *, temperature=1.0, top_k=None, top_p=None, min_p=None, rng=None -> index") {
    Reader in(call);
    const Array& logits = in.rows();
    Sample op{};
    op.temperature = number_or(in, NAN);
    const Value& top_k = in.value();
    op.top_k = top_k.kind == Value::integer ? top_k.as_integer : 0;
    op.top_p = number_or(in, 1);
    op.min_p = number_or(in, 0);
    const Value& rng = in.value();
    in.require(logits.size() != 0, "logits is empty");
    in.require(op.temperature >= 0 && std::isfinite(op.temperature), "temperature is not 0 or more");
    in.require(top_k.kind == Value::none || op.top_k >= 1, "top_k is not an integer of at least 1");
    in.require(op.top_p > 0 && op.top_p <= 1, "top_p is not within 0 … 1");
    in.require(op.min_p >= 0 && op.min_p <= 1, "min_p is not within 0 … 1");
    const bool draws = op.temperature > 0;
    if (!draws) {
        const bool usual = rng.kind == Value::none || rng.kind == Value::object || rng.kind == Value::array;
        in.require(usual, "rng is neither a numpy.random.Generator nor a numpy.ndarray");
    } else {
        if (logits.dtype != Dtype::float64) {
            in.require(std::isnormal(static_cast<float>(op.temperature)), "temperature is beyond the range of float32");
            in.require(static_cast<float>(op.top_p) != 0, "top_p is beyond the range of float32");
        }
        in.require(refuse_uniforms(rng, logits));
    }
    if (in.failed()) return in.reason;
    op.logits = rows_of(logits);
    op.dtype = logits.dtype;
    // A call that computes learns it from the indices.
    if (call.only_checks && call.has_values && call.may_fail && has_row_without_candidate(op)) return kNoCandidate;
    Array chosen;
    if (!call.make({{chosen, logits.ndim - 1, logits.shape, Dtype::int64, true}})) return call.reason;
    Array uniform;
    if (draws) {
        if (rng.kind == Value::array)
            uniform = rng.as_array;
        else if (!call.draw(rng, logits, uniform))
            return call.reason;
        op.uniform = uniform.data;
        op.uniform_dtype = uniform.dtype;
    }
    // The kernel writes int64.
    std::vector<std::int64_t> wide(chosen.dtype == Dtype::int64 ? 0 : static_cast<std::size_t>(op.logits.count));
    op.chosen = wide.empty() ? reinterpret_cast<std::int64_t*>(chosen.data) : wide.data();
    std::fill_n(op.chosen, op.logits.count, 0);  // an interrupted call leaves some
    const std::int64_t uniform_bytes = draws ? uniform.item() : 0;
    call.compute_parts(target().sample, op, op.logits.count, 1, logits.bytes(),
                       [uniform_bytes](Sample& part, std::int64_t begin, std::int64_t end) {
                           take_part(part.logits, begin, end);
                           part.chosen += begin;
                           if (part.uniform) part.uniform += begin * uniform_bytes;
                       });
    for (std::int64_t i = 0; i < op.logits.count; ++i) {
        if (op.chosen[i] >= 0) continue;
        if (call.may_fail) return kNoCandidate;
        op.chosen[i] = ~op.chosen[i];
    }
    std::transform(wide.begin(), wide.end(), reinterpret_cast<std::int32_t*>(chosen.data),
                   [](std::int64_t index) { return static_cast<std::int32_t>(index); });
    return {};
}

}  // namespace tensorops
