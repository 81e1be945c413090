// The interpreter's lock, released while kernels compute.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

namespace tensorops {

class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    // While a program ends, Python before 3.14 ends the daemon threads that ask for the lock by an exception that
    // cannot leave a destructor, and that must not destroy what frames of ours own. So the thread waits for the end
    // here.
    ~WithoutLock() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace tensorops
