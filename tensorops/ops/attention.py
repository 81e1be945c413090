"""Attention."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any, NamedTuple

from tensorops import formats
from tensorops._dtypes import dtype_name, is_bool, largest_exponent, narrow, widen, widen_integers
from tensorops._messages import nearest
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, given
from tensorops._validation import (
    as_bool,
    as_integer,
    as_number,
    as_positive_number,
    checked_counts,
    checked_indices,
    plural,
    require_broadcastable,
    require_floating,
    require_integer,
    require_ndim,
    require_same_dtype,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.formats import Format, Interleaved
from tensorops.libraries import constant, creation_device, is_fixed
from tensorops.ops.quantization import check_blocks
from tensorops.typing import Array, ArrayInput, ArrayInputT, Namespace

__all__ = ["scaled_dot_product_attention"]

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
    window: int | tuple[int | None, int | None] | None,
    softcap: float | None,
    sinks: Array | None,
    lengths: Array | None,
    page_table: Array | None,
    kv_format: str | None,
) -> dict[str, Any]:
    require_floating(name, q=q, sinks=sinks)
    require_ndim(name, "q", q, 4, 4)
    blocks = _check_keys(name, q, k, v, kv_format)
    _check_batch(name, q, k, v, page_table)
    if (dim := _count_features(k, blocks)) != q.shape[3]:
        raise ValueError(f"{name}: k has head dimension {dim}, but q has {q.shape[3]}")
    if v.shape[1:3] != k.shape[1:3]:
        raise ValueError(f"{name}: v has (heads, keys) {tuple(v.shape[1:3])}, but k has {tuple(k.shape[1:3])}")
    if (k.shape[1] == 0 and q.shape[1] != 0) or (k.shape[1] and q.shape[1] % k.shape[1]):
        raise ValueError(f"{name}: k has {plural(k.shape[1], 'head')}, which does not divide the {q.shape[1]} of q")
    if mask is not None:
        if not is_bool(mask):
            require_floating(name, mask=mask)
        require_broadcastable(name, "mask", mask, (*q.shape[:3], _count_keys(k, page_table)))
    if sinks is not None and tuple(sinks.shape) != (q.shape[1],):
        raise ValueError(f"{name}: sinks has shape {tuple(sinks.shape)}, but q has {q.shape[1]} heads")
    if lengths is not None:
        require_integer(name, lengths=lengths)
        if tuple(lengths.shape) != (q.shape[0],):
            raise ValueError(f"{name}: lengths has shape {tuple(lengths.shape)}, but q has batch size {q.shape[0]}")
    return {
        "is_causal": as_bool(name, "is_causal", is_causal),
        "scale": max(q.shape[3], 1) ** -0.5 if scale is None else as_number(name, "scale", scale),
        "window": None if window is None else _as_window(name, window),
        "softcap": None if softcap is None else as_positive_number(name, "softcap", softcap),
    }


def _check_keys(name: str, q: Array, k: Array, v: Array, kv_format: str | None) -> Format | None:
    """Raise unless keys and values are arrays of numbers like `q`, or of blocks; return the format of these."""
    given = {"k": k, "v": v}
    if kv_format is None:
        for label, x in given.items():
            if dtype_name(x) == "uint8":
                raise TypeError(
                    f"{name}: {label} has dtype uint8, but kv_format, which says what its blocks are, is None"
                )
        require_floating(name, **given)
        require_same_dtype(name, q=q, **given)
        for label, x in given.items():
            require_ndim(name, label, x, 4, 4)
        return None
    if not isinstance(kv_format, str):
        raise TypeError(f"{name}: kv_format is {shown(kv_format)}, expected the name of a format")
    try:
        blocks = formats.get(kv_format)
    except ValueError:
        like = nearest(kv_format[:40], formats.names())
        raise ValueError(
            f"{name}: kv_format is {shown(kv_format)}, expected one of tensorops.formats.names(){like}"
        ) from None
    if isinstance(blocks, Interleaved):
        raise ValueError(f"{name}: kv_format is {kv_format!r}, but blocks of keys and values are not interleaved")
    for label, x in given.items():
        check_blocks(name, label, x, {}, kv_format, 4)
    return blocks


def _count_features(x: Array, blocks: Format | None) -> int:
    """Return how many features keys or values have."""
    features: int = x.shape[3] if blocks is None else x.shape[3] // blocks.nbytes * blocks.elements
    return features


def _check_batch(name: str, q: Array, k: Array, v: Array, page_table: Array | None) -> None:
    """Raise unless there are keys and values for each sequence: of its own, or pages of them."""
    if page_table is None:
        for label, x in (("k", k), ("v", v)):
            if x.shape[0] != q.shape[0]:
                raise ValueError(f"{name}: {label} has batch size {x.shape[0]}, but q has {q.shape[0]}")
        return
    require_integer(name, page_table=page_table)
    require_ndim(name, "page_table", page_table, 2, 2)
    if page_table.shape[0] != q.shape[0]:
        raise ValueError(f"{name}: page_table has batch size {page_table.shape[0]}, but q has {q.shape[0]}")
    if v.shape[0] != k.shape[0]:
        raise ValueError(f"{name}: v has {plural(v.shape[0], 'page')}, but k has {k.shape[0]}")
    if k.shape[0] == 0 and 0 not in page_table.shape:
        raise ValueError(f"{name}: k has 0 pages, but page_table has {page_table.shape[1]} for each sequence")


def _as_window(name: str, window: Any) -> tuple[int | None, int | None] | None:
    """Return how many keys before and after its own position a query attends to; ``None`` where all."""
    if not isinstance(window, tuple | list):
        width = as_integer(name, "window", window)
        if width < 1:
            raise ValueError(f"{name}: window is {shown(width)}, expected at least 1")
        return (min(width, _WIDEST) - 1,) * 2
    if len(window) != 2:
        raise ValueError(f"{name}: window is {shown(window)}, expected an integer or a pair of them")
    sides = [None if side is None else as_integer(name, "window", side) for side in window]
    if any(side is not None and side < -1 for side in sides):
        raise ValueError(f"{name}: window is {shown(window)}, expected sides of at least 0, or -1 for no bound")
    left, right = (None if side is None or side == -1 else min(side, _WIDEST) for side in sides)
    return None if left is None and right is None else (left, right)


def _count_keys(k: Array, page_table: Array | None) -> int:
    """Return the largest number of keys that a sequence may have."""
    keys: int = k.shape[2] if page_table is None else page_table.shape[1] * k.shape[2]
    return keys


def _rows(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    is_causal: bool,
    window: tuple[int | None, int | None] | None,
    sinks: Array | None,
    lengths: Array | None,
    page_table: Array | None,
    kv_format: str | None = None,
    **_: Any,
) -> RowAxes:
    batch, heads, queries, dim, kv_heads, keys, value_dim, pages, page, position, key_bytes = range(11)
    owner, place = (batch, keys) if page_table is None else (page, position)
    arrays = given(
        q=(q, (batch, heads, queries, dim)),
        k=(k, (owner, kv_heads, place, dim if kv_format is None else key_bytes)),
        v=(v, (owner, kv_heads, place, value_dim)),
        mask=(mask, () if mask is None else (batch, heads, queries, keys)[4 - mask.ndim :]),
        sinks=(sinks, (heads,)),
        lengths=(lengths, (batch,)),
        page_table=(page_table, (batch, pages)),
    )
    # A query's position depends on the number of queries. Any sequence may use any page.
    whole = (heads, dim, kv_heads, keys, *((queries,) if is_causal or window is not None else ()))
    paged = () if page_table is None else (pages, page, position)
    result, together = (batch, heads, queries, value_dim), ((heads, kv_heads),)
    if kv_format is None:
        return RowAxes(arrays, result, (*whole, *paged), together=together)
    length = _count_features(v, formats.get(kv_format))
    whole = (*whole, *paged, key_bytes, value_dim)
    return RowAxes(arrays, result, whole, shortened=(value_dim,), length=length, together=together)


@operator(check=_check, rows=_rows)
def scaled_dot_product_attention(
    q: ArrayInputT,
    k: ArrayInput,
    v: ArrayInput,
    *,
    mask: ArrayInput | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: ArrayInput | None = None,
    lengths: ArrayInput | None = None,
    page_table: ArrayInput | None = None,
    kv_format: str | None = None,
) -> ArrayInputT:
    r"""Attend from queries to keys and average the values.

    .. math:: y_i = \sum_j p_{ij} v_j, \qquad p_{ij} = \frac{e^{s_{ij}}}{e^{z} + \sum_{j'} e^{s_{ij'}}}, \qquad
              s_{ij} = c \tanh\left(\frac{\mathit{scale} \; q_i \cdot k_j}{c}\right) + m_{ij}

    with the soft cap :math:`c` and the sink :math:`z` only if given.

    Parameters
    ----------
    q : array, floating point, shape (batch, heads, queries, dim)
        Queries.
    k : array, shape (batch, kv_heads, keys, dim)
        Keys. `heads` is a multiple of `kv_heads`: each key head serves a group of consecutive query heads. With a
        `page_table`, the pages that all sequences share, of shape (num_pages, kv_heads, page_size, dim).
    v : array, shape (batch, kv_heads, keys, value_dim)
        Values; with a `page_table`, of shape (num_pages, kv_heads, page_size, value_dim).
    mask : array of bool or floating point, optional
        Broadcasts to (batch, heads, queries, keys). True attends; a floating-point mask is added to the scores.
    is_causal : bool, optional
        A query attends to no later key. The last query is aligned with the last valid key: query :math:`i` has
        position :math:`i + \mathit{keys} - \mathit{queries}`, or
        :math:`i + \mathit{lengths}_b - \mathit{queries}` in sequence :math:`b`.
    scale : float, optional
        Factor applied to the scores, :math:`1 / \sqrt{\mathit{dim}}` by default.
    window : int or (int, int), optional
        A pair (left, right) says how many keys before and after its own position a query attends to, besides the
        key at that position; ``None`` or -1 is no bound on this side. An integer :math:`n` is
        :math:`(n - 1, n - 1)`: keys nearer than :math:`n` positions. `is_causal` makes the right side 0.
    softcap : float, optional
        Bound of the scores, applied before the mask.
    sinks : array, shape (heads,), optional
        One logit per head that takes part in the normalization but has no value.
    lengths : array of integers, shape (batch,), optional
        The number of valid keys of each sequence, from 0 to `keys`; they come first. By default all are valid.
        Causality and the window count from them. Kernels take time for valid keys only.
    page_table : array of integers, shape (batch, pages), optional
        The pages of each sequence, as indices of the first axis of `k` and `v`, in the order of its keys; then `keys`
        is ``pages * page_size``. A page has the axes of a sequence, so that the keys of one head are adjacent in it;
        pages in the order (page_size, kv_heads) are passed as a transposed view, which the C++ kernel reads in place.
    kv_format : str, optional
        One of `tensorops.formats.names`: `k` and `v` are arrays of uint8, whose rows, along the last axis, are the
        blocks of a key or a value in this format. `dim` and `value_dim` are how many numbers these hold. No gradient
        flows to them.

    Returns
    -------
    array, shape (batch, heads, queries, value_dim)
        Dtype, library and device of `q`; half types are computed in float32. A query that may attend to no key
        gives 0. Keys and values that lie beyond `lengths`, or before the windows of all queries of their sequence, have
        no effect whatever they hold, and table entries for pages of such keys only are not read; they may be -1.
        Those that only `mask` or causality excludes have a weight of 0, so they must be finite: 0 times NaN is NaN.
        Finite queries and keys of any magnitude give finite weights, even if their products exceed the range
        of the dtype; the body then loses digits of scores around 1 if products are near the square of that range.

    Raises
    ------
    TypeError
        If an input is not floating point, `q`, `k` and `v` differ in dtype, or `lengths` or `page_table` are not
        integers. With `kv_format`, if `k` or `v` is not uint8.
    ValueError
        If shapes do not match, or `window`, `softcap` or `scale` is invalid, or there is no format `kv_format`, or rows
        are not whole blocks of it, or if a length or a page that is in use is out of range. The values of lengths and
        pages are read from arrays of NumPy and eager torch in host memory, and from Dask's when they are computed.
        Elsewhere, where arrays may be traced or on an accelerator, they are clamped: a negative length counts as 0, one
        beyond the keys as all of them, and a page out of range as the nearest.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, https://arxiv.org/abs/1706.03762

    Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models", 2023,
    https://arxiv.org/abs/2305.13245

    Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
    https://arxiv.org/abs/2309.06180

    `lengths` and `window` are ``nonpad_kv_seqlen`` and ``left_window_size``, ``right_window_size`` of ONNX Attention;
    `page_table` with the layout of `k` is FlashInfer's paged cache in the order "HND".

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> q = np.zeros((1, 1, 2, 4))
    >>> v = np.asarray([[[[1.0], [3.0]]]])
    >>> tensorops.scaled_dot_product_attention(q, q, v, is_causal=True)[0, 0]
    array([[1.],
           [2.]])

    Keys and values in blocks of 32 numbers, each a float16 scale and 32 integers of 8 bits:

    >>> rows, *_ = tensorops.quantize(np.asarray([[1.0] * 32, [3.0] * 32]), format="q8_0")
    >>> blocks = rows.reshape((1, 1, 2, 34))
    >>> y = tensorops.scaled_dot_product_attention(np.zeros((1, 1, 1, 32)), blocks, blocks, kv_format="q8_0")
    >>> y.shape, y[0, 0, 0, :2].round(2)
    ((1, 1, 1, 32), array([2., 2.]))
    """
    xp = get_namespace(q, k, v, mask, sinks, lengths, page_table)
    scores, wide_v = _scores_and_values(
        xp, q, k, v, mask, is_causal, scale, window, softcap, sinks, lengths, page_table, kv_format
    )
    shape = (*q.shape[:3], _count_features(v, None if kv_format is None else formats.get(kv_format)))
    if scores is None:
        return xp.zeros(shape, dtype=q.dtype, device=creation_device(q))
    e, total, _ = _exponentials(xp, scores)
    y = xp.matmul(e / xp.where(total == 0, xp.ones_like(total), total), xp.expand_dims(wide_v, axis=2))
    return narrow(xp, xp.reshape(y, shape), q)


def log_totals(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    lengths: Array | None = None,
    page_table: Array | None = None,
    kv_format: str | None = None,
) -> Array:
    """Return the logarithm of the sum by which the exponentials of each query's scores are divided.

    Arguments are those of `scaled_dot_product_attention`, in canonical form; the shape is (batch, heads, queries), and
    float32 the narrowest dtype. The logarithm is -inf where there are no scores. Kernels for derivatives keep it.
    """
    xp = get_namespace(q, k, v, mask, sinks, lengths, page_table)
    scores, _ = _scores_and_values(
        xp, q, k, v, mask, is_causal, scale, window, softcap, sinks, lengths, page_table, kv_format
    )
    if scores is None:
        return xp.full_like(widen(xp, q)[0][..., 0], -float("inf"))
    _, total, largest = _exponentials(xp, scores)
    return xp.reshape(largest / scores.unit + xp.log(total), q.shape[:3])


class _Scores(NamedTuple):
    """Scores of the axes (batch, key head, head of the group, query, key).

    Parameters
    ----------
    values
        In `unit`.
    allowed
        Which count; ``None`` if all.
    sink
        The logit without a key, in `unit`, if there is one.
    unit
        A power of two.
    """

    values: Array
    allowed: Array | None
    sink: Array | None
    unit: Array


def _scores_and_values(
    xp: Namespace,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    is_causal: bool,
    scale: Any,
    window: Any,
    softcap: float | None,
    sinks: Array | None,
    lengths: Array | None,
    page_table: Array | None,
    kv_format: str | None,
) -> tuple[_Scores | None, Array]:
    """Return the scores, ``None`` if there are none, and the values that they weight."""
    assert scale is not None
    assert window is None or isinstance(window, tuple)
    batch, heads, queries, dim = q.shape
    kv_heads, keys = k.shape[1], _count_keys(k, page_table)
    if lengths is None and window is not None and not is_fixed(queries + keys, q):
        # A trace in which these may be any: which of the keys a window leaves out is computed as for other lengths.
        lengths = xp.full((batch,), keys, dtype=xp.int32, device=creation_device(q))
    reach = _reach(xp, q, keys, lengths, window)
    if page_table is not None:
        table = _usable_table(xp, page_table, reach, k.shape[0], k.shape[2])
    group = heads // kv_heads if kv_heads else 1
    if 0 in (batch, kv_heads, group, queries, keys):  # there are no values, or no queries
        return None, v

    if page_table is not None:
        k, v = _from_pages(xp, k, table), _from_pages(xp, v, table)
    if lengths is None and reach.first:
        k, v = k[:, :, reach.first :, :], v[:, :, reach.first :, :]
        if mask is not None and mask.ndim and mask.shape[-1] != 1:
            mask = mask[..., reach.first :]
        keys -= reach.first
        reach = _Reach(0, keys, differs=False)
    if kv_format is not None:
        k, v = (formats.get(kv_format).values(xp, blocks) for blocks in (k, v))
    (wide_q,) = widen(xp, q)
    wide_k, wide_v = (xp.astype(x, wide_q.dtype, copy=False) for x in (k, v))
    if lengths is not None:
        wide_k, wide_v = _only_reached(xp, wide_k, reach), _only_reached(xp, wide_v, reach)
    grouped_q = xp.reshape(wide_q, (batch, kv_heads, group, queries, dim))
    scores, exponent = _products(xp, grouped_q, xp.expand_dims(wide_k, axis=2), scale)
    # Of the scores; a mask's -inf must not be multiplied by a tangent of it, which is zero.
    unit = constant(xp.pow(xp.full_like(exponent, 2.0), -exponent))
    if softcap is not None:
        scores = softcap * xp.tanh(scores / unit / softcap)
        unit = xp.ones_like(unit)

    allowed = _positions_allowed(xp, q, queries, keys, reach, is_causal, window)
    if mask is not None:
        per_group = _split_heads(xp, mask, kv_heads, group)
        if is_bool(mask):
            allowed = per_group if allowed is None else allowed & per_group
        else:
            scores = scores + xp.astype(per_group, scores.dtype, copy=False) * unit
    sink = None
    if sinks is not None:
        sink = xp.reshape(xp.astype(sinks, scores.dtype, copy=False), (1, kv_heads, group, 1, 1)) * unit
    return _Scores(scores, allowed, sink, unit), wide_v


class _Reach(NamedTuple):
    """The keys of a sequence that lengths, causality and windows let any of its queries attend to: first to end - 1.

    Integers or, if it differs between sequences, integer arrays of shape (batch,).
    """

    first: Any
    end: Any
    differs: bool


def _reach(
    xp: Namespace, q: Array, keys: int, lengths: Array | None, window: tuple[int | None, int | None] | None
) -> _Reach:
    left = None if window is None else window[0]
    back = keys if left is None else q.shape[2] + left  # no query attends further back from the end
    if lengths is None:
        return _Reach(0 if left is None else keys - min(back, keys), keys, differs=False)
    lengths = checked_counts("scaled_dot_product_attention", "lengths", lengths, keys, xp)
    end = _clipped(xp, widen_integers(xp, lengths, creation_device(lengths)), keys)
    if dtype_name(end).startswith("uint"):  # where the library lacks int64
        end = xp.astype(end, xp.int32)
    return _Reach(_clipped(xp, end - back, keys), end, differs=True)


def _clipped(xp: Namespace, x: Array, most: int) -> Array:
    """Return integers between 0 and `most`; `clip` of some libraries needs the number that `most` is in a trace."""
    x = xp.where(x < 0, xp.zeros_like(x), x)
    return xp.where(x > most, xp.full_like(x, most), x)


def _only_reached(xp: Namespace, x: Array, reach: _Reach) -> Array:
    """Return keys or values with zeros in place of those that no query attends to, which may be NaN."""
    column = (x.shape[0], 1, 1, 1)
    key = xp.reshape(xp.arange(x.shape[2], device=creation_device(x)), (1, 1, x.shape[2], 1))
    first, end = (xp.reshape(xp.astype(bound, key.dtype, copy=False), column) for bound in reach[:2])
    return xp.where((key >= first) & (key < end), x, xp.zeros_like(x))


def _usable_table(xp: Namespace, page_table: Array, reach: _Reach, num_pages: int, page_size: int) -> Array:
    """Return a table whose entries are all in range, 0 where no key of the page is attended to."""
    table = widen_integers(xp, page_table, creation_device(page_table))
    start = page_size * xp.arange(table.shape[1], dtype=table.dtype, device=creation_device(table))
    first, end = (
        xp.expand_dims(xp.astype(bound, table.dtype, copy=False), axis=1) if reach.differs else bound
        for bound in reach[:2]
    )
    used = xp.broadcast_to((start < end) & (start + page_size > first), table.shape)
    table = xp.where(used, table, xp.zeros_like(table))
    table = checked_indices("scaled_dot_product_attention", "page_table", table, num_pages, xp)
    return _clipped(xp, table, max(num_pages - 1, 0))


def _from_pages(xp: Namespace, x: Array, table: Array) -> Array:
    """Gather keys or values (batch, kv_heads, keys, features) from pages (num_pages, kv_heads, page_size, features)."""
    batch, pages = table.shape
    _, kv_heads, page_size, features = x.shape
    gathered = xp.reshape(xp.take(x, xp.reshape(table, (-1,)), axis=0), (batch, pages, kv_heads, page_size, features))
    return xp.reshape(xp.permute_dims(gathered, (0, 2, 1, 3, 4)), (batch, kv_heads, pages * page_size, features))


def _positions_allowed(
    xp: Namespace,
    q: Array,
    queries: int,
    keys: int,
    reach: _Reach,
    is_causal: bool,
    window: tuple[int | None, int | None] | None,
) -> Array | None:
    """Tell which pairs lengths, causality and the window allow; ``None`` if all.

    The axes broadcast to (batch, kv_heads, group, queries, keys).
    """
    device = creation_device(q)
    query = xp.reshape(xp.arange(queries, device=device), (queries, 1))
    key = xp.reshape(xp.arange(keys, device=device), (1, keys))
    rules = []
    end = reach.end
    if reach.differs:
        end = xp.reshape(xp.astype(end, key.dtype, copy=False), (q.shape[0], 1, 1, 1, 1))
        rules.append(key < end)
    left, right = window or (None, None)
    if is_causal:
        right = 0
    if left is not None or right is not None:
        distance = key - (query + (end - queries))
        rules += [] if left is None else [distance >= -left]
        rules += [] if right is None else [distance <= right]
    return reduce(and_, rules) if rules else None


def _split_heads(xp: Namespace, mask: Array, kv_heads: int, group: int) -> Array:
    """Reshape a mask that broadcasts to (batch, heads, queries, keys) to the axes (batch, kv_heads, group, …)."""
    batch, heads, queries, keys = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    split = (1, 1) if heads == 1 else (kv_heads, group)
    return xp.reshape(mask, (batch, *split, queries, keys))


def _products(xp: Namespace, q: Array, k: Array, factor: float) -> tuple[Array, Array]:
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


def _exponentials(xp: Namespace, found: _Scores) -> tuple[Array, Array, Array]:
    """Return exponentials relative to the largest score or sink, their sums over keys and sink, and the largest.

    The largest, in the unit of the scores, is 0 for rows without any key; their sum is 0.
    """
    scores, allowed, sink, unit = found
    nothing = -float("inf")
    if allowed is not None:
        scores = xp.where(allowed, scores, xp.full_like(scores, nothing))
    largest = xp.max(scores, axis=-1, keepdims=True)
    if sink is not None:
        largest = xp.where(largest < sink, sink, largest)
    largest = xp.where(largest == nothing, xp.zeros_like(largest), largest)
    # A difference of -inf would make NaN of a tangent of zero: forward-mode and second derivatives meet both.
    excluded = scores == nothing
    distance = xp.where(excluded, xp.zeros_like(scores), scores - largest) / unit
    e = xp.where(excluded, xp.zeros_like(scores), xp.exp(distance))
    total = xp.sum(e, axis=-1, keepdims=True)
    if sink is not None:
        total = total + xp.exp((sink - largest) / unit)
    return e, total, largest
