"""Activations, elementwise and gated, and softmax with its relatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import pi, sqrt
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, cast, overload

from tensorops._dtypes import anew, is_bool, narrow, widen
from tensorops._operator import operator
from tensorops._row_axes import Axes, RowAxes, elementwise, every_axis, last_axes
from tensorops._validation import (
    as_axes,
    as_bool,
    as_choice,
    as_floating_dtype,
    as_number,
    normalize_axes,
    require_broadcastable,
    require_floating,
    require_same_dtype,
    require_same_shape,
)
from tensorops.backends import get_namespace
from tensorops.ops import _special
from tensorops.ops._docstrings import completed
from tensorops.ops._sums import sum_along
from tensorops.typing import Array, ArrayInput, ArrayInputT, ArrayOfKind, Dtype, KindT, Namespace

if TYPE_CHECKING:
    from tensorops._explanation import Explanation
    from tensorops._operator import TypedOperator

__all__ = [
    "elu",
    "geglu",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log_softmax",
    "logsumexp",
    "mish",
    "quick_gelu",
    "reglu",
    "relu",
    "relu_squared",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "squareplus",
    "swiglu",
]

P = ParamSpec("P")

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554804934, 1.6732632423543772848


def _check_unary(name: str, x: Array) -> None:
    require_floating(name, x=x)


def _check_gelu(name: str, x: Array, approximate: str) -> dict[str, Any]:
    require_floating(name, x=x)
    return {"approximate": as_choice(name, "approximate", approximate, ("none", "tanh"))}


def _check_with_alpha(name: str, x: Array, alpha: float) -> dict[str, Any]:
    require_floating(name, x=x)
    return {"alpha": as_number(name, "alpha", alpha)}


def _check_hard_sigmoid(name: str, x: Array, alpha: float, beta: float) -> dict[str, Any]:
    return {**_check_with_alpha(name, x, alpha), "beta": as_number(name, "beta", beta)}


def _check_leaky_relu(name: str, x: Array, negative_slope: float) -> dict[str, Any]:
    require_floating(name, x=x)
    return {"negative_slope": as_number(name, "negative_slope", negative_slope)}


def _check_squareplus(name: str, x: Array, b: float) -> dict[str, Any]:
    require_floating(name, x=x)
    b = as_number(name, "b", b)
    if b <= 0:
        raise ValueError(f"{name}: b is {b}, expected a positive number")
    return {"b": b}


def _check_gated(name: str, gate: Array, up: Array) -> None:
    require_floating(name, gate=gate, up=up)
    require_same_dtype(name, gate=gate, up=up)
    require_same_shape(name, gate=gate, up=up)


def _check_softmax(
    name: str, x: Array, axis: int | tuple[int, ...] | None, where: Array | None, dtype: Dtype | None
) -> dict[str, Any]:
    require_floating(name, x=x)
    if where is not None:
        if not is_bool(where):
            raise TypeError(f"{name}: where has dtype {where.dtype}, expected bool")
        require_broadcastable(name, "where", where, tuple(x.shape))
    return {"axis": normalize_axes(name, axis, x.ndim), "dtype": as_floating_dtype(name, "dtype", dtype, x)}


def _check_logsumexp(
    name: str,
    x: Array,
    axis: int | tuple[int, ...] | None,
    keepdims: bool,
    where: Array | None,
    b: Array | None,
    return_sign: bool,
    dtype: Dtype | None,
) -> dict[str, Any]:
    options = _check_softmax(name, x, axis, where, dtype)
    if b is not None:
        require_floating(name, b=b)
        require_broadcastable(name, "b", b, tuple(x.shape))
    flags = {"keepdims": keepdims, "return_sign": return_sign}
    return {**options, **{flag: as_bool(name, flag, value) for flag, value in flags.items()}}


def _softmax_rows(x: Array, axis: Axes, where: Array | None, dtype: Dtype | None) -> RowAxes:
    every = every_axis(x)
    masked = {} if where is None else {"where": last_axes(where, x.ndim)}
    return RowAxes({"x": every} | masked, every, whole=axis, dtype=dtype)


def _logsumexp_rows(
    x: Array,
    axis: Axes,
    keepdims: bool,
    where: Array | None,
    b: Array | None,
    return_sign: bool,
    dtype: Dtype | None,
) -> RowAxes:
    every = every_axis(x)
    arrays = {"x": every}
    for name, a in (("where", where), ("b", b)):
        if a is not None:
            arrays[name] = last_axes(a, x.ndim)
    results = 1 + return_sign
    if keepdims:
        return RowAxes(arrays, every, whole=axis, shortened=axis, results=results, dtype=dtype)
    return RowAxes(arrays, tuple(a for a in every if a not in axis), whole=axis, results=results, dtype=dtype)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def silu(x: ArrayInputT) -> ArrayInputT:
    r"""Sigmoid linear unit, also called swish.

    .. math:: y = \frac{x}{1 + e^{-x}}

    Returns
    -------
    Minus infinity gives NaN, as in torch and JAX: it is multiplied by 0.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.silu(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.26894142,  0.        ,  0.73105858])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, wide * _special.sigmoid(xp, wide), x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def sigmoid(x: ArrayInputT) -> ArrayInputT:
    r"""Logistic function.

    .. math:: y = \frac{1}{1 + e^{-x}}

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.sigmoid(np.asarray([-1.0, 0.0, 1.0]))
    array([0.26894142, 0.5       , 0.73105858])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, _special.sigmoid(xp, wide), x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def relu(x: ArrayInputT) -> ArrayInputT:
    r"""Rectified linear unit.

    .. math:: y = \max(x, 0)

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. NaN stays NaN; the derivative at 0 is 0.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.relu(np.asarray([-1.0, 0.0, 1.0]))
    array([0., 0., 1.])
    """
    xp = get_namespace(x)
    return xp.where(x <= 0, xp.zeros_like(x), x)  # type: ignore[operator]


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def relu_squared(x: ArrayInputT) -> ArrayInputT:
    r"""Squared rectified linear unit: the activation of Primer.

    .. math:: y = \max(x, 0)^2

    Returns
    -------
    NaN stays NaN; squares beyond the range of the dtype are infinite.

    References
    ----------
    So et al., "Primer: Searching for Efficient Transformers for Language Modeling", 2021,
    https://arxiv.org/abs/2109.08668

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.relu_squared(np.asarray([-1.0, 0.0, 3.0]))
    array([0., 0., 9.])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    positive = xp.where(wide <= 0, xp.zeros_like(wide), wide)
    return narrow(xp, positive * positive, x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def softplus(x: ArrayInputT) -> ArrayInputT:
    r"""Smooth form of the rectified linear unit.

    .. math:: y = \log(1 + e^x)

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.softplus(np.asarray([-1000.0, 0.0, 1000.0]))
    array([0.00000000e+00, 6.93147181e-01, 1.00000000e+03])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    positive = wide >= 0
    e = xp.exp(xp.where(positive, -wide, wide))
    return narrow(xp, xp.where(positive, wide, xp.zeros_like(wide)) + xp.log1p(e), x)


@operator(check=_check_gelu, rows=elementwise("x"))
@completed
def gelu(x: ArrayInputT, *, approximate: str = "none") -> ArrayInputT:
    r"""Gaussian error linear unit.

    .. math:: y = x \, \Phi(x) = \frac{x}{2} \operatorname{erfc}\left(-\frac{x}{\sqrt 2}\right)

    Parameters
    ----------
    approximate : {"none", "tanh"}, optional
        ``"none"`` is the formula above, ``"tanh"`` the common approximation
        :math:`\frac{x}{2} (1 + \tanh(\sqrt{2/\pi} (x + 0.044715 x^3)))`.

    Returns
    -------
    Minus infinity gives NaN, as in torch and JAX: it is multiplied by 0.

    Raises
    ------
    ValueError
        If `approximate` is neither form.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.gelu(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.15865525,  0.        ,  0.84134475])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, _gelu(xp, wide, approximate), x)


