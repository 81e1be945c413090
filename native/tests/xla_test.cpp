// The handlers of XLA's foreign functions, called through XLA's structs from several threads at once: how work is
// shared out over a pool of threads, and to those of its threads that are still awake.
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "handlers.h"
#include "tests.h"

namespace tensorops::xla {

struct Error {
    std::string message;
};

}  // namespace tensorops::xla

namespace tensorops::tests {
namespace {

using namespace tensorops::xla;

std::atomic<int> failures{0}, errors{0};  // errors: those not destroyed yet

void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("not true: %s\n", what);
    ++failures;
}

// XLA's pool of threads, which may refuse every task.
class Pool {
  public:
    explicit Pool(int size, bool refuses = false) : size_(size), refuses_(refuses) {
        for (int i = 0; i < size; ++i) threads_.emplace_back([this] { serve(); });
    }
    ~Pool() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            ends_ = true;
        }
        arrived_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    static Error* schedule(ScheduleArguments* wanted) {
        Pool& pool = *static_cast<Pool*>(wanted->context);
        if (pool.refuses_) return ++errors, new Error{"no task is taken"};
        const std::lock_guard<std::mutex> lock(pool.mutex_);
        pool.tasks_.push_back({wanted->task, wanted->data});
        pool.arrived_.notify_one();
        return nullptr;
    }
    static Error* num_threads(NumThreadsArguments* wanted) {
        *wanted->result = static_cast<Pool*>(wanted->context)->size_;
        return nullptr;
    }

  private:
    struct Task {
        void (*run)(void*);
        void* data;
    };
    void serve() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            arrived_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
            if (tasks_.empty()) return;  // those that are left are run first, as they own memory
            const Task task = tasks_.front();
            tasks_.pop_front();
            lock.unlock();
            task.run(task.data);
            lock.lock();
        }
    }
    int size_;
    bool refuses_, ends_ = false;
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Task> tasks_;
    std::vector<std::thread> threads_;
};

Error* create_error(ErrorArguments* said) { return ++errors, new Error{said->message}; }

void destroy_error(ErrorToDestroy* unused) {
    delete unused->error;
    --errors;
}

const Api& api() {
    static const Api made = [] {
        Api a{};
        a.size = sizeof a;
        a.create_error = create_error;
        a.destroy_error = destroy_error;
        a.schedule = Pool::schedule;
        a.num_threads = Pool::num_threads;
        return a;
    }();
    return made;
}

CallFrame frame_of(Pool& pool) {
    CallFrame frame{};
    frame.size = sizeof frame;
    frame.api = &api();
    frame.context = &pool;
    frame.stage = kExecute;
    frame.arguments.size = frame.results.size = sizeof(Buffers);
    frame.attributes.size = sizeof(Attributes);
    return frame;
}

template <class F>
void from_threads(int callers, const F& call) {
    std::vector<std::thread> threads;
    for (int i = 0; i < callers; ++i) threads.emplace_back([&call, i] { call(i); });
    for (std::thread& thread : threads) thread.join();
}

void each_part_is_taken_once(Pool& pool, int calls) {
    from_threads(3, [&pool, calls](int caller) {
        const CallFrame frame = frame_of(pool);
        for (int i = 0; i < calls; ++i) {
            std::vector<int> done(static_cast<std::size_t>(1 + (i + caller) % 7));  // gone when the call is over
            share_out(frame, static_cast<std::int64_t>(done.size()), &done, [](const void* op, std::int64_t part) {
                auto& mine = *static_cast<std::vector<int>*>(const_cast<void*>(op));
                ++mine[static_cast<std::size_t>(part)];
            });
            for (const int count : done) require(count == 1, "each part is taken once");
        }
    });
}

void a_team_does_each_part_once(Pool& pool) {
    from_threads(2, [&pool](int) {
        const CallFrame frame = frame_of(pool);
        for (int i = 0; i < 200; ++i) {
            std::vector<int> done(97);
            const Team team(frame);
            over_shares(threads_for(97, 1 << 30), 97, 1, [&done](Share share) {
                for (std::int64_t j = share.begin; j < share.end; ++j) ++done[static_cast<std::size_t>(j)];
            });
            for (const int count : done) require(count == 1, "a team does each part once");
        }
    });
}

// rms_norm of rows, by its handler.
std::vector<float> normalized(Pool& pool, std::vector<float>& x, std::int64_t length) {
    std::vector<float> y(x.size());
    std::int64_t dims[] = {static_cast<std::int64_t>(x.size()) / length, length};
    Buffer in{sizeof in, nullptr, kFloat32, x.data(), 2, dims}, out{sizeof out, nullptr, kFloat32, y.data(), 2, dims};
    int kind = 0, scalars[] = {kScalar, kScalar};
    void *arguments[] = {&in}, *results[] = {&out};
    double eps = 1e-6;
    std::int64_t given = 1;  // the first parameter
    Scalar number{kFloat64, &eps}, places{kInt64, &given};
    Span name{"eps", 3}, arrays{"arrays", 6};
    Span* names[] = {&arrays, &name};
    void* values[] = {&places, &number};
    CallFrame frame = frame_of(pool);
    frame.arguments = {sizeof(Buffers), nullptr, 1, &kind, arguments};
    frame.results = {sizeof(Buffers), nullptr, 1, &kind, results};
    frame.attributes = {sizeof(Attributes), nullptr, 2, scalars, names, values};
    for (const auto& [operator_name, handler] : handlers())
        if (operator_name == "rms_norm") {
            require(handler(&frame) == nullptr, "the handler takes the call");
            out.dtype = kFloat64;
            Error* error = handler(&frame);
            require(error && error->message.find("the result y is not") != std::string::npos, "an error says why");
            ErrorToDestroy unused{sizeof unused, nullptr, error};
            destroy_error(&unused);
        }
    return y;
}

void handlers_compute_from_several_threads(Pool& pool) {
    constexpr std::int64_t kRows = 600, kLength = 512;  // in several parts
    Pool nobody(0);
    from_threads(3, [&](int caller) {
        std::vector<float> x(kRows * kLength);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7 + caller) % 23) - 11;
        const std::vector<float> alone = normalized(nobody, x, kLength);
        double squares = 0;
        for (std::int64_t i = 0; i < kLength; ++i) squares += static_cast<double>(x[i]) * x[i];
        const double first = x[0] / std::sqrt(squares / kLength + 1e-6);
        require(std::fabs(alone[0] - first) < 1e-5, "the handler computes rms_norm");
        for (int i = 0; i < 30; ++i) require(normalized(pool, x, kLength) == alone, "threads compute the same as one");
    });
}

}  // namespace

bool xla_calls() {
    use_target(Test{}.targets.front());  // the one that ThreadSanitizer sees all accesses of
    for (const int size : {1, 3}) {
        Pool pool(size);
        each_part_is_taken_once(pool, 400);
        a_team_does_each_part_once(pool);
        handlers_compute_from_several_threads(pool);
    }
    Pool refusing(2, true);
    each_part_is_taken_once(refusing, 50);
    require(errors == 0, "every error is destroyed");
    return failures == 0;
}

}  // namespace tensorops::tests
