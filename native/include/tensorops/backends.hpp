// The registry of backends, in C++17: classes over backends.h. Functions throw tensorops::Error.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends.h"

namespace tensorops {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An option of an operator, from whatever its value is in C++; text and integers must outlive the call.
struct Option : TensoropsOption {
    Option(const char* name, double number) : TensoropsOption{name, TENSOROPS_NUMBER, {}} { value.number = number; }
    Option(const char* name, std::int64_t n) : TensoropsOption{name, TENSOROPS_INTEGER, {}} { value.integer = n; }
    Option(const char* name, int n) : Option(name, std::int64_t{n}) {}
    Option(const char* name, bool flag) : TensoropsOption{name, TENSOROPS_FLAG, {}} { value.integer = flag; }
    Option(const char* name, const char* text) : TensoropsOption{name, TENSOROPS_TEXT, {}} { value.text = text; }
    Option(const char* name, const std::vector<std::int64_t>& all) : TensoropsOption{name, TENSOROPS_INTEGERS, {}} {
        value.integers = {all.data(), all.size()};
    }
};

// The names of the operators of the backend `cpu`
inline std::vector<std::string> get_operators() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < tensorops_operator_count(); ++i) names.emplace_back(tensorops_operator_at(i));
    return names;
}

// An operator's parameters and results, such as "x, weight=None, eps=1e-06, *, axis=-1 -> y"
inline std::string get_signature(const std::string& name) {
    const char* signature = tensorops_signature(name.c_str());
    if (!signature) throw Error(tensorops_error());
    return signature;
}

class Backend {
  public:
    explicit Backend(const TensoropsBackend* backend) : backend_(backend) {
        if (!backend) throw Error(tensorops_error());
    }

    std::string get_name() const { return backend_->name; }
    std::string get_display_name() const { return backend_->display_name ? backend_->display_name : backend_->name; }
    bool needs_gpu() const { return backend_->needs_gpu != 0; }
    bool is_available() const { return unavailable().empty(); }
    // Why it is not available; empty if it is
    std::string unavailable() const {
        const char* why = backend_->unavailable ? backend_->unavailable(backend_->context) : nullptr;
        return why ? why : "";
    }
    bool supports_data_type(DLDataType dtype) const {
        return backend_->supports_dtype && backend_->supports_dtype(backend_->context, dtype) != 0;
    }
    std::int64_t get_max_memory() const { return backend_->max_memory ? backend_->max_memory(backend_->context) : -1; }
    std::int64_t get_max_shared_memory() const {
        return backend_->max_shared_memory ? backend_->max_shared_memory(backend_->context) : 0;
    }
    void synchronize() const {
        if (backend_->synchronize && backend_->synchronize(backend_->context) != 0) throw Error(tensorops_error());
    }
    std::string get_compile_flags() const {
        return backend_->compile_flags ? backend_->compile_flags(backend_->context) : "";
    }
    void* allocate_memory(std::size_t bytes) const {
        void* memory = backend_->allocate ? backend_->allocate(backend_->context, bytes) : nullptr;
        if (!memory) throw Error(backend_->allocate ? tensorops_error() : get_name() + " does not allocate memory");
        return memory;
    }
    void free_memory(void* memory) const {
        if (backend_->release) backend_->release(backend_->context, memory);
    }
    // call("rms_norm", {{"x", &x}, {"weight", &weight}}, {{"y", &y}}, {{"eps", 1e-5}})
    void call(const char* name, std::initializer_list<TensoropsTensor> arguments,
              std::initializer_list<TensoropsTensor> results, std::initializer_list<Option> options = {}) const {
        const std::vector<TensoropsOption> all(options.begin(), options.end());
        const TensoropsCall call{sizeof(TensoropsCall), name,           arguments.begin(), arguments.size(),
                                 results.begin(),       results.size(), all.data(),        all.size()};
        if (tensorops_call(backend_, &call) != 0) throw Error(tensorops_error());
    }

  private:
    const TensoropsBackend* backend_;
};

class BackendRegistry {
  public:
    static BackendRegistry& instance() {
        static BackendRegistry only;
        return only;
    }
    static BackendRegistry& get_instance() { return instance(); }

    std::vector<std::string> get_available_backends() const {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < tensorops_backend_count(); ++i)
            if (const Backend backend(tensorops_backend_at(i)); backend.is_available())
                names.push_back(backend.get_name());
        return names;
    }
    Backend get_backend(const std::string& name) const { return Backend(tensorops_backend(name.c_str())); }
    bool is_backend_available(const std::string& name) const {
        const TensoropsBackend* found = tensorops_backend(name.c_str());
        return found && Backend(found).is_available();
    }
    Backend get_default_backend() const { return Backend(tensorops_default_backend()); }
    void register_backend(const TensoropsBackend& backend) {
        if (tensorops_register_backend(&backend) != 0) throw Error(tensorops_error());
    }
};

}  // namespace tensorops
