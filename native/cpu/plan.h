// Plans: calls of kernels that were recorded once, and run again without the interpreter.
//
// A call is one of a handler of xla_call.h, which gets everything it needs in a frame: arrays at fixed places, options
// as numbers. What may differ from run to run is in arrays, which handlers read. The frames are those of XLA's
// interface, but XLA is not involved.
#pragma once

#include <deque>
#include <memory>
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
    void move_array(std::int64_t array, void* data) { arrays_.at(static_cast<std::size_t>(array))->buffer.data = data; }

    // Adds a call of a handler. Returns whether there is a handler of that name.
    bool add_call(const std::string& handler, const std::vector<std::int64_t>& arguments,
                  const std::vector<std::int64_t>& results, const std::vector<std::pair<std::string, double>>& options);

    // Runs the calls from `begin` to before `end` in order. Returns where it stopped, which is less than `end` if one
    // failed or the run was interrupted; what went wrong is then in `message`. With `seconds`, the time of each call is
    // stored, that of the first one at the beginning.
    std::size_t run(std::size_t begin, std::size_t end, std::string& message, double* seconds);

    std::size_t calls() const { return calls_.size(); }

  private:
    struct Array {
        xla::Buffer buffer;
        std::vector<std::int64_t> shape;
    };
    struct Option {
        xla::Span name;
        xla::Scalar scalar;
        double value;
        std::string text;
    };
    struct Call {
        xla::Handler* handler;
        xla::CallFrame frame;
        std::vector<void*> arguments, results, items;
        std::vector<int> kinds;
        std::vector<xla::Span*> names;
        std::deque<Option> options;  // whose addresses stay
        bool is_product = false;
        std::vector<const Call*> next;  // those after it that read much, up to a product

        const xla::Buffer& argument(std::size_t i) const { return *static_cast<const xla::Buffer*>(arguments.at(i)); }
    };

    static void tell_what_is_read(const std::vector<const Call*>& calls);

    std::vector<void*> buffers(const std::vector<std::int64_t>& arrays);

    int threads_;
    std::vector<std::unique_ptr<Array>> arrays_;
    std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace tensorops
