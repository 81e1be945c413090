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

namespace xla {

// In XLA's place, plans define what an error is.
struct Error {
    std::string message;
};

}  // namespace xla

namespace {

const xla::Api* api() {
    static const xla::Api made = [] {
        xla::Api all{};
        all.size = sizeof all;
        all.create_error = [](xla::ErrorArguments* given) { return new xla::Error{given->message}; };
        all.destroy_error = [](xla::ErrorToDestroy* given) { delete given->error; };
        return all;
    }();
    return &made;
}

xla::Handler* find_handler(const std::string& name) {
    for (const xla::Handlers& family : xla::all_handlers())
        for (const xla::NamedHandler& each : family)
            if (name == each.name) return each.handler;
    return nullptr;
}

void fetch_bytes(const void* begin, std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    for (std::size_t i = 0; i < bytes + kLine; i += kLine) __builtin_prefetch(static_cast<const char*>(begin) + i);
}

// Threads of the team wait for the next call, and begin within a fraction of a microsecond. Attention to 65 tokens in
// SmolLM2-135M, whose keys and values are 100 KiB from memory, took 6.3 µs on two threads and 9.1 on one.
constexpr std::int64_t kAwakeBytesPerThread = 32 * 1024;

// While this exists, calls of this thread use a team whose threads stay awake.
class Replaying {
  public:
    explicit Replaying(int threads) : team_(lent_threads(threads)) {
        xla::replaying = &team_;
        bytes_per_thread = kAwakeBytesPerThread;
    }
    ~Replaying() {
        xla::replaying = nullptr;
        bytes_per_thread = kBytesPerThread;
    }
    Replaying(const Replaying&) = delete;
    Replaying& operator=(const Replaying&) = delete;

  private:
    Lender team_;
};

// While this exists, calls of this thread use no other threads.
class Alone {
  public:
    Alone() : outer_(xla::replaying) { xla::replaying = &alone_; }
    ~Alone() { xla::replaying = outer_; }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

  private:
    const Lender* outer_;
    const Lender alone_{1, [](const Lender&, int parts, void (*work)(const void*, Member), const void* context) {
                            for (int part = 0; part < parts; ++part) work(context, Member{part, parts});
                        }};
};

// Calls f(block, thread) for all blocks, which threads take as they become free.
template <class F>
void over_blocks(int threads, std::int64_t blocks, const F& f) {
    std::atomic<std::int64_t> next{0};
    const auto part = [&](Member member) {
        const Alone alone;
        for (std::int64_t block; (block = next.fetch_add(1, std::memory_order_relaxed)) < blocks;)
            f(block, member.index);
    };
    if (threads == 1) return part(Member{0, 1});
    xla::replaying->run(
        *xla::replaying, threads,
        [](const void* context, Member member) { (*static_cast<const decltype(part)*>(context))(member); }, &part);
}

}  // namespace

Plan::Options::Options(const NamedNumbers& given) {
    for (const auto& [name, value] : given) {
        Option& option = all.emplace_back(Option{name, value, {}, {}});
        option.name = {option.text.data(), option.text.size()};
        option.scalar = {xla::kFloat64, &option.value};
        kinds.push_back(xla::kScalar);
        names.push_back(&option.name);
        items.push_back(&option.scalar);
    }
}

xla::Attributes Plan::Options::attributes() {
    const auto count = static_cast<std::int64_t>(all.size());
    return {sizeof(xla::Attributes), nullptr, count, kinds.data(), names.data(), items.data()};
}

xla::Attributes Plan::attributes(const NamedNumbers& options) {
    std::vector<std::pair<std::string, std::uint64_t>> bits;
    for (const auto& [name, value] : options) std::memcpy(&bits.emplace_back(name, 0).second, &value, sizeof value);
    return options_.try_emplace(std::move(bits), options).first->second.attributes();
}

std::int64_t Plan::add_array(int dtype, void* data, std::vector<std::int64_t> shape) {
    const std::vector<std::int64_t>& kept = *shapes_.insert(std::move(shape)).first;
    const auto rank = static_cast<std::int64_t>(kept.size());
    // Nobody writes to a shape.
    auto* const dims = const_cast<std::int64_t*>(kept.data());
    arrays_.push_back({{sizeof(xla::Buffer), nullptr, dtype, data, rank, dims}, {}});
    return static_cast<std::int64_t>(arrays_.size()) - 1;
}

