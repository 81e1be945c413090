"""Normalization in XLA's programs; see ``native/cpu/bind_xla.cpp``."""

from __future__ import annotations

from tensorops._typing import Array
from tensorops.kernels.xla._launch import (
    Call,
    Prepared,
    refuse_arrays,
    refuse_axis,
    refuse_number,
    refuse_parameters,
    register,
)
from tensorops.ops.normalization import add_rms_norm, layer_norm, rms_norm


def _given(*arrays: Array | None) -> tuple[Array, ...]:
    return tuple(a for a in arrays if a is not None)


def _rms_norm(
    x: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> Prepared:
    reason = refuse_arrays(x=x) or refuse_axis(x, axis) or refuse_parameters(x, weight=weight)
    if reason := reason or refuse_number("eps", eps, 0.0) or refuse_number("weight_offset", weight_offset):
        return reason
    options = (("axis", -1), ("eps", float(eps)), ("weight_offset", float(weight_offset)))
    return Call(rms_norm, "rms_norm", options=options, attributes=("eps", "weight_offset")), _given(x, weight)


def _add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> Prepared:
    reason = refuse_arrays(x=x, residual=residual) or refuse_axis(x, axis) or refuse_parameters(x, weight=weight)
    if reason := reason or refuse_number("eps", eps, 0.0):
        return reason
    options = (("axis", -1), ("eps", float(eps)))
    call = Call(add_rms_norm, "add_rms_norm", rows=2, options=options, attributes=("eps",))
    return call, _given(x, residual, weight)


def _layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] = -1,
) -> Prepared:
    if weight is None and bias is not None:
        return "bias is given without weight"
    reason = refuse_arrays(x=x) or refuse_axis(x, axis) or refuse_parameters(x, weight=weight, bias=bias)
    if reason := reason or refuse_number("eps", eps, 0.0):
        return reason
    call = Call(layer_norm, "layer_norm", options=(("axis", -1), ("eps", float(eps))), attributes=("eps",))
    return call, _given(x, weight, bias)


register(rms_norm, _rms_norm)
register(add_rms_norm, _add_rms_norm)
register(layer_norm, _layer_norm)
