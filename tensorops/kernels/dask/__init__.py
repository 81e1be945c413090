"""The operators block by block on Dask arrays: one task per block calls the operator, instead of one task per step.

The operator then chooses among the kernels for the library of the blocks. Blocks are computed where they are. What is
in force when the graph is built goes with each task, also to other processes and machines: the providers that
`set_backend` names after `dask`, and the values of `tune`. What is in force when the graph is computed, or the default
of the process that computes a block, does not apply to blocks; traces record Dask arrays only.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="dask",
    libraries=("dask",),
    kernels="tensorops.kernels.dask.table",
    summary="one task for each block, which calls the operator on the block",
)
