"""Values, dtypes and tags used by the cases of several families."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.assertions import DTYPES
from tensorops.testing.entries import Arguments, Maker, Workload

Float64: TypeAlias = NDArray[np.float64]
Wide: TypeAlias = NDArray[np.longdouble]

ALL = tuple(DTYPES)
FLOAT32_RANGE = ("bfloat16", "float32", "float64")
FULL = ("float32", "float64")
DOUBLE = ("float64",)
# Up to a vector register's worth, one more and one less, and more than one block of most kernels.
ODD_LENGTHS = (1, 3, 7, 17, 33, 65, 257)
EXTREME = frozenset({"extreme"})
OVERFLOW = frozenset({"extreme", "overflow"})
SPECIAL = frozenset({"special"})
EMPTY = frozenset({"empty"})
# Rows with special values next to rows that they must not affect.
SPECIAL_ROWS = np.array(
    [
        [1.0, -2.0, 0.5, 3.0],
        [1.0, np.nan, 0.5, 3.0],
        [1.0, np.inf, 0.5, 3.0],
        [1.0, -np.inf, 0.5, 3.0],
        [-np.inf, np.inf, np.nan, 0.0],
        [0.0, -0.0, 2.0, -1.0],
    ]
)
# Special values are intended; the floating-point warnings they cause are not.
quiet = np.errstate(all="ignore")


def args(*args: Any, **kwargs: Any) -> Arguments:
    """Return the arguments of a call in the form that a case holds."""
    return args, kwargs


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> NDArray[np.float64]:
    """Return normally distributed numbers."""
    return rng.standard_normal(shape) * scale


def weights(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return numbers near 1, like the weights of norms."""
    return 1.0 + 0.1 * rng.standard_normal(shape)


def random_mask(rng: np.random.Generator, *shape: int) -> NDArray[np.bool_]:
    """Return a random mask that keeps the first entry of every row."""
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    return mask


def alternating(value: float, *shape: int) -> NDArray[np.float64]:
    """Return `value` and its half with alternating signs: similar in magnitude but not all equal."""
    steps = np.resize(np.array([1.0, -0.5, -1.0, 0.5]), shape)
    return np.asarray(steps * value, dtype=np.float64)


def ones(*shape: int) -> NDArray[np.float64]:
    """Return float64 ones, to be cast."""
    return np.ones(shape)


def integers(*shape: int) -> NDArray[np.int64]:
    """Return int64 ones."""
    return np.ones(shape, dtype=np.int64)


def octets(*shape: int) -> NDArray[np.uint8]:
    """Return uint8 ones."""
    return np.ones(shape, dtype=np.uint8)


def float64(x: ArrayLike) -> Float64:
    """Return a float64 array."""
    return np.asarray(x, dtype=np.float64)


def single(x: ArrayLike) -> NDArray[np.float32]:
    """Return a float32 array, which a case does not cast: parameters with an x of any dtype."""
    return np.asarray(x, dtype=np.float32)


def one_array(make: Maker) -> Workload:
    """Return the workload of a function of one array."""
    return Workload((make.x(),))
