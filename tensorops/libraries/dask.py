"""Dask: lazy arrays in chunks, computed by its own schedulers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tensorops.libraries._arrays import numpy_quiet
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.asarray(x.compute())


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import dask.array as da

    # Dask cannot estimate the memory of objects, so it cannot choose the number of blocks.
    return da.from_array(a, chunks=-1 if a.dtype.hasobject else "auto")


def _checked(x: Array, check: Callable[[Array], None]) -> Array:
    return x.map_blocks(_seen, check, dtype=x.dtype, meta=x._meta)


def _seen(block: Array, check: Callable[[Array], None]) -> Array:
    check(block)
    return block


def _wait(arrays: list[Any]) -> object:
    import dask

    return dask.compute(*arrays)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    import dask
    import numpy as np

    with np.errstate(all="ignore"), dask.config.set(scheduler="synchronous"):  # in this thread, where warnings are off
        yield


LIBRARY = Library(
    name="dask",
    packages=("dask",),
    array_type="dask.array:Array",
    standard="array_api_compat.dask.array",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.numpy:NumpyRuntime",
    quiet=numpy_quiet,
    wait=_wait,
    reading=_reading,
    slow=True,
    sums_in_order=True,
    lazy=True,
    checked=_checked,
    extra="dask",
)


BACKENDS = (
    Backend(
        "dask",  # importing it imports CuPy as well, where that is installed
        LIBRARY,
        "Dask arrays: chunked, lazy, larger than memory",
        remedy="pip install --upgrade 'dask[array]'",
        tested=ON_EVERY_CHANGE,
    ),
)
