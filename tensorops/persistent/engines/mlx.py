"""Steps on MLX arrays: `mlx.core.compile`."""

from __future__ import annotations

import time
from typing import Any

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.libraries import Backend
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics
from tensorops.persistent._engine import Step


class MlxEngine:
    """Steps on MLX arrays: `mlx.core.compile`."""

    def __init__(
        self,
        step: Step,
        args: tuple[Any, ...],
        donate: frozenset[int],
        backend: Backend,
        workers: int | None,
        repack: bool,
    ) -> None:
        import mlx.core as mx

        if workers is not None:
            raise ValueError("num_workers: MLX chooses its threads")
        started = time.perf_counter()
        self._backend = backend

        def pure(*args: Any) -> Any:
            """Run the step on other array objects in place of those that it may assign to; return no wrappers."""
            given = (map_arrays(lambda x: x[...], arg) if i in donate else arg for i, arg in enumerate(args))
            return map_arrays(backend.library.unwrap, step(*given))

        self._compiled = mx.compile(pure)
        try:
            mx.eval(self._compiled(*args))
        except ValueError as error:  # a value is needed while it traces
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once; MLX computes when a result is read."""
        return self._compiled(*args)

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("the call itself", "MLX starts its kernels one after another when a result is read")
        return Captured(self._backend.name, "a graph compiled by MLX", (), self.statistics, python)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Refuse: MLX runs the graph as one."""
        raise ValueError("MLX runs the graph as one; use mlx.core.metal.start_capture for the times within it")

    def forget(self) -> None:
        """Let go of the caller's arrays: there are none."""


ENGINE = MlxEngine
