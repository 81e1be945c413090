"""The Pallas kernels for derivatives: values in Pallas' TPU interpreter, and programs that are exported for TPUs."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.kernels.pallas import blocks, compiling_for
from tensorops.testing import DTYPES, assert_matches

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas.planners import REVERSE_PLANNERS  # noqa: E402

# Of each operator: how many arrays have rows and how many are parameters of every row.
ARRAYS = {
    "rms_norm": (1, 1),
    "add_rms_norm": (2, 1),
    "layer_norm": (1, 2),
    "l2_norm": (1, 0),
    "softmax": (1, 0),
    "log_softmax": (1, 0),
    "logsumexp": (1, 0),
    "cross_entropy": (1, 0),
}


@pytest.fixture
def steps():
    with interpreting() as found:
        yield found


def arrays(name, shape, rng, dtype):
    rows, parameters = ARRAYS[name]
    shapes = [shape] * rows + [shape[-1:]] * parameters
    found = [rng.standard_normal(s).astype(DTYPES[dtype]) for s in shapes]
    if name == "cross_entropy":
        found.append(rng.integers(0, shape[-1], shape[:-1]).astype(np.int32))
    return found


def gradients(name, values, dys, wanted, options):
    """Return the gradients that the kernel computes."""
    arguments = OPERATORS[name].canonical(*support.there(values, "jax"), **support.there(options, "jax"))
    rest = support.there(dys, "jax")
    program = REVERSE_PLANNERS[name]("v5e", wanted, rest, **arguments)
    assert not isinstance(program, str), program
    given = {key: value for key, value in arguments.items() if isinstance(value, jax.Array)}
    found = program(rest, **given)
    jax.block_until_ready(found)
    return [support.back(y) for y in found]


def expected(name, values, dys, wanted, options):
    """Return the gradients of the body in float64."""
    with jax.enable_x64(True):
        operator = OPERATORS[name]
        wide = [jnp.asarray(v, np.float64 if v.dtype.kind not in "iu" else None) for v in values]
        arguments = operator.canonical(*wide, **support.there(options, "jax"))

        def results(*moved):
            return jax.tree.leaves(operator.generic(**{**arguments, **dict(zip(wanted, moved, strict=True))}))

        _, back = jax.vjp(results, *(arguments[key] for key in wanted))
        return [np.asarray(g) for g in back([jnp.asarray(dy, np.float64) for dy in dys])]


def check(name, values, dtype, rng, wanted, **options):
    options_there = support.there(options, "jax")
    results = jax.eval_shape(lambda *xs: OPERATORS[name].generic(*xs, **options_there), *support.there(values, "jax"))
    dys = [rng.standard_normal(y.shape).astype(DTYPES[dtype]) for y in jax.tree.leaves(results)]
    found = gradients(name, values, dys, wanted, options)
    for key, y, reference in zip(wanted, found, expected(name, values, dys, wanted, options), strict=True):
        assert y.dtype == DTYPES[dtype], key
        assert_matches(y, reference, dtype, tolerance=64)
    assert not races()
    return found


def every_array(name):
    names = {"add_rms_norm": ("x", "residual", "weight"), "cross_entropy": ("logits",)}
    return names.get(name, ("x", "weight", "bias")[: sum(ARRAYS[name])])


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ARRAYS)
def test_values(name, dtype, steps, rng):
    check(name, arrays(name, (3, 5, 65), rng, dtype), dtype, rng, every_array(name))
    assert steps


# Several blocks, the last of them incomplete: it must add nothing to the gradients of parameters.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ARRAYS)
def test_several_blocks(name, steps, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_ENOUGH", 2**16)
    check(name, arrays(name, (70, 150), rng, "float32"), "float32", rng, every_array(name))
    assert len(steps) > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "layer_norm"])
def test_some_of_the_gradients(name, steps, rng):
    values = arrays(name, (4, 30), rng, "float32")
    names = every_array(name)
    for wanted in (names[1:2], names[::-1]):
        check(name, values, "float32", rng, wanted)
    check(name, values[: ARRAYS[name][0]], "float32", rng, names[:1], eps=0.5)  # without parameters


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_rows_of_any_magnitude(name, steps, rng):
    x, *parameters = arrays(name, (4, 30), rng, "float32")
    sizes = np.array([0.0, 1e-30, 1e-3, 1e30], np.float32)
    check(name, [x * sizes[:, None], *parameters], "float32", rng, every_array(name))


@pytest.mark.exhaustive
def test_options_of_the_softmax_family(steps, rng):
    x = arrays("softmax", (4, 30), rng, "float32")
    x[0][1, 2], x[0][2, :29] = 1e30, -np.inf
    for name in ("softmax", "log_softmax"):
        check(name, x, "float32", rng, ("x",), axis=1)
        where = rng.random((4, 30)) > 0.5
        where[3] = False
        check(name, x, "float32", rng, ("x",), where=where)
    check("logsumexp", x, "float32", rng, ("x",), keepdims=True)
    check("rms_norm", [*arrays("rms_norm", (4, 30), rng, "float32")], "float32", rng, ("x", "weight"),
          weight_offset=1.0)  # fmt: skip


LOSSES = [{"z_loss": 0.1, "label_smoothing": 0.2}, {"ignore_index": 3}]


@pytest.mark.exhaustive
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction, weighted, steps, rng):
    for options, index in zip(LOSSES, ("int32", "uint32"), strict=True):
        logits, targets = arrays("cross_entropy", (6, 40), rng, "float32")
        targets = targets.astype(index)
        targets[:2] = 3
        weight = [rng.random(40).astype(np.float32)] if weighted else []
        check("cross_entropy", [logits, targets, *weight], "float32", rng, ("logits",), reduction=reduction, **options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_probabilities(weighted, steps, rng):
    logits, targets = rng.standard_normal((6, 40)), rng.dirichlet(np.ones(40), 6)
    weight = [rng.random(40)] if weighted else []
    values = [v.astype(np.float32) for v in (logits, targets, *weight)]
    check("cross_entropy", values, "float32", rng, ("logits",), z_loss=0.1, label_smoothing=0.2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_back(interleaved, steps, rng):
    x, positions = rng.standard_normal((2, 8, 128)).astype(np.float32), np.arange(8, dtype=np.int32)
    check("rope", [x, positions], "float32", rng, ("x",), interleaved=interleaved, dims=48, attention_factor=1.5)


# --------------------------------------------------------------------------------------------- programs for TPUs


def loss(name):
    def total(*xs):
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(OPERATORS[name](*xs)))

    return total


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", ARRAYS)
def test_programs_have_the_kernels(name, rng):
    values = support.there(arrays(name, (16, 256), rng, "float32"), "jax")
    places = tuple(range(len(every_array(name))))
    with compiling_for("v5e"):
        text = exported(jax.value_and_grad(loss(name), places), *values)
        assert f'kernel_name = "{name}"' in text
        assert f'kernel_name = "{name}_gradient"' in text
        assert text.count("@tpu_custom_call") == 2
    # This process has no TPU: without the context, the gradient is that of the body.
    assert f'kernel_name = "{name}_gradient"' not in exported(jax.grad(loss(name)), *values)


def test_mapped_gradients_have_the_kernel():
    x, w = jnp.ones((5, 16, 256)), jnp.ones(256)
    with compiling_for("v5e"):
        of_x = exported(jax.vmap(jax.grad(loss("rms_norm")), (0, None)), x, w)
        of_weight = exported(jax.vmap(jax.grad(loss("rms_norm"), 1), (0, None)), x, w)
    assert 'kernel_name = "rms_norm_gradient"' in of_x
    assert 'kernel_name = "rms_norm_gradient"' not in of_weight  # one for each of the mapped: the body's


def test_compiling_for_a_generation():
    x = jax.ShapeDtypeStruct((16, 100_000), jnp.float32)  # its rows fit the vector memory of v5e, not of v4
    kernels = {}
    for generation in ("v4", "v5e"):
        with compiling_for(generation):
            kernels[generation] = exported(lambda x: tp.rms_norm(x), x).count("@tpu_custom_call")
    assert kernels == {"v4": 0, "v5e": 1}
    with (
        pytest.raises(ValueError, match="unknown generation 'v1'; valid names: v4, v5e, v5p, v6e, v7"),
        compiling_for("v1"),
    ):
        pass
    y = tp.rms_norm(jnp.ones((2, 3)))
    with compiling_for("v5e"):  # what is not traced computes here
        np.testing.assert_array_equal(tp.rms_norm(jnp.ones((2, 3))), y)


REFUSED = [
    ("cross_entropy", ("weight",), "the gradient is not that of logits alone"),
    ("rope", ("cos",), "the gradient is not that of x alone"),
]


@pytest.mark.parametrize(("name", "wanted", "reason"), REFUSED)
def test_refusals(name, wanted, reason):
    x = np.ones((1, 4, 128), np.float32)
    table = np.ones((4, 64), np.float32)
    options = {"cos": table, "sin": table} if name == "rope" else {"targets": np.zeros((1, 4), np.int32)}
    arguments = OPERATORS[name].canonical(x, **options)
    assert REVERSE_PLANNERS[name]("v5e", wanted, [x], **arguments) == reason
