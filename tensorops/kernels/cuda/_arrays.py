"""What the launcher must know of CuPy's arrays and torch's tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from tensorops._dtypes import name_of
from tensorops.kernels._gpu.plans import ITEM_SIZES, Operand, contiguous_strides

Facts: TypeAlias = tuple[Any, tuple[int, ...], tuple[int, ...], int, int]
"""The metadata of an array: dtype, shape, strides in the library's unit, device, the last bits of its address."""

Generator = np.random.Generator
_LAST_BITS = 15  # vectors have up to 16 bytes


class RefusedError(TypeError):
    """A call is left to the library; `Arrays.refuse` mostly says more precisely why."""


class Arrays(Protocol):
    """A library's arrays in the memory of GPUs."""

    def sign(self, values: tuple[Any, ...], key: list[Any], places: list[Any]) -> Sequence[int]:
        """Append to a key what tells a call from others, and to a list its arrays' addresses, besides its generators.

        Returns how many bytes of memory each array has from its address on, of libraries whose arrays may have too
        little. Raises `RefusedError` if a call is refused for what the key does not tell.
        """

    def refuse(self, values: tuple[Any, ...]) -> str | None:
        """Return why a call must be left to the library, or ``None``."""

    def facts(self, x: Any) -> Facts:
        """Return the metadata of an array."""

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot."""

    def pointer(self, x: Any, /) -> int:
        """Return the address of an array's first element."""

    def current(self) -> int:
        """Return the index of the current device."""

    def device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which a device is the current one."""

    def stream(self, device: int, /) -> int:
        """Return the handle of the current stream of the current device."""

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new array on the current device, which is `device`."""

    def put(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return an array of the host on the current device, which is `device`."""


class CupyArrays:
    """CuPy's arrays."""

    def __init__(self, cupy: Any) -> None:
        self._array, self._empty, self._put = cupy.ndarray, cupy.empty, cupy.asarray
        self._stream = cupy.cuda.get_current_stream
        self.current = cupy.cuda.runtime.getDevice
        self.device = cupy.cuda.Device

    def sign(self, values: tuple[Any, ...], key: list[Any], places: list[Any]) -> tuple[()]:
        """Append to a key what tells a call from others, and to a list the addresses of its arrays."""
        for x in values:
            kind = type(x)
            if kind is self._array:
                memory = x.data
                pointer = memory.ptr
                key += (x.dtype, x.shape, x.strides, memory.device_id, pointer & _LAST_BITS)
                places.append(pointer)
            elif kind is Generator:
                key.append(kind)
                places.append(x)
            else:
                key += (kind, x)
        return ()

    def refuse(self, values: tuple[Any, ...]) -> None:
        """Return ``None``: CuPy records nothing."""

    def facts(self, x: Any) -> Facts:
        """Return the metadata of an array."""
        return x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr & _LAST_BITS

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot: CuPy counts strides in bytes."""
        dtype, _, strides, *_ = facts
        if any(stride % dtype.itemsize for stride in strides):
            return "the strides of an array are not multiples of the size of its elements"
        return _operand(facts, tuple(stride // dtype.itemsize for stride in strides))

    def pointer(self, x: Any, /) -> int:
        """Return the address of an array's first element."""
        return int(x.data.ptr)

    def stream(self, device: int, /) -> int:
        """Return the handle of the current stream of the current device."""
        return int(self._stream().ptr)

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new array on the current device."""
        import ml_dtypes

        return functools.partial(self._empty, shape, np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))

    def put(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return an array of the host on the current device."""
        return self._put(a)


class TorchTensors:
    """Torch's tensors."""

    def __init__(self, torch: Any) -> None:
        from tensorops.libraries.torch import observers, refuse_tensors

        self._torch, self._tensor, self._parameter = torch, torch.Tensor, torch.nn.Parameter
        self._observers, self._forward, self._records = (
            observers(torch),
            torch.autograd.forward_ad,
            torch.is_grad_enabled,
        )
        self.refuse = functools.partial(refuse_tensors, host=False)
        self.current = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)  # the latter starts CUDA first
        self.device = torch.cuda.device
        self.pointer = torch.Tensor.data_ptr
        # As what torch's own compiler makes asks for it; torch without CUDA has no such function, and no such tensors.
        self.stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def sign(self, values: tuple[Any, ...], key: list[Any], places: list[Any]) -> list[int]:
        """Append to a key what tells a call from others, and to a list the addresses of its arrays.

        Returns how many bytes of memory each has from its address on: torch resizes storages in place.
        """
        transformation, modes, function_modes, traced = self._observers
        if modes() or function_modes() or traced() or transformation() is not None or self._forward._current_level >= 0:
            raise RefusedError("torch must see the call")
        records, tensor, parameter = self._records(), self._tensor, self._parameter
        rooms = []
        try:
            for x in values:
                kind = type(x)
                if kind is tensor or kind is parameter:
                    if not x.is_cuda or x.is_neg() or (records and x.requires_grad):
                        raise RefusedError("an argument is not a plain tensor on a CUDA device")
                    pointer, storage = x.data_ptr(), x.untyped_storage()
                    key += (x.dtype, x.shape, x.stride(), x.get_device(), pointer & _LAST_BITS)
                    places.append(pointer)
                    rooms.append(storage.data_ptr() + storage.nbytes() - pointer)
                elif kind is Generator:
                    key.append(kind)
                    places.append(x)
                else:
                    key += (kind, x)
        except RuntimeError:
            raise RefusedError("an argument is a tensor without strides or without memory") from None
        return rooms

    def facts(self, x: Any) -> Facts:
        """Return the metadata of a tensor."""
        return x.dtype, x.shape, x.stride(), x.get_device(), x.data_ptr() & _LAST_BITS

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot."""
        return _operand(facts, facts[2])

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new tensor on a device."""
        kind, strides = getattr(self._torch, dtype), contiguous_strides(shape)
        return functools.partial(self._torch.empty_strided, shape, strides, dtype=kind, device=device)

    def put(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return an array of the host on a device."""
        return self._torch.from_numpy(a).to(device)


def reach(operand: Operand) -> int:
    """Return how many bytes there are from an array's address to the end of its last element."""
    if 0 in operand.shape:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(operand.shape, operand.strides, strict=True))
    return (last + 1) * ITEM_SIZES[operand.dtype]


