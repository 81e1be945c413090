"""Steps on NumPy arrays as plans of compiled calls."""

import gc
import itertools
import json
import os
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.hardware import usable_processors
from tensorops.testing import CASES, REFERENCES, assert_matches

NATIVE = support.require_native()

from tensorops.persistent import CaptureError, PersistentKernel  # noqa: E402
from tensorops.persistent._arena import arrange  # noqa: E402
from tensorops.persistent._calls import Memory  # noqa: E402
from tensorops.persistent.engines.numpy import SMALL  # noqa: E402


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compiled(step, *args, **options):
    return PersistentKernel(step, args, backend="cpu", **options)


# --------------------------------------------------------------------------------------------------- values


def recordable():
    """The first cases of each operator in each dtype that can be recorded."""
    for name in sorted(set(NATIVE.operators()) & OPERATORS.keys()):
        found = 0
        for case, dtype in itertools.product(CASES[name], ("float32", "float16", "bfloat16", "float64")):
            if dtype in case.dtypes:
                found += 1
                marks = () if found <= 4 else pytest.mark.exhaustive
                yield pytest.param(case, dtype, marks=marks, id=f"{case}-{dtype}")


def arrays_of(tree):
    found = []
    map_arrays(lambda x: found.append(x) or x, tree)
    return found


def test_the_usual_case_of_every_operator_is_recorded():
    """Others may be skipped: what the body computes, and what a kernel refuses in words."""
    for name in sorted(set(NATIVE.operators()) & OPERATORS.keys()):
        args, options = CASES[name][0].build(dtype_name="float32")
        arrays = [value for value in (*args, *options.values()) if isinstance(value, np.ndarray)]

        def step(*given, name=name, args=args, options=options):
            left = iter(given)
            there = map_arrays(lambda _: next(left), [*args, *options.values()])
            return OPERATORS[name](*there[: len(args)], **dict(zip(options, there[len(args) :], strict=True)))

        calls = compiled(step, *arrays).explain().calls
        assert calls[-1].operator == name


@pytest.mark.parametrize(("case", "dtype"), list(recordable()))
def test_every_operator_computes_the_same_as_without_a_plan(case, dtype):
    operator = OPERATORS[case.operator]
    args, options = case.build(dtype_name=dtype)
    with tp.set_backend("cpu", providers=["cpu", "generic"]):
        if operator.explain(*args, **options).kernel != "cpu":
            pytest.skip("the body computes it")
        expected = operator(*args, **options)
    names = [name for name, value in options.items() if isinstance(value, np.ndarray)]
    places = [i for i, value in enumerate(args) if isinstance(value, np.ndarray)]

    def step(*arrays):
        given = list(args)
        for i, place in enumerate(places):
            given[place] = arrays[i]
        return operator(*given, **options | dict(zip(names, arrays[len(places) :], strict=True)))

    arrays = [args[i] for i in places] + [options[name] for name in names]
    if any(isinstance(value, np.random.Generator) for value in (*args, *options.values())):
        pytest.skip("a generator is not an array")
    kernel = compiled(step, *arrays, mode="prefill")  # attention to a cache may have several queries
    try:
        kernel.compile()
    except CaptureError as error:
        reason = str(error)
        assert any(words in reason for words in ("empty", "does not take these options", "a kernel was given"))
        pytest.skip(reason)
    names = [call.operator for call in kernel.explain().calls if call.operator != "copy"]
    # Rows of blocks are looked up, then unpacked.
    assert names[-1] == ("dequantize" if case.operator == "embedding" and "format" in options else operator.__name__)
    poison(kernel)
    results = kernel(*arrays)
    for got, wanted in zip(arrays_of(results), arrays_of(expected), strict=True):
        assert got.dtype == wanted.dtype
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
        # The kernels are the same, but attention may divide its keys in another way among threads.
        eps, largest = {"float32": 2e-7, "float64": 2e-16}.get(dtype, 1e-2), np.abs(wanted[np.isfinite(wanted)])
        np.testing.assert_allclose(got, wanted, rtol=16 * eps, atol=16 * eps * largest.max(initial=0))


def test_arguments_may_be_passed_by_name():
    x = f32(2, 8)
    kernel = compiled(lambda x: tp.silu(x=x), x)
    np.testing.assert_array_equal(kernel(x), tp.silu(x))
    assert [call.operator for call in kernel.explain().calls] == ["silu"]


def poison(kernel):
    """Fill the memory between calls, so that what is not written again would be seen."""
    kernel._engine._planned.arena[...] = 0xFF


def test_values_that_change_from_run_to_run():
    weight = f32(8)

    def step(x, positions):
        y = tp.rope(tp.rms_norm(x, weight), positions)
        return tp.softmax(y), positions + 1

    kernel = compiled(step, f32(1, 2, 3, 8), np.arange(3))
    for seed in (1, 2):
        x, positions = f32(1, 2, 3, 8, seed=seed), np.arange(3) + 7 * seed
        y, following = kernel(x, positions)
        normed = REFERENCES["rms_norm"](x, weight)
        rotated = REFERENCES["rope"](normed.astype(np.float32), positions)
        assert_matches(y, REFERENCES["softmax"](rotated.astype(np.float32)), "float32", tolerance=64)
        np.testing.assert_array_equal(following, positions + 1)


