#include "plan.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>

#include "interruption.h"
#include "lent_threads.h"

namespace tensorops {

// A call of a plan; its values, arrays of results and the places of its arrays follow in the same block.
class Plan::Recorded : public Call {
  public:
    static std::size_t bytes(const Operator& op, std::size_t arrays) {
        return sizeof(Recorded) + op.parameters.size() * sizeof(Value) + op.results.size() * sizeof(Array) +
               arrays * sizeof(Array*);
    }

    explicit Recorded(const Operator& which) : Call(which, reinterpret_cast<Value*>(this + 1)) {
        results = reinterpret_cast<Array*>(values + which.parameters.size());
        arrays = reinterpret_cast<Array**>(results + which.results.size());
        std::copy(which.defaults.begin(), which.defaults.end(), values);
        names_dtypes = true;
    }

    const Array* given(int index) const override { return index < result_count ? &results[index] : nullptr; }
    const Array* argument(const char* name) const {
        const int place = op.find(name);
        return place >= 0 && values[place].kind == Value::array ? &values[place].as_array : nullptr;
    }
    // Calls the operator; false if it refuses, with a reason.
    bool call() {
        try {
            reason = call_operator(*this);
        } catch (const std::bad_alloc&) {
            reason = "there is not enough memory";
        }
        return reason.empty();
    }
    void fetch_parameters() const;

    Array* results;
    Array** arrays;  // the arguments in the order in which they were recorded, and the results
    int array_count = 0, result_count = 0;
    bool is_product = false;
    std::uint64_t parameters = 0;  // bits of the arrays that are vectors which no call writes: a norm's weight
    Next next{};                   // those after it that read much, up to a product
    Group* group = nullptr;        // that begins with it

  protected:
    bool make_one(int index, const Result& result) override {
        if (index < result_count) return take(index, results[index], result);
        reason = "the call has too few results";
        return false;
    }
    void run(std::int64_t, void (*work)(const void*), const void* context) override { work(context); }
};

Plan::Block::Block(const Operator& op, std::size_t arrays) : bytes(Recorded::bytes(op, arrays)) {
    static_assert(alignof(Recorded) <= alignof(std::uint64_t) && sizeof(Value) % 8 == 0 && sizeof(Array) % 8 == 0);
    memory = std::make_unique<std::uint64_t[]>(bytes / sizeof(std::uint64_t));
    new (memory.get()) Recorded(op);
}

Plan::Block::~Block() {
    if (memory) call().~Recorded();
}

namespace {

void fetch_bytes(const void* begin, std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    for (std::size_t i = 0; i < bytes + kLine; i += kLine) __builtin_prefetch(static_cast<const char*>(begin) + i);
}

// Threads of the team wait for the next call, and begin within a fraction of a microsecond. Attention to 65 tokens in
// SmolLM2-135M, whose keys and values are 100 KiB from memory, took 6.3 µs on two threads and 9.1 on one.
constexpr std::int64_t kAwakeBytesPerThread = 32 * 1024;
// On two threads, swiglu of 144 KiB took 3.0 µs instead of 4.8 (7 instead of 18 without a common cache), add_rms_norm
// of 72 KiB 2.1 instead of 2.0 (6 instead of 4).
constexpr std::int64_t kAwakeRowBytes = 64 * 1024;

// While this exists, calls of this thread use a team whose threads stay awake.
class Replaying {
  public:
    explicit Replaying(int threads) : team_(lent_threads(threads)) {
        lender = &team_;
        bytes_per_thread = kAwakeBytesPerThread;
        row_bytes_per_thread = kAwakeRowBytes;
    }
    ~Replaying() {
        lender = nullptr;
        bytes_per_thread = row_bytes_per_thread = kBytesPerThread;
    }
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

  private:
    Lender team_;
};

// While this exists, calls of this thread use no other threads.
class SingleThreaded {
  public:
    SingleThreaded() : outer_(one_thread) { one_thread = true; }
    ~SingleThreaded() { one_thread = outer_; }
    SingleThreaded(const SingleThreaded&) = delete;
    SingleThreaded& operator=(const SingleThreaded&) = delete;

