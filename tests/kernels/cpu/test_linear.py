"""Linear maps in C++: every SIMD target, number of rows, format of weights and layout."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from support import bits, normal
from tensorops._dtypes import INTEGER
from tensorops.testing import DTYPES, REFERENCES

_native = support.require_native()
SHORT = ("float16", "bfloat16", "float32")
FORMATS = {"4": (4, True), "8": (8, True), "8 symmetric": (8, False)}


def quantized(rng, outputs, inputs, form="4", group_size=32, dtype="float32"):
    """Return weights, scales and biases, and the options that go with them."""
    bits, affine = FORMATS[form]
    weight = rng.integers(0, 256, (outputs, inputs * bits // 8), dtype=np.uint8)
    scales = (rng.random((outputs, inputs // group_size)) * 0.01 + 0.001).astype(DTYPES[dtype])
    biases = (rng.standard_normal(scales.shape) * 0.05).astype(DTYPES[dtype]) if affine else None
    return (weight, scales, biases), {"bits": bits, "group_size": group_size}


def assert_close(y, x, weight, bias=0.0, *, magnitude=None):
    """Assert that sums are as exact as float32 makes them: beside the sum of the products' absolute values."""
    x, weight, bias = (np.asarray(a, dtype=np.float64) for a in (x, weight, bias))
    expected = x @ weight.T + bias
    magnitude = np.abs(weight) if magnitude is None else magnitude
    bound = 6 * 2.0**-24 * (np.abs(x) @ magnitude.T + np.abs(bias))
    bound = bound + epsilon(y.dtype) / 2 * np.abs(expected) * 1.01
    assert y.shape == expected.shape
    np.testing.assert_array_less(np.abs(y.astype(np.float64) - expected), bound + 1e-30)


def epsilon(dtype):
    return float(ml_dtypes.finfo(dtype).eps)


def assert_quantized(y, x, parts, options):
    assert_many_quantized([(y, x)], parts, options)


def assert_many_quantized(pairs, parts, options):
    """Assert that products with several matrices are right, each with its result."""
    weight, size = REFERENCES["dequantize"](*parts, **options), magnitude(parts, options)
    for y, x in pairs:
        assert y.dtype == x.dtype
        assert_close(y, x, weight, magnitude=size)


def magnitude(parts, options):
    """Return what the weights would be if nothing cancelled in ``scales * q + biases``."""
    weight, scales, biases = parts
    return np.abs(
        REFERENCES["dequantize"](weight, np.abs(scales), None if biases is None else np.abs(biases), **options)
    )


# ------------------------------------------------------------------------------------------------ linear


@pytest.mark.parametrize("weight_dtype", SHORT)
@pytest.mark.parametrize("dtype", SHORT)
def test_every_number_of_rows_and_length(target, dtype, weight_dtype, rng):
    for rows in (1, 2, 3, 4, 5, 6, 7, 8):
        for inputs, outputs in ((1, 1), (5, 3), (16, 33), (67, 32), (130, 100)):
            x, w = normal(rng, rows, inputs, dtype=dtype), normal(rng, outputs, inputs, dtype=weight_dtype)
            bias = normal(rng, outputs, dtype=weight_dtype)
            assert_close(_native.linear(x, w), x, w)
            assert_close(_native.linear(x, w, bias), x, w, bias)


