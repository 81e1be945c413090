"""Blocks of networks, composed of other operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorops._dtypes import anew
from tensorops._operator import operator
from tensorops._validation import (
    as_bool,
    as_integer,
    as_nonnegative_number,
    as_positive_number,
    plural,
    require_floating,
    require_integer,
    require_ndim,
    require_same_dtype,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device
from tensorops.ops.attention import scaled_dot_product_attention
from tensorops.ops.linear import linear
from tensorops.ops.normalization import rms_norm
from tensorops.ops.positional import DEFAULT_BASE, check_positions, check_rotation, rope
from tensorops.typing import Array, ArrayInput, ArrayOfKind, KindT, Namespace

__all__ = ["multi_head_attention"]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What an array that the body will make has, for the checks of the operators that will get it."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)


def _check_multi_head_attention(
    name: str,
    query: Array,
    key: Array | None,
    value: Array | None,
    num_heads: int,
    kv_num_heads: int | None,
    q_proj_weight: Array | None,
    k_proj_weight: Array | None,
    v_proj_weight: Array | None,
    out_proj_weight: Array | None,
    q_proj_bias: Array | None,
    k_proj_bias: Array | None,
    v_proj_bias: Array | None,
    out_proj_bias: Array | None,
    q_norm_weight: Array | None,
    k_norm_weight: Array | None,
    norm_eps: float,
    past_key: Array | None,
    past_value: Array | None,
    lengths: Array | None,
    **options: Any,
) -> dict[str, Any]:
    batch, queries, keys = _check_inputs(name, query, key, value)
    heads = _as_heads(name, "num_heads", num_heads)
    kv_heads = heads if kv_num_heads is None else _as_heads(name, "kv_num_heads", kv_num_heads)
    if heads % kv_heads:
        raise ValueError(f"{name}: kv_num_heads is {shown(kv_heads)}, which does not divide num_heads, {shown(heads)}")
    of_key = ("query", query) if key is None else ("key", key)
    of_value = of_key if value is None else ("value", value)
    q_label, q_dim = _projected(name, ("query", query), "q_proj", q_proj_weight, q_proj_bias, ("num_heads", heads))
    k_label, k_dim = _projected(name, of_key, "k_proj", k_proj_weight, k_proj_bias, ("kv_num_heads", kv_heads))
    _, value_dim = _projected(name, of_value, "v_proj", v_proj_weight, v_proj_bias, ("kv_num_heads", kv_heads))
    if k_dim != q_dim:
        raise ValueError(f"{name}: {k_label} gives heads of {plural(k_dim, 'feature')}, but {q_label} of {q_dim}")
    _check_projection(name, "out_proj", heads * value_dim, "the heads together have", out_proj_weight, out_proj_bias)
    _check_norms(name, q_dim, q_norm_weight=q_norm_weight, k_norm_weight=k_norm_weight)
    past = _check_past(name, query, past_key, past_value, (batch, kv_heads), (q_dim, value_dim))
    _check_lengths(name, lengths, batch, past_key)
    q = _Planned((batch, heads, queries, q_dim), query.dtype)
    k = _Planned((batch, kv_heads, keys, q_dim), query.dtype)
    rotation = {label: options.pop(label) for label in _ROTATION}
    canonical = _check_rope(name, q, k, past, key is None, **rotation)
    k = _Planned((batch, kv_heads, past + keys, q_dim), query.dtype)
    v = _Planned((batch, kv_heads, past + keys, value_dim), query.dtype)
    canonical |= scaled_dot_product_attention.check_for(name, q=q, k=k, v=v, lengths=lengths, **options)
    norm_eps = as_nonnegative_number(name, "norm_eps", norm_eps)
    return {**canonical, "num_heads": heads, "kv_num_heads": kv_heads, "norm_eps": norm_eps}


def _check_inputs(name: str, query: Array, key: Array | None, value: Array | None) -> tuple[int, int, int]:
    """Return the numbers of batches, queries and keys."""
    given = {label: x for label, x in {"query": query, "key": key, "value": value}.items() if x is not None}
    if key is None and value is not None:
        raise ValueError(f"{name}: value is given, but key is not")
    require_floating(name, **given)
    require_same_dtype(name, **given)
    for label, x in given.items():
        require_ndim(name, label, x, 3, 3)
        if x.shape[0] != query.shape[0]:
            raise ValueError(f"{name}: {label} has batch size {x.shape[0]}, but query has {query.shape[0]}")
    keys = (query if key is None else key).shape[1]
    if value is not None and value.shape[1] != keys:
        raise ValueError(f"{name}: value has sequence length {value.shape[1]}, but key has {keys}")
    return query.shape[0], query.shape[1], keys


def _as_heads(name: str, label: str, value: Any) -> int:
    heads = as_integer(name, label, value)
    if heads < 1:
        raise ValueError(f"{name}: {label} is {shown(heads)}, expected at least 1")
    return heads


def _projected(
    name: str,
    source: tuple[str, Array],
    projection: str,
    weight: Array | None,
    bias: Array | None,
    heads: tuple[str, int],
) -> tuple[str, int]:
    """Return what the features of all heads come from, and how many each head has."""
    label, x = source
    features = _check_projection(name, projection, x.shape[2], f"{label} has", weight, bias)
    what = plural(features, "feature")
    if weight is not None:
        label, what = f"{projection}_weight", plural(features, "row")
    if features % heads[1]:
        raise ValueError(f"{name}: {label} has {what}, which {heads[0]}, {shown(heads[1])}, does not divide")
    return label, features // heads[1]


def _check_projection(name: str, label: str, features: int, who: str, weight: Array | None, bias: Array | None) -> int:
    """Check a projection of that many features; return how many it gives."""
    require_floating(name, **{f"{label}_weight": weight, f"{label}_bias": bias})
    if weight is None:
        if bias is not None:
            raise ValueError(f"{name}: {label}_bias is given, but {label}_weight is not")
        return features
    require_ndim(name, f"{label}_weight", weight, 2, 2)
    rows, columns = weight.shape
    if columns != features:
        raise ValueError(f"{name}: {label}_weight has {plural(columns, 'column')}, but {who} {features} features")
    if bias is not None and tuple(bias.shape) != (rows,):
        raise ValueError(f"{name}: {label}_bias has shape {tuple(bias.shape)}, but {label}_weight has {rows} rows")
    return rows


def _check_norms(name: str, head_dim: int, **weights: Array | None) -> None:
    require_floating(name, **weights)
    for label, weight in weights.items():
        if weight is not None and tuple(weight.shape) != (head_dim,):
            raise ValueError(f"{name}: {label} has shape {tuple(weight.shape)}, but a head has {head_dim} features")


def _check_past(
    name: str,
    query: Array,
    past_key: Array | None,
    past_value: Array | None,
    outer: tuple[int, int],
    dims: tuple[int, int],
) -> int:
    """Return the number of keys in the cache."""
    if past_key is None and past_value is None:
        return 0
    past: int | None = None
    for (label, x), dim in zip({"past_key": past_key, "past_value": past_value}.items(), dims, strict=True):
        if x is None:
            raise ValueError(f"{name}: {label} is missing, past_key and past_value are given together")
        require_floating(name, **{label: x})
        require_same_dtype(name, query=query, **{label: x})
        require_ndim(name, label, x, 4, 4)
        past = x.shape[2] if past is None else past
        if tuple(x.shape) != (*outer, past, dim):
            raise ValueError(f"{name}: {label} has shape {tuple(x.shape)}, expected {(*outer, past, dim)}")
    assert past is not None
    return past


def _check_lengths(name: str, lengths: Array | None, batch: int, past_key: Array | None) -> None:
    if lengths is None:
        return
    require_integer(name, lengths=lengths)
    if tuple(lengths.shape) != (batch,):
        raise ValueError(f"{name}: lengths has shape {tuple(lengths.shape)}, but query has batch size {batch}")
    if past_key is not None:
        raise ValueError(f"{name}: lengths is given with past_key, whose keys precede the new ones; pass a mask")


_ROTATION = (
    "rope_base",
    "rope_freqs",
    "rope_cos",
    "rope_sin",
    "rope_interleaved",
    "rope_dims",
    "rope_attention_factor",
    "positions",
    "key_positions",
)


def _refuse_rotation(name: str, rope_interleaved: bool, rope_attention_factor: float, **others: Any) -> None:
    """Raise if an option of the rotation is given, but no angles."""
    given = {label for label, value in others.items() if value is not None}
    if as_bool(name, "rope_interleaved", rope_interleaved):
        given.add("rope_interleaved")
    if as_positive_number(name, "rope_attention_factor", rope_attention_factor) != 1.0:
        given.add("rope_attention_factor")
    if given:
        raise ValueError(f"{name}: {min(given)} is given, but none of rope_base, rope_freqs and rope_cos")


def _check_rope(
    name: str,
    q: _Planned,
    k: _Planned,
    past: int,
    shares: bool,
    rope_base: float | None,
    positions: Array | None,
    key_positions: Array | None,
    **others: Any,
) -> dict[str, Any]:
    """Return the canonical options; `rope_base` is ``None`` if nothing is to be rotated."""
    angles = {"rope_base": rope_base, **{label: others[label] for label in ("rope_freqs", "rope_cos", "rope_sin")}}
    if all(a is None for a in angles.values()):
        _refuse_rotation(name, positions=positions, key_positions=key_positions, **others)
        return {}
    base = DEFAULT_BASE if rope_base is None else rope_base
    own = {label.removeprefix("rope_"): value for label, value in others.items()}
    following = _Planned((q.shape[2],), "int64")
    at = following if positions is None else positions
    canonical = check_rotation(name, "rope_", q, at, base, **own)
    table = own["cos"]
    if key_positions is not None:
        check_positions(name, "key_positions", k, key_positions, "rope_cos and rope_sin" if table is not None else "")
    counted = [] if positions is not None else [past + q.shape[2]]
    if key_positions is None and not (shares and positions is not None):
        counted.append(past + k.shape[2])
    if table is not None and max(counted, default=0) > table.shape[0]:
        expected = f"expected {max(counted)}, one for each position"
        raise ValueError(f"{name}: rope_cos has {plural(table.shape[0], 'row')}, {expected}")
    return canonical


@operator(check=_check_multi_head_attention, calls=(linear, rms_norm, rope, scaled_dot_product_attention))
def multi_head_attention(
    query: ArrayOfKind[KindT],
    key: ArrayInput | None = None,
    value: ArrayInput | None = None,
    *,
    num_heads: int,
    kv_num_heads: int | None = None,
    q_proj_weight: ArrayInput | None = None,
    k_proj_weight: ArrayInput | None = None,
    v_proj_weight: ArrayInput | None = None,
    out_proj_weight: ArrayInput | None = None,
    q_proj_bias: ArrayInput | None = None,
    k_proj_bias: ArrayInput | None = None,
    v_proj_bias: ArrayInput | None = None,
    out_proj_bias: ArrayInput | None = None,
    q_norm_weight: ArrayInput | None = None,
    k_norm_weight: ArrayInput | None = None,
    norm_eps: float = 1e-6,
    positions: ArrayInput | None = None,
    key_positions: ArrayInput | None = None,
    rope_base: float | None = None,
    rope_freqs: ArrayInput | None = None,
    rope_cos: ArrayInput | None = None,
    rope_sin: ArrayInput | None = None,
    rope_interleaved: bool = False,
    rope_dims: int | None = None,
    rope_attention_factor: float = 1.0,
    past_key: ArrayInput | None = None,
    past_value: ArrayInput | None = None,
    mask: ArrayInput | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    sinks: ArrayInput | None = None,
    lengths: ArrayInput | None = None,
) -> tuple[KindT, KindT, KindT]:
    r"""Project to queries, keys and values of several heads, attend in each head, and project the results together.

    .. math:: y = \operatorname{concat}(h_1, \ldots, h_n) W_o^\mathsf{T} + b_o, \qquad
              h_i = \operatorname{attention}(r(q_i), r(k_{g(i)}), v_{g(i)})

    where :math:`q_i`, :math:`k_j` and :math:`v_j` are the heads of :math:`x W^\mathsf{T} + b` for each of the inputs,
    :math:`g(i)` is the key head of the group of :math:`i`, and :math:`r` normalizes and rotates, if that is asked for.
    All of it is computed by `linear`, `rms_norm`, `rope` and `scaled_dot_product_attention`.

    Parameters
    ----------
    query : array, floating point, shape (batch, queries, features)
        What attends.
    key : array, shape (batch, keys, key features), optional
        What the keys are made of; `query` by default, as in self-attention.
    value : array, shape (batch, keys, value features), optional
        What the values are made of; `key` by default.
    num_heads : int
        The number of heads of queries.
    kv_num_heads : int, optional
        The number of heads of keys and values, `num_heads` by default; it divides `num_heads`, and each key head serves
        a group of consecutive query heads.
    q_proj_weight, k_proj_weight, v_proj_weight : array, optional
        Matrices of shapes (num_heads * head_dim, features), (kv_num_heads * head_dim, key features) and
        (kv_num_heads * value_dim, value features). An input without a matrix has been projected already.
    out_proj_weight : array, shape (out, num_heads * value_dim), optional
        Matrix :math:`W_o`; without it, the heads side by side are the result.
    q_proj_bias, k_proj_bias, v_proj_bias, out_proj_bias : array, optional
        One element for each row of the matrix.
    q_norm_weight, k_norm_weight : array, shape (head_dim,), optional
        Weights of `rms_norm`, applied to every head of queries or keys before the rotation, as in Qwen3.
    norm_eps : float, optional
        Added to the mean square of these norms.
    positions : array of integers or floating point, shape (queries,) or (batch, queries), optional
        Positions of the queries for the rotation: by default 0, 1, … after those in the cache.
    key_positions : array, shape (keys,) or (batch, keys), optional
        Positions of the new keys; by default those of the queries or, if `key` is given, 0, 1, … after those in the
        cache.
    rope_base, rope_freqs, rope_cos, rope_sin : optional
        `base`, `freqs`, `cos` and `sin` of `rope`, which rotates queries and keys if one of them is given. Tables have
        one row for each position.
    rope_interleaved, rope_dims, rope_attention_factor : optional
        `interleaved`, `dims` and `attention_factor` of `rope`.
    past_key, past_value : array, shape (batch, kv_num_heads, past, head_dim or value_dim), optional
        The keys and values of earlier calls, which the new ones follow.
    mask : array of bool or floating point, optional
        Broadcasts to (batch, num_heads, queries, past + keys). True attends; a floating-point mask is added to the
        scores.
    is_causal, scale, window, softcap, sinks : optional
        As in `scaled_dot_product_attention`, with `past` + `keys` keys. There is no `page_table`: each
        call returns the cache and the new keys in a single array, which is what pages avoid. Nor is there a
        `kv_format`, as that array has numbers.
    lengths : array of integers, shape (batch,), optional
        The number of valid keys of each sequence, from 0 to `keys`; they come first. By default all are valid.
        Causality and the window count from them: the last query is aligned with the last valid key. Not with a cache,
        where the keys that are not valid would not come last: pass a mask.

    Returns
    -------
    y : array, shape (batch, queries, out)
        Dtype, library and device of `query`. Half types are computed in float32, and rounded between the steps.
    present_key, present_value : array, shape (batch, kv_num_heads, past + keys, head_dim or value_dim)
        The keys, normalized and rotated, and the values, including those of earlier calls: the next call's `past_key`
        and `past_value`.

    Raises
    ------
    TypeError
        If an array is not floating point, or `query`, `key`, `value`, `past_key` and `past_value` differ in dtype.
    ValueError
        If shapes do not match, a number of heads does not divide its features, only one of `past_key` and `past_value`
        is given, `lengths` is given with them, options of the rotation are given without angles, or an option or a
        length is out of range. Lengths are read where `scaled_dot_product_attention` reads them.

    Notes
    -----
    `torch.nn.MultiheadAttention` joins the first three matrices in ``in_proj_weight``: pass its thirds. Its boolean
    masks are the opposite: pass ``~attn_mask`` and ``~key_padding_mask[:, None, None, :]``. Attention weights are not
    returned, and ``bias_k``, ``bias_v``, ``add_zero_attn`` and dropout have no counterpart here.

    ONNX's `Attention` with inputs of three dimensions is this operator without matrices; its ``q_num_heads`` is
    `num_heads`. With `is_causal` and other numbers of keys than of queries, ONNX and torch align the first query with
    the first new key, this operator the last ones: pass a mask.

    References
    ----------
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, https://arxiv.org/abs/1706.03762

    ONNX, operator Attention, https://onnx.ai/onnx/operators/onnx__Attention.html

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([[[1.0, 0.0], [3.0, 0.0]]])
    >>> y, k, v = tensorops.multi_head_attention(x, num_heads=1, q_proj_weight=np.zeros((2, 2)), is_causal=True)
    >>> y
    array([[[1., 0.],
            [2., 0.]]])
    >>> k.shape
    (1, 1, 2, 2)
    """
    xp = get_namespace(query, key, value)
    key_or_query = query if key is None else key
    value_or_key = key_or_query if value is None else value
    assert kv_num_heads is not None
    q = _heads(xp, query, num_heads, q_proj_weight, q_proj_bias, q_norm_weight, norm_eps)
    k = _heads(xp, key_or_query, kv_num_heads, k_proj_weight, k_proj_bias, k_norm_weight, norm_eps)
    v = _heads(xp, value_or_key, kv_num_heads, v_proj_weight, v_proj_bias, None, norm_eps)
    if rope_base is not None:
        rotation: dict[str, Any] = {
            "base": rope_base,
            "freqs": rope_freqs,
            "cos": rope_cos,
            "sin": rope_sin,
            "interleaved": rope_interleaved,
            "dims": rope_dims,
            "attention_factor": rope_attention_factor,
        }
        past = 0 if past_key is None else past_key.shape[2]
        at = _following(xp, query, past) if positions is None else positions
        if key_positions is None:
            key_positions = at if key is None else _following(xp, key, past)
        q, k = rope(q, at, **rotation), rope(k, key_positions, **rotation)
    if past_key is not None:
        k, v = xp.concat([past_key, k], axis=2), xp.concat([past_value, v], axis=2)
    else:  # results are not views of the inputs
        k = anew(xp, k) if k_proj_weight is None and k_norm_weight is None and rope_base is None else k
        v = anew(xp, v) if v_proj_weight is None else v
    y = scaled_dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=is_causal,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        lengths=lengths,
    )
    y = xp.permute_dims(y, (0, 2, 1, 3))
    y = xp.reshape(y, (*y.shape[:2], y.shape[2] * y.shape[3]))
    return (y if out_proj_weight is None else linear(y, out_proj_weight, out_proj_bias)), k, v


def _heads(
    xp: Namespace,
    x: Array,
    heads: int,
    weight: Array | None,
    bias: Array | None,
    norm_weight: Array | None,
    norm_eps: float,
) -> Array:
    """Return the projected features of each head, of shape (batch, heads, sequence, features of a head)."""
    projected = x if weight is None else linear(x, weight, bias)
    batch, length, features = projected.shape
    split = xp.reshape(projected, (batch, length, heads, features // heads))
    if norm_weight is not None:
        split = rms_norm(split, norm_weight, norm_eps)
    return xp.permute_dims(split, (0, 2, 1, 3))


def _following(xp: Namespace, x: Array, past: int) -> Array:
    """Return the positions of the elements of a sequence that follow `past` others."""
    return xp.arange(past, past + x.shape[1], device=creation_device(x))
