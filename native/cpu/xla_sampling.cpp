#include <algorithm>
#include <cmath>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

Wrong read_options(const Call& call, Sample& op) {
    op.temperature = call.number("temperature", 1);
    const double top_k = call.number("top_k", 0);
    op.top_p = call.number("top_p", 1);
    op.min_p = call.number("min_p", 0);
    const bool usual = op.dtype == Dtype::float64 ? op.temperature > 0 && std::isfinite(op.temperature)
                                                  : std::isnormal(static_cast<float>(op.temperature));
    if (op.uniform && !(usual && op.temperature > 0)) return "another temperature";
    if (!(op.top_p <= 1 && static_cast<float>(op.top_p) > 0 && op.min_p >= 0 && op.min_p <= 1)) return "another share";
    if (!(top_k >= 0)) return "another top_k";
    op.top_k = static_cast<std::int64_t>(std::min(top_k, static_cast<double>(op.logits.length)));
    return nullptr;
}

// The arguments are the logits and, unless the largest are wanted, a uniform number for each row.
Wrong sample(const Call& call) {
    if (call.arguments() < 1 || call.arguments() > 2 || call.frame.results.count != 1)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (elements(x) == 0) return "an empty array";
    Sample op{};
    op.logits = rows_of(x);
    op.dtype = dtype_of(x);
    const std::int64_t rows = op.logits.count;
    if ((y.dtype != kInt32 && y.dtype != kInt64) || elements(y) != rows) return "a result of another shape or dtype";
    if (call.arguments() == 2) {
        const Buffer& uniform = call.argument(1);
        if (dtype_of(uniform) == Dtype::other || elements(uniform) != rows) return "uniform numbers that do not fit";
        op.uniform = data(uniform);
        op.uniform_dtype = dtype_of(uniform);
    }
    if (Wrong wrong = read_options(call, op)) return wrong;
    std::vector<std::int64_t> wide(y.dtype == kInt64 ? 0 : static_cast<std::size_t>(rows));
    op.chosen = y.dtype == kInt64 ? static_cast<std::int64_t*>(y.data) : wide.data();
    const Team team(call);
    target().sample(op);
    std::transform(wide.begin(), wide.end(), static_cast<std::int32_t*>(y.data),
                   [](std::int64_t index) { return static_cast<std::int32_t>(index); });
    return nullptr;
}

}  // namespace

Handlers sampling_handlers() {
    return {
        {"sample", handle<sample>},
    };
}

}  // namespace tensorops::xla
