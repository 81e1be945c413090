"""embedding and cross_entropy in C++: every SIMD target, layout and kind of integers; what is refused.

That they are chosen, and agree with the references on all cases, is tested in `test_conformance`.
"""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

import tensorops as tp
from tensorops import _providers
from tensorops.testing import DTYPES, REFERENCES, assert_matches

WHY_NOT = _providers.load("cpu")
if WHY_NOT:
    TARGETS = []
else:
    from tensorops.kernels.cpu import _native

    TARGETS = _native.targets()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"cpu: {WHY_NOT}")

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.fixture(params=TARGETS)
def target(request):
    """Every target that this machine can run, one after another."""
    in_use = _native.target()
    _native.use_target(request.param)
    yield request.param
    _native.use_target(in_use)


def normal(rng, *shape, dtype="float32"):
    return (2 * rng.standard_normal(shape)).astype(DTYPES[dtype])


# --------------------------------------------------------------------------------------------- embedding


@pytest.mark.parametrize("kind", INTEGERS)
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


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda i, w: (i + 4, w), "an id is out of range"),
        (lambda i, w: (-i, w), "an id is out of range"),
        (lambda i, w: (np.asarray([2**63], np.uint64), w), "an id is out of range"),
        (lambda i, w: (np.asarray([-(2**63)]), w), "an id is out of range"),
        (lambda i, w: (i.tolist(), w), "ids is not a numpy.ndarray"),
        (lambda i, w: (i > 1, w), "ids has a dtype that is no integer"),
        (lambda i, w: (i.astype(float), w), "ids has a dtype that is no integer"),
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


@contextlib.contextmanager
def another_thread(write):
    """Call `write` over and over in another thread for the length of a block."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            write()

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def test_ids_that_another_thread_writes_to(rng):
    """What was checked is what is used: a row of the table, or a refusal, but no memory beyond."""
    far = 2**40  # times the bytes of a row: nothing is mapped there
    weight = np.arange(4, dtype=np.float32).repeat(512).reshape(4, 512)
    ids = np.zeros(20_000, np.int64)  # 40 MB of rows: the interpreter is free meanwhile

    def write():
        ids.fill(3)
        ids[-1] = far

    with another_thread(write):
        for _ in range(20):
            ids[-1] = 0
            y = _native.embedding(ids, weight)
            assert y is NotImplemented or set(y[::50, 0]) <= {0, 3}


# ----------------------------------------------------------------------------------------- cross_entropy


def assert_losses(logits, targets, dtype, **options):
    y = _native.cross_entropy(logits, targets, **options)
    assert y is not NotImplemented
    assert y.dtype == logits.dtype
    with np.errstate(all="ignore"):
        expected = REFERENCES["cross_entropy"](logits, targets, **options)
    assert_matches(np.asarray(y), expected, dtype, tolerance=2 if DTYPES[dtype].itemsize == 2 else 16)
    return y


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_classes(target, dtype, smoothing, rng):
    for classes in [*range(1, 70), 4096 + 5, 20000]:
        logits = normal(rng, 3, classes, dtype=dtype)
        targets = rng.integers(0, classes, 3)
        for reduction in ("none", "sum", "mean"):
            assert_losses(logits, targets, dtype, reduction=reduction, label_smoothing=smoothing)


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_of_any_layout(target, dtype, rng):
    room = normal(rng, 4, 6, 50, dtype=dtype)
    for logits in (room.transpose(1, 0, 2), room[::-1, ::2, 7:], np.broadcast_to(room[:1, :1], (2, 3, 50)), room[0, 0]):
        targets = np.asarray(rng.integers(0, logits.shape[-1], logits.shape[:-1]))
        y = assert_losses(logits, targets, dtype, reduction="none")
        assert y.shape == targets.shape
        np.testing.assert_array_equal(y, _native.cross_entropy(logits.copy(), targets, reduction="none"))


@pytest.mark.parametrize("kind", INTEGERS)
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

    with another_thread(write):
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


def test_plain_calls_run_the_kernels(rng):
    with tp.trace() as log:
        tp.cross_entropy(normal(rng, 3, 5), np.asarray([1, 2, 0]))
        tp.embedding(np.asarray([1]), normal(rng, 3, 5))
    assert [(r.operator, r.kernel) for r in log] == [("cross_entropy", "cpu"), ("embedding", "cpu")]


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, t: (x, t + 5), {}, "a target is out of range"),
        (lambda x, t: (x, t - 1), {}, "a target is out of range"),
        (lambda x, t: (x, t - 100), {}, "a target is out of range"),
        (lambda x, t: (x, t.astype(float)), {}, "targets has a dtype that is no integer"),
        (lambda x, t: (x, t[:2]), {}, "targets does not have the shape of logits without the last axis"),
        (lambda x, t: (x, t[None]), {}, "targets does not have the shape of logits without the last axis"),
        (lambda x, t: (x[:, ::2], t), {}, "the last axis of logits is not contiguous"),
        (lambda x, t: (x[:0], t[:0]), {}, "logits is empty"),
        (lambda x, t: (np.asarray(x[0, 0]), t), {}, "logits has 0 dimensions"),
        (lambda x, t: (x.astype(int), t), {}, "logits has a dtype without a kernel"),
        (lambda x, t: (x, t), {"reduction": "median"}, "reduction is unknown"),
        (lambda x, t: (x, t), {"label_smoothing": 1.5}, "label_smoothing is not within 0 … 1"),
        (lambda x, t: (x, t), {"label_smoothing": float("nan")}, "label_smoothing is not within 0 … 1"),
    ],
)
def test_cross_entropy_says_what_it_refuses(change, options, reason, rng):
    args = change(normal(rng, 3, 5), np.asarray([0, 4, 1]))
    assert _native.cross_entropy_supports(*args, **options) == reason
    assert _native.cross_entropy(*args, **options) is NotImplemented
