"""jit, grad, vmap, compile and lazy graphs: nothing breaks a trace, drops a gradient or computes early.

Gradients are held against central differences of the float64 references, and against formulas at points where they
are delicate.
"""

import functools
import math
import re
import shutil

import numpy as np
import pytest

import support
import tensorops as tp
from differentiable import ALL, BIASES, DIFFERENTIABLE, MASK, PACKED, SCALES, attention, normal
from tensorops._operator import OPERATORS
from tensorops.ops import activation, normalization
from tensorops.testing import CASES, REFERENCES, assert_matches
from tensorops.testing._running import result_dtype
from tensorops.testing.entries import Maker, cast
from tensorops.testing.tables import WORKLOADS

every_gradient = pytest.mark.parametrize("name", DIFFERENTIABLE)
every_call = pytest.mark.parametrize("name", ALL)


class Call:
    """A call as a function of its floating arrays alone, in the order in which they occur."""

    def __init__(self, name, dtype=None):
        self.operator = OPERATORS[name.partition("-")[0]]
        self.reference = REFERENCES[self.operator.__name__]
        args, kwargs = ALL[name]
        self.template = [*args, *kwargs.values()]
        self.names = list(kwargs)
        self.positions = [i for i, v in enumerate(self.template) if isinstance(v, np.ndarray) and v.dtype == np.float64]
        self.inputs = [self.template[i].astype(dtype or np.float64) for i in self.positions]

    def __call__(self, function, template, arrays):
        """Call `function` with the arguments of `template`, the floating arrays replaced."""
        filled = list(template)
        for position, array in zip(self.positions, arrays, strict=True):
            filled[position] = array
        split = len(filled) - len(self.names)
        return function(*filled[:split], **dict(zip(self.names, filled[split:], strict=True)))

    def of(self, library):
        """Return the operator as a function of arrays of a library, the others taken there."""
        template = support.there(self.template, library)
        return lambda *arrays: self(self.operator, template, arrays)

    def expected(self, inputs=None):
        return self(self.reference, self.template, self.inputs if inputs is None else inputs)

    def cotangents(self):
        """Return numbers to sum the results with, so that no gradient is a sum of equal parts."""
        results = self.expected()
        results = results if isinstance(results, tuple) else (results,)
        return [np.cos(1.0 + np.arange(y.size)).reshape(y.shape) for y in results]

    def loss(self, results, cotangents):
        results = results if isinstance(results, tuple) else (results,)
        return sum((y * c).sum() for y, c in zip(results, cotangents, strict=True))

    def gradients(self, step=1e-5):
        """Return the gradients of the loss of the reference, by central differences."""
        cotangents = self.cotangents()
        gradients = []
        for k, x in enumerate(self.inputs):
            gradient = np.zeros(x.shape)
            for index in np.ndindex(x.shape):
                h = step * max(1.0, abs(x[index]))
                ends = []
                for moved in (x[index] + h, x[index] - h):
                    inputs = [a.copy() for a in self.inputs]
                    inputs[k][index] = moved
                    ends.append(self.loss(self.expected(inputs), cotangents))
                gradient[index] = (ends[0] - ends[1]) / (2 * h)
            gradients.append(gradient)
        return gradients


def assert_close(actual, expected, rtol):
    """Compare arrays or tuples of them, relative to the largest element."""
    actual = actual if isinstance(actual, list | tuple) else [actual]
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for a, e in zip(actual, expected, strict=True):
        if e is None:
            assert a is None
            continue
        a = np.asarray(support.back(a))
        assert a.shape == np.shape(e)
        np.testing.assert_allclose(
            a.astype(np.float64), e, rtol=0, atol=rtol * max(1e-3, np.max(np.abs(e), initial=0.0))
        )


def stacked(call):
    """Return three variations of the floating inputs, stacked along a new first axis."""
    return [np.stack([x, 0.5 * x + 0.1, -x]) for x in call.inputs]


def mapped(call):
    """Return the results of the reference for each of `stacked`, stacked."""
    results = [call.expected([x[i] for x in stacked(call)]) for i in range(3)]
    if isinstance(results[0], tuple):
        return [None if part[0] is None else np.stack(part) for part in zip(*results, strict=True)]
    return np.stack(results)


def given(results):
    """Return the results without the ``None`` that quantize gives in place of biases."""
    several = isinstance(results, list | tuple)
    return [y for y in results if y is not None] if several else results


def arrays_only(function):
    """Return `function` without ``None`` among its results: some libraries map arrays only."""
    return lambda *arrays: given(function(*arrays))


# --- jax ---------------------------------------------------------------------------------------------


@pytest.fixture
def jax64():
    """The library, in a setting in which it holds float64."""
    support.require("jax")
    import jax

    with jax.enable_x64(True):
        yield jax


@pytest.mark.costly(6)
@every_gradient
def test_jax_gradients(name, jax64):
    call = Call(name)
    f, cotangents = call.of("jax"), call.cotangents()

    def loss(*arrays):
        return call.loss(f(*arrays), cotangents)

    arrays = support.there(call.inputs, "jax")
    every = tuple(range(len(arrays)))
    assert_close(jax64.jit(jax64.grad(loss, every))(*arrays), call.gradients(), 1e-6)


