"""Quantized matrices in XLA's programs; see ``native/cpu/bind_xla.cpp``."""

from __future__ import annotations

from tensorops._typing import Array
from tensorops.kernels.jax_ffi._launch import Call, Prepared, refuse_array, refuse_arrays, register
from tensorops.ops.quantization import quantized_linear

_DTYPES = ("float16", "bfloat16", "float32")


def _quantized_linear(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> Prepared:
    parameters = {"scales": scales} if biases is None else {"scales": scales, "biases": biases}
    reason = refuse_arrays(x=x) or refuse_array("x", x, _DTYPES) or refuse_array("weight", weight, ("uint8",))
    if reason := reason or _refuse_format(x, weight, bits, group_size):
        return reason
    for name, p in parameters.items():
        if reason := refuse_array(name, p, _DTYPES):
            return reason
        if p.dtype != scales.dtype:
            return "biases has another dtype than scales"
        if p.shape != (weight.shape[0], x.shape[-1] // group_size):
            return f"{name} does not have one element for each group"
    if biases is None and bits != 8:
        return "biases are missing"
    options = (("bits", bits), ("group_size", group_size))
    call = Call(quantized_linear, "quantized_linear", options=options, attributes=("bits", "group_size"))
    return call, (x, weight, *parameters.values())


def _refuse_format(x: Array, weight: Array, bits: object, group_size: object) -> str | None:
    if type(bits) is not int or bits not in (4, 8):
        return "bits is neither 4 nor 8"
    if type(group_size) is not int or group_size < 1 or group_size * bits % 8 or x.shape[-1] % group_size:
        return "group_size does not fit x"
    if weight.ndim != 2 or weight.shape[1] * 8 != x.shape[-1] * bits:
        return "weight does not fit the last axis of x"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


register(quantized_linear, _quantized_linear)
