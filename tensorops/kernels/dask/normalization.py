"""Normalization of Dask arrays, block by block."""

from __future__ import annotations

from tensorops._typing import Array
from tensorops.kernels.dask._launch import Blockwise, every_axis, given, register
from tensorops.ops.normalization import (
    _check_add_rms_norm,
    _check_layer_norm,
    _check_rms_norm,
    add_rms_norm,
    layer_norm,
    rms_norm,
)


def _rms_norm(
    x: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> Blockwise:
    eps, axis, weight_offset = _check_rms_norm("rms_norm", x, weight, eps, axis, weight_offset)
    arrays = given(x=every_axis(x), weight=(weight, (axis,)))
    return Blockwise(rms_norm, arrays, {"eps": eps, "axis": axis, "weight_offset": weight_offset}, whole=(axis,))


def _add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> Blockwise:
    eps, axis, _ = _check_add_rms_norm(x, residual, weight, eps, axis)
    arrays = given(x=every_axis(x), residual=every_axis(residual), weight=(weight, (axis,)))
    return Blockwise(add_rms_norm, arrays, {"eps": eps, "axis": axis}, whole=(axis,), results=2)


def _layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] = -1,
) -> Blockwise:
    eps, axes = _check_layer_norm(x, weight, bias, eps, axis)
    arrays = given(x=every_axis(x), weight=(weight, axes), bias=(bias, axes))
    return Blockwise(layer_norm, arrays, {"eps": eps, "axis": axes}, whole=axes)


register(rms_norm, _rms_norm)
register(add_rms_norm, _add_rms_norm)
register(layer_norm, _layer_norm)
