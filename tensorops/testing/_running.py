"""Run one call of an operator in a given way, and check the result.

Every call is traced, and the trace must name the requested implementation: a result computed by another one proves
nothing. Checks raise `AssertionError` explicitly because ``python -O`` removes `assert`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops._dispatch import KernelRefusedError
from tensorops._dtypes import dtype_name, name_of
from tensorops._providers import GENERIC
from tensorops.backends import get_namespace, set_backend, trace
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Library, creation_device
from tensorops.testing._libraries import arrays_in, back
from tensorops.testing.assertions import assert_matches

if TYPE_CHECKING:
    from tensorops._operator import Operator
    from tensorops.backends.trace import Trace
    from tensorops.libraries import Backend
    from tensorops.testing.entries import Arguments, Case, InvalidCase

    AnyOperator = Operator[..., Any]

# No backend is chosen, whatever is in force around a test. It is one object, so later calls use the plan that an
# operator keeps from its first call.
PLAIN = Settings()


def check(condition: object, message: str) -> None:
    """Raise `AssertionError` with a message unless a condition holds."""
    __tracebackhide__ = True
    if not condition:
        raise AssertionError(message)


def run(operator: AnyOperator, call: Arguments, backend: Backend, implementation: str) -> tuple[list[Any], str | None]:
    """Run an implementation in every way that reaches it.

    Returns the results, all of which must be right. If a kernel refuses the arguments, also returns the reason; the
    results are then those of a plain call, which another implementation computes.
    """
    if implementation == GENERIC:
        results = [run_generic(operator, call, backend.library)]
        if operator.calls:  # with the backend's kernels of what it calls
            with set_backend(backend.name):
                results += run_plain(operator, call, None)
        return results, None
    result, reason = run_kernel(operator, call, backend, implementation)
    results = run_plain(operator, call, PLAIN)
    with set_backend(backend.name):
        results += run_plain(operator, call, None)
    return (results if reason is not None else [*results, result]), reason


def run_generic(operator: AnyOperator, call: Arguments, row: Library) -> Any:
    """Run an operator's own body and return its result."""
    args, kwargs = call
    with trace() as log:
        result = operator.generic(*args, **kwargs)
    check_ran(log, operator, GENERIC, row, call)
    return result


def run_kernel(operator: AnyOperator, call: Arguments, backend: Backend, provider: str) -> tuple[Any, str | None]:
    """Run a kernel by name; return its result and no reason or, if it refuses, no result and the reason.

    `explain` must predict this: it gives the same reason as the error.
    """
    args, kwargs = call
    with set_backend(backend.name, providers=[provider, GENERIC]):
        reason = operator.explain(*args, **kwargs).refused.get(provider)
    with set_backend(backend.name, providers=[provider]), trace() as log:
        try:
            result = operator(*args, **kwargs)
        except KernelRefusedError as error:
            check(reason is not None, f"explain says that the kernel would run, but the call says: {error}")
            if not operator.calls:  # else one of them refused
                check(f"{provider}: {reason}" in str(error), f"explain says {reason!r}, but the call says: {error}")
                check(len(log) == 0, f"a refused call was recorded: {log}")
            return None, reason
    if reason is not None and operator.calls:  # it is composed of the provider's kernels
        return None, reason
    check(reason is None, f"explain says {reason!r}, but the kernel ran")
    check_ran(log, operator, provider, backend.library, call)
    return result, None


def run_plain(operator: AnyOperator, call: Arguments, settings: Settings | None) -> list[Any]:
    """Call as users do: the first call selects an implementation, the next may use the plan it kept."""
    args, kwargs = call
    if settings is not None:
        with activate(settings):
            return run_plain(operator, call, None)
    chosen = operator.explain(*args, **kwargs).kernel
    with trace() as log:
        traced = operator(*args, **kwargs)
    check(log[-1].kernel == chosen, f"explain says {chosen}, but {log[-1].kernel} ran")
    return [traced, operator(*args, **kwargs), operator(*args, **kwargs)]


