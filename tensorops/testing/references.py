"""Float64 NumPy oracles, one per operator, written from the mathematical definition.

Every function has the name and the parameters of its operator, takes anything `numpy.asarray` accepts
and returns float64 (`quantize` and `sample` also return integers). Nothing here imports the operators: an
oracle that went through the code under test could only agree with it.

NaN and infinities follow from the formulas by IEEE arithmetic, and no function emits a warning for them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    _Float64 = NDArray[np.float64]
    _Wide = NDArray[np.longdouble]

__all__ = [
    "REFERENCES",
    "add_rms_norm",
    "cross_entropy",
    "dequantize",
    "embedding",
    "geglu",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "quantize",
    "quantized_linear",
    "relu",
    "rms_norm",
    "rope",
    "sample",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "swiglu",
]

# The special values are wanted, the floating-point flags they raise are not.
_quiet = np.errstate(all="ignore")


def _float64(x: ArrayLike) -> _Float64:
    return np.asarray(x, dtype=np.float64)


# --- normalisation -----------------------------------------------------------------------------------


def _magnitude(x: _Wide, axis: int | tuple[int, ...]) -> _Wide:
    """Return a power of two near the largest ``|x|`` along `axis`, 1 where that is 0, inf or NaN.

    Dividing by it is exact and keeps squares in range: `longdouble` alone would do where it has a larger
    exponent than float64, which it has not on Windows and on Arm Macs.
    """
    top = np.max(np.abs(x), axis=axis, keepdims=True, initial=0)
    _, exponent = np.frexp(top)
    scale: _Wide = np.ldexp(np.ones_like(top), exponent - 1)
    scale[~np.isfinite(top) | (top == 0)] = 1
    return scale


def _divide_by_deviation(x: _Wide, axis: int | tuple[int, ...], eps: float, *, center: bool) -> _Wide:
    """``x / sqrt(mean(x**2) + eps)``, with the mean taken away from `x` first if `center`."""
    scale = _magnitude(x, axis)
    scaled = x / scale
    if center:
        scaled = scaled - np.sum(scaled, axis=axis, keepdims=True) / _count(x, axis)
    mean_square = np.sum(scaled * scaled, axis=axis, keepdims=True) / _count(x, axis)
    deviation: _Wide = np.hypot(np.sqrt(mean_square), np.sqrt(np.longdouble(eps)) / scale)
    return scaled / deviation


def _count(x: _Wide, axis: int | tuple[int, ...]) -> np.longdouble:
    """Return the number of elements along `axis`."""
    axes = (axis,) if isinstance(axis, int) else axis
    return np.longdouble(math.prod(x.shape[i] for i in axes))


def _along(x: _Wide, parameter: ArrayLike, axes: tuple[int, ...]) -> _Float64:
    """Reshape `parameter`, whose axes are `axes` of `x` in ascending order, to broadcast against `x`."""
    return _float64(parameter).reshape([n if i in axes else 1 for i, n in enumerate(x.shape)])


@_quiet
def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    eps: float = 1e-6,
    *,
    axis: int = -1,
    weight_offset: float = 0.0,
) -> _Float64:
    """``x / sqrt(mean(x**2, axis) + eps) * (weight + weight_offset)``; no weight means a factor of 1."""
    x = np.asarray(x, dtype=np.longdouble)
    y = _divide_by_deviation(x, axis, eps, center=False)
    if weight is not None:
        y = y * (_along(x, weight, (axis % x.ndim,)) + np.longdouble(weight_offset))
    return _float64(y)


@_quiet
def add_rms_norm(
    x: ArrayLike, residual: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-6, *, axis: int = -1
) -> tuple[_Float64, _Float64]:
    """``(rms_norm(x + residual, weight, eps), x + residual)``."""
    new_residual = _float64(x) + _float64(residual)
    return rms_norm(new_residual, weight, eps, axis=axis), _float64(new_residual)


@_quiet
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] = -1,
) -> _Float64:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, with the population variance over `axis`."""
    x = np.asarray(x, dtype=np.longdouble)
    axes = tuple(sorted(i % x.ndim for i in ((axis,) if isinstance(axis, int) else axis)))
    y = _divide_by_deviation(x, axes, eps, center=True)
    if weight is not None:
        y = y * _along(x, weight, axes)
    if bias is not None:
        y = y + _along(x, bias, axes)
    return _float64(y)


# --- activation --------------------------------------------------------------------------------------

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@_quiet
def sigmoid(x: ArrayLike) -> _Float64:
    """``1 / (1 + exp(-x))``, written so that no exponential overflows."""
    x = _float64(x)
    small = np.exp(-np.abs(x))
    return _float64(np.where(x < 0, small, 1.0) / (1.0 + small))


