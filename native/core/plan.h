// Plans: calls of operators that were recorded once, and run again without the interpreter.
//
// Arrays are at fixed places; lengths, positions and the like are in arrays, which operators read in each run.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "call.h"

namespace tensorops {

class Plan {
  public:
    // `threads` is the number of threads that kernels may use; 0: as many as there are.
    explicit Plan(int threads) : threads_(threads) {}
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // Adds an array and returns its number. Without strides, in bytes, it is C-contiguous.
    std::int64_t add_array(Dtype dtype, char* data, std::vector<std::int64_t> shape,
                           std::vector<std::int64_t> strides = {});

    // Moves an array to another place.
    void move_array(std::int64_t array, char* data);

    // The values of options by name; a double that is an integer is not one.
    using Option = std::variant<double, std::int64_t, bool, std::string, std::vector<std::int64_t>>;
    // Adds a call, whose arguments are numbers of arrays by parameter. Throws if there is no such operator or
    // parameter.
    void add_call(const std::string& name, const std::vector<std::pair<std::string, std::int64_t>>& arguments,
                  const std::vector<std::int64_t>& results, const std::map<std::string, Option>& options);

    // How an array of a call goes through the rows of several calls: `bytes` from one row to the next along an axis, or
    // 0 if all rows need all of it. With `each_thread`, no other call sees the array: every thread has that many bytes
    // of it, for the rows of one block.
    struct Rows {
        std::int64_t axis, bytes, each_thread;
    };

    // Lets threads take blocks of rows through the calls from `begin` on, one for each element of `arrays`, which has
    // the arguments and then the results of each. Row by row, calls must only depend on what is before them.
    void run_by_rows(std::size_t begin, std::int64_t rows, std::int64_t block, std::int64_t threads,
                     std::vector<std::vector<Rows>> arrays);

    // Whether a place is inside calls that are run by rows, so that no run can begin or end there
    bool is_within(std::size_t place) const;

    // The number of threads of a run
    int threads() const;

    // Runs the calls from `begin` to before `end` in order. Returns where it stopped, which is less than `end` if one
    // failed or the run was interrupted; `message` then says why. With `seconds`, the time of each call is stored, that
    // of the first one at the beginning.
    std::size_t run(std::size_t begin, std::size_t end, std::string& message, double* seconds);

    std::size_t calls() const { return calls_.size(); }

  private:
    class Recorded;
    struct Group;
    using Next = std::array<const Recorded*, 2>;  // or nullptr

    // A call with all that its operator reads about it but shapes, in one block of memory. In each run a call is needed
    // once, long after a model's weights have gone through the caches, so blocks are fetched some calls ahead. In a
    // step of SmolLM2-135M, add_rms_norm of one row took 1.2 µs with six separate objects, and 0.7 with a block.
    struct Block {
        std::unique_ptr<std::uint64_t[]> memory;
        std::size_t bytes = 0;

        Block(const Operator& op, std::size_t arrays);
        Block(Block&&) = default;
        ~Block();
        Recorded& call() const { return *reinterpret_cast<Recorded*>(memory.get()); }
        void fetch() const;
    };

    struct PlanArray {
        Array array;
        std::vector<Array*> copies;  // those of the calls
        bool is_written = false;
    };

    // Calls that are run by rows, and copies of them for each thread, whose arrays are the rows of a block.
    struct Group {
        std::size_t begin, end;
        std::int64_t rows, block, threads;
        std::vector<std::vector<Rows>> arrays;
        std::vector<std::vector<Block>> copies;            // of each thread
        std::deque<std::vector<std::int64_t>> dimensions;  // of the copies' arrays
    };

    static void tell_what_is_read(const Next& calls);

    // Runs a group. Returns where it stopped, as run does, and adds up the time of each call.
    std::size_t run(Group& group, std::string& message, double* seconds);
    void copy_for_threads(Group& group, std::size_t threads);

    Value value_of(const Option& option);

    int threads_;
    std::vector<PlanArray> arrays_;
    std::vector<Block> calls_;
    std::deque<Group> groups_;
    std::set<std::vector<std::int64_t>> shapes_;  // and strides
    std::set<std::string> texts_;
};

}  // namespace tensorops
