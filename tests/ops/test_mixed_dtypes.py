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
from tensorops._providers import PROVIDERS
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, DTYPES, REFERENCES, assert_matches

rng = np.random.default_rng(5)


def normal(*shape):
    return rng.standard_normal(shape)


PACKED, SCALES, BIASES = REFERENCES["quantize"](normal(6, 64), bits=4, group_size=32)
HEADS = (normal(1, 2, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8))

STACK = [np.stack(3 * [a]) for a in (PACKED, SCALES, BIASES)]
EXPERTS = np.asarray([2, 0, 2, 1])


# Data of the dtype of x, parameters, which may have another, and options; a dash and a remark follow the name.
CALLS = {
    "rms_norm": ((normal(3, 33),), {"weight": normal(33)}),
    "add_rms_norm": ((normal(3, 33), normal(3, 33)), {"weight": normal(33)}),
    "layer_norm": ((normal(3, 33),), {"weight": normal(33), "bias": normal(33)}),
    "add_layer_norm": ((normal(3, 33), normal(3, 33)), {"weight": normal(33), "bias": normal(33)}),
    "group_norm": ((normal(3, 6, 5), 2), {"weight": normal(6), "bias": normal(6)}),
    "instance_norm": ((normal(3, 6, 5),), {"weight": normal(6), "bias": normal(6)}),
    "linear": ((normal(3, 33),), {"weight": normal(6, 33), "bias": normal(6)}),
    "linear_activation": ((normal(3, 33),), {"weight": normal(6, 33), "bias": normal(6)}, {"activation": "gelu"}),
    "gated_linear_unit": ((normal(3, 33),), {"gate_weight": normal(6, 33), "up_weight": normal(6, 33)}),
    "quantized_linear": ((normal(3, 64), PACKED), {"scales": SCALES, "biases": BIASES}),
    "grouped_linear": ((normal(4, 33), EXPERTS), {"weight": normal(3, 6, 33), "bias": normal(3, 6)}),
    "grouped_quantized_linear": ((normal(4, 64), EXPERTS, STACK[0]), {"scales": STACK[1], "biases": STACK[2]}),
    "causal_conv1d": ((normal(2, 3, 9),), {"weight": normal(9, 4), "bias": normal(9)}, {"activation": "silu"}),
    "gated_delta_rule": (
        (normal(1, 2, 7, 4), 0.3 * normal(1, 2, 7, 4), normal(1, 2, 7, 4)),
        {"g": -rng.random((1, 2, 7)), "beta": rng.random((1, 2, 7))},
    ),
    "rope": ((normal(1, 2, 3, 8), np.arange(3)), {"freqs": normal(4)}),
    "rope-tables": ((normal(1, 2, 3, 8), np.arange(3)), {"cos": normal(3, 4), "sin": normal(3, 4)}),
    "cross_entropy-weight": ((normal(3, 9), np.arange(3)), {"weight": rng.random(9) + 0.1}),
    "cross_entropy-probabilities": ((normal(3, 9),), {"targets": rng.dirichlet(np.ones(9), 3)}),
    "linear_cross_entropy": (
        (normal(3, 9),),
        {"weight": normal(5, 9), "bias": normal(5), "ce_weight": rng.random(5) + 0.1},
        {"targets": np.arange(3)},
    ),
    "logsumexp": ((normal(3, 33),), {"b": np.abs(normal(3, 33))}),
    "linear_cross_entropy-probabilities": (
        (normal(3, 9),),
        {"weight": normal(5, 9), "targets": rng.dirichlet(np.ones(5), 3)},
    ),
    "moe": (
        (normal(4, 16), normal(4, 3), normal(3, 16, 16)),
        {"down_proj": normal(3, 16, 8), "shared_gate_up_proj": normal(8, 16), "shared_down_proj": normal(16, 4)},
        {"top_k": 2},
    ),
    "multi_head_attention": (
        (normal(2, 5, 16),),
        {"q_proj_weight": normal(16, 16), "out_proj_weight": normal(16, 16), "out_proj_bias": normal(16)},
        {"num_heads": 2},
    ),
    "scaled_dot_product_attention-mask": (HEADS, {"mask": normal(3, 5)}),
    "scaled_dot_product_attention-sinks": (HEADS, {"sinks": normal(2)}),
}
# The dtypes of x and of the parameters.
PAIRS = [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16"), ("float32", "bfloat16")]
PAIRS += [("bfloat16", "float16"), ("float64", "float32")]
# Where kernels leave more than float64 to bodies: providers, and pairs.
COMPILED = {"cpu", "torch_cpu", "jax_ffi"}
LEFT_TO_BODIES = {
    "linear": ({"torch_cpu"}, PAIRS),  # torch's own product, of one dtype
    "logsumexp": (COMPILED | {"pallas", "pyopencl"}, PAIRS),
    "rope-tables": ({"mlx_fast"}, PAIRS),
    "cross_entropy-weight": (COMPILED, PAIRS[2:]),
    "cross_entropy-probabilities": (COMPILED, PAIRS[2:]),
    "linear_cross_entropy-probabilities": (COMPILED, PAIRS),
}


def cast(value, dtype):
    return value.astype(DTYPES[dtype]) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


def call_of(name, of_x, of_parameters):
    """Return the operator, and the data, parameters and options of a call in NumPy arrays."""
    data, parameters, options = (*CALLS[name], {})[:3]
    given = {key: cast(value, of_parameters) for key, value in parameters.items()}
    return OPERATORS[name.partition("-")[0]], tuple(cast(value, of_x) for value in data), given, options


def first(result):
    return result[0] if isinstance(result, tuple) else result


def assert_right(result, operator, args, parameters, options):
    expected = first(REFERENCES[operator.__name__](*args, **parameters, **options))
    dtype = args[0].dtype.name
    # Some of MLX's own kernels round scores of half types.
    tolerance = 4 if dtype in HALVES else 128
    if operator.__name__ == "multi_head_attention":  # each of its steps rounds
        tolerance *= 4
    assert_matches(support.back(first(result)), expected, dtype, tolerance=tolerance, scale_axis=None)


def every_implementation():
    for name in CALLS:
        operator = OPERATORS[name.partition("-")[0]]
        for row in LIBRARIES.values():
            for implementation in support.implementations(operator, row):
                if implementation in PROVIDERS and PROVIDERS[implementation].devices.get(row.name):
                    continue  # its arrays would have to be on that device
                for pair in PAIRS:
                    label = f"{name}-{row.name}-{implementation}-{pair[0]}-{pair[1]}"
                    yield pytest.param(name, row, implementation, pair, id=label)


@pytest.mark.costly(6)
@pytest.mark.dimensions
@pytest.mark.parametrize(("name", "row", "implementation", "pair"), list(every_implementation()))
def test_results_have_the_dtype_of_x(name, row, implementation, pair):
    """Kernels compute them too, with few exceptions."""
    support.require(row.name)
    for dtype in pair:
        if dtype not in support.dtypes_of(row.name):
            pytest.skip(f"{row.name} holds no {dtype}")
    operator, args, parameters, options = call_of(name, *pair)
    with support.holding(row.name, pair[0]):
        there, given, static = support.there((args, parameters, options), row.name)
        with tp.set_backend(support.backend_of(row.name, implementation).name, providers=[implementation, "generic"]):
            explained = operator.explain(*there, **given, **static)
            result = operator(*there, **given, **static)
        providers, pairs = LEFT_TO_BODIES.get(name, ((), ()))
        by_body = "float64" in pair or (implementation in providers and pair in pairs)
        assert explained.kernel == implementation or by_body, explained
        assert_right(result, operator, args, parameters, options)


# --- nothing is computed in float64 ------------------------------------------------------------------

WITHOUT_FLOAT64 = [name for name in CALLS if not name.startswith("rope")]  # whose angles are float64, as documented


@pytest.mark.costly(3)
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "float64" not in pair], ids="-".join)
@pytest.mark.parametrize("name", WITHOUT_FLOAT64)
def test_bodies_compute_in_float32(name, pair):
    """A program of JAX says in which dtypes, also where float64 is at hand."""
    support.require("jax")
    import jax

    operator, args, parameters, options = call_of(name, *pair)
    with support.holding("jax", "float64"):
        there, given, static = support.there((args, parameters, options), "jax")

        def call(x, **given):
            return operator.generic(x, *there[1:], **given, **static)

        text = str(jax.make_jaxpr(call)(there[0], **given))
        assert "f32" in text
        assert "f64" not in text
        wide = {key: value.astype("float64") for key, value in given.items()}
        program = jax.make_jaxpr(call)(there[0], **wide)
        assert "f64" in str(program)  # float64 would be seen