def test_a_jitted_gradient_of_squares():
    """Compilers multiply constants, such as the unit of losses and its inverse."""
    jax = pytest.importorskip("jax")
    logits, targets = normal(3, 5), np.asarray([1, 4, 0])
    there = jax.numpy.asarray(targets)
    gradient = jax.jit(jax.grad(lambda x: tp.cross_entropy.generic(x, there, z_loss=0.25, reduction="sum")))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    total = np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = shares * (1 + 2 * 0.25 * total) - np.eye(5)[targets]
    np.testing.assert_allclose(gradient(logits.astype(np.float32)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.costly(8)
@every_call
def test_jax_vmap(name, jax64):
    call = Call(name)
    y = jax64.jit(jax64.vmap(call.of("jax")))(*support.there(stacked(call), "jax"))
    assert_close(y, mapped(call), 1e-12)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["rms_norm", "softmax", "gelu", "scaled_dot_product_attention"])
def test_jax_vmap_of_grad_and_forward_mode(name, jax64):
    call = Call(name)
    f, cotangents = call.of("jax"), call.cotangents()
    arrays = support.there(stacked(call), "jax")

    def loss(*arrays):
        return call.loss(f(*arrays), cotangents)

    gradient = jax64.jit(jax64.vmap(jax64.grad(loss)))(*arrays)
    for i in range(3):
        call.inputs = [np.asarray(a[i]) for a in arrays]
        assert_close(gradient[i], call.gradients()[0], 1e-6)
    point = [a[0] for a in arrays]
    _, tangent = jax64.jvp(loss, point, [x / 2 for x in point])
    call.inputs = [np.asarray(x) for x in point]
    expected = sum((g * x / 2).sum() for g, x in zip(call.gradients(), call.inputs, strict=True))
    assert_close(tangent, expected, 1e-6)


def test_jax_shard_map():
    support.require("jax")
    import jax

    if not hasattr(jax, "shard_map"):
        pytest.skip("this jax has no jax.shard_map")
    mesh = jax.make_mesh((1,), ("rows",))
    rows = jax.sharding.PartitionSpec("rows")
    x = normal(4, 8).astype(np.float32)
    sharded = jax.shard_map(lambda x: tp.softmax(tp.rms_norm(x)), mesh=mesh, in_specs=rows, out_specs=rows)
    placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, rows))
    expected = REFERENCES["softmax"](REFERENCES["rms_norm"](x))
    assert_close(jax.jit(sharded)(placed), expected, 1e-6)


def test_jax_backend_in_force_under_jit():
    support.require("jax")
    import jax

    x = support.there(normal(2, 4).astype(np.float32), "jax")
    with tp.set_backend("jax"), tp.trace() as log:
        y = jax.jit(tp.rms_norm)(x)
    assert isinstance(y, jax.Array)
    assert [(r.kernel, r.library, r.transfers) for r in log] == [("jax_ffi", "jax", ())]


def test_jax_ids_are_data_under_jit_and_vmap():
    support.require("jax")
    import jax

    table = normal(6, 3).astype(np.float32)
    ids = np.asarray([[5, 0], [2, 2]])
    weight, rows = support.there((table, ids), "jax")
    np.testing.assert_array_equal(jax.jit(tp.embedding)(rows, weight), table[ids])
    np.testing.assert_array_equal(jax.vmap(tp.embedding, (0, None))(rows, weight), table[ids])
    logits = normal(2, 2, 5).astype(np.float32)
    loss = jax.vmap(tp.cross_entropy)(*support.there((logits, ids % 5), "jax"))
    expected = [REFERENCES["cross_entropy"](x, t) for x, t in zip(logits, ids % 5, strict=True)]
    assert_close(loss, np.stack(expected), 1e-6)


def test_jax_samples_with_a_key_per_row():
    support.require("jax")
    import jax

    logits = normal(5, 7).astype(np.float32)
    uniform = jax.vmap(jax.random.uniform)(jax.random.split(jax.random.key(0), 5))
    drawn = jax.jit(lambda x, u: tp.sample(x, min_p=0.05, rng=u))(support.there(logits, "jax"), uniform)
    expected = REFERENCES["sample"](logits, min_p=0.05, rng=np.asarray(uniform))
    np.testing.assert_array_equal(drawn, expected)
    with pytest.raises(TypeError, match=r"^sample: rng "):
        jax.jit(lambda x: tp.sample(x, rng=np.random.default_rng(0).random))(support.there(logits, "jax"))


# --- gradients at delicate points --------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def normal_distribution(x):
    return math.erfc(-x / math.sqrt(2)) / 2


def normal_density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi) if abs(x) < 38 else 0.0


def gelu_tanh_slope(x):
    if abs(x) > 40:
        return float(x > 0)
    k = 2 * math.sqrt(2 / math.pi)
    s = sigmoid(k * (x + 0.044715 * x**3))
    return s + x * s * (1 - s) * k * (1 + 3 * 0.044715 * x * x)


def mish_slope(x):
    if abs(x) > 100:
        return float(x > 0)
    t = math.tanh(math.log1p(math.exp(x)))
    return t + x * (1 - t * t) * sigmoid(x)


def sigmoid_product_slope(alpha, x):
    """Return the derivative of x sigmoid(alpha x)."""
    z = alpha * x
    return sigmoid(z) + (z * sigmoid(z) * sigmoid(-z) if abs(z) < 700 else 0.0)


