"""Attention and sampling in JAX's programs: the compiled kernels, their values, and every transformation with them."""

import functools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.testing import DTYPES, REFERENCES, assert_matches
from tensorops.testing._stored_blocks import random_blocks

support.require("jax")
support.require_provider("jax_ffi")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from tensorops.kernels.cpu import _native  # noqa: E402

ATTEND = tp.scaled_dot_product_attention
REFERENCE = REFERENCES["scaled_dot_product_attention"]
kernels_only = tp.set_backend("jax", providers=["jax_ffi"])


def qkv(rng, *, b=2, hq=4, hkv=2, tq=3, tk=21, d=16, dv=8, dtype="float32"):
    shapes = (b, hq, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv)
    return tuple(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)


def calls(name, function, *args):
    return f"@tensorops.{name}(" in jax.jit(lambda *xs: function(*xs)).lower(*args).as_text()


def close(actual, expected, tolerance=2e-5):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def check(args, dtype="float32", tolerance=32, targets=(), **options):
    """Assert that the kernel, called alone and in a program, agrees with the reference."""
    expected = REFERENCE(*args, **options)
    there, arrays = support.there((args, {n: a for n, a in options.items() if isinstance(a, np.ndarray)}), "jax")
    rest = {name: value for name, value in options.items() if name not in arrays}
    program = jax.jit(lambda args, arrays: ATTEND(*args, **arrays, **rest))
    tolerance = 1 if dtype in support.HALVES else tolerance
    for target in targets or [_native.target()]:
        with support.using_target(target), kernels_only:
            for y in (ATTEND(*there, **arrays, **rest), program(there, arrays)):
                assert_matches(support.back(y), expected, dtype, tolerance=tolerance, scale_axis=None)


def masks(rng, shape, dtype):
    allowed = rng.random(shape) < 0.7
    return allowed, np.where(allowed, rng.standard_normal(shape), -np.inf).astype(DTYPES[dtype])


OPTIONS = {
    "plain": lambda r: {},
    "causal": lambda r: {"is_causal": True},
    "scale": lambda r: {"scale": 0.125},
    "no-scale": lambda r: {"scale": 0.0},
    "window": lambda r: {"window": 5},
    "left": lambda r: {"window": (4, None)},
    "right": lambda r: {"window": (-1, 2)},
    "causal-window": lambda r: {"window": (4, 9), "is_causal": True},
    "softcap": lambda r: {"softcap": 1.5},
    "sinks": lambda r: {"sinks": r.standard_normal(4).astype(np.float32)},
    "lengths": lambda r: {"lengths": np.asarray([21, 4], np.int32), "is_causal": True},
    "no-keys": lambda r: {"lengths": np.asarray([0, 0], np.int32)},
    "mask-keys": lambda r: {"mask": masks(r, 21, "float32")[0]},
    "mask-of-all": lambda r: {"mask": masks(r, (2, 4, 3, 21), "float32")[0]},
    "mask-broadcast": lambda r: {"mask": masks(r, (2, 1, 3, 1), "float32")[0]},
    "mask-added": lambda r: {"mask": masks(r, (4, 3, 21), "float32")[1], "is_causal": True},
    "mask-half": lambda r: {"mask": masks(r, (2, 1, 1, 21), "bfloat16")[1], "softcap": 2.0},
    "everything": lambda r: {
        "mask": masks(r, (3, 21), "float16")[1],
        "lengths": np.asarray([9, 20], np.int32),
        "sinks": r.standard_normal(4).astype(np.float16),
        "window": (8, 3),
        "softcap": 3.0,
        "scale": 0.4,
    },
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OPTIONS)
def test_attention(case, dtype, rng):
    with support.holding("jax", dtype):
        check(qkv(rng, dtype=dtype), dtype, targets=support.TARGETS, **OPTIONS[case](rng))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_that_threads_share(dtype, rng):
    """Blocks of queries, and a long cache of which each thread takes some keys."""
    check(qkv(rng, b=1, hq=6, hkv=2, tq=300, tk=300, d=32, dv=32, dtype=dtype), dtype, is_causal=True)
    check(qkv(rng, b=1, hq=6, hkv=2, tq=1, tk=3000, d=64, dv=64, dtype=dtype), dtype)
    lengths = np.asarray([2900, 5, 1700], np.int32)
    check(qkv(rng, b=3, hq=4, hkv=1, tq=1, tk=3000, d=32, dv=32, dtype=dtype), dtype, lengths=lengths, is_causal=True)


