// The interface for C: include/tensorops/backends.h.
#define TENSOROPS_BUILDS_LIBRARY
#include "tensorops/backends.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>
#if !defined(_WIN32)
#include <unistd.h>
#endif

#include "call.h"
#include "parallel.h"
#include "pool.h"
#include "targets.h"

namespace tensorops {
namespace {

thread_local std::string error_text;

int fail(const std::string& text) {
    error_text = text;
    return -1;
}

// How many characters must be inserted, deleted or replaced to turn one text into another, in any case of letters
std::size_t edit_distance(std::string_view from, std::string_view to) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    std::vector<std::size_t> row(to.size() + 1);  // the distances to the beginnings of `to`
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (const char c : from) {
        std::size_t diagonal = row[0]++;
        for (std::size_t i = 0; i < to.size(); ++i) {
            const std::size_t replaced = diagonal + (lower(c) != lower(to[i]));
            diagonal = row[i + 1];
            row[i + 1] = std::min({replaced, row[i] + 1, diagonal + 1});
        }
    }
    return row.back();
}

// "there is no operator 'rmsnorm' (did you mean 'rms_norm'?); valid names: silu, rms_norm"
Reason unknown(const char* kind, std::string_view name, const std::vector<std::string_view>& valid) {
    constexpr std::size_t kBeginning = 4;  // letters: one name that begins with another is meant, whatever follows
    std::string_view nearest;
    std::size_t least = (name.size() + 2) / 3;  // a suggestion differs in less than a third of the letters
    std::string names;
    for (const std::string_view each : valid) {
        names.append(names.empty() ? "" : ", ").append(each);
        const std::size_t common = std::min(name.size(), each.size());
        const bool begins = common >= kBeginning && name.substr(0, common) == each.substr(0, common);
        const std::size_t distance = begins ? 0 : edit_distance(name, each);
        if (distance < least || (begins && each.size() > nearest.size() && each.size() <= name.size())) {
            least = distance;
            nearest = each;
        }
    }
    std::string text = std::string("there is no ") + kind + " '";
    text.append(name).append("'");
    if (!nearest.empty()) text.append(" (did you mean '").append(nearest).append("'?)");
    return text + "; valid names: " + names;
}

// ------------------------------------------------------------------------------------------------------ tensors

DLDataType type_of(Dtype dtype) {
    const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
    const int code = dtype == Dtype::boolean    ? kDLBool
                     : dtype == Dtype::bfloat16 ? kDLBfloat
                     : is_floating(dtype)       ? kDLFloat
                     : is_signed(dtype)         ? kDLInt
                                                : kDLUInt;
    return {static_cast<std::uint8_t>(code), bits, 1};
}

Dtype dtype_of(DLDataType type) {
    int i = 0;
    for (; i < static_cast<int>(Dtype::other); ++i) {
        const DLDataType own = type_of(static_cast<Dtype>(i));
        if (own.code == type.code && own.bits == type.bits && own.lanes == type.lanes) break;
    }
    return static_cast<Dtype>(i);
}

// A tensor as operators see it, and which bytes it has
struct View {
    Array array{};
    std::int64_t strides[kMaxAxes];
    std::uintptr_t begin = 0, end = 0;

