"""Conformance: every operator, implementation, dtype and case of a backend against the float64 references.

Authors of a backend, in this project or another, run it with two lines::

    from tensorops.testing import check_conformance

    check_conformance("tiny")

The tests of tensorops and the command ``tensorops selftest`` use the same outcomes; see `conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tensorops import _providers
from tensorops._kernel import Kernel
from tensorops._messages import nearest
from tensorops._operator import OPERATORS, Operator
from tensorops._providers import GENERIC
from tensorops._trees import map_arrays
from tensorops.backends.probing import first_available
from tensorops.backends.registry import load_plugins, resolve
from tensorops.libraries import Backend
from tensorops.testing._libraries import arrays_in, dtypes_held, there, unreachable
from tensorops.testing._running import check_refusal, check_result, run
from tensorops.testing.assertions import DTYPES
from tensorops.testing.entries import Arguments, Case, InvalidCase
from tensorops.testing.tables import CASES, INVALID, REFERENCES

if TYPE_CHECKING:
    from tensorops.libraries import Library

__all__ = ["ConformanceReport", "Outcome", "Subject", "check_conformance", "conformance", "subjects"]

Status: TypeAlias = Literal["passed", "failed", "refused", "skipped"]

_SHOWN = 40  # failures in a message; a broken library fails in hundreds of cases


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case.

    Attributes
    ----------
    operator : str
        The operator's name.
    implementation : str
        ``"generic"`` for the operator's own body, or the provider of the kernel.
    dtype : str
        The floating dtype of the arguments.
    case : str
        The case's name; ``"invalid: ..."`` for arguments that must be refused.
    status : {"passed", "failed", "refused", "skipped"}
        ``"refused"``: a kernel does not take these arguments, and another implementation ran instead, with the right
        result. ``"skipped"``: nothing ran.
    message : str
        Why it did not pass.
    """

    operator: str
    implementation: str
    dtype: str
    case: str
    status: Status
    message: str = ""

    def __str__(self) -> str:
        name = f"{self.operator} {self.implementation} {self.dtype} {self.case}: {self.status}"
        return f"{name}: {self.message}" if self.message else name


@dataclass(frozen=True)
class ConformanceReport:
    """The outcomes of a backend; printed as a summary and the failures.

    Attributes
    ----------
    backend : str
        Its name.
    outcomes : tuple of Outcome
        The outcome of every case.
    """

    backend: str
    outcomes: tuple[Outcome, ...]

    def count(self, status: Status) -> int:
        """Return how many outcomes have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The outcomes that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(s)} {s}" for s in ("passed", "failed", "refused", "skipped"))
        lines = [f"{self.backend}: {counts}", *map(str, self.failures[:_SHOWN])]
        if len(self.failures) > _SHOWN:
            lines.append(f"... and {len(self.failures) - _SHOWN} more")
        return "\n".join(lines)


def check_conformance(
    backend: str,
    *,
    operators: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    implementations: Collection[str] | None = None,
) -> ConformanceReport:
    """Assert that a backend computes every operator as its reference does.

    Parameters
    ----------
    backend : str
        Its name or an alias.
    operators, dtypes, implementations : collection of str, optional
        Only these operators, floating dtypes and implementations; all that have cases by default. An implementation is
        ``"generic"`` or a provider: one that the backend uses, or any other for its arrays.

    Returns
    -------
    ConformanceReport
        All outcomes. Kernels may have refused arguments: count these outcomes if that matters.

    Raises
    ------
    AssertionError
        If a case failed, none passed, or a kernel refused every case and was therefore not tested, or the kernels of a
        provider of another distribution, which the backend or `implementations` names, do not load. The message lists
        operator, implementation, dtype, case and reason.
    ValueError
        If a name is unknown, or an operator is your own and has no cases; the message lists the valid names.
    BackendUnavailableError
        If the backend cannot compute here, with the reason.

    Examples
    --------
    >>> from tensorops.testing import check_conformance
    >>> report = check_conformance("numpy", operators=["relu"], dtypes=["float32"])
    >>> report.count("failed"), report.count("refused")
    (0, 0)
    """
    __tracebackhide__ = True
    outcomes = conformance(backend, operators=operators, dtypes=dtypes, implementations=implementations)
    report = ConformanceReport(resolve(backend).name, tuple(outcomes))
    if report.failures:
        raise AssertionError(str(report))
    for name in {*(resolve(backend).providers or ()), *(implementations or ())} - {GENERIC}:
        if not _providers.PROVIDERS[name].ours and (reason := _providers.load(name)):
            raise AssertionError(f"{report}, but the kernels of the provider {name!r} do not load: {reason}")
    if not report.count("passed"):
        reasons = dict.fromkeys(outcome.message for outcome in report.outcomes if outcome.message)
        raise AssertionError("\n".join([f"{report}: nothing was tested", *reasons]))
    if dtypes is None and (idle := _idle_kernels(report.outcomes)):
        raise AssertionError("\n".join([f"{report}, but kernels refused every case:", *idle]))
    return report


def _idle_kernels(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the kernels that accepted no case, each with its reasons."""
    tried: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.implementation != GENERIC and outcome.case in {c.name for c in CASES.get(outcome.operator, ())}:
            tried.setdefault((outcome.operator, outcome.implementation), []).append(outcome)
    return [
        f"{operator} {provider}: {'; '.join(dict.fromkeys(outcome.message for outcome in group))}"
        for (operator, provider), group in tried.items()
        if all(outcome.status == "refused" for outcome in group)
    ]


