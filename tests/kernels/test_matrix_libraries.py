"""`linear` by the libraries that are loaded from wheels: results, threads, processes, and messages without a wheel."""

import os
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops.testing import DTYPES, assert_matches, check_conformance

LIBRARIES = ["onednn", "mkl"]
BFLOAT16 = ml_dtypes.bfloat16


def multiplied(provider, dtype):
    """Tell whether a library has products of a dtype."""
    return (provider, dtype) != ("onednn", "float64")


@pytest.fixture(params=LIBRARIES)
def provider(request):
    """Each library in turn; skipped visibly if its wheel is not installed."""
    support.require_provider(request.param)
    return request.param


def computed(provider, *args):
    """Return a library's result, after assertions on what ran."""
    with tp.set_backend("numpy", providers=[provider]), tp.trace() as log:
        y = tp.linear(*args)
    assert [record.kernel for record in log] == [provider]
    assert type(y) is np.ndarray
    assert y.dtype == args[0].dtype
    with tp.set_backend("numpy", providers=[provider]):
        tp.linear(*args)  # leaves a plan
        support.assert_identical(tp.linear(*args), y)
    return y


def reference(x, weight, bias=None):
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    return y if bias is None else y + bias.astype(np.float64)


def assert_right(y, *args):
    name = y.dtype.name
    assert_matches(y, reference(*args), name, tolerance=64.0 if name in ("float32", "float64") else 1.0)


def xwb(rng, dtype, rows=37, inputs=70, outputs=45):
    shapes = (rows, inputs), (outputs, inputs), (outputs,)
    return tuple(support.normal(rng, *shape, dtype=dtype) for shape in shapes)


# --- results -----------------------------------------------------------------------------------------


def test_conformance(provider):
    report = check_conformance(provider, operators=["linear"], implementations=[provider])
    for dtype in DTYPES:
        outcomes = {o.case: o.status for o in report.outcomes if o.dtype == dtype}
        expected = "passed" if multiplied(provider, dtype) else "refused"
        assert (outcomes["typical"], outcomes["batch"], outcomes["special"]) == (expected,) * 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_all_dtypes_with_and_without_bias(provider, dtype, rows, rng):
    x, w, b = xwb(rng, dtype, rows)
    if not multiplied(provider, dtype):
        with (
            tp.set_backend("numpy", providers=[provider]),
            pytest.raises(tp.KernelRefusedError, match="an array has dtype float64, whose products oneDNN lacks"),
        ):
            tp.linear(x, w)
        return
    assert_right(computed(provider, x, w, b), x, w, b)
    assert_right(computed(provider, x, w), x, w)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("rows apart", lambda a: np.concatenate([a, a], axis=1)[:, : a.shape[1]]),
        ("columns apart", lambda a: np.repeat(a, 2, axis=1)[:, ::2]),
        ("transposed", lambda a: np.asfortranarray(a)),
        ("a part of a transposed one", lambda a: np.concatenate([a, a]).T.copy().T[: len(a)]),
        ("backwards", lambda a: a[::-1, ::-1].copy()[::-1, ::-1]),
        ("one row repeated", lambda a: np.broadcast_to(a[:1], a.shape)),
        ("one column repeated", lambda a: np.broadcast_to(a[:, :1], a.shape)),
        (
            "not aligned",
            lambda a: np.frombuffer(b"\0" + a.tobytes(), dtype=np.uint8)[1:].view(a.dtype).reshape(a.shape),
        ),
    ],
)
def test_memory_in_any_order(provider, dtype, kind, change, rng):
    x, w, b = xwb(rng, dtype)
    for args in ((change(x), w, b), (x, change(w), b), (x, w, np.repeat(b, 3)[::3])):
        for a in args:
            a.flags.writeable = False
        assert_right(computed(provider, *args), *args)


def test_one_row_or_column(provider, rng):
    for shape in ((1, 1, 1), (1, 9, 1), (9, 1, 1), (1, 1, 9), (9, 1, 9)):
        args = xwb(rng, "float32", *shape)
        assert_right(computed(provider, *args), *args)
    x, w, b = xwb(rng, "float32")
    y = computed(provider, np.asfortranarray(w)[:1, :1], w[:3, :1])
    assert_right(y, w[:1, :1], w[:3, :1])
    assert computed(provider, x[0], w, b).shape == (45,)
    assert computed(provider, x.reshape(37, 7, 10), w[:, :10]).shape == (37, 7, 45)


