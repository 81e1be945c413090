"""Layers with a state: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.entries import HEAD_DIM, Arguments, Case, Entry, Maker, Workload
from tensorops.testing.values import (
    EMPTY,
    EXTREME,
    FLOAT32_RANGE,
    ODD_LENGTHS,
    SPECIAL,
    Float64,
    args,
    float64,
    integers,
    normal,
    ones,
    quiet,
    single,
)


@quiet
def causal_conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    state: ArrayLike | None = None,
    *,
    activation: str | None = None,
) -> tuple[Float64, Float64]:
    """Sum over the taps of each token's filter, then ``silu``; the state is the end of the state and `x` in a row."""
    x, weight = float64(x), float64(weight)
    batch, tokens, channels = x.shape
    width = weight.shape[1]
    before = np.zeros((batch, width - 1, channels)) if state is None else float64(state)
    every = [*np.moveaxis(before, 1, 0), *np.moveaxis(x, 1, 0)]
    y = np.zeros_like(x)
    for t in range(tokens):
        for tap in range(width):
            y[:, t] += weight[:, tap] * every[t + tap]
    if bias is not None:
        y += float64(bias)
    if activation is not None:
        y /= 1.0 + np.exp(-y)
    kept = np.zeros_like(before)
    for i in range(width - 1):
        kept[:, i] = every[tokens + i]
    return y, kept


@quiet
def gated_delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike | None = None,
    *,
    state: ArrayLike | None = None,
    scale: float | None = None,
) -> tuple[Float64, NDArray[Any]]:
    """Update the state of each head token by token. It is float32 for half types, float64 for others."""
    is_half = np.asarray(v).dtype.itemsize == 2
    q, k, v, g = (float64(x) for x in (q, k, v, g))
    heads = v.shape[1]
    scale = max(q.shape[3], 1) ** -0.5 if scale is None else scale
    last = np.zeros((v.shape[0], heads, q.shape[3], v.shape[3])) if state is None else float64(state).copy()
    y = np.zeros_like(v)
    for b, h in np.ndindex(v.shape[:2]):
        of_keys = h * q.shape[1] // heads
        s = last[b, h]
        for t in range(v.shape[2]):
            key = k[b, of_keys, t]
            s *= np.exp(g[b, h, t])
            value = v[b, h, t]
            s += np.outer(key, value if beta is None else float64(beta)[b, h, t] * (value - s.T @ key))
            y[b, h, t] = scale * (s.T @ q[b, of_keys, t])
    return y, last.astype(np.float32) if is_half else last


# --- cases -------------------------------------------------------------------------------------------


