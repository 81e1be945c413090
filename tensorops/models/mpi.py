"""Ranks that are processes of MPI, with NumPy arrays."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from ._errors import missing
from .ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MPIRanks"]

Array = Any


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
