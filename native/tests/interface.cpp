// A program in C++: attention and quantized_linear compared with double, and a backend of its own. Returns 0 if all
// that it requires is true.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <tensorops/backends.hpp>
#include <vector>

namespace {

using namespace tensorops;

int failures = 0;

void require(bool condition, const std::string& what) {
    if (condition) return;
    std::printf("not true: %s (%s)\n", what.c_str(), tensorops_error());
    ++failures;
}

template <class F>
void refuses(const std::string& part, const F& f) {
    try {
        f();
        require(false, "it is refused: " + part);
    } catch (const Error& error) {
        require(std::string(error.what()).find(part) != std::string::npos, part + " in " + error.what());
    }
}

// Contiguous memory with a shape
struct Tensor : DLTensor {
    std::vector<std::int64_t> dims;
    std::vector<std::uint8_t> memory;

    Tensor(std::vector<std::int64_t> shape_, DLDataType type) : DLTensor{}, dims(std::move(shape_)) {
        std::int64_t bytes = type.bits / 8;
        for (const std::int64_t n : dims) bytes *= n;
        memory.resize(static_cast<std::size_t>(bytes));
        data = memory.data();
        device = {kDLCPU, 0};
        ndim = static_cast<std::int32_t>(dims.size());
        dtype = type;
        shape = dims.data();
    }
    template <class T>
    T* as() {
        return reinterpret_cast<T*>(memory.data());
    }
};
constexpr DLDataType kFloat32{kDLFloat, 32, 1}, kBfloat16{kDLBfloat, 16, 1}, kUint8{kDLUInt, 8, 1},
    kInt32{kDLInt, 32, 1};

double number(std::size_t i) { return std::sin(static_cast<double>(i * 37 % 101)); }

void fill(Tensor& t) {
    for (std::size_t i = 0; i < t.memory.size() / 4; ++i) t.as<float>()[i] = static_cast<float>(number(i));
}

void attention(const Backend& backend) {
    constexpr int kHeads = 4, kOfKeys = 2, kQueries = 3, kKeys = 7, kDim = 8;
    Tensor q({1, kHeads, kQueries, kDim}, kFloat32), y = q;
    y.data = y.memory.data();
    y.shape = y.dims.data();
    Tensor k({1, kKeys, kOfKeys, kDim}, kFloat32), lengths({1}, kInt32);  // heads and keys change places by strides
    fill(q);
    fill(k);
    *lengths.as<std::int32_t>() = 5;
    std::int64_t shape[] = {1, kOfKeys, kKeys, kDim}, strides[] = {kKeys * kOfKeys * kDim, kDim, kOfKeys * kDim, 1};
    DLTensor keys = k;
    keys.shape = shape;
    keys.strides = strides;
    const std::vector<std::int64_t> window{2, 0};
    backend.call("scaled_dot_product_attention", {{"q", &q}, {"k", &keys}, {"v", &keys}, {"lengths", &lengths}},
                 {{"y", &y}}, {{"scale", 0.5}, {"window", window}});
    for (int h = 0; h < kHeads; ++h)
        for (int i = 0; i < kQueries; ++i) {
            const int at = 5 - kQueries + i;  // the position of the query
            double weights[kKeys] = {}, total = 0;
            for (int j = std::max(0, at - 2); j <= at; ++j) {
                double score = 0;
                for (int d = 0; d < kDim; ++d)
                    score += q.as<float>()[(h * kQueries + i) * kDim + d] *
                             static_cast<double>(k.as<float>()[(j * kOfKeys + h / 2) * kDim + d]);
                total += weights[j] = std::exp(0.5 * score);
            }
            for (int d = 0; d < kDim; ++d) {
                double expected = 0;
                for (int j = 0; j < kKeys; ++j)
                    expected += weights[j] / total * k.as<float>()[(j * kOfKeys + h / 2) * kDim + d];
                require(std::fabs(y.as<float>()[(h * kQueries + i) * kDim + d] - expected) < 1e-6, "attention");
            }
        }
}

// Groups of 32 bytes, each (q · scale + bias)
void quantized_linear(const Backend& backend) {
    constexpr int kRows = 2, kInputs = 64, kOutputs = 5, kGroups = kInputs / 32;
    Tensor x({kRows, kInputs}, kFloat32), weight({kOutputs, kInputs}, kUint8), y({kRows, kOutputs}, kFloat32);
    Tensor scales({kOutputs, kGroups}, kFloat32), biases({kOutputs, kGroups}, kFloat32);
    for (Tensor* t : {&x, &scales, &biases}) fill(*t);
    for (std::size_t i = 0; i < weight.memory.size(); ++i) weight.memory[i] = static_cast<std::uint8_t>(i * 73);
    backend.call("quantized_linear", {{"x", &x}, {"weight", &weight}, {"scales", &scales}, {"biases", &biases}},
                 {{"y", &y}}, {{"bits", 8}});
    for (int r = 0; r < kRows; ++r)
        for (int o = 0; o < kOutputs; ++o) {
            double expected = 0, size = 0;
            for (int i = 0; i < kInputs; ++i) {
                const int group = o * kGroups + i / 32;
                const double w = weight.memory[static_cast<std::size_t>(o * kInputs + i)] *
                                     static_cast<double>(scales.as<float>()[group]) +
                                 biases.as<float>()[group];
                expected += w * x.as<float>()[r * kInputs + i];
                size += std::fabs(w * x.as<float>()[r * kInputs + i]);
            }
            require(std::fabs(y.as<float>()[r * kOutputs + o] - expected) < 1e-6 * size, "quantized_linear");
        }
    refuses("biases are missing", [&] {
        backend.call("quantized_linear", {{"x", &x}, {"weight", &weight}, {"scales", &scales}}, {{"y", &y}});
    });
}

// A backend that fills results with the number of its calls
struct Counting {
    int calls = 0;
    bool is_there = false;
};

int count(void* context, const TensoropsCall* call) {
    auto& counting = *static_cast<Counting*>(context);
    ++counting.calls;
    if (std::string(call->name) != "relu") {
        tensorops_set_error("only relu is counted");
        return -1;
    }
    *static_cast<float*>(call->results[0].tensor->data) = static_cast<float>(counting.calls);
    return 0;
}

void own_backend() {
    BackendRegistry& registry = BackendRegistry::get_instance();
    Counting counting;
    TensoropsBackend made{};
    made.size = sizeof made;
    made.name = "counting";
    made.needs_gpu = 1;
    made.context = &counting;
    made.call = count;
    made.unavailable = [](void* context) -> const char* {
        return static_cast<Counting*>(context)->is_there ? nullptr : "nobody counts yet";
    };
    registry.register_backend(made);
    refuses("already a backend counting", [&] { registry.register_backend(made); });
    made.name = "smaller";
    made.size = 8;
    refuses("unknown version", [&] { registry.register_backend(made); });
    made.size = sizeof made;
    made.call = nullptr;
    refuses("needs a name and `call`", [&] { registry.register_backend(made); });

    const Backend backend = registry.get_backend("counting");
    require(!registry.is_backend_available("counting") && backend.unavailable() == "nobody counts yet", "unavailable");
    require(registry.get_default_backend().get_name() == "cpu", "the default is available");
    require(registry.get_available_backends() == std::vector<std::string>{"cpu"}, "available backends");
    counting.is_there = true;
    require(registry.get_default_backend().get_name() == "counting", "the latest is the default");
    require(backend.needs_gpu() && backend.get_display_name() == "counting", "its facts");
    require(!backend.supports_data_type(kFloat32) && backend.get_max_memory() == -1 &&
                backend.get_max_shared_memory() == 0 && backend.get_compile_flags().empty(),
            "what it does not know");
    refuses("does not allocate", [&] { backend.allocate_memory(8); });
    Tensor x({1}, kFloat32), y({1}, kFloat32);
    backend.call("relu", {{"x", &x}}, {{"y", &y}});
    require(*y.as<float>() == 1 && counting.calls == 1, "it was called");
    refuses("only relu is counted", [&] { backend.call("silu", {{"x", &x}}, {{"y", &y}}); });
    counting.is_there = false;
}

}  // namespace

