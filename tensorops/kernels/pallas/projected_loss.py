"""The kernel of linear_cross_entropy: logits exist in vector memory only, some rows and some classes at a time.

Work: a step multiplies a block of rows, which stays for all classes, by the weights of some classes, and adds the
logits to what is known of each row, as `sums` does.
Precision: factors in bfloat16 are multiplied exactly, others in full precision of float32; sums are in float32.
Bytes: those of the arguments, and the weights once more for every further block of rows: of n rows in blocks of m,
those of `x` + ⌈n / m⌉ times those of `weight`. m is what the vector memory holds.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import TOGETHER, Blocks
from tensorops.kernels.pallas.sums import Sums, add_part, as_int32, losses_of_sums, shares_of_numbers
from tensorops.ops.loss import reduced_cross_entropy

_NAMED = ("largest", "log_total", "chosen")


def linear_cross_entropy(
    blocks: Blocks,
    generation: str,
    x: jax.Array,
    weight: jax.Array,
    targets: jax.Array,
    bias: Any = None,
    ce_weight: Any = None,
    **options: Any,
) -> list[jax.Array]:
    """Compute `tensorops.linear_cross_entropy` for class numbers, without label smoothing."""
    classes = weight.shape[0]

    def losses_of(xp: Any, x: jax.Array, targets: jax.Array, _: Any, own: Any, squares: Any, __: Any) -> jax.Array:
        numbers = as_int32(targets, classes)
        sums = _sums_of_products(blocks, generation, x, weight, bias, numbers)
        return losses_of_sums(*shares_of_numbers(xp, sums, numbers, own, 0.0), sums, squares)

    return [reduced_cross_entropy(losses_of, x, targets, ce_weight, classes=classes, **options)]


def _sums_of_products(
    blocks: Blocks, generation: str, x: jax.Array, weight: jax.Array, bias: Any, numbers: jax.Array
) -> Sums:
    """Reduce the rows of ``x @ weight.T + bias``."""
    *leading, features = x.shape
    rows, classes = math.prod(leading), weight.shape[0]
    of_rows = pl.BlockSpec((1, blocks.rows), lambda i, j: (0, i))
    of_x = pl.BlockSpec((blocks.rows, features), lambda i, j: (i, 0), pipeline_mode=pl.Buffered(1))
    inputs = [
        (jnp.reshape(x, (rows, features)), of_x),
        (weight, pl.BlockSpec((blocks.columns, features), lambda i, j: (j, 0))),
    ]
    if bias is not None:
        of_classes = pl.BlockSpec((1, blocks.columns), lambda i, j: (0, j))
        inputs.append((jnp.reshape(bias, (1, classes)), of_classes))
    inputs.append((jnp.reshape(numbers, (1, rows)), of_rows))

    def kernel(x_ref: Any, weight_ref: Any, *references: Any) -> None:
        bias_ref = None if bias is None else references[0]
        of_row = references[0 if bias is None else 1 :]  # numbers, results and scratch memory
        part, parts = pl.program_id(1), pl.num_programs(1)

        def add(some: Any) -> None:
            logits = _logits(x_ref[some], weight_ref[...], bias_ref)
            numbers_ref, *along_lanes = (reference.at[:, some] for reference in of_row[:4])
            results = dict(zip(_NAMED, along_lanes, strict=True))
            so_far = dict(zip(_NAMED, (reference.at[some] for reference in of_row[4:]), strict=True))
            add_part(part, parts, logits, results, so_far, length=classes, numbers_ref=numbers_ref)

        if blocks.rows <= TOGETHER:
            add(slice(None))
        else:

            @pl.loop(0, blocks.rows // TOGETHER)  # type: ignore[untyped-decorator]
            def _(number: jax.Array) -> None:
                add(pl.ds(pl.multiple_of(number * TOGETHER, TOGETHER), TOGETHER))

    found = call(
        kernel,
        (pl.cdiv(rows, blocks.rows), pl.cdiv(classes, blocks.columns)),
        inputs,
        [(jax.ShapeDtypeStruct((1, rows), jnp.float32), of_rows)] * 3,
        name="linear_cross_entropy",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, 1), jnp.float32)] * 3,
    )
    return Sums(*(jnp.reshape(y, leading) for y in found))


def _logits(x: jax.Array, weight: jax.Array, bias_ref: Any) -> jax.Array:
    exact = x.dtype == weight.dtype == jnp.bfloat16
    if not exact:
        x, weight = x.astype(jnp.float32), weight.astype(jnp.float32)
    precision = None if exact else jax.lax.Precision.HIGHEST
    of_both = (((1,), (1,)), ((), ()))
    logits = jax.lax.dot_general(x, weight, of_both, precision=precision, preferred_element_type=jnp.float32)
    return logits if bias_ref is None else logits + bias_ref[...].astype(jnp.float32)
