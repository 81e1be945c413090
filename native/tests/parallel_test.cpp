// The distribution of work over threads, and the decision to do without them.
#include "parallel.h"

#include <chrono>
#include <cstdio>
#include <new>
#include <thread>
#include <vector>

#include "helper_backoff.h"
#include "lent_threads.h"
#include "tests.h"

namespace tensorops::tests {
namespace {

int failures = 0;

void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("not true: %s\n", what);
    ++failures;
}

// Each part is done once, whoever calls at the same time, and on no more than the threads allowed.
void each_part_is_done_once() {
    constexpr int kCallers = 3, kCalls = 200;
    std::atomic<bool> right{true};
    const auto call_often = [&right] {
        for (int call = 0; call < kCalls; ++call) {
            const int allowed = 1 + call % 5;
            std::vector<std::atomic<int>> done(97);
            over_shares(allowed, 97, 1, [&](Share share) {
                if (share.member >= allowed) right = false;
                for (std::int64_t i = share.begin; i < share.end; ++i) done[static_cast<std::size_t>(i)] += 1;
            });
            over_pieces(allowed, 97, [&](std::int64_t piece, int) { done[static_cast<std::size_t>(piece)] += 2; });
            over_stretches(allowed, 97, [&](std::int64_t piece) { done[static_cast<std::size_t>(piece)] += 4; });
            for (const auto& count : done)
                if (count != 7) right = false;
        }
    };
    std::vector<std::thread> callers;
    for (int i = 0; i < kCallers; ++i) callers.emplace_back(call_often);
    for (std::thread& caller : callers) caller.join();
    require(right, "each part is done once");
}

void calls_share_the_processors() {
    const int bound = processors.exchange(2);
    on_team(2, [](Member) { require(available_threads() <= 1, "no thread is left while two processors compute"); });
    require(available_threads() <= 2, "a call gets as many threads as there are processors");
    processors = bound;
}

void a_lack_of_memory_reaches_the_caller() {
    for (const int lacking : {0, 1}) {
        bool is_told = false;
        try {
            on_team(2, [&](Member member) {
                if (member.index == lacking || member.count == 1) throw std::bad_alloc();
            });
        } catch (const std::bad_alloc&) {
            is_told = true;
        }
        require(is_told, "the caller throws what a thread has thrown");
    }
    std::atomic<int> members{0};
    on_team(2, [&](Member) { ++members; });
    require(members > 0, "threads work after a lack of memory");
}

// Kernels use the threads that their caller lends, and no others.
void lent_threads_are_used() {
    struct Counting : Lender {
        int parts = 0;
    } lent;
    lent.threads = 3;
    lent.run = [](const Lender& own, int parts, void (*work)(const void*, Member), const void* context) {
        const_cast<Counting&>(static_cast<const Counting&>(own)).parts += parts;
        for (int i = parts - 1; i >= 0; --i) work(context, Member{i, parts});
    };
    lender = &lent;
    std::vector<int> done(97);
    require(threads_for(97, 1 << 30) == 3, "a kernel asks for as many threads as are lent");
    over_shares(3, 97, 1, [&done](Share share) {
        for (std::int64_t i = share.begin; i < share.end; ++i) done[static_cast<std::size_t>(i)] += 1;
    });
    lender = nullptr;
    require(lent.parts == 3, "the lender runs every part");
    for (const int count : done) require(count == 1, "lent threads do each part once");
}

// Threads of a replay do each part once, whatever they fetch while they wait, and after they have slept.
void threads_of_a_replay_fetch_meanwhile() {
    std::vector<char> memory(1 << 20);
    const Lender lent = lent_threads(3);
    lender = &lent;
    bool right = true;
    for (int call = 0; call < 300; ++call) {
        if (call % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until they sleep
        ReadNext::Part& part = read_next.parts[0];
        part.begin = memory.data() + call;
        part.rows = call % 4;
        part.bytes = call % 3 * 1000;
        part.stride = 1 << 16;
        read_next.count = call % 2;
        read_next.changes.fetch_add(1);
        std::vector<std::atomic<int>> done(97);
        over_stretches(3, 97, [&](std::int64_t piece) { done[static_cast<std::size_t>(piece)] += 1; });
        for (const auto& count : done) right = right && count == 1;
    }
    lender = nullptr;
    require(right, "threads of a replay do each part once");
}

void help_pauses_after_a_loss() {
    constexpr std::int64_t ms = 1'000'000;
    HelperBackoff help;
    std::int64_t now = 1'000'000 * ms;
    const auto is_paused = [&] { return help.is_paused([&now] { return now; }); };
    const auto lose = [&](std::int64_t lost) { help.note_lost(lost, now); };
    require(!is_paused(), "there is no pause before the first call");
    lose(-5 * ms);
    lose(ms / 1000);
    require(!is_paused(), "there is no pause after a gain or a small loss");
    lose(ms);
    require(is_paused(), "there is a pause after a loss");
    now += 3 * ms;
    require(is_paused(), "the pause is a multiple of the loss");
    now += 2 * ms;
    require(!is_paused(), "the pause ends");
    now += ms;
    lose(ms);
    now += 7 * ms;
    require(is_paused(), "a pause that follows soon is longer");
    now += 2 * ms;
    require(!is_paused(), "the longer pause ends");
    now += 8 * ms;
    lose(ms);
    now += 5 * ms;
    require(!is_paused(), "after as long without a loss, pauses are short again");
    for (int i = 0; i < 40; ++i) lose(INT64_MAX);
    now += 999 * ms;
    require(is_paused(), "long losses make long pauses");
    now += 2 * ms;
    require(!is_paused(), "no pause is longer than a second");
    lose(ms / 20);
    now += ms;
    require(is_paused(), "a small loss after a long pause makes a longer one than at first");
    now += ms;
    require(!is_paused(), "but one that is not long");
}

}  // namespace

bool parallel() {
    lent_threads_are_used();
    threads_of_a_replay_fetch_meanwhile();
    help_pauses_after_a_loss();
    calls_share_the_processors();
    each_part_is_done_once();
    a_lack_of_memory_reaches_the_caller();
    use_own_threads();
    each_part_is_done_once();
    a_lack_of_memory_reaches_the_caller();
    calls_share_the_processors();
    return failures == 0;
}

}  // namespace tensorops::tests
