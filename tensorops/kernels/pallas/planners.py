"""Which calls the kernels compute, and with which blocks: pure functions of metadata and the TPU's generation.

A planner takes the canonical arguments of an operator, of which arrays need only a shape and a dtype, and returns a
function of the arrays by name, or why there is no kernel in words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tensorops._dtypes import name_of
from tensorops.kernels.pallas import blocks

Program: TypeAlias = Callable[..., list[Any]]
Planner: TypeAlias = Callable[..., "Program | str"]

_DTYPES = ("bfloat16", "float32")
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16")  # others are not always in the range of int32


def rms_norm(
    generation: str, *, x: Any, weight: Any = None, eps: float, axis: int, weight_offset: float
) -> Program | str:
    """Plan `tensorops.rms_norm`."""
    found = _whole_rows(generation, "rms_norm", axis, 4, {"x": x}, {"weight": weight}, [x.dtype])
    return found if isinstance(found, str) else functools.partial(found, eps=eps, weight_offset=weight_offset)


def add_rms_norm(generation: str, *, x: Any, residual: Any, weight: Any = None, eps: float, axis: int) -> Program | str:
    """Plan `tensorops.add_rms_norm`."""
    rows, results = {"x": x, "residual": residual}, [x.dtype, x.dtype]
    found = _whole_rows(generation, "add_rms_norm", axis, 4, rows, {"weight": weight}, results)
    return found if isinstance(found, str) else functools.partial(found, eps=eps)


def layer_norm(
    generation: str, *, x: Any, weight: Any = None, bias: Any = None, eps: float, axis: int | tuple[int, ...]
) -> Program | str:
    """Plan `tensorops.layer_norm`."""
    parameters = {"weight": weight, "bias": bias}
    found = _whole_rows(generation, "layer_norm", axis, 4, {"x": x}, parameters, [x.dtype])
    return found if isinstance(found, str) else functools.partial(found, eps=eps)


def _softmax(
    name: str, generation: str, *, x: Any, axis: int | tuple[int, ...], where: Any = None, dtype: Any = None
) -> Program | str:
    if where is not None:
        return "where is given"
    result = x.dtype if dtype is None else np.dtype(dtype)
    found = _whole_rows(generation, name, axis, 3, {"x": x}, {}, [result])
    return found if isinstance(found, str) else functools.partial(found, dtype=result)


def logsumexp(
    generation: str, *, x: Any, axis: int | tuple[int, ...], keepdims: bool, dtype: Any = None
) -> Program | str:
    """Plan `tensorops.logsumexp`."""
    result = x.dtype if dtype is None else np.dtype(dtype)
    if reason := _refuse_rows(axis, {"x": x}, {}, [result]):
        return reason
    parts = blocks.parts_of_rows(math.prod(x.shape[:-1]), x.shape[-1], [x.dtype.itemsize], 3, generation)

    def program(x: Any) -> list[Any]:
        from tensorops.kernels.pallas import sums

        return sums.logsumexp(parts, generation, x, keepdims=keepdims, dtype=result)

    return program


def cross_entropy(
    generation: str,
    *,
    logits: Any,
    targets: Any,
    weight: Any = None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Program | str:
    """Plan `tensorops.cross_entropy`."""
    if name_of(targets.dtype) not in _INTEGERS:
        return f"targets has dtype {name_of(targets.dtype)}, expected one of {', '.join(_INTEGERS)}"
    if label_smoothing:
        return "label_smoothing is not 0"
    if reason := _refuse_rows(-1, {"logits": logits}, {"weight": weight}, [logits.dtype]):
        return reason
    rows = math.prod(logits.shape[:-1])
    parts = blocks.parts_of_rows(rows, logits.shape[-1], [logits.dtype.itemsize], 3, generation)
    options = {"reduction": reduction, "ignore_index": ignore_index, "z_loss": z_loss}

    def program(logits: Any, targets: Any, weight: Any = None) -> list[Any]:
        from tensorops.kernels.pallas import sums

        return sums.cross_entropy(parts, generation, logits, targets, weight, **options)

    return program


def rope(
    generation: str,
    *,
    x: Any,
    positions: Any = None,
    base: float,
    freqs: Any = None,
    cos: Any = None,
    sin: Any = None,
    interleaved: bool,
    dims: int,
    attention_factor: float,
) -> Program | str:
    """Plan `tensorops.rope`."""
    if interleaved:
        return "interleaved is True"
    if dims != x.shape[-1]:
        return f"dims is {dims}, and heads have {x.shape[-1]} features"
    if x.shape[-1] % blocks.LANES:
        return (
            f"heads have {x.shape[-1]} features, not a multiple of {blocks.LANES}: XLA would copy them for the kernel"
        )
    if cos is not None and positions is not None:
        return "cos and sin are looked up at positions"
    if reason := _refuse_arrays({"x": x, "freqs": freqs, "cos": cos, "sin": sin}):
        return reason
    *_, heads, sequence, features = x.shape
    parts = blocks.heads_and_positions(heads, sequence, features, x.dtype.itemsize, generation)
    if parts is None:
        return f"heads of {features} features do not fit the vector memory of a TPU {generation}"

    def program(x: Any, positions: Any = None, freqs: Any = None, cos: Any = None, sin: Any = None) -> list[Any]:
        from tensorops.kernels.pallas import positional

        tables = positional.tables(x, positions, base, freqs, cos, sin, attention_factor)
        return [positional.rotate(parts, generation, x, tables)]

    return program


def scaled_dot_product_attention(generation: str, **arguments: Any) -> Program | str:
    """Plan `tensorops.scaled_dot_product_attention`: by the kernel for few queries."""
    from tensorops.kernels.pallas import decoding_plans

    return decoding_plans.plan_decode(generation, **arguments)


PLANNERS: dict[str, Planner] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "layer_norm": layer_norm,
    "softmax": functools.partial(_softmax, "softmax"),
    "log_softmax": functools.partial(_softmax, "log_softmax"),
    "logsumexp": logsumexp,
    "cross_entropy": cross_entropy,
    "rope": rope,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}
"""The planners by the name of their operator."""


def _whole_rows(
    generation: str,
    name: str,
    axis: int | tuple[int, ...],
    wide: int,
    rows: dict[str, Any],
    parameters: dict[str, Any],
    results: list[Any],
) -> Program | str:
    """Plan a kernel on whole rows, of whose elements so many float32 values are alive at a time."""
    if reason := _refuse_rows(axis, rows, parameters, results):
        return reason
    shape = next(iter(rows.values())).shape
    sizes = [a.dtype.itemsize for a in rows.values()] + [dtype.itemsize for dtype in results]
    parts = blocks.whole_rows(math.prod(shape[:-1]), shape[-1], sizes, wide, generation)
    if parts is None:
        return f"rows of {shape[-1]} elements do not fit the vector memory of a TPU {generation}"

    def program(**arguments: Any) -> list[Any]:
        from tensorops.kernels.pallas.rows import KERNELS

        return KERNELS[name](parts, generation, **arguments)

    return program


def _refuse_rows(
    axis: int | tuple[int, ...], rows: dict[str, Any], parameters: dict[str, Any], results: list[Any]
) -> str | None:
    if reason := _refuse_arrays({**rows, **parameters}):
        return reason
    for dtype in results:
        if name_of(dtype) not in _DTYPES:
            return f"dtype is {name_of(dtype)}, and Pallas' compiler for TPUs takes {' and '.join(_DTYPES)}"
    name, x = next(iter(rows.items()))
    return None if axis in (-1, len(x.shape) - 1, (-1,), (len(x.shape) - 1,)) else f"axis is not the last of {name}"


def _refuse_arrays(arrays: dict[str, Any]) -> str | None:
    for name, a in arrays.items():
        if a is None:
            continue
        if name_of(a.dtype) not in _DTYPES:
            return f"{name} has dtype {name_of(a.dtype)}, and Pallas' compiler for TPUs takes {' and '.join(_DTYPES)}"
        if not all(isinstance(n, int) for n in a.shape):
            return f"{name} has a symbolic shape"
        if 0 in a.shape:
            return f"{name} is empty"
    return None
