// Bindings of quantized weights in panels.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <tuple>

#include "bind.h"
#include "checks.h"
#include "formats.h"
#include "interpreter_lock.h"
#include "panel_linear.h"
#include "parallel.h"
#include "targets.h"

namespace tensorops {

using namespace nb::literals;

namespace {

// Sums within a group are taken plainly.
constexpr std::int64_t kLargestGroup = 1024;

// Weights in the layout of quantized_linear
struct Given {
    Value weight, scales, biases, bits, group_size;

    const Array* optional_biases() const { return biases.kind == Value::none ? nullptr : &biases.as_array; }
    PanelFormat format() const {
        PanelFormat format{};
        format.outputs = weight.as_array.shape[0];
        format.bits = static_cast<int>(bits.as_integer);
        format.inputs = weight.as_array.shape[1] * 8 / format.bits;
        format.group_size = group_size.as_integer;
        format.has_biases = biases.kind != Value::none;
        format.scale_dtype = scales.as_array.dtype;
        return format;
    }
};

Reason refuse_pack_panels(const Given& given) {
    if (!target().gains_by_panels())
        return std::string("on the target ") + target().name + " plain weights are multiplied as fast";
    if (given.weight.kind != Value::array) return "weight is not a numpy.ndarray";
    const Array& w = given.weight.as_array;
    if (w.dtype != Dtype::uint8) return "weight does not have dtype uint8";
    if (Reason reason = refuse_matrix("weight", w); !reason.empty()) return reason;
    const std::int64_t bits = given.bits.kind == Value::integer ? given.bits.as_integer : 0;
    const std::int64_t group_size = given.group_size.kind == Value::integer ? given.group_size.as_integer : 0;
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (given.biases.kind == Value::none && bits != 8) return "biases are missing";
    if (group_size < 32 || group_size > kLargestGroup || group_size % 32 != 0)
        return "group_size is not a multiple of 32 up to " + std::to_string(kLargestGroup);
    if (w.size() == 0) return "weight is empty";
    const std::int64_t columns = w.shape[1] * 8 / bits;
    if (columns % group_size != 0) return "the rows of weight are not whole groups";
    for (const auto& [name, value] : {std::pair{"scales", &given.scales}, std::pair{"biases", &given.biases}}) {
        if (value->kind == Value::none && value == &given.biases) continue;
        if (value->kind != Value::array) return std::string(name) + " is not a numpy.ndarray";
        if (const Dtype dtype = value->as_array.dtype; !is_narrow(dtype))
            return std::string(name) + (is_floating(dtype) ? " has dtype float64" : " has a dtype without a kernel");
    }
    return refuse_scales(given.scales.as_array, given.optional_biases(), w.shape[0], columns / group_size);
}

Given given(nb::handle weight, nb::handle scales, nb::handle biases, nb::handle bits, nb::handle group_size) {
    return {read_value(weight), read_value(scales), read_value(biases), read_value(bits), read_value(group_size)};
}

PlainWeights plain_weights(const Array& w, const Array& s, const Array* b) {
    return {w.data, s.data, b ? b->data : nullptr, w.stride(0), s.stride(0), b ? b->stride(0) : 0};
}

nb::object pack_panels(nb::handle weight, nb::handle scales, nb::handle biases, nb::handle bits,
                       nb::handle group_size) {
    const Given arrays = given(weight, scales, biases, bits, group_size);
    if (!refuse_pack_panels(arrays).empty()) return nb::borrow(Py_NotImplemented);
    const PlainWeights plain = plain_weights(arrays.weight.as_array, arrays.scales.as_array, arrays.optional_biases());
    std::unique_ptr<WeightPanels> panels;
    {
        const WithoutLock released;
        panels = std::make_unique<WeightPanels>(arrays.format(), plain);
    }
    return nb::cast(panels.release(), nb::rv_policy::take_ownership);
}

nb::object empty_matrix(npy_intp rows, npy_intp columns, Dtype dtype) {
    const npy_intp shape[] = {rows, columns};
    return empty(2, shape, dtype);
}

// The weight, scales and biases from which the panels were made.
std::tuple<nb::object, nb::object, nb::object> unpack_panels(const WeightPanels& panels) {
    const PanelFormat& format = panels.format();
    nb::object weight = empty_matrix(format.outputs, format.inputs * format.bits / 8, Dtype::uint8);
    nb::object scales = empty_matrix(format.outputs, format.groups(), format.scale_dtype);
    nb::object biases =
        format.has_biases ? empty_matrix(format.outputs, format.groups(), format.scale_dtype) : nb::none();
    const Value w = read_value(weight), s = read_value(scales), b = read_value(biases);
    const PlainWeights plain = plain_weights(w.as_array, s.as_array, b.kind == Value::none ? nullptr : &b.as_array);
    {
        const WithoutLock released;
        panels.unpack(plain);
    }
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

// Calls the step of plans that multiplies by the memory of panels.
nb::object multiply(nb::handle x, const WeightPanels& panels, bool only_checks) {
    static const Operator& op = *find_operator("panel_linear");
    const PanelFormat& format = panels.format();
    const std::int64_t bytes[] = {panels.bytes()};
    std::vector<Value> values = op.defaults;
    values[0] = read_value(x);
    if (const Array& a = values[0].as_array;
        values[0].kind == Value::array && a.ndim > 0 && a.is_contiguous_from(a.ndim - 1) && a.length() != format.inputs)
        return only_checks ? nb::object(nb::cast("the last axis of x has " + std::to_string(a.length()) +
                                                 " elements, and weight has rows of " + std::to_string(format.inputs)))
                           : nb::borrow(Py_NotImplemented);
    values[1] = Value::of({const_cast<char*>(panels.data()), bytes, nullptr, Dtype::uint8, 1});
    const std::int64_t numbers[] = {format.outputs, format.bits, format.group_size};
    for (std::size_t i = 0; i < 3; ++i) {
        values[2 + i].kind = Value::integer;
        values[2 + i].as_integer = numbers[i];
    }
    values[5].kind = Value::flag;
    values[5].as_flag = format.has_biases;
    values[6].kind = Value::dtype;
    values[6].as_dtype = format.scale_dtype;
    return call_with_numpy(op, values.data(), only_checks);
}

// Writes blocks interleaved to a place of the same size, or returns false: there is no such format.
bool interleave_blocks(nb::handle blocks, nb::handle place, const std::string& name) {
    const Value from = read_value(blocks), to = read_value(place);
    const Format format = find_format(name);
    if (format == Format::none || from.kind != Value::array || to.kind != Value::array) return false;
    const Array &a = from.as_array, &b = to.as_array;
    const FormatSize& size = size_of(format);
    const bool fits = a.dtype == Dtype::uint8 && b.dtype == Dtype::uint8 && a.ndim >= 2 && a.is_contiguous() &&
                      b.is_contiguous() && a.size() == b.size() && a.shape[a.ndim - 2] % kInterleavedRows == 0 &&
                      a.length() % size.bytes == 0;
    if (!fits) return false;
    if (a.size() == 0) return true;
    const std::int64_t row = a.length(), band = kInterleavedRows * row, bands = a.size() / band;
    const WithoutLock released;
    over_pieces(threads_for(bands, a.size()), bands, [&](std::int64_t i, int) {
        interleave(size, a.data + i * band, row, row / size.bytes, b.data + i * band);
    });
    return true;
}

}  // namespace

void bind_panels(nb::module_& m) {
    nb::class_<WeightPanels>(m, "WeightPanels", nb::is_weak_referenceable(),
                             "Quantized weights in the order that panel_linear takes.")
        .def_prop_ro("shape", [](const WeightPanels& p) { return std::tuple(p.format().outputs, p.format().inputs); })
        .def_prop_ro("bits", [](const WeightPanels& p) { return p.format().bits; })
        .def_prop_ro("group_size", [](const WeightPanels& p) { return p.format().group_size; })
        .def_prop_ro("nbytes", &WeightPanels::bytes)
        .def_prop_ro("scale_dtype",
                     [](const WeightPanels& p) { return kDtypeNames[static_cast<int>(p.format().scale_dtype)]; })
        .def_prop_ro("biased", [](const WeightPanels& p) { return p.format().has_biases; })
        .def_prop_ro("memory", &memory_of, "The bytes of the panels, which it keeps.")
        .def("unpack", &unpack_panels, "The weight, scales and biases that it was made of, as new arrays.");
    m.def("interleave_blocks", &interleave_blocks, "blocks"_a, "place"_a, "format"_a);
    m.def("pack_panels", &pack_panels, "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(),
          "bits"_a.none() = 4, "group_size"_a.none() = 32);
    m.def(
        "pack_panels_supports",
        [](nb::handle weight, nb::handle scales, nb::handle biases, nb::handle bits,
           nb::handle group_size) -> nb::object {
            const Reason reason = refuse_pack_panels(given(weight, scales, biases, bits, group_size));
            return reason.empty() ? nb::none() : nb::object(nb::cast(reason));
        },
        "weight"_a, "scales"_a, "biases"_a = nb::none(), nb::kw_only(), "bits"_a.none() = 4,
        "group_size"_a.none() = 32);
    m.def(
        "panel_linear", [](nb::handle x, const WeightPanels& panels) { return multiply(x, panels, false); }, "x"_a,
        "weight"_a);
    m.def(
        "panel_linear_supports", [](nb::handle x, const WeightPanels& panels) { return multiply(x, panels, true); },
        "x"_a, "weight"_a);
}

}  // namespace tensorops
