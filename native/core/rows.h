// An array viewed as rows along its last axis, for row-wise kernels.
//
// The last axis is contiguous, but for elementwise kernels; the others may have any strides, including negative and
// zero. They are merged where the strides allow it, so a contiguous array of any rank is one run of rows.
#pragma once

#include <cstdint>

namespace tensorops {

inline constexpr int kMaxAxes = 8;  // of an array
inline constexpr std::int64_t kNeighbours = INT64_MIN;

struct Rows {
    const char* data;
    std::int64_t count;   // number of rows
    std::int64_t length;  // elements in a row
    int outer;            // number of merged outer axes
    std::int64_t shape[kMaxAxes];
    std::int64_t stride[kMaxAxes];    // in bytes
    std::int64_t first;               // the index of the first row among those at `data`: not 0 in a part of an array
    std::int64_t step = kNeighbours;  // bytes from one element of a row to the next, if they are not

    bool are_neighbours() const { return step == kNeighbours; }

    const char* row(std::int64_t index) const {
        index += first;
        if (outer == 1) return data + index * stride[0];
        const char* p = data;
        for (int d = outer - 1; d >= 0; --d) {
            p += (index % shape[d]) * stride[d];
            index /= shape[d];
        }
        return p;
    }
};

// Keeps only the rows from begin to end.
inline void take_part(Rows& rows, std::int64_t begin, std::int64_t end) {
    rows.first += begin;
    rows.count = end - begin;
}

// Adds an axis inside of the present ones; it is merged with the last one where the strides allow it.
inline void add_axis(Rows& rows, std::int64_t n, std::int64_t stride) {
    rows.count *= n;
    if (n == 1) return;
    const int previous = rows.outer - 1;
    if (previous >= 0 && rows.stride[previous] == stride * n) {
        rows.shape[previous] *= n;
        rows.stride[previous] = stride;
    } else {
        rows.shape[rows.outer] = n;
        rows.stride[rows.outer] = stride;
        ++rows.outer;
    }
}

// Rows of a given length in `axes` axes, broadcast to a shape of at least as many.
template <class Size>
Rows broadcast_rows(const char* data, std::int64_t length, int axes, const Size* dims, const Size* strides, int ndim,
                    const Size* shape) {
    Rows rows{};
    rows.data = data;
    rows.length = length;
    rows.count = 1;
    for (int d = 0; d < ndim; ++d) {
        const int own = d - (ndim - axes);
        add_axis(rows, shape[d], own < 0 || dims[own] == 1 ? 0 : strides[own]);
    }
    return rows;
}

}  // namespace tensorops
