"""Facts about dtypes that the operators need, by name, the same for every array library."""

from __future__ import annotations

import math
from typing import Any

from tensorops.typing import Array, Dtype, Namespace

FLOATING = ("float16", "bfloat16", "float32", "float64")
INTEGER = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_LARGEST_EXPONENT = {"float32": 127, "float64": 1023}
# By name, because some libraries have no `finfo` of half types: the largest number, the distance from 1 to the next,
# and the smallest positive number.
_LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2.0 - 2.0**-7) * 2.0**127,
    "float32": (2.0 - 2.0**-23) * 2.0**127,
    "float64": (2.0 - 2.0**-52) * 2.0**1023,
}
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


_names: dict[tuple[type, Any], str] = {}


def _name(dtype: Any) -> str:
    # The key includes the dtype's own type, because dtypes of different libraries must not be compared.
    key = (type(dtype), dtype)
    name = _names.get(key)
    if name is None:
        # NumPy's dtype("float32") has a name; torch.float32 and mlx.core.float32 only print as such.
        name = _names[key] = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    return name


# TorchDynamo cannot trace a look-up in a dictionary whose keys are other libraries' dtypes: it calls `_name` instead.
_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def dtype_name(x: Array) -> str:
    """Return the standard's name of the dtype of `x`, such as ``"float32"`` or ``"bool"``."""
    return _name(x.dtype)


def dtype_next_to(x: Array, dtype: Any, xp: Namespace) -> Dtype | None:
    """Return a dtype of the library of `x` as its arrays or its namespace have it; ``None`` if it is something else.

    Libraries that have NumPy's dtypes also take scalar types such as `numpy.float32`.
    """
    if type(dtype) is type(x.dtype):
        return dtype
    import numpy as np

    names = (*FLOATING, *INTEGER, "bool")
    if not isinstance(x.dtype, np.dtype):
        return dtype if any(getattr(xp, name, None) is dtype for name in names) else None
    if isinstance(dtype, type) and dtype.__name__ in names:
        scalar = issubclass(dtype, np.generic) or getattr(xp, dtype.__name__, None) is dtype
        return np.dtype(dtype) if scalar else None
    return dtype if isinstance(dtype, np.dtype) else None


def name_of(dtype: Dtype) -> str:
    """Return the standard's name of a dtype."""
    return _name(dtype)


def is_floating(x: Array) -> bool:
    """Return whether `x` has a real floating-point dtype, including half types."""
    return _name(x.dtype) in FLOATING


def is_integer(x: Array) -> bool:
    """Return whether `x` has an integer dtype."""
    return _name(x.dtype) in INTEGER


def integer_limits(x: Array) -> tuple[int, int]:
    """Return the smallest and the largest integer of the integer dtype of `x`."""
    kind, _, bits = _name(x.dtype).rpartition("int")
    if kind == "u":
        return 0, 2 ** int(bits) - 1
    return -(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1) - 1


def is_bool(x: Array) -> bool:
    """Return whether `x` has a boolean dtype."""
    return _name(x.dtype) in ("bool", "bool_")


def largest_exponent(x: Array) -> int:
    """Return the exponent of the largest power of two in the dtype of `x` (single or double)."""
    return _LARGEST_EXPONENT[_name(x.dtype)]


def largest(x: Array) -> float:
    """Return the largest finite number in the dtype of `x`."""
    return _LARGEST[_name(x.dtype)]


def epsilon(x: Array) -> float:
    """Return the distance from 1 to the next larger number in the dtype of `x`."""
    return _EPSILON[_name(x.dtype)]


def smallest(x: Array) -> float:
    """Return the smallest positive number in the dtype of `x`, a subnormal one."""
    return _SMALLEST[_name(x.dtype)]


def compute_dtype(xp: Namespace, *arrays: Array | None, result: Dtype | None = None) -> Any:
    """Return the dtype in which to compute: float64 if that of an array or of the result is, else float32.

    Half types have 8 or 11 bits, too few for a sum; they are inputs and results, never accumulators.
    """
    dtypes = [x.dtype for x in arrays if x is not None]
    wide = any(_name(dtype) == "float64" for dtype in (dtypes if result is None else [*dtypes, result]))
    return xp.float64 if wide else xp.float32


def widen(xp: Namespace, *arrays: Array | None, result: Dtype | None = None) -> tuple[Any, ...]:
    """Convert `arrays` to the dtype in which to compute a result with them; ``None`` stays ``None``."""
    dtype = compute_dtype(xp, *arrays, result=result)
    return tuple(None if x is None else xp.astype(x, dtype, copy=False) for x in arrays)


def widen_integers(xp: Namespace, ids: Array, device: Any) -> Array:
    """Convert integers on a device to int32 or int64, which every library supports as indices.

    Where a library or device lacks int64, wider types are unchanged.
    """
    name = _name(ids.dtype)
    if name in ("int32", "int64"):
        return ids
    wanted = "int64" if name in ("uint32", "uint64") else "int32"
    available = xp.__array_namespace_info__().dtypes(device=device, kind="integral")
    return xp.astype(ids, available[wanted]) if wanted in available else ids


def narrow(xp: Namespace, y: Array, like: Array, dtype: Dtype | None = None) -> Array:
    """Convert a result to the dtype of the operator's first input, or to the one that was asked for."""
    return xp.astype(y, like.dtype if dtype is None else dtype, copy=False)


def anew(xp: Namespace, x: Array, dtype: Dtype | None = None) -> Array:
    """Return the values of `x` in a new array, which automatic differentiation connects with `x`."""
    return narrow(xp, x * 1.0, x, dtype)


def nbytes(x: Array) -> int:
    """Return the number of bytes of the elements of `x`."""
    bits = "".join(filter(str.isdigit, _name(x.dtype))) or "8"  # a bool takes a byte
    return int(math.prod(x.shape)) * int(bits) // 8
