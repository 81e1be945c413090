"""Activations of Dask arrays, block by block."""

from __future__ import annotations

from tensorops._operator import Operator
from tensorops._typing import Array
from tensorops._validation import require_floating
from tensorops.kernels.dask._launch import Blockwise, every_axis, last_axes, register
from tensorops.ops.activation import (
    _check_gated,
    _check_gelu,
    _check_logsumexp,
    _check_reduction,
    geglu,
    gelu,
    log_softmax,
    logsumexp,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    swiglu,
)


def _register_unary(operator: Operator[..., Array]) -> None:
    def prepare(x: Array) -> Blockwise:
        require_floating(operator.__name__, x=x)
        return Blockwise(operator, {"x": every_axis(x)})

    register(operator, prepare)


def _register_gated(operator: Operator[..., Array]) -> None:
    def prepare(gate: Array, up: Array) -> Blockwise:
        _check_gated(operator.__name__, gate, up)
        return Blockwise(operator, {"gate": every_axis(gate), "up": every_axis(up)})

    register(operator, prepare)


def _register_softmax(operator: Operator[..., Array]) -> None:
    def prepare(x: Array, *, axis: int | tuple[int, ...] = -1, where: Array | None = None) -> Blockwise:
        axes = _check_reduction(operator.__name__, x, axis, where)
        masked = {} if where is None else {"where": last_axes(where, x.ndim)}
        return Blockwise(operator, {"x": every_axis(x)} | masked, {"axis": axes}, whole=axes)

    register(operator, prepare)


def _gelu(x: Array, *, approximate: str = "none") -> Blockwise:
    return Blockwise(gelu, {"x": every_axis(x)}, {"approximate": _check_gelu(x, approximate)})


def _logsumexp(x: Array, *, axis: int | tuple[int, ...] = -1, keepdims: bool = False) -> Blockwise:
    axes, keepdims = _check_logsumexp(x, axis, keepdims)
    gone, short = ((), axes) if keepdims else (axes, ())
    options = {"axis": axes, "keepdims": keepdims}
    return Blockwise(logsumexp, {"x": every_axis(x)}, options, whole=axes, dropped=gone, shortened=short)


for _unary in (relu, sigmoid, silu, softplus):
    _register_unary(_unary)
for _gated in (swiglu, geglu):
    _register_gated(_gated)
for _normalized in (softmax, log_softmax):
    _register_softmax(_normalized)
register(gelu, _gelu)
register(logsumexp, _logsumexp)
