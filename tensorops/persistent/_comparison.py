"""Whether a compiled step computes what the step does: both are run on the example, and on other numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops._dtypes import nbytes
from tensorops._trees import map_arrays
from tensorops.libraries import Library
from tensorops.persistent._captured import CaptureError
from tensorops.persistent._engine import Engine, Step, flatten, leaves

MOST_BYTES = 2**30
"""With larger arguments there is no comparison, which needs two copies of them."""


@dataclass(frozen=True)
class Comparison:
    """What compares a compiled step with the step."""

    step: Step  # the function
    library: Library  # that of the arguments
    args: tuple[Any, ...]  # the example; it stays as it is
    donate: frozenset[int]  # the arguments that the step may write to

    def refusal(self) -> str:
        """Return why there is no comparison, or an empty string."""
        total = sum(map(nbytes, leaves(list(self.args))))
        return f"the arguments have {total} bytes, more than {MOST_BYTES}" if total > MOST_BYTES else ""

    def require_equal(self, engine: Engine) -> None:
        """Raise a `CaptureError` if the engine's results are not those of the step; it names the first such call."""
        try:
            for change in (np.array, _perturbed()):
                # First what was compiled: the step may change what it closes over.
                found, overwritten = self._run(lambda *args: engine.run(args), change)
                with engine.around_step():
                    wanted, written = self._run(self._with_wrappers, change)
                if _agree([*wanted, *written], [*found, *overwritten]):
                    continue
                call = engine.first_difference(self.step, self._copies(change))
                if call is None:
                    continue
                when = "" if change is np.array else " if floating-point arguments change"
                raise CaptureError(
                    f"{call or 'the compiled step'} gives other numbers than the step itself{when}: all that differs "
                    "from run to run must be in arguments, and arrays that the step closes over must stay as they are"
                )
        finally:
            engine.forget()

    def _copies(self, change: Callable[..., Any]) -> tuple[Any, ...]:
        def copied(x: Any) -> Any:
            made = self.library.from_numpy(change(self._read(x)), self.library.device(x))
            return self.library.wrap(made) if self.library.is_wrapper(x) else made

        return tuple(map_arrays(copied, list(self.args)))

    def _run(self, step: Step, change: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
        """Return the numbers of the results, and of the arguments that were written to."""
        args = self._copies(change)
        result = self._numbers(step(*args))
        return result, self._numbers([arg for i, arg in enumerate(args) if i in self.donate])

    def _with_wrappers(self, *args: Any) -> Any:
        """Run the step on arrays of the standard, as engines do where the library's own are not."""
        return self.step(*map_arrays(self.library.wrap, list(args)))

    def _numbers(self, tree: Any) -> list[np.ndarray[Any, Any]]:
        arrays: list[Any] = []
        flatten(tree, arrays, [])
        return [np.array(self._read(x)) for x in arrays]

    def _read(self, x: Any) -> np.ndarray[Any, Any]:
        return self.library.to_numpy(self.library.unwrap(x))


def _perturbed() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return what makes other floating-point numbers of an array, the same in each run; infinite ones stay."""

    def change(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if x.dtype.kind in "biu" or not x.size:
            return np.array(x)
        factor = np.random.default_rng(x.size).uniform(0.9, 1, x.shape)  # shares of 1 stay below it
        with np.errstate(all="ignore"):
            return np.asarray(x.astype(np.float64) * factor).astype(x.dtype)

    return change


def _agree(wanted: list[np.ndarray[Any, Any]], found: list[np.ndarray[Any, Any]]) -> bool:
    return len(wanted) == len(found) and all(map(agree, found, wanted))


def agree(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    """Return whether arrays have the same shapes, dtypes and, but for rounding, numbers."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return False
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, expected))
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        most = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0)
    eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-44}[found.dtype.itemsize]
    return bool(np.allclose(a, b, rtol=16 * eps, atol=16 * eps * most, equal_nan=True))
