// Losses.
#include <limits>
#include <optional>

#include "checks.h"
#include "cross_entropy.h"
#include "cross_entropy_vjp.h"
#include "linear_cross_entropy.h"
#include "targets.h"

namespace tensorops {
namespace {

// Class numbers or probabilities of rows of logits
Reason refuse_targets(const Array& targets, const Array& logits, std::int64_t ignore_index, const char* name) {
    const bool probable = is_floating(targets.dtype);
    if (!targets.has_shape(logits.ndim - (probable ? 0 : 1), logits.shape))
        return std::string("targets does not have the shape of ") + name + (probable ? "" : " without the last axis");
    if (!probable) return {};
    if (ignore_index >= 0) return "ignore_index is not negative, but targets are probabilities";
    if (!targets.is_contiguous_from(targets.ndim - 1)) return "the last axis of targets is not contiguous";
    return goes_with(targets, logits) ? Reason{} : "targets has another dtype than logits";
}

struct Options {
    Reduction reduction;
    std::int64_t ignore_index;
    double label_smoothing, z_loss;

    explicit Options(Reader& in) {
        reduction = static_cast<Reduction>(in.choice({"mean", "sum", "none"}));
        ignore_index = in.integer("is not an int64");
        label_smoothing = in.number();
        in.require(label_smoothing >= 0 && label_smoothing <= 1, "label_smoothing is not within 0 … 1");
        z_loss = in.nonnegative();
    }
};

// Class numbers as kernels read them, with -1 for those to ignore
struct Targets {
    std::vector<std::int64_t> numbers;
    std::vector<std::int64_t> beyond;  // the rows whose target is out of range

    Targets(const Array& given, std::int64_t ignore_index, std::int64_t classes) : numbers(read_integers(given)) {
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            std::int64_t& number = numbers[i];
            const bool ignored = number == ignore_index && (is_signed(given.dtype) || number >= 0);
            if (!ignored && number >= 0 && number < classes) continue;
            if (!ignored) beyond.push_back(static_cast<std::int64_t>(i));
            number = -1;
        }
    }
};

void put_nan(const Array& y, std::int64_t index) {
    char* at = y.data + index * y.item();
    switch (y.dtype) {
        case Dtype::float64:
            *reinterpret_cast<double*>(at) = std::numeric_limits<double>::quiet_NaN();
            break;
        case Dtype::float32:
            *reinterpret_cast<float*>(at) = std::numeric_limits<float>::quiet_NaN();
            break;
        case Dtype::bfloat16:
            *reinterpret_cast<std::uint16_t*>(at) = 0x7fc0;
            break;
        default:
            *reinterpret_cast<std::uint16_t*>(at) = 0x7e00;
    }
}

// Finds class numbers, makes the result, and computes the losses of the rows of x.
template <class Op>
Reason compute_losses(Call& call, Op& op, const Options& options, const Array& x, const Array& targets,
                      std::int64_t classes, std::int64_t bytes, void (*kernel)(const Op&)) {
    std::optional<Targets> found;
    if (!is_floating(targets.dtype) && call.has_values) {
        found.emplace(targets, options.ignore_index, classes);
        if (call.may_fail && !found->beyond.empty()) return "a target is out of range";
        op.targets = found->numbers.data();
    }
    Array y;
    const bool is_one = options.reduction != Reduction::none;
    if (!call.make({{y, is_one ? 0 : x.ndim - 1, x.shape, x.dtype}})) return call.reason;
    std::vector<double> losses(static_cast<std::size_t>(x.size_from(0) / x.length()));
    op.reduction = options.reduction;
    op.label_smoothing = options.label_smoothing;
    op.z_loss = options.z_loss;
    op.losses = losses.data();
    op.y = y.data;
    call.compute(bytes, [&op, kernel] { kernel(op); });
    if (found)
        for (const std::int64_t row : found->beyond) put_nan(y, is_one ? 0 : row);
    return {};
}

}  // namespace

namespace {

// What cross_entropy and its derivative share
struct LossArguments {
    const Array &logits, &targets;
    const Array *weight, *dy;
    Options options;
    Rows probabilities;

    LossArguments(Reader& in, bool has_cotangent)
        : logits(in.rows()),
          targets(in.array(kNumbers)),
          weight(in.optional()),
          dy(has_cotangent ? &in.array() : nullptr),
          options(in) {
        in.require(logits.size() != 0, "logits is empty");
        in.require(refuse_targets(targets, logits, options.ignore_index, "logits"));
        in.require(refuse_vector("weight", weight, logits.length(), "class"));
        in.require(!weight || goes_with(*weight, logits), "weight has another dtype than logits");
    }