@operator(check=_check_with_alpha, rows=elementwise("x"))
@completed
def quick_gelu(x: ArrayInputT, *, alpha: float = 1.702) -> ArrayInputT:
    r"""Approximation of gelu by a logistic function: the activation of CLIP.

    .. math:: y = \frac{x}{1 + e^{-\alpha x}}

    Parameters
    ----------
    alpha : float, optional
        Factor in the exponent; the default is within 0.021 of `gelu`, and 1 gives `silu`.

    Returns
    -------
    Minus infinity gives NaN, as in torch and JAX: it is multiplied by 0.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415; ONNX Runtime,
    ``com.microsoft.QuickGelu``

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.quick_gelu(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.15420423,  0.        ,  0.84579577])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, wide * _special.sigmoid(xp, alpha * wide), x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def mish(x: ArrayInputT) -> ArrayInputT:
    r"""Self-regularized activation: the product with the hyperbolic tangent of softplus.

    .. math:: y = x \tanh(\log(1 + e^x)) = x \, \frac{e^{2x} + 2 e^x}{e^{2x} + 2 e^x + 2}

    Returns
    -------
    Minus infinity gives NaN, as in torch and JAX: it is multiplied by 0.

    References
    ----------
    Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019, https://arxiv.org/abs/1908.08681

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.mish(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.30340146,  0.        ,  0.86509839])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    positive = wide >= 0
    e = xp.exp(xp.where(positive, -wide, wide))  # for positive x, the fraction is reduced by exp(2 x)
    numerator = xp.where(positive, 1.0 + 2.0 * e, e * (e + 2.0))
    return narrow(xp, wide * (numerator / (numerator + xp.where(positive, 2.0 * e * e, 2.0 * xp.ones_like(e)))), x)


