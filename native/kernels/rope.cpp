// Rotary position embedding: pairs of features rotate by position times frequency.
//
// Work: positions go to threads in contiguous parts, which take a block of positions through all heads, as heads are
//   far apart in memory. The cosines and sines of a block are computed once for all heads and for all batches that
//   share the positions, or read from the rows of the tables that positions name.
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
#include "vector_math.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {

template <class F>
Vec<double> by_lane(Vec<double> x, F f) {
    for (std::int64_t i = 0; i < kLanes<double>; ++i) x[i] = f(x[i]);
    return x;
}

constexpr std::int64_t kTable = 16 * 1024;  // bytes of the angles of a block of positions, for the first-level cache

template <class C>
struct Angles {
    C *cosines, *sines;
};

// Up to this angle, products of kQuarter below with whole numbers are exact.
constexpr double kFarthest = 1 << 20;

typedef std::int64_t I64 __attribute__((vector_size(kVectorBytes)));

// The cosines and sines of angles up to kFarthest, within 1e-13
inline void turn(Vec<double> angle, Vec<double>& cosine, Vec<double>& sine) {
    // A quarter turn, in two parts, of which the first has 33 bits
    constexpr double kQuarter = 0x1.921fb544p+0, kRest = 0x1.0b4611a626331p-34, kToInteger = 0x1.8p52;
    const Vec<double> shifted = angle * 0x1.45f306dc9c883p-1 + kToInteger, quarters = shifted - kToInteger;
    const Vec<double> r = (angle - quarters * kQuarter) - quarters * kRest, u = r * r;
    // The series of the sine and the cosine, which converge fast within an eighth of a turn
    Vec<double> s = u * (1 / 6227020800.0) - 1 / 39916800.0, c = 1 / 479001600.0 - u * (1 / 87178291200.0);
    s = ((((s * u + 1 / 362880.0) * u - 1 / 5040.0) * u + 1 / 120.0) * u - 1 / 6.0) * u * r + r;
    c = (((((c * u - 1 / 3628800.0) * u + 1 / 40320.0) * u - 1 / 720.0) * u + 1 / 24.0) * u - 0.5) * u + 1;
    const I64 quadrant = reinterpret_cast<I64>(shifted), is_odd = (quadrant & 1) != 0;
    const Vec<double> of_cosine = is_odd ? s : c, of_sine = is_odd ? c : s;
    cosine = ((quadrant + 1) & 2) != 0 ? -of_cosine : of_cosine;
    sine = (quadrant & 2) != 0 ? -of_sine : of_sine;
}

