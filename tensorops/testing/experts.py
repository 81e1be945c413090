"""Mixture of experts: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing._stored_blocks import decode, random_blocks
from tensorops.testing.entries import GROUP, Arguments, Case, Entry, Maker, Workload
from tensorops.testing.quantization import dequantize
from tensorops.testing.values import (
    EMPTY,
    EXTREME,
    ODD_LENGTHS,
    SPECIAL,
    SPECIAL_ROWS,
    Float64,
    args,
    float64,
    integers,
    normal,
    octets,
    ones,
    quiet,
    single,
)


@quiet
def grouped_linear(x: ArrayLike, experts: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Float64:
    """``weight[experts[i]] @ x[i] + bias[experts[i]]`` for each row i of `x`, with `weight` (experts, out, in)."""
    x, experts, weight = float64(x), np.asarray(experts), float64(weight)
    shape = np.broadcast_shapes(x.shape[:-1], experts.shape)
    rows, numbers = np.broadcast_to(x, (*shape, x.shape[-1])), np.broadcast_to(experts, shape)
    y = np.zeros((*shape, weight.shape[1]))
    for i in np.ndindex(shape):
        y[i] = weight[numbers[i]] @ rows[i]
        if bias is not None:
            y[i] += float64(bias)[numbers[i]]
    return y


def _dequantized(
    weight: ArrayLike, scales: ArrayLike | None, biases: ArrayLike | None, *, bits: int, group_size: int, format: str
) -> Float64:
    """Return a quantized matrix, or a stack of them, as numbers."""
    if format != "affine":
        return decode(format, np.asarray(weight))
    assert scales is not None
    weight, scales = np.asarray(weight), float64(scales)
    if weight.ndim == 2:
        return dequantize(weight, scales, biases, bits=bits, group_size=group_size)
    each = (None if biases is None else float64(biases)[e] for e in range(len(weight)))
    one = partial(_dequantized, bits=bits, group_size=group_size, format=format)
    return np.stack([one(w, s, b) for w, s, b in zip(weight, scales, each, strict=True)])


def grouped_quantized_linear(
    x: ArrayLike,
    experts: ArrayLike,
    weight: ArrayLike,
    scales: ArrayLike | None = None,
    biases: ArrayLike | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
    precision: str = "highest",
) -> Float64:
    """`grouped_linear` with the matrices of `dequantize`."""
    plain = _dequantized(weight, scales, biases, bits=bits, group_size=group_size, format=format)
    return grouped_linear(x, experts, plain)


def _erf(x: Float64) -> Float64:
    from math import erf

    return float64(np.vectorize(erf, otypes=[float])(x))


def _feed_forward(x: Float64, gate_up: Float64, down: Float64, activation: str) -> Float64:
    """Return the result of a gated block for one token."""
    gate, up = gate_up[: len(gate_up) // 2] @ x, gate_up[len(gate_up) // 2 :] @ x
    share = 1.0 / (1.0 + np.exp(-gate)) if activation == "swiglu" else 0.5 * (1.0 + _erf(gate / np.sqrt(2.0)))
    return float64(down @ (gate * share * up))


@quiet
def moe(
    x: ArrayLike,
    router_logits: ArrayLike,
    gate_up_proj: ArrayLike,
    down_proj: ArrayLike,
    *,
    gate_up_scales: ArrayLike | None = None,
    gate_up_biases: ArrayLike | None = None,
    down_scales: ArrayLike | None = None,
    down_biases: ArrayLike | None = None,
    e_score_correction_bias: ArrayLike | None = None,
    shared_gate_up_proj: ArrayLike | None = None,
    shared_down_proj: ArrayLike | None = None,
    shared_gate_up_scales: ArrayLike | None = None,
    shared_gate_up_biases: ArrayLike | None = None,
    shared_down_scales: ArrayLike | None = None,
    shared_down_biases: ArrayLike | None = None,
    shared_expert_gate: ArrayLike | None = None,
    top_k: int,
    scoring_func: str = "softmax",
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    activation: str = "swiglu",
    bits: int = 4,
    group_size: int = 32,
    gate_up_format: str = "affine",
    down_format: str = "affine",
    shared_gate_up_format: str = "affine",
    shared_down_format: str = "affine",
    precision: str = "highest",
) -> Float64:
    """Sum the weighted results of the `top_k` blocks with the largest scores, token by token."""

    def plain(proj: ArrayLike | None, scales: ArrayLike | None, biases: ArrayLike | None, format: str) -> Any:
        if proj is None or (scales is None and format == "affine"):
            return None if proj is None else float64(proj)
        return _dequantized(proj, scales, biases, bits=bits, group_size=group_size, format=format)

    x, logits = float64(x), float64(router_logits)
    gate_up = plain(gate_up_proj, gate_up_scales, gate_up_biases, gate_up_format)
    down = plain(down_proj, down_scales, down_biases, down_format)
    shared_gate_up = plain(shared_gate_up_proj, shared_gate_up_scales, shared_gate_up_biases, shared_gate_up_format)
    shared_down = plain(shared_down_proj, shared_down_scales, shared_down_biases, shared_down_format)
    y = np.zeros(x.shape)
    for i in np.ndindex(x.shape[:-1]):
        if scoring_func == "softmax":
            powers = np.exp(logits[i] - np.max(logits[i]))
            scores = powers / np.sum(powers)
        else:
            scores = 1.0 / (1.0 + np.exp(-logits[i]))
        choice = logits[i] if e_score_correction_bias is None else scores + float64(e_score_correction_bias)
        order = sorted(range(len(choice)), key=lambda e: (np.isnan(choice[e]), -choice[e], e))[:top_k]
        total = sum(scores[e] for e in order) if renormalize else 1.0
        for e in order:
            y[i] += routed_scaling_factor * scores[e] / total * _feed_forward(x[i], gate_up[e], down[e], activation)
        if shared_gate_up is not None:
            always = _feed_forward(x[i], shared_gate_up, shared_down, activation)
            if shared_expert_gate is not None:
                always = always / (1.0 + np.exp(-(float64(shared_expert_gate)[0] @ x[i])))
            y[i] += always
    return y


# --- cases -------------------------------------------------------------------------------------------


def _stack(
    r: np.random.Generator, experts: int, outputs: int, columns: int, bits: int = 4, mode: str = "affine"
) -> tuple[NDArray[np.uint8], Float64, Float64 | None]:
    """Return random quantized matrices with groups of 32."""
    weight = r.integers(0, 256, (experts, outputs, columns * bits // 8), dtype=np.uint8)
    groups = (experts, outputs, columns // GROUP)
    scales = (0.5 + r.random(groups)) / 2**bits
    return weight, scales, normal(r, *groups) if mode == "affine" else None


def _single(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return float64 arrays in float32, which cases do not cast; others are unchanged."""
    return tuple(single(a) if isinstance(a, np.ndarray) and a.dtype == np.float64 else a for a in arrays)


