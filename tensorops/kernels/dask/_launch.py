"""How a call on Dask arrays becomes one task per block."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any

from tensorops import _providers
from tensorops._dtypes import widen
from tensorops._messages import describe_type
from tensorops._operator import Operator
from tensorops._pickling import Stamp
from tensorops._row_axes import RowAxes
from tensorops.backends import get_namespace
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, Tuned, activate, settings_of
from tensorops.libraries import library_of

_PLAIN = Settings()  # no backend: a block is computed where it is; one object, which keeps its plans
_NAME = "dask"


@dataclass(frozen=True)
class Task:
    """A call of the operator on one block of each array."""

    operator: Operator[..., Any]  # pickled by reference
    names: tuple[str, ...]  # the parameters that are arrays, in the order of their blocks
    options: tuple[tuple[str, Any], ...]  # the other arguments
    one_thread: bool  # of compiled kernels, because Dask computes other blocks at the same time
    providers: tuple[str, ...] | None = None  # the only ones that compute blocks, in this order, if not all
    tuned: tuple[Tuned, ...] = ()  # the parameters of kernels that are not left to the kernels

    def __reduce__(self) -> tuple[Any, ...]:
        return _task_of, (Stamp(), *(getattr(self, field.name) for field in fields(self)))

    def __call__(self, *blocks: Any) -> Any:
        first, *others = map(_only, blocks)
        with activate(self.settings()), _on_one_thread() if self.one_thread else contextlib.nullcontext():
            return self.operator(first, **dict(zip(self.names[1:], others, strict=True)), **dict(self.options))

    def settings(self) -> Settings:
        """Return the settings for blocks: one object for all tasks that have the same, in each process."""
        if not self.providers and not self.tuned:
            return _PLAIN
        for name in self.providers or ():
            _providers.require_provider(name)  # this process may not have loaded the plug-in that it is from
        return settings_of(None, self.providers, self.tuned)


def _task_of(_: Stamp, *values: Any) -> Task:
    """Return the task of another process, which has the same version."""
    return Task(*values)


def _only(block: Any) -> Any:
    """Return the only block along axes that the result lacks: Dask passes lists there."""
    while isinstance(block, list):
        (block,) = block
    return block


@contextlib.contextmanager
def _on_one_thread() -> Iterator[None]:
    if _providers.load("cpu"):  # no compiled kernels, so no threads to limit
        yield
        return
    from tensorops.kernels.cpu import _native

    before = _native.use_one_thread(True)
    try:
        yield
    finally:
        _native.use_one_thread(before)


def register(operator: Operator[..., Any]) -> None:
    """Register a kernel of an operator that declares how its calls may be split."""

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        arguments = operator.named(args, kwargs)
        return _refuse(arguments, operator.rows(arguments))

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        arguments = operator.named(args, kwargs)
        return _build(operator, arguments, operator.rows(arguments))

    operator.kernel(_NAME, supports=supports)(kernel)


def _providers_of_blocks(named: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the providers named after this one: it makes the tasks, they compute the blocks."""
    if named is None or _NAME not in named:
        return None
    return named[named.index(_NAME) + 1 :] or None


def _refuse(arguments: dict[str, Any], rows: RowAxes) -> str | None:
    """Return why a call cannot be computed block by block."""
    library = None
    joined = _joined(arguments, rows)
    for name, axes in rows.arrays.items():
        a = arguments[name]
        row = library_of(a._meta)
        if row is None or row.missing:
            return f"the blocks of {name} are of {describe_type(a._meta)}"
        if reason := row.unfit(a._meta):
            return f"the blocks of {name}: {reason}"
        if row is not (library := library or row):
            return f"the blocks of {name} are of {row.name}, those of {next(iter(rows.arrays))} of {library.name}"
        for i, (axis, blocks) in enumerate(zip(axes, a.numblocks, strict=True)):
            if axis in rows.whole and blocks > 1 and name not in joined:
                return f"axis {i - a.ndim} of {name} is split into {blocks} blocks"
    return None


def _joined(arguments: dict[str, Any], rows: RowAxes) -> set[str]:
    """Return the arrays whose blocks are merged: vectors that apply to all rows, which are small."""
    names = list(rows.arrays)[rows.sharing :]
    return {name for name in names if arguments[name].ndim == 1 and rows.arrays[name][0] in rows.whole}


def _build(operator: Operator[..., Any], arguments: dict[str, Any], rows: RowAxes) -> Any:
    """Return the lazy result, or a tuple of them."""
    import dask.array as da

    joined = _joined(arguments, rows)
    pairs = [
        (arguments[name].rechunk(-1) if name in joined else arguments[name], axes) for name, axes in rows.arrays.items()
    ]
    several = any(a.npartitions > 1 for a, _ in pairs)
    call = tuple((name, value) for name, value in arguments.items() if name not in rows.arrays)
    like = arguments[rows.like or next(iter(rows.arrays))]._meta
    if rows.dtype is not None:
        like = get_namespace(like).astype(like, rows.dtype)
    options: dict[str, Any] = {"token": operator.__name__, "dtype": like.dtype, "meta": like}
    settings = in_force()
    made = da.blockwise(
        Task(operator, tuple(rows.arrays), call, several, _providers_of_blocks(settings.providers), settings.tuned),
        rows.result,
        *(part for pair in pairs for part in pair),
        adjust_chunks=dict.fromkeys(rows.shortened, rows.length),
        **options,
    )
    if rows.results == 1:
        return made
    every = tuple(range(made.ndim))
    metas = [_meta_of(i, rows, like) for i in range(rows.results)]
    lengths = rows.lengths or ({},) * rows.results
    return tuple(
        da.blockwise(
            itemgetter(i),
            every,
            made,
            every,
            adjust_chunks=lengths[i],
            token=operator.__name__,
            dtype=meta.dtype,
            meta=meta,
        )
        for i, meta in enumerate(metas)
    )


def _meta_of(result: int, rows: RowAxes, like: Any) -> Any:
    """Return an array of the dtype of one of several results that is otherwise like the given one."""
    xp = get_namespace(like)
    if result in rows.indices:
        return xp.astype(like, xp.__array_namespace_info__().default_dtypes()["indexing"])
    return widen(xp, like)[0] if result in rows.widened else like
