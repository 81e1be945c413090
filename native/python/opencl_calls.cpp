// Calls of OpenCL kernels: tensorops/kernels/opencl/_launch.py does the same in Python.
#include "bind.h"
#include "calls.h"

namespace tensorops {

using namespace nb::literals;

namespace {

using calls::attribute;
using calls::Few;
using calls::Key;

// What a function was made with, in its tuple of members
enum Member { kOperator, kWrapperType, kArrayType, kGeneratorType, kQueues, kDeviceOf, kPlan, kOtherwise };
// What `plan` returns: what runs the call, and how to do so here, or None
enum Planned { kRun, kShort };
// What runs one launch with one result, as `_Short` in Python has it
enum Short { kBytes, kSetSeveral, kPlaces, kEnqueue, kKernel, kGlobalSize, kLocalSize, kLayout, kOwn };

constexpr std::int64_t kComplete = 0;  // CL_COMPLETE

struct {
    PyObject *layout, *device, *buffer, *dtype, *shape, *strides, *offset, *queue, *events, *base_data;
    PyObject *plans, *pool, *lock, *allocate, *acquire, *release, *dict, *status;
} names;

class OpenclCall {
  public:
    explicit OpenclCall(PyObject* self) : self_(self) {}

    // Whether all arguments are usual; otherwise there may be an exception.
    bool read(PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
        if (!key_.add_same(nb::borrow(member(kOperator))) || !add_names(key_, count, by_name)) return false;
        for (Py_ssize_t i = 0; i < calls::all_of(count, by_name); ++i)
            if (!read(args[i])) return false;
        return device_.is_valid();
    }

    // Whether the call can be looked up; otherwise there is an exception, as for options without a hash.
    bool find() {
        key_made_ = key_.made();
        const nb::object plans = attribute(device_.ptr(), names.plans);
        if (!key_made_.is_valid() || !plans.is_valid()) return false;
        planned_ = calls::entry(plans.ptr(), key_made_.ptr());
        return planned_.is_valid() || !PyErr_Occurred();
    }

    nb::object run(PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
        if (!planned_.is_valid()) {
            planned_ = calls::plan(member(kPlan), key_made_, key_, device_.ptr(), args, count, by_name);
            if (!planned_.is_valid() || planned_.is(nb::handle(Py_NotImplemented))) return planned_;
        }
        PyObject* const in_short = PyTuple_GET_ITEM(planned_.ptr(), kShort);
        if (in_short != Py_None)
            if (nb::object result = run_short(in_short); result.is_valid() || PyErr_Occurred()) return result;
        return run_long(PyTuple_GET_ITEM(planned_.ptr(), kRun));
    }

  private:
    PyObject* member(Member which) const { return PyTuple_GET_ITEM(self_, which); }

    bool read(PyObject* x) {
        PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(x));
        if (type == member(kArrayType)) return read_array(x);
        if (type == member(kWrapperType)) return read_wrapper(x);
        if (type == member(kGeneratorType)) return key_.add(calls::kGenerator) && buffers_.add(nb::borrow(x));
        return add_other(key_, x);
    }

    bool read_wrapper(PyObject* x) {
        nb::object buffer = attribute(x, names.buffer);
        return key_.add(calls::kWrapper) && key_.add_same(attribute(x, names.layout)) && buffer.is_valid() &&
               is_there(attribute(x, names.device)) && buffers_.add(std::move(buffer));
    }

    bool read_array(PyObject* x) {
        std::int64_t offset = 0;
        if (!key_.add(calls::kArray) || !key_.add_same(attribute(x, names.dtype)) ||
            !key_.add_integers(attribute(x, names.shape).ptr()) ||
            !key_.add_integers(attribute(x, names.strides).ptr()) ||
            !calls::read(attribute(x, names.offset).ptr(), offset) || !key_.add(offset))
            return false;
        nb::object buffer = attribute(x, names.base_data), queue = attribute(x, names.queue);
        if (!buffer.is_valid() || buffer.is_none() || !queue.is_valid()) return false;
        if (!queue.is(queue_)) {  // mostly the same object
            if (!is_there(device_of(x, queue))) return false;
            queue_ = std::move(queue);
        }
        return add_events(attribute(x, names.events).ptr()) && buffers_.add(std::move(buffer));
    }

