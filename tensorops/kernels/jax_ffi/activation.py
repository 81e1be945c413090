"""Activations in XLA's programs; see ``native/cpu/bind_xla.cpp``."""

from __future__ import annotations

from tensorops._operator import Operator
from tensorops._typing import Array
from tensorops._validation import as_bool, as_choice
from tensorops.kernels.jax_ffi._launch import Call, Prepared, refuse_arrays, refuse_axis, register
from tensorops.ops.activation import geglu, gelu, log_softmax, logsumexp, sigmoid, silu, softmax, softplus, swiglu


def _register_unary(operator: Operator[..., Array]) -> None:
    call = Call(operator, operator.__name__)
    register(operator, lambda x: refuse_arrays(x=x) or (call, (x,)))


def _register_gated(operator: Operator[..., Array]) -> None:
    call = Call(operator, operator.__name__, rows=2)
    register(operator, lambda gate, up: refuse_arrays(gate=gate, up=up) or (call, (gate, up)))


def _register_softmax(operator: Operator[..., Array]) -> None:
    call = Call(operator, operator.__name__, options=(("axis", -1),))

    def prepare(x: Array, *, axis: int = -1, where: Array | None = None) -> Prepared:
        if where is not None:
            return "where is given"
        return refuse_arrays(x=x) or refuse_axis(x, axis) or (call, (x,))

    register(operator, prepare)


def _gelu(x: Array, *, approximate: str = "none") -> Prepared:
    approximate = as_choice("gelu", "approximate", approximate, ("none", "tanh"))
    handler = "gelu" if approximate == "none" else "gelu_tanh"
    return refuse_arrays(x=x) or (Call(gelu, handler, options=(("approximate", approximate),)), (x,))


def _logsumexp(x: Array, *, axis: int = -1, keepdims: bool = False) -> Prepared:
    if reason := refuse_arrays(x=x) or refuse_axis(x, axis):
        return reason
    if x.shape[-1] == 0:
        return "the last axis of x is empty"
    return Call(
        logsumexp, "logsumexp", options=(("axis", -1), ("keepdims", as_bool("logsumexp", "keepdims", keepdims)))
    ), (x,)


# relu is not among them: XLA's own is as quick.
_register_unary(sigmoid)
_register_unary(silu)
_register_unary(softplus)
_register_gated(swiglu)
_register_gated(geglu)
_register_softmax(softmax)
_register_softmax(log_softmax)
register(gelu, _gelu)
register(logsumexp, _logsumexp)
