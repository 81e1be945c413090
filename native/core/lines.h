// An operand and its result as lines along one axis, whatever their strides, for kernels that work along any axis.
//
// The other axes go in the order in which the operand has them in memory, and are merged where the strides of both
// allow it. Lines along the innermost of them are side by side: `width` lines, `stride` bytes apart.
#pragma once

#include <cstdint>

#include "array.h"

namespace tensorops {

// The axes of an array from the one with the largest stride to the one with the smallest, as NumPy sorts them: axes of
// which either has stride 0 stay in their order.
struct Order {
    int axes[kMaxAxes];
    bool is_usual;  // 0, 1, 2 …
};
Order memory_order(const Array& a);

// The two places of a line, and how many lines are side by side from it on
struct Line {
    const char* x;
    char* y;
    std::int64_t beside;
};

struct Lines {
    struct Strides {
        std::int64_t x, y;  // in bytes
    };

    const char* x;
    char* y;
    std::int64_t length;  // elements of a line
    Strides step;         // from one to the next
    std::int64_t count;   // of lines
    std::int64_t first;   // the number of the first line: not 0 in a part of an array
    std::int64_t width;
    Strides stride;
    int outer;  // further axes, and their lengths and strides
    std::int64_t shape[kMaxAxes];
    Strides strides[kMaxAxes];

    Line line(std::int64_t index) const {
        index += first;
        const std::int64_t side = index % width;
        Line found{x + side * stride.x, y + side * stride.y, width - side};
        index /= width;
        for (int d = outer - 1; d >= 0; --d) {
            found.x += index % shape[d] * strides[d].x;
            found.y += index % shape[d] * strides[d].y;
            index /= shape[d];
        }
        return found;
    }

    // Keeps only the lines from begin to end.
    void take_part(std::int64_t begin, std::int64_t end) {
        first += begin;
        count = end - begin;
    }
};

// Lines along the axes that have a bit in `along`, and a result that has those axes as well or, `y_strides` being 0
// there, one element for each line. False if the axes of a line are not one run of memory with equal steps.
bool find_lines(Lines& lines, const Array& x, std::uint32_t along, const Order& order, const std::int64_t* y_strides);

// Elements of an array in an order of its axes, as rows along the innermost that has more than one
Rows elements_in_order(const Array& a, const Order& order);

// Whether all elements follow each other in memory in that order
bool is_dense(const Array& a, const Order& order);

// Rows, and a C-contiguous result of their shape
Lines lines_of(const Rows& rows, char* y, std::int64_t item);

}  // namespace tensorops
