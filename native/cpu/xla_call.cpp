#include "xla_call.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "relax.h"

namespace tensorops::xla {

Dtype dtype_of(const Buffer& b) {
    switch (b.dtype) {
        case kFloat16:
            return Dtype::float16;
        case kBFloat16:
            return Dtype::bfloat16;
        case kFloat32:
            return Dtype::float32;
        case kFloat64:
            return Dtype::float64;
        default:
            return Dtype::other;
    }
}

std::int64_t itemsize(const Buffer& b) {
    switch (b.dtype) {
        case kBool:
        case kInt8:
        case kUint8:
            return 1;
        case kInt16:
        case kUint16:
        case kFloat16:
        case kBFloat16:
            return 2;
        case kInt64:
        case kUint64:
        case kFloat64:
            return 8;
        default:
            return 4;
    }
}

std::int64_t elements(const Buffer& b) {
    std::int64_t n = 1;
    for (std::int64_t d = 0; d < b.rank; ++d) n *= b.dims[d];
    return n;
}

bool same(const Buffer& a, const Buffer& b) {
    if (a.dtype != b.dtype || a.rank != b.rank) return false;
    for (std::int64_t d = 0; d < a.rank; ++d)
        if (a.dims[d] != b.dims[d]) return false;
    return true;
}

bool is_vector(const Buffer& b, std::int64_t n) { return b.rank == 1 && b.dims[0] == n; }

bool is_matrix(const Buffer& b, std::int64_t rows, std::int64_t columns) {
    return b.rank == 2 && b.dims[0] == rows && b.dims[1] == columns;
}

Rows rows_of(const Buffer& b, std::int64_t axes) {
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

namespace {

// The name of the option that tells one stride of an argument
class StrideName {
  public:
    explicit StrideName(std::string_view argument) : text_(argument) { text_ += "_0"; }
    std::string_view of_axis(std::int64_t axis) {
        text_.back() = static_cast<char>('0' + axis);
        return text_;
    }

  private:
    std::string text_;
};

}  // namespace

bool Call::has_strides(std::string_view name) const {
    return !std::isnan(number(StrideName(name).of_axis(0), std::numeric_limits<double>::quiet_NaN()));
}

Strides strides_of(const Call& call, const Buffer& b, std::string_view name) {
    Strides strides;
    StrideName option(name);
    const bool given = b.rank <= Strides::kMost;
    std::int64_t step = itemsize(b);
    for (std::int64_t d = b.rank - 1; d >= 0; --d) {
        const auto contiguous = static_cast<double>(step);
        strides.bytes[d] = given ? static_cast<std::int64_t>(call.number(option.of_axis(d), contiguous)) : step;
        step *= b.dims[d];
    }
    return strides;
}

Rows rows_of(const Call& call, const Buffer& b, std::string_view name, std::int64_t axes) {
    const Strides strides = strides_of(call, b, name);
    Rows rows{};
    rows.data = data(b);
    rows.length = rows.count = 1;
    for (std::int64_t d = 0; d < b.rank; ++d)
        if (d < b.rank - axes)
            add_axis(rows, b.dims[d], strides.bytes[d]);
        else
            rows.length *= b.dims[d];
    return rows;
}

bool is_integer(const Buffer& b) { return b.dtype >= kInt8 && b.dtype <= kUint64; }

namespace {

template <class T, class To>
std::vector<To> read_as(const Buffer& b) {
    const T* from = static_cast<const T*>(b.data);
    std::vector<To> all(static_cast<std::size_t>(elements(b)));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<To>(from[i]);
    return all;
}

// What 16 bits mean, of which so many are the exponent's.
template <int kExponentBits>
double value_of_half(std::uint16_t bits) {
    constexpr int kFractionBits = 15 - kExponentBits, kLargest = (1 << kExponentBits) - 1;
    const int exponent = (bits >> kFractionBits) & kLargest;
    const int fraction = bits & ((1 << kFractionBits) - 1);
    const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == kLargest) {
        using Limits = std::numeric_limits<double>;
        return sign * (fraction == 0 ? Limits::infinity() : Limits::quiet_NaN());
    }
    const int significand = exponent == 0 ? fraction : fraction + (1 << kFractionBits);
    return sign * std::ldexp(significand, std::max(exponent, 1) - kLargest / 2 - kFractionBits);
}

template <class To>
std::vector<To> read_integers_as(const Buffer& b) {
    switch (b.dtype) {
        case kInt8:
            return read_as<std::int8_t, To>(b);
        case kInt16:
            return read_as<std::int16_t, To>(b);
        case kInt32:
            return read_as<std::int32_t, To>(b);
        case kUint8:
            return read_as<std::uint8_t, To>(b);
        case kUint16:
            return read_as<std::uint16_t, To>(b);
        case kUint32:
            return read_as<std::uint32_t, To>(b);
        case kUint64:
            return read_as<std::uint64_t, To>(b);
        default:
            return read_as<std::int64_t, To>(b);
    }
}

}  // namespace

std::vector<std::int64_t> read_integers(const Buffer& b) { return read_integers_as<std::int64_t>(b); }

std::vector<double> read_doubles(const Buffer& b) {
    if (is_integer(b)) return read_integers_as<double>(b);
    if (b.dtype == kFloat64) return read_as<double, double>(b);
    if (b.dtype == kFloat32) return read_as<float, double>(b);
    std::vector<double> all;
    for (const std::uint16_t bits : read_as<std::uint16_t, std::uint16_t>(b))
        all.push_back(b.dtype == kFloat16 ? value_of_half<5>(bits) : value_of_half<8>(bits));
    return all;
}

Rows span_of(const Buffer& b, std::int64_t begin, std::int64_t end) {
    Rows rows{};
    rows.data = data(b) + begin * itemsize(b);
    rows.count = 1;
    rows.length = end - begin;
    return rows;
}

Wrong check_arrays(const Call& call, std::int64_t arrays) {
    const Buffer& x = call.argument(0);
    if (dtype_of(x) == Dtype::other) return "a dtype without a kernel";
    if (x.rank == 0) return "an array of 0 dimensions";
    for (std::int64_t i = 1; i < arrays; ++i)
        if (!same(x, call.argument(i))) return "arrays that differ in shape or dtype";
    return nullptr;
}

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

Wrong check_format(int bits, std::int64_t group_size, bool biased, std::int64_t columns) {
    if ((bits != 4 && bits != 8) || (bits == 4 && !biased)) return "another number of bits";
    const bool fits = group_size >= 1 && columns % group_size == 0 && group_size * bits % 8 == 0;
    return fits ? nullptr : "another size of groups";
}

namespace {

// Parts of the work, which threads take one after another.
struct Parts {
    void (*work)(const void* op, std::int64_t part);
    const void* op;
    std::int64_t count;
    std::atomic<std::int64_t> next{0}, done{0};
    std::mutex mutex;
    std::condition_variable finished;

