"""Positional encodings: the references against closed forms, numbers worked out by hand and other libraries."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from support import close
from tensorops.libraries import has_host_values
from tensorops.testing import assert_matches, positional as references


def test_rope_turns_a_quarter():
    x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    quarter = [math.pi / 2]
    turned = references.rope(x, quarter, freqs=[1.0, 0.0])
    close(turned, [[[[-3.0, 2.0, 1.0, 4.0]]]])  # (1, 3) turns, (2, 4) stays
    turned = references.rope(x, quarter, freqs=[1.0, 0.0], interleaved=True)
    close(turned, [[[[-2.0, 1.0, 3.0, 4.0]]]])  # (1, 2) turns, (3, 4) stays


def test_rope_is_a_complex_multiplication(rng):
    x, positions = rng.standard_normal((2, 3, 5, 8)), np.array([0, 1, 2, 7, -3])
    turn = np.exp(1j * positions[:, None] * np.array([1.0, 0.1, 0.01, 0.001]))  # 10000 ** (-2 i / 8)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    expected = np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
    close(references.rope(x, positions, interleaved=True), expected, atol=1e-14)
    z = (x[..., :4] + 1j * x[..., 4:]) * turn
    close(references.rope(x, positions), np.concatenate([z.real, z.imag], axis=-1), atol=1e-14)


def test_rope_scores_depend_on_the_distance_alone(rng):
    q, k = rng.standard_normal((2, 1, 1, 1, 16))

    def score(m, n):
        return np.sum(references.rope(q, [m]) * references.rope(k, [n]))

    close(score(5, 3), score(1002, 1000), rtol=1e-10)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


def test_rope_leaves_features_beyond_dims(rng):
    x = rng.standard_normal((1, 2, 5, 9))
    for interleaved in (False, True):
        y = references.rope(x, np.arange(5), dims=4, base=100.0, interleaved=interleaved)
        assert_array_equal(y[..., 4:], x[..., 4:])
        alone = references.rope(x[..., :4], np.arange(5), freqs=[1.0, 0.1], interleaved=interleaved)
        close(y[..., :4], alone, rtol=1e-13)


def test_rope_takes_positions_per_batch(rng):
    x, positions = rng.standard_normal((2, 3, 4, 6)), np.array([[0, 1, 2, 3], [9, 5, 1, 0]])
    y = references.rope(x, positions)
    assert_array_equal(y[0, :, 0], x[0, :, 0])
    assert_array_equal(y[1, :, 3], x[1, :, 3])
    for b in range(2):
        for h in range(3):
            assert_array_equal(y[b, h], references.rope(x[b, h][None], positions[b])[0])


# --- tables ------------------------------------------------------------------------------------------


def test_rope_by_tables_is_rope_by_angles(rng):
    x, positions = rng.standard_normal((2, 3, 5, 8)), np.array([0, 1, 2, 7, 3])
    angles = np.arange(9)[:, None] * np.array([1.0, 0.1, 0.01, 0.001])
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    close(references.rope(x, positions, **tables), references.rope(x, positions), rtol=1e-13)
    gathered = {name: table[positions] for name, table in tables.items()}
    close(references.rope(x, **gathered), references.rope(x, positions), rtol=1e-13)


def onnx_rotary_embedding(x, cos_cache, sin_cache, position_ids=None, *, interleaved=0, rotary_embedding_dim=0):
    """The function body of ONNX's operator RotaryEmbedding-23 for 4D input, (batch, heads, seq, head_size)."""
    dims = rotary_embedding_dim or x.shape[-1]
    cos, sin = (cos_cache, sin_cache) if position_ids is None else (cos_cache[position_ids], sin_cache[position_ids])
    cos, sin = cos[:, None], sin[:, None]
    rotated, kept = x[..., :dims], x[..., dims:]
    x1, x2 = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else np.split(rotated, 2, axis=-1)
    real, imaginary = cos * x1 - sin * x2, sin * x1 + cos * x2
    if interleaved:
        y = np.stack([real, imaginary], axis=-1).reshape(rotated.shape)
    else:
        y = np.concatenate([real, imaginary], axis=-1)
    return np.concatenate([y, kept], axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [8, 6])
