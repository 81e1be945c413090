#include "interruption.h"

namespace tensorops {

Interruption::Interruption(bool (*asked)()) : asked_(asked), outer_(interruption), next_(Clock::now() + kPause) {
    interruption = this;
}

Interruption::~Interruption() { interruption = outer_; }

void Interruption::look() {
    work_ = 0;
    if (Clock::now() < next_) return;
    interruption = nullptr;  // a signal handler's computations are not part of this call
    const bool asked = asked_();
    interruption = this;
    if (asked) happened_.store(true, std::memory_order_relaxed);
    next_ = Clock::now() + kPause;
}

}  // namespace tensorops