@_quiet
def silu(x: ArrayLike) -> _Float64:
    """``x * sigmoid(x)``."""
    return _float64(_float64(x) * sigmoid(x))


@_quiet
def relu(x: ArrayLike) -> _Float64:
    """``max(x, 0)``; NaN stays NaN."""
    return _float64(np.maximum(_float64(x), 0.0))


@_quiet
def softplus(x: ArrayLike) -> _Float64:
    """``log(1 + exp(x))``, written so that no exponential overflows."""
    x = _float64(x)
    return _float64(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


@_quiet
def gelu(x: ArrayLike, *, approximate: Literal["none", "tanh"] = "none") -> _Float64:
    """``x * Phi(x)`` with the normal distribution function, or its approximation by a hyperbolic tangent."""
    x = _float64(x)
    if approximate == "none":
        # 1 + erf(t) = erfc(-t), which does not cancel in the left tail.
        return _float64(0.5 * x * _erfc(-x / math.sqrt(2.0)))
    if approximate == "tanh":
        # (1 + tanh(t)) / 2 = sigmoid(2 t), which does not cancel either.
        return _float64(x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")


@_quiet
def swiglu(gate: ArrayLike, up: ArrayLike) -> _Float64:
    """``silu(gate) * up``."""
    return _float64(silu(gate) * _float64(up))


@_quiet
def geglu(gate: ArrayLike, up: ArrayLike) -> _Float64:
    """``gelu(gate) * up``, with the exact `gelu`."""
    return _float64(gelu(gate) * _float64(up))


# --- softmax and its relatives -----------------------------------------------------------------------


def _exponentials(x: ArrayLike, axis: int, where: ArrayLike | None) -> tuple[_Wide, NDArray[np.bool_], _Wide, _Wide]:
    """Return ``x - max``, the entries that count, ``exp(x - max)`` (0 elsewhere) and its sum along `axis`."""
    x = np.asarray(x, dtype=np.longdouble)
    keep = np.broadcast_to(np.asarray(True if where is None else where, dtype=np.bool_), x.shape)
    top = np.max(np.where(keep, x, -np.inf), axis=axis, keepdims=True, initial=-np.inf)
    shifted = x - top
    exponentials = np.where(keep, np.exp(shifted), np.longdouble(0))
    return shifted, keep, exponentials, np.sum(exponentials, axis=axis, keepdims=True)


@_quiet
def softmax(x: ArrayLike, *, axis: int = -1, where: ArrayLike | None = None) -> _Float64:
    """``exp(x) / sum(exp(x), axis)`` over the entries where `where` is true; 0 elsewhere."""
    _, keep, exponentials, total = _exponentials(x, axis, where)
    return _float64(np.where(keep, exponentials / total, 0))


@_quiet
def log_softmax(x: ArrayLike, *, axis: int = -1, where: ArrayLike | None = None) -> _Float64:
    """``x - log(sum(exp(x), axis))`` over the entries where `where` is true; -inf elsewhere."""
    shifted, keep, _, total = _exponentials(x, axis, where)
    return _float64(np.where(keep, shifted - np.log(total), -np.inf))


@_quiet
def logsumexp(x: ArrayLike, *, axis: int = -1, keepdims: bool = False) -> _Float64:
    """``log(sum(exp(x), axis))``; -inf where every entry is -inf."""
    x = np.asarray(x, dtype=np.longdouble)
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    result = shift + np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True))
    return _float64(result if keepdims else np.squeeze(result, axis=axis))


# --- attention and positions -------------------------------------------------------------------------


