"""Who computes, and who is told: selection, settings, transfers, errors. What is computed is tested elsewhere."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import copy
import dataclasses
import inspect
import multiprocessing
import pickle
import re
import sys
import threading
import types
from typing import NamedTuple

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import KernelRefusedError, kernels
from tensorops._namespaces import NAMESPACES
from tensorops._operator import OPERATORS, operator
from tensorops._typing import Array
from tensorops.backends.registry import BACKENDS, unavailable_reason
from tensorops.testing import REFERENCES, assert_matches

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)

ELSEWHERE = [name for name in NAMESPACES if name != "numpy"]


@pytest.fixture(params=ELSEWHERE)
def elsewhere(request):
    """Every library but NumPy, one after another."""
    return support.require(request.param)


@pytest.fixture
def unavailable():
    """The name of a backend that cannot compute here, and the reason."""
    for backend in BACKENDS.values():
        if reason := unavailable_reason(backend):
            return backend.name, reason
    pytest.skip("every backend of the table is available")


# --- choosing a kernel -------------------------------------------------------------------------------


@dataclasses.dataclass
class Fake:
    """A kernel that adds a number, so that a result tells which kernel made it, and counts questions and calls."""

    adds: float
    refuses: str | None = None
    declines: bool = False
    raises: Exception | None = None
    questions: int = 0
    calls: int = 0

    def supports(self, x):
        self.questions += 1
        return self.refuses

    def __call__(self, x):
        self.calls += 1
        if self.raises is not None:
            raise self.raises
        if self.declines and self.refuses is not None:
            return NotImplemented
        return x + self.adds


@pytest.fixture
def providers(monkeypatch):
    """Two more providers, `one` and `two`, that serve NumPy arrays before any other."""
    row = NAMESPACES["numpy"]
    before = row.providers
    for name in ("one", "two"):
        monkeypatch.setitem(kernels.PROVIDERS, name, f"kernels of {name}")
        monkeypatch.setitem(kernels._reasons, name, "")
    object.__setattr__(row, "providers", ("one", "two"))
    yield
    object.__setattr__(row, "providers", before)


@pytest.fixture
def adder(providers):
    """An operator that adds 1000 by its own body, and a function that gives it kernels."""

    def adder(x: Array) -> Array:
        """Add."""
        return x + 1000.0

    with support.temporary_operator(adder) as made:

        def register(**fakes):
            for provider, fake in fakes.items():
                made.kernel(provider, supports=fake.supports, declines=fake.declines)(fake)

        made.register = register
        yield made


def test_the_body_runs_where_there_is_no_kernel(adder):
    assert adder(np.zeros(1)) == 1000.0
    explanation = adder.explain(np.zeros(1))
    assert explanation.kernel == "generic"
    assert explanation.refused == {
        "one": "has no kernel for this operator",
        "two": "has no kernel for this operator",
    }


def test_the_first_provider_that_takes_the_arguments_runs(adder):
    one, two = Fake(1.0), Fake(2.0)
    adder.register(two=two, one=one)
    assert adder(np.zeros(1)) == 1.0
    assert adder.explain(np.zeros(1)).refused == {}
    one.refuses = "is not in the mood"
    assert adder(np.zeros(1)) == 2.0
    assert adder.explain(np.zeros(1)).refused == {"one": "is not in the mood"}
    two.refuses = "is not either"
    assert adder(np.zeros(1)) == 1000.0
    explanation = adder.explain(np.zeros(1))
    assert (explanation.kernel, explanation.namespace, explanation.backend) == ("generic", "numpy", "auto")
    assert explanation.refused == {"one": "is not in the mood", "two": "is not either"}
    assert str(explanation) == (
        "adder: generic on numpy (backend auto)\n  not one: is not in the mood\n  not two: is not either"
    )


def test_explain_and_trace_agree_and_explain_runs_nothing(adder):
    one = Fake(1.0)
    adder.register(one=one)
    for refuses, expected in ((None, "one"), ("no", "generic")):
        one.refuses = refuses
        calls = one.calls
        assert adder.explain(np.zeros(1)).kernel == expected
        assert one.calls == calls
        with tp.trace() as log:
            adder(np.zeros(1))
        assert log.kernels == {"adder": {expected}}


def test_explain_does_not_run_the_body():
    def careful(x: Array) -> Array:
        """Fail."""
        raise AssertionError("the body ran")

    with support.temporary_operator(careful) as made:
        assert made.explain(X).kernel == "generic"
        with pytest.raises(AssertionError, match="the body ran"):
            made(X)


def test_kernels_named_in_set_backend_are_the_only_ones(adder):
    one, two = Fake(1.0), Fake(2.0)
    adder.register(one=one, two=two)
    with tp.set_backend("numpy", kernels=["two", "one"]):
        assert adder(np.zeros(1)) == 2.0
    with tp.set_backend("numpy", kernels=["generic"]):
        assert adder(np.zeros(1)) == 1000.0
    with tp.set_backend("numpy", kernels=["two", "generic", "one"]):
        two.refuses = "rests"
        assert adder(np.zeros(1)) == 1000.0
        assert adder.explain(np.zeros(1)).refused == {"two": "rests"}
    one.refuses = "sleeps"
    with (
        tp.set_backend("numpy", kernels=["two", "one"]),
        pytest.raises(
            KernelRefusedError,
            match=r"^adder: no kernel that was asked for takes these arguments: two: rests; one: sleeps$",
        ),
    ):
        adder(np.zeros(1))


def test_a_backend_brings_its_own_order(adder):
    """`numpy` has no providers, so that it computes with bodies only, whatever serves NumPy arrays otherwise."""
    adder.register(one=Fake(1.0))
    assert adder(np.zeros(1)) == 1.0
    with tp.set_backend("numpy"):
        assert adder(np.zeros(1)) == 1000.0
    assert adder(np.zeros(1)) == 1.0


def test_generic_calls_the_body_whatever_is_in_force(adder):
    adder.register(one=Fake(1.0))
    assert adder.generic(np.zeros(1)) == 1000.0
    with tp.set_backend("numpy", kernels=["one"]), tp.trace() as log:
        assert adder.generic(np.zeros(1)) == 1000.0
    assert log.kernels == {"adder": {"generic"}}
    assert log[0].transfers == ()


def test_a_kernel_that_declines_is_asked_once(adder):
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    for _ in range(3):
        assert adder(np.zeros(1)) == 1.0
    assert (one.questions, one.calls) == (1, 3)
    one.refuses = "has changed its mind"
    for call in range(3):
        assert adder(np.zeros(1)) == 1000.0
        assert (one.questions, one.calls) == (2 + call, 4 + call)  # it declined, then selection asked why
    one.refuses = None
    assert adder(np.zeros(1)) == 1.0


def test_a_kernel_that_does_not_decline_is_asked_every_time(adder):
    one = Fake(1.0)
    adder.register(one=one)
    for _ in range(3):
        assert adder(np.zeros(1)) == 1.0
    assert (one.questions, one.calls) == (3, 3)


def test_a_plan_never_overtakes_a_kernel_of_higher_rank(adder):
    """The second kernel ran once; arguments that the first takes must still go to the first."""
    one, two = Fake(1.0, refuses="not yet", declines=True), Fake(2.0, declines=True)
    adder.register(one=one, two=two)
    assert adder(np.zeros(1)) == 2.0
    one.refuses = None
    assert adder.explain(np.zeros(1)).kernel == "one"
    assert adder(np.zeros(1)) == 1.0


def test_a_plan_holds_for_one_type_of_array(adder):
    row = support.require("array_api_strict")
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    assert adder(np.zeros(1)) == 1.0
    assert float(adder(row.xp.zeros(1))[0]) == 1000.0
    assert one.calls == 1


def test_a_plan_ends_with_the_block(adder):
    adder.register(one=Fake(1.0, declines=True), two=Fake(2.0, declines=True))
    for _ in range(2):
        for kernel, expected in (("one", 1.0), ("two", 2.0), ("generic", 1000.0)):
            with tp.set_backend("numpy", kernels=[kernel]):
                assert [float(adder(np.zeros(1))[0]) for _ in range(2)] == [expected] * 2
    assert adder(np.zeros(1)) == 1.0


def test_an_error_in_a_kernel_is_raised(adder):
    one = Fake(1.0, declines=True)
    adder.register(one=one)
    adder(np.zeros(1))
    for error in (TypeError("the kernel's own"), RuntimeError("the kernel's own")):
        one.raises = error
        with pytest.raises(type(error), match="the kernel's own"):
            adder(np.zeros(1))


def test_a_kernel_of_a_provider_that_cannot_be_loaded_is_refused(adder, monkeypatch):
    adder.register(one=Fake(1.0))
    monkeypatch.setitem(kernels.PROVIDERS, "one", "tensorops.kernels.no_such_provider")
    monkeypatch.delitem(kernels._reasons, "one")
    assert adder(np.zeros(1)) == 1000.0
    assert "no_such_provider" in adder.explain(np.zeros(1)).refused["one"]


def test_a_provider_serves_the_arrays_of_its_library_only(adder):
    row = support.require("array_api_strict")
    adder.register(one=Fake(1.0))
    with (
        tp.set_backend("array_api_strict", kernels=["one"]),
        pytest.raises(KernelRefusedError, match="one: serves no array_api_strict arrays"),
    ):
        adder(row.xp.zeros(1))


def test_two_kernels_of_one_provider_are_an_error(adder):
    adder.register(one=Fake(1.0))
    with pytest.raises(ValueError, match=r"^adder already has a kernel of 'one'$"):
        adder.register(one=Fake(1.0))


def test_an_operator_needs_an_array():
    def nothing(x: int) -> int:
        """Return `x`."""
        return x

    with pytest.raises(TypeError, match=r"^nothing: no parameter is annotated Array"):
        operator(nothing)
    assert "nothing" not in OPERATORS


def test_kernels_lists_what_is_registered(adder):
    one = Fake(1.0)
    adder.register(one=one)
    assert set(adder.kernels) == {"one"}
    assert (adder.kernels["one"].provider, adder.kernels["one"].function) == ("one", one)
    adder.kernels.clear()
    assert set(adder.kernels) == {"one"}


def test_a_keyword_argument_is_dispatched_as_a_positional_one(adder):
    adder.register(one=Fake(1.0, declines=True))
    assert adder(x=np.zeros(1)) == adder(np.zeros(1)) == 1.0
    assert adder.explain(x=np.zeros(1)).kernel == "one"


def test_compiled_kernels_are_explained():
    support.require_provider("cpu")
    assert tp.rms_norm.explain(X, W).kernel == "cpu"
    explanation = tp.rms_norm.explain(X, axis=0)
    assert (explanation.kernel, explanation.refused) == ("generic", {"cpu": "axis 0 is not the last of x"})
    assert str(explanation).splitlines() == [
        "rms_norm: generic on numpy (backend auto)",
        "  not cpu: axis 0 is not the last of x",
    ]
    with tp.trace() as log:
        tp.rms_norm(X, W)
        tp.rms_norm(X, axis=0)
        tp.silu(X)
    assert [(r.operator, r.kernel) for r in log] == [
        ("rms_norm", "cpu"),
        ("rms_norm", "generic"),
        ("silu", "generic"),
    ]


# --- an operator is a function -----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_look_like_functions(name):
    made = OPERATORS[name]
    assert made is getattr(tp, name)
    assert repr(made) == f"<operator {name}>"
    assert (made.__name__, made.__qualname__) == (name, name)
    assert made.__module__.startswith("tensorops.ops.")
    assert inspect.signature(made) == inspect.signature(made.__wrapped__)
    assert inspect.getdoc(made) == inspect.getdoc(made.__wrapped__)
    assert callable(made)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pickle_and_copy_by_reference(name):
    made = OPERATORS[name]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(made, protocol)) is made
    assert copy.deepcopy(made) is made


def test_a_wrong_call_names_the_operator():
    with pytest.raises(TypeError, match=r"^silu: missing a required argument: 'x'"):
        tp.silu()
    with pytest.raises(TypeError, match=r"^silu: got an unexpected keyword argument 'axis'"):
        tp.silu(X, axis=0)
    with pytest.raises(TypeError, match=r"^rms_norm: too many positional arguments"):
        tp.rms_norm(X, W, 1e-6, -1)


# --- set_backend -------------------------------------------------------------------------------------


def test_set_backend_nests_and_ends():
    assert tp.get_backend() == "auto"
    with tp.set_backend("numpy"):
        assert tp.get_backend() == "numpy"
        with tp.set_backend("cpu" if not kernels.load("cpu") else "array_api_strict"):
            assert tp.get_backend() != "numpy"
        assert tp.get_backend() == "numpy"
    assert tp.get_backend() == "auto"


def test_set_backend_ends_with_an_error():
    def fail():
        with tp.set_backend("numpy"), tp.trace():
            assert tp.get_backend() == "numpy"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tp.get_backend() == "auto"


def test_an_alias_means_the_backend():
    with tp.set_backend("python"):
        assert tp.get_backend() == "numpy"


def test_set_backend_decorates():
    @tp.set_backend("numpy")
    def chosen(depth):
        """Count down."""
        inner = tp.get_backend()
        if depth:
            with tp.set_backend("array_api_strict"):
                assert set(chosen(depth - 1)) == {"numpy"}
        return [inner, tp.get_backend()]

    support.require("array_api_strict")
    assert chosen(3) == ["numpy", "numpy"]
    assert (chosen.__name__, chosen.__doc__) == ("chosen", "Count down.")
    assert tp.get_backend() == "auto"

    @tp.set_backend("numpy")
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert tp.get_backend() == "auto"


def test_one_set_backend_object_may_be_entered_again_and_again():
    block = tp.set_backend("numpy")
    with block, block:
        with block:
            assert tp.get_backend() == "numpy"
        assert tp.get_backend() == "numpy"
    assert tp.get_backend() == "auto"


def test_set_backend_refuses_functions_whose_body_runs_later():
    async def coroutine():
        return tp.get_backend()

    def generator():
        yield tp.get_backend()

    async def both():
        yield tp.get_backend()

    for function in (coroutine, generator, both):
        with pytest.raises(TypeError, match=rf"^set_backend: {function.__name__} .*`with"):
            tp.set_backend("numpy")(function)


@pytest.mark.parametrize(
    ("typo", "meant"), [("nunpy", "numpy"), ("torhc", "torch"), ("array_api_stric", "array_api_strict")]
)
def test_an_unknown_name_lists_the_valid_ones_and_suggests(typo, meant):
    for call in (
        lambda: tp.set_backend(typo),
        lambda: tp.set_backend("numpy", fallback=[typo]),
        lambda: tp.is_backend_available(typo),
        lambda: tp.to_backend(X, typo),
    ):
        with pytest.raises(ValueError, match=rf"^unknown backend '{typo}'") as caught:
            call()
        assert f"did you mean '{meant}'?" in str(caught.value)
        for backend in BACKENDS.values():
            for name in (backend.name, *backend.aliases):
                assert re.search(rf"\b{name}\b", str(caught.value))


@pytest.mark.parametrize("name", ["xyzzy", "", None, 3, ["numpy"]])
def test_an_unknown_name_without_a_near_one_lists_the_valid_ones(name):
    with pytest.raises(ValueError, match=r"^unknown backend .*; valid names: .*numpy"):
        tp.set_backend(name)


def test_unknown_providers_list_the_valid_ones():
    with pytest.raises(ValueError, match=r"^unknown provider of kernels 'gpu'.* cpu, .*generic$"):
        tp.set_backend("numpy", kernels=["gpu"])


def test_one_string_is_no_sequence_of_names():
    with pytest.raises(TypeError, match=r"^set_backend: fallback and kernels are sequences"):
        tp.set_backend("numpy", fallback="cpu")
    with pytest.raises(TypeError, match=r"^set_backend: fallback and kernels are sequences"):
        tp.set_backend("numpy", kernels="generic")


def test_an_unavailable_backend_is_an_error_with_the_reason(unavailable):
    name, reason = unavailable
    message = re.escape(f"backend '{name}' is not available: {reason}")
    assert not tp.is_backend_available(name)
    assert name not in tp.get_available_backends()
    for call in (lambda: tp.set_backend(name), lambda: tp.to_backend(X, name)):
        with pytest.raises(tp.BackendUnavailableError, match=message):
            call()
    assert tp.get_backend() == "auto"


def test_fallbacks_are_taken_in_order(unavailable):
    name, reason = unavailable
    with tp.set_backend(name, fallback=["numpy", "array_api_strict"]):
        assert tp.get_backend() == "numpy"
    with tp.set_backend("numpy", fallback=[name]):
        assert tp.get_backend() == "numpy"
    with pytest.raises(tp.BackendUnavailableError) as caught:
        tp.set_backend(name, fallback=[name])
    assert str(caught.value).count(reason) == 2


def test_cuda_is_refused_with_the_reason_where_there_is_none():
    if tp.is_backend_available("cuda"):
        pytest.skip("cuda is available here")
    with pytest.raises(tp.BackendUnavailableError, match=r"^backend 'cuda' is not available: .+"):
        tp.set_backend("cuda")


def test_available_backends_have_computed():
    available = tp.get_available_backends()
    assert available == tp.get_available_backends(refresh=True)
    assert "numpy" in available
    assert list(available) == [name for name in BACKENDS if name in available]
    for name in BACKENDS:
        assert tp.is_backend_available(name) == (name in available)


def test_a_backend_that_computes_wrongly_is_not_available(monkeypatch):
    backend = BACKENDS["array_api_strict"]
    support.require("array_api_strict")
    right = backend.namespace.to_numpy
    object.__setattr__(backend.namespace, "to_numpy", lambda x: right(x) + 1)
    try:
        assert "came back as" in unavailable_reason(backend, refresh=True)
    finally:
        object.__setattr__(backend.namespace, "to_numpy", right)
        assert unavailable_reason(backend, refresh=True) == ""


# --- threads, tasks and processes --------------------------------------------------------------------


def test_a_thread_starts_without_a_backend_and_keeps_its_own():
    seen = {}
    both_inside = threading.Barrier(2, timeout=60)

    def work(name):
        seen[name] = [tp.get_backend()]
        with tp.set_backend(name):
            both_inside.wait()
            seen[name].append(tp.get_backend())
            both_inside.wait()
        seen[name].append(tp.get_backend())

    support.require("array_api_strict")
    with tp.set_backend("numpy"):
        threads = [threading.Thread(target=work, args=(n,)) for n in ("numpy", "array_api_strict")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert tp.get_backend() == "numpy"
    assert seen == {n: ["auto", n, "auto"] for n in ("numpy", "array_api_strict")}


def test_a_decorated_function_may_run_in_several_threads():
    inside = threading.Barrier(4, timeout=60)

    @tp.set_backend("numpy")
    def work(depth):
        if depth:
            return work(depth - 1)
        inside.wait()
        return tp.get_backend()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(work, depth) for depth in range(4)]
        assert [f.result(60) for f in futures] == ["numpy"] * 4
        assert {pool.submit(tp.get_backend).result(60) for _ in range(8)} == {"auto"}


def test_tasks_keep_their_own_backend():
    support.require("array_api_strict")

    async def work(name, meet):
        with tp.set_backend(name):
            seen = [tp.get_backend()]
            await meet.wait()
            seen.append(tp.get_backend())
        await asyncio.sleep(0)
        return [*seen, tp.get_backend()]

    async def main():
        meet = asyncio.Barrier(2)
        with tp.set_backend("numpy"):  # a task begins with what is in force where it is made
            tasks = [asyncio.create_task(work(n, meet)) for n in ("array_api_strict", "numpy")]
        assert tp.get_backend() == "auto"
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [
        ["array_api_strict", "array_api_strict", "numpy"],
        ["numpy", "numpy", "numpy"],
    ]


def test_a_thread_pool_gets_settings_only_with_bind_settings():
    with concurrent.futures.ThreadPoolExecutor(1) as pool, tp.set_backend("numpy", kernels=["generic"]):
        with tp.trace() as log:
            assert pool.submit(tp.get_backend).result(60) == "auto"
            pool.submit(tp.silu, X).result(60)
            assert len(log) == 0
            assert pool.submit(tp.bind_settings(tp.get_backend)).result(60) == "numpy"
            result = pool.submit(tp.bind_settings(tp.silu), X).result(60)
            explain = pool.submit(tp.bind_settings(tp.rms_norm.explain), X).result(60)
        assert [(r.operator, r.kernel) for r in log] == [("silu", "generic")]
        assert (explain.backend, explain.kernel) == ("numpy", "generic")
        np.testing.assert_array_equal(result, tp.silu.generic(X))
        assert pool.submit(tp.get_backend).result(60) == "auto"


def test_bind_settings_binds_what_is_in_force_when_it_is_called():
    with tp.set_backend("numpy"):
        bound = tp.bind_settings(tp.get_backend)
    assert (bound(), tp.get_backend()) == ("numpy", "auto")
    unbound = tp.bind_settings(tp.get_backend)
    with tp.set_backend("numpy"):
        assert (unbound(), tp.get_backend()) == ("auto", "numpy")


PROCESSES = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import tensorops as tp

if __name__ == "__main__":
    x = np.ones((2, 4), dtype=np.float32)
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        with tp.set_backend("numpy", kernels=["generic"]), tp.trace() as log:
            bound = [tp.bind_settings(f) for f in (tp.get_backend, tp.rms_norm.explain, tp.silu)]
        print(pool.submit(tp.get_backend).result(120))
        print(pool.submit(bound[0]).result(120))
        print(pool.submit(bound[1], x).result(120))
        print(pool.submit(bound[2], x).result(120).dtype)
        print(pool.submit(tp.get_backend).result(120))
        print(len(log))
"""


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_process_pool_gets_settings_only_with_bind_settings(method):
    result = support.python(PROCESSES, method)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "auto",
        "numpy",
        "rms_norm: generic on numpy (backend numpy)",
        "float32",
        "auto",
        "0",
    ]