def test_rope_is_onnx_rotary_embedding(interleaved, dims, rng):
    x, cos, sin = rng.standard_normal((2, 3, 5, 8)), *rng.standard_normal((2, 11, dims // 2))
    ids = rng.integers(0, 11, (2, 5))
    expected = onnx_rotary_embedding(x, cos, sin, ids, interleaved=interleaved, rotary_embedding_dim=dims)
    close(tp.rope(x, ids, cos=cos, sin=sin, interleaved=interleaved, dims=dims), expected, rtol=1e-13, atol=1e-14)
    expected = onnx_rotary_embedding(x, cos[ids], sin[ids], interleaved=interleaved, rotary_embedding_dim=dims)
    given = tp.rope(x, cos=cos[ids], sin=sin[ids], interleaved=interleaved, dims=dims)
    close(given, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_rotate_back_from_positions_of_any_integers(name, dtype, rng):
    """Which are not negated: there are no negative ones, or none for the smallest."""
    support.require(name)
    positions = np.asarray([np.iinfo(dtype).min, 1, 3], dtype)
    x, dy, ddx = rng.standard_normal((3, 1, 2, 3, 4))
    back = references.rope(dy, -positions.astype(np.float64))
    with support.holding(name, "float64"):
        at, *given = support.there((positions, x, dy, ddx), name)
        if name == "torch":
            import torch

            moving, cotangent = (a.requires_grad_() for a in given[:2])
            (dx,) = torch.autograd.grad(tp.rope(moving, at), moving, cotangent, create_graph=True)
            (forth,) = torch.autograd.grad(dx, cotangent, given[2])
            dx = dx.detach()
        else:
            import jax

            (dx,) = jax.vjp(lambda a: tp.rope(a, at), given[0])[1](given[1])
            derivative = jax.vjp(lambda b: jax.vjp(lambda a: tp.rope(a, at), given[0])[1](b)[0], given[1])[1]
            (forth,) = derivative(given[2])
        close(support.back(dx), back, rtol=1e-13, atol=1e-14)
        close(support.back(forth), references.rope(ddx, positions), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("of_tables", ["float16", "float32", "float64"])
def test_tables_may_have_another_dtype_than_x(library, dtype, of_tables, rng):
    if not {dtype, of_tables} <= set(support.dtypes_of(library.name)):
        pytest.skip(f"{library.name} holds not both")
    x, positions = rng.standard_normal((2, 3, 5, 8)).astype(dtype), np.array([4, 0, 1, 6, 6])
    tables = {name: rng.standard_normal((7, 4)).astype(of_tables) for name in ("cos", "sin")}
    with support.holding(library.name, of_tables):
        (there, at), options = support.there(((x, positions), tables), library.name)
        for call in (tp.rope, tp.rope.generic):
            y = support.back(call(there, at, **options))
            assert y.dtype == x.dtype
            assert_matches(y, references.rope(x, positions, **tables), dtype, tolerance=4, scale_axis=-1)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_positions_outside_the_tables_are_refused(library, wrong, rng):
    """By the kernels and by the body, where values are in host memory."""
    args, tables = support.there(((np.ones((1, 3, 8), np.float32), np.array([0, wrong, 1])), {
        "cos": np.ones((7, 4), np.float32), "sin": np.ones((7, 4), np.float32)}), library.name)  # fmt: skip
    if not has_host_values(args[1]):
        pytest.skip(f"{library.name}'s values are not read")
    for call in (tp.rope, tp.rope.generic):
        with pytest.raises(ValueError, match=rf"^rope: positions has the index {wrong}, outside 0 … 6$"):
            call(*args, **tables)


def test_the_dtypes_of_tables_must_agree():
    x, table = np.ones((1, 3, 8)), np.ones((3, 4))
    with pytest.raises(TypeError, match=r"^rope: sin has dtype float32, but cos has float64$"):
        tp.rope(x, np.arange(3), cos=table, sin=table.astype(np.float32))
