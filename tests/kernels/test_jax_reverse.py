"""Kernels for derivatives in reverse mode: which programs have them, and that every mode and order stays right.

The kernel here is a function of JAX, which leaves its name in programs for the CPU.
"""

from pathlib import Path

import numpy as np
import pytest

import support
import tensorops as tp

support.require("jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.interpreters import mlir  # noqa: E402

from tensorops.kernels._jax import primitive  # noqa: E402
from tensorops.kernels._jax.primitive import Call, Reverse  # noqa: E402


def sum_of_squares(x, **_):
    return jnp.sum(x * x, axis=-1, keepdims=True)


OPTIONS = (("eps", 0.5), ("axis", -1))
KEPT = {"arrays": Reverse(), "result": Reverse(results=(0,)), "statistics": Reverse(statistics=(sum_of_squares,))}


def called(reverse, rows=1):
    """Return rms_norm as a provider with such a kernel would bind it."""
    call = Call(tp.rms_norm, ("x", "weight"), rows, options=(*OPTIONS, ("weight_offset", 0.0)), reverse=reverse)

    def function(x, w):
        return primitive.primitive().bind(x, w, call=call)[0]

    return function


def expected(x, w):
    return tp.rms_norm.generic(x, w, eps=0.5)


@pytest.fixture(autouse=True)
def _kernel(monkeypatch):
    """Let the derivative be lowered to what a kernel would compute."""

    def kernel(*operands, call, moving):
        x, w, *kept, dy = operands
        if call.reverse.results:
            normal = kept[0] / w
            inverse = normal[..., :1] / x[..., :1]
        else:
            squares = kept[0] if kept else sum_of_squares(x)
            inverse = 1 / jnp.sqrt(squares / x.shape[-1] + 0.5)
            normal = x * inverse
        slope = dy * w
        of_x = inverse * (slope - normal * jnp.mean(slope * normal, axis=-1, keepdims=True))
        found = {0: of_x, 1: jnp.sum(dy * normal, axis=range(x.ndim - 1))}
        return [found[i] for i in moving]

    def lower(ctx, *operands, **parameters):
        def reverse_of_rms_norm(*arrays):
            return kernel(*arrays, **parameters)

        return mlir.lower_fun(jax.jit(reverse_of_rms_norm), multiple_results=True)(ctx, *operands)

    primitive.linear_primitives.cache_clear()
    monkeypatch.setitem(primitive._reverse_rules, "cpu", lower)
    yield
    primitive.linear_primitives.cache_clear()


def has_kernel(function, *args):
    return "reverse_of_rms_norm" in jax.jit(function).lower(*args).as_text()


def loss(function):
    return lambda *xs: jnp.sum(jnp.sin(function(*xs)))


def arrays(rng, *shape):
    return [jnp.asarray(rng.standard_normal(s)) for s in (shape, shape[-1:])]


def close(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


USUAL = ("reverse", "checkpointed", "forward", "reverse over reverse")
OTHERS = (
    "linear", "back", "linearized", "jacobian", "hessian", "forward over reverse", "third", "transposed twice"
)  # fmt: skip


def slopes(h, x, w, kinds):
    """Return derivatives in these modes, some of higher order."""
    both = (0, 1)
    of_x = jax.grad(h)
    found = {
        "reverse": lambda: (jax.grad(h, both)(x, w), of_x(x, w), jax.grad(h, 1)(x, w)),
        "checkpointed": lambda: jax.grad(jax.checkpoint(h), both)(x, w),
        "linear": lambda: jax.linear_transpose(jax.linearize(h, x, w)[1], x, w)(jnp.ones(())),
        "back": lambda: jax.vjp(h, x, w)[1](jnp.ones(())),
        "forward": lambda: jax.jvp(h, (x, w), (w * x, w)),
        "linearized": lambda: jax.linearize(h, x, w)[1](x, w),
        "jacobian": lambda: jax.jacfwd(h, both)(x, w),
        "hessian": lambda: jax.hessian(h, both)(x, w),
        "reverse over reverse": lambda: jax.grad(lambda *xs: jnp.sum(of_x(*xs) ** 2), both)(x, w),
        "forward over reverse": lambda: jax.jvp(of_x, (x, w), (x, w)),
        "third": lambda: jax.jacfwd(jax.grad(lambda *xs: jnp.sum(of_x(*xs) ** 3)))(x, w),
        "transposed twice": lambda: jax.vjp(jax.vjp(h, x, w)[1], jnp.ones(()))[1]((x, w)),
    }
    return {kind: found[kind]() for kind in kinds}


@pytest.mark.costly
@pytest.mark.parametrize("kinds", [USUAL, OTHERS], ids=["usual", "others"])
@pytest.mark.parametrize("kept", KEPT)
def test_derivatives(kept, kinds, rng):
    with jax.enable_x64(True):
        x, w = arrays(rng, 2, 3)
        f, g = loss(called(KEPT[kept])), loss(expected)
        found, wanted = (jax.jit(lambda *xs, h=h: slopes(h, *xs, kinds))(x, w) for h in (f, g))
        assert found.keys() == wanted.keys()
        for kind, slope in found.items():
            close(slope, wanted[kind])
        if kinds is USUAL:
            close(jax.grad(f, (0, 1))(x, w), wanted["reverse"][0])
            with jax.disable_jit():
                close(jax.grad(f)(x, w), wanted["reverse"][1])


@pytest.mark.parametrize("kept", KEPT)
def test_programs_in_reverse_mode_have_the_kernel(kept, rng):
    x, w = arrays(rng, 2, 3)
    f = loss(called(KEPT[kept]))
    for function in (jax.grad(f), jax.grad(f, (0, 1)), jax.grad(jax.checkpoint(f)), jax.vmap(jax.grad(f), (0, None))):
        assert has_kernel(function, x, w)
    for function in (lambda *xs: jax.jvp(f, xs, xs), jax.vmap(jax.grad(f, 1), (0, None))):
        assert not has_kernel(function, x, w)
    assert not has_kernel(jax.grad(loss(called(None))), x, w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kept", KEPT)
def test_maps(kept, rng):
    """Rows are added for the kernel, unless a parameter of every row gets a gradient for each of them."""
    with jax.enable_x64(True):
        x, w = arrays(rng, 4, 2, 3)
        f, g = loss(called(KEPT[kept])), loss(expected)
        for axis, places in ((0, 0), (0, (0, 1)), (1, 0), (1, 1)):
            found, wanted = (jax.jit(jax.vmap(jax.grad(h, places), (axis, None)))(x, w) for h in (f, g))
            close(found, wanted)
        stacked = jnp.stack([w, w, 2 * w, w])
        close(jax.vmap(jax.grad(f))(x, stacked), jax.vmap(jax.grad(g))(x, stacked))
        close(jax.jacrev(called(KEPT[kept]))(x[0], w), jax.jacrev(expected)(x[0], w))
        of_all = [jax.grad(lambda *xs, h=h: jnp.sum(jnp.sin(jax.vmap(h, (0, None))(*xs))), (0, 1)) for h in
                  (called(KEPT[kept]), expected)]  # fmt: skip
        close(of_all[0](x, w), of_all[1](x, w))
        assert has_kernel(of_all[0], x, w)


SHARDS = """
import sys, jax, numpy as np
sys.path[:0] = {folders}
import pytest, support
import test_jax_reverse as t
from jax.sharding import PartitionSpec as P

fixture = t._kernel.__wrapped__(pytest.MonkeyPatch())
next(fixture)
mesh = jax.sharding.Mesh(jax.devices(), ("rows",))
x, w = t.arrays(np.random.default_rng(0), 4, 8)
for kept in t.KEPT.values():
    for f, specs in ((t.called(kept), (P("rows"), P())), (t.expected, (P("rows"), P()))):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("rows"))
        gradient = jax.grad(t.loss(mapped), (0, 1))
        if f is t.expected:
            assert t.has_kernel(found_by, x, w)
            for a, b in zip(found_by(x, w), gradient(x, w)):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        found_by = gradient
"""


@pytest.mark.exhaustive
def test_shards_sum_the_gradient_of_a_parameter_they_share():
    folders = [str(Path(file).parent) for file in (support.__file__, __file__)]
    done = support.python(SHARDS.format(folders=folders), XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert done.returncode == 0, done.stderr
