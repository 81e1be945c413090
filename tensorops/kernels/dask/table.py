"""Operators computed block by block: all that declare the axes along which their calls may be split."""

from __future__ import annotations

from tensorops.kernels.dask._launch import register
from tensorops.ops import every_operator

for _operator in every_operator():
    if _operator.divides:
        register(_operator)
