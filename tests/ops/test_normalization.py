"""Norms: the references against closed forms, numbers worked out by hand and other libraries."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tensorops as tp
from support import close, to_torch
from tensorops.testing import normalization as references


def test_rms_norm_by_hand():
    x = [[3.0, 4.0], [-6.0, 8.0]]  # mean squares 12.5 and 50
    close(references.rms_norm(x, eps=0.0), [[3 / 12.5**0.5, 4 / 12.5**0.5], [-6 / 50**0.5, 8 / 50**0.5]])
    close(references.rms_norm(x, [2.0, -1.0], 3.5), [[6 / 4, -4 / 4], [-12 / 53.5**0.5, -8 / 53.5**0.5]])
    close(
        references.rms_norm(x, [1.0, -2.0], 3.5, weight_offset=1.0),
        [[6 / 4, -4 / 4], [-12 / 53.5**0.5, -8 / 53.5**0.5]],
    )
    close(references.rms_norm([[0.0, 0.0]]), [[0.0, 0.0]])


def test_rms_norm_takes_any_axis(rng):
    x, weight = rng.standard_normal((2, 5, 3)), rng.standard_normal(5)
    expected = np.empty_like(x)
    for i in range(2):
        for j in range(3):
            column = x[i, :, j]
            expected[i, :, j] = column / math.sqrt(math.fsum(column**2) / 5 + 1e-6) * weight
    close(references.rms_norm(x, weight, axis=1), expected)
    close(references.rms_norm(x, weight, axis=-2), expected)


@pytest.mark.parametrize("size", [1e30, 1e200, 1e300])
def test_norms_of_huge_values_do_not_overflow(size):
    close(references.rms_norm(np.array([3.0, 4.0]) * size), [3 / 12.5**0.5, 4 / 12.5**0.5])
    close(references.layer_norm(np.array([1.0, 2.0, 3.0]) * size), [-(1.5**0.5), 0.0, 1.5**0.5], atol=1e-14)


def test_norms_of_tiny_values_do_not_underflow():
    close(references.rms_norm([3e-200, 4e-200], eps=0.0), [3 / 12.5**0.5, 4 / 12.5**0.5])
    close(references.rms_norm([3e-200, 4e-200], eps=1e-6), [3e-197, 4e-197])


def test_add_rms_norm_by_hand():
    y, residual = references.add_rms_norm([[1.0, 1.0]], [[2.0, 3.0]], [1.0, 2.0], 0.0)
    assert_array_equal(residual, [[3.0, 4.0]])
    close(y, [[3 / 12.5**0.5, 8 / 12.5**0.5]])


def test_layer_norm_by_hand():
    x = [[1.0, 2.0, 3.0]]  # population variance 2/3
    root = math.sqrt(1.5)
    close(references.layer_norm(x, eps=0.0), [[-root, 0.0, root]], atol=1e-16)
    close(references.layer_norm(x, [2, 2, 4], [1, 1, 1], 0.0), [[1 - 2 * root, 1, 1 + 4 * root]])
    close(references.layer_norm(x, None, [1, 1, 1], 1 / 3), [[0.0, 1.0, 2.0]], atol=1e-15)


def test_layer_norm_over_several_axes_is_that_of_the_flattened_axes(rng):
    x, weight, bias = (rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((3, 5)), rng.standard_normal((3, 5)))
    flat = references.layer_norm(np.moveaxis(x, 2, 1).reshape(2, 4, 15), weight.ravel(), bias.ravel())
    expected = np.moveaxis(flat.reshape(2, 4, 3, 5), 1, 2)
    for axis in [(1, 3), (3, 1), (-1, 1), (-3, -1)]:
        close(references.layer_norm(x, weight, bias, axis=axis), expected)


@pytest.mark.parametrize("axis", [-1, (-2, -1)])
def test_norms_agree_with_torch(rng, axis):
    torch = pytest.importorskip("torch")
    shape = (5,) if axis == -1 else (4, 5)
    x, weight, bias = rng.standard_normal((3, 4, 5)), rng.standard_normal(shape), rng.standard_normal(shape)
    functional = torch.nn.functional
    tx, tw, tb = to_torch(torch, x, weight, bias)
    expected = functional.layer_norm(tx, shape, tw, tb, 1e-5).numpy()
    close(references.layer_norm(x, weight, bias, axis=axis), expected, rtol=1e-12)
    if axis == -1:
        close(references.rms_norm(x, weight), functional.rms_norm(tx, shape, tw, 1e-6).numpy(), rtol=1e-12)


@pytest.mark.costly(4)
@pytest.mark.parametrize("along", [(256,), (1000,), (5000,), (100, 100, 20), (64, 64, 64)], ids=str)
def test_equal_elements_become_zeros(library, along):
    """What rounding leaves of their mean is divided by the root of eps; no axis needs to be long for that."""
    axes = tuple(range(1, len(along) + 1))
    x = library.from_numpy(np.full((2, *along), 1234.1, np.float32), None)
    channels = library.from_numpy(np.full((1, 4, *along), 1234.1, np.float32), None)
    for y in (
        tp.layer_norm.generic(x, axis=axes),
        tp.group_norm.generic(channels, 2),
        tp.instance_norm.generic(channels),
        tp.layer_norm(x, axis=axes),
        tp.group_norm(channels, 2),
        tp.instance_norm(channels),
    ):
        assert np.abs(library.to_numpy(y)).max() < 1e-3
