// What the tests of kernels share: arguments, places in memory, targets, comparison with what is expected.
//
// Inputs and results lie between pages that may not be touched, so that reading past an array ends the program, with
// and without a sanitizer, and also where the processor is emulated.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "formats.h"
#include "parallel.h"
#include "pool.h"
#include "rows.h"
#include "targets.h"

namespace tensorops::tests {

// Where in its memory an array begins or ends: at an address as round as a page's; one byte after it; or so that
// nothing lies behind.
enum class Place { at_start, at_odd, at_end };

class Memory {
  public:
    explicit Memory(std::size_t bytes) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
        room_ = (bytes + page_) / page_ * page_;
        void* all = mmap(nullptr, room_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED) std::abort();
        begin_ = static_cast<char*>(all) + page_;
        if (mprotect(begin_, room_, PROT_READ | PROT_WRITE) != 0) std::abort();
        std::memset(begin_, kUnused, room_);
    }
    Memory(const Memory&) = delete;
    ~Memory() { munmap(begin_ - page_, room_ + 2 * page_); }

    char* place(std::size_t bytes, Place place) {
        data_ = place == Place::at_end ? begin_ + room_ - bytes : begin_ + (place == Place::at_odd ? 1 : 0);
        bytes_ = bytes;
        return data_;
    }

    // Whether nothing was written beside the array that was placed last.
    bool rest_is_unused() const {
        const auto unused = [](char c) { return c == kUnused; };
        return std::all_of(begin_, data_, unused) && std::all_of(data_ + bytes_, begin_ + room_, unused);
    }

    static constexpr char kUnused = 0x5a;

  private:
    std::size_t page_, room_ = 0, bytes_ = 0;
    char *begin_ = nullptr, *data_ = nullptr;
};

// An argument: numbers that its dtype has.
struct Input {
    Dtype dtype;
    std::vector<Real> values;

    std::size_t bytes() const { return values.size() * static_cast<std::size_t>(format_of(dtype).bytes); }
    void put(char* p) const {
        for (Real x : values) {
            put_element(p, dtype, x);
            p += format_of(dtype).bytes;
        }
    }
};

// A result: its errors are counted in units of the last place of `value`, or of `scale` where that is larger.
struct Expected {
    std::vector<Real> value, scale;
};

// How many units a result may be away from what is expected. Half types compute in float32 and round once.
struct Bound {
    Real float32, float64;
    Real of(Dtype dtype) const {
        return dtype == Dtype::float64 ? float64 : dtype == Dtype::float32 ? float32 : Real{0.51};
    }
};

inline Real units_between(const Format& f, Real y, Real expected, Real scale) {
    if (std::isnan(expected)) return std::isnan(y) ? 0 : INFINITY;
    if (std::isinf(rounded(f, expected))) return y == rounded(f, expected) ? 0 : INFINITY;
    return std::fabs(y - expected) / unit_at(f, std::max(std::fabs(expected), scale));
}

class Test {
  public:
    // One call of a kernel: pointers to its inputs in their order, and to where the result goes.
    struct Call {
        std::vector<char*> in;
        char* out;
        bool streaming;  // the result may be written past the caches
    };
    using Kernel = std::function<void(const Call&)>;

    Dtype dtype = Dtype::float32;
    std::int64_t rows = 1, length = 1;  // of the first input
    bool many_threads = false;

    Rows rows_at(const char* data) const {
        Rows r{};
        r.data = data;
        r.count = r.shape[0] = rows;
        r.length = length;
        r.outer = 1;
        r.stride[0] = length * format_of(dtype).bytes;
        return r;
    }

    // Normally distributed numbers
    Input random(std::int64_t count, Dtype of, double spread) {
        std::normal_distribution<double> normal(0.0, spread);
        Input input{of, std::vector<Real>(static_cast<std::size_t>(count))};
        for (Real& x : input.values) x = rounded(format_of(of), normal(engine_));
        return input;
    }
    Input random(std::int64_t count) { return random(count, dtype, 2.0); }

    // Calls a kernel in every way, and compares what it gives.
    void check(const std::string& name, Bound bound, const std::vector<Input>& in, const Expected& expected,
               const Kernel& kernel) {
        const std::size_t bytes = expected.value.size() * static_cast<std::size_t>(format_of(dtype).bytes);
        const bool may_stream = length * format_of(dtype).bytes % 64 == 0;
        for (const std::string& target : runnable_targets()) {
            use_target(target);
            const auto compare = [&](const char* y) { return worst_error(y, expected); };
            const auto note = [&](Real error) { record(target, name, bound, error); };
            if (many_threads)
                note(from_many_threads(in, bytes, may_stream, kernel, compare));
            else
                for (Place place : {Place::at_start, Place::at_odd, Place::at_end})
                    note(from_place(place, in, bytes, may_stream, kernel, compare));
        }
    }

