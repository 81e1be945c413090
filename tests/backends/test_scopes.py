"""Which settings are in force in blocks, threads, tasks, processes and the environment; and what a trace records."""

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import gc
import multiprocessing
import pickle
import re
import threading
import warnings

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS
from tensorops.backends.settings import current

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)


# --- set_backend -------------------------------------------------------------------------------------


def test_set_backend_nests_and_ends():
    assert tp.get_backend() == "auto"
    with tp.set_backend("numpy"):
        assert tp.get_backend() == "numpy"
        with tp.set_backend("cpu" if not _providers.load("cpu") else "array_api_strict"):
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


def test_a_block_may_be_auto():
    with tp.set_backend("numpy"), tp.set_backend("auto"):
        assert tp.get_backend() == "auto"
        assert tp.rms_norm.explain(X).kernel == ("generic" if _providers.load("cpu") else "cpu")
    with tp.set_backend("auto", providers=["generic"]):
        assert tp.rms_norm.explain(X).kernel == "generic"


def test_a_block_that_nobody_entered_says_so():
    (block := tp.set_backend("numpy"))(len)
    assert repr(block) == (
        "<set_backend 'numpy': applies to a `with` block or a decorated function; "
        "for the whole process: set_default_backend('numpy')>"
    )
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


def test_blocks_of_generators_may_end_in_any_order():
    support.require("array_api_strict")

    def block(name):
        with tp.set_backend(name):
            yield

    for order in ((0, 1), (1, 0)):
        blocks = [block("numpy"), block("array_api_strict")]
        for b in blocks:
            next(b)
        assert tp.get_backend() == "array_api_strict"
        blocks[order[0]].close()
        assert tp.get_backend() == ("array_api_strict" if order[0] == 0 else "numpy")
        blocks[order[1]].close()
        assert tp.get_backend() == "auto"


def test_a_block_in_a_suspended_generator_holds_for_its_caller():
    """This is documented behaviour of context variables; decorating the generator function avoids it."""

    def block():
        with tp.set_backend("numpy"):
            yield

    suspended = block()
    next(suspended)
    assert tp.get_backend() == "numpy"
    suspended.close()
    assert tp.get_backend() == "auto"


class Counter:
    def __call__(self, n):
        for _ in range(n):
            yield tp.get_backend()


def test_a_decorated_generator_function_leaves_its_caller_alone():
    support.require("array_api_strict")

    @tp.set_backend("numpy")
    def inside(n):
        """Return what computes."""
        for _ in range(n):
            yield tp.get_backend()

    assert (inside.__name__, inside.__doc__) == ("inside", "Return what computes.")
    for generator_function in (inside, functools.partial(inside), tp.set_backend("numpy")(Counter())):
        seen = []
        for name in generator_function(2):
            seen += [name, tp.get_backend()]
            with tp.set_backend("array_api_strict"):
                seen.append(tp.get_backend())
        assert seen == ["numpy", "auto", "array_api_strict"] * 2
    assert tp.get_backend() == "auto"


def test_a_decorated_generator_function_sends_throws_returns_and_closes():
    log = []

    @tp.set_backend("numpy")
    def conversation():
        try:
            log.append((yield "first"))
            try:
                yield "second"
            except KeyError as error:
                log.append(error)
            yield from ("third", "fourth")
            return "end"
        finally:
            log.append(tp.get_backend())

    talk = conversation()
    error = KeyError("thrown")
    assert [next(talk), talk.send("sent"), talk.throw(error)] == ["first", "second", "third"]
    assert tp.get_backend() == "auto"
    assert next(talk) == "fourth"
    with pytest.raises(StopIteration) as end:
        next(talk)
    assert (end.value.value, log, tp.get_backend()) == ("end", ["sent", error, "numpy"], "auto")

    log.clear()
    talk = conversation()
    next(talk)
    talk.close()
    assert (log, tp.get_backend()) == (["numpy"], "auto")

    talk = conversation()
    next(talk)
    with pytest.raises(ZeroDivisionError):
        talk.throw(ZeroDivisionError())
    assert tp.get_backend() == "auto"


def test_a_decorated_generator_function_is_traced():
    @tp.set_backend("numpy")
    def computing():
        yield tp.silu(X)
        yield tp.silu(X)

    with tp.trace() as log:
        for _ in computing():
            tp.relu.generic(X)
    assert [(r.operator, r.kernel) for r in log] == [("silu", "generic"), ("relu", "generic")] * 2


def test_what_would_run_later_is_refused_however_it_is_wrapped():
    async def coroutine():
        return tp.get_backend()

    class Callable:
        async def __call__(self):
            return tp.get_backend()

    def generator():
        yield

    for function in (coroutine, functools.partial(coroutine), Callable(), generator):
        if function is not generator:
            with pytest.raises(TypeError, match=r"^set_backend: .* is a generator or coroutine function"):
                tp.set_backend("numpy")(function)
        with pytest.raises(TypeError, match=r"^bind_settings: .* is a generator or coroutine function"):
            tp.bind_settings(function)
    with pytest.raises(TypeError, match=r"^set_backend: Callable is a class; decorate its methods"):
        tp.set_backend("numpy")(Callable)
    assert tp.bind_settings(functools.partial(tp.get_backend))() == "auto"


