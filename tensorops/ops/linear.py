"""Linear maps: linear, embedding."""

from __future__ import annotations

from tensorops._dtypes import narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._typing import Array, ArrayInput, ArrayOfKind, ArrayT, KindT
from tensorops._validation import require_floating, require_indices, require_integer, require_ndim
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device


def _check_linear(name: str, x: Array, weight: Array, bias: Array | None) -> None:
    require_floating(name, x=x, weight=weight, bias=bias)
    require_ndim(name, "x", x, 1)
    require_ndim(name, "weight", weight, 2, 2)
    if weight.shape[1] != x.shape[-1]:
        raise ValueError(f"{name}: weight has {weight.shape[1]} columns, but the last axis of x has {x.shape[-1]}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"{name}: bias has shape {tuple(bias.shape)}, but weight has {weight.shape[0]} rows")


def _check_embedding(name: str, ids: Array, weight: Array) -> None:
    require_integer(name, ids=ids)
    require_floating(name, weight=weight)
    require_ndim(name, "weight", weight, 2, 2)


def _linear_rows(x: Array, weight: Array, bias: Array | None) -> RowAxes:
    *rows, columns = every_axis(x)
    out = x.ndim
    arrays = given(x=(x, every_axis(x)), weight=(weight, (out, columns)), bias=(bias, (out,)))
    return RowAxes(arrays, (*rows, out), whole=(columns,))


def _embedding_rows(ids: Array, weight: Array) -> RowAxes:
    vocabulary, dim = ids.ndim, ids.ndim + 1
    arrays = {"ids": every_axis(ids), "weight": (vocabulary, dim)}
    return RowAxes(arrays, (*every_axis(ids), dim), whole=(vocabulary,), like="weight")


@operator(check=_check_linear, rows=_linear_rows)
def linear(x: ArrayT, weight: ArrayInput, bias: ArrayInput | None = None) -> ArrayT:
    r"""Affine map of the last axis.

    .. math:: y = x W^\mathsf{T} + b

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Input.
    weight : array, shape (out, in)
        Matrix :math:`W`.
    bias : array, shape (out,), optional
        Vector :math:`b`.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`; half types are multiplied and summed in float32.

    Raises
    ------
    TypeError
        If an input is not floating point.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.linear(np.asarray([1.0, 2.0]), np.asarray([[1.0, 0.0], [1.0, 1.0]]), np.asarray([0.5, 0.5]))
    array([1.5, 3.5])
    """
    xp = get_namespace(x, weight, bias)
    wide, w, b = widen(xp, x, weight, bias)
    y = xp.matmul(wide, xp.matrix_transpose(w))
    return narrow(xp, y if b is None else y + b, x)


@operator(check=_check_embedding, rows=_embedding_rows)
def embedding(ids: ArrayInput, weight: ArrayOfKind[KindT]) -> KindT:
    r"""Look up rows of a table.

    .. math:: y_i = W_{\mathit{ids}_i}

    Parameters
    ----------
    ids : array of integers
        Row numbers, of any shape.
    weight : array, floating point, shape (vocabulary, dim)
        Table :math:`W`.

    Returns
    -------
    array, shape ``(*ids.shape, dim)``
        Dtype, library and device of `weight`.

    Raises
    ------
    TypeError
        If `ids` are not integers, or `weight` is not floating point.
    ValueError
        If `weight` does not have two dimensions, or an id is out of range. Ids that are traced, lazy or on an
        accelerator are not checked: kernels on OpenCL and CUDA devices give a row of NaN for one that is out of range,
        and elsewhere the library's own rule applies.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.embedding(np.asarray([2, 0]), np.asarray([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    array([[4., 5.],
           [0., 1.]])
    """
    xp = get_namespace(ids, weight)
    require_indices("embedding", "ids", ids, weight.shape[0], xp)
    flat = xp.reshape(widen_integers(xp, ids, creation_device(ids)), (-1,))
    rows = xp.take(weight, flat, axis=0)
    return xp.reshape(rows, (*ids.shape, weight.shape[1]))
