"""The one conformance test: every operator, implementation, array library, dtype and case against its reference.

It runs the cases of `tensorops.testing` through `tensorops.testing.conformance`, which all authors of backends can
use; a new operator, kernel or library is tested without an edit here. Every call is traced, and the trace must name
the requested implementation.
"""

import contextlib
import dataclasses

import numpy as np
import pytest

import support
import tensorops as tp
from covering import covering
from tensorops import _providers
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, DTYPES, REFERENCES
from tensorops.testing._libraries import dtypes_there, there, unreachable
from tensorops.testing._running import check_result, run_generic
from tensorops.testing.conformance import subjects

# Bodies whose cases take these libraries several times as long as those of other dtypes
SLOW_BODIES = {"dask": ("float16", "bfloat16"), "jax": ("float16", "bfloat16")}


def every_implementation():
    for operator in OPERATORS.values():
        for row in LIBRARIES.values():
            for dtype in support.dtypes_of(row.name):
                for implementation in support.implementations(operator, row):
                    label = f"{operator.__name__}-{row.name}-{dtype}-{implementation}"
                    slow = implementation == "generic" and dtype in SLOW_BODIES.get(row.name, ())
                    marks = pytest.mark.exhaustive if slow else ()
                    yield pytest.param(operator, row, dtype, implementation, id=label, marks=marks)


# They compile every program or build graphs: a case takes them a hundred times as long as others.
SLOW = ("dask", "jax", "pyopencl")


def every_case():
    """Yield all implementations; on slow libraries, a short run has only `some_cases`."""
    for parameters in every_implementation():
        marks = pytest.mark.exhaustive if parameters.values[1].name in SLOW else parameters.marks
        yield pytest.param(*parameters.values, id=parameters.id, marks=marks)


def some_cases():
    """Return implementations on slow libraries that show every pair of parameters, each for a few cases."""
    slow = [each for each in every_implementation() if each.values[1].name in SLOW and not each.marks]
    slow = [each for each in slow if not support.why_not(each.values[1].name)]
    return [slow[i] for i in sorted(covering([tuple(map(id, each.values)) for each in slow], 2))]


def cases_of(operator, dtype):
    return [case for case in CASES[operator.__name__] if dtype in case.dtypes]


def subject_of(operator, row, dtype, implementation):
    """Return the single subject of `conformance` for these arguments; skip the test if it cannot run."""
    backend = support.backend_of(row.name, implementation).name
    (subject,) = subjects(backend, operators=[operator.__name__], dtypes=[dtype], implementations=[implementation])
    if subject.reason:
        pytest.skip(subject.reason)
    return subject


class Failures:
    """Failures by case, so one report shows all failing cases of an operator."""

    def __init__(self):
        self.by_case = {}

    @contextlib.contextmanager
    def of(self, case):
        try:
            yield
        except Exception as error:  # reported by `raise_all`
            self.by_case[case.name] = f"{type(error).__name__}: {error}"

    def raise_all(self):
        __tracebackhide__ = True
        if self.by_case:
            pytest.fail("\n".join(f"{name}: {text}" for name, text in self.by_case.items()), pytrace=False)


def require_none_failed(outcomes):
    __tracebackhide__ = True
    if failed := [f"{outcome.case}: {outcome.message}" for outcome in outcomes if outcome.status == "failed"]:
        pytest.fail("\n".join(failed), pytrace=False)


@pytest.mark.parametrize(("operator", "row", "dtype", "implementation"), some_cases())
def test_some_cases(operator, row, dtype, implementation):
    """The first case and up to two others, for each dtype different ones."""
    subject = dataclasses.replace(subject_of(operator, row, dtype, implementation), invalid=())
    first, *others = subject.cases
    cases = (first, *others[list(DTYPES).index(dtype) :: len(DTYPES)][:2])
    require_none_failed(dataclasses.replace(subject, cases=cases).run())


@pytest.mark.dimensions
@pytest.mark.parametrize(("operator", "row", "dtype", "implementation"), list(every_case()))
def test_conformance(operator, row, dtype, implementation):
    support.require(row.name)
    subject = dataclasses.replace(subject_of(operator, row, dtype, implementation), invalid=())
    outcomes = subject.run()
    require_none_failed(outcomes)
    excused = deviation_of(operator, implementation, dtype)
    expected = [case.name for case in cases_of(operator, dtype) if not case.tags & excused]
    assert [outcome.case for outcome in outcomes] == expected
    assert {outcome.status for outcome in outcomes} <= (
        {"passed"} if implementation == "generic" else {"passed", "refused"}
    )
    refusals = {outcome.case: outcome.message for outcome in outcomes if outcome.status == "refused"}
    if refusals:
        require_that_it_serves(operator, dtype, refusals)


def deviation_of(operator, implementation, dtype):
    """Return the tags of the cases in which a kernel declares to deviate."""
    kernel = operator.kernels.get(implementation)
    if kernel is None or kernel.deviation is None or dtype not in kernel.deviation.dtypes:
        return set()
    return set(kernel.deviation.tags)


