/* A program in C: operators on tensors with strides, what is refused, and from several threads. Returns 0 if all that
 * it requires is true. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tensorops/backends.h>
#include <unistd.h>

static int failures = 0;

static void require(int condition, const char* what) {
    if (condition) return;
    printf("not true: %s (%s)\n", what, tensorops_error());
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

static DLTensor tensor(void* data, uint8_t code, uint8_t bits, int32_t ndim, int64_t* shape, int64_t* strides) {
    DLTensor t = {data, {kDLCPU, 0}, ndim, {code, bits, 1}, shape, strides, 0};
    return t;
}

static int call(const char* name, const TensoropsTensor* arguments, size_t n, const TensoropsTensor* results, size_t m,
                const TensoropsOption* options, size_t k) {
    const TensoropsCall whole = {sizeof whole, name, arguments, n, results, m, options, k};
    return tensorops_call(NULL, &whole);
}

static int says(const char* part) { return strstr(tensorops_error(), part) != NULL; }

static float as_float(uint16_t bfloat16) {
    const uint32_t bits = (uint32_t)bfloat16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

enum { kRows = 3, kLength = 40 };

/* rms_norm of every other row of a matrix, in reverse, in float32 and bfloat16 */
static void strides(void) {
    float x[2 * kRows][kLength], y[kRows][kLength], weight[kLength];
    uint16_t narrow[2 * kRows][kLength], narrow_y[kRows][kLength];
    for (int i = 0; i < 2 * kRows; ++i)
        for (int j = 0; j < kLength; ++j) {
            x[i][j] = (float)((i * 37 + j * 11) % 29 - 14);
            narrow[i][j] = (uint16_t)(0x3f80 + (i * 13 + j * 7) % 64); /* 1 to 1.5 */
            weight[j] = 1 + j / 8.0F;
        }
    int64_t shape[] = {kRows, kLength}, steps[] = {-2 * kLength, 1}, one[] = {kLength};
    DLTensor of_x = tensor(x[2 * kRows - 2], kDLFloat, 32, 2, shape, steps);
    DLTensor of_weight = tensor(weight, kDLFloat, 32, 1, one, NULL), of_y = tensor(y, kDLFloat, 32, 2, shape, NULL);
    const TensoropsTensor arguments[] = {{"x", &of_x}, {"weight", &of_weight}}, results[] = {{"y", &of_y}};
    TensoropsOption eps = {"eps", TENSOROPS_NUMBER, {0.5}};
    require(call("rms_norm", arguments, 2, results, 1, &eps, 1) == 0, "rms_norm takes strides");
    DLTensor of_narrow = tensor(narrow[2 * kRows - 2], kDLBfloat, 16, 2, shape, steps);
    DLTensor of_narrow_y = tensor(narrow_y, kDLBfloat, 16, 2, shape, NULL);
    const TensoropsTensor narrow_arguments[] = {{"x", &of_narrow}, {"weight", &of_weight}};
    const TensoropsTensor narrow_results[] = {{"y", &of_narrow_y}};
    require(call("rms_norm", narrow_arguments, 2, narrow_results, 1, &eps, 1) == 0, "rms_norm takes bfloat16");
    for (int i = 0; i < kRows; ++i) {
        const int row = 2 * kRows - 2 - 2 * i;
        double squares = 0, narrow_squares = 0;
        for (int j = 0; j < kLength; ++j) {
            squares += (double)x[row][j] * x[row][j];
            narrow_squares += (double)as_float(narrow[row][j]) * as_float(narrow[row][j]);
        }
        for (int j = 0; j < kLength; ++j) {
            const double expected = x[row][j] / sqrt(squares / kLength + 0.5) * weight[j];
            require(fabs(y[i][j] - expected) <= 1e-6 * fabs(expected) + 1e-7, "rms_norm is that of float64");
            const double narrow_expected = as_float(narrow[row][j]) / sqrt(narrow_squares / kLength + 0.5) * weight[j];
            require(fabs(as_float(narrow_y[i][j]) - narrow_expected) <= narrow_expected / 250, "also in bfloat16");
        }
    }
}

