#include "plan.h"

#include <algorithm>
#include <chrono>

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

}  // namespace

std::int64_t Plan::add_array(int dtype, void* data, std::vector<std::int64_t> shape) {
    auto made = std::make_unique<Array>();
    made->shape = std::move(shape);
    const auto rank = static_cast<std::int64_t>(made->shape.size());
    made->buffer = {sizeof(xla::Buffer), nullptr, dtype, data, rank, made->shape.data()};
    arrays_.push_back(std::move(made));
    return static_cast<std::int64_t>(arrays_.size()) - 1;
}

std::vector<void*> Plan::buffers(const std::vector<std::int64_t>& arrays) {
    std::vector<void*> found;
    for (const std::int64_t array : arrays) found.push_back(&arrays_.at(static_cast<std::size_t>(array))->buffer);
    return found;
}

bool Plan::add_call(const std::string& handler, const std::vector<std::int64_t>& arguments,
                    const std::vector<std::int64_t>& results,
                    const std::vector<std::pair<std::string, double>>& options) {
    auto call = std::make_unique<Call>();
    call->handler = find_handler(handler);
    if (!call->handler) return false;
    call->arguments = buffers(arguments);
    call->results = buffers(results);
    for (const auto& [name, value] : options) {
        Option& option = call->options.emplace_back();
        option.text = name;
        option.value = value;
        option.name = {option.text.data(), option.text.size()};
        option.scalar = {xla::kFloat64, &option.value};
        call->names.push_back(&option.name);
        call->items.push_back(&option.scalar);
        call->kinds.push_back(xla::kScalar);
    }
    const auto count = [](const std::vector<void*>& all) { return static_cast<std::int64_t>(all.size()); };
    xla::CallFrame& frame = call->frame;
    frame = {};
    frame.size = sizeof frame;
    frame.api = api();
    frame.stage = xla::kExecute;
    frame.arguments = {sizeof(xla::Buffers), nullptr, count(call->arguments), nullptr, call->arguments.data()};
    frame.results = {sizeof(xla::Buffers), nullptr, count(call->results), nullptr, call->results.data()};
    frame.attributes = {sizeof(xla::Attributes), nullptr,           count(call->items), call->kinds.data(),
                        call->names.data(),      call->items.data()};
    call->is_product = handler == "linear" || handler == "panel_linear" || handler == "quantized_linear";
    if (call->is_product || handler == "scaled_dot_product_attention")
        for (auto before = calls_.rbegin(); before != calls_.rend(); ++before) {
            std::vector<const Call*>& next = (*before)->next;
            if (next.size() == 2 || (!next.empty() && next.back()->is_product)) break;
            next.push_back(call.get());
        }
    calls_.push_back(std::move(call));
    return true;
}

// Tells the team's threads which weights, keys and values are read next.
void Plan::tell_what_is_read(const std::vector<const Call*>& calls) {
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
        if (call->is_product) {
            const std::int64_t bytes = xla::bytes_of(call->argument(1));
            add(call->argument(1), 1, bytes, bytes);
            continue;
        }
        const auto place_of = [call](const char* name) {
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
    read_next.changes.fetch_add(1, std::memory_order_release);
}

std::size_t Plan::run(std::size_t begin, std::size_t end, std::string& message, double* seconds) {
    using Clock = std::chrono::steady_clock;
    const Replaying team(threads_);
    auto since = seconds ? Clock::now() : Clock::time_point{};
    const std::vector<const Call*>* told = nullptr;
    for (std::size_t i = begin; i < end; ++i) {
        if (!told || *told != calls_[i]->next) {
            told = &calls_[i]->next;
            tell_what_is_read(*told);
        }
        if (const std::unique_ptr<xla::Error> error{calls_[i]->handler(&calls_[i]->frame)}) {
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
