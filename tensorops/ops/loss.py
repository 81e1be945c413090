"""Losses: cross_entropy."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import integer_limits, narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis
from tensorops._typing import Array, ArrayInput, ArrayOfKind, KindT, Namespace
from tensorops._validation import (
    as_choice,
    as_integer,
    as_share,
    require_floating,
    require_indices,
    require_integer,
    require_ndim,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device
from tensorops.ops._sums import mean_along, sum_along

# Losses are computed and summed in this unit, a power of two: neither a difference of logits nor a sum of losses
# overflows. Values that underflow are negligible beside the logarithm of the sum.
_UNIT = 2.0**-64


def _check_cross_entropy(
    name: str, logits: Array, targets: Array, reduction: str, ignore_index: int, label_smoothing: float
) -> dict[str, Any]:
    require_floating(name, logits=logits)
    require_integer(name, targets=targets)
    require_ndim(name, "logits", logits, 1)
    if tuple(targets.shape) != tuple(logits.shape[:-1]):
        raise ValueError(
            f"{name}: targets has shape {tuple(targets.shape)}, but logits has {tuple(logits.shape)}: "
            f"expected {tuple(logits.shape[:-1])}"
        )
    options = {
        "reduction": as_choice(name, "reduction", reduction, ("mean", "sum", "none")),
        "ignore_index": as_integer(name, "ignore_index", ignore_index),
        "label_smoothing": as_share(name, "label_smoothing", label_smoothing),
    }
    if logits.shape[-1] == 0:
        raise ValueError(f"{name}: logits has no classes along its last axis")
    return options


def _cross_entropy_rows(logits: Array, targets: Array, reduction: str, **_: Any) -> RowAxes:
    *rows, classes = every_axis(logits)
    arrays = {"logits": every_axis(logits), "targets": tuple(rows)}
    if reduction == "none":
        return RowAxes(arrays, tuple(rows), whole=(classes,))
    return RowAxes(arrays, (), whole=every_axis(logits))


@operator(check=_check_cross_entropy, rows=_cross_entropy_rows)
def cross_entropy(
    logits: ArrayOfKind[KindT],
    targets: ArrayInput,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> KindT:
    r"""Cross entropy between logits and class numbers.

    .. math:: \ell = -(1 - \alpha) \log p_t - \frac{\alpha}{V} \sum_c \log p_c, \qquad
              p = \operatorname{softmax}(\mathit{logits})

    Parameters
    ----------
    logits : array, floating point, shape (..., classes)
        Unnormalized log-probabilities.
    targets : array of integers, shape (...)
        Class numbers :math:`t`.
    reduction : {"mean", "sum", "none"}, optional
        How to combine the losses of all elements.
    ignore_index : int, optional
        Elements with this target have loss 0 and are excluded from the mean.
    label_smoothing : float in [0, 1], optional
        Share :math:`\alpha` of the target that is spread evenly over all classes.

    Returns
    -------
    array
        Shape (...) without reduction, else (); dtype, library and device of `logits`. Half types are computed in
        float32. The mean of no elements is NaN.

    Raises
    ------
    TypeError
        If `logits` is not floating point, or `targets` are not integers.
    ValueError
        If shapes do not match, an option is invalid, or (in host memory) a target is out of range.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> logits = np.log(np.asarray([[0.25, 0.75], [0.5, 0.5]]))
    >>> tensorops.cross_entropy(logits, np.asarray([1, 0]), reduction="none")
    array([0.28768207, 0.69314718])
    """
    xp = get_namespace(logits, targets)
    classes = logits.shape[-1]
    device = creation_device(logits)
    smallest, largest = integer_limits(targets)
    if smallest <= ignore_index <= largest:
        counted = targets != xp.asarray(ignore_index, dtype=targets.dtype, device=device)
    else:  # no target can be ignored, and libraries do not compare with a number outside the dtype's range
        counted = targets == targets
    targets = xp.where(counted, targets, xp.zeros_like(targets))
    require_indices("cross_entropy", "targets", targets, classes, xp)
    targets = widen_integers(xp, targets, device)

    (wide,) = widen(xp, logits)
    zeros = xp.zeros_like(wide)[..., 0]
    losses = _losses(xp, wide, targets, label_smoothing) if 0 not in logits.shape else zeros
    if reduction == "none":
        return narrow(xp, xp.where(counted, losses / _UNIT, zeros), logits)
    total = _sum_of_all(xp, xp.where(counted, losses, zeros))
    if reduction == "mean":
        total = total / _sum_of_all(xp, xp.astype(counted, wide.dtype))
    return narrow(xp, total / _UNIT, logits)


def _losses(xp: Namespace, x: Array, targets: Array, label_smoothing: float) -> Array:
    """Return the loss of each row of `x`, in `_UNIT`."""
    last = (x.ndim - 1,)
    largest = xp.max(x, axis=-1, keepdims=True)
    log_total = _UNIT * xp.log(sum_along(xp, xp.exp(x - largest), last))
    classes = xp.arange(x.shape[-1], dtype=targets.dtype, device=creation_device(x))
    is_target = xp.expand_dims(targets, axis=-1) == classes
    chosen = xp.sum(xp.where(is_target, x, xp.zeros_like(x)), axis=-1)
    most = _UNIT * xp.squeeze(largest, axis=-1)
    losses = log_total - (_UNIT * chosen - most)
    if label_smoothing:
        even = log_total - mean_along(xp, _UNIT * x - _UNIT * largest, last)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * even
    return losses


def _sum_of_all(xp: Namespace, x: Array) -> Array:
    return sum_along(xp, xp.reshape(x, (-1,)), (0,))
