"""The standard's inspection of what the namespace can do."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import require_device
from array_api_mlx._dtypes import INDEX, KINDS, PUBLIC, complex64, float32, int32

_OF_THE_STANDARD = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
)  # fmt: skip


class Info:
    """The result of `__array_namespace_info__`."""

    __module__ = "array_api_mlx"

    def capabilities(self) -> dict[str, Any]:
        """Return the optional behaviour: boolean indexing and data-dependent shapes work, and compute the values."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Any:
        """Return the device on which MLX computes by default."""
        return mx.default_device()

    def devices(self) -> tuple[Any, ...]:
        """Return only the default device: MLX arrays do not belong to a device."""
        return (mx.default_device(),)

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """Return the dtypes that functions use by default."""
        require_device(device, "default_dtypes")
        return {"real floating": float32, "complex floating": complex64, "integral": int32, "indexing": PUBLIC[INDEX]}

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Any]:
        """Return the standard's dtypes that the device supports, by name; GPUs lack float64."""
        require_device(device, "dtypes")
        kinds = tuple(KINDS) if kind is None else (kind,) if isinstance(kind, str) else kind
        for each in kinds:
            if each not in KINDS:
                raise ValueError(f"dtypes: kind is {each!r}, expected one of {', '.join(KINDS)}")
        wanted = frozenset().union(*(KINDS[each] for each in kinds))
        if mx.default_device().type != mx.cpu:
            wanted -= {mx.float64}
        by_name = {dtype.name: dtype for bare, dtype in PUBLIC.items() if bare in wanted}
        return {name: by_name[name] for name in _OF_THE_STANDARD if name in by_name}


def __array_namespace_info__() -> Info:  # noqa: N807
    """Return what the namespace can do: its optional capabilities, devices and dtypes."""
    return Info()