    CrossEntropy kernel_arguments() {
        CrossEntropy op{};
        op.logits = rows_of(logits);
        op.dtype = logits.dtype;
        if (is_floating(targets.dtype)) {
            probabilities = rows_of(targets);
            op.probabilities = &probabilities;
            op.probability_dtype = targets.dtype;
        }
        if (weight) {
            op.weight = weight->data;
            op.weight_dtype = weight->dtype;
        }
        return op;
    }
};

}  // namespace

TENSOROPS_OPERATOR(cross_entropy,
                   "logits, targets, weight=None, *, reduction='mean', ignore_index=-100, "
                   "label_smoothing=0.0, z_loss=0.0") {
    Reader in(call);
    LossArguments given(in, false);
    if (in.failed()) return in.reason;
    CrossEntropy op = given.kernel_arguments();
    const Array& logits = given.logits;
    return compute_losses(call, op, given.options, logits, given.targets, logits.length(), logits.bytes(),
                          target().cross_entropy);
}

TENSOROPS_OPERATOR(cross_entropy_vjp,
                   "logits, targets, weight, dy, *, reduction='mean', ignore_index=-100, label_smoothing=0.0, "
                   "z_loss=0.0 -> dlogits") {
    Reader in(call);
    LossArguments given(in, true);
    const Array &logits = given.logits, &dy = *given.dy;
    const bool is_one = given.options.reduction != Reduction::none;
    in.require(dy.dtype == logits.dtype, "dy has another dtype than logits");
    if (!in.require(dy.has_shape(is_one ? 0 : logits.ndim - 1, logits.shape), "dy has another shape than the losses") ||
        !in.require(dy.is_contiguous(), "dy is not contiguous"))
        return in.reason;
    CrossEntropyVjp op{given.kernel_arguments(), dy.data, nullptr};
    std::optional<Targets> found;
    if (!is_floating(given.targets.dtype) && call.has_values) {
        found.emplace(given.targets, given.options.ignore_index, logits.length());
        if (call.may_fail && !found->beyond.empty()) return "a target is out of range";
        op.loss.targets = found->numbers.data();
    }
    Array dx;
    if (!call.make({{dx, logits}})) return call.reason;
    const RowParameter weight(given.weight, logits, is_half(logits.dtype));
    op.loss.weight = weight.data();
    op.loss.reduction = given.options.reduction;
    op.loss.label_smoothing = given.options.label_smoothing;
    op.loss.z_loss = given.options.z_loss;
    op.dx = dx.data;
    call.compute(logits.bytes(), [&op] { target().cross_entropy_vjp(op); });
    if (found)
        for (const std::int64_t row : found->beyond)
            for (std::int64_t i = 0; i < logits.length(); ++i) put_nan(dx, row * logits.length() + i);
    return {};
}

TENSOROPS_OPERATOR(linear_cross_entropy,
                   "x, weight, targets, bias=None, ce_weight=None, *, reduction='mean', "
                   "ignore_index=-100, label_smoothing=0.0, z_loss=0.0") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array(), &targets = in.array(kNumbers);
    const Array *bias = in.optional(), *ce_weight = in.optional();
    const Options options(in);
    in.require(refuse_double(call, x));
    in.require(weight.dtype != Dtype::float64, "weight has dtype float64");
    in.require(refuse_matrix("weight", weight, kAny, x.length()));
    in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty");
    in.require(!is_floating(targets.dtype), "targets are probabilities");
    in.require(refuse_targets(targets, x, options.ignore_index, "x"));
    in.require(!bias || bias->dtype != Dtype::float64, "bias has dtype float64");
    in.require(refuse_vector("bias", bias, weight.shape[0], "class"));
    in.require(!ce_weight || ce_weight->dtype != Dtype::float64, "ce_weight has dtype float64");
    if (!in.require(refuse_vector("ce_weight", ce_weight, weight.shape[0], "class"))) return in.reason;
    LinearCrossEntropy op{};
    op.product.x = rows_of(x);
    op.product.weight = weight.data;
    op.product.weight_stride = weight.stride(0);
    op.product.outputs = weight.shape[0];
    op.product.x_dtype = x.dtype;
    op.product.weight_dtype = weight.dtype;
    if (bias) {
        op.product.bias = bias->data;
        op.product.bias_dtype = bias->dtype;
    }
    if (ce_weight) {
        op.ce_weight = ce_weight->data;
        op.ce_weight_dtype = ce_weight->dtype;
    }
    return compute_losses(call, op, options, x, targets, op.product.outputs,
                          product(weight.bytes(), op.product.x.count), target().linear_cross_entropy);
}

}  // namespace tensorops
