"""Why kernels do not take calls of operators with more than rows and parameters, and which handler takes the others.

XLA cannot raise in the middle of a program: the loss of a target that is out of range is NaN, and so are features that
rotate to a row outside the tables; lengths and pages out of range are clamped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops._dtypes import FLOATING, INTEGER, is_floating
from tensorops._typing import Array
from tensorops.kernels.jax_ffi._launch import refuse_array

NARROW = ("float16", "bfloat16", "float32")
_MOST_EXACT = 2**53  # of the integers in float64, in which handlers get options
_USUAL = (1e-30, 1e30)  # this and the next as in native/cpu/bind_attention.cpp
_MOST_FEATURES = 16384

# ----------------------------------------------------------------------------------------------- cross_entropy


def refuse_loss(arguments: dict[str, Any]) -> str | None:
    """Return why `cross_entropy` does not take the arguments."""
    logits, targets, weight = (arguments[name] for name in ("logits", "targets", "weight"))
    for name, a, dtypes, least in (
        ("logits", logits, FLOATING, 1),
        ("targets", targets, (*FLOATING, *INTEGER), 0),
        ("weight", weight, FLOATING, 1),
    ):
        if a is not None and (reason := refuse_array(name, a, dtypes, least)):
            return reason
    if 0 in logits.shape:
        return "logits is empty"
    if is_floating(targets) and not _goes_with(targets, logits):
        return "targets has another dtype than logits"
    if weight is not None and not _goes_with(weight, logits):
        return "weight has another dtype than logits"
    ignored = arguments["ignore_index"]
    exact = -(2**63) <= ignored < 2**63 and int(float(ignored)) == ignored
    return None if exact else "ignore_index is not an int64 that float64 holds"


def _goes_with(a: Array, logits: Array) -> bool:
    """Return whether an array has the dtype of the logits, or float32 beside a half type."""
    return bool(a.dtype == logits.dtype or (a.dtype == np.float32 and logits.dtype.itemsize == 2))


def rows_of_loss(arguments: dict[str, Any]) -> int:
    """Return how many arrays an axis may be added to: none if the losses of all rows are combined."""
    return 2 if arguments["reduction"] == "none" else 0


# -------------------------------------------------------------------------------------------------------- rope


def refuse_rotation(arguments: dict[str, Any]) -> str | None:
    """Return why `rope` does not take the arguments."""
    x, numbers = arguments["x"], (*INTEGER, "float32", "float64")
    for name in ("x", "positions", "freqs", "cos", "sin"):
        dtypes = numbers if name == "positions" else FLOATING
        if arguments[name] is not None and (reason := refuse_array(name, arguments[name], dtypes)):
            return reason
    if 0 in x.shape:
        return "x is empty"
    return None if arguments["dims"] else "dims is 0"


# ------------------------------------------------------------------------------------------------------ linear


def refuse_linear(arguments: dict[str, Any]) -> str | None:
    """Return why `linear` does not take the arguments."""
    for name in ("x", "weight", "bias"):
        if arguments[name] is not None and (reason := refuse_array(name, arguments[name], NARROW)):
            return reason
    x, weight = arguments["x"], arguments["weight"]
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


def most_rows_of_linear(arguments: dict[str, Any]) -> int:
    """Return up to how many rows the kernel is faster than XLA, which widens half types for its product.

    ``docs/kernels-under-libraries.md`` has the measurements.
    """
    return 32 if arguments["x"].dtype == arguments["weight"].dtype == np.float32 else 256


# ------------------------------------------------------------------------------------------- weights in groups


def refuse_quantized(arguments: dict[str, Any]) -> str | None:
    """Return why `quantized_linear` does not take the arguments."""
    x, weight, scales, biases = (arguments[name] for name in ("x", "weight", "scales", "biases"))
    for name, a, dtypes in (("x", x, NARROW), ("weight", weight, ("uint8",)), ("scales", scales, NARROW)):
        if reason := refuse_array(name, a, dtypes):
            return reason
    if biases is not None and biases.dtype != scales.dtype:
        return "biases has another dtype than scales"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


def refuse_grouped(arguments: dict[str, Any]) -> str | None:
    """Return why `grouped_linear` or `grouped_quantized_linear` does not take the arguments."""
    integers = {"experts": ("int32", "int64"), "weight": ("uint8",) if "scales" in arguments else NARROW}
    for name in ("x", "experts", "weight", "bias", "scales", "biases"):
        a = arguments.get(name)
        if a is not None and (reason := refuse_array(name, a, integers.get(name, NARROW))):
            return reason
    if arguments.get("biases") is not None and arguments["biases"].dtype != arguments["scales"].dtype:
        return "biases has another dtype than scales"
    empty = 0 in (*arguments["x"].shape, *arguments["experts"].shape, *arguments["weight"].shape)
    return "x, experts or weight is empty" if empty else None


# --------------------------------------------------------------------------------------------------- attention


def refuse_attention(arguments: dict[str, Any]) -> str | None:
    """Return why `scaled_dot_product_attention` does not take the arguments."""
    dtypes = {"mask": (*FLOATING, "bool"), "lengths": INTEGER, "page_table": INTEGER}
    for name in ("q", "k", "v", "mask", "sinks", "lengths", "page_table"):
        a = arguments[name]
        if a is not None and (reason := refuse_array(name, a, dtypes.get(name, FLOATING))):
            return reason
        if a is not None and 0 in a.shape:
            return f"{name} is empty"
    for name in ("q", "v"):
        if arguments[name].shape[3] > _MOST_FEATURES:
            return f"{name} has more than {_MOST_FEATURES} features"
    least, most = _USUAL
    for name in ("scale", "softcap"):
        if arguments[name] and not least <= abs(arguments[name]) <= most:
            return f"{name} is not a usual number"
    return None


# ------------------------------------------------------------------------------------------------------ sample


def with_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Draw the uniform numbers that a call needs, as the body does."""
    rng, logits = arguments["rng"], arguments["logits"]
    if arguments["temperature"] == 0:
        return arguments | {"rng": None}
    if not isinstance(rng, np.random.Generator):
        return arguments
    import jax

    drawn = rng.random(logits.shape[:-1], dtype=np.float32)
    # Those for an array that is spread over devices are on none in particular: XLA gives each device what it needs.
    alone = not isinstance(logits, jax.core.Tracer) and len(logits.devices()) == 1
    return arguments | {"rng": jax.device_put(drawn, logits.sharding if alone else None)}


def refuse_sample(arguments: dict[str, Any]) -> str | None:
    """Return why `sample` does not take the arguments."""
    logits, rng, temperature, top_k = (arguments[name] for name in ("logits", "rng", "temperature", "top_k"))
    if reason := refuse_array("logits", logits):
        return reason
    if 0 in logits.shape:
        return "logits is empty"
    if temperature == 0:
        return None
    if not isinstance(rng, np.random.Generator) and (reason := refuse_array("rng", rng, least=0)):
        return reason
    if top_k is not None and top_k > _MOST_EXACT:
        return f"top_k is more than {_MOST_EXACT}"
    if logits.dtype == np.float64:
        return None
    limits = np.finfo(np.float32)
    if not float(limits.tiny) <= temperature <= float(limits.max):  # NumPy would round the temperature
        return "temperature is beyond the range of float32"
    return "top_p is beyond the range of float32" if arguments["top_p"] and not np.float32(arguments["top_p"]) else None