def test_set_backend_refuses_functions_whose_body_runs_later():
    async def coroutine():
        return tp.get_backend()

    async def both():
        yield tp.get_backend()

    for function in (coroutine, both):
        with pytest.raises(TypeError, match=rf"^set_backend: {function.__name__} .*`with"):
            tp.set_backend("numpy")(function)


@pytest.mark.parametrize(
    ("typo", "meant"), [("nunpy", "numpy"), ("JAX", "jax"), ("torhc", "torch"), ("array_api_stric", "array_api_strict")]
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
        tp.set_backend("numpy", providers=["gpu"])


def test_one_string_is_no_sequence_of_names():
    with pytest.raises(TypeError, match=r"^set_backend: fallback and providers must be sequences"):
        tp.set_backend("numpy", fallback="cpu")
    with pytest.raises(TypeError, match=r"^set_backend: fallback and providers must be sequences"):
        tp.set_backend("numpy", providers="generic")


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
    for name in BACKENDS:
        assert tp.is_backend_available(name) == (name in available)


def test_a_backend_that_computes_wrongly_is_not_available(monkeypatch):
    backend = BACKENDS["array_api_strict"]
    support.require("array_api_strict")
    right = backend.library.to_numpy
    object.__setattr__(backend.library, "to_numpy", lambda x: right(x) + 1)
    try:
        assert "came back as" in unavailable_reason(backend, refresh=True)
    finally:
        object.__setattr__(backend.library, "to_numpy", right)
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
        support.in_threads(work, ("numpy", "array_api_strict"))
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
        with tp.set_backend("numpy"):  # a task begins with the settings in force where it is created
            tasks = [asyncio.create_task(work(n, meet)) for n in ("array_api_strict", "numpy")]
        assert tp.get_backend() == "auto"
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [["array_api_strict", "array_api_strict", "numpy"], ["numpy", "numpy", "numpy"]]


def test_a_thread_pool_gets_settings_only_with_bind_settings():
    with concurrent.futures.ThreadPoolExecutor(1) as pool, tp.set_backend("numpy", providers=["generic"]):
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
        with tp.set_backend("numpy", providers=["generic"]), tp.trace() as log:
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


@pytest.mark.costly
def test_joblib_gets_settings_only_with_bind_settings():
    joblib = pytest.importorskip("joblib")
    with tp.set_backend("numpy"), joblib.parallel_config("loky", n_jobs=2):
        found = joblib.Parallel()(joblib.delayed(f)() for f in (tp.get_backend, tp.bind_settings(tp.get_backend)))
    assert found == ["auto", "numpy"]


def test_bound_settings_pickle_by_name(unavailable):
    with tp.set_backend("numpy", providers=["generic"]):
        bound = pickle.loads(pickle.dumps(tp.bind_settings(tp.rms_norm.explain)))
    assert (bound(X).backend, bound(X).kernel) == ("numpy", "generic")
    auto = pickle.loads(pickle.dumps(tp.bind_settings(tp.get_backend)))
    with tp.set_backend("numpy"):
        assert auto() == "auto"


@pytest.mark.parametrize("options", [{}, {"providers": ["generic"]}])
def test_a_choice_pickles_by_name(options):
    with pickle.loads(pickle.dumps(tp.set_backend("numpy", **options))):
        assert tp.get_backend() == "numpy"
        assert tp.rms_norm.explain(X).kernel == "generic"
    assert tp.get_backend() == "auto"


def test_tuned_values_pickle_with_bound_settings():
    support.require_provider("cpu")
    x, weight = np.ones((2, 4), np.float16), np.ones((3, 4), np.float16)
    for backend in (contextlib.nullcontext(), tp.set_backend("cpu")):
        with backend, tp.tune("linear", "cpu", few_rows=9):
            bound = pickle.loads(pickle.dumps(tp.bind_settings(tp.linear.explain)))
            name = tp.get_backend()
        assert (bound(x, weight).backend, bound(x, weight).configuration) == (name, {"few_rows": 9})


def test_tune_pickles_by_name():
    support.require_provider("cpu")
    x, weight = np.ones((2, 4), np.float16), np.ones((3, 4), np.float16)
    block = pickle.loads(pickle.dumps(tp.tune("linear", "cpu", few_rows=9)))
    with block:
        assert tp.linear.explain(x, weight).configuration == {"few_rows": 9}
    with pytest.raises(RuntimeError, match="entered once"), block:
        pass
    decorated = tp.tune("linear", "cpu", few_rows=9)(lambda: tp.linear.explain(x, weight).configuration)
    assert decorated() == decorated() == {"few_rows": 9}


@pytest.mark.parametrize(
    "make",
    [
        lambda: tp.set_backend("numpy"),
        lambda: tp.bind_settings(tp.get_backend),
        lambda: tp.tune("linear", "cpu", few_rows=9),
    ],
    ids=["set_backend", "bind_settings", "tune"],
)
def test_another_version_is_an_error_that_names_both(make, monkeypatch):
    support.require_provider("cpu")
    monkeypatch.setattr(tp, "__version__", "9.8.7")
    made = pickle.dumps(make())
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=rf"pickled by tensorops 9\.8\.7, but .* has tensorops {tp.__version__}:"):
        pickle.loads(made)


