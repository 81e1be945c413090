// A call of an operator: the same for NumPy's arrays, programs of XLA, recorded plans and programs in C.
//
// An operator is a function in operators/<family>.cpp. It reads the values of its parameters, refuses what the kernels
// do not support and says why, asks for its results, and calls a kernel. A caller makes an object of a class
// derived from Call, which tells where results come from and how a kernel is run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "array.h"
#include "interruption.h"

namespace tensorops {

// Why a call is refused; empty if it is not.
using Reason = std::string;

// The value of a parameter.
struct Value {
    enum Kind : std::uint8_t { none, array, number, integer, flag, text, integers, dtype, object, refused };
    struct Text {
        const char* data;
        std::size_t size;
    };
    struct Integers {
        const std::int64_t* items;
        int count;
    };

    Kind kind = none;
    union {
        Array as_array;
        double as_number;
        std::int64_t as_integer;
        bool as_flag;
        Text as_text;          // of `refused`: why the caller could not convert it
        Integers as_integers;  // kNoInteger stands for None
        Dtype as_dtype;
        void* as_object;  // the caller's own
    };

    Value() : as_integer(0) {}
    static Value of(const Array& a) {
        Value v;
        v.kind = array;
        v.as_array = a;
        return v;
    }
    static Value of_text(std::string_view text, Kind kind = Value::text) {
        Value v;
        v.kind = kind;
        v.as_text = {text.data(), text.size()};
        return v;
    }
    std::string_view view() const { return {as_text.data, as_text.size}; }
};
inline constexpr std::int64_t kNoInteger = INT64_MIN;

struct Parameter {
    std::string name, default_text;  // the latter as Python writes it; empty if the parameter is required
};

class Call;

// Who may call an operator: everyone, Python's binding only, or plans only. What plans call writes to results that the
// caller has, which may have strides.
enum class Callers { all, python, plans };

struct Operator {
    std::string name;
    std::string signature, whole_signature;  // as in Python, without annotations; the latter also has the results
    std::vector<Parameter> parameters;
    std::vector<std::string> results;
    std::vector<Value> defaults;  // of all parameters
    int positional;               // how many may be given without their names
    std::uint32_t required;       // a bit for each parameter
    Reason (*function)(Call& call);
    Callers callers;

    int find(std::string_view parameter) const;  // -1: there is none
};

inline constexpr int kMostParameters = 32, kMostResults = 5;

// All operators, by name; an entry's place stays the same.
const std::vector<const Operator*>& operators();
const Operator* find_operator(std::string_view name);

// Adds an operator when the library is loaded. The signature is `parameters -> results`, the latter `y` if left out.
struct Registered {
    Registered(const char* name, const char* signature, Reason (*function)(Call&), Callers callers = Callers::all);
};

#define TENSOROPS_OPERATOR(name, ...)                              \
    Reason name(Call& call);                                       \
    const Registered registered_##name{#name, __VA_ARGS__, &name}; \
    Reason name(Call& call)
#define TENSOROPS_OPERATOR_FOR(callers, name, signature)                           \
    Reason name(Call& call);                                                       \
    const Registered registered_##name{#name, signature, &name, Callers::callers}; \
    Reason name(Call& call)
#define TENSOROPS_STEP(name, signature) TENSOROPS_OPERATOR_FOR(plans, name, signature)

// Results above this size are written past the caches: they would evict everything, themselves included, before they
// are read. It is a few times a usual second-level cache. Where source and result fit into a third-level cache of
// 480 MB, results of 32 MiB were written past it 1.0 to 1.5 times as fast as into it, those of 128 MiB 1.1 to 1.6
// times.
inline constexpr std::int64_t kStreamBytes = 8 * 1024 * 1024;
// Below this size a call runs on its thread: it ends before another one could help, or use Python's interpreter.
inline constexpr std::int64_t kSmallBytes = 64 * 1024;
// From this size on, a call in Python's main thread checks for signals, between parts of rows of about that many
// bytes. At 1 GB/s, a part takes 32 ms.
inline constexpr std::int64_t kLongBytes = 32 * 1024 * 1024;

// A result that an operator asks for
struct Result {
    Array& array;
    int ndim;
    const std::int64_t* shape;
    Dtype dtype;
    bool is_index = false;  // of int64, or int32 if the caller's result has that dtype
    bool is_wanted = true;  // else it is not made
    // In which order its axes had best lie in memory, slowest first; a caller who cannot choose ignores it.
    const int* order = nullptr;

