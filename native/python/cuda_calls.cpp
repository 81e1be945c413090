// Calls of CUDA kernels: tensorops/kernels/cuda/_launch.py does the same in Python.
//
// What is read of a torch tensor comes from the table of functions that DLPack asks libraries for, with one call and no
// object of Python. Neither CUDA's headers nor torch's are needed.
#include <cstring>

#include "bind.h"
#include "calls.h"
#include "dlpack.h"

namespace tensorops {

using namespace nb::literals;

namespace {

using calls::attribute;
using calls::called;
using calls::Few;
using calls::Key;
using calls::truth;

// What a function was made with, in its tuple of members
enum Member { kKnown, kOwners, kGeneratorType, kPlan, kOtherwise };
// What a library says how to read its arrays, in its tuple `reading`; only the first of CuPy's arrays
enum Reading {
    kType,
    kParameter,
    kTable,
    kObservers,
    kForward,
    kRecords,
    kIsNegative,
    kStorage,
    kStorageSize,
    kStorageData
};
// What `plan` returns: what runs the call, how many bytes of memory each array must have, and how to run it here, or
// None
enum Planned { kRun, kReaches, kShort };
// What runs one launch with one result, as `_Short` in Python has it
enum Short { kDevice, kMake, kLaunch, kConfig, kFunction, kParameters };

constexpr int kLastBits = 15;  // of addresses, which belong to the key: vectors have up to 16 bytes

struct {
    PyObject *reading, *device_type, *current, *stream;
    PyObject *data, *ptr, *device_id, *dtype, *shape, *strides, *requires_grad, *current_level;
} names;

// CUlaunchConfig
struct Config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};

using Launch = int (*)(const Config*, void* function, void** parameters, void** extra);

// One parameter of a kernel: the number of an array's address among all, or the address of a number
struct Parameter {
    std::int64_t is_array, at;
};

class CudaCall {
  public:
    explicit CudaCall(PyObject* self) : self_(self) {}

    // Whether all arguments are usual; otherwise there may be an exception.
    bool read(PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
        if (count == 0) return false;
        library_ = calls::entry(member(kOwners), type_of(args[0]));
        if (!library_.is_valid() || library_.is_none()) return false;
        reading_ = attribute(library_.ptr(), names.reading);
        if (!reading_.is_valid() || !PyTuple_CheckExact(reading_.ptr())) return false;
        if (!key_.add_same(nb::borrow(of(kType))) || !add_names(key_, count, by_name)) return false;
        if (PyTuple_GET_SIZE(reading_.ptr()) > kParameter && !watch_tensors()) return false;
        for (Py_ssize_t i = 0; i < calls::all_of(count, by_name); ++i)
            if (!read(args[i])) return false;
        return true;
    }

    // Whether the call can be looked up; otherwise there is an exception, as for options without a hash.
    bool find() {
        key_made_ = key_.made();
        if (!key_made_.is_valid()) return false;
        planned_ = calls::entry(member(kKnown), key_made_.ptr());
        return planned_.is_valid() || !PyErr_Occurred();
    }

    nb::object run(PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
        if (!planned_.is_valid()) {
            planned_ = calls::plan(member(kPlan), key_made_, key_, library_.ptr(), args, count, by_name);
            if (!planned_.is_valid() || planned_.is(nb::handle(Py_NotImplemented))) return planned_;
        }
        if (!suffices(PyTuple_GET_ITEM(planned_.ptr(), kReaches))) return nb::borrow(Py_NotImplemented);
        PyObject* const in_short = PyTuple_GET_ITEM(planned_.ptr(), kShort);
        if (in_short != Py_None)
            if (nb::object result = run_short(in_short); result.is_valid() || PyErr_Occurred()) return result;
        return run_long(PyTuple_GET_ITEM(planned_.ptr(), kRun));
    }

  private:
    struct Place {
        std::uint64_t address;
        PyObject* generator;  // or null; the reference is the caller's
    };

    PyObject* member(Member which) const { return PyTuple_GET_ITEM(self_, which); }
    PyObject* of(Reading which) const { return PyTuple_GET_ITEM(reading_.ptr(), which); }
    static PyObject* type_of(PyObject* x) { return reinterpret_cast<PyObject*>(Py_TYPE(x)); }