    // Prints the largest errors; true if none was too large.
    bool report() const {
        std::printf("largest errors, in units of the last place\n%-10s%-22s%9s%9s%9s%9s\n", "target", "kernel",
                    "float16", "bfloat16", "float32", "float64");
        for (const auto& [key, errors] : worst_) {
            std::printf("%-10s%-22s", key.first.c_str(), key.second.c_str());
            for (Real error : errors) std::printf("%9.3f", static_cast<double>(error));
            std::printf("\n");
        }
        std::printf("%d calls, %d of them wrong\n", calls_, wrong_);
        return calls_ > 0 && wrong_ == 0;
    }

  private:
    using Compare = std::function<Real(const char*)>;

    Real from_place(Place place, const std::vector<Input>& in, std::size_t bytes, bool may_stream, const Kernel& kernel,
                    const Compare& compare) {
        Call call{};
        while (memories_.size() <= in.size()) memories_.emplace_back(new Memory(kMostBytes));
        for (std::size_t i = 0; i < in.size(); ++i) {
            if (in[i].bytes() > kMostBytes) std::abort();
            call.in.push_back(memories_[i + 1]->place(in[i].bytes(), place));
            in[i].put(call.in[i]);
        }
        Memory& result = *memories_[0];
        // A result is as aligned as NumPy's are, and to 64 bytes if it may be written past the caches.
        call.out = result.place(bytes, place == Place::at_odd ? Place::at_end : place);
        call.streaming = may_stream && place == Place::at_start;
        std::memset(call.out, 0x7f, bytes);
        kernel(call);
        const Real error = compare(call.out);
        std::memset(call.out, Memory::kUnused, bytes);
        return result.rest_is_unused() ? error : Real{INFINITY};
    }

    // The same call from eight threads at once, into memory of the pool, while another thread changes what may change.
    Real from_many_threads(const std::vector<Input>& in, std::size_t bytes, bool may_stream, const Kernel& kernel,
                           const Compare& compare) {
        std::vector<std::vector<char>> arrays;
        Call call{};
        call.streaming = may_stream;
        for (const Input& input : in) {
            arrays.emplace_back(input.bytes());
            input.put(arrays.back().data());
        }
        for (std::vector<char>& array : arrays) call.in.push_back(array.data());
        std::vector<char> alone(bytes + 64);
        Call first = call;
        first.out = alone.data() + (64 - reinterpret_cast<std::uintptr_t>(alone.data()) % 64);
        kernel(first);
        const auto work = [&](Real& error) {
            error = 0;
            for (int i = 0; i < 4; ++i) {
                Call mine = call;
                mine.out = static_cast<char*>(pool::take(bytes));
                kernel(mine);
                if (std::memcmp(mine.out, first.out, bytes) != 0) error = std::max(error, compare(mine.out));
                pool::give(mine.out, bytes);
            }
        };
        std::atomic<bool> stop{false};
        std::thread meddler(meddle, std::cref(stop));
        std::array<Real, 8> errors{};
        std::vector<std::thread> threads;
        for (Real& error : errors) threads.emplace_back(work, std::ref(error));
        for (std::thread& thread : threads) thread.join();
        stop = true;
        meddler.join();
        return std::max(compare(first.out), *std::max_element(errors.begin(), errors.end()));
    }

    static void meddle(const std::atomic<bool>& stop) {
        const std::string in_use = target().name;
        const std::size_t limit = pool::statistics().limit;
        for (int i = 0; !stop; ++i) {
            thread_bound = i % 3 == 0 ? 0 : i % 3 + 1;
            use_target(in_use);
            pool::set_limit(i % 2 ? limit : 1 << 20);
            pool::reset_peak();
            if (i % 16 == 0) pool::empty_cache();
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        thread_bound = 0;
        pool::set_limit(limit);
    }

    Real worst_error(const char* y, const Expected& expected) const {
        const Format f = format_of(dtype);
        Real worst = 0;
        for (std::size_t i = 0; i < expected.value.size(); ++i) {
            const Real scale = expected.scale.empty() ? 0 : expected.scale[i];
            worst = std::max(worst, units_between(f, get_element(y, dtype), expected.value[i], scale));
            y += f.bytes;
        }
        return worst;
    }

    void record(const std::string& target, const std::string& name, Bound bound, Real error) {
        Real& worst = worst_[{target, name}][static_cast<std::size_t>(dtype)];
        worst = std::max(worst, error);
        ++calls_;
        if (error <= bound.of(dtype)) return;
        if (++wrong_ <= 20)
            std::printf("WRONG: %s, %s, %s, %d rows of %d: %g units, at most %g expected\n", name.c_str(),
                        target.c_str(), format_of(dtype).name, static_cast<int>(rows), static_cast<int>(length),
                        static_cast<double>(error), static_cast<double>(bound.of(dtype)));
    }

    static constexpr std::size_t kMostBytes = 64 * 1024;  // of an argument that is tried in several places
    std::vector<std::unique_ptr<Memory>> memories_;       // the result's first
    std::map<std::pair<std::string, std::string>, std::array<Real, 4>> worst_;
    std::mt19937_64 engine_{20240229};
    int calls_ = 0, wrong_ = 0;
};

}  // namespace tensorops::tests
