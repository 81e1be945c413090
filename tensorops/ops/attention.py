"""Attention: scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import is_bool, largest_exponent, narrow, widen
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, given
from tensorops._typing import Array, ArrayInput, ArrayT, Namespace
from tensorops._validation import (
    as_bool,
    as_integer,
    as_number,
    as_positive_number,
    plural,
    require_broadcastable,
    require_floating,
    require_ndim,
    require_same_dtype,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device

_WIDEST = 2**31 - 1
"""The widest window that matters: a valid index in every library, and more than any number of positions."""


def _check(
    name: str,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    is_causal: bool,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: Array | None,
) -> dict[str, Any]:
    require_floating(name, q=q, k=k, v=v, sinks=sinks)
    require_same_dtype(name, q=q, k=k, v=v)
    for label, x in (("q", q), ("k", k), ("v", v)):
        require_ndim(name, label, x, 4, 4)
    if k.shape[0] != q.shape[0] or v.shape[0] != q.shape[0]:
        label, other = ("k", k) if k.shape[0] != q.shape[0] else ("v", v)
        raise ValueError(f"{name}: {label} has batch size {other.shape[0]}, but q has {q.shape[0]}")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"{name}: k has head dimension {k.shape[3]}, but q has {q.shape[3]}")
    if v.shape[1:3] != k.shape[1:3]:
        raise ValueError(f"{name}: v has (heads, keys) {tuple(v.shape[1:3])}, but k has {tuple(k.shape[1:3])}")
    if (k.shape[1] == 0 and q.shape[1] != 0) or (k.shape[1] and q.shape[1] % k.shape[1]):
        raise ValueError(f"{name}: k has {plural(k.shape[1], 'head')}, which does not divide the {q.shape[1]} of q")
    if mask is not None:
        if not is_bool(mask):
            require_floating(name, mask=mask)
        require_broadcastable(name, "mask", mask, (*q.shape[:3], k.shape[2]))
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ValueError(f"{name}: sinks has shape {tuple(sinks.shape)}, but q has {q.shape[1]} heads")
    if window is not None:
        window = as_integer(name, "window", window)
        if window < 1:
            raise ValueError(f"{name}: window is {shown(window)}, expected at least 1")
        window = min(window, _WIDEST)
    return {
        "is_causal": as_bool(name, "is_causal", is_causal),
        "scale": max(q.shape[3], 1) ** -0.5 if scale is None else as_number(name, "scale", scale),
        "window": window,
        "softcap": None if softcap is None else as_positive_number(name, "softcap", softcap),
    }


def _rows(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    is_causal: bool,
    window: int | None,
    sinks: Array | None,
    **_: Any,
) -> RowAxes:
    batch, heads, queries, dim, kv_heads, keys, value_dim = range(7)
    arrays = given(
        q=(q, (batch, heads, queries, dim)),
        k=(k, (batch, kv_heads, keys, dim)),
        v=(v, (batch, kv_heads, keys, value_dim)),
        mask=(mask, () if mask is None else (batch, heads, queries, keys)[4 - mask.ndim :]),
        sinks=(sinks, (heads,)),
    )
    # A query's position depends on the number of queries.
    whole = (heads, dim, kv_heads, keys, *((queries,) if is_causal or window is not None else ()))
    return RowAxes(arrays, (batch, heads, queries, value_dim), whole)


@operator(check=_check, rows=_rows)
def scaled_dot_product_attention(
    q: ArrayT,
    k: ArrayInput,
    v: ArrayInput,
    *,
    mask: ArrayInput | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: ArrayInput | None = None,
) -> ArrayT:
    r"""Attend from queries to keys and average the values.

    .. math:: y_i = \sum_j p_{ij} v_j, \qquad p_{ij} = \frac{e^{s_{ij}}}{e^{z} + \sum_{j'} e^{s_{ij'}}}, \qquad
              s_{ij} = c \tanh\left(\frac{\mathit{scale} \; q_i \cdot k_j}{c}\right) + m_{ij}

    with the soft cap :math:`c` and the sink :math:`z` only if given.

    Parameters
    ----------
    q : array, floating point, shape (batch, heads, queries, dim)
        Queries.
    k : array, shape (batch, kv_heads, keys, dim)
        Keys. `heads` is a multiple of `kv_heads`: each key head serves a group of consecutive query heads.
    v : array, shape (batch, kv_heads, keys, value_dim)
        Values.
    mask : array of bool or floating point, optional
        Broadcasts to (batch, heads, queries, keys). True attends; a floating-point mask is added to the scores.
    is_causal : bool, optional
        A query attends to no later key. The last query is aligned with the last key: query :math:`i` has position
        :math:`i + \mathit{keys} - \mathit{queries}`.
    scale : float, optional
        Factor applied to the scores, :math:`1 / \sqrt{\mathit{dim}}` by default.
    window : int, optional
        A query attends only to keys nearer than this many positions.
    softcap : float, optional
        Bound of the scores, applied before the mask.
    sinks : array, shape (heads,), optional
        One logit per head that takes part in the normalization but has no value.

    Returns
    -------
    array, shape (batch, heads, queries, value_dim)
        Dtype, library and device of `q`; half types are computed in float32. A query that may attend to no key
        gives 0. Finite queries and keys of any magnitude give finite weights, even if their products exceed the range
        of the dtype; the body then loses digits of scores around 1 if products are near the square of that range.

    Raises
    ------
    TypeError
        If an input is not floating point, or `q`, `k` and `v` differ in dtype.
    ValueError
        If shapes do not match, or `window`, `softcap` or `scale` is invalid.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, https://arxiv.org/abs/1706.03762

    Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models", 2023,
    https://arxiv.org/abs/2305.13245

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> q = np.zeros((1, 1, 2, 4))
    >>> v = np.asarray([[[[1.0], [3.0]]]])
    >>> tensorops.scaled_dot_product_attention(q, q, v, is_causal=True)[0, 0]
    array([[1.],
           [2.]])
    """
    xp = get_namespace(q, k, v, mask, sinks)
    assert scale is not None
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    group = heads // kv_heads if kv_heads else 1
    grouped = (batch, kv_heads, group, queries, keys)
    if 0 in grouped:  # no scores: there are no values, or no queries
        return xp.zeros((batch, heads, queries, value_dim), dtype=q.dtype, device=creation_device(q))

    wide_q, wide_k, wide_v = widen(xp, q, k, v)
    grouped_q = xp.reshape(wide_q, (batch, kv_heads, group, queries, dim))
    scores, exponent = _scores(xp, grouped_q, xp.expand_dims(wide_k, axis=2), scale)
    unit = xp.pow(xp.full_like(exponent, 2.0), -exponent)  # of the scores
    if softcap is not None:
        scores = softcap * xp.tanh(scores / unit / softcap)
        unit = xp.ones_like(unit)

    allowed = _positions_allowed(xp, q, queries, keys, is_causal, window)
    if mask is not None:
        per_group = _split_heads(xp, mask, kv_heads, group)
        if is_bool(mask):
            allowed = per_group if allowed is None else allowed & per_group
        else:
            scores = scores + xp.astype(per_group, scores.dtype, copy=False) * unit
    sink = None
    if sinks is not None:
        sink = xp.reshape(xp.astype(sinks, scores.dtype, copy=False), (1, kv_heads, group, 1, 1)) * unit
    weights = _masked_softmax(xp, scores, allowed, sink, unit)
    y = xp.matmul(weights, xp.expand_dims(wide_v, axis=2))
    return narrow(xp, xp.reshape(y, (batch, heads, queries, value_dim)), q)


def _positions_allowed(
    xp: Namespace, q: Array, queries: int, keys: int, is_causal: bool, window: int | None
) -> Array | None:
    """Return a bool array (queries, keys) of the pairs that causality and the window allow; ``None`` if all are."""
    if not is_causal and window is None:
        return None
    device = creation_device(q)
    position = xp.reshape(xp.arange(queries, device=device) + (keys - queries), (queries, 1))
    key = xp.reshape(xp.arange(keys, device=device), (1, keys))
    later = key > position
    near = None if window is None else (key - position > -window) & (key - position < window)
    if not is_causal:
        return near
    return ~later if near is None else ~later & near


def _split_heads(xp: Namespace, mask: Array, kv_heads: int, group: int) -> Array:
    """Reshape a mask that broadcasts to (batch, heads, queries, keys) to the axes (batch, kv_heads, group, …)."""
    batch, heads, queries, keys = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    split = (1, 1) if heads == 1 else (kv_heads, group)
    return xp.reshape(mask, (batch, *split, queries, keys))


def _scores(xp: Namespace, q: Array, k: Array, factor: float) -> tuple[Array, Array]:
    """Return ``2**-exponent * factor * q @ k.T`` and the exponent of each query, 0 except for enormous numbers.

    The factors of each product are scaled to about 1, and the exponent leaves room for the sums: finite inputs never
    give an infinite score. Powers of two cost no precision.
    """
    small_q, of_q = _scale_to_one(xp, q, -1)
    small_q, of_factor = _scale_to_one(xp, small_q * factor, -1)
    small_k, of_k = _scale_to_one(xp, k, (-2, -1))
    scores = xp.matmul(small_q, xp.matrix_transpose(small_k))
    total = of_q + of_factor + of_k
    # The largest power of two that a sum of products of numbers below 2 may be multiplied by.
    room = xp.full_like(total, float(largest_exponent(q) - 3 - q.shape[-1].bit_length()))
    small = xp.where(total > room, room, xp.where(total < -room, -room, total))
    scores = scores * xp.pow(xp.full_like(total, 2.0), small)
    # Beyond this power the exponential cannot tell the difference of two scores from infinity.
    most = xp.full_like(total, float(largest_exponent(q) - 1))
    excess = xp.where(total > room, total - room, xp.zeros_like(total))
    return scores, xp.where(excess > most, most, excess)


def _scale_to_one(xp: Namespace, x: Array, axis: int | tuple[int, ...]) -> tuple[Array, Array]:
    """Return ``x * 2**-exponent``, below 2, and the exponent along the axes: 0 where `x` is 0 or not finite.

    The exponent comes from `floor`, whose derivative is zero, so automatic differentiation sees a constant.
    """
    if x.shape[-1] == 0:
        return x, xp.zeros((1,) * x.ndim, dtype=x.dtype, device=creation_device(x))
    largest = xp.max(xp.abs(x), axis=axis, keepdims=True)
    usable = xp.isfinite(largest) & (largest > 0)
    exponent = xp.floor(xp.log2(xp.where(usable, largest, xp.ones_like(largest))))
    most = xp.full_like(exponent, float(largest_exponent(x) - 1))  # its power's reciprocal is a normal number
    exponent = xp.where(exponent > most, most, xp.where(exponent < -most, -most, exponent))
    return x * xp.pow(xp.full_like(exponent, 2.0), -exponent), exponent


def _masked_softmax(xp: Namespace, scores: Array, allowed: Array | None, sink: Array | None, unit: Array) -> Array:
    """Softmax over the keys; scores and sink are given in `unit`. Rows without any key give 0."""
    nothing = -float("inf")
    if allowed is not None:
        scores = xp.where(allowed, scores, xp.full_like(scores, nothing))
    largest = xp.max(scores, axis=-1, keepdims=True)
    if sink is not None:
        largest = xp.where(largest < sink, sink, largest)
    largest = xp.where(largest == nothing, xp.zeros_like(largest), largest)
    e = xp.exp((scores - largest) / unit)
    total = xp.sum(e, axis=-1, keepdims=True)
    if sink is not None:
        total = total + xp.exp((sink - largest) / unit)
    return e / xp.where(total == 0, xp.ones_like(total), total)
