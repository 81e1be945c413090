"""Activations, and softmax with its relatives: references, cases, refusals and workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.entries import Arguments, Case, Entry, Maker, Refusal, Workload
from tensorops.testing.values import (
    DOUBLE,
    EMPTY,
    EXTREME,
    FLOAT32_RANGE,
    ODD_LENGTHS,
    SPECIAL,
    SPECIAL_ROWS,
    Float64,
    Wide,
    args,
    float64,
    integers,
    normal,
    one_array,
    ones,
    quiet,
    random_mask,
    single,
)

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


@quiet
def sigmoid(x: ArrayLike) -> Float64:
    """``1 / (1 + exp(-x))``, written so that no exponential overflows."""
    x = float64(x)
    small = np.exp(-np.abs(x))
    return float64(np.where(x < 0, small, 1.0) / (1.0 + small))


@quiet
def silu(x: ArrayLike) -> Float64:
    """``x * sigmoid(x)``."""
    return float64(float64(x) * sigmoid(x))


@quiet
def relu(x: ArrayLike) -> Float64:
    """``max(x, 0)``; NaN stays NaN."""
    return float64(np.maximum(float64(x), 0.0))


@quiet
def relu_squared(x: ArrayLike) -> Float64:
    """``max(x, 0) ** 2``; NaN stays NaN."""
    return float64(np.square(np.maximum(float64(x), 0.0)))


@quiet
def softplus(x: ArrayLike) -> Float64:
    """``log(1 + exp(x))``, written so that no exponential overflows."""
    x = float64(x)
    return float64(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


@quiet
def gelu(x: ArrayLike, *, approximate: Literal["none", "tanh"] = "none") -> Float64:
    """``x * Phi(x)`` with the normal distribution function, or its approximation by a hyperbolic tangent."""
    x = float64(x)
    if approximate == "none":
        # 1 + erf(t) = erfc(-t), which does not cancel in the left tail.
        return float64(0.5 * x * _erfc(-x / math.sqrt(2.0)))
    if approximate == "tanh":
        # (1 + tanh(t)) / 2 = sigmoid(2 t), which does not cancel either.
        return float64(x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")


@quiet
def quick_gelu(x: ArrayLike, *, alpha: float = 1.702) -> Float64:
    """``x * sigmoid(alpha * x)``."""
    x = float64(x)
    return float64(x * sigmoid(alpha * x))


@quiet
def mish(x: ArrayLike) -> Float64:
    """``x * tanh(softplus(x))``."""
    return float64(float64(x) * np.tanh(softplus(x)))


@quiet
def hard_sigmoid(x: ArrayLike, *, alpha: float = 1 / 6, beta: float = 0.5) -> Float64:
    """``alpha * x + beta``, between 0 and 1."""
    return float64(np.clip(alpha * float64(x) + beta, 0.0, 1.0))


@quiet
def hard_swish(x: ArrayLike) -> Float64:
    """``x * relu6(x + 3) / 6``, written so that no product overflows."""
    x = float64(x)
    return float64(x * (np.clip(x + 3.0, 0.0, 6.0) / 6.0))


@quiet
def elu(x: ArrayLike, *, alpha: float = 1.0) -> Float64:
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``."""
    x = float64(x)
    return float64(np.where(x > 0, x, alpha * np.expm1(x)))


@quiet
def selu(x: ArrayLike) -> Float64:
    """``scale * elu(x, alpha)`` with the constants of the paper."""
    return float64(1.0507009873554804934193349852946 * elu(x, alpha=1.6732632423543772848170429916717))


@quiet
def leaky_relu(x: ArrayLike, *, negative_slope: float = 0.01) -> Float64:
    """``x`` where it is positive, else ``negative_slope * x``."""
    x = float64(x)
    return float64(np.where(x > 0, x, negative_slope * x))


