"""The backend ``tiny``: what tensorops needs to know of the array library in this package.

tensorops imports this module when somebody names the backend, asks for all of them, or brings an array that it does not
know. It should cost little: the array library itself is imported when it is put to use.
"""

from __future__ import annotations

import numpy as np

from tensorops.backends import Backend, Library, Provider

__all__ = ["backend", "provider"]


def _to_numpy(x):
    return x.to_numpy()


def _from_numpy(a, device):
    """Raise `TypeError` here for a dtype that your library lacks."""
    from tensorops_tiny.array import Array

    return Array(a)


backend = Backend(
    name="tiny",
    library=Library(
        name="tiny",
        packages=("tensorops_tiny",),
        array_type="tensorops_tiny.array:Array",
        standard="tensorops_tiny.xp",
        to_numpy=_to_numpy,
        from_numpy=_from_numpy,
        quiet=lambda: np.errstate(all="ignore"),
        host_values=True,
    ),
    summary="a tiny array library, as an example",
    tested="in the tests of tensorops",
    isolated=False,  # there is no driver that could hang
)

provider = Provider(
    name="tiny", libraries=("tiny",), kernels="tensorops_tiny.kernels", summary="kernels for tiny arrays, as an example"
)
