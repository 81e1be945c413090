// The functions of vector_math.h on numbers of all sizes.
#include "compiled_targets.h"
#include "tests.h"
#include "vector_functions.h"

namespace tensorops {

#define TENSOROPS_DECLARE(target, ...)                                                          \
    namespace target {                                                                          \
    void vector_function(tests::VectorFunction, Dtype, const char* x, char* y, std::int64_t n); \
    }
TENSOROPS_FOR_EACH_TARGET(TENSOROPS_DECLARE, TENSOROPS_DECLARE, )

namespace tests {
namespace {

using Apply = void (*)(VectorFunction, Dtype, const char*, char*, std::int64_t);

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

Real gelu(Real x) { return x * std::erfc(x / -1.41421356237309504880168872420969808L) / 2; }
Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

// Between the limits the results are normal numbers, and not yet all the same.
struct Measured {
    const char* name;
    VectorFunction function;
    Dtype dtype;
    Bounds bounds;
    Real least, most;
    Real binade;  // times 1 to 2: of these every float32 is tried
    Real (*value)(Real x);
};
const Measured kMeasured[] = {
    {"exp", VectorFunction::exp, Dtype::float32, {1.0L, 1.0L, 1.0L}, -87, 0, -1, std::exp},
    {"expm1", VectorFunction::expm1, Dtype::float32, {1.5L, 1.5L, 1.5L}, -18, 0, -0.5L, std::expm1},
    {"log1p_unit", VectorFunction::log1p_unit, Dtype::float32, {1.5L, 1.1L, 1.5L}, 0, 1, 0.5L, std::log1p},
    {"tanh", VectorFunction::tanh, Dtype::float32, {1.75L, 1.75L, 1.75L}, -12, 12, 0.5L, std::tanh},
    {"sigmoid", VectorFunction::sigmoid, Dtype::float32, {1.5L, 2.5L, 2.5L}, -87, 20, -4, sigmoid},
    {"gelu", VectorFunction::gelu, Dtype::float32, {3.0L, 5.0L, 6.5L}, -12.5L, 6, -1, gelu},
    {"log", VectorFunction::log, Dtype::float32, {1.0L, 1.0L, 1.0L}, 1, 1e30L, 1, std::log},
    {"log", VectorFunction::log, Dtype::float64, {1.35L, 1.35L, 1.35L}, 1, 1e300L, 1, std::log},
    {"exp", VectorFunction::exp, Dtype::float64, {1.0L, 1.0L, 1.0L}, -708, 0, -1, std::exp},
    {"expm1", VectorFunction::expm1, Dtype::float64, {1.25L, 1.25L, 1.25L}, -37, 0, -0.5L, std::expm1},
    {"log1p_unit", VectorFunction::log1p_unit, Dtype::float64, {1.25L, 1.25L, 1.35L}, 0, 1, 0.5L, std::log1p},
    {"tanh", VectorFunction::tanh, Dtype::float64, {2.5L, 2.5L, 2.5L}, -20, 20, 0.5L, std::tanh},
    {"sigmoid", VectorFunction::sigmoid, Dtype::float64, {2.5L, 2.5L, 2.5L}, -708, 38, -4, sigmoid},
    {"gelu", VectorFunction::gelu, Dtype::float64, {4.75L, 4.75L, 4.75L}, -37, 9, -1, gelu},
};

void check(Test& t, const Measured& f, const Input& x) {
    Expected expected;
    for (Real value : x.values) expected.value.push_back(f.value(value));
    const std::vector<std::string> targets = t.targets;
    for (const std::string& target : targets) {
        t.targets = {target};
        use_target(target);
        t.check(f.name, {f.bounds.of(tensorops::target()), 0}, {x}, expected, [&](const Test::Call& call) {
            in_use()(f.function, f.dtype, call.in[0], call.out, static_cast<std::int64_t>(x.values.size()));
        });
    }
    t.targets = targets;
}

// Numbers of either sign, as many of each power of two
Input of_all_sizes(Test& t, const Measured& f, std::int64_t count) {
    Input x{f.dtype, {}};
    const int binades = f.dtype == Dtype::float64 ? 20 : 12;
    for (std::int64_t i = 0; i < count; ++i) {
        const Real most = i % 2 && f.least < 0 ? f.least : f.most;
        const Real size = std::ldexp(Real{1}, static_cast<int>(-t.integer(0, binades)));
        const Real value = most * size * (static_cast<Real>(t.integer(1LL << 52, 1LL << 53)) / (1LL << 53));
        x.values.push_back(rounded(format_of(f.dtype), value));
    }
    return x;
}

}  // namespace

void vector_math(Test& t) {
    for (const Measured& f : kMeasured)
        if (f.dtype == t.dtype) check(t, f, of_all_sizes(t, f, t.length));
}

// Every float32 of a binade, and as many float64 of all sizes
void vector_math_on_every_float(Test& t) {
    constexpr std::int64_t all = 1 << 23, some = 1 << 16;
    for (const Measured& f : kMeasured)
        for (std::int64_t begin = 0; begin < all; begin += some) {
            if (f.dtype == Dtype::float64) {
                check(t, f, of_all_sizes(t, f, some));
                continue;
            }
            Input x{Dtype::float32, {}};
            for (std::int64_t i = begin; i < begin + some; ++i)
                x.values.push_back(f.binade * (1 + static_cast<Real>(i) / all));
            check(t, f, x);
        }
}

}  // namespace tests
}  // namespace tensorops
