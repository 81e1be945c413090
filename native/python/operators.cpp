// Operators on NumPy's arrays: one binding for all of them.
//
// For each operator two functions are made. One computes, and returns NotImplemented if the operator refuses the
// arguments; the other returns None or why it refuses them.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string>

#include "bind.h"
#include "call.h"
#include "integers.h"
#include "interpreter_lock.h"
#include "numpy_array.h"

namespace tensorops {

using namespace nb::literals;

namespace {

PyTypeObject* generator_type = nullptr;  // numpy.random.Generator

// NumPy's numbers of types: their dtypes and the reverse
constexpr int kMostTypes = 32;
Dtype dtypes_of_types[kMostTypes];
PyArray_Descr* descriptors[static_cast<int>(Dtype::other)];

void find_dtypes() {
    std::fill(std::begin(dtypes_of_types), std::end(dtypes_of_types), Dtype::other);
    constexpr std::pair<int, Dtype> kFloating[] = {{NPY_FLOAT16, Dtype::float16},
                                                   {NPY_FLOAT32, Dtype::float32},
                                                   {NPY_FLOAT64, Dtype::float64},
                                                   {NPY_BOOL, Dtype::boolean}};
    for (const auto& [type, dtype] : kFloating) dtypes_of_types[type] = dtype;
    for (const int type : {NPY_BYTE, NPY_UBYTE, NPY_SHORT, NPY_USHORT, NPY_INT, NPY_UINT, NPY_LONG, NPY_ULONG,
                           NPY_LONGLONG, NPY_ULONGLONG}) {
        PyArray_Descr* descr = PyArray_DescrFromType(type);
        dtypes_of_types[type] = integer_of(PyDataType_ELSIZE(descr), PyTypeNum_ISSIGNED(type));
        Py_DECREF(descr);
    }
    constexpr int kTypes[] = {NPY_FLOAT16, 0,         NPY_FLOAT32, NPY_FLOAT64, NPY_INT8,   NPY_INT16, NPY_INT32,
                              NPY_INT64,   NPY_UINT8, NPY_UINT16,  NPY_UINT32,  NPY_UINT64, NPY_BOOL};
    for (int i = 0; i < static_cast<int>(Dtype::other); ++i)
        descriptors[i] = PyArray_DescrFromType(i == static_cast<int>(Dtype::bfloat16) ? bfloat16_type : kTypes[i]);
}

// ---------------------------------------------------------------------------------------------------- arguments

// Room for the integers of tuples
struct Room {
    std::int64_t items[64];
    int used = 0;
};

Value refused(const char* why) { return Value::of_text(why, Value::refused); }

Value read_tuple(PyObject* p, Room& room) {
    const Py_ssize_t count = PyTuple_GET_SIZE(p);
    if (count > 64 - room.used) return refused("has too many elements");
    Value v;
    v.kind = Value::integers;
    v.as_integers = {room.items + room.used, static_cast<int>(count)};
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* item = PyTuple_GET_ITEM(p, i);
        std::int64_t value = kNoInteger;
        if (item != Py_None && !read_integer(item, value)) return refused("has elements that are not integers");
        room.items[room.used++] = value;
    }
    return v;
}

Value read_dtype(PyArray_Descr* descr) {
    Value v;
    v.kind = Value::dtype;
    v.as_dtype = PyArray_ISNBO(descr->byteorder) ? dtype_of_type(descr->type_num) : Dtype::other;
    return v;
}

// Numbers and booleans of Python and NumPy, strings, dtypes; a value that fits no kind is refused by operators.
Value read_other(PyObject* p, Room& room) {
    Value v;
    std::int64_t integer = 0;
    if (PyBool_Check(p) || PyArray_IsScalar(p, Bool)) {
        v.kind = Value::flag;
        v.as_flag = PyObject_IsTrue(p) == 1;
    } else if (read_integer(p, integer)) {
        v.kind = Value::integer;
        v.as_integer = integer;
    } else if (PyFloat_Check(p) || PyLong_Check(p) || PyArray_IsScalar(p, Floating) || PyArray_IsScalar(p, Integer)) {
        v.kind = Value::number;
        v.as_number = PyFloat_AsDouble(p);
        if (v.as_number == -1 && PyErr_Occurred()) {  // an integer beyond the range of double
            PyErr_Clear();
            return refused("is not a number");
        }
    } else if (PyUnicode_Check(p)) {
        Py_ssize_t size = 0;
        const char* text = PyUnicode_AsUTF8AndSize(p, &size);
        if (text) return Value::of_text({text, static_cast<std::size_t>(size)});
        PyErr_Clear();  // a lone surrogate
        return refused("is not text");
    } else if (PyTuple_Check(p)) {
        return read_tuple(p, room);
    } else if (Py_TYPE(p) == generator_type) {
        v.kind = Value::object;
        v.as_object = p;
    } else if (PyArray_DescrCheck(p)) {
        return read_dtype(reinterpret_cast<PyArray_Descr*>(p));
    } else if (PyType_Check(p) && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(p), &PyGenericArrType_Type)) {
        PyArray_Descr* descr = PyArray_DescrFromTypeObject(p);
        if (!descr) {  // a type that has no dtype, such as numpy.floating
            PyErr_Clear();
            return refused("is not a dtype");
        }
        v = read_dtype(descr);
        Py_DECREF(descr);
    } else {
        return refused("is not a numpy.ndarray");
    }
    return v;
}

