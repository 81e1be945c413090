"""The functions of the Array API standard that can be recorded: views, copies, and simple arithmetic.

Those that create arrays return NumPy's, which are constants of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import array_api_compat.numpy as numpy
import numpy as np
from array_api_compat.numpy import (  # noqa: F401 - dtypes, constants and what creates arrays
    arange,
    bool,
    e,
    empty,
    eye,
    finfo,
    float32,
    float64,
    full,
    iinfo,
    inf,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    linspace,
    nan,
    newaxis,
    ones,
    pi,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
    zeros,
)  # fmt: skip

from tensorops.persistent._captured import CaptureError
from tensorops.persistent._recorded import Recorded


def _first(*values: Any) -> Recorded:
    return next(value for value in values if isinstance(value, Recorded))


def asarray(x: Any, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """Return an array as it is, or a copy; anything else becomes a constant."""
    if not isinstance(x, Recorded):
        return numpy.asarray(x, dtype=dtype, device=device, copy=copy)
    if copy is False and dtype is not None and x.dtype != np.dtype(dtype):
        raise ValueError(f"asarray: {x.dtype.name} cannot become {np.dtype(dtype).name} without a copy")
    return astype(x, x.dtype if dtype is None else dtype, copy=copy is True)


def astype(x: Any, dtype: Any, *, copy: Any = True, device: Any = None) -> Any:
    """Convert an array."""
    if not isinstance(x, Recorded):
        return numpy.astype(x, dtype, copy=copy, device=device)
    if x.dtype == np.dtype(dtype):
        return x.recorder.copied(x) if copy else x
    return x.recorder.converted(x, np.dtype(dtype))


def reshape(x: Any, shape: Sequence[int], *, copy: Any = None) -> Any:
    """Return the elements in another shape."""
    if not isinstance(x, Recorded):
        return numpy.reshape(x, shape, copy=copy)
    given = x.recorder.copied(x) if copy else x
    wanted: Any = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    made = x.recorder.reshape(given, wanted)
    if copy is False and not np.shares_memory(made.value, x.value):
        raise ValueError("reshape: the order of the elements needs a copy")
    return made


def permute_dims(x: Any, axes: Sequence[int]) -> Any:
    """Permute axes."""
    return x.view(np.transpose(x.value, axes)) if isinstance(x, Recorded) else numpy.permute_dims(x, axes)


def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Move axes."""
    if not isinstance(x, Recorded):
        return numpy.moveaxis(x, source, destination)
    return x.view(np.moveaxis(x.value, source, destination))


def matrix_transpose(x: Any) -> Any:
    """Exchange the last two axes."""
    return x.mT if isinstance(x, Recorded) else numpy.matrix_transpose(x)


def expand_dims(x: Any, *, axis: int = 0) -> Any:
    """Add an axis of length 1."""
    return x.view(np.expand_dims(x.value, axis)) if isinstance(x, Recorded) else numpy.expand_dims(x, axis=axis)


def squeeze(x: Any, axis: Any) -> Any:
    """Remove axes of length 1."""
    return x.view(np.squeeze(x.value, axis)) if isinstance(x, Recorded) else numpy.squeeze(x, axis)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """Repeat an array along axes."""
    return x.view(np.broadcast_to(x.value, shape)) if isinstance(x, Recorded) else numpy.broadcast_to(x, shape)


def take(x: Any, indices: Any, *, axis: int | None = None) -> Any:
    """Return parts of an array by their indices along an axis."""
    if not isinstance(x, Recorded) and not isinstance(indices, Recorded):
        return numpy.take(x, indices, axis=axis)
    recorder = _first(x, indices).recorder
    if axis is None:  # of all elements
        x, axis = reshape(x, (-1,)), 0
    if not -x.ndim <= axis < x.ndim:
        raise IndexError(f"take: axis {axis} is out of range for {x.ndim} dimensions")
    return recorder.take(x, indices, axis)


def concat(arrays: Sequence[Any], *, axis: int | None = 0) -> Any:
    """Join arrays along an axis."""
    if not any(isinstance(a, Recorded) for a in arrays):
        return numpy.concat(arrays, axis=axis)
    return _first(*arrays).recorder.concat(list(arrays), axis)


def stack(arrays: Sequence[Any], *, axis: int = 0) -> Any:
    """Join arrays along a new axis."""
    return concat([expand_dims(a, axis=axis) for a in arrays], axis=axis)


def add(a: Any, b: Any) -> Any:
    """Return the sum."""
    return a + b


def subtract(a: Any, b: Any) -> Any:
    """Return the difference."""
    return a - b


def multiply(a: Any, b: Any) -> Any:
    """Return the product."""
    return a * b


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller one of each pair."""
    return _pairs("minimum", a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger one of each pair."""
    return _pairs("maximum", a, b)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002
    """Return the elements with bounds."""
    x = x if min is None else maximum(x, min)
    return x if max is None else minimum(x, max)


def _pairs(name: str, a: Any, b: Any) -> Any:
    if not isinstance(a, Recorded) and not isinstance(b, Recorded):
        return getattr(numpy, name)(a, b)
    return _first(a, b).recorder.arithmetic(name, a, b)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or not hasattr(numpy, name):
        raise AttributeError(name)
    if not callable(getattr(numpy, name)):
        return getattr(numpy, name)

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise CaptureError(
            f"the step calls {name} of the namespace, which cannot be recorded; use operators of tensorops"
        )

    return refused
