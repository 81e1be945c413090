"""Why kernels do not take calls of `cross_entropy`, `rope` and `linear`, and which handler takes the others.

XLA cannot raise in the middle of a program: the loss of a target that is out of range is NaN, and so are features that
rotate to a row outside the tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops._dtypes import FLOATING, INTEGER, is_floating
from tensorops._typing import Array
from tensorops.kernels.jax_ffi._launch import refuse_array

NARROW = ("float16", "bfloat16", "float32")

# ----------------------------------------------------------------------------------------------- cross_entropy


def refuse_loss(arguments: dict[str, Any]) -> str | None:
    """Return why `cross_entropy` does not take the arguments."""
    logits, targets, weight = (arguments[name] for name in ("logits", "targets", "weight"))
    for name, a, dtypes, least in (
        ("logits", logits, FLOATING, 1),
        ("targets", targets, (*FLOATING, *INTEGER), 0),
        ("weight", weight, FLOATING, 1),
    ):
        if a is not None and (reason := refuse_array(name, a, dtypes, least)):
            return reason
    if 0 in logits.shape:
        return "logits is empty"
    if is_floating(targets) and not _goes_with(targets, logits):
        return "targets has another dtype than logits"
    if weight is not None and not _goes_with(weight, logits):
        return "weight has another dtype than logits"
    ignored = arguments["ignore_index"]
    exact = -(2**63) <= ignored < 2**63 and int(float(ignored)) == ignored
    return None if exact else "ignore_index is not an int64 that float64 holds"


def _goes_with(a: Array, logits: Array) -> bool:
    """Return whether an array has the dtype of the logits, or float32 beside a half type."""
    return bool(a.dtype == logits.dtype or (a.dtype == np.float32 and logits.dtype.itemsize == 2))


def loss_handler(arguments: dict[str, Any]) -> str:
    """Return the handler of `cross_entropy`, which depends on how losses are combined."""
    reduction = arguments["reduction"]
    return "cross_entropy" if reduction == "mean" else f"cross_entropy_{reduction}"


def rows_of_loss(arguments: dict[str, Any]) -> int:
    """Return how many arrays an axis may be added to: none if the losses of all rows are combined."""
    return 2 if arguments["reduction"] == "none" else 0


# -------------------------------------------------------------------------------------------------------- rope


def refuse_rotation(arguments: dict[str, Any]) -> str | None:
    """Return why `rope` does not take the arguments."""
    x, wide = arguments["x"], ("float32", "float64")
    dtypes = {"x": FLOATING, "positions": (*INTEGER, *wide), "freqs": wide, "cos": FLOATING, "sin": FLOATING}
    for name, allowed in dtypes.items():
        if arguments[name] is not None and (reason := refuse_array(name, arguments[name], allowed)):
            return reason
    if 0 in x.shape:
        return "x is empty"
    return None if arguments["dims"] else "dims is 0"


def rotation_handler(arguments: dict[str, Any]) -> str:
    """Return the handler of `rope`, which depends on how angles are given."""
    return "rope" if arguments["cos"] is None else "rope_by_tables"


# ------------------------------------------------------------------------------------------------------ linear


def refuse_linear(arguments: dict[str, Any]) -> str | None:
    """Return why `linear` does not take the arguments."""
    for name in ("x", "weight", "bias"):
        if arguments[name] is not None and (reason := refuse_array(name, arguments[name], NARROW)):
            return reason
    x, weight = arguments["x"], arguments["weight"]
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


def most_rows_of_linear(arguments: dict[str, Any]) -> int:
    """Return up to how many rows the kernel is faster than XLA, which widens half types for its product.

    ``docs/architecture.md`` has the measurements.
    """
    return 32 if arguments["x"].dtype == arguments["weight"].dtype == np.float32 else 256
