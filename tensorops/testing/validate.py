"""Compare a function's results on several backends with a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tensorops._display import Displayed, Table
from tensorops._messages import nearest
from tensorops._trees import map_arrays
from tensorops._validation import shown
from tensorops.backends.registry import BackendUnavailableError, resolve
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ValidationReport", "ValidationRow", "validate"]

Status: TypeAlias = Literal["ran", "differs", "failed", "refused", "unavailable"]

AS_GIVEN = "as given"
ITSELF = "numpy in float64"
"""Where a function without a reference is its own."""


@dataclass(frozen=True)
class ValidationRow:
    """The outcome of the function on one backend, in one dtype.

    Attributes
    ----------
    backend : str
        Its name.
    dtype : str
        The floating dtype of the inputs; several if they differ, ``"-"`` if there is none.
    status : {"ran", "differs", "failed", "refused", "unavailable"}
        ``"ran"``: the result, if it was compared, matches that of `compared_with`. ``"differs"``: it does not.
        ``"failed"``: the function or its reference raised. ``"refused"``: the backend cannot take the inputs, for
        example if it lacks their dtype. ``"unavailable"``: the backend cannot compute here.
    reason : str
        Why the status is not ``"ran"``, or why nothing was compared.
    compared_with : str
        ``"reference"``, or ``"numpy in float64"`` for the function itself; empty if nothing was compared.
    kernels : dict of str to tuple of str
        The implementations that ran, by operator.
    max_ulp : float or None
        The largest error in units in the last place of the result's dtype; see `tensorops.testing.ulp_error`.
    max_relative_error : float or None
        The largest error relative to the expected value.
    """

    backend: str
    dtype: str
    status: Status
    reason: str = ""
    compared_with: str = ""
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_ulp: float | None = None
    max_relative_error: float | None = None


@dataclass(frozen=True, repr=False)
class ValidationReport(Displayed):
    """The result of `validate`; printed as a table.

    Attributes
    ----------
    function : str
        The function's name.
    reference : str
        What the results were compared with.
    rows : tuple of ValidationRow
        One per backend and dtype.
    """

    function: str
    reference: str
    rows: tuple[ValidationRow, ...]

    @property
    def ok(self) -> bool:
        """Whether a result was compared, and no backend failed, differed or was unavailable; it may refuse a dtype."""
        compared = any(row.compared_with for row in self.rows)
        return compared and all(row.status in ("ran", "refused") for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, strings and numbers, for JSON; an infinite error is ``None``."""
        rows = [
            vars(row)
            | {
                "kernels": {name: list(ran) for name, ran in row.kernels.items()},
                "max_ulp": _finite(row.max_ulp),
                "max_relative_error": _finite(row.max_relative_error),
            }
            for row in self.rows
        ]
        return {"function": self.function, "reference": self.reference, "ok": self.ok, "rows": rows}

    def __str__(self) -> str:
        return self._table().to_text()

    def _table(self) -> Table:
        head = ("backend", "dtype", "status", "max ULP", "max rel. error", "kernels", "reason")
        return Table(f"{self.function}, compared with {self.reference}", head, tuple(map(_cells, self.rows)))