def check_ran(log: Trace, operator: AnyOperator, implementation: str, row: Library, call: Arguments) -> None:
    """Check that a trace holds one call of an implementation on a library's arrays, and no transfer.

    The calls of which a composed operator consists come before it, and must be of the same implementation.
    """
    *parts, record = log
    called = {(part.operator, part.kernel, part.library) for part in parts}
    wanted_parts = {(part.__name__, implementation, row.name) for part in operator.calls}
    check(called <= wanted_parts, f"expected one call in the trace, got {len(log)}:\n{log}")
    ran = (record.operator, record.kernel, record.library)
    wanted = (operator.__name__, implementation, row.name)
    check(ran == wanted, f"asked for {wanted[0]}: {wanted[1]} on {wanted[2]}, but what ran is {record}")
    check(record.transfers == (), f"arrays were moved: {record}")
    # This excludes options and scalars drawn from a generator.
    inputs = arrays_in(call)
    check(record.shapes == tuple(tuple(x.shape) for x in inputs), f"recorded shapes are {record.shapes}")
    check(record.dtypes == tuple(dtype_name(x) for x in inputs), f"recorded dtypes are {record.dtypes}")


def result_dtype(options: dict[str, Any], dtype: str) -> str:
    """Return the name of the dtype of floating results: of the option `dtype`, if given, else of the arguments."""
    given = options.get("dtype")
    return dtype if given is None else name_of(given)


def check_result(result: Any, expected: Any, case: Case, row: Library, dtype: str, call: Arguments) -> None:
    """Check library, device, dtype, shape and values of one result or a tuple of results."""
    __tracebackhide__ = True
    if isinstance(expected, tuple):
        check(isinstance(result, tuple), f"result is {type(result).__name__}, expected a tuple")
        check(len(result) == len(expected), f"result has {len(result)} parts, expected {len(expected)}")
        for part, expected_part in zip(result, expected, strict=True):
            check_result(part, expected_part, case, row, dtype, call)
        return
    if expected is None:
        check(result is None, f"result is {type(result).__name__}, expected None")
        return
    check(row.owns(result), f"result is {type(result).__name__}, no {row.name} array")
    device, wanted_device = creation_device(result), creation_device(arrays_in(call)[0])
    check(device == wanted_device, f"result is on device {device}, expected {wanted_device}")
    floating = result_dtype(call[1], dtype)
    actual, wanted = back(result), floating if expected.dtype == np.float64 else expected.dtype.name
    if expected.dtype == np.int64:  # an index, of the library's default index dtype
        xp = get_namespace(result)
        default = xp.__array_namespace_info__().default_dtypes()["indexing"]
        check(xp.isdtype(result.dtype, default), f"index dtype is {result.dtype}, expected {default}")
        wanted = dtype_name(result)
    assert_matches(actual, expected, wanted, tolerance=case.tolerance_for(wanted), scale_axis=case.scale_axis)


def check_refusal(
    operator: AnyOperator, case: InvalidCase, call: Arguments, backend: Backend, implementation: str
) -> None:
    """Check that every way to call refuses invalid arguments, with the operator's own message."""
    args, kwargs = call

    def plain() -> None:
        with activate(PLAIN):
            operator(*args, **kwargs)

    def generic() -> None:
        operator.generic(*args, **kwargs)

    def under_backend() -> None:
        with set_backend(backend.name):
            operator(*args, **kwargs)

    def preferred() -> None:
        with set_backend(backend.name, providers=[implementation, GENERIC]):
            operator(*args, **kwargs)

    def kernel_alone() -> None:
        with set_backend(backend.name, providers=[implementation]):
            operator(*args, **kwargs)

    # Without a backend, kernels of a backend other than the body's may come first.
    for way in [under_backend, generic] if implementation == GENERIC else [plain, preferred, kernel_alone]:
        error = _check_raises(way, case.exception, case.message)
        by_kernel = isinstance(error, KernelRefusedError)
        check(not by_kernel, f"{way.__name__}: a kernel refused it, instead of the operator: {error}")


def _check_raises(call: Any, kind: type[Exception], message: str) -> Exception:
    try:
        call()
    except kind as error:
        said = f"{call.__name__}: the message is {str(error)!r}, expected it to match {message!r}"
        check(re.search(message, str(error)), said)
        return error
    except Exception as error:
        raise AssertionError(
            f"{call.__name__}: raised {type(error).__name__}, expected {kind.__name__}: {error}"
        ) from error
    raise AssertionError(f"{call.__name__}: raised nothing, expected {kind.__name__}: {message}")