def test_bound_settings_pickle_by_name(unavailable):
    with tp.set_backend("numpy", kernels=["generic"]):
        bound = pickle.loads(pickle.dumps(tp.bind_settings(tp.rms_norm.explain)))
    assert (bound(X).backend, bound(X).kernel) == ("numpy", "generic")
    auto = pickle.loads(pickle.dumps(tp.bind_settings(tp.get_backend)))
    with tp.set_backend("numpy"):
        assert auto() == "auto"


# --- trace -------------------------------------------------------------------------------------------


def test_a_trace_records_shapes_and_dtypes_of_the_arrays():
    with tp.trace() as log:
        tp.rms_norm(X, eps=1e-3)
        tp.embedding(np.asarray([1, 0]), X)
        tp.sample(X, rng=np.random.default_rng(0))
    assert [(r.shapes, r.dtypes) for r in log] == [
        (((2, 4),), ("float32",)),
        (((2,), (2, 4)), ("int64", "float32")),
        (((2, 4),), ("float32",)),
    ]
    assert len(log) == 3
    assert log[1].operator == "embedding"
    assert [r.operator for r in log[:2]] == ["rms_norm", "embedding"]
    assert str(log).splitlines()[1] == "embedding: generic on numpy, int64(2,), float32(2, 4)"


