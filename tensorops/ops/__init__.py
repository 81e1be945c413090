"""The operators, one module per family; `tensorops` re-exports them all."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from tensorops._operator import OPERATORS, Operator


def families() -> list[str]:
    """Return the names of the modules that define operators; `tensorops.testing` has one of the same name for each."""
    return [info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")]


def every_operator() -> list[Operator[..., Any]]:
    """Import all families and return the operators they define."""
    for family in families():
        importlib.import_module(f"{__name__}.{family}")
    return [operator for operator in OPERATORS.copy().values() if operator.__module__.startswith(f"{__name__}.")]