def test_mixed_dtypes_compute_in_the_widest(provider, rng):
    x, w, b = (a.astype(dtype) for a, dtype in zip(xwb(rng, "float32"), ("float32", BFLOAT16, np.float16), strict=True))
    assert_right(computed(provider, x, w, b), x, w, b)
    halves = x.astype(BFLOAT16), w.astype(np.float16)
    assert_right(computed(provider, *halves), *halves)


def test_what_it_cannot_take_is_refused(provider, rng):
    x, w, _ = xwb(rng, "float32")
    swapped = x.astype(x.dtype.newbyteorder())
    with tp.set_backend("numpy", providers=[provider]):
        for args, reason in (((x[:0], w), "x or weight is empty"), ((swapped, w), "x has dtype")):
            with pytest.raises(tp.KernelRefusedError, match=f"{provider}: {reason}"):
                tp.linear(*args)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_of_the_result_is_not_read(provider, dtype, rng):
    if not multiplied(provider, dtype):
        pytest.skip("oneDNN has no product of float64 matrices")
    x, w, b = xwb(rng, dtype, 64, 32, 64)
    wide = np.float64 if dtype == "float64" else np.float32
    for _ in range(20):
        np.full((64, 64), np.nan, dtype=wide)  # freed at once, and the next result may lie there
        assert np.isfinite(computed(provider, x, w).astype(np.float64)).all()
        assert np.isfinite(computed(provider, x, w, b).astype(np.float64)).all()


