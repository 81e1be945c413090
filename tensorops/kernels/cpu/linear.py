"""Linear maps on the CPU; see ``native/cpu/linear.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.linear import embedding, linear

embedding.kernel("cpu", supports=_native.embedding_supports, declines=True)(_native.embedding)
linear.kernel("cpu", supports=_native.linear_supports, declines=True)(_native.linear)
