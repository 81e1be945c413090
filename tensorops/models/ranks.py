"""The ranks that share a network: the part of each weight that a rank has, and how their results come together.

Shoeybi et al., "Megatron-LM", https://arxiv.org/abs/1909.08053: matrices that multiply the features of a token are
divided by rows (heads, or hidden features), those that return to them by columns. A rank computes its heads and its
hidden features without the others, so a block needs two sums over the ranks: after attention, and after the
feed-forward layer. What has the length of a token's features is the same on all ranks.

The network itself calls `Ranks.all_reduce` only. What carries the sums is exchangeable: nothing for a single rank, MPI
for NumPy arrays in several processes, the collectives of a compiled program for several devices of JAX.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from ._errors import missing
from .blocks import QuantizedWeight, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .config import LlamaConfig

__all__ = ["HEADS", "SHARED", "WHOLE", "Ranks", "connect", "divide", "part_of"]

Array = Any
Tree = Any  # arrays in nested dicts, lists and tuples

# The axis along which the ranks share a matrix of a block.
SHARED = {"attn_q": 0, "attn_k": 0, "attn_v": 0, "attn_output": 1, "ffn_gate": 0, "ffn_up": 0, "ffn_down": 1}
HEADS = 1  # that of a cache
WHOLE = -1  # none: all ranks have the same


def divide(config: LlamaConfig, size: int) -> LlamaConfig:
    """Return the sizes of one rank's part of a network.

    Parameters
    ----------
    config : LlamaConfig
        The sizes of the network.
    size : int
        The number of ranks.

    Returns
    -------
    LlamaConfig
        With the heads, the heads of keys and values, and the hidden features of one rank. If there are fewer heads of
        keys and values than ranks, neighbouring ranks have the same one.

    Raises
    ------
    ValueError
        The ranks cannot have equal parts; the message lists the numbers of ranks that can.
    """
    if problem := _indivisible(config, size):
        fitting = [n for n in range(1, config.heads + 1) if not _indivisible(config, n)]
        raise ValueError(f"{problem}; possible numbers of ranks: {', '.join(map(str, fitting))}")
    kv_heads = max(1, config.kv_heads // size)
    return replace(config, heads=config.heads // size, kv_heads=kv_heads, hidden_dim=config.hidden_dim // size)


def _indivisible(config: LlamaConfig, size: int) -> str:
    """Return why a network cannot be divided among so many ranks, or an empty string."""
    if config.heads % size:
        return f"{config.heads} query heads cannot be divided among {size} ranks"
    if config.kv_heads % size and size % config.kv_heads:
        return f"{config.kv_heads} heads of keys and values can neither be divided among {size} ranks nor be repeated"
    if config.hidden_dim % size:
        return f"{config.hidden_dim} hidden features cannot be divided among {size} ranks"
    return ""


def part_of(weight: Any, name: str, axis: int, length: int, rank: int, size: int) -> Any:
    """Return the part of a matrix that one rank has.

    Parameters
    ----------
    weight : array, QuantizedWeight or Tensor
        The matrix.
    name : str
        Its name, for messages.
    axis : int
        0 for some of its rows, 1 for some of its columns, `WHOLE` for all of it.
    length : int
        How many of them a rank has; if those of all ranks are more than there are, neighbours have the same.
    rank, size : int
        Whose part, of how many.

    Returns
    -------
    array, QuantizedWeight or Tensor
        The part: of a tensor, one that reads no other bytes of the file; of others, one in host memory.

    Raises
    ------
    ValueError
        A group of quantised numbers would be divided.
    """
    if axis == WHOLE or length == weight.shape[axis]:
        return weight
    group = weight.group_size if isinstance(weight, QuantizedWeight | Tensor) else 1
    if axis == 1 and length % group:
        raise ValueError(
            f"weight {name}: each of {size} ranks has {length} of {weight.shape[1]} columns, which are not whole "
            f"groups of {group} quantised numbers"
        )
    start = rank * weight.shape[axis] // size // length * length
    if isinstance(weight, QuantizedWeight | Tensor):
        return weight.part(axis, start, start + length)
    host = tp.to_backend(weight, "numpy")
    return host[start : start + length] if axis == 0 else np.ascontiguousarray(host[:, start : start + length])


def connect(mesh: Any, world_size: int, mpi_rank: int | None, backend: str) -> Ranks:
    """Return the ranks that the arguments of `Llama` describe.

    Raises
    ------
    ValueError
        They contradict each other, the backend, or MPI.
    ImportError
        The package mpi4py is missing.
    """
    if mesh is not None and (world_size != 1 or mpi_rank is not None):
        raise ValueError("mesh is for JAX, world_size and mpi_rank are for MPI: give only one of them")
    if mesh is not None:
        return MeshRanks(mesh, backend)
    if world_size < 1 or not 0 <= (mpi_rank or 0) < world_size:
        raise ValueError(f"world_size is {world_size} and mpi_rank is {mpi_rank}, expected 0 <= mpi_rank < world_size")
    return Ranks() if world_size == 1 else MPIRanks(world_size, mpi_rank, backend)


class Ranks:
    """One rank, which has everything; and what others do in their own way.

    Attributes
    ----------
    size : int
        The number of ranks.
    rank : int
        That of this process, or of its first device.
    compile : callable or None
        The compiler without which the ranks cannot compute.
    """

    size = 1
    rank = 0
    compile: Callable[..., Any] | None = None

    def all_reduce(self, x: Array) -> Array:
        """Return the sum over the ranks; `x` may be overwritten."""
        return x

    def all_gather(self, x: Array) -> Array:
        """Return the columns of all ranks, of which each has some."""
        return x

    def first(self, x: Array) -> Array:
        """Return what the first rank has."""
        return x

    def place(self, part: Callable[[int], Tree], axis: int) -> Tree:
        """Return arrays of which `part` returns those of a rank, all divided along an axis or `WHOLE`."""
        return part(self.rank)

    def spread(self, function: Callable[..., Any], arguments: Tree, results: Tree) -> Callable[..., Any]:
        """Return a function that runs on every rank with its part of the arguments.

        Arguments and results are described by axes, as for `place`, or by arrays from there.
        """
        return function

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Let no rank go on if one cannot read its part: it would wait for that one for ever."""
        yield