def require_that_it_serves(operator, dtype, refusals):
    """Assert that a kernel takes most cases of a dtype which it does not refuse for that, or refuses most for that."""
    everyday = [case.name for case in cases_of(operator, dtype) if not case.tags]
    taken = [name for name in everyday if name not in refusals]
    others = [f"{name}: {text}" for name, text in refusals.items() if name in everyday and "dtype" not in text]
    by_dtype = len(everyday) - len(taken) - len(others)
    said = "\n".join(others)
    assert (len(taken) or by_dtype) >= len(others), f"refuses most cases, not for their dtype:\n{said}"


def every_kernel():
    for operator in OPERATORS.values():
        for provider in operator.kernels:
            yield pytest.param(operator, provider, id=f"{operator.__name__}-{provider}")


@pytest.mark.parametrize(("operator", "provider"), list(every_kernel()))
def test_a_kernel_is_chosen_for_its_first_case(operator, provider):
    """A kernel must be reachable by a plain call on some library, or by name if it deviates or others are faster."""
    rows = [row for row in LIBRARIES.values() if row.name in _providers.PROVIDERS[provider].libraries]
    assert rows, f"{provider} supports no array library"
    devices = _providers.PROVIDERS[provider].devices
    reasons = {row.name: support.why_not(row.name) or unreachable(row, devices.get(row.name)) for row in rows}
    testable = [row for row in rows if not reasons[row.name]]
    if not testable:
        pytest.skip("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    case = CASES[operator.__name__][0]
    chosen = set()
    deviation = operator.kernels[provider].deviation
    outpaced = operator.kernels[provider].outpaced or _providers.PROVIDERS[provider].by_name
    for row in testable:
        for dtype in support.dtypes_of(row.name):
            scope: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
            if outpaced or (deviation is not None and dtype in deviation.dtypes):  # taken only if it is named
                scope = tp.set_backend(support.backend_of(row.name).name, providers=[provider, "generic"])
            with support.holding(row.name, dtype), scope:
                backend = support.backend_of(row.name)
                args, kwargs = there(case.build(dtype_name=dtype), backend, devices.get(row.name))
                chosen.add(operator.explain(*args, **kwargs).kernel)
    assert provider in chosen


@pytest.mark.parametrize("provider", _providers.PROVIDERS)
def test_every_provider_has_kernels(provider):
    support.require_provider(provider)
    assert any(provider in operator.kernels for operator in OPERATORS.values())


@pytest.mark.costly
@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_jax_operation_by_operation(operator):
    """Without `jit`, every operation is compiled and rounded separately."""
    row = support.require("jax")
    failures = Failures()
    for case in cases_of(operator, "float32"):
        if case.name == CASES[operator.__name__][0].name or "special" in case.tags:
            args, kwargs = case.build(dtype_name="float32")
            expected = REFERENCES[operator.__name__](*args, **kwargs)
            call = support.there((args, kwargs), "jax")
            with failures.of(case):
                check_result(run_generic(operator, call, row), expected, case, row, "float32", call)
    failures.raise_all()


@pytest.mark.dimensions
@pytest.mark.parametrize(
    ("operator", "device", "dtype"),
    [
        pytest.param(operator, device, dtype, id=f"{operator.__name__}-{device}-{dtype}")
        for operator in OPERATORS.values()
        for device, dtype in (("device1", "float64"), ("no_float64", "float32"))
    ],
)
def test_results_stay_on_the_device(operator, device, dtype):
    """The strictest library has devices that cannot be mixed, and one without float64."""
    row = support.require("array_api_strict")
    where = row.xp.Device(device)
    failures = Failures()

    def move(x):
        return row.from_numpy(x.astype(dtype) if x.dtype == np.float64 else x, where)

    for case in cases_of(operator, dtype):
        args, kwargs = case.build(dtype_name=dtype)
        expected = REFERENCES[operator.__name__](*args, **kwargs)
        args, kwargs = call = dtypes_there(map_arrays(move, (args, kwargs)), row)
        with failures.of(case):
            check_result(operator(*args, **kwargs), expected, case, row, dtype, call)
    failures.raise_all()


def test_dtypes_held(library):
    """Supported dtypes are found by trying; they are listed here so a test that disappears is noticed."""
    if library.name == "array_api_strict":
        held = ("float32", "float64")
    elif library.name == "pyopencl":
        extensions = library.xp.default_device().cl_device.extensions.split()
        lacking = {"float16": "cl_khr_fp16", "float64": "cl_khr_fp64", "bfloat16": "no extension"}
        held = tuple(d for d in DTYPES if lacking.get(d, extensions[0]) in extensions)
    else:
        held = tuple(DTYPES)
    assert support.dtypes_of(library.name) == held


# --- what must be refused ----------------------------------------------------------------------------


def every_refusal():
    for operator in OPERATORS.values():
        for row in LIBRARIES.values():
            for implementation in support.implementations(operator, row):
                yield pytest.param(operator, row, implementation, id=f"{operator.__name__}-{row.name}-{implementation}")


@pytest.mark.dimensions
@pytest.mark.parametrize(("operator", "row", "implementation"), list(every_refusal()))
def test_refuses_invalid_arguments(operator, row, implementation):
    support.require(row.name)
    subject = subject_of(operator, row, "float32", implementation)
    assert subject.invalid
    outcomes = dataclasses.replace(subject, cases=()).run()
    require_none_failed(outcomes)
    assert [outcome.status for outcome in outcomes] == ["passed"] * len(subject.invalid)
