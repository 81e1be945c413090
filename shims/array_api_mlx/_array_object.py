"""The array object: a wrapper around ``mx.array`` that follows the standard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from array_api_mlx import _arithmetic
from array_api_mlx._dtypes import (
    ALL,
    COMPLEX,
    INTEGRAL,
    INTEGRAL_OR_BOOL,
    LIMITS,
    NUMERIC,
    PROMOTION,
    PUBLIC,
    REAL,
    SCALARS,
    cannot_promote,
    name_of,
    pairs_of,
    wrong_category,
)
from array_api_mlx._keys import get, put, to_numpy
from array_api_mlx._shapeless import require_lengths

_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
_HOST = (1, 0)
_NUMBERS: tuple[Any, ...] = (bool, int, float, complex)


def scalar_operand(value: Any, dtype: Any, function: str) -> Any:
    """Return a Python number as an ``mx.array`` to combine with an array of `dtype`, or ``None`` if it is not a number.

    Raises
    ------
    TypeError
        If the kind of the number does not match the dtype.
    OverflowError
        If it is an integer that the dtype cannot hold.
    """
    target = SCALARS.get((type(value), dtype))
    if target is None:
        if isinstance(value, np.generic):
            return scalar_operand(value.item(), dtype, function)
        for kind in _NUMBERS:
            if isinstance(value, kind) and type(value) not in _NUMBERS:
                return scalar_operand(kind(value), dtype, function)
        if isinstance(value, bool | int | float | complex):
            raise TypeError(
                f"{function}: a Python {type(value).__name__} cannot be combined with an array of {name_of(dtype)}"
            )
        return None
    limits = LIMITS.get(target)
    if limits is None:
        return mx.array(float(value) if type(value) is int else value, dtype=target)
    if not limits[0] <= value <= limits[1]:
        raise OverflowError(f"{function}: {value} is out of bounds for {name_of(dtype)}")
    return mx.array(value, dtype=target) if value < 1 << 63 else mx.array(np.asarray(value, dtype=np.uint64))


def name_of_type(x: object) -> str:
    """Return the name of an argument's type for a message, with its module unless it is a built-in type."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


# ----------------------------------------------------------------------------------------- operators
# The dtypes of both operands are looked up as a pair, which shows at once whether they are of the right category and
# promote to each other; if they do, MLX promotes them as the standard requires.

_Unary: TypeAlias = "Callable[[Array], Array]"
_Binary: TypeAlias = "Callable[[Array, Any], Array]"


def _other(value: Any, dtype: Any, function: str) -> Any:
    """Return the other operand as an ``mx.array``, or ``None`` if arrays cannot be combined with it.

    Raises
    ------
    TypeError
        If it is an array of another library: Python's error would be less clear, and ``==`` would return False.
    """
    operand = scalar_operand(value, dtype, function)
    if operand is not None:
        return operand
    if isinstance(value, mx.array):
        return value
    if isinstance(value, Array):
        return value.mlx
    if hasattr(value, "__dlpack__"):
        raise TypeError(f"{function}: an operand is {name_of_type(value)}; convert it with asarray")
    return None


def _named(method: Any, name: str) -> Any:
    method.__name__ = name
    method.__qualname__ = f"Array.{name}"
    return method


def _unary(name: str, function: Callable[[Any], Any], category: frozenset[Any]) -> _Unary:
    def method(self: Array, /) -> Array:
        a = self._array
        if a.dtype not in category:
            raise wrong_category(name, "x", a.dtype, category)
        return Array(function(a))

    return _named(method, name)  # type: ignore[no-any-return]


def _binary(name: str, function: Callable[[Any, Any], Any], category: frozenset[Any]) -> _Binary:
    pairs = pairs_of(category)

    def method(self: Array, other: Any, /) -> Array:
        a = self._array
        b = other._array if type(other) is Array else _other(other, a.dtype, name)
        if b is None:
            return NotImplemented  # type: ignore[no-any-return]
        if (a.dtype, b.dtype) not in pairs:
            raise cannot_promote(name, a.dtype, b.dtype, category)
        return Array(function(a, b))

    return _named(method, name)  # type: ignore[no-any-return]


def _reflected(name: str, function: Callable[[Any, Any], Any], category: frozenset[Any]) -> _Binary:
    return _binary(name, lambda a, b: function(b, a), category)


def _changing(name: str, function: Callable[[Any, Any], Any], category: frozenset[Any]) -> _Binary:
    pairs = pairs_of(category)

    def method(self: Array, other: Any, /) -> Array:
        a = self._array
        b = other._array if type(other) is Array else _other(other, a.dtype, name)
        if b is None:
            return NotImplemented  # type: ignore[no-any-return]
        if (a.dtype, b.dtype) not in pairs:
            raise cannot_promote(name, a.dtype, b.dtype, category)
        result = function(a, b)  # lazy: a result that is refused below is never computed
        if result.dtype != a.dtype:
            raise TypeError(f"{name}: an array of {name_of(a.dtype)} cannot become {name_of(result.dtype)}")
        if result.shape != a.shape:
            raise ValueError(f"{name}: an array of shape {a.shape} cannot become one of shape {result.shape}")
        self._array = result
        return self

    return _named(method, name)  # type: ignore[no-any-return]