@pytest.mark.costly
@pytest.mark.parametrize("integer", INTEGER)
def test_lengths_of_every_dtype_are_clamped(integer, rng):
    """A traced number cannot raise an error, and must not lead beyond the keys."""
    args = qkv(rng)
    with support.holding("jax", "float64" if integer.endswith("64") else "float32"):
        limits = np.iinfo(integer).min, min(np.iinfo(integer).max, 2**63 - 1)
        for given, used in (((7, 19), (7, 19)), (limits, (0, 21)), ((22, 21), (21, 21))):
            there, lengths = support.there((args, np.asarray(given, integer)), "jax")
            assert lengths.dtype == integer
            with kernels_only:
                y = jax.jit(lambda *a: ATTEND(*a[:3], lengths=a[3], is_causal=True))(*there, lengths)
            close(y, REFERENCE(*args, lengths=np.asarray(used), is_causal=True))
            close(y, ATTEND.generic(*there, lengths=lengths, is_causal=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pages(dtype, rng):
    q = qkv(rng, dtype=dtype)[0]
    k, v = (rng.standard_normal((7, 2, 8, d)).astype(DTYPES[dtype]) for d in (16, 8))
    table = np.asarray([[6, 0, 3], [2, 5, 1]], np.int32)
    check((q, k, v), dtype, page_table=table)
    for lengths in ([24, 9], [8, 0]):
        check((q, k, v), dtype, page_table=table, lengths=np.asarray(lengths, np.int32), is_causal=True)
        check((q, k, v), dtype, page_table=table, lengths=np.asarray(lengths, np.int32), window=(2, 0))


def test_pages_out_of_range_are_clamped(rng):
    """Those in use are the nearest page, as in the body; others are not read."""
    q, k, v = qkv(rng)[0], *(rng.standard_normal((7, 2, 8, d)).astype(np.float32) for d in (16, 8))
    (there, lengths), options = support.there(((q, k, v), np.asarray([17, 3], np.int32)), "jax"), {"is_causal": True}
    given = jnp.asarray([[-1, 700, -(2**31)], [2**31 - 1, -1, 99]])
    with kernels_only:
        y = jax.jit(lambda *a: ATTEND(*a, page_table=given, lengths=lengths, **options))(*there)
    used = np.asarray([[0, 6, 0], [6, 0, 6]])
    close(y, REFERENCE(q, k, v, page_table=used, lengths=np.asarray([17, 3]), **options))


@pytest.mark.parametrize("queries", [1, 12])
def test_keys_and_values_in_blocks(queries, rng):
    q = rng.standard_normal((2, 4, queries, 64)).astype(np.float32)
    k, v = (random_blocks(rng, "q8_0", 2, 2, 150, d) for d in (64, 96))
    check((q, k, v), kv_format="q8_0", is_causal=True, lengths=np.asarray([150, 40], np.int32))
    pages = [random_blocks(rng, "q8_0", 5, 2, 8, d) for d in (64, 32)]
    check((q, *pages), kv_format="q8_0", page_table=np.asarray([[4, 0], [1, 2]], np.int32), window=(9, None))
    there = support.there((q, k, v), "jax")
    attend = functools.partial(ATTEND, kv_format="q8_0")
    of_queries = jax.vmap(attend, (0, None, None))
    several = jnp.stack([there[0], -there[0]])
    assert calls("scaled_dot_product_attention", of_queries, several, *there[1:])
    each = [ATTEND.generic(each, *there[1:], kv_format="q8_0") for each in several]
    close(of_queries(several, *there[1:]), jnp.stack(each))


def test_gradients_of_queries_alone_flow_past_blocks(rng):
    q = rng.standard_normal((1, 2, 3, 32)).astype(np.float32)
    blocks = [random_blocks(rng, "q8_0", 1, 1, 9, 32) for _ in range(2)]
    there = support.there((q, *blocks), "jax")

    def loss(operator):
        return lambda q: jnp.sum(jnp.sin(operator(q, *there[1:], kv_format="q8_0", is_causal=True)))

    slope = jax.grad(loss(ATTEND))(there[0])
    assert jnp.max(jnp.abs(slope)) > 1e-3
    close(slope, jax.grad(loss(ATTEND.generic))(there[0]))
    assert "tensorops.scaled_dot_product_attention_vjp" not in jax.jit(jax.grad(loss(ATTEND))).lower(there[0]).as_text()


def test_transposed_heads_and_slices_of_a_cache(rng):
    """What a model passes: heads beside features, and the valid part of a larger array."""
    q, k, v = qkv(rng, tk=32)
    expected = REFERENCE(q, k[:, :, :20], v[:, :, :20])
    there = [jnp.asarray(np.ascontiguousarray(np.swapaxes(a, 1, 2))) for a in (q, k, v)]

    def attend(q, k, v):
        q, k, v = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))
        return ATTEND(q, k[:, :, :20], v[:, :, :20])

    assert calls("scaled_dot_product_attention", attend, *there)
    close(jax.jit(attend)(*there), expected)


