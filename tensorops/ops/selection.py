"""Selection."""

from __future__ import annotations

from typing import Any

from tensorops import _dtypes
from tensorops._dtypes import integer_limits, narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis
from tensorops._validation import as_bool, as_integer, normalize_axis, require_ndim, shown
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, take_along
from tensorops.typing import Array, ArrayOfKind, KindT, Namespace

__all__ = ["top_k"]


def _check_top_k(name: str, x: Array, k: int, axis: int, largest: bool) -> dict[str, Any]:
    if not (_dtypes.is_floating(x) or _dtypes.is_integer(x)):
        raise TypeError(f"{name}: x has dtype {_dtypes.dtype_name(x)}, expected real numbers")
    require_ndim(name, "x", x, 1)
    axis = normalize_axis(name, axis, x.ndim)
    k = as_integer(name, "k", k)
    length = x.shape[axis]
    if k < 0 or k > length:  # a length unknown to Dask is NaN
        raise ValueError(f"{name}: k is {shown(k)}, expected 0 … {length}, the length of x along axis {axis - x.ndim}")
    return {"k": k, "axis": axis, "largest": as_bool(name, "largest", largest)}


def _rows(x: Array, k: int, axis: int, largest: bool) -> RowAxes:
    every = every_axis(x)
    return RowAxes({"x": every}, every, whole=(axis,), shortened=(axis,), length=k, results=2, indices=(1,))


@operator(check=_check_top_k, rows=_rows)
def top_k(x: ArrayOfKind[KindT], k: int, *, axis: int = -1, largest: bool = True) -> tuple[KindT, Array]:
    r"""Return the `k` largest or smallest elements along an axis, best first, and where they are.

    .. math:: v_j = x_{i_j}, \qquad v_0 \ge v_1 \ge \dots \ge v_{k-1} \ge x_i \text{ for all other } i

    Equal elements are taken in the order of their indices, and -0.0 equals 0.0. NaN comes last, whether the largest or
    the smallest are wanted: after infinities of either sign, and only if there are fewer than `k` numbers.

    Parameters
    ----------
    x : array of real numbers, shape (..., n, ...)
        Input: floating point or integers of any width.
    k : int
        How many elements, from 0 to the length of `x` along `axis`.
    axis : int, optional
        Axis along which to select; the last by default.
    largest : bool, optional
        Whether to select the largest elements, not the smallest.

    Returns
    -------
    values : array, shape (..., k, ...)
        The selected elements in the dtype of `x`. Their gradient flows to the elements they were taken from.
    indices : array of integers, shape (..., k, ...)
        Their positions along `axis`, in the library's default index dtype.

    Raises
    ------
    TypeError
        If `x` does not hold real numbers.
    ValueError
        If `k` is out of range, or `x` has no such axis.

    References
    ----------
    PyTorch, ``torch.topk``, https://docs.pytorch.org/docs/stable/generated/torch.topk.html, which neither is stable nor
    takes NaN last; on the names and on NaN: https://github.com/data-apis/array-api/issues/722

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> values, indices = tensorops.top_k(np.asarray([1.0, 5.0, np.nan, 5.0, 3.0]), 3)
    >>> values, indices
    (array([5., 5., 3.]), array([1, 3, 4]))
    >>> tensorops.top_k(np.asarray([[3, 1], [2, 4]]), 1, axis=0, largest=False)[1]
    array([[1, 0]])
    """
    xp = get_namespace(x)
    first = (*(slice(None),) * axis, slice(0, k), ...)
    keys = _keys(xp, x, largest)
    indices = xp.argsort(keys, axis=axis)[first]  # stable; every library sorts NaN last
    if not hasattr(xp, "take_along_axis"):  # Dask: a gather whose blocks are not known
        return _numbers(xp, xp.sort(keys, axis=axis)[first], x, largest), indices
    if _dtypes.is_floating(x):
        return take_along(xp, x, indices, axis), indices
    return _numbers(xp, take_along(xp, keys, indices, axis), x, largest), indices


def _keys(xp: Namespace, x: Array, largest: bool) -> Array:
    """Return numbers in a dtype that every library sorts, which ascend from the best element of `x` to the worst."""
    if _dtypes.is_floating(x):
        (wide,) = widen(xp, x)
        return -wide if largest else wide
    wide = _with_moved_zero(xp, widen_integers(xp, x, creation_device(x)), x)
    return ~wide if largest else wide  # a negation would overflow


def _numbers(xp: Namespace, keys: Array, x: Array, largest: bool) -> Array:
    """Return the elements of `x` that have these keys."""
    if _dtypes.is_floating(x):
        return narrow(xp, -keys if largest else keys, x)
    return narrow(xp, _with_moved_zero(xp, ~keys if largest else keys, x), x)


def _with_moved_zero(xp: Namespace, wide: Array, x: Array) -> Array:
    """Exchange the halves of the range of int64 for integers of uint64, whose upper half wrapped around in it."""
    if _dtypes.dtype_name(x) != "uint64" or _dtypes.dtype_name(wide) != "int64":
        return wide
    return wide ^ xp.asarray(integer_limits(wide)[0], dtype=wide.dtype, device=creation_device(wide))
