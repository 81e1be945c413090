// Rotary position embedding: pairs of features rotate by position times frequency.
//
// Work: positions go to threads in contiguous parts. The cosines and sines of a position are computed once for all
//   heads and for all batches that share the positions, or read from the row of the tables that a position names.
// Precision: angles, cosines and sines in float64 for every dtype: in float32 an angle of 8192 radians is off by
//   0.0005. They are rounded to float32 unless x is float64, as tables are, and pairs are multiplied in that.
// Bytes: each element once in, once out.
#include "rope.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "convert.h"
#include "interruption.h"
#include "parallel.h"
#include "scratch.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class C>
struct Angles {
    C *cosines, *sines;
};

// The last angles of this thread: those of a model's next layer, when it decodes, are the same.
template <class C>
struct LastAngles {
    static constexpr std::int64_t kMost = 128;

    std::int64_t pairs = 0;
    double position, factor, frequencies[kMost];
    C cosines[kMost], sines[kMost];
};

template <class C>
void compute_angles(const Rope& op, double position, Angles<C> angles) {
    thread_local LastAngles<C> last;
    const std::int64_t pairs = op.dims / 2;
    if (pairs == last.pairs && position == last.position && op.factor == last.factor &&
        std::equal(op.frequencies, op.frequencies + pairs, last.frequencies)) {
        std::copy_n(last.cosines, pairs, angles.cosines);
        std::copy_n(last.sines, pairs, angles.sines);
        return;
    }
    for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = position * op.frequencies[i];
        angles.cosines[i] = static_cast<C>(std::cos(angle) * op.factor);
        angles.sines[i] = static_cast<C>(std::sin(angle) * op.factor);
    }
    if (op.length > 1 || pairs > LastAngles<C>::kMost) return;
    last.pairs = pairs;
    last.position = position;
    last.factor = op.factor;
    std::copy_n(op.frequencies, pairs, last.frequencies);
    std::copy_n(angles.cosines, pairs, last.cosines);
    std::copy_n(angles.sines, pairs, last.sines);
}

// A row of a table, in the type of computation.
template <class C>
void read_row(const Rope& op, const char* row, C* to) {
    const C factor = static_cast<C>(op.factor);
    for_dtype(op.tables->dtype, [&](auto element) {
        using T = decltype(element);
        const T* from = reinterpret_cast<const T*>(row);
        if constexpr (is_same<Compute<T>, C>) {
            put_row<false>(to, op.dims / 2,
                           [=](std::int64_t i, std::int64_t k) { return load_some(from + i, k) * factor; });
        } else {
            for (std::int64_t i = 0; i < op.dims / 2; ++i) to[i] = static_cast<C>(load_one(from + i)) * factor;
        }
    });
}

template <class C>
void find_forward_angles(const Rope& op, double position, Angles<C> angles) {
    if (!op.tables) return compute_angles(op, position, angles);
    if (std::isnan(position)) {  // outside the tables
        for (std::int64_t i = 0; i < op.dims / 2; ++i)
            angles.cosines[i] = angles.sines[i] = std::numeric_limits<C>::quiet_NaN();
        return;
    }
    const auto row = static_cast<std::int64_t>(position);
    read_row(op, op.tables->cosines.row(row), angles.cosines);
    read_row(op, op.tables->sines.row(row), angles.sines);
}

template <class C>
void find_angles(const Rope& op, double position, Angles<C> angles) {
    find_forward_angles(op, position, angles);
    if (!op.inverse) return;
    for (std::int64_t i = 0; i < op.dims / 2; ++i) angles.sines[i] = -angles.sines[i];
}

// x may be unaligned; y is aligned.
template <class C>
void rotate_halves(const C* x, C* y, std::int64_t n, Angles<C> angles) {
    for (std::int64_t i = 0; i < n; ++i) {
        const C first = load_one(x + i), second = load_one(x + n + i), c = angles.cosines[i], s = angles.sines[i];
        y[i] = first * c - second * s;
        y[n + i] = second * c + first * s;
    }
}

template <class C>
void rotate_neighbours(const C* x, C* y, std::int64_t n, Angles<C> angles) {
    for (std::int64_t i = 0; i < n; ++i) {
        const C first = load_one(x + 2 * i), second = load_one(x + 2 * i + 1), c = angles.cosines[i],
                s = angles.sines[i];
        y[2 * i] = first * c - second * s;
        y[2 * i + 1] = second * c + first * s;
    }
}

// One row; `room` holds two rows in the type of computation, and is used only for half types.
template <class T>
void rotate_row(const Rope& op, const T* x, T* y, Angles<Compute<T>> angles, Compute<T>* room) {
    using C = Compute<T>;
    const auto rotate = [&](const C* from, C* to) {
        op.interleaved ? rotate_neighbours(from, to, op.dims / 2, angles)
                       : rotate_halves(from, to, op.dims / 2, angles);
    };
    if constexpr (is_same<T, C>) {
        rotate(x, y);
    } else {
        convert(x, room, op.dims);
        rotate(room, room + op.dims);
        convert(room + op.dims, y, op.dims);
    }
    std::memcpy(y + op.dims, x + op.dims, static_cast<std::size_t>(op.features - op.dims) * sizeof(T));
}

template <class T>
void all_positions(const Rope& op) {
    using C = Compute<T>;
    const std::int64_t batches = op.batch.count, size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t rows = batches * op.heads * op.length;
    // A cosine and a sine cost as much as moving a few hundred bytes.
    const std::int64_t of_pair = op.tables ? 16 : 256;
    const std::int64_t angles_work = of_pair * op.dims / 2 * op.length * (op.positions_of_batch ? batches : 1);
    const int threads = threads_for(op.length, 2 * rows * op.features * size + angles_work);
    const std::int64_t line = whole_lines(3 * op.dims * static_cast<std::int64_t>(sizeof(C)));
    const Scratch scratch(threads * line);
    Interruption* const at = interruption;
    over_shares(threads, op.length, 1, [&](Share share) {
        C* table = scratch.at<C>(share.member * line);
        const Angles<C> angles{table, table + op.dims / 2};
        for (std::int64_t p = share.begin; p < share.end; ++p) {
            if (leaves(at, batches * op.heads * op.features * size)) break;
            for (std::int64_t b = 0; b < batches; ++b) {
                if (b == 0 || op.positions_of_batch)
                    find_angles(op, op.positions[(op.positions_of_batch ? b * op.length : 0) + p], angles);
                const char* x = op.batch.row(b) + p * op.stride;
                T* y = reinterpret_cast<T*>(op.y) + (b * op.heads * op.length + p) * op.features;
                for (std::int64_t h = 0; h < op.heads; ++h)
                    rotate_row(op, reinterpret_cast<const T*>(x + h * op.head_stride), y + h * op.length * op.features,
                               angles, table + op.dims);
            }
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(rope, Rope) {
    for_dtype(op.dtype, [&op](auto x) { all_positions<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