    void run() {
        std::int64_t mine = 0;
        one_thread = true;
        for (std::int64_t part; (part = next.fetch_add(1)) < count; ++mine) work(op, part);
        one_thread = false;
        if (mine == 0 || done.fetch_add(mine) + mine < count) return;
        const std::lock_guard<std::mutex> lock(mutex);
        finished.notify_one();
    }
    void wait() {
        constexpr int kTurns = 2000;  // some tens of microseconds
        for (int turn = 0; turn < kTurns; ++turn, relax())
            if (done == count) return;
        std::unique_lock<std::mutex> lock(mutex);
        finished.wait(lock, [this] { return done == count; });
    }
};

// Threads of XLA that have finished their parts, and wait a moment for those of the next call. To wake another thread
// took the caller 16 µs, and that thread as long again until it began; a product of a matrix in a language model takes
// about 30.
class Awake {
  public:
    // Lets the waiting threads take parts, and returns how many they are.
    std::int64_t offer(const std::shared_ptr<Parts>& parts) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            offered_ = parts;
        }
        ++offers_;
        return waiting_;
    }

    // Takes parts, and then those of other calls until there are none for a while.
    void serve(std::shared_ptr<Parts> parts) {
        for (std::uint64_t seen = offers_; parts; parts = next(seen)) parts->run();
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds kAwake{100};  // longer than between two products of a language model

    std::shared_ptr<Parts> next(std::uint64_t& seen) {
        ++waiting_;
        const auto since = Clock::now();
        for (int turn = 1; offers_ == seen && (turn % 64 != 0 || Clock::now() - since < kAwake); ++turn) relax();
        --waiting_;
        if (offers_ == seen) return nullptr;
        seen = offers_;
        const std::lock_guard<std::mutex> lock(mutex_);
        return offered_;
    }

    std::mutex mutex_;
    std::shared_ptr<Parts> offered_;  // the latest; once all are taken, nothing else in it is read
    std::atomic<std::uint64_t> offers_{0};
    std::atomic<std::int64_t> waiting_{0};
};

Awake* const awake = new Awake;  // never deleted: XLA's threads outlive main()

void take_parts(void* data) {
    const std::unique_ptr<std::shared_ptr<Parts>> parts(static_cast<std::shared_ptr<Parts>*>(data));
    awake->serve(std::move(*parts));  // a task that begins late finds no parts left, and touches nothing else
}

// Whether there was no error; XLA's object for it is freed.
bool succeeded(const CallFrame& frame, Error* error) {
    if (!error) return true;
    ErrorToDestroy unused{sizeof unused, nullptr, error};
    frame.api->destroy_error(&unused);
    return false;
}

Error* error(const CallFrame& frame, int code, const char* message) {
    ErrorArguments arguments{sizeof(ErrorArguments), nullptr, message, code};
    return frame.api->create_error(&arguments);
}

}  // namespace