def test_a_list_of_backends_pickles():
    shown = tp.list_backends()
    for again in (pickle.loads(pickle.dumps(shown)), copy.copy(shown)):
        assert (str(again), type(again)) == (str(shown), type(shown))


def test_what_belongs_to_a_process_says_so():
    support.require_provider("cpu")
    kernel = tp.PersistentKernel(tp.silu, [X], backend="cpu")
    for refused, remedy in ((kernel, "make a PersistentKernel of it"), (tp.trace(), "pickle the Trace")):
        with pytest.raises(TypeError, match=rf"cannot be pickled: .*{remedy}"):
            pickle.dumps(refused)
        assert type(copy.copy(refused)) is type(refused)


def test_entering_equal_blocks_again_finds_the_plans():
    support.require_provider("cpu")
    found = []
    for _ in range(2):
        with tp.tune("linear", "cpu", few_rows=9), tp.set_backend("auto"):
            found.append(current.get())
    assert found[0] is found[1]


# --- trace -------------------------------------------------------------------------------------------


def test_a_trace_records_shapes_and_dtypes_of_the_arrays():
    with tp.trace() as log:
        tp.rms_norm(X, eps=1e-3)
        tp.embedding.generic(np.asarray([1, 0]), X)
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
    with pytest.raises(ValueError, match=r"^set_backend: providers is empty"):
        tp.set_backend("numpy", providers=[])


def test_a_trace_sees_the_backends_set_within_it():
    with tp.trace() as log, tp.set_backend("numpy"):
        assert tp.get_backend() == "numpy"
        tp.rms_norm(X)
    assert [(r.operator, r.kernel) for r in log] == [("rms_norm", "generic")]


def test_a_call_that_fails_is_not_recorded():
    with tp.trace() as log, pytest.raises(ValueError, match=r"^rms_norm: weight has 4 elements"):
        tp.rms_norm(X[:, :3], W)
    assert len(log) == 0


# --- the environment ---------------------------------------------------------------------------------

ENVIRONMENT = """
import numpy as np
import tensorops as tp

x = np.ones((2, 4), dtype=np.float32)
print(tp.get_backend())
with tp.trace() as log:
    y = tp.rms_norm(x)
print(type(y).__name__, log[0].kernel, log[0].library, tp.rms_norm.explain(x).backend)
"""


@pytest.mark.costly(2)
@pytest.mark.parametrize(("value", "name"), [("numpy", "numpy"), ("python", "numpy"), ("jax", "jax")])
def test_the_environment_names_a_backend(value, name):
    support.require(name)
    result = support.python(ENVIRONMENT, TENSOROPS_BACKEND=value)
    assert result.returncode == 0, result.stderr
    kernel = "jax_ffi" if name == "jax" and not _providers.load("jax_ffi") else "generic"
    assert result.stdout.splitlines() == [name, f"ndarray {kernel} {name} {name}"]


def test_the_environment_may_say_auto():
    result = support.python(ENVIRONMENT, TENSOROPS_BACKEND="auto")
    assert result.returncode == 0, result.stderr
    kernel = "generic" if _providers.load("cpu") else "cpu"
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


print(refused(tp.silu, x), refused(tp.silu.explain, x), refused(traced), refused(tp.get_namespace))
print(refused(tp.get_backend), refused(tp.get_default_backend))
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(refused, tp.silu, x).result(), refused(tp.bind_settings, tp.silu))
print(type(tp.silu.generic(x)).__name__)
with tp.set_backend("numpy"):
    print(type(tp.silu(x)).__name__)
"""


def test_a_default_that_cannot_compute_is_an_error_at_every_call_that_needs_it(unavailable):
    name, _ = unavailable
    result = support.python(UNAVAILABLE, name, TENSOROPS_BACKEND=name, TENSOROPS_PRIORITY=name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["True True True True", "True True", "True True", "ndarray", "ndarray"]


def test_a_block_that_is_never_entered_warns():
    with pytest.warns(UserWarning, match=r"^set_backend\('numpy'\) had no effect.* `with tensorops.set_b"):
        tp.set_backend("numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tp.set_backend("numpy"):
            pass
        tp.set_backend("numpy")(lambda: None)
        with pytest.raises(ValueError, match="unknown backend"):
            tp.set_backend("nonsense")
        gc.collect()