@operator(check=_check_hard_sigmoid, rows=elementwise("x"))
@completed
def hard_sigmoid(x: ArrayInputT, *, alpha: float = 1 / 6, beta: float = 0.5) -> ArrayInputT:
    r"""Piecewise linear form of the logistic function.

    .. math:: y = \min(\max(\alpha x + \beta, 0), 1)

    Parameters
    ----------
    alpha, beta : float, optional
        Slope, and value at 0. The defaults are those of torch, JAX, Keras 3 and ONNX's HardSwish, where it is
        :math:`\operatorname{relu6}(x + 3) / 6`; ONNX's HardSigmoid itself has the slope 0.2 by default.

    Returns
    -------
    NaN stays NaN; the derivative at both kinks is 0.

    References
    ----------
    Howard et al., "Searching for MobileNetV3", 2019, https://arxiv.org/abs/1905.02244; ONNX, HardSigmoid

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.hard_sigmoid(np.asarray([-4.0, -1.5, 0.0, 4.0]))
    array([0.  , 0.25, 0.5 , 1.  ])
    >>> tensorops.hard_sigmoid(np.asarray([-1.0, 2.0]), alpha=0.2)
    array([0.3, 0.9])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, _hard_sigmoid(xp, wide, alpha, beta), x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def hard_swish(x: ArrayInputT) -> ArrayInputT:
    r"""Piecewise quadratic form of silu: the activation of MobileNetV3.

    .. math:: y = x \, \frac{\min(\max(x + 3, 0), 6)}{6}

    Returns
    -------
    Minus infinity gives NaN, as in torch and JAX: it is multiplied by 0. The derivative is 0 at -3 and 1 at 3.

    References
    ----------
    Howard et al., "Searching for MobileNetV3", 2019, https://arxiv.org/abs/1905.02244

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.hard_swish(np.asarray([-4.0, -1.5, 0.0, 4.0]))
    array([-0.   , -0.375,  0.   ,  4.   ])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, wide * _hard_sigmoid(xp, wide, 1 / 6, 0.5), x)