def test_infinite_values_are_those_of_the_body(rng):
    q, k, v = support.there(qkv(rng), "jax")
    v = v.at[0, 0, 3, 2].set(jnp.inf).at[1, 1, 20].set(jnp.nan)
    for options in ({}, {"is_causal": True}, {"lengths": jnp.asarray([21, 20])}):
        close(ATTEND(q, k, v, **options), ATTEND.generic(q, k, v, **options))


# --- transformations ---------------------------------------------------------------------------------


def test_attention_under_vmap_has_a_larger_batch(rng):
    name = "scaled_dot_product_attention"
    q, k, v = support.there(qkv(rng), "jax")
    several = [jnp.stack([a, 2 * a, a - 1]) for a in (q, k, v)]
    expected = jnp.stack([ATTEND.generic(*(a[i] for a in several)) for i in range(3)])
    assert calls(name, jax.vmap(ATTEND), *several)
    close(jax.vmap(ATTEND)(*several), expected)
    moved = [jnp.moveaxis(a, 0, i) for i, a in zip((2, 1, 0), several, strict=True)]
    close(jax.vmap(ATTEND, (2, 1, 0), 2)(*moved), jnp.moveaxis(expected, 0, 2))
    of_queries = jax.vmap(ATTEND, (0, None, None))
    assert calls(name, of_queries, several[0], k, v)
    close(of_queries(several[0], k, v), jnp.stack([ATTEND.generic(a, k, v) for a in several[0]]))
    twice = jax.vmap(jax.vmap(ATTEND))
    pairs = [jnp.stack([a, -a]) for a in several]
    assert calls(name, twice, *pairs)
    close(twice(*pairs)[1], jnp.stack([ATTEND.generic(*(-a[i] for a in several)) for i in range(3)]))


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    ("option", "value", "mapped", "in_kernel"),
    [
        ("mask", (3, 2, 1, 3, 21), 0, True),
        ("mask", (3, 1, 1, 1, 21), 0, True),
        ("mask", (2, 1, 3, 21), None, True),
        ("mask", (1, 4, 3, 21), None, True),
        ("mask", (3, 21), None, True),
        ("mask", (3, 3, 21), 0, False),  # has no axis of the batch
        ("sinks", (4,), None, True),
        ("sinks", (3, 4), 0, False),
        ("lengths", (3, 2), 0, True),
        ("lengths", (2,), None, True),
    ],
)
def test_optional_arrays_under_vmap(option, value, mapped, in_kernel, rng):
    args = [jnp.asarray(rng.standard_normal((3, *a.shape)), jnp.float32) for a in qkv(rng)]
    given = rng.standard_normal(value).astype(np.float32) if option != "lengths" else rng.integers(0, 22, value)
    given = jnp.asarray(given > 0 if option == "mask" else given)

    def attend(q, k, v, given):
        return ATTEND(q, k, v, **{option: given})

    over = jax.vmap(attend, (0, 0, 0, mapped))
    assert calls("scaled_dot_product_attention", over, *args, given) is in_kernel
    each = [ATTEND.generic(*(a[i] for a in args), **{option: given[i] if mapped == 0 else given}) for i in range(3)]
    close(over(*args, given), jnp.stack(each))