@quiet
def squareplus(x: ArrayLike, *, b: float = 4.0) -> Float64:
    """``(x + hypot(x, sqrt(b))) / 2``, as ``b / 2 / (hypot(x, sqrt(b)) - x)`` for negative numbers."""
    x = float64(x)
    sum_ = np.hypot(x, np.sqrt(b)) / 2 + np.abs(x) / 2
    return float64(np.where(x < 0, b / 4 / sum_, sum_))


@quiet
def swiglu(gate: ArrayLike, up: ArrayLike) -> Float64:
    """``silu(gate) * up``."""
    return float64(silu(gate) * float64(up))


@quiet
def geglu(gate: ArrayLike, up: ArrayLike) -> Float64:
    """``gelu(gate) * up``, with the exact `gelu`."""
    return float64(gelu(gate) * float64(up))


@quiet
def reglu(gate: ArrayLike, up: ArrayLike) -> Float64:
    """``relu(gate) * up``."""
    return float64(relu(gate) * float64(up))


def _exponentials(
    x: ArrayLike, axis: int | tuple[int, ...] | None, where: ArrayLike | None
) -> tuple[Wide, NDArray[np.bool_], Wide, Wide]:
    """Return ``x - max``, the mask of counted entries, ``exp(x - max)`` (0 elsewhere) and its sum along `axis`."""
    x = np.asarray(x, dtype=np.longdouble)
    keep = np.broadcast_to(np.asarray(True if where is None else where, dtype=np.bool_), x.shape)
    top = np.max(np.where(keep, x, -np.inf), axis=axis, keepdims=True, initial=-np.inf)
    shifted = x - top
    exponentials = np.where(keep, np.exp(shifted), np.longdouble(0))
    return shifted, keep, exponentials, np.sum(exponentials, axis=axis, keepdims=True)


@quiet
def softmax(
    x: ArrayLike, *, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None, dtype: Any = None
) -> Float64:
    """``exp(x) / sum(exp(x), axis)`` over the entries where `where` is true; 0 elsewhere. `dtype` rounds nothing."""
    _, keep, exponentials, total = _exponentials(x, axis, where)
    return float64(np.where(keep, exponentials / total, 0))


@quiet
def log_softmax(
    x: ArrayLike, *, axis: int | tuple[int, ...] | None = -1, where: ArrayLike | None = None, dtype: Any = None
) -> Float64:
    """``x - log(sum(exp(x), axis))`` over the entries where `where` is true; -inf elsewhere. `dtype` rounds nothing."""
    shifted, keep, _, total = _exponentials(x, axis, where)
    return float64(np.where(keep, shifted - np.log(total), -np.inf))


