"""How a call of an operator is dispatched: its arguments are bound and checked, a kernel is chosen and run.

`tensorops._operator` adds how operators are made, kernels registered and calls explained.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Generic, ParamSpec, TypeVar

from tensorops import _dtypes, _providers
from tensorops._kernel import Kernel
from tensorops._messages import describe_type, meant
from tensorops._providers import GENERIC
from tensorops._row_axes import RowAxes
from tensorops.backends.settings import Settings
from tensorops.backends.trace import Record, Transfer
from tensorops.libraries import Library, creation_device, dtype_there, known_names, library_of, move

P = ParamSpec("P")
R = TypeVar("R")

_KNOWN_CALLS = 256
"""For how many calls a composed operator knows what its check made of them: a text has a length at every step."""


class KernelRefusedError(TypeError):
    """None of the kernels that were asked for by name takes these arguments; the message says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """The canonical arguments of one call, all in the library that computes."""

    arguments: dict[str, Any]
    inputs: dict[str, Any]  # the arrays among the arguments as the caller gave them, by name
    library: Library
    home: Library  # the caller's
    transfers: tuple[Transfer, ...]
    wrapped: bool  # whether the caller's arrays were in wrappers, and the result is to be

    @property
    def first(self) -> Any:
        """The first array."""
        return self.arguments[next(iter(self.inputs))]

    @property
    def bare(self) -> dict[str, Any]:
        """The arguments without wrappers, as kernels take them."""
        library = self.library
        if not library.wrapper:
            return self.arguments
        return {name: library.unwrap(x) for name, x in self.arguments.items()}


