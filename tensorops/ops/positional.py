"""Positional encodings."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import anew, compute_dtype, dtype_name, is_floating, is_integer, narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import Axes, RowAxes, every_axis, given
from tensorops._validation import (
    as_bool,
    as_integer,
    as_positive_number,
    checked_indices,
    require_broadcastable,
    require_floating,
    require_ndim,
    require_same_dtype,
    require_same_shape,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, rows_of
from tensorops.typing import Array, ArrayInput, ArrayInputT, Namespace

__all__ = ["rope"]

DEFAULT_BASE = 10000.0


def _check_rope(
    name: str,
    x: Array,
    positions: Array | None,
    base: float,
    freqs: Array | None,
    cos: Array | None,
    sin: Array | None,
    interleaved: bool,
    dims: int | None,
    attention_factor: float,
) -> dict[str, Any]:
    return check_rotation(name, "", x, positions, base, freqs, cos, sin, interleaved, dims, attention_factor)


def check_rotation(
    name: str,
    prefix: str,
    x: Array,
    positions: Array | None,
    base: float,
    freqs: Array | None,
    cos: Array | None,
    sin: Array | None,
    interleaved: bool,
    dims: int | None,
    attention_factor: float,
) -> dict[str, Any]:
    """Check the arguments of `rope`, whose options have a prefix in another operator; return the canonical ones.

    Only the shape and the dtype of `x` are read.
    """
    require_floating(name, x=x, **{f"{prefix}freqs": freqs})
    require_ndim(name, "x", x, 3)
    head_dim = x.shape[-1]
    count = head_dim if dims is None else as_integer(name, f"{prefix}dims", dims)
    if count % 2 or not 0 <= count <= head_dim:
        expected = f"an even number up to the {head_dim} features of a head"
        raise ValueError(f"{name}: {prefix}dims is {shown(count)}, expected {expected}")
    base = as_positive_number(name, f"{prefix}base", base)
    if cos is None and sin is None:
        check_positions(name, "positions", x, positions)
        if freqs is not None and tuple(freqs.shape) != (count // 2,):
            raise ValueError(f"{name}: {prefix}freqs has shape {tuple(freqs.shape)}, expected ({count // 2},)")
    else:
        given = {"freqs": freqs is not None, "base": base != DEFAULT_BASE}
        for label, is_given in given.items():
            if is_given:
                raise ValueError(f"{name}: {prefix}{label} is given, but so are the tables {prefix}cos and {prefix}sin")
        _check_tables(name, prefix, x, positions, cos, sin, count // 2)
    return {
        f"{prefix}base": base,
        f"{prefix}interleaved": as_bool(name, f"{prefix}interleaved", interleaved),
        f"{prefix}dims": count,
        f"{prefix}attention_factor": as_positive_number(name, f"{prefix}attention_factor", attention_factor),
    }


def check_positions(name: str, label: str, x: Array, positions: Array | None, tables: str = "") -> None:
    """Check positions of the elements of `x`, which are rows of tables if these are named."""
    if positions is None:
        raise TypeError(f"{name}: {label} is None, expected an array unless cos and sin are given")
    if tables and not is_integer(positions):
        found = dtype_name(positions)
        raise TypeError(f"{name}: {label} has dtype {found}, expected integers, the rows of {tables}")
    if not (is_integer(positions) or is_floating(positions)):
        raise TypeError(f"{name}: {label} has dtype {positions.dtype}, expected integers or floating point")
    require_ndim(name, label, positions, 1)
    require_broadcastable(name, label, positions, (*x.shape[:-3], x.shape[-2]))


def _check_tables(
    name: str, prefix: str, x: Array, positions: Array | None, cos: Array | None, sin: Array | None, pairs: int
) -> None:
    tables = {f"{prefix}cos": cos, f"{prefix}sin": sin}
    for label, table in tables.items():
        if table is None:
            raise ValueError(f"{name}: {label} is missing, {prefix}cos and {prefix}sin are given together")
    require_floating(name, **tables)
    require_same_dtype(name, **tables)
    require_same_shape(name, **tables)
    assert cos is not None
    require_ndim(name, f"{prefix}cos", cos, 2, None if positions is None else 2)
    if cos.shape[-1] != pairs:
        found = f"{cos.shape[-1]} columns"
        raise ValueError(f"{name}: {prefix}cos has {found}, expected {pairs}, one for each pair of features")
    if positions is None:
        require_broadcastable(name, f"{prefix}cos", cos, (*x.shape[:-3], x.shape[-2], pairs))
        return
    check_positions(name, "positions", x, positions, f"{prefix}cos and {prefix}sin")


def _rope_rows(
    x: Array, positions: Array | None, freqs: Array | None, cos: Array | None, sin: Array | None, **_: Any
) -> RowAxes:
    *batch, _heads, sequence, features = every_axis(x)
    frequencies, table = x.ndim, x.ndim + 1
    at = (*batch, sequence)
    of_tables: Axes = (table, frequencies)
    if positions is None:
        assert cos is not None
        of_tables = (*at, frequencies)[-cos.ndim :]
    arrays = given(
        x=(x, every_axis(x)),
        positions=(positions, () if positions is None else at[-positions.ndim :]),
        freqs=(freqs, (frequencies,)),
        cos=(cos, of_tables),
        sin=(sin, of_tables),
    )
    return RowAxes(arrays, every_axis(x), whole=(features, frequencies, table))


@operator(check=_check_rope, rows=_rope_rows)
def rope(
    x: ArrayInputT,
    positions: ArrayInput | None = None,
    *,
    base: float = DEFAULT_BASE,
    freqs: ArrayInput | None = None,
    cos: ArrayInput | None = None,
    sin: ArrayInput | None = None,
    interleaved: bool = False,
    dims: int | None = None,
    attention_factor: float = 1.0,
) -> ArrayInputT:
    r"""Rotary position embedding: rotate pairs of features by an angle proportional to the position.

    .. math:: \begin{pmatrix} y_1 \\ y_2 \end{pmatrix} = a
              \begin{pmatrix} \cos p\theta_i & -\sin p\theta_i \\ \sin p\theta_i & \cos p\theta_i \end{pmatrix}
              \begin{pmatrix} x_1 \\ x_2 \end{pmatrix}, \qquad \theta_i = \mathit{base}^{-2i / \mathit{dims}}

    Parameters
    ----------
    x : array, floating point, shape (..., heads, seq, head_dim)
        Queries or keys.
    positions : array of integers or floating point, shape (seq,) or (..., seq)
        Position :math:`p` of each sequence element; the leading axes are the batch axes of `x`. With tables, the row
        of `cos` and `sin` for each element, an integer; may then be omitted.
    base : float, optional
        Base of the geometric sequence of frequencies.
    freqs : array, shape (dims / 2,), optional
        Frequencies :math:`\theta_i` in radians per position, instead of those derived from `base`;
        `tensorops.rope_scaling` computes those of models with a longer context.
    cos, sin : array, floating point, shape (positions, dims / 2), optional
        Tables of cosines and sines, instead of `base` or `freqs`: row :math:`p` is for position :math:`p`. Without
        `positions`, they hold one row for each sequence element, and have shape (seq, dims / 2) or
        (..., seq, dims / 2) with the batch axes of `x`.
    interleaved : bool, optional
        Whether neighbours :math:`(2i, 2i+1)` form a pair, as in the original paper, or halves
        :math:`(i, i + \mathit{dims}/2)`, as in GPT-NeoX and Llama checkpoints.
    dims : int, optional
        How many leading features are rotated (all by default); the others are unchanged.
    attention_factor : float, optional
        Factor :math:`a` of the rotated features, which YaRN and LongRoPE apply to queries and keys.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`. Half types are computed in float32, angles in float64 if the library
        and device have it: a float32 angle is off by 0.0005 radians at position 8192. Kernels on OpenCL and CUDA
        devices compute exact angles in integers instead. Tables of any dtype are converted to that of the computation.

    Raises
    ------
    TypeError
        If `x`, `freqs`, `cos` or `sin` is not floating point, `positions` is missing without tables or not numeric,
        or not of integers with tables, or `cos` and `sin` differ in dtype.
    ValueError
        If `dims` is odd or larger than head_dim, `base` or `attention_factor` is not a positive number, shapes do not
        match, tables are given with `base` or `freqs`, or a position is outside the tables. Positions of
        Dask are checked when they are computed. Positions that are traced, of JAX or on an accelerator are not: kernels
        give NaN for one that is outside, and elsewhere the library's own rule applies.

    Notes
    -----
    ONNX's `RotaryEmbedding` calls the tables ``cos_cache`` and ``sin_cache``, `positions` ``position_ids``, and `dims`
    ``rotary_embedding_dim``. Hugging Face's ``cos`` and ``sin`` hold each value twice: pass the first half of their
    columns.

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    https://arxiv.org/abs/2104.09864

    ONNX, operator RotaryEmbedding, https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([[[1.0, 0.0], [1.0, 0.0]]])
    >>> tensorops.rope(x, np.asarray([0, 1])).round(4)
    array([[[1.    , 0.    ],
            [0.5403, 0.8415]]])
    >>> cos, sin = np.asarray([[1.0], [0.0]]), np.asarray([[0.0], [1.0]])
    >>> tensorops.rope(x, np.asarray([1, 0]), cos=cos, sin=sin)
    array([[[0., 1.],
            [1., 0.]]])
    """
    xp = get_namespace(x, positions, freqs, cos, sin)
    assert dims is not None
    if cos is not None and positions is not None:
        positions = checked_indices("rope", "positions", positions, cos.shape[0], xp)
    if dims == 0 or 0 in x.shape:
        return anew(xp, x)  # nothing to rotate
    c, s = _cosines_and_sines(xp, x, positions, base, freqs, cos, sin, dims)
    dtype = compute_dtype(xp, x)
    c, s = (_over_heads(xp, xp.astype(a, dtype, copy=False)) for a in (c, s))
    if attention_factor != 1.0:
        c, s = c * attention_factor, s * attention_factor
    # Widened after slicing and narrowed before joining: XLA then writes no copy of x in the wider dtype.
    if interleaved:
        first, second = widen(xp, x[..., 0:dims:2], x[..., 1:dims:2])
    else:
        first, second = widen(xp, x[..., : dims // 2], x[..., dims // 2 : dims])
    rotated = (narrow(xp, first * c - second * s, x), narrow(xp, second * c + first * s, x))
    parts = [*rotated]
    if interleaved:
        parts = [xp.reshape(xp.stack(rotated, axis=-1), (*x.shape[:-1], dims))]
    if dims < x.shape[-1]:
        parts.append(x[..., dims:])
    return xp.concat(parts, axis=-1) if len(parts) > 1 else parts[0]


def _cosines_and_sines(
    xp: Namespace,
    x: Array,
    positions: Array | None,
    base: float,
    freqs: Array | None,
    cos: Array | None,
    sin: Array | None,
    dims: int,
) -> tuple[Array, Array]:
    """Return what multiplies the pairs of each sequence element, of shape (..., seq, dims / 2)."""
    if cos is None:
        angles = _angles(xp, x, positions, base, freqs, dims, angle_dtype(xp, x))
        return xp.cos(angles), xp.sin(angles)
    if positions is None:
        return cos, sin
    rows = xp.reshape(widen_integers(xp, positions, creation_device(positions)), (-1,))
    shape = (*positions.shape, dims // 2)
    return xp.reshape(rows_of(xp, cos, rows), shape), xp.reshape(rows_of(xp, sin, rows), shape)


def _over_heads(xp: Namespace, a: Array) -> Array:
    """Insert the axis of the heads before that of the sequence; one sequence for the whole batch broadcasts anyway."""
    return xp.expand_dims(a, axis=-3) if a.ndim > 2 else a


def angle_dtype(xp: Namespace, x: Array) -> object:
    """Return the dtype of angles: float64, if the library and the device of `x` have it."""
    device = creation_device(x)
    available = xp.__array_namespace_info__().dtypes(device=device, kind="real floating")
    return available.get("float64", xp.float32)


def _angles(
    xp: Namespace, x: Array, positions: Array, base: float, freqs: Array | None, dims: int, dtype: object
) -> Array:
    """Return the angles, of shape (..., seq, dims / 2)."""
    theta = frequencies(xp, x, base, freqs, dims, dtype)
    return xp.expand_dims(xp.astype(positions, dtype, copy=False), axis=-1) * theta


def frequencies(xp: Namespace, x: Array, base: float, freqs: Array | None, dims: int, dtype: object) -> Array:
    """Return the frequencies of the pairs of features, of shape (dims / 2,)."""
    if freqs is not None:
        return xp.astype(freqs, dtype, copy=False)
    index = xp.arange(dims // 2, dtype=dtype, device=creation_device(x))
    return xp.pow(xp.full_like(index, base), index * (-2.0 / dims))