    // Why the tensor cannot be used; empty if it can. Without memory, only its shape and dtype are looked at.
    Reason read(const DLTensor& t, bool has_memory) {
        if (t.device.device_type != kDLCPU) return "is not in the memory of the CPU";
        if (t.ndim < 0 || t.ndim > kMaxAxes) return "does not have 0 to " + std::to_string(kMaxAxes) + " dimensions";
        if (t.ndim > 0 && !t.shape) return "has no shape";
        array.dtype = dtype_of(t.dtype);
        array.ndim = t.ndim;
        array.shape = t.shape;
        if (array.dtype == Dtype::other) return "has a dtype that is not known";
        const std::int64_t item = array.item();
        std::int64_t size = item, low = 0, high = 0;
        bool is_empty = false, overflows = false;
        for (int d = 0; d < t.ndim; ++d) {
            if (t.shape[d] < 0) return "has a negative length";
            is_empty = is_empty || t.shape[d] == 0;
        }
        for (int d = 0; d < t.ndim && !is_empty; ++d) {
            overflows |= __builtin_mul_overflow(size, t.shape[d], &size);
            if (!t.strides) continue;
            std::int64_t reach = 0;
            overflows |= __builtin_mul_overflow(t.strides[d], item, &strides[d]);
            overflows |= !overflows && __builtin_mul_overflow(strides[d], t.shape[d] - 1, &reach);
            overflows |= __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
        }
        if (overflows) return "has more bytes than there are addresses";
        if (t.strides && !is_empty) array.strides = strides;
        if (array.strides && array.is_contiguous()) array.strides = nullptr;
        if (!has_memory) return {};
        array.data = static_cast<char*>(t.data);
        if (is_empty) return {};
        if (!t.data) return "has no memory";
        if (t.byte_offset > static_cast<std::uint64_t>(INT64_MAX)) return "begins beyond all addresses";
        array.data += t.byte_offset;
        const auto address = reinterpret_cast<std::uintptr_t>(array.data);
        if (address % static_cast<std::uintptr_t>(item) != 0) return "is not aligned to its elements";
        begin = address + static_cast<std::uintptr_t>(low);
        end = address + static_cast<std::uintptr_t>(t.strides ? high + item : size);
        return {};
    }
    bool overlaps(const View& other) const { return begin < other.end && other.begin < end; }
};

// A call whose tensors are the caller's
class TensorCall : public Call {
  public:
    TensorCall(const Operator& which, const TensoropsCall& given, bool describes)
        : Call(which, values_), given_(given), describes_(describes) {
        names_dtypes = true;
        has_values = !describes;
        only_describes = describes;
        std::copy(which.defaults.begin(), which.defaults.end(), values);
    }

    Reason read() {
        if (given_.argument_count > kMostParameters) return "has too many arguments";
        if (given_.result_count > kMostResults) return "has too many results";
        if ((given_.argument_count && !given_.arguments) || (given_.result_count && !given_.results) ||
            (given_.option_count && !given_.options))
            return "has a null pointer to its arguments, results or options";
        for (std::size_t i = 0; i < given_.argument_count; ++i)
            if (Reason reason = read_argument(given_.arguments[i], views_[i]); !reason.empty()) return reason;
        for (std::size_t i = 0; i < given_.option_count; ++i)
            if (Reason reason = read_option(given_.options[i]); !reason.empty()) return reason;
        for (std::size_t i = 0; i < given_.result_count; ++i)
            if (Reason reason = read_result(given_.results[i]); !reason.empty()) return reason;
        for (std::size_t i = 0; i < op.parameters.size(); ++i)
            if (op.required >> i & 1 && values[i].kind == Value::none) return "needs " + op.parameters[i].name;
        return {};
    }

  protected:
    bool make_one(int index, const Result& wanted) override {
        const std::string& name = op.results[static_cast<std::size_t>(index)];
        DLTensor* tensor = tensors_[index];
        if (!tensor) {
            reason = "needs a tensor for the result " + name;
            return false;
        }
        if (describes_) {
            tensor->ndim = wanted.ndim;
            tensor->dtype = type_of(wanted.dtype);
            tensor->strides = nullptr;
            std::copy_n(wanted.shape, wanted.ndim, tensor->shape);
            return true;
        }
        return take(index, results_[index].array, wanted);
    }
    void run(std::int64_t, void (*work)(const void*), const void* context) override { work(context); }

  private:
    Reason unknown_parameter(const char* name) const {
        std::vector<std::string_view> names;
        for (const Parameter& parameter : op.parameters) names.push_back(parameter.name);
        return unknown("parameter", name, names);
    }

    // Notes that a parameter is given, which may be once.
    Reason note(int place) {
        const std::uint64_t bit = std::uint64_t{1} << place;
        if (noted_ & bit) return "has the parameter " + op.parameters[static_cast<std::size_t>(place)].name + " twice";
        noted_ |= bit;
        return {};
    }

    Reason read_argument(const TensoropsTensor& given, View& view) {
        if (!given.name) return "has an argument without a name";
        const int place = op.find(given.name);
        if (place < 0) return unknown_parameter(given.name);
        if (Reason reason = note(place); !reason.empty()) return reason;
        if (!given.tensor) return {};
        if (Reason reason = view.read(*given.tensor, !describes_); !reason.empty())
            return std::string(given.name) + " " + reason;
        values[place] = Value::of(view.array);
        return {};
    }

