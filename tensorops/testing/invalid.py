"""Arguments that operators must refuse, and the errors they must raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops.testing.cases import Arguments, _args, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["INVALID", "InvalidCase"]


@dataclass(frozen=True, slots=True)
class InvalidCase:
    """Arguments that an operator must refuse, and the error it must raise.

    Parameters
    ----------
    operator : str
        Name of the operator.
    name : str
        Name of the case, unique for the operator.
    arguments : callable
        Makes positional and keyword arguments; floating arrays are float64 and may be cast.
    exception : type
        `ValueError` for shapes and values, `TypeError` for dtypes and kinds of arguments.
    message : str
        Regular expression for `re.search` in the message, which reads ``<operator>: <argument> ...``.
    """

    operator: str
    name: str
    arguments: Callable[[], Arguments]
    exception: type[Exception]
    message: str

    def __str__(self) -> str:
        return f"{self.operator}-{self.name}"

    def build(self, dtype_name: str = "float64") -> Arguments:
        """Return the positional and the keyword arguments."""
        args, kwargs = self.arguments()
        return cast(args, dtype_name), cast(kwargs, dtype_name)


def _ones(*shape: int) -> NDArray[np.float64]:
    return np.ones(shape)


def _integers(*shape: int) -> NDArray[np.int64]:
    return np.ones(shape, dtype=np.int64)


def _bytes(*shape: int) -> NDArray[np.uint8]:
    return np.ones(shape, dtype=np.uint8)


def _refuses(
    operator: str, *refusals: tuple[str, type[Exception], str, Callable[[], Arguments]]
) -> tuple[InvalidCase, ...]:
    """Build the cases; an expression that is one or more argument names joined by ``|`` is completed."""

    def pattern(expression: str) -> str:
        if expression.replace("|", "").isidentifier():
            return rf"^{operator}: ({expression})\b"
        return expression

    return tuple(
        InvalidCase(operator, name, arguments, exception, pattern(expression))
        for name, exception, expression, arguments in refusals
    )


def _refuses_kinds(operator: str) -> tuple[InvalidCase, ...]:
    """Cases for a function of one array."""
    return _refuses(
        operator,
        ("integer_x", TypeError, "x", lambda: _args(_integers(3))),
        ("bool_x", TypeError, "x", lambda: _args(np.array([True, False]))),
        ("no_array", TypeError, "x", lambda: _args(None)),
    )


def _refuses_gates(operator: str) -> tuple[InvalidCase, ...]:
    return _refuses(
        operator,
        ("up_shape", ValueError, "up", lambda: _args(_ones(3, 4), _ones(3, 5))),
        ("integer_gate", TypeError, "gate", lambda: _args(_integers(3), _ones(3))),
        ("integer_up", TypeError, "up", lambda: _args(_ones(3), _integers(3))),
    )


def _refuses_slices(operator: str) -> tuple[InvalidCase, ...]:
    return _refuses(
        operator,
        ("axis_beyond", ValueError, "axis", lambda: _args(_ones(2, 3), axis=2)),
        ("where_shape", ValueError, "where", lambda: _args(_ones(2, 3), where=np.ones((2, 4), dtype=bool))),
        ("where_float", TypeError, "where", lambda: _args(_ones(2, 3), where=_ones(2, 3))),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 3))),
    )


def _qkv(hq: int = 2, hkv: int = 2, tk: int = 5, d: int = 4, tv: int = 5) -> tuple[Any, Any, Any]:
    return _ones(1, hq, 3, 4), _ones(1, hkv, tk, d), _ones(1, hkv, tv, 4)


_UNIFORM = np.full(2, 0.5)

INVALID: Mapping[str, tuple[InvalidCase, ...]] = {
    "rms_norm": _refuses(
        "rms_norm",
        (
            "weight_length",
            ValueError,
            "^rms_norm: weight has 7 elements, but axis -1 of x has 8",
            lambda: _args(_ones(2, 8), _ones(7)),
        ),
        ("weight_2d", ValueError, "weight", lambda: _args(_ones(2, 8), _ones(1, 8))),
        ("axis_beyond", ValueError, "axis", lambda: _args(_ones(2, 8), axis=2)),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 8), _ones(8))),
        ("integer_weight", TypeError, "weight", lambda: _args(_ones(2, 8), _integers(8))),
        ("negative_eps", ValueError, "eps", lambda: _args(_ones(2, 8), _ones(8), -1e-6)),
    ),
    "add_rms_norm": _refuses(
        "add_rms_norm",
        ("residual_shape", ValueError, "residual", lambda: _args(_ones(2, 8), _ones(2, 7))),
        (
            "weight_length",
            ValueError,
            "^add_rms_norm: weight has 7 elements, but axis -1 of x has 8",
            lambda: _args(_ones(2, 8), _ones(2, 8), _ones(7)),
        ),
        ("axis_beyond", ValueError, "axis", lambda: _args(_ones(2, 8), _ones(2, 8), axis=-3)),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 8), _ones(2, 8))),
    ),
    "layer_norm": _refuses(
        "layer_norm",
        ("weight_shape", ValueError, "weight", lambda: _args(_ones(2, 8), _ones(7))),
        ("bias_shape", ValueError, "bias", lambda: _args(_ones(2, 8), None, _ones(8, 1))),
        ("axis_beyond", ValueError, "axis", lambda: _args(_ones(2, 8), axis=(0, 2))),
        ("axis_twice", ValueError, "axis", lambda: _args(_ones(2, 8), axis=(1, -1))),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 8))),
        ("nan_eps", ValueError, "eps", lambda: _args(_ones(2, 8), eps=float("nan"))),
    ),
    "silu": _refuses_kinds("silu"),
    "sigmoid": _refuses_kinds("sigmoid"),
    "relu": _refuses_kinds("relu"),
    "softplus": _refuses_kinds("softplus"),
    "gelu": (
        *_refuses_kinds("gelu"),
        *_refuses("gelu", ("approximate", ValueError, "approximate", lambda: _args(_ones(3), approximate="fast"))),
    ),
    "swiglu": _refuses_gates("swiglu"),
    "geglu": _refuses_gates("geglu"),
    "softmax": _refuses_slices("softmax"),
    "log_softmax": _refuses_slices("log_softmax"),
    "logsumexp": _refuses(
        "logsumexp",
        ("axis_beyond", ValueError, "axis", lambda: _args(_ones(2, 3), axis=-3)),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 3))),
    ),
    "rope": _refuses(
        "rope",
        ("dims_odd", ValueError, "dims", lambda: _args(_ones(1, 2, 3, 8), np.arange(3), dims=5)),
        ("dims_beyond", ValueError, "dims", lambda: _args(_ones(1, 2, 3, 8), np.arange(3), dims=10)),
        ("positions_length", ValueError, "positions", lambda: _args(_ones(1, 2, 3, 8), np.arange(4))),
        ("freqs_length", ValueError, "freqs", lambda: _args(_ones(1, 2, 3, 8), np.arange(3), freqs=_ones(8))),
        ("integer_x", TypeError, "x", lambda: _args(_integers(1, 2, 3, 8), np.arange(3))),
    ),
    "scaled_dot_product_attention": _refuses(
        "scaled_dot_product_attention",
        ("q_3d", ValueError, "q", lambda: _args(_ones(2, 3, 4), _ones(2, 3, 4), _ones(2, 3, 4))),
        ("heads", ValueError, "q|k", lambda: _args(*_qkv(hq=3))),
        ("head_dim", ValueError, "q|k", lambda: _args(*_qkv(d=5))),
        ("value_length", ValueError, "k|v", lambda: _args(*_qkv(tv=6))),
        ("mask_shape", ValueError, "mask", lambda: _args(*_qkv(), mask=_ones(3, 6))),
        ("mask_integer", TypeError, "mask", lambda: _args(*_qkv(), mask=_integers(3, 5))),
        ("window_zero", ValueError, "window", lambda: _args(*_qkv(), window=0)),
        ("sinks_length", ValueError, "sinks", lambda: _args(*_qkv(), sinks=_ones(3))),
    ),
    "linear": _refuses(
        "linear",
        ("weight_features", ValueError, "weight", lambda: _args(_ones(2, 8), _ones(3, 7))),
        ("weight_1d", ValueError, "weight", lambda: _args(_ones(2, 8), _ones(8))),
        ("bias_length", ValueError, "bias", lambda: _args(_ones(2, 8), _ones(3, 8), _ones(4))),
        ("integer_x", TypeError, "x", lambda: _args(_integers(2, 8), _ones(3, 8))),
    ),
    "embedding": _refuses(
        "embedding",
        ("float_ids", TypeError, "ids", lambda: _args(_ones(3), _ones(5, 4))),
        ("weight_1d", ValueError, "weight", lambda: _args(_integers(3), _ones(5))),
    ),
    "quantize": _refuses(
        "quantize",
        ("bits", ValueError, "bits", lambda: _args(_ones(2, 64), bits=3, group_size=32)),
        ("group_size", ValueError, "group_size|w", lambda: _args(_ones(2, 60), bits=4, group_size=32)),
        ("mode", ValueError, "mode", lambda: _args(_ones(2, 64), bits=4, group_size=32, mode="other")),
        ("w_1d", ValueError, "w", lambda: _args(_ones(64), bits=4, group_size=32)),
        ("integer_w", TypeError, "w", lambda: _args(_integers(2, 64), bits=4, group_size=32)),
        (
            "symmetric_bits",
            ValueError,
            "bits|mode",
            lambda: _args(_ones(2, 64), bits=4, group_size=32, mode="symmetric"),
        ),
    ),
    "dequantize": _refuses(
        "dequantize",
        ("float_weight", TypeError, "weight", lambda: _args(_ones(2, 32), _ones(2, 2), _ones(2, 2))),
        ("scales_shape", ValueError, "scales", lambda: _args(_bytes(2, 32), _ones(2, 3), _ones(2, 3))),
        ("biases_shape", ValueError, "biases", lambda: _args(_bytes(2, 32), _ones(2, 2), _ones(2, 1))),
        ("no_biases", ValueError, "bits|biases", lambda: _args(_bytes(2, 32), _ones(2, 2))),
        ("bits", ValueError, "bits", lambda: _args(_bytes(2, 32), _ones(2, 2), _ones(2, 2), bits=5)),
    ),
    "quantized_linear": _refuses(
        "quantized_linear",
        (
            "weight_features",
            ValueError,
            "weight",
            lambda: _args(_ones(3, 96), _bytes(2, 32), _ones(2, 2), _ones(2, 2)),
        ),
        (
            "scales_shape",
            ValueError,
            "scales",
            lambda: _args(_ones(3, 64), _bytes(2, 32), _ones(2, 3), _ones(2, 3)),
        ),
        ("no_biases", ValueError, "bits|biases", lambda: _args(_ones(3, 64), _bytes(2, 32), _ones(2, 2))),
        (
            "float_weight",
            TypeError,
            "weight",
            lambda: _args(_ones(3, 64), _ones(2, 32), _ones(2, 2), _ones(2, 2)),
        ),
        (
            "integer_x",
            TypeError,
            "x",
            lambda: _args(_integers(3, 64), _bytes(2, 32), _ones(2, 2), _ones(2, 2)),
        ),
    ),
    "cross_entropy": _refuses(
        "cross_entropy",
        ("targets_shape", ValueError, "targets", lambda: _args(_ones(3, 5), _integers(4))),
        ("float_targets", TypeError, "targets", lambda: _args(_ones(3, 5), _ones(3))),
        ("reduction", ValueError, "reduction", lambda: _args(_ones(3, 5), _integers(3), reduction="max")),
        (
            "label_smoothing",
            ValueError,
            "label_smoothing",
            lambda: _args(_ones(3, 5), _integers(3), label_smoothing=1.5),
        ),
        ("integer_logits", TypeError, "logits", lambda: _args(_integers(3, 5), _integers(3))),
    ),
    "sample": _refuses(
        "sample",
        (
            "temperature",
            ValueError,
            "temperature",
            lambda: _args(_ones(2, 5), temperature=-1.0, rng=_UNIFORM),
        ),
        ("top_k", ValueError, "top_k", lambda: _args(_ones(2, 5), top_k=0, rng=_UNIFORM)),
        ("top_p", ValueError, "top_p", lambda: _args(_ones(2, 5), top_p=1.5, rng=_UNIFORM)),
        ("min_p", ValueError, "min_p", lambda: _args(_ones(2, 5), min_p=-0.1, rng=_UNIFORM)),
        ("integer_logits", TypeError, "logits", lambda: _args(_integers(2, 5), rng=_UNIFORM)),
    ),
}
"""Arguments that every operator must refuse."""
