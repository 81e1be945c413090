"""Calls of a plan that are run by rows."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._row_axes import RowAxes
from tensorops.hardware import usable_processors
from tensorops.testing import REFERENCES, assert_matches

NATIVE = support.require_native()

from tensorops.persistent import PersistentKernel, _row_blocks as blocks  # noqa: E402


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compiled(step, *args, **options):
    return PersistentKernel(step, args, backend="cpu", **options)


def poison(kernel):
    kernel._engine._planned.arena[...] = 0xFF


def reference(name, *arrays):
    return REFERENCES[name](*arrays).astype(np.float32)


# --------------------------------------------------------------------------------------------------- what runs


@pytest.mark.parametrize("threads", sorted({1, min(2, usable_processors()), usable_processors()}))
@pytest.mark.parametrize("rows", [12, 37, 1000])
def test_rows_go_through_all_calls(rows, threads):
    weight = f32(1536, seed=1)

    def step(x, y):
        return tp.softmax(tp.silu(tp.rms_norm(x, weight)) * x - y)

    kernel = compiled(step, f32(rows, 1536), f32(rows, 1536), num_workers=threads)
    (together,) = kernel.explain().by_rows
    assert together.startswith("calls 0 to 4: ")
    assert f"of {rows} rows at a time" in together
    x, y = f32(rows, 1536, seed=2), f32(rows, 1536, seed=3)
    silu = reference("silu", reference("rms_norm", x, weight))
    for _ in range(2):
        poison(kernel)
        assert_matches(kernel(x, y), REFERENCES["softmax"](silu * x - y), "float32", tolerance=64)


def test_arrays_of_the_calls_take_a_block_for_each_thread():
    kernel = compiled(lambda x: tp.silu(tp.gelu(tp.relu(x))), f32(256, 4096), num_workers=2)
    statistics = kernel.compile()
    assert statistics.separate_bytes == 2 * 256 * 4096 * 4  # without the result, which is made anew
    assert statistics.arena_bytes < statistics.separate_bytes / 8


@pytest.mark.parametrize(
    ("step", "shape"),
    [
        (lambda x: tp.silu(tp.relu(x)), (2, 8)),  # little to read
        (lambda x: tp.silu(tp.relu(x)), (3, 65536)),  # fewer rows than threads have blocks
        (lambda x: tp.relu(x)[::-1], (256, 512)),  # in another order
        (lambda x: tp.silu(tp.relu(x).reshape(128, 1024)), (256, 512)),  # other rows
        (lambda x: tp.silu(x), (256, 512)),  # a single call
    ],
)
def test_what_is_not_run_by_rows(step, shape):
    x = f32(*shape)
    kernel = compiled(step, x, num_workers=2)
    assert kernel.explain().by_rows == ()
    assert_matches(kernel(x), np.asarray(step(x), np.float64), "float32", tolerance=64)


def test_axes_of_length_one_come_before_the_rows():
    x = f32(1, 1, 128, 512)
    kernel = compiled(lambda x: tp.silu(tp.relu(x)[0]), x)
    assert len(kernel.explain().by_rows) == 1
    assert_matches(kernel(x), REFERENCES["silu"](np.maximum(x[0], 0)), "float32", tolerance=64)


def test_parts_of_rows_go_with_the_rows():
    """As in a network whose gate and values come from one product; a sum needs copies of them."""

    def step(h):
        gate, up = tp.relu(h)[:, :700], tp.relu(h)[:, 700:]
        return tp.swiglu(gate, up) + up

    kernel = compiled(step, f32(100, 1400))
    assert [call.kernel for call in kernel.explain().calls] == ["relu", "relu", "swiglu", "copy", "add"]
    (together,) = kernel.explain().by_rows
    assert together.startswith("calls 0 to 4")
    h = np.maximum(f32(100, 1400, seed=5), 0)
    poison(kernel)
    expected = REFERENCES["swiglu"](h[:, :700], h[:, 700:]) + h[:, 700:]
    assert_matches(kernel(f32(100, 1400, seed=5)), expected, "float32", tolerance=64)


@pytest.mark.parametrize("shape", [(8, 2048), (64, 256), (256, 512)])
def test_one_row_for_all_rows(shape):
    """An array that is the same for every row has the shape of the others, but no rows one after another."""

    def step(x, row):
        xp = tp.get_namespace(x)
        return tp.swiglu(xp.broadcast_to(row, shape), tp.relu(x))

    x, row = f32(*shape, seed=1), f32(1, shape[1], seed=2)
    kernel = compiled(step, f32(*shape), f32(1, shape[1]), num_workers=2)
    assert [call.kernel for call in kernel.explain().calls] == ["relu", "swiglu"]
    assert kernel.explain().by_rows == ()
    expected = REFERENCES["swiglu"](np.broadcast_to(row, shape), np.maximum(x, 0))
    assert_matches(kernel(x, row), expected, "float32", tolerance=64)


def test_donated_arrays_are_written_by_rows():
    def step(x, kept):
        kept[:, :512] = tp.relu(x)
        kept[:, 512:] = tp.silu(x)
        return tp.relu(kept), kept

    x, kept = f32(64, 512, seed=1), np.zeros((64, 1024), np.float32)
    kernel = compiled(step, f32(64, 512), np.zeros((64, 1024), np.float32), donate=[1])
    assert len(kernel.explain().by_rows) == 1
    y, same = kernel(x, kept)
    assert same is kept
    silu = reference("silu", x)
    np.testing.assert_allclose(kept, np.concatenate([np.maximum(x, 0), silu], 1), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(y, np.maximum(kept, 0))


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(seed):
    """Of calls by rows and calls that are not, on few arrays, so that memory is shared as soon as it can be."""
    rng = np.random.default_rng(seed)
    operations = [(int(rng.integers(6)), *map(int, rng.integers(max(0, i - 2), i + 1, 2))) for i in range(14)]
    kept = sorted({14, *map(int, rng.integers(0, 15, 2))})

    def program(x, of):
        values = [x]
        for kind, a, b in operations:
            values.append(of[kind](values[a], values[b]))
        return [values[i] for i in kept]

    def step(x):
        xp = tp.get_namespace(x)
        return program(
            x,
            [
                lambda a, b: tp.silu(a),
                lambda a, b: (a - b) * 0.5,
                lambda a, b: tp.softmax(a),
                lambda a, b: xp.concat([b[:, :200], a[:, 200:]], axis=1),
                lambda a, b: tp.silu(xp.reshape(tp.relu(a), (32, 1600)) * 2.0).reshape(128, 400),
                lambda a, b: xp.permute_dims(xp.reshape(a, (128, 20, 20)), (1, 0, 2)).reshape(128, 400),
            ],
        )

    kernel = compiled(step, f32(128, 400, seed=seed), num_workers=2)
    kernel.compile()
    x = f32(128, 400, seed=seed + 100)
    silu, softmax = REFERENCES["silu"], REFERENCES["softmax"]
    expected = program(
        x.astype(np.float64),
        [
            lambda a, b: silu(a),
            lambda a, b: (a - b) * 0.5,
            lambda a, b: softmax(a),
            lambda a, b: np.concatenate([b[:, :200], a[:, 200:]], 1),
            lambda a, b: silu(np.maximum(a, 0) * 2),
            lambda a, b: a.reshape(128, 20, 20).transpose(1, 0, 2).reshape(128, 400),
        ],
    )
    for _ in range(3):
        poison(kernel)
        for got, wanted in zip(kernel(x), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_many_small_calls_are_not_run_by_rows():
    """A kernel would be called for each block, and all of them compared with each other."""

    def step(x):
        for _ in range(1000):
            x = x + 1
        return x

    assert compiled(step, f32(64, 64), num_workers=2).explain().by_rows == ()


def test_long_chains_are_several_groups():
    def step(x):
        for _ in range(40):
            x = x + 1
        return x

    kernel = compiled(step, f32(64, 1024), num_workers=2)
    assert [together.partition(":")[0] for together in kernel.explain().by_rows] == [
        "calls 0 to 15", "calls 16 to 31", "calls 32 to 39",
    ]  # fmt: skip
    x = f32(64, 1024, seed=1)
    np.testing.assert_allclose(kernel(x), x.astype(np.float64) + 40, rtol=1e-5)


def test_random_programs_are_run_by_rows():
    """The test above would prove nothing if all its calls were run one by one."""
    kernel = compiled(lambda x: (tp.silu(x) - x) * 0.5, f32(128, 400), num_workers=2)
    assert len(kernel.explain().by_rows) == 1


# --------------------------------------------------------------------------------------------------- runs


def test_an_error_names_the_call():
    k = f32(64, 1, 16, 64)

    def step(q, lengths):
        return tp.silu(tp.scaled_dot_product_attention(tp.relu(q), k, k, lengths=lengths))

    q, lengths = f32(64, 8, 1, 64), np.full(64, 16)
    kernel = compiled(step, q, lengths, num_workers=2)
    assert kernel.explain().by_rows[0].startswith("calls 0 to 2")
    kernel(q, lengths)
    wrong = lengths.copy()
    wrong[50] = 17
    with pytest.raises(ValueError, match="call 1, scaled_dot_product_attention: lengths has a number outside 0 … 16"):
        kernel(q, wrong)
    expected = REFERENCES["scaled_dot_product_attention"](np.maximum(q, 0), k, k, lengths=lengths).astype(np.float32)
    assert_matches(kernel(q, lengths), REFERENCES["silu"](expected), "float32", tolerance=64)


def test_profiles_have_the_time_of_each_call():
    x = f32(512, 2048)
    kernel = compiled(lambda x: tp.silu(tp.gelu(tp.rms_norm(x))), x, profile=True, num_workers=2)
    kernel(x)
    seconds = kernel.profile().seconds
    assert len(seconds) == len(kernel.explain().calls) == 3
    assert all(taken > 0 for taken in seconds)
    assert kernel.explain().by_rows


def test_a_run_cannot_begin_within_a_group():
    kernel = compiled(lambda x: tp.silu(tp.relu(tp.silu(x))), f32(512, 512))
    kernel.compile()
    plan = kernel._engine._planned.plan
    for part in ((1, 3), (0, 2)):
        with pytest.raises(IndexError, match="calls that are run by rows are one part"):
            plan.run(*part)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4, 1, 1, [[(0, 16, 0)]]), "another number of arrays"),
        ((1, 4, 1, 1, [[(0, 16, 0), (0, 16, 0)]]), "no such calls"),
        ((0, 0, 1, 1, [[(0, 16, 0), (0, 16, 0)]]), "no such calls"),
        ((1, 4, 1, 1, []), "no such calls"),
        ((0, 5, 1, 1, [[(0, 16, 0), (0, 16, 0)]]), "an array without these rows"),
        ((0, 4, 1, 1, [[(2, 16, 0), (0, 16, 0)]]), "an array without these rows"),
        ((0, 4, 1, 1, [[(-1, 16, 0), (0, 16, 0)]]), "an array without these rows"),
        ((0, 4, 1, 1, [[(0, 16, -1), (0, 16, 0)]]), "an array without these rows"),
        ((0, 4, 1, 1, [[(0, 0, 16), (0, 16, 0)]]), "an array without these rows"),
    ],
)
def test_plans_refuse_rows_that_are_not_there(arguments, message):
    plan, x = NATIVE.Plan(1), f32(4, 4)
    plan.add_call("silu", [("x", plan.add_array(x, [4, 4]))], [plan.add_array(x.copy(), [4, 4])], {})
    with pytest.raises(ValueError, match=message):
        plan.run_by_rows(*arguments)


def test_more_threads_later_do_not_need_more_memory():
    """A plan has memory for the threads that there were when it was made."""
    x = f32(256, 1024)
    with support.at_most(1):
        kernel = compiled(lambda x: tp.silu(tp.gelu(tp.relu(x))), x)
        kernel.compile()
    assert [group.threads for group in kernel._engine._planned.groups] == [1]
    assert_matches(kernel(x), REFERENCES["silu"](reference("gelu", np.maximum(x, 0))), "float32", tolerance=64)


def test_large_results_are_new_in_each_run():
    x, z = f32(512, 1024), f32(512, 1024, seed=1)
    kernel = compiled(lambda x: (tp.silu(x), tp.relu(x)[:1]), x)
    first, _ = kernel(x)
    second, small = kernel(z)
    assert not np.shares_memory(first, second)
    assert_matches(first, REFERENCES["silu"](x), "float32", tolerance=64)
    assert_matches(second, REFERENCES["silu"](z), "float32", tolerance=64)
    np.testing.assert_array_equal(small, np.maximum(z[:1], 0))


# --------------------------------------------------------------------------------------------------- which calls fit


@dataclass(eq=False)
class Block:
    nbytes: int = 1 << 20
    is_own: bool = True
    first: int = 0
    last: int = 0
    each_thread: int = 0
    reserved: int = 0


def use(memory, start, step, size, *, is_written=False):
    return blocks.Use(memory, blocks.Rows(0, start, step, size), is_written)


@pytest.mark.parametrize(
    ("written", "read", "agree"),
    [
        ((0, 64, 64), (0, 64, 64), True),
        ((0, 64, 64), (16, 64, 32), True),  # a part of each row
        ((0, 64, 64), (16, 64, 64), False),  # the end is in the next row
        ((0, 64, 64), (0, 128, 64), False),  # other rows
        ((0, 64, 64), (64, 64, 64), False),  # the next row
        ((0, 64, 64), (640, 64, 64), True),  # behind all ten rows
        ((0, 64, 64), (576, 64, 64), False),  # the last of them
        ((0, 64, 64), (0, 0, 0), False),  # all of it
    ],
)
def test_rows_must_not_need_others(written, read, agree):
    memory = Block()
    first = blocks.call_of(10, [use(memory, *written, is_written=True)])
    second = blocks.call_of(10, [use(memory, *read)])
    assert blocks._fits([first], second) is agree
    assert (blocks.call_of(10, [*first.uses, *second.uses]) is not blocks.WHOLE) is agree
    only_read = [blocks.call_of(10, [use(memory, *each)]) for each in (written, read)]
    assert blocks._fits(only_read[:1], only_read[1])


def test_memory_that_others_use_is_kept_whole():
    """A block of rows for each thread is enough only for what no other call sees."""
    for first, last in itertools.product((0, 1), (2, 3)):
        memory = Block(nbytes=64 * 4096, first=first, last=last)
        with_it = [use(memory, 0, 4096, 4096, is_written=True), use(Block(), 0, 4096, 4096)]
        calls = [blocks.WHOLE, *[blocks.Call(64, tuple(with_it))] * 2, blocks.WHOLE]
        (group,) = blocks.find_groups(calls, 2)
        assert (group.begin, group.end) == (1, 3)
        assert (memory.reserved == 2 * group.block * 4096) is ((first, last) == (1, 2))


def test_row_axes():
    rows = RowAxes({"x": (0, 1, 2), "weight": (2,)}, (0, 1, 2), whole=(2,))
    assert blocks.row_axis_of(rows, [(4, 5, 6), (6,)], [(4, 5, 6)]) == (0, None, 0)
    assert blocks.row_axis_of(rows, [(1, 5, 6), (6,)], [(1, 5, 6)]) == (1, None, 1)
    assert blocks.row_axis_of(rows, [(1, 1, 6), (6,)], [(1, 1, 6)]) == ()  # one row
    broadcast = RowAxes({"x": (0, 1), "y": (0, 1)}, (0, 1))
    assert blocks.row_axis_of(broadcast, [(4, 5), (1, 5)], [(4, 5)]) == (0, None, 0)
    assert blocks.row_axis_of(broadcast, [(4, 5), (2, 5)], [(4, 5)]) == ()
    transposed = RowAxes({"x": (0, 1), "y": (1, 0)}, (0, 1))
    assert blocks.row_axis_of(transposed, [(4, 5), (5, 4)], [(4, 5)]) == ()  # its rows are not one after another
    reduced = RowAxes({"x": (0, 1)}, (1,))
    assert blocks.row_axis_of(reduced, [(4, 5)], [(5,)]) == ()  # a result of all rows


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("swish", [("x", 0)], [0], {}), "there is no operator swish"),
        (("silu", [("y", 0)], [0], {}), "silu has no parameter y"),
        (("silu", [("x", 0)], [0], {"alpha": 1.0}), "silu has no parameter alpha"),
        (("silu", [], [0], {}), "silu lacks an argument"),
        (("silu", [("x", 0)], [0, 0], {}), "silu has fewer results"),
        (("copy", [("x", 0)], [], {}), "copy needs a result"),
    ],
)
def test_plans_refuse_calls_of_nothing_they_know(call, message):
    plan = NATIVE.Plan(1)
    plan.add_array(f32(4, 4), [4, 4])
    with pytest.raises(ValueError, match=message):
        plan.add_call(*call)
    with pytest.raises(IndexError):
        plan.add_call("silu", [("x", 1)], [0], {})
    plan.run()  # nothing