def test_a_trace_ends_with_its_block_and_an_outer_one_goes_on():
    with tp.trace() as outer:
        tp.silu(X)
        with tp.trace() as inner:
            tp.relu(X)
        tp.sigmoid(X)
    tp.gelu(X)
    assert [r.operator for r in inner] == ["relu"]
    assert [r.operator for r in outer] == ["silu", "relu", "sigmoid"]


def test_an_empty_choice_of_kernels_is_refused():
    with pytest.raises(ValueError, match=r"^set_backend: kernels is empty"):
        tp.set_backend("numpy", kernels=[])


def test_a_trace_sees_the_backends_set_within_it():
    with tp.trace() as log, tp.set_backend("numpy"):
        assert tp.get_backend() == "numpy"
        tp.rms_norm(X)
    assert [(r.operator, r.kernel) for r in log] == [("rms_norm", "generic")]


def test_a_call_that_fails_is_not_recorded():
    with tp.trace() as log, pytest.raises(ValueError, match=r"^rms_norm: weight has 4 elements"):
        tp.rms_norm(X[:, :3], W)
    assert len(log) == 0


# --- moving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numpy_arrays_go_to_the_backend_and_come_back(elsewhere, dtype):
    if dtype not in support.dtypes_of(elsewhere.name):
        pytest.skip(f"{elsewhere.name} holds no {dtype}")
    x, w = tp.testing.cast(X.astype(np.float64), dtype), tp.testing.cast(W.astype(np.float64), dtype)
    nbytes = x.nbytes
    with tp.set_backend(support.backend_of(elsewhere.name).name), tp.trace() as log:
        explanation = tp.rms_norm.explain(x, w)
        y = tp.rms_norm(x, w)
    assert type(y) is np.ndarray
    assert y.flags.writeable
    assert_matches(y, REFERENCES["rms_norm"](x, w), dtype, tolerance=8)
    (record,) = log
    assert record.namespace == explanation.namespace == elsewhere.name
    assert [(t.source, t.target, t.nbytes) for t in record.transfers] == [
        ("numpy", elsewhere.name, nbytes),
        ("numpy", elsewhere.name, w.nbytes),
        (elsewhere.name, "numpy", nbytes),
    ]
    assert list(explanation.transfers) == list(record.transfers[:2])
    assert f"moves numpy → {elsewhere.name} {nbytes} bytes" in str(explanation)
    assert f"numpy → {elsewhere.name} {nbytes} bytes" in str(log)


