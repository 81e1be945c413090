"""Normalization on the CPU; see ``native/cpu/rms_norm.cpp`` and ``layer_norm.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.normalization import add_rms_norm, layer_norm, rms_norm

# The compiled functions are the kernels: they decline in C++ what `supports` refuses, so a call needs no launcher.
rms_norm.kernel("cpu", supports=_native.rms_norm_supports, declines=True)(_native.rms_norm)
add_rms_norm.kernel("cpu", supports=_native.add_rms_norm_supports, declines=True)(_native.add_rms_norm)
layer_norm.kernel("cpu", supports=_native.layer_norm_supports, declines=True)(_native.layer_norm)
