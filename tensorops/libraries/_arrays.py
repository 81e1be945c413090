"""Helpers for transfers between libraries: NumPy's bfloat16, byte order, and memory that can be shared."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def bfloat16() -> np.dtype[Any]:
    """Return NumPy's dtype for bfloat16, from ml_dtypes."""
    import ml_dtypes
    import numpy as np

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def native_byte_order(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `a` in the byte order of this machine."""
    return a if a.dtype.isnative else a.astype(a.dtype.newbyteorder("="))


def shareable(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return `a`, or a copy if DLPack cannot share it because of negative strides or read-only memory."""
    native = native_byte_order(a)
    if native.flags.writeable and native.flags.aligned and all(s >= 0 for s in native.strides):
        return native
    return native.copy()


def numpy_quiet() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which NumPy computes without warnings about special values."""
    import numpy as np

    return np.errstate(all="ignore")
