// What the handlers of XLA's foreign functions share: arrays, attributes, checks, threads.
//
// There is one file for each family of operators, xla_<family>.cpp. The work is distributed over XLA's own threads:
// OpenMP's would compete with them, and spin while XLA's compute. Nothing is written past the caches: XLA's memory is
// usually new to the process, and the system has just zeroed it.
#pragma once

#include <cstring>
#include <string_view>
#include <vector>

#include "parallel.h"
#include "targets.h"
#include "xla_ffi.h"

namespace tensorops::xla {

// What is wrong with a call; nullptr if nothing. tensorops/kernels/jax_ffi refuses all of this before XLA sees the
// call.
using Wrong = const char*;

struct Call {
    const CallFrame& frame;

    std::int64_t arguments() const { return frame.arguments.count; }
    const Buffer& argument(std::int64_t i) const { return *static_cast<const Buffer*>(frame.arguments.items[i]); }
    const Buffer& result(std::int64_t i = 0) const { return *static_cast<const Buffer*>(frame.results.items[i]); }

    // An option. Inline, so that names are compared without calls: attention asks for ten options among as many.
    double number(std::string_view name, double otherwise) const {
        const Attributes& all = frame.attributes;
        for (std::int64_t i = 0; i < all.count; ++i) {
            const Span& own = *all.names[i];
            if (own.length != name.size() || std::memcmp(own.data, name.data(), name.size()) != 0) continue;
            const Scalar& scalar = *static_cast<const Scalar*>(all.items[i]);
            if (all.kinds[i] == kScalar && scalar.dtype == kFloat64) return *static_cast<const double*>(scalar.value);
        }
        return otherwise;
    }

    // Whether an argument has strides, which are options of its name: of plans only
    bool has_strides(std::string_view name) const;
};

Dtype dtype_of(const Buffer& b);
std::int64_t itemsize(const Buffer& b);
std::int64_t elements(const Buffer& b);
inline std::int64_t length(const Buffer& b) { return b.dims[b.rank - 1]; }
inline std::int64_t bytes_of(const Buffer& b) { return elements(b) * itemsize(b); }
inline char* data(const Buffer& b) { return static_cast<char*>(b.data); }
inline bool is_narrow(const Buffer& b) { return dtype_of(b) != Dtype::other && dtype_of(b) != Dtype::float64; }
bool same(const Buffer& a, const Buffer& b);
bool is_vector(const Buffer& b, std::int64_t n);
bool is_matrix(const Buffer& b, std::int64_t rows, std::int64_t columns);

// Rows of the last axis, or of several
Rows rows_of(const Buffer& b, std::int64_t axes = 1);

// The strides of an array in bytes: those given as options, x_0, x_1, … for an x, or those of a contiguous array.
struct Strides {
    static constexpr std::int64_t kMost = 8;  // axes of an array with strides
    std::int64_t bytes[kMaxDims];
};
Strides strides_of(const Call& call, const Buffer& b, std::string_view name);
// Rows of an array with strides whose last axes, if several, are contiguous
Rows rows_of(const Call& call, const Buffer& b, std::string_view name, std::int64_t axes = 1);
// The elements of an array of integers or floating-point numbers; those of uint64 beyond int64 become negative.
bool is_integer(const Buffer& b);
std::vector<std::int64_t> read_integers(const Buffer& b);
std::vector<double> read_doubles(const Buffer& b);

// A part of the elements, as one row whatever the shape
Rows span_of(const Buffer& b, std::int64_t begin, std::int64_t end);

// Whether the first arrays are alike, with a dtype that has kernels
Wrong check_arrays(const Call& call, std::int64_t arrays);
// Weights and biases, which come after the arrays: one element for each index of an axis of x.
Wrong check_parameters(const Call& call, std::int64_t arrays, std::int64_t axis);
// The format of quantized weights
Wrong check_format(int bits, std::int64_t group_size, bool biased, std::int64_t columns);

// The threads of the plan that this thread runs, or nullptr: then the calls are XLA's
inline thread_local const Lender* replaying = nullptr;

// What a thread of a plan, which is awake, moves at least in operators on rows or elements. On two threads, swiglu of
// 144 KiB took 3.0 µs instead of 4.8 (7 instead of 18 without a common cache), add_rms_norm of 72 KiB 2.1 instead
// of 2.0 (6 instead of 4).
inline constexpr std::int64_t kAwakeRowBytes = 64 * 1024;

std::int64_t threads_of(const CallFrame& frame);
// Calls work(op, part) for each part, on this thread and on free threads of XLA or of the plan.
void share_out(const CallFrame& frame, std::int64_t count, const void* op, void (*work)(const void*, std::int64_t));

// Calls kernel(begin, end) for parts of `total` rows or elements; each part begins at a multiple of `unit`.
template <class F>
void over_threads(const Call& call, std::int64_t total, std::int64_t unit, std::int64_t bytes, const F& kernel) {
    const std::int64_t units = (total + unit - 1) / unit;
    const std::int64_t most = bytes / (replaying ? kAwakeRowBytes : kBytesPerThread);
    std::int64_t parts = most < 2 ? 1 : threads_of(call.frame);
    if (parts > most) parts = most;
    if (parts > units) parts = units;
    if (parts < 1) parts = 1;
    const auto work = [&kernel, total, unit, units, parts](std::int64_t part) {
        const std::int64_t begin = units * part / parts * unit, end = units * (part + 1) / parts * unit;
        kernel(begin, end < total ? end : total);
    };
    share_out(call.frame, parts, &work,
              [](const void* op, std::int64_t part) { (*static_cast<const decltype(work)*>(op))(part); });
}

// While this exists, kernels called by this thread divide their work themselves, for XLA's threads.
class Team : Lender {
  public:
    explicit Team(const Call& call);
    ~Team() { lender = nullptr; }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

  private:
    const CallFrame& frame_;
};

// A handler answers XLA's question for its version, and calls its kernel.
Error* answer(CallFrame* frame, Wrong (*kernel)(const Call&));

template <Wrong (*kKernel)(const Call&)>
Error* handle(CallFrame* frame) {
    return answer(frame, kKernel);
}

struct NamedHandler {
    const char* name;
    Handler* handler;
};
using Handlers = std::vector<NamedHandler>;

Handlers activation_handlers();
Handlers attention_handlers();
Handlers experts_handlers();
Handlers linear_handlers();
Handlers loss_handlers();
Handlers moves_handlers();  // of plans only
Handlers normalization_handlers();
Handlers positional_handlers();
Handlers quantization_handlers();
Handlers sampling_handlers();
Handlers selection_handlers();

// Those of all operators, by family; the last are of plans only.
std::vector<Handlers> all_handlers();

}  // namespace tensorops::xla
