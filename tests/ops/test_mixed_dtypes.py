"""Parameters of another dtype than x: half types with float32 weights, and the reverse.

The case that matters most, float32 parameters beside x of any dtype, is among the cases of each operator; see `CASES`.
"""

import functools

import numpy as np
import pytest

import support
import tensorops as tp
from support import HALVES
from tensorops._operator import OPERATORS
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, DTYPES, REFERENCES, assert_matches

rng = np.random.default_rng(5)


def normal(*shape):
    return rng.standard_normal(shape)


PACKED, SCALES, BIASES = REFERENCES["quantize"](normal(6, 64), bits=4, group_size=32)
HEADS = (normal(1, 2, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))

# Data of the dtype of x, and parameters, which may have another; after the operator's name, a dash and a remark.
CALLS = {
    "rms_norm": ((normal(3, 33),), {"weight": normal(33)}),
    "add_rms_norm": ((normal(3, 33), normal(3, 33)), {"weight": normal(33)}),
    "layer_norm": ((normal(3, 33),), {"weight": normal(33), "bias": normal(33)}),
    "group_norm": ((normal(3, 6, 5), 2), {"weight": normal(6), "bias": normal(6)}),
    "instance_norm": ((normal(3, 6, 5),), {"weight": normal(6), "bias": normal(6)}),
    "linear": ((normal(3, 33),), {"weight": normal(6, 33), "bias": normal(6)}),
    "quantized_linear": ((normal(3, 64), PACKED), {"scales": SCALES, "biases": BIASES}),
    "rope": ((normal(1, 2, 3, 8), np.arange(3)), {"freqs": normal(4)}),
    "scaled_dot_product_attention-mask": (HEADS, {"mask": normal(3, 5)}),
    "scaled_dot_product_attention-sinks": (HEADS, {"sinks": normal(2)}),
}
# The dtypes of x and of the parameters.
PAIRS = [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16"), ("float32", "bfloat16")]
PAIRS += [("bfloat16", "float16"), ("float64", "float32")]


def cast(value, dtype):
    return value.astype(DTYPES[dtype]) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


def call_of(name, of_x, of_parameters):
    """Return the operator and the arguments of a call in NumPy arrays."""
    data, parameters = CALLS[name]
    given = {key: cast(value, of_parameters) for key, value in parameters.items()}
    return OPERATORS[name.partition("-")[0]], tuple(cast(value, of_x) for value in data), given


def first(result):
    return result[0] if isinstance(result, tuple) else result


def assert_right(result, operator, args, parameters):
    expected = first(REFERENCES[operator.__name__](*args, **parameters))
    dtype = args[0].dtype.name
    # Some of MLX's own kernels round scores of half types.
    tolerance = 4 if dtype in HALVES else 128
    assert_matches(support.back(first(result)), expected, dtype, tolerance=tolerance, scale_axis=None)


def every_implementation():
    for name in CALLS:
        operator = OPERATORS[name.partition("-")[0]]
        for row in LIBRARIES.values():
            for implementation in support.implementations(operator, row):
                for pair in PAIRS:
                    label = f"{name}-{row.name}-{implementation}-{pair[0]}-{pair[1]}"
                    yield pytest.param(name, row, implementation, pair, id=label)


@pytest.mark.dimensions
@pytest.mark.parametrize(("name", "row", "implementation", "pair"), list(every_implementation()))
def test_results_have_the_dtype_of_x(name, row, implementation, pair):
    """Kernels compute them too, except those for which float64 has none."""
    support.require(row.name)
    for dtype in pair:
        if dtype not in support.dtypes_of(row.name):
            pytest.skip(f"{row.name} holds no {dtype}")
    operator, args, parameters = call_of(name, *pair)
    with support.holding(row.name, pair[0]):
        there, given = support.there((args, parameters), row.name)
        with tp.set_backend(support.backend_of(row.name, implementation).name, providers=[implementation, "generic"]):
            explained = operator.explain(*there, **given)
            result = operator(*there, **given)
        assert explained.kernel == implementation or "float64" in pair, explained
        assert_right(result, operator, args, parameters)


# --- nothing is computed in float64 ------------------------------------------------------------------

WITHOUT_FLOAT64 = [name for name in CALLS if name != "rope"]  # whose angles are float64, as documented


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "float64" not in pair], ids="-".join)
@pytest.mark.parametrize("name", WITHOUT_FLOAT64)
def test_bodies_compute_in_float32(name, pair):
    """A program of JAX says in which dtypes, also where float64 is at hand."""
    support.require("jax")
    import jax

    operator, args, parameters = call_of(name, *pair)
    with support.holding("jax", "float64"):
        there, given = support.there((args, parameters), "jax")
        text = str(jax.make_jaxpr(lambda *xs, **ps: operator.generic(*xs, *there[len(xs) :], **ps))(there[0], **given))
        assert "f32" in text
        assert "f64" not in text
        wide = {key: value.astype("float64") for key, value in given.items()}
        program = jax.make_jaxpr(lambda *xs, **ps: operator.generic(*xs, *there[len(xs) :], **ps))(there[0], **wide)
        assert "f64" in str(program)  # float64 would be seen


