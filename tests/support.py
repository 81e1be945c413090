"""Shared helpers of the tests: which libraries are under test, and transferring arrays there and back.

Everything is derived from tensorops' own tables, so a new row is tested without being named here. What a table
cannot hold is in `tensorops.testing`, where authors of other backends can use it as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorops as tp
from tensorops import _providers
from tensorops._operator import OPERATORS, Operator
from tensorops._trees import map_arrays
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES, Backend, Library
from tensorops.testing import DTYPES, _libraries
from tensorops.testing._libraries import arrays_in as arrays_in, back as back

HALVES = ("float16", "bfloat16")

# Disabled: functions whose result shape depends on values, extensions, and additions of later standards.
STRICTEST = {
    "api_version": "2024.12",
    "boolean_indexing": False,
    "data_dependent_shapes": False,
    "enabled_extensions": (),
}


def dtypes_of(library: str) -> tuple[str, ...]:
    """Return the floating dtypes that a library supports within `holding`; all of them if it is not installed."""
    if why_not(library):
        return tuple(DTYPES)
    held = _libraries.dtypes_held
    if library == "pyopencl":  # of the device that is the default now: tests of several drivers change it
        held = held.__wrapped__
    return held(LIBRARIES[library])


def holding(library: str, dtype: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a library supports a dtype, with its usual settings if possible."""
    return LIBRARIES[library].holding(dtype)


def backend_of(library: str, implementation: str = "generic") -> Backend:
    """Return a backend that computes with a library's arrays and uses a provider's kernels, if possible anywhere."""
    found = (b for b in BACKENDS.values() if b.library.name == library and not b.missing)
    return min((b for b in found if implementation in ("generic", *_providers.serving(b))), key=lambda b: bool(b.needs))


def why_not(library: str) -> str:
    """Return why a library's arrays cannot be tested here, or an empty string."""
    return unavailable_reason(backend_of(library))


def require(library: str) -> Library:
    """Return the row of a library, or skip the test with the reason why it cannot compute here."""
    if reason := why_not(library):
        pytest.skip(f"{library}: {reason}", allow_module_level=True)
    return LIBRARIES[library]


def require_provider(provider: str) -> None:
    """Skip the test, with the reason, if a provider's kernels cannot be loaded."""
    if reason := _providers.load(provider):
        pytest.skip(f"{provider}: {reason}", allow_module_level=True)


NATIVE: Any = None if _providers.load("cpu") else importlib.import_module("tensorops.kernels.cpu._native")
"""The compiled module, or ``None`` without it."""

TARGETS: list[str] = NATIVE.targets() if NATIVE else []
"""The levels of instructions that it has kernels for, and this machine can run."""


@contextlib.contextmanager
def using_target(name: str) -> Iterator[None]:
    """Run the kernels of another target within a block."""
    in_use = NATIVE.target()
    NATIVE.use_target(name)
    try:
        yield
    finally:
        NATIVE.use_target(in_use)


def require_native() -> Any:
    """Return the compiled module, or skip the file with the reason why there is none."""
    require_provider("cpu")
    return NATIVE


def implementations(operator: Operator[..., Any], row: Library) -> tuple[str, ...]:
    """Return an operator's implementations for a library's arrays: its body, and kernels by provider."""
    return ("generic", *(p for p in operator.kernels if p in _providers.serving_library(row.name)))


def there(tree: Any, library: str) -> Any:
    """Transfer the NumPy arrays in nested containers to a library; float64 becomes float32 if it lacks float64."""
    return _libraries.there(tree, backend_of(library))


def on_opencl(tree: Any) -> Any:
    """Transfer NumPy arrays to the default OpenCL device; every device stores float16, as `cla.to_device` shows.

    Unlike `there`, which refuses what the device cannot compute with: kernels convert float16 when they load it.
    """
    import pyopencl.array as cla

    xp = LIBRARIES["pyopencl"].xp

    def move(a: Any) -> Any:
        if a.dtype == np.float16:
            return xp.asarray(cla.to_device(xp.default_device().queue, a))
        return there(a, "pyopencl")

    return map_arrays(move, tree)


def on_opencl_held(*dtypes: str) -> None:
    """Skip the test unless the default OpenCL device stores arrays of these dtypes."""
    for lacking in {*dtypes} - {"float16", *dtypes_of("pyopencl")}:
        pytest.skip(f"the device holds no {lacking}")


