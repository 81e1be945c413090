"""Operators computed block by block: all that declare along which axes their calls may be divided."""

from __future__ import annotations

from tensorops.kernels.dask._launch import register
from tensorops.ops import every_operator

for _operator in every_operator():
    if _operator.divides:
        register(_operator)
