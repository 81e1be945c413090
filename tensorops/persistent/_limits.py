"""What a step is declared to be, compared with the attention that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from tensorops.backends.process_default import in_force
from tensorops.backends.settings import activate
from tensorops.ops.attention import scaled_dot_product_attention
from tensorops.persistent._captured import CaptureError, times

_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Limits:
    """The declarations of a `PersistentKernel`."""

    mode: str
    max_seq_length: int | None
    page_size: int | None
    max_num_pages: int | None

    def __post_init__(self) -> None:
        for name, value in self._sizes.items():
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} is {value!r}, expected at least 1")
            if value is not None and self.mode == "onepass":
                raise ValueError(f"mode 'onepass' has no cache, so it has no {name}")

    @property
    def _sizes(self) -> dict[str, int | None]:
        names = ("max_seq_length", "page_size", "max_num_pages")
        return {name: getattr(self, name) for name in names}

    def check(self, seen: list[Attention]) -> None:
        """Raise CaptureError if a step's attention is not what was declared."""
        cached = [a for a in seen if a.is_cached]
        given = {name: value for name, value in self._sizes.items() if value is not None}
        for name, value in given.items():
            found = seen if name == "max_seq_length" else [a for a in seen if a.page_size]
            if not found:
                of = "no attention" if name == "max_seq_length" else "no attention with a page_table"
                raise CaptureError(f"{name} is {value}, but the step calls {of}")
        for each in cached or seen:
            if each.keys < (self.max_seq_length or 0):
                raise CaptureError(
                    f"max_seq_length is {self.max_seq_length}, but {_ATTENTION} has room for {each.keys} keys"
                )
        for each in cached:
            self._check_cached(each)

    def _check_cached(self, each: Attention) -> None:
        if self.mode == "decode" and each.queries != 1:
            raise CaptureError(
                f"mode is 'decode', one token of each sequence, but {_ATTENTION} has {each.queries} queries of each; "
                "the mode for several is 'prefill'"
            )
        if not each.page_size:
            return
        if self.mode == "onepass":
            raise CaptureError(f"mode 'onepass' has no cache, but {_ATTENTION} reads pages")
        if self.page_size not in (None, each.page_size):
            raise CaptureError(f"page_size is {self.page_size}, but {_ATTENTION} reads pages of {each.page_size} keys")
        if each.pages < (self.max_num_pages or 0):
            raise CaptureError(f"max_num_pages is {self.max_num_pages}, but {_ATTENTION} has {each.pages} pages")


@dataclass(frozen=True)
class Attention:
    """One call of attention, as far as a cache is concerned."""

    queries: int
    keys: int
    is_cached: bool
    page_size: int = 0
    pages: int = 0

    def __str__(self) -> str:
        paged = f" in {self.pages} pages of {self.page_size}" if self.page_size else ""
        queries = "a query" if self.queries == 1 else f"{self.queries} queries"
        return f"{queries} of each sequence to at most {self.keys} keys{paged}"


@dataclass(eq=False)
class Watch:
    """Makes note of the attention in a step, whatever compiles it."""

    seen: list[Attention] = field(default_factory=list)

    def described(self, mode: str) -> tuple[str, ...]:
        """Return a description of the step."""
        counts = Counter(map(str, self.seen))
        return f"mode {mode}", *(f"attention of {what}, {times(count)}" for what, count in counts.items())

    def __call__(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a step that does the same, watched."""

        @wraps(step)
        def watched(*args: Any) -> Any:
            self.seen.clear()  # CUDA graphs run the step twice
            outer = in_force()
            plans: Any = _Plans(outer.plans, self)
            with activate(replace(outer, plans=plans)):
                return step(*args)

        return watched

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make note of a call with these arguments."""
        try:
            given = scaled_dot_product_attention.bind(args, kwargs)
            queries, keys, table = given["q"].shape[2], given["k"].shape, given["page_table"]
            if table is None:
                self.seen.append(Attention(queries, keys[2], given["lengths"] is not None))
            else:
                self.seen.append(Attention(queries, table.shape[1] * keys[2], True, keys[2], keys[0]))
        except (TypeError, AttributeError, IndexError):  # the operator says what is wrong
            return


class _Plans:
    """The plans in some settings, of which those for attention are watched."""

    def __init__(self, plans: Any, watch: Watch) -> None:
        self._plans, self._watch = plans, watch

    def __getitem__(self, operator: Any) -> Any:
        plans = self._plans[operator]
        return _Watched(plans, self._watch) if operator is scaled_dot_product_attention else plans


class _Watched:
    def __init__(self, plans: Any, watch: Watch) -> None:
        self._plans, self._watch = plans, watch

    def __getitem__(self, kind: type) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._watch.note(args, kwargs)
            try:
                plan = self._plans[kind]
            except KeyError:
                return NotImplemented
            return plan(*args, **kwargs)

        return call

    def __setitem__(self, kind: type, plan: Callable[..., Any]) -> None:
        self._plans[kind] = plan