  private:
    const bool outer_;
};

// Calls f(block, thread) for all blocks, which threads take as they become free.
template <class F>
void over_blocks(int threads, std::int64_t blocks, const F& f) {
    std::atomic<std::int64_t> next{0};
    on_team(threads, [&](Member member) {
        const SingleThreaded single;
        for (std::int64_t block; (block = next.fetch_add(1, std::memory_order_relaxed)) < blocks;)
            f(block, member.index);
    });
}

}  // namespace

std::int64_t Plan::add_array(Dtype dtype, char* data, std::vector<std::int64_t> shape,
                             std::vector<std::int64_t> strides) {
    if (!strides.empty() && strides.size() != shape.size()) throw std::invalid_argument("other strides than axes");
    const auto ndim = static_cast<int>(shape.size());
    const std::int64_t* steps = strides.empty() ? nullptr : shapes_.insert(std::move(strides)).first->data();
    const std::int64_t* dims = shapes_.insert(std::move(shape)).first->data();
    arrays_.push_back({{data, dims, steps, dtype, ndim}, {}});
    return static_cast<std::int64_t>(arrays_.size()) - 1;
}

void Plan::move_array(std::int64_t array, char* data) {
    PlanArray& moved = arrays_.at(static_cast<std::size_t>(array));
    moved.array.data = data;
    for (Array* copy : moved.copies) copy->data = data;
}

Value Plan::value_of(const Option& option) {
    Value v;
    if (const auto* number = std::get_if<double>(&option)) {
        v.kind = Value::number;
        v.as_number = *number;
    } else if (const auto* integer = std::get_if<std::int64_t>(&option)) {
        v.kind = Value::integer;
        v.as_integer = *integer;
    } else if (const auto* flag = std::get_if<bool>(&option)) {
        v.kind = Value::flag;
        v.as_flag = *flag;
    } else if (const auto* text = std::get_if<std::string>(&option)) {
        v = Value::of_text(*texts_.insert(*text).first);
    } else {
        const std::vector<std::int64_t>& kept = *shapes_.insert(std::get<std::vector<std::int64_t>>(option)).first;
        v.kind = Value::integers;
        v.as_integers = {kept.data(), static_cast<int>(kept.size())};
    }
    return v;
}

void Plan::add_call(const std::string& name, const std::vector<std::pair<std::string, std::int64_t>>& arguments,
                    const std::vector<std::int64_t>& results, const std::map<std::string, Option>& options) {
    const Operator* op = find_operator(name);
    if (!op) throw std::invalid_argument("there is no operator " + name);
    const auto place_of = [op](const std::string& parameter) {
        const int place = op->find(parameter);
        if (place < 0) throw std::invalid_argument(op->name + " has no parameter " + parameter);
        return place;
    };
    if (results.size() > op->results.size()) throw std::invalid_argument(name + " has fewer results");
    if (results.empty()) throw std::invalid_argument(name + " needs a result");
    Block block(*op, arguments.size() + results.size());
    Recorded& call = block.call();
    std::uint32_t missing = op->required;
    for (const auto& [parameter, option] : options) {
        call.values[place_of(parameter)] = value_of(option);
        missing &= ~(std::uint32_t{1} << place_of(parameter));
    }
    std::vector<std::pair<std::int64_t, Array*>> copies;
    const auto add = [&](std::int64_t number, Array* copy) {
        *copy = arrays_.at(static_cast<std::size_t>(number)).array;
        copies.emplace_back(number, copy);
        call.arrays[call.array_count++] = copy;
    };
    for (const auto& [parameter, number] : arguments) {
        Value& value = call.values[place_of(parameter)];
        value.kind = Value::array;
        add(number, &value.as_array);
        missing &= ~(std::uint32_t{1} << place_of(parameter));
    }
    if (missing != 0) throw std::invalid_argument(name + " lacks an argument");
    for (const std::int64_t number : results) add(number, &call.results[call.result_count++]);
    for (const auto& [number, copy] : copies) arrays_[static_cast<std::size_t>(number)].copies.push_back(copy);
    for (const std::int64_t number : results) arrays_[static_cast<std::size_t>(number)].is_written = true;
    call.is_product = name == "linear" || name == "panel_linear" || name == "quantized_linear";
    for (std::size_t i = 0; !call.is_product && i < std::min<std::size_t>(arguments.size(), 64); ++i)
        if (call.arrays[i]->ndim == 1 && !arrays_[static_cast<std::size_t>(arguments[i].second)].is_written)
            call.parameters |= std::uint64_t{1} << i;
    if (call.is_product || name == "scaled_dot_product_attention")
        for (auto before = calls_.rbegin(); before != calls_.rend(); ++before) {
            auto& [first, second] = before->call().next;
            if (second || (first && first->is_product)) break;
            (first ? second : first) = &call;
        }
    calls_.push_back(std::move(block));
}

void Plan::Block::fetch() const { fetch_bytes(memory.get(), bytes); }

void Plan::Recorded::fetch_parameters() const {
    constexpr std::int64_t kMost = 4096;
    for (std::uint64_t left = parameters; left != 0; left &= left - 1) {
        const Array& a = *arrays[__builtin_ctzll(left)];
        fetch_bytes(a.data, static_cast<std::size_t>(std::min(a.bytes(), kMost)));
    }
}

// Tells the team's threads which weights, keys and values are read next.
void Plan::tell_what_is_read(const Next& calls) {
    int count = 0;
    const auto add = [&count](const Array& a, std::int64_t rows, std::int64_t bytes, std::int64_t stride) {
        if (count == ReadNext::kMost) return;
        ReadNext::Part& part = read_next.parts[count++];
        part.begin.store(a.data, std::memory_order_relaxed);
        part.rows.store(rows, std::memory_order_relaxed);
        part.bytes.store(bytes, std::memory_order_relaxed);
        part.stride.store(stride, std::memory_order_relaxed);
    };
    for (const Recorded* call : calls) {
        if (!call) break;
        if (call->is_product) {
            const Array& weight = call->values[1].as_array;
            add(weight, 1, weight.bytes(), weight.bytes());
            continue;
        }
        const Array &k = call->values[1].as_array, &v = call->values[2].as_array;
        if (call->argument("page_table") || k.ndim != 4 || v.ndim != 4) continue;
        std::int64_t keys = k.shape[2];
        if (const Array* lengths = call->argument("lengths")) {
            std::int64_t longest = 0;
            for (const std::int64_t n : read_integers(*lengths)) longest = std::max(longest, n);
            keys = std::min(keys, longest);
        }
        for (const Array* a : {&k, &v}) {
            const std::int64_t row = a->length() * a->item();
            add(*a, a->shape[0] * a->shape[1], keys * row, k.shape[2] * row);
        }
    }
    read_next.count.store(count, std::memory_order_relaxed);
    read_next.changes.store(read_next.changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

int Plan::threads() const { return static_cast<int>(lent_threads(threads_).threads); }

void Plan::run_by_rows(std::size_t begin, std::int64_t rows, std::int64_t block, std::int64_t threads,
                       std::vector<std::vector<Rows>> arrays) {
    if (rows < 1 || block < 1 || threads < 1 || arrays.empty() || begin + arrays.size() > calls_.size())
        throw std::invalid_argument("no such calls");
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        const Recorded& call = calls_[begin + i].call();
        if (arrays[i].size() != static_cast<std::size_t>(call.array_count))
            throw std::invalid_argument("another number of arrays");
        for (std::size_t k = 0; k < arrays[i].size(); ++k) {
            const Array& whole = *call.arrays[k];
            const auto [axis, bytes, each_thread] = arrays[i][k];
            const bool has_axis = axis >= 0 && axis < whole.ndim && whole.shape[axis] == rows;
            if (each_thread < 0 || (bytes == 0 ? each_thread > 0 : !has_axis))
                throw std::invalid_argument("an array without these rows");
        }
    }
    const std::size_t end = begin + arrays.size();
    calls_[begin].call().group =
        &groups_.emplace_back(Group{begin, end, rows, block, threads, std::move(arrays), {}, {}});
}

bool Plan::is_within(std::size_t place) const {
    return std::any_of(groups_.begin(), groups_.end(),
                       [place](const Group& group) { return group.begin < place && place < group.end; });
}

void Plan::copy_for_threads(Group& group, std::size_t threads) {
    while (group.copies.size() < threads) {
        std::vector<Block>& copies = group.copies.emplace_back();
        for (std::size_t i = group.begin; i < group.end; ++i) {
            const Recorded& call = calls_[i].call();
            Recorded& copy = copies.emplace_back(call.op, static_cast<std::size_t>(call.array_count)).call();
            std::copy_n(call.values, call.op.parameters.size(), copy.values);
            std::copy_n(call.results, call.result_count, copy.results);
            copy.result_count = call.result_count;
            copy.array_count = call.array_count;
            for (int k = 0; k < call.array_count; ++k) {
                const auto offset =
                    reinterpret_cast<const char*>(call.arrays[k]) - reinterpret_cast<const char*>(&call);
                copy.arrays[k] = reinterpret_cast<Array*>(reinterpret_cast<char*>(&copy) + offset);
                const Array& whole = *call.arrays[k];
                copy.arrays[k]->shape = group.dimensions.emplace_back(whole.shape, whole.shape + whole.ndim).data();
            }
        }
    }
}

std::size_t Plan::run(Group& group, std::string& message, double* seconds) {
    using Clock = std::chrono::steady_clock;
    const std::int64_t blocks = (group.rows + group.block - 1) / group.block;
    const int threads = static_cast<int>(std::min({lender->threads, group.threads, blocks}));
    copy_for_threads(group, static_cast<std::size_t>(threads));
    std::int64_t row_bytes = 0;
    for (const auto& arrays : group.arrays)
        for (const Rows& each : arrays) row_bytes += each.bytes;
    Interruption* const at = interruption;
    std::mutex mutex;  // for what follows
    std::size_t stopped = group.end;
    std::atomic<bool> failed{false};
    std::vector<double> times(seconds ? group.end - group.begin : 0);

    const auto one_block = [&](int thread, std::int64_t begin, std::vector<double>& own) {
        const std::int64_t count = std::min(group.block, group.rows - begin);
        for (std::size_t i = group.begin; i < group.end; ++i) {
            const auto since = seconds ? Clock::now() : Clock::time_point{};
            Recorded& call = group.copies[static_cast<std::size_t>(thread)][i - group.begin].call();
            const std::vector<Rows>& arrays = group.arrays[i - group.begin];
            for (std::size_t k = 0; k < arrays.size(); ++k) {
                const Rows& rows = arrays[k];
                Array& part = *call.arrays[k];
                part.data = calls_[i].call().arrays[k]->data +
                            (rows.each_thread > 0 ? thread * rows.each_thread : begin * rows.bytes);
                // The copy's shape is this thread's own.
                if (rows.bytes != 0) const_cast<std::int64_t*>(part.shape)[rows.axis] = count;
            }
            if (!call.call()) {
                const std::lock_guard lock(mutex);
                failed = true;
                if (i < stopped) {
                    stopped = i;
                    message = call.reason;
                }
                return;
            }
            if (seconds) own[i - group.begin] += std::chrono::duration<double>(Clock::now() - since).count();
        }
    };
    over_blocks(threads, blocks, [&](std::int64_t index, int thread) {
        if (failed || leaves(at, group.block * row_bytes)) return;
        std::vector<double> own(times.size());
        one_block(thread, index * group.block, own);
        if (!seconds) return;
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < own.size(); ++i) times[i] += own[i];
    });
    std::copy(times.begin(), times.end(), seconds);
    if (failed || (at && at->happened())) return std::min(stopped, group.end - 1);
    return group.end;
}

namespace {

// Scales some times so that they are a whole.
void share(double whole, double* times, std::size_t count) {
    const double sum = std::accumulate(times, times + count, 0.0);
    for (std::size_t i = 0; sum > 0 && i < count; ++i) times[i] *= whole / sum;
}

}  // namespace

std::size_t Plan::run(std::size_t begin, std::size_t end, std::string& message, double* seconds) {
    using Clock = std::chrono::steady_clock;
    constexpr std::size_t kAhead = 8, kParametersAhead = 4;  // calls; what comes next is also told before its call
    const Replaying team(threads_);
    auto since = seconds ? Clock::now() : Clock::time_point{};
    for (std::size_t i = begin; i < std::min(begin + kAhead, end); ++i) calls_[i].fetch();
    Next told{};
    for (std::size_t i = begin; i < end; ++i) {
        if (i + kAhead < end) calls_[i + kAhead].fetch();
        if (i + kParametersAhead < end) calls_[i + kParametersAhead].call().fetch_parameters();
        Recorded& call = calls_[i].call();
        if (told != call.next) tell_what_is_read(told = call.next);
        if (call.group) {
            double* const each = seconds ? seconds + (i - begin) : nullptr;
            const std::size_t stopped = run(*call.group, message, each);
            if (stopped < call.group->end) return stopped;
            i = stopped - 1;
            if (!seconds) continue;
            const auto now = Clock::now();
            share(std::chrono::duration<double>(now - since).count(), each, call.group->end - call.group->begin);
            since = now;
            continue;
        }
        if (!call.call()) {
            message = call.reason;
            return i;
        }
        if (interruption && interruption->happened()) return i;
        if (!seconds) continue;
        const auto now = Clock::now();
        seconds[i - begin] = std::chrono::duration<double>(now - since).count();
        since = now;
    }
    return end;
}

}  // namespace tensorops