@pytest.mark.parametrize("inputs", [1, 31, 256, 257, 700])
@pytest.mark.parametrize("dtype", SHORT)
def test_many_rows_are_multiplied_by_panels(target, dtype, inputs, rng):
    for rows, outputs in ((31, 24), (32, 1), (45, 33), (200, 31), (700, 65)):  # of one panel, its parts, and chunks
        x, w, bias = (normal(rng, *shape, dtype=dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
        assert_close(_native.linear(x, w, bias), x, w, bias)
    x[3, inputs // 2], x[4, 0] = np.inf, np.nan
    y = _native.linear(x, np.abs(w) + np.ones((), dtype))
    assert (y[3] == np.inf).all()
    np.testing.assert_array_equal(np.isfinite(y).any(axis=1), (np.arange(len(y)) != 3) & (np.arange(len(y)) != 4))
    assert np.isnan(y[4]).all()


@pytest.mark.parametrize("few_rows", [1, 2, 6, 24, 1000])
@pytest.mark.parametrize("weight_dtype", SHORT)
@pytest.mark.parametrize("dtype", SHORT)
def test_any_bound_of_few_rows_gives_right_results(target, dtype, weight_dtype, few_rows, rng):
    for rows in (1, 2, 5, 7, 25, 150):
        x, w, bias = (
            normal(rng, *shape, dtype=d) for shape, d in (((rows, 67), dtype), ((33, 67), weight_dtype), ((33,), dtype))
        )
        with tp.tune("linear", "cpu", few_rows=few_rows):
            explanation = tp.linear.explain(x, w, bias)
            assert (explanation.kernel, explanation.configuration) == ("cpu", {"few_rows": few_rows})
            for _ in range(2):  # by dispatch, and by its plan
                assert_close(tp.linear(x, w, bias), x, w, bias)


def test_few_rows_are_those_of_a_tile_unless_tuned(target):
    x, w = np.ones((3, 8), np.float16), np.ones((5, 8), np.float16)
    chosen = {"few_rows": 6 if target.startswith("v4") else 4}
    assert _native.linear_configuration() == chosen
    assert tp.linear.explain(x, w).configuration == chosen
    assert tp.linear.explain(x.astype(np.float64), w).configuration == {}  # the body's


@pytest.mark.parametrize("few_rows", [0, -1, True, 2.0, "2", 2**63])
def test_a_bound_that_is_not_a_positive_integer_is_declined(few_rows):
    x, w = np.ones((3, 8), np.float16), np.ones((5, 8), np.float16)
    assert _native.linear_tuned(x, w, few_rows=few_rows) is NotImplemented
    assert_close(_native.linear_tuned(x, w, few_rows=None), x, w)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_rows_in_chunks(target, dtype, rng):
    x, w = normal(rng, 331, 50, dtype=dtype), normal(rng, 70, 50, dtype=dtype)
    assert_close(_native.linear(x, w), x, w)


def test_linear_takes_any_layout_with_a_contiguous_last_axis(target, rng):
    x = normal(rng, 3, 4, 40)
    w, bias = normal(rng, 20, 2, 40), normal(rng, 20)
    for part in (x[::-1, ::2], x[:, 1:2], np.broadcast_to(x[:1, :1], (2, 3, 40)), x.transpose(1, 0, 2)[1:3, :2]):
        y = _native.linear(part, w[::-1, 1], bias)
        assert y is not NotImplemented
        assert y.shape == (*part.shape[:-1], 20)
        np.testing.assert_array_equal(bits(y), bits(_native.linear(part.copy(), w[::-1, 1].copy(), bias)))
        assert_close(y.reshape(-1, 20), part.reshape(-1, 40), w[::-1, 1], bias)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, w, b: (x.astype(np.float64), w, b), "x has dtype float64, whose products numpy.matmul computes"),
        (lambda x, w, b: (x, w.astype(np.float64), b), "weight has dtype float64"),
        (lambda x, w, b: (x, w, b.astype(np.float64)), "bias has dtype float64"),
        (lambda x, w, b: (x[0, 0], w, b), "x is not an array"),
        (lambda x, w, b: (np.asarray(x[0, 0]), w, b), "x has 0 dimensions"),
        (lambda x, w, b: (x[:, ::2], w[:, ::2].copy(), b), "the last axis of x is not contiguous"),
        (lambda x, w, b: (x, np.asfortranarray(w), b), "the last axis of weight is not contiguous"),
        (lambda x, w, b: (x, w[0], b), "weight does not have 2 dimensions"),
        (lambda x, w, b: (x, w[:, :6], b), "weight has shape (5, 6), not (5, 8)"),
        (lambda x, w, b: (x, w, b[:3]), "bias does not have one element for each row of weight"),
        (lambda x, w, b: (x, w, b[None]), "bias does not have one element for each row of weight"),
        (lambda x, w, b: (x, w, np.repeat(b, 2)[::2]), "bias is not contiguous"),
        (lambda x, w, b: (x[:0], w, b), "x or weight is empty"),
        (lambda x, w, b: (x, w[:0], b[:0]), "x or weight is empty"),
        (lambda x, w, b: (x[:, :0], w[:, :0], b), "x or weight is empty"),
    ],
)
def test_linear_says_what_it_refuses(change, reason, rng):
    args = change(normal(rng, 2, 8), normal(rng, 5, 8), normal(rng, 5))
    assert str(_native.linear_supports(*args)).startswith(reason)
    assert _native.linear(*args) is NotImplemented
    assert _native.linear_tuned(*args, few_rows=3) is NotImplemented


