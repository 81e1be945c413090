"""The array object: a buffer, a layout, and the device whose queue orders all operations on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyopencl as cl
import pyopencl.array

from array_api_pyopencl import _calls, _dlpack, _indexing, _layout, _products, _registered
from array_api_pyopencl._arguments import named, raw
from array_api_pyopencl._devices import Device, as_device, default_device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._layout import Layout, Shape

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


_Unary: TypeAlias = "Callable[[Array], Array]"
_Binary: TypeAlias = "Callable[[Array, Any], Array]"


def _unary(name: str, function: str) -> _Unary:
    def method(self: Array, /) -> Array:
        return _calls.unary(function, self)

    return named(method, name, f"Array.{name}")  # type: ignore[no-any-return]


def _binary(name: str, function: str) -> _Binary:
    def method(self: Array, other: Any, /) -> Array:
        return _calls.operator(function, self, other)

    return named(method, name, f"Array.{name}")  # type: ignore[no-any-return]


def _three(name: str, function: str) -> tuple[_Binary, _Binary, _Binary]:
    """Return an operator, its reflection, and the one that changes its left operand."""

    def reflected(self: Array, other: Any, /) -> Array:
        return _calls.operator(function, other, self)

    def changing(self: Array, other: Any, /) -> Array:
        return _calls.in_place(function, self, other) if _is_operand(other) else NotImplemented

    others = (named(f, f"__{of}{name}__", f"Array.__{of}{name}__") for of, f in (("r", reflected), ("i", changing)))
    return _binary(f"__{name}__", function), *others


class Array:
    """An Array API array over OpenCL memory; created by the functions of `array_api_pyopencl`, not directly.

    Computations are enqueued and return at once; reading a value waits for them. Slices, transposes, and the results of
    `broadcast_to`, `flip`, `permute_dims` and most calls of `reshape` share memory with the original array, and
    assignments through either are seen by both.
    """

    __slots__ = ("__weakref__", "_buffer", "_device", "_layout")

    __array_ufunc__ = None  # so NumPy arrays leave mixed operators to this class

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Refuse NumPy's functions, as its ufuncs are: some would move the values to NumPy without a word."""
        raise TypeError(
            f"numpy.{function.__name__} takes no array of array_api_pyopencl: use one of its functions, or "
            "numpy.asarray(x)"
        )

    def __init__(self, buffer: Any, layout: Layout, device: Device) -> None:
        self._buffer = buffer
        self._layout = layout
        self._device = device

    # ------------------------------------------------------------------------------------- attributes

    @property
    def dtype(self) -> DType:
        """The data type of the elements, a NumPy dtype."""
        return self._layout.dtype

    @property
    def device(self) -> Device:
        """The device, which represents an OpenCL command queue."""
        return self._device

    @property
    def shape(self) -> Shape:
        """The lengths of the dimensions."""
        return self._layout.shape

    @property
    def strides(self) -> Shape:
        """The distance between neighbours along each dimension, in bytes."""
        return tuple(s * self._layout.itemsize for s in self._layout.strides)

    @property
    def offset(self) -> int:
        """The position of the first element in the buffer, in bytes."""
        return self._layout.offset * self._layout.itemsize

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._layout.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of all elements."""
        return self._layout.nbytes

    @property
    def T(self) -> Array:  # noqa: N802 (the standard's name)
        """The transpose of a matrix, without a copy."""
        if self.ndim != 2:
            raise ValueError(f"T is defined for two dimensions, not for {self.ndim}; see mT and permute_dims")
        return self.mT

    @property
    def mT(self) -> Array:  # noqa: N802 (the standard's name)
        """The array with its last two dimensions swapped, without a copy."""
        if self.ndim < 2:
            raise ValueError(f"mT is defined for two dimensions or more, not for {self.ndim}")
        shape, strides = self._layout.shape, self._layout.strides
        return self._view((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))

    @property
    def cl_array(self) -> cl.array.Array:
        """The same memory as a `pyopencl.array.Array`, on the same queue."""
        return raw(self._buffer, self._layout, self._device)

    def _view(self, shape: Shape, strides: Shape, offset: int | None = None) -> Array:
        """Return an array that shares this one's memory; strides and offset are counted in elements."""
        old = self._layout
        layout = _layout.layout(old.dtype, shape, strides, old.offset if offset is None else offset)
        return Array(self._buffer, layout, self._device)

    # ----------------------------------------------------------------------------- to the host and away

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a new NumPy array, after waiting for them."""
        readable = self._layout.contiguous and not (self._layout.offset and _dlpack.is_svm(self._buffer))
        x = self if readable else _calls.compute("copy", (self,))
        layout = x._layout
        values = self._device.read(x._buffer, layout.offset, layout.size, layout.dtype)
        return values.reshape(layout.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a NumPy array of OpenCL memory is always a copy")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """Return the array on another device, or itself if it is already there.

        Parameters
        ----------
        device
            A device of this namespace, a `pyopencl.CommandQueue` or a `pyopencl.Device`.
        stream
            Must be ``None``: the order is that of the two queues.
        """
        if stream is not None:
            raise ValueError("to_device does not accept a stream: a device represents its queue")
        target = as_device(device)
        if target == self._device:
            return self
        target.require(self.dtype)
        x = _calls.compute("copy", (self,))
        if target.context == self._device.context:
            return Array(_calls.copy_between_queues(x._buffer, self._device, target), x._layout, target)
        return Array(target.write(x.numpy()), x._layout, target)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return _dlpack.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        if api_version is not None and api_version not in API_VERSIONS:
            raise ValueError(f"api_version is {api_version!r}, expected one of {', '.join(API_VERSIONS)}")
        import array_api_pyopencl

        return array_api_pyopencl

    def _item(self, kinds: str, into: str) -> Any:
        if self._layout.shape != ():
            raise TypeError(f"only a zero-dimensional array converts to a Python {into}, not one of shape {self.shape}")
        if self.dtype.kind not in kinds:
            raise TypeError(f"an array of {self.dtype.name} cannot be converted to a Python {into}")
        return self.numpy()[()]

    def __bool__(self) -> bool:
        return bool(self._item("biufc", "bool"))

    def __int__(self) -> int:
        return int(self._item("biuf", "int"))

    def __index__(self) -> int:
        return int(self._item("iu", "index"))

    def __float__(self) -> float:
        return float(self._item("biuf", "float"))

    def __complex__(self) -> complex:
        return complex(self._item("biufc", "complex"))

    def __format__(self, spec: str) -> str:
        return format(self.numpy().item(), spec) if spec and not self.shape else object.__format__(self, spec)

    def __contains__(self, value: Any) -> bool:
        found = self == value
        return isinstance(found, Array) and bool(found.numpy().any())

    def __copy__(self) -> Array:
        return _calls.compute("copy", (self,))

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return _calls.compute("copy", (self,))

    def __reduce__(self) -> tuple[Any, ...]:
        return _on_default_device, (self.numpy(),)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a zero-dimensional array has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("a zero-dimensional array cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def __repr__(self) -> str:
        values = np.array2string(self.numpy(), separator=", ", prefix="Array(")
        shape = f", shape={self.shape}" if not self.size and self.ndim > 1 else ""
        return f"Array({values}{shape}, dtype={self.dtype.name})"

    # --------------------------------------------------------------------------------------- elements

    def __getitem__(self, key: Any, /) -> Array:
        return _indexing.getitem(self, key)

    def __setitem__(self, key: Any, value: Any, /) -> None:
        _indexing.setitem(self, key, value)

    # -------------------------------------------------------------------------------------- operators

    __abs__ = _unary("__abs__", "abs")
    __neg__ = _unary("__neg__", "negative")
    __pos__ = _unary("__pos__", "positive")
    __invert__ = _unary("__invert__", "bitwise_invert")

    __eq__ = _binary("__eq__", "equal")  # type: ignore[assignment]
    __ne__ = _binary("__ne__", "not_equal")  # type: ignore[assignment]
    __lt__ = _binary("__lt__", "less")
    __le__ = _binary("__le__", "less_equal")
    __gt__ = _binary("__gt__", "greater")
    __ge__ = _binary("__ge__", "greater_equal")

    __add__, __radd__, __iadd__ = _three("add", "add")
    __sub__, __rsub__, __isub__ = _three("sub", "subtract")
    __mul__, __rmul__, __imul__ = _three("mul", "multiply")
    __truediv__, __rtruediv__, __itruediv__ = _three("truediv", "divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _three("floordiv", "floor_divide")
    __mod__, __rmod__, __imod__ = _three("mod", "remainder")
    __pow__, __rpow__, __ipow__ = _three("pow", "pow")
    __and__, __rand__, __iand__ = _three("and", "bitwise_and")
    __or__, __ror__, __ior__ = _three("or", "bitwise_or")
    __xor__, __rxor__, __ixor__ = _three("xor", "bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _three("lshift", "bitwise_left_shift")
    __rshift__, __rrshift__, __irshift__ = _three("rshift", "bitwise_right_shift")

    def __matmul__(self, other: Any, /) -> Array:
        return _products.matmul(self, other) if isinstance(other, _ARRAYS) else _calls.not_an_operand("matmul", other)

    def __rmatmul__(self, other: Any, /) -> Array:
        return _products.matmul(other, self) if isinstance(other, _ARRAYS) else _calls.not_an_operand("matmul", other)

    def __imatmul__(self, other: Any, /) -> Array:
        if not isinstance(other, _ARRAYS):
            return NotImplemented
        self[...] = _products.matmul(self, other)
        return self

    __hash__ = None  # type: ignore[assignment]


def _on_default_device(values: np.ndarray[Any, Any]) -> Array:
    """Return an array with the values of a pickled one, perhaps on a machine with other devices."""
    device = default_device()
    return Array(device.write(values), _layout.contiguous(device.require(values.dtype), values.shape), device)


_ARRAYS = (Array, pyopencl.array.Array)
_OPERANDS = (Array, bool, int, float, complex, np.generic, pyopencl.array.Array)


def _is_operand(x: object) -> bool:
    return type(x) is Array or isinstance(x, _OPERANDS)


_registered.Array = Array  # type: ignore[misc]
