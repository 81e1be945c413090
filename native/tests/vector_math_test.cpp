// The functions of vector_math.h on float32 of all sizes.
#include "compiled_targets.h"
#include "tests.h"
#include "vector_functions.h"

namespace tensorops {

#define TENSOROPS_DECLARE(target, ...)                                                     \
    namespace target {                                                                     \
    void vector_function(tests::VectorFunction, const float* x, float* y, std::int64_t n); \
    }
TENSOROPS_FOR_EACH_TARGET(TENSOROPS_DECLARE, TENSOROPS_DECLARE, )

namespace tests {
namespace {

using Apply = void (*)(VectorFunction, const float*, float*, std::int64_t);

Apply in_use() {
#define TENSOROPS_NAMED(target, ...) {#target, target::vector_function},
    static const std::map<std::string, Apply> all = {TENSOROPS_FOR_EACH_TARGET(TENSOROPS_NAMED, TENSOROPS_NAMED, )};
    return all.at(target().name);
}

// Bounds of errors in units of the last place, of which a result has up to two for each eps: AVX-512 looks up some
// functions, and others have more rounding errors where products cannot be fused with sums.
struct Bounds {
    Real looked_up, fused, plain;

    Real of(const Target& target) const {
        const auto needs = [&target](const char* feature) {
            return target.needs.find(feature) != std::string_view::npos;
        };
        return needs("avx512f") ? looked_up : needs("sse4.2") ? plain : fused;
    }
};

// Between the limits the results are normal numbers, and not yet all the same.
struct Measured {
    const char* name;
    VectorFunction function;
    Bounds bounds;
    float least, most;
    float binade;  // times 1 to 2: of these every number is tried
    Real (*value)(Real x);
};
const Measured kMeasured[] = {
    {"exp", VectorFunction::exp, {1.0L, 1.0L, 1.0L}, -87, 0, -1, [](Real x) { return std::exp(x); }},
    {"expm1", VectorFunction::expm1, {1.5L, 1.5L, 1.5L}, -18, 0, -0.5f, [](Real x) { return std::expm1(x); }},
    {"log1p_unit", VectorFunction::log1p_unit, {1.5L, 1.1L, 1.5L}, 0, 1, 0.5f, [](Real x) { return std::log1p(x); }},
    {"tanh", VectorFunction::tanh, {1.75L, 1.75L, 1.75L}, -12, 12, 0.5f, [](Real x) { return std::tanh(x); }},
    {"sigmoid",
     VectorFunction::sigmoid,
     {1.5L, 2.5L, 2.5L},
     -87,
     20,
     -4,
     [](Real x) { return 1 / (1 + std::exp(-x)); }},
    {"gelu",
     VectorFunction::gelu,
     {3.0L, 5.0L, 6.5L},
     -12.5f,
     6,
     -1,
     [](Real x) { return x * std::erfc(x / -1.41421356237309504880168872420969808L) / 2; }},
};

void check(Test& t, const Measured& f, const Input& x) {
    Expected expected;
    for (Real value : x.values) expected.value.push_back(f.value(value));
    const std::vector<std::string> targets = t.targets;
    for (const std::string& target : targets) {
        t.targets = {target};
        use_target(target);
        t.check(f.name, {f.bounds.of(tensorops::target()), 0}, {x}, expected, [&](const Test::Call& call) {
            in_use()(f.function, reinterpret_cast<const float*>(call.in[0]), reinterpret_cast<float*>(call.out),
                     static_cast<std::int64_t>(x.values.size()));
        });
    }
    t.targets = targets;
}

// Numbers of either sign, as many of each power of two
Input of_all_sizes(Test& t, const Measured& f, std::int64_t count) {
    Input x{Dtype::float32, {}};
    for (std::int64_t i = 0; i < count; ++i) {
        const float most = i % 2 && f.least < 0 ? f.least : f.most;
        const Real size = std::ldexp(Real{1}, static_cast<int>(-t.integer(0, 12)));
        const Real value = most * size * (static_cast<Real>(t.integer(1 << 23, 1 << 24)) / (1 << 24));
        x.values.push_back(static_cast<Real>(static_cast<float>(value)));
    }
    return x;
}

}  // namespace

void vector_math(Test& t) {
    if (t.dtype != Dtype::float32) return;
    for (const Measured& f : kMeasured) check(t, f, of_all_sizes(t, f, t.length));
}

void vector_math_on_every_float(Test& t) {
    constexpr std::int64_t all = 1 << 23, some = 1 << 16;
    for (const Measured& f : kMeasured)
        for (std::int64_t begin = 0; begin < all; begin += some) {
            Input x{Dtype::float32, {}};
            for (std::int64_t i = begin; i < begin + some; ++i)
                x.values.push_back(f.binade * (1 + static_cast<Real>(i) / all));
            check(t, f, x);
        }
}

}  // namespace tests
}  // namespace tensorops