# Derivatives of functions of one number.
SLOPES = {
    "silu": functools.partial(sigmoid_product_slope, 1.0),
    "quick_gelu": functools.partial(sigmoid_product_slope, 1.702),
    "mish": mish_slope,
    "hard_sigmoid": lambda x: 1 / 6 if abs(x) < 3 else 0.0,
    "hard_swish": lambda x: x / 3 + 0.5 if abs(x) < 3 else float(x > 0),
    "elu": lambda x: 1.0 if x > 0 else math.exp(x),
    "selu": lambda x: 1.0507009873554805 * (1.0 if x > 0 else 1.6732632423543772 * math.exp(x)),
    "leaky_relu": lambda x: 1.0 if x > 0 else 0.01,
    "sigmoid": lambda x: sigmoid(x) * sigmoid(-x),
    "relu": lambda x: float(x > 0),
    "softplus": sigmoid,
    "gelu": lambda x: normal_distribution(x) + (x * normal_density(x) if abs(x) < 38 else 0.0),
    "gelu-tanh": gelu_tanh_slope,
}
POINTS = [0.0, -0.0, 1e-30, -1e-8, 0.5, -3.0, 11.0, -11.0, 50.0, -50.0, 88.8, -104.0, 1e4, -1e4, 1e18, -1e30]


@pytest.mark.costly(2)
@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
@pytest.mark.parametrize("name", SLOPES)
def test_slopes_at_zero_and_far_away(name, library):
    support.require(library)
    call = Call(name, np.float32)
    x = np.asarray(POINTS, np.float32)
    (slopes,) = gradients_of_sum(library, call.of(library), x)
    expected = [SLOPES[name](float(v)) for v in x]
    np.testing.assert_allclose(slopes, expected, rtol=2e-4, atol=1e-6)


IN_TORCH = {"hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish"}


@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
@pytest.mark.parametrize("name", ["relu", "hard_sigmoid", "hard_swish", "elu", "selu", "leaky_relu"])
def test_slopes_at_kinks_are_those_of_torch(name, library):
    support.require(library)
    support.require("torch")
    import torch

    x = np.asarray([-3.0, 3.0, 0.0, -0.0, -2.9999, 2.9999, -3.0001, 3.0001], np.float32)
    (slopes,) = gradients_of_sum(library, Call(name, np.float32).of(library), x)
    (expected,) = gradients_of_sum("torch", getattr(torch.nn.functional, IN_TORCH.get(name, name)), x)
    np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
@pytest.mark.parametrize(("alpha", "beta"), [(0.2, 0.5), (0.7, 0.35), (1 / 49, 0.5), (-0.2, 0.3), (3e-4, 0.9)])
def test_hard_sigmoid_is_flat_at_its_kinks_in_bodies(library, alpha, beta):
    support.require(library)
    x = np.asarray([-beta / alpha, (1 - beta) / alpha, (0.5 - beta) / alpha], np.float32)
    body = functools.partial(tp.hard_sigmoid.generic, alpha=alpha, beta=beta)
    (slopes,) = gradients_of_sum(library, body, x)
    np.testing.assert_allclose(slopes, [0, 0, alpha], rtol=1e-6)
    np.testing.assert_array_equal(support.back(body(support.there(x, library)))[:2], [0, 1])


@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_slopes_of_gated_units(name, library):
    support.require(library)
    gate = np.asarray(POINTS, np.float32)
    up = np.full_like(gate, -2.0)
    by_gate, by_up = gradients_of_sum(library, Call(name, np.float32).of(library), gate, up)
    slope = SLOPES["silu" if name == "swiglu" else "gelu"]
    np.testing.assert_allclose(by_gate, [-2 * slope(float(v)) for v in gate], rtol=2e-4, atol=1e-6)
    activation = REFERENCES["silu" if name == "swiglu" else "gelu"]
    np.testing.assert_allclose(by_up, activation(gate), rtol=1e-4, atol=1e-6)


def gradients_of_sum(library, function, *inputs):
    """Return the gradients of the sum of the results, by the library's own differentiation."""
    arrays = support.there(list(inputs), library)
    every = tuple(range(len(arrays)))
    if library == "torch":
        for x in arrays:
            x.requires_grad_()
        total(function(*arrays)).backward()
        gradients = [x.grad for x in arrays]
    elif library == "jax":
        import jax

        # Of the body, as without `jit`. To compile one program takes a tenth of the time of compiling each operation.
        gradient = jax.grad(lambda *a: total(function(*a)), every)
        with tp.set_backend("jax", providers=["generic"]):
            gradients = jax.jit(gradient)(*arrays)
    else:
        import mlx.core as mx

        gradients = mx.grad(lambda *a: total(function(*a)), list(every))(*arrays)
    gradients = gradients if isinstance(gradients, list | tuple) else [gradients]
    return [support.back(g.detach() if library == "torch" else g) for g in gradients]


def total(results):
    return sum(y.sum() for y in (results if isinstance(results, tuple) else (results,)))