@quiet
def logsumexp(
    x: ArrayLike,
    *,
    axis: int | tuple[int, ...] | None = -1,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    b: ArrayLike | None = None,
    return_sign: bool = False,
    dtype: Any = None,
) -> Float64 | tuple[Float64, Float64]:
    """``log(sum(b * exp(x), axis))`` over the entries where `where` is true and `b` not 0; -inf where there are none.

    With `return_sign`, the logarithm of the sum's magnitude, and its sign. `dtype` rounds nothing.
    """
    x = np.asarray(x, dtype=np.longdouble)
    weights = np.broadcast_to(np.asarray(1.0 if b is None else b, dtype=np.longdouble), x.shape)
    kept = np.broadcast_to(np.asarray(True if where is None else where, dtype=np.bool_), x.shape) & (weights != 0)
    top = np.max(np.where(kept, x, -np.inf), axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    terms = np.where(kept, weights * np.exp(x - shift), np.longdouble(0))
    total = np.sum(terms, axis=axis, keepdims=True)
    results = [shift + np.log(np.abs(total) if return_sign else total), np.sign(total)]
    value, sign = (float64(r if keepdims else np.squeeze(r, axis=axis)) for r in results)
    return (value, sign) if return_sign else value


# --- cases -------------------------------------------------------------------------------------------


_EXTREME_ARGUMENTS = np.array([1e4, -1e4, 6e4, -6e4, 200.0, -200.0, 0.0, -0.0])


_FLOAT32 = np.dtype(np.float32)


_HUGE_ARGUMENTS = np.array([1e30, -1e30, 1e38, -1e38])


def _elementwise_cases(
    operator: str, scale_axis: tuple[int, ...] | None, name_prefix: str = "", **options: Any
) -> Iterator[Case]:
    """Yield cases for a function of one array; `options` are passed to it."""

    def case(name: str, arguments: Callable[[np.random.Generator], Any], **fields: Any) -> Case:
        fields = {"scale_axis": scale_axis, **fields}
        return Case(operator, name_prefix + name, lambda r: args(arguments(r), **options), **fields)

    def values(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        x = normal(r, *shape, scale=3.0)
        x.flat[-1] = 3.0  # similar in magnitude to the others, because the largest result sets the scale
        return x

    yield case("typical", lambda r: values(r, 4, 64))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: values(r, n), n=n))
    yield case("scalar", lambda r: np.array(-0.75))
    yield case("batch", lambda r: values(r, 2, 3, 5, 7))
    # The relative error of a fast exponential grows with its argument.
    wide = 64.0 if scale_axis == () else 8.0
    yield case("wide", lambda r: np.linspace(-80.0, 80.0, 161), tolerance=wide)
    yield case("small", lambda r: normal(r, 33, scale=1e-3))
    yield case("empty", lambda r: np.zeros((3, 0, 2)), tags=EMPTY)
    # The formula gives the result exactly, so the scale does not depend on the neighbours.
    yield case("extreme", lambda r: _EXTREME_ARGUMENTS, scale_axis=(), tags=EXTREME)
    yield case("huge", lambda r: _HUGE_ARGUMENTS, scale_axis=(), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("1e300", lambda r: np.array([1e300, -1e300]), scale_axis=(), dtypes=DOUBLE, tags=EXTREME)
    yield case("special", lambda r: SPECIAL_ROWS, tags=SPECIAL)


def _relu_squared_cases() -> Iterator[Case]:
    # Squares of numbers as small as 1e-3 are not normal in float16, and those of 1e300 not finite in float64.
    yield from (c for c in _elementwise_cases("relu_squared", ()) if c.name not in ("small", "1e300"))
    case = partial(Case, "relu_squared", scale_axis=())
    yield case("small", lambda r: args(normal(r, 33, scale=0.1)))
    yield case("1e150", lambda r: args(np.array([1e150, -1e150])), dtypes=DOUBLE, tags=EXTREME)
    yield case("1e300", lambda r: args(np.array([1e300, -1e300])), dtypes=DOUBLE, tags=EXTREME | SPECIAL)


def _gelu_cases() -> Iterator[Case]:
    # 1 + erf(x) and 1 + tanh(x) may cancel: the error in the left tail is proportional to x.
    yield from _elementwise_cases("gelu", None)
    yield from _elementwise_cases("gelu", None, "tanh_", approximate="tanh")


def _quick_gelu_cases() -> Iterator[Case]:
    # The product with alpha is rounded, which the exponential magnifies.
    yield from (replace(c, tolerance=16.0) for c in _elementwise_cases("quick_gelu", ()) if c.name != "wide")
    yield from _elementwise_cases("quick_gelu", (), "silu_", alpha=1.0)
    # Beyond, sigmoids are below the normal numbers.
    yield Case("quick_gelu", "wide", lambda r: args(np.linspace(-50.0, 50.0, 161)), tolerance=64.0, scale_axis=())
    yield Case("quick_gelu", "negative", lambda r: args(normal(r, 33), alpha=-0.5), scale_axis=())
    yield Case("quick_gelu", "zero", lambda r: args(normal(r, 33), alpha=0.0), scale_axis=())


def _hard_sigmoid_cases() -> Iterator[Case]:
    # A slope that is rounded to the dtype moves the kinks, so the error near the lower one is relative to 1.
    yield from _elementwise_cases("hard_sigmoid", None)
    yield from _elementwise_cases("hard_sigmoid", None, "onnx_", alpha=0.2)
    case = partial(Case, "hard_sigmoid", scale_axis=None)
    yield case("falling", lambda r: args(normal(r, 33, scale=3.0), alpha=-0.3, beta=0.25))
    yield case("flat", lambda r: args(normal(r, 33), alpha=0.0, beta=0.75))
    yield case("faint", lambda r: args(normal(r, 33), alpha=1e-6, beta=0.75))
    yield case("outside", lambda r: args(normal(r, 33, scale=3.0), alpha=0.5, beta=-2.0))


def _hard_swish_cases() -> Iterator[Case]:
    yield from _elementwise_cases("hard_swish", ())
    near = np.linspace(-3.125, -2.875, 65)
    yield Case("hard_swish", "kink", lambda r: args(np.concatenate([near, -near])), scale_axis=())


def _elu_cases(operator: str) -> Iterator[Case]:
    yield from _elementwise_cases(operator, ())
    case = partial(Case, operator, scale_axis=())
    # exp(x) - 1 cancels near 0: there, the result is nearly proportional to x.
    yield case("near_zero", lambda r: args(-np.logspace(-1, -4, 65)))
    yield case("tiny", lambda r: args(-np.logspace(-5, -30, 65)), dtypes=FLOAT32_RANGE)


def _gated_cases(operator: str, scale_axis: tuple[int, ...] | None) -> Iterator[Case]:
    case = partial(Case, operator, scale_axis=scale_axis)

    def pair(r: np.random.Generator, *shape: int) -> Arguments:
        return args(normal(r, *shape, scale=3.0), normal(r, *shape))

    yield case("typical", lambda r: pair(r, 4, 64))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: pair(r, n), n=n))
    yield case("batch", lambda r: pair(r, 2, 3, 5, 7))
    yield case("empty", lambda r: pair(r, 0, 4), tags=EMPTY)
    yield case(
        "extreme",
        lambda r: args(np.array([1e4, -1e4, -6e4, 6e4, 0.0]), np.array([0.5, 1e4, -1e4, 1.0, 6e4])),
        scale_axis=(),
        tags=EXTREME,
    )
    # 1e8 is infinite in float16 and finite elsewhere.
    yield case(
        "overflows_float16", lambda r: args(np.array([1e4, 1e4]), np.array([1e4, -1e4])), scale_axis=(), tags=EXTREME
    )
    yield case("special_gate", lambda r: args(SPECIAL_ROWS, normal(r, 6, 4)), tags=SPECIAL)
    yield case("special_up", lambda r: args(1.0 + r.random((6, 4)), SPECIAL_ROWS), tags=SPECIAL)


