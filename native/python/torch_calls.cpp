// Calls of the compiled kernels with torch tensors in the host's memory: tensorops/kernels/torch_cpu/_launch.py does
// the same in Python.
//
// A tensor is described by DLPack's table of functions, and becomes a NumPy array that shares its memory; results
// become tensors that keep the kernel's result alive. torch's headers are not needed.
#include "bind.h"
#include "calls.h"
#include "dlpack.h"

namespace tensorops {

using namespace nb::literals;

namespace {

using calls::attribute;

// What a function was made with, in its tuple of members
enum Member { kFunction, kReading, kDifferentiable, kOtherwise };
// What torch is asked, in the tuple `reading`
enum Reading {
    kType,
    kParameter,
    kTable,
    kObservers,  // functions whose results are false if nothing sees the operations of a call
    kForward,    // the module whose `_current_level` is negative if no forward derivatives are being taken
    kRecords,    // whether gradients are recorded
    kIsNegative,
    kStorage,
    kStorageSize,
    kStorageData,
    kDtypes,  // NumPy's dtypes by torch's
};

constexpr int kMost = 32;  // arguments of a call; those with more are left to Python

struct {
    PyObject *requires_grad, *current_level;
} names;

// The result of a function; null with an exception
nb::object called(PyObject* function) { return nb::steal(PyObject_CallNoArgs(function)); }
nb::object called(PyObject* function, PyObject* x) { return nb::steal(PyObject_CallOneArg(function, x)); }

// An attribute or the result of a function, as a truth value; negative with or without an exception
int truth(const nb::object& x) { return x.is_valid() ? PyObject_IsTrue(x.ptr()) : -1; }

// An integer of Python's own type within 64 bits
bool read_integer(PyObject* x, std::int64_t& value) {
    if (!x || !PyLong_CheckExact(x)) return false;
    value = PyLong_AsLongLong(x);
    return value != -1 || !PyErr_Occurred();
}

// A pointer as an integer of Python
bool read_address(PyObject* x, std::uint64_t& value) {
    if (!x || !PyLong_CheckExact(x)) return false;
    value = PyLong_AsUnsignedLongLong(x);
    return value != ~std::uint64_t{0} || !PyErr_Occurred();
}

// How many arguments a call has by position and by name
Py_ssize_t all_of(Py_ssize_t count, PyObject* names) { return count + (names ? PyTuple_GET_SIZE(names) : 0); }

// A built-in function with the given members; nanobind's own take longer to be called.
nb::object function(PyMethodDef& definition, nb::object members) {
    return nb::steal(PyCFunction_NewEx(&definition, members.ptr(), nullptr));
}

int numpy_type(const dlpack::Tensor& t) {
    const int size = t.bits / 8;
    if (t.lanes != 1 || t.bits % 8) return -1;
    if (t.code == dlpack::kFloat)
        return size == 4 ? NPY_FLOAT32 : size == 2 ? NPY_FLOAT16 : size == 8 ? NPY_FLOAT64 : -1;
    if (t.code == dlpack::kBfloat) return size == 2 ? bfloat16_type : -1;
    if (t.code == dlpack::kBool) return size == 1 ? NPY_BOOL : -1;
    if (t.code == dlpack::kInt)
        return size == 8 ? NPY_INT64 : size == 4 ? NPY_INT32 : size == 2 ? NPY_INT16 : size == 1 ? NPY_INT8 : -1;
    if (t.code == dlpack::kUnsigned)
        return size == 1 ? NPY_UINT8 : size == 2 ? NPY_UINT16 : size == 4 ? NPY_UINT32 : size == 8 ? NPY_UINT64 : -1;
    return -1;
}

// Whether a result's dtype has a code, and which.
bool code_of(PyArrayObject* a, std::uint8_t& code) {
    if (PyArray_TYPE(a) == bfloat16_type)
        code = dlpack::kBfloat;
    else if (PyArray_ISFLOAT(a))
        code = dlpack::kFloat;
    else if (PyArray_ISBOOL(a))
        code = dlpack::kBool;
    else if (PyArray_ISSIGNED(a))
        code = dlpack::kInt;
    else if (PyArray_ISUNSIGNED(a))
        code = dlpack::kUnsigned;
    else
        return false;
    return true;
}

// A result that a tensor keeps alive.
struct Lent {
    dlpack::Managed managed;
    PyObject* array;
    std::int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
};

void release(dlpack::Managed* managed) {
    auto* lent = static_cast<Lent*>(managed->context);
    if (Py_IsInitialized()) {  // torch may end after Python
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(lent->array);
        PyGILState_Release(state);
    }
    delete lent;
}

class TorchCall {
  public:
    explicit TorchCall(PyObject* self) : self_(self), reading_(PyTuple_GET_ITEM(self, kReading)) {}