    Reason read_option(const TensoropsOption& option) {
        if (!option.name) return "has an option without a name";
        const int place = op.find(option.name);
        if (place < 0) return unknown_parameter(option.name);
        if (Reason reason = note(place); !reason.empty()) return reason;
        Value& v = values[place];
        switch (option.kind) {
            case TENSOROPS_NUMBER:
                v.kind = Value::number;
                v.as_number = option.value.number;
                return {};
            case TENSOROPS_INTEGER:
                v.kind = Value::integer;
                v.as_integer = option.value.integer;
                return {};
            case TENSOROPS_FLAG:
                if (option.value.integer >> 1 != 0)
                    return "has an option that is neither 0 nor 1: " + std::string(option.name);
                v.kind = Value::flag;
                v.as_flag = option.value.integer != 0;
                return {};
            case TENSOROPS_TEXT:
                if (!option.value.text) return "has an option without a text: " + std::string(option.name);
                v = Value::of_text(option.value.text);
                return {};
            case TENSOROPS_INTEGERS:
                if (option.value.integers.count > 64 || (option.value.integers.count && !option.value.integers.items))
                    return "has an option without its integers: " + std::string(option.name);
                v.kind = Value::integers;
                v.as_integers = {option.value.integers.items, static_cast<int>(option.value.integers.count)};
                return {};
        }
        return "has an option of an unknown kind: " + std::string(option.name);
    }

    Reason read_result(const TensoropsTensor& given) {
        if (!given.name || !given.tensor) return "has a result without a name or tensor";
        const auto found = std::find(op.results.begin(), op.results.end(), given.name);
        if (found == op.results.end()) return unknown("result", given.name, {op.results.begin(), op.results.end()});
        const auto place = static_cast<std::size_t>(found - op.results.begin());
        if (tensors_[place]) return "has the result " + *found + " twice";
        tensors_[place] = given.tensor;
        if (describes_) return given.tensor->shape ? Reason{} : "has no room for the shape of the result " + *found;
        View& view = results_[place];
        if (Reason reason = view.read(*given.tensor, true); !reason.empty())
            return "the result " + *found + " " + reason;
        for (std::size_t i = 0; i < given_.argument_count; ++i)
            if (given_.arguments[i].tensor && view.overlaps(views_[i]))
                return "the result " + *found + " overlaps " + given_.arguments[i].name;
        for (std::size_t i = 0; i < op.results.size(); ++i)
            if (i != place && tensors_[i] && view.overlaps(results_[i]))
                return "the result " + *found + " overlaps the result " + op.results[i];
        return {};
    }

    const TensoropsCall& given_;
    const bool describes_;
    std::uint64_t noted_ = 0;
    Value values_[kMostParameters];
    View views_[kMostParameters], results_[kMostResults];
    DLTensor* tensors_[kMostResults] = {};
};

// The operator of this name; null with an error if there is none for programs in C
const Operator* public_operator(const char* name) {
    const Operator* op = name ? find_operator(name) : nullptr;
    if (op && op->callers == Callers::all) return op;
    std::vector<std::string_view> names;
    for (const Operator* each : operators())
        if (each->callers == Callers::all) names.push_back(each->name);
    fail(unknown("operator", name ? name : "", names));
    return nullptr;
}

int call_operator(const TensoropsCall* given, bool describes) try {
    if (!given || given->size < sizeof(TensoropsCall) || !given->name)
        return fail("the call is null, has no name, or is of an unknown version");
    const Operator* op = public_operator(given->name);
    if (!op) return -1;
    TensorCall call(*op, *given, describes);
    Reason reason = call.read();
    if (reason.empty()) reason = tensorops::call_operator(call);
    return reason.empty() ? 0 : fail(op->name + ": " + reason);
} catch (const std::bad_alloc&) {
    return fail("there is not enough memory");
}

// ----------------------------------------------------------------------------------------------------- backends

const char* cpu_unavailable(void*) {
    static const std::string why = has_target() ? "" : choose_target();
    return why.empty() ? nullptr : why.c_str();
}

std::int64_t cpu_memory(void*) {
#if defined(_SC_PHYS_PAGES)
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (pages > 0 && size > 0) return static_cast<std::int64_t>(pages) * size;
#endif
    return -1;
}

// Memory is aligned to lines of the caches, and remembers how large it is.
constexpr std::size_t kHead = 64;

void* cpu_allocate(void*, std::size_t bytes) {
    void* block = bytes < SIZE_MAX - kHead ? pool::take(bytes + kHead) : nullptr;
    if (!block) {
        fail("there is not enough memory");
        return nullptr;
    }
    std::memcpy(block, &bytes, sizeof bytes);
    return static_cast<char*>(block) + kHead;
}

void cpu_release(void*, void* memory) {
    if (!memory) return;
    char* block = static_cast<char*>(memory) - kHead;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    pool::give(block, bytes + kHead);
}

const char* cpu_flags(void*) { return cpu_unavailable(nullptr) ? "" : target().flags; }

const TensoropsBackend kCpu = {
    sizeof(TensoropsBackend),
    "cpu",
    "C++ kernels on the CPU",
    0,
    nullptr,
    cpu_unavailable,
    [](void*, DLDataType type) { return static_cast<int>(dtype_of(type) != Dtype::other); },
    cpu_memory,
    [](void*) { return std::int64_t{0}; },
    [](void*) { return 0; },
    cpu_allocate,
    cpu_release,
    cpu_flags,
    [](void*, const TensoropsCall* call) {
        if (const char* why = cpu_unavailable(nullptr)) return fail(why);
        return call_operator(call, false);
    },
};

struct Registry {
    std::mutex mutex;
    std::deque<TensoropsBackend> all{kCpu};  // whose addresses stay
};

Registry& registry() {  // never deleted: threads may outlive main()
    static Registry* const made = new Registry;
    return *made;
}

bool is_available(const TensoropsBackend& backend) {
    return !backend.unavailable || !backend.unavailable(backend.context);
}

}  // namespace
}  // namespace tensorops