def test_other_arrays_go_to_numpy_and_come_back(elsewhere):
    if elsewhere.lazy:
        pytest.skip(f"{elsewhere.name} arrays are not moved by an operator")
    x, w = support.there((X, W), elsewhere.name)
    with tp.set_backend("numpy"), tp.trace() as log:
        y = tp.rms_norm(x, w)
    assert elsewhere.owns(y)
    assert_matches(support.back(y), REFERENCES["rms_norm"](X, W), "float32", tolerance=8)
    assert (log[0].namespace, len(log[0].transfers)) == ("numpy", 3)


def test_arrays_of_several_libraries_meet_in_a_backend(elsewhere):
    if elsewhere.lazy:
        pytest.skip(f"{elsewhere.name} arrays are not moved by an operator")
    w = support.there(W, elsewhere.name)
    with tp.set_backend("numpy"):
        y = tp.rms_norm(X, w)
        assert type(y) is np.ndarray  # as the first
        y = tp.rms_norm(support.there(X, elsewhere.name), W)
        assert elsewhere.owns(y)


def test_arrays_of_several_libraries_in_one_call_are_an_error(elsewhere):
    w = support.there(W, elsewhere.name)
    message = rf"^rms_norm: x is a numpy array, but weight is a {elsewhere.name} array; .*set_backend\('numpy'\)"
    with pytest.raises(TypeError, match=message):
        tp.rms_norm(X, w)
    with pytest.raises(TypeError, match=message):
        tp.rms_norm.generic(X, w)
    with pytest.raises(TypeError, match=message):
        tp.rms_norm.explain(X, w)
    with pytest.raises(TypeError, match=f"several libraries in one call: numpy and {elsewhere.name}"):
        tp.get_namespace(X, None, w)


