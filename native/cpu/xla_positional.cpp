#include <limits>
#include <numeric>

#include "positions.h"
#include "xla_call.h"

namespace tensorops::xla {

namespace {

// Whether the first axes of an array broadcast to those of x without heads and features.
bool has_a_row_for_each(const Buffer& a, std::int64_t axes, const Buffer& x) {
    const std::int64_t missing = x.rank - 2 - axes;
    if (axes < 1 || missing < 0) return false;
    for (std::int64_t d = 0; d < axes; ++d) {
        const std::int64_t n = x.dims[d == axes - 1 ? x.rank - 2 : d + missing];
        if (a.dims[d] != n && a.dims[d] != 1) return false;
    }
    return true;
}

bool is_numeric(const Buffer& b) { return is_integer(b) || b.dtype == kFloat32 || b.dtype == kFloat64; }

// x and y, and the options that do not depend on how angles are given
Wrong read_rotation(const Call& call, Rope& op) {
    const Buffer &x = call.argument(0), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (x.rank < 3) return "an array of less than 3 dimensions";
    if (elements(x) == 0) return "an empty array";
    if (!same(x, y)) return "a result of another shape or dtype";
    op.features = length(x);
    op.length = x.dims[x.rank - 2];
    op.heads = x.dims[x.rank - 3];
    op.dims = static_cast<std::int64_t>(call.number("dims", 0));
    if (op.dims < 2 || op.dims > op.features || op.dims % 2 != 0) return "another number of features";
    const Strides strides = strides_of(call, x, "x");
    op.batch = rows_of(call, x, "x", 3);
    op.stride = strides.bytes[x.rank - 2];
    op.head_stride = strides.bytes[x.rank - 3];
    op.y = data(y);
    op.factor = call.number("attention_factor", 1);
    op.interleaved = call.number("interleaved", 0) != 0;
    op.dtype = dtype_of(x);
    return nullptr;
}

void rotate(const Call& call, Rope& op, const Buffer& at, std::int64_t axes, const std::vector<double>& given) {
    const Buffer& x = call.argument(0);
    const std::vector<double> positions = positions_for(static_cast<int>(x.rank), x.dims, static_cast<int>(axes),
                                                        at.dims, given.data(), op.positions_of_batch);
    op.positions = positions.data();
    const Team team(call);
    target().rope(op);
}

// x, positions and, instead of a base, frequencies
Wrong rope(const Call& call) {
    if (call.arguments() < 2 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    Rope op{};
    if (Wrong wrong = read_rotation(call, op)) return wrong;
    const Buffer& positions = call.argument(1);
    if (!is_numeric(positions)) return "positions without a kernel";
    if (!has_a_row_for_each(positions, positions.rank, call.argument(0))) return "positions that do not fit";
    std::vector<double> frequencies;
    if (call.arguments() == 3) {
        const Buffer& freqs = call.argument(2);
        if (dtype_of(freqs) == Dtype::other || !is_vector(freqs, op.dims / 2)) return "frequencies that do not fit";
        frequencies = read_doubles(freqs);
    } else {
        frequencies = frequencies_for(call.number("base", 0), op.dims);
    }
    op.frequencies = frequencies.data();
    rotate(call, op, positions, positions.rank, read_doubles(positions));
    return nullptr;
}

// x, the numbers of rows of the tables, unless these have one for each position, and the tables
Wrong rope_by_tables(const Call& call) {
    if (call.arguments() < 3 || call.arguments() > 4 || call.frame.results.count != 1)
        return "another number of arrays";
    Rope op{};
    if (Wrong wrong = read_rotation(call, op)) return wrong;
    const Buffer &x = call.argument(0), &cosines = call.argument(call.arguments() - 2),
                 &sines = call.argument(call.arguments() - 1);
    if (!same(cosines, sines) || dtype_of(cosines) == Dtype::other) return "tables without a kernel";
    if (cosines.rank < 2 || length(cosines) != op.dims / 2) return "tables that do not fit";
    const RopeTables tables{rows_of(cosines), rows_of(sines), dtype_of(cosines)};
    op.tables = &tables;
    const std::int64_t axes = cosines.rank - 1;
    if (call.arguments() == 3) {
        if (!has_a_row_for_each(cosines, axes, x)) return "tables that do not fit";
        std::vector<double> numbers(static_cast<std::size_t>(tables.cosines.count));
        std::iota(numbers.begin(), numbers.end(), 0.0);
        rotate(call, op, cosines, axes, numbers);
        return nullptr;
    }
    const Buffer& positions = call.argument(1);
    if (axes != 1 || !is_integer(positions)) return "positions or tables without a kernel";
    if (!has_a_row_for_each(positions, positions.rank, x)) return "positions that do not fit";
    std::vector<double> numbers = read_doubles(positions);
    for (double& number : numbers)  // a program in XLA cannot raise
        if (number < 0 || number >= static_cast<double>(tables.cosines.count))
            number = std::numeric_limits<double>::quiet_NaN();
    rotate(call, op, positions, positions.rank, numbers);
    return nullptr;
}

}  // namespace

Handlers positional_handlers() {
    return {
        {"rope", handle<rope>},
        {"rope_by_tables", handle<rope_by_tables>},
    };
}

}  // namespace tensorops::xla
