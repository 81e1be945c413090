"""The compiled kernels in JAX's programs: which run, their values, and every transformation with them."""

import functools
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import DTYPES, REFERENCES, assert_matches

support.require("jax")
support.require_provider("jax_ffi")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

# Operators with a kernel, as functions of rows and of the weights of a row.
ROWS = {
    "sigmoid": (1, 0),
    "silu": (1, 0),
    "softplus": (1, 0),
    "gelu": (1, 0),
    "quick_gelu": (1, 0),
    "mish": (1, 0),
    "elu": (1, 0),
    "selu": (1, 0),
    "swiglu": (2, 0),
    "geglu": (2, 0),
    "softmax": (1, 0),
    "log_softmax": (1, 0),
    "logsumexp": (1, 0),
    "rms_norm": (1, 1),
    "add_rms_norm": (2, 1),
    "layer_norm": (1, 2),
    "l2_norm": (1, 0),
}
# In units in the last place of the largest element of a row.
TOLERANCE = {"float16": 2, "bfloat16": 2, "float32": 16, "float64": 16}
every_kernel = pytest.mark.parametrize("name", ROWS)


def arrays(name, shape, rng, dtype="float32"):
    rows, weights = ROWS[name]
    shapes = [shape] * rows + [shape[-1:]] * weights
    return [rng.standard_normal(s).astype(DTYPES[dtype]) for s in shapes]


def program(function, *args):
    """Return the text of the program that JAX passes to XLA."""
    return jax.jit(lambda *xs: function(*xs)).lower(*args).as_text()


def calls(name, function, *args):
    return f"@tensorops.{name}(" in program(function, *args)


def close(actual, expected, tolerance=2e-5):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def test_every_kernel_is_here():
    assert {name for name, operator in OPERATORS.items() if "jax_ffi" in operator.kernels} == {
        *ROWS,
        "scaled_dot_product_attention",
        "sample",
        "moe",
        "linear_cross_entropy",
        "group_norm",
        "instance_norm",
        "quantized_linear",
        "top_k",
        "grouped_linear",
        "grouped_quantized_linear",
        "linear",
        "cross_entropy",
        "rope",
        "causal_conv1d",
        "gated_delta_rule",
    }


def test_importing_the_provider_imports_no_jax():
    code = "import sys, tensorops.kernels.jax_ffi; sys.exit('jax' in sys.modules)"
    assert support.python(code).returncode == 0


@pytest.mark.parametrize("dtype", DTYPES)
@every_kernel
def test_values(name, dtype, rng):
    with support.holding("jax", dtype):
        # Odd lengths, one row, and enough of them for every thread of XLA.
        for shape in ((1, 1), (2, 2, 65), (301, 515)):
            args = arrays(name, shape, rng, dtype)
            there = support.there(args, "jax")
            with tp.trace() as log:
                OPERATORS[name](*there)
            assert [r.kernel for r in log] == ["jax_ffi"]
            expected = REFERENCES[name](*args)
            for target in support.TARGETS:
                with support.using_target(target):
                    matches(OPERATORS[name](*there), expected, dtype)


def matches(result, expected, dtype):
    for y, e in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert_matches(support.back(y), e, dtype, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("parameter", ["float16", "bfloat16"])
def test_float32_weights_beside_half_types(parameter, rng):
    x, w, b = arrays("layer_norm", (5, 33), rng)
    x = x.astype(DTYPES[parameter])
    args = support.there((x, w, b), "jax")
    assert tp.layer_norm.explain(*args).kernel == "jax_ffi"
    matches(tp.layer_norm(*args), REFERENCES["layer_norm"](x, w, b), parameter)
    matches(tp.rms_norm(*args[:2]), REFERENCES["rms_norm"](x, w), parameter)


# Weights that the handlers do not read beside this x, and what they are widened to.
WIDENED = [("float32", "float16"), ("float32", "bfloat16"), ("float16", "bfloat16"), ("bfloat16", "float16")]


@pytest.mark.parametrize(("dtype", "of_weight"), WIDENED)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_other_weights_are_widened_for_the_kernel(traced, dtype, of_weight, rng):
    x, w, b = arrays("layer_norm", (5, 33), rng)
    x, w, b = x.astype(DTYPES[dtype]), w.astype(DTYPES[of_weight]), b.astype(DTYPES["float32"])
    there = support.there((x, w, b), "jax")
    assert tp.layer_norm.explain(*there).kernel == "jax_ffi"
    assert calls("layer_norm", tp.layer_norm, *there)
    wrap = jax.jit if traced else (lambda f: f)
    matches(wrap(tp.layer_norm)(*there), REFERENCES["layer_norm"](x, w, b), dtype)
    matches(wrap(tp.rms_norm)(*there[:2]), REFERENCES["rms_norm"](x, w), dtype)
    y = wrap(functools.partial(tp.group_norm, num_groups=11))(there[0], weight=there[1], bias=there[2])
    matches(y, REFERENCES["group_norm"](x, 11, w, b), dtype)


CHANNELS = [((1, 6), 3), ((3, 6, 1, 1), 2), ((2, 6, 5, 7), 3), ((3, 8, 33, 31), 8), ((1, 4, 400, 401), 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "groups"), CHANNELS)
def test_groups_of_channels(shape, groups, dtype, rng):
    x, w, b = (rng.standard_normal(s).astype(DTYPES[dtype]) for s in (shape, shape[1:2], shape[1:2]))
    with support.holding("jax", dtype):
        for count, call, parameters in (
            (groups, functools.partial(tp.group_norm, num_groups=groups), {"weight": w, "bias": b}),
            (groups, functools.partial(tp.group_norm, num_groups=groups, eps=0.5), {"weight": w}),
            (shape[1], tp.instance_norm, {"weight": w, "bias": b}),
        ):
            expected = REFERENCES["group_norm"](x, count, eps=0.5 if "bias" not in parameters else 1e-5, **parameters)
            there, options = support.there((x, parameters), "jax")
            with tp.trace() as log:
                y = call(there, **options)
            assert [r.kernel for r in log] == ["jax_ffi"]
            every = tuple(range(1, x.ndim))
            assert_matches(support.back(y), expected, dtype, tolerance=TOLERANCE[dtype], scale_axis=every)


def test_groups_of_channels_under_transformations(rng):
    """To map over an axis makes the batch larger: channels stay the second axis."""
    x, w, b = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((5, 2, 6, 7), (6,), (6,)))

    def group(x, w, b):
        return tp.group_norm(x, 3, w, b)

    expected = np.stack([REFERENCES["group_norm"](e, 3, w, b) for e in x])
    mapped = jax.jit(jax.vmap(group, (0, None, None)))
    assert calls("group_norm", mapped, x, w, b)
    close(mapped(x, w, b), expected)
    across = jax.vmap(group, (2, None, None), 2)  # each of them has every batch and channel
    close(across(jnp.moveaxis(x, 0, 2), w, b), np.moveaxis(expected, 0, 2))
    close(jax.vmap(group)(x, jnp.stack([w] * 5), jnp.stack([b] * 5)), expected)
    close(jax.vmap(tp.instance_norm)(x), np.stack([REFERENCES["instance_norm"](e) for e in x]))
    gradients = jax.jit(jax.grad(lambda *a: jnp.sum(group(*a) ** 3), (0, 1, 2)))
    bodies = jax.jit(jax.grad(lambda x, w, b: jnp.sum(tp.group_norm.generic(x, 3, w, b) ** 3), (0, 1, 2)))
    close(gradients(x[0], w, b), bodies(x[0], w, b), 1e-4)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 3e38, 1e-38])
