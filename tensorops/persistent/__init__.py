"""A step of a program that is compiled once and then run again and again with little or no Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorops.backends import get_backend, set_backend, to_backend
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS, resolve
from tensorops.libraries import Backend, library_of
from tensorops.persistent._captured import Captured as Captured
from tensorops.persistent._captured import CapturedCall as CapturedCall
from tensorops.persistent._captured import CaptureError as CaptureError
from tensorops.persistent._captured import Profile as Profile
from tensorops.persistent._captured import Statistics as Statistics
from tensorops.persistent._engine import Engine, engine_of, leaves, why_not

__all__ = ["CaptureError", "Captured", "CapturedCall", "PersistentKernel", "Profile", "Statistics"]

MODES = ("decode", "prefill", "onepass")


class PersistentKernel:
    """A step that is compiled once, and then replayed.

    Parameters
    ----------
    step : callable
        A function of arrays that returns arrays, in nested containers. Shapes and dtypes are those of `example_args`
        in every run. What differs from run to run, such as a position, is in arrays; numbers of Python and arrays that
        the step closes over are constants. It writes only to arguments that are donated.
    example_args : sequence
        Arguments of one run. They are moved to the backend, and the step runs on them once while it is compiled.
    mode : {"decode", "prefill", "onepass"}
        What the step is: one token after another, many tokens at once, or a whole computation without a cache, which
        donates nothing.
    backend : str, optional
        The backend that computes. By default the one in force; if none was chosen, where the first array is.
    fallback_backends : sequence of str
        Backends to use instead, in this order.
    num_workers : int, optional
        The number of threads, where it can be chosen.
    donate : sequence of int
        The places of the arguments whose arrays the step may overwrite, such as a cache.
    repack : bool
        On NumPy arrays, let constant weights of `quantized_linear` with 4 to 64 rows be read from a copy in another
        order, where that is faster: it takes as much memory again.

    Raises
    ------
    ValueError
        If none of the backends can replay a step here, with the reason of each, or an option is not valid.
    CaptureError
        From `compile`: the step does what cannot be run again; the message names it.

    Notes
    -----
    On NumPy arrays, calls of operators are recorded as a plan of compiled functions, which share one block of memory
    and a team of threads. Views, copies, ``take``, ``concat``, conversions, sums and products are recorded, too;
    everything else is an error. On JAX arrays the step is a program of XLA, on MLX arrays a compiled graph.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> weight = np.ones(4, np.float32)
    >>> def step(x):
    ...     return tensorops.silu(tensorops.rms_norm(x, weight))
    >>> kernel = tensorops.PersistentKernel(step, [np.ones((1, 4), np.float32)], backend="cpu")
    >>> kernel.compile().calls
    2
    >>> kernel(np.asarray([[1, 1, -1, -1]], np.float32)).round(3)
    array([[ 0.731,  0.731, -0.269, -0.269]], dtype=float32)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        example_args: Sequence[Any],
        *,
        mode: str = "decode",
        backend: str | None = None,
        fallback_backends: Sequence[str] = (),
        num_workers: int | None = None,
        donate: Sequence[int] = (),
        repack: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
        if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 1):
            raise ValueError(f"num_workers is {num_workers!r}, expected at least 1")
        if isinstance(fallback_backends, str):
            raise TypeError("fallback_backends must be a sequence of names, not one string")
        for place in donate:
            if not 0 <= place < len(example_args):
                raise ValueError(f"donate has {place}, and there are {len(example_args)} arguments")
        if mode == "onepass" and donate:
            raise ValueError("mode 'onepass' keeps nothing from run to run, so it donates nothing")
        self.mode = mode
        self._step, self._workers, self._repack = step, num_workers, repack
        self._donate = frozenset(donate)
        self._backend = _choose(backend, fallback_backends, example_args)
        self._active = set_backend(self._backend.name)
        self._args = tuple(to_backend(list(example_args), self._backend.name))
        self._engine: Engine | None = None

    @property
    def backend(self) -> str:
        """The name of the backend that computes."""
        return self._backend.name

    def __repr__(self) -> str:
        state = "compiled" if self._engine else "not yet compiled"
        return f"<PersistentKernel: {self.mode} on {self.backend}, {state}>"

    def compile(self) -> Statistics:
        """Compile the step, unless that has been done.

        Returns
        -------
        Statistics
            How long it took, and what it gave.

        Raises
        ------
        CaptureError
            The step does what cannot be run again; the message names it.
        """
        return self._compiled().statistics

    def __call__(self, *args: Any) -> Any:
        """Run the step.

        Parameters
        ----------
        *args
            As the example arguments: the same containers, shapes and dtypes.

        Returns
        -------
        same as the step's
            New arrays; those that the step writes to are the caller's own.

        Raises
        ------
        ValueError
            If an argument does not fit the compiled step, or a value in one is out of range; the message names the
            call.
        """
        engine = self._compiled()
        return engine.run(args)

    def explain(self) -> Captured:
        """Tell what was captured: kernels in order with their arrays and bytes, and what is left to Python."""
        return self._compiled().captured()

    def profile(self, *args: Any) -> Profile:
        """Run the step once and tell how long each call took.

        Parameters
        ----------
        *args
            As for a run.

        Returns
        -------
        Profile
            Times by operator; it can be written as a trace for browsers.

        Raises
        ------
        ValueError
            If the library runs a compiled step as a whole.
        """
        return self._compiled().profile(args)

    def release(self) -> None:
        """Let go of the arrays that were passed last; until then, large and donated ones are kept for the next run."""
        if self._engine is not None:
            self._engine.forget()

    def _compiled(self) -> Engine:
        if self._engine is None:
            engine = engine_of(self._backend.library.name)
            assert engine is not None  # backends without one are not chosen
            with self._active:
                options = (self._donate, self._backend, self._workers, self._repack)
                self._engine = engine(self._step, self._args, *options)
            self._args = ()  # the caller's, which need not stay
        return self._engine


def _choose(backend: str | None, fallback: Sequence[str], args: Sequence[Any]) -> Backend:
    """Return the first backend that can replay steps here."""
    names = [backend or get_backend(), *fallback]
    reasons = []
    for name in names:
        found = _of_arrays(args) if name == "auto" else resolve(name)
        if found is None:
            reasons.append("auto: no backend replays steps on these arguments")
        elif reason := unavailable_reason(found) or why_not(found):
            reasons.append(f"{found.name}: {reason}")
        else:
            return found
    raise ValueError(f"no backend can replay this step: {'; '.join(reasons)}")


def _of_arrays(args: Sequence[Any]) -> Backend | None:
    """Return the first backend that replays steps on the arrays of some arguments."""
    arrays = leaves(list(args))
    library = library_of(arrays[0]) if arrays else None
    candidates = (b for b in BACKENDS.values() if b.library is library and not b.missing)
    return next((b for b in candidates if not why_not(b) and not unavailable_reason(b)), None)
