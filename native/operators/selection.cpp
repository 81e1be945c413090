// Selection.
#include <limits>

#include "checks.h"
#include "targets.h"
#include "top_k.h"

namespace tensorops {
TENSOROPS_OPERATOR(top_k, "x, k, *, axis=-1, largest=True -> values, indices") {
    Reader in(call);
    const Array& x = in.array(kNumbers);
    const std::int64_t k = in.integer("is not within 0 … the length of x"), axis = in.integer();
    const bool largest = in.flag();
    in.require(x.ndim != 0, "x has 0 dimensions");
    in.require(axis == -1 || axis == x.ndim - 1, "axis is not the last of x");
    if (in.failed()) return in.reason;
    in.require(k >= 0 && k <= x.length(), "k is not within 0 … the length of x");
    in.require(x.is_contiguous_from(x.ndim - 1), "the last axis of x is not contiguous");
    in.require(x.item() > 4 || x.length() < std::numeric_limits<std::uint32_t>::max(),
               "x has 2**32 - 1 elements or more along axis");
    if (in.failed()) return in.reason;
    Array values, indices;
    const OutputShape shape(x, k);
    if (!call.make({{values, x.ndim, shape.dims(), x.dtype}, {indices, x.ndim, shape.dims(), Dtype::int64, true}}))
        return call.reason;
    TopK op{};
    op.x = rows_of(x);
    op.k = k;
    op.largest = largest;
    op.values = values.data;
    op.indices = indices.data;
    op.index_bytes = static_cast<int>(indices.item());
    op.dtype = is_floating(x.dtype) ? x.dtype : Dtype::other;
    op.integer = {static_cast<int>(x.item()), is_signed(x.dtype)};
    const std::int64_t row = k * x.item(), row_of_indices = k * op.index_bytes;
    if (k == 0 || op.x.count == 0) return {};
    call.compute_parts(target().top_k, op, op.x.count, 1, x.bytes(),
                       [row, row_of_indices](TopK& part, std::int64_t begin, std::int64_t end) {
                           take_part(part.x, begin, end);
                           part.values += begin * row;
                           part.indices += begin * row_of_indices;
                       });
    return {};
}

}  // namespace tensorops