@every_kernel
def test_special_values_are_those_of_the_body(name, special, rng):
    args = arrays(name, (4, 19), rng)
    args[0][1, 3] = special
    there = support.there(args, "jax")
    close(OPERATORS[name](*there), jax.jit(OPERATORS[name].generic)(*there))


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no huge pages")
def test_large_results_request_huge_pages():
    """Of the memory that holds a result, Linux says whether huge pages were requested."""
    y = jax.jit(tp.silu)(jnp.ones((4096, 4096)))
    middle = y.unsafe_buffer_pointer() + y.nbytes // 2
    flags = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
        elif name == "VmFlags:" and begin <= middle < end:
            flags = rest
    assert "hg" in flags.split()


def test_options_reach_the_kernel(rng):
    (x, w) = arrays("rms_norm", (3, 9), rng)
    x = 1e-3 * x
    for axis, eps, offset in itertools.product((-1, 1), (0.0, 1e-6, 2), (0.0, 1.0)):
        options = {"axis": axis, "eps": eps, "weight_offset": offset}
        there = support.there((x, w), "jax")
        with tp.set_backend("jax", providers=["jax_ffi"]):
            y = tp.rms_norm(*there, **options)
        close(y, REFERENCES["rms_norm"](x, w, **options))
        assert calls("rms_norm", functools.partial(tp.rms_norm, **options), *there)
    close(tp.gelu(jnp.asarray(x), approximate="tanh"), REFERENCES["gelu"](x, approximate="tanh"))
    assert calls("gelu", functools.partial(tp.gelu, approximate="tanh"), x)
    for name in ("elu", "quick_gelu"):
        for alpha in (0.25, 2):
            y = OPERATORS[name](jnp.asarray(x), alpha=alpha)
            close(y, REFERENCES[name](x, alpha=alpha))
            assert calls(name, functools.partial(OPERATORS[name], alpha=alpha), x)
    y = tp.logsumexp(jnp.asarray(x), keepdims=True)
    close(y, REFERENCES["logsumexp"](x, keepdims=True))
    close(tp.layer_norm(jnp.asarray(x), eps=0.25), REFERENCES["layer_norm"](x, eps=0.25))


# --- what the kernels do not take --------------------------------------------------------------------


X = np.zeros((2, 3), dtype=np.float32)
REFUSED = [
    (lambda x: tp.softmax.explain(jnp.ones((2, 3, 4)), axis=(0, 2)), "the axes of x are not one run of memory"),
    (lambda x: tp.logsumexp.explain(x[:0], axis=(0, 1)), "an axis of x along which it reduces is empty"),
    (
        lambda x: tp.log_softmax.explain(x, dtype=jnp.float16),
        "dtype is neither the dtype of x nor, for half types, float32",
    ),
    (lambda x: tp.softmax.explain(x, where=x > 0), "where is given"),
    (lambda x: tp.logsumexp.explain(x[:, :0]), "an axis of x along which it reduces is empty"),
    (lambda x: tp.layer_norm.explain(jnp.ones((2, 3, 4)), axis=(0, 2)), "the axes of x are not one run of memory"),
    (lambda x: tp.instance_norm.explain(x[None], channel_axis=2), "channel_axis 2 is not the second of x"),
    (lambda x: tp.linear.explain(x, x[:0]), "x or weight is empty"),
    (lambda x: tp.linear.explain(jnp.ones((33, 3)), x), "there are more than 32 rows, which XLA computes as fast"),
    (
        lambda x: tp.linear.explain(jnp.ones((257, 3)), x.astype(jnp.bfloat16)),
        "there are more than 256 rows, which XLA computes as fast",
    ),
    (lambda x: tp.cross_entropy.explain(x[:0], jnp.zeros(0, int)), "logits is empty"),
    (lambda x: tp.cross_entropy.explain(x, x.astype(jnp.float16)), "targets has another dtype than logits"),
    (
        lambda x: tp.cross_entropy.explain(x, jnp.zeros(2, int), x[0].astype(jnp.bfloat16)),
        "weight has another dtype than logits",
    ),
    (lambda x: tp.rope.explain(x[:0, None], jnp.arange(1), dims=2), "x is empty"),
    (lambda x: tp.rope.explain(x[None], jnp.arange(2), dims=0), "dims is not an even number of features of x"),
]

PACKED, SCALES = np.zeros((5, 16), np.uint8), np.zeros((5, 1), np.float32)


def explain_quantized(x, weight=PACKED, scales=SCALES, biases=SCALES, **options):
    x = np.zeros((2, 32), np.float32) if x is X else x
    return tp.quantized_linear.explain(*support.there((x, weight, scales, biases), "jax"), **options)


REFUSED += [
    (lambda x: explain_quantized(X, PACKED[:0], SCALES[:0], SCALES[:0]), "x or weight is empty"),
    (lambda x: explain_quantized(X, biases=SCALES.astype(np.float16)), "biases has another dtype than scales"),
]


