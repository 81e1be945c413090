"""Formats of quantized numbers, against the package `gguf` bit by bit."""

import importlib.metadata

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import formats
from tensorops.libraries import LIBRARIES
from tensorops.testing import REFERENCES

gguf = pytest.importorskip("gguf")

FACTORS = {  # where blocks have float16: one factor, or also that of minima
    "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": (), "nvfp4": (), "q2_k": (80, 82), "q3_k": (108,), "q4_0": (0,),
    "q4_1": (0, 2), "q4_k": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q8_0": (0,),
}  # fmt: skip


def random_blocks(name, rows, blocks, seed=0):
    """Random bytes, but that scales are finite."""
    rng, of = np.random.default_rng(seed), formats.get(name)
    stored = rng.integers(0, 256, (rows, blocks, of.nbytes), dtype=np.uint8)
    for start in FACTORS[name]:
        stored[..., start + 1] &= 0xBF  # the largest exponent would be NaN or infinite
    if name == "mxfp4":
        stored[..., 0] = rng.integers(8, 250, (rows, blocks))  # libraries differ in numbers smaller than the normal
    return stored.reshape(rows, -1)


def expected(name, stored):
    return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name.upper()])


def test_there_is_a_format_for_each_name():
    assert set(FACTORS) == set(formats.names())
    for name in FACTORS:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
        assert (formats.get(name).name, (formats.get(name).elements, formats.get(name).nbytes)) == (name, sizes)


@pytest.mark.parametrize("library", [row.name for row in LIBRARIES.values() if not row.missing])
@pytest.mark.parametrize("name", FACTORS)
def test_numbers_are_those_of_gguf(name, library):
    support.require(library)
    stored = random_blocks(name, 5, 3)
    with support.holding(library, "float32"):
        given = support.there(stored, library)
        xp = tp.get_namespace(given)
        values = support.back(formats.get(name).values(xp, given))
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values.view(np.uint32), expected(name, stored).view(np.uint32))
        found = formats.get(name).affine(xp, given)
        assert found.group_size == formats.get(name).group_size
        weight, scales, biases = (None if x is None else support.back(x) for x in found[:3])
    decoded = REFERENCES["dequantize"](weight, scales, biases, bits=found.bits, group_size=found.group_size)
    np.testing.assert_array_equal(decoded.astype(np.float32), values)  # one rounding, as float64 holds each step


@pytest.mark.parametrize("name", FACTORS)
def test_every_byte_everywhere(name):
    """In many blocks, scales that are infinite, NaN or subnormal included."""
    stored = np.random.default_rng(1).integers(0, 256, (64, 40 * formats.get(name).nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours, theirs = formats.get(name).values(np, stored), expected(name, stored)
    assert (np.isnan(ours) == np.isnan(theirs)).all()
    are_numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[are_numbers].view(np.uint32), theirs[are_numbers].view(np.uint32))


@pytest.mark.parametrize("name", FACTORS)
def test_products_of_the_affine_form(name):
    """By the compiled kernel, as accurate as float32."""
    support.require_provider("cpu")
    rng, of = np.random.default_rng(2), formats.get(name)
    stored = random_blocks(name, 17, 2048 // of.elements)
    for start in FACTORS[name]:  # factors of one size, so that no block hides the others
        blocks = stored.reshape(17, -1, of.nbytes)
        blocks[..., start : start + 2] = np.asarray([0x1F, 0x21], dtype=np.uint8)
    if name == "mxfp4":
        stored.reshape(17, -1, of.nbytes)[..., 0] = 120
    x = rng.standard_normal((3, 2048), dtype=np.float32)
    *arrays, bits, group_size = of.affine(np, stored)
    with tp.trace() as log:
        y = tp.quantized_linear(x, *arrays, bits=bits, group_size=group_size)
    assert [call.kernel for call in log] == ["cpu"]
    exact = x.astype(np.float64) @ expected(name, stored).astype(np.float64).T
    assert np.abs(y - exact).max() <= 1e-6 * np.abs(exact).max()


def test_what_is_no_format():
    with pytest.raises(ValueError, match=r"^there is no format 'q4_kk' \(did you mean 'q4_k'\?\)"):
        formats.get("q4_kk")


def test_a_format_of_another_package(monkeypatch):
    class Entry:
        name = "bytes"

        @staticmethod
        def load():
            def unpack(xp, blocks):
                codes = blocks[..., 1:]
                return formats.Groups(
                    codes, xp.astype(blocks[..., :1], xp.float32), xp.zeros_like(codes[..., :1]) * 1.0
                )

            return formats.Format("bytes", elements=2, nbytes=3, group_size=2, bits=8, unpack=unpack)

    found = {"tensorops.formats": [Entry]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found.get(group, []))
    assert "bytes" in formats.names()
    values = formats.get("bytes").values(np, np.asarray([[2, 1, 3, 10, 0, 4]], dtype=np.uint8))
    np.testing.assert_array_equal(values, [[2.0, 6.0, 0.0, 40.0]])
    formats.get.cache_clear()