def _cells(row: ValidationRow) -> tuple[str, ...]:
    kernels = ", ".join(f"{name}: {'/'.join(ran)}" for name, ran in row.kernels.items())
    reason = " ".join(row.reason.split())
    return (row.backend, row.dtype, row.status, _number(row.max_ulp), _number(row.max_relative_error), kernels, reason)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def validate(
    fn: Callable[..., Any],
    /,
    *args: Any,
    backends: Collection[str] | None = None,
    dtypes: Collection[str] | Literal["all"] | None = None,
    reference: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> ValidationReport:
    """Run a function on several backends and compare the results.

    Array arguments are transferred to each backend, which is in force while `fn` runs. Results are compared with those
    of `reference` if given, else of an operator's own float64 reference, else of `fn` itself on NumPy, by the
    operators' generic bodies, with all floating inputs in float64. Such a comparison shows what a dtype, a library or a
    kernel changes, but not that `fn` is right. On NumPy with inputs of float64, it would compare a result with itself,
    so nothing is compared.
    Results match if they have the same structure, shapes and kinds of dtypes, equal integers and booleans, and NaN and
    infinities in the same places, and if no element is off by more than 256 (half types: 8) units of the dtype's
    resolution times the largest magnitude of the result; the report holds the errors themselves. A result narrower
    than all floating inputs differs, unless that of `reference` is as narrow.

    Parameters
    ----------
    fn : callable
        An operator, or a function of arrays of any library that returns an array, a number, or nested tuples, lists
        or dicts of these.
    *args, **kwargs
        Its arguments. Arrays may be of any library and may be nested in dicts, lists, tuples and dataclasses. NumPy
        dtypes, but not scalar types such as `numpy.float32`, become those of each backend's library.
    backends : collection of str, optional
        Names of backends; by default all available ones except ``array_api_strict``.
    dtypes : collection of str or "all", optional
        Floating dtypes to cast all floating inputs to, one after another; by default inputs are not cast.
    reference : callable, optional
        Takes the arguments as NumPy arrays. Floating arrays are float64 with the values they have in the dtype under
        test, so the rounding of inputs does not count as an error. A function that computes on the arrays of only one
        library needs a reference.

    Returns
    -------
    ValidationReport
        One row per backend and dtype. If a backend is unavailable, lacks the dtype or raises, its row gives the
        reason. If nothing was compared, the report is not ``ok``.

    Raises
    ------
    ValueError
        If a backend or a dtype is unknown; the message lists the valid ones, and nothing has run.
    TypeError
        If `fn` is not callable, its arguments contain no array, or `backends` or `dtypes` is a single string.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> from tensorops.testing.validate import validate
    >>> x = np.linspace(-3, 3, 7, dtype=np.float32)
    >>> report = validate(tensorops.silu, x, backends=["numpy"])
    >>> report.ok, report.rows[0].dtype, report.rows[0].max_ulp < 4
    (True, 'float32', True)
    """
    from tensorops.testing._libraries import arrays_in, back

    if not callable(fn):
        raise TypeError(f"validate: expected a function, such as tensorops.rms_norm, got {shown(fn)}")
    chosen, wanted = _backends(backends), _dtypes(dtypes)
    name = getattr(fn, "__name__", type(fn).__name__)
    reference, described = _reference(fn, name, reference)
    call = back((args, kwargs))
    if not arrays_in(call):
        raise TypeError(f"validate: there is no array among the arguments for {name}, at least one is expected")
    rows = [row for dtype in wanted for row in _validate_dtype(fn, call, chosen, dtype, reference)]
    return ValidationReport(name, described, tuple(rows))


def _reference(
    fn: Callable[..., Any], name: str, given: Callable[..., Any] | None
) -> tuple[Callable[..., Any] | None, str]:
    """Return what to compare with, if it is not the function itself, and a description of it."""
    from tensorops._operator import Operator
    from tensorops.testing import REFERENCES

    if given is not None:
        return given, "the reference given"
    if isinstance(fn, Operator) and name in REFERENCES:
        return REFERENCES[name], f"the float64 reference of {name}"
    return None, f"itself on {ITSELF}"


def _backends(names: Collection[str] | None) -> list[Backend]:
    if isinstance(names, str):
        raise TypeError("validate: backends is a collection of names, not one string")
    if names is None:
        from tensorops.backends.listing import get_available_backends

        names = [name for name in get_available_backends() if not resolve(name).for_tests]
    return list(dict.fromkeys(map(resolve, names)))


def _dtypes(names: Collection[str] | None) -> list[str]:
    from tensorops.testing import DTYPES

    if names is None:
        return [AS_GIVEN]
    if names == "all":
        return list(DTYPES)
    if isinstance(names, str):
        raise TypeError('validate: dtypes is a collection of names or "all", not one string')
    for name in names:
        if name not in DTYPES:
            raise ValueError(
                f"validate: unknown dtype {name!r}{nearest(name, DTYPES)}; valid names: {', '.join(DTYPES)}"
            )
    return list(dict.fromkeys(names))


# --- one dtype, one backend --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Expected:
    """What to compare with, and its origin; or why there is nothing to compare with."""

    source: str = ""
    value: Any = None
    problem: str = ""


def _validate_dtype(
    fn: Callable[..., Any], call: Any, backends: list[Backend], dtype: str, reference: Callable[..., Any] | None
) -> Iterator[ValidationRow]:
    """Run every backend in one dtype."""
    from tensorops.testing._libraries import arrays_in
    from tensorops.testing._results import is_float, narrowest, too_narrow

    given = call if dtype == AS_GIVEN else _cast(call, dtype)
    dtypes = list(dict.fromkeys(x.dtype.name for x in arrays_in(given) if is_float(x)))
    least = narrowest(given)
    expected = _from_itself(fn, given) if reference is None else _from_reference(reference, given)
    for backend in backends:
        own = map_arrays(np.copy, given)  # a transfer may share memory, and `fn` may write to it
        row, result = _run(fn, own, backend, ", ".join(dtypes) or "-")
        if row.status == "ran" and expected.problem:
            row = replace(row, status="failed", reason=expected.problem)
        elif row.status == "ran" and reference is None and (reason := too_narrow(result, least)):
            row = replace(row, status="differs", reason=f"the result: {reason}")  # also if it is so everywhere
        elif row.status == "ran" and reference is None and backend.name == "numpy" and dtypes in ([], ["float64"]):
            row = replace(row, reason="nothing to compare with: the result itself would be the reference")
        elif row.status == "ran":
            row = _compare(row, result, expected, least)
        yield row


def _cast(tree: Any, dtype: str) -> Any:
    from tensorops.testing import DTYPES
    from tensorops.testing._results import is_float

    def cast(x: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):  # values beyond the range become infinite, and NaN stays NaN
            return x.astype(DTYPES[dtype]) if is_float(x) else x.copy()

    return map_arrays(cast, tree)


def _from_reference(reference: Callable[..., Any], call: Any) -> _Expected:
    from tensorops.testing._libraries import back

    args, kwargs = _cast(call, "float64")
    try:
        with np.errstate(all="ignore"):
            return _Expected("reference", back(reference(*args, **kwargs)))
    except Exception as error:  # a caller's function may raise anything; a row reports it
        return _Expected(problem=f"nothing to compare with: the reference raised {_describe(error)}")


def _from_itself(fn: Callable[..., Any], call: Any) -> _Expected:
    from tensorops.backends import set_backend
    from tensorops.libraries import library_of
    from tensorops.testing._libraries import arrays_in, back

    args, kwargs = _cast(call, "float64")
    try:
        with set_backend("numpy"), np.errstate(all="ignore"):
            result = fn(*args, **kwargs)
            homes = {row.name for x in arrays_in(result) if (row := library_of(x)) is not None} - {"numpy"}
            problem = f"returned arrays of {', '.join(sorted(homes))}" if homes else ""
            result = back(result)
    except Exception as error:  # of any type, as above
        problem = f"raised {_describe(error)}"
    if problem:
        return _Expected(problem=f"nothing to compare with: the function {problem} on {ITSELF}; pass reference=")
    return _Expected(ITSELF, result)


def _run(fn: Callable[..., Any], call: Any, backend: Backend, label: str) -> tuple[ValidationRow, Any]:
    """Run on one backend and convert the result to NumPy; the row reports any error."""
    from tensorops.backends import set_backend, to_backend, trace
    from tensorops.testing._libraries import back, dtypes_there

    try:
        args, kwargs = dtypes_there(to_backend(call, backend.name), backend.library)
    except BackendUnavailableError as error:
        return ValidationRow(backend.name, label, "unavailable", str(error)), None
    except Exception as error:  # a TypeError has tensorops' message, a library's error its own
        said = str(error) if type(error) is TypeError else _describe(error)
        return ValidationRow(backend.name, label, "refused", said), None
    status: Status = "ran"
    result, reason = None, ""
    with set_backend(backend.name), trace() as log:
        try:
            with backend.library.quiet():
                result = back(fn(*args, **kwargs))  # a lazy library computes and fails only here
        except Exception as error:
            status, reason = "failed", _describe(error)
    ran = {name: tuple(sorted(kernels)) for name, kernels in log.kernels.items()}
    return ValidationRow(backend.name, label, status, reason, kernels=ran), result


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _compare(row: ValidationRow, result: Any, expected: _Expected, least: str | None) -> ValidationRow:
    from tensorops.testing._results import compare

    found = compare(result, expected.value, least)
    return replace(
        row,
        status="differs" if found.reason else "ran",
        reason=found.reason,
        compared_with=expected.source,
        max_ulp=found.max_ulp,
        max_relative_error=found.max_relative_error,
    )
