"""Steps that several ranks share: sums over them between the calls of a plan."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import support
import tensorops as tp
from mpi_threads import world_of
from tensorops.persistent import CaptureError, PersistentKernel, all_reduce

support.require_native()

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 12)).astype(np.float32)
UP, DOWN = (0.2 * RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 12), (12, 8)))


def expected(x, layers=1):
    x = x.astype(np.float64)
    for _ in range(layers):
        h = x @ UP.T
        x = x + (h / (1 + np.exp(-h))) @ DOWN.T
    return x


def step_of(rank, size, layers=1):
    """A layer whose hidden features are divided among ranks."""
    own = slice(8 // size * rank, 8 // size * (rank + 1))
    up, down = UP[own], np.ascontiguousarray(DOWN[:, own])

    def step(x):
        for _ in range(layers):
            x = x + all_reduce(tp.linear(tp.silu(tp.linear(x, up)), down))
        return x, x[:1, :] - 1

    return step


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_compute_what_one_computes(monkeypatch, size):
    world = world_of(monkeypatch, size)

    def on_rank(rank):
        kernel = PersistentKernel(step_of(rank, size, 3), [X], backend="cpu", world_size=size, mpi_rank=rank)
        kernel.compile()
        kernel._engine._planned.arena[...] = 0xFF  # what is not written again would be seen
        return [kernel(factor * X) for factor in (1, 2)]

    found = world.run(on_rank)
    for results in found:
        for factor, (y, less) in zip((1, 2), results, strict=True):
            wanted = expected(np.float32(factor) * X, 3)
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
            np.testing.assert_array_equal(less, y[:1] - 1)
            np.testing.assert_array_equal(y, found[0][factor - 1][0])  # the same on every rank
    assert world.calls.count("Allreduce") == (0 if size == 1 else 2 * 3)  # none while compiling


def test_what_ranks_do_is_explained_and_measured(monkeypatch):
    def on_rank(rank):
        kernel = PersistentKernel(step_of(rank, 2), [X], backend="cpu", world_size=2, profile=True)
        kernel(X)
        return kernel.explain(), kernel.profile()

    for captured, profile in world_of(monkeypatch, 2).run(on_rank):
        names = [call.operator for call in captured.calls]
        assert names[:4] == ["linear", "silu", "linear", "all_reduce"]
        assert captured.calls[3].kernel == "Python"
        assert captured.statistics.calls == len(names) - 1
        assert "all_reduce over the ranks, once a run" in captured.in_python
        assert len(profile.seconds) == len(names)
        assert all(seconds > 0 for seconds in profile.seconds)


def test_an_error_names_the_call_among_all(monkeypatch):
    def on_rank(rank):
        step = lambda x, i: tp.embedding(i, X) + all_reduce(x * 1)  # noqa: E731
        kernel = PersistentKernel(
            lambda x, i: all_reduce(x) + step(x, i), [X, np.arange(2)], backend="cpu", world_size=2
        )
        kernel(X, np.asarray([0, 2]))

    found = world_of(monkeypatch, 2).run(on_rank)
    assert [str(error).partition(": ")[0] for error in found] == ["call 2, embedding"] * 2


def test_a_rank_that_cannot_compile_ends_the_others(monkeypatch):
    def on_rank(rank):
        step = lambda x: all_reduce(np.tanh(x) if rank else tp.silu(x))  # noqa: E731
        PersistentKernel(step, [X], backend="cpu", world_size=2).compile()

    first, last = world_of(monkeypatch, 2).run(on_rank)
    assert isinstance(last, CaptureError)
    assert str(first) == "rank 1 could not compile its step; it says why"


def test_ranks_that_would_wait_for_each_other(monkeypatch):
    def on_rank(rank):
        step = lambda x: all_reduce(x[: 2 - rank, :] * 1)  # noqa: E731
        PersistentKernel(step, [X], backend="cpu", world_size=2).compile()

    message = "the step of rank 1 does not sum arrays like those of rank 0, in the same order"
    assert [str(error) for error in world_of(monkeypatch, 2).run(on_rank)] == [message] * 2


def test_what_ranks_refuse(monkeypatch):
    def refused(size, step=tp.silu, **options):
        def on_rank(rank):
            PersistentKernel(step, [X], backend="cpu", **options).compile()

        return [str(error) for error in world_of(monkeypatch, size).run(on_rank)]

    assert refused(1, world_size=2) == ["world_size is 2, but MPI has 1: start them by mpiexec -n 2"]
    assert refused(2, world_size=2, mpi_rank=1) == [
        "mpi_rank is 1, but MPI has given this process the rank 0",
        "rank 0 could not begin; it says why",
    ]
    alone = "world_size is 2, but the step calls no all_reduce: each rank would compute without the others"
    assert refused(2, world_size=2) == [alone] * 2
    half = lambda x: all_reduce(tp.get_namespace(x).astype(x, np.float16))  # noqa: E731
    assert refused(2, half, world_size=2)[0].startswith("all_reduce: MPI sends no float16")
    assert refused(1, world_size=0) == ["world_size is 0 and mpi_rank is None, expected 0 <= mpi_rank < world_size"]
    with pytest.raises(CaptureError, match="all_reduce is for the step of a PersistentKernel"):
        all_reduce(X)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"which needs the package 'mpi4py': pip install 'tensorops\[mpi\]'"):
        PersistentKernel(tp.silu, [X], backend="cpu", world_size=2)


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_mpi_is_for_numpy_arrays(library):
    support.require(library)
    with pytest.raises(ValueError, match=f"{library}: world_size: MPI sends NumPy arrays only"):
        PersistentKernel(tp.silu, support.there([X], library), backend=library, world_size=2)