def test_several_results_come_back(elsewhere):
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    with tp.set_backend(support.backend_of(elsewhere.name).name):
        packed, scales, biases = tp.quantize(w, bits=4, group_size=32)
        codes, _, none = tp.quantize(w, bits=8, group_size=32, mode="symmetric")
    assert [type(a) for a in (packed, scales, biases, codes)] == [np.ndarray] * 4
    assert [a.dtype.name for a in (packed, scales, biases)] == ["uint8", "float32", "float32"]
    assert none is None


def test_integers_go_to_the_backend_and_numbers_of_a_generator_too(elsewhere):
    with tp.set_backend(support.backend_of(elsewhere.name).name):
        y = tp.embedding(np.asarray([1, 0, 1]), X)
        drawn = tp.sample(X, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(y, X[[1, 0, 1]])
    np.testing.assert_array_equal(drawn, tp.sample(X, rng=np.random.default_rng(3)))
    assert drawn.dtype.kind == "i"


def test_results_come_back_to_their_device():
    row = support.require("array_api_strict")
    device = row.xp.Device("device1")
    with tp.set_backend("numpy"):
        y = tp.silu(row.xp.ones(3, device=device))
    assert y.device == device


def test_arrays_already_there_do_not_move(elsewhere):
    x = support.there(X, elsewhere.name)
    with tp.set_backend(support.backend_of(elsewhere.name).name), tp.trace() as log:
        y = tp.silu(x)
    assert elsewhere.owns(y)
    assert log[0].transfers == ()


def test_no_lazy_graph_is_computed_to_move_it():
    support.require("dask")
    import dask.array as da

    def never(block):
        raise AssertionError("a chunk was computed")

    x = da.ones((4, 4), chunks=2).map_blocks(never, dtype="float64", meta=np.empty((0, 0)))
    with tp.set_backend("numpy"):
        for call in (tp.silu, tp.silu.explain):
            with pytest.raises(TypeError, match=r"^silu: x is a dask array, .*would compute.*to_backend\(x, 'numpy'\)"):
                call(x)
    assert tp.silu.explain(x).kernel == "generic"
    assert tp.silu(x).shape == (4, 4)
    with pytest.raises(AssertionError, match="a chunk was computed"):
        tp.to_backend(x, "numpy")  # asked for in as many words


def test_a_gradient_is_not_dropped_by_moving():
    support.require("torch")
    import torch

    x = torch.ones(3, requires_grad=True)
    with tp.set_backend("numpy"):
        with pytest.raises(TypeError, match=r"^silu: x: a torch tensor that requires grad .*x\.detach\(\)"):
            tp.silu(x)
        with torch.no_grad():
            assert not tp.silu(x).requires_grad
        assert isinstance(tp.silu(x.detach()), torch.Tensor)
    with pytest.raises(TypeError, match="requires grad"):
        tp.to_backend({"x": x}, "numpy")
    assert tp.silu(x).requires_grad


def test_a_traced_array_is_not_moved():
    support.require("jax")
    import jax

    @jax.jit
    def f(x):
        with tp.set_backend("numpy"):
            return tp.silu(x)

    with pytest.raises(TypeError, match=r"^silu: x: a traced jax array has no values yet"):
        f(jax.numpy.ones(3))
    with pytest.raises(TypeError, match="a traced jax array has no values yet"):
        jax.grad(lambda x: tp.to_backend(x, "numpy").sum())(1.0)


def test_jax_refuses_what_it_would_narrow():
    support.require("jax")
    import jax

    assert not jax.config.jax_enable_x64
    with tp.set_backend("jax"):
        with pytest.raises(TypeError, match=r"^silu: x: jax holds float64 only if jax_enable_x64 is set"):
            tp.silu(np.ones(3))
        with pytest.raises(TypeError, match=r"^embedding: ids: jax holds int64 values this large only if"):
            tp.embedding(np.asarray([2**40]), X)
        with jax.enable_x64(True):
            assert tp.silu(np.ones(3)).dtype == np.float64
    for values in ([2**31], [-(2**31) - 1]):
        with pytest.raises(TypeError, match="jax holds int64 values this large only"):
            tp.to_backend(np.asarray(values), "jax")
    kept = tp.to_backend(np.asarray([2**31 - 1, -(2**31)]), "jax")
    assert kept.tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(TypeError, match="jax holds uint64 values this large only"):
        tp.to_backend(np.asarray([2**32], dtype=np.uint64), "jax")


# --- what is no array --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([1.0, 2.0], "list"),
        ((1.0, 2.0), "tuple"),
        (1.0, "float"),
        (1, "int"),
        ("x", "str"),
        (None, "NoneType"),
        (np.random.default_rng(0), "numpy.random._generator.Generator"),
    ],
)
def test_what_is_no_array_is_refused_by_name(value, name):
    expected = f"is {re.escape(name)}, expected an array of numpy, .*jax"
    for call in (tp.rms_norm, tp.rms_norm.generic, tp.rms_norm.explain):
        with pytest.raises(TypeError, match=rf"^rms_norm: x {expected}"):
            call(value)
    if value is not None:
        with pytest.raises(TypeError, match=rf"^rms_norm: weight {expected}"):
            tp.rms_norm(X, value)
        with tp.set_backend("numpy"), pytest.raises(TypeError, match=rf"^rms_norm: weight {expected}"):
            tp.rms_norm(X, value)


