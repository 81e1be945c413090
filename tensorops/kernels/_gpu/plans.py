"""Plans: the launches of GPU kernels that compute one operator for arrays with given metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

Strides: TypeAlias = tuple[int, ...]

ITEM_SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4,
    "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Device:
    """What a plan must know of a device.

    Parameters
    ----------
    kind
        On a processor, a thread computes whole rows, in vectors as wide as its registers.
    units
        Its multiprocessors, or cores.
    lanes
        How many threads can exchange values without memory; 0 if they cannot.
    local_bytes
        The memory that a block shares.
    max_block
        The number of threads that a block may have.
    float64
        Whether it computes in float64.
    """

    kind: Literal["cpu", "gpu"]
    units: int
    lanes: int
    local_bytes: int
    max_block: int
    float64: bool


@dataclass(frozen=True, slots=True)
class Operand:
    """The metadata of an array: strides and the offset of the first element are counted in elements.

    `aligned` is the largest power of two up to 16 that divides its address in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: Strides
    offset: int = 0
    aligned: int = 16

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def strides_among(self, ndim: int) -> Strides:
        """Return the strides with which it broadcasts to `ndim` axes."""
        own = tuple(0 if n == 1 else s for n, s in zip(self.shape, self.strides, strict=True))
        return (0,) * (ndim - self.ndim) + own


class Result(NamedTuple):
    """An array that the provider allocates: contiguous, with undefined values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def operand(self) -> Operand:
        """Its metadata."""
        return Operand(self.dtype, self.shape, contiguous_strides(self.shape))


Number: TypeAlias = np.int32 | np.int64 | np.float32 | np.float64


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one kernel.

    Parameters
    ----------
    source
        The file in ``native/gpu``, without its suffix.
    kernel
        The function in it.
    defines
        The macros it is compiled with, in any order.
    groups, block
        The number of blocks, and the threads of each.
    arguments
        The names of arrays, and numbers, in the order of its parameters.
    """

    source: str
    kernel: str
    defines: dict[str, Any]
    groups: int
    block: int
    arguments: tuple[str | Number, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one operator is computed: the arrays to allocate, and the launches in order.

    Parameters
    ----------
    results
        The operator's results, by the name that launches have for them. ``None`` for a result that is None.
    launches
        What runs, in order.
    temporaries
        Other arrays that launches write and read.
    constants
        Arrays that launches read, the same for all calls with this plan.
    drawn
        Arrays of uniform numbers in [0, 1), by the name of the argument: a generator in host memory that draws them.
    """

    results: dict[str, Result | None]
    launches: tuple[Launch, ...]
    temporaries: dict[str, Result] | None = None
    constants: dict[str, np.ndarray[Any, Any]] | None = None
    drawn: dict[str, Result] | None = None


def contiguous_strides(shape: tuple[int, ...]) -> Strides:
    """Return the strides of C order, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))
