// Checks that operators share.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "call.h"
#include "formats.h"

namespace tensorops {

inline constexpr std::int64_t kAny = -1;

inline bool is_narrow(Dtype dtype) { return kNarrow.has(dtype); }

// The arrays that products multiply by weights are not of float64.
inline Reason refuse_double(const Call& call, const Array& x) {
    if (x.dtype != Dtype::float64) return {};
    return call.multiplies ? "x has dtype float64, whose products numpy.matmul computes" : "x has dtype float64";
}

// Whether an array's elements are those of `of`, or float32 with half types
inline bool goes_with(const Array& a, const Array& of) {
    return a.dtype == of.dtype || (a.dtype == Dtype::float32 && is_half(of.dtype));
}

inline Reason refuse_vector(const std::string& name, const Array* a, std::int64_t n, const char* of_what) {
    if (!a) return {};
    if (a->ndim != 1 || a->shape[0] != n) return name + " does not have one element for each " + of_what;
    return a->is_contiguous() ? Reason{} : name + " is not contiguous";
}

// Whether an array is a matrix of the given shape with contiguous rows
inline Reason refuse_matrix(const std::string& name, const Array& a, std::int64_t rows = kAny,
                            std::int64_t columns = kAny) {
    if (a.ndim != 2) return name + " does not have 2 dimensions";
    if (rows == kAny) rows = a.shape[0];
    if (columns == kAny) columns = a.shape[1];
    if (a.shape[0] != rows || a.shape[1] != columns)
        return name + " has shape (" + std::to_string(a.shape[0]) + ", " + std::to_string(a.shape[1]) + "), not (" +
               std::to_string(rows) + ", " + std::to_string(columns) + ")";
    return a.is_contiguous_from(1) ? Reason{} : "the last axis of " + name + " is not contiguous";
}

// Stacks of matrices, one for each expert, whose rows are contiguous
inline Reason refuse_stack(const std::string& name, const Array& a, std::int64_t experts = kAny,
                           std::int64_t rows = kAny, std::int64_t columns = kAny) {
    if (a.ndim != 3) return name + " does not have 3 dimensions";
    if ((experts != kAny && a.shape[0] != experts) || (rows != kAny && a.shape[1] != rows) ||
        (columns != kAny && a.shape[2] != columns))
        return name + " has another shape than the other arrays need";
    return a.is_contiguous_from(2) ? Reason{} : "the last axis of " + name + " is not contiguous";
}

// After how many rows the matrix of the next expert begins; 0 if that is not after whole rows.
inline std::int64_t rows_per_expert(const Array& a) {
    if (a.shape[0] == 1) return a.shape[1];
    const std::int64_t row = a.stride(1), expert = a.stride(0);
    return row > 0 && expert > 0 && expert % row == 0 ? expert / row : 0;
}

// Scales, and biases if there are any: matrices of one dtype that have an element for each group
inline Reason refuse_scales(const Array& scales, const Array* biases, std::int64_t rows, std::int64_t groups) {
    if (Reason reason = refuse_matrix("scales", scales, rows, groups); !reason.empty() || !biases) return reason;
    if (biases->dtype != scales.dtype) return "biases has another dtype than scales";
    return refuse_matrix("biases", *biases, rows, groups);
}

// Where quantized matrices are: rows of weights, scales and biases along the last axis but one
template <class Op>
void set_quantized(Op& op, const Array& weight, const Array& scales, const Array* biases) {
    op.weight = weight.data;
    op.weight_stride = weight.stride(weight.ndim - 2);
    op.scales = scales.data;
    op.scale_stride = scales.stride(scales.ndim - 2);
    if (!biases) return;
    op.biases = biases->data;
    op.bias_stride = biases->stride(biases->ndim - 2);
}

// The format of quantized matrices that rows of `columns` elements are multiplied by
inline Reason refuse_product(bool has_biases, std::int64_t bits, std::int64_t group_size, std::int64_t columns) {
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (!has_biases && bits != 8) return "biases are missing";
    if (group_size < 1 || group_size > columns || group_size * bits % 8 != 0) return "group_size does not fit x";
    return columns % group_size == 0 ? Reason{} : "group_size does not divide the last axis of x";
}

inline constexpr std::string_view kAffine = "affine";  // the format of integers with scales and biases as arrays
inline constexpr const char* kHoldScales = "scales or biases are given, but blocks hold their own";

inline bool is_interleaved(std::string_view format) { return without_ending(format).size() < format.size(); }

// What interleaved blocks must be for kernels: matrices along the last two axes
inline Reason refuse_interleaved(const Array& weight) {
    const int axis = weight.ndim - 2;
    if (axis < 0) return "weight has no rows";
    if (weight.shape[axis] % kInterleavedRows != 0)
        return "weight has " + std::to_string(weight.shape[axis]) + " rows, not a multiple of 32";
    return weight.is_contiguous_from(axis) ? Reason{} : "the matrices of weight are not contiguous";
}

// Digits of x for an option `precision`
inline int read_digits(Reader& in) { return in.choice({"highest", "high", "low"}) == 2 ? 1 : 3; }

// The shape of rows of x with another length
class OutputShape {
  public:
    OutputShape(const Array& x, std::int64_t outputs) {
        std::copy_n(x.shape, x.ndim, dims_);
        dims_[std::max(x.ndim, 1) - 1] = outputs;  // compilers do not know that there is an axis
    }
    const std::int64_t* dims() const { return dims_; }

  private:
    std::int64_t dims_[kMaxAxes];
};

// Parameters of lines, one after another, in a dtype that kernels read: the lines' or, with half types, float32. Others
// are widened.
class RowParameter {
  public:
    RowParameter(const Array* given, const Array& x, bool widens = false) {
        if (!given) return;
        data_ = given->data;
        dtype_ = given->dtype;
        if (!widens && goes_with(*given, x) && given->is_contiguous()) return;
        const std::vector<double> values = read_doubles(*given);
        if (x.dtype == Dtype::float64)
            copy<double>(values, Dtype::float64);
        else
            copy<float>(values, Dtype::float32);
    }
    const char* data() const { return data_; }
    Dtype dtype() const { return dtype_; }

  private:
    template <class T>
    void copy(const std::vector<double>& values, Dtype dtype) {
        wide_ = std::make_unique<char[]>(values.size() * sizeof(T) + 1);
        std::transform(values.begin(), values.end(), reinterpret_cast<T*>(wide_.get()),
                       [](double v) { return static_cast<T>(v); });
        data_ = wide_.get();
        dtype_ = dtype;
    }

    const char* data_ = nullptr;
    Dtype dtype_ = Dtype::other;
    std::unique_ptr<char[]> wide_;
};

}  // namespace tensorops