DELICATE = {
    "rms_norm of zeros": (tp.rms_norm, (np.zeros((2, 4)), np.ones(4)), {}),
    "rms_norm of huge": (tp.rms_norm, (1e30 * normal(2, 4),), {}),
    "rms_norm of tiny": (tp.rms_norm, (1e-30 * normal(2, 4),), {"eps": 0.0}),
    "layer_norm of a constant": (tp.layer_norm, (np.full((2, 4), 3.0),), {}),
    "layer_norm of huge": (tp.layer_norm, (1e30 * normal(2, 4),), {}),
    "group_norm of a constant": (lambda x: tp.group_norm(x, 2), (np.full((2, 4), 3.0),), {}),
    "instance_norm of huge": (tp.instance_norm, (1e30 * normal(1, 2, 4),), {}),
    "l2_norm of zeros": (tp.l2_norm, (np.zeros((2, 4)),), {}),
    "l2_norm of zeros, without eps": (tp.l2_norm, (np.zeros((2, 4)),), {"eps": 0.0}),
    "l2_norm of huge": (tp.l2_norm, (1e30 * normal(2, 4),), {}),
    "softmax beside minus infinity": (tp.softmax, (np.asarray([[0.0, -np.inf, 1.0]]),), {}),
    "softmax of huge": (tp.softmax, (np.asarray([[1e38, -1e38, 0.0]]),), {}),
    "softmax of nothing": (tp.softmax, (normal(3, 4),), {"where": MASK}),
    "softmax of masked infinities": (
        tp.softmax,
        (np.asarray([[np.inf, 1.0, 2.0]]),),
        {"where": np.asarray([[False, True, True]])},
    ),
    "logsumexp beside minus infinity": (tp.logsumexp, (np.asarray([[0.0, -np.inf, 1.0]]),), {}),
    "attention of nothing": (tp.scaled_dot_product_attention, attention(), {"mask": MASK}),
    "attention under a mask of minus infinity": (
        tp.scaled_dot_product_attention,
        attention(),
        {"mask": np.where(MASK, 0.0, -np.inf)},
    ),
    "attention before the first key": (tp.scaled_dot_product_attention, attention(5, 2), {"is_causal": True}),
    "attention to no valid key": (tp.scaled_dot_product_attention, attention(), {"lengths": np.asarray([0])}),
    "attention before keys that are NaN": (
        tp.scaled_dot_product_attention,
        tuple(np.concatenate([x, np.full_like(x, np.nan)], axis=2) if i else x for i, x in enumerate(attention())),
        {"lengths": np.asarray([4])},
    ),
    "cross_entropy of a forbidden class": (tp.cross_entropy, (np.asarray([[0.0, -np.inf, 1.0]]), np.asarray([0])), {}),
    "cross_entropy of huge": (tp.cross_entropy, (np.asarray([[1e38, -1e38, 0.0]]), np.asarray([0])), {}),
    "cross_entropy of an impossible class": (
        tp.cross_entropy,
        (np.asarray([[0.0, -np.inf, 1.0]]), np.asarray([[0.25, 0.0, 0.75]])),
        {"z_loss": 0.1},
    ),
    "cross_entropy of a class without weight": (
        tp.cross_entropy,
        (np.asarray([[0.0, -np.inf, 1.0], [2.0, -np.inf, 1.0]]), np.asarray([0, 1]), np.asarray([0.5, 0.0, 1.0])),
        {"label_smoothing": 0.1},
    ),
    "cross_entropy of ignored": (tp.cross_entropy, (normal(2, 3), np.asarray([-100, -100])), {"reduction": "sum"}),
    "rope at a far position": (tp.rope, (normal(1, 2, 4), np.asarray([1e6, 2e6])), {}),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("library", ["jax", "torch", "mlx"])
@pytest.mark.parametrize("name", DELICATE)
def test_gradients_stay_finite(name, library):
    """A branch that is not taken must not turn its infinity into a NaN."""
    support.require(library)
    operator, args, kwargs = DELICATE[name]
    args, kwargs = tp.testing.cast((args, kwargs), "float32")
    floating = [i for i, a in enumerate(args) if a.dtype == np.float32]
    args, kwargs = support.there((args, kwargs), library)

    def function(*arrays):
        filled = list(args)
        for i, array in zip(floating, arrays, strict=True):
            filled[i] = array
        return operator(*filled, **kwargs)

    inputs = [support.back(args[i]) for i in floating]
    for gradient in gradients_of_sum(library, function, *inputs):
        assert np.isfinite(gradient).all(), gradient
    if name.startswith("cross_entropy of ignored"):
        np.testing.assert_array_equal(gradient, 0.0)


# --- torch -------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    support.require("torch")
    import torch

    yield torch
    torch.compiler.reset()


@every_gradient
def test_torch_gradients(name, torch):
    call = Call(name)
    f = call.of("torch")
    arrays = [x.requires_grad_() for x in support.there(call.inputs, "torch")]
    assert torch.autograd.gradcheck(f, arrays, fast_mode=True)  # every derivative is compared below
    cotangents = [torch.from_numpy(c) for c in call.cotangents()]
    call.loss(f(*arrays), cotangents).backward()
    assert_close([x.grad for x in arrays], call.gradients(), 1e-6)


class Followed:
    """A call on tensors that require gradients, whose results are a tuple."""

    def __init__(self, call):
        self.call, self.function = call, call.of("torch")
        self.arrays = [x.requires_grad_() for x in support.there(call.inputs, "torch")]

    @functools.cached_property
    def cotangents(self):
        return support.there([c.astype(self.call.inputs[0].dtype) for c in self.call.cotangents()], "torch")

    def __call__(self, *arrays):
        results = given(self.function(*arrays))
        return tuple(results) if isinstance(results, list) else (results,)

    def gradients(self, results, cotangents=None, **options):
        import torch

        return torch.autograd.grad(results, self.arrays, cotangents or self.cotangents, **options)


@every_gradient
def test_torch_batched_gradients(name, torch):
    """The vectorized Jacobians of `torch.autograd` ask for gradients of several cotangents at once."""
    f = Followed(Call(name, np.float32))
    once = f.gradients(f(*f.arrays))
    several = [torch.stack((c, -2 * c)) for c in f.cotangents]
    for batch, gradient in zip(f.gradients(f(*f.arrays), several, is_grads_batched=True), once, strict=True):
        assert_close(batch, np.stack((gradient, -2 * gradient)), 1e-5)


@every_gradient
def test_torch_gradients_twice_and_of_checkpoints(name, torch):
    f = Followed(Call(name, np.float32))
    results = f(*f.arrays)
    ones = [torch.ones_like(y) for y in results]
    first = f.gradients(results, ones, retain_graph=True)
    expected = [gradient.numpy().copy() for gradient in first]
    for gradient in first:
        gradient.numpy()[...] = np.nan  # the caller's, who may change them without torch's knowledge
    assert_close(f.gradients(results, ones), expected, 1e-5)
    kept = torch.utils.checkpoint.checkpoint(f, *f.arrays, use_reentrant=False)
    assert_close(f.gradients(kept, ones), expected, 1e-5)


@pytest.mark.costly(4)
@every_call
def test_torch_vmap(name, torch):
    call = Call(name)
    y = torch.func.vmap(arrays_only(call.of("torch")))(*support.there(stacked(call), "torch"))
    assert_close(y, given(mapped(call)), 1e-12)


@every_call
def test_torch_vmap_over_each_argument(name, torch):
    """Alone: what is computed of the other arguments has no room for its batch."""
    call = Call(name)
    f, varied = arrays_only(call.of("torch")), stacked(call)
    for place, batch in enumerate(varied):
        every = [batch if i == place else x for i, x in enumerate(call.inputs)]
        along = tuple(0 if i == place else None for i in range(len(every)))
        y = torch.func.vmap(f, along)(*support.there(every, "torch"))
        inputs = [[row if i == place else x for i, x in enumerate(call.inputs)] for row in batch]
        for i, each in enumerate(inputs):
            expected = given(call.expected(each))
            assert_close([part[i] for part in y] if isinstance(y, list) else y[i], expected, 1e-12)


UNCHANGED = {"float32": {"rtol": 1e-5, "atol": 1e-5}, "float16": {"rtol": 1e-3, "atol": 1e-3}}
"""How far results may differ that autocast has not changed: products depend on how memory is aligned."""


@pytest.mark.parametrize("dtype", UNCHANGED)
@every_call
def test_torch_autocast_changes_nothing(name, dtype, torch):
    call = Call(name, dtype)
    for operator in (call.operator, call.operator.generic):
        call.operator = operator
        f = Followed(call)
        recorded, expected = f(*f.arrays), torch.no_grad()(f)(*f.arrays)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            recorded_there, results = f(*f.arrays), torch.no_grad()(f)(*f.arrays)
        expected += recorded
        results += recorded_there
        if name in DIFFERENTIABLE:
            expected += f.gradients(recorded)
            results += f.gradients(recorded_there)
        torch.testing.assert_close(results, expected, **UNCHANGED[dtype])


BY_KERNELS = ["silu", "cross_entropy-smoothed", "rope", "scaled_dot_product_attention", "linear_cross_entropy-mean"]


@pytest.mark.parametrize("name", BY_KERNELS)
def test_torch_autocast_changes_no_gradients_by_kernels(name, torch):
    """Not even in a backward pass under autocast, nor if they are to be differentiated again."""
    f = Followed(Call(name, np.float32))
    results = f(*f.arrays)
    expected = f.gradients(results, retain_graph=True) + f.gradients(results, create_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = f.gradients(results, retain_graph=True) + f.gradients(results, create_graph=True)
    torch.testing.assert_close(gradients, expected, **UNCHANGED["float32"])


def test_torch_batches_are_joined(torch):
    xp, x = tp.get_namespace(torch.ones(1)), torch.arange(6.0).reshape(2, 3)
    assert xp.concat((x, x[:1]), axis=None).tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    jacobian = torch.autograd.functional.jacobian(lambda a: xp.concat((a, 2 * a)), x[0], vectorize=True)
    assert_close(jacobian, np.concatenate((np.eye(3), 2 * np.eye(3))), 0)


# array-api-compat caches look-ups that Dynamo traces again, which costs a trace but no correctness.
looks_up_again = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")


@pytest.mark.costly(8)
@looks_up_again
@every_call
def test_torch_compile_of_a_function(name, torch):
    """One graph for the whole function, `fullgraph` makes anything else an error."""
    call = Call(name)
    f = call.of("torch")
    compiled = torch.compile(lambda *arrays: f(*arrays), fullgraph=True, backend="aot_eager")
    assert_close(compiled(*support.there(call.inputs, "torch")), call.expected(), 1e-12)


@pytest.mark.costly(2)
@looks_up_again
@pytest.mark.parametrize("name", ["linear", "scaled_dot_product_attention", "moe", "linear_cross_entropy-mean"])
def test_torch_compile_under_autocast(name, torch):
    f = Followed(Call(name, np.float32))
    compiled = torch.compile(f.function, fullgraph=True, backend="aot_eager")

    def within(*arrays):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return f.function(*arrays)

    expected = compiled(*f.arrays)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = compiled(*f.arrays)
    inside = torch.compile(within, fullgraph=True, backend="aot_eager")(*f.arrays)
    torch.testing.assert_close(results, expected, **UNCHANGED["float32"])
    torch.testing.assert_close(inside, expected, **UNCHANGED["float32"])
    torch.testing.assert_close(f.gradients(inside), f.gradients(expected), **UNCHANGED["float32"])


@pytest.mark.costly
@pytest.mark.parametrize("name", ["rms_norm", "gelu", "softmax", "scaled_dot_product_attention", "linear"])
def test_torch_gradients_through_a_compiled_function(name, torch):
    call = Call(name)
    f = call.of("torch")
    cotangents = [torch.from_numpy(c) for c in call.cotangents()]
    compiled = torch.compile(lambda *arrays: call.loss(f(*arrays), cotangents), fullgraph=True, backend="aot_eager")
    arrays = [x.requires_grad_() for x in support.there(call.inputs, "torch")]
    compiled(*arrays).backward()
    assert_close([x.grad for x in arrays], call.gradients(), 1e-6)


@pytest.mark.costly
@looks_up_again
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_compile_of_the_operator_itself(name, torch):
    args, kwargs = ALL[name]
    compiled = torch.compile(OPERATORS[name], fullgraph=True, backend="aot_eager")
    y = compiled(*support.there(args, "torch"), **support.there(kwargs, "torch"))
    assert_close(y, REFERENCES[name](*args, **kwargs), 1e-12)


class Lengths:
    """The workload of an operator for several numbers of rows, as arguments of a function of its arrays alone."""

    def __init__(self, name, rows=(6, 10, 13)):
        made = [WORKLOADS[name](Maker(n, 64, "float64")) for n in rows]
        self.expected = [REFERENCES[name](*work.args, **work.options) for work in made]
        call = [[*work.args, *work.options.values()] for work in made]
        self.operator, self.template, self.names = OPERATORS[name], call[0], list(made[0].options)
        self.positions = [i for i, v in enumerate(call[0]) if isinstance(v, np.ndarray)]
        self.arrays = [support.there([each[i] for i in self.positions], "torch") for each in call]

    def __call__(self, *arrays):
        filled = list(self.template)
        for i, x in zip(self.positions, arrays, strict=True):
            filled[i] = x
        split = len(filled) - len(self.names)
        return given(self.operator(*filled[:split], **dict(zip(self.names, filled[split:], strict=True))))


@pytest.mark.costly(6)
@looks_up_again
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_compile_once_for_all_lengths(name, torch):
    """Numbers and lengths are symbols: what needs their values would trace again for each of them."""
    call = Lengths(name)
    compiled = torch.compile(lambda *arrays: call(*arrays), fullgraph=True, dynamic=True, backend="eager")
    for i, (arrays, expected) in enumerate(zip(call.arrays, call.expected, strict=True)):
        with torch.compiler.set_stance("fail_on_recompile" if i else "default"):
            y = compiled(*arrays)
        assert_close(y, given(expected), 1e-9)


@pytest.mark.costly(4)
@looks_up_again
@pytest.mark.parametrize("name", OPERATORS)
def test_torch_export_for_all_lengths(name, torch):
    call = Lengths(name)

    class Module(torch.nn.Module):
        def forward(self, *arrays):
            return call(*arrays)

    pairs = zip(call.arrays[0], call.arrays[1], strict=True)
    free = tuple({i: torch.export.Dim.DYNAMIC for i in range(a.ndim) if a.shape[i] != b.shape[i]} for a, b in pairs)
    assert any(free)
    program = torch.export.export(Module(), tuple(call.arrays[0]), dynamic_shapes=(free,)).module()
    for arrays, expected in zip(call.arrays, call.expected, strict=True):
        assert_close(program(*arrays), given(expected), 1e-9)


@pytest.mark.exhaustive
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
def test_torch_inductor(torch):
    """The compiler that users get: it fuses the body into a kernel of its own."""

    def block(x, w, q):
        return tp.scaled_dot_product_attention(tp.rms_norm(q, w), q, q, is_causal=True).sum() + tp.silu(x)

    x, w, q = normal(5), normal(4), normal(1, 2, 3, 4)
    y = torch.compile(block, fullgraph=True)(*support.there((x, w, q), "torch"))
    attended = REFERENCES["scaled_dot_product_attention"](REFERENCES["rms_norm"](q, w), q, q, is_causal=True)
    assert_close(y, attended.sum() + REFERENCES["silu"](x), 1e-12)
    with pytest.raises(
        RuntimeError, match=r"index out of bounds"
    ):  # inductor counts those of index_select from the end
        torch.compile(tp.embedding, fullgraph=True)(torch.tensor([0, -2]), torch.eye(4))


@looks_up_again
@pytest.mark.parametrize("row", [-2, 4])
def test_torch_compiled_look_ups_refuse_rows_out_of_range(row, torch):
    ids, table = torch.tensor([1, row]), torch.eye(4)
    for function in (tp.embedding, lambda ids, table: tp.rope(torch.ones(1, 2, 8), ids, cos=table, sin=table)):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert_close(compiled(ids % 4, table), function(ids % 4, table).numpy(), 1e-6)
        with pytest.raises(IndexError, match=r"out of range"):
            compiled(ids, table)


VARYING = {
    "rms_norm-eps": (1e-6, 1e-2, 0.5),
    "group_norm-num_groups": (2, 3, 6),
    "top_k-k": (3, 5, 7),
    "layer_norm-axis": (0, -1, 1),
    "leaky_relu-negative_slope": (0.1, 0.2, 0.3),
}


@looks_up_again
@pytest.mark.parametrize("name", VARYING)
def test_torch_compile_of_options_that_vary(name, torch):
    """The second value of a number makes it a symbol."""
    operator, option = name.split("-")
    x = normal(4, 12)
    compiled = torch.compile(lambda x, v: OPERATORS[operator](x, **{option: v}), fullgraph=True, backend="eager")
    for value in VARYING[name]:
        assert_close(compiled(torch.from_numpy(x), value), REFERENCES[operator](x, **{option: value}), 1e-9)


def test_torch_compile_refuses_another_backend(torch):
    def f(x):
        return tp.silu(x) + 1

    x = torch.ones(3)
    with (
        tp.set_backend("numpy"),
        pytest.raises(Exception, match=r"backend 'numpy' is in force, but torch\.compile can only compile torch"),
    ):
        torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    torch.compiler.reset()
    with tp.set_backend("torch"):
        y = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
    assert_close(y, REFERENCES["silu"](np.ones(3)) + 1, 1e-6)


def test_torch_compile_beside_other_libraries(torch):
    """The operators' caches of other libraries' types must not interfere with Dynamo."""
    for library in ("jax", "mlx", "numpy"):
        if not support.why_not(library):
            tp.silu(support.there(np.ones(3, np.float32), library))
    y = torch.compile(tp.softplus, fullgraph=True, backend="aot_eager")(torch.ones(3))
    assert_close(y, REFERENCES["softplus"](np.ones(3)), 1e-6)


COLD = """
import warnings
import torch
import tensorops

warnings.simplefilter("ignore", DeprecationWarning)  # of torch about itself
y = torch.compile(tensorops.silu, fullgraph=True, backend="aot_eager")(torch.zeros(3))
print(y.tolist())
"""


@pytest.mark.exhaustive
def test_torch_compile_as_the_first_call(torch):
    result = support.python(COLD)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0] == "[0.0, 0.0, 0.0]"


def test_torch_parameters_and_modules(torch):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self, x):
            return tp.rms_norm(x, self.weight)

    block = Block()
    x = normal(3, 4)
    y = torch.compile(block, fullgraph=True, backend="aot_eager")(torch.from_numpy(x))
    y.sum().backward()
    assert_close(y.detach(), REFERENCES["rms_norm"](x, np.ones(4)), 1e-12)
    assert_close(block.weight.grad, REFERENCES["rms_norm"](x).sum(0), 1e-12)


