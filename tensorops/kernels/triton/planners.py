"""Which calls Triton's programs compute, and how they are launched: pure functions of metadata."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tensorops._operator import Operator
from tensorops.kernels._gpu.geometry import joined_rows
from tensorops.kernels._gpu.plans import Device, Launch, Number, Operand, Plan, Result
from tensorops.ops import attention as attention_family, linear as linear_family, quantization

FEWEST_ROWS = 17
"""With fewer rows the weights are what is read: kernels that stream them once are as fast as memory."""

_HALVES = ("float16", "bfloat16")
_MASKS = (*_HALVES, "float32", "bool")
_WARPS = 8
_THREADS = 32 * _WARPS
_SWIZZLE = 8  # tiles of rows before the next tile of outputs

Planner: TypeAlias = Callable[..., Plan | str]


def _refuse(first: str, **operands: Operand | None) -> str | None:
    """Return why an operand is not a factor for tensor cores: all have the dtype of the first."""
    for name, a in operands.items():
        if a is None:
            continue
        if a.dtype not in _HALVES:
            return f"{name} has dtype {a.dtype}; tensor cores take float16 and bfloat16"
        if a.dtype != first:
            return f"{name} has dtype {a.dtype}, the other factor {first}"
        if a.ndim and a.shape[-1] > 1 and a.strides[-1] != 1:
            return f"the last axis of {name} is not contiguous"
        if 0 in a.shape:
            return f"{name} is empty"
    return None


def _rows(x: Operand) -> tuple[int, int] | str:
    """Return the number of rows of `x`, and the stride from one to the next."""
    joined = joined_rows(x.shape[:-1], [x.strides[:-1]])
    if joined is None or len(joined[0]) > 1:
        return "the rows of x are not equally far apart"
    rows = math.prod(x.shape[:-1])
    if rows < FEWEST_ROWS:
        return f"x has {rows} rows; with fewer than {FEWEST_ROWS} a kernel that streams the weights is faster"
    return rows, joined[1][0][0]


def _tiled(
    source: str,
    y: Result,
    rows: int,
    n_in: int,
    arrays: tuple[str, ...],
    strides: tuple[int, ...],
    tile_in: int,
    defines: dict[str, Any],
    tile_out: int = 128,
) -> Plan:
    """Return the plan of a product of matrices: one program for each tile of `y`."""
    tile_rows = 128 if rows > 64 else 64 if rows > 32 else 32
    n_out = y.shape[-1]
    blocks_in, blocks_out = -(-rows // tile_rows), -(-n_out // tile_out)
    numbers = tuple(map(np.int32, (rows, n_in, n_out))) + tuple(map(np.int64, strides))
    constants = {"TILE_ROWS": tile_rows, "TILE_OUT": tile_out, "TILE_IN": tile_in, "SWIZZLE": _SWIZZLE}
    grid = tuple(map(np.int32, (blocks_in, blocks_out)))
    launch = Launch(
        source, source, {**constants, **defines}, blocks_in * blocks_out, _THREADS, (*arrays, "y", *numbers, *grid)
    )
    return Plan({"y": y}, (launch,))


def linear(device: Device, x: Operand, weight: Operand, bias: Operand | None) -> Plan | str:
    """Plan `tensorops.linear`."""
    if reason := _refuse(x.dtype, x=x, weight=weight):
        return reason
    if isinstance(rows := _rows(x), str):
        return rows
    count, stride = rows
    y = Result(x.dtype, (*x.shape[:-1], weight.shape[0]))
    return _tiled(
        "linear",
        y,
        count,
        x.shape[-1],
        ("x", "weight", "x" if bias is None else "bias"),  # an array that is not read, in place of none
        (stride, weight.strides[0], 0 if bias is None else bias.strides[0]),
        64,
        {"HAS_BIAS": int(bias is not None)},
    )


def gated_linear_unit(
    device: Device, x: Operand, gate_weight: Operand, up_weight: Operand, *, activation: str
) -> Plan | str:
    """Plan `tensorops.gated_linear_unit`."""
    if reason := _refuse(x.dtype, x=x, gate_weight=gate_weight, up_weight=up_weight):
        return reason
    if isinstance(rows := _rows(x), str):
        return rows
    count, stride = rows
    y = Result(x.dtype, (*x.shape[:-1], gate_weight.shape[0]))
    return _tiled(
        "gated_linear_unit",
        y,
        count,
        x.shape[-1],
        ("x", "gate_weight", "up_weight"),
        (stride, gate_weight.strides[0], up_weight.strides[0]),
        64,
        {"ACTIVATION": activation},
        tile_out=64,  # each has two sums
    )


def quantized_linear(
    device: Device,
    x: Operand,
    weight: Operand,
    scales: Operand,
    biases: Operand | None,
    *,
    bits: int,
    group_size: int,
    format: str = "affine",
    precision: str = "highest",
) -> Plan | str:
    """Plan `tensorops.quantized_linear`."""
    if reason := quantization.refuse_blocks(format):
        return reason
    if reason := _refuse(x.dtype, x=x):
        return reason
    if isinstance(rows := _rows(x), str):
        return rows
    count, stride = rows
    for name, a in (("weight", weight), ("scales", scales), ("biases", biases)):
        if a is not None and a.shape[-1] > 1 and a.strides[-1] != 1:
            return f"the last axis of {name} is not contiguous"
        if a is not None and 0 in a.shape:
            return f"{name} is empty"
    tile_in = next((n for n in (64, 32, 16) if group_size % n == 0), 0)
    if not tile_in:
        return f"group_size is {group_size}, expected a multiple of 16"
    y = Result(x.dtype, (*x.shape[:-1], weight.shape[0]))
    of_biases = scales if biases is None else biases
    return _tiled(
        "quantized_linear",
        y,
        count,
        x.shape[-1],
        ("x", "weight", "scales", "scales" if biases is None else "biases"),
        (stride, weight.strides[0], scales.strides[0], of_biases.strides[0]),
        tile_in,
        {"BITS": bits, "GROUP": group_size, "HAS_BIASES": int(biases is not None)},
        tile_out=64,  # each group has sums of its own besides the total
    )


def attention(
    device: Device,
    q: Operand,
    k: Operand,
    v: Operand,
    *,
    mask: Operand | None,
    is_causal: bool,
    scale: float,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    sinks: Operand | None,
    lengths: Operand | None,
    page_table: Operand | None,
    kv_format: str | None,
) -> Plan | str:
    """Plan `tensorops.scaled_dot_product_attention`."""
    if kv_format is not None:
        return f"the kernel reads no blocks of format {kv_format!r}"
    if reason := _refuse(q.dtype, q=q, k=k, v=v):
        return reason
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    if page_table is not None:
        return "keys are in pages"
    if queries < FEWEST_ROWS:
        return f"q has {queries} queries; with fewer than {FEWEST_ROWS} a kernel that streams the keys is faster"
    if max(dim, value_dim) > 256:
        return f"heads have {max(dim, value_dim)} features, expected at most 256"
    if mask is not None and mask.dtype not in _MASKS:
        return f"mask has dtype {mask.dtype}, expected one of {', '.join(_MASKS)}"
    left, right = window or (None, None)
    if is_causal:
        right = 0
    wide, value_wide = (max(16, 1 << (n - 1).bit_length()) for n in (dim, value_dim))
    tile_queries, tile_keys = _attention_tile(max(wide, value_wide), mask is not None)
    blocks = -(-queries // tile_queries)
    mask_strides = (0,) * 4 if mask is None else mask.strides_among(4)
    numbers: tuple[Number, ...] = (
        *map(np.int32, (heads, queries, keys, heads // kv_heads)),
        np.float32(scale),
        np.float32(1.0 if softcap is None else softcap),
        *map(np.int32, (min(left or 0, keys), min(right or 0, keys), blocks)),
        *map(np.int64, (*q.strides[:3], *k.strides[:3], *v.strides[:3], *mask_strides)),
    )
    defines: dict[str, Any] = {
        "DIM": dim,
        "VALUE_DIM": value_dim,
        "WIDE": wide,
        "VALUE_WIDE": value_wide,
        "MASK": "none" if mask is None else "bool" if mask.dtype == "bool" else "added",
        "HAS_SOFTCAP": int(softcap is not None),
        "HAS_SINKS": int(sinks is not None),
        "HAS_LENGTHS": int(lengths is not None),
        "HAS_LEFT": int(left is not None),
        "HAS_RIGHT": int(right is not None),
        "SCALES_Q": int(q.dtype == "bfloat16"),
        "TILE_QUERIES": tile_queries,
        "TILE_KEYS": tile_keys,
    }
    absent = {"mask": mask, "sinks": sinks, "lengths": lengths}
    arrays = ("q", "k", "v", *("q" if a is None else name for name, a in absent.items()), "y")
    y = Result(q.dtype, (batch, heads, queries, value_dim))
    launch = Launch("attention", "attention", defines, blocks * heads * batch, _THREADS, (*arrays, *numbers))
    return Plan({"y": y}, (launch,))


def _attention_tile(features: int, masked: bool) -> tuple[int, int]:
    """Return the queries and keys of a tile: as many as fit the registers, see ``.ci/gpu-compiled``."""
    if features > 128:
        return 64, 32
    return (128, 64) if features <= 64 or not masked else (64, 64)


PLANNERS: dict[Operator[..., Any], Planner] = {
    linear_family.linear: linear,
    linear_family.gated_linear_unit: gated_linear_unit,
    quantization.quantized_linear: quantized_linear,
    attention_family.scaled_dot_product_attention: attention,
}
