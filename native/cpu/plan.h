// Plans: calls of kernels that were recorded once, and run again without the interpreter.
//
// A call is one of a handler of xla_call.h, which gets everything it needs in a frame: arrays at fixed places, options
// as numbers. What may differ from run to run is in arrays, which handlers read. The frames are those of XLA's
// interface, but XLA is not involved.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "xla_call.h"

namespace tensorops {

class Plan {
  public:
    // `threads` is the number of threads that kernels may use; 0: as many as there are.
    explicit Plan(int threads) : threads_(threads) {}
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;

    // Adds an array of a dtype of xla_ffi.h and returns its number.
    std::int64_t add_array(int dtype, void* data, std::vector<std::int64_t> shape);

    // Moves an array to another place.
    void move_array(std::int64_t array, void* data);

    // Adds a call of a handler. Returns whether there is a handler of that name.
    bool add_call(const std::string& handler, const std::vector<std::int64_t>& arguments,
                  const std::vector<std::int64_t>& results, const std::vector<std::pair<std::string, double>>& options);

    // How an array of a call goes through the rows of several calls: `bytes` from one row to the next along an axis, or
    // 0 if all rows need all of it. With `each_thread`, no other call sees the array: every thread has so many bytes of
    // it, for the rows of one block.
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
    // failed or the run was interrupted; what went wrong is then in `message`. With `seconds`, the time of each call is
    // stored, that of the first one at the beginning.
    std::size_t run(std::size_t begin, std::size_t end, std::string& message, double* seconds);

    std::size_t calls() const { return calls_.size(); }

  private:
    struct Array {
        xla::Buffer buffer;
        std::vector<xla::Buffer*> copies;  // those of the calls
        bool is_written = false;
    };
    using NamedNumbers = std::vector<std::pair<std::string, double>>;
    struct Option {
        std::string text;
        double value;
        xla::Span name;
        xla::Scalar scalar;
    };
    struct Options {
        std::deque<Option> all;  // whose addresses stay
        std::vector<int> kinds;
        std::vector<xla::Span*> names;
        std::vector<void*> items;

        explicit Options(const NamedNumbers& given);
        xla::Attributes attributes();
    };

    struct Call;
    struct Group;
    using Next = std::array<const Call*, 2>;  // or nullptr

    // A call. What its handler reads about it follows in the same block of memory, but for what calls of all layers of
    // a model share: shapes and options. In each run a call is needed once, long after a model's weights have gone
    // through the caches, so blocks are fetched some calls ahead. In a step of SmolLM2-135M, add_rms_norm of one row
    // took 1.2 µs with six separate objects, and 0.7 with a block.
    struct Call {
        xla::Handler* handler;
        xla::CallFrame frame;
        bool is_product;
        std::uint64_t parameters;  // bits of the arguments that are vectors which no call writes: a norm's weight
        Next next;                 // those after it that read much, up to a product
        Group* group;              // that begins with it, or nullptr

        const xla::Buffer& argument(std::size_t i) const {
            return *static_cast<const xla::Buffer*>(frame.arguments.items[i]);
        }
        // An argument, or a result, which come after them
        xla::Buffer& array(std::size_t i) const {
            const auto arguments = static_cast<std::size_t>(frame.arguments.count);
            return *static_cast<xla::Buffer*>(i < arguments ? frame.arguments.items[i]
                                                            : frame.results.items[i - arguments]);
        }
        void fetch_parameters() const;
    };
    struct Block {
        std::unique_ptr<std::uint64_t[]> memory;
        std::size_t bytes;

        Call& call() const { return *reinterpret_cast<Call*>(memory.get()); }
        void fetch() const;
    };

    // Calls that are run by rows, and copies of them for each thread, whose arrays are the rows of a block.
    struct Group {
        std::size_t begin, end;
        std::int64_t rows, block, threads;
        std::vector<std::vector<Rows>> arrays;
        std::vector<std::vector<Block>> copies;             // of each thread
        std::vector<std::vector<std::int64_t>> dimensions;  // of the copies' arrays
    };

    static void tell_what_is_read(const Next& calls);

    // Runs a group. Returns where it stopped, as run does, and adds up the time of each call.
    std::size_t run(Group& group, std::string& message, double* seconds);
    void copy_for_threads(Group& group, std::size_t threads);

    Block make_call(xla::Handler* handler, const std::vector<std::int64_t>& arguments,
                    const std::vector<std::int64_t>& results);
    xla::Attributes attributes(const NamedNumbers& options);

    int threads_;
    std::vector<Array> arrays_;
    std::vector<Block> calls_;
    std::deque<Group> groups_;
    std::set<std::vector<std::int64_t>> shapes_;
    std::map<std::vector<std::pair<std::string, std::uint64_t>>, Options> options_;  // by the bits of their numbers
};

}  // namespace tensorops
