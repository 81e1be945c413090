"""Named arguments for every operator, shared by conformance tests, benchmarks and authors of kernels.

A test that goes through `CASES` covers a new operator or a new case without being edited:

>>> from tensorops.testing import REFERENCES, assert_matches, cases, cast
>>> for case in cases("silu"):
...     for dtype_name in case.dtypes:
...         args, kwargs = case.build(dtype_name=dtype_name)
...         expected = REFERENCES[case.operator](*args, **kwargs)
...         actual = cast(expected, dtype_name)  # here: convert args, call the operator, convert back
...         tolerance = case.tolerance_for(dtype_name)
...         assert_matches(actual, expected, dtype_name, tolerance=tolerance, scale_axis=case.scale_axis)

The reference must see the arguments after the cast to the dtype under test, as above: otherwise it
measures the rounding of the input.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tensorops.testing import references
from tensorops.testing.assertions import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["BENCHMARK_SHAPES", "CASES", "Arguments", "Case", "cases", "cast"]

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""

BENCHMARK_SHAPES: tuple[tuple[int, int], ...] = (
    (1, 64),
    (1, 4096),
    (16, 4096),
    (128, 4096),
    (2048, 4096),
    (8192, 4096),
)
"""Shapes (rows, features) of the benchmarks: from the cost of a call alone to that of memory alone."""

ALL = tuple(DTYPES)
FLOAT32_RANGE = ("bfloat16", "float32", "float64")
FULL = ("float32", "float64")
DOUBLE = ("float64",)

# A vector register's worth and less, one more and one less, and more than one block of most kernels.
ODD_LENGTHS = (1, 3, 7, 17, 33, 65, 257)


def cast(value: Any, dtype_name: str) -> Any:
    """Cast the float64 arrays in `value`, which may be nested in tuples, lists and dicts, to a dtype.

    Arrays of other dtypes and everything else are returned as they are.

    Examples
    --------
    >>> import numpy as np
    >>> cast((np.array([0.1]), {"eps": 1e-6}), "float16")
    (array([0.1], dtype=float16), {'eps': 1e-06})
    """
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        with np.errstate(invalid="ignore"):  # a NaN is cast to a NaN
            return value.astype(DTYPES[dtype_name])
    if isinstance(value, dict):
        return {key: cast(item, dtype_name) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(cast(item, dtype_name) for item in value)
    return value


@dataclass(frozen=True, slots=True)
class Case:
    """A named set of arguments for an operator, with what a correct result may deviate by.

    Parameters
    ----------
    operator : str
        Name of the operator, also of its reference.
    name : str
        Name of the case, unique for the operator.
    arguments : callable
        Makes positional and keyword arguments from a random generator. Floating arrays are float64 and
        meant to be cast to the dtype under test, other arrays stay as they are.
    tolerance : float
        Allowed error in `eps` of float32 and float64, see `assert_matches`.
    half_tolerance : float
        The same for float16 and bfloat16: less, because they accumulate in float32, and the rounding of
        the result dominates.
    scale_axis : int, tuple of ints or None
        Which entries of the result set the scale of the error, see `assert_matches`.
    dtypes : tuple of str
        The dtypes whose range holds the arguments.
    tags : frozenset of str
        ``"extreme"``: values near the ends of a range. ``"overflow"``: besides, squares of the arguments
        are beyond float32, so that an implementation must scale them. ``"special"``: NaN or infinities.
        ``"empty"``: an array without elements.
    uncast : frozenset of str
        Keyword arguments that stay float64 whatever the dtype under test.
    """

    operator: str
    name: str
    arguments: Callable[[np.random.Generator], Arguments]
    tolerance: float = 8.0
    half_tolerance: float = 2.0
    scale_axis: int | tuple[int, ...] | None = -1
    dtypes: tuple[str, ...] = ALL
    tags: frozenset[str] = frozenset()
    uncast: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"

    def build(self, seed: int = 0, dtype_name: str = "float64") -> Arguments:
        """Return the positional and the keyword arguments, the same at every call with the same `seed`."""
        rng = np.random.default_rng([seed, zlib.crc32(str(self).encode())])
        args, kwargs = self.arguments(rng)
        cast_kwargs = {k: v if k in self.uncast else cast(v, dtype_name) for k, v in kwargs.items()}
        return cast(args, dtype_name), cast_kwargs

    def tolerance_for(self, dtype_name: str) -> float:
        """Return the allowed error in `eps` of a dtype."""
        return self.half_tolerance if dtype_name in ("float16", "bfloat16") else self.tolerance


def cases(operator: str) -> tuple[Case, ...]:
    """Return the cases of an operator, by name.

    Raises
    ------
    ValueError
        If there is no such operator; the message lists those that there are.
    """
    if operator not in CASES:
        raise ValueError(f"no cases for {operator!r}; there are cases for {', '.join(CASES)}")
    return CASES[operator]


# --- values ------------------------------------------------------------------------------------------


def _args(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> NDArray[np.float64]:
    return rng.standard_normal(shape) * scale


def _weight(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    return 1.0 + 0.1 * rng.standard_normal(shape)


def _mask(rng: np.random.Generator, *shape: int) -> NDArray[np.bool_]:
    """Return a random mask that keeps the first entry of every row."""
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    return mask


def _alternating(value: float, *shape: int) -> NDArray[np.float64]:
    """Return `value` and its half with alternating signs: of one magnitude, and not all equal."""
    steps = np.resize(np.array([1.0, -0.5, -1.0, 0.5]), shape)
    return np.asarray(steps * value, dtype=np.float64)


# Rows with special values beside rows that they must not touch.
_SPECIAL_ROWS = np.array(
    [
        [1.0, -2.0, 0.5, 3.0],
        [1.0, np.nan, 0.5, 3.0],
        [1.0, np.inf, 0.5, 3.0],
        [1.0, -np.inf, 0.5, 3.0],
        [-np.inf, np.inf, np.nan, 0.0],
        [0.0, -0.0, 2.0, -1.0],
    ]
)

_EXTREME = frozenset({"extreme"})
_OVERFLOW = frozenset({"extreme", "overflow"})
_SPECIAL = frozenset({"special"})
_EMPTY = frozenset({"empty"})


# --- normalisation -----------------------------------------------------------------------------------


def _rms_norm() -> Iterator[Case]:
    case = partial(Case, "rms_norm", tolerance=16.0, scale_axis=())
    yield case("typical", lambda r: _args(_normal(r, 4, 64), _weight(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(_normal(r, 3, n), _weight(r, n)), n=n))
    yield case("no_weight", lambda r: _args(_normal(r, 5, 33)))
    yield case("one_dimension", lambda r: _args(_normal(r, 17), _weight(r, 17)))
    yield case("batch", lambda r: _args(_normal(r, 2, 3, 5, 16), _weight(r, 16)))
    yield case("first_axis", lambda r: _args(_normal(r, 9, 4), _weight(r, 9), axis=0))
    yield case("middle_axis", lambda r: _args(_normal(r, 2, 6, 5), _weight(r, 6), axis=1))
    yield case("negative_axis", lambda r: _args(_normal(r, 2, 6, 5), _weight(r, 6), axis=-2))
    yield case("positional_eps", lambda r: _args(_normal(r, 3, 16, scale=0.01), _weight(r, 16), 1e-3))
    yield case("eps_dominates", lambda r: _args(_normal(r, 3, 16, scale=1e-4), None, eps=1e-2))
    yield case("no_eps", lambda r: _args(_normal(r, 3, 16), _weight(r, 16), eps=0.0))
    yield case("weight_offset", lambda r: _args(_normal(r, 4, 32), _weight(r, 32) - 1.0, weight_offset=1.0))
    yield case("zeros", lambda r: _args(np.zeros((2, 16)), _weight(r, 16)))
    yield case("one_large", lambda r: _args(_normal(r, 2, 33) + 1e4 * np.eye(2, 33), _weight(r, 33)))
    yield case("empty_batch", lambda r: _args(np.zeros((2, 0, 8)), _weight(r, 8)), tags=_EMPTY)
    yield case("empty_axis", lambda r: _args(np.zeros((3, 0)), np.zeros(0)), tags=_EMPTY)
    yield case("6e4", lambda r: _args(_alternating(6e4, 3, 17), _weight(r, 17)), tags=_EXTREME)
    yield case(
        "1e30",
        lambda r: _args(_alternating(1e30, 3, 17), _weight(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=_OVERFLOW,
    )
    yield case(
        "1e-30",
        lambda r: _args(_alternating(1e-30, 3, 17), _weight(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=_EXTREME,
    )
    yield case("1e200", lambda r: _args(_alternating(1e200, 3, 17), _weight(r, 17)), dtypes=DOUBLE, tags=_OVERFLOW)
    yield case("special", lambda r: _args(_SPECIAL_ROWS, _weight(r, 4)), tags=_SPECIAL)


def _add_rms_norm() -> Iterator[Case]:
    case = partial(Case, "add_rms_norm", tolerance=16.0, scale_axis=())

    def rows(r: np.random.Generator, *shape: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _normal(r, *shape), _normal(r, *shape)

    yield case("typical", lambda r: _args(*rows(r, 4, 64), _weight(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(*rows(r, 3, n), _weight(r, n)), n=n))
    yield case("no_weight", lambda r: _args(*rows(r, 5, 33)))
    yield case("batch", lambda r: _args(*rows(r, 2, 3, 16), _weight(r, 16)))
    yield case("middle_axis", lambda r: _args(*rows(r, 2, 6, 5), _weight(r, 6), axis=1))
    yield case("positional_eps", lambda r: _args(*rows(r, 3, 16), _weight(r, 16), 1e-3))
    yield case("cancels", lambda r: _args(np.full((2, 8), 1.5), np.full((2, 8), -1.5), _weight(r, 8)))
    yield case("empty_batch", lambda r: _args(*rows(r, 0, 8), _weight(r, 8)), tags=_EMPTY)
    yield case(
        "1e30",
        lambda r: _args(_alternating(1e30, 3, 17), _alternating(2e30, 3, 17), _weight(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=_OVERFLOW,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS, np.ones((6, 4)), _weight(r, 4)), tags=_SPECIAL)


def _layer_norm() -> Iterator[Case]:
    case = partial(Case, "layer_norm", tolerance=16.0)

    def affine(r: np.random.Generator, *shape: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _weight(r, *shape), _normal(r, *shape)

    yield case("typical", lambda r: _args(_normal(r, 4, 64), *affine(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(_normal(r, 3, n), *affine(r, n)), n=n))
    yield case("no_weight", lambda r: _args(_normal(r, 5, 33)))
    yield case("weight_alone", lambda r: _args(_normal(r, 5, 33), _weight(r, 33)))
    yield case("bias_alone", lambda r: _args(_normal(r, 5, 33), None, _normal(r, 33)))
    yield case("one_dimension", lambda r: _args(_normal(r, 17), *affine(r, 17)))
    yield case("batch", lambda r: _args(_normal(r, 2, 3, 5, 16), *affine(r, 16)))
    yield case("first_axis", lambda r: _args(_normal(r, 9, 4), *affine(r, 9), axis=0), scale_axis=0)
    yield case(
        "last_two_axes",
        lambda r: _args(_normal(r, 3, 4, 5), *affine(r, 4, 5), axis=(-2, -1)),
        scale_axis=(-2, -1),
    )
    yield case(
        "separate_axes",
        lambda r: _args(_normal(r, 2, 3, 4, 5), *affine(r, 3, 5), axis=(1, 3)),
        scale_axis=(1, 3),
    )
    # The order in which the axes are named means nothing: weight and bias follow that of x.
    yield case(
        "unordered_axes",
        lambda r: _args(_normal(r, 3, 4, 5), *affine(r, 4, 5), axis=(-1, 1)),
        scale_axis=(-2, -1),
    )
    yield case("positional_eps", lambda r: _args(_normal(r, 3, 16, scale=0.1), *affine(r, 16), 1e-2))
    yield case("constant", lambda r: _args(np.full((2, 16), 2.5), *affine(r, 16)))
    # The difference to the mean is exact to eps * mean, a variance as E[x^2] - E[x]^2 to eps * mean^2 only.
    yield case("large_mean", lambda r: _args(1e3 + _normal(r, 3, 64)), tolerance=4e3, dtypes=FULL)
    yield case("empty_batch", lambda r: _args(np.zeros((0, 8)), *affine(r, 8)), tags=_EMPTY)
    yield case("6e4", lambda r: _args(_alternating(6e4, 3, 17), *affine(r, 17)), tags=_EXTREME)
    yield case(
        "1e30",
        lambda r: _args(_alternating(1e30, 3, 17), *affine(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=_OVERFLOW,
    )
    yield case(
        "1e-30",
        lambda r: _args(_alternating(1e-30, 3, 17)),
        dtypes=FLOAT32_RANGE,
        tags=_EXTREME,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS, *affine(r, 4)), tags=_SPECIAL)


# --- activation --------------------------------------------------------------------------------------

_EXTREME_ARGUMENTS = np.array([1e4, -1e4, 6e4, -6e4, 200.0, -200.0, 0.0, -0.0])
_HUGE_ARGUMENTS = np.array([1e30, -1e30, 1e38, -1e38])


def _elementwise(
    operator: str, scale_axis: tuple[int, ...] | None, name_prefix: str = "", **options: Any
) -> Iterator[Case]:
    """Yield cases for a function of one array; `options` are passed on to it."""

    def case(name: str, arguments: Callable[[np.random.Generator], Any], **fields: Any) -> Case:
        fields = {"scale_axis": scale_axis, **fields}
        return Case(operator, name_prefix + name, lambda r: _args(arguments(r), **options), **fields)

    def values(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        x = _normal(r, *shape, scale=3.0)
        x.flat[-1] = 3.0  # of the magnitude of the others, where the largest result sets the scale
        return x

    yield case("typical", lambda r: values(r, 4, 64))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: values(r, n), n=n))
    yield case("scalar", lambda r: np.array(-0.75))
    yield case("batch", lambda r: values(r, 2, 3, 5, 7))
    # The relative error of a fast exponential grows with its argument.
    wide = 64.0 if scale_axis == () else 8.0
    yield case("wide", lambda r: np.linspace(-80.0, 80.0, 161), tolerance=wide)
    yield case("small", lambda r: _normal(r, 33, scale=1e-3))
    yield case("empty", lambda r: np.zeros((3, 0, 2)), tags=_EMPTY)
    # The result follows from the formula exactly, so the neighbours set no scale.
    yield case("extreme", lambda r: _EXTREME_ARGUMENTS, scale_axis=(), tags=_EXTREME)
    yield case("huge", lambda r: _HUGE_ARGUMENTS, scale_axis=(), dtypes=FLOAT32_RANGE, tags=_EXTREME)
    yield case("1e300", lambda r: np.array([1e300, -1e300]), scale_axis=(), dtypes=DOUBLE, tags=_EXTREME)
    yield case("special", lambda r: _SPECIAL_ROWS, tags=_SPECIAL)


def _gelu() -> Iterator[Case]:
    # 1 + erf(x) and 1 + tanh(x) may cancel: the error in the left tail is in proportion to x.
    yield from _elementwise("gelu", None)
    yield from _elementwise("gelu", None, "tanh_", approximate="tanh")


def _gated(operator: str, scale_axis: tuple[int, ...] | None) -> Iterator[Case]:
    case = partial(Case, operator, scale_axis=scale_axis)

    def pair(r: np.random.Generator, *shape: int) -> Arguments:
        return _args(_normal(r, *shape, scale=3.0), _normal(r, *shape))

    yield case("typical", lambda r: pair(r, 4, 64))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: pair(r, n), n=n))
    yield case("batch", lambda r: pair(r, 2, 3, 5, 7))
    yield case("empty", lambda r: pair(r, 0, 4), tags=_EMPTY)
    yield case(
        "extreme",
        lambda r: _args(np.array([1e4, -1e4, -6e4, 6e4, 0.0]), np.array([0.5, 1e4, -1e4, 1.0, 6e4])),
        scale_axis=(),
        tags=_EXTREME,
    )
    # 1e8 is an infinity in float16 and a number elsewhere.
    yield case(
        "overflows_float16",
        lambda r: _args(np.array([1e4, 1e4]), np.array([1e4, -1e4])),
        scale_axis=(),
        tags=_EXTREME,
    )
    yield case("special_gate", lambda r: _args(_SPECIAL_ROWS, _normal(r, 6, 4)), tags=_SPECIAL)
    yield case("special_up", lambda r: _args(1.0 + r.random((6, 4)), _SPECIAL_ROWS), tags=_SPECIAL)


# --- softmax and its relatives -----------------------------------------------------------------------


def _softmax(operator: str) -> Iterator[Case]:
    """Yield cases for `softmax` and `log_softmax`."""
    # A probability is exact relative to itself, its logarithm relative to the largest of the row.
    logarithmic = operator == "log_softmax"
    case = partial(Case, operator, tolerance=32.0, scale_axis=-1 if logarithmic else ())
    yield case("typical", lambda r: _args(_normal(r, 4, 64, scale=3.0)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(_normal(r, 3, n, scale=3.0)), n=n))
    yield case("one_dimension", lambda r: _args(_normal(r, 17)))
    yield case("batch", lambda r: _args(_normal(r, 2, 3, 5, 16)))
    for axis, name in enumerate(("first_axis", "middle_axis")):
        yield case(
            name,
            partial(lambda r, axis: _args(_normal(r, 9, 4, 5), axis=axis), axis=axis),
            scale_axis=axis if logarithmic else (),
        )
    yield case("equal", lambda r: _args(np.full((2, 7), -3.25)))
    yield case("offset", lambda r: _args(1000.0 + np.arange(24.0).reshape(3, 8) / 2))
    yield case("where", lambda r: _args(_normal(r, 5, 33), where=_mask(r, 5, 33)))
    yield case("where_broadcasts", lambda r: _args(_normal(r, 5, 33), where=_mask(r, 33)))
    yield case(
        "where_middle_axis",
        lambda r: _args(_normal(r, 3, 7, 4), axis=1, where=_mask(r, 7, 1)),
        scale_axis=1 if logarithmic else (),
    )
    yield case(
        "where_masks_a_row",
        lambda r: _args(_normal(r, 3, 9), where=np.array([True, False, True])[:, None] & _mask(r, 3, 9)),
    )
    yield case("empty_batch", lambda r: _args(np.zeros((0, 5))), tags=_EMPTY)
    yield case(
        "6e4",
        lambda r: _args(np.array([[6e4, -6e4, 6e4, 0.0], [-6e4, -6e4, -6e4, -6e4]])),
        tags=_EXTREME,
    )
    yield case(
        "1e38",
        lambda r: _args(np.array([[1e38, -1e38, 1e38, 0.0], [-1e38, -1e38, -1e38, -1e38]])),
        dtypes=FLOAT32_RANGE,
        tags=_EXTREME,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS), tags=_SPECIAL)
    yield case("all_minus_inf", lambda r: _args(np.array([[-np.inf] * 3, [0.0, 1.0, 2.0]])), tags=_SPECIAL)
    yield case(
        "where_hides_special",
        lambda r: _args(_SPECIAL_ROWS, where=np.isfinite(_SPECIAL_ROWS)),
        tags=_SPECIAL,
    )


def _logsumexp() -> Iterator[Case]:
    case = partial(Case, "logsumexp", tolerance=16.0, scale_axis=None)
    yield case("typical", lambda r: _args(_normal(r, 4, 64, scale=3.0)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(_normal(r, 3, n, scale=3.0)), n=n))
    yield case("one_dimension", lambda r: _args(_normal(r, 17)))
    yield case("batch", lambda r: _args(_normal(r, 2, 3, 5, 16)))
    yield case("first_axis", lambda r: _args(_normal(r, 9, 4, 5), axis=0))
    yield case("middle_axis", lambda r: _args(_normal(r, 9, 4, 5), axis=1))
    yield case("keepdims", lambda r: _args(_normal(r, 5, 8), keepdims=True))
    yield case("keepdims_first_axis", lambda r: _args(_normal(r, 5, 8), axis=0, keepdims=True))
    yield case("offset", lambda r: _args(1000.0 + np.arange(24.0).reshape(3, 8) / 2))
    yield case("empty_batch", lambda r: _args(np.zeros((0, 5))), tags=_EMPTY)
    yield case("6e4", lambda r: _args(np.array([[6e4, -6e4, 0.0], [-6e4, -6e4, -6e4]])), scale_axis=(), tags=_EXTREME)
    yield case(
        "1e38",
        lambda r: _args(np.array([[1e38, -1e38, 0.0], [-1e38, -1e38, -1e38]])),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=_EXTREME,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS), tags=_SPECIAL)
    yield case("all_minus_inf", lambda r: _args(np.array([[-np.inf] * 3, [0.0, 1.0, 2.0]])), tags=_SPECIAL)


# --- attention and positions -------------------------------------------------------------------------


def _rope() -> Iterator[Case]:
    # In float32 the angle is exact to eps * position, and so is the result.
    case = partial(Case, "rope", tolerance=128.0)
    yield case("typical", lambda r: _args(_normal(r, 2, 4, 9, 16), np.arange(9)))
    yield case("interleaved", lambda r: _args(_normal(r, 2, 4, 9, 16), np.arange(9), interleaved=True))
    yield case("decode", lambda r: _args(_normal(r, 2, 4, 1, 64), np.array([60])))
    yield case("no_batch", lambda r: _args(_normal(r, 3, 5, 8), np.arange(5)))
    yield case("two_batch_axes", lambda r: _args(_normal(r, 2, 3, 2, 5, 8), np.arange(5)))
    yield case("positions_per_batch", lambda r: _args(_normal(r, 3, 2, 5, 8), r.integers(0, 40, (3, 5))))
    yield case("positions_broadcast", lambda r: _args(_normal(r, 3, 2, 5, 8), np.arange(5)[None, :] + 7))
    yield case("positions_float", lambda r: _args(_normal(r, 2, 2, 5, 8), np.arange(5) + 0.5))
    yield case("positions_int32", lambda r: _args(_normal(r, 2, 2, 5, 8), np.arange(5, dtype=np.int32)))
    yield case("positions_negative", lambda r: _args(_normal(r, 2, 2, 5, 8), np.arange(5) - 4))
    for n in (1, 3, 7, 17, 33):
        yield case(f"length_{n}", partial(lambda r, n: _args(_normal(r, 1, 2, n, 6), np.arange(n)), n=n))
    yield case("two_features", lambda r: _args(_normal(r, 1, 2, 5, 2), np.arange(5)))
    yield case("base", lambda r: _args(_normal(r, 1, 2, 9, 16), np.arange(9), base=500000.0))
    yield case("dims", lambda r: _args(_normal(r, 1, 2, 9, 16), np.arange(9), dims=6))
    yield case(
        "dims_interleaved",
        lambda r: _args(_normal(r, 1, 2, 9, 16), np.arange(9), dims=6, interleaved=True),
    )
    yield case("dims_of_odd_head", lambda r: _args(_normal(r, 1, 2, 5, 7), np.arange(5), dims=4))
    yield case("freqs", lambda r: _args(_normal(r, 1, 2, 9, 16), np.arange(9), freqs=r.random(8)))
    yield case(
        "freqs_dims_interleaved",
        lambda r: _args(_normal(r, 1, 2, 9, 16), np.arange(9), freqs=r.random(3), dims=6, interleaved=True),
    )
    yield case("empty", lambda r: _args(np.zeros((1, 2, 0, 8)), np.arange(0)), tags=_EMPTY)
    yield case(
        "long_context",
        lambda r: _args(_normal(r, 1, 2, 4, 64), np.array([8188, 8189, 8190, 8191])),
        tolerance=32768.0,
        half_tolerance=8.0,
        tags=_EXTREME,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS[None], np.arange(6)), tags=_SPECIAL)


def _attention() -> Iterator[Case]:
    # Several libraries round the scores or the probabilities of half types.
    case = partial(Case, "scaled_dot_product_attention", tolerance=32.0, half_tolerance=4.0)

    def qkv(
        r: np.random.Generator,
        *,
        b: int = 2,
        hq: int = 2,
        hkv: int = 2,
        tq: int = 7,
        tk: int = 7,
        d: int = 16,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        return _normal(r, b, hq, tq, d), _normal(r, b, hkv, tk, d), _normal(r, b, hkv, tk, d)

    def float_mask(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        return np.where(_mask(r, *shape), _normal(r, *shape), -np.inf)

    yield case("typical", lambda r: _args(*qkv(r)))
    for n in (1, 3, 17, 33, 65):
        yield case(f"length_{n}", partial(lambda r, n: _args(*qkv(r, b=1, tq=n, tk=n, d=8)), n=n))
    for d in (1, 7, 33, 64):
        yield case(f"head_dim_{d}", partial(lambda r, d: _args(*qkv(r, d=d)), d=d))
    yield case("value_dim", lambda r: _args(_normal(r, 1, 2, 5, 8), _normal(r, 1, 2, 7, 8), _normal(r, 1, 2, 7, 12)))
    yield case("scale", lambda r: _args(*qkv(r), scale=0.1))
    yield case("causal", lambda r: _args(*qkv(r), is_causal=True))
    yield case("causal_decode", lambda r: _args(*qkv(r, tq=1, tk=33), is_causal=True))
    yield case("causal_more_keys", lambda r: _args(*qkv(r, tq=5, tk=9), is_causal=True))
    yield case("causal_more_queries", lambda r: _args(*qkv(r, tq=9, tk=5), is_causal=True))
    yield case("grouped", lambda r: _args(*qkv(r, hq=6, hkv=2)))
    yield case("grouped_causal", lambda r: _args(*qkv(r, hq=4, hkv=2), is_causal=True))
    yield case("multi_query", lambda r: _args(*qkv(r, hq=4, hkv=1, tq=3)))
    yield case("bool_mask", lambda r: _args(*qkv(r), mask=_mask(r, 2, 2, 7, 7)))
    yield case("bool_mask_broadcasts", lambda r: _args(*qkv(r, tk=9), mask=_mask(r, 7, 9)))
    yield case("bool_mask_padding", lambda r: _args(*qkv(r), mask=_mask(r, 2, 1, 1, 7)))
    yield case(
        "bool_mask_hides_rows",
        lambda r: _args(*qkv(r), mask=np.arange(7)[:, None] % 3 != np.zeros(7, dtype=int)),
    )
    yield case("float_mask", lambda r: _args(*qkv(r), mask=_normal(r, 2, 2, 7, 7)))
    yield case("float_mask_infinite", lambda r: _args(*qkv(r), mask=float_mask(r, 2, 1, 7, 7)))
    yield case(
        "float_mask_hides_rows",
        lambda r: _args(*qkv(r), mask=np.where(np.arange(7)[:, None] % 3 == 0, -np.inf, _normal(r, 7, 7))),
    )
    yield case("causal_and_mask", lambda r: _args(*qkv(r), mask=_mask(r, 7, 7), is_causal=True))
    yield case("window", lambda r: _args(*qkv(r, tq=9, tk=9), window=3))
    yield case("window_causal", lambda r: _args(*qkv(r, tq=9, tk=9), window=3, is_causal=True))
    yield case("window_one", lambda r: _args(*qkv(r), window=1, is_causal=True))
    yield case("window_decode", lambda r: _args(*qkv(r, tq=1, tk=17), window=4, is_causal=True))
    yield case("window_more_queries", lambda r: _args(*qkv(r, tq=9, tk=4), window=2))
    yield case("window_wider_than_keys", lambda r: _args(*qkv(r), window=100, is_causal=True))
    yield case("softcap", lambda r: _args(*qkv(r), softcap=2.0))
    yield case("sinks", lambda r: _args(*qkv(r), sinks=_normal(r, 2)))
    yield case(
        "sinks_hidden_rows",
        lambda r: _args(*qkv(r, hq=4, tq=9, tk=5), sinks=_normal(r, 4), is_causal=True),
    )
    yield case(
        "everything",
        lambda r: _args(
            *qkv(r, hq=4, hkv=2, tq=6, tk=17),
            mask=float_mask(r, 2, 1, 6, 17),
            is_causal=True,
            scale=0.3,
            window=8,
            softcap=5.0,
            sinks=_normal(r, 4),
        ),
    )
    yield case("empty_queries", lambda r: _args(*qkv(r, tq=0)), tags=_EMPTY)
    yield case("empty_batch", lambda r: _args(*qkv(r, b=0)), tags=_EMPTY)
    # Scores of a few hundred: only a softmax that takes the maximum away survives.
    yield case(
        "large_scores",
        lambda r: _args(np.full((1, 1, 2, 4), 16.0), 2.0 * np.arange(20.0).reshape(1, 1, 5, 4) - 20.0,
                        _normal(r, 1, 1, 5, 4)),
        tags=_EXTREME,
    )  # fmt: skip

    def one_bad_query(r: np.random.Generator) -> Arguments:
        q, k, v = qkv(r)
        q[0, 1, 2, 3] = np.nan
        return _args(q, k, v)

    yield case("special", one_bad_query, tags=_SPECIAL)


# --- linear ------------------------------------------------------------------------------------------


def _linear() -> Iterator[Case]:
    case = partial(Case, "linear", tolerance=32.0)

    def xw(r: np.random.Generator, n_in: int, n_out: int, *batch: int) -> Arguments:
        return _args(_normal(r, *batch, n_in), _normal(r, n_out, n_in))

    yield case("typical", lambda r: _args(*xw(r, 64, 32, 4)[0], _normal(r, 32)))
    for n in ODD_LENGTHS:
        yield case(f"in_{n}", partial(lambda r, n: xw(r, n, 5, 3), n=n), scale_axis=None)
        yield case(f"out_{n}", partial(lambda r, n: xw(r, 16, n, 3), n=n), scale_axis=None)
    yield case("no_bias", lambda r: xw(r, 33, 17, 5))
    yield case("one_dimension", lambda r: _args(*xw(r, 17, 9)[0], _normal(r, 9)))
    yield case("batch", lambda r: _args(*xw(r, 16, 8, 2, 3, 5)[0], _normal(r, 8)))
    yield case("empty_batch", lambda r: xw(r, 8, 4, 0), tags=_EMPTY)
    yield case("empty_in", lambda r: _args(*xw(r, 0, 4, 3)[0], _normal(r, 4)), tags=_EMPTY)
    # 120000 is an infinity in float16 and a number elsewhere.
    yield case(
        "overflows_float16",
        lambda r: _args(np.full((2, 3), 200.0), np.array([[200.0], [-200.0]]) * np.ones(3)),
        tags=_EXTREME,
    )
    yield case("special", lambda r: _args(_SPECIAL_ROWS, 1.0 + r.random((3, 4))), tags=_SPECIAL)


def _embedding() -> Iterator[Case]:
    case = partial(Case, "embedding", tolerance=0.0, half_tolerance=0.0, scale_axis=())
    yield case("typical", lambda r: _args(r.integers(0, 33, (2, 9)), _normal(r, 33, 16)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: _args(r.integers(0, 11, 4), _normal(r, 11, n)), n=n))
    yield case("int32", lambda r: _args(r.integers(0, 7, 5, dtype=np.int32), _normal(r, 7, 4)))
    yield case("repeated", lambda r: _args(np.array([3, 3, 0, 6, 3]), _normal(r, 7, 4)))
    yield case("scalar", lambda r: _args(np.array(2), _normal(r, 7, 4)))
    yield case("three_axes", lambda r: _args(r.integers(0, 7, (2, 3, 2)), _normal(r, 7, 4)))
    yield case("empty", lambda r: _args(np.zeros((2, 0), dtype=np.int64), _normal(r, 7, 4)), tags=_EMPTY)
    yield case("special", lambda r: _args(np.array([5, 0, 1, 2, 3, 4]), _SPECIAL_ROWS), tags=_SPECIAL)


# --- quantization ------------------------------------------------------------------------------------


def _near_levels(
    r: np.random.Generator, rows: int, groups: int, group_size: int, bits: int, symmetric: bool = False
) -> NDArray[np.float64]:
    """Return weights near the levels of their group, so that no rounding error moves a code to the next."""
    low, high = (-127, 127) if symmetric else (0, 2**bits - 1)
    levels = r.integers(low, high + 1, (rows, groups, group_size)).astype(np.float64)
    off = r.uniform(-0.3, 0.3, levels.shape)
    off = np.where(levels == low, np.abs(off), np.where(levels == high, -np.abs(off), off))
    levels[..., :2], off[..., :2] = (low, high), 0.0  # both ends occur, and set the scale
    step = 0.01 + r.random((rows, groups, 1))
    centre = 0.0 if symmetric else 0.5 * high + r.uniform(-2.0, 2.0, step.shape)
    w: NDArray[np.float64] = ((levels + off - centre) * step).reshape(rows, groups * group_size)
    return w


def _on_levels(r: np.random.Generator, rows: int, n: int, bits: int) -> NDArray[np.float64]:
    """Return weights on levels with a power of two between them: exact in every dtype and group."""
    levels = r.integers(0, 2**bits, (rows, n // 16, 16)).astype(np.float64)
    levels[..., :2] = (0, 2**bits - 1)
    w: NDArray[np.float64] = (levels.reshape(rows, n) - 2 ** (bits - 1)) / 2 ** (bits - 1)
    return w


def _quantize() -> Iterator[Case]:
    # Elsewhere the half types may round a scale and with it move a code.
    case = partial(Case, "quantize", dtypes=FULL)
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(
                    lambda r, b, g: _args(_near_levels(r, 5, 2, g, b), bits=b, group_size=g),
                    b=bits,
                    g=group_size,
                ),
            )
        yield case(
            f"on_levels_{bits}",
            partial(lambda r, b: _args(_on_levels(r, 3, 64, b), bits=b, group_size=32), b=bits),
            dtypes=ALL,
        )
    yield case("small_group", lambda r: _args(_near_levels(r, 3, 5, 16, 4), bits=4, group_size=16))
    yield case("one_group", lambda r: _args(_near_levels(r, 7, 1, 128, 4), bits=4, group_size=128))
    yield case(
        "symmetric",
        lambda r: _args(_near_levels(r, 5, 3, 32, 8, symmetric=True), bits=8, group_size=32, mode="symmetric"),
    )
    yield case("constant_group", lambda r: _args(np.full((2, 64), 0.75), bits=4, group_size=32), dtypes=ALL)
    yield case(
        "zeros_symmetric",
        lambda r: _args(np.zeros((2, 64)), bits=8, group_size=32, mode="symmetric"),
        dtypes=ALL,
    )
    yield case("empty", lambda r: _args(np.zeros((0, 64)), bits=4, group_size=32), tags=_EMPTY)


def _packed(
    r: np.random.Generator, n_out: int, n_in: int, bits: int, group_size: int, symmetric: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.float64] | None]:
    mode: Literal["symmetric", "affine"] = "symmetric" if symmetric else "affine"
    return references.quantize(_normal(r, n_out, n_in), bits=bits, group_size=group_size, mode=mode)


def _dequantize() -> Iterator[Case]:
    case = partial(Case, "dequantize")
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(
                    lambda r, b, g: _args(*_packed(r, 5, 128, b, g), bits=b, group_size=g),
                    b=bits,
                    g=group_size,
                ),
            )
    yield case("defaults", lambda r: _args(*_packed(r, 3, 96, 4, 32)))
    yield case("small_group", lambda r: _args(*_packed(r, 3, 80, 4, 16), group_size=16))
    yield case("symmetric", lambda r: _args(*_packed(r, 7, 64, 8, 32, symmetric=True)[:2], bits=8))
    yield case(
        "symmetric_named",
        lambda r: _args(*_packed(r, 7, 64, 8, 32, symmetric=True)[:2], bits=8, mode="symmetric"),
    )
    yield case("empty", lambda r: _args(*_packed(r, 0, 64, 4, 32)), tags=_EMPTY)


def _quantized_linear() -> Iterator[Case]:
    # Half types may round the weights before they multiply, and MLX accumulates in them on the CPU.
    case = partial(Case, "quantized_linear", tolerance=32.0, half_tolerance=6.0, scale_axis=None)
    for bits in (4, 8):
        for group_size in (32, 64):
            yield case(
                f"affine_{bits}_{group_size}",
                partial(
                    lambda r, b, g: _args(_normal(r, 3, 128), *_packed(r, 17, 128, b, g), bits=b, group_size=g),
                    b=bits,
                    g=group_size,
                ),
            )
    yield case("defaults", lambda r: _args(_normal(r, 4, 64), *_packed(r, 32, 64, 4, 32)))
    yield case("decode", lambda r: _args(_normal(r, 1, 96), *_packed(r, 33, 96, 4, 32)))
    yield case("one_dimension", lambda r: _args(_normal(r, 64), *_packed(r, 7, 64, 4, 32)))
    yield case("batch", lambda r: _args(_normal(r, 2, 3, 64), *_packed(r, 8, 64, 4, 32)))
    yield case("one_output", lambda r: _args(_normal(r, 3, 64), *_packed(r, 1, 64, 4, 32)))
    yield case("small_group", lambda r: _args(_normal(r, 3, 48), *_packed(r, 5, 48, 4, 16), group_size=16))
    yield case(
        "symmetric",
        lambda r: _args(_normal(r, 3, 64), *_packed(r, 9, 64, 8, 32, symmetric=True)[:2], bits=8),
    )
    yield case("empty_batch", lambda r: _args(np.zeros((0, 64)), *_packed(r, 7, 64, 4, 32)), tags=_EMPTY)
    yield case("special", lambda r: _args(np.tile(_SPECIAL_ROWS, 8), *_packed(r, 7, 32, 4, 32)), tags=_SPECIAL)


# --- loss and sampling -------------------------------------------------------------------------------


def _cross_entropy() -> Iterator[Case]:
    case = partial(Case, "cross_entropy", tolerance=16.0, scale_axis=None)

    def pair(r: np.random.Generator, classes: int, *batch: int) -> Arguments:
        return _args(_normal(r, *batch, classes, scale=2.0), r.integers(0, classes, batch))

    def some_ignored(r: np.random.Generator) -> tuple[Any, ...]:
        (logits, targets), _ = pair(r, 9, 6)
        targets[1::2] = -100
        return logits, targets

    for reduction in ("mean", "sum", "none"):
        yield case(reduction, partial(lambda r, how: _args(*pair(r, 33, 5)[0], reduction=how), how=reduction))
        yield case(
            f"ignored_{reduction}",
            partial(lambda r, how: _args(*some_ignored(r), reduction=how), how=reduction),
        )
        yield case(
            f"smoothed_{reduction}",
            partial(lambda r, how: _args(*some_ignored(r), reduction=how, label_smoothing=0.1), how=reduction),
        )
    yield case("defaults", lambda r: pair(r, 17, 4))
    for n in ODD_LENGTHS:
        yield case(f"classes_{n}", partial(lambda r, n: _args(*pair(r, n, 3)[0], reduction="none"), n=n))
    yield case("one_dimension", lambda r: _args(_normal(r, 7), np.array(3)))
    yield case("batch", lambda r: pair(r, 9, 2, 3))
    yield case("batch_none", lambda r: _args(*pair(r, 9, 2, 3)[0], reduction="none"))
    yield case("int32", lambda r: _args(_normal(r, 3, 7), np.array([0, 6, 2], dtype=np.int32)))
    yield case("int8_300_classes", lambda r: _args(_normal(r, 2, 300), np.array([1, 127], dtype=np.int8)))
    yield case("ignore_index", lambda r: _args(_normal(r, 4, 7), np.array([0, 6, 0, 2]), ignore_index=0))
    yield case("uniform_target", lambda r: _args(*pair(r, 9, 4)[0], label_smoothing=1.0))
    yield case("all_ignored_sum", lambda r: _args(_normal(r, 2, 5), np.full(2, -100), reduction="sum"))
    yield case("all_ignored_mean", lambda r: _args(_normal(r, 2, 5), np.full(2, -100)), tags=_SPECIAL)
    yield case("empty_none", lambda r: _args(*pair(r, 5, 0)[0], reduction="none"), tags=_EMPTY)
    yield case("empty_sum", lambda r: _args(*pair(r, 5, 0)[0], reduction="sum"), tags=_EMPTY)
    # In float16 some of these losses are beyond the range.
    yield case(
        "6e4",
        lambda r: _args(np.array([[6e4, -6e4, 0.0]] * 3), np.arange(3), reduction="none"),
        scale_axis=(),
        tags=_EXTREME,
    )
    yield case(
        "1e38",
        lambda r: _args(np.array([[1e38, -1e38, 0.0]] * 3), np.arange(3), reduction="none"),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=_EXTREME,
    )
    yield case(
        "special",
        lambda r: _args(_SPECIAL_ROWS, np.array([0, 0, 0, 1, -100, 3]), reduction="none"),
        tags=_SPECIAL,
    )
    yield case(
        "forbidden_classes",
        lambda r: _args(np.array([[-np.inf, 1.0, 2.0, -np.inf]] * 2), np.array([1, 2])),
        tags=_SPECIAL,
    )


def _sample() -> Iterator[Case]:
    case = partial(Case, "sample", tolerance=0.0, half_tolerance=0.0, uncast=frozenset({"rng"}))

    def logits(r: np.random.Generator, n: int, *batch: int) -> NDArray[np.float64]:
        # Distinct multiples of 1/4, exact in every dtype: all of them draw the same index.
        values = np.broadcast_to(np.arange(n) / 4 - n // 8, (*batch, n))
        return np.ascontiguousarray(r.permuted(values, axis=-1))  # which keeps the order of what was broadcast

    uniforms = np.array([0.01, 0.3, 0.72, 0.97])
    for name, options in {
        "greedy": {"temperature": 0.0},
        "plain": {},
        "cold": {"temperature": 0.5},
        "hot": {"temperature": 3.0},
        "top_k": {"top_k": 5},
        "top_k_one": {"top_k": 1},
        "top_k_all": {"top_k": 1000},
        "top_p": {"temperature": 2.0, "top_p": 0.8},
        "top_p_tiny": {"top_p": 1e-3},
        "top_p_one": {"top_p": 1.0},
        "min_p": {"temperature": 2.0, "min_p": 0.2},
        "min_p_one": {"min_p": 1.0},
        "top_k_top_p": {"temperature": 3.0, "top_k": 6, "top_p": 0.7},
        "everything": {"temperature": 3.0, "top_k": 9, "top_p": 0.9, "min_p": 0.3},
    }.items():
        yield case(name, partial(lambda r, o: _args(logits(r, 33, 4), **o, rng=uniforms), o=options))
    for n in ODD_LENGTHS:
        yield case(
            f"vocabulary_{n}",
            partial(lambda r, n: _args(logits(r, n, 4), temperature=4.0, top_p=0.95, rng=uniforms), n=n),
        )
    yield case("one_dimension", lambda r: _args(logits(r, 17), temperature=2.0, rng=np.array(0.4)))
    yield case("batch", lambda r: _args(logits(r, 9, 2, 2), rng=uniforms.reshape(2, 2)))
    ties = np.tile([1.0, 3.0, 2.0, 3.0, 2.0, 0.0], (4, 1))
    yield case("ties_greedy", lambda r: _args(ties, temperature=0.0, rng=uniforms))
    yield case("ties_top_k", lambda r: _args(ties, top_k=3, rng=uniforms))
    yield case("ties_top_p", lambda r: _args(ties, top_p=0.5, rng=uniforms))
    yield case("empty_batch", lambda r: _args(np.zeros((0, 5)), rng=np.zeros(0)), tags=_EMPTY)
    yield case(
        "forbidden_tokens",
        lambda r: _args(np.array([[-np.inf, 1.0, -np.inf, 0.5]] * 4), top_k=3, rng=uniforms),
        tags=_SPECIAL,
    )


CASES: Mapping[str, tuple[Case, ...]] = {
    "rms_norm": tuple(_rms_norm()),
    "add_rms_norm": tuple(_add_rms_norm()),
    "layer_norm": tuple(_layer_norm()),
    "silu": tuple(_elementwise("silu", ())),
    "sigmoid": tuple(_elementwise("sigmoid", ())),
    "relu": tuple(_elementwise("relu", ())),
    "softplus": tuple(_elementwise("softplus", ())),
    "gelu": tuple(_gelu()),
    "swiglu": tuple(_gated("swiglu", ())),
    "geglu": tuple(_gated("geglu", None)),
    "softmax": tuple(_softmax("softmax")),
    "log_softmax": tuple(_softmax("log_softmax")),
    "logsumexp": tuple(_logsumexp()),
    "rope": tuple(_rope()),
    "scaled_dot_product_attention": tuple(_attention()),
    "linear": tuple(_linear()),
    "embedding": tuple(_embedding()),
    "quantize": tuple(_quantize()),
    "dequantize": tuple(_dequantize()),
    "quantized_linear": tuple(_quantized_linear()),
    "cross_entropy": tuple(_cross_entropy()),
    "sample": tuple(_sample()),
}
"""The cases of every operator."""