def test_rng_is_a_generator_or_an_array():
    with pytest.raises(TypeError, match=r"^sample: rng is RandomState, expected a numpy\.random\.Generator"):
        tp.sample(X, rng=np.random.RandomState(0))
    with pytest.raises(ValueError, match=r"^sample: rng is missing"):
        tp.sample(X)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_odd_subclasses_are_refused():
    """Twice, as the look-up by type must not remember them."""
    for odd, name in ((np.matrix([[1.0, 2.0]]), "matrix"), (np.ma.masked_array([1.0], [True]), "MaskedArray")):
        for _ in range(2):
            with pytest.raises(TypeError, match=rf"^{name} is not supported; pass numpy.asarray"):
                tp.silu(odd)
            with pytest.raises(TypeError, match=rf"^{name} is not supported"):
                tp.rms_norm(X, odd)
            with pytest.raises(TypeError, match=rf"^{name} is not supported"):
                tp.to_backend(odd, "numpy")


def test_plain_subclasses_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=X.shape)
    mapped[:] = X
    np.testing.assert_array_equal(tp.rms_norm(mapped, W), tp.rms_norm.generic(X, W))
    assert tp.rms_norm.explain(mapped).refused == {"cpu": "x is not a numpy.ndarray"}


def test_pyopencl_arrays_are_refused_clearly(monkeypatch):
    row = NAMESPACES["pyopencl"]
    if not row.missing:
        pytest.skip("PyOpenCL arrays are supported")
    package, module = types.ModuleType("pyopencl"), types.ModuleType("pyopencl.array")
    module.Array = type("Array", (), {"__module__": "pyopencl.array"})
    package.array = module
    monkeypatch.setitem(sys.modules, "pyopencl", package)
    monkeypatch.setitem(sys.modules, "pyopencl.array", module)
    with pytest.raises(TypeError, match=rf"^silu: x is a pyopencl array, and {row.missing}"):
        tp.silu(module.Array())
    with pytest.raises(TypeError, match=r"^pyopencl arrays cannot be used"):
        tp.get_namespace(module.Array())