void Plan::move_array(std::int64_t array, void* data) {
    Array& moved = arrays_.at(static_cast<std::size_t>(array));
    moved.buffer.data = data;
    for (xla::Buffer* copy : moved.copies) copy->data = data;
}

Plan::Block Plan::make_call(xla::Handler* handler, const std::vector<std::int64_t>& arguments,
                            const std::vector<std::int64_t>& results) {
    static_assert(alignof(Call) == alignof(std::uint64_t) && alignof(xla::Buffer) == alignof(std::uint64_t));
    for (const auto* numbers : {&arguments, &results})
        for (const std::int64_t number : *numbers) (void)arrays_.at(static_cast<std::size_t>(number));  // or throws
    const std::size_t count = arguments.size() + results.size();
    const std::size_t bytes = sizeof(Call) + count * (sizeof(xla::Buffer) + sizeof(void*));
    Block block{std::make_unique<std::uint64_t[]>(bytes / sizeof(std::uint64_t)), bytes};
    Call& call = *new (block.memory.get()) Call{};
    auto* buffer = reinterpret_cast<xla::Buffer*>(&call + 1);
    auto** pointer = reinterpret_cast<void**>(buffer + count);
    const auto add = [&](const std::vector<std::int64_t>& numbers) {
        const auto of_these = static_cast<std::int64_t>(numbers.size());
        const xla::Buffers added{sizeof(xla::Buffers), nullptr, of_these, nullptr, pointer};
        for (const std::int64_t number : numbers) {
            Array& array = arrays_[static_cast<std::size_t>(number)];
            array.copies.push_back(new (buffer) xla::Buffer(array.buffer));
            *pointer++ = buffer++;
        }
        return added;
    };
    call.handler = handler;
    call.frame.size = sizeof call.frame;
    call.frame.api = api();
    call.frame.stage = xla::kExecute;
    call.frame.arguments = add(arguments);
    call.frame.results = add(results);
    return block;
}

bool Plan::add_call(const std::string& handler, const std::vector<std::int64_t>& arguments,
                    const std::vector<std::int64_t>& results, const NamedNumbers& options) {
    xla::Handler* const found = find_handler(handler);
    if (!found) return false;
    Block block = make_call(found, arguments, results);
    Call& call = block.call();
    call.frame.attributes = attributes(options);
    call.is_product = handler == "linear" || handler == "panel_linear" || handler == "quantized_linear";
    for (const std::int64_t number : results) arrays_[static_cast<std::size_t>(number)].is_written = true;
    for (std::size_t i = 0; !call.is_product && i < std::min<std::size_t>(arguments.size(), 64); ++i)
        if (call.argument(i).rank == 1 && !arrays_[static_cast<std::size_t>(arguments[i])].is_written)
            call.parameters |= std::uint64_t{1} << i;
    if (call.is_product || handler == "scaled_dot_product_attention")
        for (auto before = calls_.rbegin(); before != calls_.rend(); ++before) {
            auto& [first, second] = before->call().next;
            if (second || (first && first->is_product)) break;
            (first ? second : first) = &call;
        }
    calls_.push_back(std::move(block));
    return true;
}

void Plan::Block::fetch() const { fetch_bytes(memory.get(), bytes); }

void Plan::Call::fetch_parameters() const {
    constexpr std::int64_t kMost = 4096;
    for (std::uint64_t left = parameters; left != 0; left &= left - 1) {
        const xla::Buffer& b = argument(static_cast<std::size_t>(__builtin_ctzll(left)));
        fetch_bytes(b.data, static_cast<std::size_t>(std::min(xla::bytes_of(b), kMost)));
    }
}

