"""Sampling on the CPU; see ``native/cpu/sample.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.sampling import sample

sample.kernel("cpu", supports=_native.sample_supports, declines=True)(_native.sample)
