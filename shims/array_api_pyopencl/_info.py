"""The standard's inspection of what the namespace can do."""

from __future__ import annotations

from typing import Any

from array_api_pyopencl import _devices, _dtypes
from array_api_pyopencl._devices import Device, as_device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._layout import MAX_DIMENSIONS


class Info:
    """The object that `__array_namespace_info__` returns."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional behaviour is supported."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_DIMENSIONS}

    def default_device(self) -> Device:
        """Return the device of new arrays."""
        return _devices.default_device()

    def devices(self) -> tuple[Device, ...]:
        """Return one device for each OpenCL device found."""
        return _devices.devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the default types on a device, with the widest floating-point types that it has."""
        target = as_device(device)
        return {
            "real floating": target.default_float,
            "complex floating": target.default_complex,
            "integral": _dtypes.int64,
            "indexing": _dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """Return the standard's data types that a device has: all, or those of given kinds."""
        kinds = tuple(_dtypes.KINDS) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        for k in kinds:
            if k not in _dtypes.KINDS:
                raise ValueError(f"kind is {k!r}, expected one of {', '.join(_dtypes.KINDS)}")
        there = as_device(device).dtypes
        return {
            name: dtype
            for name, dtype in _dtypes.ALL.items()
            if dtype in there and name != "float16" and any(_dtypes.is_kind(dtype, k) for k in kinds)
        }


def __array_namespace_info__() -> Info:  # noqa: N807 (the standard's name)
    """Return what the namespace can do, by device."""
    return Info()