def test_sequences_that_share_pages_under_vmap(rng):
    q = jnp.asarray(rng.standard_normal((3, 2, 4, 1, 16)), jnp.float32)
    k, v = (jnp.asarray(rng.standard_normal((9, 2, 8, d)), jnp.float32) for d in (16, 8))
    tables, lengths = jnp.asarray(rng.integers(0, 9, (3, 2, 4))), jnp.asarray(rng.integers(1, 33, (3, 2)))

    def attend(q, table, lengths, k=k, v=v):
        return ATTEND(q, k, v, page_table=table, lengths=lengths)

    body = jax.jit(ATTEND.generic)
    each = [body(q[i], k, v, page_table=tables[i], lengths=lengths[i]) for i in range(3)]
    assert calls("scaled_dot_product_attention", jax.vmap(attend), q, tables, lengths)
    close(jax.vmap(attend)(q, tables, lengths), jnp.stack(each))
    own = [jnp.stack([a, a + 1, -a]) for a in (k, v)]  # each its own pages
    each = [attend(q[i], tables[i], lengths[i], *(a[i] for a in own)) for i in range(3)]
    assert not calls("scaled_dot_product_attention", jax.vmap(attend), q, tables, lengths, *own)
    close(jax.vmap(attend)(q, tables, lengths, *own), jnp.stack(each))


@pytest.mark.costly
@pytest.mark.parametrize("case", ["causal", "softcap", "sinks", "mask-added", "lengths"])
def test_derivatives_of_attention_are_those_of_the_body(case, rng):
    with jax.enable_x64(True):
        options = OPTIONS[case](rng)
        args, options = support.there((qkv(rng, tk=21, dtype="float64"), options), "jax")
        floating = {n: a for n, a in options.items() if isinstance(a, jax.Array) and a.dtype == np.float32}
        rest = {name: value for name, value in options.items() if name not in floating}

        def slopes(operator):
            def loss(args, floating):
                return jnp.sum(jnp.sin(operator(*args, **floating, **rest)))

            reverse = jax.grad(loss, (0, 1))(args, floating)
            twice = jax.grad(lambda q: jnp.sum(jax.grad(lambda q: loss((q, *args[1:]), floating))(q) ** 2))(args[0])
            return reverse, twice, jax.jvp(lambda *a: loss(a, floating), args, args)

        close(jax.jit(lambda: slopes(ATTEND))(), jax.jit(lambda: slopes(ATTEND.generic))(), 1e-10)


def test_gradients_where_products_leave_the_range(rng):
    """One key has all weight, so that only its value has a gradient."""
    q, k, v = qkv(rng, tk=5)
    q, k = 1e20 * q, 1e20 * k
    gradients = jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(ATTEND(*a))), (0, 1, 2)))
    assert "tensorops.scaled_dot_product_attention_vjp" in gradients.lower(q, k, v).as_text()
    scores = q.astype(np.float64) @ np.repeat(k, 2, axis=1).astype(np.float64).mT
    weights = (scores == scores.max(axis=-1, keepdims=True)).astype(np.float64)
    of_values = weights.mT @ np.cos(weights @ np.repeat(v, 2, axis=1))
    of_values = of_values.reshape(2, 2, 2, 5, 8).sum(axis=2)
    close(gradients(q, k, v), (np.zeros_like(q), np.zeros_like(k), of_values))


