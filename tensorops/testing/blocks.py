"""Blocks of networks: references, cases, refusals and workloads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.attention import Window, scaled_dot_product_attention
from tensorops.testing.entries import HEAD_DIM, Arguments, Case, Entry, Maker, Workload
from tensorops.testing.normalization import rms_norm
from tensorops.testing.positional import rope
from tensorops.testing.values import (
    EMPTY,
    SPECIAL,
    Float64,
    args,
    float64,
    integers,
    normal,
    ones,
    quiet,
    random_mask,
    single,
    weights as near_one,
)


@quiet
def multi_head_attention(
    query: ArrayLike,
    key: ArrayLike | None = None,
    value: ArrayLike | None = None,
    *,
    num_heads: int,
    kv_num_heads: int | None = None,
    q_proj_weight: ArrayLike | None = None,
    k_proj_weight: ArrayLike | None = None,
    v_proj_weight: ArrayLike | None = None,
    out_proj_weight: ArrayLike | None = None,
    q_proj_bias: ArrayLike | None = None,
    k_proj_bias: ArrayLike | None = None,
    v_proj_bias: ArrayLike | None = None,
    out_proj_bias: ArrayLike | None = None,
    q_norm_weight: ArrayLike | None = None,
    k_norm_weight: ArrayLike | None = None,
    norm_eps: float = 1e-6,
    positions: ArrayLike | None = None,
    key_positions: ArrayLike | None = None,
    rope_base: float | None = None,
    rope_freqs: ArrayLike | None = None,
    rope_cos: ArrayLike | None = None,
    rope_sin: ArrayLike | None = None,
    rope_interleaved: bool = False,
    rope_dims: int | None = None,
    rope_attention_factor: float = 1.0,
    past_key: ArrayLike | None = None,
    past_value: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
) -> tuple[Float64, Float64, Float64]:
    """Return the result, and all keys and values, of attention head by head between projections."""
    kv_num_heads = num_heads if kv_num_heads is None else kv_num_heads
    of_keys = query if key is None else key
    of_values = of_keys if value is None else value

    def heads_of(x: ArrayLike, count: int, weight: ArrayLike | None, bias: ArrayLike | None) -> Float64:
        y = _projected(float64(x), weight, bias)
        size = y.shape[-1] // count
        made = [y[:, :, h * size : (h + 1) * size] for h in range(count)]
        return np.stack(made, axis=1)

    q = heads_of(query, num_heads, q_proj_weight, q_proj_bias)
    k = heads_of(of_keys, kv_num_heads, k_proj_weight, k_proj_bias)
    v = heads_of(of_values, kv_num_heads, v_proj_weight, v_proj_bias)
    if q_norm_weight is not None:
        q = rms_norm(q, q_norm_weight, norm_eps)
    if k_norm_weight is not None:
        k = rms_norm(k, k_norm_weight, norm_eps)
    past = 0 if past_key is None else float64(past_key).shape[2]
    if any(angles is not None for angles in (rope_base, rope_freqs, rope_cos)):
        rotated = partial(
            rope,
            base=10000.0 if rope_base is None else rope_base,
            freqs=rope_freqs,
            cos=rope_cos,
            sin=rope_sin,
            interleaved=rope_interleaved,
            dims=rope_dims,
            attention_factor=rope_attention_factor,
        )
        if key_positions is None and (key is not None or positions is None):
            key_positions = past + np.arange(k.shape[2])
        elif key_positions is None:
            key_positions = positions
        q = rotated(q, past + np.arange(q.shape[2]) if positions is None else positions)
        k = rotated(k, key_positions)
    if past_key is not None and past_value is not None:
        k = np.concatenate([float64(past_key), k], axis=2)
        v = np.concatenate([float64(past_value), v], axis=2)
    y = scaled_dot_product_attention(
        q, k, v, mask=mask, is_causal=is_causal, scale=scale, window=window, softcap=softcap, sinks=sinks,
        lengths=lengths,
    )  # fmt: skip
    side_by_side = np.concatenate([y[:, h] for h in range(num_heads)], axis=-1)
    return _projected(side_by_side, out_proj_weight, out_proj_bias), k, v


def _projected(x: Float64, weight: ArrayLike | None, bias: ArrayLike | None) -> Float64:
    y = x if weight is None else np.einsum("bsi,oi->bso", x, float64(weight))
    return y if bias is None else y + float64(bias)


# --- cases -------------------------------------------------------------------------------------------


def _projections(
    r: np.random.Generator, features: int, q: int, kv: int, *, of: tuple[int, int] | None = None, biased: bool = False
) -> dict[str, NDArray[np.float64]]:
    """Return matrices from `features` features (or `of`, for keys and values) to `q` and `kv` features, and back."""
    of_keys, of_values = of or (features, features)
    shapes = {"q": (q, features), "k": (kv, of_keys), "v": (kv, of_values), "out": (features, q)}
    made = {f"{n}_proj_weight": normal(r, *shape, scale=shape[1] ** -0.5) for n, shape in shapes.items()}
    if biased:
        made |= {f"{n}_proj_bias": normal(r, rows, scale=0.5) for n, (rows, _) in shapes.items()}
    return made


def _args(*given: Any, **options: Any) -> Arguments:
    """Return a call with its options in the order of the parameters, in which a trace lists arrays."""
    return given, {
        name: options[name] for name in inspect.signature(multi_head_attention).parameters if name in options
    }


def _cases() -> Iterator[Case]:
    # Half types are rounded after every step.
    case = partial(Case, "multi_head_attention", tolerance=64.0, half_tolerance=16.0)
    long = partial(case, tolerance=256.0)  # in float32 the angle, and therefore the result, is exact to eps * position
    x, p = (2, 7, 16), _projections

    yield long(
        "typical",
        lambda r: _args(normal(r, *x), num_heads=2, kv_num_heads=2, rope_base=100.0, **p(r, 16, 16, 16)),
    )
    yield case("projections", lambda r: _args(normal(r, *x), num_heads=4, **p(r, 16, 16, 16)))
    yield case("biases", lambda r: _args(normal(r, *x), num_heads=2, **p(r, 16, 16, 16, biased=True)))
    yield case(
        "float32_parameters",
        lambda r: _args(normal(r, *x), num_heads=2, **{k: single(v) for k, v in p(r, 16, 16, 16, biased=True).items()}),
    )
    yield case("causal", lambda r: _args(normal(r, *x), num_heads=2, is_causal=True, **p(r, 16, 16, 16)))
    yield case("grouped", lambda r: _args(normal(r, *x), num_heads=4, kv_num_heads=2, **p(r, 16, 16, 8)))
    yield case("wide_heads", lambda r: _args(normal(r, 1, 3, 10), num_heads=3, kv_num_heads=1, **p(r, 10, 24, 8)))
    yield case(
        "cross", lambda r: _args(normal(r, *x), normal(r, 2, 5, 12), num_heads=2, **p(r, 16, 16, 16, of=(12, 12)))
    )
    yield case(
        "key_and_value",
        lambda r: _args(
            normal(r, *x), normal(r, 2, 5, 12), normal(r, 2, 5, 9), num_heads=2,
            **p(r, 16, 16, 16, of=(12, 9), biased=True),
        ),
    )  # fmt: skip
    yield case(
        "value_dim",
        lambda r: _args(
            normal(r, *x), num_heads=2, q_proj_weight=normal(r, 8, 16), k_proj_weight=normal(r, 8, 16),
            v_proj_weight=normal(r, 12, 16), out_proj_weight=normal(r, 5, 12), scale=0.05,
        ),
    )  # fmt: skip
    yield case("projected_already", lambda r: _args(*(normal(r, *x) for _ in range(3)), num_heads=4))
    yield case("of_itself", lambda r: _args(normal(r, *x), num_heads=4))
    yield case(
        "norms",
        lambda r: _args(
            normal(r, *x), num_heads=4, kv_num_heads=2, q_norm_weight=near_one(r, 4), k_norm_weight=near_one(r, 4),
            norm_eps=1e-3, rope_base=500.0, **p(r, 16, 16, 8),
        ),
    )  # fmt: skip
    yield long("rope", lambda r: _args(normal(r, *x), num_heads=2, rope_base=1e6, is_causal=True, **p(r, 16, 16, 16)))
    yield long(
        "rope_freqs",
        lambda r: _args(
            normal(r, *x), num_heads=2, rope_freqs=r.random(3), rope_dims=6, rope_interleaved=True,
            rope_attention_factor=1.25, positions=r.integers(0, 40, (2, 7)), **p(r, 16, 16, 16),
        ),
    )  # fmt: skip
    yield case(
        "rope_tables",
        lambda r: _args(
            normal(r, *x), num_heads=2, rope_cos=normal(r, 9, 4), rope_sin=normal(r, 9, 4), **p(r, 16, 16, 16)
        ),
    )
    yield long(
        "rope_of_other_keys",
        lambda r: _args(
            normal(r, *x), normal(r, 2, 5, 16), num_heads=2, rope_base=100.0, positions=np.arange(7) + 3,
            **p(r, 16, 16, 16),
        ),
    )  # fmt: skip
    yield long(
        "key_positions",
        lambda r: _args(
            normal(r, *x), num_heads=2, rope_base=100.0, positions=np.arange(7) + 3,
            key_positions=np.arange(7)[::-1] * 2, **p(r, 16, 16, 16),
        ),
    )  # fmt: skip

    def cache(r: np.random.Generator, past: int = 5) -> dict[str, NDArray[np.float64]]:
        return {"past_key": normal(r, 2, 2, past, 4), "past_value": normal(r, 2, 2, past, 4)}

    def grouped(r: np.random.Generator, length: int, **options: Any) -> Arguments:
        return _args(normal(r, 2, length, 16), num_heads=4, kv_num_heads=2, **p(r, 16, 16, 8), **options)

    yield case("cache", lambda r: grouped(r, 3, is_causal=True, **cache(r)))
    yield case("cache_empty", lambda r: grouped(r, 3, is_causal=True, **cache(r, 0)), tags=EMPTY)
    yield long("decode", lambda r: grouped(r, 1, is_causal=True, rope_base=100.0, **cache(r)))
    yield case("decode_tables", lambda r: grouped(r, 1, rope_cos=normal(r, 6, 2), rope_sin=normal(r, 6, 2), **cache(r)))
    yield case(
        "cache_projected_already",
        lambda r: _args(normal(r, 2, 3, 16), normal(r, 2, 3, 8), normal(r, 2, 3, 8), num_heads=4, kv_num_heads=2,
                       **cache(r)),
    )  # fmt: skip
    yield case("bool_mask", lambda r: grouped(r, 5, mask=random_mask(r, 5, 5)))
    yield case("bool_mask_padding", lambda r: grouped(r, 5, mask=random_mask(r, 2, 1, 1, 10), **cache(r)))
    yield case("float_mask", lambda r: grouped(r, 5, mask=normal(r, 2, 4, 5, 5)))
    yield case(
        "everything",
        lambda r: grouped(
            r, 6, mask=random_mask(r, 2, 1, 6, 11), is_causal=True, scale=0.7, window=4, softcap=3.0,
            sinks=normal(r, 4), q_norm_weight=near_one(r, 4), k_norm_weight=near_one(r, 4), rope_base=50.0,
            rope_dims=2, q_proj_bias=normal(r, 16), **cache(r),
        ),
        tolerance=256.0,
    )  # fmt: skip
    yield case("window_of_two_sides", lambda r: grouped(r, 7, window=(3, 1)))
    yield case("window_before", lambda r: grouped(r, 4, window=(2, None), is_causal=True, **cache(r)))

    def padded(r: np.random.Generator, lengths: list[int], **options: Any) -> Arguments:
        counts = np.asarray(lengths, dtype=np.int64)
        return _args(
            normal(r, 2, 3, 16), normal(r, 2, 6, 16), num_heads=4, kv_num_heads=2, lengths=counts, **p(r, 16, 16, 8),
            **options,
        )  # fmt: skip

    yield case("lengths", lambda r: padded(r, [4, 6]))
    yield case("lengths_0", lambda r: padded(r, [0, 1], sinks=normal(r, 4)))
    yield case("lengths_causal", lambda r: padded(r, [5, 3], is_causal=True, mask=random_mask(r, 2, 1, 3, 6)))
    yield case("lengths_window", lambda r: padded(r, [6, 4], window=(1, 1)))
    yield long("lengths_rope", lambda r: padded(r, [2, 5], rope_base=100.0))
    yield case("lengths_of_itself", lambda r: grouped(r, 5, lengths=np.asarray([5, 2], np.int32)))
    yield case("empty_queries", lambda r: grouped(r, 0), tags=EMPTY)
    yield case(
        "empty_batch", lambda r: _args(np.zeros((0, 3, 16)), num_heads=4, rope_base=9.0, **p(r, 16, 16, 16)), tags=EMPTY
    )

    def one_bad_query(r: np.random.Generator) -> Arguments:
        q, kv = normal(r, *x), normal(r, 2, 5, 16)
        q[1, 3, 2] = np.nan
        return _args(q, kv, num_heads=2, **p(r, 16, 16, 16))

    yield case("special", one_bad_query, tags=SPECIAL)


# --- what is refused ---------------------------------------------------------------------------------


def _call(*others: Any, **options: Any) -> Arguments:
    """Return a call with query (2, 3, 8) and 2 heads."""
    return args(ones(2, 3, 8), *others, **{"num_heads": 2, **options})


def _tables(rows: int, **options: Any) -> Arguments:
    return _call(rope_cos=ones(rows, 2), rope_sin=ones(rows, 2), **options)


_REFUSALS = (
    ("query_2d", ValueError, "query", lambda: args(ones(3, 8), num_heads=2)),
    ("integer_query", TypeError, "query", lambda: args(integers(2, 3, 8), num_heads=2)),
    ("value_alone", ValueError, "value", lambda: _call(None, ones(2, 3, 8))),
    ("key_batch", ValueError, "key", lambda: _call(ones(1, 3, 8))),
    ("value_length", ValueError, "value", lambda: _call(ones(2, 3, 8), ones(2, 4, 8))),
    ("heads_zero", ValueError, "num_heads", lambda: _call(num_heads=0)),
    ("heads_kind", TypeError, "num_heads", lambda: _call(num_heads=2.0)),
    ("heads_divide", ValueError, "query", lambda: _call(num_heads=3)),
    ("kv_heads_divide", ValueError, "kv_num_heads", lambda: _call(num_heads=4, kv_num_heads=3)),
    ("kv_heads", ValueError, "query", lambda: _call(kv_num_heads=1)),
    ("weight_columns", ValueError, "q_proj_weight", lambda: _call(q_proj_weight=ones(8, 7))),
    ("weight_1d", ValueError, "k_proj_weight", lambda: _call(k_proj_weight=ones(8))),
    ("weight_rows", ValueError, "v_proj_weight", lambda: _call(v_proj_weight=ones(7, 8))),
    ("weight_integer", TypeError, "v_proj_weight", lambda: _call(v_proj_weight=integers(8, 8))),
    ("weight_key_rows", ValueError, "k_proj_weight", lambda: _call(k_proj_weight=ones(6, 8))),
    ("weight_out", ValueError, "out_proj_weight", lambda: _call(out_proj_weight=ones(8, 6))),
    ("bias_length", ValueError, "q_proj_bias", lambda: _call(q_proj_weight=ones(8, 8), q_proj_bias=ones(7))),
    ("bias_alone", ValueError, "out_proj_bias", lambda: _call(out_proj_bias=ones(8))),
    ("norm_length", ValueError, "q_norm_weight", lambda: _call(q_norm_weight=ones(8))),
    ("norm_eps", ValueError, "norm_eps", lambda: _call(norm_eps=-1.0)),
    ("past_alone", ValueError, "past_value", lambda: _call(past_key=ones(2, 2, 5, 4))),
    ("past_shape", ValueError, "past_key", lambda: _call(past_key=ones(2, 1, 5, 4), past_value=ones(2, 2, 5, 4))),
    ("past_lengths", ValueError, "past_value", lambda: _call(past_key=ones(2, 2, 5, 4), past_value=ones(2, 2, 4, 4))),
    ("positions_alone", ValueError, "positions", lambda: _call(positions=np.arange(3))),
    ("dims_alone", ValueError, "rope_dims", lambda: _call(rope_dims=2)),
    ("interleaved_alone", ValueError, "rope_interleaved", lambda: _call(rope_interleaved=True)),
    ("factor_alone", ValueError, "rope_attention_factor", lambda: _call(rope_attention_factor=2.0)),
    ("base", ValueError, "rope_base", lambda: _call(rope_base=-1.0)),
    ("freqs_length", ValueError, "rope_freqs", lambda: _call(rope_freqs=ones(4))),
    ("dims_odd", ValueError, "rope_dims", lambda: _call(rope_base=10.0, rope_dims=3)),
    ("sin_missing", ValueError, "rope_sin", lambda: _call(rope_cos=ones(3, 2))),
    ("cos_missing", ValueError, "rope_cos", lambda: _call(rope_sin=ones(3, 2))),
    ("tables_short", ValueError, "rope_cos", lambda: _tables(2)),
    ("tables_short_of_keys", ValueError, "rope_cos", lambda: args(*_call(ones(2, 4, 8))[0], **_tables(3)[1])),
    ("tables_base", ValueError, "rope_base", lambda: _tables(3, rope_base=5.0)),
    ("positions_length", ValueError, "positions", lambda: _call(rope_base=10.0, positions=np.arange(4))),
    ("positions_float", TypeError, "positions", lambda: _tables(3, positions=np.arange(3.0))),
    ("key_positions", ValueError, "key_positions", lambda: _call(rope_base=10.0, key_positions=np.arange(4))),
    ("mask_shape", ValueError, "mask", lambda: _call(mask=ones(3, 4))),
    ("mask_integer", TypeError, "mask", lambda: _call(mask=integers(3, 3))),
    ("window_zero", ValueError, "window", lambda: _call(window=0)),
    ("window_one_side", ValueError, "window", lambda: _call(window=(1,))),
    ("window_negative", ValueError, "window", lambda: _call(window=(-2, 0))),
    ("window_float", TypeError, "window", lambda: _call(window=(1.0, 0))),
    ("lengths_shape", ValueError, "lengths", lambda: _call(lengths=integers(3))),
    ("lengths_float", TypeError, "lengths", lambda: _call(lengths=ones(2))),
    (
        "lengths_with_cache",
        ValueError,
        "lengths",
        lambda: _call(lengths=integers(2), past_key=ones(2, 2, 5, 4), past_value=ones(2, 2, 5, 4)),
    ),
    ("softcap", ValueError, "softcap", lambda: _call(softcap=0.0)),
    ("sinks_length", ValueError, "sinks", lambda: _call(sinks=ones(3))),
)


# --- workloads, and all of it by operator ------------------------------------------------------------


def _workload(make: Maker) -> Workload:
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight")
    weights = {name: make.normal(make.features, make.features) for name in names}
    options = {"num_heads": make.divided(HEAD_DIM), "is_causal": True}
    return Workload((make.normal(1, make.rows, make.features),), {**weights, **options})


ENTRIES = (Entry(multi_head_attention, tuple(_cases()), _REFUSALS, _workload),)
