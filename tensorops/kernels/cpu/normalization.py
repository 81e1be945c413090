"""Normalization on the CPU; see ``native/cpu/rms_norm.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.normalization import rms_norm

# The compiled function is the kernel: it declines in C++ what `supports` refuses, so a call needs no launcher.
rms_norm.kernel("cpu", supports=_native.rms_norm_supports, declines=True)(_native.rms_norm)
