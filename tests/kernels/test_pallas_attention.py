"""The Pallas kernel of attention for many queries: several blocks, what is skipped, and programs for TPUs."""

import math

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.kernels.pallas import blocks, compiling_for
from tensorops.kernels.pallas.attention_plans import plan_prefill
from tensorops.testing import DTYPES, REFERENCES, assert_matches

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas._call import traffic  # noqa: E402
from tensorops.kernels.pallas.attention import Layout, Rules  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS, REVERSE_PLANNERS, WITH_STATISTICS  # noqa: E402
from tensorops.ops.attention import log_totals  # noqa: E402

NAME = "scaled_dot_product_attention"
RESIDENT, STREAMED = 0.7, 0.05  # of the vector memory of a v4: for all keys, for some hundred


@pytest.fixture
def steps():
    with interpreting() as found:
        yield found


def some(rng, q=100, k=300, *, batch=1, heads=4, kv_heads=2, dim=16, value_dim=24):
    return {
        "q": rng.standard_normal((batch, heads, q, dim)),
        "k": rng.standard_normal((batch, kv_heads, k, dim)),
        "v": rng.standard_normal((batch, kv_heads, k, value_dim)),
    }


def causal(rng):
    return some(rng) | {"is_causal": True}


def windows_of_lengths(rng):
    found = some(rng, batch=2) | {"lengths": np.array([290, 40], np.int32), "window": (70, 3)}
    found["sinks"] = rng.standard_normal(4)
    for name in ("k", "v"):  # what no query attends to has no effect
        found[name][0, :, 290:], found[name][0, :, :120], found[name][1, :, 40:] = np.nan, np.inf, -np.inf
    return found


def boolean_mask(rng):
    return some(rng, heads=3, kv_heads=1) | {"mask": rng.random((100, 300)) < 0.5, "window": (200, None)}


def mask_of_keys(rng):
    return some(rng, 40, batch=2) | {"mask": rng.random((2, 1, 1, 300)) < 0.1}


def added_mask(rng):
    mask = np.where(rng.random((1, 4, 100, 300)) < 0.5, rng.standard_normal((1, 4, 100, 300)), -np.inf)
    return some(rng) | {"mask": mask.astype(np.float32), "is_causal": True, "softcap": 3.0, "scale": -0.7}


def enormous(rng):
    """Scores beyond the range of float32, among the later keys only; each query also has an ordinary one."""
    found = some(rng, 70, batch=2)
    found["q"][..., :35, :] *= 1e25
    found["k"][0, :, 150:] *= 2.0**80
    return found | {"sinks": rng.standard_normal(4)}


def enormous_and_masked(rng):
    found = enormous(rng)
    return found | {"mask": 3 * rng.standard_normal((70, 300)), "window": (150, 20)}


def scale_of_zero(rng):
    return some(rng, 40) | {"scale": 0.0, "is_causal": True}


CASES = [
    pytest.param(causal, RESIDENT, "bfloat16", marks=pytest.mark.exhaustive),
    (causal, STREAMED, "float32"),
    pytest.param(windows_of_lengths, RESIDENT, "float32", marks=pytest.mark.exhaustive),
    pytest.param(windows_of_lengths, STREAMED, "bfloat16", marks=pytest.mark.exhaustive),
    (boolean_mask, STREAMED, "float32"),
    pytest.param(mask_of_keys, STREAMED, "float32", marks=pytest.mark.exhaustive),
    (added_mask, STREAMED, "float32"),
    pytest.param(enormous, RESIDENT, "float32", marks=pytest.mark.exhaustive),
    pytest.param(enormous, STREAMED, "float32", marks=pytest.mark.exhaustive),
    (enormous_and_masked, STREAMED, "float32"),
    pytest.param(scale_of_zero, RESIDENT, "float32", marks=pytest.mark.exhaustive),
]


@pytest.fixture
def small_blocks(monkeypatch):
    """Divide into blocks what is small enough for an interpreter, with this kernel."""
    monkeypatch.setitem(PLANNERS, NAME, plan_prefill)
    monkeypatch.setattr(blocks, "_ROWS", 64)
    monkeypatch.setattr(blocks, "_KEYS", 128)
    monkeypatch.setattr(blocks, "_STREAMED", 128)


