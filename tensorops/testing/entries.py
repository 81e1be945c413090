"""What tests and benchmarks need of an operator: a reference, cases, refusals and a workload."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tensorops.testing.assertions import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Arguments", "Case", "Entry", "InvalidCase", "Maker", "Refusal", "Workload", "cast"]

HEAD_DIM = 64  # in workloads
GROUP = 32

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class Entry(NamedTuple):
    """All that is needed to test and time an operator, which has the name of the reference.

    The reference has the operator's parameters, takes anything `numpy.asarray` accepts, and returns float64 (and
    integers if the operator does). It follows the mathematical definition and shares no code with the operator. NaN
    and infinities follow from the formula by IEEE arithmetic, without a warning.
    """

    reference: Callable[..., Any]
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...]
    workload: Callable[[Maker], Workload]


def cast(value: Any, dtype_name: str) -> Any:
    """Cast the float64 arrays in `value`, which may be nested in tuples, lists and dicts, to a dtype.

    Arrays of other dtypes and everything else are returned unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> cast((np.array([0.1]), {"eps": 1e-6}), "float16")
    (array([0.1], dtype=float16), {'eps': 1e-06})
    """
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        with np.errstate(invalid="ignore"):  # NaN is cast to NaN
            return value.astype(DTYPES[dtype_name])
    if isinstance(value, dict):
        return {key: cast(item, dtype_name) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(cast(item, dtype_name) for item in value)
    return value


@dataclass(frozen=True, slots=True)
class Case:
    """A named set of arguments for an operator, with the allowed error of the result.

    Parameters
    ----------
    operator : str
        Name of the operator, also of its reference.
    name : str
        Name of the case, unique for the operator.
    arguments : callable
        Makes positional and keyword arguments from a random generator. Floating arrays are float64, to be cast
        to the dtype under test; other arrays are used unchanged.
    tolerance : float
        Allowed error in `eps` of float32 and float64, see `assert_matches`.
    half_tolerance : float
        The same for float16 and bfloat16: less, because they accumulate in float32, and the rounding of
        the result dominates.
    scale_axis : int, tuple of ints or None
        Which entries of the result set the scale of the error, see `assert_matches`.
    dtypes : tuple of str
        The dtypes whose range contains the arguments.
    tags : frozenset of str
        ``"extreme"``: values near the ends of a range. ``"overflow"``: in addition, squares of the arguments
        exceed float32, so an implementation must scale them. ``"special"``: NaN or infinities.
        ``"empty"``: an array without elements.
    uncast : frozenset of str
        Keyword arguments that stay float64 for any dtype under test.
    """

    operator: str
    name: str
    arguments: Callable[[np.random.Generator], Arguments]
    tolerance: float = 8.0
    half_tolerance: float = 2.0
    scale_axis: int | tuple[int, ...] | None = -1
    dtypes: tuple[str, ...] = tuple(DTYPES)
    tags: frozenset[str] = frozenset()
    uncast: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"

    def build(self, seed: int = 0, dtype_name: str = "float64") -> Arguments:
        """Return the positional and the keyword arguments; the same `seed` gives the same arguments."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        args, kwargs = self.arguments(rng)
        cast_kwargs = {k: v if k in self.uncast else cast(v, dtype_name) for k, v in kwargs.items()}
        return cast(args, dtype_name), cast_kwargs

    def tolerance_for(self, dtype_name: str) -> float:
        """Return the allowed error in `eps` of a dtype."""
        return self.half_tolerance if dtype_name in ("float16", "bfloat16") else self.tolerance


@dataclass(frozen=True, slots=True)
class InvalidCase:
    """Arguments that an operator must refuse, and the error it must raise.

    Parameters
    ----------
    operator : str
        Name of the operator.
    name : str
        Name of the case, unique for the operator.
    arguments : callable
        Makes positional and keyword arguments; floating arrays are float64 and may be cast.
    exception : type
        `ValueError` for shapes and values, `TypeError` for dtypes and kinds of arguments.
    message : str
        Regular expression for `re.search` in the message, which has the form ``<operator>: <argument> ...``.
    """

    operator: str
    name: str
    arguments: Callable[[], Arguments]
    exception: type[Exception]
    message: str

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"

    def build(self, dtype_name: str = "float64") -> Arguments:
        """Return the positional and the keyword arguments."""
        args, kwargs = self.arguments()
        return cast(args, dtype_name), cast(kwargs, dtype_name)


Refusal: TypeAlias = tuple[str, type[Exception], str, "Callable[[], Arguments]"]
"""Name, exception, message and arguments of an `InvalidCase`; the message may be argument names joined by ``|``."""


@dataclass(frozen=True)
class Workload:
    """Arguments of one call, as NumPy arrays.

    Parameters
    ----------
    args : tuple
        The positional arguments.
    options : dict
        The keyword arguments.
    unread : int
        Bytes of the arguments that a call need not read, such as table rows that are not looked up.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    unread: int = 0


class Maker:
    """Makes arrays for `rows` rows of `features` features, identical every time."""

    def __init__(self, rows: int, features: int, dtype_name: str) -> None:
        self.rows, self.features, self.dtype = rows, features, DTYPES[dtype_name]
        self.rng = np.random.default_rng(0)

    def normal(self, *shape: int) -> np.ndarray[Any, Any]:
        """Return normally distributed numbers."""
        return self.rng.standard_normal(shape, dtype=np.float32).astype(self.dtype)

    def x(self) -> np.ndarray[Any, Any]:
        """Return the main input."""
        return self.normal(self.rows, self.features)

    def vector(self) -> np.ndarray[Any, Any]:
        """Return one number for each feature."""
        return self.normal(self.features)

    def integers(self, below: int, count: int) -> np.ndarray[Any, Any]:
        """Return `count` random integers from 0 to `below` - 1."""
        return self.rng.integers(0, below, count, dtype=np.int32)

    def packed(self, rows: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Return a matrix of four-bit numbers with their scales and biases."""
        groups = self.divided(GROUP)
        weight = self.rng.integers(0, 256, (rows, self.features // 2), dtype=np.uint8)
        return weight, self.normal(rows, groups), self.normal(rows, groups)

    def divided(self, by: int) -> int:
        """Return the number of features divided by `by`, which must divide it."""
        if self.features % by:
            raise ValueError(f"its features must be a multiple of {by}, got {self.features}")
        return self.features // by