def conformance(
    backend: str,
    *,
    operators: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    implementations: Collection[str] | None = None,
    quick: bool = False,
) -> Iterator[Outcome]:
    """Run the cases of a backend and yield the outcome of each.

    Every result is compared with the float64 reference, and a trace must show that the requested implementation ran,
    on the right library and without a transfer. Kernels are called by name, as users call, and under
    ``set_backend``. Invalid arguments must be refused.

    Parameters
    ----------
    backend : str
        Its name or an alias.
    operators, dtypes, implementations : collection of str, optional
        Only these; all by default. A dtype that the library lacks is skipped.
    quick : bool, default False
        For libraries that take seconds to compile or schedule: for each operator, run only one everyday case and the
        cases with NaN, infinities or no elements.

    Returns
    -------
    iterator of Outcome
        One per case, in the order operator, implementation, dtype.

    Raises
    ------
    ValueError
        If a name is unknown, or an operator is your own and has no cases; the message lists the valid names.
    BackendUnavailableError
        If the backend cannot compute here, with the reason.

    Examples
    --------
    >>> from tensorops.testing.conformance import conformance
    >>> outcomes = conformance("numpy", operators=["relu"], dtypes=["float32"], implementations=["generic"])
    >>> print(next(outcomes))
    relu generic float32 typical: passed
    """
    chosen = subjects(backend, operators=operators, dtypes=dtypes, implementations=implementations, quick=quick)
    return (outcome for subject in chosen for outcome in subject.run())


# --- what there is to run ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """One implementation of an operator in one dtype, with its cases.

    Attributes
    ----------
    backend : Backend
        The backend that computes.
    operator : Operator
        The operator.
    implementation, dtype : str
        See `Outcome`.
    cases : tuple of Case
        The cases that it must compute.
    invalid : tuple of InvalidCase
        The cases that it must refuse.
    reason : str
        Why nothing can run; empty otherwise.
    device : str, optional
        Where the arrays are, if not on the backend's own device.
    """

    backend: Backend
    operator: Operator[..., Any]
    implementation: str
    dtype: str
    cases: tuple[Case, ...] = ()
    invalid: tuple[InvalidCase, ...] = ()
    reason: str = ""
    device: str | None = None

    @property
    def row(self) -> Library:
        """The array library."""
        return self.backend.library

    def __len__(self) -> int:
        """Return the number of outcomes that `run` gives."""
        return 1 if self.reason else len(self.cases) + len(self.invalid)

    def run(self) -> list[Outcome]:
        """Run all cases and return their outcomes."""
        if self.reason:
            return [self._outcome("all", "skipped", self.reason)]
        with self.row.holding(self.dtype):
            jit = self.row.jit
            computed = _run_compiled(self, jit) if jit and self.cases else _run_one_by_one(self)
            return [*computed, *(_run_invalid(self, case) for case in self.invalid)]

    def _outcome(self, case: str, status: Status, message: str = "") -> Outcome:
        return Outcome(self.operator.__name__, self.implementation, self.dtype, case, status, message)


def subjects(
    backend: str,
    *,
    operators: Collection[str] | None = None,
    dtypes: Collection[str] | None = None,
    implementations: Collection[str] | None = None,
    quick: bool = False,
) -> tuple[Subject, ...]:
    """Return what `conformance` runs with these arguments, in order, to count it or to run a part."""
    chosen = first_available([resolve(backend)])
    held = dtypes_held(chosen.library)
    some = quick and chosen.library.slow
    found = []
    for name in _tested(operators):
        operator = OPERATORS[name]
        for implementation in _selected("implementation", implementations, _implementations(implementations, chosen)):
            unloaded = "" if implementation == GENERIC else _providers.load(implementation)
            device = _device_for(implementation, chosen.library)
            if device is not None:
                unloaded = unloaded or unreachable(chosen.library, device)
            if implementation != GENERIC and not unloaded and implementation not in operator.kernels:
                continue
            for dtype in held if dtypes is None else _selected("dtype", dtypes, DTYPES):
                lacks = "" if dtype in held else f"{chosen.library.name} holds no {dtype}"
                cases = tuple(c for c in CASES[name] if dtype in c.dtypes and (not some or _is_telling(c)))
                if implementation != GENERIC and not unloaded:
                    cases = _promised(operator.kernels[implementation], dtype, cases)
                invalid = INVALID[name] if dtype == "float32" else ()
                reason = unloaded or lacks
                found.append(Subject(chosen, operator, implementation, dtype, cases, invalid, reason, device))
    return tuple(found)


def _implementations(wanted: Collection[str] | None, backend: Backend) -> tuple[str, ...]:
    """Return what may be tested on a backend: what it uses, and what is wanted by name for the same arrays."""
    used = (GENERIC, *_providers.serving(backend))
    if not wanted or set(wanted) <= {*used}:
        return used
    load_plugins()
    others = [row for name, row in _providers.PROVIDERS.items() if name in wanted and name not in used]
    return (*used, *(row.name for row in others if not row.kernels or backend.library.name in row.libraries))


def _device_for(implementation: str, row: Library) -> str | None:
    """Return the device that a kernel's arrays must be on, if that is not the library's default."""
    return None if implementation == GENERIC else _providers.PROVIDERS[implementation].devices.get(row.name)


def _promised(kernel: Kernel, dtype: str, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return the cases except those in which a kernel declares a deviation."""
    deviation = kernel.deviation
    if deviation is None or dtype not in deviation.dtypes:
        return cases
    return tuple(case for case in cases if not case.tags.intersection(deviation.tags))