    // Whether an array's device is that of all others
    bool is_there(nb::object device) {
        if (!device_.is_valid())
            device_ = std::move(device);
        else if (!device_.is(device))
            return false;
        return device_.is_valid();
    }

    // The device of a queue; by the identity of its object, as asking the driver takes longer
    nb::object device_of(PyObject* x, const nb::object& queue) {
        const nb::object address = nb::steal(PyLong_FromVoidPtr(queue.ptr()));
        if (!address.is_valid()) return {};
        nb::object pair = calls::entry(member(kQueues), address.ptr());
        if (pair.is_valid()) return nb::borrow(PyTuple_GET_ITEM(pair.ptr(), 1));
        return PyErr_Occurred() ? nb::object() : nb::steal(PyObject_CallOneArg(member(kDeviceOf), x));
    }

    // Waiting for an event that is complete takes the driver longer than telling that it is.
    bool add_events(PyObject* events) {
        if (!events || !PyList_CheckExact(events)) return false;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(events); ++i) {
            const nb::object event = item(events, i);
            if (!event.is_valid()) return false;
            std::int64_t status = -1;
            const bool is_known = calls::read(attribute(event.ptr(), names.status).ptr(), status);
            if (is_known && status == kComplete) continue;
            if (!is_known) PyErr_Clear();
            if (!events_.is_valid()) events_ = nb::steal(PyList_New(0));
            if (!events_.is_valid() || PyList_Append(events_.ptr(), event.ptr()) != 0) return false;
        }
        return true;
    }

    static nb::object item(PyObject* list, Py_ssize_t i) {
#if PY_VERSION_HEX >= 0x030D0000
        return nb::steal(PyList_GetItemRef(list, i));  // another thread may change the list
#else
        return nb::borrow(PyList_GetItem(list, i));
#endif
    }

    nb::object run_long(PyObject* run) {
        if (PyUnicode_Check(run)) return nb::borrow(Py_NotImplemented);  // it is the reason why not
        nb::object buffers = nb::steal(PyList_New(buffers_.size()));
        nb::object events = events_.is_valid() ? events_ : nb::steal(PyList_New(0));
        if (!buffers.is_valid() || !events.is_valid()) return {};
        for (int i = 0; i < buffers_.size(); ++i) PyList_SET_ITEM(buffers.ptr(), i, Py_NewRef(buffers_[i].ptr()));
        PyObject* const given[] = {device_.ptr(), buffers.ptr(), events.ptr()};
        return nb::steal(PyObject_Vectorcall(run, given, 3, nullptr));
    }

    // Nothing without an exception if memory is short: the other way to run the call says so.
    nb::object run_short(PyObject* launch) {
        const auto of = [launch](Short which) { return PyTuple_GET_ITEM(launch, which); };
        const nb::object pool = attribute(device_.ptr(), names.pool), lock = attribute(device_.ptr(), names.lock);
        const nb::object queue = attribute(device_.ptr(), names.queue);
        if (!pool.is_valid() || !lock.is_valid() || !queue.is_valid()) return {};
        const nb::object made = nb::steal(PyObject_CallMethodOneArg(pool.ptr(), names.allocate, of(kBytes)));
        if (!made.is_valid()) {
            PyErr_Clear();
            return {};
        }
        const nb::object arguments = arguments_of(of(kPlaces), made);
        PyObject* const given[] = {queue.ptr(), of(kKernel), of(kGlobalSize), of(kLocalSize), Py_None, events_.ptr()};
        const std::size_t count = events_.is_valid() ? 6 : 4;  // arguments that are missing take no time
        if (!arguments.is_valid() || !call(lock, names.acquire)) return {};
        nb::object done = nb::steal(PyObject_CallOneArg(of(kSetSeveral), arguments.ptr()));
        if (done.is_valid()) done = nb::steal(PyObject_Vectorcall(of(kEnqueue), given, count, nullptr));
        if (!done.is_valid()) {
            nb::python_error error;  // kept while the lock is released
            call(lock, names.release);
            error.restore();
            return {};
        }
        if (!call(lock, names.release)) return {};
        return of(kOwn) == Py_None ? wrapper(made, of(kLayout)) : array(made, of(kOwn), done);
    }

