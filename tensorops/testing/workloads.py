"""What operators are timed with: arguments of everyday sizes, and how to wait until a result has been computed.

Cases are small, and made to be difficult; workloads are large, and made to be ordinary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorops._messages import nearest
from tensorops.backends import registry
from tensorops.libraries import Library, Runtime, library_of, runtime_of
from tensorops.testing._libraries import arrays_in
from tensorops.testing.entries import Maker, Workload
from tensorops.testing.tables import WORKLOADS

__all__ = ["SIZES", "WORKLOADS", "Workload", "wait_for", "waiter", "workload"]

SIZES: dict[str, tuple[int, int]] = {
    "small": (1, 64),
    "decode": (1, 4096),
    "prefill": (128, 4096),
    "large": (2048, 4096),
}
"""Names for some of `BENCHMARK_SHAPES` (rows, features): the cost of a call, one token, a prompt, many prompts."""


def workload(operator: str, rows: int, features: int, dtype_name: str = "float32") -> Workload:
    """Return arguments of an operator, as NumPy arrays, the same ones every time.

    Parameters
    ----------
    operator : str
        Its name.
    rows, features : int
        The shape of its main input. Attention takes as many queries as rows, and heads of 64 features; the features
        of losses and of sampling are classes.
    dtype_name : str
        The dtype of floating inputs.

    Raises
    ------
    ValueError
        If there is none for the operator, or its shape cannot be had.

    Examples
    --------
    >>> [x.shape for x in workload("linear", 2, 64).args]
    [(2, 64), (64, 64)]
    """
    if operator not in WORKLOADS:
        near = nearest(operator, WORKLOADS)
        raise ValueError(f"no workload for {operator!r}{near}; valid names: {', '.join(WORKLOADS)}")
    return WORKLOADS[operator](Maker(rows, features, dtype_name))


@functools.cache
def waiter(row: Library) -> Callable[[list[Any]], object] | None:
    """Return what waits for arrays of a library, or ``None`` if its results are there when it returns.

    The runtime of the library knows how to wait; where there is none, arrays are copied to host memory.
    """
    if row.wait is not None:
        return row.wait
    backend = next((backend for backend in registry.BACKENDS.values() if backend.library is row), None)
    if backend is None or type(runtime := runtime_of(backend)) is Runtime:
        return lambda arrays: [row.to_numpy(array) for array in arrays]
    if type(runtime).do_synchronize is Runtime.do_synchronize:
        return None
    return lambda arrays: runtime.synchronize()


def wait_for(result: Any) -> Any:
    """Return `result`, an array or several in nested containers, once it has been computed.

    Examples
    --------
    >>> import numpy as np
    >>> wait_for((np.ones(2), None))
    (array([1., 1.]), None)
    """
    if arrays := arrays_in(result):
        row = library_of(arrays[0])
        assert row is not None
        if (wait := waiter(row)) is not None:
            wait([row.unwrap(array) for array in arrays])
    return result