class Dispatch(Generic[P, R]):
    """What an operator does with the arguments of a call; the base of `Operator`."""

    __name__: str

    def __init__(
        self,
        body: Callable[P, R],
        check: Callable[..., dict[str, Any] | None] | None = None,
        rows: Callable[..., RowAxes] | None = None,
        calls: tuple[Dispatch[..., Any], ...] = (),
    ) -> None:
        functools.update_wrapper(self, body)  # type: ignore[arg-type] # it is called as an `Operator`
        self.calls = calls
        """The operators that the body calls, each of which chooses its own kernel."""
        self._body = body
        self._check = check
        self._rows = rows
        self._kernels: dict[str, Kernel] = {}
        self._signature = inspect.signature(body)
        every = self._signature.parameters.values()
        parameters = [p for p in every if p.kind is not p.VAR_POSITIONAL]  # for which see `_Variadic`
        self._defaults = {p.name: p.default for p in parameters}
        self._required = tuple(p.name for p in parameters if p.default is p.empty)
        self._by_position = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self._by_name = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        annotations = {p.name: str(p.annotation) for p in every}
        self._arrays = frozenset(name for name, a in annotations.items() if "Array" in a)
        self._surely_arrays = frozenset(name for name, a in annotations.items() if a.startswith("Array"))
        self._dtype_options = tuple(name for name, a in annotations.items() if a.startswith("Dtype"))
        if not self._surely_arrays:
            raise TypeError(
                f"{body.__name__}: no parameter is annotated Array; an operator's module needs "
                "`from __future__ import annotations`, as annotations are read as they are written"
            )

    # --------------------------------------------------------------- arguments

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, defaults applied, in the order of the parameters."""
        given = {**dict(zip(self._by_position, args, strict=False)), **kwargs}
        arguments = {**self._defaults, **given}
        wrong = len(given) < len(args) + len(kwargs) or len(arguments) > len(self._defaults)
        for name in self._required:
            wrong = wrong or name not in given
        if wrong:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                unknown = next((name for name in kwargs if name not in self._signature.parameters), None)
                hint = "" if unknown is None else meant(unknown, self._signature.parameters)
                raise TypeError(f"{self.__name__}: {error}{hint}") from None
        return arguments

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return by name the canonical arguments that a kernel of any operator is called with."""
        return {**dict(zip(self._by_position, args, strict=True)), **kwargs}

    def canonical(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return all arguments as the body and kernels take them; raise if they are wrong."""
        return self._canonical(self.bind(args, kwargs))

    def check_for(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Check arguments that another operator, in whose name errors are, will pass; return the options that change.

        Of arrays that do not exist yet, it suffices to know what `check` reads of them.
        """
        return (self._check and self._check(name, **{**self._defaults, **arguments})) or {}

    def _canonical(self, arguments: dict[str, Any]) -> dict[str, Any]:
        changed = None if self._check is None else self._check(self.__name__, **arguments)
        return {**arguments, **changed} if changed else arguments

    def apply(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a function that has the operator's parameters with all of them, by name."""
        by_name = {name: arguments[name] for name in self._by_name}
        return function(*[arguments[name] for name in self._by_position], **by_name)

    # ---------------------------------------------------------------- one call

    def _dispatch(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Do what `__call__` does when no plan settles it: convert, choose, run, convert back, record."""
        call = self._prepare(settings, args, kwargs)
        kernel, refused = self._select(settings, call)
        if kernel is None:
            result: Any = NotImplemented if are_named(settings) else self._run_elsewhere(call, refused)
            if result is NotImplemented:
                wrapped = call.wrapped and call.home is call.library
                result = self._run_body(call.arguments, call.library, wrapped=wrapped)
        else:
            function = kernel.function_with(settings.values_for(self.__name__, kernel.provider))
            result = self.apply(function, call.arguments if kernel.wrappers else call.bare)
        transfers = list(call.transfers)
        if call.home is not call.library:
            result = self._take_home(call, result, transfers)
        if call.wrapped:
            result = _each(call.home.wrap, result)
        if settings.log is not None:
            settings.log.append(self._record(call, kernel, tuple(transfers)))
        elif args and not transfers and (kernel is None or kernel.wrappers or not call.wrapped):
            kind, before = type(args[0]), [self._kernels[name] for name in refused if name in self._kernels]
            if kernel is not None:
                self._remember(settings, kernel, function, kind, call.library, before)
            elif self.calls and not call.wrapped:
                plan = self._plan_of_body(kind, call.library)
                self._keep(settings, GENERIC, plan, kind, call.library, before)
        return result  # type: ignore[no-any-return]

    def _remember(
        self,
        settings: Settings,
        kernel: Kernel,
        function: Callable[..., Any],
        kind: type,
        library: Library,
        before: list[Kernel],
    ) -> None:
        """Let later calls on a type of array ask its first choice at once; `before` are kernels that refused."""
        if not are_named(settings) and (
            kernel.outpaced is not None or (kernel.deviation is not None and not kernel.checks)
        ):
            return  # it depends on the array
        plan = function if kernel.checks else self._plan(kernel, function, kind, library)
        self._keep(settings, kernel.provider, plan, kind, library, before)

    def _keep(
        self,
        settings: Settings,
        provider: str,
        plan: Callable[..., Any],
        kind: type,
        library: Library,
        before: list[Kernel],
    ) -> None:
        """Keep the plan of a provider for a type of array, which first asks the kernels that refused."""
        named = are_named(settings)
        for other in reversed(before):
            if other.outpaced is not None and not named:
                plan = _unless_first(other.outpaced, plan)
            elif other.checks and (other.deviation is None or named):
                asked = other.function_with(settings.values_for(self.__name__, other.provider))
                if provider != GENERIC and _providers.are_apart(provider, other.provider, library.name):
                    plan = _first_of(plan, asked)  # none takes what the other does, so what this call needs comes first
                else:
                    plan = _first_of(asked, plan)
            else:
                return  # it may take the next call
        settings.plans[self][kind] = plan

    def _plan(self, kernel: Kernel, function: Callable[..., Any], kind: type, library: Library) -> Callable[..., Any]:
        """Return what calls a kernel's function if all arrays are of one type, and else declines."""

        def plan(*args: Any, **kwargs: Any) -> Any:
            arguments = self.bind(args, kwargs)
            for name in self._arrays:
                value = arguments[name]
                if value is not None and (type(value) is not kind or library.unfit(value) or library.unreadable(value)):
                    return NotImplemented
            try:
                arguments = self._canonical(arguments)
            except (TypeError, ValueError):  # raised again, once it is clear that all arguments can be read
                return NotImplemented
            if not kernel.declines and self.apply(kernel.supports, arguments) is not None:
                return NotImplemented
            return self.apply(function, arguments)

        return plan

    def _plan_of_body(self, kind: type[Any], library: Library) -> Callable[..., Any]:
        """Return what runs the body of a composed operator if all arrays are of one type, and else declines.

        Such an operator has many parameters, and its steps are checked again. `check` looks at metadata only, so what
        it made of a call holds for all calls with arrays of the same shapes and dtypes, and the same options. Kernels
        of the operator are for other libraries.
        """
        known: dict[Any, dict[str, Any]] = {}
        arrays, unfit, unreadable = self._arrays, library.unfit, library.unreadable
        kernels = len(self._kernels)

        def plan(*args: Any, **kwargs: Any) -> Any:
            if len(self._kernels) > kernels:  # registered meanwhile
                return NotImplemented
            given = {**dict(zip(self._by_position, args, strict=False)), **kwargs}
            signs: list[Any] = [len(args)]
            for name, value in given.items():
                if type(value) is kind:
                    if unfit(value) or unreadable(value):
                        return NotImplemented
                    signs.append((name, value.shape, value.dtype))
                elif value is not None and name in arrays:
                    return NotImplemented
                else:
                    signs.append((name, type(value), value))
            sign = tuple(signs)
            options = known.get(sign)  # a value that cannot be hashed is a TypeError, after which the long path follows
            if options is None:
                try:
                    arguments = self._canonical(self.bind(args, kwargs))
                except (TypeError, ValueError):  # raised again on the long path
                    return NotImplemented
                if len(known) >= _KNOWN_CALLS:
                    known.clear()
                known[sign] = {name: value for name, value in arguments.items() if name not in self._arrays}
            else:
                arguments = {**self._defaults, **given, **options}
            return self._run_body(arguments, library)

        return plan

    def _run_elsewhere(self, call: Call, refused: dict[str, str]) -> Any:
        """Return the body's results in a form that programs for other platforms replace by a kernel that refused."""
        for provider in refused:
            kernel = self._kernels.get(provider)
            if kernel is not None and kernel.elsewhere is not None:
                result = self.apply(kernel.elsewhere, call.bare)
                if result is not NotImplemented:
                    return result
        return NotImplemented

    def _run_body(self, arguments: dict[str, Any], library: Library, *, wrapped: bool = False) -> Any:
        """Run the body on canonical arguments; `wrapped` if the result is to be in wrappers."""
        with library.quiet():
            if not library.wrapper:
                body = functools.partial(self.apply, self._body)
                return _each(library.arrayed, library.over_parts(body, arguments, self._rows))
            result = self.apply(self._body, {name: library.wrap(value) for name, value in arguments.items()})
            return result if wrapped else _each(library.unwrap, result)

    def _prepare(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        arguments = self.bind(args, kwargs)
        inputs = dict(self._arrays_among(arguments))
        home = library_of(next(iter(inputs.values())))
        assert home is not None
        wrapped = any(home.is_wrapper(value) for value in inputs.values())
        if settings.backend is None:
            self._require_one_library(inputs)
            return Call(self._canonical(arguments), inputs, home, home, (), wrapped)
        arguments = self._canonical(arguments)
        target = settings.backend.library
        there = next((value for value in inputs.values() if library_of(value) is target), None)
        device = None if there is None else creation_device(there)  # where the others are to meet it
        transfers = []
        for name, value in inputs.items():
            if (source := library_of(value)) is not target:
                assert source is not None
                arguments[name] = self._take_there(name, value, source, target, device)
                transfers.append(Transfer(source.name, target.name, _dtypes.nbytes(value)))
        if home is not target:
            for name in self._dtype_options:
                if arguments[name] is not None:
                    arguments[name] = self._dtype_there(name, arguments[name], target)
        return Call(arguments, inputs, target, home, tuple(transfers), wrapped)

    def _arrays_among(self, arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in arguments.items():
            parameter = name.partition("[")[0]  # of operands[1]
            if parameter not in self._arrays:
                continue
            row = library_of(value)
            if parameter not in self._surely_arrays and isinstance(value, Integral):  # a seed, and no array of NumPy
                continue
            if row is not None:
                if row.missing:
                    raise TypeError(f"{self.__name__}: {name} is an array of {row.name}, and {row.missing}")
                if reason := row.unfit(value):
                    raise TypeError(f"{self.__name__}: {name}: {reason}")
                if reason := row.unreadable(value):
                    raise ValueError(f"{self.__name__}: {name} is {reason}")
                yield name, value
            elif parameter in self._surely_arrays and not (
                value is None and self._signature.parameters[parameter].default is None
            ):
                raise TypeError(
                    f"{self.__name__}: {name} is {describe_type(value)}, {_held_by(value, name)}"
                    f"expected an array of {known_names()}"
                )

    def _require_one_library(self, inputs: dict[str, Any]) -> None:
        rows = {name: library_of(value) for name, value in inputs.items()}
        (first, home), *others = rows.items()
        for name, row in others:
            if row is not home:
                assert row is not None
                assert home is not None
                remedy = "convert one of them"
                if home.lazy or row.lazy:  # a scope would compute the graph, now or when its result is taken back
                    remedy += " with tensorops.to_backend"
                else:
                    remedy += f", or take them all to a backend: with tensorops.set_backend({home.name!r}): …"
                raise TypeError(
                    f"{self.__name__}: {first} is an array of {home.name}, but {name} of {row.name}; {remedy}"
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

    def _dtype_there(self, name: str, dtype: Any, target: Library) -> Any:
        try:
            return dtype_there(dtype, target)
        except TypeError as error:
            raise TypeError(f"{self.__name__}: {name}: {error}") from None

    @staticmethod
    def _take_home(call: Call, result: Any, transfers: list[Transfer]) -> Any:
        device = creation_device(next(iter(call.inputs.values())))

        def back(y: Any) -> Any:
            transfers.append(Transfer(call.library.name, call.home.name, _dtypes.nbytes(y)))
            return move(y, call.home, device)

        return _each(back, result)

    def _select(self, settings: Settings, call: Call) -> tuple[Kernel | None, dict[str, str]]:
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
        if self.calls:  # the body computes nothing itself, and what it calls obeys the same settings
            return None, refused
        reasons = "; ".join(f"{provider}: {reason}" for provider, reason in refused.items())
        raise KernelRefusedError(f"{self.__name__}: no kernel that was asked for takes these arguments: {reasons}")

    def _serving(self, settings: Settings, call: Call) -> tuple[str, ...]:
        """Return the providers that are asked, in this order, unless some were named."""
        if settings.backend is not None:
            order = _providers.serving(settings.backend)
        else:
            order = _providers.serving_library(call.library.name)
        return tuple(
            name for name in order if self.__name__ in (_providers.PROVIDERS[name].operators or (self.__name__,))
        )

    def _refusal(self, provider: str, settings: Settings, call: Call) -> str | None:
        served = _providers.PROVIDERS[provider].libraries
        if served and call.library.name not in served:  # what failed to load serves none, and gives its own reason
            return f"does not support {call.library.name} arrays"
        if reason := _providers.load(provider):
            return reason
        kernel = self._kernels.get(provider)
        if kernel is None:
            return "has no kernel for this operator"
        if not are_named(settings) and (reason := kernel.opt_in_reason(call.first)):
            return f"{reason}; it runs where it is named: providers=[{provider!r}]"
        try:
            arguments = call.arguments if kernel.wrappers else call.bare
            return self.apply(kernel.supports, arguments)  # type: ignore[no-any-return]
        except TypeError:  # a compiled `supports` was given something that is not of its parameters' kinds
            return "an argument has an unexpected type"

    def _record(self, call: Call, kernel: Kernel | None, transfers: tuple[Transfer, ...]) -> Record:
        return Record(
            operator=self.__name__,
            kernel=kernel.provider if kernel else GENERIC,
            library=call.library.name,
            shapes=tuple(tuple(x.shape) for x in call.inputs.values()),
            dtypes=tuple(_dtypes.dtype_name(x) for x in call.inputs.values()),
            transfers=transfers,
        )


def are_named(settings: Settings) -> bool:
    """Tell whether the providers that may be used were named, instead of being left to the table."""
    backend = settings.backend
    return settings.providers is not None or (backend is not None and backend.providers is not None)


def _held_by(value: Any, name: str) -> str:
    """Return what to pass instead of something that holds an array, such as a parameter of a network."""
    try:
        held = library_of(value[...]) is not None
    except Exception:  # whatever an object raises that has no elements
        held = False
    return f"which holds an array: pass {name}[...]; " if held else ""


def _unless_first(reason_of: Callable[[Any], str | None], plan: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plan that declines first arrays for which a kernel before it may be faster."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if reason_of(args[0]) is None else plan(*args, **kwargs)

    return guarded


def _first_of(function: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a plan that asks two functions that check: tensors of one type may be in several kinds of memory."""

    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs) if kwargs else function(*args)
        except (TypeError, AttributeError):  # a library's message about something else than an array
            result = NotImplemented
        return other(*args, **kwargs) if result is NotImplemented else result

    return either


def _each(function: Callable[[Any], Any], result: Any) -> Any:
    """Return an operator's result with `function` applied to its arrays: one, or several and ``None`` in a tuple."""
    if isinstance(result, tuple):
        return tuple(None if y is None else function(y) for y in result)
    return function(result)
