"""Quantized weights: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing._stored_blocks import decode, random_blocks
from tensorops.testing.entries import GROUP, Case, Entry, Maker, Workload
from tensorops.testing.linear import linear
from tensorops.testing.values import (
    ALL,
    EMPTY,
    FULL,
    SPECIAL,
    SPECIAL_ROWS,
    Float64,
    args,
    float64,
    integers,
    normal,
    octets,
    ones,
    quiet,
    single,
)


@quiet
def quantize(
    w: ArrayLike,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: Literal["affine", "symmetric"] = "affine",
    format: str = "affine",
) -> tuple[NDArray[np.uint8], Float64 | None, Float64 | None]:
    """Round each group of `group_size` neighbours in a row of `w` (out, in) to integers of `bits` bits.

    Affine: ``q = round((w - min) / scale)`` with ``scale = (max - min) / (2**bits - 1)``, bias ``min``.
    Symmetric (8 bits): ``q = round(w / scale)`` with ``scale = max|w| / 127``, int8 seen as uint8, no bias.
    Ties round to even; a group of equal elements has scale 0 and q 0. Four-bit codes are packed two per byte,
    low nibble first. Of the formats, this writes q8_0 alone.
    """
    w = float64(w)
    if format != "affine":
        return _as_q8_0(w), None, None
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


def _round_to_multiple(values: Float64, scales: Float64) -> Float64:
    """Return ``values / scales``, rounded half to even; 0 where the scale is 0."""
    scales = scales[..., None]
    return np.where(scales > 0, np.round(values / np.where(scales > 0, scales, 1.0)), 0.0)


def _as_q8_0(w: Float64) -> NDArray[np.uint8]:
    groups = w.reshape(w.shape[0], -1, 32)
    scales = np.max(np.abs(groups), axis=-1) / 127.0
    codes = _round_to_multiple(groups, scales).astype(np.int8).view(np.uint8)
    return np.concatenate([scales.astype("<f2")[..., None].view(np.uint8), codes], axis=-1).reshape(w.shape[0], -1)


def _pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    return codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] * np.uint8(16))


def _unpack(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return packed
    rows, width = packed.shape
    return np.stack([packed % 16, packed // 16], axis=-1).reshape(rows, 2 * width)


@quiet
def dequantize(
    weight: ArrayLike,
    scales: ArrayLike | None = None,
    biases: ArrayLike | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    mode: Literal["affine", "symmetric"] = "affine",
    format: str = "affine",
) -> Float64:
    """``scales * q + biases`` for each group; without `biases` the codes are int8 and symmetric.

    The absence of `biases` alone selects symmetric mode, so `quantized_linear`, which has no `mode`, can
    decode both. `mode` may confirm this but not contradict it.
    """
    weight = np.asarray(weight, dtype=np.uint8)
    if format != "affine":
        return decode(format, weight)
    if scales is None:
        raise TypeError("dequantize: scales is None")
    scales = float64(scales)
    if biases is None and bits != 8:
        raise ValueError(f"dequantize: biases is None, which takes bits=8, got bits={bits}")
    if biases is not None and mode == "symmetric":
        raise ValueError("dequantize: biases are given, but mode 'symmetric' has none")
    codes = weight.view(np.int8) if biases is None else _unpack(weight, bits)
    q = float64(codes)
    groups = q.reshape(*scales.shape, group_size) * scales[..., None]
    if biases is not None:
        groups = groups + float64(biases)[..., None]
    return float64(groups.reshape(q.shape))


def quantized_linear(
    x: ArrayLike,
    weight: ArrayLike,
    scales: ArrayLike | None = None,
    biases: ArrayLike | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
    precision: str = "highest",
) -> Float64:
    """``x @ dequantize(weight, scales, biases).T``, whatever the precision."""
    return linear(x, dequantize(weight, scales, biases, bits=bits, group_size=group_size, format=format))


# --- cases -------------------------------------------------------------------------------------------


def _near_levels(
    r: np.random.Generator, rows: int, groups: int, group_size: int, bits: int, symmetric: bool = False
) -> NDArray[np.float64]:
    """Return weights near the levels of their group, so no rounding error changes a code."""
    low, high = (-127, 127) if symmetric else (0, 2**bits - 1)
    levels = r.integers(low, high + 1, (rows, groups, group_size)).astype(np.float64)
    off = r.uniform(-0.3, 0.3, levels.shape)
    off = np.where(levels == low, np.abs(off), np.where(levels == high, -np.abs(off), off))
    levels[..., :2], off[..., :2] = (low, high), 0.0  # both ends occur, and set the scale
    step = 0.01 + r.random((rows, groups, 1))
    centre = 0.0 if symmetric else 0.5 * high + r.uniform(-2.0, 2.0, step.shape)
    w: NDArray[np.float64] = ((levels + off - centre) * step).reshape(rows, groups * group_size)
    return w


def on_levels(r: np.random.Generator, rows: int, n: int, bits: int) -> NDArray[np.float64]:
    """Return weights on levels spaced by a power of two: exact in every dtype and group."""
    levels = r.integers(0, 2**bits, (rows, n // 16, 16)).astype(np.float64)
    levels[..., :2] = (0, 2**bits - 1)
    w: NDArray[np.float64] = (levels.reshape(rows, n) - 2 ** (bits - 1)) / 2 ** (bits - 1)
    return w


def _quantize_cases() -> Iterator[Case]:
    # In other cases the half types may round a scale and thereby change a code.
    case = partial(Case, "quantize", dtypes=FULL)
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(lambda r, b, g: args(_near_levels(r, 5, 2, g, b), bits=b, group_size=g), b=bits, g=group_size),
            )
        yield case(
            f"on_levels_{bits}",
            partial(lambda r, b: args(on_levels(r, 3, 64, b), bits=b, group_size=32), b=bits),
            dtypes=ALL,
        )
    yield case("small_group", lambda r: args(_near_levels(r, 3, 5, 16, 4), bits=4, group_size=16))
    yield case("one_group", lambda r: args(_near_levels(r, 7, 1, 128, 4), bits=4, group_size=128))
    yield case(
        "symmetric",
        lambda r: args(_near_levels(r, 5, 3, 32, 8, symmetric=True), bits=8, group_size=32, mode="symmetric"),
    )
    yield case("q8_0", lambda r: args(_near_levels(r, 5, 3, 32, 8, symmetric=True), format="q8_0"))
    yield case("constant_group", lambda r: args(np.full((2, 64), 0.75), bits=4, group_size=32), dtypes=ALL)
    yield case(
        "zeros_symmetric", lambda r: args(np.zeros((2, 64)), bits=8, group_size=32, mode="symmetric"), dtypes=ALL
    )
    yield case("empty", lambda r: args(np.zeros((0, 64)), bits=4, group_size=32), tags=EMPTY)


def _packed(
    r: np.random.Generator, n_out: int, n_in: int, bits: int, group_size: int, symmetric: bool = False
) -> tuple[NDArray[np.uint8], Float64 | None, Float64 | None]:
    mode: Literal["symmetric", "affine"] = "symmetric" if symmetric else "affine"
    return quantize(normal(r, n_out, n_in), bits=bits, group_size=group_size, mode=mode)


_IN_SHORT = ("q4_k", "q6_k", "q8_0", "mxfp4", "fp8_e4m3", "sparse_2_4")
"""Formats that differ in kind; the tests of formats have all."""


def _dequantize_cases() -> Iterator[Case]:
    case = partial(Case, "dequantize")
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(lambda r, b, g: args(*_packed(r, 5, 128, b, g), bits=b, group_size=g), b=bits, g=group_size),
            )
    yield case("defaults", lambda r: args(*_packed(r, 3, 96, 4, 32)))
    yield case("small_group", lambda r: args(*_packed(r, 3, 80, 4, 16), group_size=16))
    yield case("symmetric", lambda r: args(*_packed(r, 7, 64, 8, 32, symmetric=True)[:2], bits=8))
    yield case(
        "symmetric_named", lambda r: args(*_packed(r, 7, 64, 8, 32, symmetric=True)[:2], bits=8, mode="symmetric")
    )
    for name in _IN_SHORT:
        yield case(name, partial(lambda r, n: args(random_blocks(r, n, 3, 768), format=n), n=name), dtypes=("float32",))
    yield case("empty", lambda r: args(*_packed(r, 0, 64, 4, 32)), tags=EMPTY)


def _single(a: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return scales and biases in float32; the packed integers as they are."""
    return a if a is None or a.dtype == np.uint8 else single(a)