# --- nothing is computed in half types -----------------------------------------------------------------

ROUNDING = (
    "add", "sub", "mul", "div", "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erf_inv", "sqrt",
    "rsqrt", "pow", "integer_pow", "square", "sin", "cos", "reduce_sum", "cumsum", "dot_general",
)  # fmt: skip


def rounded_in_halves(program):
    """Return the operations of a program of JAX that round numbers of half types."""
    found = set()
    for step in program.eqns:
        for inner in jax_programs(step.params.values()):
            found |= rounded_in_halves(inner)
        if step.primitive.name in ROUNDING and any(v.aval.dtype.name in HALVES for v in step.invars):
            found.add(step.primitive.name)
    return found


def jax_programs(values):
    for value in values:
        if isinstance(value, tuple | list):
            yield from jax_programs(value)
        elif hasattr(getattr(value, "jaxpr", value), "eqns"):
            yield getattr(value, "jaxpr", value)


def test_a_body_that_forgets_to_widen_is_noticed():
    support.require("jax")
    import jax

    x = jax.numpy.ones(3, "float16")
    assert rounded_in_halves(jax.make_jaxpr(jax.jit(lambda x: x * x))(x).jaxpr) == {"mul"}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", OPERATORS)
def test_bodies_widen_halves_and_narrow_results(name, half):
    """Of every operator in the registry, so that a new one that forgets it is noticed."""
    support.require("jax")
    import jax

    operator = OPERATORS[name]
    args, kwargs = CASES[name][0].build(dtype_name=half)
    leaves, tree = jax.tree.flatten(support.there((args, kwargs), "jax"))

    def call(*arrays):
        remaining = iter(arrays)
        given, options = tree.unflatten([next(remaining) if isinstance(x, jax.Array) else x for x in leaves])
        return operator.generic(*given, **options)

    program = jax.make_jaxpr(call)(*(x for x in leaves if isinstance(x, jax.Array)))
    assert rounded_in_halves(program.jaxpr) == set()
    widened = operator.rows(operator.canonical(*args, **kwargs)).widened if operator.divides else ()
    for i, x in enumerate(program.out_avals):
        if "float" in x.dtype.name:
            assert x.dtype.name == ("float32" if i in widened else half)