    static bool call(const nb::object& of, PyObject* method) {
        return nb::steal(PyObject_CallMethodNoArgs(of.ptr(), method)).is_valid();
    }

    // Positions of a kernel's arguments, each followed by the buffer, whose number `places` has there
    nb::object arguments_of(PyObject* places, const nb::object& made) {
        nb::object arguments = nb::steal(PyTuple_New(PyTuple_GET_SIZE(places)));
        if (!arguments.is_valid()) return {};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i += 2) {
            const Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i + 1));
            PyObject* const buffer = slot < buffers_.size() ? buffers_[static_cast<int>(slot)].ptr() : made.ptr();
            PyTuple_SET_ITEM(arguments.ptr(), i, Py_NewRef(PyTuple_GET_ITEM(places, i)));
            PyTuple_SET_ITEM(arguments.ptr(), i + 1, Py_NewRef(buffer));
        }
        return arguments;
    }

    static nb::object new_object(PyObject* type) {
        PyTypeObject* const kind = reinterpret_cast<PyTypeObject*>(type);
        const nb::object nothing = nb::steal(PyTuple_New(0));
        return nb::steal(PyBaseObject_Type.tp_new(kind, nothing.ptr(), nullptr));
    }

    nb::object wrapper(const nb::object& buffer, PyObject* layout) {
        nb::object y = new_object(member(kWrapperType));
        if (!y.is_valid() || PyObject_SetAttr(y.ptr(), names.buffer, buffer.ptr()) != 0 ||
            PyObject_SetAttr(y.ptr(), names.layout, layout) != 0 ||
            PyObject_SetAttr(y.ptr(), names.device, device_.ptr()) != 0)
            return {};
        return y;
    }

    // An array of PyOpenCL, as `raw_of` of array_api_pyopencl makes it
    nb::object array(const nb::object& buffer, PyObject* common, const nb::object& done) {
        nb::object y = new_object(member(kArrayType)), own = nb::steal(PyDict_Copy(common));
        const nb::object events = nb::steal(PyList_New(1));
        if (!y.is_valid() || !own.is_valid() || !events.is_valid()) return {};
        PyList_SET_ITEM(events.ptr(), 0, Py_NewRef(done.ptr()));
        if (PyDict_SetItem(own.ptr(), names.base_data, buffer.ptr()) != 0 ||
            PyDict_SetItem(own.ptr(), names.events, events.ptr()) != 0 ||
            PyObject_SetAttr(y.ptr(), names.dict, own.ptr()) != 0)
            return {};
        return y;
    }

    PyObject* self_;
    Key key_;
    nb::object device_, queue_, events_, key_made_, planned_;
    Few<nb::object, calls::kMost> buffers_;
};

PyObject* call_opencl(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
    OpenclCall call(self);
    if (call.read(args, count, by_name) && call.find()) return call.run(args, count, by_name).release().ptr();
    PyErr_Clear();
    return PyObject_Vectorcall(PyTuple_GET_ITEM(self, kOtherwise), args, count, by_name);
}

PyMethodDef opencl_definition = calls::definition("opencl_kernel", call_opencl);

}  // namespace

void bind_opencl_calls(nb::module_& m) {
    names = {calls::interned("_layout"),   calls::interned("_device"),  calls::interned("_buffer"),
             calls::interned("dtype"),     calls::interned("shape"),    calls::interned("strides"),
             calls::interned("offset"),    calls::interned("queue"),    calls::interned("events"),
             calls::interned("base_data"), calls::interned("plans"),    calls::interned("pool"),
             calls::interned("lock"),      calls::interned("allocate"), calls::interned("acquire"),
             calls::interned("release"),   calls::interned("__dict__"), calls::interned("command_execution_status")};
    m.def(
        "opencl_kernel",
        [](nb::handle op, nb::handle wrapper, nb::handle array, nb::handle generator, nb::dict queues,
           nb::handle device_of, nb::handle plan, nb::handle otherwise) {
            return calls::function(opencl_definition,
                                   nb::make_tuple(op, wrapper, array, generator, queues, device_of, plan, otherwise));
        },
        "operator"_a, "wrapper"_a, "array"_a, "generator"_a, "queues"_a, "device_of"_a, "plan"_a, "otherwise"_a,
        "An operator's kernel on arrays of these types; calls `otherwise` with what it does not know.");
}

}  // namespace tensorops
