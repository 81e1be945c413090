"""Reasons why arrays cannot be in a Pallas kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorops._dtypes import name_of

DTYPES = ("bfloat16", "float32")


def refuse_arrays(arrays: dict[str, Any], dtypes: Sequence[str] = DTYPES) -> str | None:
    """Return why one of the arrays that are given has a dtype or a shape that kernels do not have."""
    for name, a in arrays.items():
        if a is None:
            continue
        if name_of(a.dtype) not in dtypes:
            return f"{name} has dtype {name_of(a.dtype)}, and Pallas' compiler for TPUs takes {' and '.join(dtypes)}"
        if not all(isinstance(n, int) for n in a.shape):
            return f"{name} has a symbolic shape"
        if 0 in a.shape:
            return f"{name} is empty"
    return None
