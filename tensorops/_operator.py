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
where reading them costs nothing but the reading) and returns ``None``, or why this kernel cannot compute what the
operator allows. Selection, `Operator.explain` and error messages all use that answer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from tensorops import _providers
from tensorops._dispatch import Call, Dispatch
from tensorops._explanation import Explanation, stored_formats
from tensorops._kernel import Configuration, Deviation, Kernel, Packed
from tensorops._providers import GENERIC
from tensorops._row_axes import RowAxes
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, activate, current

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

OPERATORS: dict[str, Operator[Any, Any]] = {}
"""Every operator, by name; filled by the decorator."""

_generic_only = Settings(providers=(GENERIC,))


class Operator(Dispatch[P, R]):
    """A function on arrays of any library, with kernels that override it for some; made by `operator`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            plan = current.get().plans[self][type(args[0])]
        except (IndexError, KeyError):  # no array by position, or the first of its type
            plan = None
        if plan is not None:
            try:
                result = plan(*args, **kwargs) if kwargs else plan(*args)  # the latter is faster
            except (TypeError, AttributeError):  # a library's message about something else than an array; ours follows
                result = NotImplemented
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        return self.unplanned(*args, **kwargs)

    def unplanned(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `__call__` does if no plan settles the call; the compiled module does the rest itself."""
        if not args and (first := self._by_position[0]) in kwargs:  # plans go by the type of the first position
            return self(kwargs.pop(first), **kwargs)  # type: ignore[arg-type]
        return self._dispatch(in_force(), args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Return the operator, as builtin functions in a class do; `help` knows functions by this method."""
        return self

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
        derivative: str = "",
    ) -> Callable[[F], F]:
        """Register the decorated function as this operator's kernel of a provider; see `Kernel`."""
        if provider in self._kernels:
            raise ValueError(f"{self.__name__} already has a kernel of {provider!r}")
        _providers.require_kernels(provider, self.__name__)
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
                derivative=derivative,
            )
            return function

        return register

    def _require_separate(self, provider: str, configuration: Configuration, checks: bool) -> None:
        """Raise if a parameter of a configuration is one of the operator."""
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
            gradients=kernel.derivative if kernel else "",
            formats=stored_formats(call.arguments),
        )

    def _configuration(self, settings: Settings, kernel: Kernel | None, call: Call) -> dict[str, int]:
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