def _quantized_linear_cases() -> Iterator[Case]:
    # Half types may round the weights before multiplying, and MLX accumulates in half types on the CPU.
    case = partial(Case, "quantized_linear", tolerance=32.0, half_tolerance=6.0, scale_axis=None)
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(
                    lambda r, b, g: args(normal(r, 3, 128), *_packed(r, 17, 128, b, g), bits=b, group_size=g),
                    b=bits,
                    g=group_size,
                ),
            )
    yield case("defaults", lambda r: args(normal(r, 4, 64), *_packed(r, 32, 64, 4, 32)))
    yield case("decode", lambda r: args(normal(r, 1, 96), *_packed(r, 33, 96, 4, 32)))
    yield case("one_dimension", lambda r: args(normal(r, 64), *_packed(r, 7, 64, 4, 32)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 64), *_packed(r, 8, 64, 4, 32)))
    yield case("one_output", lambda r: args(normal(r, 3, 64), *_packed(r, 1, 64, 4, 32)))
    yield case("small_group", lambda r: args(normal(r, 3, 48), *_packed(r, 5, 48, 4, 16), group_size=16))
    yield case("symmetric", lambda r: args(normal(r, 3, 64), *_packed(r, 9, 64, 8, 32, symmetric=True)[:2], bits=8))
    yield case("float32_scales", lambda r: args(normal(r, 3, 64), *map(_single, _packed(r, 7, 64, 4, 32))))
    for name in _IN_SHORT:
        for rows in (1, 5):
            yield case(
                f"{name}_{rows}",
                partial(
                    lambda r, n, m: args(normal(r, m, 768), random_blocks(r, n, 17, 768), format=n), n=name, m=rows
                ),
            )
    yield case("empty_batch", lambda r: args(np.zeros((0, 64)), *_packed(r, 7, 64, 4, 32)), tags=EMPTY)
    yield case("special", lambda r: args(np.tile(SPECIAL_ROWS, 8), *_packed(r, 7, 32, 4, 32)), tags=SPECIAL)


