"""What a kernel is, and what its author may declare when it is registered; see `Operator.kernel`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tensorops import _dtypes
from tensorops._pickling import Unpicklable

BY_BODY = "the body"
"""A kernel's `derivative` where the library differentiates the operator's body."""


@dataclass(frozen=True)
class Deviation:
    """Where a kernel's results are not what the operator promises.

    Such a kernel runs only where its provider is named, as in ``set_backend(..., providers=[…])``.

    Parameters
    ----------
    dtypes
        The dtypes of the first array for which that holds.
    reason
        What differs, as a sentence for users.
    tags
        The cases of `tensorops.testing` that show it have one of these tags: conformance leaves them out.
    """

    dtypes: tuple[str, ...]
    reason: str
    tags: tuple[str, ...] = ()


class Packed(Protocol):
    """What a kernel makes of arguments that stay the same."""

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""

    def supports(self, *args: Any, **kwargs: Any) -> str | None:
        """Return ``None``, or why a call with these other arguments cannot use it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute with the other arguments, or return ``NotImplemented`` for those that `supports` refuses."""

    def plain(self) -> dict[str, Any]:
        """Return the arrays that it was made of, by parameter; new ones."""


@dataclass(frozen=True)
class Configuration:
    """Numbers that a kernel chooses for each call, such as sizes of blocks, and `tensorops.tune` can override.

    Parameters
    ----------
    parameters
        One line for people on each parameter, by name.
    choose
        Takes the operator's canonical arguments; returns what the kernel chooses, by name. It looks only at metadata,
        options and the device.
    function
        What computes if a value is overridden: it takes what the kernel's function takes, and the parameters as
        keywords, of which those that are missing are chosen. By default it is the kernel's function itself; a kernel
        with `checks` needs another one, as its function gets the arguments that callers write.
    """

    parameters: dict[str, str]
    choose: Callable[..., dict[str, int]]
    function: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Kernel(Unpicklable):
    """An override of one operator by one provider.

    Parameters
    ----------
    provider
        The family it belongs to.
    function
        Takes the operator's canonical arguments.
    supports
        Takes them too; returns ``None`` or the reason why `function` cannot.
    declines
        Whether `function` itself returns ``NotImplemented``, before it touches any memory, for exactly the arguments
        that `supports` refuses. Then a call need not ask `supports`.
    checks
        Whether `function` also takes arguments as callers write them, and declines those that the operator refuses.
        Then a call needs no decision in Python at all.
    wrappers
        Whether `function` and `supports` also take arrays in their library's wrapper. If one is given, results are in
        wrappers, too.
    deviation
        Where its results are not what the operator promises, if anywhere.
    pack
        Repacks arguments that stay the same, such as weights, for `tensorops.prepare`: is called with them by name, and
        returns a `Packed`, or the reason why it does not. ``None`` if the kernel takes all arrays as they come.
    configuration
        The numbers that it chooses, and how to override them, if there are any.
    outpaced
        Takes the first array; returns why, as measured, another implementation is faster, or ``None``. It looks only at
        metadata and the machine. Such a kernel runs only where its provider is named. ``None`` if the kernel is always
        worth asking.
    load
        Imports what `function` needs and returns what computes in its place: later calls save the way to it. ``None``
        if it is `function` itself.
    elsewhere
        Takes canonical arguments that no kernel computes here, in programs that may be compiled for another platform.
        Returns the body's results in a form that becomes this kernel there, or ``NotImplemented``. ``None`` if the
        provider's libraries compile for no other platform.
    derivative
        What computes gradients through it: the name of a compiled function, a library, or `BY_BODY`. Empty if its
        arrays have no gradients.
    """

    _refusal = (
        "a kernel cannot be pickled: it belongs to the process that registered it; "
        "pickle the operator, which has it in each process"
    )

    provider: str
    function: Callable[..., Any]
    supports: Callable[..., str | None]
    declines: bool = False
    checks: bool = False
    wrappers: bool = False
    deviation: Deviation | None = None
    pack: Callable[..., Packed | str] | None = None
    configuration: Configuration | None = None
    outpaced: Callable[[Any], str | None] | None = None
    load: Callable[[], Callable[..., Any]] | None = None
    elsewhere: Callable[..., Any] | None = None
    derivative: str = ""

    def function_with(self, values: dict[str, int]) -> Callable[..., Any]:
        """Return what computes with these values in place of those that the kernel chooses."""
        if not values or self.configuration is None:
            return self.function if self.load is None else self.load()
        function = functools.partial(self.configuration.function or self.function, **values)
        if not self.checks:
            return function
        parameters = self.configuration.parameters.keys()

        def tuned(*args: Any, **kwargs: Any) -> Any:  # callers write these arguments, but no parameters
            return function(*args, **kwargs) if parameters.isdisjoint(kwargs) else NotImplemented

        return tuned

    def deviates(self, x: Any) -> str:
        """Return how results for a first array `x` deviate, or an empty string."""
        if self.deviation is None or _dtypes.dtype_name(x) not in self.deviation.dtypes:
            return ""
        return f"deviates in {_dtypes.dtype_name(x)}: {self.deviation.reason}"

    def opt_in_reason(self, x: Any) -> str:
        """Return why this kernel runs only where its provider is named, for a first array `x`, or an empty string."""
        return self.deviates(x) or (self.outpaced(x) or "" if self.outpaced is not None else "")
