// Kernels as XLA foreign functions, for JAX on the CPU. XLA allocates the results; the interpreter is not involved.
//
// tensorops/kernels/jax_ffi registers the handlers by name. A new kernel adds its function, and a line of kHandlers.
//
// The work is distributed over XLA's own threads: OpenMP's would compete with them, and spin while XLA's compute.
// Nothing is written past the caches: XLA's memory is usually new to the process, and the system has just zeroed it.
#include <atomic>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "bind.h"
#include "parallel.h"
#include "targets.h"
#include "xla_ffi.h"

namespace tensorops {

namespace {

using xla::Buffer;

// What is wrong with a call; nullptr if nothing. tensorops/kernels/jax_ffi refuses all of this before XLA sees the
// call.
using Wrong = const char*;

struct Call {
    const xla::CallFrame& frame;

    std::int64_t arguments() const { return frame.arguments.count; }
    const Buffer& argument(std::int64_t i) const { return *static_cast<const Buffer*>(frame.arguments.items[i]); }
    const Buffer& result(std::int64_t i = 0) const { return *static_cast<const Buffer*>(frame.results.items[i]); }

    double number(const char* name, double otherwise) const {
        const xla::Attributes& all = frame.attributes;
        for (std::int64_t i = 0; i < all.count; ++i) {
            if (std::string(all.names[i]->data, all.names[i]->length) != name || all.kinds[i] != xla::kScalar) continue;
            const xla::Scalar& scalar = *static_cast<const xla::Scalar*>(all.items[i]);
            if (scalar.dtype == xla::kFloat64) return *static_cast<const double*>(scalar.value);
        }
        return otherwise;
    }
};

Dtype dtype_of(const Buffer& b) {
    switch (b.dtype) {
        case xla::kFloat16:
            return Dtype::float16;
        case xla::kBFloat16:
            return Dtype::bfloat16;
        case xla::kFloat32:
            return Dtype::float32;
        case xla::kFloat64:
            return Dtype::float64;
        default:
            return Dtype::other;
    }
}

std::int64_t itemsize(const Buffer& b) {
    const Dtype dtype = dtype_of(b);
    return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2;
}

std::int64_t elements(const Buffer& b) {
    std::int64_t n = 1;
    for (std::int64_t d = 0; d < b.rank; ++d) n *= b.dims[d];
    return n;
}

std::int64_t length(const Buffer& b) { return b.dims[b.rank - 1]; }

bool same(const Buffer& a, const Buffer& b) {
    if (a.dtype != b.dtype || a.rank != b.rank) return false;
    for (std::int64_t d = 0; d < a.rank; ++d)
        if (a.dims[d] != b.dims[d]) return false;
    return true;
}

char* data(const Buffer& b) { return static_cast<char*>(b.data); }

// Rows of the last axis, or of several
Rows rows_of(const Buffer& b, std::int64_t axes = 1) {
    Rows rows{};
    rows.data = data(b);
    rows.length = 1;
    for (std::int64_t d = b.rank - axes; d < b.rank; ++d) rows.length *= b.dims[d];
    rows.count = elements(b) / rows.length;
    rows.outer = 1;
    rows.shape[0] = rows.count;
    rows.stride[0] = rows.length * itemsize(b);
    return rows;
}

// A part of the elements, as one row whatever the shape
Rows span_of(const Buffer& b, std::int64_t begin, std::int64_t end) {
    Rows rows{};
    rows.data = data(b) + begin * itemsize(b);
    rows.count = 1;
    rows.length = end - begin;
    return rows;
}

// Parts of the work, which threads take one after another.
struct Parts {
    void (*work)(const void* op, std::int64_t part);
    const void* op;
    std::int64_t count;
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    std::int64_t done = 0;

