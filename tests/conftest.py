"""The header of every run, which says what is under test, and fixtures over all array libraries.

Helpers that tests import are in `support`.
"""

import os

# Before tensorops is imported: the tests choose backends themselves, and ignore the configuration of this user.
os.environ.pop("TENSOROPS_BACKEND", None)
os.environ.pop("TENSOROPS_PRIORITY", None)
os.environ.pop("TENSOROPS_FORCE", None)
os.environ["TENSOROPS_CONFIG"] = ""
# Programs started by tests must import the installed package, as this one does, not the sources next to them.
os.environ["PYTHONSAFEPATH"] = "1"
# XLA compiles a program in four fifths of the time if LLVM optimizes nothing; what it fuses stays the same.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 " + os.environ.get("XLA_FLAGS", "")
# SciPy and scikit-learn accept arrays of the standard if this is set when SciPy is first imported.
os.environ["SCIPY_ARRAY_API"] = "1"

import opencl_drivers  # isort: skip - before tensorops and PyOpenCL

import gc
import importlib.util
import sys
from collections import Counter

import hypothesis
import numpy as np
import pytest

from tensorops import _providers
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES

import covering  # isort: skip
import fake_cupy  # isort: skip
import support  # isort: skip

hypothesis.settings.register_profile(
    "tensorops",
    derandomize=True,  # failures are reproducible, and every change is tested with the same examples
    deadline=None,  # a library may take long to compile for a new shape
    database=None,
    print_blob=False,
)
hypothesis.settings.load_profile("tensorops")
# pytest --hypothesis-profile=explore: many examples, different each time.
hypothesis.settings.register_profile("explore", max_examples=3000, deadline=None, database=None)

if importlib.util.find_spec("array_api_strict"):
    import array_api_strict

    array_api_strict.set_array_api_strict_flags(**support.STRICTEST)


def pytest_report_header(config):
    """Report which libraries and kernels are under test, and why the others are not."""
    refused = {name: support.why_not(name) for name in LIBRARIES}
    lines = ["arrays of: " + ", ".join(name for name, reason in refused.items() if not reason)]
    lines += [f"  not {name}: {reason}" for name, reason in refused.items() if reason]
    lines += [f"OpenCL on {d}" if not d.reason else f"  not OpenCL on {d}: {d.reason}" for d in opencl_drivers.DRIVERS]
    missing = {name: _providers.load(name) for name in _providers.PROVIDERS}
    lines.append("kernels of: " + ", ".join(name for name, reason in missing.items() if not reason))
    lines += [f"  not {name}: {reason}" for name, reason in missing.items() if reason]
    if not missing["cpu"]:
        from tensorops.kernels.cpu import _native

        lines.append(f"native targets: {', '.join(_native.targets())} (in use: {_native.target()})")
    return lines


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run the whole cross product of every parametrized test")


def pytest_collection_finish():
    """Spare the garbage collector what lives until the end: it took a quarter of the time of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before -m selects by the marks set here
def pytest_collection_modifyitems(config, items):
    """Leave out tests that differ from others only in the combination of their parameters; see `covering`."""
    out = covering.left_out(items)
    for item in out:
        item.add_marker(pytest.mark.exhaustive)
    by_name = any("::" in argument for argument in config.args)
    if out and not (config.option.exhaustive or "exhaustive" in config.option.markexpr or by_name):
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
        count_left_out(config, Counter(item.path.name for item in out))


LEFT_OUT = pytest.StashKey()


def count_left_out(config, counts):
    """Record how many tests of each file are left out; a pytest-xdist worker reports to its controller."""
    config.stash[LEFT_OUT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    count_left_out(node.config, getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter, config):
    """Report what the short run has left out."""
    if counts := config.stash.get(LEFT_OUT, {}):
        terminalreporter.section("left out of the short run")
        total, files = sum(counts.values()), ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        terminalreporter.write_line(f"{total} tests, further combinations of parameters and slow ones: {files}")
        terminalreporter.write_line("pytest -m exhaustive runs these, pytest --exhaustive all tests")


@pytest.fixture(params=list(LIBRARIES))
def library(request):
    """Each row of the table of array libraries in turn; skipped visibly if it cannot compute."""
    return support.require(request.param)


@pytest.fixture(params=support.TARGETS)
def target(request):
    """Each target of the compiled module that this machine can run, in turn."""
    with support.using_target(request.param):
        yield request.param


@pytest.fixture
def pool():
    """The compiled module with an empty pool; its settings are restored."""
    module = support.require_native()
    gc.collect()
    limit, bound = module.memory_stats()["limit"], module.num_threads()
    module.empty_cache()
    yield module
    module.set_cache_limit(limit)
    module.set_num_threads(bound)
    module.empty_cache()


@pytest.fixture(scope="session", autouse=True)
def mlx_fuses(request):
    """Whether MLX fuses what it compiles: in a short run only in tests that use `fusing_mlx`."""
    fuses = request.config.option.exhaustive or "exhaustive" in request.config.option.markexpr
    if not support.why_not("mlx"):
        support.fuse_in_mlx(fuses)
    return fuses


@pytest.fixture
def fusing_mlx(mlx_fuses):
    support.require("mlx")
    support.fuse_in_mlx(True)
    yield
    support.fuse_in_mlx(mlx_fuses)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(params=[name for name in LIBRARIES if name != "numpy"])
def elsewhere(request):
    """Each library except NumPy, in turn."""
    return support.require(request.param)


@pytest.fixture
def cupy(monkeypatch):
    """A fake CuPy module: two GPUs, a memory pool and a record of calls. No test needs a GPU."""
    made = fake_cupy.make()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupy._core", made._core)
    return made


@pytest.fixture
def platform():
    """The OpenCL driver under test in this process."""
    if not opencl_drivers.DRIVERS:
        pytest.skip("PyOpenCL is not installed")
    driver = opencl_drivers.DRIVERS[0]
    if driver.reason:
        pytest.skip(f"{driver}: {driver.reason}")
    return driver


@pytest.fixture
def queue(platform):
    """A queue of a user's own context, which tensorops has not seen yet."""
    import pyopencl

    context = pyopencl.Context([support.require("pyopencl").xp.default_device().cl_device])
    made = pyopencl.CommandQueue(context)  # this frame keeps the context alive, Intel's queues do not
    yield made
    made.finish()


@pytest.fixture
def unavailable():
    """The name of a backend that cannot compute here, and the reason."""
    for backend in BACKENDS.values():
        if reason := unavailable_reason(backend):
            return backend.name, reason
    pytest.skip("every backend of the table is available")