def _softmax_cases(operator: str) -> Iterator[Case]:
    """Yield cases for `softmax` and `log_softmax`."""
    # The error of a probability is relative to itself, that of its logarithm to the largest of the row.
    logarithmic = operator == "log_softmax"
    case = partial(Case, operator, tolerance=32.0, scale_axis=-1 if logarithmic else ())
    yield case("typical", lambda r: args(normal(r, 4, 64, scale=3.0)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 3, n, scale=3.0)), n=n))
    yield case("one_dimension", lambda r: args(normal(r, 17)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 5, 16)))
    for axis, name in enumerate(("first_axis", "middle_axis")):
        yield case(
            name,
            partial(lambda r, axis: args(normal(r, 9, 4, 5), axis=axis), axis=axis),
            scale_axis=axis if logarithmic else (),
        )
    for axes, name in (((1, 2), "last_axes"), ((2, 0, 1), "every_axis"), ((0, 2), "outer_axes"), (None, "no_axis")):
        yield case(
            name,
            partial(lambda r, axes: args(normal(r, 3, 4, 5), axis=axes), axes=axes),
            scale_axis=(axes or (0, 1, 2)) if logarithmic else (),
        )
    yield case("float32", lambda r: args(normal(r, 3, 33, scale=3.0), dtype=_FLOAT32))
    yield case("float32_empty", lambda r: args(np.zeros((0, 5)), dtype=_FLOAT32), tags=EMPTY)
    yield case("float32_special", lambda r: args(SPECIAL_ROWS, dtype=_FLOAT32), tags=SPECIAL)
    yield case("equal", lambda r: args(np.full((2, 7), -3.25)))
    yield case("offset", lambda r: args(1000.0 + np.arange(24.0).reshape(3, 8) / 2))
    yield case("where", lambda r: args(normal(r, 5, 33), where=random_mask(r, 5, 33)))
    yield case("where_broadcasts", lambda r: args(normal(r, 5, 33), where=random_mask(r, 33)))
    yield case(
        "where_middle_axis",
        lambda r: args(normal(r, 3, 7, 4), axis=1, where=random_mask(r, 7, 1)),
        scale_axis=1 if logarithmic else (),
    )
    yield case(
        "where_masks_a_row",
        lambda r: args(normal(r, 3, 9), where=np.array([True, False, True])[:, None] & random_mask(r, 3, 9)),
    )
    yield case("empty_batch", lambda r: args(np.zeros((0, 5))), tags=EMPTY)
    yield case("6e4", lambda r: args(np.array([[6e4, -6e4, 6e4, 0.0], [-6e4, -6e4, -6e4, -6e4]])), tags=EXTREME)
    yield case(
        "1e38",
        lambda r: args(np.array([[1e38, -1e38, 1e38, 0.0], [-1e38, -1e38, -1e38, -1e38]])),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS), tags=SPECIAL)
    yield case("all_minus_inf", lambda r: args(np.array([[-np.inf] * 3, [0.0, 1.0, 2.0]])), tags=SPECIAL)
    yield case("where_hides_special", lambda r: args(SPECIAL_ROWS, where=np.isfinite(SPECIAL_ROWS)), tags=SPECIAL)


