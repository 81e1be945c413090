"""Normalization."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import anew, largest_exponent, narrow, widen
from tensorops._operator import operator
from tensorops._row_axes import Axes, RowAxes, every_axis, given
from tensorops._validation import (
    as_axes,
    as_integer,
    as_nonnegative_number,
    as_number,
    normalize_axes,
    normalize_axis,
    plural,
    require_floating,
    require_ndim,
    require_same_dtype,
    require_same_shape,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.ops._sums import mean_along, sum_along
from tensorops.typing import Array, ArrayInput, ArrayInputT, Namespace

__all__ = ["add_layer_norm", "add_rms_norm", "group_norm", "instance_norm", "l2_norm", "layer_norm", "rms_norm"]


def _check_rms_norm(
    name: str, x: Array, weight: Array | None, eps: float, axis: int, weight_offset: float
) -> dict[str, Any]:
    require_floating(name, x=x, weight=weight)
    require_ndim(name, "x", x, 1)
    eps = as_nonnegative_number(name, "eps", eps)
    weight_offset = as_number(name, "weight_offset", weight_offset)
    index = normalize_axis(name, axis, x.ndim)
    if weight is not None:
        require_ndim(name, "weight", weight, 1, 1)
        if weight.shape[0] != x.shape[index]:
            elements = plural(weight.shape[0], "element")
            raise ValueError(f"{name}: weight has {elements}, but axis {axis} of x has {x.shape[index]}")
    return {"eps": eps, "axis": index, "weight_offset": weight_offset}


def _check_residual(name: str, x: Array, residual: Array) -> None:
    require_floating(name, x=x, residual=residual)
    require_same_dtype(name, x=x, residual=residual)
    require_same_shape(name, x=x, residual=residual)


def _check_add_rms_norm(
    name: str, x: Array, residual: Array, weight: Array | None, eps: float, axis: int
) -> dict[str, Any]:
    _check_residual(name, x, residual)
    options = _check_rms_norm(name, x, weight, eps, axis, 0.0)
    return {"eps": options["eps"], "axis": options["axis"]}


def _check_layer_norm(
    name: str, x: Array, weight: Array | None, bias: Array | None, eps: float, axis: int | tuple[int, ...] | None
) -> dict[str, Any]:
    require_floating(name, x=x, weight=weight, bias=bias)
    require_ndim(name, "x", x, 1)
    eps = as_nonnegative_number(name, "eps", eps)
    axes = normalize_axes(name, axis, x.ndim)
    normalized = tuple(x.shape[a] for a in axes)
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != normalized:
            raise ValueError(
                f"{name}: {label} has shape {tuple(parameter.shape)}, but axis {shown(axis)} of x has {normalized}"
            )
    return {"eps": eps, "axis": axes}


def _check_add_layer_norm(
    name: str, x: Array, residual: Array, weight: Array | None, bias: Array | None, eps: float, axis: int
) -> dict[str, Any]:
    _check_residual(name, x, residual)
    require_ndim(name, "x", x, 1)
    index = normalize_axis(name, axis, x.ndim)
    return {**_check_layer_norm(name, x, weight, bias, eps, index), "axis": index}


def _check_group_norm(
    name: str,
    x: Array,
    num_groups: int,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    channel_axis: int,
) -> dict[str, Any]:
    options = _check_instance_norm(name, x, weight, bias, eps, channel_axis)
    channels, groups = x.shape[options["channel_axis"]], as_integer(name, "num_groups", num_groups)
    if groups < 1 or channels % groups:
        raise ValueError(f"{name}: num_groups is {shown(groups)}, expected a divisor of the {channels} channels of x")
    return {**options, "num_groups": groups}


def _check_instance_norm(
    name: str, x: Array, weight: Array | None, bias: Array | None, eps: float, channel_axis: int
) -> dict[str, Any]:
    require_floating(name, x=x, weight=weight, bias=bias)
    require_ndim(name, "x", x, 2)
    eps = as_nonnegative_number(name, "eps", eps)
    index = normalize_axis(name, channel_axis, x.ndim, "channel_axis")
    if index == 0:
        raise ValueError(f"{name}: channel_axis is {shown(channel_axis)}, the batch axis of x")
    for label, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and tuple(parameter.shape) != (x.shape[index],):
            raise ValueError(
                f"{name}: {label} has shape {tuple(parameter.shape)}, expected ({x.shape[index]},): "
                "one element for each channel of x"
            )
    return {"eps": eps, "channel_axis": index}


def _check_l2_norm(name: str, x: Array, eps: float, axis: int | tuple[int, ...] | None) -> dict[str, Any]:
    require_floating(name, x=x)
    require_ndim(name, "x", x, 1)
    return {"eps": as_nonnegative_number(name, "eps", eps), "axis": normalize_axes(name, axis, x.ndim)}


def _rms_norm_rows(x: Array, weight: Array | None, axis: int, **_: Any) -> RowAxes:
    every = every_axis(x)
    return RowAxes(given(x=(x, every), weight=(weight, (axis,))), every, whole=(axis,))


def _add_rms_norm_rows(x: Array, residual: Array, weight: Array | None, axis: int, **_: Any) -> RowAxes:
    every = every_axis(x)
    arrays = given(x=(x, every), residual=(residual, every), weight=(weight, (axis,)))
    return RowAxes(arrays, every, whole=(axis,), sharing=2, results=2)


def _layer_norm_rows(x: Array, weight: Array | None, bias: Array | None, axis: Axes, **_: Any) -> RowAxes:
    every = every_axis(x)
    return RowAxes(given(x=(x, every), weight=(weight, axis), bias=(bias, axis)), every, whole=axis)


def _add_layer_norm_rows(
    x: Array, residual: Array, weight: Array | None, bias: Array | None, axis: int, **_: Any
) -> RowAxes:
    every = every_axis(x)
    arrays = given(x=(x, every), residual=(residual, every), weight=(weight, (axis,)), bias=(bias, (axis,)))
    return RowAxes(arrays, every, whole=(axis,), sharing=2, results=2)


def _group_norm_rows(x: Array, weight: Array | None, bias: Array | None, channel_axis: int, **_: Any) -> RowAxes:
    rows = _instance_norm_rows(x, weight, bias, channel_axis)
    return rows._replace(whole=every_axis(x)[1:])


def _instance_norm_rows(x: Array, weight: Array | None, bias: Array | None, channel_axis: int, **_: Any) -> RowAxes:
    every, channels = every_axis(x), (channel_axis,)
    arrays = given(x=(x, every), weight=(weight, channels), bias=(bias, channels))
    return RowAxes(arrays, every, whole=tuple(a for a in every if a not in (0, channel_axis)))


def _l2_norm_rows(x: Array, axis: Axes, **_: Any) -> RowAxes:
    return RowAxes({"x": every_axis(x)}, every_axis(x), whole=axis)


@operator(check=_check_rms_norm, rows=_rms_norm_rows)
def rms_norm(
    x: ArrayInputT, weight: ArrayInput | None = None, eps: float = 1e-6, *, axis: int = -1, weight_offset: float = 0.0
) -> ArrayInputT:
    r"""Divide by the root mean square along an axis.

    .. math:: y = \frac{x}{\sqrt{\operatorname{mean}(x^2) + \varepsilon}} \cdot (w + w_0)

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    weight : array, optional
        Scale :math:`w`, one element for each position along `axis`.
    eps : float, optional
        :math:`\varepsilon`, added to the mean square.
    axis : int, optional
        The axis to normalize.
    weight_offset : float, optional
        :math:`w_0`, added to `weight`; Gemma stores its weights minus one and uses 1.0.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32. Squares of large or tiny inputs
        neither overflow nor underflow.

    Raises
    ------
    TypeError
        If `x` or `weight` is not floating point.
    ValueError
        If `weight` does not fit `axis`, `x` has no such axis, or `eps` is negative.

    References
    ----------
    Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019, https://arxiv.org/abs/1910.07467

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.rms_norm(np.asarray([[3.0, 4.0]]), np.asarray([1.0, 0.5]), eps=0.0)
    array([[0.84852814, 0.56568542]])
    """
    xp = get_namespace(x, weight)
    return _rms_norm(xp, x, weight, eps, axis, weight_offset)


@operator(check=_check_add_rms_norm, rows=_add_rms_norm_rows)
def add_rms_norm(
    x: ArrayInputT, residual: ArrayInput, weight: ArrayInput | None = None, eps: float = 1e-6, *, axis: int = -1
) -> tuple[ArrayInputT, ArrayInputT]:
    r"""Add a residual, then divide by the root mean square: the two steps between blocks of a transformer.

    .. math:: r' = x + r, \qquad y = \frac{r'}{\sqrt{\operatorname{mean}(r'^2) + \varepsilon}} \cdot w

    Parameters
    ----------
    x, residual : array, floating point
        Arrays of one shape and dtype; neither is changed.
    weight : array, optional
        Scale :math:`w`, one element for each position along `axis`.
    eps : float, optional
        :math:`\varepsilon`, added to the mean square.
    axis : int, optional
        The axis to normalize.

    Returns
    -------
    y : array
        The normalized sum.
    new_residual : array
        The sum, rounded to the dtype of `x`; `y` is computed from the rounded sum.

    Raises
    ------
    TypeError
        If an input is not floating point, or `residual` and `x` differ in dtype.
    ValueError
        If shapes do not match, `x` has no such axis, or `eps` is negative.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> y, r = tensorops.add_rms_norm(np.asarray([1.0, 3.0]), np.asarray([2.0, 1.0]), eps=0.0)
    >>> y, r
    (array([0.84852814, 1.13137085]), array([3., 4.]))
    """
    xp = get_namespace(x, residual, weight)
    a, b = widen(xp, x, residual)
    new_residual = narrow(xp, a + b, x)
    return _rms_norm(xp, new_residual, weight, eps, axis, 0.0), new_residual


@operator(check=_check_layer_norm, rows=_layer_norm_rows)
def layer_norm(
    x: ArrayInputT,
    weight: ArrayInput | None = None,
    bias: ArrayInput | None = None,
    eps: float = 1e-5,
    *,
    axis: int | tuple[int, ...] | None = -1,
) -> ArrayInputT:
    r"""Subtract the mean and divide by the standard deviation along one or more axes.

    .. math:: y = \frac{x - \operatorname{mean}(x)}{\sqrt{\operatorname{var}(x) + \varepsilon}} \cdot w + b

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    weight, bias : array, optional
        Scale :math:`w` and shift :math:`b`; their shape is that of the normalized axes in ascending order.
    eps : float, optional
        :math:`\varepsilon`, added to the population variance (divided by the count).
    axis : int, tuple of int or None, optional
        The axes to normalize together; ``None`` is all of them.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32.

    Raises
    ------
    TypeError
        If an input is not floating point.
    ValueError
        If `weight` or `bias` does not fit the normalized axes, `x` has no such axis, or `eps` is negative.

    References
    ----------
    Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.layer_norm(np.asarray([[1.0, 3.0], [2.0, 8.0]]), eps=0.0)
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    xp = get_namespace(x, weight, bias)
    axes = as_axes(axis)
    if 0 in x.shape:
        return anew(xp, x)
    wide, w, b = widen(xp, x, weight, bias)
    y = _divide_by_deviation(xp, wide, axes, eps)
    return narrow(xp, _affine(xp, y, w, b, axes), x)


@operator(check=_check_add_layer_norm, rows=_add_layer_norm_rows, calls=(layer_norm,))
def add_layer_norm(
    x: ArrayInputT,
    residual: ArrayInput,
    weight: ArrayInput | None = None,
    bias: ArrayInput | None = None,
    eps: float = 1e-5,
    *,
    axis: int = -1,
) -> tuple[ArrayInputT, ArrayInputT]:
    r"""Add a residual, then subtract the mean and divide by the standard deviation.

    .. math::

        r' = x + r, \qquad y = \frac{r' - \operatorname{mean}(r')}{\sqrt{\operatorname{var}(r') + \varepsilon}}
        \cdot w + b

    Both are computed by `layer_norm` of a sum, whose kernels it uses, or by a kernel of its own.

    Parameters
    ----------
    x, residual : array, floating point
        Arrays of one shape and dtype; neither is changed.
    weight, bias : array, optional
        Scale :math:`w` and shift :math:`b`, one element for each position along `axis`.
    eps : float, optional
        :math:`\varepsilon`, added to the population variance (divided by the count).
    axis : int, optional
        The axis to normalize.

    Returns
    -------
    y : array
        The normalized sum: the next input of an encoder that normalizes after each layer, such as BERT.
    new_residual : array
        The sum, rounded to the dtype of `x`; `y` is computed from the rounded sum. It is the next residual where
        layers are normalized before, as in GPT-2.

    Raises
    ------
    TypeError
        If an input is not floating point, or `residual` and `x` differ in dtype.
    ValueError
        If shapes do not match, `x` has no such axis, or `eps` is negative.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> y, r = tensorops.add_layer_norm(np.asarray([1.0, 3.0]), np.asarray([2.0, 4.0]), eps=0.0)
    >>> y, r
    (array([-1.,  1.]), array([3., 7.]))
    """
    xp = get_namespace(x, residual, weight, bias)
    a, b = widen(xp, x, residual)
    new_residual = narrow(xp, a + b, x)
    return layer_norm(new_residual, weight, bias, eps, axis=axis), new_residual


@operator(check=_check_group_norm, rows=_group_norm_rows)
def group_norm(
    x: ArrayInputT,
    num_groups: int,
    weight: ArrayInput | None = None,
    bias: ArrayInput | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> ArrayInputT:
    r"""Normalize groups of channels, then scale and shift each channel.

    .. math:: y_c = \frac{x_c - \operatorname{mean}_g(x)}{\sqrt{\operatorname{var}_g(x) + \varepsilon}} \cdot w_c + b_c

    The mean and the variance are those of the group :math:`g` of the channel :math:`c`: over all of its channels and
    all positions of one element of the batch.

    Parameters
    ----------
    x : array, floating point, shape (batch, channels, ...)
        Input; with another `channel_axis`, its channels are there.
    num_groups : int
        The number of groups, which divides the number of channels. Neighbours form a group.
    weight, bias : array, shape (channels,), optional
        Scale :math:`w` and shift :math:`b` of each channel.
    eps : float, optional
        :math:`\varepsilon`, added to the population variance (divided by the count).
    channel_axis : int, optional
        The axis of the channels: 1 as in PyTorch and ONNX, -1 as in MLX and Flax.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32. Squares of large or tiny inputs
        neither overflow nor underflow.

    Raises
    ------
    TypeError
        If an array is not floating point, or `num_groups` is not an integer.
    ValueError
        If `num_groups` does not divide the channels, `weight` or `bias` does not have one element for each of them,
        `x` has no such axis or `channel_axis` is the first, or `eps` is negative.

    See Also
    --------
    instance_norm : Each channel is a group.

    References
    ----------
    Wu and He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494. The same as
    ``torch.nn.functional.group_norm`` and, with ``epsilon`` as `eps`, GroupNormalization-21 of ONNX. Up to version 20,
    ONNX scales groups, not channels.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([[[1.0], [3.0], [2.0], [8.0]]])  # one element, four channels with one position
    >>> tensorops.group_norm(x, 2, np.asarray([1.0, 1.0, 2.0, 2.0]), eps=0.0)
    array([[[-1.],
            [ 1.],
            [-2.],
            [ 2.]]])
    """
    xp = get_namespace(x, weight, bias)
    return _group_norm(xp, x, num_groups, weight, bias, eps, channel_axis)


@operator(check=_check_instance_norm, rows=_instance_norm_rows)
def instance_norm(
    x: ArrayInputT,
    weight: ArrayInput | None = None,
    bias: ArrayInput | None = None,
    eps: float = 1e-5,
    *,
    channel_axis: int = 1,
) -> ArrayInputT:
    r"""Normalize each channel of each element of a batch, then scale and shift it.

    .. math:: y_c = \frac{x_c - \operatorname{mean}(x_c)}{\sqrt{\operatorname{var}(x_c) + \varepsilon}} \cdot w_c + b_c

    There are no running statistics: the mean and the variance are always those of `x`, as in training.

    Parameters
    ----------
    x : array, floating point, shape (batch, channels, ...)
        Input; with another `channel_axis`, its channels are there. A channel with a single position becomes 0.
    weight, bias : array, shape (channels,), optional
        Scale :math:`w` and shift :math:`b` of each channel.
    eps : float, optional
        :math:`\varepsilon`, added to the population variance (divided by the count).
    channel_axis : int, optional
        The axis of the channels: 1 as in PyTorch and ONNX, -1 as in MLX and Flax.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32. Squares of large or tiny inputs
        neither overflow nor underflow.

    Raises
    ------
    TypeError
        If an array is not floating point.
    ValueError
        If `weight` or `bias` does not have one element for each channel, `x` has no such axis or `channel_axis` is the
        first, or `eps` is negative.

    See Also
    --------
    group_norm : Several channels form a group.

    References
    ----------
    Ulyanov, Vedaldi and Lempitsky, "Instance Normalization: The Missing Ingredient for Fast Stylization", 2016,
    https://arxiv.org/abs/1607.08022. The same as ``torch.nn.functional.instance_norm`` without running statistics and,
    with ``scale``, ``B`` and ``epsilon`` as `weight`, `bias` and `eps`, InstanceNormalization of ONNX.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([[[1.0, 3.0], [2.0, 8.0]]])  # one element, two channels with two positions
    >>> tensorops.instance_norm(x, np.asarray([1.0, 2.0]), np.asarray([0.0, 1.0]), eps=0.0)
    array([[[-1.,  1.],
            [-1.,  3.]]])
    """
    xp = get_namespace(x, weight, bias)
    return _group_norm(xp, x, None, weight, bias, eps, channel_axis)


@operator(check=_check_l2_norm, rows=_l2_norm_rows)
def l2_norm(x: ArrayInputT, eps: float = 1e-12, *, axis: int | tuple[int, ...] | None = -1) -> ArrayInputT:
    r"""Divide by the Euclidean length along one or more axes.

    .. math:: y = \frac{x}{\max(\lVert x \rVert_2, \varepsilon)}

    Parameters
    ----------
    x : array, floating point
        Input of any shape with at least one dimension.
    eps : float, optional
        :math:`\varepsilon`, the smallest divisor. Zeros stay zeros, whatever it is.
    axis : int, tuple of int or None, optional
        The axes along which the elements are one vector; ``None`` is all of them.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32. Squares of large or tiny inputs
        neither overflow nor underflow.

    Raises
    ------
    TypeError
        If `x` is not floating point.
    ValueError
        If `x` has no such axis, or `eps` is negative.

    Notes
    -----
    The same as ``torch.nn.functional.normalize(x, p=2, dim=axis, eps=eps)``, whose default axis is 1. LpNormalization
    of ONNX with ``p=2`` is ``eps=0.0``. ``tf.math.l2_normalize(x, axis, epsilon)`` bounds the square: it is
    ``eps=epsilon**0.5``. MLX and JAX have no such function: ``x / linalg.norm(x, axis=axis, keepdims=True)`` is
    ``eps=0.0``, except that zeros become NaN there. Formulas that add :math:`\varepsilon` below the root are
    `rms_norm`: ``x / sqrt(sum(x**2) + e)`` along an axis of ``n`` elements is ``rms_norm(x, eps=e / n) / n**0.5``.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.l2_norm(np.asarray([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    xp = get_namespace(x)
    axes = as_axes(axis)
    if 0 in x.shape:
        return anew(xp, x)
    (wide,) = widen(xp, x)
    scaled, unit = _scale_to_one(xp, wide, axes, eps)
    square, bound = sum_along(xp, scaled * scaled, axes, keepdims=True), eps * unit
    # The root of 0 has an infinite derivative, even where it is not used.
    bounded = square <= bound * bound
    length = xp.where(bounded, bound, xp.sqrt(xp.where(bounded, xp.ones_like(square), square)))
    length = xp.where(length == 0, xp.ones_like(length), length)  # no bound, and all elements are zero
    return narrow(xp, scaled / length, x)


def _group_norm(
    xp: Namespace, x: Array, groups: int | None, weight: Array | None, bias: Array | None, eps: float, channel_axis: int
) -> Array:
    """Divide by the deviation within groups of channels, or, if `groups` is ``None``, within each channel."""
    if 0 in x.shape:
        return anew(xp, x)
    wide, w, b = widen(xp, x, weight, bias)
    if groups is None:
        grouped = xp.expand_dims(wide, axis=channel_axis + 1)
    else:
        before, channels, after = x.shape[:channel_axis], x.shape[channel_axis], x.shape[channel_axis + 1 :]
        grouped = xp.reshape(wide, (*before, groups, channels // groups, *after))
    y = _divide_by_deviation(xp, grouped, tuple(a for a in range(1, x.ndim + 1) if a != channel_axis), eps)
    y = xp.squeeze(y, axis=channel_axis + 1) if groups is None else xp.reshape(y, x.shape)
    return narrow(xp, _affine(xp, y, w, b, (channel_axis,)), x)


def _divide_by_deviation(xp: Namespace, x: Array, axes: tuple[int, ...], eps: float) -> Array:
    """Return ``(x - mean) / sqrt(variance + eps)``."""
    scaled, unit = _scale_to_one(xp, x, axes, eps**0.5)
    centred = scaled - mean_along(xp, scaled, axes, keepdims=True)
    # What rounding left of the mean is divided by sqrt(eps) where all elements are equal: it is subtracted as well.
    centred = centred - mean_along(xp, centred, axes, keepdims=True)
    return centred / _root_mean_square(xp, centred, unit, axes, eps)


def _affine(xp: Namespace, y: Array, weight: Array | None, bias: Array | None, axes: tuple[int, ...]) -> Array:
    """Return ``y * weight + bias`` with weight and bias along some axes of `y`; ``None`` leaves a step out."""
    if weight is not None:
        y = y * _along(xp, weight, axes, y.ndim)
    return y if bias is None else y + _along(xp, bias, axes, y.ndim)


def _along(xp: Namespace, parameter: Array, axes: tuple[int, ...], ndim: int) -> Array:
    """Insert the axes over which `parameter`, which has some axes of an array of `ndim` dimensions, broadcasts."""
    first = min(axes)
    for axis in range(first, ndim):
        if axis not in axes:
            parameter = xp.expand_dims(parameter, axis=axis - first)
    return parameter


def _rms_norm(xp: Namespace, x: Array, weight: Array | None, eps: float, axis: int, weight_offset: float) -> Array:
    if 0 in x.shape:
        return anew(xp, x)
    wide, w = widen(xp, x, weight)
    scaled, unit = _scale_to_one(xp, wide, (axis,), eps**0.5)
    y = scaled / _root_mean_square(xp, scaled, unit, (axis,), eps)
    if w is not None:
        y = y * _along(xp, w + weight_offset, (axis,), x.ndim)
    return narrow(xp, y, x)


def _root_mean_square(xp: Namespace, scaled: Array, unit: Array, axes: tuple[int, ...], eps: float) -> Array:
    """Return ``sqrt(mean(scaled**2) + eps * unit**2)``, which is 0 only if `eps` is."""
    root = eps**0.5 * unit  # may be representable in the dtype even if eps is not
    square = mean_along(xp, scaled * scaled, axes, keepdims=True) + root * root
    if eps > 0:  # eps underflowed and all elements are zero: any divisor gives 0
        square = xp.where(square == 0, xp.ones_like(square), square)
    return xp.sqrt(square)


def _scale_to_one(xp: Namespace, x: Array, axes: tuple[int, ...], least: float) -> tuple[Array, Array]:
    """Return ``x * unit`` of magnitude about one, and `unit`, a power of two for each slice along `axes`.

    Squares then neither overflow nor underflow, and a power of two costs no precision. `unit` comes from `floor`, whose
    derivative is zero, so automatic differentiation sees a constant. A slice whose elements are all smaller than
    `least`, which dominates them, is scaled by it. A slice that holds NaN or infinity, or only zeros, is not scaled.
    """
    largest = xp.max(xp.abs(x), axis=axes, keepdims=True)
    bound = xp.full_like(largest, least)
    largest = xp.where(largest < bound, bound, largest)
    usable = xp.isfinite(largest) & (largest > 0)
    exponent = xp.floor(xp.log2(xp.where(usable, largest, xp.ones_like(largest))))
    # Two steps inside the range, so the power itself is a normal number.
    limit = xp.full_like(exponent, float(largest_exponent(x) - 2))
    exponent = xp.where(exponent > limit, limit, xp.where(exponent < -limit, -limit, exponent))
    unit = xp.pow(xp.full_like(exponent, 2.0), -exponent)
    return x * unit, unit