@_quiet
def rope(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    base: float = 10000.0,
    freqs: ArrayLike | None = None,
    interleaved: bool = False,
    dims: int | None = None,
) -> _Float64:
    """Rotate the pairs ``(x1, x2)`` of the first `dims` features by ``positions * base**(-2 i / dims)``.

    `x` is (..., heads, seq, head_dim) and `positions` (seq,) or (..., seq), the same for every head. Pair
    number i is made of the features i and i + dims/2, or 2i and 2i + 1 if `interleaved`.
    """
    x = _float64(x)
    dims = x.shape[-1] if dims is None else dims
    pairs = np.arange(dims // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + dims // 2)
    frequencies = base ** (-2.0 * pairs / dims) if freqs is None else _float64(freqs)
    angles = _float64(positions)[..., None, :, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def _attends(tq: int, tk: int, is_causal: bool, window: int | None) -> NDArray[np.bool_]:
    """Return which keys each query may see; the last query stands at the position of the last key."""
    allowed = np.ones((tq, tk), dtype=np.bool_)
    for i in range(tq):
        position = i + tk - tq
        for j in range(tk):
            if is_causal and j > position:
                allowed[i, j] = False
            if window is not None and abs(position - j) >= window:
                allowed[i, j] = False
    return allowed


@_quiet
def scaled_dot_product_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
) -> _Float64:
    """``softmax(q @ k.T * scale) @ v`` for every head; a row that attends to nothing gives 0.

    `q` is (batch, q_heads, Tq, D), `k` (batch, kv_heads, Tk, D), `v` (batch, kv_heads, Tk, Dv). The scores
    are capped first, ``softcap * tanh(scores / softcap)``, then masked. `sinks` holds one logit per query
    head that joins the sum of the softmax and has no value.
    """
    q, k, v = _float64(q), _float64(k), _float64(v)
    batch, q_heads, tq, head_dim = q.shape
    kv_heads, tk = k.shape[1:3]
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale

    allowed = np.broadcast_to(_attends(tq, tk, is_causal, window), (batch, q_heads, tq, tk))
    added = np.zeros(())
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype == np.bool_:
            allowed = allowed & mask
        else:
            added = _float64(mask)
            allowed = allowed & (added != -np.inf)
    added = np.broadcast_to(added, allowed.shape)

    y = np.zeros((batch, q_heads, tq, v.shape[-1]))
    for b in range(batch):
        for h in range(q_heads):
            kv = h // (q_heads // kv_heads)
            scores = q[b, h] @ k[b, kv].T * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            scores = scores + added[b, h]
            attends = allowed[b, h]
            if sinks is not None:
                sink = np.full((tq, 1), _float64(sinks)[h])
                scores = np.concatenate([scores, sink], axis=-1)
                attends = np.concatenate([attends, np.ones((tq, 1), dtype=np.bool_)], axis=-1)
            y[b, h] = softmax(scores, where=attends)[:, :tk] @ v[b, kv]
    return y


# --- linear ------------------------------------------------------------------------------------------


@_quiet
def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> _Float64:
    """``x @ weight.T + bias`` with `weight` (out, in)."""
    y = _float64(x) @ _float64(weight).T
    return _float64(y if bias is None else y + _float64(bias))


def embedding(ids: ArrayLike, weight: ArrayLike) -> _Float64:
    """``weight[ids]``."""
    return _float64(_float64(weight)[np.asarray(ids)])


# --- quantization ------------------------------------------------------------------------------------


@_quiet
def quantize(
    w: ArrayLike, *, bits: int, group_size: int, mode: Literal["affine", "symmetric"] = "affine"
) -> tuple[NDArray[np.uint8], _Float64, _Float64 | None]:
    """Round every group of `group_size` neighbours in a row of `w` (out, in) to integers of `bits` bits.

    Affine: ``q = round((w - min) / scale)`` with ``scale = (max - min) / (2**bits - 1)``, bias ``min``.
    Symmetric (8 bits): ``q = round(w / scale)`` with ``scale = max|w| / 127``, int8 seen as uint8, no bias.
    Ties round to even; a group without extent has scale 0 and q 0. Four-bit codes are packed two to a byte,
    low nibble first.
    """
    w = _float64(w)
    groups = w.reshape(w.shape[0], w.shape[1] // group_size, group_size)
    if mode == "symmetric":
        if bits != 8:
            raise ValueError(f"quantize: mode 'symmetric' takes bits=8, got {bits}")
        scales = np.max(np.abs(groups), axis=-1) / 127.0
        q = np.clip(_round_to_multiple(groups, scales), -127, 127).astype(np.int8)
        return q.reshape(w.shape).view(np.uint8), scales, None
    if mode != "affine":
        raise ValueError(f"quantize: mode is {mode!r}, expected 'affine' or 'symmetric'")
    if bits not in (4, 8):
        raise ValueError(f"quantize: bits is {bits}, expected 4 or 8")
    levels = 2**bits - 1
    low, high = np.min(groups, axis=-1), np.max(groups, axis=-1)
    scales = (high - low) / levels
    codes = np.clip(_round_to_multiple(groups - low[..., None], scales), 0, levels)
    return _pack(codes.astype(np.uint8).reshape(w.shape), bits), scales, low


def _round_to_multiple(values: _Float64, scales: _Float64) -> _Float64:
    """Return how many times `scales` goes into `values`, rounded half to even; 0 where the scale is 0."""
    scales = scales[..., None]
    return np.where(scales > 0, np.round(values / np.where(scales > 0, scales, 1.0)), 0.0)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    return codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] * np.uint8(16))


