"""`array_api_compat.torch` with functions that have rules for the batches of ``torch.autograd.grad``."""

from __future__ import annotations

import torch
from array_api_compat.torch import *  # noqa: F403

from tensorops.typing import Array

globals().pop("classes", None)  # torch's own, not of the standard; it raises errors when a module is inspected


def concat(arrays: tuple[Array, ...] | list[Array], /, *, axis: int | None = 0) -> Array:
    """Join arrays along an axis; `torch.concat`, unlike `torch.cat`, has no rule for ``is_grads_batched=True``."""
    if axis is None:
        arrays, axis = [x.flatten() for x in arrays], 0
    return torch.cat(tuple(arrays), axis)