def _three(
    name: str, function: Callable[[Any, Any], Any], category: frozenset[Any]
) -> tuple[_Binary, _Binary, _Binary]:
    """Return an operator, its reflection, and the one that changes its left operand."""
    return (
        _binary(f"__{name}__", function, category),
        _reflected(f"__r{name}__", function, category),
        _changing(f"__i{name}__", function, category),
    )


def _bare(key: Any) -> Any:
    """Return an index with each `Array` in it unwrapped."""
    if type(key) is tuple:
        return tuple(map(_bare, key))
    return key.mlx if isinstance(key, Array) else key


class Array:
    """An array of the namespace `array_api_mlx`: a wrapper around an ``mx.array``, its attribute `mlx`.

    Use `asarray` to create one. Changes in place, such as ``x[0] = 1`` and ``x += 1``, bind it to another ``mx.array``
    and leave the original one unchanged.
    """

    __slots__ = ("__weakref__", "_array")
    __array_ufunc__ = None  # arithmetic with a NumPy array is an error, not a NumPy array
    __hash__ = None  # type: ignore[assignment]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Refuse NumPy's functions, as its ufuncs are: some would move the values to NumPy without a word."""
        raise TypeError(
            f"numpy.{function.__name__} takes no array of array_api_mlx: use one of its functions, or numpy.asarray(x)"
        )

    def __init__(self, array: Any, /) -> None:
        self._array = array

    # ------------------------------------------------------------------------------------- attributes

    @property
    def mlx(self) -> Any:
        """The ``mx.array`` itself, not a copy."""
        return self._array

    @property
    def dtype(self) -> Any:
        """The data type of the elements."""
        return PUBLIC[self._array.dtype]

    @property
    def device(self) -> Any:
        """The device on which MLX computes by default: its arrays do not belong to a device."""
        return mx.default_device()

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each dimension."""
        return self._array.shape  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self._array.nbytes  # type: ignore[no-any-return]

    @property
    def T(self) -> Array:  # noqa: N802
        """The transpose of a matrix."""
        if self._array.ndim != 2:
            raise ValueError(f"T: x has {self._array.ndim} dimensions, expected 2; mT transposes a stack of matrices")
        return Array(self._array.T)

    @property
    def mT(self) -> Array:  # noqa: N802
        """The transpose of a matrix, or of each of a stack of them."""
        if self._array.ndim < 2:
            raise ValueError(f"mT: x has {self._array.ndim} dimensions, expected at least 2")
        return Array(mx.swapaxes(self._array, -1, -2))

    # ------------------------------------------------------------------------------------- ways in and out

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """Return the namespace; it is the same for all supported versions of the standard."""
        if api_version is not None and api_version not in _VERSIONS:
            raise ValueError(f"api_version is {api_version!r}, expected one of {', '.join(_VERSIONS)}")
        return importlib.import_module("array_api_mlx")

    def __mlx_array__(self) -> Any:
        """Return the ``mx.array``, for MLX's own functions."""
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Compute the values and return them as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
        a = self._array
        values = to_numpy(a)
        if dtype is not None and values.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {name_of(a.dtype)} cannot be read as {dtype} without a copy")
            return values.astype(dtype)
        return values.copy() if copy else values

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's numbers for the device."""
        kind, index = self._array.__dlpack_device__()
        return int(kind), int(index)

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Compute the values and share them with another library, which must not write to them."""
        if dl_device is not None and (int(dl_device[0]), dl_device[1]) not in (self.__dlpack_device__(), _HOST):
            raise BufferError(f"__dlpack__: MLX cannot export to the device {dl_device}")
        a = self._array
        if copy:
            bits = a.view(mx.uint16) if a.dtype == mx.bfloat16 else a
            a = mx.array(np.array(bits), dtype=bits.dtype).view(a.dtype)
        return a.__dlpack__()

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """Return the array itself: MLX arrays do not belong to a device, so `device` can only be the default one."""
        if device != mx.default_device():
            raise ValueError(f"to_device: device is {device!r}, but MLX computes on {mx.default_device()}")
        if stream is not None:
            raise ValueError("to_device: stream is given, but MLX has none to synchronise with")
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self._array,)

    def __repr__(self) -> str:
        a = self._array
        values = np.array2string(to_numpy(a), separator=", ", prefix="Array(")
        shape = f", shape={a.shape}" if not a.size and a.ndim > 1 else ""
        return f"Array({values}{shape}, dtype={name_of(a.dtype)})"

    def __format__(self, spec: str) -> str:
        return format(self._array.item(), spec) if spec and not self._array.ndim else object.__format__(self, spec)

    # ------------------------------------------------------------------------------------- Python's numbers

    def _item(self, kind: str) -> Any:
        if self._array.ndim:
            raise TypeError(f"only a zero-dimensional array converts to a Python {kind}, not shape {self._array.shape}")
        return self._array.item()

    def __bool__(self) -> bool:
        return bool(self._item("bool"))

    def __int__(self) -> int:
        if self._array.dtype in COMPLEX:
            raise TypeError("a complex number cannot be converted to an int")
        return int(self._item("int"))

    def __float__(self) -> float:
        if self._array.dtype in COMPLEX:
            raise TypeError("a complex number cannot be converted to a float")
        return float(self._item("float"))

    def __complex__(self) -> complex:
        return complex(self._item("complex"))

    def __index__(self) -> int:
        if self._array.dtype not in INTEGRAL:
            raise TypeError(f"an array of {name_of(self._array.dtype)} is not an index, expected an integer")
        return int(self._item("index"))

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("a zero-dimensional array has no length")
        return len(self._array)

    def __contains__(self, value: Any) -> bool:
        found = self == value
        return isinstance(found, Array) and bool(mx.any(found._array).item())

    def __iter__(self) -> Iterator[Array]:
        if not self._array.ndim:
            raise TypeError("a zero-dimensional array cannot be iterated over")
        require_lengths("iter(x)")
        return map(Array, self._array)

    # ------------------------------------------------------------------------------------- indexing

    def __getitem__(self, key: Any, /) -> Array:
        """Return selected elements; a boolean array in `key` is computed, because the shape depends on its values."""
        return Array(get(self._array, _bare(key)))

    def __setitem__(self, key: Any, value: Any, /) -> None:
        """Replace selected elements; see `__getitem__`."""
        a = self._array
        b = value._array if type(value) is Array else scalar_operand(value, a.dtype, "__setitem__")
        if b is None:
            if not isinstance(value, mx.array):
                raise TypeError(f"__setitem__: value is {type(value).__name__}, expected an array or a Python number")
            b = value
        if (a.dtype, b.dtype) not in PROMOTION or (b.dtype in COMPLEX) > (a.dtype in COMPLEX):
            raise TypeError(f"__setitem__: {name_of(b.dtype)} values cannot be stored in a {name_of(a.dtype)} array")
        self._array = put(a, _bare(key), b.astype(a.dtype))

    # ------------------------------------------------------------------------------------- operators

    __abs__ = _unary("__abs__", mx.abs, NUMERIC)
    __neg__ = _unary("__neg__", mx.negative, NUMERIC)
    __pos__ = _unary("__pos__", lambda a: a, NUMERIC)
    __invert__ = _unary("__invert__", mx.bitwise_invert, INTEGRAL_OR_BOOL)

    __add__, __radd__, __iadd__ = _three("add", mx.add, NUMERIC)
    __sub__, __rsub__, __isub__ = _three("sub", mx.subtract, NUMERIC)
    __mul__, __rmul__, __imul__ = _three("mul", mx.multiply, NUMERIC)
    __truediv__, __rtruediv__, __itruediv__ = _three("truediv", mx.divide, NUMERIC)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _three("floordiv", _arithmetic.floor_divide, REAL)
    __mod__, __rmod__, __imod__ = _three("mod", _arithmetic.remainder, REAL)
    __pow__, __rpow__, __ipow__ = _three("pow", _arithmetic.power, NUMERIC)
    __matmul__, __rmatmul__, __imatmul__ = _three("matmul", _arithmetic.matmul, NUMERIC)
    __and__, __rand__, __iand__ = _three("and", mx.bitwise_and, INTEGRAL_OR_BOOL)
    __or__, __ror__, __ior__ = _three("or", mx.bitwise_or, INTEGRAL_OR_BOOL)
    __xor__, __rxor__, __ixor__ = _three("xor", mx.bitwise_xor, INTEGRAL_OR_BOOL)
    __lshift__, __rlshift__, __ilshift__ = _three("lshift", _arithmetic.left_shift, INTEGRAL)
    __rshift__, __rrshift__, __irshift__ = _three("rshift", _arithmetic.right_shift, INTEGRAL)

    __eq__ = _binary("__eq__", mx.equal, ALL)  # type: ignore[assignment]
    __ne__ = _binary("__ne__", mx.not_equal, ALL)  # type: ignore[assignment]
    __lt__ = _binary("__lt__", mx.less, REAL)
    __le__ = _binary("__le__", mx.less_equal, REAL)
    __gt__ = _binary("__gt__", mx.greater, REAL)
    __ge__ = _binary("__ge__", mx.greater_equal, REAL)