    void run() {
        std::int64_t mine = 0;
        one_thread = true;
        for (std::int64_t part; (part = next.fetch_add(1)) < count; ++mine) work(op, part);
        one_thread = false;
        if (mine == 0) return;
        const std::lock_guard<std::mutex> lock(mutex);
        done += mine;
        if (done == count) finished.notify_one();
    }
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        finished.wait(lock, [this] { return done == count; });
    }
};

void take_parts(void* data) {
    const std::unique_ptr<std::shared_ptr<Parts>> parts(static_cast<std::shared_ptr<Parts>*>(data));
    (*parts)->run();  // a task that begins late finds no parts left, and touches nothing else
}

// Whether there was no error; XLA's object for it is freed.
bool succeeded(const xla::CallFrame& frame, xla::Error* error) {
    if (!error) return true;
    xla::ErrorToDestroy unused{sizeof unused, nullptr, error};
    frame.api->destroy_error(&unused);
    return false;
}

std::int64_t threads_of(const xla::CallFrame& frame) {
    if (frame.api->size < sizeof(xla::Api)) return 1;
    std::int64_t threads = 1;
    xla::NumThreadsArguments arguments{sizeof arguments, nullptr, frame.context, &threads};
    return succeeded(frame, frame.api->num_threads(&arguments)) ? threads : 1;
}

// Calls work(op, part) for each part, on this thread and on free threads of XLA.
void share_out(const xla::CallFrame& frame, std::int64_t count, const void* op,
               void (*work)(const void*, std::int64_t)) {
    const auto parts = std::make_shared<Parts>();
    parts->work = work;
    parts->op = op;
    parts->count = count;
    for (std::int64_t helper = 1; helper < count; ++helper) {
        auto shared = std::make_unique<std::shared_ptr<Parts>>(parts);
        xla::ScheduleArguments arguments{sizeof arguments, nullptr, frame.context, take_parts, shared.get()};
        if (!succeeded(frame, frame.api->schedule(&arguments))) break;
        shared.release();  // now owned by the task
    }
    parts->run();
    parts->wait();
}

std::int64_t bytes_of(const Buffer& b) { return elements(b) * itemsize(b); }

// Calls kernel(begin, end) for parts of `total` rows or elements; each part begins at a multiple of `unit`.
template <class F>
void over_threads(const Call& call, std::int64_t total, std::int64_t unit, std::int64_t bytes, const F& kernel) {
    const std::int64_t units = (total + unit - 1) / unit;
    std::int64_t parts = bytes < 2 * kBytesPerThread ? 1 : threads_of(call.frame);
    if (parts > bytes / kBytesPerThread) parts = bytes / kBytesPerThread;
    if (parts > units) parts = units;
    if (parts < 1) parts = 1;
    const auto work = [&kernel, total, unit, units, parts](std::int64_t part) {
        const std::int64_t begin = units * part / parts * unit, end = units * (part + 1) / parts * unit;
        kernel(begin, end < total ? end : total);
    };
    share_out(call.frame, parts, &work,
              [](const void* op, std::int64_t part) { (*static_cast<const decltype(work)*>(op))(part); });
}

Wrong check_arrays(const Call& call, std::int64_t arrays) {
    const Buffer& x = call.argument(0);
    if (dtype_of(x) == Dtype::other) return "a dtype without a kernel";
    if (x.rank == 0) return "an array of 0 dimensions";
    for (std::int64_t i = 1; i < arrays; ++i)
        if (!same(x, call.argument(i))) return "arrays that differ in shape or dtype";
    return nullptr;
}

// Weights and biases, which come after the arrays: one element for each index of an axis of x.
Wrong check_parameters(const Call& call, std::int64_t arrays, std::int64_t axis) {
    const Buffer& x = call.argument(0);
    for (std::int64_t i = arrays; i < call.arguments(); ++i) {
        const Buffer& p = call.argument(i);
        const bool half = dtype_of(x) == Dtype::float16 || dtype_of(x) == Dtype::bfloat16;
        if (p.rank != 1 || p.dims[0] != x.dims[axis]) return "a parameter that does not fit its axis";
        if (p.dtype != x.dtype && !(half && dtype_of(p) == Dtype::float32)) return "a parameter of another dtype";
        if (p.dtype != call.argument(arrays).dtype) return "parameters that differ in dtype";
    }
    return nullptr;
}

template <Function kFunction, int kArrays>
Wrong activation(const Call& call) {
    if (call.arguments() != kArrays || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, kArrays)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    const std::int64_t total = elements(x);
    if (total == 0) return nullptr;
    Activation op{};
    op.function = kFunction;
    op.alpha = call.number("alpha", 0);
    op.dtype = dtype_of(x);
    over_threads(call, total, 64, (1 + kArrays) * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        Activation part = op;
        part.x = span_of(x, begin, end);
        if (kArrays == 2) part.up = span_of(call.argument(1), begin, end);
        part.y = data(y) + begin * itemsize(y);
        target().activation(part);
    });
    return nullptr;
}

