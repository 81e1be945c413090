"""The rows that describe an array library and a backend, written in each library's own file."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensorops.typing import Array, Namespace

if TYPE_CHECKING:
    import numpy as np

    from tensorops._row_axes import RowAxes
    from tensorops.hardware.accelerator import Accelerator
    from tensorops.hardware.machine import Machine
    from tensorops.libraries._options import DeviceConfig


def attribute(path: str) -> Any:
    """Return the object that ``"module:name"`` names, importing the module."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _itself(x: Array) -> Array:
    return x


@dataclass(frozen=True, eq=False)
class Library:
    """One array library, seen through the Array API standard.

    Parameters
    ----------
    name
        Its name in errors, `explain` and `trace`.
    packages
        Top-level packages in which its array types are defined, including `wrapper`; the first is the one to import.
    array_type
        ``"module:name"`` of the type that all its arrays, including tracers, are instances of.
    standard
        The module that implements the standard for it.
    to_numpy, from_numpy
        Conversions through host memory; `from_numpy` takes the target device, or ``None``.
    subtypes
        ``"module:name"`` of other array types, if they must be known before the first array.
    wrapper
        ``"module:name"`` of the type that `standard` computes with, where the arrays themselves do not conform. Its
        ``asarray`` wraps an array. Operators accept both: bodies see wrappers, kernels see the arrays in them, and the
        caller gets wrappers if any argument was one.
    unwrapped
        Returns the array in a wrapper.
    device
        The device on which to create arrays to combine with `x`, in the library's own terms.
    unreadable
        What is wrong with an array whose memory is invalid, so that the library itself would read foreign memory.
    unfit
        Why operators do not support an array, and what to pass instead; an empty string if they do.
    arrayed
        Converts what its functions return in place of an array to an array.
    quiet
        A context for bodies, in which it computes without warnings, as IEEE special values are results, not accidents,
        and in the dtypes of arguments.
    symbol
        Returns which of `int`, `float` and `bool` an object of the library stands for while it traces, if any.
    fixed
        Returns whether a length is a number, not one that stands for several in a trace.
    lookup
        Returns the rows of a matrix at integer indices, where `take` of `standard` accepts some that are out of range.
    take_along
        Its ``take_along_axis`` for indices from 0 on, where that of `standard` fixes lengths in a trace.
    host_values
        Returns whether an array is eager and in host memory, so that reading a value is cheap.
    lazy
        Whether reading a value computes a graph that its owner meant to compute later.
    checked
        Returns a lazy array whose values are given to a function, in parts, when they are computed; it may raise.
    sums_in_order
        Whether its sums along some axes add one element after another, so that long ones lose digits; see `ops._sums`.
    constant
        Returns the values of an array as a constant for derivatives, where the library takes any.
    recomputed
        Makes a function, whose arguments may be ``None``, keep only its arguments for derivatives.
    over_blocks
        What `tensorops.libraries.over_blocks` does for several blocks, if a loop in Python does not suit it.
    over_parts
        Runs a body on arguments by name, where the types of arrays may say how they are split over devices; is also
        given what an operator declares of its axes.
    runtime
        ``"module:class"`` of its `tensorops.libraries.Runtime`, for its devices and memory.
    jit
        Compiles a function of its arrays, if calling operation by operation is slow; else ``None``.
    wait
        Waits for a list of its arrays; ``None`` if its runtime's `synchronize` does, or no wait is needed.
    holding
        A context in which it supports a dtype, given by name, that its usual setting may lack; for tests.
    reading
        A context in which values are read without warnings, its own threads or other processes; for tests and for
        trying a backend, which must not wait for a cluster.
    slow
        Whether it compiles or schedules again for every shape: tests then try fewer shapes.
    holds_float64
        Whether its present setting supports float64 rather than narrowing it.
    accelerators
        Returns what it knows about accelerators, if this process has already started it.
    extra
        The extra of tensorops that installs it.
    missing
        Why its arrays cannot be used at all, if so.
    """

    name: str
    packages: tuple[str, ...]
    array_type: str
    standard: str
    to_numpy: Callable[[Array], np.ndarray[Any, Any]]
    from_numpy: Callable[[np.ndarray[Any, Any], Any], Array]
    subtypes: tuple[str, ...] = ()
    wrapper: str = ""
    unwrapped: Callable[[Array], Array] = lambda x: x
    device: Callable[[Array], Any] = lambda x: None
    unreadable: Callable[[Array], str] = lambda x: ""
    unfit: Callable[[Array], str] = lambda x: ""
    arrayed: Callable[[Any], Array] = lambda y: y
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    symbol: Callable[[object], type | None] = lambda value: None
    fixed: Callable[[Any], bool] = lambda length: True
    lookup: Callable[[Array, Array], Array] | None = None
    take_along: Callable[[Array, Array, int], Array] | None = None
    host_values: Callable[[Array], bool] = lambda x: False
    lazy: bool = False
    checked: Callable[[Array, Callable[[Array], None]], Array] = lambda x, check: x
    sums_in_order: bool = False
    constant: Callable[[Array], Array] = _itself
    recomputed: Callable[[Callable[..., Array]], Callable[..., Array]] = lambda function: function
    over_blocks: Callable[..., Array] | None = None
    over_parts: Callable[[Callable[[dict[str, Any]], Any], dict[str, Any], Callable[..., RowAxes] | None], Any] = (
        lambda function, arguments, rows: function(arguments)
    )
    runtime: str = "tensorops.libraries:Runtime"
    jit: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    wait: Callable[[list[Any]], object] | None = None
    holding: Callable[[str], contextlib.AbstractContextManager[Any]] = lambda dtype: contextlib.nullcontext()
    reading: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    slow: bool = False
    holds_float64: Callable[[], bool] = lambda: True
    accelerators: Callable[[Machine, list[str]], list[Accelerator]] | None = None
    extra: str = ""
    missing: str = ""

    @cached_property
    def xp(self) -> Namespace:
        """The module that implements the standard, imported on first use."""
        return importlib.import_module(self.standard)

    @classmethod
    def unusable(cls, name: str, reason: str) -> Library:
        """Return a row for a library that could not be registered."""
        return cls(name, (name,), "", "", _unsupported, _unsupported, missing=reason)

    @cached_property
    def _bare_type(self) -> Any:
        return attribute(self.array_type)

    @cached_property
    def _wrapper_type(self) -> Any:
        return attribute(self.wrapper) if self.wrapper else ()

    def is_wrapper(self, x: object) -> bool:
        """Return whether `x` is one of this library's arrays in its `wrapper`."""
        return isinstance(x, self._wrapper_type)

    def wrap(self, x: Any) -> Any:
        """Return an array in the form that `standard` computes with; anything else is unchanged."""
        return self.xp.asarray(x) if self.wrapper and isinstance(x, self._bare_type) else x

    def unwrap(self, x: Any) -> Any:
        """Return the array in a wrapper; anything else is unchanged."""
        return self.unwrapped(x) if isinstance(x, self._wrapper_type) else x

    def in_form_of(self, x: Any, function: Callable[[Array], Array]) -> Any:
        """Return a function of the array in `x`, in a wrapper if `x` is one."""
        if function is _itself or not isinstance(x, self._wrapper_type):
            return function(x)
        return self.wrap(function(self.unwrapped(x)))

    def is_installed(self) -> bool:
        """Return whether the library can be found, without importing it."""
        return importlib.util.find_spec(self.packages[0]) is not None

    def owns(self, x: object) -> bool:
        """Return whether `x` is one of this library's arrays."""
        return isinstance(x, (attribute(self.array_type), self._wrapper_type))


