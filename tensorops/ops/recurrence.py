"""Layers with a state of fixed size, which hybrid language models have in place of attention."""

from __future__ import annotations

from typing import Any

from tensorops._dtypes import anew, narrow, widen
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._validation import (
    as_choice,
    as_number,
    plural,
    require_floating,
    require_ndim,
    require_same_dtype,
    require_same_shape,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, is_fixed
from tensorops.ops import _special
from tensorops.typing import Array, ArrayInput, ArrayInputT, ArrayOfKind, KindT, Namespace

__all__ = ["causal_conv1d", "gated_delta_rule"]

_FEW = 4
"""Up to how many tokens are computed one after another: a chunk takes about as many operations as these."""
_CHUNK = 64
"""The most tokens of a chunk: what is computed within chunks grows with it, and the number of steps falls."""


# ------------------------------------------------------------------------------------------------ checks and row axes


def _require_shape(name: str, label: str, x: Array, wanted: tuple[int, ...], axes: str) -> None:
    """Raise `ValueError` unless an array has this shape."""
    if tuple(x.shape) != wanted:
        raise ValueError(f"{name}: {label} has shape {tuple(x.shape)}, expected {axes} = {wanted}")


def _check_causal_conv1d(
    name: str, x: Array, weight: Array, bias: Array | None, state: Array | None, activation: str | None
) -> dict[str, Any]:
    require_floating(name, x=x, weight=weight, bias=bias, state=state)
    if state is not None:
        require_same_dtype(name, x=x, state=state)
    require_ndim(name, "x", x, 3, 3)
    require_ndim(name, "weight", weight, 2, 2)
    batch, _, channels = x.shape
    if weight.shape[0] != channels:
        raise ValueError(f"{name}: weight has {plural(weight.shape[0], 'channel')}, but x has {channels}")
    if weight.shape[1] == 0:
        raise ValueError(f"{name}: weight has shape {tuple(weight.shape)}, expected at least one element per channel")
    if bias is not None:
        _require_shape(name, "bias", bias, (channels,), "(channels,)")
    if state is not None:
        _require_shape(name, "state", state, (batch, weight.shape[1] - 1, channels), "(batch, width - 1, channels)")
    if activation is not None:
        as_choice(name, "activation", activation, ("silu", "swish"))
    return {"activation": None if activation is None else "silu"}


def _causal_conv1d_rows(x: Array, weight: Array, bias: Array | None, state: Array | None, **_: Any) -> RowAxes:
    batch, tokens, channels = every_axis(x)
    width, kept = 3, 4
    arrays = given(
        x=(x, (batch, tokens, channels)),
        weight=(weight, (channels, width)),
        bias=(bias, (channels,)),
        state=(state, (batch, kept, channels)),
    )
    return RowAxes(arrays, every_axis(x), (tokens, width, kept), results=2, lengths=({}, {tokens: weight.shape[1] - 1}))


def _check_gated_delta_rule(
    name: str,
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array | None,
    state: Array | None,
    scale: float | None,
) -> dict[str, Any]:
    require_floating(name, q=q, k=k, v=v, g=g, beta=beta, state=state)
    require_same_dtype(name, q=q, k=k, v=v)
    for label, x in (("q", q), ("k", k), ("v", v)):
        require_ndim(name, label, x, 4, 4)
    require_same_shape(name, q=q, k=k)
    batch, key_heads, tokens, key_dim = q.shape
    heads, value_dim = v.shape[1], v.shape[3]
    if (v.shape[0], v.shape[2]) != (batch, tokens):
        raise ValueError(f"{name}: v has (batch, tokens) {(v.shape[0], v.shape[2])}, but q has {(batch, tokens)}")
    if (key_heads == 0 and heads != 0) or (key_heads and heads % key_heads):
        raise ValueError(f"{name}: q has {plural(key_heads, 'head')}, which does not divide the {heads} of v")
    _require_shape(name, "g", g, (batch, heads, tokens), "(batch, heads, tokens)")
    if beta is not None:
        _require_shape(name, "beta", beta, (batch, heads, tokens), "(batch, heads, tokens)")
    if state is not None:
        wanted = (batch, heads, key_dim, value_dim)
        _require_shape(name, "state", state, wanted, "(batch, heads, key_dim, value_dim)")
    return {"scale": max(key_dim, 1) ** -0.5 if scale is None else as_number(name, "scale", scale)}


def _gated_delta_rule_rows(
    q: Array, k: Array, v: Array, g: Array, beta: Array | None, state: Array | None, **_: Any
) -> RowAxes:
    batch, key_heads, tokens, key_dim, heads, value_dim = range(6)
    arrays = given(
        q=(q, (batch, key_heads, tokens, key_dim)),
        k=(k, (batch, key_heads, tokens, key_dim)),
        v=(v, (batch, heads, tokens, value_dim)),
        g=(g, (batch, heads, tokens)),
        beta=(beta, (batch, heads, tokens)),
        state=(state, (batch, heads, key_dim, value_dim)),
    )
    return RowAxes(
        arrays,
        (batch, heads, tokens, value_dim),
        (key_heads, tokens, key_dim, heads),
        sharing=2,
        results=2,
        together=((key_heads, heads),),
        lengths=({}, {2: q.shape[3]}),  # the state has key_dim in the place of tokens
        widened=(1,),
    )


# --------------------------------------------------------------------------------------------------------- operators


@operator(check=_check_causal_conv1d, rows=_causal_conv1d_rows)
def causal_conv1d(
    x: ArrayOfKind[KindT],
    weight: ArrayInput,
    bias: ArrayInput | None = None,
    state: ArrayInput | None = None,
    *,
    activation: str | None = None,
) -> tuple[KindT, KindT]:
    r"""Convolve each channel with its own filter over the present token and those before it.

    .. math:: y_{t c} = f\Bigl(b_c + \sum_{k=0}^{K-1} w_{c k} \, x_{t - (K - 1) + k, \, c}\Bigr)

    with :math:`f` the activation, if there is one. What comes before the first token is in `state`, or 0.

    Parameters
    ----------
    x : array, floating point, shape (batch, tokens, channels)
        Input. Channels are last, as the projections before and after a convolution have them in language models:
        nothing is transposed, and the channels of a single token are neighbours. Arrays with the channels before the
        tokens, as ``causal_conv1d`` of Dao-AILab and ONNX have them, are passed and returned as transposed views.
    weight : array, floating point, shape (channels, width)
        The filter of each channel; its last element, :math:`k = K - 1`, is that of the present token. It is the weight
        (channels, 1, width) of a depthwise ``torch.nn.Conv1d`` without its second axis.
    bias : array, floating point, shape (channels,), optional
        What is added to each channel.
    state : array, shape (batch, width - 1, channels), optional
        The inputs of the last ``width - 1`` tokens before these, of the dtype of `x`: what an earlier call returned.
        Zeros by default.
    activation : {None, "silu", "swish"}, optional
        Applied to the result. Both names mean :math:`\operatorname{silu}(y) = y / (1 + e^{-y})`.

    Returns
    -------
    y : array, shape (batch, tokens, channels)
        Dtype, library and device of `x`; half types are computed in float32.
    state : array, shape (batch, width - 1, channels)
        The inputs of the last ``width - 1`` tokens, some of them from the `state` of the call if there are fewer
        tokens: the `state` of the call with the tokens that follow. Dtype of `x`.

    Raises
    ------
    TypeError
        If an array is not floating point, `state` differs from `x` in dtype, or `activation` is neither a string nor
        None.
    ValueError
        If shapes do not match, or `activation` is not one of these.

    See Also
    --------
    gated_delta_rule : Computes with the results, in layers that have both.

    References
    ----------
    Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
    https://arxiv.org/abs/2312.00752. `CausalConvWithState` of ONNX, `causal_conv1d_fn` and `causal_conv1d_update` of
    https://github.com/Dao-AILab/causal-conv1d, with `state` as ``past_state``, ``initial_states`` and ``conv_state``.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> weight = np.asarray([[1.0, 10.0]])  # one channel: the token before, and ten times the present one
    >>> y, state = tensorops.causal_conv1d(np.asarray([[[1.0], [2.0]]]), weight)
    >>> y[0, :, 0], state[0, :, 0]
    (array([10., 21.]), array([2.]))
    >>> y, state = tensorops.causal_conv1d(np.asarray([[[3.0]]]), weight, state=state)  # the token that follows
    >>> y[0, :, 0]
    array([32.])
    """
    xp = get_namespace(x, weight, bias, state)
    batch, tokens, channels = x.shape
    width = weight.shape[1]
    wide, w, b, before = widen(xp, x, weight, bias, state)
    if before is None:
        before = xp.zeros((batch, width - 1, channels), dtype=wide.dtype, device=creation_device(x))
    every = xp.concat((before, wide), axis=1)
    y = every[:, :tokens, :] * w[:, 0]
    for i in range(1, width):
        y = y + every[:, i : i + tokens, :] * w[:, i]
    if b is not None:
        y = y + b
    if activation is not None:
        y = y * _special.sigmoid(xp, y)
    return narrow(xp, y, x), anew(xp, every[:, tokens:, :], x.dtype)


@operator(check=_check_gated_delta_rule, rows=_gated_delta_rule_rows)
def gated_delta_rule(
    q: ArrayInput,
    k: ArrayInput,
    v: ArrayInputT,
    g: ArrayInput,
    beta: ArrayInput | None = None,
    *,
    state: ArrayInput | None = None,
    scale: float | None = None,
) -> tuple[ArrayInputT, Array]:
    r"""Linear attention that corrects what its state has stored for a key, and forgets by a gate.

    .. math::

        S_t = e^{g_t} S_{t-1} + k_t \otimes \beta_t \left(v_t - \left(e^{g_t} S_{t-1}\right)^\top k_t\right), \qquad
        y_t = \mathit{scale} \; S_t^\top q_t

    Each head has a state :math:`S`, a matrix that maps keys to values. The second term replaces the value that it holds
    for :math:`k_t` by :math:`v_t`, wholly if :math:`\beta_t = 1` and the key has the length 1. Without `beta`, nothing
    is replaced: :math:`S_t = e^{g_t} S_{t-1} + k_t \otimes v_t`.

    Parameters
    ----------
    q : array, floating point, shape (batch, key_heads, tokens, key_dim)
        Queries.
    k : array, shape (batch, key_heads, tokens, key_dim)
        Keys. Models make their lengths 1, and those of queries, by `l2_norm`; without that, the state may grow without
        bound.
    v : array, shape (batch, heads, tokens, value_dim)
        Values. `heads` is a multiple of `key_heads`: the queries and keys of a head serve a group of consecutive heads.
    g : array, floating point, shape (batch, heads, tokens)
        Logarithm of the factor by which the state decays, at most 0 in models. Minus infinity forgets everything.
    beta : array, floating point, shape (batch, heads, tokens), optional
        How much of the correction is stored, from 0 to 1 in models. Without it, values are added to what a state has,
        as in gated linear attention and in Mamba 2.
    state : array, floating point, shape (batch, heads, key_dim, value_dim), optional
        The state before the first token: what an earlier call returned. Zeros by default.
    scale : float, optional
        Factor applied to the results, :math:`1 / \sqrt{\mathit{key\_dim}}` by default.

    Returns
    -------
    y : array, shape (batch, heads, tokens, value_dim)
        Dtype, library and device of `v`; half types are computed in float32.
    state : array, shape (batch, heads, key_dim, value_dim)
        The state after the last token, in the dtype of `v`, but float32 for half types, as it sums over all tokens.

    Raises
    ------
    TypeError
        If an array is not floating point, or `q`, `k` and `v` differ in dtype.
    ValueError
        If shapes do not match, `key_heads` does not divide `heads`, or `scale` is not finite.

    See Also
    --------
    causal_conv1d : Makes the queries, keys and values, in layers that have both.
    l2_norm : Makes the length of keys and queries 1.

    Notes
    -----
    Many tokens are computed in chunks of at most 64, as products of matrices: with the decay :math:`d_{ij}` from token
    :math:`j` to token :math:`i`, the corrections :math:`u` of a chunk solve the unit triangular system
    :math:`u_i + \beta_i \sum_{j<i} d_{ij} (k_i \cdot k_j) u_j = \beta_i (v_i - d_{i0} S^\top k_i)`. A value that is
    not finite may then affect the tokens before it in its chunk.

    The layer of Mamba 2 is ``gated_delta_rule(C, B, x * dt[..., None], dt * A, scale=1.0)``, with the names of its
    paper.

    References
    ----------
    Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", ICLR 2025, https://arxiv.org/abs/2412.06464

    Schlag et al., "Linear Transformers Are Secretly Fast Weight Programmers", ICML 2021,
    https://arxiv.org/abs/2102.11174

    Dao and Gu, "Transformers are SSMs", ICML 2024, https://arxiv.org/abs/2405.21060

    `LinearAttention` of ONNX with ``update_rule="gated_delta"``, or ``"gated"`` without `beta`, whose heads share
    values, not keys; and `chunk_gated_delta_rule` of https://github.com/fla-org/flash-linear-attention, whose tokens
    come before its heads: such arrays are passed as transposed views.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> k = np.asarray([[[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]])  # the third key is the first again
    >>> v = np.asarray([[[[2.0], [3.0], [8.0]]]])
    >>> g, beta = np.log(np.asarray([[[1.0, 0.5, 1.0]]])), np.asarray([[[1.0, 1.0, 0.5]]])
    >>> y, state = tensorops.gated_delta_rule(k, k, v, g, beta, scale=1.0)
    >>> y[0, 0, :, 0]  # 2 decays to 1 before the third token, which stores half of what is missing to 8
    array([2. , 3. , 4.5])
    >>> state[0, 0]
    array([[4.5],
           [3. ]])
    >>> tensorops.gated_delta_rule(k, k, v, g, scale=1.0)[0][0, 0, :, 0]  # the third token adds its value
    array([2., 3., 9.])
    """
    xp = get_namespace(q, k, v, g, beta, state)
    batch, heads, tokens, value_dim = v.shape
    wide_q, wide_k, wide_v, wide_g, wide_beta, s = widen(xp, q, k, v, g, beta, state)
    if s is None:
        s = xp.zeros((batch, heads, q.shape[3], value_dim), dtype=wide_v.dtype, device=creation_device(v))
    compute = _by_token if tokens <= _FEW else _by_chunk
    y, s = compute(
        xp,
        _for_each_head(xp, wide_q * scale, heads),
        _for_each_head(xp, wide_k, heads),
        wide_v,
        xp.expand_dims(wide_g, axis=-1),
        None if wide_beta is None else xp.expand_dims(wide_beta, axis=-1),
        s,
    )
    return narrow(xp, y, v), anew(xp, s, widen(xp, v)[0].dtype)


def _for_each_head(xp: Namespace, x: Array, heads: int) -> Array:
    """Return queries or keys, repeated for the heads that share them.

    An axis of its own for these heads, along which queries and keys broadcast, would save products, but XLA in
    jaxlib 0.10.2 crashes on derivatives of arrays of seven axes that broadcast along one: there are as many under two
    `jax.vmap`.
    """
    batch, key_heads, tokens, dim = x.shape
    if key_heads == heads:
        return x
    shared = xp.broadcast_to(xp.expand_dims(x, axis=2), (batch, key_heads, heads // key_heads, tokens, dim))
    return xp.reshape(shared, (batch, heads, tokens, dim))


def _by_token(
    xp: Namespace, q: Array, k: Array, v: Array, g: Array, beta: Array | None, s: Array
) -> tuple[Array, Array]:
    """Return the results of all tokens and the last state, token by token; arrays have the axes (…, tokens, dim)."""
    decay = xp.exp(g)
    results = []
    for t in range(v.shape[-2]):
        at = (..., slice(t, t + 1), slice(None))
        s = decay[at] * s
        correction = v[at] if beta is None else beta[at] * (v[at] - xp.matmul(k[at], s))
        s = s + xp.matrix_transpose(k[at]) * correction
        results.append(xp.matmul(q[at], s))
    return xp.concat(results, axis=-2) if results else xp.zeros_like(v), s


def _by_chunk(
    xp: Namespace, q: Array, k: Array, v: Array, g: Array, beta: Array | None, s: Array
) -> tuple[Array, Array]:
    """Return the same, chunk by chunk: corrections within a chunk are the solution of a triangular system."""
    tokens = v.shape[-2]
    count = -(-tokens // _CHUNK)
    length = -(-tokens // count)
    q, k, v, g = (_in_chunks(xp, x, count, length) for x in (q, k, v, g))

    row = xp.reshape(xp.arange(length, device=creation_device(v)), (length, 1))
    column = xp.matrix_transpose(row)
    later = row > column
    # Sums over the tokens between two of a chunk. Differences of sums from its start would lose digits after a strong
    # decay, and be NaN after an infinite one.
    between = xp.cumulative_sum(xp.where(later, g, xp.zeros_like(g)), axis=-2)
    decay = xp.where(row >= column, xp.exp(between), xp.zeros_like(between))
    from_start = xp.exp(xp.cumulative_sum(g, axis=-2))
    to_end = xp.matrix_transpose(decay[..., -1:, :])

    keys = xp.matrix_transpose(k)
    solution = None
    if beta is not None:
        beta = _in_chunks(xp, beta, count, length)
        system = beta * decay * xp.matmul(k, keys)
        # A trace for any number of tokens is one for this number of chunks: their length may then be any.
        most = length if is_fixed(length, v) else _CHUNK
        solution = _inverse_of_unit_triangular(xp, xp.where(later, system, xp.zeros_like(system)), row, column, most)
    scores = decay * xp.matmul(q, keys)

    results = []
    for c in range(count):
        at = (..., c, slice(None), slice(None))
        correction = v[at]
        if beta is not None and solution is not None:
            wanted = correction - from_start[at] * xp.matmul(k[at], s)
            correction = xp.matmul(solution[at], beta[at] * wanted)
        results.append(from_start[at] * xp.matmul(q[at], s) + xp.matmul(scores[at], correction))
        s = from_start[at][..., -1:, :] * s + xp.matmul(keys[at], to_end[at] * correction)
    rest = tokens - (count - 1) * length
    results[-1] = results[-1][..., :rest, :]
    return xp.concat(results, axis=-2), s


def _in_chunks(xp: Namespace, x: Array, count: int, length: int) -> Array:
    """Return an array with the axes (…, chunks, tokens, dim); zeros, which change no state, fill the last chunk."""
    *outer, tokens, dim = x.shape
    if missing := count * length - tokens:
        zeros = xp.zeros((*outer, missing, dim), dtype=x.dtype, device=creation_device(x))
        x = xp.concat((x, zeros), axis=-2)
    return xp.reshape(x, (*outer, count, length, dim))


def _inverse_of_unit_triangular(xp: Namespace, below: Array, row: Array, column: Array, most: int) -> Array:
    """Return the inverses of matrices of up to `most` rows: ones on the diagonal, `below` beneath it, and zeros.

    Blocks on the diagonal are inverted, of size 2, 4 and so on: if A and C are such blocks and B is beneath A, the
    inverse has -inv(C) B inv(A) there. The product of 1 - below, 1 + below², 1 + below⁴ … is the inverse as well, but
    for equal keys its factors reach 1e18 before they cancel.
    """
    inverse = xp.where(row == column, xp.ones_like(below), xp.zeros_like(below))
    size = 1
    while size < most:
        joins = (row // (2 * size) == column // (2 * size)) & (row // size != column // size)
        block = xp.where(joins, below, xp.zeros_like(below))
        # While blocks have the size 1, they are their own inverses.
        step = block if size == 1 else xp.matmul(xp.matmul(inverse, block), inverse)
        inverse, size = inverse - step, 2 * size
    return inverse
