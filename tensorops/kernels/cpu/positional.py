"""Positional encodings on the CPU; see ``native/cpu/rope.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.positional import rope

rope.kernel("cpu", supports=_native.rope_supports, declines=True)(_native.rope)
