"""Calls of Pallas kernels on rows, and the bytes that a grid moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas.blocks import MIB, VMEM

_LEAST_LIMIT = 16 * MIB  # every generation grants it


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
) -> list[jax.Array]:
    """Run a kernel for every step of a grid.

    Parameters
    ----------
    kernel
        Takes references to a block of each input, of each output, and to the scratch memory.
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
    """
    semantics = ("parallel",) * parallel + ("arbitrary",) * (len(grid) - parallel)
    limit = min(max(_LEAST_LIMIT, 2 * vmem), VMEM[generation])
    moved = sum(traffic(grid, a.shape, a.dtype.itemsize, spec) for a, spec in (*inputs, *outputs))
    elements = sum(math.prod(a.shape) for a, _ in inputs)
    results: list[jax.Array] = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[spec for _, spec in inputs],
        out_specs=[spec for _, spec in outputs],
        out_shape=[shape for shape, _ in outputs],
        scratch_shapes=list(scratch),
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit),
        cost_estimate=pl.CostEstimate(flops=8 * elements, transcendentals=elements, bytes_accessed=moved),
        name=name,
    )(*(a for a, _ in inputs))
    return results


def traffic(grid: tuple[int, ...], shape: Sequence[int], itemsize: int, spec: Any) -> int:
    """Return the bytes that the blocks of one array move: a block moves when the step has another one than the last.

    Of a block that reaches beyond the array, the part inside moves.
    """
    steps = np.indices(grid, dtype=np.int64).reshape(len(grid), -1)
    blocks = [np.broadcast_to(index, steps.shape[1:]) for index in spec.index_map(*steps)]
    moves = np.ones(steps.shape[1], bool)
    moves[1:] = np.any([index[1:] != index[:-1] for index in blocks], axis=0)
    inside = np.ones(steps.shape[1], np.int64)
    for n, size, index in zip(shape, spec.block_shape, blocks, strict=True):
        inside *= np.clip(n - index * size, 0, size)
    return int(inside[moves].sum()) * itemsize