namespace {

void share_out_replaying(std::int64_t count, const void* op, void (*work)(const void*, std::int64_t)) {
    const auto members = [count, op, work](Member member) {
        one_thread = true;
        for (std::int64_t part = member.index; part < count; part += member.count) work(op, part);
        one_thread = false;
    };
    if (count < 2) return members(Member{0, 1});
    replaying->run(
        *replaying, static_cast<int>(count),
        [](const void* context, Member member) { (*static_cast<const decltype(members)*>(context))(member); },
        &members);
}

}  // namespace

std::int64_t threads_of(const CallFrame& frame) {
    if (replaying) return replaying->threads;
    if (frame.api->size < sizeof(Api)) return 1;
    std::int64_t threads = 1;
    NumThreadsArguments arguments{sizeof arguments, nullptr, frame.context, &threads};
    return succeeded(frame, frame.api->num_threads(&arguments)) ? threads : 1;
}

void share_out(const CallFrame& frame, std::int64_t count, const void* op, void (*work)(const void*, std::int64_t)) {
    if (replaying) return share_out_replaying(count, op, work);
    const auto parts = std::make_shared<Parts>();
    parts->work = work;
    parts->op = op;
    parts->count = count;
    const std::int64_t helpers = count > 1 ? awake->offer(parts) : 0;
    for (std::int64_t helper = 1 + helpers; helper < count; ++helper) {
        auto shared = std::make_unique<std::shared_ptr<Parts>>(parts);
        ScheduleArguments arguments{sizeof arguments, nullptr, frame.context, take_parts, shared.get()};
        if (!succeeded(frame, frame.api->schedule(&arguments))) break;
        shared.release();  // now owned by the task
    }
    parts->run();
    parts->wait();
}

Team::Team(const Call& call) : frame_(call.frame) {
    if (replaying) {
        lender = replaying;
        return;
    }
    threads = threads_of(frame_);
    run = [](const Lender& lent, int parts, void (*work)(const void*, Member), const void* context) {
        const auto part = [work, context, parts](std::int64_t i) { work(context, Member{static_cast<int>(i), parts}); };
        share_out(static_cast<const Team&>(lent).frame_, parts, &part,
                  [](const void* op, std::int64_t i) { (*static_cast<const decltype(part)*>(op))(i); });
    };
    lender = this;
}

Error* answer(CallFrame* frame, Wrong (*kernel)(const Call&)) {
    for (Extension* e = frame->extensions; e; e = e->next) {
        if (e->type != kMetadata) continue;
        Metadata& metadata = *reinterpret_cast<MetadataExtension*>(e)->metadata;
        metadata.version.major = kMajor;
        metadata.version.minor = kMinor;
        metadata.traits = 0;
        return nullptr;
    }
    if (frame->stage != kExecute) return nullptr;
    if (frame->size < sizeof(CallFrame) || frame->arguments.size < sizeof(Buffers) ||
        frame->results.size < sizeof(Buffers) || frame->attributes.size < sizeof(Attributes))
        return error(*frame, kInternal, "tensorops: XLA passes other structures than this version knows");
    Wrong wrong;
    try {
        wrong = kernel(Call{*frame});
    } catch (const std::bad_alloc&) {
        return error(*frame, kResourceExhausted, "tensorops: there is not enough memory for a kernel");
    }
    if (!wrong) return nullptr;
    return error(*frame, kInvalidArgument, (std::string("tensorops: a kernel was given ") + wrong).c_str());
}

std::vector<Handlers> all_handlers() {
    return {activation_handlers(), attention_handlers(),     experts_handlers(),    linear_handlers(),
            loss_handlers(),       normalization_handlers(), positional_handlers(), quantization_handlers(),
            sampling_handlers(),   selection_handlers(),     moves_handlers()};
}

}  // namespace tensorops::xla
