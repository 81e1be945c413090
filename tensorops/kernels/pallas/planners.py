"""Which calls the kernels compute, and with which blocks: pure functions of metadata and the TPU's generation.

A planner takes the canonical arguments of an operator, of which arrays need only a shape and a dtype, and returns a
function of the arrays by name, or the reason why there is no kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tensorops._dtypes import is_floating, name_of
from tensorops.kernels._jax.primitive import Reverse
from tensorops.kernels.pallas import attention_plans, blocks, decoding_plans
from tensorops.kernels.pallas.channels_plans import group_norm, instance_norm
from tensorops.kernels.pallas.lookup_plans import embedding
from tensorops.kernels.pallas.projected_loss_plans import linear_cross_entropy
from tensorops.kernels.pallas.quantized_plans import quantized_linear
from tensorops.kernels.pallas.refusals import DTYPES as _DTYPES, refuse_arrays as _refuse_arrays
from tensorops.kernels.pallas.selection_plans import top_k
from tensorops.ops.attention import log_totals

Program: TypeAlias = Callable[..., list[Any]]
Planner: TypeAlias = Callable[..., "Program | str"]
Names: TypeAlias = tuple[str, ...]
Arrays: TypeAlias = Sequence[Any]


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


def l2_norm(generation: str, *, x: Any, eps: float, axis: int | tuple[int, ...]) -> Program | str:
    """Plan `tensorops.l2_norm`."""
    found = _whole_rows(generation, "l2_norm", axis, 3, {"x": x}, {}, [x.dtype])
    return found if isinstance(found, str) else functools.partial(found, eps=eps)


def _softmax(
    name: str, generation: str, *, x: Any, axis: int | tuple[int, ...], where: Any = None, dtype: Any = None
) -> Program | str:
    result = x.dtype if dtype is None else np.dtype(dtype)
    found = _whole_rows(generation, name, axis, 3, {"x": x}, {}, [result], bytes_beside=0 if where is None else 1)
    return found if isinstance(found, str) else functools.partial(found, dtype=result)


def logsumexp(
    generation: str,
    *,
    x: Any,
    axis: int | tuple[int, ...],
    keepdims: bool,
    where: Any = None,
    b: Any = None,
    return_sign: bool,
    dtype: Any = None,
) -> Program | str:
    """Plan `tensorops.logsumexp`."""
    if where is not None or b is not None or return_sign:
        return "where, b or return_sign is given"
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
    of_classes = {"targets": targets} if is_floating(targets) else {}
    if reason := _refuse_rows(-1, {"logits": logits} | of_classes, {"weight": weight}, [logits.dtype]):
        return reason
    rows = math.prod(logits.shape[:-1])
    sizes = [a.dtype.itemsize for a in (logits, *of_classes.values())]
    parts = blocks.parts_of_rows(rows, logits.shape[-1], sizes, 3 + len(sizes), generation)
    options: dict[str, Any] = {
        "reduction": reduction,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
    }

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
    back: bool = False,
) -> Program | str:
    """Plan `tensorops.rope`, or its rotation back, which is the derivative in reverse mode."""
    if dims == 0:
        return "dims is 0"
    if x.shape[-1] % blocks.LANES:
        return (
            f"heads have {x.shape[-1]} features, not a multiple of {blocks.LANES}: XLA would copy them for the kernel"
        )
    if reason := _refuse_arrays({"x": x, "freqs": freqs, "cos": cos, "sin": sin}):
        return reason
    *_, heads, sequence, features = x.shape
    parts = blocks.heads_and_positions(heads, sequence, features, x.dtype.itemsize, generation)
    if parts is None:
        return f"heads of {features} features do not fit the vector memory of a TPU {generation}"

    def program(x: Any, positions: Any = None, freqs: Any = None, cos: Any = None, sin: Any = None) -> list[Any]:
        from tensorops.kernels.pallas import positional

        pairs = positional.Pairs(dims, interleaved)
        tables = positional.tables(x, pairs, positions, base, freqs, cos, sin, attention_factor)
        return [positional.rotate(parts, generation, x, tables, pairs, back=back)]

    return program


_OF_ATTENTION: tuple[Planner, ...] = (
    decoding_plans.plan_decode,
    attention_plans.plan_prefill,
)  # in the order in which they are asked


def scaled_dot_product_attention(generation: str, **arguments: Any) -> Program | str:
    """Plan `tensorops.scaled_dot_product_attention`."""
    reasons = []
    for plan in _OF_ATTENTION:
        found = plan(generation, **arguments)
        if not isinstance(found, str):
            return found
        reasons.append(found)
    return "; ".join(reasons)


def _rope_reverse(generation: str, wanted: Names, rest: Arrays, *, x: Any, **options: Any) -> Program | str:
    if wanted != ("x",):
        return "the gradient is not that of x alone"
    program = rope(generation, x=x, back=True, **options)
    if isinstance(program, str):
        return program
    return lambda rest, x, **arrays: program(x=rest[0], **arrays)


PLANNERS: dict[str, Planner] = {
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "layer_norm": layer_norm,
    "l2_norm": l2_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "softmax": functools.partial(_softmax, "softmax"),
    "log_softmax": functools.partial(_softmax, "log_softmax"),
    "logsumexp": logsumexp,
    "cross_entropy": cross_entropy,
    "rope": rope,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "quantized_linear": quantized_linear,
    "linear_cross_entropy": linear_cross_entropy,
    "embedding": embedding,
    "top_k": top_k,
}
"""The planners by the name of their operator."""

WITH_STATISTICS: dict[str, Planner] = {
    "scaled_dot_product_attention": functools.partial(attention_plans.plan_prefill, statistics=True)
}
"""Of operators whose `REVERSE` has statistics, the planners of programs that also return these."""


def _rms_norm_reverse(
    generation: str, wanted: Names, rest: Arrays, *, x: Any, weight: Any = None, **options: Any
) -> Any:
    arrays = ({"x": x, "dy": rest[0]}, {"weight": weight})
    return _whole_rows_reverse(generation, "rms_norm", wanted, 6, *arrays, options)


def _add_rms_norm_reverse(
    generation: str, wanted: Names, rest: Arrays, *, x: Any, residual: Any, weight: Any = None, **options: Any
) -> Any:
    arrays = ({"x": x, "residual": residual, "dy": rest[0], "d_residual": rest[1]}, {"weight": weight})
    return _whole_rows_reverse(generation, "add_rms_norm", wanted, 6, *arrays, options)


def _layer_norm_reverse(
    generation: str, wanted: Names, rest: Arrays, *, x: Any, weight: Any = None, bias: Any = None, **options: Any
) -> Any:
    arrays = ({"x": x, "dy": rest[0]}, {"weight": weight, "bias": bias})
    return _whole_rows_reverse(generation, "layer_norm", wanted, 6, *arrays, options)


def _l2_norm_reverse(generation: str, wanted: Names, rest: Arrays, *, x: Any, **options: Any) -> Any:
    return _whole_rows_reverse(generation, "l2_norm", wanted, 5, {"x": x, "dy": rest[0]}, {}, options)


def _softmax_reverse(
    name: str, generation: str, wanted: Names, rest: Arrays, *, x: Any, where: Any = None, **options: Any
) -> Any:
    rows, of_mask = {"x": x, "dy": rest[0]}, 0 if where is None else 1
    return _whole_rows_reverse(generation, name, wanted, 5, rows, {}, options, bytes_beside=of_mask)


def _logsumexp_reverse(generation: str, wanted: Names, rest: Arrays, *, x: Any, **options: Any) -> Any:
    return _whole_rows_reverse(generation, "logsumexp", wanted, 3, {"x": x}, {}, options, numbers={"dy": rest[0]})


def _cross_entropy_reverse(
    generation: str, wanted: Names, rest: Arrays, *, logits: Any, targets: Any, weight: Any = None, **options: Any
) -> Any:
    if wanted != ("logits",):
        return "the gradient is not that of logits alone"
    reason = cross_entropy(generation, logits=logits, targets=targets, weight=weight, **options)
    if isinstance(reason, str):
        return reason
    arrays = ({"logits": logits} | ({"targets": targets} if is_floating(targets) else {}), {"weight": weight})
    return _whole_rows_reverse(generation, "cross_entropy", wanted, 5, *arrays, options | {"axis": -1}, numbers={})


REVERSE_PLANNERS: dict[str, Planner] = {
    "rms_norm": _rms_norm_reverse,
    "add_rms_norm": _add_rms_norm_reverse,
    "layer_norm": _layer_norm_reverse,
    "l2_norm": _l2_norm_reverse,
    "softmax": functools.partial(_softmax_reverse, "softmax"),
    "log_softmax": functools.partial(_softmax_reverse, "log_softmax"),
    "logsumexp": _logsumexp_reverse,
    "cross_entropy": _cross_entropy_reverse,
    "rope": _rope_reverse,
    "scaled_dot_product_attention": attention_plans.plan_gradients,
}
"""The planners of derivatives in reverse mode.