# -------------------------------------------------------------------------------------- quantized_linear


def pack_panels(parts, options):
    """Pack on a target that multiplies panels faster than plain weights, whichever target is in use."""
    for name in support.TARGETS:
        with support.using_target(name):
            if _native.pack_panels_supports(*parts, **options) is None:
                return _native.pack_panels(*parts, **options)
    return pytest.skip("no target of this machine gains by panels")


def plain(parts, options):
    """Return the product with weights as they are."""
    return lambda x: _native.quantized_linear(x, *parts, **options)


def in_panels(parts, options):
    """Return the product with weights in another order."""
    panels = pack_panels(parts, options)
    return lambda x: _native.panel_linear(x, panels)


in_both_orders = pytest.mark.parametrize("product", [plain, in_panels])
SIZES_OF_GROUPS = {plain: [2, 8, 16, 32, 48, 64, 128, 512, 1024], in_panels: [32, 64, 96, 512, 1024]}


@pytest.mark.parametrize(("product", "group_size"), [(f, n) for f, sizes in SIZES_OF_GROUPS.items() for n in sizes])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_and_number_of_rows(target, form, product, group_size, rng):
    for groups in (1, 3, 5, 11, 66):  # fewer scales than lanes, and a last vector of them that overlaps the one before
        if group_size * groups > 2048:
            continue
        for outputs in (1, 17, 32, 81):
            parts, options = quantized(rng, outputs, group_size * groups, form, group_size)
            multiply = product(parts, options)
            every = [normal(rng, rows, group_size * groups) for rows in (1, 2, 3, 4, 5, 11, 53, 70)]
            assert_many_quantized([(multiply(x), x) for x in every], parts, options)


@pytest.mark.parametrize("form", FORMATS)
def test_scales_whose_sums_would_overflow(target, form, rng):
    """Tiny inputs times large weights: products with integers are out of range before they are scaled back."""
    (weight, scales, biases), options = quantized(rng, 40, 256, form, 32)
    parts = (weight, scales * np.float32(1e35), None if biases is None else biases * np.float32(1e35))
    for rows in (1, 5, 70):
        x = normal(rng, rows, 256, scale=1e-20)
        assert_quantized(plain(parts, options)(x), x, parts, options)


@pytest.mark.parametrize(("product", "rows"), [(None, 2), (plain, 2), (in_panels, 67)])
def test_several_threads_and_one_give_the_same_bits(target, product, rows, rng):
    x, w = normal(rng, rows, 1024), normal(rng, 2000, 1024)
    parts, options = quantized(rng, 2000, 1024)
    multiply = product(parts, options) if product else lambda x: _native.linear(x, w)
    y = support.same_on_threads((1, 0), lambda: multiply(x))
    if product:
        assert_quantized(y, x, parts, options)
    else:
        assert_close(y, x, w)


@in_both_orders
@pytest.mark.parametrize("scale_dtype", SHORT)
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("form", FORMATS)
def test_dtypes_of_x_and_scales(target, form, dtype, scale_dtype, product, rng):
    parts, options = quantized(rng, 40, 576, form, 32, scale_dtype)
    every = [normal(rng, *shape, 576, dtype=dtype) for shape in ((1,), (5,), (60,), (2, 3), ())]
    multiply = product(parts, options)
    assert_many_quantized([(multiply(x), x) for x in every], parts, options)


