"""The programs, in Triton's language; `planners` says with which tiles and arguments they are launched.

Factors are half types, of which tensor cores compute exact products and sum them in float32. All index arithmetic that
can exceed 31 bits is in 64 bits. Elements of a row are adjacent; all other strides are arguments, in elements.
"""

# Triton reads these functions' source: annotations other than `constexpr` would be types of arguments to it.
# mypy: ignore-errors
# ruff: noqa: N803 (constants in capitals, as Triton's documentation has them)

import triton
import triton.language as tl


@triton.jit
def tile_of(blocks_in, blocks_out, TILE_ROWS: tl.constexpr, TILE_OUT: tl.constexpr, SWIZZLE: tl.constexpr):
    """Return the rows and the outputs of a program's tile of a product.

    Programs go down SWIZZLE tiles of rows before the next tile of outputs, so that those that run at a time share
    both factors in the second-level cache.
    """
    tile_row, tile_out = tl.swizzle2d(
        tl.program_id(0) % blocks_in, tl.program_id(0) // blocks_in, blocks_in, blocks_out, SWIZZLE
    )
    row = tile_row.to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    out = tile_out.to(tl.int64) * TILE_OUT + tl.arange(0, TILE_OUT)
    return row, out


@triton.jit
def store_tile(y, total, row, out, rows, n_out):
    """Store a tile of a product."""
    to = y + row[:, None] * n_out + out[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=(row < rows)[:, None] & (out < n_out)[None, :])


