"""`tensorops.benchmarks`: workloads, calls that wait for their results, timing in turns, and the asv benchmarks."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import support
import tensorops as tp
from asv_benchmarks import harness as asv
from tensorops._operator import OPERATORS
from tensorops.backends.registry import BACKENDS
from tensorops.benchmarks import backends, measuring
from tensorops.benchmarks.measuring import prepare_call, wait_for, waiter
from tensorops.benchmarks.workloads import SIZES, WORKLOADS, workload
from tensorops.libraries import LIBRARIES, Runtime
from tensorops.testing import BENCHMARK_SHAPES, DTYPES, REFERENCES, assert_matches

# --- workloads ---------------------------------------------------------------------------------------


def test_every_operator_has_a_workload():
    assert set(WORKLOADS) == set(OPERATORS)


def test_sizes_are_those_of_the_benchmarks():
    assert set(SIZES.values()) <= set(BENCHMARK_SHAPES)


@pytest.mark.parametrize("operator", WORKLOADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_workloads_are_arguments_that_operators_take(operator, dtype):
    work = workload(operator, 2, 64, dtype)
    again = workload(operator, 2, 64, dtype)
    result = OPERATORS[operator].generic(*work.args, **work.options)
    for array, same in zip(work.args, again.args, strict=True):
        np.testing.assert_array_equal(array, same)
    floating = [x for x in support.arrays_in([result]) if x.dtype.kind not in "iu"]
    assert all(np.isfinite(np.asarray(x, dtype=np.float64)).all() for x in floating)
    found = OPERATORS[operator]
    widened = found.rows(found.canonical(*work.args, **work.options)).widened if found.divides else ()
    of_dtype = [x for i, x in enumerate(floating) if i not in widened]
    assert {x.dtype.name for x in of_dtype} <= {dtype}


@pytest.mark.parametrize(
    ("operator", "read"),
    [("embedding", 4 * (2 + 2 * 64)), ("linear", 4 * (2 * 64 + 64 * 64)), ("quantize", 4 * 2 * 64)],
)
def test_only_what_must_be_read_counts(operator, read):
    work = workload(operator, 2, 64)
    assert sum(x.nbytes for x in work.args) - work.unread == read


def test_scores_beyond_reason_are_no_workload():
    with pytest.raises(ValueError, match=r"^the scores of 2048 queries and 2048 keys are a benchmark of memory$"):
        workload("scaled_dot_product_attention", 2048, 4096)


def test_an_unknown_workload():
    message = r"^no workload for 'sillu' \(did you mean 'silu'\?\); valid names: silu, "
    with pytest.raises(ValueError, match=message):
        workload("sillu", 1, 64)


# --- waiting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["jax", "mlx", "torch", "dask", "pyopencl"])
def test_the_result_is_waited_for(library, monkeypatch):
    """A measured call ends with a completed result of the named library."""
    row = support.require(library)
    made = []
    original = wait_for
    monkeypatch.setattr(measuring, "wait_for", lambda result: made.append(result) or original(result))
    x = workload("silu", *SIZES["small"]).args[0]
    found = backends.Measurement("silu", support.backend_of(library).name, *SIZES["small"], "float32")
    assert backends.measure([found], 0.001) == [found]
    assert found.reason is None
    results = [result for result in made if row.owns(result)]
    assert len(results) > found.rounds
    for result in results[:2]:
        np.testing.assert_allclose(support.back(result), x / (1 + np.exp(-x)), rtol=1e-5)


def test_waiting_computes_a_lazy_graph():
    """Without waiting, every lazy library would look infinitely fast."""
    support.require("dask")
    import dask.array as da

    computed = []
    promised = da.from_array(np.ones(4)).map_blocks(lambda block: computed.append(block.size) or block, dtype=float)
    computed.clear()  # from Dask's attempt to infer the function's result
    wait_for((promised, None))
    assert computed == [4]


@pytest.fixture
def own_row(monkeypatch):
    """Return a function that makes a new library for NumPy arrays, with or without a runtime."""

    def make(**fields):
        row = replace(LIBRARIES["numpy"], name="own", **fields)
        monkeypatch.setitem(BACKENDS, "own", tp.backends.Backend("own", row, "one more"))
        monkeypatch.setattr(measuring, "library_of", lambda x: row)
        return row

    return make


def test_arrays_of_a_library_without_a_runtime_are_read_to_be_waited_for(own_row):
    read = []
    own_row(runtime="tensorops.libraries:Runtime", to_numpy=read.append)
    x, y = np.ones(2), np.ones(3)
    assert wait_for([x, y])[0] is x
    assert [id(array) for array in read] == [id(x), id(y)]


def test_waiting_keeps_no_array(own_row):
    """Else a call could not reuse the memory of the one before it, and would be timed with new memory."""
    own_row(wait=lambda arrays: None)
    x = np.ones(2)
    known = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        wait_for({"x": [x, None]})
        del x
        assert known() is None
    finally:
        gc.enable()


class Patient(Runtime):
    waited: ClassVar = []

    def do_synchronize(self):
        self.waited.append(self.name)


def test_a_runtime_knows_how_to_wait(own_row):
    row = own_row(runtime=f"{__name__}:Patient", to_numpy=None)
    prepare_call(np.negative, (np.ones(2),), {}, row)()
    assert Patient.waited == ["own"]


def test_eager_libraries_are_not_waited_for():
    for name in ("numpy", "array_api_strict"):
        assert waiter(LIBRARIES[name]) is None


# --- in turns ----------------------------------------------------------------------------------------


def test_contenders_are_timed_in_turns_under_their_backends(monkeypatch):
    support.require("array_api_strict")
    turns = []
    monkeypatch.setattr(measuring, "REST", 0.0)
    monkeypatch.setattr(measuring, "BATCHES", 10**9)  # one call per round
    names = ["numpy", "array_api_strict"]
    times = measuring.in_rounds([measuring.Contender(lambda: turns.append(tp.get_backend()), n) for n in names], 1e-9)
    one_round = [name for name in names for _ in range(2)]  # one call to warm up
    assert turns == one_round * (1 + len(times[0]))
    assert len(times[0]) == len(times[1]) >= measuring.LEAST_ROUNDS


# --- for asv -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["numpy/cpu", "numpy/generic", "jax/generic"])
def test_a_benchmark_calls_the_implementation_that_it_names(implementation):
    library, provider = implementation.split("/")
    row = support.require(library)
    if provider == "cpu":
        support.require_provider(provider)
    work = workload("rms_norm", 3, 48)
    benchmark, before = asv.Benchmark(), tp.get_backend()
    with tp.trace() as log:
        benchmark.prepare("rms_norm", implementation, work.args, eps=1e-3)
        result = benchmark.call()
        benchmark.teardown()
    assert tp.get_backend() == before
    assert {(record.kernel, record.library) for record in log} == {(provider, library)}
    assert row.owns(result)
    expected = REFERENCES["rms_norm"](*work.args, eps=1e-3)
    assert_matches(support.back(result), expected, "float32", tolerance=16)


def test_a_kernel_that_refuses_is_no_figure():
    support.require_provider("cpu")
    before = tp.get_backend()
    with pytest.raises(NotImplementedError, match=r"^rms_norm has no kernel of cpu here: "):
        asv.Benchmark().prepare("rms_norm", "numpy/cpu", [np.ones((2, 4), dtype=">f4")])
    assert tp.get_backend() == before


def test_a_setup_makes_its_arrays_once():
    """asv calls it before every sample; the scope of the backend is entered anew each time."""
    support.require_provider("cpu")
    made, before = [], tp.get_backend()

    class Counted(asv.Benchmark):
        def setup(self, *params):
            made.append(params)
            if params == ("fails",):
                raise NotImplementedError
            self.prepare("rms_norm", "numpy/cpu", [np.ones((2, 8), dtype="float32")])

    benchmark = Counted()
    for params in ((1,), (1,), (2,), (2,)):
        benchmark.setup(*params)
        assert tp.get_backend() == "cpu"
        with tp.trace() as log:
            benchmark.call()
        assert [record.kernel for record in log] == ["cpu"]
        benchmark.teardown()
        assert tp.get_backend() == before
    assert made == [(1,), (2,)]
    for _ in range(2):  # what failed is tried again
        with pytest.raises(NotImplementedError):
            benchmark.setup("fails")
    assert made == [(1,), (2,), ("fails",), ("fails",)]


def test_every_implementation_is_found():
    found = asv.implementations(asv.family("quantization"))
    assert {"numpy/cpu", "numpy/generic", "mlx/mlx", "mlx/generic"} <= set(found)
    assert not {name for name in found if name.startswith(("array_api_strict/", "dask/"))}