template <Normalized kKind>
Wrong softmax(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    const std::int64_t total = elements(x);
    if (total == 0) return nullptr;
    const auto axes = static_cast<std::int64_t>(call.number("axes", 1));
    if (axes < 1 || axes > x.rank) return "another number of axes";
    Softmax op{};
    op.kind = kKind;
    op.x = rows_of(x, axes);
    op.dtype = dtype_of(x);
    op.y_dtype = dtype_of(y);
    const bool widened = itemsize(x) == 2 && op.y_dtype == Dtype::float32;
    const std::int64_t expected = kKind == Normalized::logsumexp ? op.x.count : total;
    if ((y.dtype != x.dtype && !widened) || elements(y) != expected) return "a result of another shape or dtype";
    const std::int64_t row = bytes_of(y) / op.x.count;
    over_threads(call, op.x.count, 1, bytes_of(x) + total * itemsize(y), [&](std::int64_t begin, std::int64_t end) {
        Softmax part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().softmax(part);
    });
    return nullptr;
}

template <int kArrays>
Wrong rms_norm(const Call& call) {
    if (call.arguments() < kArrays || call.arguments() > kArrays + 1 || call.frame.results.count != kArrays)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, kArrays)) return wrong;
    if (Wrong wrong = check_parameters(call, kArrays, call.argument(0).rank - 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result(0);
    if (!same(x, y) || !same(x, call.result(kArrays - 1))) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    const bool weighted = call.arguments() > kArrays;
    RmsNorm op{};
    op.x = rows_of(x);
    if (kArrays == 2) op.residual = rows_of(call.argument(1));
    op.weight = weighted ? data(call.argument(kArrays)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.weight_dtype = weighted ? dtype_of(call.argument(kArrays)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    op.weight_offset = call.number("weight_offset", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * kArrays * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        RmsNorm part = op;
        take_part(part.x, begin, end);
        if (kArrays == 2) {
            take_part(part.residual, begin, end);
            part.sum = data(call.result(1)) + begin * row;
        }
        part.y = data(y) + begin * row;
        target().rms_norm(part);
    });
    return nullptr;
}

Wrong layer_norm(const Call& call) {
    if (call.arguments() < 1 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (Wrong wrong = check_parameters(call, 1, call.argument(0).rank - 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    LayerNorm op{};
    op.x = rows_of(x);
    op.weight = call.arguments() > 1 ? data(call.argument(1)) : nullptr;
    op.bias = call.arguments() > 2 ? data(call.argument(2)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.parameter_dtype = call.arguments() > 1 ? dtype_of(call.argument(1)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        LayerNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().layer_norm(part);
    });
    return nullptr;
}

Wrong group_norm(const Call& call) {
    if (call.arguments() < 1 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (x.rank < 2) return "an array without channels";
    if (Wrong wrong = check_parameters(call, 1, 1)) return wrong;
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    const std::int64_t channels = x.dims[1];
    GroupNorm op{};
    op.groups = static_cast<std::int64_t>(call.number("num_groups", static_cast<double>(channels)));
    if (op.groups < 1 || channels % op.groups != 0) return "channels that cannot be grouped";
    op.span = elements(x) / (x.dims[0] * channels);
    op.x = rows_of(x);
    op.x.count = op.x.shape[0] = x.dims[0] * op.groups;
    op.x.length = elements(x) / op.x.count;
    const std::int64_t row = op.x.stride[0] = op.x.length * itemsize(x);
    op.weight = call.arguments() > 1 ? data(call.argument(1)) : nullptr;
    op.bias = call.arguments() > 2 ? data(call.argument(2)) : nullptr;
    op.x_dtype = dtype_of(x);
    op.weight_dtype = op.bias_dtype = call.arguments() > 1 ? dtype_of(call.argument(1)) : op.x_dtype;
    op.eps = call.number("eps", 0);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        GroupNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().group_norm(part);
    });
    return nullptr;
}

Wrong l2_norm(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 1) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &y = call.result();
    if (!same(x, y)) return "a result of another shape or dtype";
    if (elements(x) == 0) return nullptr;
    RmsNorm op{};
    op.by_length = true;
    op.x = rows_of(x);
    op.x_dtype = op.weight_dtype = dtype_of(x);
    op.eps = call.number("eps", 0);
    const std::int64_t row = length(x) * itemsize(x);
    over_threads(call, op.x.count, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        RmsNorm part = op;
        take_part(part.x, begin, end);
        part.y = data(y) + begin * row;
        target().rms_norm(part);
    });
    return nullptr;
}

bool is_matrix(const Buffer& b, std::int64_t rows, std::int64_t columns) {
    return b.rank == 2 && b.dims[0] == rows && b.dims[1] == columns;
}

Wrong check_format(int bits, std::int64_t group_size, bool biased, std::int64_t columns) {
    if ((bits != 4 && bits != 8) || (bits == 4 && !biased)) return "another number of bits";
    const bool fits = group_size >= 1 && columns % group_size == 0 && group_size * bits % 8 == 0;
    return fits ? nullptr : "another size of groups";
}

// One row is divided by outputs, several by rows.
Wrong quantized_linear(const Call& call) {
    if (call.arguments() < 3 || call.arguments() > 4 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(1), &scales = call.argument(2), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (dtype_of(x) == Dtype::float64 || weight.dtype != xla::kUint8) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    const auto bits = static_cast<int>(call.number("bits", 0));
    const auto group_size = static_cast<std::int64_t>(call.number("group_size", 0));
    const bool biased = call.arguments() == 4;
    if (Wrong wrong = check_format(bits, group_size, biased, length(x))) return wrong;
    const std::int64_t outputs = weight.dims[0], groups = length(x) / group_size;
    if (!is_matrix(weight, outputs, length(x) * bits / 8)) return "weights that do not fit the last axis";
    for (std::int64_t i = 2; i < call.arguments(); ++i) {
        const Buffer& p = call.argument(i);
        if (dtype_of(p) == Dtype::other || dtype_of(p) == Dtype::float64) return "scales without a kernel";
        if (p.dtype != scales.dtype || !is_matrix(p, outputs, groups)) return "scales or biases that do not fit";
    }
    if (y.dtype != x.dtype || elements(y) != elements(x) / length(x) * outputs)
        return "a result of another shape or dtype";
    QuantizedLinear op{};
    op.x = rows_of(x);
    op.weight = data(weight);
    op.weight_stride = weight.dims[1];
    op.scales = data(scales);
    op.scale_stride = op.bias_stride = groups * itemsize(scales);
    op.biases = biased ? data(call.argument(3)) : nullptr;
    op.outputs = outputs;
    op.group_size = group_size;
    op.bits = bits;
    op.y = data(y);
    op.x_dtype = dtype_of(x);
    op.scale_dtype = dtype_of(scales);
    const std::int64_t bytes = elements(weight) * op.x.count;
    if (op.x.count > 1) {
        over_threads(call, op.x.count, 1, bytes, [&](std::int64_t begin, std::int64_t end) {
            QuantizedLinear part = op;
            take_part(part.x, begin, end);
            part.y += begin * outputs * itemsize(y);
            target().quantized_linear(part);
        });
        return nullptr;
    }
    over_threads(call, outputs, 16, bytes, [&](std::int64_t begin, std::int64_t end) {
        QuantizedLinear part = op;
        part.outputs = end - begin;
        part.weight += begin * op.weight_stride;
        part.scales += begin * op.scale_stride;
        if (biased) part.biases += begin * op.bias_stride;
        part.y += begin * itemsize(y);
        target().quantized_linear(part);
    });
    return nullptr;
}

// The results are the values, and the indices in either width. XLA's threads take whole rows.
Wrong top_k(const Call& call) {
    if (call.arguments() != 1 || call.frame.results.count != 2) return "another number of arrays";
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    const Buffer &x = call.argument(0), &values = call.result(0), &indices = call.result(1);
    if (elements(values) == 0) return nullptr;
    const std::int64_t k = length(values), rows = elements(x) / length(x);
    if (values.dtype != x.dtype || elements(values) != rows * k || elements(indices) != rows * k || k > length(x))
        return "a result of another shape or dtype";
    if (length(x) >= std::numeric_limits<std::uint32_t>::max()) return "rows of 2**32 - 1 elements or more";
    if (indices.dtype != xla::kInt32 && indices.dtype != xla::kInt64) return "indices of another dtype";
    TopK op{};
    op.x = rows_of(x);
    op.k = k;
    op.largest = call.number("largest", 1) != 0;
    op.index_bytes = indices.dtype == xla::kInt32 ? 4 : 8;
    op.dtype = dtype_of(x);
    over_threads(call, rows, 1, 2 * bytes_of(x), [&](std::int64_t begin, std::int64_t end) {
        TopK part = op;
        take_part(part.x, begin, end);
        part.values = data(values) + begin * k * itemsize(x);
        part.indices = data(indices) + begin * k * op.index_bytes;
        target().top_k(part);
    });
    return nullptr;
}

// The rows of x, and the expert of each, both repeated to a common shape.
struct ExpertRows {
    Rows x;
    std::vector<std::int64_t> experts;
};

Wrong read_rows(const Buffer& x, const Buffer& experts, std::int64_t number, ExpertRows& rows) {
    const std::int64_t axes = x.rank - 1, less = axes - experts.rank;
    const bool is_wide = experts.dtype == xla::kInt64;
    if (!is_wide && experts.dtype != xla::kInt32) return "experts of a dtype without a kernel";
    if (less < 0 || axes > kMaxDims) return "another number of axes";
    std::int64_t shape[kMaxDims], x_strides[kMaxDims], strides[kMaxDims];
    std::int64_t x_stride = length(x) * itemsize(x), stride = is_wide ? 8 : 4;
    for (std::int64_t d = axes - 1; d >= 0; --d) {
        const std::int64_t n = x.dims[d], m = d < less ? 1 : experts.dims[d - less];
        if (n != m && n != 1 && m != 1) return "experts that do not broadcast with the rows of x";
        shape[d] = n == 1 ? m : n;
        x_strides[d] = x_stride;
        x_stride *= n;
        if (d < less) continue;
        strides[d - less] = stride;
        stride *= m;
    }
    const int ndim = static_cast<int>(axes);
    rows.x = broadcast_rows(data(x), length(x), ndim, x.dims, x_strides, ndim, shape);
    const Rows numbers =
        broadcast_rows(data(experts), 1, static_cast<int>(experts.rank), experts.dims, strides, ndim, shape);
    rows.experts.resize(static_cast<std::size_t>(rows.x.count));
    for (std::int64_t r = 0; r < rows.x.count; ++r) {
        const char* p = numbers.row(r);
        const std::int64_t expert =
            is_wide ? *reinterpret_cast<const std::int64_t*>(p) : *reinterpret_cast<const std::int32_t*>(p);
        if (expert < 0 || expert >= number) return "an index in experts that is out of range";
        rows.experts[static_cast<std::size_t>(r)] = expert;
    }
    return nullptr;
}

bool is_stack(const Buffer& b, std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
    return b.rank == 3 && b.dims[0] == matrices && b.dims[1] == rows && b.dims[2] == columns;
}

bool is_narrow(const Buffer& b) { return dtype_of(b) != Dtype::other && dtype_of(b) != Dtype::float64; }

// Calls a kernel for parts of the outputs, each with all rows: cut(part, begin) moves what belongs to an output.
template <class Op, class F>
void over_outputs(const Call& call, void (*kernel)(const Op&), Op op, const ExpertRows& rows, std::int64_t number,
                  const F& cut) {
    const SortedRows sorted(rows.x.count, number,
                            [&](std::int64_t r) { return rows.experts[static_cast<std::size_t>(r)]; });
    const std::int64_t outputs = op.linear.outputs;
    op.linear.x = rows.x;
    op.groups = sorted.groups();
    op.per_expert = op.y_stride = outputs;
    over_threads(call, outputs, 48, product(elements(call.argument(2)) / number, rows.x.count),
                 [&](std::int64_t begin, std::int64_t end) {
                     Op part = op;
                     part.linear.outputs = end - begin;
                     part.linear.weight += begin * op.linear.weight_stride;
                     part.linear.y += begin * itemsize(call.result());
                     cut(part, begin);
                     kernel(part);
                 });
}

Wrong grouped_linear(const Call& call) {
    if (call.arguments() < 3 || call.arguments() > 4 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(2), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (!is_narrow(x) || !is_narrow(weight)) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    if (!is_stack(weight, weight.dims[0], weight.rank == 3 ? weight.dims[1] : 0, length(x)))
        return "weights that do not fit the last axis";
    const std::int64_t number = weight.dims[0], outputs = weight.dims[1];
    ExpertRows rows;
    if (Wrong wrong = read_rows(x, call.argument(1), number, rows)) return wrong;
    if (y.dtype != x.dtype || elements(y) != rows.x.count * outputs) return "a result of another shape or dtype";
    GroupedLinear op{};
    op.linear.weight = data(weight);
    op.linear.weight_stride = length(x) * itemsize(weight);
    op.linear.outputs = outputs;
    op.linear.y = data(y);
    op.linear.x_dtype = dtype_of(x);
    op.linear.weight_dtype = op.linear.bias_dtype = dtype_of(weight);
    std::int64_t of_bias = 0;
    if (call.arguments() == 4) {
        const Buffer& bias = call.argument(3);
        if (!is_narrow(bias) || !is_matrix(bias, number, outputs)) return "a bias that does not fit";
        op.linear.bias = data(bias);
        op.linear.bias_dtype = dtype_of(bias);
        of_bias = itemsize(bias);
        op.bias_stride = outputs * of_bias;
    }
    over_outputs(call, target().grouped_linear, op, rows, number, [&](GroupedLinear& part, std::int64_t begin) {
        if (part.linear.bias) part.linear.bias += begin * of_bias;
    });
    return nullptr;
}

Wrong grouped_quantized_linear(const Call& call) {
    if (call.arguments() < 4 || call.arguments() > 5 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &x = call.argument(0), &weight = call.argument(2), &scales = call.argument(3), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (!is_narrow(x) || weight.dtype != xla::kUint8) return "a dtype without a kernel";
    if (elements(x) == 0 || elements(weight) == 0) return "an empty array";
    const bool biased = call.arguments() == 5;
    const auto bits = static_cast<int>(call.number("bits", 0));
    const auto group_size = static_cast<std::int64_t>(call.number("group_size", 0));
    if (Wrong wrong = check_format(bits, group_size, biased, length(x))) return wrong;
    const std::int64_t number = weight.dims[0], outputs = weight.rank == 3 ? weight.dims[1] : 0;
    if (!is_stack(weight, number, outputs, length(x) * bits / 8)) return "weights that do not fit the last axis";
    const std::int64_t groups = length(x) / group_size;
    for (std::int64_t i = 3; i < call.arguments(); ++i) {
        const Buffer& p = call.argument(i);
        if (!is_narrow(p)) return "scales without a kernel";
        if (p.dtype != scales.dtype || !is_stack(p, number, outputs, groups)) return "scales or biases that do not fit";
    }
    ExpertRows rows;
    if (Wrong wrong = read_rows(x, call.argument(1), number, rows)) return wrong;
    if (y.dtype != x.dtype || elements(y) != rows.x.count * outputs) return "a result of another shape or dtype";
    GroupedQuantizedLinear op{};
    op.linear.weight = data(weight);
    op.linear.weight_stride = weight.dims[2];
    op.linear.scales = data(scales);
    op.linear.scale_stride = op.linear.bias_stride = groups * itemsize(scales);
    op.linear.biases = biased ? data(call.argument(4)) : nullptr;
    op.linear.outputs = outputs;
    op.linear.group_size = group_size;
    op.linear.bits = bits;
    op.linear.y = data(y);
    op.linear.x_dtype = dtype_of(x);
    op.linear.scale_dtype = dtype_of(scales);
    over_outputs(call, target().grouped_quantized_linear, op, rows, number,
                 [&](GroupedQuantizedLinear& part, std::int64_t begin) {
                     part.linear.scales += begin * op.linear.scale_stride;
                     if (biased) part.linear.biases += begin * op.linear.bias_stride;
                 });
    return nullptr;
}

xla::Error* error(const xla::CallFrame& frame, int code, const char* message) {
    xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, message, code};
    return frame.api->create_error(&arguments);
}

template <Wrong (*kKernel)(const Call&)>
xla::Error* handle(xla::CallFrame* frame) {
    for (xla::Extension* e = frame->extensions; e; e = e->next) {
        if (e->type != xla::kMetadata) continue;
        xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(e)->metadata;
        metadata.version.major = xla::kMajor;
        metadata.version.minor = xla::kMinor;
        metadata.traits = 0;
        return nullptr;
    }
    if (frame->stage != xla::kExecute) return nullptr;
    if (frame->size < sizeof(xla::CallFrame) || frame->arguments.size < sizeof(xla::Buffers) ||
        frame->results.size < sizeof(xla::Buffers) || frame->attributes.size < sizeof(xla::Attributes))
        return error(*frame, xla::kInternal, "tensorops: XLA passes other structures than this version knows");
    const Wrong wrong = kKernel(Call{*frame});
    if (!wrong) return nullptr;
    return error(*frame, xla::kInvalidArgument, (std::string("tensorops: a kernel was given ") + wrong).c_str());
}

struct NamedHandler {
    const char* name;
    xla::Handler* handler;
};

constexpr NamedHandler kHandlers[] = {
    {"relu", handle<activation<Function::relu, 1>>},
    {"sigmoid", handle<activation<Function::sigmoid, 1>>},
    {"silu", handle<activation<Function::silu, 1>>},
    {"softplus", handle<activation<Function::softplus, 1>>},
    {"gelu", handle<activation<Function::gelu, 1>>},
    {"gelu_tanh", handle<activation<Function::gelu_tanh, 1>>},
    {"quick_gelu", handle<activation<Function::quick_gelu, 1>>},
    {"mish", handle<activation<Function::mish, 1>>},
    {"elu", handle<activation<Function::elu, 1>>},
    {"selu", handle<activation<Function::selu, 1>>},
    {"swiglu", handle<activation<Function::swiglu, 2>>},
    {"geglu", handle<activation<Function::geglu, 2>>},
    {"softmax", handle<softmax<Normalized::softmax>>},
    {"log_softmax", handle<softmax<Normalized::log_softmax>>},
    {"logsumexp", handle<softmax<Normalized::logsumexp>>},
    {"rms_norm", handle<rms_norm<1>>},
    {"add_rms_norm", handle<rms_norm<2>>},
    {"layer_norm", handle<layer_norm>},
    {"group_norm", handle<group_norm>},
    {"instance_norm", handle<group_norm>},
    {"l2_norm", handle<l2_norm>},
    {"quantized_linear", handle<quantized_linear>},
    {"top_k", handle<top_k>},
    {"grouped_linear", handle<grouped_linear>},
    {"grouped_quantized_linear", handle<grouped_quantized_linear>},
};

}  // namespace

void bind_xla(nb::module_& m) {
    m.def(
        "xla_handlers",
        [] {
            nb::dict handlers;
            for (const NamedHandler& h : kHandlers) handlers[h.name] = nb::capsule(reinterpret_cast<void*>(h.handler));
            return handlers;
        },
        "The kernels as handlers of XLA's foreign function interface, in capsules by name.");
}

}  // namespace tensorops
