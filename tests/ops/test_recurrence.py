"""Layers with a state: continuing from it, chunks, layouts, compilers, and the same functions of other libraries."""

import functools
import importlib

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import REFERENCES


def convolution(rng, tokens, batch=2, channels=9, width=4):
    return (
        support.normal(rng, batch, tokens, channels, dtype="float64"),
        support.normal(rng, channels, width, dtype="float64"),
        support.normal(rng, channels, dtype="float64"),
    )


def rule(rng, tokens, *, batch=1, key_heads=2, heads=4, key_dim=8, value_dim=6):
    """Return queries, keys of length 1, values, gates and betas in float64."""
    q, k = rng.standard_normal((2, batch, key_heads, tokens, key_dim))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((batch, heads, tokens, value_dim))
    return q, k, v, -rng.exponential(0.3, (batch, heads, tokens)), rng.random((batch, heads, tokens))


def close(actual, expected, tolerance=1e-12):
    for a, e in zip(actual, expected, strict=True):
        a = np.asarray(support.back(a), np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(1.0, np.max(np.abs(e), initial=0.0)))


@pytest.mark.parametrize("body", [False, True], ids=["kernel", "body"])
@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 0, 68), (63, 1, 1), (64, 66), (5, 1, 130)], ids=str)
def test_continuing_from_a_state_is_one_call(parts, body, rng):
    places = np.cumsum(parts)[:-1]
    x, weight, bias = convolution(rng, sum(parts))
    call = tp.causal_conv1d.generic if body else tp.causal_conv1d
    expected = REFERENCES["causal_conv1d"](x, weight, bias, activation="silu")
    state, results = None, []
    for part in np.split(x, places, axis=1):
        y, state = call(part, weight, bias, state, activation="silu")
        results.append(y)
    close((np.concatenate(results, axis=1), state), expected)

    arrays = rule(rng, sum(parts))
    call = tp.gated_delta_rule.generic if body else tp.gated_delta_rule
    expected = REFERENCES["gated_delta_rule"](*arrays)
    state, results = None, []
    for part in zip(*(np.split(a, places, axis=2) for a in arrays), strict=True):
        y, state = call(*part, state=state)
        results.append(y)
    close((np.concatenate(results, axis=2), state), expected)


def test_the_state_of_half_types_is_float32(library, rng):
    """It is a sum over all tokens; to round it would lose what single tokens add."""
    for dtype in support.HALVES:
        if dtype in support.dtypes_of(library.name):
            arrays = support.there([a.astype(support.DTYPES[dtype]) for a in rule(rng, 3)], library.name)
            for call in (tp.gated_delta_rule, tp.gated_delta_rule.generic):
                y, state = call(*arrays)
                assert [support.back(a).dtype.name for a in (y, state)] == [dtype, "float32"]
                again = call(*arrays, state=state)
                assert support.back(again[1]).dtype.name == "float32"


def test_the_state_of_a_convolution_has_the_dtype_of_x(rng):
    """It holds inputs; rounded ones would not be what was convolved."""
    x, weight, _ = convolution(rng, 3)
    message = r"^causal_conv1d: state has dtype float64, but x has float32$"
    with pytest.raises(TypeError, match=message):
        tp.causal_conv1d(x.astype(np.float32), weight, state=x)


def test_the_convolution_is_causal_and_by_channel(rng):
    x, weight, _ = convolution(rng, 12)
    y, _ = tp.causal_conv1d.generic(x, weight)
    x[:, 7, 3] = np.nan
    changed, state = tp.causal_conv1d.generic(x, weight)
    expected = y.copy()
    expected[:, 7:11, 3] = np.nan
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(state, x[:, 9:])


