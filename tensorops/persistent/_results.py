"""Where a plan has results that are not in its arena."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class NewResult(NamedTuple):
    """A result that each run puts into a new array like this one, and the plan's arrays in it: numbers and offsets."""

    like: np.ndarray[Any, Any]
    arrays: list[tuple[int, int]]


class PartOfArgument(NamedTuple):
    """A result that is an argument, or a part of one."""

    number: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def of(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the part of an array that the caller has passed."""
        if self.shape == array.shape and self.dtype == array.dtype:
            return array
        return np.ndarray(self.shape, self.dtype, array, self.offset)
