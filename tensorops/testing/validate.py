"""Compare a function's results on several backends with a float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tensorops._display import Displayed, Table, shortened
from tensorops._messages import describe_error, nearest
from tensorops._trees import map_arrays
from tensorops._validation import shown
from tensorops.backends.registry import BackendUnavailableError, resolve
from tensorops.libraries import Backend, Library, library_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ValidationReport", "ValidationRow", "validate"]

Status: TypeAlias = Literal["ran", "differs", "failed", "refused", "unavailable"]

AS_GIVEN = "as given"
ITSELF = "numpy in float64"
"""Where a function without a reference is its own."""

_REASON = 80
"""The length of a printed reason, which shares its line with the other columns."""

_UNDER_JIT = {
    "TracerBoolConversionError": "a branch on a value of an array: use xp.where",
    "TracerArrayConversionError": "NumPy was called with an array: take functions from xp",
    "TracerIntegerConversionError": "a value of an array is an index or a size in Python: keep it an array",
    "NonConcreteBooleanIndexError": "a mask is an index, so the shape depends on values: use xp.where",
    "ConcretizationTypeError": "a number is taken out of an array, as by float(x): keep it an array",
}
"""What to do about JAX's errors, whose messages fill a page; `xp` is the namespace of the array."""


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
        ``"failed"``: the function or its reference raised, or arrays of another library were among its results or
        among the arguments of an operator. ``"refused"``: the backend cannot take the inputs, for example if it lacks
        their dtype. ``"unavailable"``: the backend cannot compute here.
    reason : str
        Why the status is not ``"ran"``, or why nothing was compared; one line, shortened where a report is printed.
    compared_with : str
        ``"reference"``, or ``"numpy in float64"`` for the function itself; empty if nothing was compared.
    kernels : dict of str to tuple of str
        The implementations that ran, by operator.
    max_ulp : float or None
        The largest error in units in the last place of the result's dtype; see `tensorops.testing.ulp_error`.
    max_relative_error : float or None
        The largest error relative to the expected value.
    jit : bool
        Whether the function was compiled by the library, with its arrays traced.
    """

    backend: str
    dtype: str
    status: Status
    reason: str = ""
    compared_with: str = ""
    kernels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_ulp: float | None = None
    max_relative_error: float | None = None
    jit: bool = False


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
        One per backend and dtype, and one more under a library's `jit`.
    """

    function: str
    reference: str
    rows: tuple[ValidationRow, ...]

    @property
    def ok(self) -> bool:
        """Whether a result was compared, and every row ran; a backend may refuse a dtype if it ran in another."""
        compared = any(row.compared_with for row in self.rows)
        ran = {row.backend for row in self.rows if row.status == "ran"}
        return compared and all(row.status in ("ran", "refused") and row.backend in ran for row in self.rows)

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
    backend = f"{row.backend} under jit" if row.jit else row.backend
    errors = (_number(row.max_ulp), _number(row.max_relative_error))
    return (backend, row.dtype, row.status, *errors, kernels, shortened(row.reason, _REASON))


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
    jit: bool = True,
    **kwargs: Any,
) -> ValidationReport:
    """Run a function on several backends and compare the results.

    Array arguments are transferred to each backend, which is in force while `fn` runs. Results are compared with those
    of `reference` if given, else of an operator's own float64 reference, else of `fn` itself on NumPy, by the
    operators' generic bodies, with all floating inputs in float64. Such a comparison shows what a dtype, a library or a
    kernel changes, but not that `fn` is right. On NumPy with inputs of float64, and without a kernel, it would compare
    a result with itself, so nothing is compared.
    Results match if they have the same structure, shapes and kinds of dtypes, equal integers and booleans, and NaN and
    infinities in the same places, and if no element is off by more than 256 (half types: 8) units of the dtype's
    resolution times the largest magnitude of the result; the report holds the errors themselves. A result narrower
    than all floating inputs differs, unless that of `reference` is as narrow.

    `fn` must keep to the library of its arguments: it fails if its result has arrays of another one, as that of
    ``numpy.exp`` for an array of JAX, or if an operator got one, as a weight that NumPy made.

    Parameters
    ----------
    fn : callable
        An operator, or a function of arrays of any library that returns an array, a number, or nested tuples, lists
        or dicts of these.
    *args, **kwargs
        Its arguments. Arrays may be of any library and may be nested in dicts, lists, tuples and dataclasses. NumPy
        dtypes, but not scalar types such as `numpy.float32`, become those of each backend's library.
    backends : collection of str, optional
        Names of backends; by default all available ones. Of these, ``array_api_strict`` finds most: its arrays have
        nothing but what the standard says.
    dtypes : collection of str or "all", optional
        Floating dtypes to cast all floating inputs to, one after another. By default inputs are cast only where a
        library lacks their dtype, to float32.
    reference : callable, optional
        Takes the arguments as NumPy arrays. Floating arrays are float64 with the values they have in the dtype under
        test, so the rounding of inputs does not count as an error. A function that computes on the arrays of only one
        library needs a reference.
    jit : bool, optional
        Whether to run `fn` under ``jax.jit`` as well, with its arrays traced, on the backends that compute with JAX: a
        branch on a value fails there. By default true.

    Returns
    -------
    ValidationReport
        One row per backend and dtype, and another under `jit`. If a backend is unavailable, lacks the dtype or raises,
        its row gives the reason. The report is not ``ok`` if nothing was compared, or a backend refused every dtype.

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
    rows = [row for dtype in wanted for row in _alike(_validate_dtype(fn, call, chosen, dtype, reference, jit))]
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

        names = get_available_backends()
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
    fn: Callable[..., Any],
    call: Any,
    backends: list[Backend],
    dtype: str,
    reference: Callable[..., Any] | None,
    jit: bool,
) -> Iterator[tuple[ValidationRow, Any]]:
    """Run every backend in one dtype, or in that of the inputs; yield the results as well."""
    expectations: dict[tuple[str, ...], _Expected] = {}
    for backend in backends:
        given = _held(call, backend) if dtype == AS_GIVEN else _cast(call, dtype)
        dtypes = _floating_dtypes(given)
        if dtypes not in expectations:
            expectations[dtypes] = _from_itself(fn, given) if reference is None else _from_reference(reference, given)
        for compiled in (False, True) if jit and backend.library.jit else (False,):
            row, result = _run(fn, given, backend, compiled)
            if row.status == "ran":
                row = _judge(row, result, expectations[dtypes], given, backend, itself=reference is None)
            yield row, result
            if row.status in ("refused", "unavailable"):
                break


def _alike(rows: Iterable[tuple[ValidationRow, Any]]) -> list[ValidationRow]:
    """Return rows; those differ whose results are float64 where another backend has none for the same inputs.

    NumPy's constants are float64 and promote arrays that are not, which other libraries do not.
    """
    every = [(row, _floating_dtypes(result)) for row, result in rows]
    ran = [(row, dtypes) for row, dtypes in every if row.status == "ran" and dtypes and row.dtype != "-"]
    narrower = {row.dtype: (dtypes[0], row.backend) for row, dtypes in ran if "float64" not in dtypes}

    def checked(row: ValidationRow, dtypes: tuple[str, ...]) -> ValidationRow:
        if row.status != "ran" or "float64" not in dtypes or row.dtype not in narrower:
            return row
        dtype, backend = narrower[row.dtype]
        reason = f"the result is float64, but {dtype} on {backend}: make constants with dtype=x.dtype"
        return replace(row, status="differs", reason=reason)

    return [checked(row, dtypes) for row, dtypes in every]


def _judge(
    row: ValidationRow, result: Any, expected: _Expected, given: Any, backend: Backend, *, itself: bool
) -> ValidationRow:
    """Complete the row of a function that ran: compare its result, if there is something to compare it with."""
    from tensorops._providers import GENERIC
    from tensorops.testing._results import narrowest, too_narrow

    least = narrowest(given)
    if expected.problem:
        return replace(row, status="failed", reason=expected.problem)
    if itself and (reason := too_narrow(result, least)):
        return replace(row, status="differs", reason=f"the result: {reason}")  # also if it is so everywhere
    computed_alike = backend.library.name == "numpy" and all(ran == (GENERIC,) for ran in row.kernels.values())
    if itself and computed_alike and set(_floating_dtypes(given)) <= {"float64"}:
        return replace(row, reason="nothing to compare with: the result itself would be the reference")
    return _compare(row, result, expected, least)


def _floating_dtypes(tree: Any) -> tuple[str, ...]:
    from tensorops.testing._libraries import arrays_in
    from tensorops.testing._results import is_float

    return tuple(dict.fromkeys(x.dtype.name for x in arrays_in(tree) if is_float(x)))


def _held(call: Any, backend: Backend) -> Any:
    """Return the arguments with the floating arrays whose dtype a backend lacks in float32."""
    from tensorops.backends import to_backend
    from tensorops.testing import DTYPES

    def lacks(name: str) -> bool:
        try:
            to_backend(np.zeros(1, DTYPES[name]), backend.name)
        except BackendUnavailableError:
            return False
        except Exception:  # a library's own error
            return True
        return False

    return _cast(call, "float32", [name for name in _floating_dtypes(call) if lacks(name)])


def _cast(tree: Any, dtype: str, those: Collection[str] | None = None) -> Any:
    """Return copies of nested arrays, the floating ones in a dtype: all of them, or those of some dtypes."""
    from tensorops.testing import DTYPES

    def cast(x: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(all="ignore"):  # values beyond the range become infinite, and NaN stays NaN
            return x.astype(DTYPES[dtype]) if x.dtype.name in (DTYPES if those is None else those) else x.copy()

    return map_arrays(cast, tree)


def _from_reference(reference: Callable[..., Any], call: Any) -> _Expected:
    from tensorops.testing._libraries import back

    args, kwargs = _cast(call, "float64")
    try:
        with np.errstate(all="ignore"):
            return _Expected("reference", back(reference(*args, **kwargs)))
    except Exception as error:  # a caller's function may raise anything; a row reports it
        return _Expected(problem=f"nothing to compare with: the reference raised {describe_error(error)}")


def _from_itself(fn: Callable[..., Any], call: Any) -> _Expected:
    from tensorops.backends import set_backend
    from tensorops.testing._libraries import back

    args, kwargs = _cast(call, "float64")
    try:
        with set_backend("numpy"), np.errstate(all="ignore"):
            result = fn(*args, **kwargs)
            homes = _other_libraries(result, "numpy")
            problem = f"returned arrays of {homes}" if homes else ""
            result = back(result)
    except Exception as error:  # of any type, as above
        problem = f"raised {describe_error(error)}"
    if problem:
        return _Expected(problem=f"nothing to compare with: the function {problem} on {ITSELF}; pass reference=")
    return _Expected(ITSELF, result)


def _run(fn: Callable[..., Any], call: Any, backend: Backend, jit: bool) -> tuple[ValidationRow, Any]:
    """Run on one backend and convert the result to NumPy; the row reports any error."""
    from tensorops.backends import set_backend, to_backend, trace
    from tensorops.testing._libraries import back, dtypes_there

    library = backend.library
    row = ValidationRow(backend.name, ", ".join(_floating_dtypes(call)) or "-", "ran", jit=jit)
    own = map_arrays(np.copy, call)  # a transfer may share memory, and `fn` may write to it
    try:
        args, kwargs = dtypes_there(to_backend(own, backend.name), library)
    except BackendUnavailableError as error:
        return replace(row, status="unavailable", reason=_line(error)), None
    except Exception as error:  # a TypeError has tensorops' message, a library's error its own
        said = _line(error) if type(error) is TypeError else describe_error(error)
        return replace(row, status="refused", reason=said), None
    result, reason = None, ""
    with set_backend(backend.name), trace() as log:
        try:
            with library.quiet():
                result = (_compiled(fn, library) if jit else fn)(*args, **kwargs)
                homes = _other_libraries(result, library.name)
                result = back(result)  # a lazy library computes and fails only here
            if homes:
                reason = f"the result is an array of {homes}, not of {library.name}: take functions from xp"
        except Exception as error:
            hints = (_UNDER_JIT.get(cls.__name__) for cls in type(error).__mro__)
            reason = next(filter(None, hints), "") or describe_error(error)
    for record in log:
        silent = record.operator != "to_backend" and record.library == library.name  # `fn` may name another backend
        if record.transfers and silent and not reason:
            came = record.transfers[0].source
            reason = f"{record.operator} got an array of {came}: pass it as an argument, or make it with xp"
    ran = {name: tuple(sorted(kernels)) for name, kernels in log.kernels.items()}
    return replace(row, status="failed" if reason else "ran", reason=reason, kernels=ran), result


def _compiled(fn: Callable[..., Any], library: Library) -> Callable[..., Any]:
    """Return a function that traces `fn` with the arrays among its arguments, and all else as it is."""
    from tensorops.testing._libraries import arrays_in

    assert library.jit is not None
    compile_there = library.jit

    def run(*call: Any, **options: Any) -> Any:
        results: list[Any] = []

        def traced(arrays: list[Any]) -> list[Any]:
            tracers = dict(zip(map(id, inputs), arrays, strict=True))
            args, kwargs = map_arrays(lambda x: tracers[id(x)], (call, options))
            results[:] = [fn(*args, **kwargs)]
            return [x for x in arrays_in(results) if library_of(x) is library]

        inputs = arrays_in((call, options))
        computed = compile_there(traced)(inputs)
        ours = [x for x in arrays_in(results) if library_of(x) is library]
        values = dict(zip(map(id, ours), computed, strict=True))
        (result,) = map_arrays(lambda x: values.get(id(x), x), results)  # in the structure that `fn` returns
        return result

    return run


def _other_libraries(result: Any, name: str) -> str:
    """Return the libraries, but that of a name, of the arrays in a result."""
    from tensorops.testing._libraries import arrays_in

    homes = {row.name for x in arrays_in(result) if (row := library_of(x)) is not None}
    return ", ".join(sorted(homes - {name}))


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _compare(row: ValidationRow, result: Any, expected: _Expected, least: str | None) -> ValidationRow:
    from tensorops.testing._results import compare

    found = compare(result, expected.value, least)
    return replace(
        row,
        status="differs" if found.reason else "ran",
        reason=_line(found.reason),
        compared_with=expected.source,
        max_ulp=found.max_ulp,
        max_relative_error=found.max_relative_error,
    )
