// A view of an array, which callers give to operators.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "elements.h"
#include "rows.h"

namespace tensorops {

// The product of nonnegative sizes, or the largest number if it overflows
inline std::int64_t product(std::int64_t a, std::int64_t b) {
    std::int64_t c = 0;
    return __builtin_mul_overflow(a, b, &c) ? INT64_MAX : c;
}

struct Array {
    char* data;  // nullptr if only the shape and dtype are known
    const std::int64_t* shape;
    const std::int64_t* strides;  // in bytes; nullptr: C-contiguous
    Dtype dtype;
    int ndim;

    std::int64_t item() const { return size_of(dtype); }
    std::int64_t length() const { return shape[ndim - 1]; }
    std::int64_t size() const { return size_from(0); }
    std::int64_t bytes() const { return product(size(), item()); }

    // The number of elements for one index of all axes before `axis`. Some axes of an array without elements may be
    // too large for a product of them.
    std::int64_t size_from(int axis) const {
        std::int64_t n = 1;
        for (int d = axis; d < ndim; ++d) n = product(n, shape[d]);
        return n;
    }
    std::int64_t stride(int axis) const { return strides ? strides[axis] : product(size_from(axis + 1), item()); }

    // Whether the axes from `axis` on are contiguous together
    bool is_contiguous_from(int axis) const {
        if (!strides) return true;
        std::int64_t step = item();
        for (int d = ndim - 1; d >= axis; step = product(step, shape[d]), --d)
            if (shape[d] > 1 && strides[d] != step) return false;
        return true;
    }
    bool is_contiguous() const { return is_contiguous_from(0); }
    bool has_shape(int axes, const std::int64_t* wanted) const {
        return ndim == axes && std::equal(wanted, wanted + axes, shape);
    }
    bool has_shape(const Array& other) const { return has_shape(other.ndim, other.shape); }
};

// Rows along the last axis, or along several of them that are contiguous. Inlined, as small calls notice it.
inline __attribute__((always_inline)) Rows rows_of(const Array& a, int axes = 1) {
    Rows rows;
    rows.data = a.data;
    rows.length = a.size_from(a.ndim - axes);
    rows.count = 1;
    rows.outer = 0;
    rows.first = 0;
    if (a.strides) {
        for (int d = 0; d < a.ndim - axes; ++d) add_axis(rows, a.shape[d], a.strides[d]);
        return rows;
    }
    for (int d = 0; d < a.ndim - axes; ++d) rows.count = product(rows.count, a.shape[d]);
    rows.outer = 1;
    rows.shape[0] = rows.count;
    rows.stride[0] = product(rows.length, a.item());
    return rows;
}

// Elements of an array with any strides, in order, converted to int64 or double. Numbers of uint64 beyond int64 become
// negative integers.
std::vector<std::int64_t> read_integers(const Array& a);
std::vector<double> read_doubles(const Array& a);

}  // namespace tensorops