@pytest.mark.parametrize("inputs", [64, 576, 1024, 1536])
@pytest.mark.parametrize("form", ["4", "8"])
def test_outputs_computed_together_have_the_bits_of_each_alone(target, form, inputs, rng):
    (weight, scales, biases), options = quantized(rng, 71, inputs, form)
    x = normal(rng, 1, inputs)
    together = _native.quantized_linear(x, weight, scales, biases, **options)
    rows = [slice(i, i + 1) for i in range(71)]
    alone = [_native.quantized_linear(x, weight[i], scales[i], biases[i], **options) for i in rows]
    np.testing.assert_array_equal(bits(together), bits(np.concatenate(alone, 1)))


@pytest.mark.parametrize("form", FORMATS)
def test_quantized_weights_of_any_layout(target, form, rng):
    (weight, scales, biases), options = quantized(rng, 60, 192, form)
    room = np.zeros((60, weight.shape[1] + 3), np.uint8)
    room[:, 3:] = weight
    for rows in (1, 3, 50):
        x = normal(rng, rows, 192)
        strided = (room[::-2, 3:], scales[::-2], None if biases is None else biases[::-2])
        y = _native.quantized_linear(x, *strided, **options)
        copies = tuple(None if a is None else a.copy() for a in strided)
        np.testing.assert_array_equal(bits(y), bits(_native.quantized_linear(x, *copies, **options)))
        assert_quantized(y, x, strided, options)
        batch = np.broadcast_to(x, (2, rows, 192))
        assert _native.quantized_linear(batch, *strided, **options).shape == (2, rows, 30)


@in_both_orders
@pytest.mark.parametrize("form", FORMATS)
def test_numbers_of_any_size(target, form, product, rng):
    """Fixed-point numbers have a scale for each 32 neighbours: small ones beside large ones keep their digits.

    Of four rows that are multiplied at once, some become whole numbers and others cannot.
    """
    parts, options = quantized(rng, 40, 256, form)
    multiply = product(parts, options)
    for exponents in ((0, 0), (-30, 30), (-37, -33), (-44, -38), (30, 36), (-45, 36)):
        sizes = 10.0 ** np.repeat(rng.integers(exponents[0], exponents[1] + 1, (4, 8)), 32, axis=1)
        sizes[2] = 1
        x = (rng.standard_normal((4, 256)) * sizes).astype(np.float32)
        expected = REFERENCES["quantized_linear"](x, *parts, **options)
        bound = np.abs(x).astype(np.float64) @ magnitude(parts, options).T
        np.testing.assert_array_less(np.abs(multiply(x) - expected), 6 * 2.0**-24 * bound + 2e-44)
    # Each group by itself, whatever the others are: a scale for the whole row would leave nothing of the small ones.
    x = np.zeros((1, 256), np.float32)
    x[0, :32], x[0, 32:64] = 1e-12 * rng.standard_normal(32), 1e9
    _, scales, biases = parts
    scales[:, 1] = 0
    if biases is not None:
        biases[:, 1] = 0
    assert_quantized(product(parts, options)(x), x, parts, options)


@in_both_orders
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_multiply_the_weights_themselves(target, form, special, product, rng):
    """Infinity times an integer 0 would be NaN where infinity times the weight is not."""
    parts, options = quantized(rng, 50, 64, form)
    parts[0][:25] = 0
    x = normal(rng, 2, 64)
    x[1, 5] = special
    y = product(parts, options)(x)
    with np.errstate(invalid="ignore"):
        expected = REFERENCES["quantized_linear"](x, *parts, **options)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_array_equal(y[~np.isfinite(expected)], expected[~np.isfinite(expected)])
    assert_quantized(y[:1], x[:1], parts, options)