def test_numbers_at_the_ends_of_the_range(provider):
    tiny = np.full((3, 4), 1e-39, dtype=np.float32)
    for dtype in ("float32", "bfloat16"):
        for scale in (1.0, 1e30):
            x, w = tiny.astype(DTYPES[dtype]), np.full((2, 4), scale, dtype=DTYPES[dtype])
            np.testing.assert_allclose(computed(provider, x, w).astype(float), reference(x, w), rtol=2e-2)
            np.testing.assert_allclose(computed(provider, w, x).astype(float), reference(w, x), rtol=2e-2)
    small = np.full((40, 64), 1e-20, dtype=BFLOAT16)  # normal numbers whose products are not
    np.testing.assert_allclose(computed(provider, small, small).astype(float), reference(small, small), rtol=2e-2)
    x, w = np.full((2, 3), 200.0, dtype=np.float16), np.asarray([[200.0], [-200.0]], dtype=np.float16) * np.ones(3)
    assert computed(provider, x, w.astype(np.float16))[0].tolist() == [np.inf, -np.inf]  # without a warning
    half = np.full((2, 8), 6e-8, dtype=np.float16)
    np.testing.assert_allclose(computed(provider, half, np.full((3, 8), 1e3, dtype=np.float16)), 4.8e-4, rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_infinities_and_nan_stay_in_their_row(provider, dtype):
    x = np.ones((40, 33), dtype=DTYPES[dtype])
    x[1, 2], x[2, 3], x[3, 4], x[4, 5], x[4, 6] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    y = computed(provider, x, np.ones((5, 33), dtype=DTYPES[dtype])).astype(np.float64)
    assert (y[[1, 2], 0] == [np.inf, -np.inf]).all()
    assert np.isnan(y[3:5]).all()
    assert (np.delete(y, [1, 2, 3, 4], axis=0) == 33.0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_summed_in_float32(provider, dtype):
    x, w = np.ones((33, 4099), dtype=DTYPES[dtype]), np.ones((17, 4099), dtype=DTYPES[dtype])
    w[:, 1] = 0.25  # lost in a sum of half precision
    expected = np.full((33, 17), 4098.25).astype(DTYPES[dtype])
    support.assert_identical(computed(provider, x, w), expected)


# --- threads and processes ---------------------------------------------------------------------------


def test_many_threads_call_at_once(provider, rng):
    work = [xwb(rng, dtype, rows, 129, 65) for dtype in ("float32", "bfloat16") for rows in (1, 8, 77, 260)]

    def call(args):
        for _ in range(20):
            with tp.set_backend("numpy", providers=[provider]):
                assert_right(tp.linear(*args), *args)

    support.in_threads(call, work)


BUSY = """
import os, threading
import numpy as np
import tensorops as tp
from tensorops.kernels import _wheels

def others():
    mine = threading.get_native_id()
    spent = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != mine:
            with open(f"/proc/self/task/{task}/schedstat") as stat:
                spent += int(stat.read().split()[0])
    return spent

x, w = np.ones((256, 1024), dtype=np.float32), np.ones((1024, 1024), dtype=np.float32)

def spent_by_others(times):
    with tp.set_backend("numpy", providers=[provider]):
        tp.linear(x, w)
        before = others()
        for _ in range(times):
            tp.linear(x, w)
        return others() - before
"""


def run(provider, code, **environment):
    program = f"provider = {provider!r}\n{BUSY}\n{textwrap.dedent(code)}"
    result = support.python(program, OPENBLAS_NUM_THREADS="1", **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


BOUNDS = {
    "set_num_threads": "_native.set_num_threads(1)",
    "threadpoolctl": "limits = threadpoolctl.threadpool_limits(1, user_api='openmp')",
    "a block of Dask": "_native.use_one_thread(True)",
    "TENSOROPS_NUM_THREADS": "",
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_of_threads_are_kept(provider, bound):
    support.require_native()
    if bound == "threadpoolctl":
        pytest.importorskip("threadpoolctl")
    setting = {"TENSOROPS_NUM_THREADS": "1"} if bound == "TENSOROPS_NUM_THREADS" else {}
    lines = run(
        provider,
        f"""
        from tensorops.kernels.cpu import _native
        import importlib.util
        if importlib.util.find_spec("threadpoolctl"):
            import threadpoolctl
        {BOUNDS[bound]}
        print(spent_by_others(20) < 2_000_000)  # what a thread takes to wake up and fall asleep
        print(_wheels.bound_of_threads())
        """,
        **setting,
    )
    # Where there is only one processor, there is nothing to bound.
    assert lines == ["True", "1" if len(os.sched_getaffinity(0)) > 1 else "0"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor only")
def test_without_a_bound_all_threads_compute_and_again_after_one(provider):
    support.require_native()
    lines = run(
        provider,
        """
        from tensorops.kernels.cpu import _native
        _native.set_num_threads(1)
        spent_by_others(5)
        _native.set_num_threads(0)
        print(any(spent_by_others(20) > 2_000_000 for _ in range(50)))  # others may hold the processors for a while
        print(_wheels.bound_of_threads())
        """,
    )
    assert lines == ["True", "0"]


def test_a_child_of_fork_leaves_it_to_others(provider):
    """Products of oneDNN might never end there."""
    lines = run(
        provider,
        """
        import signal, warnings
        warnings.simplefilter("ignore")  # that there are threads

        def in_child(function):
            child = os.fork()
            if child:
                return os.waitpid(child, 0)[1]
            signal.alarm(60)
            try:
                status = function()
            finally:
                os._exit(status)

        def refused():
            with tp.set_backend("numpy", providers=[provider]):
                return "this is a child of fork" not in str(failure(lambda: tp.linear(x, w)))

        def failure(function):
            try:
                function()
            except tp.KernelRefusedError as error:
                return error

        def left():
            with tp.set_backend(provider), tp.trace() as log:
                return int((tp.linear(x, w) != 1024.0).any() or log[0].kernel == provider)

        with tp.set_backend(provider):
            tp.linear(x, w)
        print(in_child(refused), in_child(left))
        with tp.set_backend("numpy", providers=[provider]):
            print((tp.linear(x, w) == 1024.0).all())
        """,
    )
    assert lines == ["0 0", "True"]


def test_a_child_of_fork_that_loads_it_itself_computes(provider):
    """And in the parent, which loads it later, the environment stays as it was."""
    lines = run(
        provider,
        """
        import signal
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with tp.set_backend("numpy", providers=[provider]):
                os._exit(int((tp.linear(x, w) != 1024.0).any()))
        print(os.waitpid(child, 0)[1])
        before = dict(os.environ)
        spent_by_others(1)
        print(before == dict(os.environ))
        """,
    )
    assert lines == ["0", "True"]


# --- the backends ------------------------------------------------------------------------------------

NAMES = {"onednn": "onednn", "mkldnn": "onednn", "mkl": "mkl"}


@pytest.mark.parametrize("name", NAMES)
def test_the_backend_computes_linear_with_it_and_the_rest_as_cpu(name, rng):
    provider = NAMES[name]
    support.require_provider(provider)
    support.require_native()
    x, w, b = xwb(rng, "float32", 3)
    with tp.set_backend(name):
        assert str(tp.linear.explain(x, w, b)) == f"linear: {provider} on numpy (backend {provider})"
        assert tp.silu.explain(x).kernel == "cpu"
        for _ in range(2):  # the second call by a plan
            assert_right(tp.linear(x, w, b), x, w, b)
        with tp.trace() as log:
            tp.linear(x, w, b)
            tp.silu(x)
    assert [record.kernel for record in log] == [provider, "cpu"]
    assert provider in tp.get_available_backends()


def test_the_backend_cpu_stays_with_its_own_kernels(rng):
    support.require_native()
    x, w, _ = xwb(rng, "bfloat16", 600, 600, 3)
    with tp.set_backend("cpu"):
        assert tp.linear.explain(x, w).kernel == "cpu"


def test_it_is_tried_in_a_separate_process_first(provider):
    result = support.python(
        f"""
import sys
import tensorops as tp
from tensorops.backends import probing
from tensorops.backends.registry import resolve
print(probing.probe(resolve({provider!r})).here)
with open("/proc/self/maps") as maps:
    print("libdnnl" in (text := maps.read()) or "libmkl" in text)
with tp.set_backend({provider!r}):
    print(probing.probe(resolve({provider!r})).here)
"""
    )
    assert result.stdout.split() == ["False", "False", "True"], result.stderr


WITHOUT = """
import importlib.metadata as metadata
found = metadata.distribution
def distribution(name):
    if name in ("onednn", "mkl"):
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.distribution = distribution
import numpy as np
import tensorops as tp
"""


@pytest.mark.costly
@pytest.mark.skipif(sys.platform != "linux", reason="the wheels are used on Linux only")
@pytest.mark.parametrize("name", NAMES)
def test_without_the_wheel_the_remedy_is_named(name):
    provider = NAMES[name]
    code = f"""
x = np.ones((300, 600), dtype=np.float32)
try:
    tp.set_backend({name!r})
except tp.BackendUnavailableError as error:
    print(error)
with tp.set_backend("numpy", providers=[{provider!r}]):
    try:
        tp.linear(x, x)
    except tp.KernelRefusedError as error:
        print(error)
print({provider!r} in tp.linear.explain(x, x).refused, tp.is_backend_available({name!r}))
"""
    result = support.python(WITHOUT + code)
    remedy = f"pip install 'tensorops[{provider}]'"
    assert result.stdout.splitlines() == [
        f"backend '{provider}' is not available: {provider} is not installed; to fix it: {remedy}",
        f"linear: no kernel that was asked for takes these arguments: {provider}: {provider} is not installed; "
        f"to fix it: {remedy}",
        "False False",
    ], result.stderr


def test_a_library_that_cannot_be_loaded_is_a_reason(provider, monkeypatch, tmp_path, rng):
    table = sys.modules[_providers.PROVIDERS[provider].kernels]
    broken = tmp_path / "libdnnl.so.3"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(table, "_PATH", broken)
    table._loaded.cache_clear()
    x, w, _ = xwb(rng, "bfloat16", 600, 600, 3)
    try:
        with (
            tp.set_backend("numpy", providers=[provider]),
            pytest.raises(tp.KernelRefusedError, match=f"{provider}: (oneDNN|MKL) cannot be loaded: .*lib"),
        ):
            tp.linear(x, w)
        assert tp.linear.explain(x, w).kernel != provider
    finally:
        table._loaded.cache_clear()