    // Whether torch need not see the call; finds out what else each tensor is to be asked.
    bool watch_tensors() {
        table_ = dlpack::table_of(of(kTable));
        std::int64_t level = 0;
        if (!table_ || !calls::read(attribute(library_.ptr(), names.device_type).ptr(), device_type_) ||
            !calls::read(attribute(of(kForward), names.current_level).ptr(), level) || level >= 0)
            return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(of(kObservers)); ++i)
            if (truth(called(PyTuple_GET_ITEM(of(kObservers), i))) != 0) return false;
        const int records = truth(called(of(kRecords)));
        records_ = records != 0;
        return records >= 0;
    }

    bool read(PyObject* x) {
        PyObject* const type = type_of(x);
        if (table_ && (type == of(kType) || type == of(kParameter))) return read_tensor(x);
        if (type == of(kType)) return read_array(x);
        if (type == member(kGeneratorType)) return key_.add(calls::kGenerator) && places_.add({0, x});
        return add_other(key_, x);
    }

    bool read_tensor(PyObject* x) {
        dlpack::Tensor t;
        if (table_->describe(x, &t) != 0 || t.device_type != device_type_ || truth(called(of(kIsNegative), x)) != 0 ||
            (records_ && truth(attribute(x, names.requires_grad)) != 0))
            return false;
        const std::uint64_t address = reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset;
        const std::int64_t dtype = t.code | t.bits << 8 | std::int64_t{t.lanes} << 16;
        if (!key_.add(calls::kArray) || !key_.add(dtype) || !key_.add(t.ndim)) return false;
        for (int i = 0; i < t.ndim; ++i)
            if (!key_.add(t.shape[i]) || !key_.add(t.strides[i])) return false;
        return add_place(address, t.device_id) && add_room(x, address);
    }

    // How many bytes of memory there are from an address on: torch resizes storages in place.
    bool add_room(PyObject* x, std::uint64_t address) {
        const nb::object storage = called(of(kStorage), x);
        std::uint64_t begin = 0, size = 0;
        return storage.is_valid() && calls::read_address(called(of(kStorageData), storage.ptr()).ptr(), begin) &&
               calls::read_address(called(of(kStorageSize), storage.ptr()).ptr(), size) &&
               rooms_.add(static_cast<std::int64_t>(begin + size - address));
    }

    bool read_array(PyObject* x) {
        const nb::object memory = attribute(x, names.data);
        std::uint64_t address = 0;
        std::int64_t device = 0;
        return memory.is_valid() && calls::read_address(attribute(memory.ptr(), names.ptr).ptr(), address) &&
               calls::read(attribute(memory.ptr(), names.device_id).ptr(), device) && key_.add(calls::kArray) &&
               key_.add_same(attribute(x, names.dtype)) && key_.add_integers(attribute(x, names.shape).ptr()) &&
               key_.add_integers(attribute(x, names.strides).ptr()) && add_place(address, device);
    }

    bool add_place(std::uint64_t address, std::int64_t device) {
        return key_.add(device << 4 | static_cast<std::int64_t>(address & kLastBits)) &&
               places_.add({address, nullptr});
    }

    bool suffices(PyObject* reaches) {
        for (int i = 0; i < rooms_.size(); ++i)
            if (std::int64_t reach = 0; !calls::read(PyTuple_GET_ITEM(reaches, i), reach) || rooms_[i] < reach)
                return false;
        return true;
    }

    nb::object run_long(PyObject* run) {
        nb::object places = nb::steal(PyList_New(places_.size()));
        if (!places.is_valid()) return {};
        for (int i = 0; i < places_.size(); ++i) {
            PyObject* const generator = places_[i].generator;
            PyObject* const place = generator ? Py_NewRef(generator) : PyLong_FromUnsignedLongLong(places_[i].address);
            if (!place) return {};
            PyList_SET_ITEM(places.ptr(), i, place);
        }
        return called(run, places.ptr());
    }

