"""Normalization in XLA's programs; see ``native/cpu/bind_xla.cpp``."""

from __future__ import annotations

from tensorops._typing import Array
from tensorops._validation import as_number, as_number_of_at_least_0
from tensorops.kernels.jax_ffi._launch import (
    Call,
    Prepared,
    refuse_arrays,
    refuse_axis,
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
    if reason:
        return reason
    eps = as_number_of_at_least_0("rms_norm", "eps", eps)
    weight_offset = as_number("rms_norm", "weight_offset", weight_offset)
    options = (("axis", -1), ("eps", eps), ("weight_offset", weight_offset))
    return Call(rms_norm, "rms_norm", options=options, attributes=("eps", "weight_offset")), _given(x, weight)


def _add_rms_norm(
    x: Array, residual: Array, weight: Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> Prepared:
    reason = refuse_arrays(x=x, residual=residual) or refuse_axis(x, axis) or refuse_parameters(x, weight=weight)
    if reason:
        return reason
    options = (("axis", -1), ("eps", as_number_of_at_least_0("add_rms_norm", "eps", eps)))
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
    if reason:
        return reason
    options = (("axis", -1), ("eps", as_number_of_at_least_0("layer_norm", "eps", eps)))
    return Call(layer_norm, "layer_norm", options=options, attributes=("eps",)), _given(x, weight, bias)


register(rms_norm, _rms_norm)
register(add_rms_norm, _add_rms_norm)
register(layer_norm, _layer_norm)