def test_views_copies_and_arithmetic():
    table, picked = f32(5, 4), np.asarray([3, 0])

    def step(x, i):
        xp = tp.get_namespace(x)
        a, b = x[:, :4], x[:, 4:]
        c = xp.concat([tp.silu(b), a], axis=1)
        d = xp.permute_dims(xp.reshape(c, (2, 2, 4)), (1, 0, 2))
        e = xp.take(xp.asarray(table), i, axis=0)
        return d * 2.0 - 1, xp.astype(e, xp.float64), xp.stack([a, b]), xp.expand_dims(a.T, axis=0), 3 + i

    x = f32(2, 8, seed=4)
    kernel = compiled(step, f32(2, 8), np.asarray([1, 1]))
    kernel.compile()
    poison(kernel)
    d, e, stacked, transposed, three = kernel(x, picked)
    silu = REFERENCES["silu"](x[:, 4:]).astype(np.float32)
    expected = np.concatenate([silu, x[:, :4]], 1).reshape(2, 2, 4).transpose(1, 0, 2) * np.float32(2) - 1
    np.testing.assert_allclose(d, expected, rtol=1e-6)
    np.testing.assert_array_equal(e, table[picked].astype(np.float64))
    np.testing.assert_array_equal(stacked, np.stack([x[:, :4], x[:, 4:]]))
    np.testing.assert_array_equal(transposed, x[:, :4].T[None])
    np.testing.assert_array_equal(three, 3 + picked)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_conversions_to_half_types_round_to_even(dtype):
    """All numbers between two neighbours of a half type round as NumPy's do."""
    half = np.dtype(support.DTYPES[dtype])
    every = np.arange(2**16, dtype=np.uint16).view(half)
    with np.errstate(all="ignore"):
        exact = every[np.isfinite(every)].astype(np.float64)
        exact = np.unique(exact)
        between = (exact[1:] + exact[:-1]) / 2
        around = [between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf), exact, exact * 1.5]
        x = np.concatenate([*around, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300]])
        wide = np.concatenate([x, -x])
        single = wide.astype(np.float32) if dtype == "bfloat16" else wide
        expected = single.astype(half)
    kernel = compiled(lambda x: tp.get_namespace(x).astype(x, half), np.ones_like(single))
    found = kernel(single)
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint16), expected[~nan].view(np.uint16))


@pytest.mark.parametrize("rows", [1, 4, 9, 65])
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_weights_in_another_order(bits, mode, rows):
    weight, scales, biases = REFERENCES["quantize"](f32(40, 128), bits=bits, group_size=32, mode=mode)
    packed = [weight, *(None if a is None else a.astype(np.float32) for a in (scales, biases))]
    options = {"bits": bits, "group_size": 32}
    kernel = compiled(lambda x: tp.quantized_linear(tp.silu(x), *packed, **options), f32(rows, 128), repack=True)
    (*_, call) = kernel.explain().calls
    helps = NATIVE.pack_panels_supports(*packed, **options) is None and rows <= 64
    assert (call.operator, call.kernel) == ("quantized_linear", "panel_linear" if helps else "quantized_linear")
    x = f32(rows, 128, seed=1)
    silu = REFERENCES["silu"](x).astype(np.float32)
    poison(kernel)
    assert_matches(kernel(x), REFERENCES["quantized_linear"](silu, *packed, **options), "float32", tolerance=256)


VIEWS = {
    "columns": lambda xp, x: x[..., 16:48],
    "every other row": lambda xp, x: x[:, ::2],
    "backwards": lambda xp, x: x[::-1, ::-1],
    "axes exchanged": lambda xp, x: xp.moveaxis(x, 0, 1),
    "one for all": lambda xp, x: xp.broadcast_to(x[:1], x.shape),
}


def viewed(name, x):
    return VIEWS[name](tp.get_namespace(x), x)


@pytest.mark.parametrize("view", list(VIEWS))
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_gated_units_read_arrays_with_strides(name, dtype, view):
    def step(a, b, c):
        x, y = viewed(view, a), viewed(view, b)
        return OPERATORS[name](x, y), OPERATORS[name](x, c), OPERATORS[name](c, y)

    a, b = (f32(6, 10, 64, seed=seed).astype(dtype) for seed in (1, 2))
    x, y = viewed(view, a), viewed(view, b)
    c = f32(*x.shape, seed=3).astype(dtype)
    kernel = compiled(step, np.ones_like(a), np.ones_like(b), np.ones_like(c))
    assert [call.kernel for call in kernel.explain().calls] == [name] * 3
    poison(kernel)
    for found, (gate, up) in zip(kernel(a, b, c), ((x, y), (x, c), (c, y)), strict=True):
        assert_matches(found, REFERENCES[name](gate, up), dtype, tolerance=64)


