"""Operators: a public function whose body runs on any array, and kernels that override it.

An operator's author writes a function over the Array API and decorates it::

    @operator
    def silu(x: Array) -> Array:
        xp = get_namespace(x)
        ...

A kernel's author registers a function with the same parameters for a provider, and says what it takes::

    @silu.kernel("cpu", supports=...)
    def _(x): ...

`supports` is called with the operator's arguments, looks at metadata (type, dtype, shape, strides, device; values only
where reading them costs nothing but the reading) and returns ``None`` or a reason in words. Selection,
`Operator.explain` and error messages all use that answer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tensorops import _dtypes, _providers
from tensorops._display import Displayed, Table
from tensorops._messages import describe_type
from tensorops._providers import GENERIC
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, current
from tensorops.backends.trace import Record, Transfer
from tensorops.libraries import LIBRARIES, Library, creation_device, library_of, move

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

OPERATORS: dict[str, Operator[Any, Any]] = {}
"""Every operator, by name; filled by the decorator."""

_generic_only = Settings(providers=(GENERIC,))


class KernelRefusedError(TypeError):
    """None of the kernels that were asked for by name takes these arguments; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """An override of one operator by one provider.

    Parameters
    ----------
    provider
        The family it belongs to.
    function
        Takes the operator's arguments.
    supports
        Takes them too; returns ``None`` or the reason why `function` cannot.
    declines
        Whether `function` itself returns ``NotImplemented``, before it touches any memory, for exactly the arguments
        that `supports` refuses. Then a call needs no decision in Python.
    """

    provider: str
    function: Callable[..., Any]
    supports: Callable[..., str | None]
    declines: bool = False


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """What a call of an operator would do, and why; prints as text.

    Attributes
    ----------
    operator : str
        The operator's name.
    kernel : str
        The provider whose kernel would run, or ``"generic"`` for the operator's own body.
    backend : str
        The backend in force, ``"auto"`` if none was chosen.
    library : str
        The array library that would compute.
    refused : dict of str to str
        The providers that come before `kernel`, each with the reason why its kernel would not run.
    transfers : tuple of Transfer
        The arrays that would move there first.
    """

    operator: str
    kernel: str
    backend: str
    library: str
    refused: dict[str, str]
    transfers: tuple[Transfer, ...]

    def __str__(self) -> str:
        lines = [self._title()]
        lines += [f"  not {provider}: {reason}" for provider, reason in self.refused.items()]
        lines += [f"  moves {transfer}" for transfer in self.transfers]
        return "\n".join(lines)

    def _title(self) -> str:
        return f"{self.operator}: {self.kernel} on {self.library} (backend {self.backend})"

    def _table(self) -> Table:
        rows = [(provider, "no", reason) for provider, reason in self.refused.items()]
        notes = tuple(f"moves {transfer}" for transfer in self.transfers)
        return Table(self._title(), ("implementation", "runs", "reason"), (*rows, (self.kernel, "yes", "")), notes)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one call, all in the library that computes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: dict[str, Any]  # the arrays among the arguments as the caller gave them, by name
    library: Library
    home: Library  # the caller's
    transfers: tuple[Transfer, ...]
    wrapped: bool  # whether the caller's arrays were in wrappers, and the result is to be

    @property
    def bare(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without wrappers, as kernels take them."""
        library = self.library
        if not library.wrapper:
            return self.args, self.kwargs
        return tuple(map(library.unwrap, self.args)), {name: library.unwrap(x) for name, x in self.kwargs.items()}


class Operator(Generic[P, R]):
    """A function on arrays of any library, with kernels that override it for some; made by `operator`."""

    __name__: str

    def __init__(self, body: Callable[P, R]) -> None:
        functools.update_wrapper(self, body)
        self._body = body
        self._kernels: dict[str, Kernel] = {}
        self._signature = inspect.signature(body)
        annotations = {name: str(p.annotation) for name, p in self._signature.parameters.items()}
        self._arrays = frozenset(name for name, a in annotations.items() if "Array" in a)
        self._surely_arrays = frozenset(name for name, a in annotations.items() if a.startswith("Array"))
        if not self._surely_arrays:
            raise TypeError(
                f"{body.__name__}: no parameter is annotated Array; an operator's module needs "
                "`from __future__ import annotations`, as annotations are read as they are written"
            )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        settings = current.get()
        plan = settings.plans[self].get(type(args[0])) if args else None
        if plan is not None:
            try:
                result = plan(*args, **kwargs)
            except TypeError:  # a binding's own words about its arguments; ours follow
                result = NotImplemented
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        return self._dispatch(in_force(), args, kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__  # pickled by reference, as functions are

    # ----------------------------------------------------------------- kernels

    def kernel(self, provider: str, *, supports: Callable[..., str | None], declines: bool = False) -> Callable[[F], F]:
        """Register the decorated function as this operator's kernel of a provider; see `Kernel`."""
        if provider in self._kernels:
            raise ValueError(f"{self.__name__} already has a kernel of {provider!r}")

        def register(function: F) -> F:
            self._kernels[provider] = Kernel(provider, function, supports, declines)
            return function

        return register

    @property
    def kernels(self) -> dict[str, Kernel]:
        """The registered kernels by provider; loads every provider that can be loaded."""
        for provider in _providers.PROVIDERS.copy():
            _providers.load(provider)
        return dict(self._kernels)

    def generic(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator's own body where the arrays live, whatever kernels and settings there are."""
        log = current.get().log
        settings = _generic_only if log is None else Settings(providers=(GENERIC,), log=log)
        return self._dispatch(settings, args, kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Tell which kernel a call with these arguments would run, and why no other; runs none.

        Arguments of another library than the backend in force are converted, as `supports` looks at what the kernel
        would get.
        """
        settings = in_force()
        call = self._prepare(settings, args, kwargs)
        kernel, refused = self._select(settings, call)
        return Explanation(
            operator=self.__name__,
            kernel=kernel.provider if kernel else GENERIC,
            backend=settings.backend.name if settings.backend else "auto",
            library=call.library.name,
            refused=refused,
            transfers=call.transfers,
        )

    # ---------------------------------------------------------------- one call

    def _dispatch(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Do what `__call__` does when no plan settles it: convert, choose, run, convert back, record."""
        call = self._prepare(settings, args, kwargs)
        kernel, refused = self._select(settings, call)
        if kernel is None:
            result: Any = self._run_body(call)
        else:
            bare_args, bare_kwargs = call.bare
            result = kernel.function(*bare_args, **bare_kwargs)
        transfers = list(call.transfers)
        if call.home is not call.library:
            result = self._take_home(call, result, transfers)
        if call.wrapped:
            result = _each(call.home.wrap, result)
        if settings.log is not None:
            settings.log.append(self._record(call, kernel, tuple(transfers)))
        elif kernel is not None and kernel.declines and args and not refused and not transfers and not call.wrapped:
            # The first choice for this type of array, and it says itself what it cannot take.
            settings.plans[self][type(args[0])] = kernel.function
        return result  # type: ignore[no-any-return]

    def _run_body(self, call: _Call) -> Any:
        library = call.library
        with library.quiet():
            if not library.wrapper:
                return _each(library.arrayed, self._body(*call.args, **call.kwargs))
            args = map(library.wrap, call.args)
            kwargs = {name: library.wrap(value) for name, value in call.kwargs.items()}
            result = self._body(*args, **kwargs)
            return result if call.wrapped and call.home is library else _each(library.unwrap, result)

    def _prepare(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}: {error}") from None
        inputs = dict(self._arrays_among(bound.arguments))
        home = library_of(next(iter(inputs.values())))
        assert home is not None
        wrapped = any(home.is_wrapper(value) for value in inputs.values())
        if settings.backend is None:
            self._require_one_library(inputs)
            return _Call(bound.args, bound.kwargs, inputs, home, home, (), wrapped)
        target = settings.backend.library
        there = next((value for value in inputs.values() if library_of(value) is target), None)
        device = None if there is None else creation_device(there)  # where the others are to meet it
        transfers = []
        for name, value in inputs.items():
            if (source := library_of(value)) is not target:
                assert source is not None
                bound.arguments[name] = self._take_there(name, value, source, target, device)
                transfers.append(Transfer(source.name, target.name, _dtypes.nbytes(value)))
        return _Call(bound.args, bound.kwargs, inputs, target, home, tuple(transfers), wrapped)

    def _arrays_among(self, arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in arguments.items():
            if name not in self._arrays:
                continue
            row = library_of(value)
            if row is not None:
                if row.missing:
                    raise TypeError(f"{self.__name__}: {name} is an array of {row.name}, and {row.missing}")
                if reason := row.unfit(value):
                    raise TypeError(f"{self.__name__}: {name}: {reason}")
                if reason := row.unreadable(value):
                    raise ValueError(f"{self.__name__}: {name} is {reason}")
                yield name, value
            elif name in self._surely_arrays and not (
                value is None and self._signature.parameters[name].default is None
            ):
                raise TypeError(
                    f"{self.__name__}: {name} is {describe_type(value)}, expected an array of "
                    f"{', '.join(n.name for n in LIBRARIES.copy().values() if not n.missing)}"
                )

    def _require_one_library(self, inputs: dict[str, Any]) -> None:
        rows = {name: library_of(value) for name, value in inputs.items()}
        (first, home), *others = rows.items()
        for name, row in others:
            if row is not home:
                assert row is not None
                assert home is not None
                raise TypeError(
                    f"{self.__name__}: {first} is an array of {home.name}, but {name} of {row.name}; convert "
                    f"one of them, or name a backend to take them all to: tensorops.set_backend({home.name!r})"
                )

    def _take_there(self, name: str, value: Any, source: Library, target: Library, device: Any) -> Any:
        if source.lazy:
            raise TypeError(
                f"{self.__name__}: {name} is an array of {source.name}, and taking it to {target.name} would compute "
                f"its graph now; call tensorops.to_backend(x, {target.name!r}) if that is what you want"
            )
        try:
            return move(value, target, device)
        except TypeError as error:
            raise TypeError(f"{self.__name__}: {name}: {error}") from None

    @staticmethod
    def _take_home(call: _Call, result: Any, transfers: list[Transfer]) -> Any:
        device = creation_device(next(iter(call.inputs.values())))

        def back(y: Any) -> Any:
            transfers.append(Transfer(call.library.name, call.home.name, _dtypes.nbytes(y)))
            return move(y, call.home, device)

        return _each(back, result)

    def _select(self, settings: Settings, call: _Call) -> tuple[Kernel | None, dict[str, str]]:
        """Return the kernel to run (``None``: the body) and why the ones before it do not."""
        order = (*self._serving(settings, call), GENERIC) if settings.providers is None else settings.providers
        refused: dict[str, str] = {}
        for provider in order:
            if provider == GENERIC:
                return None, refused
            reason = self._refusal(provider, settings, call)
            if reason is None:
                return self._kernels[provider], refused
            refused[provider] = reason
        reasons = "; ".join(f"{provider}: {reason}" for provider, reason in refused.items())
        raise KernelRefusedError(f"{self.__name__}: no kernel that was asked for takes these arguments: {reasons}")

    @staticmethod
    def _serving(settings: Settings, call: _Call) -> tuple[str, ...]:
        """Return the providers that are asked, in this order, unless some were named."""
        if settings.backend is not None:
            return _providers.serving(settings.backend)
        return _providers.serving_library(call.library.name)

    def _refusal(self, provider: str, settings: Settings, call: _Call) -> str | None:
        served = _providers.PROVIDERS[provider].libraries
        if served and call.library.name not in served:  # what failed to load serves none, and gives its own reason
            return f"does not support {call.library.name} arrays"
        if reason := _providers.load(provider):
            return reason
        if provider not in self._kernels:
            return "has no kernel for this operator"
        try:
            args, kwargs = call.bare
            return self._kernels[provider].supports(*args, **kwargs)
        except TypeError:  # a compiled `supports` was given something that is not of its parameters' kinds
            return "an argument has an unexpected type"

    def _record(self, call: _Call, kernel: Kernel | None, transfers: tuple[Transfer, ...]) -> Record:
        return Record(
            operator=self.__name__,
            kernel=kernel.provider if kernel else GENERIC,
            library=call.library.name,
            shapes=tuple(tuple(x.shape) for x in call.inputs.values()),
            dtypes=tuple(_dtypes.dtype_name(x) for x in call.inputs.values()),
            transfers=transfers,
        )


def _each(function: Callable[[Any], Any], result: Any) -> Any:
    """Return an operator's result with `function` applied to its arrays: one, or several and ``None`` in a tuple."""
    if isinstance(result, tuple):
        return tuple(None if y is None else function(y) for y in result)
    return function(result)


if TYPE_CHECKING:
    C = TypeVar("C", bound=Callable[..., Any], covariant=True)
    E = TypeVar("E", bound=Callable[..., Explanation], covariant=True)

    class TypedOperator(Operator[..., Any], Generic[C, E]):
        """What a checker takes an operator for: `C` is how it is called, `E` how it is explained.

        These are whole types of functions, as a generic function cannot be taken apart into parameters and result: in
        ``Operator[P, R]`` a type variable that both contain, the array's, would be lost.
        """

        __call__: C
        generic: C
        explain: E


def operator(body: Callable[P, R]) -> TypedOperator[Callable[P, R], Callable[P, Explanation]]:
    """Make an operator of a function over the Array API; its parameters annotated ``Array`` are the inputs."""
    made: Any = Operator(body)
    OPERATORS[made.__name__] = made
    return made  # type: ignore[no-any-return]