    bool differentiates = false;  // autograd must follow the call

    // Whether autograd must follow the call, or all arguments are usual; otherwise there may be an exception.
    bool read(PyObject* const* args, Py_ssize_t count) {
        if (count > kMost || !watch()) return false;
        for (Py_ssize_t i = 0; records_ && i < count; ++i) {
            if (!is_tensor(args[i])) continue;
            const int requires_grad = truth(attribute(args[i], names.requires_grad));
            if (requires_grad < 0) return false;
            if (requires_grad) return differentiates = true;
        }
        for (Py_ssize_t i = 0; i < count; ++i) {
            if (PyArray_DescrCheck(args[i]) || PyType_Check(args[i])) return false;  // dtypes of NumPy
            if (is_tensor(args[i]))
                views_[i] = view(args[i]);
            else if (nb::object dtype = calls::entry(of(kDtypes), args[i]); dtype.is_valid())
                views_[i] = dtype;
            else if (PyErr_Occurred())
                return false;
            else
                views_[i] = nb::borrow(args[i]);
            if (!views_[i].is_valid()) return false;
            given_[i] = views_[i].ptr();
        }
        return true;
    }

    PyObject* run(Py_ssize_t count, PyObject* by_name) {
        nb::object y = nb::steal(PyObject_Vectorcall(PyTuple_GET_ITEM(self_, kFunction), given_, count, by_name));
        if (!y.is_valid() || !PyTuple_CheckExact(y.ptr())) return tensor(y).release().ptr();
        const Py_ssize_t size = PyTuple_GET_SIZE(y.ptr());
        nb::object all = nb::steal(PyTuple_New(size));
        for (Py_ssize_t i = 0; all.is_valid() && i < size; ++i) {
            nb::object one = tensor(nb::borrow(PyTuple_GET_ITEM(y.ptr(), i)));
            if (!one.is_valid()) return nullptr;
            PyTuple_SET_ITEM(all.ptr(), i, one.release().ptr());
        }
        return all.release().ptr();
    }

  private:
    PyObject* of(Reading which) const { return PyTuple_GET_ITEM(reading_, which); }

    bool is_tensor(PyObject* x) const {
        auto* type = reinterpret_cast<PyObject*>(Py_TYPE(x));
        return type == of(kType) || type == of(kParameter);
    }

    // Whether torch need not see the call.
    bool watch() {
        std::int64_t level = 0;
        table_ = dlpack::table_of(of(kTable));
        if (!table_ || !read_integer(attribute(of(kForward), names.current_level).ptr(), level) || level >= 0)
            return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(of(kObservers)); ++i)
            if (truth(called(PyTuple_GET_ITEM(of(kObservers), i))) != 0) return false;
        const int records = truth(called(of(kRecords)));
        records_ = records != 0;
        return records >= 0;
    }

    nb::object view(PyObject* x) {
        dlpack::Tensor t;
        if (table_->describe(x, &t) != 0 || t.device_type != dlpack::kHost || t.ndim > NPY_MAXDIMS ||
            truth(called(of(kIsNegative), x)) != 0)
            return {};
        const int type = numpy_type(t);
        if (type < 0) return {};
        npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
        const std::int64_t size = t.bits / 8;
        std::int64_t reach = size;
        bool is_empty = false;
        for (int d = 0; d < t.ndim; ++d) {
            shape[d] = t.shape[d];
            strides[d] = t.strides[d] * size;
            is_empty |= shape[d] == 0;
            reach += (shape[d] - 1) * strides[d];  // torch has no negative strides
        }
        char* const data = static_cast<char*>(t.data) + t.byte_offset;
        if (!is_empty && !suffices(x, reinterpret_cast<std::uintptr_t>(data), reach)) return {};
        nb::object array = nb::steal(PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(type), t.ndim, shape,
                                                          strides, data, NPY_ARRAY_WRITEABLE, nullptr));
        if (!array.is_valid() || PyArray_SetBaseObject(as_array(array), Py_NewRef(x)) != 0) return {};
        return array;
    }