@operator(check=_check_with_alpha, rows=elementwise("x"))
@completed
def elu(x: ArrayInputT, *, alpha: float = 1.0) -> ArrayInputT:
    r"""Exponential linear unit.

    .. math:: y = \begin{cases} x & x > 0 \\ \alpha (e^x - 1) & x \le 0 \end{cases}

    Parameters
    ----------
    alpha : float, optional
        The result approaches its negative for large negative arguments.

    Returns
    -------
    The derivative at 0 is `alpha`.

    References
    ----------
    Clevert, Unterthiner and Hochreiter, "Fast and Accurate Deep Network Learning by Exponential Linear Units", 2015,
    https://arxiv.org/abs/1511.07289

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.elu(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.63212056,  0.        ,  1.        ])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, _elu(xp, wide, 1.0, alpha), x)


@operator(check=_check_unary, rows=elementwise("x"))
@completed
def selu(x: ArrayInputT) -> ArrayInputT:
    r"""Scaled exponential linear unit.

    .. math:: y = \lambda \begin{cases} x & x > 0 \\ \alpha (e^x - 1) & x \le 0 \end{cases}

    Returns
    -------
    The derivative at 0 is the product of both constants, 1.758.

    References
    ----------
    Klambauer et al., "Self-Normalizing Neural Networks", 2017, https://arxiv.org/abs/1706.02515, which derives
    :math:`\lambda` = 1.0507009873554805 and :math:`\alpha` = 1.6732632423543772

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.selu(np.asarray([-1.0, 0.0, 1.0]))
    array([-1.11133074,  0.        ,  1.05070099])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, _elu(xp, wide, _SELU_SCALE, _SELU_SCALE * _SELU_ALPHA), x)


