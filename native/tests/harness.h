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

// So long a row shows whether errors grow with the length.
inline constexpr std::int64_t kLongRow = 70002;

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

    std::size_t room() const { return room_ - 1; }

    char* place(std::size_t bytes, Place place) {
        data_ = place == Place::at_end ? begin_ + room_ - bytes : begin_ + (place == Place::at_odd ? 1 : 0);
        bytes_ = bytes;
        return data_;
    }

    // Whether nothing was written next to the array that was placed last.
    bool rest_is_unused() const {
        const auto unused = [](char c) { return c == kUnused; };
        return std::all_of(begin_, data_, unused) && std::all_of(data_ + bytes_, begin_ + room_, unused);
    }

    static constexpr char kUnused = 0x5a;

  private:
    std::size_t page_, room_ = 0, bytes_ = 0;
    char *begin_ = nullptr, *data_ = nullptr;
};

// An argument: numbers that its dtype has, or bytes (Dtype::other), in C order.
struct Input {
    Dtype dtype;
    std::vector<Real> values;
    bool aligned = false;  // the kernel may ask that it be as aligned as its elements
    // Of an array with more axes than one, the last contiguous; strides of the others are in bytes.
    std::vector<std::int64_t> shape = {}, stride = {};

    std::int64_t element() const { return format_of(dtype).bytes; }
    std::size_t bytes() const {
        if (shape.empty()) return values.size() * static_cast<std::size_t>(element());
        std::int64_t end = shape.back() * element();
        for (std::size_t axis = 0; axis < stride.size(); ++axis) end += (shape[axis] - 1) * stride[axis];
        return static_cast<std::size_t>(end);
    }
    // What lies between rows is NaN, whatever the dtype.
    void put(char* p) const {
        if (!shape.empty()) std::memset(p, 0xff, bytes());
        const std::size_t row = shape.empty() ? values.size() : static_cast<std::size_t>(shape.back());
        for (std::size_t i = 0; i < values.size(); ++i)
            put_element(p + start_of_row(i / row) + static_cast<std::int64_t>(i % row) * element(), dtype, values[i]);
    }
    std::int64_t start_of_row(std::size_t index) const {
        std::int64_t start = 0;
        for (std::size_t axis = stride.size(); axis-- > 0; index /= static_cast<std::size_t>(shape[axis]))
            start += static_cast<std::int64_t>(index % static_cast<std::size_t>(shape[axis])) * stride[axis];
        return start;
    }
};

// The same numbers with the given shape. Its outer axes lie in memory in the given order, slowest first, and so many
// bytes follow each row but the last.
inline Input laid_out(Input x, const std::vector<std::int64_t>& shape, const std::vector<std::size_t>& order,
                      std::int64_t gap) {
    x.shape = shape;
    x.stride.resize(order.size());
    std::int64_t step = shape.back() * x.element() + gap;
    for (std::size_t i = order.size(); i-- > 0; step *= shape[order[i]]) x.stride[order[i]] = step;
    return x;
}

// Rows as kernels take them.
inline Rows rows_of(const Input& x, const char* data) {
    Rows r{};
    r.data = data;
    r.count = 1;
    r.length = x.shape.back();
    r.outer = static_cast<int>(x.stride.size());
    for (std::size_t axis = 0; axis < x.stride.size(); ++axis) {
        r.count *= r.shape[axis] = x.shape[axis];
        r.stride[axis] = x.stride[axis];
    }
    return r;
}

// Numbers at which functions change their course, among others.
inline void strew_extremes(Input& x) {
    const Format f = format_of(x.dtype);
    const Real largest = std::ldexp(2 - std::ldexp(Real{1}, -f.mantissa), f.bias), least = unit_at(f, Real{0});
    const Real extremes[] = {0, -0.0L, INFINITY, -INFINITY, NAN, largest, -largest, least, -least, 20, -20, 100, -100};
    std::size_t next = 0;
    for (std::size_t i = 5; i < x.values.size(); i += 6) x.values[i] = extremes[next++ % std::size(extremes)];
}

// A result: its errors are counted in units of the last place of `value`, or of `scale` where that is larger.
struct Expected {
    std::vector<Real> value, scale;
    std::vector<char> bytes = {};  // of a result that is not an array of numbers, and must be the same in every bit

    template <class T>
    static Expected exactly(const std::vector<T>& elements) {
        const char* begin = reinterpret_cast<const char*>(elements.data());
        return {{}, {}, std::vector<char>(begin, begin + elements.size() * sizeof(T))};
    }
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
    std::vector<std::string> targets = runnable_targets();

    // Normally distributed numbers
    Input random(std::int64_t count, Dtype of, double spread) {
        std::normal_distribution<double> normal(0.0, spread);
        Input input{of, std::vector<Real>(static_cast<std::size_t>(count))};
        for (Real& x : input.values) x = rounded(format_of(of), normal(engine_));
        return input;
    }
    Input random(std::int64_t count) { return random(count, dtype, 2.0); }

    // `rows` rows of `length`, for some lengths with other bytes between them
    Input random_rows(double spread = 2.0) {
        return laid_out(random(rows * length, dtype, spread), {rows, length}, {0}, length % 3 ? 0 : 7);
    }

