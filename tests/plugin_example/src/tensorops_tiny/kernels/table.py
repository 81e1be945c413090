"""The kernels. tensorops imports this module when the first array arrives that they may serve."""

from __future__ import annotations

import numpy as np

import tensorops
from tensorops.kernels import Deviation
from tensorops_tiny.array import Array
from tensorops_tiny.operators import softsign


def _supports_wide(x):
    """Return why the kernel cannot take this array, or nothing: looking at metadata only."""
    if x.dtype not in (np.float32, np.float64):
        return f"x has dtype {x.dtype.name}, the kernel takes float32 and float64"
    return None


@tensorops.silu.kernel("tiny", supports=_supports_wide)
def _(x):
    values = x.to_numpy()
    with np.errstate(all="ignore"):  # special values are results
        return Array(values / (1 + np.exp(-values)))


@softsign.kernel("tiny", supports=_supports_wide)
def _(x):
    values = x.to_numpy()
    return Array(values / (1 + np.abs(values)))


# The operator promises a result for every finite x, which plain squares in float32 do not give. The kernel declares it,
# so that it runs for float32 only if it is named: set_backend("tiny", providers=["tiny", "generic"]). The squares of
# float16 are computed in float32 and keep the promise.
_SQUARES = Deviation(("float32",), "squares overflow from 1.8e19 on", tags=("overflow",))


def _supports_rms_norm(x, weight, eps, *, axis, weight_offset):
    if x.dtype not in (np.float16, np.float32):
        return f"x has dtype {x.dtype.name}, the kernel takes float16 and float32"
    if axis != x.ndim - 1:
        return "axis is not the last of x"
    return "the rows of x are empty" if x.shape[-1] == 0 else None


@tensorops.rms_norm.kernel("tiny", supports=_supports_rms_norm, deviation=_SQUARES)
def _(x, weight, eps, *, axis, weight_offset):
    values = x.to_numpy().astype(np.float32)
    with np.errstate(all="ignore"):
        y = values / np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(eps))
        if weight is not None:
            y *= weight.to_numpy().astype(np.float32) + np.float32(weight_offset)
        return Array(y.astype(x.dtype))
