"""Products with matrices and rows of tables: the references by hand, and ids of every dtype in every library."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.testing import linear as references


def test_linear_and_embedding_by_hand():
    weight = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert_array_equal(references.linear([1.0, -1.0], weight), [-1.0, -1.0, -1.0])
    assert_array_equal(references.linear([[1.0, 0.5]], weight, [10.0, 20.0, 30.0]), [[12.0, 25.0, 38.0]])
    assert_array_equal(references.embedding([[2, 0]], weight), [[[5.0, 6.0], [1.0, 2.0]]])


NUMBERS = np.array([[0, 3, 1], [2, 2, 5]])


@pytest.mark.parametrize("dtype", INTEGER)
def test_embedding_takes_ids_of_every_dtype(library, dtype, rng):
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    ids, w = support.integers_there(NUMBERS, dtype, library), support.there(weight, library.name)
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
