"""The ranks that share a computation, and how their results come together.

The step of a `PersistentKernel` calls `all_reduce`; the network of a model needs others, too. What carries the sums is
exchangeable: nothing for a single rank, MPI for NumPy arrays in several processes, the collectives of a compiled
program for several devices of JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from tensorops._messages import installing
from tensorops.backends import to_backend
from tensorops.ops.normalization import rms_norm
from tensorops.persistent._captured import CaptureError
from tensorops.persistent._recorded import Recorded

Array: TypeAlias = Any
Tree: TypeAlias = Any  # arrays in nested dicts, lists and tuples


class OtherRankError(RuntimeError):
    """Another rank could not do its part; the message says which."""


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
        """Return the sum over the ranks."""
        return x

    def all_gather(self, x: Array) -> Array:
        """Return the columns of all ranks, of which each has some."""
        return x

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Return the norm of the columns of all ranks, of which each has as many, and its part of the weight.

        Several ranks may have the same columns, if every column is on as many ranks: the mean of the squares is that of
        the ranks' means, which repetitions do not change.
        """
        return rms_norm(x, weight, eps)

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
    def together(self, what: str) -> Iterator[None]:
        """Raise on all ranks if one fails here, to avoid a deadlock."""
        yield

    def first_that_differs(self, value: Any) -> int | None:
        """Return the first rank with another value than the first one, if there is one."""
        return None


class MPIRanks(Ranks):
    """The processes that ``mpiexec`` has started, with NumPy arrays; `rank` is the number that this one must have."""

    def __init__(self, size: int, rank: int | None, backend: str) -> None:
        if not isinstance(to_backend(np.zeros(1, np.float32), backend), np.ndarray):
            raise ValueError(f"world_size is {size}, but only NumPy arrays are sent by MPI, not those of {backend!r}")
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise ImportError(f"world_size is {size}, which needs the package 'mpi4py': {installing('mpi')}") from error
        self._world = MPI.COMM_WORLD
        self.size, self.rank = self._world.Get_size(), self._world.Get_rank()
        if self.size != size:
            raise ValueError(f"world_size is {size}, but MPI has {self.size}: start them by mpiexec -n {size}")
        self._expected = rank

    def all_reduce(self, x: Array) -> Array:
        return _exchanged("all_reduce", self._world.Allreduce, x, tuple(x.shape))

    def all_gather(self, x: Array) -> Array:
        parts = _exchanged("all_gather", self._world.Allgather, x, (self.size, *x.shape))
        xp = parts.__array_namespace__()
        return xp.reshape(xp.moveaxis(parts, 0, 1), (x.shape[0], -1))

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        def normalize(given: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> None:
            own = np.mean(np.square(given), axis=1, keepdims=True)
            total = np.empty_like(own)
            self._world.Allreduce(own, total)
            np.multiply(given / np.sqrt(total / self.size + eps), weight, out=found)

        # All of it is done with the sum, as recorded steps have no square roots.
        return _exchanged("rms_norm", normalize, x, tuple(x.shape))

    def first(self, x: Array) -> Array:
        def send(given: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> None:
            found[...] = given
            self._world.Bcast(found)

        return _exchanged("broadcast", send, x, tuple(x.shape))

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
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
            raise OtherRankError(f"rank {failed.index(True)} could not {what}; it says why")

    def first_that_differs(self, value: Any) -> int | None:
        first, *others = self._world.allgather(value)
        return next((rank for rank, other in enumerate(others, 1) if other != first), None)


def _exchanged(name: str, exchange: Callable[..., Any], x: Array, shape: tuple[int, ...]) -> Array:
    """Return a new array that an exchange of the ranks fills; where a step is recorded, in each run of it."""
    if np.dtype(x.dtype).char not in "bBhHiIlLqQfd":
        raise ValueError(f"{name}: MPI sends no {x.dtype}; convert the array to float32 before")
    if isinstance(x, Recorded):
        return x.recorder.exchange(name, exchange, x, shape)
    made = np.empty(shape, x.dtype)
    exchange(np.ascontiguousarray(x), made)
    return made


def connect(world_size: int, mpi_rank: int | None, backend: str) -> Ranks:
    """Return the ranks that these arguments of a user describe."""
    if world_size < 1 or not 0 <= (mpi_rank or 0) < world_size:
        raise ValueError(f"world_size is {world_size} and mpi_rank is {mpi_rank}, expected 0 <= mpi_rank < world_size")
    return Ranks() if world_size == 1 else MPIRanks(world_size, mpi_rank, backend)


_compiling: ContextVar[Ranks | None] = ContextVar("tensorops.ranks", default=None)


@contextmanager
def compiling_for(ranks: Ranks) -> Iterator[None]:
    """Let `all_reduce` be that of some ranks."""
    token = _compiling.set(ranks)
    try:
        yield
    finally:
        _compiling.reset(token)


def all_reduce(x: Array) -> Array:
    """Sum an array over the ranks that share a step.

    To be called in the step of a `PersistentKernel` with a `world_size`; with one rank, it returns `x`.

    Parameters
    ----------
    x : array
        This rank's part of the sum, of the same shape and dtype on every rank.

    Returns
    -------
    array
        The sum, the same on every rank.

    Raises
    ------
    CaptureError
        If no `PersistentKernel` is being compiled: there are no ranks then.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> from tensorops.persistent import all_reduce
    >>> columns = np.ones((4, 2), np.float32)  # of a matrix that the ranks share
    >>> def step(x):
    ...     return all_reduce(tensorops.linear(x, columns))
    >>> kernel = tensorops.PersistentKernel(step, [np.ones((1, 2), np.float32)], backend="cpu", world_size=1)
    >>> kernel(np.ones((1, 2), np.float32))
    array([[2., 2., 2., 2.]], dtype=float32)
    """
    if (ranks := _compiling.get()) is None:
        raise CaptureError("all_reduce is for the step of a PersistentKernel; here, there are no ranks to sum over")
    return ranks.all_reduce(x)
