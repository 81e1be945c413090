#include "lines.h"

#include <algorithm>
#include <cstdlib>

namespace tensorops {

Order memory_order(const Array& a) {
    Order order{{}, true};
    for (int d = 0; d < a.ndim; ++d) {
        int place = d;
        if (a.strides) {
            const std::int64_t size = std::llabs(a.strides[d]);
            for (int before = d - 1; before >= 0 && size != 0 && a.shape[d] > 1; --before) {
                const int other = order.axes[before];
                const std::int64_t other_size = a.shape[other] > 1 ? std::llabs(a.strides[other]) : 0;
                if (other_size == 0) continue;  // says nothing about the order
                if (other_size >= size) break;
                place = before;
            }
        }
        for (int i = d; i > place; --i) order.axes[i] = order.axes[i - 1];
        order.axes[place] = d;
        order.is_usual &= place == d;
    }
    return order;
}

namespace {

// Axes in the order of memory, merged while they are added from the outermost to the innermost
struct Merged {
    int count = 0;
    std::int64_t shape[kMaxAxes];
    Lines::Strides strides[kMaxAxes];

    void add(std::int64_t n, Lines::Strides s) {
        if (n == 1) return;
        if (count > 0 && strides[count - 1].x == n * s.x && strides[count - 1].y == n * s.y) {
            shape[count - 1] *= n;
            strides[count - 1] = s;
            return;
        }
        shape[count] = n;
        strides[count++] = s;
    }
};

}  // namespace

bool find_lines(Lines& lines, const Array& x, std::uint32_t along, const Order& order, const std::int64_t* y_strides) {
    Merged line, others;
    lines = {};
    lines.count = 1;
    for (int i = 0; i < x.ndim; ++i) {
        const int d = order.axes[i];
        const bool is_along = along >> d & 1;
        (is_along ? line : others).add(x.shape[d], {x.stride(d), y_strides[d]});
        if (!is_along) lines.count *= x.shape[d];
    }
    if (line.count > 1) return false;
    lines.length = line.count ? line.shape[0] : 1;
    lines.step = line.count ? line.strides[0] : Lines::Strides{x.item(), 0};
    lines.width = 1;
    if (others.count > 0) {
        lines.outer = others.count - 1;
        lines.width = others.shape[lines.outer];
        lines.stride = others.strides[lines.outer];
        std::copy(others.shape, others.shape + lines.outer, lines.shape);
        std::copy(others.strides, others.strides + lines.outer, lines.strides);
    }
    return true;
}

bool is_dense(const Array& a, const Order& order) {
    if (!a.strides && order.is_usual) return true;
    std::int64_t step = a.item();
    for (int i = a.ndim - 1; i >= 0; step *= a.shape[order.axes[i]], --i)
        if (a.shape[order.axes[i]] > 1 && a.stride(order.axes[i]) != step) return false;
    return true;
}

Rows elements_in_order(const Array& a, const Order& order) {
    Rows rows{};
    rows.data = a.data;
    rows.length = rows.count = 1;
    int last = a.ndim - 1;
    while (last > 0 && a.shape[order.axes[last]] == 1) --last;
    for (int i = 0; i < last; ++i) add_axis(rows, a.shape[order.axes[i]], a.stride(order.axes[i]));
    if (last < 0) return rows;
    const int inner = order.axes[last];
    rows.length = a.shape[inner];
    if (a.stride(inner) != a.item() && rows.length > 1) rows.step = a.stride(inner);
    return rows;
}

Lines lines_of(const Rows& rows, char* y, std::int64_t item) {
    Lines lines{};
    lines.x = rows.data;
    lines.y = y;
    lines.length = rows.length;
    lines.step = {item, item};
    lines.count = rows.count;
    lines.first = rows.first;
    lines.width = 1;
    std::int64_t y_stride = rows.length * item;
    for (int d = rows.outer - 1; d >= 0; y_stride *= rows.shape[d], --d) {
        if (d == rows.outer - 1) {
            lines.width = rows.shape[d];
            lines.stride = {rows.stride[d], y_stride};
            continue;
        }
        lines.shape[d] = rows.shape[d];
        lines.strides[d] = {rows.stride[d], y_stride};
    }
    lines.outer = rows.outer > 0 ? rows.outer - 1 : 0;
    return lines;
}

}  // namespace tensorops
