#include <limits>

#include "xla_call.h"

namespace tensorops::xla {

namespace {

// Whether a parameter's dtype is that of the logits, or float32 with half types
bool goes_with(const Buffer& a, const Buffer& logits) {
    return a.dtype == logits.dtype || (a.dtype == kFloat32 && itemsize(logits) == 2);
}

// Class numbers as the kernel wants them, -1 for ignored ones, and which rows have one out of range: their losses are
// NaN, as programs in XLA cannot raise.
struct Targets {
    std::vector<std::int64_t> numbers;
    std::vector<std::int64_t> wrong;

    Targets() = default;
    Targets(const Buffer& given, std::int64_t ignore_index, std::int64_t classes) : numbers(read_integers(given)) {
        const bool is_unsigned = given.dtype == kUint64;
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            std::int64_t& number = numbers[i];
            const bool ignored = number == ignore_index && !(is_unsigned && number < 0);
            if (!ignored && (number < 0 || number >= classes))
                wrong.push_back(static_cast<std::int64_t>(i));
            else if (!ignored)
                continue;
            number = -1;
        }
    }
};

void put_nan(const Buffer& y, std::int64_t index) {
    char* at = data(y) + index * itemsize(y);
    switch (dtype_of(y)) {
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

Wrong check_targets(const Buffer& logits, const Buffer& targets) {
    const bool numbers = is_integer(targets);
    if (!numbers && !goes_with(targets, logits)) return "targets without a kernel";
    if (targets.rank != logits.rank - numbers) return "targets of another shape";
    for (std::int64_t d = 0; d < targets.rank; ++d)
        if (targets.dims[d] != logits.dims[d]) return "targets of another shape";
    return nullptr;
}

template <Reduction kReduction>
Wrong cross_entropy(const Call& call) {
    if (call.arguments() < 2 || call.arguments() > 3 || call.frame.results.count != 1)
        return "another number of arrays";
    const Buffer &logits = call.argument(0), &targets = call.argument(1), &y = call.result();
    if (Wrong wrong = check_arrays(call, 1)) return wrong;
    if (elements(logits) == 0) return "an empty array";
    if (Wrong wrong = check_targets(logits, targets)) return wrong;
    CrossEntropy op{};
    op.logits = rows_of(logits);
    op.dtype = dtype_of(logits);
    op.reduction = kReduction;
    if (y.dtype != logits.dtype || elements(y) != (kReduction == Reduction::none ? op.logits.count : 1))
        return "a result of another shape or dtype";
    if (call.arguments() == 3) {
        const Buffer& weight = call.argument(2);
        if (!is_vector(weight, length(logits)) || !goes_with(weight, logits)) return "weights that do not fit";
        op.weight = data(weight);
        op.weight_dtype = dtype_of(weight);
    }
    const bool numbers = is_integer(targets);
    const auto ignored = static_cast<std::int64_t>(call.number("ignore_index", -1));
    const Targets found = numbers ? Targets(targets, ignored, length(logits)) : Targets();
    const Rows probabilities = numbers ? Rows{} : rows_of(targets);
    op.targets = numbers ? found.numbers.data() : nullptr;
    op.probabilities = numbers ? nullptr : &probabilities;
    op.probability_dtype = dtype_of(targets);
    op.label_smoothing = call.number("label_smoothing", 0);
    op.z_loss = call.number("z_loss", 0);
    std::vector<double> losses(static_cast<std::size_t>(op.logits.count));
    op.losses = losses.data();
    op.y = data(y);
    {
        const Team team(call);
        target().cross_entropy(op);
    }
    for (const std::int64_t row : found.wrong) put_nan(y, kReduction == Reduction::none ? row : 0);
    return nullptr;
}

}  // namespace

Handlers loss_handlers() {
    return {
        {"cross_entropy", handle<cross_entropy<Reduction::mean>>},
        {"cross_entropy_sum", handle<cross_entropy<Reduction::sum>>},
        {"cross_entropy_none", handle<cross_entropy<Reduction::none>>},
    };
}

}  // namespace tensorops::xla