def _logsumexp_cases() -> Iterator[Case]:
    case = partial(Case, "logsumexp", tolerance=16.0, scale_axis=None)
    yield case("typical", lambda r: args(normal(r, 4, 64, scale=3.0)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 3, n, scale=3.0)), n=n))
    yield case("one_dimension", lambda r: args(normal(r, 17)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 5, 16)))
    yield case("first_axis", lambda r: args(normal(r, 9, 4, 5), axis=0))
    yield case("middle_axis", lambda r: args(normal(r, 9, 4, 5), axis=1))
    yield case("last_axes", lambda r: args(normal(r, 3, 4, 5), axis=(-1, -2)))
    yield case("every_axis", lambda r: args(normal(r, 3, 4, 5), axis=(0, 1, 2)))
    yield case("outer_axes", lambda r: args(normal(r, 3, 4, 5), axis=(0, 2), keepdims=True))
    yield case("last_axes_kept", lambda r: args(normal(r, 3, 4, 5), axis=(1, 2), keepdims=True))
    yield case("float32", lambda r: args(normal(r, 3, 33, scale=3.0), dtype=_FLOAT32))
    yield case("float32_special", lambda r: args(SPECIAL_ROWS, dtype=_FLOAT32, keepdims=True), tags=SPECIAL)
    yield case("keepdims", lambda r: args(normal(r, 5, 8), keepdims=True))
    yield case("keepdims_first_axis", lambda r: args(normal(r, 5, 8), axis=0, keepdims=True))
    yield case("offset", lambda r: args(1000.0 + np.arange(24.0).reshape(3, 8) / 2))
    yield case("empty_batch", lambda r: args(np.zeros((0, 5))), tags=EMPTY)
    yield case("6e4", lambda r: args(np.array([[6e4, -6e4, 0.0], [-6e4, -6e4, -6e4]])), scale_axis=(), tags=EXTREME)
    yield case(
        "1e38",
        lambda r: args(np.array([[1e38, -1e38, 0.0], [-1e38, -1e38, -1e38]])),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS), tags=SPECIAL)
    yield case("all_minus_inf", lambda r: args(np.array([[-np.inf] * 3, [0.0, 1.0, 2.0]])), tags=SPECIAL)
    yield case("no_axis", lambda r: args(normal(r, 3, 4, 5), axis=None))
    yield case("where", lambda r: args(normal(r, 5, 33), where=random_mask(r, 5, 33)))
    yield case(
        "where_middle_axis", lambda r: args(normal(r, 3, 7, 4), axis=1, where=random_mask(r, 7, 1), keepdims=True)
    )
    yield case("where_nothing", lambda r: args(normal(r, 2, 5), where=np.array([[False], [True]])), tags=SPECIAL)
    yield case("where_hides_special", lambda r: args(SPECIAL_ROWS, where=np.isfinite(SPECIAL_ROWS)), tags=SPECIAL)
    yield case("weights", lambda r: args(normal(r, 5, 33, scale=3.0), b=0.5 + r.random((5, 33))))
    yield case("float32_weights", lambda r: args(normal(r, 5, 33), b=single(0.5 + r.random((5, 33)))))
    yield case("weights_broadcast", lambda r: args(normal(r, 9, 4, 5), axis=0, b=0.5 + r.random((4, 1))))
    yield case("weights_where", lambda r: args(normal(r, 5, 33), where=random_mask(r, 5, 33), b=0.5 + r.random(33)))
    yield case("weight_0", lambda r: args(SPECIAL_ROWS, b=np.isfinite(SPECIAL_ROWS) * 2.0), tags=SPECIAL)
    yield case("sign", lambda r: args(normal(r, 4, 64, scale=3.0), return_sign=True))
    # Most of the weights have one sign, so that little cancels.
    signs = np.where(np.arange(20) % 10 == 3, -0.125, 1.0)
    yield case("signs", lambda r: args(normal(r, 4, 20), b=signs * np.array([[1.0], [-1.0]] * 2), return_sign=True))
    yield case(
        "signs_kept",
        lambda r: args(normal(r, 20, 2, 3), axis=(0, 2), b=signs[:, None, None], return_sign=True, keepdims=True),
    )
    yield case("negative_sum", lambda r: args(normal(r, 2, 5), b=np.array([[1.0], [-1.0]]), axis=1), tags=SPECIAL)