def _operand(facts: Facts, strides: tuple[int, ...]) -> Operand | str:
    dtype, shape, _, _, last_bits = facts
    aligned = last_bits & -last_bits or _LAST_BITS + 1
    name = name_of(dtype)
    if name not in ITEM_SIZES:
        return f"an array has dtype {name}"
    if aligned < ITEM_SIZES[name]:
        return "the address of an array is not a multiple of the size of its elements"
    return Operand(name, tuple(shape), strides, 0, aligned)


owners: dict[type, Arrays | None] = {}
"""Whose arrays have a type, of the types that were asked for: `arrays_of` asks."""


def arrays_of(kind: type) -> Arrays | None:
    """Return whose arrays have this type; ``None`` if it is not exactly that of a library's arrays."""
    try:
        return owners[kind]
    except KeyError:
        return owners.setdefault(kind, _find(kind))


def library_of(values: tuple[Any, ...]) -> Arrays | None:
    """Return whose arrays a call has first, if any."""
    for value in values:
        library = owners.get(type(value)) or arrays_of(type(value))
        if library is not None:
            return library
    return None


def _find(kind: type) -> Arrays | None:
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None and kind is cupy.ndarray:
        return CupyArrays(cupy)
    if torch is not None and kind is torch.nn.Parameter:
        return arrays_of(torch.Tensor)  # the same object: they may be mixed
    return TorchTensors(torch) if torch is not None and kind is torch.Tensor else None
