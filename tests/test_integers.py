"""Integers of every dtype are integers: the same results on every library, from kernels and bodies."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.libraries import LIBRARIES
from tensorops.testing import REFERENCES, assert_matches

NUMBERS = np.array([[0, 3, 1], [2, 2, 5]])


def integers_there(values, dtype, row):
    """Take integers to a library in a dtype, or skip the test: not every library holds all, or all of them here."""
    there = support.there(values.astype(dtype), row.name)
    if str(there.dtype).rpartition(".")[2] != dtype:
        pytest.skip(f"{row.name} holds no {dtype} here")
    return there


@pytest.mark.parametrize("dtype", INTEGER)
def test_embedding_takes_ids_of_every_dtype(library, dtype, rng):
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    ids, w = integers_there(NUMBERS, dtype, library), support.there(weight, library.name)
    for call in (tp.embedding, tp.embedding.generic):
        np.testing.assert_array_equal(support.back(call(ids, w)), weight[NUMBERS])


@pytest.mark.parametrize("dtype", INTEGER)
@pytest.mark.parametrize("kind", ["requires grad", "transposed", "every other column"])
def test_embedding_of_torch_weights_that_no_kernel_reads(kind, dtype, rng):
    support.require("torch")
    import torch

    made = torch.tensor(rng.standard_normal((6, 6)).astype(np.float32))
    weight = {"transposed": made.T, "every other column": made[:, ::2]}.get(kind, made)
    weight.requires_grad_(kind == "requires grad")
    ids = torch.tensor(NUMBERS).to(getattr(torch, dtype))
    y = tp.embedding.generic(ids, weight)
    np.testing.assert_array_equal(tp.embedding(ids, weight).detach(), y.detach())
    np.testing.assert_array_equal(y.detach(), weight.detach().numpy()[NUMBERS])
    if weight.requires_grad:
        (gradient,) = torch.autograd.grad(y.sum(), made)
        counts = np.bincount(NUMBERS.ravel(), minlength=6)
        np.testing.assert_array_equal(gradient.numpy(), np.tile(counts[:, None], 6))


@pytest.mark.parametrize("options", [{}, {"ignore_index": 2}, {"ignore_index": -1, "reduction": "none"}], ids=str)
@pytest.mark.parametrize("dtype", INTEGER)
def test_cross_entropy_takes_targets_of_every_dtype(library, dtype, options, rng):
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    targets, x = integers_there(NUMBERS, dtype, library), support.there(logits, library.name)
    expected = REFERENCES["cross_entropy"](logits, NUMBERS, **options)
    for call in (tp.cross_entropy, tp.cross_entropy.generic):
        assert_matches(support.back(call(x, targets, **options)), expected, "float32", tolerance=16)


@pytest.mark.parametrize("dtype", INTEGER)
def test_a_target_to_be_ignored_may_be_any_number_of_its_dtype(library, dtype, rng):
    """The largest and the smallest number of the dtype, which are no classes."""
    logits = rng.standard_normal((2, 3, 6)).astype(np.float32)
    x = support.there(logits, library.name)
    limits = np.iinfo(dtype)
    for ignored in {limits.max, limits.min if limits.min else limits.max}:
        some = NUMBERS.astype(dtype)
        some[0, 1] = ignored
        if library.name == "jax" and dtype.endswith("64"):
            pytest.skip("jax holds no such numbers here")
        targets = integers_there(some, dtype, library)
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
