"""The Pallas kernel of attention for few queries: values in Pallas' interpreter, its blocks, and programs for TPUs."""

import functools
import math

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import DTYPES, REFERENCES, assert_matches

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas import blocks, decoding, decoding_plans  # noqa: E402
from tensorops.kernels.pallas._call import Scalars, traffic  # noqa: E402
from tensorops.kernels.pallas.decoding_plans import divided, plan_decode  # noqa: E402

ATTEND = tp.scaled_dot_product_attention
REFERENCE = REFERENCES["scaled_dot_product_attention"]
KERNEL = 'kernel_name = "scaled_dot_product_attention_decode"'


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 128 keys and of one or two heads."""
    monkeypatch.setattr(decoding_plans, "_FEWEST_KEYS", 128)
    monkeypatch.setattr(decoding_plans, "_MOST_KEYS", 128)


def attention(args, dtype="float32", *, least_steps=2, expected=None, tolerance=32, **options):
    """Assert that the kernel agrees with the reference, or with what is expected; return its result."""
    there, arrays = support.there((args, {n: a for n, a in options.items() if isinstance(a, np.ndarray)}), "jax")
    rest = {name: value for name, value in options.items() if name not in arrays}
    planned = plan_decode("v4", **OPERATORS["scaled_dot_product_attention"].canonical(*there, **arrays, **rest))
    assert not isinstance(planned, str), planned
    with interpreting() as steps, tp.set_backend("jax", providers=["pallas"]), tp.trace() as log:
        y = support.back(jax.block_until_ready(ATTEND(*there, **arrays, **rest)))
        assert not races()
    assert [record.kernel for record in log] == ["pallas"]
    assert len(steps) >= least_steps
    expected = REFERENCE(*args, **options) if expected is None else expected
    assert_matches(y, expected, dtype, tolerance=tolerance if dtype == "float32" else 4, scale_axis=None)
    return y


def qkv(rng, *, b=2, hq=4, hkv=2, tq=2, tk=300, d=128, dv=64, dtype="float32"):
    shapes = (b, hq, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv)
    return tuple(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)


def added(rng, *shape, dtype="float32"):
    return np.where(rng.random(shape) < 0.7, rng.standard_normal(shape), -np.inf).astype(DTYPES[dtype])


OPTIONS = {
    "plain": lambda r: {},
    "causal": lambda r: {"is_causal": True},
    "lengths": lambda r: {"lengths": np.asarray([300, 129], np.int32)},
    "no-keys": lambda r: {"lengths": np.asarray([0, 0], np.int32), "sinks": np.ones(4, np.float32)},
    "short-lengths": lambda r: {"lengths": np.asarray([1, 128], np.uint8), "is_causal": True},
    "window": lambda r: {"window": 130, "is_causal": True},
    "window-lengths": lambda r: {"window": (3, 1), "lengths": np.asarray([257, 0], np.int32)},
    "right": lambda r: {"window": (None, 0), "lengths": np.asarray([3, 300], np.int32)},
    "softcap": lambda r: {"softcap": 1.5, "scale": 0.5},
    "sinks": lambda r: {"sinks": r.standard_normal(4).astype(np.float16)},
    "mask-keys": lambda r: {"mask": r.random(300) < 0.7},
    "mask-queries": lambda r: {"mask": r.random((2, 1, 2, 300)) < 0.7},
    "mask-of-all": lambda r: {"mask": r.random((2, 4, 2, 300)) < 0.7},
    "mask-broadcast": lambda r: {"mask": r.random((4, 2, 1)) < 0.5},
    "mask-added": lambda r: {"mask": added(r, 4, 1, 300), "is_causal": True},
    "mask-half": lambda r: {"mask": added(r, 2, 1, 1, 300, dtype="bfloat16"), "softcap": 2.0},
    "everything": lambda r: {
        "mask": added(r, 2, 300, dtype="float16"),
        "lengths": np.asarray([9, 290], np.int16),
        "sinks": r.standard_normal(4).astype(np.float32),
        "window": (280, 3),
        "softcap": 3.0,
        "scale": 0.4,
    },
}
DEFAULT = [("everything", "bfloat16")]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=() if (case, dtype) in DEFAULT else pytest.mark.exhaustive)
        for case in OPTIONS
        for dtype in ("float32", "bfloat16")
    ],
)
def test_options(case, dtype, rng):
    """Several blocks of keys, the last one incomplete; keys as they are and values feature by feature."""
    attention(qkv(rng, dtype=dtype), dtype, **OPTIONS[case](rng))


HEADS = {
    "one-key-head": {"b": 1, "hq": 5, "hkv": 1, "tq": 3},
    "a-head-each": {"b": 1, "hq": 3, "hkv": 3, "tq": 1},
    "several-blocks": {"b": 1, "hq": 8, "hkv": 4, "tq": 1},
    "narrow-keys": {"d": 24, "dv": 128},
    "wide": {"d": 192, "dv": 256, "tk": 140},
    "one-key": {"tk": 1},
}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("case", HEADS)
def test_heads_and_features(case, rng):
    lengths = None if case == "one-key" else np.asarray([130] * HEADS[case].get("b", 2), np.int32)
    attention(qkv(rng, **HEADS[case]), least_steps=1, lengths=lengths, is_causal=True)


# Several pages in a step, one that is not a whole tile, and pages that are divided.
PAGES = {"several": (8, 20, 64), "odd": (5, 7, 128), "divided": (256, 2, 64), "whole": (128, 3, 128)}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("window", [pytest.param(None, marks=pytest.mark.exhaustive), (2, 0)], ids=["all", "window"])
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c == "several" else pytest.mark.exhaustive) for c in PAGES]
)
def test_pages(case, window, rng):
    """Of a table, what is beyond the lengths and before the window is not used; the rest is clamped, as lengths are."""
    size, count, dv = PAGES[case]
    keys = size * count
    q = qkv(rng, b=3)[0]
    k, v = (rng.standard_normal((3 * count, 2, size, n)).astype(np.float32) for n in (128, dv))
    table = rng.permutation(3 * count).reshape(3, count).astype(np.int32)
    lengths = np.asarray([keys - size // 2, size + 1, 0], np.int32)
    given, clamped = table.copy(), table.copy()
    given[1, 2:] = given[2] = -7
    given[0, -1], clamped[0, -1] = 10**6, 3 * count - 1
    expected = REFERENCE(q, k, v, lengths=lengths, page_table=clamped, window=window)
    attention((q, k, v), expected=expected, lengths=lengths - [0, 0, 5], page_table=given, window=window)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_blocks")
def test_a_mask_of_keys_in_pages(rng):
    q, k, v = qkv(rng, b=1)[0], *(rng.standard_normal((40, 2, 8, n)).astype(np.float32) for n in (128, 64))
    table, lengths = rng.permutation(40).reshape(1, 40), np.asarray([310], np.int32)
    attention((q, k, v), mask=added(rng, 2, 320), page_table=table, lengths=lengths, window=(200, None))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_blocks")
def test_what_no_query_attends_to_may_be_anything(rng):
    q, k, v = qkv(rng)
    for x in (k, v):
        x[0, :, 140:] = np.nan  # beyond the length
        x[1, :, :131], x[1, :, 290:] = np.inf, -np.inf  # before the window, and beyond the length
    attention((q, k, v), is_causal=True, window=150, lengths=np.asarray([140, 281], np.int32))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_blocks")
def test_what_is_not_finite_stays_in_its_row(rng):
    q, k, v = qkv(rng)
    q[0, 1, 1, 3] = np.nan
    y = attention((q, k, v), mask=np.arange(300) != 300 * (np.arange(2)[:, None] == 1), sinks=np.zeros(4, np.float32))
    assert np.argwhere(np.isnan(y).any(-1)).tolist() == [[0, 1, 1]]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_finite_numbers_of_any_magnitude(dtype, softcap, rng):
    """Scores beyond the range come in the second of three blocks of keys; other rows have usual ones."""
    q, k, v = qkv(rng, b=1, dtype=dtype)
    q[0, 0, 0], k[0, 0, 200] = q[0, 0, 0] * 1e30, k[0, 0, 200] * 1e35
    v[0, 1] = 3e38  # no sum of weighted values may overflow either
    mask = np.ones((4, 2, 300), bool)
    mask[0, 1, 200] = mask[1, :, 200] = False
    y = attention((q, k, v), dtype, softcap=softcap, mask=mask, sinks=np.asarray([1e20, 0, 0, 0], np.float32))
    assert np.isfinite(y).all()


@pytest.mark.exhaustive
def test_a_query_without_keys_gives_zeros(rng):
    y = attention(qkv(rng, tk=2, tq=3), least_steps=1, is_causal=True)
    assert not y[:, :, 0].any()


# ------------------------------------------------------------------------------------------------------ blocks


def places(blocks, batch, kv_heads, ends, *, table=None, shape=None):
    """Return the bytes of float32 keys of 128 features that move, in rows of features."""
    shape = shape or (batch, kv_heads, blocks.all_keys, 128)
    grid = (batch, kv_heads // blocks.heads, blocks.steps)
    given = None if table is None else jnp.asarray(table)
    _, place = decoding._places(blocks, grid, shape, jnp.asarray(ends), given)
    scalars = [np.asarray(ends, np.int32)] + ([] if table is None else [np.ravel(table).astype(np.int32)])
    moved = 0
    for page in range(blocks.pages):
        spec = pl.BlockSpec((1, blocks.heads, blocks.keys, 128), functools.partial(place, page, False))
        moved += traffic(grid, shape, 4, spec, scalars)
    return moved / (4 * 128)


def of(*, heads=1, keys=100, pages=1, all_keys=1000, queries=1, left=None):
    return decoding_plans.Decoding(heads, keys, pages, 0, (False, False), queries, all_keys, left, None)


# Blocks, sequences, key heads, lengths, and how many keys of one head move, counted by hand.
MOVED = [
    (of(), 1, 1, [1000], 1000),
    (of(), 1, 1, [201], 300),  # in whole blocks
    (of(), 1, 3, [201], 900),  # of each head
    (of(heads=3), 1, 3, [201], 900),
    (of(), 2, 1, [100, 201], 400),
    (of(), 2, 1, [201, 0], 400),  # the first block of a sequence without keys
    (of(), 3, 1, [5, 0, 1000], 1200),
    (of(all_keys=1030), 1, 1, [1030], 1030),  # of the last block, what there is
    (of(left=99), 1, 1, [1000], 100),  # exactly a block
    (of(left=99), 1, 1, [950], 200),  # parts of two
    (of(left=99), 2, 1, [950, 30], 300),
]


@pytest.mark.costly(3)
@pytest.mark.parametrize(("blocks", "batch", "heads", "ends", "keys"), MOVED)
def test_only_blocks_with_keys_in_reach_move(blocks, batch, heads, ends, keys):
    assert places(blocks, batch, heads, ends) == keys


# Of pages of 100 keys: blocks, lengths, table, and how many keys move, counted by hand.
OF_PAGES = [
    (of(all_keys=400), [400], [[3, 1, 0, 2]], 400),
    (of(all_keys=400), [150], [[3, 1, 0, 2]], 200),
    (of(all_keys=400), [400], [[3, 3, 0, 0]], 200),  # the same page after itself stays
    (of(all_keys=400, pages=2), [400], [[3, 1, 0, 2]], 400),
    (of(all_keys=400, pages=2), [250], [[3, 1, 0, 2]], 400),  # both places of the second step have the last page
    (of(all_keys=400, keys=50), [120], [[3, 1, 0, 2]], 150),  # halves of pages
    (of(all_keys=400, left=99), [350], [[9, 9, 0, 2]], 200),  # pages before the window stay
]


@pytest.mark.costly(3)
@pytest.mark.parametrize(("blocks", "ends", "table", "keys"), OF_PAGES)
def test_only_pages_in_reach_move(blocks, ends, table, keys):
    assert places(blocks, 1, 1, ends, table=table, shape=(4, 1, 100, 128)) == keys


def test_steps_beyond_the_end_fetch_the_next_sequence():
    """The first block of the next sequence is there when its first step begins."""
    _, place = decoding._places(of(), (2, 2, 10), (2, 2, 1000, 128), jnp.asarray([150, 1000]), None)
    ends = jnp.asarray([150, 1000])
    found = [[int(i) for i in place(0, False, *map(jnp.int32, step), ends)] for step in np.ndindex(2, 2, 10)]
    assert found[:3] == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]  # the other head of the first sequence
    assert found[9:13] == [[0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
    assert found[20:30] == [[1, 0, block, 0] for block in range(10)]


# Grid, shape, block, index map, scalars, and the bytes of float32 that move, counted by hand.
BY_SCALARS = [
    ((4,), (8, 128), (2, 128), lambda i, s: (s[i], 0), [[3, 3, 0, 1]], 3 * 2 * 128),  # the second stays
    ((2, 3), (6, 128), (1, 128), lambda i, j, s: (jnp.minimum(j, s[i]), 0), [[0, 2]], 3 * 128),  # the first for both
    ((3,), (4, 128), (2, 128), lambda i, s, t: (s[i] + t[0], 0), [[0, 1, 0], [0]], 6 * 128),
]


@pytest.mark.parametrize(("grid", "shape", "block", "index_map", "scalars", "elements"), BY_SCALARS)
def test_traffic_of_blocks_that_depend_on_scalars(grid, shape, block, index_map, scalars, elements):
    scalars = [np.asarray(s, np.int32) for s in scalars]
    assert traffic(grid, shape, 4, pl.BlockSpec(block, index_map), scalars) == 4 * elements
    traced = jax.jit(lambda x: x * traffic(grid, shape, 4, pl.BlockSpec(block, index_map), scalars))
    assert traced(1) == 4 * elements


def test_bytes_are_counted_for_full_sequences_and_different_pages(monkeypatch):
    counted = []
    monkeypatch.setattr(decoding, "call", lambda *args, scalars, **_: counted.extend(scalars) or [jnp.zeros(512)])
    q, k, table = jnp.zeros((2, 2, 1, 128)), jnp.zeros((5, 2, 128, 128)), jnp.zeros((2, 3), jnp.int32)
    plan = plan_decode("v4", **ATTEND.canonical(q, k, k, page_table=table, lengths=jnp.asarray([1, 2])))
    plan(q=q, k=k, v=k, page_table=table, lengths=jnp.asarray([1, 2]))
    assert all(isinstance(each, Scalars) for each in counted)
    assert [each.costly.tolist() for each in counted] == [[384, 384], [0, 1, 2, 3, 4, 0]]


SHAPES = [
    ((1, 32, 1, 128), (1, 8, 8192, 128), None),
    ((1, 32, 1, 128), (1, 8, 8200, 128), None),
    ((4, 128, 1, 576), (4, 1, 100_000, 512), None),
    ((2, 8, 16, 64), (2, 8, 77, 64), None),
    ((1, 64, 16, 256), (1, 8, 5000, 256), None),
    ((3, 32, 1, 128), (700, 8, 16, 128), 200),
    ((3, 32, 1, 64), (700, 8, 1024, 64), 20),
    ((3, 32, 1, 128), (700, 8, 1000, 128), 20),
    ((3, 6, 1, 33), (7, 3, 5, 48), 11),
]


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize(("of_queries", "of_values", "pages"), SHAPES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("left", [None, 0, 300])
def test_division(left, size, of_queries, of_values, pages, generation):
    found = divided(generation, of_queries, of_values, size, pages, left, 0)
    keys = of_values[2]
    all_keys = keys * (pages or 1)
    assert of_values[1] % found.heads == 0
    assert found.keys == keys or found.keys % 128 == 0
    if pages is not None:
        assert keys % found.keys == 0
        assert found.pages == 1 or (found.keys == keys and keys % (32 // size) == 0)
    fetched = 2 * found.heads * found.step * (of_queries[3] + of_values[3]) * size
    assert fetched <= found.vmem < 0.9 * blocks.VMEM[generation]
    reached = all_keys if left is None else min(left + of_queries[2], all_keys)
    for end in {all_keys, all_keys - 1, reached, 1}:  # the steps of any sequence suffice
        start = max(end - reached, 0) // found.step * found.step
        assert start + found.steps * found.step >= end
    assert found.steps <= math.ceil(all_keys / found.step)


def test_a_single_sequence_is_divided_over_two_cores():
    of_queries, of_values = SHAPES[0][:2]
    assert divided("v5p", of_queries, of_values, 2, None, None, None).heads <= 4
    assert divided("v5e", of_queries, of_values, 2, None, None, None).heads == 8
    assert divided("v4", (2, *of_queries[1:]), (2, *of_values[1:]), 2, None, None, None).heads == 8


def arrays(**shapes):
    dtypes = {"page_table": np.int32, "lengths": np.int32}
    if "k" in shapes and shapes["k"][-1] % 34 == 0:  # rows of blocks
        dtypes |= dict.fromkeys("kv", np.uint8)
    return {n: np.lib.stride_tricks.as_strided(np.zeros(1, dtypes.get(n, np.float32)), s, (0,) * len(s))
            for n, s in shapes.items()}  # fmt: skip


SMALL = {"q": (2, 4, 1, 128), "k": (2, 2, 300, 128), "v": (2, 2, 300, 128)}
REFUSED = [
    ({"q": (2, 4, 65, 128)}, {}, "130 queries share a key head, more than 128"),
    ({}, {"scale": 1e-40}, "scale is 1e-40, which is not between 1e-30 and 1e+30"),
    ({}, {"softcap": 1e31}, "softcap is 1e+31, which is not between"),
    ({}, {"mask": np.zeros(300)}, "mask has dtype float64, expected one of bool, bfloat16, float16, float32"),
    ({}, {"sinks": np.zeros(4)}, "sinks has dtype float64, expected one of"),
    ({"k": (2, 2, 0, 128), "v": (2, 2, 0, 128)}, {}, "k is empty"),
    ({"k": (9, 2, 8, 128), "v": (9, 2, 8, 128), "page_table": (2, 40_000)}, {}, "page_table has 80000 entries"),
    (
        {"k": (9, 2, 5, 128), "v": (9, 2, 5, 128), "page_table": (2, 60)},
        {"mask": np.zeros(300, bool)},
        "a mask is given, and pages have 5 keys",
    ),
    (
        {"q": (1, 128, 1, 20_000), "k": (1, 1, 300, 20_000), "v": (1, 1, 300, 20_000)},
        {},
        "keys and values of 20000 and 20000 features do not fit the vector memory of a TPU v5e",
    ),
    (
        {"k": (2, 2, 300, 136), "v": (2, 2, 300, 136)},
        {"kv_format": "q8_0"},
        "the kernel for few queries reads no blocks of format 'q8_0'",
    ),
]


@pytest.mark.parametrize(("shapes", "options", "reason"), REFUSED)
def test_refusals(shapes, options, reason):
    found = plan_decode("v5e", **ATTEND.canonical(**arrays(**SMALL | shapes), **options))
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_halves_other_than_bfloat16_are_refused():
    q, k, v = (a.astype(np.float16) for a in arrays(**SMALL).values())
    assert plan_decode("v5e", **ATTEND.canonical(q, k, v)).startswith("q has dtype float16, expected one of bfloat16")


# --------------------------------------------------------------------------------------------- programs for TPUs


def shapes(**given):
    dtypes = {"page_table": jnp.int32, "lengths": jnp.int32, "sinks": jnp.float32, "mask": jnp.bool}
    return {name: jax.ShapeDtypeStruct(shape, dtypes.get(name, jnp.bfloat16)) for name, shape in given.items()}


PROGRAMS = {
    "plain": {},
    "lengths": {"lengths": (2,), "sinks": (4,), "mask": (300,)},
    "pages": {"k": (9, 2, 16, 64), "v": (9, 2, 16, 64), "q": (2, 4, 1, 64), "page_table": (2, 40), "lengths": (2,)},
    "turned": {"k": (2, 2, 300, 64), "q": (2, 4, 1, 64)},
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("case", PROGRAMS)
def test_programs_for_tpus_have_the_kernel(case):
    given = shapes(**SMALL | PROGRAMS[case])

    def program(function):
        return exported(lambda a: function(**a, is_causal=True, window=(100, None), softcap=3.0), given)

    text = program(ATTEND)
    assert text.count("@tpu_custom_call") == 1
    assert KERNEL in text
    assert "@tpu_custom_call" not in program(ATTEND.generic)


def test_programs_have_the_kernel_where_jax_has_float64():
    with support.holding("jax", "float64"):
        given = shapes(**SMALL, sinks=(4,)) | {"lengths": jax.ShapeDtypeStruct((2,), jnp.int64)}
        assert KERNEL in exported(lambda a: ATTEND(**a, is_causal=True, window=(100, None), softcap=3.0), given)


def test_mapped_programs_have_the_kernel():
    given = shapes(**SMALL, lengths=(2,))
    several = {name: jax.ShapeDtypeStruct((5, *a.shape), a.dtype) for name, a in given.items()}
    text = exported(jax.vmap(lambda a: ATTEND(**a)), several)
    assert text.count("@tpu_custom_call") == 1
    assert KERNEL in text


def test_derivatives_are_those_of_the_body():
    text = exported(jax.grad(lambda a: jnp.sum(ATTEND(**a))), shapes(**SMALL))
    assert "@tpu_custom_call" not in text