def test_tokens_before_heads_and_channels_before_tokens_are_views(rng):
    """The layouts of other packages need no copy: the kernel takes transposed views."""
    support.require_native()
    arrays = rule(rng, 7)
    ours = [np.swapaxes(np.ascontiguousarray(np.swapaxes(a, 1, 2)), 1, 2) for a in arrays]
    assert not ours[0].flags.c_contiguous
    assert tp.gated_delta_rule.explain(*ours).kernel == "cpu"
    close(tp.gated_delta_rule(*ours), REFERENCES["gated_delta_rule"](*arrays))
    x, weight, bias = convolution(rng, 5)
    there = np.swapaxes(np.ascontiguousarray(np.swapaxes(x, 1, 2)), 1, 2)
    close(tp.causal_conv1d(there, weight, bias), REFERENCES["causal_conv1d"](x, weight, bias))


def compiler(library):
    """Return what compiles a function of a library's arrays as one graph."""
    if library == "jax":
        return importlib.import_module("jax").jit
    if library == "mlx":
        return importlib.import_module("mlx.core").compile
    return functools.partial(importlib.import_module("torch").compile, backend="eager", fullgraph=True)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # in array-api-compat
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
def test_bodies_compile(library, tokens, rng):
    """No operation depends on a value, and chunks are steps of a loop over a known number."""
    support.require(library)
    arrays = [a.astype(np.float32) for a in rule(rng, tokens, batch=2)]
    sequence = [a.astype(np.float32) for a in convolution(rng, tokens)]
    with tp.set_backend(library, providers=["generic"]):
        compiled = compiler(library)(lambda *a: tp.gated_delta_rule(*a))
        close(compiled(*support.there(arrays, library)), REFERENCES["gated_delta_rule"](*arrays), tolerance=1e-5)
        compiled = compiler(library)(lambda *a: tp.causal_conv1d(*a, activation="silu"))
        expected = REFERENCES["causal_conv1d"](*sequence, activation="silu")
        close(compiled(*support.there(sequence, library)), expected, tolerance=1e-5)


@pytest.mark.parametrize("tokens", [1, 4, 63, 64, 65, 130])
@pytest.mark.parametrize("name", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_as_transformers_computes_it(name, tokens, rng):
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    theirs = getattr(models, name)
    theirs = getattr(theirs, "__wrapped__", theirs)
    arrays = [a.astype(np.float32) for a in rule(rng, tokens, batch=2, key_heads=2, heads=4, key_dim=16, value_dim=12)]
    state = support.normal(rng, 2, 4, 16, 12)
    ours = support.to_torch(torch, *arrays)
    before = [x.transpose(1, 2) for x in ours]
    with torch.no_grad():
        y, last = theirs(*before, initial_state=torch.from_numpy(state), output_final_state=True)
        for call in (tp.gated_delta_rule, tp.gated_delta_rule.generic):
            found = call(*ours, state=torch.from_numpy(state))
            close(found, [y.transpose(1, 2).numpy(), last.numpy()], tolerance=2e-5)


def test_as_torch_and_transformers_convolve(rng):
    torch = pytest.importorskip("torch")
    x, weight, bias, state = support.to_torch(torch, *convolution(rng, 6), rng.standard_normal((2, 3, 9)))
    padded = torch.cat([state, x], dim=1).transpose(1, 2)
    expected = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=9)
    y, last = tp.causal_conv1d(x, weight, bias, state, activation="swish")
    close((y, last), [torch.nn.functional.silu(expected).transpose(1, 2).numpy(), padded[:, :, -3:].mT.numpy()])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in gradcheck itself
@pytest.mark.parametrize("tokens", [3, 6])
def test_gradients_by_torch(tokens, rng):
    """In float64, in reverse and forward mode; chunks begin at five tokens."""
    torch = pytest.importorskip("torch")
    arrays = (*rule(rng, tokens, key_heads=1, heads=2, key_dim=3, value_dim=2), rng.standard_normal((1, 2, 3, 2)))
    moving = [x.requires_grad_() for x in support.to_torch(torch, *arrays)]
    check = functools.partial(torch.autograd.gradcheck, check_forward_ad=True)
    assert check(lambda *a: tp.gated_delta_rule.generic(*a[:5], state=a[5]), moving)
    arrays = (*convolution(rng, tokens, 1, 2), rng.standard_normal((1, 3, 2)))
    moving = [x.requires_grad_() for x in support.to_torch(torch, *arrays)]
    assert check(functools.partial(tp.causal_conv1d.generic, activation="silu"), moving)


