"""Losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tensorops._dtypes import (
    FLOATING,
    INTEGER,
    compute_dtype,
    dtype_name,
    integer_limits,
    is_floating,
    is_integer,
    narrow,
    widen_integers,
)
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._validation import (
    as_choice,
    as_integer,
    as_nonnegative_number,
    as_share,
    checked_indices,
    require_floating,
    require_ndim,
)
from tensorops.backends import get_namespace
from tensorops.libraries import constant, creation_device, over_blocks, take_along
from tensorops.ops._sums import mean_along, sum_along
from tensorops.typing import Array, ArrayInput, ArrayOfKind, KindT, Namespace

__all__ = ["cross_entropy", "linear_cross_entropy"]

# Losses are computed and summed in this unit, a power of two: neither a difference of logits nor a sum of losses
# overflows. Values that underflow are negligible compared with the logarithm of the sum.
UNIT = 2.0**-64


def _check_options(
    name: str, targets: Array, reduction: str, ignore_index: int, label_smoothing: float, z_loss: float
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "reduction": as_choice(name, "reduction", reduction, ("mean", "sum", "none")),
        "ignore_index": as_integer(name, "ignore_index", ignore_index),
        "label_smoothing": as_share(name, "label_smoothing", label_smoothing),
        "z_loss": as_nonnegative_number(name, "z_loss", z_loss),
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
        If shapes do not match, an option is invalid, or a target is out of range. Targets of Dask are checked when
        they are computed. Targets that are traced, of JAX or on an accelerator are not: the loss of one that is out of
        range is NaN.

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
    losses_of = functools.partial(_losses_of_logits, label_smoothing=label_smoothing)
    result: KindT = reduced_cross_entropy(
        losses_of, logits, targets, weight, reduction=reduction, ignore_index=ignore_index, z_loss=z_loss
    )
    return result


def reduced_cross_entropy(
    losses_of: Callable[..., Array],
    logits: Array,
    targets: Array,
    weight: Array | None,
    *,
    reduction: str,
    ignore_index: int,
    z_loss: float,
    classes: int | None = None,
) -> Array:
    """Return `cross_entropy` from a function that computes the loss of each row as `_losses_of_logits` does.

    If `classes` is given, `logits` are anything else that has these rows.
    """
    xp = get_namespace(logits, targets, weight)
    classes = logits.shape[-1] if classes is None else classes
    counted, numbers = _counted(xp, "cross_entropy", targets, ignore_index, classes)
    dtype = compute_dtype(xp, logits, weight, targets if counted is None else None)
    w = None if weight is None else xp.astype(weight, dtype, copy=False)
    zeros = xp.zeros_like(logits[..., 0], dtype=dtype)
    own = None if w is None or counted is None else _taken(xp, w, numbers)
    shares = _shares(xp, counted, own, zeros)
    squares = _coefficient_of_squares(xp, z_loss, counted, own, shares, reduction)
    losses = zeros
    if 0 not in logits.shape:
        losses = losses_of(xp, logits, numbers, w, own, squares, dtype)
    if counted is not None:
        losses = xp.where(counted, losses, zeros)
    return narrow(xp, _reduced(xp, losses, shares, reduction), logits)


def _losses_of_logits(
    xp: Namespace,
    logits: Array,
    targets: Array,
    weight: Array | None,
    own: Array | None,
    squares: Any,
    dtype: Any,
    *,
    label_smoothing: float,
) -> Array:
    """Return what `_losses` does, computed in a dtype that `weight` and `own` have."""
    wide = xp.astype(logits, dtype, copy=False)
    targets = xp.astype(targets, dtype, copy=False) if is_floating(targets) else targets
    return _losses(xp, wide, targets, weight, own, label_smoothing, squares, logits)


_BLOCK_BYTES = 64 * 1024 * 1024
"""The size up to which the logits of a block grow: the more rows, the less often the weights are read."""


def rows_per_block(rows: int, features: int, classes: int, itemsize: int) -> int:
    """Return how many rows have their logits computed at a time, in numbers of that many bytes.

    The logits of a block take 64 MiB, or as many bytes as all rows have, whichever is more; one row is never divided.
    All blocks have about as many rows.
    """
    elements = max(_BLOCK_BYTES // itemsize, rows * features)
    blocks = max(-(-rows // max(elements // classes, 1)), 1)
    return max(-(-rows // blocks), 1)


def _check_linear_cross_entropy(
    name: str, x: Array, weight: Array, targets: Array, bias: Array | None, ce_weight: Array | None, **options: Any
) -> dict[str, Any]:
    require_floating(name, x=x, weight=weight, bias=bias)
    require_ndim(name, "x", x, 1)
    require_ndim(name, "weight", weight, 2, 2)
    classes, features = weight.shape
    if features != x.shape[-1]:
        raise ValueError(f"{name}: weight has {features} columns, but the last axis of x has {x.shape[-1]}")
    rows = tuple(x.shape[:-1])
    _check_targets(name, targets, rows, classes, f"x has {tuple(x.shape)} and weight {classes} rows")
    canonical = _check_options(name, targets, **options)
    if classes == 0:
        raise ValueError(f"{name}: weight has no rows, so there are no classes")
    _check_weight(name, "bias", bias, classes)
    _check_weight(name, "ce_weight", ce_weight, classes)
    return canonical


def _linear_cross_entropy_rows(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None,
    ce_weight: Array | None,
    reduction: str,
    **_: Any,
) -> RowAxes:
    *rows, columns = every_axis(x)
    classes = x.ndim
    arrays = given(
        x=(x, every_axis(x)),
        weight=(weight, (classes, columns)),
        targets=(targets, (*rows, classes) if is_floating(targets) else tuple(rows)),
        bias=(bias, (classes,)),
        ce_weight=(ce_weight, (classes,)),
    )
    if reduction == "none":
        return RowAxes(arrays, tuple(rows), whole=(columns, classes))
    return RowAxes(arrays, (), whole=(*rows, columns, classes))


@operator(check=_check_linear_cross_entropy, rows=_linear_cross_entropy_rows)
def linear_cross_entropy(
    x: ArrayOfKind[KindT],
    weight: ArrayInput,
    targets: ArrayInput,
    bias: ArrayInput | None = None,
    ce_weight: ArrayInput | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> KindT:
    r"""Cross entropy of a linear map, without ever holding all of its results.

    .. math:: \ell = \operatorname{cross\_entropy}(x W^\mathsf{T} + b, \mathit{targets})

    The logits of a language model are its largest array: a row of the whole vocabulary for each token. Here they are
    computed for some rows at a time, and again for derivatives.

    Parameters
    ----------
    x : array, floating point, shape (..., features)
        Input, such as the hidden states of a model.
    weight : array, floating point, shape (classes, features)
        Matrix :math:`W`.
    targets : array of integers, shape (...), or floating point, shape (..., classes)
        Class numbers, or the probabilities of all classes. The dtype tells which.
    bias : array, floating point, shape (classes,), optional
        Vector :math:`b`.
    ce_weight : array, floating point, shape (classes,), optional
        Weight of each class in the loss; the argument `weight` of `cross_entropy`.
    reduction : {"mean", "sum", "none"}, optional
        How to combine the losses of all elements.
    ignore_index : int, optional
        Elements with this target have loss 0 and are excluded from the mean. Probabilities cannot be ignored.
    label_smoothing : float in [0, 1], optional
        Share of the target that is spread evenly over all classes.
    z_loss : float, optional
        Coefficient of the squared logarithm of the sum; at least 0.

    Returns
    -------
    array
        Shape (...) without reduction, else (); dtype, library and device of `x`. Logits of half types are computed in
        float32 and not rounded. The mean of no elements is NaN.

    Raises
    ------
    TypeError
        If an array is not floating point, or `targets` are neither integers nor floating point.
    ValueError
        If shapes do not match, an option is invalid, or a target is out of range. Targets of Dask are checked when
        they are computed. Targets that are traced, of JAX or on an accelerator are not: the loss of one that is out of
        range is NaN.

    Notes
    -----
    The logits of a block of rows take 64 MiB, or the memory of `x` in float32 if that is more. A call holds at most two
    such blocks, and so does its derivative with respect to `x`, `weight` and `bias`, besides these; the page on the
    architecture names exceptions. The kernel on NumPy arrays holds none. Where no kernel runs, weights of half types
    are converted to float32 once.

    The losses are those of `cross_entropy`. The order of arguments is that of ``LigerFusedLinearCrossEntropyLoss``;
    torch's name is ``linear_cross_entropy``, tokamax's ``linear_softmax_cross_entropy_loss``.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x, weight = np.asarray([[1.0], [0.0]]), np.log(np.asarray([[1.0], [3.0]]))
    >>> tensorops.linear_cross_entropy(x, weight, np.asarray([1, 0]), reduction="none")
    array([0.28768207, 0.69314718])
    """
    xp = get_namespace(x, weight, targets, bias, ce_weight)
    classes, features = weight.shape
    rows = tuple(x.shape[:-1])
    counted, numbers = _counted(xp, "linear_cross_entropy", targets, ignore_index, classes)
    dtype = compute_dtype(xp, x, weight, bias, ce_weight, targets)
    w, b, of_classes = (None if a is None else xp.astype(a, dtype, copy=False) for a in (weight, bias, ce_weight))
    own = None if of_classes is None or counted is None else _taken(xp, of_classes, numbers)
    zeros = xp.zeros(rows, dtype=dtype, device=creation_device(x))
    shares = _shares(xp, counted, own, zeros)
    squares = _coefficient_of_squares(xp, z_loss, counted, own, shares, reduction)
    losses = zeros
    if 0 not in rows:
        count = prod(rows)
        size = rows_per_block(count, features, classes, 8 if dtype == xp.float64 else 4)
        flat = xp.reshape(x, (count, features))
        names = xp.reshape(numbers, (count, classes) if counted is None else (count,))
        each = None if own is None else xp.reshape(own, (count,))
        block = _LossesOfBlock(xp, dtype, label_smoothing)
        losses = over_blocks(block, size, (flat, names, each), (w, b, of_classes, squares))
        losses = xp.reshape(losses, rows)
    if counted is not None:
        losses = xp.where(counted, losses, zeros)
    return narrow(xp, _reduced(xp, losses, shares, reduction), x)


@dataclass(frozen=True)
class _LossesOfBlock:
    """What `linear_cross_entropy` computes of a block of rows; comparable, so that libraries compile it once."""

    xp: Namespace
    dtype: Any
    label_smoothing: float

    def __call__(
        self,
        x: Array,
        targets: Array,
        own: Array | None,
        weight: Array,
        bias: Array | None,
        ce_weight: Array | None,
        squares: Any,
    ) -> Array:
        xp = self.xp
        targets = xp.astype(targets, self.dtype, copy=False) if is_floating(targets) else targets
        return _losses(xp, self._logits(x, weight, bias), targets, ce_weight, own, self.label_smoothing, squares)

    def _logits(self, x: Array, weight: Array, bias: Array | None) -> Array:
        logits = self.xp.matmul(self.xp.astype(x, self.dtype, copy=False), self.xp.matrix_transpose(weight))
        return logits if bias is None else logits + bias


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
    numbers = checked_indices(name, "targets", numbers, classes, xp)
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
    source: Array | None = None,
) -> Array:
    """Return the loss of each row of `x`, in `UNIT`.

    `source` has the elements of `x` as they were given, if they were: XLA does not widen all to take a few.

    `targets` are class numbers or, in the dtype of `x`, probabilities; `own` are the weights of those class numbers;
    `squares` is the coefficient of the squared logarithm of the sum.

    At most two arrays of the size of `x` exist at a time, `x` included if the caller does not keep it, and derivatives
    keep one.
    """
    last = (x.ndim - 1,)
    classes = x.shape[-1]
    largest = constant(xp.max(x, axis=-1, keepdims=True))  # the loss does not depend on it
    most = UNIT * xp.squeeze(largest, axis=-1)
    if is_floating(targets):
        shares = (1.0 - label_smoothing) * targets + label_smoothing / classes if label_smoothing else targets
        shares = shares if weight is None else shares * weight
        counted = sum_along(xp, shares, last)  # the sum of the shares that classes have in the loss
        below = sum_along(xp, _product(xp, shares, _distances(x, largest)), last)
    else:
        everywhere: Any = 1.0
        even: Any = 0.0
        if label_smoothing and weight is None:
            even = mean_along(xp, _distances(x, largest), last)
        elif label_smoothing:
            everywhere = mean_along(xp, weight, (0,))
            even = sum_along(xp, _product(xp, weight / classes, _distances(x, largest)), last)
        chosen = _chosen(xp, x if source is None else source, targets, stays=source is not None)
        below = most - UNIT * xp.astype(chosen, x.dtype, copy=False)
        counted, below = blended(xp, below, own, label_smoothing, everywhere, even)
    x = x - largest
    log_total = xp.log(sum_along(xp, xp.exp(x), last))
    return losses_with_total(counted, below, most, log_total, squares)


def blended(
    xp: Namespace, below: Array, own: Array | None, label_smoothing: float, everywhere: Any, even: Any
) -> tuple[Any, Array]:
    """Return the weight of each row, and how far its class, blended with all classes, lies below the largest logit.

    `below` is that distance for the class alone, in `UNIT`, and `own` its weight; `everywhere` is the mean of the
    weights of all classes, `even` the mean of their weighted distances.
    """
    counted: Any = 1.0
    if own is not None:
        counted, below = own, _product(xp, own, below)
    if label_smoothing:
        below = (1.0 - label_smoothing) * below + label_smoothing * even
        counted = (1.0 - label_smoothing) * counted + label_smoothing * everywhere
    return counted, below


def losses_with_total(counted: Any, below: Array, most: Array, log_total: Array, squares: Any) -> Array:
    """Return losses in `UNIT`, as `below` and the largest logit `most`; the total is relative to the latter."""
    # One factor of the square is in the unit, and the other is not: a compiler may multiply the constants of both, and
    # the square of the unit or of its inverse is out of range.
    root = log_total + most / UNIT
    log_total = UNIT * log_total
    losses = counted * log_total + below
    return losses if squares is None else losses + (log_total + most) * squares * root


def _distances(x: Array, largest: Array) -> Array:
    """Return how far elements lie below the largest, in `UNIT`."""
    distances = -UNIT * x
    distances += UNIT * largest
    return distances


def _chosen(xp: Namespace, x: Array, targets: Array, *, stays: bool) -> Array:
    """Return the element of each row that its target names; NaN if there is none.

    `stays` says that `x` is in memory anyway: torch keeps the source of a gather for the derivative.
    """
    *rows, classes = x.shape
    within = (targets >= 0) & (targets < classes)  # libraries may read memory beyond the row
    nan = xp.full_like(x[..., 0], float("nan"))
    if stays and hasattr(xp, "take_along_axis"):  # XLA copies a flattened source, and again in derivatives
        index = xp.__array_namespace_info__().default_dtypes(device=creation_device(x))["indexing"]
        places = xp.astype(xp.where(within, targets, xp.zeros_like(targets)), index, copy=False)
        chosen = xp.squeeze(take_along(xp, x, xp.expand_dims(places, axis=-1), x.ndim - 1), axis=-1)
        return xp.where(within, chosen, nan)
    if not prod(x.shape) < 2**31:  # too many for indices of some libraries, or unknown to Dask
        numbers = xp.arange(classes, dtype=targets.dtype, device=creation_device(x))
        is_target = xp.expand_dims(targets, axis=-1) == numbers
        return xp.where(within, xp.sum(xp.where(is_target, x, xp.zeros_like(x)), axis=-1), nan)
    places = xp.reshape(xp.where(within, targets, xp.zeros_like(targets)), (-1,))
    starts = xp.arange(0, prod(x.shape), classes, dtype=targets.dtype, device=creation_device(x))
    chosen = xp.reshape(xp.take(xp.reshape(x, (-1,)), starts + places, axis=0), tuple(rows))
    return xp.where(within, chosen, nan)


def _product(xp: Namespace, factors: Array, losses: Array) -> Array:
    """Return the product, which is 0 for an infinite loss that counts nothing."""
    return factors * xp.where((factors == 0.0) & (losses == float("inf")), xp.zeros_like(losses), losses)


def _reduced(xp: Namespace, losses: Array, shares: Array, reduction: str) -> Array:
    if reduction == "none":
        return losses / UNIT
    total = _sum_of_all(xp, losses)
    if reduction == "mean":
        total = total / _sum_of_all(xp, shares)
    return total / UNIT


def _sum_of_all(xp: Namespace, x: Array) -> Array:
    return sum_along(xp, xp.reshape(x, (-1,)), (0,))
