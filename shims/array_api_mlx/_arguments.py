"""Arguments of functions: unwrapped arrays, Python numbers, axes, shapes, devices."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx

from array_api_mlx._array_object import Array, name_of_type, scalar_operand
from array_api_mlx._dtypes import cannot_promote, wrong_category
from array_api_mlx._shapeless import filled_like, is_shapeless, require_lengths

Shape = tuple[int, ...]
Axis = int | tuple[int, ...] | None
_ARRAYS = (Array, mx.array)


def unwrap(x: Any, function: str, what: str = "x") -> Any:
    """Return the ``mx.array`` in `x`, or `x` if it is one."""
    if type(x) is Array:
        return x._array
    if isinstance(x, mx.array):
        return x
    if isinstance(x, Array):
        return x.mlx
    raise TypeError(f"{function}: {what} is {name_of_type(x)}, expected an array of array_api_mlx or an mx.array")


def unwrap_of(category: frozenset[Any], x: Any, function: str, what: str = "x") -> Any:
    """Return the ``mx.array`` in `x`, or raise a `TypeError` if its dtype is not in a category."""
    a = unwrap(x, function, what)
    if a.dtype not in category:
        raise wrong_category(function, what, a.dtype, category)
    return a


def operands(
    x1: Any, x2: Any, function: str, pairs: dict[tuple[Any, Any], Any], category: frozenset[Any]
) -> tuple[Any, Any]:
    """Return two arguments, one of which may be a Python number, as ``mx.array``s with a common dtype."""
    if type(x1) is Array and type(x2) is Array:
        a, b = x1._array, x2._array
    elif isinstance(x1, _ARRAYS):
        a = unwrap(x1, function)
        b = scalar_operand(x2, a.dtype, function)
        b = unwrap(x2, function, "x2") if b is None else b
    else:
        b = unwrap(x2, function, "x2")
        a = scalar_operand(x1, b.dtype, function)
        a = unwrap(x1, function, "x1") if a is None else a
    if (a.dtype, b.dtype) not in pairs:
        raise cannot_promote(function, a.dtype, b.dtype, category)
    return a, b


def axis_of(axis: Any, ndim: int, function: str) -> int:
    """Return an axis counted from the front."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise IndexError(f"{function}: axis {index} is out of bounds for an array of {ndim} dimensions")
    return index % ndim


def axes_of(axis: Any, ndim: int, function: str) -> Shape:
    """Return one, several or (``None``) all axes counted from the front, each once."""
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis_of(a, ndim, function) for a in (axis if isinstance(axis, Sequence) else (axis,)))
    if len(set(axes)) != len(axes):
        raise ValueError(f"{function}: an axis is given twice in {axis}")
    return axes


def reduced(reduce: Any, a: Any, axes: Shape, keepdims: bool, of_nothing: Any) -> Any:
    """Reduce an array along axes; of no elements, the result is known.

    MLX itself is not asked for it: such a reduction of its own, which then reads no memory, sometimes never ends. A
    recorded reduction along axes that all have length 1 crashes the interpreter: an axis of length 2 is added.
    """
    if a.size and axes and is_shapeless():
        idle = a if reduce in (mx.max, mx.min) else filled_like(a, mx.array(of_nothing, dtype=a.dtype))
        result = reduce(mx.stack([a, idle], axis=-1), axis=(*axes, a.ndim), keepdims=True)
        return mx.squeeze(result, axis=a.ndim if keepdims else (*axes, a.ndim))
    if a.size:
        return reduce(a, axis=axes, keepdims=keepdims)
    shape = tuple(1 if i in axes else n for i, n in enumerate(a.shape) if keepdims or i not in axes)
    kind = reduce(mx.ones((1,) * a.ndim, dtype=a.dtype)).dtype
    return mx.full(shape, of_nothing, dtype=kind)


def shape_of(shape: Any, function: str) -> Shape:
    """Return a shape as a tuple; it may be given as one number."""
    lengths = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
    if any(n not in (1, -1) for n in lengths):
        require_lengths(function)
    return lengths


def require_device(device: Any, function: str) -> None:
    """Raise a `ValueError` unless `device` is ``None`` or MLX's current device, the only one."""
    if device is not None and device != mx.default_device():
        raise ValueError(
            f"{function}: device is {device!r}, but MLX computes on {mx.default_device()}: its arrays do not belong to "
            "a device; call mx.set_default_device or compute within mx.stream"
        )