@pytest.mark.parametrize(("explain", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_refusals(explain, reason):
    found = explain(jnp.asarray(X))
    assert (found.kernel, found.refused["jax_ffi"]) == ("generic", reason)


def test_a_jax_that_does_not_take_them(monkeypatch):
    from tensorops.kernels.jax_ffi import _launch

    def refuse(*args, **kwargs):
        raise ValueError("the version is 9.9")

    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    _launch._unusable.cache_clear()
    try:
        found = tp.silu.explain(jnp.asarray(X))
        y = tp.silu(jnp.asarray(X))
    finally:
        _launch._unusable.cache_clear()
    assert found.refused["jax_ffi"].endswith("does not take the kernels: the version is 9.9")
    close(y, X)


MALFORMED = {
    "result": ("silu", X[0], (X,)),
    "dtype": ("silu", X.astype(np.int32), (X.astype(np.int32),)),
    "few": ("swiglu", X, (X,)),
    "many": ("softmax", X, (X, X)),
    "shapes": ("swiglu", X, (X, X[:1])),
    "weight": ("rms_norm", X, (X, X)),
    "weight-length": ("rms_norm", X, (X, X[0, :2])),
    "sum": ("logsumexp", X, (X,)),
    "channels": ("group_norm", X, (X, X[0], X[0, :2])),
    "no-channels": ("instance_norm", X[0], (X[0],)),
    "length": ("l2_norm", X, (X, X)),
    "narrower": ("softmax", X.astype(np.float16), (X,)),
    "wider": ("softmax", X.astype(np.float64), (X,)),
    "no-format": ("quantized_linear", X, (X, X.astype(np.uint8), X, X)),
    "weight-dtype": ("quantized_linear", X, (X, X, X, X)),
    "three-matrices": ("quantized_linear", X, (X, X)),
    "experts-dtype": ("grouped_linear", X, (X, X[:, 0], np.zeros((1, 3, 3), np.float32))),
    "experts-shape": ("grouped_linear", X, (X, np.zeros(3, np.int32), np.zeros((1, 3, 3), np.float32))),
    "linear-weight": ("linear", X, (X, X[:, :2])),
    "linear-bias": ("linear", X, (X, np.zeros((3, 3), np.float32), X[0, :2])),
    "linear-dtype": ("linear", X, (X, np.zeros((3, 3), np.int32))),
    "linear-result": ("linear", X, (X, X)),
    "targets-shape": ("cross_entropy", X[0, 0], (X, np.zeros(3, np.int32))),
    "targets-dtype": ("cross_entropy", X[0, 0], (X, np.zeros(2, bool))),
    "targets-probable": ("cross_entropy", X[0, 0], (X, X.astype(np.float16))),
    "class-weight": ("cross_entropy", X[0, 0], (X, np.zeros(2, np.int32), X[0, :2])),
    "loss-result": ("cross_entropy", X[:, 0], (X, np.zeros(2, np.int32))),
    "positions-shape": ("rope", X[None], (X[None], np.zeros(3, np.int32))),
    "no-dims": ("rope", X[None], (X[None], np.zeros(2, np.int32))),
    "stack": ("grouped_linear", X, (X, np.zeros(2, np.int32), X)),
    "stack-format": (
        "grouped_quantized_linear",
        X,
        (X, np.zeros(2, np.int32), np.zeros((1, 3, 3), np.uint8), np.ones((1, 3, 1), np.float32)),
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_handler_touches_nothing_it_does_not_know(case):
    """Programs are refused before; a handwritten call gives an error, not a crash."""
    name, like, args = MALFORMED[case]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: tensorops: {name}"):
        support.by_hand_in_jax(name, like, args)


def test_handlers_take_only_what_they_know():
    np.testing.assert_allclose(support.by_hand_in_jax("silu", X, (X,)), X)
    for attributes, wrong in (
        ({"base": np.float64(1)}, "was given an unknown option"),
        ({"eps": np.float32(1)}, "eps is not a number"),
        ({"eps": "1"}, "eps is not a number"),
        ({"axis": np.array([-1, 0])}, "axis is not one axis"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: tensorops: rms_norm.* {wrong}"):
            support.by_hand_in_jax("rms_norm", X, (X,), attributes)
    for names, args, wrong in ((("x", "weight"), (X,), "too few arrays"), (("x",), (X, X[0]), "too many arrays")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"tensorops: rms_norm was given {wrong}"):
            support.by_hand_in_jax("rms_norm", X, args, names=names)


# --- quantized matrices ------------------------------------------------------------------------------


def quantized(rng, shape, outputs, bits=4, mode="affine", dtype="float32", scales="float32"):
    """Return arguments of quantized_linear on the CPU, and the options."""
    w = rng.standard_normal((outputs, shape[-1]))
    packed, s, b = REFERENCES["quantize"](w, bits=bits, group_size=32, mode=mode)
    parameters = [None if a is None else a.astype(DTYPES[scales]) for a in (s, b)]
    return [rng.standard_normal(shape).astype(DTYPES[dtype]), packed, *parameters], {"bits": bits, "group_size": 32}


@pytest.mark.costly(2)
@pytest.mark.parametrize("scales", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantized_linear(bits, mode, dtype, scales, rng):
    # One row that one thread takes, one that all share, few rows, and many.
    for shape, outputs in (((32,), 3), ((1, 576), 1541), ((2, 3, 64), 40), ((200, 96), 130)):
        args, options = quantized(rng, shape, outputs, bits, mode, dtype, scales)
        there = support.there(args, "jax")
        with tp.set_backend("jax", providers=["jax_ffi"]):
            y = tp.quantized_linear(*there, **options)
        expected = REFERENCES["quantized_linear"](*args, **options)
        assert y.dtype == args[0].dtype
        size = (
            np.abs(args[0].astype(np.float64))
            @ np.abs(REFERENCES["dequantize"](*args[1:], **options).astype(np.float64)).T
        )
        unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
        error = np.abs(np.asarray(y, np.float64) - expected)
        assert (error <= 16 * 2.0**-24 * size + unit * np.abs(expected)).all()
        assert calls("quantized_linear", functools.partial(tp.quantized_linear, **options), *there)


def test_transformations_of_quantized_linear(rng):
    args, options = quantized(rng, (4, 3, 64), 5)
    x, *matrix = support.there(args, "jax")
    f = lambda x: tp.quantized_linear(x, *matrix, **options)  # noqa: E731
    g = jax.jit(lambda x: tp.quantized_linear.generic(x, *matrix, **options))
    assert calls("quantized_linear", jax.vmap(f), x)
    close(jax.vmap(f)(x), g(x), 1e-4)
    close(jax.jit(jax.vmap(jax.grad(loss(f))))(x), jax.grad(loss(g))(x), 1e-4)
    stacked = jax.vmap(lambda w: tp.quantized_linear(x, w, *matrix[1:], **options))(jnp.stack([matrix[0]] * 2))
    close(stacked, jnp.stack([g(x)] * 2), 1e-4)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k(dtype, largest, rng):
    """Rows that threads share, rows that one takes, and no element at all; indices in the width that JAX is set to."""
    select = functools.partial(tp.top_k, k=5, largest=largest)
    with jax.enable_x64(dtype == "float64"):
        for shape in ((7,), (3, 2, 40), (64, 6000)):
            x = rng.standard_normal(shape).astype(DTYPES[dtype])
            x[..., 1::3] = x[..., :1]
            (there,) = support.there((x,), "jax")
            values, indices = select(there)
            order = np.argsort((-x if largest else x).astype(np.float64), axis=-1, kind="stable")[..., :5]
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))
            assert indices.dtype == (np.int64 if dtype == "float64" else np.int32)
            assert calls("top_k", select, there)
        for result in tp.top_k(there, 0):
            assert result.shape == (64, 0)


def test_transformations_of_top_k(rng):
    (x,) = support.there((rng.standard_normal((4, 3, 17)).astype(np.float32),), "jax")
    f, g = (lambda x: tp.top_k(x, 3)), jax.jit(lambda x: tp.top_k.generic(x, 3))
    assert calls("top_k", jax.vmap(f), x)
    close(jax.vmap(f)(x), g(x), 0)
    close(jax.vmap(f, 1, 1)(x), g(x), 0)
    h, k = (lambda x: jnp.sum(jnp.sin(f(x)[0]))), (lambda x: jnp.sum(jnp.sin(g(x)[0])))
    close(*(jax.jit(jax.grad(each))(x) for each in (h, k)), 1e-6)
    close(*(jax.jit(lambda x, f=each: jax.jvp(f, (x,), (x,)))(x) for each in (h, k)), 1e-6)
    integers = jnp.arange(12).reshape(3, 4)
    assert calls("top_k", f, integers)
    close(f(integers), g(integers), 0)


# --- losses ------------------------------------------------------------------------------------------

# Options of cross_entropy; the weights and the targets are made for each case.
LOSSES = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.3},
    "weighted": {"weight": True},
    "squares": {"z_loss": 0.01},
    "everything": {"label_smoothing": 0.3, "weight": True, "z_loss": 0.01, "ignore_index": 1},
    "probabilities": {"probable": True},
    "probabilities-everything": {"probable": True, "label_smoothing": 0.3, "weight": True, "z_loss": 0.01},
}


def losses(rng, shape, dtype, *, weight=False, probable=False, index="int32", **options):
    """Return arguments of cross_entropy on the CPU, and the options."""
    logits = rng.standard_normal(shape).astype(DTYPES[dtype])
    targets = rng.integers(0, shape[-1], shape[:-1]).astype(index)
    if probable:
        targets = rng.dirichlet(np.ones(shape[-1]), shape[:-1]).astype(DTYPES[dtype])
    weights = rng.random(shape[-1]).astype(DTYPES[dtype]) if weight else None
    return [logits, targets, weights], options


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", LOSSES)
# One row without axes, few, and enough for every thread of XLA.
@pytest.mark.costly(2)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 65), (301, 515)], ids=str)
def test_cross_entropy(shape, variant, dtype, reduction, rng):
    args, options = losses(rng, shape, dtype, **LOSSES[variant])
    expected = REFERENCES["cross_entropy"](*args, reduction=reduction, **options)
    call = functools.partial(tp.cross_entropy, reduction=reduction, **options)
    with support.holding("jax", dtype):
        there = support.there(args, "jax")
        with tp.trace() as log:
            y = call(*there)
        assert [r.kernel for r in log] == ["jax_ffi"]
        assert y.dtype == args[0].dtype
        matches(y, expected, dtype)
        if len(shape) == 3:
            matches(jax.jit(call)(*there), expected, dtype)
            assert calls("cross_entropy", call, *there)