void read(PyObject* p, Value& v, Room& room) {
    if (PyArray_CheckExact(p)) {
        PyArrayObject* a = as_array(p);
        const bool swapped = !PyArray_ISNOTSWAPPED(a);
        if (swapped) {
            v = refused("is in foreign byte order");
            return;
        }
        static_assert(sizeof(npy_intp) == sizeof(std::int64_t));
        v.kind = Value::array;
        v.as_array = {PyArray_BYTES(a), reinterpret_cast<const std::int64_t*>(PyArray_DIMS(a)),
                      PyArray_IS_C_CONTIGUOUS(a) ? nullptr : reinterpret_cast<const std::int64_t*>(PyArray_STRIDES(a)),
                      dtype_of_type(PyArray_TYPE(a)), PyArray_NDIM(a)};
    } else if (p == Py_None) {
        v.kind = Value::none;
    } else if (PyFloat_CheckExact(p)) {
        v.kind = Value::number;
        v.as_number = PyFloat_AS_DOUBLE(p);
    } else {
        v = read_other(p, room);
    }
}

// ------------------------------------------------------------------------------------------------------- calls

class NumpyCall : public Call {
  public:
    NumpyCall(const Operator& which, Value* parameters) : Call(which, parameters) { streams = multiplies = true; }

    // The result, or all of them as a tuple
    nb::object results() {
        const auto count = static_cast<Py_ssize_t>(op.results.size());
        if (count == 1) return std::move(results_[0]);
        const nb::object all = nb::steal(PyTuple_New(count));
        if (!all.is_valid()) throw nb::python_error();
        for (Py_ssize_t i = 0; i < count; ++i) {
            nb::object& y = results_[i];
            PyTuple_SET_ITEM(all.ptr(), i, y.is_valid() ? y.release().ptr() : nb::none().release().ptr());
        }
        return all;
    }

    // One number for each row, drawn as in the generic body
    bool draw(const Value& generator, const Array& x, Array& drawn) override {
        nb::object shape = nb::steal(PyArray_IntTupleFromIntp(x.ndim - 1, reinterpret_cast<const npy_intp*>(x.shape)));
        nb::object float32 = nb::borrow(reinterpret_cast<PyObject*>(descriptors[static_cast<int>(Dtype::float32)]));
        nb::object numbers =
            nb::handle(static_cast<PyObject*>(generator.as_object)).attr("random")(shape, "dtype"_a = float32);
        PyObject* array = PyArray_FROMANY(numbers.ptr(), NPY_FLOAT32, x.ndim - 1, x.ndim - 1, NPY_ARRAY_CARRAY_RO);
        if (!array) throw nb::python_error();
        drawn_ = nb::steal(array);
        drawn = {PyArray_BYTES(as_array(array)), x.shape, nullptr, Dtype::float32, x.ndim - 1};
        return true;
    }