# --- under transformations ---------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_jax_jit_and_gradients(name, half):
    support.require("jax")
    import jax

    operator, args, parameters, options = call_of(name, half, "float32")
    there, given, static = support.there((args, parameters, options), "jax")

    def call(x, given):
        return first(operator(x, *there[1:], **given, **static))

    assert_right(jax.jit(call)(there[0], given), operator, args, parameters, options)
    gradients = jax.grad(lambda x, given: call(x, given).astype("float32").sum(), (0, 1))(there[0], given)
    assert_gradients(gradients[0], gradients[1], there[0], given)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", CALLS)
def test_torch_autograd(name, half):
    torch = support.require("torch") and pytest.importorskip("torch")
    operator, args, parameters, options = call_of(name, half, "float32")
    there, given, static = support.there((args, parameters, options), "torch")
    x = there[0].requires_grad_()
    given = {key: value.requires_grad_() for key, value in given.items()}
    result = first(operator(x, *there[1:], **given, **static))
    assert_right(result.detach(), operator, args, parameters, options)
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
DATA = {"residual", "up", "k", "v", "positions", "rng", "state"}


@functools.cache
def parameters_of(name):
    operator = OPERATORS[name]
    found = {key for case in CASES[name] for key in floating_arrays(operator, case)[1:]}
    return found - DATA


def test_every_operator_with_parameters_is_here():
    tested = {}
    for name, (_, parameters, *_) in CALLS.items():
        tested.setdefault(name.partition("-")[0], set()).update(parameters)
    data_only = {"einsum"}
    composed = {
        name for name, operator in OPERATORS.items() if operator.calls
    }  # parameters are those of what they call
    found = {name: parameters_of(name) for name in OPERATORS.keys() - data_only if parameters_of(name)}
    for name in composed:
        assert tested[name] <= found[name]
        found[name] = tested[name]
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
    assert found if OPERATORS[name].calls else parameters_of(name) <= found
