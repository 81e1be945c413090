"""Losses: the references by hand, and targets of every dtype in every library, for kernels and bodies."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from support import close, to_torch
from tensorops._dtypes import INTEGER
from tensorops.libraries import LIBRARIES
from tensorops.testing import REFERENCES, assert_matches
from tensorops.testing import loss as references

NUMBERS = np.array([[0, 3, 1], [2, 2, 5]])


@pytest.mark.parametrize("options", [{}, {"ignore_index": 2}, {"ignore_index": -1, "reduction": "none"}], ids=str)
@pytest.mark.parametrize("dtype", INTEGER)
def test_cross_entropy_takes_targets_of_every_dtype(library, dtype, options, rng):
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    targets, x = support.integers_there(NUMBERS, dtype, library), support.there(logits, library.name)
    expected = REFERENCES["cross_entropy"](logits, NUMBERS, **options)
    for call in (tp.cross_entropy, tp.cross_entropy.generic):
        assert_matches(support.back(call(x, targets, **options)), expected, "float32", tolerance=16)


@pytest.mark.parametrize("dtype", INTEGER)
def test_a_target_to_be_ignored_may_be_any_number_of_its_dtype(library, dtype, rng):
    """The largest and the smallest number of the dtype, which are not classes."""
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    x = support.there(logits, library.name)
    limits = np.iinfo(dtype)
    for ignored in {limits.max, limits.min if limits.min else limits.max}:
        some = NUMBERS.astype(dtype)
        some[0, 1] = ignored
        if library.name == "jax" and dtype.endswith("64"):
            pytest.skip("jax holds no such numbers here")
        targets = support.integers_there(some, dtype, library)
        expected = REFERENCES["cross_entropy"](logits, np.where(some == ignored, -100, NUMBERS))
        for call in (tp.cross_entropy, tp.cross_entropy.generic):
            y = support.back(call(x, targets, ignore_index=int(ignored)))
            assert_matches(y, expected, "float32", tolerance=16)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_targets_are_never_negative_ones(dtype, rng):
    """What the default `ignore_index` becomes in a byte, 156, is a class like others."""
    support.require("numpy")
    logits = rng.standard_normal((2, 200)).astype(np.float32)
    targets = np.array([156, 3])
    expected = REFERENCES["cross_entropy"](logits, targets)
    for row in LIBRARIES.values():
        if not support.why_not(row.name) and not (row.name == "jax" and dtype == "uint64"):
            x, t = support.there((logits, targets.astype(dtype)), row.name)
            for call in (tp.cross_entropy, tp.cross_entropy.generic):
                assert_matches(support.back(call(x, t)), expected, "float32", tolerance=16)


inf, nan = np.inf, np.nan


LOGITS = np.log([[1.0, 1.0, 2.0], [3.0, 1.0, 4.0], [1.0, 1.0, 1.0]])


def test_cross_entropy_by_hand():
    losses = [math.log(2), math.log(8), math.log(3)]
    targets = [2, 1, 0]
    close(references.cross_entropy(LOGITS, targets, reduction="none"), losses)
    close(references.cross_entropy(LOGITS, targets, reduction="sum"), sum(losses))
    close(references.cross_entropy(LOGITS, targets), sum(losses) / 3)
    close(references.cross_entropy(LOGITS, [2, -100, 0]), (losses[0] + losses[2]) / 2)
    close(references.cross_entropy(LOGITS, targets, ignore_index=1, reduction="none"), [losses[0], 0, losses[2]])
    smoothed = 0.7 * math.log(2) + 0.3 * (math.log(4) + math.log(4) + math.log(2)) / 3
    close(references.cross_entropy(LOGITS[0], 2, label_smoothing=0.3), smoothed)


def test_cross_entropy_where_nothing_counts():
    assert np.isnan(references.cross_entropy(LOGITS, [-100] * 3))
    assert references.cross_entropy(LOGITS, [-100] * 3, reduction="sum") == 0.0
    assert_array_equal(references.cross_entropy([[nan, 0.0]], [-100], reduction="none"), [0.0])


def test_cross_entropy_of_forbidden_classes():
    logits = [[-inf, 0.0, 0.0]]
    close(references.cross_entropy(logits, [1]), math.log(2))
    assert references.cross_entropy(logits, [0]) == inf


def test_cross_entropy_refuses_an_unknown_reduction():
    with pytest.raises(ValueError, match="reduction is 'max'"):
        references.cross_entropy(LOGITS, [0, 0, 0], reduction="max")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_agrees_with_torch(rng, reduction, smoothing):
    torch = pytest.importorskip("torch")
    logits, targets = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    tl, tt = to_torch(torch, logits, targets)
    expected = torch.nn.functional.cross_entropy(tl, tt, reduction=reduction, label_smoothing=smoothing)
    actual = references.cross_entropy(logits, targets, reduction=reduction, label_smoothing=smoothing)
    close(actual, expected.numpy(), rtol=1e-12)


OPTIONS = [
    {},
    {"label_smoothing": 0.2},
    {"label_smoothing": 1.0},
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["weight", "probabilities", "weighted probabilities"])
def test_weights_and_probabilities_are_those_of_torch(rng, kind, options, reduction):
    torch = pytest.importorskip("torch")
    logits, numbers = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    targets = numbers if kind == "weight" else rng.dirichlet(np.ones(9), 6)
    weight = rng.random(9) if "weight" in kind else None
    tensors = to_torch(torch, *(a for a in (logits, targets, weight) if a is not None))
    expected = torch.nn.functional.cross_entropy(*tensors, reduction=reduction, **options).numpy()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        actual = call(logits, targets, weight, reduction=reduction, **options)
        close(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_z_loss_is_the_square_of_torchs_logsumexp(rng, reduction):
    torch = pytest.importorskip("torch")
    logits, targets = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    tl, tt = to_torch(torch, logits, targets)
    squares = torch.where(tt == -100, 0.0, torch.logsumexp(tl, -1) ** 2)
    losses = torch.nn.functional.cross_entropy(tl, tt, reduction="none") + 0.3 * squares
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / 4}[reduction].numpy()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        close(call(logits, targets, z_loss=0.3, reduction=reduction), expected, rtol=1e-12)


def test_weights_do_not_apply_to_z_loss(rng):
    """The mean of squares is over the elements that count, as Liger's."""
    logits, targets, weight = rng.standard_normal((4, 5)), np.array([1, -100, 0, 3]), rng.random(5)
    squares = np.log(np.exp(logits).sum(-1)) ** 2
    mean = references.cross_entropy(logits, targets, weight) + 0.2 * squares[[0, 2, 3]].mean()
    for call in (references.cross_entropy, tp.cross_entropy, tp.cross_entropy.generic):
        close(call(logits, targets, weight, z_loss=0.2), mean, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_go_with_float32_weights_and_probabilities(library, dtype, rng):
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    logits = support.normal(rng, 3, 7, dtype=dtype)
    weight = rng.random(7).astype(np.float32)
    for targets in (np.array([1, -100, 6]), rng.dirichlet(np.ones(7), 3).astype(np.float32)):
        expected = REFERENCES["cross_entropy"](logits, targets, weight)
        x, t, w = support.there((logits, targets, weight), library.name)
        for call in (tp.cross_entropy, tp.cross_entropy.generic):
            y = support.back(call(x, t, w))
            assert y.dtype == logits.dtype
            assert_matches(y, expected, dtype, tolerance=2)


def test_what_a_mistaken_target_is_told(rng):
    logits = rng.standard_normal((3, 5))
    with pytest.raises(ValueError, match=r"targets has the index 5, outside 0 … 4"):
        tp.cross_entropy(logits, np.array([0, 5, 1]), np.ones(5))
    with pytest.raises(ValueError, match=r"targets has shape \(3, 4\).*expected \(3, 5\) for probabilities"):
        tp.cross_entropy(logits, rng.random((3, 4)))
    with pytest.raises(ValueError, match=r"weight has shape \(4,\), but there are 5 classes"):
        tp.cross_entropy(logits, np.array([0, 2, 1]), np.ones(4))
    with pytest.raises(ValueError, match=r"z_loss is -0.1, expected 0 or more"):
        tp.cross_entropy(logits, np.array([0, 2, 1]), z_loss=-0.1)