using namespace tensorops;

int tensorops_interface_version(void) { return TENSOROPS_INTERFACE_VERSION; }

const char* tensorops_error(void) { return error_text.c_str(); }

void tensorops_set_error(const char* text) { error_text = text ? text : ""; }

size_t tensorops_backend_count(void) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    return registry().all.size();
}

const TensoropsBackend* tensorops_backend_at(size_t index) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    if (index < registry().all.size()) return &registry().all[index];
    fail("there is no backend " + std::to_string(index));
    return nullptr;
}

const TensoropsBackend* tensorops_backend(const char* name) {
    const std::lock_guard<std::mutex> lock(registry().mutex);
    std::vector<std::string_view> names;
    for (const TensoropsBackend& backend : registry().all) {
        if (name && std::strcmp(backend.name, name) == 0) return &backend;
        names.push_back(backend.name);
    }
    fail(unknown("backend", name ? name : "", names));
    return nullptr;
}

const TensoropsBackend* tensorops_default_backend(void) {
    for (size_t i = tensorops_backend_count(); i-- > 0;)
        if (const TensoropsBackend* backend = tensorops_backend_at(i); is_available(*backend)) return backend;
    fail("no backend is available");
    return nullptr;
}

int tensorops_register_backend(const TensoropsBackend* backend) {
    if (!backend || backend->size < sizeof(TensoropsBackend))
        return fail("the backend is null or of an unknown version");
    if (!backend->name || !*backend->name || !backend->call) return fail("a backend needs a name and `call`");
    const std::lock_guard<std::mutex> lock(registry().mutex);
    for (const TensoropsBackend& known : registry().all)
        if (std::strcmp(known.name, backend->name) == 0)
            return fail("there is already a backend " + std::string(backend->name));
    registry().all.push_back(*backend);
    return 0;
}

int tensorops_call(const TensoropsBackend* backend, const TensoropsCall* call) {
    if (!backend) backend = tensorops_default_backend();
    if (!backend) return -1;
    if (backend->size < sizeof(TensoropsBackend) || !backend->call) return fail("the backend has no `call`");
    return backend->call(backend->context, call);
}

int tensorops_describe_results(const TensoropsCall* call) {
    if (const char* why = cpu_unavailable(nullptr)) return fail(why);
    return call_operator(call, true);
}

size_t tensorops_operator_count(void) {
    size_t count = 0;
    for (const Operator* op : operators()) count += op->callers == Callers::all;
    return count;
}

const char* tensorops_operator_at(size_t index) {
    for (const Operator* op : operators())
        if (op->callers == Callers::all && index-- == 0) return op->name.c_str();
    fail("there is no such operator");
    return nullptr;
}

const char* tensorops_signature(const char* name) {
    const Operator* op = public_operator(name);
    return op ? op->whole_signature.c_str() : nullptr;
}

int tensorops_set_num_threads(int threads) {
    if (threads < 0) return fail("the number of threads must be at least 0");
    bound_threads(threads);
    return 0;
}
