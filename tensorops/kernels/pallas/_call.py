"""Calls of Pallas kernels on rows, and the bytes that they move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas.blocks import MIB, VMEM

_LEAST_LIMIT = 16 * MIB  # every generation grants it


class Scalars(NamedTuple):
    """Integers in scalar memory from the start on, on whose values the places of blocks may depend.

    Parameters
    ----------
    array
        The integers, as int32.
    costly
        Values with which no fewer bytes move than with any others: the real ones are known to the TPU only.
    """

    array: jax.Array
    costly: np.ndarray[Any, Any]


class Copied(NamedTuple):
    """An array that stays in the memory of the chip, of which the steps of a kernel themselves copy parts.

    Parameters
    ----------
    array
        The array.
    part
        The shape of a part.
    count
        How many parts a step copies. Like an index map, it takes the indices of the step.
    """

    array: jax.Array
    part: tuple[int, ...]
    count: Callable[..., Any]


def call(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    inputs: Sequence[tuple[jax.Array, pl.BlockSpec]],
    outputs: Sequence[tuple[jax.ShapeDtypeStruct, pl.BlockSpec]],
    *,
    name: str,
    vmem: int,
    generation: str,
    scratch: Sequence[Any] = (),
    parallel: int = 1,
    scalars: Sequence[Scalars] = (),
    copied: Sequence[Copied] = (),
) -> list[jax.Array]:
    """Run a kernel for every step of a grid.

    Parameters
    ----------
    kernel
        Takes references to the scalars, to a block of each input, to the arrays of which it copies parts, to a block
        of each output, and to the scratch memory.
    grid
        How many steps along each axis; the last changes first.
    inputs, outputs
        Arrays with their blocks.
    name
        What programs and profiles call it.
    vmem
        The bytes of vector memory that a step needs.
    generation
        Whose vector memory limits it.
    scratch
        Memory that steps share.
    parallel
        How many of the first axes may be divided over cores.
    scalars
        What the kernel and, after the step, the index maps of blocks also take.
    copied
        Arrays of which the kernel copies parts.
    """
    semantics = ("parallel",) * parallel + ("arbitrary",) * (len(grid) - parallel)
    limit = min(max(_LEAST_LIMIT, 2 * vmem), VMEM[generation])
    with jax.enable_x64(False):  # numbers in kernels and index maps would be int64, which the compiler does not have
        costly = [each.costly for each in scalars]
        moved = sum(traffic(grid, a.shape, a.dtype.itemsize, spec, costly) for a, spec in (*inputs, *outputs))
        moved += sum(4 * each.array.size for each in scalars) + sum(traffic_of_copies(grid, each) for each in copied)
        elements = sum(math.prod(a.shape) for a, _ in inputs)
        results: list[jax.Array] = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=len(scalars),
                grid=grid,
                in_specs=[*(spec for _, spec in inputs), *(pl.BlockSpec(memory_space=pl.ANY) for _ in copied)],
                out_specs=[spec for _, spec in outputs],
                scratch_shapes=list(scratch),
            ),
            out_shape=[shape for shape, _ in outputs],
            compiler_params=pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit),
            cost_estimate=pl.CostEstimate(flops=8 * elements, transcendentals=elements, bytes_accessed=moved),
            name=name,
        )(*(each.array for each in scalars), *(a for a, _ in inputs), *(each.array for each in copied))
    return results


def traffic(
    grid: tuple[int, ...],
    shape: Sequence[int],
    itemsize: int,
    spec: Any,
    scalars: Sequence[np.ndarray[Any, Any]] = (),
) -> int:
    """Return the bytes that the blocks of one array move: a block moves when the step has another one than the last.

    Of a block that reaches beyond the array, the part inside moves. Where blocks depend on scalars, these are their
    values.
    """
    steps = np.indices(grid, dtype=np.int32).reshape(len(grid), -1)
    with jax.ensure_compile_time_eval():  # index maps compute with these, even while a program is traced
        found = spec.index_map(*map(jnp.asarray, steps), *map(jnp.asarray, scalars))
        blocks = [np.broadcast_to(np.asarray(index, np.int64), steps.shape[1:]) for index in found]
    moves = np.ones(steps.shape[1], bool)
    moves[1:] = np.any([index[1:] != index[:-1] for index in blocks], axis=0)
    inside = np.ones(steps.shape[1], np.int64)
    for n, size, index in zip(shape, spec.block_shape, blocks, strict=True):
        inside *= np.clip(n - index * size, 0, size)
    return int(inside[moves].sum()) * itemsize


def traffic_of_copies(grid: tuple[int, ...], copied: Copied) -> int:
    """Return the bytes of the parts that all steps copy."""
    steps = np.indices(grid, dtype=np.int32).reshape(len(grid), -1)
    with jax.ensure_compile_time_eval():
        counts = np.asarray(copied.count(*map(jnp.asarray, steps)), np.int64)
    parts = int(np.broadcast_to(counts, steps.shape[1:]).sum())
    itemsize: int = copied.array.dtype.itemsize
    return parts * math.prod(copied.part) * itemsize
