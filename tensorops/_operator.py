"""Operators: a public function whose body runs on any array, and kernels that override it.

An operator's author writes a function over the Array API, a function that checks its arguments, and one that says along
which axes a call may be divided::

    @operator(check=_check_softmax, rows=_softmax_rows)
    def softmax(x: Array, *, axis: int = -1) -> Array:
        xp = get_namespace(x)
        ...

The arguments are checked once, before a kernel is chosen. From then on they are *canonical*: complete, with defaults
applied, options of Python's own types, axes counted from the front. The body and the kernels get canonical arguments.

A kernel's author registers a function with the same parameters for a provider, and says what it supports::

    @softmax.kernel("cpu", supports=...)
    def _(x, *, axis): ...

`supports` is called with the canonical arguments, looks at metadata (type, dtype, shape, strides, device; values only
where reading them costs nothing but the reading) and returns ``None``, or in words why this kernel cannot compute what
the operator allows. Selection, `Operator.explain` and error messages all use that answer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from tensorops import _dtypes, _providers
from tensorops._explanation import Explanation
from tensorops._kernel import Configuration, Deviation, Kernel, Packed
from tensorops._messages import describe_type, meant
from tensorops._providers import GENERIC
from tensorops._row_axes import RowAxes
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, activate, current
from tensorops.backends.trace import Record, Transfer
from tensorops.libraries import Library, creation_device, dtype_there, known_names, library_of, move

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

OPERATORS: dict[str, Operator[Any, Any]] = {}
"""Every operator, by name; filled by the decorator."""

_KNOWN_CALLS = 256
"""For how many calls a composed operator knows what its check made of them: a text has a length at every step."""

_generic_only = Settings(providers=(GENERIC,))


class KernelRefusedError(TypeError):
    """None of the kernels that were asked for by name takes these arguments; the message says why."""


@dataclass(frozen=True, slots=True)
class _Call:
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


class Operator(Generic[P, R]):
    """A function on arrays of any library, with kernels that override it for some; made by `operator`."""

    __name__: str

    def __init__(
        self,
        body: Callable[P, R],
        check: Callable[..., dict[str, Any] | None] | None = None,
        rows: Callable[..., RowAxes] | None = None,
        calls: tuple[Operator[..., Any], ...] = (),
    ) -> None:
        functools.update_wrapper(self, body)
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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            plan = current.get().plans[self][type(args[0])]
        except (IndexError, KeyError):  # no array by position, or the first of its type
            plan = None
        if plan is not None:
            try:
                result = plan(*args, **kwargs) if kwargs else plan(*args)  # the latter is faster
            except (TypeError, AttributeError):  # others' words about something that is no array; ours follow
                result = NotImplemented
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        return self.unplanned(*args, **kwargs)

    def unplanned(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `__call__` does if no plan settles the call; the compiled module does the rest itself."""
        if not args and (first := self._by_position[0]) in kwargs:  # plans go by the type of the first position
            return self(kwargs.pop(first), **kwargs)  # type: ignore[arg-type]
        return self._dispatch(in_force(), args, kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__  # pickled by reference, as functions are

    # ----------------------------------------------------------------- kernels

    def kernel(
        self,
        provider: str,
        *,
        supports: Callable[..., str | None],
        declines: bool = False,
        checks: bool = False,
        wrappers: bool = False,
        deviation: Deviation | None = None,
        pack: Callable[..., Packed | str] | None = None,
        configuration: Configuration | None = None,
        outpaced: Callable[[Any], str | None] | None = None,
        load: Callable[[], Callable[..., Any]] | None = None,
        elsewhere: Callable[..., Any] | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as this operator's kernel of a provider; see `Kernel`."""
        if provider in self._kernels:
            raise ValueError(f"{self.__name__} already has a kernel of {provider!r}")
        if configuration is not None:
            self._require_separate(provider, configuration, checks)

        def register(function: F) -> F:
            self._kernels[provider] = Kernel(
                provider,
                function,
                supports,
                declines=declines or checks,
                checks=checks,
                wrappers=wrappers,
                deviation=deviation,
                configuration=configuration,
                pack=pack,
                outpaced=outpaced,
                load=load,
                elsewhere=elsewhere,
            )
            return function

        return register

    def _require_separate(self, provider: str, configuration: Configuration, checks: bool) -> None:
        """Raise unless a configuration's parameters are no arguments that a caller could write."""
        if taken := configuration.parameters.keys() & self._defaults.keys():
            raise ValueError(
                f"{self.__name__}: the configuration of {provider!r} has parameters of the operator: "
                f"{', '.join(sorted(taken))}"
            )
        if checks and configuration.function is None:
            raise ValueError(
                f"{self.__name__}: the configuration of {provider!r} needs a function, as the kernel checks"
            )

    @property
    def kernels(self) -> dict[str, Kernel]:
        """The registered kernels by provider; loads every provider that can be loaded."""
        for provider in _providers.PROVIDERS.copy():
            _providers.load(provider)
        return dict(self._kernels)

    def kernel_of(self, provider: str) -> Kernel | None:
        """Return the kernel of a provider that has been loaded, if it has one."""
        return self._kernels.get(provider)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters, in order."""
        return tuple(self._defaults)

    def generic(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the operator's own body where the arrays live, whatever kernels and settings there are."""
        log = current.get().log
        settings = _generic_only if log is None else Settings(providers=(GENERIC,), log=log)
        with activate(settings) if self.calls else contextlib.nullcontext():
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
            deviation=kernel.deviates(call.first) if kernel else "",
            configuration=self._configuration(settings, kernel, call),
            calls=tuple(o.__name__ for o in self.calls) if kernel is None else (),
        )

    def _configuration(self, settings: Settings, kernel: Kernel | None, call: _Call) -> dict[str, int]:
        if kernel is None or kernel.configuration is None:
            return {}
        chosen = self.apply(kernel.configuration.choose, call.bare)
        return {**chosen, **settings.values_for(self.__name__, kernel.provider)}

    @property
    def divides(self) -> bool:
        """Whether `rows` can tell along which axes a call may be divided."""
        return self._rows is not None

    def rows(self, arguments: dict[str, Any]) -> RowAxes:
        """Tell along which axes a call with these canonical arguments may be divided."""
        if self._rows is None:
            raise TypeError(f"{self.__name__}: it is not declared how calls may be divided")
        return self._rows(**arguments)

    def compute(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Check the arguments and run the body, whatever is in force: for what traces or transforms the body itself."""
        return self.apply(self._body, self.canonical(*args, **kwargs))  # type: ignore[no-any-return]

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
            result: Any = NotImplemented if _are_named(settings) else self._run_elsewhere(call, refused)
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
        if not _are_named(settings) and (
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
        named = _are_named(settings)
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

    def _run_elsewhere(self, call: _Call, refused: dict[str, str]) -> Any:
        """Return the body's results in a form that programs for other platforms replace by a kernel that refused."""
        for provider in refused:
            kernel = self._kernels.get(provider)
            if kernel is not None and kernel.elsewhere is not None:
                result = self.apply(kernel.elsewhere, call.bare)
                if result is not NotImplemented:
                    return result
        return NotImplemented

    def _run_body(self, arguments: dict[str, Any], library: Library, *, wrapped: bool = False) -> Any:
        """Return what the body makes of canonical arguments; `wrapped` if a result in wrappers is wanted."""
        with library.quiet():
            if not library.wrapper:
                return _each(library.arrayed, self.apply(self._body, arguments))
            result = self.apply(self._body, {name: library.wrap(value) for name, value in arguments.items()})
            return result if wrapped else _each(library.unwrap, result)

    def _prepare(self, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        arguments = self.bind(args, kwargs)
        inputs = dict(self._arrays_among(arguments))
        home = library_of(next(iter(inputs.values())))
        assert home is not None
        wrapped = any(home.is_wrapper(value) for value in inputs.values())
        if settings.backend is None:
            self._require_one_library(inputs)
            return _Call(self._canonical(arguments), inputs, home, home, (), wrapped)
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
        return _Call(arguments, inputs, target, home, tuple(transfers), wrapped)

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
        if self.calls:  # the body computes nothing itself, and what it calls obeys the same settings
            return None, refused
        reasons = "; ".join(f"{provider}: {reason}" for provider, reason in refused.items())
        raise KernelRefusedError(f"{self.__name__}: no kernel that was asked for takes these arguments: {reasons}")

    def _serving(self, settings: Settings, call: _Call) -> tuple[str, ...]:
        """Return the providers that are asked, in this order, unless some were named."""
        if settings.backend is not None:
            order = _providers.serving(settings.backend)
        else:
            order = _providers.serving_library(call.library.name)
        return tuple(
            name for name in order if self.__name__ in (_providers.PROVIDERS[name].operators or (self.__name__,))
        )

    def _refusal(self, provider: str, settings: Settings, call: _Call) -> str | None:
        served = _providers.PROVIDERS[provider].libraries
        if served and call.library.name not in served:  # what failed to load serves none, and gives its own reason
            return f"does not support {call.library.name} arrays"
        if reason := _providers.load(provider):
            return reason
        kernel = self._kernels.get(provider)
        if kernel is None:
            return "has no kernel for this operator"
        if not _are_named(settings) and (reason := kernel.opt_in_reason(call.first)):
            return f"{reason}; it runs where it is named: providers=[{provider!r}]"
        try:
            arguments = call.arguments if kernel.wrappers else call.bare
            return self.apply(kernel.supports, arguments)  # type: ignore[no-any-return]
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


class _Variadic(Operator[P, R]):
    """An operator on any number of arrays, ``*operands``, after those that have names.

    Once bound, each is an argument of its own, ``operands[0]``, ``operands[1]`` …, also in messages. The check and the
    body get them by position.
    """

    def __init__(self, *declared: Any) -> None:
        super().__init__(*declared)
        (self._many,) = (p.name for p in self._signature.parameters.values() if p.kind is p.VAR_POSITIONAL)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, defaults applied, in the order of the parameters."""
        before = len(self._by_position)
        bound = super().bind(args[:before], kwargs)
        if len(args) <= before:
            raise TypeError(f"{self.__name__}: {self._many} are missing, expected at least one array")
        options = {name: bound.pop(name) for name in self._by_name}
        bound.update([(f"{self._many}[{i}]", value) for i, value in enumerate(args[before:])])
        return bound | options

    def _canonical(self, arguments: dict[str, Any]) -> dict[str, Any]:
        changed = None if self._check is None else self.apply(functools.partial(self._check, self.__name__), arguments)
        return {**arguments, **changed} if changed else arguments

    def apply(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a function that has the operator's parameters with all of them, by name."""
        by_name = {name: arguments[name] for name in self._by_name}
        return function(*[value for name, value in arguments.items() if name not in by_name], **by_name)

    def _remember(self, *_: Any) -> None:
        """Keep no plan: the type of the first argument does not tell those of all operands."""


def _are_named(settings: Settings) -> bool:
    """Tell whether somebody named the providers that may be used, instead of leaving it to the table."""
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
        except (TypeError, AttributeError):  # others' words about something that is no array
            result = NotImplemented
        return other(*args, **kwargs) if result is NotImplemented else result

    return either


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


@overload
def operator(body: Callable[P, R]) -> TypedOperator[Callable[P, R], Callable[P, Explanation]]: ...


@overload
def operator(
    *,
    check: Callable[..., dict[str, Any] | None] | None = None,
    rows: Callable[..., RowAxes] | None = None,
    calls: tuple[Operator[..., Any], ...] = (),
) -> Callable[[Callable[P, R]], TypedOperator[Callable[P, R], Callable[P, Explanation]]]: ...


def operator(
    body: Callable[P, R] | None = None,
    *,
    check: Callable[..., dict[str, Any] | None] | None = None,
    rows: Callable[..., RowAxes] | None = None,
    calls: tuple[Operator[..., Any], ...] = (),
) -> Any:
    """Make an operator of a function over the Array API; its parameters annotated ``Array`` are the inputs.

    One of them may take any number of arrays, ``*operands``.

    Parameters
    ----------
    body : callable
        Computes the result from canonical arguments.
    check : callable, optional
        Is called with the operator's name and all arguments, by name; raises `TypeError` or `ValueError` in the
        caller's terms if they are wrong. Returns the canonical values of those options that are to be replaced.
        It looks at metadata only, as arrays may be traced, lazy or on a device.
    rows : callable, optional
        Is called with the canonical arguments, by name; tells along which axes a call may be divided.
    calls : tuple of operators, optional
        The operators of which the body is composed. It leaves all arithmetic worth a kernel to them, and each of them
        chooses its own kernel under the settings of the whole call: providers that were named need no kernel of the
        composed operator itself.
    """

    def make(body: Callable[P, R]) -> Operator[P, R]:
        many = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(body).parameters.values())
        made = (_Variadic if many else Operator)(body, check, rows, calls)
        OPERATORS[made.__name__] = made
        return made

    return make if body is None else make(body)
