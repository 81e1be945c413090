"""What tests of Pallas kernels share: Pallas' TPU interpreter, and programs for TPUs. To be imported if JAX is."""

import contextlib

import jax
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._launch import interpreted

INTERPRETER = {"detect_races": True, "out_of_bounds_reads": "raise", "uninitialized_memory": "nan"}


@contextlib.contextmanager
def interpreting():
    """Run the kernels in the interpreter; the steps of their grids are listed."""
    found = []

    def record(token, *step):
        found.append(step)
        return token

    with interpreted(**INTERPRETER, grid_point_recorder=record):
        yield found
    pltpu.reset_tpu_interpret_mode_state()


def races() -> bool:
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    return interpret_pallas_call.races.races_found  # there is no public interface


def exported(function, *args):
    """Return the text of a program for TPUs, which this machine cannot run."""
    return jax.export.export(jax.jit(function), platforms=["tpu"])(*args).mlir_module()


def text_of_kernel(function, *args):
    """Return what JAX hands to the compiler of the only kernel in a program: its steps and the places of its blocks."""
    (found,) = _kernels(jax.make_jaxpr(function)(*args).jaxpr)
    return "\n".join(map(str, [found, *(each.index_map_jaxpr for each in found.params["grid_mapping"].block_mappings)]))


def _kernels(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _kernels(inner)
