"""Positional encodings: rope."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import anew, is_floating, is_integer, narrow, widen
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._typing import Array, ArrayInput, ArrayT, Namespace
from tensorops._validation import (
    as_bool,
    as_integer,
    as_positive_number,
    require_broadcastable,
    require_floating,
    require_ndim,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device


def _check_rope(
    name: str,
    x: Array,
    positions: Array,
    base: float,
    freqs: Array | None,
    interleaved: bool,
    dims: int | None,
) -> dict[str, Any]:
    require_floating(name, x=x, freqs=freqs)
    require_ndim(name, "x", x, 3)
    if not (is_integer(positions) or is_floating(positions)):
        raise TypeError(f"{name}: positions has dtype {positions.dtype}, expected integers or floating point")
    require_ndim(name, "positions", positions, 1)
    require_broadcastable(name, "positions", positions, (*x.shape[:-3], x.shape[-2]))
    head_dim = x.shape[-1]
    count = head_dim if dims is None else as_integer(name, "dims", dims)
    if count % 2 or not 0 <= count <= head_dim:
        raise ValueError(f"{name}: dims is {shown(count)}, expected an even number up to the {head_dim} features of x")
    if freqs is not None and tuple(freqs.shape) != (count // 2,):
        raise ValueError(f"{name}: freqs has shape {tuple(freqs.shape)}, expected ({count // 2},)")
    base, interleaved = as_positive_number(name, "base", base), as_bool(name, "interleaved", interleaved)
    return {"base": base, "interleaved": interleaved, "dims": count}


def _rope_rows(x: Array, positions: Array, freqs: Array | None, **_: Any) -> RowAxes:
    *batch, _heads, sequence, features = every_axis(x)
    frequencies = x.ndim
    arrays = given(
        x=(x, every_axis(x)),
        positions=(positions, (*batch, sequence)[-positions.ndim :]),
        freqs=(freqs, (frequencies,)),
    )
    return RowAxes(arrays, every_axis(x), whole=(features, frequencies))


@operator(check=_check_rope, rows=_rope_rows)
def rope(
    x: ArrayT,
    positions: ArrayInput,
    *,
    base: float = 10000.0,
    freqs: ArrayInput | None = None,
    interleaved: bool = False,
    dims: int | None = None,
) -> ArrayT:
    r"""Rotary position embedding: rotate pairs of features by an angle proportional to the position.

    .. math:: \begin{pmatrix} y_1 \\ y_2 \end{pmatrix} =
              \begin{pmatrix} \cos p\theta_i & -\sin p\theta_i \\ \sin p\theta_i & \cos p\theta_i \end{pmatrix}
              \begin{pmatrix} x_1 \\ x_2 \end{pmatrix}, \qquad \theta_i = \mathit{base}^{-2i / \mathit{dims}}

    Parameters
    ----------
    x : array, floating point, shape (..., heads, seq, head_dim)
        Queries or keys.
    positions : array of integers or floating point, shape (seq,) or (..., seq)
        Position :math:`p` of each sequence element; the leading axes are the batch axes of `x`.
    base : float, optional
        Base of the geometric sequence of frequencies.
    freqs : array, shape (dims / 2,), optional
        Frequencies :math:`\theta_i` in radians per position, instead of those derived from `base`.
    interleaved : bool, optional
        Whether neighbours :math:`(2i, 2i+1)` form a pair, as in the original paper, or halves
        :math:`(i, i + \mathit{dims}/2)`, as in GPT-NeoX and Llama checkpoints.
    dims : int, optional
        How many leading features are rotated (all by default); the others are unchanged.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32, angles in float64 if the library
        and device have it: a float32 angle is off by 0.0005 radians at position 8192.

    Raises
    ------
    TypeError
        If `x` or `freqs` is not floating point, or `positions` is not numeric.
    ValueError
        If `dims` is odd or larger than head_dim, `base` is not a positive number, or shapes do not match.

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([[[1.0, 0.0], [1.0, 0.0]]])
    >>> tensorops.rope(x, np.asarray([0, 1])).round(4)
    array([[[1.    , 0.    ],
            [0.5403, 0.8415]]])
    """
    xp = get_namespace(x, positions, freqs)
    assert dims is not None
    if dims == 0 or 0 in x.shape:
        return anew(xp, x)  # nothing to rotate
    angle_dtype = _angle_dtype(xp, x)
    angles = _angles(xp, x, positions, base, freqs, dims, angle_dtype)
    (wide,) = widen(xp, x)
    cos = xp.astype(xp.cos(angles), wide.dtype, copy=False)
    sin = xp.astype(xp.sin(angles), wide.dtype, copy=False)
    if interleaved:
        first, second = wide[..., 0:dims:2], wide[..., 1:dims:2]
    else:
        first, second = wide[..., : dims // 2], wide[..., dims // 2 : dims]
    rotated = (first * cos - second * sin, second * cos + first * sin)
    parts = [*rotated]
    if interleaved:
        parts = [xp.reshape(xp.stack(rotated, axis=-1), (*x.shape[:-1], dims))]
    if dims < x.shape[-1]:
        parts.append(wide[..., dims:])
    return narrow(xp, xp.concat(parts, axis=-1) if len(parts) > 1 else parts[0], x)


def _angle_dtype(xp: Namespace, x: Array) -> object:
    device = creation_device(x)
    available = xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
    return available.get("float64", xp.float32)


def _angles(
    xp: Namespace, x: Array, positions: Array, base: float, freqs: Array | None, dims: int, dtype: object
) -> Array:
    """Return the angles, which broadcast to (..., heads, seq, dims / 2)."""
    if freqs is None:
        index = xp.arange(dims // 2, dtype=dtype, device=creation_device(x))
        theta = xp.pow(xp.full_like(index, base), index * (-2.0 / dims))
    else:
        theta = xp.astype(freqs, dtype, copy=False)
    p = xp.astype(positions, dtype, copy=False)
    # The axis of the heads precedes the sequence. One sequence for the whole batch broadcasts without it.
    p = xp.expand_dims(xp.expand_dims(p, axis=-1), axis=-3) if p.ndim > 1 else xp.expand_dims(p, axis=-1)
    return p * theta
