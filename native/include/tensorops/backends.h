/* Operators of tensorops on tensors in memory, and the registry of the backends that compute them.
 *
 * Functions that return int return 0, or -1 with a text for tensorops_error(). All may be called from any thread.
 * DLPack's structs are below; if you also include dlpack.h, include it first.
 */
#ifndef TENSOROPS_BACKENDS_H
#define TENSOROPS_BACKENDS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(TENSOROPS_BUILDS_LIBRARY)
#define TENSOROPS_API __declspec(dllexport)
#elif defined(_WIN32)
#define TENSOROPS_API __declspec(dllimport)
#else
#define TENSOROPS_API __attribute__((visibility("default")))
#endif

/* The version of this interface. Within one, structs only grow at their ends, and functions are only added. */
#define TENSOROPS_INTERFACE_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(DLPACK_DLPACK_H_)
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLOpenCL = 4, kDLMetal = 8, kDLROCM = 10 } DLDeviceType;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBfloat = 4U, kDLBool = 6U } DLDataTypeCode;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code, bits; /* of an element */
    uint16_t lanes;     /* 1 */
} DLDataType;
typedef struct {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides; /* in elements; NULL: C-contiguous */
    uint64_t byte_offset;
} DLTensor;
#endif

/* A parameter of an operator that is an array. Results have the operator's names of results. */
typedef struct {
    const char* name;
    DLTensor* tensor; /* NULL: not given */
} TensoropsTensor;

typedef enum {
    TENSOROPS_NUMBER = 1,  /* a double */
    TENSOROPS_INTEGER = 2, /* an int64_t */
    TENSOROPS_FLAG = 3,    /* 0 or 1 */
    TENSOROPS_TEXT = 4,    /* of UTF-8; dtypes are given by name, such as "float32" */
    TENSOROPS_INTEGERS = 5 /* several int64_t */
} TensoropsKind;

/* A parameter of an operator that is not an array. Those that are left out have their default values. */
typedef struct {
    const char* name;
    int32_t kind; /* a TensoropsKind */
    union {
        double number;
        int64_t integer;
        const char* text;
        struct {
            const int64_t* items;
            size_t count;
        } integers;
    } value;
} TensoropsOption;

/* A call of an operator. */
typedef struct {
    size_t size; /* sizeof(TensoropsCall) */
    const char* name;
    const TensoropsTensor* arguments;
    size_t argument_count;
    const TensoropsTensor* results; /* memory that the caller has, C-contiguous, and apart from all other tensors */
    size_t result_count;
    const TensoropsOption* options;
    size_t option_count;
} TensoropsCall;

/* A backend. Its functions get `context`; those that are NULL are not supported. */
typedef struct {
    size_t size; /* sizeof(TensoropsBackend) */
    const char* name;
    const char* display_name;
    int needs_gpu;
    void* context;
    const char* (*unavailable)(void* context); /* why it cannot compute here; NULL: it can */
    int (*supports_dtype)(void* context, DLDataType dtype);
    int64_t (*max_memory)(void* context);        /* in bytes; -1: unknown */
    int64_t (*max_shared_memory)(void* context); /* of a group of threads, in bytes; 0: there is none */
    int (*synchronize)(void* context);           /* waits until all calls have ended */
    void* (*allocate)(void* context, size_t bytes);
    void (*release)(void* context, void* memory);
    const char* (*compile_flags)(void* context);
    int (*call)(void* context, const TensoropsCall* call);
} TensoropsBackend;

TENSOROPS_API int tensorops_interface_version(void);

/* Why the last function that failed in this thread did, or an empty text. Backends say so by the second function. */
TENSOROPS_API const char* tensorops_error(void);
TENSOROPS_API void tensorops_set_error(const char* text);

/* Backends, the built-in `cpu` first. NULL with an error: there is none. They stay where they are. */
TENSOROPS_API size_t tensorops_backend_count(void);
TENSOROPS_API const TensoropsBackend* tensorops_backend_at(size_t index);
TENSOROPS_API const TensoropsBackend* tensorops_backend(const char* name);
/* The first that is available, those that were registered last before others */
TENSOROPS_API const TensoropsBackend* tensorops_default_backend(void);
/* Adds a backend, which is copied; its name and context must stay. */
TENSOROPS_API int tensorops_register_backend(const TensoropsBackend* backend);

/* Calls an operator; backend NULL: the default one. */
TENSOROPS_API int tensorops_call(const TensoropsBackend* backend, const TensoropsCall* call);

/* Finds ndim, shape and dtype of the results of a call. Their `shape` must have room for TENSOROPS_MOST_AXES numbers;
 * no memory of tensors is read. */
#define TENSOROPS_MOST_AXES 8
TENSOROPS_API int tensorops_describe_results(const TensoropsCall* call);

/* The operators of the backend `cpu`: names, and signatures such as "x, weight=None, eps=1e-06, *, axis=-1 -> y" */
TENSOROPS_API size_t tensorops_operator_count(void);
TENSOROPS_API const char* tensorops_operator_at(size_t index);
TENSOROPS_API const char* tensorops_signature(const char* name);

/* Bounds the threads of a call of the backend `cpu`; 0: as many as there are processors. */
TENSOROPS_API int tensorops_set_num_threads(int threads);

#ifdef __cplusplus
}
#endif

#endif
