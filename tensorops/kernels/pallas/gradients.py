"""Kernels of derivatives in reverse mode, for norms, the softmax family and cross_entropy.

Work: a step has a block of whole rows; it computes again what the derivative needs of the call. Gradients of the
parameters of every row are summed in each block, and the sums of blocks by XLA.
Precision: float32 inside, whatever the dtypes are.
Bytes: the arguments and the cotangents are read once, and each gradient is written once; the sums of a block are one
row, of dozens to thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorops.kernels.pallas.blocks import Blocks
from tensorops.kernels.pallas.rows import (
    centred,
    mask_of,
    over_rows,
    root_mean_square,
    scaled_to_one,
    shifted_exponentials,
    unit_vectors,
)
from tensorops.kernels.pallas.sums import as_int32, shares_of_classes, shift_of
from tensorops.ops.loss import UNIT, reduced_cross_entropy

Names = tuple[str, ...]
Arrays = Sequence[jax.Array]


def rms_norm(
    blocks: Blocks,
    generation: str,
    wanted: Names,
    rest: Arrays,
    x: jax.Array,
    weight: Any = None,
    *,
    eps: float,
    weight_offset: float = 0.0,
    **_: Any,
) -> list[jax.Array]:
    """Compute the gradients of `tensorops.rms_norm`."""

    def compute(x: jax.Array, dy: jax.Array, weight: Any) -> dict[str, jax.Array]:
        normal, inverse = _normalized(x, eps)
        slope = dy if weight is None else dy * (weight + weight_offset)
        return {"x": inverse * _without(normal, slope), "weight": dy * normal}

    return _gradients("rms_norm", compute, blocks, generation, wanted, [x, *rest], {"weight": weight})


def add_rms_norm(
    blocks: Blocks,
    generation: str,
    wanted: Names,
    rest: Arrays,
    x: jax.Array,
    residual: jax.Array,
    weight: Any = None,
    *,
    eps: float,
    **_: Any,
) -> list[jax.Array]:
    """Compute the gradients of `tensorops.add_rms_norm`; those of `x` and of `residual` are one array."""
    dtype = x.dtype

    def compute(x: jax.Array, residual: jax.Array, dy: jax.Array, of_total: jax.Array, weight: Any) -> Any:
        normal, inverse = _normalized((x + residual).astype(dtype).astype(jnp.float32), eps)
        slope = dy if weight is None else dy * weight
        return {"x": of_total + inverse * _without(normal, slope), "weight": dy * normal}

    names = tuple(dict.fromkeys("x" if name == "residual" else name for name in wanted))
    rows, parameters = [x, residual, *rest], {"weight": weight}
    found = _gradients("add_rms_norm", compute, blocks, generation, names, rows, parameters)
    return [found[names.index("x" if name == "residual" else name)] for name in wanted]


def layer_norm(
    blocks: Blocks,
    generation: str,
    wanted: Names,
    rest: Arrays,
    x: jax.Array,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float,
    **_: Any,
) -> list[jax.Array]:
    """Compute the gradients of `tensorops.layer_norm`."""

    def compute(x: jax.Array, dy: jax.Array, weight: Any, _: Any) -> dict[str, jax.Array]:
        normal, inverse = _normalized(x, eps, deviations=True)
        slope = dy if weight is None else dy * weight
        of_x = inverse * (_without(normal, slope) - jnp.mean(slope, axis=-1, keepdims=True))
        return {"x": of_x, "weight": dy * normal, "bias": dy}

    parameters = {"weight": weight, "bias": bias}
    return _gradients("layer_norm", compute, blocks, generation, wanted, [x, *rest], parameters)


def l2_norm(
    blocks: Blocks, generation: str, wanted: Names, rest: Arrays, x: jax.Array, *, eps: float, **_: Any
) -> list[jax.Array]:
    """Compute the gradient of `tensorops.l2_norm`."""

    def compute(x: jax.Array, dy: jax.Array) -> dict[str, jax.Array]:
        y, inverse, bounded = unit_vectors(x, eps)
        along = jnp.where(bounded, 0.0, jnp.sum(dy * y, axis=-1, keepdims=True))
        return {"x": inverse * (dy - y * along)}

    return _gradients("l2_norm", compute, blocks, generation, wanted, [x, *rest], {})


def softmax(
    blocks: Blocks, generation: str, wanted: Names, rest: Arrays, x: jax.Array, where: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute the gradient of `tensorops.softmax`."""

    def compute(x: jax.Array, dy: jax.Array, *where: jax.Array) -> dict[str, jax.Array]:
        _, e, total = shifted_exponentials(x, *where)
        y = e / total
        return {"x": y * (dy - jnp.sum(dy * y, axis=-1, keepdims=True))}

    return _gradients("softmax", compute, blocks, generation, wanted, [x, *rest, *mask_of(where, x)], {})


