// Binding of sampling.
#include <cmath>
#include <limits>

#include "bind.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

PyTypeObject* generator_type = nullptr;  // numpy.random.Generator, set when the module is loaded

static_assert(sizeof(npy_intp) == sizeof(std::int64_t));

// The options as numbers; `reason` says why they are invalid.
struct Options {
    double temperature = 1, top_p = 1, min_p = 0;
    std::int64_t top_k = 0;
    Reason reason;

    Options(Number temperature_, nb::handle top_k_, nb::handle top_p_, nb::handle min_p_) {
        temperature = temperature_;
        if (!top_k_.is_none()) top_k = read_integer(top_k_);
        if (!top_p_.is_none()) top_p = read_number(top_p_);
        if (!min_p_.is_none()) min_p = read_number(min_p_);
        if (!(temperature >= 0 && std::isfinite(temperature))) reason = "temperature is not 0 or more";
        if (!top_k_.is_none() && top_k < 1) reason = "top_k is not an integer of at least 1";
        if (!(top_p > 0 && top_p <= 1)) reason = "top_p is not within 0 … 1";
        if (!(min_p >= 0 && min_p <= 1)) reason = "min_p is not within 0 … 1";
    }
};

Reason refuse_uniforms(PyArrayObject* logits, nb::handle rng) {
    if (rng.is_none()) return "rng is missing";
    if (Py_TYPE(rng.ptr()) == generator_type) return {};
    if (Reason reason = refuse_array("rng", rng); !reason.empty()) return reason;
    PyArrayObject* u = as_array(rng);
    const int outer = PyArray_NDIM(logits) - 1;
    if (PyArray_NDIM(u) != outer || !PyArray_CompareLists(PyArray_DIMS(u), PyArray_DIMS(logits), outer))
        return "rng does not have one element for each row of logits";
    return PyArray_IS_C_CONTIGUOUS(u) ? Reason{} : "rng is not contiguous";
}

Reason refuse_sample(nb::handle logits, const Options& options, nb::handle rng) {
    if (Reason reason = refuse_array("logits", logits); !reason.empty()) return reason;
    PyArrayObject* x = as_array(logits);
    if (PyArray_NDIM(x) == 0) return "logits has 0 dimensions";
    if (PyArray_SIZE(x) == 0) return "logits is empty";
    if (!last_axis_contiguous(x)) return "the last axis of logits is not contiguous";
    if (!options.reason.empty()) return options.reason;
    if (options.temperature == 0) {
        const bool usual = rng.is_none() || Py_TYPE(rng.ptr()) == generator_type || PyArray_CheckExact(rng.ptr());
        return usual ? Reason{} : "rng is neither a numpy.random.Generator nor a numpy.ndarray";
    }
    if (dtype_of(x) != Dtype::float64) {
        const float temperature = static_cast<float>(options.temperature);
        if (!std::isnormal(temperature)) return "temperature is beyond the range of float32";
        if (static_cast<float>(options.top_p) == 0) return "top_p is beyond the range of float32";
    }
    return refuse_uniforms(x, rng);
}

// One number for each row, drawn as in the generic body.
nb::object draw_uniforms(nb::handle generator, PyArrayObject* logits) {
    const int outer = PyArray_NDIM(logits) - 1;
    nb::object shape = nb::steal(PyArray_IntTupleFromIntp(outer, PyArray_DIMS(logits)));
    nb::object float32 = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_FLOAT32)));
    nb::object drawn = generator.attr("random")(shape, "dtype"_a = float32);
    PyObject* array = PyArray_FROMANY(drawn.ptr(), NPY_FLOAT32, outer, outer, NPY_ARRAY_CARRAY_RO);
    if (!array) throw nb::python_error();
    return nb::steal(array);
}

nb::object sample(nb::handle logits, Number temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                  nb::handle rng) {
    const Options options(temperature, top_k, top_p, min_p);
    if (!refuse_sample(logits, options, rng).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* x = as_array(logits);
    nb::object descr = nb::steal(reinterpret_cast<PyObject*>(PyArray_DescrFromType(NPY_INTP)));
    nb::object chosen = empty(PyArray_NDIM(x) - 1, PyArray_DIMS(x), reinterpret_cast<PyArray_Descr*>(descr.ptr()));
    nb::object uniforms;
    Sample op{};
    op.logits = rows_of(x);
    op.chosen = reinterpret_cast<std::int64_t*>(PyArray_BYTES(as_array(chosen)));
    op.temperature = options.temperature;
    op.top_k = options.top_k;
    op.top_p = options.top_p;
    op.min_p = options.min_p;
    op.dtype = dtype_of(x);
    if (options.temperature > 0) {
        uniforms = Py_TYPE(rng.ptr()) == generator_type ? draw_uniforms(rng, x) : nb::borrow(rng);
        op.uniform = PyArray_BYTES(as_array(uniforms));
        op.uniform_dtype = dtype_of(as_array(uniforms));
    }
    const std::int64_t uniform_bytes = op.uniform ? PyArray_ITEMSIZE(as_array(uniforms)) : 0;
    const auto cut = [uniform_bytes](Sample& part, std::int64_t begin, std::int64_t end) {
        take_part(part.logits, begin, end);
        part.chosen += begin;
        if (part.uniform) part.uniform += begin * uniform_bytes;
    };
    compute_parts(target().sample, op, op.logits.count, 1, PyArray_NBYTES(x), cut);
    return chosen;
}

}  // namespace

void bind_sampling(nb::module_& m) {
    nb::object generator = nb::module_::import_("numpy.random").attr("Generator");
    generator_type = reinterpret_cast<PyTypeObject*>(generator.release().ptr());
    m.def("sample", &sample, "logits"_a, nb::kw_only(), "temperature"_a.none() = 1.0, "top_k"_a = nb::none(),
          "top_p"_a = nb::none(), "min_p"_a = nb::none(), "rng"_a = nb::none());
    m.def(
        "sample_supports",
        [](nb::handle logits, Number temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
           nb::handle rng) { return none_or(refuse_sample(logits, Options(temperature, top_k, top_p, min_p), rng)); },
        "logits"_a, nb::kw_only(), "temperature"_a.none() = 1.0, "top_k"_a = nb::none(), "top_p"_a = nb::none(),
        "min_p"_a = nb::none(), "rng"_a = nb::none());
}

}  // namespace tensorops
