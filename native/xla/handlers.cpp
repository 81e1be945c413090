#include "handlers.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "pool.h"
#include "relax.h"

namespace tensorops::xla {

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

std::int64_t threads_of(const CallFrame& frame) {
    if (frame.api->size < sizeof(Api)) return 1;
    std::int64_t threads = 1;
    NumThreadsArguments arguments{sizeof arguments, nullptr, frame.context, &threads};
    return succeeded(frame, frame.api->num_threads(&arguments)) ? threads : 1;
}

void share_out(const CallFrame& frame, std::int64_t count, const void* op, void (*work)(const void*, std::int64_t)) {
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

Team::Team(const CallFrame& frame) : frame_(frame) {
    threads = threads_of(frame_);
    run = [](const Lender& lent, int parts, void (*work)(const void*, Member), const void* context) {
        const auto part = [work, context, parts](std::int64_t i) { work(context, Member{static_cast<int>(i), parts}); };
        share_out(static_cast<const Team&>(lent).frame_, parts, &part,
                  [](const void* op, std::int64_t i) { (*static_cast<const decltype(part)*>(op))(i); });
    };
    lender = this;
}

// ------------------------------------------------------------------------------------------------------ frames

namespace {

Dtype dtype_of(int code) {
    constexpr std::pair<int, Dtype> kCodes[] = {
        {kFloat32, Dtype::float32}, {kFloat16, Dtype::float16}, {kBFloat16, Dtype::bfloat16},
        {kFloat64, Dtype::float64}, {kBool, Dtype::boolean},    {kInt8, Dtype::int8},
        {kInt16, Dtype::int16},     {kInt32, Dtype::int32},     {kInt64, Dtype::int64},
        {kUint8, Dtype::uint8},     {kUint16, Dtype::uint16},   {kUint32, Dtype::uint32},
        {kUint64, Dtype::uint64},
    };
    for (const auto& [known, dtype] : kCodes)
        if (known == code) return dtype;
    return Dtype::other;
}

Array array_of(const Buffer& b) {
    return {static_cast<char*>(b.data), b.dims, nullptr, dtype_of(b.dtype), static_cast<int>(b.rank)};
}

Value value_of(int kind, const void* item) {
    Value v;
    if (kind == kString) {
        const Span& text = *static_cast<const Span*>(item);
        return Value::of_text({text.data, text.length});
    }
    if (kind == kDenseArray) {
        const DenseArray& all = *static_cast<const DenseArray*>(item);
        v.kind = all.dtype == kInt64 ? Value::integers : Value::refused;
        v.as_integers = {static_cast<const std::int64_t*>(all.data), static_cast<int>(all.length)};
        return v;
    }
    const Scalar& scalar = *static_cast<const Scalar*>(item);
    if (kind != kScalar) return v;
    if (scalar.dtype == kFloat64) {
        v.kind = Value::number;
        v.as_number = *static_cast<const double*>(scalar.value);
    } else if (scalar.dtype == kInt64) {
        v.kind = Value::integer;
        v.as_integer = *static_cast<const std::int64_t*>(scalar.value);
    } else if (scalar.dtype == kBool) {
        v.kind = Value::flag;
        v.as_flag = *static_cast<const bool*>(scalar.value);
    }
    return v;
}

class FrameCall : public Call {
  public:
    FrameCall(const Operator& which, const CallFrame& frame) : Call(which, values_), results_(frame.results) {
        names_dtypes = true;
        may_fail = false;  // a program cannot raise an error of its own
    }

    // Reads the frame; returns an error's text, or nullptr.
    const char* read(const CallFrame& frame) {
        std::copy(op.defaults.begin(), op.defaults.end(), values);
        const Attributes& all = frame.attributes;
        std::uint64_t given = 0;
        for (std::int64_t i = 0; i < all.count; ++i) {
            const std::string_view name(all.names[i]->data, all.names[i]->length);
            const Value value = value_of(all.kinds[i], all.items[i]);
            if (name == "arrays") {
                given = static_cast<std::uint64_t>(value.as_integer);
                continue;
            }
            const int place = op.find(name);
            if (place < 0) return "an unknown option";
            values[place] = value;
        }
        std::int64_t argument = 0;
        for (std::size_t place = 0; place < op.parameters.size(); ++place) {
            if ((given >> place & 1) == 0) continue;
            if (argument == frame.arguments.count) return "too few arrays";
            values[place] = Value::of(array_of(*static_cast<const Buffer*>(frame.arguments.items[argument++])));
        }
        return argument == frame.arguments.count ? nullptr : "too many arrays";
    }

  protected:
    bool make_one(int index, const Result& result) override {  // the frame has those that are wanted
        if (next_ < results_.count) {
            const Array made = array_of(*static_cast<const Buffer*>(results_.items[next_++]));
            pool::request_huge_pages(made.data, static_cast<std::size_t>(made.bytes()));  // fresh for every call
            return take(index, made, result);
        }
        reason = "the call has too few results";
        return false;
    }
    void run(std::int64_t, void (*work)(const void*), const void* context) override { work(context); }

  private:
    Value values_[kMostParameters];
    const Buffers& results_;
    std::int64_t next_ = 0;
};

// A handler answers XLA's question for its version, and calls its operator.
Error* handle(const Operator& op, CallFrame* frame) {
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
    FrameCall call(op, *frame);
    if (const char* wrong = call.read(*frame))
        return error(*frame, kInvalidArgument, ("tensorops: " + op.name + " was given " + wrong).c_str());
    const Team team(*frame);
    try {
        const Reason reason = call_operator(call);
        if (reason.empty()) return nullptr;
        return error(*frame, kInvalidArgument, ("tensorops: " + op.name + ": " + reason).c_str());
    } catch (const std::bad_alloc&) {
        return error(*frame, kResourceExhausted, ("tensorops: " + op.name + ": there is not enough memory").c_str());
    }
}

// XLA calls a function without a context, so there is one for each place in the table of operators.
constexpr std::size_t kMostOperators = 128;

template <std::size_t kPlace>
Error* handle_place(CallFrame* frame) {
    return handle(*operators()[kPlace], frame);
}

template <std::size_t... kPlaces>
std::array<Handler*, sizeof...(kPlaces)> all_handlers(std::index_sequence<kPlaces...>) {
    return {handle_place<kPlaces>...};
}

}  // namespace

std::vector<std::pair<std::string, Handler*>> handlers() {
    const auto all = all_handlers(std::make_index_sequence<kMostOperators>());
    std::vector<std::pair<std::string, Handler*>> named;
    for (std::size_t place = 0; place < operators().size() && place < all.size(); ++place)
        if (operators()[place]->callers == Callers::all) named.emplace_back(operators()[place]->name, all[place]);
    return named;
}

}  // namespace tensorops::xla