@pytest.mark.parametrize("view", list(VIEWS))
@pytest.mark.parametrize("by_tables", [False, True])
def test_rotations_read_arrays_with_strides(view, by_tables):
    x = viewed(view, f32(4, 4, 6, 64, seed=1))
    positions = np.arange(x.shape[2]) + 3
    angles = np.outer(np.arange(10), 0.5 ** np.arange(x.shape[3] // 2))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)} if by_tables else {}
    kernel = compiled(lambda x: tp.rope(viewed(view, x), positions, **tables), f32(4, 4, 6, 64))
    assert [call.operator for call in kernel.explain().calls] == ["rope"]
    poison(kernel)
    expected = REFERENCES["rope"](x, positions, **tables)
    assert_matches(kernel(f32(4, 4, 6, 64, seed=1)), expected, "float32", tolerance=64)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("queries", [1, 5, 40])
def test_attention_reads_heads_of_one_product(queries, paged):
    """Queries, keys and values side by side in each row of a product, and pages of every other block."""
    batch, heads, keys, dim = 2, 3, 40, 32
    table = np.asarray([[3, 1, 0], [2, 5, 4]])
    lengths = np.asarray([40, 33])

    def parts(h, blocks):
        xp = tp.get_namespace(h)
        q, k, v = (xp.moveaxis(h[:, :, i * heads : (i + 1) * heads], 1, 2) for i in range(3))
        if not paged:
            return q[:, :, keys - queries :], k, v, {"lengths": lengths}
        return q[:, :, keys - queries :], blocks[::2], blocks[1::2], {"lengths": lengths, "page_table": table}

    def step(h, blocks):
        q, k, v, options = parts(h, blocks)
        return tp.scaled_dot_product_attention(q, k, v, is_causal=True, **options)

    h, blocks = f32(batch, keys, 3 * heads, dim, seed=1), f32(12, heads, 16, dim, seed=2)
    kernel = compiled(step, np.ones_like(h), np.ones_like(blocks), mode="prefill")
    assert [call.operator for call in kernel.explain().calls] == ["scaled_dot_product_attention"]
    poison(kernel)
    q, k, v, options = parts(h, blocks)
    expected = REFERENCES["scaled_dot_product_attention"](q, k, v, is_causal=True, **options)
    assert_matches(kernel(h, blocks), expected, "float32", tolerance=256)


def test_composed_operators_are_recorded_step_by_step():
    x, gate, up = f32(3, 8), f32(12, 8, seed=1), f32(12, 8, seed=2)
    kernel = compiled(lambda x: tp.gated_linear_unit(x, gate, up), x)
    names = [call.operator for call in kernel.explain().calls]
    assert "swiglu" in names
    assert names.count("linear") == 2
    assert_matches(kernel(x), REFERENCES["gated_linear_unit"](x, gate, up), "float32", tolerance=64)


# --------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("seed", range(20))
def test_results_whose_lives_overlap_share_no_memory(seed):
    """A random program: each operation reads earlier results, and some of them are returned."""
    rng = np.random.default_rng(seed)
    operations = [(int(rng.integers(3)), *map(int, rng.integers(0, i + 1, 2))) for i in range(30)]
    kept = sorted({int(n) for n in rng.integers(0, 31, 4)})

    def program(x, add, silu, concat):
        values = [x]
        for kind, a, b in operations:
            a, b = values[a], values[b]
            if kind == 0:
                values.append(silu(a))
            elif kind == 1:
                values.append(add(a, b))
            else:
                values.append(concat(a, b))
        return [values[i] for i in kept]

    def step(x):
        xp = tp.get_namespace(x)
        halves = lambda a, b: xp.concat([a[:, :3], b[:, 3:]], axis=1)  # noqa: E731
        return program(x, lambda a, b: a + b, tp.silu, halves)

    x = f32(2, 6, seed=seed)
    kernel = compiled(step, f32(2, 6))
    statistics = kernel.compile()
    assert statistics.arena_bytes < statistics.separate_bytes
    poison(kernel)
    halves = lambda a, b: np.concatenate([a[:, :3], b[:, 3:]], 1)  # noqa: E731
    expected = program(x.astype(np.float64), np.add, REFERENCES["silu"], halves)
    for got, wanted in zip(kernel(x), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_memory_is_given_to_lives_that_do_not_overlap():
    blocks = [Memory(np.empty(n, np.uint8), first=first, last=last) for n, first, last in
              [(100, 0, 3), (200, 1, 1), (64, 2, 5), (200, 4, 6), (10, 6, 9)]]  # fmt: skip
    size = arrange(blocks, 64)
    assert size < sum(-(-b.array.nbytes // 64) * 64 for b in blocks)
    for a, b in itertools.combinations(blocks, 2):
        together = a.first <= b.last and b.first <= a.last
        apart = a.offset + a.array.nbytes <= b.offset or b.offset + b.array.nbytes <= a.offset
        assert apart or not together
        assert a.offset % 64 == 0
        assert a.offset + a.array.nbytes <= size


def test_a_cache_is_written_in_place():
    def step(new, position, caches):
        keys, values = caches["keys"], caches["values"]
        keys[:, :, position, :] = new
        values[..., position, :] = tp.silu(new)
        return keys, tp.rms_norm(values)

    def cache():
        return {"keys": np.zeros((1, 2, 5, 4), np.float32), "values": np.zeros((1, 2, 5, 4), np.float32)}

    new = f32(1, 2, 1, 4)
    kernel = compiled(step, new, np.asarray([0]), cache(), donate=[2])
    for place in (3, 4):  # of a new cache each time
        mine = cache()
        keys, _ = kernel(2 * new, np.asarray([place]), mine)
        assert keys is mine["keys"]
        expected = np.zeros((1, 2, 5, 4), np.float32)
        expected[:, :, [place]] = 2 * new
        np.testing.assert_array_equal(mine["keys"], expected)
        silu = REFERENCES["silu"](2 * new)
        np.testing.assert_allclose(mine["values"][:, :, [place]], silu, rtol=1e-5, atol=1e-6)


def test_a_part_of_a_donated_argument_is_returned_as_a_view():
    def step(x, history):
        history[1:3, :] = x
        return history[2:3, :], history[:, 0], history

    mine = np.zeros((4, 3), np.float32)
    x = f32(2, 3)
    row, column, whole = compiled(step, x, mine, donate=[1])(2 * x, mine)
    np.testing.assert_array_equal(mine[1:3], 2 * x)
    np.testing.assert_array_equal(row, mine[2:3])
    assert np.shares_memory(row, mine)
    np.testing.assert_array_equal(column, mine[:, 0])
    assert whole is mine


def test_large_arguments_are_read_where_they_are():
    kernel = compiled(lambda x: tp.silu(x), f32(200, 200))
    for seed in (1, 2):
        x = f32(200, 200, seed=seed)
        np.testing.assert_array_equal(kernel(x), tp.silu(x))
    before = kernel(x)
    kernel(f32(200, 200, seed=3))
    np.testing.assert_array_equal(before, tp.silu(x))  # a result is the caller's own


class Pair(NamedTuple):
    first: Any
    second: Any


def test_results_come_in_the_containers_of_the_step():
    def step(x, mine):
        a, b = tp.silu(x), tp.gelu(x)
        mine[:, :] = x
        return [a, mine, b], {"a": a, "none": None, "pair": Pair(b, [a])}, (), [b], "text"

    mine = f32(2, 3)
    x = f32(2, 3, seed=1)
    many, named, nothing, one, text = kernel_results = compiled(step, x, mine, donate=[1])(x, mine)
    assert (type(kernel_results), type(many), type(named["pair"])) == (tuple, list, Pair)
    assert many[1] is mine
    assert (nothing, named["none"], text) == ((), None, "text")
    np.testing.assert_array_equal(many[0], tp.silu(x))
    np.testing.assert_array_equal(many[2], tp.gelu(x))
    np.testing.assert_array_equal(named["pair"].first, many[2])
    # An array that the step returns more than once is also one here.
    assert named["a"] is many[0] is named["pair"].second[0]
    assert one[0] is many[2]


def test_arrays_of_the_caller_are_let_go():
    example, mine = f32(200, 200), f32(200, 200, seed=1)
    watched = [weakref.ref(example), weakref.ref(mine)]
    kernel = compiled(lambda x: tp.silu(x), example)
    expected = tp.silu(mine)
    for _ in range(3):
        np.testing.assert_array_equal(kernel(mine), expected)
    kernel.release()
    again = mine.copy()
    del example, mine
    gc.collect()
    assert [reference() for reference in watched] == [None, None]
    np.testing.assert_array_equal(kernel(again), expected)


class Given(Exception):
    """Python has looked at the arguments."""


@pytest.fixture
def replayed(monkeypatch):
    """A kernel that has run with the same arrays before, its cache, and the function that it then no longer calls."""

    def step(x, large, caches):
        caches[1][:1, :] = x
        return tp.silu(x), list(caches)

    def give(args):
        raise Given

    large, caches = f32(200, 200), [f32(3, 4), f32(3, 4)]
    assert large.nbytes > SMALL
    kernel = compiled(step, f32(1, 4), large, caches, donate=[2])
    for _ in range(3):
        kernel(f32(1, 4), large, caches)
    monkeypatch.setattr(kernel._engine, "_give", give)
    return kernel, large, caches


def test_runs_with_the_same_arrays_take_no_bytecode(replayed):
    kernel, large, caches = replayed
    seen = []
    for seed in (1, 2):
        x = f32(1, 4, seed=seed)
        y, mine = kernel(x, large, caches)
        np.testing.assert_allclose(y, REFERENCES["silu"](x), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(caches[1][:1], x)
        assert mine is not caches
        assert [id(a) for a in mine] == [id(a) for a in caches]
        seen.append(y)
    assert not np.array_equal(*seen)  # each result is the caller's own


@pytest.mark.parametrize(
    "other",
    [
        lambda x, large, caches: (x.astype(np.float64), large, caches),
        lambda x, large, caches: (x.astype(x.dtype.newbyteorder()), large, caches),
        lambda x, large, caches: (np.repeat(x, 2, axis=1)[:, ::2], large, caches),
        lambda x, large, caches: (x[0], large, caches),
        lambda x, large, caches: (np.ma.asarray(x), large, caches),
        lambda x, large, caches: (x, large.copy(), caches),
        lambda x, large, caches: (x, large, [caches[0], caches[1].copy()]),
        lambda x, large, caches: (x, large, tuple(caches)),
        lambda x, large, caches: (x, large, [*caches, caches[0]]),
        lambda x, large, caches: (x, large, caches[:1]),
        lambda x, large, caches: (x, large, caches, x),
        lambda x, large, caches: (x, large),
        lambda x, large, caches: (None, large, caches),
    ],
)
def test_python_looks_at_other_arguments(replayed, other):
    kernel, large, caches = replayed
    with pytest.raises(Given):
        kernel(*other(f32(1, 4), large, caches))


def test_other_containers_are_replayed_as_well():
    x, cache = f32(1, 4), f32(3, 4)
    expected = tp.silu(x)
    kernel = compiled(lambda given, cache: {"y": tp.silu(given["x"]), "cache": cache}, {"x": x}, cache, donate=[1])
    for _ in range(4):
        found = kernel({"x": x}, cache)
        np.testing.assert_array_equal(found["y"], expected)
        assert found["cache"] is cache


def test_a_result_that_is_returned_twice_is_one_array_in_each_run():
    def step(x):
        y = tp.silu(x)
        return y, [y]

    kernel = compiled(step, X)
    for _ in range(4):
        y, (again,) = kernel(X)
        assert y is again


def test_constants_are_kept_alive_and_read_where_they_are():
    weight = f32(64)
    kernel = compiled(lambda x: tp.rms_norm(x, weight), f32(2, 64))
    kernel.compile()
    weight *= 2
    x = f32(2, 64, seed=1)
    np.testing.assert_allclose(kernel(x), REFERENCES["rms_norm"](x, weight), rtol=1e-5, atol=1e-6)


def test_threads_take_turns():
    kernel = compiled(lambda x: tp.softmax(tp.silu(x)), f32(4, 1000))
    inputs = [f32(4, 1000, seed=i) for i in range(4)]
    expected = [kernel(x) for x in inputs]

    def run(i):
        for _ in range(200):
            np.testing.assert_array_equal(kernel(inputs[i]), expected[i])

    support.in_threads(run, range(4))


@pytest.mark.parametrize("workers", [1, usable_processors()])
def test_the_number_of_threads(workers):
    weight = f32(3000, 500)
    kernel = compiled(lambda x: tp.linear(x, weight), f32(1, 500), num_workers=workers)
    x = f32(1, 500, seed=1)
    np.testing.assert_allclose(kernel(x), x.astype(np.float64) @ weight.T.astype(np.float64), rtol=1e-3, atol=1e-4)


# --------------------------------------------------------------------------------- what cannot be recorded

X = np.ones((2, 4), np.float32)
BROKEN = [
    (lambda x: tp.silu(np.tanh(x)), "numpy.tanh"),
    (lambda x: np.concatenate([x, x]), "numpy.concatenate"),
    (lambda x: tp.silu(np.asarray(x)), "computes with NumPy"),
    (lambda x: tp.silu(x[: int(x[0, 0])]), "reads a value of an array"),
    (lambda x: x if x[0, 0] > 0 else tp.silu(x), "__gt__"),
    (lambda x: x if x[0, 0] else tp.silu(x), "reads a value of an array"),
    (lambda x: [tp.silu(row) for row in x], "reads a value of an array"),
    (lambda x: tp.get_namespace(x).exp(x), "exp of the namespace"),
    (lambda x: tp.silu(x) / 2, "__truediv__"),
    (lambda x: x.sum(), r"\.sum of an array"),
    (lambda x: tp.silu(x[[0, 1]]), "elements at"),
    (lambda x: tp.sample(x, temperature=1.0, rng=np.random.default_rng(0)), "numbers of a generator"),
    (lambda x: (tp.silu(x), np.ones(2)), "does not depend on its arguments"),
    (lambda x: x.__setitem__(0, tp.silu(x[0])), "writes to argument 0, which is not in `donate`"),
    (lambda x: tp.rms_norm(x, x), "weight has 2 dimensions"),
    (lambda x: tp.to_backend(tp.silu(x), "numpy"), "moves an array to another library"),
    (lambda x: tp.linear(x, X[:, :3]), "weight"),
    (lambda x: tp.get_namespace(x).astype(tp.silu(x), np.int32), "astype from float32 to int32"),
    (lambda x: tp.silu(x) + np.ones(4, np.complex64), "add of float32 and complex64 gives complex64"),
    (lambda x: tp.silu(x[True]), "reads elements at True"),
    (lambda x: tp.silu(x[tp.get_namespace(x).astype(x, np.float64)]), "indices have dtype float64"),
]


@pytest.mark.parametrize(("step", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_what_cannot_be_recorded_is_named(step, words):
    kernel = compiled(step, X)
    with pytest.raises(ValueError, match=words):
        kernel.compile()
    with pytest.raises(ValueError, match=words):  # nor at the second try
        kernel(X)


@pytest.mark.parametrize("rows", [2, 4000])  # which are copied in, or read where they are
def test_arguments_that_are_returned_are_copies_unless_donated(rows):
    x, y = f32(rows, 8), f32(rows, 8, seed=1)
    expected, cache = x.copy(), f32(3, 4)
    kernel = compiled(lambda x, cache: (tp.silu(x), x, x[:1], cache), x.copy(), cache.copy(), donate=[1])
    _, whole, part, given = kernel(x, cache)
    assert given is cache
    kernel(y, cache)
    x[...] = 0
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(part, expected[:1])


@pytest.mark.parametrize("at", ["a slice", "indices"])
def test_an_argument_that_is_not_donated_stays_as_it_is(at):
    x = f32(40, 1000)
    assert x.nbytes > SMALL  # smaller ones are copied
    given, places = x.copy(), np.asarray([3])

    def step(x, places):
        x[slice(1) if at == "a slice" else places, :] = tp.silu(x[:1])
        return x

    with pytest.raises(CaptureError, match="assignment: the step writes to argument 0, which is not in `donate`"):
        compiled(step, given, places).compile()
    np.testing.assert_array_equal(given, x)


def test_an_index_out_of_range_names_the_call():
    table = f32(5, 4)
    kernel = compiled(lambda ids: tp.silu(tp.embedding(ids, table)), np.asarray([1, 2]))
    for _ in range(4):
        with pytest.raises(ValueError, match=r"^call 0, embedding: an index is out of range$"):
            kernel(np.asarray([1, 5]))
        kernel(np.asarray([1, 2]))
    np.testing.assert_allclose(kernel(np.asarray([4, 0])), REFERENCES["silu"](table[[4, 0]]), rtol=1e-5, atol=1e-6)


def test_arguments_that_differ_in_more_than_values():
    kernel = compiled(lambda x, n, other: tp.silu(x), X, 3, [X.copy()])
    with pytest.raises(
        ValueError, match=r"array 0 of the arguments was float32 \(2, 4\) when compiled, and is now float64"
    ):
        kernel(X.astype(np.float64), 3, [X])
    for wrong in ((X, 4, [X]), (X, 3, (X,)), (X, 3, [X, X]), (X, 3)):
        with pytest.raises(ValueError, match="differ from those when the step was compiled in more"):
            kernel(*wrong)
    assert kernel(X, 3, [X]).shape == X.shape


def test_the_same_array_twice_is_refused():
    with pytest.raises(CaptureError, match="among the arguments twice"):
        compiled(lambda a, b: tp.swiglu(a, b), X, X).compile()


def test_an_array_that_is_written_twice_is_refused_in_later_runs_as_well():
    def step(a, b):
        a[0, :], b[1, :] = tp.silu(b[0, :]), tp.silu(a[1, :])
        return a, b

    kernel = compiled(step, X.copy(), X.copy(), donate=[0, 1])
    kernel(X.copy(), X.copy())
    mine = X.copy()
    with pytest.raises(ValueError, match="arrays 0 and 1 of the arguments share memory"):
        kernel(mine, mine)
    np.testing.assert_array_equal(mine, X)


def test_options():
    for options, words in [
        ({"mode": "training"}, "mode is 'training', expected one of decode, prefill, onepass"),
        ({"num_workers": 0}, f"num_workers is 0, expected 1 to {usable_processors()}, the number of processors"),
        ({"num_workers": 10_000}, f"num_workers is 10000, expected 1 to {usable_processors()}"),
        ({"donate": [1]}, "donate has 1, and there are 1 arguments"),
        ({"donate": [0], "mode": "onepass"}, "donates nothing"),
    ]:
        with pytest.raises(ValueError, match=words):
            compiled(tp.silu, X, **options)
    with pytest.raises(TypeError, match="not one string"):
        compiled(tp.silu, X, fallback_backends="jax")
    for workers in (1.5, "2", True):
        with pytest.raises(TypeError, match="num_workers"):
            compiled(tp.silu, X, num_workers=workers)


def test_the_order_of_choice():
    with pytest.raises(
        ValueError, match=r"no backend can replay this step: numpy: it has no compiled kernels.*; nki: "
    ):
        PersistentKernel(tp.silu, [X], backend="numpy", fallback_backends=["nki"])
    assert PersistentKernel(tp.silu, [X], backend="numpy", fallback_backends=["nki", "cpu"]).backend == "cpu"
    assert PersistentKernel(tp.silu, [X]).backend == "cpu"  # where the array is
    with tp.set_backend("cpu"):
        assert PersistentKernel(tp.silu, [X]).backend == "cpu"
    with pytest.raises(ValueError, match="unknown backend 'cpuu'"):
        PersistentKernel(tp.silu, [X], backend="cpuu")


# ------------------------------------------------------------------------------------------ what it tells


def test_what_was_captured():
    weight = f32(4)
    kernel = compiled(lambda x: tp.silu(tp.rms_norm(x, weight)), X)
    assert repr(kernel) == "<PersistentKernel: decode on cpu, not yet compiled>"
    captured = kernel.explain()
    assert repr(kernel) == "<PersistentKernel: decode on cpu, compiled>"
    assert [(call.operator, call.kernel, call.bytes) for call in captured.calls] == [
        ("rms_norm", "rms_norm", 32 + 16 + 32),
        ("silu", "silu", 64),
    ]
    assert captured.calls[0].shapes == ("float32[2, 4]", "float32[4]", "float32[2, 4]")
    assert captured.statistics == kernel.compile()
    assert captured.statistics.calls == 2
    assert captured.statistics.bytes == 144
    assert "copied in" in captured.in_python[0]
    assert "rms_norm" in str(captured)
    assert "<table>" in captured._repr_html_()


def test_profile_and_trace(tmp_path):
    step = lambda x: tp.silu(tp.rms_norm(x))  # noqa: E731
    kernel = compiled(step, X, profile=True)
    with pytest.raises(ValueError, match="there has been no run yet"):
        kernel.profile()
    np.testing.assert_array_equal(kernel(2 * X), step(2 * X))
    profile = kernel.profile()
    assert len(profile.seconds) == 2
    assert all(seconds > 0 for seconds in profile.seconds)
    assert "rms_norm" in str(profile)
    profile.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["rms_norm", "silu"]
    assert events[1]["ts"] == pytest.approx(events[0]["ts"] + events[0]["dur"])
    with pytest.raises(ValueError, match="make the PersistentKernel with profile=True"):
        compiled(step, X).profile()


# ------------------------------------------------------------------------ as NumPy and the standard define it


WHOLE = np.arange(6, dtype=np.int32).reshape(2, 3)
REAL = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
HALF = REAL.astype(np.float16)


def assigned(x):
    x[1] = 5.0
    x[0, 1] = x[1, 2] - 1
    return x * 1.0


SEMANTICS = {
    "int_times_float": (lambda x: x * 0.5, WHOLE),
    "int_plus_int64": (lambda x: x + np.int64(2**40), WHOLE),
    "float_times_float64": (lambda x: x * np.float64(1.1), REAL),
    "float_plus_float64s": (lambda x: x + np.arange(3.0), REAL),
    "number_minus_int": (lambda x: 1.5 - x, WHOLE),
    "ufunc": (lambda x: np.multiply(x, np.arange(3.0)), REAL),
    "namespace": (lambda x: tp.get_namespace(x).add(x, 2), WHOLE),
    "clip": (lambda x: tp.get_namespace(x).clip(x, min=-0.5, max=1.0), REAL),
    "clip_of_nan": (lambda x: tp.get_namespace(x).clip(x, max=1.0), REAL * np.float32(np.nan)),
    "pairs": (lambda x, y: tp.get_namespace(x).maximum(tp.get_namespace(x).minimum(x, 0), y), HALF, REAL),
    "int_and_float": (lambda x, y: x + y, WHOLE, REAL),
    "half_and_float": (lambda x, y: x * y, HALF, REAL),
    "halves": (lambda x: x * 2 + x - 0.5, HALF),
    "rows": (lambda x, y: tp.silu(x) + y, REAL, REAL[0].copy()),
    "columns": (lambda x, y: x - y, REAL, REAL[:, :1].copy()),
    "bias": (lambda x: tp.linear(x, np.eye(3, dtype=np.float32)) + REAL[0], REAL),
    "a_row_times_all": (lambda x: x[1] * x, REAL),
    "an_element_times_all": (lambda x: x[0, 1] * x, REAL),
    "copy_of_asarray": (lambda x: _changed(x, tp.get_namespace(x).asarray(x, copy=True)), REAL),
    "copy_of_reshape": (lambda x: _changed(x, tp.get_namespace(x).reshape(x, (2, 3), copy=True)), REAL),
    "take_of_all": (lambda x: tp.get_namespace(x).take(x, np.array([4, 1])), REAL),
    "take_from_the_end": (lambda x: tp.get_namespace(x).take(x, np.array([1, 0]), axis=-1), REAL),
    "assigned_elements": (assigned, REAL),
}


def _changed(x, copied):
    x[0] = 7.0
    return copied + 0.0 * x


@pytest.mark.parametrize("name", SEMANTICS)
def test_recorded_functions_mean_what_they_mean_outside(name):
    step, *args = SEMANTICS[name]
    kernel = compiled(step, *args, donate=[0] if name.startswith(("copy", "assigned")) else [])
    other = [a[::-1].copy() if a.ndim > 1 else a + 1 for a in args]
    wanted = step(*[a.copy() for a in other])
    found = kernel(*[a.copy() for a in other])
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (lambda x: x.reshape(2.0, 3), TypeError, "float"),
        (lambda x: tp.get_namespace(x).reshape(x, (4, 4)), ValueError, "reshape"),
        (lambda x: tp.get_namespace(x).reshape(x.T, (6,), copy=False), ValueError, "needs a copy"),
        (lambda x: tp.get_namespace(x).asarray(x, dtype=np.float64, copy=False), ValueError, "without a copy"),
        (lambda x: tp.get_namespace(x).take(x, np.array([1]), axis=2), IndexError, "axis 2"),
        (lambda x: tp.get_namespace(x).asarray(x, order="F"), TypeError, "order"),
    ],
)
def test_recorded_functions_refuse_what_they_refuse_outside(step, error, words):
    with pytest.raises(error, match=words):
        compiled(step, REAL).compile()


# ----------------------------------------------------------------------------- the plan and the step are compared


def test_what_the_step_itself_changes_is_found():
    closed, calls = np.ones((2, 3), np.float32), [0]

    def two_values(x):
        closed[:] = 1
        y = tp.silu(x) * closed
        closed[:] = 2
        return y + x * closed

    def adds_up(x):
        closed[:] += 1
        return tp.rms_norm(x) * closed

    def counts(x):
        calls[0] += 1
        return tp.silu(x) * float(calls[0])

    for step, what in ((two_values, "^call 1, multiply,"), (adds_up, ""), (counts, "^the compiled step")):
        with pytest.raises(CaptureError, match=f"{what} gives other numbers than the step itself"):
            compiled(step, REAL).compile()
    assert compiled(tp.silu, REAL).compile().not_compared == ""


def test_a_handler_that_errs_for_other_numbers_is_named(monkeypatch):
    """Whatever the reason: here, a plan that keeps a value of the example."""
    from tensorops.persistent import _recorder

    whole = _recorder.Recorder.arithmetic
    monkeypatch.setattr(
        _recorder.Recorder, "arithmetic", lambda self, *args: self._as_recorded(np.array(whole(self, *args).value))
    )
    with pytest.raises(CaptureError, match=r"^the compiled step gives other numbers .* if floating-point arguments"):
        compiled(lambda x: tp.gelu(tp.silu(x) * x), REAL).compile()


def test_a_choice_that_rounding_decides_is_no_difference(monkeypatch):
    """Of equal logits, a step with repacked weights may choose another one."""
    from tensorops.persistent import _comparison

    monkeypatch.setattr(_comparison, "_agree", lambda *_: False)
    logits = np.zeros((1, 5), np.float32)
    with pytest.raises(CaptureError, match=r"^the compiled step gives other numbers"):
        compiled(lambda x: tp.sample(x, temperature=0.0), logits).compile()
    compiled(lambda x: tp.sample(x, temperature=0.0), logits, repack=True).compile()


def test_the_comparison_leaves_arguments_alone_and_keeps_none():
    cache = f32(300, 100)
    before = cache.copy()

    def step(x, cache):
        cache[0, :] = tp.silu(x)
        return cache[0, :] * 1.0

    kernel = compiled(step, f32(100), cache, donate=[1])
    kernel.compile()
    np.testing.assert_array_equal(cache, before)
    alive = weakref.ref(cache)
    del cache
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------------------------- arguments that change


def writing(x, cache):
    cache[0, :] = tp.silu(x)
    return tp.rms_norm(cache)


def arguments(rows=300):
    return f32(128), f32(rows, 128)


def test_arguments_whose_metadata_change_are_seen():
    """The objects stay the same."""
    x, cache = arguments()
    kernel = compiled(writing, x, cache, donate=[1])
    for _ in range(3):
        kernel(x, cache)
    cache.shape = (150, 256)
    with pytest.raises(ValueError, match=r"was float32 \(300, 128\) when compiled, and is now float32 \(150, 256\)"):
        kernel(x, cache)
    cache.shape = (300, 128)
    kernel(x, cache)
    cache.flags.writeable = False
    with pytest.raises(ValueError, match="not contiguous and writable"):
        kernel(x, cache)
    cache.flags.writeable = True
    wanted = writing(x, cache.copy())
    np.testing.assert_allclose(kernel(x, cache), wanted, rtol=1e-6)
    cache.dtype = np.int32
    with pytest.raises(ValueError, match="is now int32"):
        kernel(x, cache)


def test_an_array_that_is_resized_is_read_where_it_is():
    x, cache = arguments()
    kernel = compiled(writing, x, cache, donate=[1])
    for _ in range(3):
        kernel(x, cache)
    kernel.release()
    cache.resize((30_000, 128), refcheck=False)  # elsewhere
    cache.resize((300, 128), refcheck=False)
    cache[...] = f32(300, 128, seed=3)
    wanted = writing(x, cache.copy())
    np.testing.assert_allclose(kernel(x, cache), wanted, rtol=1e-6)


@pytest.mark.parametrize("rows", [2, 300])
def test_an_argument_that_shares_memory_with_a_donated_one_is_refused(rows):
    """Whether small arguments are copied or large ones are read where they are."""

    def step(x, cache):
        cache[0, :] = tp.silu(cache[1, :])
        return x * 1.0

    x, cache = f32(rows, 128), f32(600, 128)
    kernel = compiled(step, x, cache, donate=[1])
    for _ in range(3):
        kernel(x, cache)
    with pytest.raises(ValueError, match="arrays 0 and 1 of the arguments share memory"):
        kernel(cache[:rows], cache)
    kernel(x, cache)
    with pytest.raises(ValueError, match="share memory"):
        compiled(step, cache[:rows], cache, donate=[1]).compile()


FORK = """
import os, signal, threading
import numpy as np, tensorops as tp

x = np.random.default_rng(0).standard_normal((64, 4096), dtype=np.float32)
kernel = tp.PersistentKernel(lambda x: tp.softmax(tp.silu(tp.gelu(x))), [x])
wanted, stop = kernel(x), threading.Event()

def replay():
    while not stop.is_set():
        kernel(x)

thread = threading.Thread(target=replay)
thread.start()
for _ in range(4):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for a thread it does not have
        os._exit(0 if np.array_equal(kernel(x), wanted) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_replays_what_another_thread_was_replaying():
    result = support.python(FORK)
    assert result.stdout.split() == ["0"] * 4, result.stderr


def test_arrays_with_strides_are_read_as_they_are_or_copied():
    """What an operator refuses with strides is computed from a copy."""
    x, weight = f32(3, 4, 8, seed=5), f32(4)
    kernel = compiled(lambda x, w: tp.group_norm(x[:, :, ::2], 2, w), x, weight)
    assert [call.operator for call in kernel.explain().calls] == ["group_norm", "group_norm"]
    assert_matches(kernel(x, weight), REFERENCES["group_norm"](x[:, :, ::2], 2, weight), "float32", tolerance=64)
    rows = compiled(lambda x: tp.rms_norm(x[:, 1:3, :]), x)
    assert [call.operator for call in rows.explain().calls] == ["rms_norm"]
    assert_matches(rows(x), REFERENCES["rms_norm"](x[:, 1:3, :]), "float32", tolerance=64)
    middle = compiled(lambda x: tp.group_norm(tp.relu(x)[:, 1:3, 2:6], 2), x)
    assert_matches(middle(x), REFERENCES["group_norm"](np.maximum(x, 0)[:, 1:3, 2:6], 2), "float32", tolerance=64)