def _is_telling(case: Case) -> bool:
    return case is CASES[case.operator][0] or not case.tags.isdisjoint({"special", "empty"})


def _tested(wanted: Collection[str] | None) -> tuple[str, ...]:
    """Return the requested operators among those with cases; your own, made with `operator`, have none."""
    tested = tuple(name for name in OPERATORS if name in CASES)
    for name in wanted or ():
        if name in OPERATORS and name not in tested:
            raise ValueError(f"operator {name!r} has no cases to be tested with; those that have: {', '.join(tested)}")
    return _selected("operator", wanted, tested)


def _selected(kind: str, wanted: Collection[str] | None, valid: Collection[str]) -> tuple[str, ...]:
    """Return the requested names in the order of the valid ones; all of them if none is named."""
    if wanted is None:
        return tuple(valid)
    if isinstance(wanted, str):
        raise TypeError(f"{kind}s is a collection of names, not one string")
    for name in wanted:
        if name not in valid:
            raise ValueError(f"unknown {kind} {name!r}{nearest(name, valid)}; valid names: {', '.join(valid)}")
    return tuple(name for name in valid if name in wanted)


# --- running -----------------------------------------------------------------------------------------


def _arguments(subject: Subject, case: Case) -> tuple[Arguments, Any]:
    """Return the arguments on the backend, and the expected result."""
    args, kwargs = case.build(dtype_name=subject.dtype)
    expected = REFERENCES[case.operator](*args, **kwargs)
    return there((args, kwargs), subject.backend, subject.device), expected


def _run_one_by_one(subject: Subject) -> Iterator[Outcome]:
    for case in subject.cases:
        try:
            call, expected = _arguments(subject, case)
            results, reason = run(subject.operator, call, subject.backend, subject.implementation)
        except Exception as error:  # whatever a library raises is the outcome
            yield subject._outcome(case.name, "failed", _describe(error))
        else:
            yield _compare(subject, case, call, expected, results, reason)


def _run_compiled(subject: Subject, jit: Callable[..., Any]) -> list[Outcome]:
    """Compile all cases as one function: compiling each operation for each shape would take many times as long."""
    built = [_arguments(subject, case) for case in subject.cases]
    calls = [call for call, _ in built]
    refusals: dict[int, str | None] = {}
    errors: dict[int, Exception] = {}

    def traced(*arrays: Any) -> list[Any]:
        given = iter(arrays)
        made = []
        for i, call in enumerate(map_arrays(lambda _: next(given), calls)):
            try:
                results, refusals[i] = run(subject.operator, call, subject.backend, subject.implementation)
            except Exception as error:
                results, errors[i] = [], error
            made.append(results)
        return made

    try:
        made = jit(traced)(*arrays_in(calls))
    except Exception as error:  # the compiler does not say which case failed
        return [subject._outcome(case.name, "failed", _describe(error)) for case in subject.cases]
    return [
        subject._outcome(case.name, "failed", _describe(errors[i]))
        if i in errors
        else _compare(subject, case, *built[i], made[i], refusals[i])
        for i, case in enumerate(subject.cases)
    ]


def _compare(
    subject: Subject, case: Case, call: Arguments, expected: Any, results: list[Any], reason: str | None
) -> Outcome:
    try:
        for result in results:
            check_result(result, expected, case, subject.row, subject.dtype, call)
    except Exception as error:
        return subject._outcome(case.name, "failed", _describe(error))
    if reason is not None:
        return subject._outcome(case.name, "refused", reason)
    return subject._outcome(case.name, "passed")


def _run_invalid(subject: Subject, case: InvalidCase) -> Outcome:
    name = f"invalid: {case.name}"
    try:
        call = there(case.build(dtype_name=subject.dtype), subject.backend, subject.device)
        check_refusal(subject.operator, case, call, subject.backend, subject.implementation)
    except Exception as error:
        return subject._outcome(name, "failed", _describe(error))
    return subject._outcome(name, "passed")


def _describe(error: Exception) -> str:
    return str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
