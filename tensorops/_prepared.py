"""Weights prepared once for a kernel: another order of them may be quicker to multiply by.

A kernel's author registers a function that repacks what stays the same from call to call::

    def pack(*, weight, scales, biases=None, bits=4, group_size=32) -> Packed | str: ...

    operator.kernel("cpu", supports=..., pack=pack)

It returns an object that computes with the packed arrays, or the reason why it does not pack them.
"""

from __future__ import annotations

import inspect
from typing import Any

from tensorops import _dtypes, _providers
from tensorops._explanation import Explanation, stored_formats
from tensorops._kernel import Kernel, Packed
from tensorops._messages import describe_type, nearest
from tensorops._operator import OPERATORS, Operator
from tensorops._providers import GENERIC
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings
from tensorops.backends.trace import Record
from tensorops.libraries import Library, library_of


class Prepared:
    """An operator with arguments that stay the same; made by `tensorops.prepare`, called with the others.

    Attributes
    ----------
    operator : Operator
        The operator.
    provider : str
        The provider that repacked the arrays, or an empty string if none did.
    refused : dict of str to str
        The provider that would have been asked first, with the reason why it repacked nothing.
    shapes : dict of str to tuple of int
        The shapes of the arrays that were given.
    options : dict
        The other arguments that were given.
    """

    def __init__(self, operator: Operator[Any, Any], constants: dict[str, Any]) -> None:
        self.operator = operator
        arrays = {name: value for name, value in constants.items() if library_of(value) is not None}
        self.options = {name: value for name, value in constants.items() if name not in arrays}
        self.shapes = {name: tuple(a.shape) for name, a in arrays.items()}
        self._dtypes = tuple(_dtypes.dtype_name(a) for a in arrays.values())
        self._library = _common_library(operator, arrays)
        self.provider = ""
        self.refused: dict[str, str] = {}
        self._packed: Packed | None = None
        self._asked: tuple[Settings | None, bool] = None, False  # of the last settings, whether the provider is first
        self._arrays = arrays
        first = _first(operator, in_force(), self._library)
        if (kernel := operator.kernel_of(first)) is not None:
            packed = _pack(kernel, constants)
            if isinstance(packed, str):
                self.refused[first] = packed
            else:
                self.provider, self._packed, self._arrays = first, packed, {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator with the other arguments."""
        self._refuse_fixed(kwargs)
        settings = in_force()
        if self._packed is not None and self._is_asked_first(settings):
            try:
                result = self._packed(*args, **kwargs)
            except TypeError:  # about its own parameters; the operator's message follows
                result = NotImplemented
            if result is not NotImplemented:
                if settings.log is not None:
                    settings.log.append(self._record(args, kwargs))
                return result
        return self.operator(*args, **kwargs, **self.plain())

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        by = f"prepared by {self.provider}" if self.provider else "not prepared"
        return f"<{self.operator.__name__} with {arrays}: {by}, {self.nbytes} bytes>"

    def __reduce__(self) -> Any:
        return Prepared, (self.operator, self.plain())

    @property
    def nbytes(self) -> int:
        """How much memory the arrays take as they are held."""
        if self._packed is not None:
            return self._packed.nbytes
        return sum(_dtypes.nbytes(a) for a in self._arrays.values())

    def plain(self) -> dict[str, Any]:
        """Return the arguments as they were given, by parameter; arrays that were repacked are unpacked anew."""
        return {**self.options, **(self._arrays if self._packed is None else self._packed.plain())}

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Tell what a call with these other arguments would run, and why nothing else; see `Operator.explain`."""
        self._refuse_fixed(kwargs)
        settings = in_force()
        reason = "" if self._packed is None else f"{self.provider} is not the first to be asked"
        if self._packed is not None and self._is_asked_first(settings):
            try:
                reason = self._packed.supports(*args, **kwargs) or ""
            except TypeError:
                reason = "an argument has an unexpected type"
            if not reason:
                return Explanation(
                    operator=self.operator.__name__,
                    kernel=self.provider,
                    backend=settings.backend.name if settings.backend else "auto",
                    library=self._library.name,
                    refused={},
                    transfers=(),
                    prepared=", ".join(self.shapes),
                    formats=stored_formats(self.options),
                )
        explanation = self.operator.explain(*args, **kwargs, **self.plain())
        if reason:
            explanation.refused[f"{self.provider} with prepared arrays"] = reason
        return explanation

    def _refuse_fixed(self, kwargs: dict[str, Any]) -> None:
        for name in kwargs:
            if name in self.options or name in self.shapes:
                raise TypeError(f"{self.operator.__name__}: {name} was fixed by prepare")

    def _is_asked_first(self, settings: Settings) -> bool:
        asked = self._asked  # another thread may replace it
        if asked[0] is not settings:
            self._asked = asked = settings, _first(self.operator, settings, self._library) == self.provider
        return asked[1]

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Record:
        others = [a for a in (*args, *kwargs.values()) if library_of(a) is not None]
        return Record(
            operator=self.operator.__name__,
            kernel=self.provider,
            library=self._library.name,
            shapes=(*(tuple(a.shape) for a in others), *self.shapes.values()),
            dtypes=(*(_dtypes.dtype_name(a) for a in others), *self._dtypes),
            transfers=(),
        )


def prepare(operator: Operator[Any, Any] | str, **constants: Any) -> Prepared:
    """Fix arguments that stay the same from call to call, such as weights, and let a kernel repack them once.

    Parameters
    ----------
    operator : Operator or str
        The operator, or its name.
    **constants
        The arguments to fix, by parameter. Of those that were repacked, only the packed form is held.

    Returns
    -------
    Prepared
        To be called with the other arguments. Where no kernel repacks, or another backend is in force than now, the
        result is that of the operator with the plain arrays, unpacked anew for each call.

    Raises
    ------
    TypeError
        If there is no such parameter, arrays are of several libraries, or none is given.
    ValueError
        If there is no such operator.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> w = np.ones((64, 128), dtype=np.float32)
    >>> weight, scales, biases = tensorops.quantize(w, bits=8, group_size=32)
    >>> product = tensorops.prepare(
    ...     "quantized_linear", weight=weight, scales=scales, biases=biases, bits=8, group_size=32
    ... )
    >>> product(np.ones((2, 128), dtype=np.float32)).shape
    (2, 64)
    >>> bool((product.plain()["weight"] == weight).all())
    True
    """
    if isinstance(operator, str):
        if operator not in OPERATORS:
            near = nearest(operator, OPERATORS)
            raise ValueError(f"prepare: unknown operator {operator!r}{near}; valid names: {', '.join(OPERATORS)}")
        operator = OPERATORS[operator]
    if not isinstance(operator, Operator):
        raise TypeError(f"prepare: operator is {describe_type(operator)}, expected an operator or its name")
    valid = operator.parameters
    for name in constants:
        if name not in valid:
            raise TypeError(
                f"prepare: {operator.__name__} has no parameter {name!r}{nearest(name, valid)}; it has "
                f"{', '.join(valid)}"
            )
    return Prepared(operator, constants)


def _common_library(operator: Operator[Any, Any], arrays: dict[str, Any]) -> Library:
    rows = {name: library_of(a) for name, a in arrays.items()}
    if not rows:
        raise TypeError(f"prepare: no array among the arguments of {operator.__name__}, so there is nothing to prepare")
    (first, library), *others = rows.items()
    assert library is not None
    for name, row in others:
        if row is not library:
            assert row is not None
            raise TypeError(f"prepare: {first} is an array of {library.name}, but {name} of {row.name}")
    return library


def _first(operator: Operator[Any, Any], settings: Settings, library: Library) -> str:
    """Return the provider whose kernel of an operator would be asked first, or an empty string.

    Where nobody has chosen providers or a backend, it is the first that packs, if one does.
    """
    if settings.backend is not None and settings.backend.library is not library:
        return ""
    order = settings.providers
    if order is None:
        backend = settings.backend
        order = _providers.serving_library(library.name) if backend is None else _providers.serving(backend)
        if backend is None:
            order = tuple(sorted(order, key=lambda provider: not _packs(operator, provider)))
    for provider in order:
        if provider == GENERIC or (not _providers.load(provider) and operator.kernel_of(provider) is not None):
            return provider
    return ""


def _packs(operator: Operator[Any, Any], provider: str) -> bool:
    kernel = None if _providers.load(provider) else operator.kernel_of(provider)
    return kernel is not None and kernel.pack is not None


def _pack(kernel: Kernel, constants: dict[str, Any]) -> Packed | str:
    if kernel.pack is None:
        return "prepares nothing for this operator"
    try:
        inspect.signature(kernel.pack).bind(**constants)
    except TypeError as error:
        return f"cannot prepare these arguments: {error}"
    return kernel.pack(**constants)
