"""What is pickled for other processes: it is refused in words, or says which version made it."""

from __future__ import annotations

import copy
import sys
from typing import Any, NoReturn, Self


def _version() -> str:
    return str(sys.modules["tensorops"].__version__)  # an import would go upwards


class Stamp:
    """The first argument of a function that restores an object: it raises where another version unpickles it.

    Arguments are unpickled in order, so the message comes before what an older version lacks, such as an operator.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _stamp_of, (_version(),)


def _stamp_of(version: str) -> Stamp:
    """Return the stamp of another process.

    Raises
    ------
    RuntimeError
        If that has another version.
    """
    if version != _version():
        raise RuntimeError(
            f"this was pickled by tensorops {version}, but this process has tensorops {_version()}: names, defaults "
            "and options may differ, so install the same version for both"
        )
    return Stamp()


class Unpicklable:
    """The base of objects that belong to one process; they can be copied there."""

    _refusal = ""
    """Why, and what to do instead."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(self._refusal)

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made