@pytest.mark.parametrize("tokens", [3, 6])
def test_gradients_by_jax(tokens, rng):
    """Of calls that the compiled kernel computes; derivatives are those of the body."""
    support.require("jax")
    import jax
    from jax.test_util import check_grads

    with support.holding("jax", "float64"):
        state = rng.standard_normal((1, 2, 3, 2))
        arrays = support.there((*rule(rng, tokens, heads=2, key_dim=3, value_dim=2), state), "jax")
        function = jax.jit(lambda *a: tp.gated_delta_rule(*a[:5], state=a[5]))
        check_grads(function, arrays, order=1, modes=("fwd", "rev"))
        arrays = support.there((*convolution(rng, tokens, 1, 2), rng.standard_normal((1, 3, 2))), "jax")
        check_grads(jax.jit(tp.causal_conv1d), arrays, order=1, modes=("fwd", "rev"))


MAPPED_TWICE = """
import jax, jax.numpy as jnp, sys
import numpy as np
import tensorops as tp

dtype, tokens, key_dim, value_dim = sys.argv[1], *map(int, sys.argv[2:])
shapes = [(2, tokens, key_dim)] * 2 + [(4, tokens, value_dim)] + [(4, tokens)] * 2
arrays = [jnp.asarray(np.random.default_rng(0).uniform(-0.5, 0.0, (3, 2, 1, *s)), dtype) for s in shapes]

def gradient(call):
    return jax.grad(lambda *a: sum(jnp.sin(y.astype("float32")).sum() for y in call(*a)), tuple(range(5)))

for call in (tp.gated_delta_rule, tp.gated_delta_rule.generic):
    found = jax.jit(jax.vmap(jax.vmap(gradient(call))))(*arrays)
    one = jax.jit(gradient(call))
    for i in np.ndindex(3, 2):
        for a, b in zip(found, one(*(x[i] for x in arrays))):
            np.testing.assert_allclose(a[i].astype("float32"), b.astype("float32"), rtol=2e-2, atol=2e-3)
print("finished")
"""


@pytest.mark.costly(2)
@pytest.mark.parametrize("sizes", [("float16", 40, 1, 1), ("float32", 70, 3, 2), ("float32", 4, 3, 2)], ids=str)
def test_jax_maps_gradients_twice(sizes):
    """In a process of its own, which jaxlib 0.10.2 ended where the heads that share a key were an axis of their own."""
    support.require("jax")
    done = support.python(MAPPED_TWICE, *map(str, sizes))
    assert done.stdout == "finished\n", done.stderr


def test_equal_keys_do_not_lose_digits(rng):
    """The inverse within a chunk has entries of at most 1, though powers of its matrix reach 1e18."""
    k = np.broadcast_to(np.eye(1, 8), (1, 1, 64, 8)).astype(np.float32)
    v = support.normal(rng, 1, 1, 64, 4)
    ones = np.ones((1, 1, 64), np.float32)
    y, state = tp.gated_delta_rule.generic(k, k, v, 0 * ones, ones, scale=1.0)
    np.testing.assert_allclose(y, v, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state[0, 0, 0], v[0, 0, -1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tokens", [3, 20])
def test_a_gate_may_forget_everything(tokens, rng):
    """After minus infinity, what was before has no effect, and no digit of what follows is lost."""
    arrays = list(rule(rng, tokens, heads=2, key_heads=1))
    arrays[3][:, :, 1] = -np.inf
    expected = REFERENCES["gated_delta_rule"](*(a[:, :, 1:] for a in arrays))
    for call in (tp.gated_delta_rule, tp.gated_delta_rule.generic):
        y, state = call(*arrays, state=np.full((1, 2, 8, 6), 1e10))
        close((y[:, :, 1:], state), expected)
