"""Losses: cross_entropy, linear_cross_entropy."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import (
    FLOATING,
    INTEGER,
    dtype_name,
    integer_limits,
    is_floating,
    is_integer,
    narrow,
    widen,
    widen_integers,
)
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._typing import Array, ArrayInput, ArrayOfKind, KindT, Namespace
from tensorops._validation import (
    as_choice,
    as_integer,
    as_number_of_at_least_0,
    as_share,
    require_floating,
    require_indices,
    require_ndim,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device
from tensorops.ops._sums import mean_along, sum_along

# Losses are computed and summed in this unit, a power of two: neither a difference of logits nor a sum of losses
# overflows. Values that underflow are negligible beside the logarithm of the sum.
_UNIT = 2.0**-64


def _check_options(
    name: str, targets: Array, reduction: str, ignore_index: int, label_smoothing: float, z_loss: float
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "reduction": as_choice(name, "reduction", reduction, ("mean", "sum", "none")),
        "ignore_index": as_integer(name, "ignore_index", ignore_index),
        "label_smoothing": as_share(name, "label_smoothing", label_smoothing),
        "z_loss": as_number_of_at_least_0(name, "z_loss", z_loss),
    }
    if is_floating(targets) and options["ignore_index"] >= 0:
        raise ValueError(
            f"{name}: ignore_index is {ignore_index}, but targets are probabilities, expected class numbers"
        )
    return options


def _check_targets(name: str, targets: Array, rows: tuple[int, ...], classes: int, source: str) -> None:
    if not is_floating(targets) and not is_integer(targets):
        raise TypeError(
            f"{name}: targets has dtype {dtype_name(targets)}, expected class numbers (one of {', '.join(INTEGER)}) or "
            f"probabilities (one of {', '.join(FLOATING)})"
        )
    kind, expected = ("probabilities", (*rows, classes)) if is_floating(targets) else ("class numbers", rows)
    if tuple(targets.shape) != expected:
        raise ValueError(
            f"{name}: targets has shape {tuple(targets.shape)}, but {source}: expected {expected} for {kind}"
        )


def _check_weight(name: str, parameter: str, weight: Array | None, classes: int) -> None:
    require_floating(name, **{parameter: weight})
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ValueError(f"{name}: {parameter} has shape {tuple(weight.shape)}, but there are {classes} classes")


def _check_cross_entropy(
    name: str, logits: Array, targets: Array, weight: Array | None, **options: Any
) -> dict[str, Any]:
    require_floating(name, logits=logits)
    require_ndim(name, "logits", logits, 1)
    *rows, classes = logits.shape
    _check_targets(name, targets, tuple(rows), classes, f"logits has {tuple(logits.shape)}")
    canonical = _check_options(name, targets, **options)
    if classes == 0:
        raise ValueError(f"{name}: logits has no classes along its last axis")
    _check_weight(name, "weight", weight, classes)
    return canonical


def _cross_entropy_rows(logits: Array, targets: Array, weight: Array | None, reduction: str, **_: Any) -> RowAxes:
    *rows, classes = every_axis(logits)
    arrays = given(
        logits=(logits, every_axis(logits)), targets=(targets, every_axis(targets)), weight=(weight, (classes,))
    )
    sharing = 2 if is_floating(targets) else 1
    if reduction == "none":
        return RowAxes(arrays, tuple(rows), whole=(classes,), sharing=sharing)
    return RowAxes(arrays, (), whole=every_axis(logits), sharing=sharing)


@operator(check=_check_cross_entropy, rows=_cross_entropy_rows)
def cross_entropy(
    logits: ArrayOfKind[KindT],
    targets: ArrayInput,
    weight: ArrayInput | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> KindT:
    r"""Cross entropy between logits and class numbers or probabilities.

    .. math:: \ell = -(1 - \alpha) w_t \log p_t - \frac{\alpha}{V} \sum_c w_c \log p_c + \zeta s^2, \qquad
              p = \operatorname{softmax}(\mathit{logits}), \quad s = \log \sum_c e^{\mathit{logits}_c}

    For probabilities :math:`q` as targets, the first two terms are
    :math:`-\sum_c w_c ((1 - \alpha) q_c + \alpha / V) \log p_c`.

    Parameters
    ----------
    logits : array, floating point, shape (..., classes)
        Unnormalized log-probabilities.
    targets : array of integers, shape (...), or floating point, shape (..., classes)
        Class numbers :math:`t`, or the probabilities :math:`q` of all classes. The dtype tells which.
    weight : array, floating point, shape (classes,), optional
        Weight :math:`w_c` of each class, 1 by default.
    reduction : {"mean", "sum", "none"}, optional
        How to combine the losses of all elements.
    ignore_index : int, optional
        Elements with this target have loss 0 and are excluded from the mean. Probabilities cannot be ignored.
    label_smoothing : float in [0, 1], optional
        Share :math:`\alpha` of the target that is spread evenly over all classes.
    z_loss : float, optional
        Coefficient :math:`\zeta` of the squared logarithm of the sum, which keeps logits from drifting; at least 0.

    Returns
    -------
    array
        Shape (...) without reduction, else (); dtype, library and device of `logits`. Half types are computed in
        float32. The mean of no elements is NaN.

    Raises
    ------
    TypeError
        If `logits` or `weight` is not floating point, or `targets` are neither integers nor floating point.
    ValueError
        If shapes do not match, an option is invalid, or (in host memory) a target is out of range.

    Notes
    -----
    Weights, label smoothing and probabilities are those of ``torch.nn.functional.cross_entropy``: the mean is the sum
    of the losses divided by the sum of the weights :math:`w_t`, or, for probabilities, by the number of elements.
    Unlike there, a class of weight or probability 0 adds nothing even if its logit is :math:`-\infty`.

    `z_loss` is that of PaLM [1]_. As in Liger, class weights do not apply to it, and its mean is over the number of
    elements that are not ignored.

    References
    ----------
    .. [1] Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, section 5.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> logits = np.log(np.asarray([[0.25, 0.75], [0.5, 0.5]]))
    >>> tensorops.cross_entropy(logits, np.asarray([1, 0]), reduction="none")
    array([0.28768207, 0.69314718])
    >>> tensorops.cross_entropy(logits, np.asarray([1, 0]), np.asarray([2.0, 1.0]), reduction="none")
    array([0.28768207, 1.38629436])
    >>> tensorops.cross_entropy(logits, np.asarray([[0.0, 1.0], [0.5, 0.5]]), reduction="none")
    array([0.28768207, 0.69314718])
    """
    xp = get_namespace(logits, targets, weight)
    counted, numbers = _counted(xp, "cross_entropy", targets, ignore_index, logits.shape[-1])
    if counted is None:
        wide, w, numbers = widen(xp, logits, weight, targets)
    else:
        wide, w = widen(xp, logits, weight)
    zeros = xp.zeros_like(wide)[..., 0]
    own = None if w is None or counted is None else _taken(xp, w, numbers)
    shares = _shares(xp, counted, own, zeros)
    squares = _coefficient_of_squares(xp, z_loss, counted, own, shares, reduction)
    losses = zeros
    if 0 not in logits.shape:
        losses = _losses(xp, wide, numbers, w, own, label_smoothing, squares)
    if counted is not None:
        losses = xp.where(counted, losses, zeros)
    return narrow(xp, _reduced(xp, losses, shares, reduction), logits)


def _counted(xp: Namespace, name: str, targets: Array, ignore_index: int, classes: int) -> tuple[Array | None, Array]:
    """Return which elements are not ignored, and class numbers for all of them; ``None`` for probabilities."""
    if is_floating(targets):
        return None, targets
    device = creation_device(targets)
    smallest, largest = integer_limits(targets)
    if smallest <= ignore_index <= largest:
        counted = targets != xp.asarray(ignore_index, dtype=targets.dtype, device=device)
    else:  # no target can be ignored, and libraries do not compare with a number outside the dtype's range
        counted = targets == targets
    numbers = xp.where(counted, targets, xp.zeros_like(targets))
    require_indices(name, "targets", numbers, classes, xp)
    return counted, widen_integers(xp, numbers, device)


def _taken(xp: Namespace, values: Array, indices: Array) -> Array:
    return xp.reshape(xp.take(values, xp.reshape(indices, (-1,)), axis=0), indices.shape)


def _shares(xp: Namespace, counted: Array | None, own: Array | None, zeros: Array) -> Array:
    """Return what each element contributes to the divisor of a mean; `own` are the weights of the targets, if any."""
    if counted is None:
        return xp.ones_like(zeros)
    return xp.astype(counted, zeros.dtype) if own is None else xp.where(counted, own, zeros)


def _coefficient_of_squares(
    xp: Namespace, z_loss: float, counted: Array | None, own: Array | None, shares: Array, reduction: str
) -> Any:
    """Return the factor of squares that are to be reduced with weighted losses; ``None`` if there is no `z_loss`."""
    if z_loss == 0.0:
        return None
    if own is None or reduction != "mean":
        return z_loss
    return z_loss * (_sum_of_all(xp, shares) / _sum_of_all(xp, xp.astype(counted, shares.dtype)))


def _losses(
    xp: Namespace,
    x: Array,
    targets: Array,
    weight: Array | None,
    own: Array | None,
    label_smoothing: float,
    squares: Any,
) -> Array:
    """Return the loss of each row of `x`, in `_UNIT`.

    `targets` are class numbers or, in the dtype of `x`, probabilities; `own` are the weights of those class numbers;
    `squares` is the coefficient of the squared logarithm of the sum.
    """
    last = (x.ndim - 1,)
    largest = xp.max(x, axis=-1, keepdims=True)
    log_total = _UNIT * xp.log(sum_along(xp, xp.exp(x - largest), last))
    most = _UNIT * xp.squeeze(largest, axis=-1)
    if is_floating(targets):
        shares = (1.0 - label_smoothing) * targets + label_smoothing / x.shape[-1] if label_smoothing else targets
        losses = _spread(xp, x, largest, log_total, shares if weight is None else shares * weight)
    else:
        losses = log_total - (_UNIT * _chosen(xp, x, targets) - most)
        if own is not None:
            losses = _product(xp, own, losses)
        if label_smoothing:
            if weight is None:
                even = log_total - mean_along(xp, _UNIT * x - _UNIT * largest, last)
            else:
                even = _spread(xp, x, largest, log_total, weight / x.shape[-1])
            losses = (1.0 - label_smoothing) * losses + label_smoothing * even
    if squares is None:
        return losses
    in_units = log_total + most
    return losses + in_units * squares * (in_units / _UNIT)


def _chosen(xp: Namespace, x: Array, targets: Array) -> Array:
    """Return the element of each row that its target names."""
    classes = xp.arange(x.shape[-1], dtype=targets.dtype, device=creation_device(x))
    is_target = xp.expand_dims(targets, axis=-1) == classes
    return xp.sum(xp.where(is_target, x, xp.zeros_like(x)), axis=-1)


def _spread(xp: Namespace, x: Array, largest: Array, log_total: Array, shares: Array) -> Array:
    """Return the sum of ``-shares * log(p)`` along each row, in `_UNIT`."""
    surprise = xp.expand_dims(log_total, axis=-1) - (_UNIT * x - _UNIT * largest)
    return sum_along(xp, _product(xp, shares, surprise), (x.ndim - 1,))


def _product(xp: Namespace, factors: Array, losses: Array) -> Array:
    """Return the product, which is 0 for an infinite loss that counts nothing."""
    return factors * xp.where((factors == 0.0) & (losses == float("inf")), xp.zeros_like(losses), losses)


def _reduced(xp: Namespace, losses: Array, shares: Array, reduction: str) -> Array:
    if reduction == "none":
        return losses / _UNIT
    total = _sum_of_all(xp, losses)
    if reduction == "mean":
        total = total / _sum_of_all(xp, shares)
    return total / _UNIT


def _sum_of_all(xp: Namespace, x: Array) -> Array:
    return sum_along(xp, xp.reshape(x, (-1,)), (0,))
