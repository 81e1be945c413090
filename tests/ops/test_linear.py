"""Products with matrices and rows of tables: the references by hand, and ids of every dtype in every library."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import support
import tensorops as tp
from tensorops._dtypes import INTEGER
from tensorops.testing import DTYPES, assert_matches, linear as references


def test_linear_and_embedding_by_hand():
    weight = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert_array_equal(references.linear([1.0, -1.0], weight), [-1.0, -1.0, -1.0])
    assert_array_equal(references.linear([[1.0, 0.5]], weight, [10.0, 20.0, 30.0]), [[12.0, 25.0, 38.0]])
    assert_array_equal(references.embedding([[2, 0]], weight), [[[5.0, 6.0], [1.0, 2.0]]])


# --- gated_linear_unit -------------------------------------------------------------------------------


def test_gated_units_by_hand():
    x, gate_weight, up_weight = [2.0, 1.0], [[1.0, -4.0], [0.5, 0.0]], [[3.0, 0.0], [0.0, 5.0]]  # gates -2 and 1
    expected = {
        "swiglu": [-12 / (1 + np.exp(2.0)), 5 / (1 + np.exp(-1.0))],
        "geglu": [-0.2730015834, 4.2067237303],
        "geglu_tanh": [-0.2724138355, 4.2059599530],
        "reglu": [0.0, 5.0],
        "glu": [6 / (1 + np.exp(2.0)), 5 / (1 + np.exp(-1.0))],
    }
    for unit, y in expected.items():
        assert_allclose(references.gated_linear_unit(x, gate_weight, up_weight, activation=unit), y, rtol=1e-9)


def gated(rng, dtype):
    shapes = ((6, 40), (24, 40), (24, 40))
    return [(0.5 * rng.standard_normal(shape)).astype(DTYPES[dtype]) for shape in shapes]


@pytest.mark.costly(4)
@pytest.mark.parametrize("unit", references.GATED_UNITS)
@pytest.mark.parametrize("dtype", support.HALVES)
def test_gated_units_round_once(library, dtype, unit, rng):
    """With both products rounded before, errors would be several times as large."""
    if dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    args = gated(rng, dtype)
    expected = references.gated_linear_unit(*args, activation=unit)
    there = [support.there(a, library.name) for a in args]
    for call in (tp.gated_linear_unit, tp.gated_linear_unit.generic):
        y = support.back(call(*there, activation=unit))
        assert_matches(y, expected, dtype, tolerance=0.55, scale_axis=())


@pytest.mark.parametrize(("unit", "steps"), [("swiglu", ["swiglu"]), ("geglu_tanh", ["gelu"]), ("glu", ["sigmoid"])])
def test_steps_of_a_gated_linear_unit_choose_their_kernels(unit, steps, rng):
    support.require_provider("cpu")
    args = gated(rng, "bfloat16")  # beside a float32 matrix, BLAS would compute `linear`
    explanation = tp.gated_linear_unit.explain(*args, activation=unit)
    assert explanation.kernel == "generic"
    assert set(explanation.calls) >= {"linear", *steps}
    with tp.trace() as log:
        tp.gated_linear_unit(*args, activation=unit)
    expected = [(step, "cpu", "float32") for step in ("linear", "linear", *steps)]
    assert [(r.operator, r.kernel, r.dtypes[0]) for r in log[:-1]] == expected
    assert (log[-1].operator, log[-1].kernel) == ("gated_linear_unit", "generic")
    with tp.trace() as log:
        tp.gated_linear_unit.generic(*args, activation=unit)
    assert {record.kernel for record in log} == {"generic"}


def test_float64_matrices_are_not_rounded_between(rng):
    x, gate_weight, up_weight = gated(rng, "float32")
    gate_weight = gate_weight.astype(np.float64) + 1e-9
    y = tp.gated_linear_unit(x, gate_weight, up_weight)
    assert_matches(y, references.gated_linear_unit(x, gate_weight, up_weight), "float32", tolerance=0.51, scale_axis=())


# --- embedding ---------------------------------------------------------------------------------------


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