  protected:
    bool make_one(int index, const Result& result) override {
        const auto* shape = reinterpret_cast<const npy_intp*>(result.shape);
        results_[index] = result.order ? empty(result.ndim, shape, result.dtype, result.order)
                                       : empty(result.ndim, shape, descriptors[static_cast<int>(result.dtype)]);
        PyArrayObject* y = as_array(results_[index]);
        result.array = {PyArray_BYTES(y), reinterpret_cast<const std::int64_t*>(PyArray_DIMS(y)),
                        result.order ? reinterpret_cast<const std::int64_t*>(PyArray_STRIDES(y)) : nullptr,
                        result.dtype, result.ndim};
        return true;
    }

    // The interpreter is released.
    void run(std::int64_t bytes, void (*work)(const void*), const void* context) override {
        if (bytes >= kLongBytes && on_main_thread()) return compute_interruptibly([=] { work(context); });
        const WithoutLock released;
        work(context);
    }

  private:
    nb::object results_[kMostResults], drawn_;
};

}  // namespace

Value read_value(nb::handle h) {
    Room none{{}, 64};
    Value v;
    read(h.ptr(), v, none);
    return v;
}

nb::object call_with_numpy(const Operator& op, Value* values, bool only_checks) {
    NumpyCall call(op, values);
    call.only_checks = only_checks;
    const Reason reason = call_operator(call);
    if (only_checks) return reason.empty() ? nb::none() : nb::object(nb::cast(reason));
    return reason.empty() ? call.results() : nb::borrow(Py_NotImplemented);
}

namespace {

// An operator as a function of Python
struct Function {
    const Operator& op;
    std::string documentation;
    PyObject* names[kMostParameters];
    PyMethodDef computes, refuses;

    explicit Function(const Operator& which);

    // Reads the arguments of a call; false with an exception.
    bool read(PyObject* const* args, Py_ssize_t count, PyObject* by_name, Value* values, Room& room) const {
        std::copy(op.defaults.begin(), op.defaults.end(), values);
        if (count > op.positional) {
            PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments", op.name.c_str(), op.positional);
            return false;
        }
        std::uint32_t given = 0;
        for (Py_ssize_t i = 0; i < count; ++i) {
            tensorops::read(args[i], values[i], room);
            given |= std::uint32_t{1} << i;
        }
        const Py_ssize_t named = by_name ? PyTuple_GET_SIZE(by_name) : 0;
        for (Py_ssize_t i = 0; i < named; ++i) {
            PyObject* name = PyTuple_GET_ITEM(by_name, i);
            const int place = find(name);
            if (place < 0 || given >> place & 1) {
                PyErr_Format(PyExc_TypeError, "%s() got an unexpected argument '%U'", op.name.c_str(), name);
                return false;
            }
            tensorops::read(args[count + i], values[place], room);
            given |= std::uint32_t{1} << place;
        }
        if ((given & op.required) == op.required) return true;
        const int place = __builtin_ctz(op.required & ~given);
        PyErr_Format(PyExc_TypeError, "%s() misses argument '%U'", op.name.c_str(), names[place]);
        return false;
    }

    int find(PyObject* name) const {
        const int count = static_cast<int>(op.parameters.size());
        for (int i = 0; i < count; ++i)
            if (names[i] == name) return i;
        for (int i = 0; i < count; ++i)
            if (PyUnicode_Compare(names[i], name) == 0) return i;
        return -1;
    }
};

template <bool kOnlyChecks>
PyObject* call_numpy(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* by_name) {
    const auto& function = *static_cast<const Function*>(PyCapsule_GetPointer(self, nullptr));
    alignas(Value) char memory[kMostParameters * sizeof(Value)];
    Value* const values = reinterpret_cast<Value*>(memory);
    Room room;
    try {
        if (!function.read(args, count, by_name, values, room)) return nullptr;
        return call_with_numpy(function.op, values, kOnlyChecks).release().ptr();
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    }
    return nullptr;
}

template <class F>
PyMethodDef definition(const char* name, F function, const char* documentation) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function)), METH_FASTCALL | METH_KEYWORDS,
            documentation};
}

Function::Function(const Operator& which)
    : op(which), documentation(which.name + "(" + which.signature + ")\n--\n\nCompute, or return NotImplemented.") {
    for (std::size_t i = 0; i < op.parameters.size(); ++i)
        names[i] = PyUnicode_InternFromString(op.parameters[i].name.c_str());
    computes = definition(op.name.c_str(), call_numpy<false>, documentation.c_str());
    refuses = definition(op.name.c_str(), call_numpy<true>, documentation.c_str());
}