# --- workloads, and all of it by operator ------------------------------------------------------------


def _quantize_workload(make: Maker) -> Workload:
    make.divided(GROUP)
    return Workload((make.x(),), dict(_FORMAT))


_FORMAT = {"bits": 4, "group_size": GROUP}


ENTRIES = (
    Entry(
        quantize,
        tuple(_quantize_cases()),
        (
            ("bits", ValueError, "bits", lambda: args(ones(2, 64), bits=3, group_size=32)),
            ("group_size", ValueError, "group_size|w", lambda: args(ones(2, 60), bits=4, group_size=32)),
            ("mode", ValueError, "mode", lambda: args(ones(2, 64), bits=4, group_size=32, mode="other")),
            ("w_1d", ValueError, "w", lambda: args(ones(64), bits=4, group_size=32)),
            ("part_of_block", ValueError, "w", lambda: args(ones(2, 48), format="q8_0")),
            ("read_only", ValueError, "format", lambda: args(ones(2, 256), format="q6_k")),
            ("integer_w", TypeError, "w", lambda: args(integers(2, 64), bits=4, group_size=32)),
            (
                "symmetric_bits",
                ValueError,
                "bits|mode",
                lambda: args(ones(2, 64), bits=4, group_size=32, mode="symmetric"),
            ),
        ),
        _quantize_workload,
    ),
    Entry(
        dequantize,
        tuple(_dequantize_cases()),
        (
            ("float_weight", TypeError, "weight", lambda: args(ones(2, 32), ones(2, 2), ones(2, 2))),
            ("scales_shape", ValueError, "scales", lambda: args(octets(2, 32), ones(2, 3), ones(2, 3))),
            ("biases_shape", ValueError, "biases", lambda: args(octets(2, 32), ones(2, 2), ones(2, 1))),
            ("no_biases", ValueError, "bits|biases", lambda: args(octets(2, 32), ones(2, 2))),
            ("bits", ValueError, "bits", lambda: args(octets(2, 32), ones(2, 2), ones(2, 2), bits=5)),
            ("no_scales", TypeError, "scales", lambda: args(octets(2, 32))),
            ("format", ValueError, "format", lambda: args(octets(2, 34), format="q9_0")),
            ("part_of_block", ValueError, "weight", lambda: args(octets(2, 33), format="q8_0")),
            ("scales_of_blocks", ValueError, "scales", lambda: args(octets(2, 34), ones(2, 1), format="q8_0")),
        ),
        lambda m: Workload(m.packed(m.rows), dict(_FORMAT)),
    ),
    Entry(
        quantized_linear,
        tuple(_quantized_linear_cases()),
        (
            ("weight_features", ValueError, "weight", lambda: args(ones(3, 96), octets(2, 32), ones(2, 2), ones(2, 2))),
            ("scales_shape", ValueError, "scales", lambda: args(ones(3, 64), octets(2, 32), ones(2, 3), ones(2, 3))),
            ("no_biases", ValueError, "bits|biases", lambda: args(ones(3, 64), octets(2, 32), ones(2, 2))),
            ("float_weight", TypeError, "weight", lambda: args(ones(3, 64), ones(2, 32), ones(2, 2), ones(2, 2))),
            ("integer_x", TypeError, "x", lambda: args(integers(3, 64), octets(2, 32), ones(2, 2), ones(2, 2))),
            ("block_features", ValueError, "weight", lambda: args(ones(3, 64), octets(2, 34), format="q8_0")),
            (
                "precision",
                ValueError,
                "precision",
                lambda: args(ones(3, 32), octets(2, 34), format="q8_0", precision="8"),
            ),
            ("format_type", TypeError, "format", lambda: args(ones(3, 32), octets(2, 34), format=8)),
        ),
        lambda m: Workload((m.x(), *m.packed(m.features)), dict(_FORMAT)),
    ),
)
