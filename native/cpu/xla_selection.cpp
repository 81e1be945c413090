#include <limits>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

// The results are the values, and the indices in either width. XLA's threads take whole rows.
Wrong top_k(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 2) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &values = call.result(0), &indices = call.result(1);
    if (elements(values) == 0) return nullptr;
    const std::int64_t k = length(values), rows = elements(x) / length(x);
    if (values.dtype != x.dtype || elements(values) != rows * k || elements(indices) != rows * k || k > length(x))
        return "a result of another shape or dtype";
    if (length(x) >= std::numeric_limits<std::uint32_t>::max()) return "rows of 2**32 - 1 elements or more";
    if (indices.dtype != kInt32 && indices.dtype != kInt64) return "indices of another dtype";
    TopK op{};
    op.x = rows_of(x);
    op.k = k;
    op.largest = call.number("largest", 1) != 0;
    op.index_bytes = indices.dtype == kInt32 ? 4 : 8;
    op.dtype = dtype_of(x);
    over_threads(call, rows, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        TopK part = op;
        take_part(part.x, begin, end);
        part.values = data(values) + begin * k * itemsize(x);
        part.indices = data(indices) + begin * k * op.index_bytes;
        target().top_k(part);
    });
    return nullptr;
}

}  // namespace

Handlers selection_handlers() {
    return {
        {"top_k", handle<top_k>},
    };
}

}  // namespace tensorops::xla