    // Nothing without an exception if the other way has to run the call: on another device, or if the launch failed.
    nb::object run_short(PyObject* launch) {
        const auto item = [launch](Short which) { return PyTuple_GET_ITEM(launch, which); };
        std::int64_t device = 0, current = 0;
        const nb::object asks = attribute(library_.ptr(), names.current),
                         stream_of = attribute(library_.ptr(), names.stream);
        if (!asks.is_valid() || !stream_of.is_valid() || !calls::read(item(kDevice), device) ||
            !calls::read(called(asks.ptr()).ptr(), current) || current != device)
            return {};
        nb::object made = called(item(kMake));
        std::uint64_t stream = 0, launcher = 0, function = 0;
        if (!made.is_valid() || !read_result(made.ptr()) ||
            !calls::read_address(called(stream_of.ptr(), item(kDevice)).ptr(), stream) ||
            !calls::read_address(item(kLaunch), launcher) || !calls::read_address(item(kFunction), function))
            return {};
        Config config;
        std::memcpy(&config, PyBytes_AS_STRING(item(kConfig)), sizeof config);
        config.stream = reinterpret_cast<void*>(stream);
        return enqueue(reinterpret_cast<Launch>(launcher), config, reinterpret_cast<void*>(function), item(kParameters))
                   ? made
                   : nb::object();
    }

    bool read_result(PyObject* made) {
        if (table_) {
            dlpack::Tensor t;
            if (table_->describe(made, &t) != 0) return false;
            result_ = reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset;
            return true;
        }
        const nb::object memory = attribute(made, names.data);
        return memory.is_valid() && calls::read_address(attribute(memory.ptr(), names.ptr).ptr(), result_);
    }

    // The driver copies all that it is given, so it may be on the stack.
    bool enqueue(Launch launch, const Config& config, void* function, PyObject* parameters) {
        const auto* each = reinterpret_cast<const Parameter*>(PyBytes_AS_STRING(parameters));
        const int count = static_cast<int>(PyBytes_GET_SIZE(parameters) / sizeof(Parameter));
        void* at[kMostParameters];
        if (count > kMostParameters) return false;
        for (int i = 0; i < count; ++i)
            at[i] = each[i].is_array ? address_of(static_cast<int>(each[i].at)) : reinterpret_cast<void*>(each[i].at);
        nb::gil_scoped_release released;
        return launch(&config, function, at, nullptr) == 0;
    }

    // Where an array's address is; the result comes after the arguments.
    void* address_of(int slot) { return slot < places_.size() ? &places_[slot].address : &result_; }

    static constexpr int kMostParameters = 96;

    PyObject* self_;
    nb::object library_, reading_, key_made_, planned_;
    const dlpack::Table* table_ = nullptr;
    std::int64_t device_type_ = 0;
    bool records_ = false;
    Key key_;
    Few<Place, calls::kMost> places_;
    std::uint64_t result_ = 0;
    Few<std::int64_t, calls::kMost> rooms_;
};

PyObject* call_cuda(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
    CudaCall call(self);
    if (call.read(args, count, by_name) && call.find()) return call.run(args, count, by_name).release().ptr();
    PyErr_Clear();
    return PyObject_Vectorcall(PyTuple_GET_ITEM(self, kOtherwise), args, count, by_name);
}

PyMethodDef cuda_definition = calls::definition("cuda_kernel", call_cuda);

}  // namespace

void bind_cuda_calls(nb::module_& m) {
    names = {calls::interned("reading"),   calls::interned("device_type"),   calls::interned("current"),
             calls::interned("stream"),    calls::interned("data"),          calls::interned("ptr"),
             calls::interned("device_id"), calls::interned("dtype"),         calls::interned("shape"),
             calls::interned("strides"),   calls::interned("requires_grad"), calls::interned("_current_level")};
    m.def(
        "cuda_kernel",
        [](nb::dict known, nb::dict owners, nb::handle generator, nb::handle plan, nb::handle otherwise) {
            return calls::function(cuda_definition, nb::make_tuple(known, owners, generator, plan, otherwise));
        },
        "known"_a, "owners"_a, "generator"_a, "plan"_a, "otherwise"_a,
        "An operator's kernel on arrays of the libraries of `owners`; calls `otherwise` with what it does not know.");
    m.def(
        "describes_tensors", [](nb::handle capsule) { return dlpack::table_of(capsule.ptr()) != nullptr; }, "table"_a,
        "Whether a library's table of DLPack's functions is one that `cuda_kernel` can use.");
}

}  // namespace tensorops