    std::int64_t integer(std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(engine_);
    }
    Input random_bytes(std::int64_t count) {
        Input input{Dtype::other, {}};
        for (std::int64_t i = 0; i < count; ++i) input.values.push_back(static_cast<Real>(integer(0, 255)));
        return input;
    }

    // Calls a kernel in every way, and compares what it gives.
    void check(const std::string& name, Bound bound, const std::vector<Input>& in, const Expected& expected,
               const Kernel& kernel) {
        const std::size_t bytes = expected.bytes.empty()
                                      ? expected.value.size() * static_cast<std::size_t>(format_of(dtype).bytes)
                                      : expected.bytes.size();
        const bool may_stream = length * format_of(dtype).bytes % 64 == 0;
        std::vector<Image> images = images_of(in);
        for (const std::string& target : targets) {
            use_target(target);
            const auto compare = [&](const char* y) { return worst_error(y, expected); };
            const auto note = [&](Real error) { record(target, name, bound, error); };
            if (many_threads)
                note(from_many_threads(images, bytes, may_stream, kernel, compare));
            else
                for (Place place : {Place::at_start, Place::at_odd, Place::at_end})
                    note(from_place(place, images, bytes, may_stream, kernel, compare));
        }
    }

    // Counts a result, wrong if its error in units of the last place is too large.
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

    // Counts what could not be tested as wrong.
    void fail(const std::string& name, const char* reason) {
        ++wrong_;
        std::printf("WRONG: %s, %s, length %d: %s\n", name.c_str(), format_of(dtype).name, static_cast<int>(length),
                    reason);
    }

    // Prints the largest errors; true if none was too large.
    bool report() const {
        std::printf("largest errors, in units of the last place\n%-14s%-22s%9s%9s%9s%9s\n", "target", "kernel",
                    "float16", "bfloat16", "float32", "float64");
        for (const auto& [key, errors] : worst_) {
            std::printf("%-14s%-22s", key.first.c_str(), key.second.c_str());
            for (Real error : errors) std::printf("%9.3f", static_cast<double>(error));
            std::printf("\n");
        }
        std::printf("%d calls, %d of them wrong\n", calls_, wrong_);
        return calls_ > 0 && wrong_ == 0;
    }

  private:
    using Compare = std::function<Real(const char*)>;

    // An input as it lies in memory: making it takes longer than most calls.
    struct Image {
        std::vector<char> bytes;
        bool aligned;
    };
    static std::vector<Image> images_of(const std::vector<Input>& in) {
        std::vector<Image> images;
        for (const Input& input : in) {
            images.push_back({std::vector<char>(input.bytes()), input.aligned});
            input.put(images.back().bytes.data());
        }
        return images;
    }

    Real from_place(Place place, const std::vector<Image>& in, std::size_t bytes, bool may_stream, const Kernel& kernel,
                    const Compare& compare) {
        Call call{};
        for (std::size_t i = 0; i < in.size(); ++i) {
            const std::size_t size = in[i].bytes.size();
            const bool moved = in[i].aligned && place == Place::at_odd;
            call.in.push_back(memory(i + 1, size).place(size, moved ? Place::at_end : place));
            std::copy(in[i].bytes.begin(), in[i].bytes.end(), call.in[i]);
        }
        Memory& result = memory(0, bytes);
        // A result is as aligned as NumPy's are, and to 64 bytes if it may be written past the caches.
        call.out = result.place(bytes, place == Place::at_odd ? Place::at_end : place);
        call.streaming = may_stream && place == Place::at_start;
        std::memset(call.out, 0x7f, bytes);
        kernel(call);
        const Real error = compare(call.out);
        std::memset(call.out, Memory::kUnused, bytes);
        return result.rest_is_unused() ? error : Real{INFINITY};
    }

    // Memory for the result (0) or for an input.
    Memory& memory(std::size_t index, std::size_t bytes) {
        while (memories_.size() <= index) memories_.emplace_back(new Memory(16 * 1024));
        if (memories_[index]->room() < bytes) memories_[index].reset(new Memory(bytes));
        return *memories_[index];
    }

    // The same call from eight threads at once, into memory of the pool, while another thread changes what may change.
    Real from_many_threads(std::vector<Image>& in, std::size_t bytes, bool may_stream, const Kernel& kernel,
                           const Compare& compare) {
        Call call{};
        call.streaming = may_stream;
        for (Image& image : in) call.in.push_back(image.bytes.data());
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
        if (!expected.bytes.empty())
            return std::memcmp(y, expected.bytes.data(), expected.bytes.size()) == 0 ? Real{0} : Real{INFINITY};
        const Format f = format_of(dtype);
        Real worst = 0;
        for (std::size_t i = 0; i < expected.value.size(); ++i) {
            const Real scale = expected.scale.empty() ? 0 : expected.scale[i];
            worst = std::max(worst, units_between(f, get_element(y, dtype), expected.value[i], scale));
            y += f.bytes;
        }
        return worst;
    }

    std::vector<std::unique_ptr<Memory>> memories_;  // the result's first
    std::map<std::pair<std::string, std::string>, std::array<Real, 4>> worst_;
    std::mt19937_64 engine_{20240229};
    int calls_ = 0, wrong_ = 0;
};

}  // namespace tensorops::tests