def _causal_conv1d_cases() -> Iterator[Case]:
    case = partial(Case, "causal_conv1d", scale_axis=(-2, -1))

    def arrays(
        r: np.random.Generator, batch: int, tokens: int, channels: int, width: int, *, state: bool = True
    ) -> Arguments:
        before = normal(r, batch, width - 1, channels) if state else None
        return args(normal(r, batch, tokens, channels), normal(r, channels, width), normal(r, channels), before)

    def options(call: Arguments, **options: Any) -> Arguments:
        return call[0], call[1] | options

    yield case("typical", lambda r: options(arrays(r, 2, 7, 33, 4), activation="silu"))
    yield case("no_bias", lambda r: args(normal(r, 2, 5, 16), normal(r, 16, 4)))
    yield case("bias", lambda r: arrays(r, 2, 5, 17, 4, state=False))
    yield case("state", lambda r: args(normal(r, 2, 5, 17), normal(r, 17, 4), state=normal(r, 2, 3, 17)))
    yield case("swish", lambda r: options(arrays(r, 1, 3, 5, 2, state=False), activation="swish"))
    for n in ODD_LENGTHS:
        yield case(f"channels_{n}", partial(lambda r, n: options(arrays(r, 1, 3, n, 4), activation="silu"), n=n))
    yield case("width_1", lambda r: arrays(r, 2, 6, 9, 1, state=False))
    for width in (2, 3, 5, 9):
        yield case(f"width_{width}", partial(lambda r, width: arrays(r, 2, 6, 9, width), width=width))
    for tokens in (1, 2, 3, 4, 70):
        yield case(f"tokens_{tokens}", partial(lambda r, tokens: arrays(r, 2, tokens, 19, 4), tokens=tokens))
    yield case("few_tokens_without_state", lambda r: arrays(r, 2, 2, 9, 5, state=False))
    yield case(
        "float32_weight",
        lambda r: args(normal(r, 2, 6, 33), single(normal(r, 33, 4)), single(normal(r, 33)), activation="silu"),
    )
    yield case("1e30", lambda r: args(1e30 * normal(r, 1, 4, 5), normal(r, 5, 3)), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("no_tokens", lambda r: arrays(r, 2, 0, 5, 4), tags=EMPTY)
    yield case("no_batch", lambda r: arrays(r, 0, 3, 5, 4), tags=EMPTY)
    yield case("no_channels", lambda r: arrays(r, 2, 3, 0, 4), tags=EMPTY)

    def special(r: np.random.Generator) -> Arguments:
        x = normal(r, 1, 9, 6)
        x[0, 1, 0], x[0, 4, 1], x[0, 4, 2], x[0, 8, 3] = np.nan, np.inf, -np.inf, np.nan
        return args(x, np.abs(normal(r, 6, 3)) + 0.1)

    yield case("special", special, tags=SPECIAL)


def _heads(
    r: np.random.Generator,
    tokens: int,
    key_dim: int,
    value_dim: int,
    *,
    batch: int = 1,
    key_heads: int = 1,
    heads: int = 1,
) -> tuple[Float64, ...]:
    """Return queries, keys of length 1, values, gates and betas as models have them."""
    q, k = (normal(r, batch, key_heads, tokens, key_dim) for _ in range(2))
    k /= np.sqrt(np.sum(k * k, axis=-1, keepdims=True)) + 1e-30
    v = normal(r, batch, heads, tokens, value_dim)
    return q, k, v, -r.exponential(0.2, (batch, heads, tokens)), r.random((batch, heads, tokens))


def _gated_delta_rule_cases() -> Iterator[Case]:
    case = partial(Case, "gated_delta_rule", tolerance=32.0, scale_axis=(-2, -1))

    def state(r: np.random.Generator, heads: tuple[Float64, ...]) -> Float64:
        q, v = heads[0], heads[2]
        return normal(r, *v.shape[:2], q.shape[3], v.shape[3])

    def continued(r: np.random.Generator, *sizes: int, **kwargs: int) -> Arguments:
        heads = _heads(r, *sizes, **kwargs)
        return args(*heads, state=state(r, heads))

    def changed(r: np.random.Generator, tokens: int = 20, **values: Any) -> Arguments:
        """Return arguments in which arrays have other values."""
        given = dict(zip(("q", "k", "v", "g", "beta"), _heads(r, tokens, 8, 6, heads=2), strict=True))
        given |= {name: np.broadcast_to(value, given[name].shape).copy() for name, value in values.items()}
        return args(*given.values(), state=normal(r, 1, 2, 8, 6))

    yield case("typical", lambda r: continued(r, 9, 16, 16, batch=2, key_heads=2, heads=4))
    yield case("one_token", lambda r: continued(r, 1, 16, 33, batch=2, key_heads=2, heads=2))
    for tokens in (1, 2, 4, 5, 63, 64, 65, 130):  # few of them, and the boundaries of chunks
        yield case(f"tokens_{tokens}", partial(lambda r, tokens: args(*_heads(r, tokens, 8, 6)), tokens=tokens))
    yield case("tokens_65_continued", lambda r: continued(r, 65, 5, 7, heads=2))
    for n in ODD_LENGTHS:
        yield case(f"key_dim_{n}", partial(lambda r, n: continued(r, 3, n, 5), n=n))
        yield case(f"value_dim_{n}", partial(lambda r, n: continued(r, 6, 5, n), n=n))
    yield case("groups", lambda r: continued(r, 3, 8, 5, batch=2, key_heads=2, heads=6))
    yield case("groups_chunk", lambda r: continued(r, 11, 8, 5, key_heads=2, heads=6))
    yield case("scale", lambda r: args(*_heads(r, 7, 4, 4), scale=-0.3))
    yield case(
        "float32_gates",
        lambda r: args(*(heads := _heads(r, 7, 8, 8))[:3], *map(single, heads[3:]), state=single(state(r, heads))),
    )
    yield case("no_decay", lambda r: changed(r, g=0.0))
    yield case("beta_0", lambda r: changed(r, beta=0.0))
    yield case("beta_1", lambda r: changed(r, beta=1.0))
    for tokens in (1, 4, 65):
        yield case(
            f"no_beta_{tokens}",
            partial(lambda r, tokens: args(*(heads := _heads(r, tokens, 8, 6, heads=2))[:4], state=state(r, heads)),
                    tokens=tokens),
        )  # fmt: skip
    yield case("no_beta_groups", lambda r: args(*_heads(r, 70, 8, 5, batch=2, key_heads=2, heads=6)[:4], scale=1.0))
    # The inverse of the triangular system has small numbers, its powers do not.
    yield case("equal_keys", lambda r: changed(r, 64, k=np.eye(1, 8), g=0.0, beta=1.0))
    yield case("strong_decay", lambda r: changed(r, g=np.where(np.arange(20) % 7 == 3, -1e4, -0.01)), tags=EXTREME)
    yield case("forgets", lambda r: changed(r, g=np.where(np.arange(20) % 7 == 3, -np.inf, -0.01)), tags=SPECIAL)
    yield case("growth", lambda r: changed(r, g=0.1))
    yield case("1e30", lambda r: changed(r, v=1e30, g=-1.0), dtypes=FLOAT32_RANGE, tags=EXTREME)
    yield case("no_tokens", lambda r: args(*_heads(r, 0, 8, 5, heads=2)), tags=EMPTY)
    yield case("no_tokens_continued", lambda r: continued(r, 0, 8, 5, heads=2), tags=EMPTY)
    yield case("no_batch", lambda r: continued(r, 6, 8, 5, batch=0), tags=EMPTY)
    yield case("no_heads", lambda r: continued(r, 6, 8, 5, key_heads=0, heads=0), tags=EMPTY)
    yield case("no_keys", lambda r: continued(r, 6, 0, 5), tags=EMPTY)
    yield case("no_values", lambda r: continued(r, 6, 8, 0), tags=EMPTY)


# --- what is refused ---------------------------------------------------------------------------------


def _conv(tokens: int = 5, channels: int = 4, width: int = 3) -> tuple[Float64, Float64]:
    return ones(2, tokens, channels), ones(channels, width)


def _rule(**arrays: Any) -> Arguments:
    """Return valid arguments with other arrays in the place of some."""
    valid = {
        "q": ones(2, 2, 5, 4),
        "k": ones(2, 2, 5, 4),
        "v": ones(2, 4, 5, 3),
        "g": -ones(2, 4, 5),
        "beta": ones(2, 4, 5),
    }
    valid |= {name: arrays.pop(name) for name in list(valid) if name in arrays}
    return args(*valid.values(), **arrays)


# --- workloads, and all of it by operator ------------------------------------------------------------


def _causal_conv1d_workload(make: Maker) -> Workload:
    x, weight = make.normal(1, make.rows, make.features), make.normal(make.features, 4)
    return Workload((x, weight, None, make.normal(1, 3, make.features)), {"activation": "silu"})


def _gated_delta_rule_workload(make: Maker) -> Workload:
    heads = make.divided(HEAD_DIM)
    q, k, v = (make.normal(1, heads, make.rows, HEAD_DIM) for _ in range(3))
    k = (k * np.asarray(HEAD_DIM**-0.5, k.dtype)).astype(k.dtype)
    beta = make.rng.random((1, heads, make.rows), dtype=np.float32).astype(make.dtype)
    state = make.normal(1, heads, HEAD_DIM, HEAD_DIM)
    wide = np.float64 if make.dtype == np.float64 else np.float32
    return Workload((q, k, v, -beta, beta), {"state": state.astype(wide)})


ENTRIES = (
    Entry(
        causal_conv1d,
        tuple(_causal_conv1d_cases()),
        (
            ("x_2d", ValueError, "x", lambda: args(ones(5, 4), ones(4, 3))),
            ("x_integer", TypeError, "x", lambda: args(integers(2, 5, 4), ones(4, 3))),
            ("weight_3d", ValueError, "weight", lambda: args(ones(2, 5, 4), ones(4, 1, 3))),
            ("weight_channels", ValueError, "weight", lambda: args(ones(2, 5, 4), ones(3, 4))),
            ("weight_empty", ValueError, "weight", lambda: args(*_conv(width=0))),
            ("bias_shape", ValueError, "bias", lambda: args(*_conv(), ones(3))),
            ("bias_integer", TypeError, "bias", lambda: args(*_conv(), integers(4))),
            ("state_shape", ValueError, "state", lambda: args(*_conv(), state=ones(2, 3, 4))),
            ("state_batch", ValueError, "state", lambda: args(*_conv(), state=ones(1, 2, 4))),
            ("state_integer", TypeError, "state", lambda: args(*_conv(), state=integers(2, 2, 4))),
            ("activation", ValueError, "activation", lambda: args(*_conv(), activation="gelu")),
            ("activation_flag", TypeError, "activation", lambda: args(*_conv(), activation=True)),
        ),
        _causal_conv1d_workload,
    ),
    Entry(
        gated_delta_rule,
        tuple(_gated_delta_rule_cases()),
        (
            ("q_3d", ValueError, "q", lambda: _rule(q=ones(2, 5, 4))),
            ("q_integer", TypeError, "q", lambda: _rule(q=integers(2, 2, 5, 4))),
            ("k_dim", ValueError, "k", lambda: _rule(k=ones(2, 2, 5, 3))),
            ("k_heads", ValueError, "k", lambda: _rule(k=ones(2, 1, 5, 4))),
            ("v_batch", ValueError, "v", lambda: _rule(v=ones(1, 4, 5, 3))),
            ("v_tokens", ValueError, "v", lambda: _rule(v=ones(2, 4, 6, 3))),
            ("v_heads", ValueError, "q", lambda: _rule(v=ones(2, 3, 5, 3))),
            ("g_shape", ValueError, "g", lambda: _rule(g=ones(2, 2, 5))),
            ("g_4d", ValueError, "g", lambda: _rule(g=ones(2, 4, 5, 4))),
            ("beta_shape", ValueError, "beta", lambda: _rule(beta=ones(2, 4))),
            ("beta_integer", TypeError, "beta", lambda: _rule(beta=integers(2, 4, 5))),
            ("state_shape", ValueError, "state", lambda: _rule(state=ones(2, 4, 3, 4))),
            ("scale", ValueError, "scale", lambda: _rule(scale=float("inf"))),
            ("scale_text", TypeError, "scale", lambda: _rule(scale="1")),
        ),
        _gated_delta_rule_workload,
    ),
)