def test_the_largest_number_of_a_group_keeps_its_sign(target):
    """It fills all digits: one unit more would wrap around."""
    parts = np.full((1, 16), 0x11, np.uint8), np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    for x0 in np.linspace(1, 2, 4001, dtype=np.float32):
        x = np.zeros((1, 32), np.float32)
        x[0, 3] = x0
        for sign in (1, -1):
            y = _native.quantized_linear(sign * x, *parts)
            assert abs(float(y[0, 0]) - sign * float(x0)) <= 2.0**-22


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, w, s, b: (x.astype(np.float64), w, s, b), {}, "x has dtype float64"),
        (lambda x, w, s, b: (x, w.view(np.int8), s, b), {}, "weight does not have dtype uint8"),
        (lambda x, w, s, b: (x, w.tolist(), s, b), {}, "weight is not a numpy.ndarray"),
        (lambda x, w, s, b: (x, w, s, None), {}, "biases are missing"),
        (lambda x, w, s, b: (x, w, s, b.astype(np.float16)), {}, "biases has another dtype than scales"),
        (lambda x, w, s, b: (x, w, s.astype(np.float64), b), {}, "scales has dtype float64"),
        (lambda x, w, s, b: (x, w, s[:3], b), {}, "scales has shape (3, 2), not (5, 2)"),
        (lambda x, w, s, b: (x, w, s, b[:, :1]), {}, "biases has shape (5, 1), not (5, 2)"),
        (lambda x, w, s, b: (x, w[:, :30], s, b), {}, "weight has shape (5, 30), not (5, 32)"),
        (lambda x, w, s, b: (x, np.asfortranarray(w), s, b), {}, "the last axis of weight is not contiguous"),
        (lambda x, w, s, b: (x[:, ::2], w, s, b), {}, "the last axis of x is not contiguous"),
        (lambda x, w, s, b: (x[:0], w, s, b), {}, "x or weight is empty"),
        (lambda x, w, s, b: (x, w[:0], s[:0], b[:0]), {}, "x or weight is empty"),
        (lambda x, w, s, b: (x, w, s, b), {"bits": 2}, "bits is neither 4 nor 8"),
        (lambda x, w, s, b: (x, w, s, b), {"group_size": 0}, "group_size does not fit x"),
        (lambda x, w, s, b: (x, w, s, b), {"group_size": 3}, "group_size does not fit x"),
        (lambda x, w, s, b: (x, w, s, b), {"group_size": 2**40}, "group_size does not fit x"),
        (lambda x, w, s, b: (x, w, s, b), {"group_size": 48}, "group_size does not divide the last axis of x"),
    ],
)
def test_quantized_linear_says_what_it_refuses(change, options, reason, rng):
    parts, _ = quantized(rng, 5, 64)
    args = change(normal(rng, 2, 64), *parts)
    assert str(_native.quantized_linear_supports(*args, **options)).startswith(reason)
    assert _native.quantized_linear(*args, **options) is NotImplemented


# --- embedding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", INTEGER)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_copied(dtype, kind, rng):
    room = normal(rng, 40, 3, 17, dtype=dtype)
    for weight in (room[:, 0].copy(), room[::-2, 1], room[:, 2, 4:5]):
        for shape in ((), (1,), (7,), (2, 3), (0,), (3, 0, 2)):
            ids = rng.integers(0, len(weight), shape).astype(kind)
            y = _native.embedding(ids, weight)
            assert y.dtype == weight.dtype
            assert y.shape == (*shape, weight.shape[1])
            np.testing.assert_array_equal(y, np.asarray(weight)[ids.astype(int)])
    ids = np.arange(30).reshape(5, 6)[::-2, ::3].astype(kind)
    np.testing.assert_array_equal(_native.embedding(ids, room[:, 0]), room[:, 0][ids.astype(int)])