    // Whether the storage ends after this many bytes from an address on: torch resizes storages in place.
    bool suffices(PyObject* x, std::uint64_t address, std::int64_t reach) {
        const nb::object storage = called(of(kStorage), x);
        std::uint64_t begin = 0, size = 0;
        return storage.is_valid() && read_address(called(of(kStorageData), storage.ptr()).ptr(), begin) &&
               read_address(called(of(kStorageSize), storage.ptr()).ptr(), size) &&
               address + static_cast<std::uint64_t>(reach) <= begin + size;
    }

    // An array as a tensor; other results, such as None, as they are.
    nb::object tensor(nb::object y) {
        if (!y.is_valid() || !PyArray_CheckExact(y.ptr())) return y;
        PyArrayObject* a = as_array(y);
        auto* lent = new Lent;
        dlpack::Tensor& t = lent->managed.tensor;
        if (!code_of(a, t.code)) {
            delete lent;
            PyErr_SetString(PyExc_TypeError, "torch has no dtype for a result");
            return {};
        }
        t.data = PyArray_DATA(a);
        t.device_type = dlpack::kHost;
        t.device_id = 0;
        t.ndim = PyArray_NDIM(a);
        t.bits = static_cast<std::uint8_t>(8 * PyArray_ITEMSIZE(a));
        t.lanes = 1;
        t.shape = lent->shape;
        t.strides = lent->strides;
        t.byte_offset = 0;
        for (int d = 0; d < t.ndim; ++d) {
            lent->shape[d] = PyArray_DIM(a, d);
            lent->strides[d] = PyArray_STRIDE(a, d) / PyArray_ITEMSIZE(a);
        }
        lent->managed.major = dlpack::kMajor;
        lent->managed.minor = dlpack::kMinor;
        lent->managed.context = lent;
        lent->managed.release = release;
        lent->managed.flags = 0;
        lent->array = y.release().ptr();
        void* made = nullptr;
        if (table_->to_object(&lent->managed, &made) != 0) {
            release(&lent->managed);
            return {};
        }
        return nb::steal(static_cast<PyObject*>(made));
    }

    PyObject *self_, *reading_;
    const dlpack::Table* table_ = nullptr;
    bool records_ = false;
    nb::object views_[kMost];
    PyObject* given_[kMost];
};

PyObject* call_torch(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
    TorchCall call(self);
    if (call.read(args, all_of(count, by_name))) {
        if (!call.differentiates) return call.run(count, by_name);
        PyObject* const differentiable = PyTuple_GET_ITEM(self, kDifferentiable);
        if (differentiable != Py_None) return PyObject_Vectorcall(differentiable, args, count, by_name);
    }
    PyErr_Clear();
    return PyObject_Vectorcall(PyTuple_GET_ITEM(self, kOtherwise), args, count, by_name);
}

PyMethodDef torch_definition = {"torch_kernel", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_torch)),
                                METH_FASTCALL | METH_KEYWORDS, nullptr};

}  // namespace

void bind_torch_calls(nb::module_& m) {
    names = {calls::interned("requires_grad"), calls::interned("_current_level")};
    m.def(
        "torch_kernel",
        [](nb::handle kernel, nb::handle reading, nb::handle otherwise, nb::handle differentiable) {
            return function(torch_definition, nb::make_tuple(kernel, reading, differentiable, otherwise));
        },
        "kernel"_a, "reading"_a, "otherwise"_a, "differentiable"_a.none(),
        "A kernel for NumPy arrays on tensors in host memory; calls `differentiable`, if any, where autograd follows "
        "the call, and `otherwise` with what it does not know.");
    m.def(
        "describes_tensors", [](nb::handle capsule) { return dlpack::table_of(capsule.ptr()) != nullptr; }, "table"_a,
        "Whether a library's table of DLPack's functions is one that `torch_kernel` can use.");
}

}  // namespace tensorops
