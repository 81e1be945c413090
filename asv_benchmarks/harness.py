"""Shared code of the asv benchmarks: the available implementations, their inputs, and the benchmark class.

Everything is read from tensorops' registries, so a new operator, kernel or array library is measured without a change
here.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tensorops import set_backend
from tensorops._operator import OPERATORS
from tensorops._providers import GENERIC, serving, serving_library
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS
from tensorops.benchmarks.measuring import Call, Contender, in_rounds, prepare_call
from tensorops.benchmarks.workloads import workload
from tensorops.libraries import LIBRARIES, Library
from tensorops.testing import DTYPES as NUMPY_DTYPES

DTYPES = list(NUMPY_DTYPES)
"""The names of the dtypes that every operator is measured in."""


def family(name: str) -> list[str]:
    """Return the operators of a module of `tensorops.ops`."""
    return [op.__name__ for op in OPERATORS.values() if op.__module__ == f"tensorops.ops.{name}"]


FOR_TESTS = {backend.library.name for backend in BACKENDS.values() if backend.for_tests}


def implementations(operators: list[str]) -> list[str]:
    """Return ``"library/provider"`` for every kernel of the operators, and ``"library/generic"``."""
    names = []
    for row in LIBRARIES.values():
        if row.missing or row.lazy or row.name in FOR_TESTS:
            continue
        providers = [p for p in serving_library(row.name) if any(p in OPERATORS[name].kernels for name in operators)]
        names += [f"{row.name}/{provider}" for provider in (*providers, GENERIC)]
    return names


def computing_backends() -> dict[str, str]:
    """Return a backend for each library whose arrays are in memory, by the library."""
    found: dict[str, str] = {}
    for backend in sorted(BACKENDS.values(), key=lambda backend: bool(backend.needs)):  # first those for any machine
        row = backend.library
        if not (backend.missing or row.missing or row.lazy or backend.for_tests):
            found.setdefault(row.name, backend.name)
    return found


def normal(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return standard normal numbers; equal shapes give equal numbers."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(NUMPY_DTYPES[dtype])


def speed_in_turns(call: Call, other: Call, seconds: float = 0.5) -> float:
    """Return the speed of a call of compiled kernels as a multiple of another's, by medians of alternating calls.

    The speed of a machine varies with time, so one that asv measured later is not comparable.
    """
    times = in_rounds([Contender(each, "cpu") for each in (call, other)], seconds)
    own, others = map(statistics.median, times)
    return others / own


class Prepared:
    """Keeps what ``setup`` makes: asv calls it before every sample, and making arrays may take longer than samples."""

    _made_for: tuple[Any, ...] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "setup" in vars(cls):
            cls.setup = _once(cls.setup)  # type: ignore[attr-defined]

    def again(self) -> None:
        """Do what is left to do of a setup when everything is made."""


def _once(setup: Callable[..., None]) -> Callable[..., None]:
    """Return a setup that does something for new parameters only."""

    @functools.wraps(setup)  # asv reads the source
    def kept(self: Prepared, *params: Any) -> None:
        if self._made_for == params:
            self.again()
        else:
            self._made_for = None  # if it fails
            setup(self, *params)
            self._made_for = params

    return kept


class Benchmark(Prepared):
    """Calls an operator on arrays of a library; the time includes waiting for the result.

    `setup` of a subclass calls `prepare`; its ``time_…`` method calls ``self.call()``.
    """

    timeout = 300
    # There are thousands of benchmarks: half a second each in one process, not asv's twenty seconds in two.
    rounds = 1
    repeat = (3, 10, 0.5)
    warmup_time = 0.05
    _choice: tuple[str, list[str]] | None = None

    def prepare(self, operator: str, implementation: str, args: Iterable[Any], **options: Any) -> None:
        """Make ``self.call``; NumPy arrays in `args` and `options` are transferred to the library."""
        library, provider = implementation.split("/")
        row = LIBRARIES[library]
        backend = self._backend(row, provider)
        args = [self._move(value, row) for value in args]
        options = {name: self._move(value, row) for name, value in options.items()}
        op = OPERATORS[operator]
        self._choice = None if provider == GENERIC else (backend, [provider, GENERIC])
        self.again()
        if provider != GENERIC and (reason := op.explain(*args, **options).refused.get(provider)):
            self.teardown()
            raise NotImplementedError(f"{operator} has no kernel of {provider} here: {reason}")
        self.call = prepare_call(op.generic if provider == GENERIC else op, args, options, row)
        self.call()  # compiles, and touches the memory

    def prepare_workload(self, operator: str, implementation: str, shape: tuple[int, int], dtype: str) -> None:
        """Make ``self.call`` of an operator on its usual arguments of a size."""
        try:
            work = workload(operator, *shape, dtype)
        except ValueError as error:  # not of this size
            raise NotImplementedError(str(error)) from None
        self.prepare(operator, implementation, work.args, **work.options)

    def again(self) -> None:
        """Enter the scope of the backend, if the implementation needs one."""
        if self._choice is not None:
            backend, providers = self._choice
            self._scope = set_backend(backend, providers=providers)
            self._scope.__enter__()

    def teardown(self, *_: Any) -> None:
        """Leave the backend's scope."""
        if hasattr(self, "_scope"):
            self._scope.__exit__(None, None, None)
            del self._scope

    @staticmethod
    def _backend(row: Library, provider: str) -> str:
        """Return the backend that computes with a library and uses a provider's kernels."""
        reasons = []
        for backend in BACKENDS.values():
            if backend.library is row and (provider == GENERIC or provider in serving(backend)):
                if not (reason := unavailable_reason(backend)):
                    return backend.name
                reasons.append(reason)
        raise NotImplementedError(f"{row.name}/{provider}: {'; '.join(reasons)}")  # asv shows n/a

    @staticmethod
    def _move(value: Any, row: Library) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        try:
            return row.from_numpy(value, None)
        except TypeError as error:
            raise NotImplementedError(str(error)) from None
