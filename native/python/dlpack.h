// Arrays of other libraries by DLPack's table of C functions, which a type has in `__dlpack_c_exchange_api__`: metadata
// with one call and no object of Python, and arrays made of memory. DLPack's header is not needed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace tensorops::dlpack {

constexpr std::int32_t kHost = 1;  // a device_type
enum Code : std::uint8_t { kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

// DLPack 1.3; its major version says that this is the layout.
constexpr std::uint32_t kMajor = 1, kMinor = 3;

struct Tensor {
    void* data;
    std::int32_t device_type, device_id, ndim;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t *shape, *strides;
    std::uint64_t byte_offset;
};

// A tensor whose owner ends with a call of `release`.
struct Managed {
    std::uint32_t major, minor;
    void* context;
    void (*release)(Managed* self);
    std::uint64_t flags;
    Tensor tensor;
};

struct Table {
    std::uint32_t major, minor;
    void* previous;
    void *allocate, *from_object;
    int (*to_object)(Managed* tensor, void** object);
    int (*describe)(void* object, Tensor* out);
    void* current_stream;
};

// Null, perhaps with an exception, if it is not a table of this layout.
inline const Table* table_of(PyObject* capsule) {
    const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    return table && table->major == kMajor && table->describe && table->to_object ? table : nullptr;
}

}  // namespace tensorops::dlpack