/* What is wrong is said, and no memory is touched. */
static void refusals(void) {
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    int64_t shape[] = {2, 4}, other[] = {4, 2}, columns[] = {1, 2}, huge[] = {INT64_MAX, INT64_MAX},
            negative[] = {2, -4};
    DLTensor t = tensor(x, kDLFloat, 32, 2, shape, NULL), r = tensor(y, kDLFloat, 32, 2, shape, NULL), bad;
    const TensoropsTensor argument[] = {{"x", &t}}, result[] = {{"y", &r}};
    const TensoropsTensor with_bad[] = {{"x", &bad}}, to_bad[] = {{"y", &bad}}, nameless[] = {{NULL, &t}};
    require(call("silu", argument, 1, result, 1, NULL, 0) == 0, "silu takes a call");
    require(fabs(y[3] - 4 / (1 + exp(-4.0))) < 1e-6, "silu is silu");
    memset(y, 0, sizeof y);

    require(call("swish", argument, 1, result, 1, NULL, 0) != 0 && says("no operator 'swish'; valid names: "),
            "names are known");
    require(says(", silu, ") && says(", rms_norm, ") && !says("copy"), "all of them");
    require(call("copy", argument, 1, result, 1, NULL, 0) != 0 && says("no operator 'copy'"), "steps are private");
    const char* near[][2] = {{"SoftMax", "(did you mean 'softmax'?)"},
                             {"layernorm", "(did you mean 'layer_norm'?)"},
                             {"rms_nrom_vjp", "(did you mean 'rms_norm_vjp'?)"},
                             {"cross_entropy_loss", "(did you mean 'cross_entropy'?)"},
                             {"group_normalization", "(did you mean 'group_norm'?)"},
                             {"scaled_dot_product", "(did you mean 'scaled_dot_product_attention'?)"}};
    for (int i = 0; i < 6; ++i) {
        require(call(near[i][0], argument, 1, result, 1, NULL, 0) != 0 && says(near[i][1]),
                "similar names are suggested");
        tensorops_set_error("");
        require(tensorops_signature(near[i][0]) == NULL && says(near[i][1]), "and where a signature is asked for");
    }
    const TensoropsTensor both[] = {{"x", &t}, {"x", &t}};
    require(call("softmax", both, 2, result, 1, NULL, 0) != 0 && says("has the parameter x twice"), "given once");
    const TensoropsTensor misnamed[] = {{"X", &t}}, misnamed_result[] = {{"out", &r}};
    require(call("softmax", misnamed, 1, result, 1, NULL, 0) != 0 &&
                says("softmax: there is no parameter 'X' (did you mean 'x'?); valid names: x, axis, where, dtype"),
            "names of arguments are listed");
    require(call("softmax", argument, 1, misnamed_result, 1, NULL, 0) != 0 &&
                says("softmax: there is no result 'out'; valid names: y"),
            "names of results are listed");
    require(call(NULL, argument, 1, result, 1, NULL, 0) != 0, "a name is needed");
    require(tensorops_call(NULL, NULL) != 0, "a call is needed");
    TensoropsCall small = {8, "silu", argument, 1, result, 1, NULL, 0};
    require(tensorops_call(NULL, &small) != 0 && says("unknown version"), "the size of a struct is its version");
    require(call("silu", NULL, 1, result, 1, NULL, 0) != 0 && says("null pointer"), "arguments are needed");
    require(call("silu", argument, 0, result, 1, NULL, 0) != 0 && says("needs x"), "x is needed");
    require(call("silu", nameless, 1, result, 1, NULL, 0) != 0 && says("without a name"), "names are needed");
    require(call("silu", argument, 1, result, 0, NULL, 0) != 0 && says("needs a tensor for the result y"),
            "y is needed");
    const TensoropsTensor twice[] = {{"y", &r}, {"y", &r}};
    require(call("silu", argument, 1, twice, 2, NULL, 0) != 0 && says("twice"), "a result is given once");
    const TensoropsTensor in_place[] = {{"y", &t}};
    require(call("silu", argument, 1, in_place, 1, NULL, 0) != 0 && says("overlaps x"), "results are apart");

    struct {
        DLTensor tensor;
        const char* says;
    } cases[] = {
        {tensor(NULL, kDLFloat, 32, 2, shape, NULL), "x has no memory"},
        {tensor(x, kDLFloat, 32, 9, shape, NULL), "x does not have 0 to 8 dimensions"},
        {tensor(x, kDLFloat, 32, -1, shape, NULL), "x does not have 0 to 8 dimensions"},
        {tensor(x, kDLFloat, 32, 2, NULL, NULL), "x has no shape"},
        {tensor(x, kDLFloat, 32, 2, negative, NULL), "x has a negative length"},
        {tensor(x, kDLFloat, 32, 2, huge, NULL), "x has more bytes than there are addresses"},
        {tensor(x, kDLFloat, 32, 2, shape, huge), "x has more bytes than there are addresses"},
        {tensor(x, kDLFloat, 12, 2, shape, NULL), "x has a dtype that is not known"},
        {tensor(x, 5, 32, 2, shape, NULL), "x has a dtype that is not known"},
        {tensor(x, kDLInt, 32, 2, shape, NULL), "x has a dtype without a kernel"},
        {tensor((char*)x + 1, kDLFloat, 32, 1, shape, NULL), "x is not aligned to its elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        bad = cases[i].tensor;
        require(call("silu", with_bad, 1, result, 1, NULL, 0) != 0 && says(cases[i].says), cases[i].says);
    }
    int64_t empty[] = {(int64_t)1 << 62, 5, 0}; /* no product of these lengths overflows */
    DLTensor nothing = tensor(x, kDLFloat, 32, 3, empty, NULL), none = tensor(y, kDLFloat, 32, 3, empty, NULL);
    const TensoropsTensor of_nothing[] = {{"x", &nothing}}, to_nothing[] = {{"y", &none}};
    require(call("silu", of_nothing, 1, to_nothing, 1, NULL, 0) == 0 && y[0] == 0, "arrays without elements");
    bad = t;
    bad.byte_offset = (uint64_t)1 << 63;
    require(call("silu", with_bad, 1, result, 1, NULL, 0) != 0 && says("x begins beyond all addresses"), "offsets");
    bad = t;
    bad.device.device_type = kDLCUDA;
    require(call("silu", with_bad, 1, result, 1, NULL, 0) != 0 && says("x is not in the memory of the CPU"), "device");
    bad = tensor(y, kDLFloat, 32, 2, other, NULL);
    require(call("silu", argument, 1, to_bad, 1, NULL, 0) != 0 && says("shape (2, 4) and dtype float32"), "shape");
    bad = tensor(y, kDLFloat, 32, 2, shape, columns);
    require(call("silu", argument, 1, to_bad, 1, NULL, 0) != 0 && says("C-contiguous"), "layout of a result");

    TensoropsOption options[] = {{"alpha", TENSOROPS_NUMBER, {1}},  {"axis", TENSOROPS_TEXT, {0}},
                                 {"axis", TENSOROPS_INTEGERS, {0}}, {"axis", 77, {0}},
                                 {NULL, TENSOROPS_NUMBER, {0}},     {"axis", TENSOROPS_INTEGER, {0}},
                                 {"dtype", TENSOROPS_TEXT, {0}}};
    options[2].value.integers.items = NULL;
    options[2].value.integers.count = 3;
    options[5].value.integer = 5;
    options[6].value.text = "float128";
    const char* what[] = {"no parameter 'alpha'; valid names: x, axis, where, dtype",
                          "without a text",
                          "without its integers",
                          "unknown kind",
                          "without a name",
                          "axis names no axes of x",
                          "dtype is neither the dtype of x"};
    for (int i = 0; i < 7; ++i)
        require(call("softmax", argument, 1, result, 1, options + i, 1) != 0 && says(what[i]), what[i]);
    for (int i = 0; i < 8; ++i) require(y[i] == 0, "nothing was written");
}

static void descriptions(void) {
    int64_t of_x[] = {2, 5, 16}, of_w[] = {7, 16}, room[TENSOROPS_MOST_AXES];
    DLTensor x = tensor(NULL, kDLFloat, 16, 3, of_x, NULL), w = tensor(NULL, kDLFloat, 16, 2, of_w, NULL);
    DLTensor y = tensor(NULL, 0, 0, 0, room, NULL);
    const TensoropsTensor arguments[] = {{"x", &x}, {"weight", &w}}, results[] = {{"y", &y}};
    const TensoropsCall whole = {sizeof whole, "linear", arguments, 2, results, 1, NULL, 0};
    require(tensorops_describe_results(&whole) == 0, "results are described without memory");
    require(y.ndim == 3 && room[0] == 2 && room[1] == 5 && room[2] == 7, "their shape");
    require(y.dtype.code == kDLFloat && y.dtype.bits == 16, "their dtype");
    DLTensor logits = tensor(NULL, kDLFloat, 32, 2, of_w, NULL), targets = tensor(NULL, kDLInt, 64, 1, of_w, NULL);
    const TensoropsTensor loss_of[] = {{"logits", &logits}, {"targets", &targets}};
    const TensoropsCall loss = {sizeof loss, "cross_entropy", loss_of, 2, results, 1, NULL, 0};
    require(tensorops_describe_results(&loss) == 0, "kernels that need work memory are described too");
    require(tensorops_operator_count() > 30 && tensorops_operator_at(0) && !tensorops_operator_at(1000), "operators");
    require(
        strcmp(tensorops_signature("rms_norm"), "x, weight=None, eps=1e-06, *, axis=-1, weight_offset=0.0 -> y") == 0,
        "their signatures");
    require(tensorops_signature("swish") == NULL && tensorops_signature(NULL) == NULL, "of known ones");
}

static void* softmax_of_rows(void* unused) {
    enum { kMany = 300, kLong = 1000 };
    float* x = malloc(sizeof(float) * kMany * kLong);
    float* y = malloc(sizeof(float) * kMany * kLong);
    int64_t shape[] = {kMany, kLong};
    DLTensor of_x = tensor(x, kDLFloat, 32, 2, shape, NULL), of_y = tensor(y, kDLFloat, 32, 2, shape, NULL);
    const TensoropsTensor arguments[] = {{"x", &of_x}}, results[] = {{"y", &of_y}};
    for (int i = 0; i < kMany * kLong; ++i) x[i] = (float)(i % 7);
    for (int repeat = 0; repeat < 5; ++repeat) {
        require(call("softmax", arguments, 1, results, 1, NULL, 0) == 0, "softmax from several threads");
        for (int i = 0; i < kMany; ++i) {
            double sum = 0;
            for (int j = 0; j < kLong; ++j) sum += y[i * kLong + j];
            require(fabs(sum - 1) < 1e-5, "rows add up to one");
        }
        require(call("swish", arguments, 1, results, 1, NULL, 0) != 0 && says("swish"), "errors are each thread's own");
    }
    free(x);
    free(y);
    return unused;
}

/* A child of fork() has none of its parent's threads. */
static void fork_and_call(void) {
    softmax_of_rows(NULL); /* the parent has threads by now */
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a child that waits for threads it does not have ends, too */
        softmax_of_rows(NULL);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status = -1;
    require(waitpid(child, &status, 0) == child && status == 0, "a child of fork computes");
}

int main(void) {
    require(tensorops_interface_version() == TENSOROPS_INTERFACE_VERSION, "the library has the header's version");
    require(*tensorops_error() == 0, "there is no error yet");
    descriptions(); /* before a call has chosen a target */
    strides();
    refusals();
    require(tensorops_set_num_threads(-1) != 0 && tensorops_set_num_threads(2) == 0, "threads are bounded");
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, softmax_of_rows, NULL);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    if (!getenv("TENSOROPS_TESTS_WITHOUT_FORK")) fork_and_call();
    return failures != 0;
}
