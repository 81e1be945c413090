"""What the launcher must know of CuPy's arrays and torch's tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tensorops._dtypes import name_of
from tensorops.kernels._gpu.plans import ITEM_SIZES, Operand

if TYPE_CHECKING:
    import numpy as np

Facts: TypeAlias = tuple[int, Any, tuple[int, ...], tuple[int, ...], int]
"""The metadata of an array: device, dtype, shape, strides in the library's unit, alignment. A call asks for it."""


class Arrays(Protocol):
    """A library's arrays in the memory of GPUs."""

    def refuse(self, arguments: tuple[Any, ...]) -> str | None:
        """Return why a call must be left to the library, or ``None``."""

    def facts(self, x: Any) -> tuple[Facts, int]:
        """Return the metadata of an array, and its address."""

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot."""

    def pointer(self, x: Any, /) -> int:
        """Return the address of an array's first element."""

    def current(self) -> int:
        """Return the index of the current device."""

    def device(self, index: int) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which a device is the current one."""

    def stream(self, device: int) -> int:
        """Return the handle of the current stream of the current device."""

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new array on the current device, which is `device`."""

    def copy_of(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return a NumPy array's values as an array on a device."""


class CupyArrays:
    """CuPy's arrays."""

    def __init__(self, cupy: Any) -> None:
        self._empty, self._asarray = cupy.empty, cupy.asarray
        self._stream = cupy.cuda.get_current_stream
        self.current = cupy.cuda.runtime.getDevice
        self.device = cupy.cuda.Device

    def refuse(self, arguments: tuple[Any, ...]) -> None:
        """Return ``None``: CuPy records nothing."""

    def facts(self, x: Any) -> tuple[Facts, int]:
        """Return the metadata of an array, and its address."""
        memory = x.data
        pointer = memory.ptr
        return (memory.device_id, x.dtype, x.shape, x.strides, _alignment(pointer)), pointer

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot: CuPy counts strides in bytes."""
        _, dtype, _, strides, _ = facts
        if any(stride % dtype.itemsize for stride in strides):
            return "the strides of an array are not multiples of the size of its elements"
        return _operand(facts, tuple(stride // dtype.itemsize for stride in strides))

    def pointer(self, x: Any, /) -> int:
        """Return the address of an array's first element."""
        return int(x.data.ptr)

    def stream(self, device: int) -> int:
        """Return the handle of the current stream of the current device."""
        return int(self._stream().ptr)

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new array on the current device."""
        import ml_dtypes
        import numpy as np

        return functools.partial(self._empty, shape, np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))

    def copy_of(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return a NumPy array's values as an array on a device."""
        with self.device(device):
            return self._asarray(a)


class TorchTensors:
    """Torch's tensors."""

    def __init__(self, torch: Any) -> None:
        from tensorops.libraries.torch import refuse_tensors

        self._torch = torch
        self.refuse = functools.partial(refuse_tensors, host=False)
        self.current = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)  # the latter starts CUDA first
        self.device = torch.cuda.device
        self.pointer = torch.Tensor.data_ptr

    def facts(self, x: Any) -> tuple[Facts, int]:
        """Return the metadata of a tensor, and its address."""
        pointer = x.data_ptr()
        return (x.get_device(), x.dtype, x.shape, x.stride(), _alignment(pointer)), pointer

    def operand(self, facts: Facts) -> Operand | str:
        """Return metadata as planners take it, or why they cannot."""
        return _operand(facts, facts[3])

    def stream(self, device: int) -> int:
        """Return the handle of the current stream, as what torch's own compiler makes asks for it."""
        return int(self._torch._C._cuda_getCurrentRawStream(device))

    def maker(self, shape: tuple[int, ...], dtype: str, device: int) -> Callable[[], Any]:
        """Return what makes a new tensor on a device."""
        return functools.partial(self._torch.empty, shape, dtype=getattr(self._torch, dtype), device=device)

    def copy_of(self, a: np.ndarray[Any, Any], device: int) -> Any:
        """Return a NumPy array's values as a tensor on a device."""
        return self._torch.from_numpy(a.copy()).to(f"cuda:{device}")


def _alignment(pointer: int) -> int:
    return pointer & -pointer & 15 or 16


def _operand(facts: Facts, strides: tuple[int, ...]) -> Operand | str:
    _, dtype, shape, _, aligned = facts
    name = name_of(dtype)
    if name not in ITEM_SIZES:
        return f"an array has dtype {name}"
    if aligned < ITEM_SIZES[name]:
        return "the address of an array is not a multiple of the size of its elements"
    return Operand(name, tuple(shape), strides, 0, aligned)


_owners: dict[type, Arrays | None] = {}


def arrays_of(kind: type) -> Arrays | None:
    """Return whose arrays have this type; ``None`` if it is not exactly that of a library's arrays."""
    if kind not in _owners:
        _owners[kind] = _find(kind)
    return _owners[kind]


def _find(kind: type) -> Arrays | None:
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None and kind is cupy.ndarray:
        return CupyArrays(cupy)
    if torch is not None and kind is torch.nn.Parameter:
        return arrays_of(torch.Tensor)  # the same object: they may be mixed
    return TorchTensors(torch) if torch is not None and kind is torch.Tensor else None