    Result(Array& y, int axes, const std::int64_t* dims, Dtype type, bool index = false)
        : array(y), ndim(axes), shape(dims), dtype(type), is_index(index) {}
    Result(Array& y, const Array& like) : Result(y, like.ndim, like.shape, like.dtype) {}
    Result(Array& y, const Array* like, bool wanted)  // of a derivative with respect to what may be missing
        : array(y),
          ndim(like ? like->ndim : 0),
          shape(like ? like->shape : nullptr),
          dtype(like ? like->dtype : Dtype::other),
          is_wanted(like && wanted) {}
};

class Call {
  public:
    Call(const Operator& which, Value* parameters) : op(which), values(parameters) {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    virtual ~Call() = default;

    const Operator& op;
    Value* const values;          // of each parameter
    bool only_checks = false;     // asked whether the call is refused
    bool only_describes = false;  // asked for the shapes and dtypes of results
    bool has_values = true;       // else only shapes and dtypes are known
    bool may_fail = true;       // else the numbers in arrays are never refused: results are NaN, or numbers are clamped
    bool streams = false;       // results are in memory that the process has used before
    bool names_dtypes = false;  // options of type dtype are text
    bool multiplies = false;    // the caller multiplies matrices of float64 itself
    Reason reason;

    // Makes the results, or finds the caller's; false if the call ends here, with a reason or as it only checks.
    bool make(std::initializer_list<Result> results) {
        if (only_checks) return false;
        int index = 0;
        for (const Result& result : results) {
            const int place = index++;
            if (result.is_wanted && !make_one(place, result)) return false;
        }
        return !only_describes;
    }
    // The result of a step
    virtual const Array* given(int) const { return nullptr; }

    // Runs f, which moves a number of bytes.
    template <class F>
    void compute(std::int64_t bytes, const F& f) {
        if (bytes < kSmallBytes) return f();
        run(bytes, [](const void* context) { (*static_cast<const F*>(context))(); }, &f);
    }

    // Runs a kernel for a number of independent rows or elements that together move a number of bytes: at once or, if
    // the call may be interrupted, in parts that begin at multiples of `unit` and are made by cut(op, begin, end).
    template <class Op, class F>
    void compute_parts(void (*kernel)(const Op&), const Op& whole, std::int64_t count, std::int64_t unit,
                       std::int64_t bytes, F cut) {
        if (bytes < kSmallBytes) return kernel(whole);
        compute(bytes, [&] {
            Interruption* const at = interruption;
            if (!at) return kernel(whole);
            const std::int64_t of_one = std::max<std::int64_t>(bytes / count, 1);
            const std::int64_t step = std::max<std::int64_t>(kLongBytes / of_one / unit, 1) * unit;
            for (std::int64_t begin = 0; begin < count && !at->leaves(kLongBytes); begin += step) {
                Op part = whole;
                cut(part, begin, std::min(begin + step, count));
                kernel(part);
            }
        });
    }

    // Numbers from 0 to 1 of a generator of the caller, one for each row of an array
    virtual bool draw(const Value&, const Array&, Array&) { return false; }

  protected:
    virtual bool make_one(int index, const Result& result) = 0;
    virtual void run(std::int64_t bytes, void (*work)(const void*), const void* context) = 0;

    // Uses a result that the caller has.
    bool take(int index, const Array& given, const Result& wanted);
};

// Calls the operator. Throws std::bad_alloc, and nothing else of its own, if there is not enough memory.
Reason call_operator(Call& call);

// Dtypes that an operator takes
struct Dtypes {
    bool (*has)(Dtype);
    const char* otherwise;  // said of others
};
inline constexpr Dtypes kFloating{is_floating, "has a dtype without a kernel"};
inline constexpr Dtypes kNarrow{[](Dtype d) { return is_floating(d) && d != Dtype::float64; },
                                "has a dtype without a kernel"};
inline constexpr Dtypes kIntegers{is_integer, "has a dtype that is not an integer"};
inline constexpr Dtypes kNumbers{[](Dtype d) { return is_floating(d) || is_integer(d); },
                                 "has a dtype without a kernel"};
inline constexpr Dtypes kBytes{[](Dtype d) { return d == Dtype::uint8; }, "does not have dtype uint8"};
inline constexpr Dtypes kAll{[](Dtype d) { return d != Dtype::other; }, "has a dtype without a kernel"};

// Reads parameters in the order of the signature. The first failure is kept; values read after it are harmless.
class Reader {
  public:
    explicit Reader(Call& call) : call_(call) {}

    Reason reason;
    bool failed() const { return !reason.empty(); }
    bool has_more() const { return next_ < static_cast<int>(call_.op.parameters.size()); }
    const char* name() const { return call_.op.parameters[static_cast<std::size_t>(next_ - 1)].name.c_str(); }

    const Value& value() { return call_.values[next_++]; }
    const Array& array(const Dtypes& dtypes = kFloating);
    const Array* optional(const Dtypes& dtypes = kFloating);
    // The same, along whose last axis elements are neighbours
    const Array& rows(const Dtypes& dtypes = kFloating);

    double number();
    double finite();       // a finite number
    double nonnegative();  // … of at least 0
    std::int64_t integer(const char* what = "is not an integer");
    bool flag();
    std::string_view text();
    std::size_t choice(std::initializer_list<std::string_view> among);  // its place
    void last_axis(const Array& of, const char* of_name);
    // How many axes are named, which must be the last ones; fails otherwise
    int last_axes(const Array& of, const char* of_name);
    // Any axes, or all where there is no value, a bit for each; fails if they are not different axes of the array
    std::uint32_t axes(const Array& of, const char* of_name);
    Dtype dtype(Dtype otherwise);  // Dtype::other if it is unknown

    // Fails unless a condition holds; returns whether nothing has failed so far.
    bool require(bool condition, const char* otherwise) {
        if (!condition && reason.empty()) reason = otherwise;
        return reason.empty();
    }
    bool require(const Reason& refusal) {
        if (refusal.empty()) return reason.empty();
        if (reason.empty()) reason = refusal;
        return false;
    }

  private:
    void fail(std::string_view what) {
        if (reason.empty()) (reason = name()).append(" ").append(what);
    }
    const Array* array_of(const Value& v, const Dtypes& dtypes);

    Call& call_;
    int next_ = 0;
};

}  // namespace tensorops
