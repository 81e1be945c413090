#include "call.h"

#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <unordered_map>

namespace tensorops {

namespace {

struct Table {
    std::vector<const Operator*> all;
    std::unordered_map<std::string_view, const Operator*> by_name;
};

Table& table() {  // never deleted: threads may outlive main()
    static Table* const made = new Table;
    return *made;
}

std::vector<std::string_view> split(std::string_view text) {
    std::vector<std::string_view> parts;
    while (!text.empty()) {
        const std::size_t end = text.find(", ");
        parts.push_back(text.substr(0, end));
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 2);
    }
    return parts;
}

// A default value: None, True, False, 'text', or a number. A text stays where it is.
Value read_default(const std::string& text) {
    Value value;
    if (text.empty() || text == "None") return value;
    if (text == "True" || text == "False") {
        value.kind = Value::flag;
        value.as_flag = text == "True";
    } else if (text.front() == '\'') {
        return Value::of_text(std::string_view(text).substr(1, text.size() - 2));
    } else if (text.find_first_of(".e") == std::string::npos) {
        value.kind = Value::integer;
        value.as_integer = std::atoll(text.c_str());
    } else {
        value.kind = Value::number;
        value.as_number = std::strtod(text.c_str(), nullptr);
    }
    return value;
}

Operator* operator_of(const char* name, std::string_view signature, Reason (*function)(Call&), Callers callers) {
    constexpr std::string_view kArrow = " -> ";
    const std::size_t arrow = signature.find(kArrow);
    const std::string_view given = signature.substr(0, arrow);
    auto* made = new Operator{name, std::string(given), {}, {}, {}, {}, 0, 0, function, callers};
    int positional = -1;
    for (const std::string_view part : split(given)) {
        if (part == "*") {
            positional = static_cast<int>(made->parameters.size());
            continue;
        }
        const std::size_t equals = part.find('=');
        Parameter& parameter = made->parameters.emplace_back();
        parameter.name = part.substr(0, equals);
        if (equals != std::string_view::npos) parameter.default_text = part.substr(equals + 1);
    }
    made->positional = positional >= 0 ? positional : static_cast<int>(made->parameters.size());
    for (const Parameter& parameter : made->parameters) {  // whose addresses are final now
        made->required |= std::uint32_t{parameter.default_text.empty()} << made->defaults.size();
        made->defaults.push_back(read_default(parameter.default_text));
    }
    if (arrow == std::string_view::npos) {
        made->results.emplace_back("y");
    } else {
        for (const std::string_view part : split(signature.substr(arrow + kArrow.size())))
            made->results.emplace_back(part.substr(0, part.find('=')));  // others are the same
    }
    made->whole_signature =
        made->signature + std::string(arrow == std::string_view::npos ? " -> y" : signature.substr(arrow));
    if (made->parameters.size() > kMostParameters || made->results.size() > kMostResults) std::abort();
    return made;
}

std::string shown(int ndim, const std::int64_t* shape) {
    std::string text = "(";
    for (int d = 0; d < ndim; ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
    return text + (ndim == 1 ? ",)" : ")");
}

}  // namespace

const std::vector<const Operator*>& operators() { return table().all; }

const Operator* find_operator(std::string_view name) {
    const auto found = table().by_name.find(name);
    return found == table().by_name.end() ? nullptr : found->second;
}

int Operator::find(std::string_view parameter) const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
        if (parameters[i].name == parameter) return static_cast<int>(i);
    return -1;
}

Registered::Registered(const char* name, const char* signature, Reason (*function)(Call&), Callers callers) {
    const Operator* made = operator_of(name, signature, function, callers);
    table().all.push_back(made);
    table().by_name[made->name] = made;
}

bool Call::take(int index, const Array& given, const Result& wanted) {
    const bool is_index = wanted.is_index && given.dtype == Dtype::int32;
    if ((given.dtype != wanted.dtype && !is_index) || !given.has_shape(wanted.ndim, wanted.shape) ||
        !given.is_contiguous()) {
        reason = "the result " + op.results[static_cast<std::size_t>(index)] +
                 " is not a C-contiguous array of shape " + shown(wanted.ndim, wanted.shape) + " and dtype " +
                 kDtypeNames[static_cast<int>(wanted.dtype)];
        return false;
    }
    wanted.array = given;
    wanted.array.strides = nullptr;
    return true;
}

Reason call_operator(Call& call) {
    try {
        return call.op.function(call);
    } catch (const std::length_error&) {  // of a vector
        throw std::bad_alloc();
    }
}

// ------------------------------------------------------------------------------------------------------- Reader

const Array* Reader::array_of(const Value& v, const Dtypes& dtypes) {
    static const std::int64_t kNoElements[] = {0};
    static const Array kEmpty{nullptr, kNoElements, nullptr, Dtype::float32, 1};
    if (v.kind != Value::array) {
        fail(v.kind == Value::refused ? v.view() : std::string_view("is not an array"));
        return &kEmpty;
    }
    if (v.as_array.ndim > kMaxAxes) {
        fail("has more than " + std::to_string(kMaxAxes) + " dimensions");
        return &kEmpty;
    }
    if (!dtypes.has(v.as_array.dtype)) {
        fail(v.as_array.dtype == Dtype::float64 && &dtypes == &kNarrow ? "has dtype float64" : dtypes.otherwise);
        return &kEmpty;
    }
    return &v.as_array;
}

