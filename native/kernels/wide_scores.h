// A row of attention whose scores leave the range of the type of computation, though queries and keys are finite.
//
// Products of float32 and half types stay within double. Those of double are computed with the query and the key scaled
// by powers of two; beyond 2^1024 the softmax of scores depends only on their order, because their differences are
// effectively infinite for the exponential. Such rows are rare, so nothing here is fast.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"
#include "attention_masks.h"
#include "simd.h"

namespace tensorops::TENSOROPS_TARGET {

// A score: `value`, or value · 2^kHuge if that exceeds double's range.
struct Score {
    double value;
    bool huge;
};
constexpr int kHuge = 1200;

inline Score scaled_score(double x, int exponent) {
    const double value = std::ldexp(x, exponent);
    if (std::isfinite(value) || !std::isfinite(x)) return {value, false};
    return {std::ldexp(x, exponent - kHuge), true};
}

inline Score add(Score s, double x) {
    if (!std::isfinite(s.value) || !std::isfinite(x)) return {s.value + x, false};
    if (!s.huge && std::isfinite(s.value + x)) return {s.value + x, false};
    return scaled_score((s.huge ? s.value : std::ldexp(s.value, -kHuge)) + std::ldexp(x, -kHuge), kHuge);
}

inline Score capped(Score s, double bound) {
    if (s.huge) return {std::copysign(bound, s.value), false};
    return {std::tanh(s.value / bound) * bound, false};
}

// Whether a is below b; comparisons with NaN are false, and the NaN shows in the sum.
inline bool below(Score a, Score b) {
    const auto level = [](Score s) {
        return std::isinf(s.value) ? (s.value > 0 ? 2 : -2) : !s.huge ? 0 : s.value > 0 ? 1 : -1;
    };
    return level(a) != level(b) ? level(a) < level(b) : a.value < b.value;
}

// exp(s - largest)
inline double weight_of(Score s, Score largest) {
    if (std::isnan(s.value)) return s.value;
    if (!s.huge && !largest.huge) return std::exp(s.value - largest.value);
    return s.huge == largest.huge && s.value == largest.value ? 1 : 0;
}

// Whether a boolean mask, whose row of a query this is, forbids a key.
inline bool mask_forbids(const Attention& op, const char* mask, std::int64_t key) {
    return op.mask_kind == MaskKind::boolean && !mask[key * op.mask_stride[3]];
}

// A score with what a floating mask adds to it
template <class C>
Score masked(const Attention& op, Score s, const char* mask, std::int64_t key) {
    if (op.mask_kind != MaskKind::floating) return s;
    return add(s, static_cast<double>(load_as<C>(mask + key * op.mask_stride[3], op.mask_dtype)));
}

// Whether n elements are all finite.
template <class T>
bool all_finite(const T* x, std::int64_t n) {
    using C = Compute<T>;
    Vec<C> zero{};
    std::int64_t i = 0;
    for (; i + kLanes<C> <= n; i += kLanes<C>) zero += load(x + i) * C{0};
    if (i < n) zero += load_part(x + i, n - i) * C{0};
    return sum_of_lanes<C>(zero) == 0;
}

// A query, and its products with keys.
template <class T>
class WideQuery {
  public:
    // `room` has space for as many elements as the query.
    WideQuery(const T* q, std::int64_t dim, double scale, double* room) : q_(room), dim_(dim), scale_(scale) {
        exponent_ = exponent_of(q, dim);
        for (std::int64_t i = 0; i < dim; ++i) room[i] = std::ldexp(static_cast<double>(load_one(q + i)), -exponent_);
    }

    Score score(const T* k) const {
        const int exponent = exponent_of(k, dim_);
        const double unit = std::ldexp(1.0, -exponent);
        double sum = 0;
        for (std::int64_t i = 0; i < dim_; ++i) sum += q_[i] * (static_cast<double>(load_one(k + i)) * unit);
        return scaled_score(sum * scale_, exponent_ + exponent);
    }

  private:
    // The exponent of the power of two near the largest, in a range where it and its reciprocal are normal numbers.
    static int exponent_of(const T* x, std::int64_t n) {
        if constexpr (!is_same<T, double>) return 0;
        double largest = 0;
        for (std::int64_t i = 0; i < n; ++i)
            largest = std::max(largest, std::fabs(static_cast<double>(load_one(x + i))));
        return largest > 0 && std::isfinite(largest) ? std::clamp(std::ilogb(largest), -1000, 1000) : 0;
    }

    const double* q_;
    std::int64_t dim_;
    double scale_;
    int exponent_;
};

}  // namespace tensorops::TENSOROPS_TARGET