class MPIRanks(Ranks):
    """The processes that ``mpiexec`` has started, with NumPy arrays.

    Parameters
    ----------
    size : int
        How many they must be.
    rank : int or None
        The number that this one must have, if any.
    backend : str
        The backend that computes.
    """

    def __init__(self, size: int, rank: int | None, backend: str) -> None:
        if not isinstance(tp.to_backend(np.zeros(1, np.float32), backend), np.ndarray):
            raise ValueError(f"world_size is {size}, but only NumPy arrays are sent by MPI, not those of {backend!r}")
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise missing("mpi4py", "mpi") from error
        self._world, self._in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.size, self.rank = self._world.Get_size(), self._world.Get_rank()
        if self.size != size:
            raise ValueError(f"world_size is {size}, but MPI has {self.size}: start them by mpiexec -n {size}")
        self._expected = rank

    def all_reduce(self, x: Array) -> Array:
        total = np.ascontiguousarray(x)
        self._world.Allreduce(self._in_place, total)
        return total

    def all_gather(self, x: Array) -> Array:
        columns = np.empty((self.size, *x.shape), x.dtype)
        self._world.Allgather(np.ascontiguousarray(x), columns)
        return np.moveaxis(columns, 0, 1).reshape(x.shape[0], -1)

    def first(self, x: Array) -> Array:
        found = np.array(x)
        self._world.Bcast(found)
        return found

    @contextmanager
    def loading(self) -> Iterator[None]:
        problem: Exception | None = None
        try:
            if self._expected not in (None, self.rank):
                raise ValueError(f"mpi_rank is {self._expected}, but MPI has given this process the rank {self.rank}")
            yield
        except Exception as error:
            problem = error
        failed = self._world.allgather(problem is not None)
        if problem is not None:
            raise problem
        if any(failed):
            raise RuntimeError(f"rank {failed.index(True)} could not load its part of the network; it says why")


class MeshRanks(Ranks):
    """The devices of a mesh of JAX, in this process and in others.

    Parameters
    ----------
    mesh : jax.sharding.Mesh
        With one axis.
    backend : str
        The backend that computes.
    """

    def __init__(self, mesh: Any, backend: str) -> None:
        import jax

        if not isinstance(tp.to_backend(np.zeros(1, np.float32), backend), jax.Array):
            raise ValueError(f"mesh is for arrays of JAX, not those of the backend {backend!r}")
        if len(mesh.axis_names) != 1:
            raise ValueError(f"mesh has the axes {', '.join(map(repr, mesh.axis_names))}, expected one")
        # The axes of a mesh may have types, under which programs outside of `spread` are written otherwise.
        self._mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)
        (self._axis,) = mesh.axis_names
        own = jax.process_index()
        self._local = [(rank, device) for rank, device in enumerate(mesh.devices) if device.process_index == own]
        if not self._local:
            raise ValueError(f"mesh has no device of this process, which is number {own}")
        self.size, self.rank = mesh.size, self._local[0][0]
        self.compile = jax.jit

    def all_reduce(self, x: Array) -> Array:
        import jax

        return jax.lax.psum(x, self._axis)

    def all_gather(self, x: Array) -> Array:
        import jax

        return jax.lax.all_gather(x, self._axis, axis=1, tiled=True)

    def first(self, x: Array) -> Array:
        import jax

        return jax.lax.psum(jax.numpy.where(jax.lax.axis_index(self._axis) == 0, x, 0), self._axis)

    def place(self, part: Callable[[int], Tree], axis: int) -> Tree:
        import jax

        parts: list[Tree] = []
        for rank, device in self._local:
            if axis == WHOLE and parts:
                parts.append(jax.device_put(parts[0], device))
                continue
            with jax.default_device(device):
                parts.append(part(rank))
        sharding = jax.sharding.NamedSharding(self._mesh, self._spec(axis))

        def joined(*own: Array) -> Array:
            shape = [n * self.size if i == axis else n for i, n in enumerate(own[0].shape)]
            return jax.make_array_from_single_device_arrays(tuple(shape), sharding, list(own))

        return jax.tree.map(joined, *parts)

    def spread(self, function: Callable[..., Any], arguments: Tree, results: Tree) -> Callable[..., Any]:
        import jax

        def spec(described: Any) -> Any:
            return self._spec(described) if isinstance(described, int) else described.sharding.spec

        ins, outs = jax.tree.map(spec, arguments), jax.tree.map(spec, results)
        # Kernels do not say which axes of a mesh their results vary over.
        return jax.shard_map(function, mesh=self._mesh, in_specs=ins, out_specs=outs, check_vma=False)  # type: ignore[no-any-return]

    def _spec(self, axis: int) -> Any:
        import jax

        return jax.sharding.PartitionSpec(*[None] * axis, self._axis) if axis != WHOLE else jax.sharding.PartitionSpec()