def test_torch_derivatives_of_quantized_parameters(torch):
    """Scales and biases follow the extremes of their groups; the integers are constants."""
    w = torch.nn.Parameter(torch.tensor([[1.0, 5.0, 2.0, -3.0], [4.0, 0.5, 0.25, 8.0]]))
    q, scales, biases = tp.quantize(w, bits=4, group_size=4)
    assert not q.requires_grad
    (gradient,) = torch.autograd.grad((15.0 * scales + 2.0 * biases).sum(), w)
    assert_close(gradient, np.asarray([[0, 1, 0, 1], [0, 0, 1, 1]]), 1e-6)


# --- mlx ---------------------------------------------------------------------------------------------


@pytest.fixture
def mx():
    support.require("mlx")
    import mlx.core as mx

    return mx


@pytest.mark.costly(2)
@every_gradient
def test_mlx_gradients(name, mx):
    call = Call(name, np.float32)
    f = call.of("mlx")
    cotangents = [mx.array(c.astype(np.float32)) for c in call.cotangents()]
    arrays = support.there(call.inputs, "mlx")
    gradients = mx.grad(lambda *a: call.loss(f(*a), cotangents), list(range(len(arrays))))(*arrays)
    expected = Call(name)
    expected.inputs = [x.astype(np.float64) for x in call.inputs]
    assert_close(gradients, expected.gradients(), 1e-4)