// Tells the team's threads which weights, keys and values are read next.
void Plan::tell_what_is_read(const Next& calls) {
    int count = 0;
    const auto add = [&count](const xla::Buffer& b, std::int64_t rows, std::int64_t bytes, std::int64_t stride) {
        if (count == ReadNext::kMost) return;
        ReadNext::Part& part = read_next.parts[count++];
        part.begin.store(xla::data(b), std::memory_order_relaxed);
        part.rows.store(rows, std::memory_order_relaxed);
        part.bytes.store(bytes, std::memory_order_relaxed);
        part.stride.store(stride, std::memory_order_relaxed);
    };
    for (const Call* call : calls) {
        if (!call) break;
        if (call->is_product) {
            const std::int64_t bytes = xla::bytes_of(call->argument(1));
            add(call->argument(1), 1, bytes, bytes);
            continue;
        }
        const auto place_of = [call](std::string_view name) {
            return static_cast<std::size_t>(xla::Call{call->frame}.number(name, 0));
        };
        const xla::Buffer &k = call->argument(1), &v = call->argument(2);
        if (place_of("page_table") > 0 || k.rank != 4 || v.rank != 4) continue;
        std::int64_t keys = k.dims[2];
        if (const std::size_t place = place_of("lengths"); place > 0) {
            std::int64_t longest = 0;
            for (const std::int64_t n : xla::read_integers(call->argument(place))) longest = std::max(longest, n);
            keys = std::min(keys, longest);
        }
        for (const xla::Buffer* b : {&k, &v}) {
            const std::int64_t row = xla::length(*b) * xla::itemsize(*b);
            add(*b, b->dims[0] * b->dims[1], keys * row, k.dims[2] * row);
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
        const xla::CallFrame& frame = calls_[begin + i].call().frame;
        if (static_cast<std::int64_t>(arrays[i].size()) != frame.arguments.count + frame.results.count)
            throw std::invalid_argument("another number of arrays");
        for (std::size_t k = 0; k < arrays[i].size(); ++k) {
            const xla::Buffer& whole = calls_[begin + i].call().array(k);
            const auto [axis, bytes, each_thread] = arrays[i][k];
            const bool has_axis = axis >= 0 && axis < whole.rank && whole.dims[axis] == rows;
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
            const Call& call = calls_[i].call();
            Block copy{std::make_unique<std::uint64_t[]>(calls_[i].bytes / sizeof(std::uint64_t)), calls_[i].bytes};
            std::memcpy(copy.memory.get(), calls_[i].memory.get(), copy.bytes);
            const auto moved = [&](void* to) {
                return reinterpret_cast<char*>(copy.memory.get()) +
                       (static_cast<char*>(to) - reinterpret_cast<const char*>(calls_[i].memory.get()));
            };
            for (auto member : {&xla::CallFrame::arguments, &xla::CallFrame::results}) {
                xla::Buffers& of_copy = copy.call().frame.*member;
                of_copy.items = reinterpret_cast<void**>(moved(of_copy.items));
                for (std::int64_t k = 0; k < of_copy.count; ++k) of_copy.items[k] = moved(of_copy.items[k]);
            }
            for (std::size_t k = 0; k < group.arrays[i - group.begin].size(); ++k) {
                const xla::Buffer& whole = call.array(k);
                copy.call().array(k).dims = group.dimensions.emplace_back(whole.dims, whole.dims + whole.rank).data();
            }
            copies.push_back(std::move(copy));
        }
    }
}

std::size_t Plan::run(Group& group, std::string& message, double* seconds) {
    using Clock = std::chrono::steady_clock;
    const std::int64_t blocks = (group.rows + group.block - 1) / group.block;
    const int threads = static_cast<int>(std::min({xla::replaying->threads, group.threads, blocks}));
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
            Call& call = group.copies[static_cast<std::size_t>(thread)][i - group.begin].call();
            const std::vector<Rows>& arrays = group.arrays[i - group.begin];
            for (std::size_t k = 0; k < arrays.size(); ++k) {
                const Rows& rows = arrays[k];
                xla::Buffer& part = call.array(k);
                part.data = static_cast<char*>(calls_[i].call().array(k).data) +
                            (rows.each_thread > 0 ? thread * rows.each_thread : begin * rows.bytes);
                if (rows.bytes != 0) part.dims[rows.axis] = count;
            }
            if (const std::unique_ptr<xla::Error> error{call.handler(&call.frame)}) {
                const std::lock_guard lock(mutex);
                failed = true;
                if (i < stopped) {
                    stopped = i;
                    message = error->message;
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
        Call& call = calls_[i].call();
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
        if (const std::unique_ptr<xla::Error> error{call.handler(&call.frame)}) {
            message = error->message;
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