def test_many_rows_are_copied_by_several_threads(rng):
    weight, ids = normal(rng, 500, 333), rng.integers(0, 500, 4001)
    y = support.same_on_threads((1, 2, 3, 8), lambda: _native.embedding(ids, weight))
    np.testing.assert_array_equal(y, weight[ids])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda i, w: (i + 4, w), "an id is out of range"),
        (lambda i, w: (-i, w), "an id is out of range"),
        (lambda i, w: (np.asarray([2**63], np.uint64), w), "an id is out of range"),
        (lambda i, w: (np.asarray([-(2**63)]), w), "an id is out of range"),
        (lambda i, w: (i.tolist(), w), "ids is not a numpy.ndarray"),
        (lambda i, w: (i > 1, w), "ids has a dtype that is not an integer"),
        (lambda i, w: (i.astype(float), w), "ids has a dtype that is not an integer"),
        (lambda i, w: (i.astype(">i8"), w), "ids is in foreign byte order"),
        (lambda i, w: (i, w[0]), "weight does not have 2 dimensions"),
        (lambda i, w: (i, w[:0]), "weight is empty"),
        (lambda i, w: (i, w[:, ::2]), "the last axis of weight is not contiguous"),
        (lambda i, w: (i, w.astype(np.int32)), "weight has a dtype without a kernel"),
    ],
)
def test_embedding_says_what_it_refuses(change, reason, rng):
    args = change(np.asarray([0, 3, 1]), normal(rng, 6, 4))
    assert _native.embedding_supports(*args) == reason
    assert _native.embedding(*args) is NotImplemented


def test_ids_that_another_thread_writes_to(rng):
    """What was checked is what is used: a row of the table, or a refusal, but no memory beyond."""
    far = 2**40  # times the bytes of a row: nothing is mapped there
    weight = np.arange(4, dtype=np.float32).repeat(512).reshape(4, 512)
    ids = np.zeros(20_000, np.int64)  # 40 MB of rows: the interpreter is free meanwhile

    def write():
        ids.fill(3)
        ids[-1] = far

    with support.another_thread(write):
        for _ in range(20):
            ids[-1] = 0
            y = _native.embedding(ids, weight)
            assert y is NotImplemented or set(y[::50, 0]) <= {0, 3}


# -------------------------------------------------------------------------------------- weights in panels


def test_sums_over_long_rows_of_panels(target, rng):
    """Equal numbers, on which rounding errors add up if they can."""
    parts, options = quantized(rng, 33, 65536)
    parts[1][:], parts[2][:] = 0.7, 0.3
    x = np.full((3, 65536), 1.1, np.float32)
    assert_quantized(_native.panel_linear(x, pack_panels(parts, options)), x, parts, options)


def test_panels_lie_side_by_side_and_are_given_back(pool, rng):
    start = pool.memory_stats()["in_use"]
    matrices = [quantized(rng, 512, 512 + 64 * i) for i in range(4)]
    packed = [pack_panels(parts, options) for parts, options in matrices]
    places = sorted((p.memory.ctypes.data, p.nbytes) for p in packed)
    taken = pool.memory_stats()["in_use"] - start
    assert taken in (0, 8 * 2**20)  # other tests' matrices may have left room
    gaps = [following - place - size for (place, size), (following, _) in itertools.pairwise(places)]
    assert min(gaps) >= 0
    assert sum(gap >= 64 for gap in gaps) <= 1  # between two shelves
    for (parts, _), panels in zip(matrices, packed, strict=True):
        for given, unpacked in zip(parts, panels.unpack(), strict=True):
            np.testing.assert_array_equal(unpacked, given)
    del panels, unpacked
    last = packed.pop()
    packed.clear()
    assert pool.memory_stats()["in_use"] == start + taken
    np.testing.assert_array_equal(last.unpack()[0], matrices[-1][0][0])
    del last
    assert pool.memory_stats()["in_use"] == start