template <class C>
void compute_angles(const Rope& op, double position, Angles<C> angles) {
    constexpr std::int64_t lanes = kLanes<double>;
    const std::int64_t pairs = op.dims / 2;
    for (std::int64_t i = 0; i < pairs; i += lanes) {
        const std::int64_t k = pairs - i < lanes ? pairs - i : lanes;
        const Vec<double> angle = load_some(op.frequencies + i, k) * position;
        Vec<double> cosine, sine;
        if (is_same<C, float> && !any(angle > kFarthest) && !any(angle < -kFarthest)) {
            turn(angle, cosine, sine);
        } else {
            cosine = by_lane(angle, [](double a) { return std::cos(a); });
            sine = by_lane(angle, [](double a) { return std::sin(a); });
        }
        for (std::int64_t j = 0; j < k; ++j) {
            angles.cosines[i + j] = static_cast<C>(cosine[j] * op.factor);
            angles.sines[i + j] = static_cast<C>(sine[j] * op.factor);
        }
    }
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

template <class T>
void rotate_halves(const T* x, T* y, std::int64_t n, Angles<Compute<T>> angles) {
    constexpr std::int64_t lanes = kLanes<T>;
    const auto put_some = [](T* to, auto v, std::int64_t k) { k == lanes ? store(to, v) : store_part(to, v, k); };
    for (std::int64_t i = 0; i < n; i += lanes) {
        const std::int64_t k = n - i < lanes ? n - i : lanes;
        const auto first = load_some(x + i, k), second = load_some(x + n + i, k);
        const auto c = load_some(angles.cosines + i, k), s = load_some(angles.sines + i, k);
        put_some(y + i, first * c - second * s, k);
        put_some(y + n + i, second * c + first * s, k);
    }
}

// x may be unaligned.
template <class C>
void rotate_neighbours(const C* x, C* y, std::int64_t n, Angles<C> angles) {
    for (std::int64_t i = 0; i < n; ++i) {
        const C first = load_one(x + 2 * i), second = load_one(x + 2 * i + 1), c = angles.cosines[i],
                s = angles.sines[i];
        y[2 * i] = first * c - second * s;
        y[2 * i + 1] = second * c + first * s;
    }
}

// One row; `room` holds two rows in the type of computation, and is used only for neighbours of half types.
template <class T>
void rotate_row(const Rope& op, const T* x, T* y, Angles<Compute<T>> angles, Compute<T>* room) {
    const std::int64_t pairs = op.dims / 2;
    if (!op.interleaved) {
        rotate_halves(x, y, pairs, angles);
    } else if constexpr (is_same<T, Compute<T>>) {
        rotate_neighbours(x, y, pairs, angles);
    } else {
        convert(x, room, op.dims);
        rotate_neighbours(room, room + op.dims, pairs, angles);
        convert(room + op.dims, y, op.dims);
    }
    if (op.features > op.dims)
        std::memcpy(y + op.dims, x + op.dims, static_cast<std::size_t>(op.features - op.dims) * sizeof(T));
}

template <class T>
void all_positions(const Rope& op) {
    using C = Compute<T>;
    const std::int64_t batches = op.batch.count, size = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t rows = batches * op.heads * op.length;
    // Computing a cosine and a sine takes as long as moving that many bytes.
    const std::int64_t of_pair = op.tables ? 16 : is_same<C, double> ? 256 : 32;
    const std::int64_t angles_work = of_pair * op.dims / 2 * op.length * (op.positions_of_batch ? batches : 1);
    const int threads = threads_for(op.length, 2 * rows * op.features * size + angles_work);
    const std::int64_t of_position = op.dims * static_cast<std::int64_t>(sizeof(C));
    const std::int64_t block = std::clamp(kTable / of_position, std::int64_t{1}, op.length);
    const std::int64_t line = whole_lines((block + 2) * of_position);
    const Scratch scratch(threads * line);
    Interruption* const at = interruption;
    over_shares(threads, op.length, 1, [&](Share share) {
        C* const table = scratch.at<C>(share.member * line);
        C* const room = table + block * op.dims;
        const auto angles_of = [&](std::int64_t p) {
            return Angles<C>{table + p * op.dims, table + p * op.dims + op.dims / 2};
        };
        for (std::int64_t begin = share.begin; begin < share.end; begin += block) {
            const std::int64_t count = share.end - begin < block ? share.end - begin : block;
            if (leaves(at, count * batches * op.heads * op.features * size)) break;
            for (std::int64_t b = 0; b < batches; ++b) {
                const double* positions = op.positions + (op.positions_of_batch ? b * op.length : 0) + begin;
                if (b == 0 || op.positions_of_batch)
                    for (std::int64_t p = 0; p < count; ++p) find_angles(op, positions[p], angles_of(p));
                for (std::int64_t h = 0; h < op.heads; ++h) {
                    const char* x = op.batch.row(b) + h * op.head_stride + begin * op.stride;
                    T* y = reinterpret_cast<T*>(op.y) + ((b * op.heads + h) * op.length + begin) * op.features;
                    for (std::int64_t p = 0; p < count; ++p, x += op.stride, y += op.features)
                        rotate_row(op, reinterpret_cast<const T*>(x), y, angles_of(p), room);
                }
            }
        }
    });
}

}  // namespace

TENSOROPS_KERNEL(rope, Rope) {
    for_dtype(op.dtype, [&op](auto x) { all_positions<decltype(x)>(op); });
}

}  // namespace tensorops::TENSOROPS_TARGET
