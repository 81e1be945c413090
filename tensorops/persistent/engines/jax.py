"""Steps on JAX arrays: `jax.jit`, which writes results into donated arguments."""

from __future__ import annotations

import time
from typing import Any

from tensorops._messages import describe_error
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import activate
from tensorops.persistent._captured import Captured, CaptureError, Statistics
from tensorops.persistent._engine import Engine, Expected, Options, Step


class JaxEngine(Engine):
    """Steps on JAX arrays: `jax.jit`, which writes results into donated arguments."""

    records = False
    no_workers = "XLA chooses its threads; set their number when JAX starts"
    no_profile = "XLA runs the program as one; use jax.profiler for the times within it"
    no_ranks = "MPI sends NumPy arrays only; in a step for JAX, use the collectives of jax.shard_map"

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        import jax

        started = time.perf_counter()
        donate, self._settings = options.donate, in_force()
        self._name = options.backend.name
        copied = tuple(
            jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, arg) if i in donate else arg
            for i, arg in enumerate(args)
        )
        try:
            self._constants, run = _without_constants(step, args)
            self._compiled = jax.jit(run, donate_argnums=tuple(i + 1 for i in sorted(donate)))
            jax.block_until_ready(self._compiled(self._constants, *copied))
        except jax.errors.JAXTypeError as error:  # a value decides, or leaves the program
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self._example = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x,
            (self._constants, *args),
        )
        self._expected = Expected(args)
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        self._expected.require(args)  # jit would compile again, of a step that was traced before
        return self._compiled(self._constants, *args)

    def captured(self) -> Captured:
        """Return what it runs."""
        with activate(self._settings):
            text = self._compiled.lower(*self._example).compile().as_text()
        python = ("the call itself",)
        return Captured(self._name, "a program of XLA", (), self.statistics, python, text)


def _without_constants(step: Step, args: tuple[Any, ...]) -> tuple[list[Any], Step]:
    """Return the arrays that a step closes over, and the step with a list of them as its first argument.

    As constants, XLA would have copies of them in the program.
    """
    import jax
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*args)
    results = jax.tree.structure(shapes)

    def run(constants: list[Any], *args: Any) -> Any:
        function = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))
        return jax.tree.unflatten(results, function(*jax.tree.leaves(args)))

    return list(closed.consts), run


ENGINE = JaxEngine
