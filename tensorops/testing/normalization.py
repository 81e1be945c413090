"""Normalization: references, cases, refusals and workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.entries import Arguments, Case, Entry, Maker, Workload
from tensorops.testing.values import (
    DOUBLE,
    EMPTY,
    EXTREME,
    FLOAT32_RANGE,
    FULL,
    ODD_LENGTHS,
    OVERFLOW,
    SPECIAL,
    SPECIAL_ROWS,
    Float64,
    Wide,
    alternating,
    args,
    float64,
    integers,
    normal,
    one_array,
    ones,
    quiet,
    single,
    weights,
)


def _magnitude(x: Wide, axis: int | tuple[int, ...] | None) -> Wide:
    """Return a power of two near the largest ``|x|`` along `axis`; 1 if that is 0, inf or NaN.

    Dividing by it is exact and keeps squares in range. `longdouble` alone would suffice if its exponents were
    larger than those of float64, which is not so on Windows and on Arm Macs.
    """
    top = np.max(np.abs(x), axis=axis, keepdims=True, initial=0)
    _, exponent = np.frexp(top)
    scale: Wide = np.ldexp(np.ones_like(top), exponent - 1)
    scale[~np.isfinite(top) | (top == 0)] = 1
    return scale


def _divide_by_deviation(x: Wide, axis: int | tuple[int, ...] | None, eps: float, *, center: bool) -> Wide:
    """``x / sqrt(mean(x**2) + eps)``, after subtracting the mean from `x` if `center`."""
    scale = _magnitude(x, axis)
    scaled = x / scale
    if center:
        scaled = scaled - np.sum(scaled, axis=axis, keepdims=True) / _count(x, axis)
    mean_square = np.sum(scaled * scaled, axis=axis, keepdims=True) / _count(x, axis)
    deviation: Wide = np.hypot(np.sqrt(mean_square), np.sqrt(np.longdouble(eps)) / scale)
    return scaled / deviation


def _axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes counted from the front, in the order given."""
    if axis is None:
        return tuple(range(ndim))
    return tuple(a % ndim for a in ((axis,) if isinstance(axis, int) else axis))


def _count(x: Wide, axis: int | tuple[int, ...] | None) -> np.longdouble:
    """Return the number of elements along `axis`."""
    axes = _axes(axis, x.ndim)
    return np.longdouble(math.prod(x.shape[i] for i in axes))


def _along(x: Wide, parameter: ArrayLike, axes: tuple[int, ...]) -> Float64:
    """Reshape `parameter`, whose axes are `axes` of `x` in ascending order, to broadcast against `x`."""
    return float64(parameter).reshape([n if i in axes else 1 for i, n in enumerate(x.shape)])


@quiet
def rms_norm(
    x: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> Float64:
    """``x / sqrt(mean(x**2, axis) + eps) * (weight + weight_offset)``; no weight means a factor of 1."""
    x = np.asarray(x, dtype=np.longdouble)
    y = _divide_by_deviation(x, axis, eps, center=False)
    if weight is not None:
        y = y * (_along(x, weight, (axis % x.ndim,)) + np.longdouble(weight_offset))
    return float64(y)


@quiet
def add_rms_norm(
    x: ArrayLike, residual: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-6, *, axis: int = -1
) -> tuple[Float64, Float64]:
    """``(rms_norm(x + residual, weight, eps), x + residual)``."""
    new_residual = float64(x) + float64(residual)
    return rms_norm(new_residual, weight, eps, axis=axis), float64(new_residual)


@quiet
def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] | None = -1,
) -> Float64:
    """``(x - mean) / sqrt(variance + eps) * weight + bias``, with the population variance over `axis`."""
    x = np.asarray(x, dtype=np.longdouble)
    axes = tuple(sorted(_axes(axis, x.ndim)))
    y = _divide_by_deviation(x, axes, eps, center=True)
    if weight is not None:
        y = y * _along(x, weight, axes)
    if bias is not None:
        y = y + _along(x, bias, axes)
    return float64(y)