# --- get_namespace and to_backend --------------------------------------------------------------------


def test_get_namespace_is_that_of_the_arrays_or_of_the_backend(namespace):
    x = support.there(X, namespace.name)
    xp = tp.get_namespace(x, None)
    assert xp is namespace.xp
    assert namespace.owns(xp.exp(x))
    with tp.set_backend("numpy"):
        assert tp.get_namespace(x) is namespace.xp
    with tp.set_backend(support.backend_of(namespace.name).name):
        assert tp.get_namespace() is tp.get_namespace(None) is namespace.xp


def test_get_namespace_without_backend_is_that_of_numpy():
    assert tp.get_namespace() is NAMESPACES["numpy"].xp
    with pytest.raises(TypeError, match=r"^expected an array, got list$"):
        tp.get_namespace([1.0])


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass(frozen=True)
class Block:
    weight: object
    name: str
    rest: dict
    derived: int = dataclasses.field(init=False, default=7)


def test_to_backend_takes_nested_structures(namespace):
    tree = {
        "list": [X, 3, "name", None],
        "tuple": (W, (X,)),
        "named": Pair(X, {"deep": W}),
        "block": Block(W, "name", {"x": X}),
        "ordered": collections.OrderedDict(b=X, a=1),
        "default": collections.defaultdict(list, w=W),
        "function": np.tanh,
    }
    moved = tp.to_backend(tree, support.backend_of(namespace.name).name)
    assert list(moved) == list(tree)
    assert moved["list"][1:] == [3, "name", None]
    assert isinstance(moved["named"], Pair)
    assert isinstance(moved["block"], Block)
    assert (moved["block"].name, moved["block"].derived) == ("name", 7)
    assert isinstance(moved["ordered"], collections.OrderedDict)
    assert list(moved["ordered"]) == ["b", "a"]
    assert moved["default"]["absent"] == []
    assert moved["function"] is np.tanh
    found = [
        (moved["list"][0], X),
        (moved["tuple"][0], W),
        (moved["tuple"][1][0], X),
        (moved["named"].first, X),
        (moved["named"].second["deep"], W),
        (moved["block"].weight, W),
        (moved["block"].rest["x"], X),
        (moved["ordered"]["b"], X),
        (moved["default"]["w"], W),
    ]
    for array, original in found:
        assert namespace.owns(array)
        there_and_back = support.back(array)
        assert there_and_back.dtype == original.dtype
        np.testing.assert_array_equal(there_and_back, original)
    assert tree["list"][0] is X


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_to_backend_keeps_dtype_shape_and_values(namespace, dtype, shape):
    if dtype in tp.testing.DTYPES and dtype not in support.dtypes_of(namespace.name):
        pytest.skip(f"{namespace.name} holds no {dtype}")
    original = np.arange(6.0)[: int(np.prod(shape))].reshape(shape)
    original = original.astype(tp.testing.DTYPES.get(dtype, dtype))
    with support.holding(namespace.name, dtype):
        moved = tp.to_backend(original, support.backend_of(namespace.name).name)
        assert namespace.owns(moved)
        assert tuple(moved.shape) == shape
        returned = tp.to_backend(moved, "numpy")
    assert type(returned) is np.ndarray
    assert returned.dtype == original.dtype
    np.testing.assert_array_equal(returned, original)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda a: a[::-1, ::-2], id="negative"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a.astype(a.dtype.newbyteorder()), id="byteswapped"),
        pytest.param(lambda a: np.broadcast_to(a[0], (3, 4)), id="broadcast"),
        pytest.param(lambda a: np.frombuffer(b"?" + a.tobytes(), a.dtype, offset=1), id="misaligned"),
    ],
)
def test_to_backend_takes_any_layout(namespace, layout):
    original = layout(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    original.flags.writeable = False
    moved = tp.to_backend(original, support.backend_of(namespace.name).name)
    np.testing.assert_array_equal(support.back(moved), original)


def test_a_move_that_was_asked_for_is_traced(elsewhere):
    with tp.trace() as log:
        moved = tp.to_backend((X, W), support.backend_of(elsewhere.name).name)
        tp.to_backend(moved, support.backend_of(elsewhere.name).name)
    assert [(r.operator, r.namespace, len(r.transfers)) for r in log] == [("to_backend", elsewhere.name, 1)] * 2
    assert [r.transfers[0].nbytes for r in log] == [X.nbytes, W.nbytes]
    assert (log[0].transfers[0].source, log[0].transfers[0].target) == ("numpy", elsewhere.name)


@pytest.mark.parametrize(
    ("library", "array"),
    [
        ("array_api_strict", X.astype(np.float16)),
        ("jax", np.asarray([1j])),
        ("mlx", np.asarray([1j])),
        ("mlx", np.asarray([None])),
        ("torch", np.asarray(["a"])),
    ],
    ids=lambda value: value if isinstance(value, str) else value.dtype.name,
)
def test_a_dtype_that_is_not_held_is_an_error(library, array):
    support.require(library)
    with pytest.raises(TypeError, match=array.dtype.name.rstrip("0123456789")):
        tp.to_backend(array, library)
    with tp.set_backend(library), pytest.raises(TypeError, match=r"^silu: x"):
        tp.silu(array)


# --- the environment ---------------------------------------------------------------------------------

ENVIRONMENT = """
import numpy as np
import tensorops as tp

x = np.ones((2, 4), dtype=np.float32)
print(tp.get_backend())
with tp.trace() as log:
    y = tp.rms_norm(x)
print(type(y).__name__, log[0].kernel, log[0].namespace, tp.rms_norm.explain(x).backend)
"""


@pytest.mark.parametrize(("value", "name"), [("numpy", "numpy"), ("python", "numpy"), ("jax", "jax")])
def test_the_environment_names_a_backend(value, name):
    support.require(name)
    result = support.python(ENVIRONMENT, TENSOROPS_BACKEND=value)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [name, f"ndarray generic {name} {name}"]


def test_the_environment_may_say_auto():
    result = support.python(ENVIRONMENT, TENSOROPS_BACKEND="auto")
    assert result.returncode == 0, result.stderr
    kernel = "generic" if kernels.load("cpu") else "cpu"
    assert result.stdout.splitlines() == ["auto", f"ndarray {kernel} numpy auto"]


def test_an_unknown_name_in_the_environment_is_an_error_at_import():
    result = support.python("import tensorops", TENSOROPS_BACKEND="nunpy")
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ValueError: environment variable TENSOROPS_BACKEND: unknown backend 'nunpy'")
    assert "did you mean 'numpy'?" in last
    assert "array_api_strict" in last


UNAVAILABLE = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import tensorops as tp

x = np.ones((2, 4), dtype=np.float32)


def refused(function, *args):
    try:
        function(*args)
    except tp.BackendUnavailableError as error:
        assert sys.argv[1] in str(error), error
        return True
    return False


def traced():
    with tp.trace():
        tp.silu(x)


print(tp.get_backend())
print(refused(tp.silu, x), refused(tp.silu.explain, x), refused(traced), refused(tp.get_namespace))
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(refused, tp.bind_settings(tp.silu), x).result())
print(type(tp.silu.generic(x)).__name__)
with tp.set_backend("numpy"):
    print(type(tp.silu(x)).__name__)
"""


def test_an_unavailable_backend_in_the_environment_is_an_error_at_the_first_call(unavailable):
    name, _ = unavailable
    result = support.python(UNAVAILABLE, name, TENSOROPS_BACKEND=name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [name, "True True True True", "True", "ndarray", "ndarray"]
