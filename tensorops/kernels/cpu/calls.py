"""Calls of operators by the compiled module, where there is one; otherwise Python does the same."""

from __future__ import annotations

import contextlib
from typing import Any

from tensorops._operator import Operator
from tensorops.backends.settings import current

native: Any = None
"""The compiled module; ``None`` where tensorops was installed without a compiler."""

with contextlib.suppress(ImportError):
    from tensorops.kernels.cpu import _native

    native = _native


def compile_calls() -> None:
    """Let the compiled module find the plans of calls."""
    if native is not None:
        native.call_operators(Operator, current, Operator.unplanned)


compile_calls()
