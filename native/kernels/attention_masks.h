// Masks of attention, boolean or added to the scores, on parts of rows.
#pragma once

#include "attention.h"
#include "attention_blocks.h"

namespace tensorops::TENSOROPS_TARGET {
namespace {  // part of attention.cpp

// As many bytes as a vector has lanes
template <class C>
struct BytesOf {
    using type = U8;
};
template <>
struct BytesOf<double> {
    typedef std::uint8_t type __attribute__((vector_size(kLanes<double>)));
};

template <class C>
inline Vec<C> where_allowed(const char* allowed, Vec<C> scores) {
    using Words = decltype(scores < scores);
    const auto words = __builtin_convertvector(load_bits<typename BytesOf<C>::type>(allowed), Words);
    return words != 0 ? scores : Vec<C>{} + kNothing<C>;
}

template <class C>
void apply_bool_mask(const char* allowed, std::int64_t stride, C* s, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t lanes = kLanes<C>;
    std::int64_t j = begin;
    if (stride == 1)
        for (; j + lanes <= end; j += lanes) store(s + j, where_allowed<C>(allowed + j, load(s + j)));
    for (; j < end; ++j)
        if (!allowed[j * stride]) s[j] = kNothing<C>;
}

template <class M, class C>
void add_mask(const char* mask, std::int64_t stride, C* s, std::int64_t begin, std::int64_t end) {
    std::int64_t j = begin;
    if constexpr (is_same<Compute<M>, C>) {
        constexpr std::int64_t lanes = kLanes<C>;
        if (stride == sizeof(M))
            for (; j + lanes <= end; j += lanes) store(s + j, load(s + j) + load(at<M>(mask) + j));
    }
    for (; j < end; ++j) s[j] += static_cast<C>(load_one(at<M>(mask + j * stride)));
}

template <class C>
C load_as(const char* p, Dtype dtype) {
    return for_dtype(dtype, [p](auto element) { return static_cast<C>(load_one(at<decltype(element)>(p))); });
}

template <class C>
void apply_mask(const Attention& op, const char* mask, C* s, std::int64_t begin, std::int64_t end) {
    const std::int64_t stride = op.mask_stride[3];
    if (op.mask_kind == MaskKind::boolean) return apply_bool_mask(mask, stride, s, begin, end);
    for_dtype(op.mask_dtype, [=](auto element) { add_mask<decltype(element)>(mask, stride, s, begin, end); });
}

}  // namespace
}  // namespace tensorops::TENSOROPS_TARGET