They take the generation, the names of the arrays whose cotangents are wanted, what is kept followed by the cotangents
of the results, and the canonical arguments by name. Their programs take the latter two as arrays and return the
cotangents in the order of the names.
"""

REVERSE: dict[str, Reverse] = dict.fromkeys(REVERSE_PLANNERS, Reverse()) | {
    "scaled_dot_product_attention": Reverse(results=(0,), statistics=(log_totals,))
}
"""What the derivatives in reverse mode keep, by the name of the operator; see `kernels._jax.primitive`."""


def _whole_rows_reverse(
    generation: str,
    name: str,
    wanted: Names,
    wide: int,
    rows: dict[str, Any],
    parameters: dict[str, Any],
    options: dict[str, Any],
    numbers: dict[str, Any] | None = None,
    bytes_beside: int = 0,
) -> Program | str:
    """Plan the derivative of a kernel on whole rows; the first of `rows` and its gradient have one shape and dtype."""
    first = next(iter(rows.values()))
    if reason := _refuse_rows(options["axis"], rows, parameters, []) or _refuse_arrays(numbers or {}):
        return reason
    sizes = [a.dtype.itemsize for a in (*rows.values(), first)]
    sizes += [bytes_beside] * (bytes_beside > 0)
    numbered = numbers is not None
    shape = (math.prod(first.shape[:-1]), first.shape[-1])
    parts = blocks.whole_rows(*shape, sizes, wide, generation, numbered=numbered)
    if parts is None:
        return f"rows of {shape[1]} elements do not fit the vector memory of a TPU {generation}"

    def program(rest: Sequence[Any], **arguments: Any) -> list[Any]:
        from tensorops.kernels.pallas.gradients import KERNELS

        return KERNELS[name](parts, generation, wanted, rest, **arguments, **options)

    return program


def _whole_rows(
    generation: str,
    name: str,
    axis: int | tuple[int, ...],
    wide: int,
    rows: dict[str, Any],
    parameters: dict[str, Any],
    results: list[Any],
    bytes_beside: int = 0,
) -> Program | str:
    """Plan a kernel on whole rows, of whose elements that many float32 values are alive at a time.

    A mask of the elements has `bytes_beside` them.
    """
    if reason := _refuse_rows(axis, rows, parameters, results):
        return reason
    shape = next(iter(rows.values())).shape
    sizes = [a.dtype.itemsize for a in rows.values()] + [dtype.itemsize for dtype in results]
    sizes += [bytes_beside] * (bytes_beside > 0)
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