int main() {
    BackendRegistry& registry = BackendRegistry::instance();
    const Backend cpu = registry.get_backend("cpu");
    require(registry.is_backend_available("cpu") && !registry.is_backend_available("tpu"), "cpu is available");
    refuses("there is no backend 'tpu'; valid names: cpu", [&] { registry.get_backend("tpu"); });
    const std::vector<std::string> names = get_operators();
    require(std::find(names.begin(), names.end(), "rope") != names.end() && get_signature("silu") == "x -> y", "names");
    refuses("there is no operator 'silo' (did you mean 'silu'?); valid names: ", [&] { get_signature("silo"); });
    require(cpu.supports_data_type(kBfloat16) && !cpu.supports_data_type({kDLFloat, 8, 1}), "its dtypes");
    require(!cpu.needs_gpu() && cpu.get_max_memory() != 0 && cpu.get_max_shared_memory() == 0, "its memory");
    require(cpu.get_compile_flags().find("-O") != std::string::npos, "its flags");
    void* memory = cpu.allocate_memory(1000);
    require(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0, "memory is aligned");
    std::fill_n(static_cast<char*>(memory), 1000, 'x');
    cpu.free_memory(memory);
    cpu.free_memory(nullptr);
    refuses("not enough memory", [&] { cpu.allocate_memory(SIZE_MAX); });
    cpu.synchronize();
    attention(cpu);
    quantized_linear(cpu);
    own_backend();
    return failures != 0;
}