def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    rows, width = packed.shape
    return np.stack([packed % 16, packed // 16], axis=-1).reshape(rows, 2 * width)


@_quiet
def dequantize(
    weight: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: Literal["affine", "symmetric"] = "affine",
) -> _Float64:
    """``scales * q + biases`` for every group; without `biases` the codes are int8 and symmetric.

    The absence of `biases` alone says which, so that `quantized_linear`, which has no `mode`, can decode
    both; `mode` may say it too, but not otherwise.
    """
    weight = np.asarray(weight, dtype=np.uint8)
    scales = _float64(scales)
    if biases is None and bits != 8:
        raise ValueError(f"dequantize: biases is None, which takes bits=8, got bits={bits}")
    if biases is not None and mode == "symmetric":
        raise ValueError("dequantize: biases are given, but mode 'symmetric' has none")
    codes = weight.view(np.int8) if biases is None else _unpack(weight, bits)
    q = _float64(codes)
    groups = q.reshape(*scales.shape, group_size) * scales[..., None]
    if biases is not None:
        groups = groups + _float64(biases)[..., None]
    return _float64(groups.reshape(q.shape))


def quantized_linear(
    x: ArrayLike,
    weight: ArrayLike,
    scales: ArrayLike,
    biases: ArrayLike | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
) -> _Float64:
    """``x @ dequantize(weight, scales, biases).T``."""
    return linear(x, dequantize(weight, scales, biases, bits=bits, group_size=group_size))


# --- loss and sampling -------------------------------------------------------------------------------


@_quiet
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> _Float64:
    """``-(1 - s) * logp[target] - s * mean(logp)`` with ``logp = log_softmax(logits)``, `s` the smoothing.

    A target equal to `ignore_index` costs 0 and does not count in the mean, which is NaN if none counts.
    """
    log_p = log_softmax(logits)
    targets = np.asarray(targets)
    counts = targets != ignore_index
    picked = np.take_along_axis(log_p, np.where(counts, targets, 0)[..., None], axis=-1)[..., 0]
    losses = -picked
    if label_smoothing != 0.0:  # 0 times a class of probability 0 would be NaN
        losses = (1.0 - label_smoothing) * losses - label_smoothing * np.mean(log_p, axis=-1)
    losses = np.where(counts, losses, 0.0)
    if reduction == "none":
        return _float64(losses)
    if reduction == "sum":
        return _float64(np.sum(losses))
    if reduction == "mean":
        return _float64(np.sum(losses) / np.sum(counts, dtype=np.float64))
    raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected 'mean', 'sum' or 'none'")


def sample(
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    rng: ArrayLike,
) -> NDArray[np.int64]:
    """Draw an index per row by inverting the cumulative distribution at the uniforms `rng`.

    `rng` has the shape of `logits` without the last axis, values in [0, 1). The filters act in the order
    `top_k`, `top_p`, `min_p`; entries tied with the last one kept are kept. ``temperature=0`` takes the
    first maximum.
    """
    logits = _float64(logits)
    rows = logits.reshape(-1, logits.shape[-1])
    uniforms = np.broadcast_to(_float64(rng), logits.shape[:-1]).reshape(-1)
    drawn = [
        int(np.argmax(row)) if temperature == 0 else _draw(row / temperature, top_k, top_p, min_p, u)
        for row, u in zip(rows, uniforms, strict=True)
    ]
    return np.asarray(drawn, dtype=np.int64).reshape(logits.shape[:-1])


def _draw(row: _Float64, top_k: int | None, top_p: float | None, min_p: float | None, u: float) -> int:
    keep = np.ones(row.shape, dtype=np.bool_)
    if top_k is not None and top_k < row.size:
        keep &= row >= np.sort(row)[-top_k]
    if top_p is not None and top_p < 1.0:
        keep &= row >= _nucleus_threshold(row, keep, top_p)
    if min_p is not None:
        p = softmax(row)
        keep &= p >= min_p * np.max(p)
    cumulative = np.cumsum(softmax(row, where=keep))
    # u < 1, but the sum may end below it by rounding: the last entry kept is then the answer.
    exceeds = np.flatnonzero(cumulative > u * cumulative[-1])
    return int(exceeds[0]) if exceeds.size else int(np.flatnonzero(keep)[-1])


def _nucleus_threshold(row: _Float64, keep: NDArray[np.bool_], top_p: float) -> float:
    """Return the smallest value in the shortest descending prefix whose probability reaches `top_p`."""
    p = softmax(row, where=keep)
    before = 0.0
    threshold = np.inf
    for index in np.argsort(-row, kind="stable"):
        if keep[index] and before < top_p:
            threshold = row[index]
            before += p[index]
    return float(threshold)


REFERENCES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        rms_norm, add_rms_norm, layer_norm, silu, sigmoid, relu, softplus, gelu, swiglu, geglu, softmax,
        log_softmax, logsumexp, rope, scaled_dot_product_attention, linear, embedding, quantize, dequantize,
        quantized_linear, cross_entropy, sample,
    )
}  # fmt: skip
"""Every oracle by the name of its operator."""