# --- what is refused ---------------------------------------------------------------------------------


_OF_ONE_ARRAY = (
    ("integer_x", TypeError, "x", lambda: args(integers(3))),
    ("bool_x", TypeError, "x", lambda: args(np.array([True, False]))),
    ("no_array", TypeError, "x", lambda: args(None)),
)


def _of_one_array_and(*parameters: str) -> tuple[Refusal, ...]:
    """Return the refusals of a function of one array and numbers."""

    def wrong(name: str, value: Any) -> Callable[[], Arguments]:
        return lambda: args(ones(3), **{name: value})

    of_numbers = [
        refusal
        for name in parameters
        for refusal in (
            (f"{name}_of_text", TypeError, name, wrong(name, "1")),
            (f"{name}_none", TypeError, name, wrong(name, None)),
            (f"{name}_nan", ValueError, name, wrong(name, math.nan)),
            (f"{name}_infinite", ValueError, name, wrong(name, math.inf)),
        )
    ]
    return (*_OF_ONE_ARRAY, *of_numbers)


_OF_GATES = (
    ("up_shape", ValueError, "up", lambda: args(ones(3, 4), ones(3, 5))),
    ("integer_gate", TypeError, "gate", lambda: args(integers(3), ones(3))),
    ("integer_up", TypeError, "up", lambda: args(ones(3), integers(3))),
)

