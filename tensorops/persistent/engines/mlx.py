"""Steps on MLX arrays: `mlx.core.compile`."""

from __future__ import annotations

import time
from typing import Any

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.persistent._captured import Captured, CaptureError, Statistics
from tensorops.persistent._engine import Engine, Expected, Options, Step


class MlxEngine(Engine):
    """Steps on MLX arrays: `mlx.core.compile`."""

    records = False
    no_workers = "MLX chooses its threads"
    no_profile = "MLX runs the graph as one; use mlx.core.metal.start_capture for the times within it"

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        import mlx.core as mx

        started = time.perf_counter()
        self._name, unwrap = options.backend.name, options.backend.library.unwrap

        def pure(*args: Any) -> Any:
            """Run the step on other array objects in place of those that it may assign to; return no wrappers."""
            given = (map_arrays(lambda x: x[...], arg) if i in options.donate else arg for i, arg in enumerate(args))
            return map_arrays(unwrap, step(*given))

        self._compiled = mx.compile(pure)
        try:
            mx.eval(self._compiled(*args))
        except ValueError as error:  # a value is needed while it traces
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self._expected = Expected(args)
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once; MLX computes when a result is read."""
        self._expected.require(args)
        return self._compiled(*args)

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("the call itself", "MLX starts its kernels one after another when a result is read")
        return Captured(self._name, "a graph compiled by MLX", (), self.statistics, python)


ENGINE = MlxEngine
