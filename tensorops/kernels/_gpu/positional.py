"""How `tensorops.rope` is launched."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result, Strides
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, Arguments, RowsOf, refuse_wider, rows_of

_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561  # in 2^-256
_MAX_KEPT = 8  # vectors of cosines, and as many of sines
_BLOCKS_PER_UNIT = 4


def rope(
    device: Device,
    x: Operand,
    positions: Operand | None,
    *,
    base: float,
    freqs: Operand | None,
    cos: Operand | None,
    sin: Operand | None,
    interleaved: bool,
    dims: int,
    attention_factor: float,
) -> Plan | str:
    """Plan `tensorops.rope`."""
    if reason := refuse_wider(device, x=x, cos=cos, sin=sin):
        return reason
    if cos is not None and cos.dtype == "float64" != x.dtype:
        return f"cos has dtype float64, but x {x.dtype}"
    y = Result(x.dtype, x.shape)
    heads, count = x.shape[-3], dims if interleaved else dims // 2
    geometry, together = _geometry(device, math.prod((*x.shape[:-3], x.shape[-2])), heads, count, ITEM_SIZES[x.dtype])
    across = (*x.shape[:-3], x.shape[-2], heads // together if together else 1)
    each = {"cos": cos, "sin": sin} if positions is None else {"positions": positions}
    rows = rows_of(
        (len(across),),
        None,
        {name: _broadcast(a, across[:-1], name) for name, a in each.items() if a is not None},
        x=_heads_together(x, across, together),
        y=_heads_together(y.operand, across, together),
    )
    if isinstance(rows, str):
        return rows
    defines: dict[str, Any] = {"X": SHORT[x.dtype], "INTERLEAVED": int(interleaved)}
    arrays = [rows.arguments["x"]]
    constants = None
    if positions is not None:
        defines |= _numbers("POSITION", positions)
        arrays.append(rows.arguments["positions"])
    if cos is not None and sin is not None:
        defines["TABLES"] = SHORT[cos.dtype]
        arrays += _tables(rows, cos, sin, gathered=positions is None)
    elif freqs is not None:
        defines |= _numbers("FREQUENCY", freqs)
        arrays.append(("freqs", np.int64(freqs.offset), np.int64(freqs.strides[0]), *map(np.int64, (0, 0, 0))))
    else:
        constants = {"turns": turns_of_frequencies(base, dims)}
        arrays.append(("turns",))
    arrays.append(rows.arguments["y"])
    head_steps = x.strides[-3], y.operand.strides[-3]
    real = np.float64 if x.dtype == "float64" else np.float32
    options = (
        np.int32(together),
        *map(np.int64, head_steps),
        np.int32(x.shape[-1] - dims),
        real(attention_factor),
    )
    whole = all(n % geometry.vec == 0 for n in (count, x.shape[-1] - dims))  # so that all parts of a row are vectors
    in_line = all(step * ITEM_SIZES[x.dtype] % 16 == 0 for step in head_steps)
    # Rows of all features: of one pair alone, each operand would have a single element and so any step.
    rows = replace(rows, length=count, aligned=rows.aligned and whole and in_line)
    launch = rows.launch(device, "rope", "rope", x.dtype, defines, tuple(arrays), options, geometry=geometry)
    return Plan({"y": y}, (launch,), constants=constants)


def _geometry(device: Device, positions: int, heads: int, count: int, itemsize: int) -> tuple[Rows, int]:
    """Return the geometry, and how many heads a row has: all, unless that were too few rows to keep a device busy."""
    wanted = device.units * _BLOCKS_PER_UNIT
    if device.kind == "cpu":
        wanted = min(wanted, positions * heads * count // 4096)  # of small arrays a thread computes everything
    base = rows_geometry(device, positions, count, itemsize)
    vectors = max(1, -(-count // base.vec))
    threads, per_block, kept = 1, 1, min(_MAX_KEPT, 1 << (vectors - 1).bit_length())
    if device.kind == "gpu":
        threads = min(max(8, 1 << (vectors - 1).bit_length()), 128, device.max_block)
        per_block, kept = max(1, min(128, device.max_block) // threads), 1
    divisors = (n for n in range(heads, 0, -1) if heads % n == 0)
    together = next((n for n in divisors if positions * (heads // n) >= wanted * per_block), min(heads, 1))
    rows = positions * (heads // together) if together else 0
    each = rows_geometry(device, rows, count, itemsize).each
    return Rows(threads, per_block, base.vec, kept, each, -(-rows // (per_block * each))), together


def _heads_together(a: Operand, across: tuple[int, ...], together: int) -> Operand:
    """Return the metadata of rows across positions and groups of heads, along features."""
    head, position, feature = a.strides[-3:]
    strides = (*a.strides[:-3], position, together * head, feature)
    return Operand(a.dtype, (*across, a.shape[-1]), strides, a.offset, a.aligned)


def _broadcast(a: Operand, positions: tuple[int, ...], name: str) -> Operand:
    """Return the metadata of one element, or one row of a table, for each position and group of heads."""
    shape, strides = (a.shape, a.strides) if name == "positions" else (a.shape[:-1], a.strides[:-1])
    missing = len(positions) - len(shape)
    steps: Strides = tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))
    return Operand(a.dtype, (*positions, 1), ((0,) * missing + steps + (0,)), a.offset, a.aligned)


def _numbers(name: str, a: Operand) -> dict[str, Any]:
    """Return the macros of positions or frequencies; floating ones are taken apart, and float64 as integers."""
    plural = {"POSITION": "POSITIONS", "FREQUENCY": "FREQUENCIES"}[name]
    if a.dtype in INTEGERS:
        return {plural: INTEGERS[a.dtype]}
    if a.dtype == "float64":
        return {plural: "u64", f"{name}_BITS": 64}
    return {plural: SHORT[a.dtype], f"{name}_BITS": 32}


def _tables(rows: RowsOf, cos: Operand, sin: Operand, *, gathered: bool) -> list[Arguments]:
    tables: list[Arguments] = []
    for name, a in (("cos", cos), ("sin", sin)):
        across = rows.arguments[name][3:] if gathered else tuple(map(np.int64, (0, 0, 0)))
        tables.append((name, np.int64(a.offset), np.int64(a.strides[-1]), *across))
    lines = (cos.shape[0], cos.strides[0], sin.strides[0]) if not gathered else (0, 0, 0)
    return [*tables, tuple(map(np.int64, lines))]


def turns_of_frequencies(base: float, dims: int) -> np.ndarray[Any, Any]:
    """Return the frequencies of pairs, as float64 has them, in 2^-64 of a turn, modulo a turn."""
    turns = []
    for pair in range(dims // 2):
        numerator, denominator = (base ** (-2.0 * pair / dims)).as_integer_ratio()
        turns.append((numerator * _TWO_OVER_PI // (denominator << (256 + 2 - 64))) % 2**64)
    return np.asarray(turns, np.uint64)