def _grouped(
    r: np.random.Generator, experts: ArrayLike, number: int, columns: int, outputs: int, *, bias: bool = False
) -> Arguments:
    experts = np.asarray(experts, dtype=np.int64)
    x = normal(r, *experts.shape, columns)
    made = args(x, experts, normal(r, number, outputs, columns))
    return args(*made[0], normal(r, number, outputs)) if bias else made


def _grouped_linear_cases() -> Iterator[Case]:
    case = partial(Case, "grouped_linear", tolerance=32.0)
    yield case("typical", lambda r: _grouped(r, r.integers(0, 4, (3, 5)), 4, 64, 32, bias=True))
    for n in ODD_LENGTHS:
        yield case(f"in_{n}", partial(lambda r, n: _grouped(r, r.integers(0, 3, 9), 3, n, 5), n=n), scale_axis=None)
        yield case(f"out_{n}", partial(lambda r, n: _grouped(r, r.integers(0, 3, 9), 3, 16, n), n=n), scale_axis=None)
    yield case(
        "float32_parameters",
        lambda r: args(normal(r, 9, 33), r.integers(0, 3, 9), single(normal(r, 3, 5, 33)), single(normal(r, 3, 5))),
    )
    yield case("few_rows", lambda r: _grouped(r, [6, 2], 7, 33, 17, bias=True))
    yield case("experts_without_rows", lambda r: _grouped(r, [5, 1, 5, 5, 1, 5, 1, 1], 6, 17, 9))
    yield case("all_rows_to_one", lambda r: _grouped(r, np.full(23, 2), 4, 17, 9))
    yield case("one_expert", lambda r: _grouped(r, np.zeros(7), 1, 17, 9, bias=True))
    yield case("many_rows", lambda r: _grouped(r, r.integers(0, 5, 200), 5, 32, 40), scale_axis=None)
    yield case("one_dimension", lambda r: _grouped(r, 2, 3, 17, 9))
    yield case("int32", lambda r: args(normal(r, 4, 8), np.array([1, 0, 1, 1], np.int32), normal(r, 2, 3, 8)))
    yield case("rows_repeat", lambda r: args(normal(r, 6, 1, 16), r.integers(0, 5, (6, 3)), normal(r, 5, 8, 16)))
    yield case("experts_repeat", lambda r: args(normal(r, 6, 3, 16), np.array([4, 0, 2]), normal(r, 5, 8, 16)))
    yield case("no_rows", lambda r: _grouped(r, np.zeros((0, 2)), 3, 8, 4), tags=EMPTY)
    yield case("empty_in", lambda r: _grouped(r, [1, 0, 1], 2, 0, 4, bias=True), tags=EMPTY)
    # 120000 is infinite in float16 and finite elsewhere.
    yield case(
        "overflows_float16",
        lambda r: args(np.full((2, 3), 200.0), np.array([0, 1]), np.array([200.0, -200.0])[:, None, None] * ones(1, 3)),
        tags=EXTREME,
    )
    yield case(
        "special",
        lambda r: args(SPECIAL_ROWS, np.array([0, 1, 0, 1, 1, 0]), 1.0 + r.random((2, 3, 4))),
        tags=SPECIAL,
    )


