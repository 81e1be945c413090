"""Which operators `mlx.core.fast` computes, and where the results deviate."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import dtype_name, is_integer
from tensorops._kernel import Deviation
from tensorops.ops.attention import scaled_dot_product_attention
from tensorops.ops.normalization import add_rms_norm, layer_norm, rms_norm
from tensorops.ops.positional import rope
from tensorops.typing import Array

_HALVES = ("float16", "bfloat16")
_DTYPES = (*_HALVES, "float32")

_LONGEST_ROW = 1 << 20
"""Elements are summed one after another: beyond this length even float16 loses a digit."""

_NORMS = Deviation(
    ("bfloat16", "float32"),
    "squares overflow from 1.8e19 on, and in float32 long rows lose digits (88 eps at 2**20 elements)",
    tags=("overflow",),
)
_ATTENTION = Deviation(
    _DTYPES, "scores are rounded to the dtype of q, and beyond its range (in float16 65504) results are NaN"
)
_ROPE = Deviation(_DTYPES, "angles are float32: off by 0.0005 radians at position 8192, and by more beyond")


def _refuse(x: Array, axis: object, **others: Array | None) -> str | None:
    for name, a in {"x": x, **others}.items():
        if a is not None and dtype_name(a) not in _DTYPES:
            return f"{name} has dtype {dtype_name(a)}, mlx.core.fast takes float16, bfloat16 and float32"
    if axis not in (x.ndim - 1, (x.ndim - 1,)):
        return "axis is not the last of x"
    if x.shape[-1] > _LONGEST_ROW:
        return f"rows have {x.shape[-1]} elements, mlx.core.fast is used up to {_LONGEST_ROW}"
    return "x is empty" if 0 in x.shape else None


def _widened(*arrays: Array | None) -> list[Any]:
    """Return half types as float32 on the CPU, where MLX's own half types take up to 8 times as long."""
    import mlx.core as mx

    if mx.default_device() != mx.cpu:
        return list(arrays)
    return [None if a is None else a.astype(mx.float32) for a in arrays]


def _normalized(x: Array, weight: Array | None, eps: float, weight_offset: float) -> Array:
    import mlx.core as mx

    if weight is not None and weight_offset:
        weight = weight.astype(mx.float32) + weight_offset
    wide, w = _widened(x, weight)
    return mx.fast.rms_norm(wide, w, eps).astype(x.dtype)


@rms_norm.kernel(
    "mlx_fast",
    supports=lambda x, weight, eps, *, axis, weight_offset: _refuse(x, axis, weight=weight),
    deviation=_NORMS,
    derivative="MLX",
)
def _(x: Array, weight: Array | None, eps: float, *, axis: int, weight_offset: float) -> Array:
    return _normalized(x, weight, eps, weight_offset)


@add_rms_norm.kernel(
    "mlx_fast",
    supports=lambda x, residual, weight, eps, *, axis: _refuse(x, axis, weight=weight),
    deviation=_NORMS,
    derivative="MLX",
)
def _(x: Array, residual: Array, weight: Array | None, eps: float, *, axis: int) -> tuple[Array, Array]:
    new_residual = x + residual
    return _normalized(new_residual, weight, eps, 0.0), new_residual


@layer_norm.kernel(
    "mlx_fast",
    supports=lambda x, weight, bias, eps, *, axis: _refuse(x, axis, weight=weight, bias=bias),
    deviation=_NORMS,
    derivative="MLX",
)
def _(x: Array, weight: Array | None, bias: Array | None, eps: float, *, axis: tuple[int, ...]) -> Array:
    import mlx.core as mx

    wide, w, b = _widened(x, weight, bias)
    return mx.fast.layer_norm(wide, w, b, eps).astype(x.dtype)


def _refuse_attention(
    q: Array, k: Array, v: Array, *, mask: Any, is_causal: bool, scale: float, sinks: Any, **absent: Any
) -> str | None:
    for name, x in (("q", q), ("k", k), ("v", v)):  # the latter differ if they are blocks
        if dtype_name(x) not in _DTYPES:
            return f"{name} has dtype {dtype_name(x)}, mlx.core.fast takes float16, bfloat16 and float32"
    for name, value in absent.items():  # what MLX's function lacks
        if value is not None:
            return f"{name} is given"
    if is_causal and mask is not None:
        return "is_causal and mask are both given"
    if is_causal and q.shape[2] > k.shape[2]:
        return "is_causal, and the first queries attend to nothing"
    return "q, k or v is empty" if 0 in (*q.shape, *k.shape, *v.shape) else None


@scaled_dot_product_attention.kernel("mlx_fast", supports=_refuse_attention, deviation=_ATTENTION, derivative="MLX")
def _(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    is_causal: bool,
    scale: float,
    sinks: Array | None,
    **_: None,
) -> Array:
    import mlx.core as mx

    s = None if sinks is None else sinks.astype(q.dtype)
    if mask is None:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if is_causal else None, sinks=s)
    attends = mask if mask.dtype == mx.bool_ else mask != -float("inf")
    m = mask if mask.dtype == mx.bool_ else mask.astype(q.dtype)
    y = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=m, sinks=s)
    return mx.where(mx.any(attends, axis=-1, keepdims=True), y, mx.zeros_like(y))  # without any key, MLX gives NaN


def _refuse_rope(
    x: Array, positions: Array, *, cos: Array | None, dims: int, attention_factor: float, **_: Any
) -> str | None:
    if dtype_name(x) not in _DTYPES:
        return f"x has dtype {dtype_name(x)}, mlx.core.fast takes float16, bfloat16 and float32"
    if cos is not None:
        return "cos and sin are given, mlx.core.fast computes them itself"
    if attention_factor != 1.0:
        return f"attention_factor is {attention_factor}, mlx.core.fast has none"
    if not is_integer(positions):
        return f"positions has dtype {dtype_name(positions)}, mlx.core.fast takes integers"
    return "nothing rotates" if dims == 0 or 0 in x.shape else None


@rope.kernel("mlx_fast", supports=_refuse_rope, deviation=_ROPE, derivative="MLX")
def _(
    x: Array,
    positions: Array,
    *,
    base: float,
    freqs: Array | None,
    cos: None,
    sin: None,
    interleaved: bool,
    dims: int,
    attention_factor: float,
) -> Array:
    import mlx.core as mx

    *batch, heads, sequence, features = x.shape
    # `mx.fast.rope` takes the position of the first element of each sequence: every element becomes a sequence.
    alone = mx.swapaxes(x, -3, -2).reshape(-1, heads, 1, features)
    offset = mx.broadcast_to(positions, (*batch, sequence)).reshape(-1).astype(mx.int32)
    y = mx.fast.rope(
        alone,
        dims,
        traditional=interleaved,
        base=base if freqs is None else None,
        scale=1.0,
        offset=offset,
        freqs=None if freqs is None else 1.0 / freqs.astype(mx.float32),  # MLX takes positions per radian
    )
    return mx.swapaxes(y.reshape(*batch, sequence, heads, features), -3, -2)