const Array& Reader::array(const Dtypes& dtypes) {
    const Value& v = value();
    return *array_of(v, dtypes);
}

const Array* Reader::optional(const Dtypes& dtypes) {
    const Value& v = value();
    return v.kind == Value::none ? nullptr : array_of(v, dtypes);
}

const Array& Reader::rows(const Dtypes& dtypes) {
    const Array& a = array(dtypes);
    if (a.ndim == 0) {
        fail("has 0 dimensions");
        return *array_of(Value{}, dtypes);
    }
    if (!a.is_contiguous_from(a.ndim - 1))
        require(false, ("the last axis of " + std::string(name()) + " is not contiguous").c_str());
    return a;
}

double Reader::number() {
    const Value& v = value();
    if (v.kind == Value::number) return v.as_number;
    if (v.kind == Value::integer) return static_cast<double>(v.as_integer);
    fail("is not a number");
    return 0;
}

double Reader::finite() {
    const Value& v = call_.values[next_];
    const bool is_number = v.kind == Value::number || v.kind == Value::integer;
    const double x = is_number ? number() : (++next_, std::nan(""));
    if (!std::isfinite(x)) fail("is not a finite number");
    return x;
}

double Reader::nonnegative() {
    const Value& v = call_.values[next_];
    const bool is_number = v.kind == Value::number || v.kind == Value::integer;
    const double x = is_number ? number() : (++next_, std::nan(""));
    if (!(x >= 0 && std::isfinite(x))) fail("is not a number of at least 0");
    return x;
}

std::int64_t Reader::integer(const char* what) {
    const Value& v = value();
    if (v.kind == Value::integer) return v.as_integer;
    fail(what);
    return kNoInteger;
}

bool Reader::flag() {
    const Value& v = value();
    if (v.kind == Value::flag) return v.as_flag;
    fail("is not a bool");
    return false;
}

std::string_view Reader::text() {
    const Value& v = value();
    if (v.kind == Value::text) return v.view();
    fail("is not a str");
    return {};
}

std::size_t Reader::choice(std::initializer_list<std::string_view> among) {
    const Value& v = value();
    std::size_t place = 0;
    for (const std::string_view each : among) {
        if (v.kind == Value::text && v.view() == each) return place;
        ++place;
    }
    std::string what = among.size() == 2 ? "is neither" : "is none of";
    place = 0;
    for (const std::string_view each : among) {
        if (place++ > 0) what += among.size() == 2 ? " nor" : ",";
        what.append(" '").append(each).append("'");
    }
    fail(what);
    return 0;
}

void Reader::last_axis(const Array& of, const char* of_name) {
    const std::int64_t axis = integer();
    if (axis != -1 && axis != of.ndim - 1 && !failed())
        reason = "axis " + std::to_string(axis) + " is not the last of " + of_name;
}

int Reader::last_axes(const Array& of, const char* of_name) {
    const Value& v = value();
    Value::Integers axes{&v.as_integer, 1};
    if (v.kind == Value::integers) axes = v.as_integers;
    std::uint64_t named = 0;  // a bit for each axis, from the last
    bool usual = (v.kind == Value::integer || v.kind == Value::integers) && axes.count > 0 && axes.count <= of.ndim;
    for (int i = 0; usual && i < axes.count; ++i) {
        const std::int64_t axis = axes.items[i] >= 0 ? axes.items[i] - of.ndim : axes.items[i];
        usual = axis >= -axes.count && axis < 0;
        if (usual) named |= std::uint64_t{1} << (-1 - axis);
    }
    if (usual && named == (std::uint64_t{1} << axes.count) - 1) return axes.count;
    if (!failed())
        reason = axes.count > 1 ? std::string("the axes are not the last of ") + of_name
                                : std::string("axis is not the last of ") + of_name;
    return 1;
}

std::uint32_t Reader::axes(const Array& of, const char* of_name) {
    const Value& v = value();
    if (v.kind == Value::none && of.ndim > 0) return (std::uint32_t{1} << of.ndim) - 1;
    Value::Integers axes{&v.as_integer, 1};
    if (v.kind == Value::integers) axes = v.as_integers;
    std::uint32_t named = 0;
    bool usual = v.kind == Value::integer || v.kind == Value::integers;
    for (int i = 0; usual && i < axes.count; ++i) {
        const std::int64_t axis = axes.items[i] < 0 ? axes.items[i] + of.ndim : axes.items[i];
        usual = axis >= 0 && axis < of.ndim && !(named >> axis & 1);
        if (usual) named |= std::uint32_t{1} << axis;
    }
    if (!usual || named == 0) require(false, (std::string("axis names no axes of ") + of_name).c_str());
    return named;
}

Dtype Reader::dtype(Dtype otherwise) {
    const Value& v = value();
    if (v.kind == Value::none) return otherwise;
    if (v.kind == Value::dtype) return v.as_dtype;
    return call_.names_dtypes && v.kind == Value::text ? dtype_of(v.view()) : Dtype::other;
}

}  // namespace tensorops
