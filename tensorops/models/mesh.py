"""Ranks that are devices of JAX: one program for all of them, with collectives inside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.persistent.ranks import Ranks, Tree

from .ranks import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MeshRanks", "mesh_of"]

Array = Any


def mesh_of(backend: str, size: int) -> Any:
    """Return a mesh of the first devices of a backend, or None if its library is not JAX.

    Raises
    ------
    ValueError
        There are fewer.
    """
    array = tp.to_backend(np.zeros(1, np.float32), backend)
    jax = sys.modules.get("jax")
    if jax is None or not isinstance(array, jax.Array):
        return None
    devices = jax.devices()
    if len(devices) < size:
        raise ValueError(
            f"there are not {size} devices of JAX, but {len(devices)}; to try it on a processor, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={size}"
        )
    return jax.sharding.Mesh(np.asarray(devices[:size]), ("ranks",))


class MeshRanks(Ranks):
    """The devices of a mesh of JAX, in this process and in others.

    Parameters
    ----------
    mesh : jax.sharding.Mesh
        With one axis.
    backend : str
        The backend that computes.
    """

    BACKEND = "jax"  # unless another one is chosen

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

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        import jax

        mean = jax.lax.pmean(jax.numpy.mean(x * x, axis=1, keepdims=True), self._axis)
        return x * jax.lax.rsqrt(mean + eps) * weight

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
