// Plans whose calls are run by rows, from several threads at once: each plan's own threads take blocks of rows, and a
// plan that finds the team busy runs them alone.
#include "plan.h"

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests.h"

namespace tensorops::tests {
namespace {

constexpr std::int64_t kRows = 101, kLength = 64, kBlock = 7, kThreads = 3, kRowBytes = kLength * sizeof(float);

std::atomic<int> failures{0};

void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("not true: %s\n", what);
    ++failures;
}

template <class T>
char* bytes(std::vector<T>& values) {
    return reinterpret_cast<char*>(values.data());
}

constexpr Plan::Rows kWhole{0, 0, 0}, kByRows{0, kRowBytes, 0}, kOwn{0, kRowBytes, kBlock * kRowBytes};

// y = (x + 1) · x - x = x², whose first result is only a block for each thread.
struct Chain {
    std::vector<float> x = std::vector<float>(kRows * kLength),
                       between = std::vector<float>(kThreads * kBlock * kLength), product = x, y = x;
    float one = 1;
    Plan plan{kThreads};

    Chain() {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97);
        const auto add = [this](std::vector<float>& a) {
            return plan.add_array(Dtype::float32, bytes(a), {kRows, kLength});
        };
        const std::int64_t a = add(x), b = add(between), c = add(product), d = add(y);
        const std::int64_t number = plan.add_array(Dtype::float32, reinterpret_cast<char*>(&one), {1});
        plan.add_call("add", {{"a", a}, {"b", number}}, {b}, {});
        plan.add_call("multiply", {{"a", b}, {"b", a}}, {c}, {});
        plan.add_call("subtract", {{"a", c}, {"b", a}}, {d}, {});
        plan.run_by_rows(0, kRows, kBlock, kThreads,
                         {{kByRows, kWhole, kOwn}, {kOwn, kByRows, kByRows}, {kByRows, kByRows, kByRows}});
    }

    void run(double* seconds = nullptr) {
        std::string message;
        require(plan.run(0, plan.calls(), message, seconds) == 3, "all calls are run");
        for (std::size_t i = 0; i < x.size(); ++i)
            if (y[i] != x[i] * x[i]) return require(false, "each row is computed");
    }
};

void several_plans_at_once() {
    std::vector<std::thread> callers;
    for (int k = 0; k < 2; ++k)
        callers.emplace_back([] {
            Chain chain;
            for (int i = 0; i < 200; ++i) chain.run();
        });
    for (std::thread& caller : callers) caller.join();
}

void times_are_of_each_call() {
    Chain chain;
    double seconds[3] = {};
    chain.run(seconds);
    for (const double each : seconds) require(each > 0, "each call has a time");
}

// All threads find it at about the same time.
void an_error_ends_the_run() {
    Chain chain;
    std::vector<std::int64_t> wrong{0, 5};
    std::vector<float> parts(kRows * 2);
    Plan plan{kThreads};
    const std::int64_t x = plan.add_array(Dtype::float32, bytes(chain.x), {kRows, 5, 1});
    const std::int64_t y = plan.add_array(Dtype::float32, bytes(chain.y), {kRows, 5, 1});
    const std::int64_t at = plan.add_array(Dtype::int64, bytes(wrong), {2});
    const std::int64_t to = plan.add_array(Dtype::float32, bytes(parts), {kRows, 2, 1});
    const Plan::Rows five{0, 5 * sizeof(float), 0}, two{0, 2 * sizeof(float), 0};
    plan.add_call("add", {{"a", x}, {"b", x}}, {y}, {});
    plan.add_call("take", {{"x", y}, {"indices", at}}, {to}, {});
    plan.run_by_rows(0, kRows, kBlock, kThreads, {{five, five, five}, {five, kWhole, two}});
    for (int i = 0; i < 100; ++i) {
        std::string message;
        require(plan.run(0, 2, message, nullptr) == 1, "the run stops at the call that failed");
        require(message.find("out of range") != std::string::npos, "the message is that of the call");
    }
    wrong[1] = 4;
    std::string message;
    require(plan.run(0, 2, message, nullptr) == 2, "the next run succeeds");
    require(parts[1] == 2 * chain.x[4] && parts[2 * kRows - 1] == 2 * chain.x[5 * kRows - 1], "parts are taken");
}

}  // namespace

bool plans() {
    several_plans_at_once();
    times_are_of_each_call();
    an_error_ends_the_run();
    return failures == 0;
}

}  // namespace tensorops::tests
