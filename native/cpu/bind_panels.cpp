// Bindings of quantized weights in panels.
#include <nanobind/stl/tuple.h>

#include <memory>
#include <tuple>

#include "bind.h"
#include "matrices.h"
#include "panel_linear.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// Sums within a group are taken plainly.
constexpr std::int64_t kLargestGroup = 1024;

Reason refuse_pack_panels(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
    if (!target().gains_by_panels())
        return std::string("on the target ") + target().name + " plain weights are multiplied as fast";
    if (!PyArray_CheckExact(weight.ptr())) return "weight is not a numpy.ndarray";
    PyArrayObject* w = as_array(weight);
    if (PyArray_TYPE(w) != NPY_UINT8) return "weight does not have dtype uint8";
    if (Reason reason = refuse_matrix("weight", w); !reason.empty()) return reason;
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (biases.is_none() && bits != 8) return "biases are missing";
    if (group_size < 32 || group_size > kLargestGroup || group_size % 32 != 0)
        return "group_size is not a multiple of 32 up to " + std::to_string(kLargestGroup);
    if (PyArray_SIZE(w) == 0) return "weight is empty";
    const npy_intp columns = PyArray_DIM(w, 1) * 8 / bits;
    if (columns % group_size != 0) return "the rows of weight are not whole groups";
    return refuse_scales(scales, biases, PyArray_DIM(w, 0), columns / group_size, false);
}

PlainWeights plain_weights(nb::handle weight, nb::handle scales, nb::handle biases) {
    PyArrayObject *w = as_array(weight), *s = as_array(scales), *b = biases.is_none() ? nullptr : as_array(biases);
    return {PyArray_BYTES(w),     PyArray_BYTES(s),     b ? PyArray_BYTES(b) : nullptr,
            PyArray_STRIDE(w, 0), PyArray_STRIDE(s, 0), b ? PyArray_STRIDE(b, 0) : 0};
}

nb::object pack_panels(nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
    if (!refuse_pack_panels(weight, scales, biases, bits, group_size).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* w = as_array(weight);
    PanelFormat format{};
    format.outputs = PyArray_DIM(w, 0);
    format.inputs = PyArray_DIM(w, 1) * 8 / bits;
    format.group_size = group_size;
    format.bits = static_cast<int>(bits.value);
    format.has_biases = !biases.is_none();
    format.scale_dtype = dtype_of(as_array(scales));
    const PlainWeights plain = plain_weights(weight, scales, biases);
    std::unique_ptr<WeightPanels> panels;
    compute(PyArray_NBYTES(w), [&] { panels = std::make_unique<WeightPanels>(format, plain); });
    return nb::cast(panels.release(), nb::rv_policy::take_ownership);
}

nb::object empty_matrix(npy_intp rows, npy_intp columns, int type) {
    const npy_intp shape[] = {rows, columns};
    PyArray_Descr* descr = PyArray_DescrFromType(type);
    nb::object made = empty(2, shape, descr);
    Py_DECREF(descr);
    return made;
}

// The weight, scales and biases from which the panels were made.
std::tuple<nb::object, nb::object, nb::object> unpack_panels(const WeightPanels& panels) {
    const PanelFormat& format = panels.format();
    const int type = format.scale_dtype == Dtype::float16    ? static_cast<int>(NPY_FLOAT16)
                     : format.scale_dtype == Dtype::bfloat16 ? bfloat16_type
                                                             : static_cast<int>(NPY_FLOAT32);
    nb::object weight = empty_matrix(format.outputs, format.inputs * format.bits / 8, NPY_UINT8);
    nb::object scales = empty_matrix(format.outputs, format.groups(), type);
    nb::object biases = format.has_biases ? empty_matrix(format.outputs, format.groups(), type) : nb::none();
    const PlainWeights plain = plain_weights(weight, scales, biases);
    compute(panels.bytes(), [&] { panels.unpack(plain); });
    return {weight, scales, biases};
}

nb::object memory_of(nb::handle panels) {
    const auto& held = nb::cast<const WeightPanels&>(panels);
    const npy_intp shape[] = {static_cast<npy_intp>(held.bytes())};
    nb::object bytes = nb::steal(PyArray_New(&PyArray_Type, 1, shape, NPY_UINT8, nullptr,
                                             const_cast<char*>(held.data()), 0, NPY_ARRAY_C_CONTIGUOUS, nullptr));
    if (!bytes.is_valid()) throw nb::python_error();
    if (PyArray_SetBaseObject(as_array(bytes), nb::object(nb::borrow(panels)).release().ptr()) != 0)
        throw nb::python_error();
    return bytes;
}

Reason refuse_panel_linear(nb::handle x, const WeightPanels& panels) {
    if (Reason reason = refuse_factor(x); !reason.empty()) return reason;
    if (PyArray_SIZE(as_array(x)) == 0) return "x is empty";
    if (length_of(as_array(x)) == panels.format().inputs) return {};
    return "the last axis of x has " + std::to_string(length_of(as_array(x))) + " elements, and weight has rows of " +
           std::to_string(panels.format().inputs);
}

nb::object panel_linear(nb::handle x, const WeightPanels& panels) {
    if (!refuse_panel_linear(x, panels).empty()) return nb::borrow(Py_NotImplemented);
    PyArrayObject* a = as_array(x);
    nb::object y = empty_outputs(a, panels.format().outputs);
    const PanelLinear op{rows_of(a), panels.data(), panels.format(), PyArray_BYTES(as_array(y)), dtype_of(a)};
    compute(product(panels.bytes(), op.x.count), [&op] { target().panel_linear(op); });
    return y;
}

}  // namespace

void bind_panels(nb::module_& m) {
    nb::class_<WeightPanels>(m, "WeightPanels", nb::is_weak_referenceable(),
                             "Quantized weights in the order that panel_linear takes.")
        .def_prop_ro("shape", [](const WeightPanels& p) { return std::tuple(p.format().outputs, p.format().inputs); })
        .def_prop_ro("bits", [](const WeightPanels& p) { return p.format().bits; })
        .def_prop_ro("group_size", [](const WeightPanels& p) { return p.format().group_size; })
        .def_prop_ro("nbytes", &WeightPanels::bytes)
        .def_prop_ro("scale_dtype", [](const WeightPanels& p) { return static_cast<int>(p.format().scale_dtype); })
        .def_prop_ro("biased", [](const WeightPanels& p) { return p.format().has_biases; })
        .def_prop_ro("memory", &memory_of, "The bytes of the panels, which it keeps.")
        .def("unpack", &unpack_panels, "The weight, scales and biases that it was made of, as new arrays.");
    m.def("pack_panels", &pack_panels, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(),
          "bits"_a.none() = 4, "group_size"_a.none() = 32);
    m.def(
        "pack_panels_supports",
        [](nb::handle weight, nb::handle scales, nb::handle biases, Integer bits, Integer group_size) {
            return none_or(refuse_pack_panels(weight, scales, biases, bits, group_size));
        },
        "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4,
        "group_size"_a.none() = 32);
    m.def("panel_linear", &panel_linear, "x"_a, "weight"_a);
    m.def(
        "panel_linear_supports",
        [](nb::handle x, const WeightPanels& panels) { return none_or(refuse_panel_linear(x, panels)); }, "x"_a,
        "weight"_a);
}

}  // namespace tensorops