nb::object function_of(PyMethodDef& definition, const Function& function) {
    const nb::object self = nb::steal(PyCapsule_New(const_cast<Function*>(&function), nullptr, nullptr));
    return nb::steal(PyCFunction_NewEx(&definition, self.ptr(), nullptr));
}

// --------------------------------------------------------------------------------------------- without values

class ShapeCall : public Call {
  public:
    using Call::Call;

  protected:
    bool make_one(int, const Result&) override { return false; }
    void run(std::int64_t, void (*)(const void*), const void*) override {}
};

// Why an operator refuses arrays of which only shapes and dtypes are known
nb::object refuse(const std::string& name, const nb::dict& described, const nb::dict& options) {
    const auto arrays = nb::cast<std::map<std::string, std::pair<std::string, std::vector<std::int64_t>>>>(described);
    const Operator* op = find_operator(name);
    if (!op) throw nb::value_error(("there is no operator " + name).c_str());
    std::vector<Value> values = op->defaults;
    const auto value_of = [&](const std::string& parameter) -> Value& {
        const int place = op->find(parameter);
        if (place < 0) throw nb::value_error((name + " has no parameter " + parameter).c_str());
        return values[static_cast<std::size_t>(place)];
    };
    for (const auto& [parameter, array] : arrays) {
        const auto& [dtype, shape] = array;
        const int ndim = static_cast<int>(shape.size());
        value_of(parameter) = Value::of({nullptr, shape.data(), nullptr, dtype_of(dtype), ndim});
    }
    Room room;
    for (const auto& [parameter, value] : options) read(value.ptr(), value_of(nb::cast<std::string>(parameter)), room);
    ShapeCall call(*op, values.data());
    call.only_checks = true;
    call.has_values = false;
    call.names_dtypes = true;
    const Reason reason = call_operator(call);
    return reason.empty() ? nb::none() : nb::object(nb::cast(reason));
}

}  // namespace

Dtype dtype_of_type(int type) {
    if (type >= 0 && type < kMostTypes) return dtypes_of_types[type];
    return type == bfloat16_type ? Dtype::bfloat16 : Dtype::other;
}

nb::object empty(int ndim, const npy_intp* shape, Dtype dtype) {
    return empty(ndim, shape, descriptors[static_cast<int>(dtype)]);
}

nb::object empty(int ndim, const npy_intp* shape, Dtype dtype, const int* order) {
    npy_intp in_order[kMaxAxes], places[kMaxAxes];
    for (int i = 0; i < ndim; ++i) {
        in_order[i] = shape[order[i]];
        places[order[i]] = i;
    }
    const nb::object contiguous = empty(ndim, in_order, dtype);
    PyArray_Dims axes{places, ndim};
    PyObject* array = PyArray_Transpose(as_array(contiguous), &axes);
    if (!array) throw nb::python_error();
    return nb::steal(array);
}

void bind_operators(nb::module_& m) {
    find_dtypes();
    generator_type =
        reinterpret_cast<PyTypeObject*>(nb::module_::import_("numpy.random").attr("Generator").inc_ref().ptr());
    std::vector<std::string> names;
    for (const Operator* op : operators()) {
        if (op->callers == Callers::plans) continue;
        auto* function = new Function(*op);  // the module is never unloaded
        m.attr(op->name.c_str()) = function_of(function->computes, *function);
        m.attr((op->name + "_supports").c_str()) = function_of(function->refuses, *function);
        names.push_back(op->name);
    }
    m.def(
        "operators", [names] { return names; }, "The names of the operators, each a function and one of `_supports`.");
    m.def(
        "results",
        [](const std::string& name) {
            const Operator* op = find_operator(name);
            if (!op) throw nb::value_error(("there is no operator " + name).c_str());
            return op->whole_signature.substr(op->whole_signature.find(" -> ") + 4);
        },
        "operator"_a, "The names of an operator's results, separated by commas.");
    m.def("refuse", &refuse, "operator"_a, "arrays"_a, "options"_a,
          "Why an operator refuses arrays, of which dtypes and shapes are given by parameter, and options; or None.");
}

}  // namespace tensorops
