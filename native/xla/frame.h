// The part of XLA's foreign function interface that CPU handlers need: the layout of XLA's structs.
//
// jaxlib's header (xla/ffi/api/c_api.h in jax.ffi.include_dir()) is not available when this module is built, but its
// layout is stable: within a major version fields are only added at the end, and each struct begins with its size.
// XLA compares the version when a handler is registered; the sizes are compared on every call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorops::xla {

inline constexpr int kMajor = 0, kMinor = 1;  // the oldest version with these fields

struct Extension {
    std::size_t size;
    int type;
    Extension* next;
};
inline constexpr int kMetadata = 1;  // Extension::type: XLA asks what the handler is

struct Version {
    std::size_t size;
    Extension* extensions;
    int major, minor;
};

struct Metadata {
    std::size_t size;
    Version version;
    std::uint32_t traits;
};
struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

struct Error;
struct ErrorArguments {
    std::size_t size;
    Extension* extensions;
    const char* message;
    int code;
};
inline constexpr int kInvalidArgument = 3, kResourceExhausted = 8, kInternal = 13;

struct ErrorToDestroy {
    std::size_t size;
    Extension* extensions;
    Error* error;
};

struct ScheduleArguments {  // a task for a thread of XLA's pool
    std::size_t size;
    Extension* extensions;
    void* context;
    void (*task)(void*);
    void* data;
};
struct NumThreadsArguments {
    std::size_t size;
    Extension* extensions;
    void* context;
    std::int64_t* result;
};

struct Api {
    std::size_t size;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorArguments*);
    const void* get_message;
    void (*destroy_error)(ErrorToDestroy*);
    const void *register_handler, *get_stream, *register_type, *get_context, *set_state, *get_state;
    const void *allocate, *free;
    Error* (*schedule)(ScheduleArguments*);
    Error* (*num_threads)(NumThreadsArguments*);
};

inline constexpr int kBool = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint8 = 6, kUint16 = 7, kUint32 = 8,
                     kUint64 = 9;
inline constexpr int kFloat16 = 10, kFloat32 = 11, kFloat64 = 12, kBFloat16 = 16;
inline constexpr int kDenseArray = 1, kScalar = 3, kString = 4;  // the kind of an attribute

struct Buffer {  // contiguous, the last axis innermost
    std::size_t size;
    Extension* extensions;
    int dtype;
    void* data;
    std::int64_t rank;
    std::int64_t* dims;
};

struct Span {
    const char* data;
    std::size_t length;
};

struct Scalar {
    int dtype;
    void* value;
};

struct DenseArray {
    int dtype;
    std::size_t length;
    void* data;
};

struct Buffers {  // arguments or results; all are of kind Buffer
    std::size_t size;
    Extension* extensions;
    std::int64_t count;
    int* kinds;
    void** items;
};

struct Attributes {
    std::size_t size;
    Extension* extensions;
    std::int64_t count;
    int* kinds;
    Span** names;
    void** items;
};

struct CallFrame {
    std::size_t size;
    Extension* extensions;
    const Api* api;
    void* context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;
};
inline constexpr int kExecute = 3;  // CallFrame::stage

using Handler = Error*(CallFrame*);

}  // namespace tensorops::xla
