// Quantization, and products with quantized matrices.
#include <cmath>
#include <cstring>

#include "block_products.h"
#include "checks.h"
#include "linear.h"
#include "panel_linear.h"
#include "quantize.h"
#include "targets.h"
#include "unpack_blocks.h"

namespace tensorops {
namespace {

Reason refuse_format(std::int64_t bits, std::int64_t group_size, std::int64_t columns) {
    if (bits != 4 && bits != 8) return "bits is neither 4 nor 8";
    if (group_size < 1 || group_size > columns || columns % group_size != 0) return "group_size does not divide a row";
    return group_size * bits % 8 == 0 ? Reason{} : "group_size does not fill whole bytes";
}

Reason product_with_blocks(Call& call, Reader& in, const Array& x, const Array& weight, std::string_view format,
                           int digits) {
    std::int64_t row_bytes = 0;
    BlockLinear op{};
    if (!in.require(read_format(format, x.length(), op, row_bytes))) return in.reason;
    if (!in.require(refuse_matrix("weight", weight, kAny, row_bytes))) return in.reason;
    if (op.is_interleaved && !in.require(refuse_interleaved(weight))) return in.reason;
    op.outputs = weight.shape[0];
    Array y;
    if (!call.make({{y, x.ndim, OutputShape(x, op.outputs).dims(), x.dtype}})) return call.reason;
    op.x = rows_of(x);
    op.weight = weight.data;
    op.weight_stride = weight.stride(0);
    op.digits = digits;
    op.y = y.data;
    op.x_dtype = x.dtype;
    call.compute(product(weight.bytes(), op.x.count), [&op] { multiply_blocks(op); });
    return {};
}

Reason values_of_blocks(Call& call, Reader& in, const Array& weight, std::string_view format) {
    UnpackBlocks op{};
    op.format = find_format(without_ending(format));
    op.is_interleaved = is_interleaved(format);
    if (op.format == Format::none) return "format '" + std::string(format) + "' has no compiled kernel";
    in.require(refuse_matrix("weight", weight));
    if (op.is_interleaved && !in.require(refuse_interleaved(weight))) return in.reason;
    if (!in.require(weight.shape[1] % size_of(op.format).bytes == 0, "the rows of weight are not whole blocks"))
        return in.reason;
    op.blocks = weight.data;
    op.stride = weight.stride(0);
    op.rows = weight.shape[0];
    op.length = weight.shape[1] / size_of(op.format).bytes * size_of(op.format).elements;
    const std::int64_t shape[] = {op.rows, op.length};
    Array w;
    if (!call.make({{w, 2, shape, Dtype::float32}})) return call.reason;
    op.to = reinterpret_cast<float*>(w.data);
    call.compute(w.bytes(), [&op] { target().unpack_blocks(op); });
    return {};
}

// Whether the scales of all blocks are finite as halves. They are the largest numbers divided by 127, and 65520 is
// rounded to infinity.
bool fits_blocks(const Array& w) {
    constexpr float kBeyond = 65520.0f * 127;
    bool fits = true;
    for (std::int64_t row = 0; row < w.shape[0] && fits; ++row) {
        const char* x = w.data + row * w.stride(0);
        for (std::int64_t i = 0; i < w.shape[1]; ++i, x += sizeof(float)) {
            float number;
            std::memcpy(&number, x, sizeof number);
            fits &= std::fabs(number) < kBeyond;  // not of NaN
        }
    }
    return fits;
}

Reason blocks_of_values(Call& call, Reader& in, const Array& w, std::string_view format) {
    if (find_format(format) != Format::q8_0)
        return "the kernel writes no blocks of format '" + std::string(format) + "'";
    in.require(w.dtype == Dtype::float32, "w does not have dtype float32, whose numbers become blocks");
    in.require(refuse_matrix("w", w));
    in.require(w.size() != 0, "w is empty");
    if (in.failed()) return in.reason;
    const FormatSize& size = size_of(Format::q8_0);
    const std::int64_t shape[] = {w.shape[0], size.row_bytes(w.shape[1])};
    if (shape[1] == 0) return "the rows of w are not whole blocks";
    if (call.has_values && !fits_blocks(w)) return "w has a number that is not finite, or too large";
    Array blocks;
    if (!call.make({{blocks, 2, shape, Dtype::uint8}})) return call.reason;
    QuantizeBlocks op{w.data, w.stride(0), shape[0], w.shape[1], blocks.data};
    const auto cut = [row_bytes = shape[1]](QuantizeBlocks& part, std::int64_t begin, std::int64_t end) {
        part.rows = end - begin;
        part.w += begin * part.w_stride;
        part.blocks += begin * row_bytes;
    };
    call.compute_parts(target().quantize_blocks, op, op.rows, 1, w.bytes(), cut);
    return {};
}

}  // namespace

TENSOROPS_OPERATOR(quantize, "w, *, bits=4, group_size=32, mode='affine', format='affine' -> weight, scales, biases") {
    Reader in(call);
    const Array& w = in.array();
    Quantize op{};
    const std::int64_t bits = in.integer();
    op.group_size = in.integer();
    const bool is_affine = in.choice({"affine", "symmetric"}) == 0;
    const std::string_view format = in.text();
    if (format != kAffine) return blocks_of_values(call, in, w, format);
    in.require(refuse_matrix("w", w));
    in.require(w.size() != 0, "w is empty");
    in.require(is_affine || bits == 8, "mode 'symmetric' has 8 bits");
    if (in.failed() || !in.require(refuse_format(bits, op.group_size, w.shape[1]))) return in.reason;
    op.rows = w.shape[0];
    op.columns = w.shape[1];
    op.bits = static_cast<int>(bits);
    const std::int64_t packed[] = {op.rows, op.columns * bits / 8}, groups[] = {op.rows, op.columns / op.group_size};
    Array weight, scales, biases{};
    if (is_affine) {
        if (!call.make({{weight, 2, packed, Dtype::uint8}, {scales, 2, groups, w.dtype}, {biases, 2, groups, w.dtype}}))
            return call.reason;
    } else if (!call.make({{weight, 2, packed, Dtype::uint8}, {scales, 2, groups, w.dtype}})) {
        return call.reason;
    }
    op.w = w.data;
    op.w_stride = w.stride(0);
    op.dtype = w.dtype;
    op.weight = weight.data;
    op.scales = scales.data;
    op.biases = biases.data;
    const std::int64_t row_bytes = packed[1], of_groups = groups[1] * w.item();
    const auto cut = [row_bytes, of_groups](Quantize& part, std::int64_t begin, std::int64_t end) {
        part.rows = end - begin;
        part.w += begin * part.w_stride;
        part.weight += begin * row_bytes;
        part.scales += begin * of_groups;
        if (part.biases) part.biases += begin * of_groups;
    };
    call.compute_parts(target().quantize, op, op.rows, 1, w.bytes(), cut);
    return {};
}

TENSOROPS_OPERATOR(dequantize,
                   "weight, scales=None, biases=None, *, bits=4, group_size=32, mode='affine', "
                   "format='affine' -> w") {
    Reader in(call);
    const Array& weight = in.array(kBytes);
    const Array *given_scales = in.optional(), *biases = in.optional();
    Dequantize op{};
    const std::int64_t bits = in.integer();
    op.group_size = in.integer();
    const bool is_affine = in.choice({"affine", "symmetric"}) == 0;
    const std::string_view format = in.text();
    in.require(weight.size() != 0, "weight is empty");
    if (format != kAffine) {
        in.require(!given_scales && !biases, kHoldScales);
        return values_of_blocks(call, in, weight, format);
    }
    if (!in.require(given_scales, "scales are missing")) return in.reason;
    const Array& scales = *given_scales;
    in.require(refuse_matrix("weight", weight));
    if (!in.require(bits == 4 || bits == 8, "bits is neither 4 nor 8")) return in.reason;
    op.rows = weight.shape[0];
    op.columns = weight.shape[1] * (8 / bits);
    if (!in.require(refuse_format(bits, op.group_size, op.columns))) return in.reason;
    in.require(biases || bits == 8, "biases are missing");
    in.require(!biases || is_affine, "mode 'symmetric' has no biases");
    if (!in.require(refuse_scales(scales, biases, op.rows, op.columns / op.group_size))) return in.reason;
    Array w;
    const std::int64_t shape[] = {op.rows, op.columns};
    if (!call.make({{w, 2, shape, scales.dtype}})) return call.reason;
    set_quantized(op, weight, scales, biases);
    op.bits = static_cast<int>(bits);
    op.dtype = scales.dtype;
    op.w = w.data;
    const std::int64_t bytes = w.bytes();
    op.streaming = call.streams && bytes >= kStreamBytes && op.group_size % 16 == 0;
    const auto cut = [row_bytes = bytes / op.rows](Dequantize& part, std::int64_t begin, std::int64_t end) {
        part.rows = end - begin;
        part.weight += begin * part.weight_stride;
        part.scales += begin * part.scale_stride;
        if (part.biases) part.biases += begin * part.bias_stride;
        part.w += begin * row_bytes;
    };
    call.compute_parts(target().dequantize, op, op.rows, 64, bytes, cut);  // 64 rows end at a cache line
    return {};
}

TENSOROPS_OPERATOR(quantized_linear,
                   "x, weight, scales=None, biases=None, *, bits=4, group_size=32, format='affine', "
                   "precision='highest'") {
    Reader in(call);
    const Array &x = in.rows(), &weight = in.array(kBytes);
    const Array *given_scales = in.optional(kNarrow), *biases = in.optional(kNarrow);
    QuantizedLinear op{};
    const std::int64_t bits = in.integer();
    op.group_size = in.integer();
    const std::string_view format = in.text();
    const int digits = read_digits(in);
    in.require(refuse_double(call, x));
    in.require(x.size() != 0 && weight.size() != 0, "x or weight is empty");
    if (format != kAffine) {
        in.require(!given_scales && !biases, kHoldScales);
        return product_with_blocks(call, in, x, weight, format, digits);
    }
    if (!in.require(given_scales, "scales are missing")) return in.reason;
    const Array& scales = *given_scales;
    in.require(refuse_product(biases, bits, op.group_size, x.length()));
    if (in.failed() || !in.require(refuse_matrix("weight", weight, kAny, x.length() * bits / 8))) return in.reason;
    op.outputs = weight.shape[0];
    if (!in.require(refuse_scales(scales, biases, op.outputs, x.length() / op.group_size))) return in.reason;
    Array y;
    if (!call.make({{y, x.ndim, OutputShape(x, op.outputs).dims(), x.dtype}})) return call.reason;
    op.x = rows_of(x);
    set_quantized(op, weight, scales, biases);
    op.bits = static_cast<int>(bits);
    op.y = y.data;
    op.x_dtype = x.dtype;
    op.scale_dtype = scales.dtype;
    call.compute(product(weight.bytes(), op.x.count), [&op] { target().quantized_linear(op); });
    return {};
}

// Weights in panels, as the bytes of WeightPanels; the options describe them.
TENSOROPS_STEP(panel_linear, "x, panels, *, outputs, bits, group_size, biased, scale_dtype") {
    Reader in(call);
    const Array &x = in.rows(), &panels = in.array(kBytes);
    PanelFormat format{};
    format.outputs = in.integer();
    format.bits = static_cast<int>(in.integer());
    format.group_size = in.integer();
    format.has_biases = in.flag();
    format.scale_dtype = in.dtype(Dtype::other);
    format.inputs = x.length();
    in.require(refuse_double(call, x));
    in.require(x.size() != 0, "x is empty");
    in.require(is_narrow(format.scale_dtype), "scale_dtype is not known");
    if (!in.require(refuse_product(format.has_biases, format.bits, format.group_size, format.inputs))) return in.reason;
    const bool fits = panels.ndim == 1 && panels.shape[0] == format.panels() * format.panel_bytes();
    if (!in.require(fits && format.outputs > 0, "panels has another format")) return in.reason;
    Array y;
    if (!call.make({{y, x.ndim, OutputShape(x, format.outputs).dims(), x.dtype}})) return call.reason;
    const PanelLinear op{rows_of(x), panels.data, format, y.data, x.dtype};
    call.compute(product(panels.bytes(), op.x.count), [&op] { target().panel_linear(op); });
    return {};
}

}  // namespace tensorops