@quiet
def add_layer_norm(
    x: ArrayLike,
    residual: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int = -1,
) -> tuple[Float64, Float64]:
    """``(layer_norm(x + residual, weight, bias, eps), x + residual)``."""
    new_residual = float64(x) + float64(residual)
    return layer_norm(new_residual, weight, bias, eps, axis=axis), float64(new_residual)


@quiet
def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> Float64:
    """``layer_norm`` of each group of channels, channels first; then scale and shift of each channel."""
    x = np.moveaxis(np.asarray(x, dtype=np.longdouble), channel_axis, 1)
    y = np.empty_like(x)
    members = x.shape[1] // num_groups
    for element in range(x.shape[0]):
        for first in range(0, x.shape[1], members):
            group = x[element, first : first + members]
            y[element, first : first + members] = _divide_by_deviation(
                group, tuple(range(group.ndim)), eps, center=True
            )
    if weight is not None:
        y = y * _along(x, weight, (1,))
    if bias is not None:
        y = y + _along(x, bias, (1,))
    return float64(np.moveaxis(y, 1, channel_axis))


def instance_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> Float64:
    """``group_norm`` with as many groups as channels."""
    return group_norm(x, np.shape(x)[channel_axis], weight, bias, eps, channel_axis=channel_axis)


@quiet
def l2_norm(x: ArrayLike, eps: float = 1e-12, *, axis: int | tuple[int, ...] | None = -1) -> Float64:
    """``x / max(sqrt(sum(x**2, axis)), eps)``; zeros stay zeros."""
    x = np.asarray(x, dtype=np.longdouble)
    scale = _magnitude(x, axis)
    scaled = x / scale
    length = np.sqrt(np.sum(scaled * scaled, axis=axis, keepdims=True))
    length = np.where(length * scale < eps, np.longdouble(eps) / scale, length)
    return float64(scaled / np.where(length == 0, 1, length))


# --- cases -------------------------------------------------------------------------------------------


