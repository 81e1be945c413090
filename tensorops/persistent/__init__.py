"""A step of a program that is compiled once and then run again and again with little or no Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tensorops._pickling import Unpicklable as Unpicklable
from tensorops._validation import as_integer
from tensorops.backends import get_backend, set_backend, to_backend
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS, resolve
from tensorops.hardware import usable_processors
from tensorops.libraries import Backend, library_of
from tensorops.persistent._captured import (
    Captured as Captured,
    CapturedCall as CapturedCall,
    CaptureError as CaptureError,
    Profile as Profile,
    Statistics as Statistics,
)
from tensorops.persistent._comparison import Comparison
from tensorops.persistent._engine import Engine, Options, engine_of, leaves, why_not
from tensorops.persistent._limits import Limits, Watch
from tensorops.persistent.ranks import all_reduce as all_reduce, compiling_for, connect

__all__ = ["CaptureError", "Captured", "CapturedCall", "PersistentKernel", "Profile", "Statistics", "all_reduce"]

MODES = ("decode", "prefill", "onepass")


class PersistentKernel(Unpicklable):
    """A step that is compiled once, and then replayed.

    Parameters
    ----------
    step : callable
        A function of arrays that returns arrays, in nested containers. Shapes and dtypes are those of `example_args`
        in every run. What differs from run to run, such as a position, is in arrays; numbers of Python and arrays that
        the step closes over are constants. It writes only to arguments that are donated. Replays have no gradients: an
        array of torch on the host that requires them is refused outside of ``torch.no_grad()``.
    example_args : sequence
        Arguments of one run. They are moved to the backend, and the step runs on them once while it is compiled.
    mode : {"decode", "prefill", "onepass"}
        What the step is: one token of each sequence, where attention to a cache (with `lengths` or a `page_table`)
        has one query; many tokens of each; or a whole computation without a cache, which reads no pages and donates
        nothing.
    backend : str, optional
        The backend that computes. By default the one in force; if none was chosen, where the first array is.
    fallback_backends : sequence of str
        Backends to use instead, in this order.
    num_workers : int, optional
        The number of threads, where it can be chosen: from 1 to the number of processors that the process may use.
    world_size : int
        The number of processes, started by ``mpiexec``, that share the step: each compiles and runs it at the same
        time, with its own part of the weights, and the step sums over all by `tensorops.persistent.all_reduce`. Needs
        NumPy arrays and the extra ``mpi``.
    mpi_rank : int, optional
        The number that this process must have among them; by default MPI's.
    max_seq_length : int, optional
        How many keys of each sequence `scaled_dot_product_attention` must have room for. Like the next two, it is a
        promise that is verified when the step is compiled.
    page_size, max_num_pages : int, optional
        How many keys are in a page of the cache, and how many pages there must be at least, where attention has a
        `page_table`.
    donate : sequence of int
        The places of the arguments whose arrays the step may overwrite, such as a cache.
    repack : bool
        On NumPy arrays, let constant weights of `quantized_linear` be read from a copy in another order, where that is
        faster: affine groups, of products with up to 64 rows, and blocks. It takes as much memory again.
    profile : bool
        Measure each call of each run, which `profile` then tells. A library that runs a compiled step as a whole cannot
        do it: that is a reason to use the next of the `fallback_backends`, or an error.

    Raises
    ------
    ValueError
        If none of the backends can replay a step here, with the reason of each, or an option is not valid, or the ranks
        are not those of MPI.
    ImportError
        If `world_size` is more than 1, and mpi4py is not installed.
    CaptureError
        From `compile`: the step does what cannot be run again; the message names it.

    Notes
    -----
    On NumPy arrays, calls of operators are recorded as a plan of compiled functions, which share one block of memory
    and a team of threads. Calls that follow each other row by row are run for a block of rows at a time, so that the
    arrays in between stay in the caches. Views, copies, ``take``, ``concat``, conversions, sums and products are
    recorded, too; everything else is an error. Torch tensors in the host's memory share it with such arrays. On JAX
    arrays the step is a program of XLA, on MLX arrays a compiled graph, in the memory of an NVIDIA GPU a CUDA graph. On
    PyOpenCL arrays, all launches of kernels are recorded and then enqueued from one place.

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

    _refusal = (
        "a PersistentKernel cannot be pickled: it holds compiled code; "
        "pickle the step, and make a PersistentKernel of it in each process"
    )

    def __init__(
        self,
        step: Callable[..., Any],
        example_args: Sequence[Any],
        *,
        mode: str = "decode",
        backend: str | None = None,
        fallback_backends: Sequence[str] = (),
        num_workers: int | None = None,
        world_size: int = 1,
        mpi_rank: int | None = None,
        max_seq_length: int | None = None,
        page_size: int | None = None,
        max_num_pages: int | None = None,
        donate: Sequence[int] = (),
        repack: bool = False,
        profile: bool = False,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}, expected one of {', '.join(MODES)}")
        if num_workers is not None:
            num_workers = as_integer("PersistentKernel", "num_workers", num_workers)
            if not 1 <= num_workers <= usable_processors():
                most = f"{usable_processors()}, the number of processors that this process may use"
                raise ValueError(f"num_workers is {num_workers}, expected 1 to {most}")
        if isinstance(fallback_backends, str):
            raise TypeError("fallback_backends must be a sequence of names, not one string")
        for place in donate:
            if not 0 <= place < len(example_args):
                raise ValueError(f"donate has {place}, and there are {len(example_args)} arguments")
        if mode == "onepass" and donate:
            raise ValueError("mode 'onepass' keeps nothing from run to run, so it donates nothing")
        self._limits = Limits(mode, max_seq_length, page_size, max_num_pages)
        self.mode = mode
        self._step = step
        wanted = {"donate": frozenset(donate), "workers": num_workers, "repack": repack, "profile": profile}
        wanted["world_size"] = world_size
        self._options = _choose(backend, fallback_backends, example_args, wanted)
        self._ranks = connect(world_size, mpi_rank, self.backend)
        with self._ranks.together("begin"):
            pass  # all of them have the ranks that they must have
        with (active := set_backend(self.backend)):
            self._active = active  # for when it is compiled
        self._args = tuple(to_backend(list(example_args), self.backend))
        self._engine: Engine | None = None
        self._described: tuple[str, ...] = ()
        self._profile: Profile | None = None

    @property
    def backend(self) -> str:
        """The name of the backend that computes."""
        return self._options.backend.name

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
            The step does what cannot be run again, or what was recorded gives other numbers than the step, on the
            example or if floating-point arguments change; the message names the call.
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
        if not self._options.profile:
            return engine.run(args)
        result, self._profile = engine.profiled(args)
        return result

    def explain(self) -> Captured:
        """Tell what was captured: kernels in order with their arrays and bytes, and what is left to Python."""
        captured = self._compiled().captured()
        return replace(captured, step=self._described)

    def profile(self) -> Profile:
        """Tell how long each call of the last run took.

        Returns
        -------
        Profile
            Times by operator; it can be written as a trace for browsers.

        Raises
        ------
        ValueError
            If runs are not measured, or there has been none.
        """
        if not self._options.profile:
            raise ValueError("runs are not measured: make the PersistentKernel with profile=True")
        if self._profile is None:
            raise ValueError("there has been no run yet whose times could be told")
        return self._profile

    def release(self) -> None:
        """Let go of the arrays that were passed last; until then, large and donated ones are kept for the next run."""
        if self._engine is not None:
            self._engine.forget()

    def _compiled(self) -> Engine:
        if self._engine is None:
            engine = engine_of(self._options.backend.library.name)
            assert engine is not None  # backends without one are not chosen
            with self._ranks.together("compile its step"), compiling_for(self._ranks), self._active:
                watch = Watch()
                compiled = engine(watch(self._step), self._args, self._options)
                self._limits.check(watch.seen)
            if (other := self._ranks.first_that_differs(compiled.exchanges)) is not None:
                raise CaptureError(
                    f"the step of rank {other} does not sum arrays like those of rank 0, in the same order"
                )
            compiled.statistics = replace(compiled.statistics, not_compared=self._compare(compiled))
            self._engine, self._described = compiled, watch.described(self.mode)
            self._args = ()  # the caller's, which need not stay
        return self._engine

    def _compare(self, engine: Engine) -> str:
        """Compare what is replayed with the step, on the example and on other numbers; return why not, if so."""
        if not engine.records:
            return "the library itself compiled the step"
        if self._options.world_size > 1:
            return "the step sums over several ranks"
        comparison = Comparison(self._step, self._options.backend.library, self._args, self._options.donate)
        if reason := comparison.refusal():
            return reason
        with self._active, compiling_for(self._ranks):
            comparison.require_equal(engine)
        return ""


def _choose(backend: str | None, fallback: Sequence[str], args: Sequence[Any], wanted: dict[str, Any]) -> Options:
    """Return the options with the first backend that can replay steps with them here."""
    reasons = []
    for name in (backend or get_backend(), *fallback):
        candidates = _of_arrays(args) if name == "auto" else [resolve(name)]
        if not candidates:
            reasons.append("auto: no backend replays steps on these arguments")
        for candidate in candidates:
            options = Options(candidate, **wanted)
            reason = unavailable_reason(candidate) or why_not(options)
            if not reason:
                return options
            reasons.append(f"{candidate.name}: {reason}")
    raise ValueError(f"no backend can replay this step: {'; '.join(reasons)}")


def _of_arrays(args: Sequence[Any]) -> list[Backend]:
    """Return the backends that compute where the first array is."""
    arrays = leaves(list(args))
    library = library_of(arrays[0]) if arrays else None
    return [b for b in BACKENDS.values() if b.library is library and not b.missing]
