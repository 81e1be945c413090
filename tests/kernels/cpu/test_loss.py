"""Cross-entropy in C++: every SIMD target, number of classes, layout and integer dtype, and ignored targets."""

import functools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
normal = functools.partial(support.normal, scale=2.0)


def assert_right(name, dtype, tolerance, *args, **options):
    y = getattr(_native, name)(*args, **options)
    assert y is not NotImplemented
    assert y.dtype == args[0].dtype
    with np.errstate(all="ignore"):
        expected = REFERENCES[name](*args, **options)
    assert_matches(np.asarray(y), expected, dtype, tolerance=2 if DTYPES[dtype].itemsize == 2 else tolerance)
    return y


def assert_losses(logits, targets, dtype, *weight, **options):
    return assert_right("cross_entropy", dtype, 16, logits, targets, *weight, **options)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_classes(target, dtype, smoothing, rng):
    for classes in [*range(1, 70), 4096 + 5, 20000]:
        logits = normal(rng, 3, classes, dtype=dtype)
        targets = rng.integers(0, classes, 3)
        for reduction in ("none", "sum", "mean"):
            assert_losses(logits, targets, dtype, reduction=reduction, label_smoothing=smoothing)


@pytest.mark.parametrize("parameters", ["same", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_probabilities_and_squares(target, dtype, parameters, rng):
    if parameters == "float32" and DTYPES[dtype].itemsize > 2:
        pytest.skip("float32 goes with half types only")
    other = DTYPES[dtype if parameters == "same" else parameters]
    for classes in [*range(1, 70, 3), 4096 + 5]:
        logits, weight = normal(rng, 4, classes, dtype=dtype), rng.random(classes).astype(other)
        numbers = rng.integers(0, classes, 4)
        numbers[1] = -100
        probabilities = rng.dirichlet(np.ones(classes), 4).astype(other)
        for reduction in ("none", "sum", "mean"):
            for extra in ({}, {"label_smoothing": 0.2}, {"z_loss": 0.01}, {"label_smoothing": 1.0, "z_loss": 0.01}):
                options = {"reduction": reduction, **extra}
                assert_losses(logits, numbers, dtype, weight, **options)
                assert_losses(logits, probabilities, dtype, **options)
                assert_losses(logits, probabilities, dtype, weight, **options)
                assert_losses(logits, numbers, dtype, **options)


def test_probabilities_of_any_layout(rng):
    room, p = normal(rng, 4, 6, 50), rng.dirichlet(np.ones(50), (6, 4)).astype(np.float32)
    for logits, targets in ((room.transpose(1, 0, 2), p), (room, p.transpose(1, 0, 2)), (room[::-1, 0], p[0])):
        y = assert_losses(logits, targets, "float32", reduction="none")
        np.testing.assert_array_equal(y, _native.cross_entropy(logits.copy(), targets.copy(), reduction="none"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_counts_nothing_adds_nothing(target, dtype):
    logits = np.asarray([[-np.inf, 0, 1, -np.inf]] * 2).astype(DTYPES[dtype])
    weight = np.asarray([0, 1, 2, 0]).astype(DTYPES[dtype])
    probabilities = np.asarray([[0, 0.5, 0.5, 0], [0, 1, 0, 0]]).astype(DTYPES[dtype])
    for args, options in (
        ((logits, probabilities), {}),
        ((logits, np.asarray([0, 1]), weight), {"label_smoothing": 0.1, "z_loss": 0.1}),
        ((logits, probabilities, weight), {"label_smoothing": 0.1}),
    ):
        y = assert_losses(args[0], args[1], dtype, *args[2:], reduction="none", **options)
        assert np.isfinite(y).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_of_any_layout(target, dtype, rng):
    room = normal(rng, 4, 6, 50, dtype=dtype)
    for logits in (room.transpose(1, 0, 2), room[::-1, ::2, 7:], np.broadcast_to(room[:1, :1], (2, 3, 50)), room[0, 0]):
        targets = np.asarray(rng.integers(0, logits.shape[-1], logits.shape[:-1]))
        y = assert_losses(logits, targets, dtype, reduction="none")
        assert y.shape == targets.shape
        np.testing.assert_array_equal(y, _native.cross_entropy(logits.copy(), targets, reduction="none"))


@pytest.mark.parametrize("kind", INTEGER)
def test_targets_of_any_kind_and_what_is_ignored(kind, rng):
    logits = normal(rng, 6, 9)
    targets = np.asarray([3, 0, 8, 3, 3, 1]).astype(kind)
    y = assert_losses(logits, targets, "float32", reduction="none", ignore_index=3)
    np.testing.assert_array_equal(y == 0, targets == 3)
    assert_losses(logits, targets, "float32", ignore_index=3)
    assert np.isnan(_native.cross_entropy(logits, np.full(6, 7, kind), ignore_index=7))
    assert _native.cross_entropy(logits, np.full(6, 7, kind), ignore_index=7, reduction="sum") == 0


def test_targets_that_another_thread_writes_to(rng):
    logits = np.zeros((20_000, 500), np.float32)
    targets = np.zeros(20_000, np.int64)

    def write():
        targets.fill(3)
        targets[-1] = 2**60

    with support.another_thread(write):
        for _ in range(20):
            targets[-1] = 0
            y = _native.cross_entropy(logits, targets, reduction="none")
            if y is not NotImplemented:
                np.testing.assert_allclose(y, np.log(500), rtol=1e-6)


@pytest.mark.parametrize("ignore_index", [-100, -1])
def test_large_unsigned_targets_are_not_negative_ones(ignore_index, rng):
    """As int64 they would be the index to be ignored."""
    logits, targets = normal(rng, 3, 5), np.asarray([1, 2**64 + ignore_index, 2], np.uint64)
    options = {"ignore_index": ignore_index}
    assert _native.cross_entropy(logits, targets, **options) is NotImplemented
    assert _native.cross_entropy_supports(logits, targets, **options) == "a target is out of range"
    with pytest.raises(ValueError, match=rf"targets has the index {2**64 + ignore_index}, outside 0 … 4"):
        tp.cross_entropy(logits, targets, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_of_the_body_s_kind(dtype, rng):
    logits = normal(rng, 3, 5, dtype=dtype)
    for args in ((logits, np.asarray([1, 2, 3])), (logits[0], np.asarray(2))):
        for reduction in ("none", "sum", "mean"):
            y = _native.cross_entropy(*args, reduction=reduction)
            body = tp.cross_entropy.generic(*args, reduction=reduction)
            assert (type(y), y.dtype, y.shape) == (type(body), body.dtype, body.shape)
    row, body = _native.embedding(np.asarray(1), logits), tp.embedding.generic(np.asarray(1), logits)
    assert (type(row), row.dtype, row.shape) == (type(body), body.dtype, body.shape)


def test_special_logits(target):
    inf, nan = np.inf, np.nan
    rows = [[0, inf, 1], [-inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 1], [0, 1, nan], [1e38, -1e38, 0]]
    for smoothing in (0.0, 0.5):
        assert_losses(
            np.asarray(rows, np.float32), np.zeros(6, int), "float32", reduction="none", label_smoothing=smoothing
        )


def test_threads_and_results_like_those_of_the_body(rng):
    logits, targets = normal(rng, 70, 20000), rng.integers(0, 20000, 70)
    together = _native.cross_entropy(logits, targets, reduction="none")
    alone = [_native.cross_entropy(x[None], np.asarray([t])) for x, t in zip(logits, targets, strict=True)]
    np.testing.assert_array_equal(together, alone)
    for reduction in ("mean", "sum", "none"):
        for args in ((logits[:3, :5], targets[:3] % 5), (logits[0, :5], np.asarray(2))):
            body = tp.cross_entropy.generic(*args, reduction=reduction)
            assert type(_native.cross_entropy(*args, reduction=reduction)) is type(body)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, t: (x, t + 5), {}, "a target is out of range"),
        (lambda x, t: (x, t - 1), {}, "a target is out of range"),
        (lambda x, t: (x, t - 100), {}, "a target is out of range"),
        (lambda x, t: (x, t > 0), {}, "targets has a dtype without a kernel"),
        (lambda x, t: (x, t.astype(float)), {}, "targets does not have the shape of logits"),
        (lambda x, t: (x, x.astype(float)), {}, "targets has another dtype than logits"),
        (lambda x, t: (x, np.repeat(x, 2, -1)[:, ::2]), {}, "the last axis of targets is not contiguous"),
        (lambda x, t: (x, x), {"ignore_index": 0}, "ignore_index is not negative, but targets are probabilities"),
        (lambda x, t: (x, t, x[0, :3]), {}, "weight does not have one element for each class"),
        (lambda x, t: (x, t, x), {}, "weight does not have one element for each class"),
        (lambda x, t: (x, t, x[0].astype(float)), {}, "weight has another dtype than logits"),
        (lambda x, t: (x, t, np.repeat(x[0], 2)[::2]), {}, "weight is not contiguous"),
        (lambda x, t: (x, t, [1.0] * 5), {}, "weight is not a numpy.ndarray"),
        (lambda x, t: (x, t), {"z_loss": -1.0}, "z_loss is not a number of at least 0"),
        (lambda x, t: (x, t), {"z_loss": float("inf")}, "z_loss is not a number of at least 0"),
        (lambda x, t: (x, t[:2]), {}, "targets does not have the shape of logits without the last axis"),
        (lambda x, t: (x, t[None]), {}, "targets does not have the shape of logits without the last axis"),
        (lambda x, t: (x[:, ::2], t), {}, "the last axis of logits is not contiguous"),
        (lambda x, t: (x[:0], t[:0]), {}, "logits is empty"),
        (lambda x, t: (np.asarray(x[0, 0]), t), {}, "logits has 0 dimensions"),
        (lambda x, t: (x.astype(int), t), {}, "logits has a dtype without a kernel"),
        (lambda x, t: (x, t), {"reduction": "median"}, "reduction is none of 'mean', 'sum', 'none'"),
        (lambda x, t: (x, t), {"label_smoothing": 1.5}, "label_smoothing is not within 0 … 1"),
        (lambda x, t: (x, t), {"label_smoothing": float("nan")}, "label_smoothing is not within 0 … 1"),
    ],
)
def test_cross_entropy_says_what_it_refuses(change, options, reason, rng):
    args = change(normal(rng, 3, 5), np.asarray([0, 4, 1]))
    assert _native.cross_entropy_supports(*args, **options) == reason
    assert _native.cross_entropy(*args, **options) is NotImplemented


# --- linear_cross_entropy ------------------------------------------------------------------------------

NARROW = [name for name in DTYPES if name != "float64"]


def assert_linear_losses(dtype, *args, **options):
    return assert_right("linear_cross_entropy", dtype, 32, *args, **options)


@pytest.mark.parametrize("weight_dtype", NARROW)
@pytest.mark.parametrize("dtype", NARROW)
def test_linear_losses_of_every_size(target, dtype, weight_dtype, rng):
    for rows, classes, features in ((1, 1, 1), (2, 31, 7), (5, 33, 17), (8, 100, 64), (7, 64, 16), (150, 70, 33)):
        x = normal(rng, rows, features, dtype=dtype)
        weight = support.normal(rng, classes, features, dtype=weight_dtype)
        targets = rng.integers(0, classes, rows)
        targets[1::3] = -100
        bias, ce_weight = support.normal(rng, classes, dtype=weight_dtype), rng.random(classes).astype(DTYPES[dtype])
        for reduction in ("none", "sum", "mean"):
            for extra in ({}, {"label_smoothing": 0.2}, {"z_loss": 0.01}, {"label_smoothing": 1.0, "z_loss": 0.01}):
                options = {"reduction": reduction, **extra}
                assert_linear_losses(dtype, x, weight, targets, **options)
                assert_linear_losses(dtype, x, weight, targets, bias, ce_weight, **options)


def test_linear_losses_on_several_threads_and_of_any_layout(rng):
    x, weight = normal(rng, 300, 200), support.normal(rng, 1000, 400)[:, 100:300]
    targets = rng.integers(0, 1000, 300)
    y = assert_linear_losses("float32", x, weight, targets, reduction="none", label_smoothing=0.1)
    z = _native.linear_cross_entropy(
        x[::-1].reshape(3, 100, 200),
        weight.copy(),
        targets[::-1].reshape(3, 100),
        reduction="none",
        label_smoothing=0.1,
    )
    np.testing.assert_allclose(z.reshape(-1)[::-1], y, rtol=1e-6)


@pytest.mark.parametrize("dtype", NARROW)
def test_linear_losses_hold_no_logits(dtype, rng):
    """The kernel's own memory and, as there is hardly more, that of its arrays."""
    import tracemalloc

    x, weight = normal(rng, 600, 32, dtype=dtype), normal(rng, 8192, 32, dtype=dtype)
    targets = rng.integers(0, 8192, 600)
    before = _native.memory_stats()["in_use"]
    _native.reset_peak()
    tracemalloc.start()
    try:
        _native.linear_cross_entropy(x, weight, targets, label_smoothing=0.1, z_loss=0.1)
        held = _native.memory_stats()["peak"] - before + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 600 * 8192 * 4 / 100


def test_special_linear_losses(target, rng):
    inf, nan = np.inf, np.nan
    one, targets = np.ones((1, 1), np.float32), np.asarray([0])
    for row in ([0, inf, 1], [-inf, 0, 1], [-inf, -inf, -inf], [nan, 0, 1], [0, 1, nan], [1e38, -1e38, 0], [nan, -inf]):
        for padding in (0, 70):  # the special ones in the first block of classes, or in the last
            logits = np.asarray([*row[:1], *[0.5] * padding, *row[1:]], np.float32)
            for smoothing in (0.0, 0.5):
                weight, bias = np.zeros((logits.size, 1), np.float32), logits
                options = {"label_smoothing": smoothing, "reduction": "none"}
                assert_linear_losses("float32", one, weight, targets, bias, **options)
    bias = np.asarray([0, -inf, 1], np.float32)  # a class that counts nothing
    ce_weight = np.asarray([1, 0, 2], np.float32)
    y = assert_linear_losses("float32", one, one.repeat(3, 0), targets, bias, ce_weight, label_smoothing=0.1)
    assert np.isfinite(y)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, w, t: (x, w, t + 5), {}, "a target is out of range"),
        (lambda x, w, t: (x, w, t - 1), {}, "a target is out of range"),
        (lambda x, w, t: (x, w, t > 0), {}, "targets has a dtype without a kernel"),
        (lambda x, w, t: (x, w, t[:2]), {}, "targets does not have the shape of x without the last axis"),
        (lambda x, w, t: (x, w, x @ w.T), {}, "targets are probabilities"),
        (lambda x, w, t: (x, w[:, :3], t), {}, "weight has shape (5, 3), not (5, 4)"),
        (lambda x, w, t: (x, w[0], t), {}, "weight does not have 2 dimensions"),
        (lambda x, w, t: (x, w.astype(float), t), {}, "weight has dtype float64"),
        (lambda x, w, t: (x.astype(float), w, t), {}, "x has dtype float64, whose products numpy.matmul computes"),
        (lambda x, w, t: (x, w[:0], t), {}, "x or weight is empty"),
        (lambda x, w, t: (x, w, t, w[0]), {}, "bias does not have one element for each class"),
        (lambda x, w, t: (x, w, t, np.ones(10, "f")[::2]), {}, "bias is not contiguous"),
        (lambda x, w, t: (x, w, t, None, np.ones(5)), {}, "ce_weight has dtype float64"),
        (lambda x, w, t: (x, w, t, None, w[0]), {}, "ce_weight does not have one element for each class"),
        (lambda x, w, t: (x, w, t), {"reduction": "median"}, "reduction is none of 'mean', 'sum', 'none'"),
        (lambda x, w, t: (x, w, t), {"label_smoothing": 1.5}, "label_smoothing is not within 0 … 1"),
        (lambda x, w, t: (x, w, t), {"z_loss": -0.1}, "z_loss is not a number of at least 0"),
        (lambda x, w, t: (x, w, t), {"ignore_index": 0.5}, "ignore_index is not an int64"),
    ],
)
def test_linear_cross_entropy_says_what_it_refuses(change, options, reason, rng):
    args = change(normal(rng, 3, 4), normal(rng, 5, 4), np.asarray([0, 4, 1]))
    assert _native.linear_cross_entropy_supports(*args, **options) == reason
    assert _native.linear_cross_entropy(*args, **options) is NotImplemented