def test_programs_that_cannot_contain_the_kernels(rng):
    args = support.there(qkv(rng), "jax")
    (logits,) = support.there((rng.standard_normal((4, 30)).astype(np.float32),), "jax")
    greedy = functools.partial(tp.sample, temperature=0.0)
    for name, function, given in (("scaled_dot_product_attention", ATTEND, args), ("sample", greedy, (logits,))):
        f = jax.jit(lambda *a, function=function: function(*a))
        exported = jax.export.export(f)(*given)
        assert f"tensorops.{name}" not in exported.mlir_module()
        close(exported.call(*given), function.generic(*given) if name != "sample" else jnp.argmax(logits, -1))
        assert f"tensorops.{name}" not in f.trace(*given).lower(lowering_platforms=("cuda",)).as_text()
        with jax.disable_jit():
            close(function(*given), exported.call(*given))
        assert calls(name, function, *given)


# --- sample ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 40},
        {"top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.5},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.01, "temperature": 2},
        {"top_k": 10**9},
    ],
    ids=str,
)
def test_samples_are_those_of_numpy(options, dtype, rng):
    """Of one seed, of a vocabulary that threads share, alone and in a program."""
    for shape in ((700,), (3, 2, 1000), (64, 5000)):
        logits = (3 * rng.standard_normal(shape)).astype(DTYPES[dtype])
        numbers = rng.random(shape[:-1], dtype=np.float32)
        expected = tp.sample(logits, **options, rng=np.random.default_rng(5))
        of_numbers = tp.sample(logits, **options, rng=np.asarray(numbers))
        with support.holding("jax", dtype), kernels_only:
            there, uniform = support.there((logits, np.asarray(numbers)), "jax")
            drawn = tp.sample(there, **options, rng=np.random.default_rng(5))
            within = jax.jit(lambda x, u: tp.sample(x, **options, rng=u))(there, uniform)
            assert drawn.dtype == within.dtype == (np.int64 if dtype == "float64" else np.int32)
        np.testing.assert_array_equal(drawn, expected)
        np.testing.assert_array_equal(within, of_numbers)


def test_frequencies_of_samples(rng):
    probabilities = np.asarray([0.5, 0.3, 0.15, 0.05])
    logits = jnp.log(jnp.asarray(np.broadcast_to(probabilities, (40000, 4)), jnp.float32))
    uniform = jnp.asarray((np.arange(40000) + 0.5) / 40000, jnp.float32)
    with kernels_only:
        drawn = tp.sample(logits, rng=uniform)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 40000, probabilities, atol=1e-3)


def test_sample_under_vmap(rng):
    x = jnp.asarray(rng.standard_normal((3, 4, 50)), jnp.float32)
    u = jnp.asarray(rng.random((3, 4)), jnp.float32)
    draw = functools.partial(tp.sample, top_k=9)
    expected = draw(x, rng=u)
    over = jax.vmap(lambda x, u: draw(x, rng=u))
    assert calls("sample", over, x, u)
    np.testing.assert_array_equal(over(x, u), expected)
    np.testing.assert_array_equal(jax.vmap(over)(x[None], u[None])[0], expected)
    shared = jax.vmap(lambda x, u: draw(x, rng=u), (1, None), 1)(jnp.moveaxis(x, 0, 1), u[0])
    np.testing.assert_array_equal(shared[:, 0], expected[0])


def test_what_is_refused_draws_no_number():
    """The body then draws the same numbers as without the kernel."""
    logits = np.asarray([[0.0, 1.0, 0.5]] * 4, np.float32)
    refused = {"temperature": 1e-40}
    there = jnp.asarray(logits)
    found = tp.sample.explain(there, **refused, rng=np.random.default_rng(0))
    assert found.refused == {"jax_ffi": "temperature is beyond the range of float32"}
    rng, untouched = np.random.default_rng(0), np.random.default_rng(0)
    tp.sample(there, temperature=0.0, rng=rng)
    tp.sample.explain(there, rng=rng)
    assert rng.random() == untouched.random()
    tp.sample(there, **refused, rng=rng)
    untouched.random(4, dtype=np.float32)
    assert rng.random() == untouched.random()