@operator(check=_check_leaky_relu, rows=elementwise("x"))
@completed
def leaky_relu(x: ArrayInputT, *, negative_slope: float = 0.01) -> ArrayInputT:
    r"""Rectified linear unit with a slope for negative arguments.

    .. math:: y = \begin{cases} x & x > 0 \\ \mathit{negative\_slope} \cdot x & x \le 0 \end{cases}

    Parameters
    ----------
    negative_slope : float, optional
        Factor of the arguments that are not positive; ONNX calls it alpha.

    Returns
    -------
    The derivative at 0 is `negative_slope`.

    References
    ----------
    Maas, Hannun and Ng, "Rectifier Nonlinearities Improve Neural Network Acoustic Models", 2013

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.leaky_relu(np.asarray([-1.0, 0.0, 1.0]))
    array([-0.01,  0.  ,  1.  ])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    return narrow(xp, xp.where(wide > 0, wide, negative_slope * wide), x)


@operator(check=_check_squareplus, rows=elementwise("x"))
@completed
def squareplus(x: ArrayInputT, *, b: float = 4.0) -> ArrayInputT:
    r"""Algebraic approximation of relu and softplus, without exponentials.

    .. math:: y = \frac{x + \sqrt{x^2 + b}}{2}

    Parameters
    ----------
    b : float, optional
        Width of the smooth part, positive: the result at 0 is :math:`\sqrt{b} / 2`. Near 0, :math:`4 (\log 2)^2` gives
        `softplus`.

    Returns
    -------
    Squares do not overflow, and small results for negative `x` do not cancel.

    Raises
    ------
    ValueError
        If `b` is not a finite positive number.

    References
    ----------
    Barron, "Squareplus: A Softplus-Like Algebraic Rectifier", 2021, https://arxiv.org/abs/2112.11687

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.squareplus(np.asarray([-1.5, 0.0, 1.5]))
    array([0.5, 1. , 2. ])
    """
    xp = get_namespace(x)
    (wide,) = widen(xp, x)
    magnitude, root_of_b = xp.abs(wide), xp.full_like(wide, math.sqrt(b))
    larger, smaller = xp.maximum(magnitude, root_of_b), xp.minimum(magnitude, root_of_b)
    half_root = larger * (0.5 * xp.sqrt(1.0 + (smaller / larger) ** 2))
    sum_ = half_root + 0.5 * magnitude
    return narrow(xp, xp.where(wide < 0, root_of_b / sum_ * (0.25 * root_of_b), sum_), x)


@operator(check=_check_gated, rows=elementwise("gate", "up"))
@completed
def swiglu(gate: ArrayInputT, up: ArrayInput) -> ArrayInputT:
    r"""Gated unit with silu: the feed-forward block of Llama.

    .. math:: y = \operatorname{silu}(\mathit{gate}) \cdot \mathit{up}

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.swiglu(np.asarray([-1.0, 1.0]), np.asarray([2.0, 2.0]))
    array([-0.53788284,  1.46211716])
    """
    xp = get_namespace(gate, up)
    g, u = widen(xp, gate, up)
    return narrow(xp, g * _special.sigmoid(xp, g) * u, gate)


@operator(check=_check_gated, rows=elementwise("gate", "up"))
@completed
def geglu(gate: ArrayInputT, up: ArrayInput) -> ArrayInputT:
    r"""Gated unit with gelu (the exact form).

    .. math:: y = \operatorname{gelu}(\mathit{gate}) \cdot \mathit{up}

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.geglu(np.asarray([-1.0, 1.0]), np.asarray([2.0, 2.0]))
    array([-0.31731051,  1.68268949])
    """
    xp = get_namespace(gate, up)
    g, u = widen(xp, gate, up)
    return narrow(xp, _gelu(xp, g, "none") * u, gate)


@operator(check=_check_gated, rows=elementwise("gate", "up"))
@completed
def reglu(gate: ArrayInputT, up: ArrayInput) -> ArrayInputT:
    r"""Gated unit with relu.

    .. math:: y = \operatorname{relu}(\mathit{gate}) \cdot \mathit{up}

    Returns
    -------
    The derivative by a gate of 0 is 0.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.reglu(np.asarray([-1.0, 1.0]), np.asarray([2.0, 2.0]))
    array([0., 2.])
    """
    xp = get_namespace(gate, up)
    g, u = widen(xp, gate, up)
    return narrow(xp, xp.where(g <= 0, xp.zeros_like(g), g) * u, gate)


@operator(check=_check_softmax, rows=_softmax_rows)
def softmax(
    x: ArrayInputT,
    *,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayInput | None = None,
    dtype: Dtype | None = None,
) -> ArrayInputT:
    r"""Exponentials, normalized to sum to one along an axis.

    .. math:: y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    axis : int, tuple of int or None, optional
        The axes to normalize together; ``None`` is all of them.
    where : array of bool, optional
        Broadcasts to `x`. Elements where it is False are left out: they give 0, and a slice with no element left
        gives 0 everywhere.
    dtype : dtype, optional
        The floating-point dtype of the result, one of the library of `x`; that of `x` by default. It is computed in the
        wider of both, at least in float32, and rounded once: of a half type, float32 keeps all that is computed.

    Returns
    -------
    array
        Shape, library and device of `x`, and its dtype unless another is given; half types are computed in float32.

    Raises
    ------
    TypeError
        If `x` is not floating point, `where` not bool, or `dtype` not a floating-point dtype of the library of `x`.
    ValueError
        If `x` has no such axis, or `where` does not broadcast to it.

    Notes
    -----
    A wider `dtype` gives what the Array API and torch get by converting `x` first. A narrower one does not: here, only
    the result is rounded, so that no large element overflows.

    A slice with plus infinity, or with nothing but minus infinity, gives NaN, as the formula does.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.softmax(np.asarray([0.0, 0.0, 1e38]), where=np.asarray([True, True, False]))
    array([0.5, 0.5, 0. ])
    >>> tensorops.softmax(np.zeros((2, 3), np.float16), axis=(0, 1), dtype=np.float32).sum()
    np.float32(1.0)
    """
    xp = get_namespace(x, where)
    axes = as_axes(axis)
    if 0 in x.shape:
        return anew(xp, x, dtype)
    (wide,) = widen(xp, x, result=dtype)
    _, e, total = _shifted_exponentials(xp, wide, axes, where)
    return narrow(xp, e / total, x, dtype)


@operator(check=_check_softmax, rows=_softmax_rows)
def log_softmax(
    x: ArrayInputT,
    *,
    axis: int | tuple[int, ...] | None = -1,
    where: ArrayInput | None = None,
    dtype: Dtype | None = None,
) -> ArrayInputT:
    r"""Logarithm of softmax, without the exponentials' overflow or the logarithm's cancellation.

    .. math:: y_i = x_i - \log \sum_j e^{x_j}

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    axis : int, tuple of int or None, optional
        The axes to normalize together; ``None`` is all of them.
    where : array of bool, optional
        Broadcasts to `x`. Elements where it is False are left out and give minus infinity.
    dtype : dtype, optional
        The floating-point dtype of the result, one of the library of `x`; that of `x` by default. It is computed in the
        wider of both, at least in float32, and rounded once: of a half type, float32 keeps all that is computed.

    Returns
    -------
    array
        Shape, library and device of `x`, and its dtype unless another is given; half types are computed in float32.

    Raises
    ------
    TypeError
        If `x` is not floating point, `where` not bool, or `dtype` not a floating-point dtype of the library of `x`.
    ValueError
        If `x` has no such axis, or `where` does not broadcast to it.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.log_softmax(np.asarray([1000.0, 1000.0]))
    array([-0.69314718, -0.69314718])
    """
    xp = get_namespace(x, where)
    axes = as_axes(axis)
    if 0 in x.shape:
        return anew(xp, x, dtype)
    (wide,) = widen(xp, x, result=dtype)
    shifted, _, total = _shifted_exponentials(xp, wide, axes, where)
    return narrow(xp, shifted - xp.log(total), x, dtype)


class _LogSumExp(Protocol):
    """What `return_sign` says about the results, for type checkers."""

    @overload
    def __call__(
        self,
        x: ArrayOfKind[KindT],
        *,
        axis: int | tuple[int, ...] | None = -1,
        keepdims: bool = False,
        where: ArrayInput | None = None,
        b: ArrayInput | None = None,
        return_sign: Literal[False] = False,
        dtype: Dtype | None = None,
    ) -> KindT: ...
    @overload
    def __call__(
        self,
        x: ArrayOfKind[KindT],
        *,
        axis: int | tuple[int, ...] | None = -1,
        keepdims: bool = False,
        where: ArrayInput | None = None,
        b: ArrayInput | None = None,
        return_sign: Literal[True],
        dtype: Dtype | None = None,
    ) -> tuple[KindT, KindT]: ...


def _logsumexp_operator(body: Callable[P, Any]) -> TypedOperator[_LogSumExp, Callable[P, Explanation]]:
    return cast("Any", operator(check=_check_logsumexp, rows=_logsumexp_rows)(body))


@_logsumexp_operator
def logsumexp(
    x: ArrayOfKind[KindT],
    *,
    axis: int | tuple[int, ...] | None = -1,
    keepdims: bool = False,
    where: ArrayInput | None = None,
    b: ArrayInput | None = None,
    return_sign: bool = False,
    dtype: Dtype | None = None,
) -> KindT | tuple[KindT, KindT]:
    r"""Logarithm of the sum of exponentials along an axis.

    .. math:: y = \log \sum_j b_j e^{x_j}

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    axis : int, tuple of int or None, optional
        The axes to sum over; ``None`` is all of them.
    keepdims : bool, optional
        Keep the summed axes, with length one.
    where : array of bool, optional
        Broadcasts to `x`. Elements where it is False are left out.
    b : array, floating point, optional
        Weights of the exponentials, which broadcast to `x`; 1 by default. An element of weight 0 is left out, whatever
        `x` is there, and the derivative by that weight is 0.
    return_sign : bool, optional
        Return the logarithm of the sum's magnitude, and its sign.
    dtype : dtype, optional
        The floating-point dtype of the result, one of the library of `x`; that of `x` by default. It is computed in the
        wider of both, at least in float32, and rounded once: of a half type, float32 keeps all that is computed.

    Returns
    -------
    array, or tuple of two arrays
        Library and device of `x`, and its dtype unless another is given; half types are computed in float32. An empty
        sum, or one of nothing but minus infinity, gives minus infinity, and one with plus infinity gives that.
        With negative weights, a negative sum gives NaN, or the sign -1 if that is asked for; the sign of 0 is 0.

    Raises
    ------
    TypeError
        If `x` or `b` is not floating point, `where` not bool, or `dtype` not a floating-point dtype of its library.
    ValueError
        If `x` has no such axis, or `where` or `b` does not broadcast to it.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.logsumexp(np.asarray([[1000.0, 1000.0]]))
    array([1000.69314718])
    >>> tensorops.logsumexp(np.asarray([[1000.0, 1001.0]]), b=np.asarray([1.0, -1.0]), return_sign=True)
    (array([1000.54132485]), array([-1.]))
    """
    xp = get_namespace(x, where, b)
    axes = as_axes(axis)
    wide, weights = widen(xp, x, b, result=dtype)
    if 0 in x.shape:  # no maximum exists
        total = shift = xp.sum(wide, axis=axes, keepdims=True)
        nothing = xp.full_like(total, -float("inf"))
    else:
        counted = where
        if weights is not None:
            counted = weights != 0 if where is None else where & (weights != 0)
            weights = xp.where(counted, weights, xp.zeros_like(weights))
        if counted is not None:
            wide = xp.where(counted, wide, xp.full_like(wide, -float("inf")))
        largest = xp.max(wide, axis=axes, keepdims=True)
        shift = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
        e = xp.exp(wide - shift)
        total = sum_along(xp, e if weights is None else weights * e, axes, keepdims=True)
        nothing = largest if weights is None else xp.full_like(largest, -float("inf"))  # weights may cancel
    # The logarithm of 0 has an infinite derivative, even where all that it is multiplied by is 0.
    is_zero = total == 0
    logarithm = xp.log(xp.where(is_zero, xp.ones_like(total), xp.abs(total) if return_sign else total)) + xp.where(
        is_zero, nothing, shift
    )
    results = (logarithm, xp.sign(total)) if return_sign else (logarithm,)
    if not keepdims:
        results = tuple(xp.squeeze(y, axis=axes) for y in results)
    narrowed = [narrow(xp, y, x, dtype) for y in results]
    return (narrowed[0], narrowed[1]) if return_sign else narrowed[0]


def _gelu(xp: Namespace, x: Array, approximate: str) -> Array:
    if approximate == "none":
        return 0.5 * x * _special.erfc(xp, x * -sqrt(0.5))
    # (1 + tanh(u)) / 2 is sigmoid(2u), which does not cancel for negative u. Beyond ±100 the sigmoid is 0 or 1
    # in any dtype; the bound keeps the cube finite, and `where` propagates NaN.
    bounded = xp.where(x > 100.0, xp.full_like(x, 100.0), xp.where(x < -100.0, xp.full_like(x, -100.0), x))
    inner = bounded * (1.0 + 0.044715 * bounded * bounded)
    return x * _special.sigmoid(xp, (2.0 * sqrt(2.0 / pi)) * inner)


def _hard_sigmoid(xp: Namespace, x: Array, alpha: float, beta: float) -> Array:
    # alpha (x + beta / alpha) does not cancel near its zero, where alpha x + beta does.
    far = alpha == 0.0 or abs(beta) > 1024.0 * abs(alpha)
    line = alpha * x + beta if far else alpha * (x + beta / alpha)
    low, high = line <= 0, line >= 1
    if alpha != 0.0:  # the line, which is rounded, may miss 0 or 1 at its kinks
        zero, one = -beta / alpha, (1.0 - beta) / alpha
        low, high = low | (x <= zero if alpha > 0.0 else x >= zero), high | (x >= one if alpha > 0.0 else x <= one)
    return xp.where(low, xp.zeros_like(x), xp.where(high, xp.ones_like(x), line))


def _elu(xp: Namespace, x: Array, scale: float, alpha: float) -> Array:
    return xp.where(x > 0, scale * x, alpha * xp.expm1(xp.where(x > 0, xp.zeros_like(x), x)))


def _shifted_exponentials(
    xp: Namespace, x: Array, axes: tuple[int, ...], where: Array | None
) -> tuple[Array, Array, Array]:
    """Return ``x - max``, its exponentials and their sums; the largest exponential is 1, so nothing overflows."""
    if where is not None:
        x = xp.where(where, x, xp.full_like(x, -float("inf")))
    largest = xp.max(x, axis=axes, keepdims=True)
    if where is not None:  # a slice without elements: a maximum of -inf would give -inf - -inf
        largest = xp.where(largest == -float("inf"), xp.zeros_like(largest), largest)
    shifted = x - largest
    e = xp.exp(shifted)
    total = sum_along(xp, e, axes, keepdims=True)
    if where is not None:
        total = xp.where(total == 0, xp.ones_like(total), total)
    return shifted, e, total