@pytest.mark.parametrize("index", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_targets_of_every_dtype(index, rng):
    ignored = 3 if index.startswith("u") else -7
    (logits, targets, _), _ = losses(rng, (40, 100), "float32", index=index)
    targets[::3] = ignored
    expected = REFERENCES["cross_entropy"](logits, targets, ignore_index=ignored)
    with jax.enable_x64(index.endswith("64")):
        there = support.there((logits, targets), "jax")
        assert there[1].dtype == index
        assert tp.cross_entropy.explain(*there, ignore_index=ignored).kernel == "jax_ffi"
        matches(tp.cross_entropy(*there, ignore_index=ignored), expected, "float32")
        none = jnp.full_like(there[1], ignored)
        assert np.isnan(tp.cross_entropy(there[0], none, ignore_index=ignored))
        assert tp.cross_entropy(there[0], none, ignore_index=ignored, reduction="sum") == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_logits_with_float32_parameters(dtype, rng):
    (logits, targets, weight), _ = losses(rng, (6, 33), dtype, weight=True)
    (_, shares, _), _ = losses(rng, (6, 33), "float32", probable=True)
    weight = weight.astype(np.float32)
    with support.holding("jax", dtype):
        for t in (targets, shares):
            there = support.there((logits, t, weight), "jax")
            found = tp.cross_entropy.explain(*there)
            assert found.kernel == ("generic" if dtype == "float64" else "jax_ffi")
            matches(tp.cross_entropy(*there), REFERENCES["cross_entropy"](logits, t, weight), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [-1, 9, 2**31 - 1, -(2**31)])
def test_the_loss_of_a_target_out_of_range_is_nan(wrong, dtype, rng):
    """In the kernel as in the body: a program cannot raise, and no value leaves the row."""
    (logits, targets, _), _ = losses(rng, (4, 9), dtype)
    targets[1], targets[2] = wrong, -100
    with support.holding("jax", dtype):
        there = support.there((logits, targets), "jax")
        jitted = [jax.jit(f, static_argnames="reduction") for f in (tp.cross_entropy, body_of_loss)]
        for function in (tp.cross_entropy, *jitted):
            each = np.asarray(function(*there, reduction="none"), np.float64)
            np.testing.assert_array_equal(np.isnan(each), [False, True, False, False])
            expected = REFERENCES["cross_entropy"](logits[[0, 3]], targets[[0, 3]], reduction="none")
            assert_matches(each[[0, 3]].astype(DTYPES[dtype]), expected, dtype, tolerance=TOLERANCE[dtype])
            assert each[2] == 0
            assert np.isnan(function(*there, reduction="mean"))
            assert np.isnan(function(*there, reduction="sum"))


def body_of_loss(*args, **options):
    with tp.set_backend("jax", providers=["generic"]):
        return tp.cross_entropy(*args, **options)


def test_transformations_of_cross_entropy(rng):
    (logits, targets, weight), _ = losses(rng, (4, 3, 17), "float32", weight=True)
    options = {"reduction": "none", "label_smoothing": 0.2, "z_loss": 0.1}
    expected = REFERENCES["cross_entropy"](logits, targets, weight, **options)
    logits, targets, weight = support.there((logits, targets, weight), "jax")

    def one(x, t):
        return tp.cross_entropy(x, t, weight, **options)

    assert calls("cross_entropy", jax.vmap(one), logits, targets)
    close(jax.vmap(one)(logits, targets), expected)
    close(jax.vmap(jax.vmap(one))(logits, targets), expected)
    close(jax.vmap(one, (1, 1), 1)(jnp.moveaxis(logits, 0, 1), targets.T), expected.T)
    assert calls("cross_entropy", jax.vmap(one, (0, None)), logits, targets[0])
    close(jax.vmap(one, (0, None))(logits, targets[0])[0], expected[0])
    close(jax.vmap(one, (None, 0))(logits[0], targets)[0], expected[0])
    for reduction in ("mean", "sum"):  # of each, not of all
        call = functools.partial(tp.cross_entropy, reduction=reduction)
        wanted = [REFERENCES["cross_entropy"](x, t, reduction=reduction) for x, t in zip(logits, targets, strict=True)]
        close(jax.vmap(call)(logits, targets), np.stack(wanted))
        close(jax.vmap(call, (0, None))(logits, targets[0])[0], wanted[0])
    stacked = jax.vmap(lambda w: tp.cross_entropy(logits, targets, w))(jnp.stack([weight, 2 * weight]))
    close(stacked, np.stack([REFERENCES["cross_entropy"](logits, targets, weight)] * 2))  # a mean is by weight


@pytest.mark.exhaustive
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives_of_cross_entropy(reduction, rng):
    with jax.enable_x64(True):
        (logits, targets, weight), _ = losses(rng, (3, 5), "float64", weight=True)
        targets[1] = -100
        logits, targets, weight = support.there((logits, targets, weight), "jax")
        f, g = (
            loss(lambda x, w, h=h: h(x, targets, w, reduction=reduction, label_smoothing=0.2, z_loss=0.1))
            for h in (tp.cross_entropy, tp.cross_entropy.generic)
        )
        found, expected = (jax.jit(lambda *xs, h=h: slopes(h, xs))(logits, weight) for h in (f, g))
        for kind, slope in found.items():
            close(slope, expected[kind], 1e-11)


# --- positions ---------------------------------------------------------------------------------------


def rotations(rng, shape, dims, of_batch):
    """Return every way to give angles: arguments beside x, on the CPU."""
    *batch, _, length, _ = shape
    at = (*batch, length) if of_batch else (length,)
    tables = {name: rng.standard_normal((11, dims // 2)) for name in ("cos", "sin")}
    rows = {name: rng.standard_normal((*at, dims // 2)) for name in ("cos", "sin")}
    positions = rng.integers(0, 11, at).astype(np.int32)
    return [
        {"positions": positions},
        {"positions": positions, "base": 500.0, "attention_factor": 1.5},
        {"positions": (positions + 0.25).astype(np.float32), "freqs": rng.random(dims // 2)},
        {"positions": positions, **tables},
        {"positions": positions[..., :1].astype(np.uint8), **tables, "attention_factor": 0.5},
        rows,
    ]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_batch", [False, True])
# One position of one head, batches of several axes, and enough positions for every thread of XLA.
@pytest.mark.costly(2)
@pytest.mark.parametrize(("shape", "dims"), [((2, 3, 4, 5, 18), 12), ((1, 1, 2), 2), ((3, 4, 301, 64), 64)])
def test_rope(shape, dims, of_batch, dtype, interleaved, rng):
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    for angles in rotations(rng, shape, dims, of_batch):
        given = {k: v.astype(dtype if dtype == "float64" else "float32") if getattr(v, "dtype", None) == np.float64
                 else v for k, v in angles.items()}  # fmt: skip
        options = {"interleaved": interleaved, "dims": dims}
        expected = REFERENCES["rope"](x, **given, **options)
        tolerance = 16 if dtype == "float64" else 4  # angles themselves are rounded to float64
        with support.holding("jax", dtype):
            x_there, there = support.there((x, given), "jax")
            with tp.trace() as log:
                y = tp.rope(x_there, **there, **options)
            assert [r.kernel for r in log] == ["jax_ffi"]
            assert_matches(support.back(y), expected, dtype, tolerance=tolerance, scale_axis=-1)
            if len(shape) != 5:
                continue
            arrays_ = {k: v for k, v in there.items() if hasattr(v, "shape")}
            numbers = {k: v for k, v in there.items() if k not in arrays_} | options
            traced = lambda x, a, n=numbers: tp.rope(x, **a, **n)  # noqa: E731
            assert calls("rope", traced, x_there, arrays_)
            y = support.back(jax.jit(traced)(x_there, arrays_))
            assert_matches(y, expected, dtype, tolerance=tolerance, scale_axis=-1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_frequencies_of_half_types_are_read_exactly(dtype):
    freqs = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])  # every value, of which large ones are left out
    with np.errstate(invalid="ignore"):
        angles = freqs.astype(np.float64)
        freqs, angles = freqs[~(abs(angles) > 100)], angles[~(abs(angles) > 100)]
        expected = np.concatenate([np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)])
    x = np.ones((1, 1, 2 * len(freqs)))
    given = {"positions": np.ones(1, np.int32), "freqs": freqs}
    with support.holding("jax", "float64"):
        x_there, there = support.there((x, given), "jax")
        with tp.trace() as log:
            y = support.back(tp.rope(x_there, **there))
        assert [r.kernel for r in log] == ["jax_ffi"]
    np.testing.assert_allclose(y[0, 0], expected, rtol=0, atol=4e-16)
    assert np.isnan(y).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_tables_of_another_dtype(dtype, rng):
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    tables = {name: rng.standard_normal((5, 4)).astype(DTYPES[dtype]) for name in ("cos", "sin")}
    there, options = support.there((x, tables), "jax")
    assert tp.rope.explain(there, **options).kernel == "jax_ffi"
    matches(tp.rope(there, **options), REFERENCES["rope"](x, **tables), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_positions_outside_the_tables_give_nan(dtype, rng):
    x = rng.standard_normal((2, 4, 8)).astype(DTYPES[dtype])
    positions = np.array([0, -1, 7, 3], np.int32)
    tables = {name: rng.standard_normal((7, 3)).astype(np.float32) for name in ("cos", "sin")}
    with support.holding("jax", dtype):
        there, at, options = support.there((x, positions, tables), "jax")
        with tp.set_backend("jax", providers=["jax_ffi"]):
            y = support.back(tp.rope(there, at, dims=6, **options))
    outside = np.zeros(x.shape, bool)
    outside[:, 1:3, :6] = True  # the features that do not rotate stay as they are
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), outside)
    expected = REFERENCES["rope"](x[:, [0, 3]], positions[[0, 3]], dims=6, **tables)
    assert_matches(y[:, [0, 3]], expected, dtype, tolerance=4, scale_axis=-1)


@pytest.mark.exhaustive
def test_transformations_of_rope(rng):
    x, *tables = (rng.standard_normal(s).astype(np.float32) for s in ((3, 2, 4, 5, 8), (5, 4), (5, 4)))
    x, cos, sin = support.there((x, *tables), "jax")
    positions = jnp.asarray(rng.integers(0, 5, (2, 5)))  # one row for each of the batch
    for f, g in (
        (lambda x: tp.rope(x, positions), lambda x: tp.rope.generic(x, positions)),
        (lambda x: tp.rope(x, positions[0]), lambda x: tp.rope.generic(x, positions[0])),
        (lambda x: tp.rope(x, cos=cos, sin=sin), lambda x: tp.rope.generic(x, cos=cos, sin=sin)),
    ):
        assert calls("rope", jax.vmap(f), x)
        expected = jnp.stack([g(e) for e in x])
        close(jax.vmap(f)(x), expected)
        close(jax.vmap(f, 1, 1)(jnp.moveaxis(x, 0, 1)), jnp.moveaxis(expected, 0, 1))
        close(jax.jit(jax.vmap(jax.grad(loss(f))))(x), jnp.stack([jax.grad(loss(g))(e) for e in x]))
        close(jax.jvp(f, (x[0],), (x[1],)), jax.jvp(g, (x[0],), (x[1],)))
        close(jax.hessian(loss(f))(x[0, 0][None] * jnp.ones((2, 1, 1, 1))), jax.hessian(loss(g))(
            x[0, 0][None] * jnp.ones((2, 1, 1, 1))), 1e-4)  # fmt: skip
    rows = jnp.stack([positions, positions + 1, positions])
    wanted = jnp.stack([tp.rope.generic(e, p) for e, p in zip(x, rows, strict=True)])
    close(jax.vmap(tp.rope)(x, rows), wanted)
    close(jax.grad(lambda c: jnp.sum(tp.rope(x, cos=c, sin=sin) ** 3))(cos),
          jax.grad(lambda c: jnp.sum(tp.rope.generic(x, cos=c, sin=sin) ** 3))(cos), 1e-4)  # fmt: skip


# --- matrices ----------------------------------------------------------------------------------------

MATRICES = [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16"),
            ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")]  # fmt: skip


@pytest.mark.costly(2)
@pytest.mark.parametrize(("dtype", "of_weight"), MATRICES)
def test_linear(dtype, of_weight, rng):
    # One row without axes, outputs that all threads share, few rows, and as many as the kernel takes.
    for shape, outputs in (((7,), 3), ((1, 576), 1541), ((2, 3, 65), 40), ((32, 96), 700)):
        x, bias = rng.standard_normal(shape).astype(DTYPES[dtype]), rng.standard_normal(outputs).astype(np.float32)
        weight = rng.standard_normal((outputs, shape[-1])).astype(DTYPES[of_weight])
        for b in (None, bias, bias.astype(DTYPES[of_weight])):
            there = support.there((x, weight) if b is None else (x, weight, b), "jax")
            expected = REFERENCES["linear"](x, weight, b)
            size = np.abs(x.astype(np.float64)) @ np.abs(weight.astype(np.float64)).T
            unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
            with tp.set_backend("jax", providers=["jax_ffi"]):
                y = tp.linear(*there)
            assert y.dtype == x.dtype
            error = np.abs(support.back(y).astype(np.float64) - expected)
            assert (error <= 16 * 2.0**-24 * (size + 4) + unit * np.abs(expected)).all()
        assert calls("linear", tp.linear, *there)


def test_matrices_of_float64_are_multiplied_by_xla():
    with jax.enable_x64(True):
        found = tp.linear.explain(jnp.ones((2, 3)), jnp.ones((4, 3)))
    assert (found.kernel, found.refused) == ("generic", {"jax_ffi": "x has dtype float64"})


def test_transformations_of_linear(rng):
    x, w, b = support.there([rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 16), (5, 16), (5,))], "jax")
    f, g = (lambda x: tp.linear(x, w, b)), jax.jit(lambda x: tp.linear.generic(x, w, b))
    assert calls("linear", jax.vmap(f), x)
    close(jax.vmap(f)(x), g(x), 1e-4)
    close(jax.vmap(f, 2, 2)(jnp.moveaxis(x, 0, 2)), jnp.moveaxis(g(x), 0, 2), 1e-4)
    stacked = jax.vmap(lambda w: tp.linear(x, w, b))(jnp.stack([w, 2 * w]))
    close(stacked, jnp.stack([g(x), tp.linear.generic(x, 2 * w, b)]), 1e-4)
    every = (0, 1, 2)
    for transform in (jax.grad, jax.jacfwd):
        found, expected = (jax.jit(transform(loss(h), every))(x, w, b) for h in (tp.linear, tp.linear.generic))
        close(found, expected, 1e-3)
    wide = jnp.ones((33, 1, 16))  # each has few rows, all of them many
    assert not calls("linear", jax.vmap(f), wide)
    assert not calls("linear", jax.vmap(f, 2), jnp.moveaxis(wide, 0, 2))
    close(jax.vmap(f)(wide), g(wide), 1e-4)


# --- transformations ---------------------------------------------------------------------------------


def loss(function):
    return lambda *xs: sum(jnp.sum(jnp.sin(y * (1 + i))) for i, y in enumerate(jax.tree.leaves(function(*xs))))


def slopes(h, args):
    """Return derivatives in every mode, of one program."""
    every = tuple(range(len(args)))
    inner = lambda *xs: jnp.sum(jax.grad(h)(*xs) ** 2)  # noqa: E731
    return {
        "reverse": jax.grad(h, every)(*args),
        "forward": jax.jvp(h, args, args),
        "jacobian": jax.jacfwd(h)(*args),
        "hessian": jax.hessian(h)(*args),
        "twice": jax.grad(inner)(*args),
        "linearized": jax.linearize(h, *args)[1](*args),
        "checkpointed": jax.grad(jax.checkpoint(h))(*args),
    }


@pytest.mark.costly
@every_kernel
def test_derivatives_are_those_of_the_body(name, rng):
    with jax.enable_x64(True):
        there = support.there(arrays(name, (2, 5), rng, "float64"), "jax")
        f, g = loss(OPERATORS[name]), loss(OPERATORS[name].generic)
        found, expected = (jax.jit(lambda *xs, h=h: slopes(h, xs))(*there) for h in (f, g))
        for kind, slope in found.items():
            close(slope, expected[kind], 1e-11)
        if name == "swiglu":
            close(jax.grad(f)(*there), expected["reverse"][0], 1e-12)


@pytest.mark.costly
@every_kernel
def test_vmap_keeps_the_kernel(name, rng):
    rows, weights = ROWS[name]
    f, g = OPERATORS[name], jax.jit(OPERATORS[name].generic)
    there = support.there(arrays(name, (4, 3, 17), rng), "jax")
    axes = (0,) * rows + (None,) * weights
    assert calls(name, jax.vmap(f, axes), *there)
    close(jax.vmap(f, axes)(*there), g(*there))
    close(jax.jit(jax.vmap(jax.grad(loss(f)), axes))(*there), jax.jit(jax.grad(loss(g)))(*there))
    moved = [jnp.moveaxis(x, 0, 1) for x in there[:rows]] + there[rows:]
    close(jax.vmap(f, (1,) * rows + (None,) * weights)(*moved), g(*there))
    twice = jax.vmap(jax.vmap(f, axes), axes)
    assert calls(name, twice, *there)
    close(twice(*there), g(*there))
    if rows == 2:
        mapped = jax.vmap(f, (0, None, *axes[2:]))
        assert calls(name, mapped, there[0], there[1][0], *there[2:])
        wide = jnp.broadcast_to(there[1][0], there[1].shape)
        close(mapped(there[0], there[1][0], *there[2:]), g(there[0], wide, *there[2:]))
    if weights:
        stacked = [jnp.stack([w, 2 * w, w, -w]) for w in there[rows:]]
        result = jax.jit(jax.vmap(f))(*there[:rows], *stacked)
        for i in range(4):
            one = g(*(x[i] for x in there[:rows]), *(w[i] for w in stacked))
            close([y[i] for y in jax.tree.leaves(result)], jax.tree.leaves(one))


def test_control_flow_donation_and_disabled_jit(rng):
    x, w = support.there(arrays("rms_norm", (3, 8), rng), "jax")
    expected, body = x, jax.jit(tp.rms_norm.generic)
    for _ in range(4):
        expected = body(expected, w)

    def scanned(x):
        return jax.lax.scan(lambda carry, _: (tp.rms_norm(carry, w), None), x, None, length=4)[0]

    assert calls("rms_norm", scanned, x)
    close(jax.jit(scanned)(x), expected)
    close(jax.lax.fori_loop(0, 4, lambda _, y: tp.rms_norm(y, w), x), expected)
    close(jax.lax.cond(x[0, 0] > 9, tp.softmax, tp.silu, x), tp.silu.generic(x))
    donated = jax.jit(tp.add_rms_norm, donate_argnums=(0, 1))
    close(donated(x + 0, x + 1, w), tp.add_rms_norm.generic(x, x + 1, w))
    with jax.disable_jit():
        close(tp.rms_norm(x, w), tp.rms_norm.generic(x, w))


def test_exported_programs_have_no_kernel(rng):
    x, w = support.there(arrays("rms_norm", (4, 8), rng), "jax")
    f = jax.jit(lambda x, w: tp.rms_norm(x, w))
    (batch,) = jax.export.symbolic_shape("batch")
    symbolic = jax.ShapeDtypeStruct((batch, 8), np.float32)
    for exported in (
        jax.export.export(f)(x, w),
        jax.export.export(f, platforms=("cpu", "cuda", "tpu"))(x, w),
        jax.export.export(f)(symbolic, w),
    ):
        assert "tensorops.rms_norm" not in exported.mlir_module()
        close(exported.call(x, w), tp.rms_norm.generic(x, w))
    assert calls("rms_norm", f, x, w)  # and programs that are run here have it, still
    assert "tensorops.rms_norm" not in f.trace(x, w).lower(lowering_platforms=("cuda",)).as_text()


SEVERAL_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
import tensorops as tp

x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8)), jnp.float32)
w = jnp.linspace(0.5, 2.0, 8)
expected = tp.rms_norm.generic(x, w)
close = lambda a: np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)
has_kernel = lambda f, *args: "tensorops.rms_norm" in jax.jit(f).lower(*args).as_text()
P = jax.sharding.PartitionSpec
mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = jax.sharding.NamedSharding(mesh, P("rows"))

# One device of two
close(tp.rms_norm(x, w))
assert has_kernel(lambda x, w: tp.rms_norm(x, w), x, w)

# Without Shardy, XLA splits the body in a traced program, and gathers nothing
split = jax.device_put(x, sharding)
jax.config.update("jax_use_shardy_partitioner", False)
assert tp.rms_norm.explain(split, w).kernel == "jax_ffi"
close(tp.rms_norm(split, w))
compiled = jax.jit(lambda x, w: tp.rms_norm(x, w)).lower(split, w).compile()
assert "tensorops.rms_norm" not in compiled.as_text() and "all-gather" not in compiled.as_text()
close(compiled(split, w))
jax.config.update("jax_use_shardy_partitioner", True)

# Within shard_map and pmap, each device computes for itself
mapped = jax.shard_map(lambda x, w: tp.rms_norm(x, w), mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
assert has_kernel(mapped, split, w)
close(mapped(split, w))
close(jax.jit(mapped)(split, w))
gradient = jax.grad(lambda w: jnp.sum(jnp.sin(mapped(split, w))))(w)
wanted = jax.grad(lambda w: jnp.sum(jnp.sin(tp.rms_norm.generic(x, w))))(w)
np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)
close(jax.pmap(lambda x: tp.rms_norm(x, w))(x.reshape(2, 2, 8)).reshape(4, 8))

# Shardings as a part of types
with jax.set_mesh(jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))) as mesh:
    split = jax.device_put(x, P("rows"))
    y = jax.jit(lambda x, w: tp.rms_norm(x, w))(split, w)
    assert jax.typeof(y).sharding.spec == P("rows", None), jax.typeof(y)
    close(y)