@pytest.mark.parametrize("scale_dtype", SHORT)
@pytest.mark.parametrize("form", FORMATS)
def test_panels_of_any_layout_give_the_plain_arrays_back(form, scale_dtype, rng):
    (weight, scales, biases), options = quantized(rng, 70, 192, form, 64, scale_dtype)
    room = np.zeros((70, weight.shape[1] + 3), np.uint8)
    room[:, 3:] = weight
    parts = room[::-2, 3:], scales[::-2], None if biases is None else biases[::-2]
    panels = pack_panels(parts, options)
    assert (panels.shape, panels.bits, panels.group_size) == ((35, 192), options["bits"], 64)
    assert panels.nbytes * 35 == 64 * sum(a.nbytes for a in parts if a is not None)  # two panels of 32
    for plain, part in zip(panels.unpack(), parts, strict=True):
        if part is None:
            assert plain is None
        else:
            assert plain.dtype == part.dtype
            np.testing.assert_array_equal(plain, part)
    weight[:] = 0  # which the panels no longer look at
    assert np.any(panels.unpack()[0])


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda w, s, b: (w.view(np.int8), s, b), {}, "weight does not have dtype uint8"),
        (lambda w, s, b: (w.tolist(), s, b), {}, "weight is not a numpy.ndarray"),
        (lambda w, s, b: (w[0], s, b), {}, "weight does not have 2 dimensions"),
        (lambda w, s, b: (w, s, None), {}, "biases are missing"),
        (lambda w, s, b: (w, s, b.astype(np.float16)), {}, "biases has another dtype than scales"),
        (lambda w, s, b: (w, s.astype(np.float64), b), {}, "scales has dtype float64"),
        (lambda w, s, b: (w, s[:3], b), {}, "scales has shape (3, 2), not (5, 2)"),
        (lambda w, s, b: (w, s, b[:, :1]), {}, "biases has shape (5, 1), not (5, 2)"),
        (lambda w, s, b: (w[:, :30], s, b), {}, "the rows of weight are not whole groups"),
        (lambda w, s, b: (np.asfortranarray(w), s, b), {}, "the last axis of weight is not contiguous"),
        (lambda w, s, b: (w[:0], s[:0], b[:0]), {}, "weight is empty"),
        (lambda w, s, b: (w, s, b), {"bits": 2}, "bits is neither 4 nor 8"),
        (lambda w, s, b: (w, s, b), {"group_size": 0}, "group_size is not a multiple of 32 up to 1024"),
        (lambda w, s, b: (w, s, b), {"group_size": 16}, "group_size is not a multiple of 32 up to 1024"),
        (lambda w, s, b: (w, s, b), {"group_size": 2**40}, "group_size is not a multiple of 32 up to 1024"),
    ],
)
def test_packing_says_what_it_refuses(change, options, reason, rng):
    parts, _ = quantized(rng, 5, 64)
    if _native.pack_panels_supports(*parts) is not None:
        pytest.skip(_native.pack_panels_supports(*parts))
    args = change(*parts)
    assert _native.pack_panels_supports(*args, **options) == reason
    assert _native.pack_panels(*args, **options) is NotImplemented


def test_targets_without_gain_do_not_pack(target, rng):
    parts, options = quantized(rng, 5, 64)
    reason = _native.pack_panels_supports(*parts, **options)
    assert (reason is None) == (target in ("v4_vnni", "v4_bf16"))
    if reason is not None:
        assert reason == f"on the target {target} plain weights are multiplied as fast"
        assert _native.pack_panels(*parts, **options) is NotImplemented


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x: x.astype(np.float64), "x has dtype float64, whose products numpy.matmul computes"),
        (lambda x: x.tolist(), "x is not a numpy.ndarray"),
        (lambda x: x[:, ::2], "the last axis of x is not contiguous"),
        (lambda x: x[:, :32], "the last axis of x has 32 elements, and weight has rows of 64"),
        (lambda x: x[:0], "x is empty"),
    ],
)
def test_panel_linear_says_what_it_refuses(change, reason, rng):
    panels = pack_panels(*quantized(rng, 5, 64))
    x = change(normal(rng, 2, 64))
    assert _native.panel_linear_supports(x, panels) == reason
    assert _native.panel_linear(x, panels) is NotImplemented