def with_argument(
    operator: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments with another value of one parameter; of ``*operands``, for the first of them."""
    bound = inspect.signature(operator).bind(*args, **kwargs)
    many = bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
    bound.arguments[name] = (value, *bound.arguments[name][1:]) if many else value
    return bound.args, bound.kwargs


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32", scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Return normally distributed numbers."""
    return (scale * rng.standard_normal(shape)).astype(DTYPES[dtype])


def bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array's elements as integers, to compare also NaN and the sign of zero."""
    return np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")


def assert_identical(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    """Assert that two arrays have the same dtype and the same bits."""
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(bits(a), bits(b))


def close(actual: Any, expected: Any, rtol: float = 1e-14, atol: float = 1e-300) -> None:
    """Assert that float64 results agree to a few units of the last place."""
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def integers_there(values: np.ndarray[Any, Any], dtype: str, row: Library) -> Any:
    """Transfer integers to a library in a dtype; skip the test if the library does not support it here."""
    taken = there(values.astype(dtype), row.name)
    if str(taken.dtype).rpartition(".")[2] != dtype:
        pytest.skip(f"{row.name} holds no {dtype} here")
    return taken


def in_threads(work: Callable[[Any], object], arguments: Sequence[Any]) -> None:
    """Call a function with each argument in a thread of its own, all at the same time; raise what one of them does."""
    with ThreadPoolExecutor(len(arguments)) as executor:
        list(executor.map(work, arguments))


@contextlib.contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Let compiled kernels compute on no more threads for the length of a block; 0 sets no bound."""
    native = require_native()
    bound = native.num_threads()
    native.set_num_threads(threads)
    try:
        yield
    finally:
        native.set_num_threads(bound)


def same_on_threads(counts: Sequence[int], call: Callable[[], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the result of a call, which must have the same bits whatever the greatest number of threads."""
    results = []
    for threads in counts:
        with at_most(threads):
            results.append(call())
    for y in results[1:]:
        assert_identical(y, results[0])
    return results[0]


@contextlib.contextmanager
def another_thread(write: Callable[[], object]) -> Iterator[None]:
    """Call `write` repeatedly in another thread within a block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            write()

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def to_torch(torch: Any, *arrays: Any) -> list[Any]:
    """Return copies of arrays as tensors."""
    return [None if x is None else torch.from_numpy(np.array(x)) for x in arrays]


def fuse_in_mlx(fuses: bool) -> None:
    """Let `mlx.core.compile` fuse operations, or only trace and simplify; Python has no function for the latter.

    On a processor, MLX runs g++ for half a second for each fused kernel.
    """
    library = pathlib.Path(importlib.import_module("mlx.core").__file__ or "").parent / "lib" / "libmlx.so"
    if library.exists():
        only_simplify, fuse = 2, 3
        ctypes.CDLL(str(library))._ZN3mlx4core16set_compile_modeENS0_11CompileModeE(fuse if fuses else only_simplify)


def resident_bytes() -> int:
    """Return the process's resident memory if the system reports it, else 0."""
    path = pathlib.Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


@contextlib.contextmanager
def temporary_operator(body: Callable[..., Any], **declared: Any) -> Iterator[Operator[..., Any]]:
    """An operator for one test: kernels may be registered, and everything is removed afterwards."""
    made = tp._operator.operator(**declared)(body)
    try:
        yield made
    finally:
        del OPERATORS[made.__name__]


def before_python_path(*folders: os.PathLike[str]) -> str:
    """Return `PYTHONPATH` with these folders first."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def only(*libraries: str, folders: Iterable[os.PathLike[str]] = ()) -> dict[str, str]:
    """Return the environment of a program that finds these array libraries: to try all takes nine seconds."""
    others = (row for row in LIBRARIES.values() if row.name not in (*libraries, "numpy", "array_api_strict"))
    path = before_python_path(*folders, pathlib.Path(__file__).parent / "not_installed")
    return {"PYTHONPATH": path, "NOT_INSTALLED": " ".join(package for row in others for package in row.packages)}


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter without this one's configuration; warnings are also errors there."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=inherited | {"TENSOROPS_CONFIG": ""} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def by_hand_in_jax(name, like, args, attributes=(), names=None):
    """Call a handler of XLA with arrays as the operator's first parameters, or those of these names."""
    import jax

    assert tp.silu.explain(jax.numpy.zeros(3)).kernel == "jax_ffi"  # the handlers are registered
    names = names or OPERATORS[name].parameters[: len(args)]
    given = sum(1 << OPERATORS[name].parameters.index(each) for each in names)
    call = jax.ffi.ffi_call(f"tensorops.{name}", jax.ShapeDtypeStruct(like.shape, like.dtype))
    return jax.block_until_ready(call(*args, arrays=np.int64(given), **dict(attributes)))


def for_each(groups):
    """Make a function of one element a test for each group: a test for each element takes longer than the checks."""

    def decorate(check):
        @pytest.mark.parametrize("group", groups)
        def test(group):
            for element in groups[group]:
                try:
                    check(element)
                except Exception as error:
                    error.add_note(f"This was {element}.")
                    raise

        test.__doc__ = check.__doc__
        return test

    return decorate
