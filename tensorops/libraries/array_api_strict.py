"""array-api-strict: a strict implementation of the standard, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorops.libraries._arrays import native_byte_order, numpy_quiet
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import array_api_strict as xp
    import numpy as np

    return np.asarray(x.to_device(xp.Device("CPU_DEVICE")))


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import array_api_strict as xp

    # Do not share the caller's memory: in-place operators of the library would write to it.
    return xp.asarray(native_byte_order(a), device=device, copy=True)


LIBRARY = Library(
    name="array_api_strict",
    packages=("array_api_strict",),
    array_type="array_api_strict._array_object:Array",
    standard="array_api_strict",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.numpy:NumpyRuntime",
    device=lambda x: x.device,
    quiet=numpy_quiet,
    host_values=lambda x: True,
    sums_in_order=True,
)

BACKENDS = (
    Backend(
        "array_api_strict",
        LIBRARY,
        "the standard at its strictest, for tests",
        remedy="pip install --upgrade array-api-strict",
        tested=ON_EVERY_CHANGE,
        isolated=False,
        for_tests=True,
    ),
)
