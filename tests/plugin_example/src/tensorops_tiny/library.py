"""All that tensorops needs to know of the array library, in one file: its row and the backends that compute with it.

tensorops imports this module when somebody names the backend, asks for all of them, or passes an array of a type that
it does not know. The import should cost little: the arrays' own module is imported when the first one is made.

As ``tensorops/libraries/tiny.py``, the file would do the same inside tensorops, with no entry point.
"""

from __future__ import annotations

from tensorops.libraries import Backend, Library


def _to_numpy(x):
    return x.to_numpy()


def _from_numpy(a, device):
    """Raise `TypeError` here for a dtype that your library lacks."""
    from tensorops_tiny.array import Array

    return Array(a)


def _quiet():
    import numpy as np  # as late as possible: this module is imported with tensorops if it is in its folder

    return np.errstate(all="ignore")


LIBRARY = Library(
    name="tiny",
    packages=("tensorops_tiny",),
    array_type="tensorops_tiny.array:Array",
    standard="tensorops_tiny.xp",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    quiet=_quiet,
    host_values=lambda x: True,
)

BACKENDS = (
    Backend(
        name="tiny",
        library=LIBRARY,
        summary="a tiny array library, as an example",
        tested="in the tests of tensorops",
        isolated=False,  # there is no driver that could hang
    ),
)

(backend,) = BACKENDS  # what the entry point names
