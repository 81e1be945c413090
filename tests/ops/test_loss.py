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