def log_softmax(
    blocks: Blocks, generation: str, wanted: Names, rest: Arrays, x: jax.Array, where: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute the gradient of `tensorops.log_softmax`."""

    def compute(x: jax.Array, dy: jax.Array, *where: jax.Array) -> dict[str, jax.Array]:
        _, e, total = shifted_exponentials(x, *where)
        of_x = dy - e / total * jnp.sum(dy, axis=-1, keepdims=True)
        return {"x": jnp.where(where[0] != 0, of_x, 0.0) if where else of_x}

    return _gradients("log_softmax", compute, blocks, generation, wanted, [x, *rest, *mask_of(where, x)], {})


def logsumexp(blocks: Blocks, generation: str, wanted: Names, rest: Arrays, x: jax.Array, **_: Any) -> list[jax.Array]:
    """Compute the gradient of `tensorops.logsumexp`."""

    def compute(x: jax.Array, dy: jax.Array) -> dict[str, jax.Array]:
        e = jnp.exp(x - shift_of(jnp.max(x, axis=-1, keepdims=True)))
        return {"x": e / jnp.sum(e, axis=-1, keepdims=True) * dy}

    numbers = [rest[0].astype(jnp.float32)]
    return _gradients("logsumexp", compute, blocks, generation, wanted, [x], {}, numbers=numbers)


def cross_entropy(
    blocks: Blocks,
    generation: str,
    wanted: Names,
    rest: Arrays,
    logits: jax.Array,
    targets: jax.Array,
    weight: Any = None,
    *,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    **_: Any,
) -> list[jax.Array]:
    """Compute the gradient of `tensorops.cross_entropy` with respect to the logits."""
    losses = jnp.zeros(logits.shape[:-1], jnp.float32)
    seen: dict[str, Any] = {}

    def reduced(losses: jax.Array) -> jax.Array:
        def losses_of(_: Any, x: Any, numbers: jax.Array, weight: Any, own: Any, squares: Any, dtype: Any) -> jax.Array:
            seen.update(targets=numbers, own=own, squares=squares)
            return losses

        options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignore_index, "z_loss": z_loss}
        return reduced_cross_entropy(losses_of, logits, targets, weight, **options)

    reduced(losses)  # what it has seen under differentiation is of no use outside
    own, squares = seen["own"], seen["squares"]
    named = seen["targets"]  # of those that are ignored, any class
    slopes = jax.vjp(reduced, losses)[1](rest[0])[0] * UNIT
    classes = logits.shape[-1]
    probable = jnp.issubdtype(targets.dtype, jnp.floating)
    shares_of = shares_of_classes(label_smoothing, classes, probable=probable)
    numbers = {"slope": slopes}
    if not probable:
        numbers["target"] = as_int32(named, classes)
    if own is not None:
        numbers["own"] = own
    if squares is not None:
        numbers["of_square"] = 2 * slopes * squares

    def compute(x: jax.Array, *others: Any) -> dict[str, jax.Array]:
        rows, weight = others[:probable], [] if others[-1] is None else [others[-1]]
        each = dict(zip(numbers, others[probable:-1], strict=True))
        shares = shares_of(x, *rows, *weight) if probable or label_smoothing else None
        if not probable:
            is_target = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) == each["target"]
            own = jnp.where(is_target, each.get("own", 1.0), 0.0)
            shares = own if shares is None else (1.0 - label_smoothing) * own + label_smoothing * shares
        largest = jnp.max(x, axis=-1, keepdims=True)
        e = jnp.exp(x - largest)
        total = jnp.sum(e, axis=-1, keepdims=True)
        of_total = each["slope"] * jnp.sum(shares, axis=-1, keepdims=True)
        if "of_square" in each:
            of_total += each["of_square"] * (jnp.log(total) + largest)
        return {"logits": of_total * (e / total) - each["slope"] * shares}

    rows = [logits, targets] if probable else [logits]
    used = weight if probable or label_smoothing else None
    of_rows = list(numbers.values())
    return _gradients("cross_entropy", compute, blocks, generation, wanted, rows, {"weight": used}, numbers=of_rows)


def _gradients(
    name: str,
    compute: Callable[..., dict[str, jax.Array]],
    blocks: Blocks,
    generation: str,
    wanted: Names,
    rows: Arrays,
    parameters: dict[str, Any],
    *,
    numbers: Arrays = (),
) -> list[jax.Array]:
    """Apply a function that returns the gradient of the first array, and what the gradients of parameters sum up."""
    of_rows = [key for key in wanted if key not in parameters]
    summed = [key for key in wanted if key in parameters]

    def ordered(*values: Any) -> list[jax.Array]:
        found = compute(*values)
        return [found[key] for key in (*of_rows, *summed)]

    found = over_rows(
        f"{name}_gradient",
        ordered,
        blocks,
        generation,
        rows,
        list(parameters.values()),
        [rows[0].dtype for _ in of_rows],
        numbers=numbers,
        sums=[parameters[key].dtype for key in summed],
    )
    by_name = dict(zip((*of_rows, *summed), found, strict=True))
    return [by_name[key] for key in wanted]


def _normalized(x: jax.Array, eps: float, *, deviations: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return rows over their root mean square, and the inverse of that."""
    scaled, unit = scaled_to_one(x, eps**0.5)
    scaled = centred(scaled) if deviations else scaled
    root = root_mean_square(scaled, unit, eps)
    return scaled / root, unit / root


def _without(normal: jax.Array, slope: jax.Array) -> jax.Array:
    """Return slopes without their part along normalized rows."""
    return slope - normal * jnp.mean(slope * normal, axis=-1, keepdims=True)


KERNELS: dict[str, Callable[..., list[jax.Array]]] = {
    function.__name__: function
    for function in (rms_norm, add_rms_norm, layer_norm, l2_norm, softmax, log_softmax, logsumexp, cross_entropy)
}
"""The kernels by the name of the operator."""
