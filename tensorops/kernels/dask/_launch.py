"""How a call on Dask arrays becomes one task for each block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Real
from operator import itemgetter
from typing import Any, TypeAlias

from tensorops import _providers
from tensorops._messages import describe_type
from tensorops._operator import Operator
from tensorops._typing import Array
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import library_of

Axes: TypeAlias = tuple[int, ...]

_PLAIN = Settings()  # no backend: computed where a block lies; one object, which keeps its plans


@dataclass(frozen=True)
class Task:
    """What is done to a block: a call of the operator on one block of each array.

    Parameters
    ----------
    operator
        Pickled by reference.
    names
        The parameters that are arrays, in the order in which their blocks come.
    options
        The other arguments.
    one_thread
        Whether a compiled kernel is to stay on one thread, as Dask computes other blocks meanwhile.
    """

    operator: Operator[..., Any]
    names: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]
    one_thread: bool

    def __call__(self, *blocks: Any) -> Any:
        first, *others = map(_only, blocks)
        with activate(_PLAIN), _on_one_thread() if self.one_thread else contextlib.nullcontext():
            return self.operator(first, **dict(zip(self.names[1:], others, strict=True)), **dict(self.options))


def _only(block: Any) -> Any:
    """Return the one block along axes that the result lacks: Dask hands over lists of them."""
    while isinstance(block, list):
        (block,) = block
    return block


@contextlib.contextmanager
def _on_one_thread() -> Iterator[None]:
    if _providers.load("cpu"):  # no compiled kernels, and no threads of theirs
        yield
        return
    from tensorops.kernels.cpu import _native

    before = _native.use_one_thread(True)
    try:
        yield
    finally:
        _native.use_one_thread(before)


@dataclass(frozen=True)
class Blockwise:
    """A call on Dask arrays, to be made block by block.

    Parameters
    ----------
    operator
        What to call on blocks.
    arrays
        The arrays by parameter, each with the axes of the first that its own are; an axis apart has another number.
    options
        The other arguments.
    whole
        The axes along which a block must hold all elements.
    dropped, shortened
        The axes that the result lacks, or has with one element.
    results
        How many arrays the operator returns.
    """

    operator: Operator[..., Any]
    arrays: dict[str, tuple[Array, Axes]]
    options: dict[str, Any] = field(default_factory=dict)
    whole: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    shortened: tuple[int, ...] = ()
    results: int = 1

    def refusal(self) -> str | None:
        """Return why this cannot be done, or ``None``; what the operator's own checks find has been found before."""
        (first, _), *_ = self.arrays.values()
        library = None
        for name, (a, axes) in self.arrays.items():
            row = library_of(a._meta)
            if row is None or row.missing:
                return f"the blocks of {name} are of {describe_type(a._meta)}"
            if reason := row.unfit(a._meta):
                return f"the blocks of {name}: {reason}"
            if row is not (library := library or row):
                return f"the blocks of {name} are of {row.name}, those of {next(iter(self.arrays))} of {library.name}"
            for axis, blocks in zip(axes, a.numblocks, strict=True):
                if axis in self.whole and blocks > 1 and (a is first or a.ndim > 1):
                    return f"axis {axis - first.ndim} of {name} is split into {blocks} blocks"
        for name, value in self.options.items():
            if not (value is None or isinstance(value, Real | str | tuple)):
                return f"{name} is {describe_type(value)}"
        return None

    def build(self) -> Any:
        """Return the lazy result, or a tuple of them."""
        import dask.array as da

        (x, axes), *_ = self.arrays.values()
        # A vector that belongs to whole axes is small, and cheap to put together.
        joined = [a.ndim == 1 and of[0] in self.whole for a, of in self.arrays.values()]
        pairs = [(a.rechunk(-1) if join else a, of) for join, (a, of) in zip(joined, self.arrays.values(), strict=True)]
        several = any(a.npartitions > 1 for a, _ in pairs)
        made = da.blockwise(
            Task(self.operator, tuple(self.arrays), tuple(self.options.items()), several),
            tuple(axis for axis in axes if axis not in self.dropped),
            *(part for pair in pairs for part in pair),
            adjust_chunks=dict.fromkeys(self.shortened, 1),
            token=self.operator.__name__,
            dtype=x.dtype,
            meta=x._meta,
        )
        if self.results == 1:
            return made
        every = tuple(range(made.ndim))
        options = {"token": self.operator.__name__, "dtype": x.dtype, "meta": x._meta}
        return tuple(da.blockwise(itemgetter(i), every, made, every, **options) for i in range(self.results))


def every_axis(x: Array) -> tuple[Array, Axes]:
    """Return `x` with all its axes."""
    return x, tuple(range(x.ndim))


def last_axes(x: Array, ndim: int) -> tuple[Array, Axes]:
    """Return `x` with the last of so many axes, to which it broadcasts."""
    return x, tuple(range(ndim - x.ndim, ndim))


def given(**arrays: tuple[Array | None, Axes]) -> dict[str, tuple[Array, Axes]]:
    """Leave out what is ``None``."""
    return {name: (a, axes) for name, (a, axes) in arrays.items() if a is not None}


def register(operator: Operator[..., Any], prepare: Callable[..., Blockwise]) -> None:
    """Register a kernel; `prepare` takes the operator's arguments, and raises as the operator if they are wrong."""

    def prepared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Blockwise | str:
        if reason := _refuse_others((*args, *kwargs.values())):
            return reason
        try:
            call = prepare(*args, **kwargs)
            return call.refusal() or call
        except (TypeError, ValueError) as error:
            return str(error)

    @functools.wraps(prepare)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        call = prepared(args, kwargs)
        return call if isinstance(call, str) else None

    @functools.wraps(prepare)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        call = prepared(args, kwargs)
        return NotImplemented if isinstance(call, str) else call.build()

    operator.kernel("dask", supports=supports, declines=True)(kernel)


def _refuse_others(arguments: tuple[Any, ...]) -> str | None:
    """Return why there is an array that is none of Dask's."""
    import dask.array as da

    for a in arguments:
        if not isinstance(a, da.Array) and library_of(a) is not None:
            return f"an argument is {describe_type(a)}"
    return None
