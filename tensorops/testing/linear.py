"""Products with matrices, and rows of tables: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from tensorops.testing._stored_blocks import decode, random_blocks
from tensorops.testing.activation import geglu, gelu, reglu, relu, sigmoid, silu, swiglu
from tensorops.testing.entries import Arguments, Case, Entry, Maker, Workload
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
    ones,
    quiet,
    single,
)


@quiet
def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Float64:
    """``x @ weight.T + bias`` with `weight` (out, in)."""
    y = float64(x) @ float64(weight).T
    return float64(y if bias is None else y + float64(bias))


@quiet
def linear_activation(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, activation: str) -> Float64:
    """Apply a function to ``x @ weight.T + bias``."""
    y = linear(x, weight, bias)
    if activation == "gelu_tanh":
        return gelu(y, approximate="tanh")
    return {"relu": relu, "sigmoid": sigmoid, "silu": silu, "gelu": gelu}[activation](y)


@quiet
def gated_linear_unit(
    x: ArrayLike, gate_weight: ArrayLike, up_weight: ArrayLike, *, activation: str = "swiglu"
) -> Float64:
    """Apply a gated unit to ``x @ gate_weight.T`` and ``x @ up_weight.T``."""
    gate, up = linear(x, gate_weight), linear(x, up_weight)
    if activation == "geglu_tanh":
        return float64(gelu(gate, approximate="tanh") * up)
    if activation == "glu":
        return float64(sigmoid(gate) * up)
    return {"swiglu": swiglu, "geglu": geglu, "reglu": reglu}[activation](gate, up)


def embedding(ids: ArrayLike, weight: ArrayLike, *, format: str | None = None) -> Float64:
    """``weight[ids]``."""
    table = float64(weight) if format is None else decode(format, np.asarray(weight))
    return float64(table[np.asarray(ids)])


# --- cases -------------------------------------------------------------------------------------------


def _linear_cases() -> Iterator[Case]:
    case = partial(Case, "linear", tolerance=32.0)

    def xw(r: np.random.Generator, n_in: int, n_out: int, *batch: int) -> Arguments:
        return args(normal(r, *batch, n_in), normal(r, n_out, n_in))

    yield case("typical", lambda r: args(*xw(r, 64, 32, 4)[0], normal(r, 32)))
    for n in ODD_LENGTHS:
        yield case(f"in_{n}", partial(lambda r, n: xw(r, n, 5, 3), n=n), scale_axis=None)
        yield case(f"out_{n}", partial(lambda r, n: xw(r, 16, n, 3), n=n), scale_axis=None)
    yield case("no_bias", lambda r: xw(r, 33, 17, 5))
    yield case("one_dimension", lambda r: args(*xw(r, 17, 9)[0], normal(r, 9)))
    yield case("float32_parameters", lambda r: args(normal(r, 5, 33), single(normal(r, 17, 33)), single(normal(r, 17))))
    yield case("float32_bias", lambda r: args(*xw(r, 33, 17, 5)[0], single(normal(r, 17))))
    yield case("batch", lambda r: args(*xw(r, 16, 8, 2, 3, 5)[0], normal(r, 8)))
    yield case("empty_batch", lambda r: xw(r, 8, 4, 0), tags=EMPTY)
    yield case("empty_in", lambda r: args(*xw(r, 0, 4, 3)[0], normal(r, 4)), tags=EMPTY)
    # 120000 is infinite in float16 and finite elsewhere.
    yield case(
        "overflows_float16",
        lambda r: args(np.full((2, 3), 200.0), np.array([[200.0], [-200.0]]) * np.ones(3)),
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS, 1.0 + r.random((3, 4))), tags=SPECIAL)


ACTIVATIONS = ("relu", "sigmoid", "silu", "gelu", "gelu_tanh")


def _linear_activation_cases() -> Iterator[Case]:
    case = partial(Case, "linear_activation", tolerance=64.0)

    def call(r: np.random.Generator, name: str, n_in: int, n_out: int, *batch: int) -> Arguments:
        # Sums of about the size of x
        weight = normal(r, n_out, n_in, scale=max(n_in, 1) ** -0.5)
        return args(normal(r, *batch, n_in), weight, normal(r, n_out), activation=name)

    gates = np.linspace(-6.0, 6.0, 49)[:, None]  # exact in half types
    for name in ACTIVATIONS:
        yield case(name, partial(lambda r, name: call(r, name, 64, 33, 5), name=name))
        tails = partial(lambda r, name: args(ones(4, 1), gates, activation=name), name=name)
        yield case(f"tails_{name}", tails, scale_axis=())
        special = partial(lambda r, name: args(SPECIAL_ROWS, 1.0 + r.random((3, 4)), activation=name), name=name)
        yield case(f"special_{name}", special, tags=SPECIAL)
    for n in ODD_LENGTHS:
        yield case(f"in_{n}", partial(lambda r, n: call(r, "gelu", n, 5, 3), n=n), scale_axis=None)
        yield case(f"out_{n}", partial(lambda r, n: call(r, "silu", 16, n, 3), n=n), scale_axis=None)
    yield case("one_dimension", lambda r: call(r, "gelu", 17, 9))
    yield case("panels", lambda r: call(r, "gelu", 64, 33, 40))  # many rows
    yield case("batch", lambda r: call(r, "relu", 16, 8, 2, 3, 5))
    yield case(
        "float32_parameters",
        lambda r: args(normal(r, 5, 33), single(normal(r, 17, 33)), single(normal(r, 17)), activation="gelu"),
    )
    yield case("empty_batch", lambda r: call(r, "gelu", 8, 4, 0), tags=EMPTY)
    yield case("empty_in", lambda r: call(r, "gelu", 0, 4, 3), tags=EMPTY)
    # The sum of -120000 is infinite in float16; that of the other sign has no finite result there.
    yield case(
        "overflows_between",
        lambda r: args(np.full((2, 3), 200.0), np.full((4, 3), -200.0), activation="relu"),
        tags=EXTREME,
    )


GATED_UNITS = ("swiglu", "geglu", "geglu_tanh", "reglu", "glu")


def _gated_linear_unit_cases() -> Iterator[Case]:
    case = partial(Case, "gated_linear_unit", tolerance=64.0)

    def call(r: np.random.Generator, n_in: int, n_out: int, *batch: int, **options: str) -> Arguments:
        # Products of about the size of x
        weights = (normal(r, n_out, n_in, scale=max(n_in, 1) ** -0.5) for _ in range(2))
        return args(normal(r, *batch, n_in), *weights, **options)

    for unit in GATED_UNITS:
        yield case(unit, partial(lambda r, unit: call(r, 64, 33, 5, activation=unit), unit=unit))
    for n in ODD_LENGTHS:
        yield case(f"in_{n}", partial(lambda r, n: call(r, n, 5, 3), n=n), scale_axis=None)
        yield case(f"out_{n}", partial(lambda r, n: call(r, 16, n, 3), n=n), scale_axis=None)
    yield case("one_dimension", lambda r: call(r, 17, 9))
    yield case("batch", lambda r: call(r, 16, 8, 2, 3, 5))
    yield case(
        "float32_parameters", lambda r: args(normal(r, 5, 33), single(normal(r, 17, 33)), single(normal(r, 17, 33)))
    )
    yield case("float32_up_weight", lambda r: args(normal(r, 5, 33), normal(r, 17, 33), single(normal(r, 17, 33))))
    yield case("empty_batch", lambda r: call(r, 8, 4, 0), tags=EMPTY)
    yield case("empty_in", lambda r: call(r, 0, 4, 3), tags=EMPTY)
    gates = np.linspace(-6.0, 6.0, 49)[:, None]  # exact in half types
    for unit in GATED_UNITS:
        tails = partial(lambda r, unit: args(ones(4, 1), gates, ones(49, 1), activation=unit), unit=unit)
        yield case(f"tails_{unit}", tails, scale_axis=())
    # The gate of 120000 is infinite in float16, the result of 36000 is not.
    yield case(
        "overflows_between",
        lambda r: args(np.full((2, 3), 200.0), np.array([[200.0], [-200.0]]) * ones(3), np.full((2, 3), 0.0005)),
        tags=EXTREME,
    )
    for unit in GATED_UNITS:
        special = partial(
            lambda r, unit: args(SPECIAL_ROWS, 1.0 + r.random((3, 4)), 1.0 + r.random((3, 4)), activation=unit),
            unit=unit,
        )
        yield case(f"special_{unit}", special, tags=SPECIAL)


def _embedding_cases() -> Iterator[Case]:
    case = partial(Case, "embedding", tolerance=0.0, half_tolerance=0.0, scale_axis=())
    yield case("typical", lambda r: args(r.integers(0, 33, (2, 9)), normal(r, 33, 16)))
    for n in ODD_LENGTHS:
        yield case(f"length_{n}", partial(lambda r, n: args(r.integers(0, 11, 4), normal(r, 11, n)), n=n))
    yield case("int32", lambda r: args(r.integers(0, 7, 5, dtype=np.int32), normal(r, 7, 4)))
    yield case("repeated", lambda r: args(np.array([3, 3, 0, 6, 3]), normal(r, 7, 4)))
    yield case("scalar", lambda r: args(np.array(2), normal(r, 7, 4)))
    yield case("three_axes", lambda r: args(r.integers(0, 7, (2, 3, 2)), normal(r, 7, 4)))
    yield case("empty", lambda r: args(np.zeros((2, 0), dtype=np.int64), normal(r, 7, 4)), tags=EMPTY)
    yield case("length_256", lambda r: args(r.integers(0, 11, 9), normal(r, 11, 256)))
    for name in ("q6_k", "q8_0"):
        blocks = partial(lambda r, n: args(r.integers(0, 11, (2, 3)), random_blocks(r, n, 11, 512), format=n), n=name)
        yield case(name, blocks, dtypes=("float32",), tolerance=1.0)
    yield case("special", lambda r: args(np.array([5, 0, 1, 2, 3, 4]), SPECIAL_ROWS), tags=SPECIAL)


# --- workloads, and all of it by operator ------------------------------------------------------------


VOCABULARY = 8192


def _embedding_workload(make: Maker) -> Workload:
    table = make.normal(VOCABULARY, make.features)
    row = make.features * make.dtype.itemsize
    return Workload((make.integers(VOCABULARY, make.rows), table), unread=max(VOCABULARY - make.rows, 0) * row)


ENTRIES = (
    Entry(
        linear,
        tuple(_linear_cases()),
        (
            ("weight_features", ValueError, "weight", lambda: args(ones(2, 8), ones(3, 7))),
            ("weight_1d", ValueError, "weight", lambda: args(ones(2, 8), ones(8))),
            ("bias_length", ValueError, "bias", lambda: args(ones(2, 8), ones(3, 8), ones(4))),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(3, 8))),
        ),
        lambda m: Workload((m.x(), m.normal(m.features, m.features))),
    ),
    Entry(
        linear_activation,
        tuple(_linear_activation_cases()),
        (
            ("weight_features", ValueError, "weight", lambda: args(ones(2, 8), ones(3, 7), activation="relu")),
            ("bias_length", ValueError, "bias", lambda: args(ones(2, 8), ones(3, 8), ones(4), activation="relu")),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(3, 8), activation="relu")),
            ("activation", ValueError, "activation", lambda: args(ones(2, 8), ones(3, 8), activation="tanh")),
        ),
        lambda m: Workload((m.x(), m.normal(m.features, m.features)), {"activation": "gelu"}),
    ),
    Entry(
        gated_linear_unit,
        tuple(_gated_linear_unit_cases()),
        (
            ("gate_features", ValueError, "gate_weight", lambda: args(ones(2, 8), ones(3, 7), ones(3, 8))),
            ("up_features", ValueError, "up_weight", lambda: args(ones(2, 8), ones(3, 8), ones(3, 7))),
            ("rows", ValueError, "up_weight", lambda: args(ones(2, 8), ones(3, 8), ones(4, 8))),
            ("gate_1d", ValueError, "gate_weight", lambda: args(ones(2, 8), ones(8), ones(3, 8))),
            ("scalar_x", ValueError, "x", lambda: args(np.ones(()), ones(3, 8), ones(3, 8))),
            ("integer_x", TypeError, "x", lambda: args(integers(2, 8), ones(3, 8), ones(3, 8))),
            ("integer_weight", TypeError, "up_weight", lambda: args(ones(2, 8), ones(3, 8), integers(3, 8))),
            (
                "activation",
                ValueError,
                "activation",
                lambda: args(ones(2, 8), ones(3, 8), ones(3, 8), activation="silu"),
            ),
        ),
        lambda m: Workload((m.x(), m.normal(m.features, m.features), m.normal(m.features, m.features))),
    ),
    Entry(
        embedding,
        tuple(_embedding_cases()),
        (
            ("float_ids", TypeError, "ids", lambda: args(ones(3), ones(5, 4))),
            ("weight_1d", ValueError, "weight", lambda: args(integers(3), ones(5))),
        ),
        _embedding_workload,
    ),
)