# --- what the kernels do not take --------------------------------------------------------------------


Q, K = np.zeros((2, 4, 3, 16), np.float32), np.zeros((2, 2, 5, 16), np.float32)
REFUSED = [
    ((Q, K, K), {"scale": 1e-40}, "scale is not a usual number"),
    ((Q, K, K), {"softcap": 1e35}, "softcap is not a usual positive number"),
    ((np.zeros((1, 1, 1, 16385), np.float32),) * 3, {}, "q has more than 16384 features"),
    (
        (Q.repeat(2, axis=3).astype(np.float16), *(np.zeros((2, 2, 5, 34), np.uint8),) * 2),
        {"kv_format": "q8_0"},
        "k and v are in blocks, which the kernel reads for queries of float32 only",
    ),
]


@pytest.mark.parametrize(("args", "options", "reason"), REFUSED, ids=[reason for *_, reason in REFUSED])
def test_refusals_of_attention(args, options, reason):
    args, options = support.there((args, options), "jax")
    found = ATTEND.explain(*args, **options)
    assert (found.kernel, found.refused["jax_ffi"]) == ("generic", reason)
    assert ATTEND(*args, **options).shape == args[0].shape


Y = Q
LOGITS = np.zeros((2, 5), np.float32)
ATTENTION = "scaled_dot_product_attention"
MALFORMED = {
    "two": (ATTENTION, Y, (Q, K), {}),
    "axes": (ATTENTION, Y, (Q[0], K, K), {}),
    "dtypes": (ATTENTION, Y, (Q, K, K.astype(np.float16)), {}),
    "features": (ATTENTION, Y, (Q, K[..., :8], K), {}),
    "keys": (ATTENTION, Y, (Q, K, K[:, :, :4]), {}),
    "heads": (ATTENTION, Q[:, :3], (Q[:, :3], K, K), {}),
    "batch": (ATTENTION, Y, (Q, K[:1], K[:1]), {}),
    "result": (ATTENTION, Y[..., :8], (Q, K, K), {}),
    "mask": (ATTENTION, Y, (Q, K, K, np.zeros((3, 4), bool)), {"names": (*"qkv", "mask")}),
    "mask-axes": (ATTENTION, Y, (Q, K, K, np.zeros((1, 1, 1, 1, 5), bool)), {"names": (*"qkv", "mask")}),
    "mask-dtype": (ATTENTION, Y, (Q, K, K, np.zeros(5, np.int32)), {"names": (*"qkv", "mask")}),
    "sinks": (ATTENTION, Y, (Q, K, K, np.zeros(5, np.float32)), {"names": (*"qkv", "sinks")}),
    "lengths": (ATTENTION, Y, (Q, K, K, np.zeros(3, np.int32)), {"names": (*"qkv", "lengths")}),
    "lengths-dtype": (ATTENTION, Y, (Q, K, K, np.zeros(2, np.float32)), {"names": (*"qkv", "lengths")}),
    "pages": (ATTENTION, Y, (Q, K, K, np.zeros((3, 1), np.int32)), {"names": (*"qkv", "page_table")}),
    "few-logits": ("sample", np.zeros(3, np.int32), (LOGITS,), {}),
    "no-logits": ("sample", np.zeros(2, np.int32), (LOGITS[:, :0],), {}),
    "index": ("sample", np.zeros(2, np.float32), (LOGITS,), {}),
    "numbers": ("sample", np.zeros(2, np.int32), (LOGITS, np.zeros(3, np.float32)), {"names": ("logits", "rng")}),
    "top_p": ("sample", np.zeros(2, np.int32), (LOGITS,), {"attributes": {"top_p": np.float64(0)}}),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_handler_touches_nothing_it_does_not_know(case):
    name, like, args, given = MALFORMED[case]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: tensorops: {name}"):
        support.by_hand_in_jax(name, like, args, **given)