def _grouped_quantized_linear_cases() -> Iterator[Case]:
    case = partial(Case, "grouped_quantized_linear", tolerance=64.0, scale_axis=None)

    def call(
        r: np.random.Generator,
        experts: ArrayLike,
        number: int,
        columns: int,
        outputs: int,
        bits: int = 4,
        mode: str = "affine",
    ) -> Arguments:
        experts = np.asarray(experts, dtype=np.int64)
        x, stack = normal(r, *experts.shape, columns), _stack(r, number, outputs, columns, bits, mode)
        return (x, experts, *stack), {"bits": bits, "group_size": GROUP}

    for bits, mode in ((4, "affine"), (8, "affine"), (8, "symmetric")):
        form = partial(call, bits=bits, mode=mode)
        yield case(f"typical_{bits}_{mode}", partial(lambda r, f: f(r, r.integers(0, 4, (3, 5)), 4, 64, 33), f=form))
        yield case(f"many_rows_{bits}_{mode}", partial(lambda r, f: f(r, r.integers(0, 3, 190), 3, 32, 19), f=form))
        yield case(f"one_row_{bits}_{mode}", partial(lambda r, f: f(r, [2], 5, 96, 17), f=form))
    yield case(
        "float32_parameters",
        lambda r: args(normal(r, 5, 64), r.integers(0, 4, 5), *_single(_stack(r, 4, 9, 64)), bits=4, group_size=GROUP),
    )
    for name in ("q4_k", "q8_0", "fp8_e4m3", "sparse_2_4"):
        for rows in (1, 23):
            yield case(
                f"{name}_{rows}",
                partial(
                    lambda r, n, m: args(
                        normal(r, m, 256), r.integers(0, 3, m), random_blocks(r, n, 3, 17, 256), format=n
                    ),
                    n=name,
                    m=rows,
                ),
            )
    yield case("experts_without_rows", lambda r: call(r, [5, 1, 5, 5, 1, 5, 1, 1], 6, 64, 9))
    yield case("all_rows_to_one", lambda r: call(r, np.full(23, 2), 4, 32, 9))
    yield case("one_expert", lambda r: call(r, np.zeros(7), 1, 32, 9))
    yield case("one_dimension", lambda r: call(r, 2, 3, 32, 9))
    yield case(
        "rows_repeat",
        lambda r: (
            (normal(r, 6, 1, 64), r.integers(0, 5, (6, 3)), *_stack(r, 5, 8, 64)),
            {"bits": 4, "group_size": GROUP},
        ),
    )
    yield case(
        "groups_of_8",
        lambda r: (
            (
                normal(r, 5, 16),
                np.array([1, 0, 0, 1, 0]),
                r.integers(0, 256, (2, 3, 8), dtype=np.uint8),
                r.random((2, 3, 2)),
                normal(r, 2, 3, 2),
            ),
            {"bits": 4, "group_size": 8},
        ),
    )
    yield case("no_rows", lambda r: call(r, np.zeros((0, 2)), 3, 32, 4), tags=EMPTY)
    yield case(
        "special",
        lambda r: (
            (np.tile(SPECIAL_ROWS, 8), np.array([0, 1, 0, 1, 1, 0]), *_stack(r, 2, 3, 32)),
            {"bits": 4, "group_size": GROUP},
        ),
        tags=SPECIAL,
    )