@triton.jit
def linear(
    x, weight, bias, y,
    rows, n_in, n_out, x_stride, weight_stride, bias_stride, blocks_in, blocks_out,
    HAS_BIAS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
    SWIZZLE: tl.constexpr,
):  # fmt: skip
    """Compute x · weightᵀ + bias, one tile of y in each program."""
    row, out = tile_of(blocks_in, blocks_out, TILE_ROWS, TILE_OUT, SWIZZLE)
    at = tl.arange(0, TILE_IN)
    from_x = x + row[:, None] * x_stride + at[None, :]
    from_weight = weight + out[None, :] * weight_stride + at[:, None]
    total = tl.zeros((TILE_ROWS, TILE_OUT), tl.float32)
    for start in range(0, n_in, TILE_IN):
        inside = start + at < n_in
        a = tl.load(from_x + start, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(from_weight + start, mask=(out < n_out)[None, :] & inside[:, None], other=0.0)
        total = tl.dot(a, b, total)
    if HAS_BIAS:
        total += tl.load(bias + out * bias_stride, mask=out < n_out, other=0.0).to(tl.float32)[None, :]
    store_tile(y, total, row, out, rows, n_out)


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), without an exponential that overflows."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def gelu(x):
    """Return x Φ(x); the rational function is that of native/gpu/math.h."""
    a = tl.maximum(-tl.abs(x), -14.5)
    s = a * (-0.5 * a)
    n = s * 0.028814279 + (a * 0.14221665 - 0.641324)
    n = s * n + (a * -0.7670168 + 0.875)
    d = s * (a * -0.07222585 + 0.7130137) + (a * 1.6431499 - 4.208765)
    d = s * d + (a * -2.9303324 + 1.75)
    tail = tl.exp(s) * n / d  # Φ(-|x|)
    return tl.where(x > 0, x + a * tail, x * tail)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Return the activation of a gated unit."""
    if ACTIVATION == "swiglu":
        y = x * sigmoid(x)
    if ACTIVATION == "geglu":
        y = gelu(x)
    if ACTIVATION == "geglu_tanh":
        bounded = tl.minimum(tl.maximum(x, -100.0), 100.0)
        y = x * sigmoid(bounded * (1.5957691216057308 + 0.07135481627260025 * bounded * bounded))
    if ACTIVATION == "reglu":
        y = tl.where(x <= 0, 0.0, x)
    if ACTIVATION == "glu":
        y = sigmoid(x)
    return y


@triton.jit
def gated_linear_unit(
    x, gate_weight, up_weight, y,
    rows, n_in, n_out, x_stride, gate_stride, up_stride, blocks_in, blocks_out,
    ACTIVATION: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr,
    SWIZZLE: tl.constexpr,
):  # fmt: skip
    """Compute activation(x · gate_weightᵀ) (x · up_weightᵀ), one tile of y in each program.

    Both products read a tile of x once, and neither leaves the registers or is rounded.
    """
    row, out = tile_of(blocks_in, blocks_out, TILE_ROWS, TILE_OUT, SWIZZLE)
    at = tl.arange(0, TILE_IN)
    from_x = x + row[:, None] * x_stride + at[None, :]
    from_gate = gate_weight + out[None, :] * gate_stride + at[:, None]
    from_up = up_weight + out[None, :] * up_stride + at[:, None]
    gate = tl.zeros((TILE_ROWS, TILE_OUT), tl.float32)
    up = tl.zeros((TILE_ROWS, TILE_OUT), tl.float32)
    for start in range(0, n_in, TILE_IN):
        inside = start + at < n_in
        a = tl.load(from_x + start, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(from_gate + start, mask=(out < n_out)[None, :] & inside[:, None], other=0.0)
        gate = tl.dot(a, b, gate)
        c = tl.load(from_up + start, mask=(out < n_out)[None, :] & inside[:, None], other=0.0)
        up = tl.dot(a, c, up)
    store_tile(y, activated(gate, ACTIVATION) * up, row, out, rows, n_out)


@triton.jit
def quantized_linear(
    x, weight, scales, biases, y,
    rows, n_in, n_out, x_stride, weight_stride, scales_stride, biases_stride, blocks_in, blocks_out,
    BITS: tl.constexpr, GROUP: tl.constexpr, HAS_BIASES: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr, TILE_IN: tl.constexpr, SWIZZLE: tl.constexpr,
):  # fmt: skip
    """Compute x · (scales · weight + biases)ᵀ, one tile of y in each program.

    The integers are exact in half types, so nothing is rounded but sums: tensor cores add up the products of a group
    with its integers; then these are scaled, and the bias multiplies the sum of x.
    """
    row, out = tile_of(blocks_in, blocks_out, TILE_ROWS, TILE_OUT, SWIZZLE)
    at = tl.arange(0, TILE_IN)
    from_x = x + row[:, None] * x_stride + at[None, :]
    byte = at * BITS // 8
    from_weight = weight + out[None, :] * weight_stride + byte[:, None]
    total = tl.zeros((TILE_ROWS, TILE_OUT), tl.float32)
    for start in range(0, n_in, TILE_IN):  # a whole number of tiles: groups are multiples of them
        a = tl.load(from_x + start, mask=(row < rows)[:, None], other=0.0)
        code = tl.load(from_weight + start * BITS // 8, mask=(out < n_out)[None, :], other=0)
        if BITS == 4:
            code = (code >> ((at % 2) * 4)[:, None].to(tl.uint8)) & 15
        elif not HAS_BIASES:
            code = code.to(tl.int8, bitcast=True)
        product = tl.dot(a, code.to(tl.float32).to(x.dtype.element_ty))
        scale = tl.load(scales + out * scales_stride + start // GROUP, mask=out < n_out, other=0.0).to(tl.float32)
        total += product * scale[None, :]
        if HAS_BIASES:
            bias = tl.load(biases + out * biases_stride + start // GROUP, mask=out < n_out, other=0.0).to(tl.float32)
            total += tl.sum(a.to(tl.float32), axis=1)[:, None] * bias[None, :]
    store_tile(y, total, row, out, rows, n_out)


@triton.jit
def power_of_two(exponent):
    """Return 2 to the power of an integer from -126 to 127, exactly."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def attention(
    q, k, v, mask, sinks, lengths, y,
    heads, queries, keys, group, scale, softcap, left, right, blocks,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    mask_batch, mask_head, mask_row, mask_key,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, WIDE: tl.constexpr, VALUE_WIDE: tl.constexpr,
    MASK: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, SCALES_Q: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr,
):  # fmt: skip
    """Attention with an online softmax, as in FlashAttention-2: a program computes one tile of queries of one head.

    Only tiles of keys that some of its queries may attend to are read. MASK is "none", "bool" or "added".
    """
    index = tl.program_id(0)
    first_query = (blocks - 1 - index % blocks) * TILE_QUERIES  # the longest rows of a causal mask begin first
    head = (index // blocks) % heads
    batch = (index // blocks // heads).to(tl.int64)
    query = first_query + tl.arange(0, TILE_QUERIES)
    at, value_at = tl.arange(0, WIDE), tl.arange(0, VALUE_WIDE)
    valid = keys
    if HAS_LENGTHS:
        valid = tl.minimum(tl.maximum(tl.load(lengths + batch).to(tl.int64), 0), keys).to(tl.int32)
    position = query + (valid - queries)  # of each query among the keys
    begin = 0
    end = valid
    if HAS_LEFT:
        begin = tl.maximum(first_query + valid - queries - left, 0)
    if HAS_RIGHT:
        last = tl.minimum(first_query + TILE_QUERIES, queries) - 1 + valid - queries
        end = tl.maximum(tl.minimum(last + right + 1, valid), 0)

    row = query.to(tl.int64)
    in_queries = query < queries
    a = tl.load(
        q + batch * q_batch + head.to(tl.int64) * q_head + row[:, None] * q_row + at[None, :],
        mask=in_queries[:, None] & (at < DIM)[None, :], other=0.0,
    )  # fmt: skip
    factor = tl.full((TILE_QUERIES,), scale, tl.float32)
    if SCALES_Q:  # products of bfloat16 may overflow in float32: queries are scaled so that no sum does
        largest = tl.max(tl.abs(a.to(tl.float32)), axis=1)
        exponent = ((largest.to(tl.int32, bitcast=True) >> 23) & 255) - 127 + 10
        exponent = tl.minimum(tl.maximum(exponent, -100), 120)
        a = (a.to(tl.float32) * power_of_two(-exponent)[:, None]).to(q.dtype.element_ty)
        factor = factor * power_of_two(exponent)
    kv_head = (head // group).to(tl.int64)
    from_k = k + batch * k_batch + kv_head * k_head + at[:, None]
    from_v = v + batch * v_batch + kv_head * v_head + value_at[None, :]
    top = tl.full((TILE_QUERIES,), -float("inf"), tl.float32)  # the largest score so far, in powers of two
    total = tl.zeros((TILE_QUERIES,), tl.float32)
    sums = tl.zeros((TILE_QUERIES, VALUE_WIDE), tl.float32)
    for start in range(begin, end, TILE_KEYS):  # what lies before and behind is not read: it may be NaN
        key = start + tl.arange(0, TILE_KEYS)
        in_keys = key < end
        b = tl.load(from_k + key.to(tl.int64)[None, :] * k_row, mask=in_keys[None, :] & (at < DIM)[:, None], other=0.0)
        product = tl.dot(a, b)
        score = product * factor[:, None]
        if SCALES_Q:  # only the factor can have made it infinite
            bounded = tl.minimum(tl.maximum(score, -1e38), 1e38)
            score = tl.where(tl.abs(product) < float("inf"), bounded, score)
        if HAS_SOFTCAP:
            score = softcap * (1 - 2 / (tl.exp(2 * score / softcap) + 1))
        allowed = in_keys[None, :] & in_queries[:, None]
        if HAS_LEFT:
            allowed = allowed & (key[None, :] >= position[:, None] - left)
        if HAS_RIGHT:
            allowed = allowed & (key[None, :] <= position[:, None] + right)
        if MASK != "none":
            from_mask = (
                mask + batch * mask_batch + head.to(tl.int64) * mask_head + row[:, None] * mask_row
                + key.to(tl.int64)[None, :] * mask_key
            )  # fmt: skip
            given = tl.load(from_mask, mask=allowed, other=0)
            if MASK == "bool":
                allowed = allowed & (given != 0)
            else:
                score += given.to(tl.float32)
        score = tl.where(allowed, score * 1.4426950408889634, -float("inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weight, axis=1)
        c = tl.load(
            from_v + key.to(tl.int64)[:, None] * v_row,
            mask=in_keys[:, None] & (value_at < VALUE_DIM)[None, :],
            other=0.0,
        )
        sums = tl.dot(weight.to(v.dtype.element_ty), c, sums * shrink[:, None])
        top = higher
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(top, sink)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.exp2(sink - base)
        sums = sums * shrink[:, None]
    result = sums / tl.where(total == 0, 1.0, total)[:, None]
    to = y + ((batch * heads + head) * queries + row[:, None]) * VALUE_DIM + value_at[None, :]
    tl.store(to, result.to(y.dtype.element_ty), mask=in_queries[:, None] & (value_at < VALUE_DIM)[None, :])
