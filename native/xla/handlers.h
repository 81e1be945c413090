// Operators as handlers of XLA's foreign function interface, for JAX on the CPU.
//
// The work is distributed over XLA's own threads: OpenMP's would compete with them, and spin while XLA's compute.
// Nothing is written past the caches: XLA's memory is usually new to the process, and the system has just zeroed it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "frame.h"
#include "parallel.h"

namespace tensorops::xla {

std::int64_t threads_of(const CallFrame& frame);
// Calls work(op, part) for each part, on this thread and on free threads of XLA.
void share_out(const CallFrame& frame, std::int64_t count, const void* op, void (*work)(const void*, std::int64_t));

// While this exists, kernels called by this thread divide their work among XLA's threads.
class Team : Lender {
  public:
    explicit Team(const CallFrame& frame);
    ~Team() { lender = nullptr; }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

  private:
    const CallFrame& frame_;
};

// The handlers of all operators, by name. A frame has the arrays that are given, in the order of the operator's
// parameters; the bits of its attribute `arrays` tell which these are. Other attributes are options.
std::vector<std::pair<std::string, Handler*>> handlers();

}  // namespace tensorops::xla
