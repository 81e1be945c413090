"""The operators block by block on Dask arrays: one task per block calls the operator, instead of one task per step.

The operator then chooses among the kernels for the library of the blocks. Blocks are computed where they are, with
the automatic choice. `set_backend` and traces apply to the Dask arrays only, both when the graph is built and when it
is computed: the threads and processes that compute blocks do not see them.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="dask",
    libraries=("dask",),
    kernels="tensorops.kernels.dask.table",
    summary="one task for each block, which calls the operator on the block",
)