def _rms_norm_cases() -> Iterator[Case]:
    case = partial(Case, "rms_norm", tolerance=16.0, scale_axis=())
    yield case("typical", lambda r: args(normal(r, 4, 64), weights(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 3, n), weights(r, n)), n=n))
    yield case("no_weight", lambda r: args(normal(r, 5, 33)))
    yield case("one_dimension", lambda r: args(normal(r, 17), weights(r, 17)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 5, 16), weights(r, 16)))
    yield case("first_axis", lambda r: args(normal(r, 9, 4), weights(r, 9), axis=0))
    yield case("middle_axis", lambda r: args(normal(r, 2, 6, 5), weights(r, 6), axis=1))
    yield case("negative_axis", lambda r: args(normal(r, 2, 6, 5), weights(r, 6), axis=-2))
    yield case("positional_eps", lambda r: args(normal(r, 3, 16, scale=0.01), weights(r, 16), 1e-3))
    yield case("eps_dominates", lambda r: args(normal(r, 3, 16, scale=1e-4), None, eps=1e-2))
    yield case("no_eps", lambda r: args(normal(r, 3, 16), weights(r, 16), eps=0.0))
    yield case("float32_weight", lambda r: args(normal(r, 3, 33), single(weights(r, 33))))
    yield case("weight_offset", lambda r: args(normal(r, 4, 32), weights(r, 32) - 1.0, weight_offset=1.0))
    yield case("zeros", lambda r: args(np.zeros((2, 16)), weights(r, 16)))
    yield case("one_large", lambda r: args(normal(r, 2, 33) + 1e4 * np.eye(2, 33), weights(r, 33)))
    yield case("empty_batch", lambda r: args(np.zeros((2, 0, 8)), weights(r, 8)), tags=EMPTY)
    yield case("empty_axis", lambda r: args(np.zeros((3, 0)), np.zeros(0)), tags=EMPTY)
    yield case("6e4", lambda r: args(alternating(6e4, 3, 17), weights(r, 17)), tags=EXTREME)
    yield case("1e30", lambda r: args(alternating(1e30, 3, 17), weights(r, 17)), dtypes=FLOAT32_RANGE, tags=OVERFLOW)
    yield case("1e-30", lambda r: args(alternating(1e-30, 3, 17), weights(r, 17)), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("1e200", lambda r: args(alternating(1e200, 3, 17), weights(r, 17)), dtypes=DOUBLE, tags=OVERFLOW)
    yield case("special", lambda r: args(SPECIAL_ROWS, weights(r, 4)), tags=SPECIAL)


def _add_rms_norm_cases() -> Iterator[Case]:
    case = partial(Case, "add_rms_norm", tolerance=16.0, scale_axis=())

    def rows(r: np.random.Generator, *shape: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return normal(r, *shape), normal(r, *shape)

    yield case("typical", lambda r: args(*rows(r, 4, 64), weights(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(*rows(r, 3, n), weights(r, n)), n=n))
    yield case("no_weight", lambda r: args(*rows(r, 5, 33)))
    yield case("batch", lambda r: args(*rows(r, 2, 3, 16), weights(r, 16)))
    yield case("middle_axis", lambda r: args(*rows(r, 2, 6, 5), weights(r, 6), axis=1))
    yield case("positional_eps", lambda r: args(*rows(r, 3, 16), weights(r, 16), 1e-3))
    yield case("float32_weight", lambda r: args(*rows(r, 3, 33), single(weights(r, 33))))
    yield case("cancels", lambda r: args(np.full((2, 8), 1.5), np.full((2, 8), -1.5), weights(r, 8)))
    yield case("empty_batch", lambda r: args(*rows(r, 0, 8), weights(r, 8)), tags=EMPTY)
    yield case(
        "1e30",
        lambda r: args(alternating(1e30, 3, 17), alternating(2e30, 3, 17), weights(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=OVERFLOW,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS, np.ones((6, 4)), weights(r, 4)), tags=SPECIAL)


def _layer_norm_cases() -> Iterator[Case]:
    case = partial(Case, "layer_norm", tolerance=16.0)

    def affine(r: np.random.Generator, *shape: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return weights(r, *shape), normal(r, *shape)

    yield case("typical", lambda r: args(normal(r, 4, 64), *affine(r, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 3, n), *affine(r, n)), n=n))
    yield case("no_weight", lambda r: args(normal(r, 5, 33)))
    yield case("weight_alone", lambda r: args(normal(r, 5, 33), weights(r, 33)))
    yield case("bias_alone", lambda r: args(normal(r, 5, 33), None, normal(r, 33)))
    yield case("float32_parameters", lambda r: args(normal(r, 5, 33), *map(single, affine(r, 33))))
    yield case("float32_weight", lambda r: args(normal(r, 5, 33), single(weights(r, 33)), normal(r, 33)))
    yield case("one_dimension", lambda r: args(normal(r, 17), *affine(r, 17)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 5, 16), *affine(r, 16)))
    yield case("first_axis", lambda r: args(normal(r, 9, 4), *affine(r, 9), axis=0), scale_axis=0)
    yield case(
        "last_two_axes", lambda r: args(normal(r, 3, 4, 5), *affine(r, 4, 5), axis=(-2, -1)), scale_axis=(-2, -1)
    )
    yield case("separate_axes", lambda r: args(normal(r, 2, 3, 4, 5), *affine(r, 3, 5), axis=(1, 3)), scale_axis=(1, 3))
    yield case("no_axis", lambda r: args(normal(r, 4, 5), *affine(r, 4, 5), axis=None), scale_axis=(0, 1))
    # The order in which axes are named does not matter: weight and bias follow the order of x.
    yield case(
        "unordered_axes", lambda r: args(normal(r, 3, 4, 5), *affine(r, 4, 5), axis=(-1, 1)), scale_axis=(-2, -1)
    )
    yield case("positional_eps", lambda r: args(normal(r, 3, 16, scale=0.1), *affine(r, 16), 1e-2))
    yield case("constant", lambda r: args(np.full((2, 16), 2.5), *affine(r, 16)))
    # The difference from the mean is exact to eps * mean, a variance as E[x^2] - E[x]^2 only to eps * mean^2.
    yield case("large_mean", lambda r: args(1e3 + normal(r, 3, 64)), tolerance=4e3, dtypes=FULL)
    yield case("empty_batch", lambda r: args(np.zeros((0, 8)), *affine(r, 8)), tags=EMPTY)
    yield case("6e4", lambda r: args(alternating(6e4, 3, 17), *affine(r, 17)), tags=EXTREME)
    yield case("1e30", lambda r: args(alternating(1e30, 3, 17), *affine(r, 17)), dtypes=FLOAT32_RANGE, tags=OVERFLOW)
    yield case("1e-30", lambda r: args(alternating(1e-30, 3, 17)), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("special", lambda r: args(SPECIAL_ROWS, *affine(r, 4)), tags=SPECIAL)


def _add_layer_norm_cases() -> Iterator[Case]:

    case = partial(Case, "add_layer_norm", tolerance=32.0)

    def call(r: np.random.Generator, *shape: int, **options: int) -> Arguments:
        n = shape[options.get("axis", -1)]
        return args(normal(r, *shape), normal(r, *shape), weights(r, n), normal(r, n), **options)

    yield case("typical", lambda r: call(r, 4, 64))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: call(r, 3, n), n=n))
    yield case("no_weight", lambda r: args(normal(r, 5, 33), normal(r, 5, 33)))
    yield case("bias_alone", lambda r: args(normal(r, 5, 33), normal(r, 5, 33), None, normal(r, 33)))
    yield case("batch", lambda r: call(r, 2, 3, 16))
    yield case("middle_axis", lambda r: call(r, 2, 6, 5, axis=1), scale_axis=1)
    yield case("positional_eps", lambda r: args(*call(r, 3, 16)[0], 1e-2))
    yield case(
        "float32_parameters",
        lambda r: args(normal(r, 3, 33), normal(r, 3, 33), single(weights(r, 33)), single(normal(r, 33))),
    )
    yield case("cancels", lambda r: args(np.full((2, 8), 1.5), np.full((2, 8), -1.5), weights(r, 8), normal(r, 8)))
    yield case("empty_batch", lambda r: call(r, 0, 8), tags=EMPTY)
    yield case(
        "1e30",
        lambda r: args(alternating(1e30, 3, 17), alternating(2e30, 3, 17), weights(r, 17)),
        dtypes=FLOAT32_RANGE,
        tags=OVERFLOW,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS, np.ones((6, 4)), weights(r, 4)), tags=SPECIAL)


def _channels(r: np.random.Generator, count: int) -> dict[str, NDArray[np.float64]]:
    """Return the weight and the bias of channels."""
    return {"weight": weights(r, count), "bias": normal(r, count)}


def _float32(parameters: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float32]]:
    """Return parameters that are float32 for any dtype of x."""
    return {name: single(parameter) for name, parameter in parameters.items()}