"""


@pytest.mark.skipif(not hasattr(jax.sharding, "AxisType"), reason="this jax has no axis types")
def test_several_devices():
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    done = support.python(SEVERAL_DEVICES, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr


# --- experts -----------------------------------------------------------------------------------------


def grouped(rng, shape, experts, number, outputs, dtype="float32", weight_dtype="float32"):
    """Return arguments of grouped_linear, on the CPU."""
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    weight, bias = (rng.standard_normal(s).astype(DTYPES[weight_dtype]) for s in ((number, outputs, shape[-1]),) * 2)
    return [x, rng.integers(0, number, experts), weight, bias[..., 0]]


@pytest.mark.costly(2)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_grouped_linear(dtype, weight_dtype, index, rng):
    # One row, rows that several experts multiply, experts that several rows share, many rows and outputs.
    for shape, experts, outputs in (
        ((1, 33), 1, 3),
        ((5, 1, 64), (5, 3), 70),
        ((4, 3, 16), 3, 9),
        ((300, 96), 300, 500),
    ):
        args = grouped(rng, shape, experts, 4, outputs, dtype, weight_dtype)
        with jax.enable_x64(index == "int64"):
            there = [jnp.asarray(a if i != 1 else a.astype(index)) for i, a in enumerate(args)]
            for count in (3, 4):
                with tp.set_backend("jax", providers=["jax_ffi"]):
                    y = jax.jit(tp.grouped_linear)(*there[:count])
                expected = REFERENCES["grouped_linear"](*args[:count])
                assert_matches(support.back(y), expected, dtype, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_grouped_quantized_linear(bits, mode, rng):
    for shape, experts, outputs in (((1, 576), 1, 1541), ((5, 1, 64), (5, 3), 70), ((200, 96), 200, 130)):
        parts = [quantized(rng, shape, outputs, bits, mode) for _ in range(3)]
        stacks = [None if one[0] is None else np.stack(one) for one in zip(*(p[0][1:] for p in parts), strict=True)]
        args, options = [parts[0][0][0], rng.integers(0, 3, experts).astype(np.int32), *stacks], parts[0][1]
        with tp.set_backend("jax", providers=["jax_ffi"]):
            y = tp.grouped_quantized_linear(*support.there(args, "jax"), **options)
        expected = REFERENCES["grouped_quantized_linear"](*args, **options)
        assert_matches(support.back(y), expected, "float32", tolerance=64, scale_axis=None)


def test_an_expert_out_of_range_is_found_before_memory_is_touched(rng):
    x, experts, weight, _ = grouped(rng, (4, 8), 4, 3, 5)
    for wrong in (-1, 3):
        experts[2] = wrong
        with pytest.raises(jax.errors.JaxRuntimeError, match="an index in experts is out of range"):
            jax.block_until_ready(tp.grouped_linear(*support.there((x, experts.astype(np.int32), weight), "jax")))


def test_experts_under_vmap_and_grad(rng):
    x, experts, weight, bias = grouped(rng, (6, 8), 6, 3, 5)
    experts = experts.astype(np.int32)
    there = support.there((x, experts, weight, bias), "jax")
    several = jnp.stack([there[0], 2 * there[0]])
    assert calls("grouped_linear", jax.vmap(tp.grouped_linear, (0, None, None, None)), several, *there[1:])
    expected = np.stack([REFERENCES["grouped_linear"](k * x, experts, weight, bias) for k in (1, 2)])
    close(jax.vmap(tp.grouped_linear, (0, None, None, None))(several, *there[1:]), expected)
    close(jax.vmap(tp.grouped_linear, (0, 0, None, None))(several, jnp.stack([there[1]] * 2), *there[2:]), expected)
    of_both = jax.jit(jax.grad(lambda x, w: tp.grouped_linear(x, there[1], w).sum(), (0, 1)))
    of_x, of_weight = of_both(there[0], there[2])
    close(of_x, weight.sum(axis=1)[experts])
    wanted = np.stack([np.tile(x[experts == e].sum(axis=0), (5, 1)) for e in range(3)])
    close(of_weight, wanted)


def test_a_layer_of_experts_is_compiled_as_a_whole(rng):
    x = rng.standard_normal((6, 16)).astype(np.float32)
    logits = rng.standard_normal((6, 4)).astype(np.float32)
    gate_up, down = (rng.standard_normal(s).astype(np.float32) for s in ((4, 16, 16), (4, 16, 8)))
    arrays = support.there((x, logits, gate_up, down), "jax")
    layer = functools.partial(tp.moe, top_k=2)
    assert calls("moe", layer, *arrays)
    expected = REFERENCES["moe"](x, logits, gate_up, down, top_k=2)
    assert_matches(support.back(jax.jit(layer)(*arrays)), expected, "float32", tolerance=64)


# --- layers with a state -----------------------------------------------------------------------------


def sequences(rng, *batch, tokens=70):
    """Return the arguments of `causal_conv1d`, and of `gated_delta_rule` with a state."""
    x, state = rng.standard_normal((*batch, tokens, 9)), rng.standard_normal((*batch, 3, 9))
    q, k = rng.standard_normal((2, *batch, 1, tokens, 8))
    v, g, beta = (rng.standard_normal((*batch, 2, tokens, *dim)) for dim in ((5,), (), ()))
    rule = [q, k / np.linalg.norm(k, axis=-1, keepdims=True), v, -np.abs(g), 1 / (1 + np.exp(-beta))]
    rule.append(rng.standard_normal((*batch, 2, 8, 5)))
    return [[a.astype(np.float32) for a in arrays] for arrays in ([x, state], rule)]


def test_layers_with_a_state_under_vmap(rng):
    """A mapped axis makes the batch longer; one of the weight is left to the body."""
    weight = jnp.asarray(rng.standard_normal((9, 4)), np.float32)
    (x, state), rule = sequences(rng, 3, 2)
    convolve = jax.vmap(lambda x, state, w: tp.causal_conv1d(x, w, state=state), (0, 0, None))
    delta = jax.vmap(lambda *arrays: tp.gated_delta_rule(*arrays[:5], state=arrays[5]))
    assert calls("causal_conv1d", convolve, x, state, weight)
    assert calls("gated_delta_rule", delta, *rule)
    each = [REFERENCES["causal_conv1d"](x[i], weight, None, state[i]) for i in range(3)]
    close(convolve(x, state, weight), [np.stack(part) for part in zip(*each, strict=True)])
    each = [REFERENCES["gated_delta_rule"](*(a[i] for a in rule[:5]), state=rule[5][i]) for i in range(3)]
    close(delta(*rule), [np.stack(part) for part in zip(*each, strict=True)])
    over_weights = jax.vmap(lambda x, w: tp.causal_conv1d(x, w), (None, 0))
    there, weights = jnp.asarray(x[0]), jnp.stack([weight, 2 * weight])
    assert not calls("causal_conv1d", over_weights, there, weights)
    close(over_weights(there, weights)[0][1], REFERENCES["causal_conv1d"](x[0], 2 * weight)[0])


def test_layers_with_a_state_in_a_loop_over_tokens(rng):
    """Generation: one program for each token, whose state is an argument and a result."""
    weight = jnp.asarray(rng.standard_normal((9, 4)), np.float32)
    (x, state), rule = sequences(rng, 2, tokens=6)

    @jax.jit
    def step(state, now):
        of_conv, of_rule = state
        x, *arrays = (jnp.moveaxis(a[None], 0, axis) for a, axis in zip(now, (1, 2, 2, 2, 2, 2), strict=True))
        y, of_conv = tp.causal_conv1d(x, weight, state=of_conv, activation="silu")
        z, of_rule = tp.gated_delta_rule(*arrays, state=of_rule)
        return (of_conv, of_rule), (y[:, 0], z[:, :, 0])

    tokens = [np.moveaxis(x, 1, 0), *(np.moveaxis(a, 2, 0) for a in rule[:5])]
    last, (y, z) = jax.lax.scan(step, (state, rule[5]), tokens)
    expected, kept = REFERENCES["causal_conv1d"](x, weight, state=state, activation="silu")
    close((jnp.moveaxis(y, 0, 1), last[0]), (expected, kept))
    expected, kept = REFERENCES["gated_delta_rule"](*rule[:5], state=rule[5])
    close((jnp.moveaxis(z, 0, 2), last[1]), (expected, kept))
