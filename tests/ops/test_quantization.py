"""Quantized weights: the references against closed forms, numbers worked out by hand and other libraries."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import tensorops as tp
from support import close, dtypes_of, holding
from tensorops.testing import DTYPES, quantization as references


def test_affine_quantization_by_hand():
    w = np.array([[-1.0, -1.0 + 3.4, 5.0, 14.0, 7.0, 7.0, 7.0, 7.0]])
    packed, scales, biases = references.quantize(w, bits=4, group_size=4)
    assert packed.dtype == np.uint8
    assert_array_equal(packed, [[3 << 4 | 0, 15 << 4 | 6, 0, 0]])  # codes 0 3 6 15, low nibble first
    assert_array_equal(scales, [[1.0, 0.0]])
    assert_array_equal(biases, [[-1.0, 7.0]])
    assert_array_equal(
        references.dequantize(packed, scales, biases, bits=4, group_size=4), [[-1, 2, 5, 14, 7, 7, 7, 7]]
    )
    packed, scales, biases = references.quantize([[0.0, 1.5, 2.5, 255.0]], bits=8, group_size=4)
    assert_array_equal(packed, [[0, 2, 2, 255]])  # ties to even
    assert_array_equal([scales, biases], [[[1.0]], [[0.0]]])


def test_symmetric_quantization_by_hand():
    w = [[-254.0, 127.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.0]]
    packed, scales, biases = references.quantize(w, bits=8, group_size=4, mode="symmetric")
    assert biases is None
    assert packed.dtype == np.uint8
    assert_array_equal(packed, [[256 - 127, 64, 0, 2, 0, 0, 0, 0]])  # -127 63.5 0.5 1.5, ties to even
    assert_array_equal(scales, [[2.0, 0.0]])
    for mode in ("affine", "symmetric"):
        decoded = references.dequantize(packed, scales, bits=8, group_size=4, mode=mode)
        assert_array_equal(decoded, [[-254.0, 128.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantization_is_within_half_a_step(rng, bits, mode):
    w = rng.standard_normal((5, 96))
    packed, scales, biases = references.quantize(w, bits=bits, group_size=32, mode=mode)
    assert packed.shape == (5, 96 * bits // 8)
    decoded = references.dequantize(packed, scales, biases, bits=bits, group_size=32, mode=mode)
    steps = np.abs(decoded - w) / np.repeat(scales, 32, axis=1)
    assert steps.max() <= 0.5 + 1e-12
    assert steps.max() > 0.4  # 480 weights: finer steps than promised would show here
    x = rng.standard_normal((3, 96))
    y = references.quantized_linear(x, packed, scales, biases, bits=bits, group_size=32)
    close(y, np.einsum("bi,oi->bo", x, decoded), rtol=1e-11)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_packing_is_that_of_mlx(rng, bits):
    mx = pytest.importorskip("mlx.core")
    w = rng.standard_normal((7, 64)).astype(np.float32)
    packed, scales, biases = references.quantize(w, bits=bits, group_size=32)
    words = mx.array(packed.view(np.uint32))
    parameters = [mx.array(p.astype(np.float32)) for p in (scales, biases)]
    decoded = np.array(mx.dequantize(words, *parameters, group_size=32, bits=bits))
    close(decoded, references.dequantize(packed, scales, biases, bits=bits), rtol=0, atol=1e-6)


def test_quantization_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="bits=8"):
        references.quantize(np.ones((1, 32)), bits=4, group_size=32, mode="symmetric")
    with pytest.raises(ValueError, match="bits is 3"):
        references.quantize(np.ones((1, 32)), bits=3, group_size=32)
    with pytest.raises(ValueError, match="mode is 'other'"):
        references.quantize(np.ones((1, 32)), bits=4, group_size=32, mode="other")
    with pytest.raises(ValueError, match="biases is None"):
        references.dequantize(np.ones((1, 16), dtype=np.uint8), np.ones((1, 1)))
    with pytest.raises(ValueError, match="biases are given"):
        references.dequantize(np.ones((1, 32), dtype=np.uint8), [[1.0]], [[1.0]], bits=8, mode="symmetric")


@pytest.mark.costly(3)
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_integers_of_halves_are_for_the_scale_that_is_stored(library, dtype, bits, mode, rng):
    """Whatever the weights' size: a rounded scale must reach the largest element, and 0 only a group of equal ones."""
    if dtype not in dtypes_of(library.name):
        pytest.skip(f"{library.name} has no {dtype}")
    sizes = np.repeat([1.0, 1e-4, 2e-5, 2e-6, 1e-7] if dtype == "float16" else [1.0, 1e-4, 1e-30, 3e38], 8)
    w = (sizes[:, None] * rng.uniform(-1, 1, (sizes.size, 64))).astype(DTYPES[dtype])
    exact = w.astype(np.float64).reshape(-1, 2, 32)
    low = exact.min(-1) if mode == "affine" else 0.0
    spread = exact.max(-1) - low if mode == "affine" else np.abs(exact).max(-1)
    ideal = spread / (2**bits - 1 if mode == "affine" else 127)
    with holding(library.name, dtype):
        for run in (tp.quantize, tp.quantize.generic):
            found = run(library.from_numpy(w, None), bits=bits, group_size=32, mode=mode)
            packed, scales, biases = (None if a is None else library.to_numpy(a) for a in found)
            decoded = references.dequantize(packed, scales, biases, bits=bits, group_size=32)
            scales = scales.astype(np.float64)
            off = np.abs(decoded.reshape(exact.shape) - exact).max(-1)
            assert (off <= 0.501 * scales + 1e-3 * ideal).all(), (off / scales).max()
            spacing = 2.0**-7 * ideal if dtype == "bfloat16" else np.maximum(2.0**-10 * ideal, 2.0**-24)
            assert (scales <= ideal + 1.01 * spacing).all()