# Channels first, so that a case is an element of a batch, and its errors are relative to the largest of a group.
_FIRST = (1, 2, 3)


def _group_norm_cases() -> Iterator[Case]:
    case = partial(Case, "group_norm", tolerance=16.0, scale_axis=_FIRST)
    yield case("typical", lambda r: args(normal(r, 4, 8, 3, 5), num_groups=4, **_channels(r, 8)))
    for n in ODD_LENGTHS:
        yield case(f"positions_{n}", partial(lambda r, n: args(normal(r, 2, 6, n, 1), 2, **_channels(r, 6)), n=n))
        yield case(f"no_positions_{n}", partial(lambda r, n: args(normal(r, 3, 2 * n), 2, **_channels(r, 2 * n)), n=n),
                   scale_axis=-1)  # fmt: skip
    yield case("no_parameters", lambda r: args(normal(r, 2, 6, 7, 3), 3))
    yield case("weight_alone", lambda r: args(normal(r, 2, 6, 7, 3), 3, weights(r, 6)))
    yield case("bias_alone", lambda r: args(normal(r, 2, 6, 7, 3), 3, None, normal(r, 6)))
    yield case("one_group", lambda r: args(normal(r, 3, 5, 4, 4), 1, **_channels(r, 5)))
    yield case("one_position_in_three_axes", lambda r: args(normal(r, 3, 6, 1, 1, 1), 2, **_channels(r, 6)),
               scale_axis=(1, 2, 3, 4))  # fmt: skip
    yield case("channels_last", lambda r: args(normal(r, 2, 3, 5, 6), 2, **_channels(r, 6), channel_axis=-1))
    yield case("channels_between", lambda r: args(normal(r, 2, 3, 6, 5), 3, **_channels(r, 6), channel_axis=2))
    yield case("positional_eps", lambda r: args(normal(r, 2, 4, 9, 1, scale=0.1), 2, None, None, 1e-2))
    yield case("constant", lambda r: args(np.full((2, 4, 3, 3), 2.5), 2, **_channels(r, 4)))
    yield case("large_mean", lambda r: args(1e3 + normal(r, 2, 4, 8, 5), 2), tolerance=4e3, dtypes=FULL)
    yield case("float32_parameters", lambda r: args(normal(r, 2, 6, 7, 3), 3, **_float32(_channels(r, 6))))
    yield case("empty_batch", lambda r: args(np.zeros((0, 4, 3, 3)), 2, **_channels(r, 4)), tags=EMPTY)
    yield case("empty_positions", lambda r: args(np.zeros((2, 4, 0, 3)), 2, **_channels(r, 4)), tags=EMPTY)
    yield case("6e4", lambda r: args(alternating(6e4, 2, 4, 3, 3), 2, **_channels(r, 4)), tags=EXTREME)
    yield case(
        "1e30", lambda r: args(alternating(1e30, 2, 4, 3, 3), 2, **_channels(r, 4)), dtypes=FLOAT32_RANGE, tags=OVERFLOW
    )
    yield case("1e-30", lambda r: args(alternating(1e-30, 2, 4, 3, 3), 2), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("special", lambda r: args(SPECIAL_ROWS.reshape(1, 6, 2, 2), 6, **_channels(r, 6)), tags=SPECIAL)


def _instance_norm_cases() -> Iterator[Case]:
    case = partial(Case, "instance_norm", tolerance=16.0, scale_axis=(2, 3))
    yield case("typical", lambda r: args(normal(r, 3, 4, 5, 7), **_channels(r, 4)))
    for n in ODD_LENGTHS:
        yield case(f"positions_{n}", partial(lambda r, n: args(normal(r, 2, 3, n, 1), **_channels(r, 3)), n=n))
    yield case("no_parameters", lambda r: args(normal(r, 2, 3, 7, 3)))
    yield case("weight_alone", lambda r: args(normal(r, 2, 3, 7, 3), weights(r, 3)))
    yield case("bias_alone", lambda r: args(normal(r, 2, 3, 7, 3), None, normal(r, 3)))
    yield case("no_position_axes", lambda r: args(normal(r, 3, 5), **_channels(r, 5)), scale_axis=-1)
    yield case("channels_last", lambda r: args(normal(r, 2, 3, 5, 6), **_channels(r, 6), channel_axis=-1),
               scale_axis=(1, 2))  # fmt: skip
    yield case("positional_eps", lambda r: args(normal(r, 2, 4, 9, 1, scale=0.1), None, None, 1e-2))
    yield case("constant", lambda r: args(np.full((2, 4, 3, 3), 2.5), **_channels(r, 4)))
    yield case("float32_parameters", lambda r: args(normal(r, 2, 3, 7, 3), **_float32(_channels(r, 3))))
    yield case("empty_batch", lambda r: args(np.zeros((0, 4, 3, 3)), **_channels(r, 4)), tags=EMPTY)
    yield case("6e4", lambda r: args(alternating(6e4, 2, 4, 3, 5), **_channels(r, 4)), tags=EXTREME)
    yield case(
        "1e30", lambda r: args(alternating(1e30, 2, 4, 3, 5), **_channels(r, 4)), dtypes=FLOAT32_RANGE, tags=OVERFLOW
    )
    yield case("1e-30", lambda r: args(alternating(1e-30, 2, 4, 3, 5)), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("special", lambda r: args(SPECIAL_ROWS.reshape(1, 6, 2, 2), **_channels(r, 6)), tags=SPECIAL)


def _l2_norm_cases() -> Iterator[Case]:
    case = partial(Case, "l2_norm", tolerance=16.0, scale_axis=())
    yield case("typical", lambda r: args(normal(r, 4, 64)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 3, n)), n=n))
    yield case("one_dimension", lambda r: args(normal(r, 17)))
    yield case("batch", lambda r: args(normal(r, 2, 3, 5, 16)))
    yield case("first_axis", lambda r: args(normal(r, 9, 4), axis=0))
    yield case("last_two_axes", lambda r: args(normal(r, 3, 4, 5), axis=(-2, -1)))
    yield case("separate_axes", lambda r: args(normal(r, 2, 3, 4, 5), axis=(3, 1)))
    yield case("no_axis", lambda r: args(normal(r, 3, 4, 5), axis=None))
    yield case("positional_eps", lambda r: args(normal(r, 3, 16, scale=0.01), 1e-3))
    yield case("eps_dominates", lambda r: args(normal(r, 3, 16, scale=1e-3), eps=1e-1))
    yield case("about_eps", lambda r: args(np.repeat([[0.125], [0.25], [0.5]], 4, axis=1), eps=0.5))
    yield case("no_eps", lambda r: args(normal(r, 3, 16), eps=0.0))
    yield case("zeros", lambda r: args(np.zeros((2, 16))))
    yield case("zeros_without_eps", lambda r: args(np.zeros((2, 16)), eps=0.0))
    yield case("empty_batch", lambda r: args(np.zeros((2, 0, 8))), tags=EMPTY)
    yield case("empty_axis", lambda r: args(np.zeros((3, 0))), tags=EMPTY)
    yield case("6e4", lambda r: args(alternating(6e4, 3, 17)), tags=EXTREME)
    yield case("1e30", lambda r: args(alternating(1e30, 3, 17)), dtypes=FLOAT32_RANGE, tags=OVERFLOW)
    yield case("1e-30", lambda r: args(alternating(1e-30, 3, 17), 0.0), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("1e-30_below_eps", lambda r: args(alternating(1e-30, 3, 17)), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("1e200", lambda r: args(alternating(1e200, 3, 17)), dtypes=DOUBLE, tags=OVERFLOW)
    yield case("special", lambda r: args(SPECIAL_ROWS), tags=SPECIAL)


# --- workloads, and all of it by operator ------------------------------------------------------------


_CHANNELS = 16


def _channels_of_rows(make: Maker) -> NDArray[Any]:
    """Return rows as the elements of a batch, in each of which the features are those of some channels."""
    return make.normal(make.rows, _CHANNELS, make.divided(_CHANNELS))


ENTRIES = (
    Entry(
        rms_norm,
        tuple(_rms_norm_cases()),
        (
            (
                "weight_length",
                ValueError,
                "^rms_norm: weight has 7 elements, but axis -1 of x has 8",
                lambda: args(ones(2, 8), ones(7)),
            ),
            ("weight_2d", ValueError, "weight", lambda: args(ones(2, 8), ones(1, 8))),
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 8), axis=2)),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(8))),
            ("integer_weight", TypeError, "weight", lambda: args(ones(2, 8), integers(8))),
            ("negative_eps", ValueError, "eps", lambda: args(ones(2, 8), ones(8), -1e-6)),
        ),
        lambda m: Workload((m.x(), m.vector())),
    ),
    Entry(
        add_rms_norm,
        tuple(_add_rms_norm_cases()),
        (
            ("residual_shape", ValueError, "residual", lambda: args(ones(2, 8), ones(2, 7))),
            (
                "weight_length",
                ValueError,
                "^add_rms_norm: weight has 7 elements, but axis -1 of x has 8",
                lambda: args(ones(2, 8), ones(2, 8), ones(7)),
            ),
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 8), ones(2, 8), axis=-3)),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(2, 8))),
        ),
        lambda m: Workload((m.x(), m.x(), m.vector())),
    ),
    Entry(
        layer_norm,
        tuple(_layer_norm_cases()),
        (
            ("weight_shape", ValueError, "weight", lambda: args(ones(2, 8), ones(7))),
            ("bias_shape", ValueError, "bias", lambda: args(ones(2, 8), None, ones(8, 1))),
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 8), axis=(0, 2))),
            ("axis_twice", ValueError, "axis", lambda: args(ones(2, 8), axis=(1, -1))),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8))),
            ("nan_eps", ValueError, "eps", lambda: args(ones(2, 8), eps=float("nan"))),
        ),
        lambda m: Workload((m.x(), m.vector(), m.vector())),
    ),
    Entry(
        add_layer_norm,
        tuple(_add_layer_norm_cases()),
        (
            ("residual_shape", ValueError, "residual", lambda: args(ones(2, 8), ones(2, 7))),
            ("weight_shape", ValueError, "weight", lambda: args(ones(2, 8), ones(2, 8), ones(7))),
            ("bias_shape", ValueError, "bias", lambda: args(ones(2, 8), ones(2, 8), None, ones(8, 1))),
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 8), ones(2, 8), axis=2)),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(2, 8))),
        ),
        lambda m: Workload((m.x(), m.x(), m.vector(), m.vector())),
    ),
    Entry(
        group_norm,
        tuple(_group_norm_cases()),
        (
            (
                "indivisible",
                ValueError,
                "num_groups",
                lambda: args(ones(2, 8, 3), 3),
            ),
            ("no_groups", ValueError, "num_groups", lambda: args(ones(2, 8, 3), 0)),
            ("weight_length", ValueError, "weight", lambda: args(ones(2, 8, 3), 2, ones(2))),
            ("bias_2d", ValueError, "bias", lambda: args(ones(2, 8, 3), 2, None, ones(8, 1))),
            ("one_dimension", ValueError, "x", lambda: args(ones(8), 2)),
            ("channels_beyond", ValueError, "channel_axis", lambda: args(ones(2, 8, 3), 2, channel_axis=3)),
            ("channels_of_the_batch", ValueError, "channel_axis", lambda: args(ones(2, 8, 3), 2, channel_axis=-3)),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8, 3), 2)),
            ("negative_eps", ValueError, "eps", lambda: args(ones(2, 8, 3), 2, eps=-1e-5)),
        ),
        lambda m: Workload(
            (_channels_of_rows(m),),
            {"num_groups": _CHANNELS // 4, "weight": m.normal(_CHANNELS), "bias": m.normal(_CHANNELS)},
        ),
    ),
    Entry(
        instance_norm,
        tuple(_instance_norm_cases()),
        (
            ("weight_length", ValueError, "weight", lambda: args(ones(2, 8, 3), ones(7))),
            ("bias_2d", ValueError, "bias", lambda: args(ones(2, 8, 3), None, ones(8, 1))),
            ("one_dimension", ValueError, "x", lambda: args(ones(8))),
            ("channels_of_the_batch", ValueError, "channel_axis", lambda: args(ones(2, 8, 3), channel_axis=0)),
            ("integer_weight", TypeError, "weight", lambda: args(ones(2, 8, 3), integers(8))),
        ),
        lambda m: Workload((_channels_of_rows(m), m.normal(_CHANNELS), m.normal(_CHANNELS))),
    ),
    Entry(
        l2_norm,
        tuple(_l2_norm_cases()),
        (
            ("axis_beyond", ValueError, "axis", lambda: args(ones(2, 8), axis=2)),
            ("axis_twice", ValueError, "axis", lambda: args(ones(2, 8), axis=(1, -1))),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8))),
            ("negative_eps", ValueError, "eps", lambda: args(ones(2, 8), -1e-6)),
        ),
        one_array,
    ),
)
