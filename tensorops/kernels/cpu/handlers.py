"""How calls of operators are written as calls of the handlers in ``native/cpu/xla_<family>.cpp``.

A handler gets arrays and options that are numbers, and allocates nothing. JAX's programs call them, and the plans of
`tensorops.PersistentKernel`. Arrays are contiguous, but plans may give some of them with strides: in bytes, as options
of their names, ``x_0``, ``x_1`` and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tensorops._row_axes import RowAxes, given


class Handler(NamedTuple):
    """How one operator is written.

    Parameters
    ----------
    options
        The options that the handler takes, and the arrays whose places it is told because others may be left out.
    name
        Returns the handler's name for the operator's arguments, if it is not the operator's.
    rows
        Tells how axes correspond, if the operator does not declare it.
    mixed
        Whether it reads parameters in any dtype. Others need them in the dtype of the first array, or, beside a half
        type, in float32.
    strided
        The arrays of at most 8 axes that may have strides, though elements along the last axis are neighbours.
    """

    options: tuple[str, ...] = ()
    name: Callable[[dict[str, Any]], str] | None = None
    rows: Callable[..., RowAxes] | None = None
    mixed: bool = True
    strided: tuple[str, ...] = ()


def _rows_of_sample(logits: Any, temperature: float, rng: Any, **_: Any) -> RowAxes:
    """Tell how the axes of the arrays of `sample` correspond; at temperature 0 it needs no numbers."""
    every = tuple(range(logits.ndim))
    drawn = given(rng=(rng if temperature > 0 else None, every[:-1]))
    return RowAxes({"logits": every, **drawn}, every[:-1], every[-1:], sharing=1 + len(drawn), indices=(0,))


def _loss(arguments: dict[str, Any]) -> str:
    reduction = arguments["reduction"]
    return "cross_entropy" if reduction == "mean" else f"cross_entropy_{reduction}"


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        ("relu", "relu_squared", "hard_swish", "sigmoid", "silu", "softplus", "mish", "selu"), Handler(mixed=False)
    ),
    **dict.fromkeys(("swiglu", "geglu", "reglu"), Handler(mixed=False, strided=("gate", "up"))),
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp"), Handler(mixed=False)),
    **dict.fromkeys(("quick_gelu", "elu"), Handler(("alpha",), mixed=False)),
    "leaky_relu": Handler(("negative_slope",), mixed=False),
    "hard_sigmoid": Handler(("alpha", "beta"), mixed=False),
    "gelu": Handler(name=lambda given: "gelu" if given["approximate"] == "none" else "gelu_tanh", mixed=False),
    "rms_norm": Handler(("eps", "weight_offset"), mixed=False),
    **dict.fromkeys(("add_rms_norm", "layer_norm", "l2_norm", "instance_norm"), Handler(("eps",), mixed=False)),
    "group_norm": Handler(("eps", "num_groups"), mixed=False),
    "linear": Handler(),
    "quantized_linear": Handler(("bits", "group_size")),
    "dequantize": Handler(("bits", "group_size")),
    "grouped_linear": Handler(),
    "grouped_quantized_linear": Handler(("bits", "group_size")),
    "top_k": Handler(("largest",), mixed=False),
    "cross_entropy": Handler(("ignore_index", "label_smoothing", "z_loss"), _loss),
    "rope": Handler(
        ("base", "interleaved", "dims", "attention_factor"),
        lambda given: "rope" if given["cos"] is None else "rope_by_tables",
        strided=("x",),
    ),
    "scaled_dot_product_attention": Handler(
        ("is_causal", "scale", "window", "softcap", "mask", "sinks", "lengths", "page_table"), strided=("q", "k", "v")
    ),
    "sample": Handler(("temperature", "top_k", "top_p", "min_p"), rows=_rows_of_sample),
}
"""By the operator's name."""
