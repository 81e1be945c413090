"""What tensorops uses of MPI, among threads: the same contract without processes."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pytest


class World:
    """What ranks use of MPI's communicator; a thread is a rank."""

    def __init__(self, size: int) -> None:
        self.calls: list[str] = []
        self._size = size
        self._own = threading.local()
        self._given: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=120)

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what the function returns or raises on every rank."""
        found: list[Any] = [None] * self._size

        def on_rank(rank: int) -> None:
            self._own.rank = rank
            try:
                found[rank] = function(rank)
            except Exception as error:
                found[rank] = error

        threads = [threading.Thread(target=on_rank, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _all(self, given: Any, call: str) -> list[Any]:
        if self.Get_rank() == 0:
            self.calls.append(call)
        self._given[self.Get_rank()] = given
        self._barrier.wait()
        everyones = list(self._given)
        self._barrier.wait()
        return everyones

    def Get_size(self) -> int:
        return self._size

    def Get_rank(self) -> int:
        return self._own.rank

    def Allreduce(self, x: np.ndarray, total: np.ndarray) -> None:
        total[...] = sum(self._all(x.copy(), "Allreduce"))

    def Allgather(self, x: np.ndarray, everyones: np.ndarray) -> None:
        everyones[...] = self._all(x.copy(), "Allgather")

    def Bcast(self, x: np.ndarray) -> None:
        x[...] = self._all(x.copy(), "Bcast")[0]

    def allgather(self, value: object) -> list[Any]:
        return self._all(value, "allgather")


def world_of(monkeypatch: pytest.MonkeyPatch, size: int) -> World:
    """Return ranks that are found in place of those of mpi4py."""
    made = World(size)
    module = types.ModuleType("mpi4py")
    module.MPI = types.SimpleNamespace(COMM_WORLD=made)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    return made
