"""rope, embedding, cross_entropy and sample in native/gpu: indices and positions of any value, and what is drawn."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels._gpu import loss, positional, selection
from tensorops.kernels._gpu.plans import Device, Operand, contiguous_strides
from tensorops.testing import tables

EPS = float(np.finfo(np.float32).eps)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
VOCABULARY = 128256


def there(a):
    return support.on_opencl(np.asarray(a))


def back(y):
    return np.asarray(support.LIBRARIES["pyopencl"].to_numpy(y))


def computed(operator, *args, **kwargs):
    """Call an operator on the device, and require that its OpenCL kernel takes the call."""
    args = [there(a) if isinstance(a, np.ndarray) else a for a in args]
    kwargs = {k: there(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    assert operator.explain(*args, **kwargs).kernel == "opencl"
    return back(operator(*args, **kwargs))


# --- embedding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_id_outside_of_the_table_names_a_row_of_nan(geometry, dtype):
    table = np.random.default_rng(0).standard_normal((100, 37)).astype(np.float32)
    limits = np.iinfo(dtype)
    ids = np.asarray([0, 99, 100, 127, limits.max, limits.min, 5], dtype)
    within = (ids >= 0) & (ids < 100)
    y = computed(tp.embedding, ids, table)
    np.testing.assert_array_equal(y[within], table[ids[within].astype(np.int64)])
    assert np.isnan(y[~within]).all()


@pytest.mark.parametrize("features", [36, 37])
def test_halves_are_copied_bit_by_bit(geometry, features):
    table = np.arange(50 * features, dtype=np.uint16).view(np.float16).reshape(50, features)  # subnormals, for the most
    y = computed(tp.embedding, np.asarray([49, 50, 0, -1, 7]), table)
    np.testing.assert_array_equal(y[[0, 2, 4]].view(np.uint16), table[[49, 0, 7]].view(np.uint16))
    assert np.isnan(y[[1, 3]]).all()


def test_an_empty_table_has_no_row(geometry):
    with pytest.raises(ValueError, match="weight has no rows"):
        computed(tp.embedding, np.asarray([0, 1]), np.zeros((0, 20), np.float32))


def test_ids_and_tables_of_any_strides(geometry):
    r = np.random.default_rng(1)
    table, ids = r.standard_normal((40, 66)).astype(np.float32), r.integers(0, 20, (6, 4, 2), np.int32)
    there_table, there_ids = there(table)[::2, 1::2], there(ids)[::-1, 1:, 0]
    assert tp.embedding.explain(there_ids, there_table).kernel == "opencl"
    np.testing.assert_array_equal(back(tp.embedding(there_ids, there_table)), table[::2, 1::2][ids[::-1, 1:, 0]])


# --- rope --------------------------------------------------------------------------------------------


def rotated(x, positions, frequencies, interleaved):
    """Return the rotation in extended precision, whose angles are exact to 2^-64 of themselves."""
    x = x.astype(np.longdouble)
    angles = np.asarray(positions).astype(np.longdouble)[..., None] * np.asarray(frequencies, np.longdouble)
    c, s = np.cos(angles), np.sin(angles)
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    y = np.empty_like(x)
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
    return y.astype(np.float64)


HUGE = {
    "int32": [2**20, 2**20 - 1, 2**31 - 1, -(2**31), -1, 123456789, 0],
    "int64": [2**20 + 1, 2**40 + 12345, -(2**40), 7, 2**33, 1, 2],
    "uint32": [2**32 - 1, 2**31, 2**20, 3, 4, 5, 6],
    "float32": [2.0**20 + 0.125, -(2.0**20) - 0.5, 1e-20, 0.3, -1e-3, 16777216.0, 1e9],
    "float64": [2.0**20 + 1 / 3, -(2.0**20) - 0.7, 1e-300, -0.3, 1e9 + 0.1, 2.0**31, 123.456],
}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", HUGE)
def test_no_position_loses_digits(geometry, dtype, interleaved):
    positions = np.asarray(HUGE[dtype], dtype)
    x = np.random.default_rng(2).standard_normal((2, 3, len(positions), 34)).astype(np.float32)
    y = computed(tp.rope, x, positions, interleaved=interleaved, base=500000.0)
    frequencies = 500000.0 ** (-2.0 * np.arange(17) / 34)
    np.testing.assert_allclose(
        y, rotated(x, positions, frequencies, interleaved), rtol=0, atol=4 * EPS * np.abs(x).max()
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_given_frequencies_lose_none_either(geometry, dtype):
    support.on_opencl_held(dtype)
    frequencies = np.asarray([1.0, 0.3, -0.7, 12.5, 1e-4, 0.0, 100.0, 6e-8], dtype)
    positions = np.asarray([2**20, 999999, -77, 3], np.int32)
    x = np.random.default_rng(3).standard_normal((1, 2, 4, 16)).astype(np.float32)
    y = computed(tp.rope, x, positions, freqs=frequencies)
    np.testing.assert_allclose(y, rotated(x, positions, frequencies, False), rtol=0, atol=4 * EPS * np.abs(x).max())


def test_infinite_positions_and_frequencies_have_no_angle(geometry):
    x = np.ones((1, 1, 3, 8), np.float32)
    y = computed(tp.rope, x, np.asarray([0.0, np.inf, np.nan], np.float32))
    assert np.isnan(y).all(axis=-1).tolist() == [[[False, True, True]]]
    y = computed(tp.rope, x, np.arange(3), freqs=np.asarray([1.0, np.inf, np.nan, 0.5], np.float32))
    assert np.isnan(y[0, 0, 1]).tolist() == [False, True, True, False] * 2


def test_a_position_outside_of_the_tables_is_nan(geometry):
    x = np.random.default_rng(4).standard_normal((1, 2, 6, 10)).astype(np.float32)
    tables_ = np.random.default_rng(5).standard_normal((2, 7, 4)).astype(np.float32)
    positions = np.asarray([6, 7, -1, 0, 2**40, -(2**40)])
    y = computed(tp.rope, x, positions, cos=tables_[0], sin=tables_[1], dims=8)
    within = (positions >= 0) & (positions < 7)
    expected = tables.REFERENCES["rope"](x[:, :, within], positions[within], cos=tables_[0], sin=tables_[1], dims=8)
    np.testing.assert_allclose(y[:, :, within], expected, rtol=0, atol=16 * EPS)
    assert np.isnan(y[:, :, ~within, :8]).all()
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])


@pytest.mark.parametrize(("heads", "length", "features", "dims"), [(1, 1, 6, 2), (7, 3, 258, 258), (5, 200, 40, 18)])
def test_odd_shapes_of_permuted_arrays(geometry, heads, length, features, dims):
    x = np.random.default_rng(6).standard_normal((length, heads, features)).astype(np.float32)
    xp = support.LIBRARIES["pyopencl"].xp
    view = xp.permute_dims(there(x), (1, 0, 2))
    positions = np.arange(length)
    assert tp.rope.explain(view, there(positions), dims=dims).kernel == "opencl"
    expected = tables.REFERENCES["rope"](x.transpose(1, 0, 2), positions, dims=dims)
    np.testing.assert_allclose(back(tp.rope(view, there(positions), dims=dims)), expected, rtol=0, atol=16 * EPS)


@pytest.mark.parametrize("step", [2, -1])
@pytest.mark.parametrize(
    ("features", "dims", "interleaved"), [(2, 2, False), (5, 2, False), (5, 2, True), (9, 6, False)]
)
def test_features_that_are_apart(geometry, features, dims, interleaved, step):
    """Also of a single pair: its elements are as far apart as those of many."""
    x = np.random.default_rng(16).standard_normal((2, 3, abs(step) * features)).astype(np.float32)
    view, positions = there(x)[..., ::step], np.arange(3)
    options = {"dims": dims, "interleaved": interleaved}
    assert tp.rope.explain(view, there(positions), **options).kernel == "opencl"
    expected = tables.REFERENCES["rope"](x[..., ::step], positions, **options)
    np.testing.assert_allclose(back(tp.rope(view, there(positions), **options)), expected, rtol=0, atol=16 * EPS)


@pytest.mark.parametrize("base", [10000.0, 500000.0, 0.5, 1e-9])
def test_turns_are_exact(base):
    """To a 2^-64th of a turn; 2π is given here to 60 digits."""
    circle = 2 * Fraction("3.14159265358979323846264338327950288419716939937510582097494")
    for pair, turns in enumerate(positional.turns_of_frequencies(base, 64)):
        exact = Fraction(base ** (-2.0 * pair / 64)) / circle % 1 * 2**64
        assert abs(exact - int(turns)) <= 1


# --- cross_entropy -----------------------------------------------------------------------------------


@pytest.mark.costly(3)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_target_outside_of_the_classes_has_the_loss_nan(geometry, dtype):
    limits = np.iinfo(dtype)
    logits = np.random.default_rng(7).standard_normal((7, 100)).astype(np.float32)
    targets = np.asarray([0, 99, 100, 127, limits.max, limits.min, 5], dtype)
    within = (targets >= 0) & (targets < 100)
    losses = computed(tp.cross_entropy, logits, targets, reduction="none", label_smoothing=0.1)
    expected = tables.REFERENCES["cross_entropy"](
        logits[within], targets[within].astype(np.int64), reduction="none", label_smoothing=0.1
    )
    np.testing.assert_allclose(losses[within], expected, rtol=1e-6)
    assert np.isnan(losses[~within]).all()
    assert np.isnan(computed(tp.cross_entropy, logits, targets))
    assert computed(tp.cross_entropy, logits[:1], targets[:1] * 0 + 127, reduction="sum", ignore_index=127) == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_losses_over_a_vocabulary(geometry, reduction, offset):
    r = np.random.default_rng(8)
    logits = (r.standard_normal((3, VOCABULARY)) * 3 + offset).astype(np.float32)
    logits[1, ::2] = -np.inf
    targets, weight = np.asarray([VOCABULARY - 1, 12345, 0]), r.random(VOCABULARY).astype(np.float32)
    options = {"reduction": reduction, "z_loss": 1e-4}
    got = computed(tp.cross_entropy, logits, targets, weight, **options)
    expected = tables.REFERENCES["cross_entropy"](logits, targets, weight, **options)
    np.testing.assert_allclose(got, expected, rtol=2e-6)
    smoothed = computed(tp.cross_entropy, logits[::2], targets[::2], weight, label_smoothing=0.2, **options)
    expected = tables.REFERENCES["cross_entropy"](logits[::2], targets[::2], weight, label_smoothing=0.2, **options)
    np.testing.assert_allclose(smoothed, expected, rtol=2e-6)


def test_the_same_loss_each_time(geometry):
    r = np.random.default_rng(9)
    logits, targets = there(r.standard_normal((3000, 33)).astype(np.float32)), there(r.integers(0, 33, 3000))
    first = back(tp.cross_entropy(logits, targets))
    assert all(back(tp.cross_entropy(logits, targets)) == first for _ in range(5))


def test_too_many_rows_for_a_mean_are_refused():
    facts = Device("gpu", 132, 32, 49152, 1024, float64=True)
    shape = (2**31, 8)
    logits = Operand("float16", shape, contiguous_strides(shape))
    targets = Operand("int32", shape[:1], (1,))
    options = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0}
    assert "rows" in loss.cross_entropy(facts, logits, targets, None, reduction="mean", **options)
    plan = loss.cross_entropy(facts, logits, targets, None, reduction="none", **options)
    (launch,) = plan.launches
    assert launch.groups * launch.block >= 2**31
    assert math.prod(launch.defines[name] for name in ("THREADS", "ROWS")) == launch.block


# --- sample ------------------------------------------------------------------------------------------


OPTIONS = {
    "plain": {},
    "top_k": {"top_k": 40},
    "top_k_of_most": {"top_k": VOCABULARY - 5},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": 0.7, "top_k": 300, "top_p": 0.8, "min_p": 0.01},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_draws_from_a_vocabulary(geometry, name):
    """The index drawn has the uniform number in its share of the probabilities, up to the rounding of sums."""
    options = OPTIONS[name]
    r = np.random.default_rng(10)
    logits = (r.standard_normal((4, VOCABULARY)) * 4).astype(np.float32)
    uniform = np.asarray([0.0, 0.25, 0.7, 0.9999], np.float32)
    drawn = computed(tp.sample, logits, rng=uniform, **options)
    for row, u, index in zip(logits.astype(np.float64), uniform.astype(np.float64), drawn, strict=True):
        p = np.exp((row - row.max()) / options.get("temperature", 1.0))
        if "top_k" in options:
            p[p < np.sort(p)[-options["top_k"]]] = 0
        if "top_p" in options:
            order = np.argsort(-p, kind="stable")
            before = np.cumsum(p[order]) - p[order]
            p[p < p[order][before < options["top_p"] * p.sum()][-1]] = 0
        p[p < options.get("min_p", 0.0)] = 0
        above = np.cumsum(p) / p.sum()
        assert p[index] > 0
        assert above[index] - p[index] / p.sum() - 1e-5 <= u <= above[index] + 1e-5


def test_more_rows_than_blocks(geometry):
    r = np.random.default_rng(15)
    logits, uniform = r.integers(-8, 8, (100, 70)).astype(np.float32), r.random(100, np.float32)
    expected = tables.REFERENCES["sample"](logits, rng=uniform, top_k=9)
    np.testing.assert_array_equal(computed(tp.sample, logits, rng=uniform, top_k=9), expected)
    np.testing.assert_array_equal(computed(tp.sample, logits, temperature=0), np.argmax(logits, axis=-1))


def test_the_largest_of_a_vocabulary(geometry):
    logits = np.random.default_rng(11).standard_normal((5, VOCABULARY)).astype(np.float32)
    logits[0, [77, 100000]] = 9  # the first of equals
    logits[1, [5, 99999]] = np.nan, np.inf  # the first NaN, as numpy.argmax has it
    logits[2, -1] = 9
    logits[3] = -np.inf
    drawn = computed(tp.sample, logits, temperature=0.0)
    assert drawn.tolist() == np.argmax(logits, axis=-1).tolist()
    assert drawn[:4].tolist() == [77, 5, VOCABULARY - 1, 0]


def test_rows_without_a_distribution_give_the_first(geometry):
    logits = np.ones((3, 100), np.float32)
    logits[0, 7], logits[1] = np.nan, -np.inf
    drawn = computed(tp.sample, logits, rng=np.asarray([0.5, 0.5, -1.0], np.float32))
    assert drawn.tolist() == [0, 0, 0]


def test_infinite_logits_are_drawn_with_certainty(geometry):
    logits = np.ones((3, 100), np.float32)
    logits[0, 7], logits[1:, [5, 90]] = np.inf, np.inf
    drawn = computed(tp.sample, logits, rng=np.asarray([0.9, 0.4, 0.6], np.float32))
    assert drawn.tolist() == [7, 5, 90]


def test_a_generator_is_drawn_from_as_on_numpy(geometry):
    logits = np.random.default_rng(12).standard_normal((3, 5, 64)).astype(np.float32)
    ours, numpys = np.random.default_rng(13), np.random.default_rng(13)
    for _ in range(3):
        np.testing.assert_array_equal(computed(tp.sample, logits, rng=ours), tp.sample(logits, rng=numpys))
    computed(tp.sample, logits, temperature=0.0, rng=ours)  # draws nothing
    assert ours.random() == numpys.random()


def test_a_draw_reads_nothing_back(geometry, monkeypatch):
    device = type(support.LIBRARIES["pyopencl"].xp.default_device())
    logits = there(np.random.default_rng(14).standard_normal((2, 1000)).astype(np.float32))

    def read(*_):
        raise AssertionError("a draw copied from the device")

    with monkeypatch.context() as patch:
        patch.setattr(device, "read", read)
        y = tp.sample(logits, top_k=5, top_p=0.9, rng=np.random.default_rng(0))
    assert back(y).shape == (2,)


# --- top_k -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("length", "k"), [(5000, 64), (128, 50), (40, 40), (3, 3)])
def test_the_best_of_ties_zeros_and_nan(geometry, length, k, largest):
    r = np.random.default_rng(16)
    x = r.choice(np.asarray([-0.0, 0.0, 1.5, -2.0, np.nan, np.inf, -np.inf], np.float32), (3, length))
    x[1] = np.nan
    view = support.LIBRARIES["pyopencl"].xp.permute_dims(there(x.T.copy()), (1, 0))  # rows are columns in memory
    assert tp.top_k.explain(view, k, largest=largest).kernel == "opencl"
    values, indices = (back(y) for y in tp.top_k(view, k, largest=largest))
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :k]  # numpy sorts NaN last
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values.view(np.uint32), np.take_along_axis(x, order, axis=-1).view(np.uint32))


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("length", [17, 100, 5000])
def test_the_best_that_are_neighbours(geometry, length, largest):
    rising = np.linspace(-1, 1, length, dtype=np.float32)
    x = np.stack([rising, rising[::-1], np.random.default_rng(17).permutation(rising)])
    k = min(64, length)
    values, indices = (back(y) for y in tp.top_k(there(x), k, largest=largest))
    order = np.argsort(-x if largest else x, axis=-1)[:, :k]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis=-1))


@pytest.fixture
def five_units(geometry, monkeypatch):
    """The device with five cores or multiprocessors."""
    from tensorops.kernels.opencl import _launch

    facts = dataclasses.replace(geometry, units=5)
    monkeypatch.setattr(_launch, "facts_of", lambda device: facts)
    _launch.forget_calls()
    yield facts
    _launch.forget_calls()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("rows", "shares"), [(1, 5), (2, 2)])
@pytest.mark.parametrize("choices", ["numbers", "ties", "columns"])
def test_few_long_rows_are_divided(five_units, choices, rows, shares, largest):
    """The best of the shares of a row are the row's, equal ones in the order of their indices."""
    r = np.random.default_rng(18)
    length = 5 * 2**16 + 37
    x = r.standard_normal((rows, length)).astype(np.float32)
    if choices == "ties":
        x = r.choice(np.asarray([-0.0, 0.0, 1.5, -2.0, np.nan, np.inf, -np.inf], np.float32), (rows, length))
        x[0] = np.nan
        x[0, [7, -1]] = -1, np.inf
    strides = (1, rows) if choices == "columns" else (length, 1)
    x_operand = Operand("float32", x.shape, strides)
    plan = selection.top_k(five_units, x_operand, 50, axis=1, largest=largest)
    assert len(plan.launches) == 2
    assert plan.temporaries["shares_values"].shape == (rows, shares * 50)
    view = there(x)
    if choices == "columns":
        view = support.LIBRARIES["pyopencl"].xp.permute_dims(there(x.T.copy()), (1, 0))
    assert tp.top_k.explain(view, 50, largest=largest).kernel == "opencl"
    values, indices = (back(y) for y in tp.top_k(view, 50, largest=largest))
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :50]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values.view(np.uint32), np.take_along_axis(x, order, axis=-1).view(np.uint32))


def test_more_than_passes_can_find_are_refused(geometry):
    assert "more than 64" in tp.top_k.explain(there(np.ones(100, np.float32)), 65).refused["opencl"]