_OF_DTYPES = (
    ("axis_twice", ValueError, "axis", lambda: args(ones(2, 3), axis=(1, -1))),
    ("integer_dtype", TypeError, "dtype", lambda: args(ones(2, 3), dtype=np.dtype(np.int32))),
    ("dtype_of_text", TypeError, "dtype", lambda: args(ones(2, 3), dtype="float32")),
    ("dtype_of_python", TypeError, "dtype", lambda: args(ones(2, 3), dtype=float)),
)

_OF_SLICES = (
    *_OF_DTYPES,
    ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 3), axis=2)),
    ("where_shape", ValueError, "where", lambda: args(ones(2, 3), where=np.ones((2, 4), dtype=bool))),
    ("where_float", TypeError, "where", lambda: args(ones(2, 3), where=ones(2, 3))),
    ("integer_x", TypeError, "x", lambda: args(integers(2, 3))),
)


# --- workloads, and all of it by operator ------------------------------------------------------------


def _two_arrays(make: Maker) -> Workload:
    return Workload((make.x(), make.x()))


ENTRIES = (
    Entry(silu, tuple(_elementwise_cases("silu", ())), _OF_ONE_ARRAY, one_array),
    Entry(sigmoid, tuple(_elementwise_cases("sigmoid", ())), _OF_ONE_ARRAY, one_array),
    Entry(relu, tuple(_elementwise_cases("relu", ())), _OF_ONE_ARRAY, one_array),
    Entry(relu_squared, tuple(_relu_squared_cases()), _OF_ONE_ARRAY, one_array),
    Entry(softplus, tuple(_elementwise_cases("softplus", ())), _OF_ONE_ARRAY, one_array),
    Entry(
        gelu,
        tuple(_gelu_cases()),
        (*_OF_ONE_ARRAY, ("approximate", ValueError, "approximate", lambda: args(ones(3), approximate="fast"))),
        one_array,
    ),
    Entry(quick_gelu, tuple(_quick_gelu_cases()), _of_one_array_and("alpha"), one_array),
    Entry(mish, tuple(_elementwise_cases("mish", ())), _OF_ONE_ARRAY, one_array),
    Entry(hard_sigmoid, tuple(_hard_sigmoid_cases()), _of_one_array_and("alpha", "beta"), one_array),
    Entry(hard_swish, tuple(_hard_swish_cases()), _OF_ONE_ARRAY, one_array),
    Entry(
        elu,
        (*_elu_cases("elu"), *_elementwise_cases("elu", (), "half_", alpha=0.5)),
        _of_one_array_and("alpha"),
        one_array,
    ),
    Entry(selu, tuple(_elu_cases("selu")), _OF_ONE_ARRAY, one_array),
    Entry(
        leaky_relu,
        (
            *_elementwise_cases("leaky_relu", ()),
            *_elementwise_cases("leaky_relu", (), "rising_", negative_slope=-2.0),
            *_elementwise_cases("leaky_relu", (), "relu_", negative_slope=0.0),
        ),
        _of_one_array_and("negative_slope"),
        one_array,
    ),
    Entry(
        squareplus,
        (*_elementwise_cases("squareplus", ()), *_elementwise_cases("squareplus", (), "narrow_", b=0.01)),
        (*_of_one_array_and("b"), ("zero_b", ValueError, "b", lambda: args(ones(3), b=0.0))),
        one_array,
    ),
    Entry(swiglu, tuple(_gated_cases("swiglu", ())), _OF_GATES, _two_arrays),
    Entry(geglu, tuple(_gated_cases("geglu", None)), _OF_GATES, _two_arrays),
    Entry(reglu, tuple(_gated_cases("reglu", ())), _OF_GATES, _two_arrays),
    Entry(softmax, tuple(_softmax_cases("softmax")), _OF_SLICES, one_array),
    Entry(log_softmax, tuple(_softmax_cases("log_softmax")), _OF_SLICES, one_array),
    Entry(
        logsumexp,
        tuple(_logsumexp_cases()),
        (
            *_OF_DTYPES,
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 3), axis=-3)),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 3))),
        ),
        one_array,
    ),
)