def _weights(
    r: np.random.Generator, experts: int, features: int, hidden: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return projections whose results are about as large as their arguments."""
    gate_up = normal(r, experts, 2 * hidden, features, scale=features**-0.5)
    return gate_up, normal(r, experts, features, hidden, scale=hidden**-0.5)


def _logits(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return logits far enough from each other that no rounding changes their order."""
    ranks = np.argsort(r.random(shape), axis=-1)
    return float64((ranks - shape[-1] / 2) / 4.0)


def _layer(
    r: np.random.Generator, tokens: tuple[int, ...], experts: int, features: int, hidden: int, **options: Any
) -> Arguments:
    return args(
        normal(r, *tokens, features), _logits(r, *tokens, experts), *_weights(r, experts, features, hidden), **options
    )


def _with_shared(r: np.random.Generator, arguments: Arguments, hidden: int, *, gate: bool = False) -> Arguments:
    """Return a call with a shared block as well."""
    positional, options = arguments
    features = positional[0].shape[-1]
    gate_up, down = (a[0] for a in _weights(r, 1, features, hidden))
    shared = {"shared_gate_up_proj": gate_up, "shared_down_proj": down}
    if gate:
        shared["shared_expert_gate"] = normal(r, 1, features, scale=features**-0.5)
    return positional, options | shared


def _quantized_layer(r: np.random.Generator, tokens: int, bits: int, mode: str, *, shared: bool = False) -> Arguments:
    def parts(experts: int, outputs: int, columns: int, prefix: str) -> dict[str, Any]:
        # Whole numbers around 0, so that results are about as large as their arguments.
        weight, scales, biases = _stack(r, experts or 1, outputs, columns, bits, mode)
        scales = scales * 2**bits * 8.0 ** -(2 if bits == 4 else 3)
        biases = None if biases is None else -scales * 2 ** (bits - 1)
        named = {f"{prefix}_proj": weight, f"{prefix}_scales": scales, f"{prefix}_biases": biases}
        return {k: a if a is None or experts else a[0] for k, a in named.items()}

    options = parts(4, 64, 64, "gate_up") | parts(4, 64, 32, "down")
    if shared:
        block = parts(0, 64, 64, "shared_gate_up") | parts(0, 64, 32, "shared_down")
        options |= {name: block.pop(name) for name in ("shared_gate_up_proj", "shared_down_proj")} | block
    first = [normal(r, tokens, 64), _logits(r, tokens, 4), options.pop("gate_up_proj"), options.pop("down_proj")]
    return tuple(first), options | {"top_k": 2, "bits": bits, "group_size": GROUP}


def _layer_of_blocks(r: np.random.Generator) -> Arguments:
    def blocks(name: str, *shape: int) -> Any:
        return random_blocks(r, name, *shape)

    first = (normal(r, 5, 256), _logits(r, 5, 2), blocks("q4_k", 2, 64, 256), blocks("q8_0", 2, 256, 32))
    shared = {"shared_gate_up_proj": blocks("fp8_e4m3", 64, 256), "shared_down_proj": blocks("q5_0", 256, 32)}
    formats = dict(zip(("gate_up_format", "down_format"), ("q4_k", "q8_0"), strict=True))
    formats |= {"shared_gate_up_format": "fp8_e4m3", "shared_down_format": "q5_0"}
    return first, {**shared, **formats, "top_k": 1}


def _moe_cases() -> Iterator[Case]:
    case = partial(Case, "moe", tolerance=64.0, half_tolerance=4.0)
    # The first case is also called with wrong options: all of them have a meaning there.
    for bits, mode in ((4, "affine"), (8, "affine"), (8, "symmetric")):
        yield case(f"quantized_{bits}_{mode}", partial(_quantized_layer, tokens=5, bits=bits, mode=mode))
    for scoring in ("softmax", "sigmoid"):
        for renormalize in (True, False):
            options = {"scoring_func": scoring, "renormalize": renormalize, "top_k": 2}
            name = f"{scoring}_{'renormalized' if renormalize else 'plain'}"
            yield case(name, partial(lambda r, o: _layer(r, (2, 5), 4, 32, 24, **o), o=options))
    yield case("blocks", _layer_of_blocks)
    yield case("geglu", lambda r: _layer(r, (7,), 4, 16, 24, top_k=2, activation="geglu"))
    yield case("scaled", lambda r: _layer(r, (3,), 6, 16, 8, top_k=3, routed_scaling_factor=2.5))
    yield case(
        "float32_parameters", lambda r: args(normal(r, 5, 16), *_single(_layer(r, (5,), 4, 16, 8)[0][1:]), top_k=2)
    )
    yield case("one_token", lambda r: _layer(r, (), 5, 17, 9, top_k=2))
    yield case("every_expert", lambda r: _layer(r, (4,), 3, 16, 8, top_k=3))
    yield case("one_expert", lambda r: _layer(r, (4,), 1, 16, 8, top_k=1))
    yield case("many_tokens", lambda r: _layer(r, (90,), 3, 16, 8, top_k=2))
    yield case(
        "all_tokens_to_one",
        lambda r: args(normal(r, 9, 16), np.tile([0.0, 0.0, 4.0, 1.0], (9, 1)), *_weights(r, 4, 16, 8), top_k=1),
    )
    yield case(
        "ties",
        lambda r: args(
            normal(r, 3, 16), np.array([[1.0] * 5, [0, 2, 2, 2, 0], [3, 1, 3, 1, 3.0]]), *_weights(r, 5, 16, 8), top_k=2
        ),
    )
    for scoring in ("softmax", "sigmoid"):
        yield case(
            f"correction_{scoring}",
            partial(
                lambda r, s: args(
                    normal(r, 6, 16),
                    _logits(r, 6, 5),
                    *_weights(r, 5, 16, 8),
                    e_score_correction_bias=np.array([0.0, 2.0, -2.0, 0.0, 0.0]),
                    top_k=2,
                    scoring_func=s,
                ),
                s=scoring,
            ),
        )
    yield case("shared", lambda r: _with_shared(r, _layer(r, (5,), 4, 16, 8, top_k=2), 12))
    yield case("shared_gate", lambda r: _with_shared(r, _layer(r, (2, 3), 4, 16, 8, top_k=2), 12, gate=True))
    yield case("quantized_shared", lambda r: _quantized_layer(r, 3, 4, "affine", shared=True))
    yield case("no_tokens", lambda r: _layer(r, (0,), 3, 16, 8, top_k=2), tags=EMPTY)
    # The scores of all experts underflow in float32; their shares do not.
    yield case(
        "tiny_scores",
        lambda r: args(
            normal(r, 2, 16),
            np.array([[-200.0, -201.0, -202.0]] * 2),
            *_weights(r, 3, 16, 8),
            top_k=2,
            scoring_func="sigmoid",
        ),
        tags=EXTREME,
    )
    yield case(
        "special",
        lambda r: args(SPECIAL_ROWS, _logits(r, 6, 3), *_weights(r, 3, 4, 5), top_k=2),
        tags=SPECIAL,
    )


# --- workloads, and all of it by operator ------------------------------------------------------------


EXPERTS, TOP_K = 8, 2
_FORMAT = {"bits": 4, "group_size": GROUP}


def _unread(stack: np.ndarray[Any, Any], experts: np.ndarray[Any, Any]) -> int:
    return stack.nbytes // EXPERTS * (EXPERTS - len(np.unique(experts)))


def _grouped_linear_workload(make: Maker) -> Workload:
    experts, weight = make.integers(EXPERTS, make.rows), make.normal(EXPERTS, make.features, make.features)
    return Workload((make.x(), experts, weight), unread=_unread(weight, experts))


def _grouped_quantized_linear_workload(make: Maker) -> Workload:
    experts = make.integers(EXPERTS, make.rows)
    stack = [np.stack([a] * EXPERTS) for a in make.packed(make.features)]
    return Workload((make.x(), experts, *stack), dict(_FORMAT), unread=sum(_unread(a, experts) for a in stack))


def _moe_workload(make: Maker) -> Workload:
    hidden = make.divided(2)
    logits = make.normal(make.rows, EXPERTS)
    gate_up, down = make.normal(EXPERTS, 2 * hidden, make.features), make.normal(EXPERTS, make.features, hidden)
    chosen = np.argsort(-logits.astype(np.float32), axis=-1)[:, :TOP_K]
    unread = _unread(gate_up, chosen) + _unread(down, chosen)
    return Workload((make.x(), logits, gate_up, down), {"top_k": TOP_K}, unread=unread)


def _bad_layer(**changed: Any) -> Arguments:
    """Return a small call with some arguments replaced."""
    layer = {
        "x": ones(2, 8),
        "router_logits": ones(2, 3),
        "gate_up_proj": ones(3, 8, 8),
        "down_proj": ones(3, 8, 4),
        "top_k": 2,
    }
    return args(**layer | changed)


_QUANTIZED = {"gate_up_proj": octets(3, 128, 32), "gate_up_scales": ones(3, 128, 2), "gate_up_biases": ones(3, 128, 2)}
_SHARED = {"shared_gate_up_proj": ones(6, 8), "shared_down_proj": ones(8, 3)}

ENTRIES = (
    Entry(
        grouped_linear,
        tuple(_grouped_linear_cases()),
        (
            ("weight_features", ValueError, "weight", lambda: args(ones(2, 8), integers(2), ones(3, 4, 7))),
            ("weight_2d", ValueError, "weight", lambda: args(ones(2, 8), integers(2), ones(3, 8))),
            ("no_experts", ValueError, "weight", lambda: args(ones(0, 8), integers(0), ones(0, 4, 8))),
            ("bias_shape", ValueError, "bias", lambda: args(ones(2, 8), integers(2), ones(3, 4, 8), ones(4))),
            ("experts_shape", ValueError, "experts", lambda: args(ones(2, 8), integers(3), ones(3, 4, 8))),
            ("experts_axes", ValueError, "experts", lambda: args(ones(2, 8), integers(2, 2), ones(3, 4, 8))),
            ("float_experts", TypeError, "experts", lambda: args(ones(2, 8), ones(2), ones(3, 4, 8))),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), integers(2), ones(3, 4, 8))),
            ("integer_weight", TypeError, "weight", lambda: args(ones(2, 8), integers(2), integers(3, 4, 8))),
        ),
        _grouped_linear_workload,
    ),
    Entry(
        grouped_quantized_linear,
        tuple(_grouped_quantized_linear_cases()),
        (
            (
                "weight_features",
                ValueError,
                "weight",
                lambda: args(ones(3, 96), integers(3), octets(2, 5, 32), ones(2, 5, 2), ones(2, 5, 2)),
            ),
            (
                "scales_shape",
                ValueError,
                "scales",
                lambda: args(ones(3, 64), integers(3), octets(2, 5, 32), ones(2, 5, 3), ones(2, 5, 3)),
            ),
            (
                "no_biases",
                ValueError,
                "bits|biases",
                lambda: args(ones(3, 64), integers(3), octets(2, 5, 32), ones(2, 5, 2)),
            ),
            (
                "float_weight",
                TypeError,
                "weight",
                lambda: args(ones(3, 64), integers(3), ones(2, 5, 32), ones(2, 5, 2), ones(2, 5, 2)),
            ),
            (
                "weight_2d",
                ValueError,
                "weight",
                lambda: args(ones(3, 64), integers(3), octets(5, 32), ones(5, 2), ones(5, 2)),
            ),
            (
                "experts_shape",
                ValueError,
                "experts",
                lambda: args(ones(3, 64), integers(2), octets(2, 5, 32), ones(2, 5, 2), ones(2, 5, 2)),
            ),
            (
                "float_experts",
                TypeError,
                "experts",
                lambda: args(ones(3, 64), ones(3), octets(2, 5, 32), ones(2, 5, 2), ones(2, 5, 2)),
            ),
        ),
        _grouped_quantized_linear_workload,
    ),
    Entry(
        moe,
        tuple(_moe_cases()),
        (
            ("integer_x", TypeError, "x", lambda: _bad_layer(x=integers(2, 8))),
            ("logits_rows", ValueError, "router_logits", lambda: _bad_layer(router_logits=ones(3, 3))),
            ("no_experts", ValueError, "router_logits", lambda: _bad_layer(router_logits=ones(2, 0))),
            ("gate_up_experts", ValueError, "gate_up_proj", lambda: _bad_layer(gate_up_proj=ones(4, 8, 8))),
            ("gate_up_columns", ValueError, "gate_up_proj", lambda: _bad_layer(gate_up_proj=ones(3, 8, 7))),
            ("gate_up_rows", ValueError, "gate_up_proj", lambda: _bad_layer(gate_up_proj=ones(3, 7, 8))),
            ("down_experts", ValueError, "down_proj", lambda: _bad_layer(down_proj=ones(2, 8, 4))),
            ("down_rows", ValueError, "down_proj", lambda: _bad_layer(down_proj=ones(3, 7, 4))),
            ("integer_down", TypeError, "down_proj", lambda: _bad_layer(down_proj=integers(3, 8, 4))),
            ("biases_alone", ValueError, "down_biases", lambda: _bad_layer(down_biases=ones(3, 8, 1))),
            (
                "scales_of_numbers",
                TypeError,
                "gate_up_proj",
                lambda: _bad_layer(gate_up_scales=ones(3, 8, 1), gate_up_biases=ones(3, 8, 1)),
            ),
            (
                "scales_shape",
                ValueError,
                "gate_up_scales",
                lambda: _bad_layer(x=ones(2, 64), **_QUANTIZED | {"gate_up_scales": ones(3, 128, 3)}),
            ),
            ("correction", ValueError, "e_score_correction_bias", lambda: _bad_layer(e_score_correction_bias=ones(4))),
            ("top_k", ValueError, "top_k", lambda: _bad_layer(top_k=4)),
            ("top_k_0", ValueError, "top_k", lambda: _bad_layer(top_k=0)),
            ("top_k_float", TypeError, "top_k", lambda: _bad_layer(top_k=2.0)),
            ("scoring_func", ValueError, "scoring_func", lambda: _bad_layer(scoring_func="tanh")),
            ("activation", ValueError, "activation", lambda: _bad_layer(activation="swish")),
            ("renormalize", TypeError, "renormalize", lambda: _bad_layer(renormalize=1)),
            (
                "shared_half",
                ValueError,
                "shared_down_proj",
                lambda: _bad_layer(shared_down_proj=_SHARED["shared_down_proj"]),
            ),
            (
                "shared_rows",
                ValueError,
                "shared_gate_up_proj",
                lambda: _bad_layer(**_SHARED | {"shared_gate_up_proj": ones(5, 8)}),
            ),
            (
                "shared_gate",
                ValueError,
                "shared_expert_gate",
                lambda: _bad_layer(**_SHARED, shared_expert_gate=ones(8)),
            ),
        ),
        _moe_workload,
    ),
)
