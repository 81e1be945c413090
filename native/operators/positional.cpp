// Positional encodings.
#include <algorithm>
#include <numeric>
#include <optional>

#include "checks.h"
#include "positions.h"
#include "rope.h"
#include "targets.h"

namespace tensorops {
namespace {

constexpr double kDefaultBase = 10000;

// The number of features that rotate; -1 if `dims` is not valid.
std::int64_t rotating(const Value& dims, std::int64_t features) {
    if (dims.kind == Value::none) return features % 2 == 0 ? features : -1;
    const std::int64_t value = dims.kind == Value::integer ? dims.as_integer : -1;
    return value >= 0 && value <= features && value % 2 == 0 ? value : -1;
}

// An array with one element or row for each position: its first `axes` axes broadcast to those of x without heads and
// features.
Reason refuse_shape(const char* name, const Array& x, const Array& a, int axes) {
    const int missing = x.ndim - 2 - axes;
    if (axes < 1 || missing < 0) return std::string(name) + " has another number of dimensions than x wants";
    for (int d = 0; d < axes; ++d) {
        const bool is_last = d == axes - 1;  // the heads' axis is before the last but one of x
        const std::int64_t wanted = x.shape[is_last ? x.ndim - 2 : d + missing];
        if (a.shape[d] != wanted && a.shape[d] != 1) return std::string(name) + " does not broadcast to x";
    }
    return {};
}

struct Given {
    const Array& x;
    const Array* positions;
    double base;
    const Array *freqs, *cos, *sin;
    std::int64_t dims;

    bool has_tables() const { return cos || sin; }
};

Reason refuse_tables(const Given& given) {
    if (given.freqs) return "freqs and tables are given";
    if (given.base != kDefaultBase) return "base and tables are given";
    if (!given.cos || !given.sin) return "only one of cos and sin is given";
    const Array &cos = *given.cos, &sin = *given.sin;
    if (cos.dtype != sin.dtype) return "cos and sin have different dtypes";
    if (!cos.has_shape(sin)) return "cos and sin have different shapes";
    if (cos.ndim < 2 || cos.length() != given.dims / 2) return "cos does not have one column for each pair";
    if (!cos.is_contiguous_from(cos.ndim - 1) || !sin.is_contiguous_from(cos.ndim - 1))
        return "the last axis of cos or sin is not contiguous";
    if (!given.positions) return refuse_shape("cos", given.x, cos, cos.ndim - 1);
    if (cos.ndim != 2) return "cos does not have 2 dimensions";
    if (!is_integer(given.positions->dtype)) return "positions has a dtype that is not an integer";
    return refuse_shape("positions", given.x, *given.positions, given.positions->ndim);
}

Reason refuse(const Given& given) {
    const Array& x = given.x;
    if (x.ndim < 3) return "x has fewer than 3 dimensions";
    if (x.size() == 0) return "x is empty";
    if (given.dims <= 0) return "dims is not an even number of features of x";
    if (given.has_tables()) return refuse_tables(given);
    if (!given.positions) return "positions is not an array";
    if (Reason reason = refuse_shape("positions", x, *given.positions, given.positions->ndim); !reason.empty())
        return reason;
    if (given.freqs && (given.freqs->ndim != 1 || given.freqs->shape[0] != given.dims / 2))
        return "freqs does not have one element for each pair";
    return {};
}

// The position of each row of a head. If tables have a row for each of them, it is that row's number.
std::vector<double> positions_of(const Given& given, bool& of_batch) {
    const bool is_gathered = !given.positions;
    const int axes = is_gathered ? given.cos->ndim - 1 : given.positions->ndim;
    const std::int64_t* shape = is_gathered ? given.cos->shape : given.positions->shape;
    std::vector<double> values;
    if (is_gathered) {
        std::int64_t count = 1;
        for (int d = 0; d < axes; ++d) count *= shape[d];
        values.resize(static_cast<std::size_t>(count));
        std::iota(values.begin(), values.end(), 0.0);
    } else {
        values = read_doubles(*given.positions);
    }
    return positions_for(given.x.ndim, given.x.shape, axes, shape, values.data(), of_batch);
}

// The pairs of features of an array rotate, or, as its transpose does, rotate backwards.
Reason rotate(Call& call, bool inverse) {
    Reader in(call);
    const Array& x = in.rows();
    const Array* positions = in.optional(kNumbers);
    const double base = in.finite();
    in.require(base > 0, "base is not a positive number");
    const Array *freqs = in.optional(), *cos = in.optional(), *sin = in.optional();
    Rope op{};
    op.inverse = inverse;
    op.interleaved = in.flag();
    const Value& dims = in.value();
    op.factor = in.finite();
    in.require(op.factor > 0, "attention_factor is not a positive number");
    if (in.failed()) return in.reason;
    op.dims = rotating(dims, x.length());
    const Given given{x, positions, base, freqs, cos, sin, op.dims};
    if (!in.require(refuse(given))) return in.reason;
    std::vector<double> all;
    if (call.has_values) all = positions_of(given, op.positions_of_batch);
    if (given.has_tables() && positions) {
        const auto rows = static_cast<double>(cos->shape[0]);
        for (double& p : all) {
            if (p >= 0 && p < rows) continue;
            if (call.may_fail) return "a position is outside the tables";
            p = NAN;
        }
    }
    Array y;
    if (!call.make({{y, x}})) return call.reason;
    std::vector<double> frequencies;
    std::optional<RopeTables> tables;
    if (given.has_tables()) {
        op.tables = &tables.emplace(RopeTables{rows_of(*cos), rows_of(*sin), cos->dtype});
    } else {
        frequencies = freqs ? read_doubles(*freqs) : frequencies_for(base, op.dims);
        op.frequencies = frequencies.data();
    }
    op.y = y.data;
    op.batch = Rows{};
    op.batch.data = x.data;
    op.batch.count = op.batch.length = 1;
    for (int d = 0; d < x.ndim - 3; ++d) add_axis(op.batch, x.shape[d], x.stride(d));
    op.head_stride = x.stride(x.ndim - 3);
    op.stride = x.stride(x.ndim - 2);
    op.heads = x.shape[x.ndim - 3];
    op.length = x.shape[x.ndim - 2];
    op.features = x.length();
    op.positions = all.data();
    op.dtype = x.dtype;
    call.compute(x.bytes(), [&op] { target().rope(op); });
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(rope,
                   "x, positions=None, *, base=10000.0, freqs=None, cos=None, sin=None, interleaved=False, "
                   "dims=None, attention_factor=1.0") {
    return rotate(call, false);
}

TENSOROPS_OPERATOR(rope_vjp,
                   "dy, positions=None, *, base=10000.0, freqs=None, cos=None, sin=None, interleaved=False, "
                   "dims=None, attention_factor=1.0 -> dx") {
    return rotate(call, true);
}

}  // namespace tensorops
