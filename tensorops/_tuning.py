"""`tune`: values of kernels' configurations for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from types import TracebackType
from typing import Any

from tensorops import _providers
from tensorops._kernel import Configuration
from tensorops._messages import nearest
from tensorops._operator import OPERATORS, Operator
from tensorops._pickling import Stamp
from tensorops._validation import as_integer, shown
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Tuned, activate, settings_within

_LARGEST = 2**63 - 1  # that compiled kernels can read


def tune(operator: str | Operator[..., Any], provider: str, /, **values: int) -> AbstractContextManager[None]:
    """Override for a ``with`` block what a kernel chooses by itself, such as the size of blocks.

    Results stay right, whatever the values are; only time and memory change. What a value gains depends on the machine
    and on the shapes: measure it. `explain` tells what a kernel chooses. Values hold where the kernel runs, without
    choosing it, in addition to outer blocks'; in the thread or asyncio task, as with `set_backend`. The block keeps
    the default backend that it began under.

    Parameters
    ----------
    operator : str or operator
        Whose kernel.
    provider : str
        The provider of the kernel.
    **values : int
        Positive values by the names of the kernel's parameters.

    Returns
    -------
    context manager
        Can be entered once.

    Raises
    ------
    ValueError
        If there is no such operator, provider or parameter, with the valid names; if the kernel has no configuration
        or cannot be loaded; or if a value is not positive.
    TypeError
        If a value is not an integer.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x, weight = np.ones((9, 64), np.float16), np.ones((32, 64), np.float16)
    >>> if tensorops.linear.explain(x, weight).kernel == "cpu":  # the compiled kernels are installed
    ...     with tensorops.tune("linear", "cpu", few_rows=24):
    ...         assert tensorops.linear.explain(x, weight).configuration == {"few_rows": 24}
    ...         y = tensorops.linear(x, weight)
    """
    tuned_operator = _find(operator)
    configuration = _configuration_of(tuned_operator, provider)
    kernel = f"{tuned_operator.__name__} on {provider!r}"
    for name in values:
        if name not in configuration.parameters:
            valid = tuple(configuration.parameters)
            raise ValueError(
                f"tune: {kernel} has no parameter {name!r}{nearest(name, valid)}; valid names: {', '.join(valid)}"
            )
    if not values:
        meanings = "; ".join(f"{name}: {line}" for name, line in configuration.parameters.items())
        raise ValueError(f"tune: no value was given; {kernel} has {meanings}")
    name = tuned_operator.__name__
    return _Tuning({Tuned(name, provider, parameter, _positive(parameter, n)) for parameter, n in values.items()})


class _Tuning(ContextDecorator):
    """Values for the length of a block, or of each call of a decorated function; pickles by the kernel's names."""

    def __init__(self, values: set[Tuned]) -> None:
        self._values = values
        self._block: AbstractContextManager[None] | None = None

    def _recreate_cm(self) -> _Tuning:
        return _Tuning(self._values)  # for each call of a decorated function

    def __enter__(self) -> None:
        if self._block is not None:
            raise RuntimeError("tune: what it returns can be entered once; call tune again")
        self._block = _in_force_within(self._values)
        self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._block is not None
        self._block.__exit__(kind, error, tb)

    def __reduce__(self) -> tuple[Any, ...]:
        operator, provider = next(iter(self._values))[:2]
        return _tuning_of, (Stamp(), operator, provider, {value.parameter: value.value for value in self._values})


def _tuning_of(_: Stamp, operator: str, provider: str, values: dict[str, int]) -> AbstractContextManager[None]:
    """Return what `tune` returned in another process; the kernel must be available here as well."""
    return tune(operator, provider, **values)


@contextmanager
def _in_force_within(values: set[Tuned]) -> Iterator[None]:
    outer = in_force()
    replaced = {value[:3] for value in values}
    kept = {value for value in outer.tuned if value[:3] not in replaced}
    with activate(settings_within(outer, outer.backend, outer.providers, tuple(sorted(kept | values)))):
        yield


def _find(operator: object) -> Operator[..., Any]:
    if isinstance(operator, Operator):
        return operator
    if not isinstance(operator, str) or operator not in OPERATORS:
        raise ValueError(
            f"tune: unknown operator {shown(operator)}{nearest(operator, OPERATORS)}; "
            f"valid names: {', '.join(OPERATORS)}"
        )
    return OPERATORS[operator]


def _configuration_of(operator: Operator[..., Any], provider: str) -> Configuration:
    _providers.require_provider(provider)
    kernels = operator.kernels
    kernel = kernels.get(provider)
    if kernel is not None and kernel.configuration is not None:
        return kernel.configuration
    if provider != _providers.GENERIC and (reason := _providers.load(provider)):
        raise ValueError(f"tune: the kernels of {provider!r} cannot be loaded: {reason}")
    valid = ", ".join(name for name, k in kernels.items() if k.configuration is not None)
    raise ValueError(
        f"tune: {operator.__name__} has no kernel of {provider!r} with a configuration; valid names: {valid or 'none'}"
    )


def _positive(name: str, value: Any) -> int:
    number = as_integer("tune", name, value)
    if not 1 <= number <= _LARGEST:
        raise ValueError(f"tune: {name} is {shown(number)}, expected 1 … {_LARGEST}")
    return number