def _unsupported(*_: Any) -> Any:
    raise TypeError("arrays of this library cannot be moved")


@dataclass(frozen=True, eq=False)
class Backend:
    """The description of a backend.

    Parameters
    ----------
    name : str
        The name that users write.
    library : Library
        The array library it computes with.
    summary : str
        A one-line description.
    aliases : tuple of str
        Other names for it.
    providers : tuple of str or None
        The providers whose kernels it uses, best first, before the generic body; ``None`` for all that support the
        library.
    requires : str
        The provider without whose kernels the backend is unavailable. It configures the device when it is loaded.
    needs : str
        The kind of accelerator that the machine must have, as in `Accelerator.kind`; empty for any machine.
    suits : tuple of str
        The kinds of hardware that it computes on, as in `Accelerator.kind`, best first; every machine has ``"cpu"``.
    lacks : callable
        Takes one of these kinds; returns why the installed build of the library does not compute on it, or an empty
        string. It must not import the library.
    options : type, optional
        The subclass of `DeviceConfig` that configures its device, if there are options.
    runtime : str
        ``"module:class"`` of the `Runtime` for its device and memory, if it is not its library's.
    missing : str
        Why it cannot compute in this version at all, if so.
    absent : callable
        Returns why the device that it is named after cannot be used here, although its library computes, or an empty
        string. It may start the library.
    remedy : str
        The command or step that makes it available where the library is installed but cannot compute.
    tested : str
        Where its authors run the conformance tests; empty if none do.
    isolated : bool
        Whether to try it in a separate process first, because its driver may hang or crash.
    for_tests : bool
        Whether it checks conformance and is not made for speed: it is ranked last, and comparisons skip it.
    """

    name: str
    library: Library
    summary: str
    aliases: tuple[str, ...] = ()
    providers: tuple[str, ...] | None = None
    requires: str = ""
    needs: str = ""
    suits: tuple[str, ...] = ()
    lacks: Callable[[str], str] = lambda kind: ""
    options: type[DeviceConfig] | None = None
    runtime: str = ""
    missing: str = ""
    absent: Callable[[], str] = lambda: ""
    remedy: str = ""
    tested: str = ""
    isolated: bool = True
    for_tests: bool = False


ON_EVERY_CHANGE = "x86-64 Linux, on every change"


def planned(name: str, library: Library, summary: str, missing: str, remedy: str, *aliases: str) -> Backend:
    """Return the row of a backend that cannot compute in this version, with the reason and what to use instead."""
    return Backend(name, library, summary, aliases=aliases, missing=missing, remedy=remedy)


NOT_WRITTEN = "its kernels are not written yet"