# --- under transformations ---------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_jax_jit_and_gradients(name, half):
    support.require("jax")
    import jax

    operator, args, parameters = call_of(name, half, "float32")
    there, given = support.there((args, parameters), "jax")

    def call(x, given):
        return first(operator(x, *there[1:], **given))

    assert_right(jax.jit(call)(there[0], given), operator, args, parameters)
    gradients = jax.grad(lambda x, given: call(x, given).astype("float32").sum(), (0, 1))(there[0], given)
    assert_gradients(gradients[0], gradients[1], there[0], given)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_torch_autograd(name, half):
    torch = support.require("torch") and pytest.importorskip("torch")
    operator, args, parameters = call_of(name, half, "float32")
    there, given = support.there((args, parameters), "torch")
    x = there[0].requires_grad_()
    given = {key: value.requires_grad_() for key, value in given.items()}
    result = first(operator(x, *there[1:], **given))
    assert_right(result.detach(), operator, args, parameters)
    result.to(torch.float32).sum().backward()
    assert_gradients(x.grad, {key: value.grad for key, value in given.items()}, x, given)


def assert_gradients(of_x, of_parameters, x, parameters):
    """Assert that gradients are finite, not all zero, and have the dtypes of what they belong to."""
    assert of_x.dtype == x.dtype
    for key, gradient in of_parameters.items():
        assert gradient.dtype == parameters[key].dtype
        values = support.back(gradient).astype(np.float64)
        assert np.isfinite(values).all()
        assert np.abs(values).max() > 0


# --- completeness ------------------------------------------------------------------------------------


def floating_arrays(operator, case):
    args, kwargs = case.build()
    arguments = operator.canonical(*args, **kwargs)
    return [key for key, value in arguments.items() if isinstance(value, np.ndarray) and value.dtype == np.float64]


# Arrays beside the first that hold data, not parameters: they have its dtype, or are numbers to draw with.
DATA = {"residual", "up", "k", "v", "positions", "rng"}


@functools.cache
def parameters_of(name):
    operator = OPERATORS[name]
    found = {key for case in CASES[name] for key in floating_arrays(operator, case)[1:]}
    return found - DATA


def test_every_operator_with_parameters_is_here():
    tested = {}
    for name, (_, parameters) in CALLS.items():
        tested.setdefault(name.partition("-")[0], set()).update(parameters)
    found = {name: parameters_of(name) for name in OPERATORS if parameters_of(name)}
    found["quantized_linear"] = found["quantized_linear"] | {"scales"}
    dequantized = found.pop("dequantize", set())
    assert dequantized <= {"biases"}
    assert tested == found


@pytest.mark.parametrize("name", sorted({name.partition("-")[0] for name in CALLS}))
def test_float32_parameters_are_among_the_cases(name):
    """So that every backend, also of other authors, is tested with them."""

    def mixed(case):
        args, kwargs = case.build(dtype_name="float16")
        arguments = OPERATORS[name].canonical(*args, **kwargs)
        return {key for key, v in arguments.items() if isinstance(v, np.ndarray) and v.dtype == np.float32}

    found = set().union(*(mixed(case) for case in CASES[name] if "float16" in case.dtypes))
    assert parameters_of(name) <= found
