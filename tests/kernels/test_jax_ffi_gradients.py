"""Derivatives in reverse mode as foreign functions: which calls get one, and gradients of every dtype."""

import numpy as np
import pytest

import support
from differentiable import DIFFERENTIABLE, is_floating, places_of
from tensorops._operator import OPERATORS
from tensorops.testing import DTYPES

support.require("jax")
support.require_provider("jax_ffi")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from tensorops.kernels.cpu.derivatives import derivative_of  # noqa: E402

DERIVED = {n: d for n, o in OPERATORS.items() if "jax_ffi" in o.kernels and (d := derivative_of(n))}
GRADIENTS = {name: call for name, call in DIFFERENTIABLE.items() if name.partition("-")[0] in DERIVED}
BOUNDS = {"float64": 1e-12, "float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}


def gradients(name, of, args, options, dtype, places):
    """Return the gradients of a fixed linear function of the results, and the program's text."""
    held = [
        jnp.asarray(a, dtype) if is_floating(a) else a if np.isscalar(a) or a is None else jnp.asarray(a) for a in args
    ]
    options = {k: jnp.asarray(v, dtype) if is_floating(v) else v for k, v in options.items()}
    options = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}

    def total(*given):
        every = list(held)
        for i, a in zip(places, given, strict=True):
            every[i] = a
        found = of(*every, **options)
        results = found if isinstance(found, tuple) else (found,)
        weights = [jnp.linspace(-1, 2, y.size).reshape(y.shape) for y in results]
        return sum((y.astype(weight.dtype) * weight).sum() for y, weight in zip(results, weights, strict=True))

    compiled = jax.jit(jax.grad(total, tuple(range(len(places)))))
    given = [held[i] for i in places]
    return compiled(*given), compiled.lower(*given).as_text()


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_every_dtype(name, dtype):
    """Compare with gradients of the body in float64, which central differences have confirmed."""
    operator, (args, options) = OPERATORS[name.partition("-")[0]], GRADIENTS[name]
    derivative = DERIVED[operator.__name__]
    places = places_of(name, derivative.provided)
    with jax.enable_x64(True), support.holding("jax", dtype):
        rounded = [np.asarray(np.asarray(a, DTYPES[dtype]), np.float64) if is_floating(a) else a for a in args]
        found, text = gradients(name, operator, rounded, options, dtype, places)
        expected, _ = gradients(name, operator.generic, rounded, options, "float64", places)
    if f"tensorops.{operator.__name__}(" not in text and f"@tensorops.{operator.__name__}_vjp" not in text:
        pytest.skip("the kernel does not take these arguments")
    assert f"tensorops.{derivative.name}" in text
    for i, ours, theirs in zip(places, found, expected, strict=True):
        assert (ours.dtype.name, ours.shape) == (dtype, args[i].shape)
        assert np.abs(np.asarray(ours, np.float64) - np.asarray(theirs)).max() <= BOUNDS[dtype] * np.abs(theirs).max()


def test_only_the_gradients_that_are_asked_for_are_computed():
    x, weight = jnp.linspace(-2, 2, 40).reshape(4, 10), jnp.linspace(1, 2, 10)
    for of, arrays in (("rms_norm", (x, weight)), ("layer_norm", (x, weight, weight))):
        operator = OPERATORS[of]
        for place in range(len(arrays)):
            compiled = jax.jit(jax.grad(lambda *a, f=operator: (f(*a) ** 2).sum(), place))
            body = jax.grad(lambda *a, f=operator: (f.generic(*a) ** 2).sum(), place)
            text = compiled.lower(*arrays).as_text()
            assert f"wanted = {1 << place} : i64" in text
            np.testing.assert_allclose(compiled(*arrays), body(*arrays), rtol=2e-5, atol=2e-5)