@pytest.mark.costly
@pytest.mark.parametrize(("make", "memory", "dtype"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_several_blocks(make, memory, dtype, steps, small_blocks, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_MOST_OF_ATTENTION", memory)
    arguments = make(rng)
    for name in ("q", "k", "v", "sinks"):
        if name in arguments:
            arguments[name] = arguments[name].astype(DTYPES[dtype])
    if arguments.get("mask") is not None and arguments["mask"].dtype == np.float64:
        arguments["mask"] = arguments["mask"].astype(np.float32)
    there = support.there(arguments, "jax")
    with tp.set_backend("jax", providers=["pallas"]), tp.trace() as log:
        y = tp.scaled_dot_product_attention(**there)
    assert [record.kernel for record in log] == ["pallas"]
    assert len(steps) >= 2 * math.ceil(300 / 128) if memory == STREAMED else len(steps) >= 2
    assert not races()
    assert_matches(support.back(y), REFERENCES[NAME](**arguments), dtype, tolerance=64 if dtype == "float32" else 8)


def body_in_float64(arguments, wanted, dy):
    """Return what derivatives keep, and the gradients, of the operator's body."""

    def wide(a):
        return a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype in DTYPES.values() else a

    given = {name: wide(a) for name, a in arguments.items()}
    with jax.enable_x64(True):
        given = {n: jnp.asarray(a) if isinstance(a, np.ndarray) else a for n, a in given.items()}
        given = {n: a for n, a in OPERATORS[NAME].canonical(**given).items() if a is not None}
        function = lambda *xs: OPERATORS[NAME].compute(**given | dict(zip(wanted, xs, strict=True)))  # noqa: E731
        y, back = jax.vjp(function, *(given[name] for name in wanted))
        found = back(jnp.asarray(dy, jnp.float64))
        return *map(np.asarray, (y, log_totals(**given))), dict(zip(wanted, map(np.asarray, found), strict=True))


SLOPES = [
    (windows_of_lengths, 0.07, "float32"),
    (added_mask, RESIDENT, "float32"),
    pytest.param(causal, RESIDENT, "bfloat16", marks=pytest.mark.exhaustive),
    pytest.param(boolean_mask, RESIDENT, "float32", marks=pytest.mark.exhaustive),
    pytest.param(added_mask, 0.07, "float32", marks=pytest.mark.exhaustive),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("make", "memory", "dtype"), SLOPES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_gradients(make, memory, dtype, steps, small_blocks, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_ROWS", 128)
    monkeypatch.setattr(blocks, "_MOST_OF_ATTENTION", memory)
    arguments = make(rng)
    wanted = tuple(name for name in ("q", "k", "v", "sinks") if name in arguments)
    arguments |= {name: arguments[name].astype(DTYPES[dtype]) for name in wanted}
    dy = rng.standard_normal((*arguments["q"].shape[:3], arguments["v"].shape[3])).astype(DTYPES[dtype])
    y, totals, expected = body_in_float64(arguments, wanted, dy)
    there = OPERATORS[NAME].canonical(**support.there(arguments, "jax"))
    arrays = {name: a for name, a in there.items() if isinstance(a, jax.Array)}
    found = WITH_STATISTICS[NAME]("v4", **there)(**arrays)
    np.testing.assert_allclose(np.asarray(found[1]), totals, rtol=1e-5, atol=1e-5)
    assert_matches(support.back(found[0]), y, dtype, tolerance=64 if dtype == "float32" else 8)
    before = len(steps)
    rest = [*found, jnp.asarray(dy)]
    slopes = REVERSE_PLANNERS[NAME]("v4", wanted, rest, **there)(rest, **arrays)
    assert len(steps) > before
    assert not races()
    for name, slope in zip(wanted, slopes, strict=True):
        assert slope.dtype == arrays[name].dtype
        wide = support.back(slope).astype(np.float64)
        scale = np.max(np.abs(expected[name]))
        np.testing.assert_allclose(wide / scale, expected[name] / scale, atol=1e-5 if dtype == "float32" else 0.02)


# ------------------------------------------------------------------------------------------------------ blocks

WIDTHS = [(64, 64), (128, 128), (33, 12), (576, 512), (1024, 1024)]
SIZES = [(1, 1, 1), (4, 2048, 2048), (8, 16, 100_000), (7, 300, 700), (1, 100_000, 100_000), (128, 33, 65)]
MASKS = [(0, False, False), (1, False, True), (4, True, True)]


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_blocks(widths, mask, generation):
    for group, queries, keys in SIZES:
        for size in (2, 4):
            found = blocks.attention(group, queries, keys, keys, widths, size, mask, generation)
            assert found is not None
            assert group % found.heads == 0
            assert found.queries % 32 == 0
            assert found.keys % found.part == found.part % 128 == 0
            for count, held in ((queries, found.queries), (keys, found.keys)):
                assert (math.ceil(count / held) - 1) * held < count
            wide, rows = sum(math.ceil(width / 128) * 128 for width in widths), found.heads * found.queries
            of_mask = mask[0] * (rows if mask[1] else found.queries) * found.keys if mask[0] else 0
            held = 2 * size * wide * (found.keys + rows) + 2 * of_mask + 4 * rows * 3 * found.part
            assert held <= found.vmem <= blocks.VMEM[generation]


def test_keys_that_fit_are_one_block():
    for generation, keys in (("v5e", 32_768), ("v6e", 32_768), ("v4", 2048)):
        found = blocks.attention(4, 2048, keys, keys, (128, 128), 2, (0, False, False), generation)
        assert found.keys >= keys


def test_keys_out_of_reach_are_in_other_blocks():
    found = blocks.attention(4, 128, 32_768, 1000, (128, 128), 2, (0, False, False), "v5e")
    assert found.keys < 4096


# Rules, lengths, and how many of four blocks of 128 keys move for four blocks of 64 queries, counted by hand.
MOVED = [
    (None, None, None, 16),
    (None, 0, None, 3 + 3 + 4 + 4),
    (63, 0, None, 3),  # each once: what the next queries need stays
    (None, 0, 200, 1 + 0 + 1 + 2),
    (None, 0, 0, 1),
]


@pytest.mark.parametrize(("left", "right", "length", "moved"), MOVED)
def test_hidden_blocks_do_not_move(left, right, length, moved):
    layout = Layout(blocks.AttentionBlocks(1, 64, 128, 128, 0), Rules(256, 512, left, right, 1.0, None))
    lengths = [] if length is None else [np.array([length], np.int32)]
    assert traffic((1, 1, 4, 4), (1, 1, 512, 128), 2, layout.of_keys(128), lengths) == moved * 128 * 128 * 2


# ---------------------------------------------------------------------------------------------------- programs


def arrays(dtype="bfloat16", dim=128, **shapes):
    found = {"q": (2, 4, 160, dim), "k": (2, 2, 96, dim), "v": (2, 2, 96, dim)} | shapes
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, shape in found.items()}


def attend(found, **options):
    return lambda *xs: tp.scaled_dot_product_attention(**dict(zip(found, xs, strict=True)), **options)


OPTIONS = {"causal": {"is_causal": True}, "window": {"window": (5, None), "softcap": 30.0}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_programs_for_tpus_have_the_kernel(options):
    found = arrays() | {
        "mask": jax.ShapeDtypeStruct((2, 1, 160, 96), jnp.bool_),
        "sinks": jax.ShapeDtypeStruct((4,), jnp.float32),
        "lengths": jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    text = exported(attend(found, **options), *found.values())
    assert text.count("@tpu_custom_call") == 1
    assert f'kernel_name = "{NAME}"' in text


def test_mapped_programs_have_the_kernel():
    several = [jax.ShapeDtypeStruct((3, *a.shape), a.dtype) for a in arrays().values()]
    assert exported(jax.vmap(attend(arrays())), *several).count("@tpu_custom_call") == 1


def gradients(found, wanted, **options):
    def total(*xs):
        return jnp.sum(attend(found, **options)(*xs).astype(jnp.float32))

    return jax.grad(total, [list(found).index(name) for name in wanted])


def test_gradients_have_a_kernel():
    found = arrays() | {"mask": jax.ShapeDtypeStruct((160, 96), jnp.float32)}
    with compiling_for("v5e"):
        text = exported(gradients(found, "qkv", is_causal=True), *found.values())
        assert text.count("@tpu_custom_call") == 2
        assert f'kernel_name = "{NAME}_gradients"' in text
        of_mask = exported(gradients(found, ("mask",)), *found.values())
        assert f'kernel_name = "{NAME}_gradients"' not in of_mask


def test_mapped_gradients_have_a_kernel():
    several = [jax.ShapeDtypeStruct((3, *a.shape), a.dtype) for a in arrays().values()]
    with compiling_for("v5e"):
        text = exported(jax.vmap(gradients(arrays(), "qkv")), *several)
    assert text.count("@tpu_custom_call") == 2


REFUSED = [
    ({"page_table": np.zeros((2, 1), np.int32)}, "keys and values are in pages"),
    ({"mask": np.zeros((64, 96), np.float16)}, "mask has dtype float16"),
    ({"q": np.zeros((2, 4, 0, 8), np.float32)}, "q is empty"),
    ({"sinks": np.zeros(4, np.float64)}, "sinks has dtype float64"),
    (
        {"q": np.zeros((2, 4, 64, 32), np.float32)}
        | dict.fromkeys("kv", np.zeros((2, 2, 96, 34), np.uint8))
        | {"kv_format": "q8_0"},
        "the kernel for many queries reads no blocks of format 'q8_0'",
    ),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSED)
def test_refusals(changed, reason):
    given = {"q": np.zeros((2, 4, 64, 8), np.float32)} | dict.fromkeys("kv", np.zeros((2, 2, 96, 8), np.float32))
    found = plan_prefill("v5e", **OPERATORS[NAME].canonical(**given | changed))
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_features_that_fit_no_vector_memory():
    wide = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 1, 64, 100_000), (0,) * 4)
    given = OPERATORS[NAME].canonical(wide, wide, wide)
    assert plan_prefill("v5e", **given) == "100000 and 100000 features do not fit the vector memory of a TPU v5e"
