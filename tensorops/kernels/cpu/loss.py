"""Losses on the CPU; see ``native/cpu/cross_entropy.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.loss import cross_entropy

cross_entropy.kernel("cpu", supports=_native.cross_entropy_supports, declines=True)(_native.cross_entropy)