@pytest.mark.costly(3)
@every_call
def test_mlx_compile(name, mx):
    call = Call(name, np.float32)
    y = mx.compile(call.of("mlx"))(*support.there(call.inputs, "mlx"))
    assert_close(y, call.expected(), 1e-5)


ANY_LENGTH = {*activation.__all__, *normalization.__all__, "linear", "linear_activation"} - {"group_norm"}


def tiled(tree, count):
    """Repeat every array `count` times along each axis, in float32 if it has floating-point numbers."""
    if isinstance(tree, dict):
        return {key: tiled(value, count) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(tiled(value, count) for value in tree)
    if not isinstance(tree, np.ndarray):
        return tree
    return np.tile(cast(tree, "float32"), (count,) * tree.ndim)


@pytest.mark.parametrize("first", [1, 3])
@every_call
def test_mlx_compile_for_any_shape(name, first, mx):
    """Every operator is right for shapes that were not traced, or says which function needs their lengths."""
    operator = OPERATORS[name.partition("-")[0]]
    mx.eval(mx.ones(1) + 1)  # what is compiled before MLX computes for the first time is traced again after it
    compiled = mx.compile(lambda *args, **kwargs: operator(*args, **kwargs), shapeless=True)
    refusal = ""
    for count in (first, 4 - first):
        args, kwargs = tiled(ALL[name], count)
        try:
            operator(*args, **kwargs)
        except ValueError as error:
            pytest.skip(f"options do not fit the lengths: {error}")
        try:
            y = compiled(*support.there(args, "mlx"), **support.there(kwargs, "mlx"))
        except ValueError as error:
            refusal = str(error)
            break
        assert_close(y, REFERENCES[operator.__name__](*args, **kwargs), 1e-4)
    if refusal:
        assert operator.__name__ not in ANY_LENGTH
        assert re.search(r"shapeless=True|cannot infer output shapes|\[reshape\]", refusal)


@pytest.mark.costly(2)
@every_call
def test_mlx_vmap(name, mx):
    call = Call(name, np.float32)
    y = mx.vmap(arrays_only(call.of("mlx")))(*support.there(stacked(call), "mlx"))
    assert_close(y, given(mapped(call)), 1e-5)


# --- dask --------------------------------------------------------------------------------------------


def refuse_to_compute(*args, **kwargs):
    raise AssertionError("a graph was computed early")


def chunked(tree, last):
    """Take NumPy arrays to Dask: two chunks or more along every axis; along the last only if `last`."""
    import dask.array as da

    if isinstance(tree, dict):
        return {key: chunked(value, last) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(chunked(value, last) for value in tree)
    if not isinstance(tree, np.ndarray):
        return tree
    chunks = [max(1, n // 2) for n in tree.shape]
    if chunks and not last:
        chunks[-1] = tree.shape[-1]
    return da.from_array(tree, chunks=tuple(chunks))


@pytest.mark.costly(3)
@pytest.mark.parametrize("last", [False, True], ids=["rows", "everything"])
@every_call
def test_dask_is_lazy_and_right(name, last):
    support.require("dask")
    import dask

    args, kwargs = ALL[name]
    operator = OPERATORS[name.partition("-")[0]]
    lazy_args, lazy_kwargs = chunked((args, kwargs), last)
    with dask.config.set(scheduler=refuse_to_compute):
        y = operator(*lazy_args, **lazy_kwargs)
    assert_close(y, REFERENCES[operator.__name__](*args, **kwargs), 1e-12)


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_dask_cases_stay_lazy(name):
    """The first case of every operator, in the sizes and dtype that it has there."""
    support.require("dask")
    import dask

    case = CASES[name][0]
    args, kwargs = case.build(dtype_name="float32")
    lazy_args, lazy_kwargs = chunked((args, kwargs), True)
    with dask.config.set(scheduler=refuse_to_compute):
        y = OPERATORS[name](*lazy_args, **lazy_kwargs)
    expected = REFERENCES[name](*args, **kwargs)
    several = isinstance(expected, tuple)
    for a, e in zip(*((y, expected) if several else ([y], [expected])), strict=True):
        assert a.shape == e.shape
        dtype = result_dtype(kwargs, "float32") if e.dtype == np.float64 else e.dtype.name
        assert a.dtype.name == dtype
        assert_matches(support.back(a), e, dtype, tolerance=case.tolerance, scale_axis=case.scale_axis)


# How many of the first axes pass through unchanged; all of them if None.
UNTOUCHED = {
    "silu": None, "sigmoid": None, "relu": None, "softplus": None, "gelu": None, "swiglu": None, "geglu": None,
    "rms_norm": None, "add_rms_norm": None, "layer_norm": None, "softmax": None, "log_softmax": None,
    "logsumexp": 2, "rope": 2, "linear": 2, "embedding": 1, "quantized_linear": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", UNTOUCHED)
def test_dask_keeps_the_chunks_of_untouched_axes(name):
    support.require("dask")
    import dask.array as da

    x = da.from_array(normal(4, 6, 8), chunks=((1, 3), (2, 4), (8,)))
    call = {
        "swiglu": lambda: tp.swiglu(x, x + 1),
        "geglu": lambda: tp.geglu(x, x + 1),
        "add_rms_norm": lambda: tp.add_rms_norm(x, x + 1)[0],
        "rope": lambda: tp.rope(x, da.arange(6, chunks=6)),
        "linear": lambda: tp.linear(x, da.ones((5, 8), chunks=(5, 8))),
        "embedding": lambda: tp.embedding((abs(x[:, 0, 0]) % 3).astype("int64"), da.ones((3, 5), chunks=(3, 5))),
        "quantized_linear": lambda: tp.quantized_linear(
            x, *(da.from_array(a, chunks=a.shape) for a in (PACKED, SCALES, BIASES)), group_size=4
        ),
    }.get(name, lambda: OPERATORS[name](x))
    y = call()
    axes = UNTOUCHED[name]
    assert y.chunks[:axes] == x.chunks[:axes]


def test_dask_arrays_go_nowhere_by_themselves():
    support.require("dask")
    import dask.array as da

    x = da.ones((4, 4), chunks=2)
    with tp.trace() as log:
        y = tp.rms_norm(x)
        with tp.set_backend("dask"):
            tp.rms_norm(x)
    assert isinstance(y, da.Array)
    assert [(r.library, r.transfers) for r in log] == [("dask", ())] * 2
