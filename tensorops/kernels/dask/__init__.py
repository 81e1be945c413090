"""The operators block by block on Dask arrays: one task a block calls the operator on it, instead of one a step.

The operator then chooses among the kernels for the library that the blocks are of. Blocks are computed where they lie,
by the usual choice: what `set_backend` or a trace put in force, when the graph is made or when it is computed, concerns
the Dask arrays and goes no further, as threads and processes that compute blocks would not know of it.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="dask",
    libraries=("dask",),
    kernels="tensorops.kernels.dask.table",
    summary="one task for each block, which calls the operator on the block",
)
