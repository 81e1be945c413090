"""Formats of quantized numbers: how blocks of bytes, as files store them, become numbers.

Each is a module with one `Format`, written once in operations of the Array API for arrays of every library. Another
package adds one by an entry point of the group ``tensorops.formats``, whose name is that of the format and whose object
is the `Format`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tensorops._messages import meant
from tensorops.formats._format import Affine, Format, Groups
from tensorops.formats._fp8 import fp8_blocks
from tensorops.formats._interleaved import Interleaved, interleaved
from tensorops.formats.sparse_2_4 import prune_2_4

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Affine", "Format", "Groups", "Interleaved", "fp8_blocks", "get", "names", "prune_2_4"]

_OWN = (
    "fp8_e4m3", "fp8_e5m2", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0",
    "q5_1", "q5_k", "q6_k", "q8_0", "sparse_2_4"
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the names of all formats.

    Returns
    -------
    tuple of str
        Names for `get`, in alphabetical order.

    Examples
    --------
    >>> from tensorops import formats
    >>> "q4_k" in formats.names()
    True
    """
    return tuple(sorted({*_OWN, *_entries()}))


_loaded: dict[str, Format] = {}


def load_own() -> None:
    """Load the formats of this package, also interleaved: compilers can trace no import."""
    for name in _OWN:
        get(name)
        get(name + Interleaved.ENDING)


def get(name: str) -> Format:
    """Return a format.

    Parameters
    ----------
    name : str
        One of `names`, also with ``_x32`` behind it: its blocks interleaved, which some kernels multiply faster.

    Returns
    -------
    Format
        How to read its blocks; an `Interleaved` one is also how to make them.

    Raises
    ------
    ValueError
        If there is no such format.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorops import formats
    >>> q8_0 = formats.get("q8_0")
    >>> stored = np.asarray([[0, 60, *range(32)]], dtype=np.uint8)  # the scale 1.0, and 32 integers
    >>> q8_0.values(np, stored)[0, :4]
    array([0., 1., 2., 3.], dtype=float32)
    """
    found = _loaded.get(name)  # which compilers can trace, unlike imports
    return _load(name) if found is None else found


def _load(name: str) -> Format:
    if name.endswith(Interleaved.ENDING):
        of = get(name.removesuffix(Interleaved.ENDING))
        if isinstance(of, Interleaved):
            raise ValueError(f"there is no format {name!r}: {of.name!r} is interleaved")
        return _loaded.setdefault(name, interleaved(of))
    if name in _OWN:
        found = import_module(f"tensorops.formats.{name}").FORMAT
    else:
        entries = _entries()
        if name not in entries:
            raise ValueError(f"there is no format {name!r}{meant(name, names())}")
        found = entries[name].load()
    if not isinstance(found, Format):
        raise TypeError(f"the format {name!r} is a {type(found).__name__}, expected a tensorops.formats.Format")
    return _loaded.setdefault(name, found)


def _entries() -> dict[str, EntryPoint]:
    """Return what other packages add."""
    from importlib.metadata import entry_points  # takes as long as importing all the rest

    return {entry.name: entry for entry in entry_points(group="tensorops.formats")}
