"""Formats of quantized numbers, against the packages `gguf` and `ml_dtypes` bit by bit."""

import functools
import importlib.metadata

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import formats
from tensorops.kernels.cpu import _native
from tensorops.libraries import LIBRARIES
from tensorops.testing import REFERENCES

gguf = pytest.importorskip("gguf")

FACTORS = {  # where blocks have float16: one factor, or also that of minima
    "iq4_nl": (0,), "iq4_xs": (0,), "mxfp4": (), "nvfp4": (), "q2_k": (80, 82), "q3_k": (108,), "q4_0": (0,),
    "q4_1": (0, 2), "q4_k": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q8_0": (0,),
}  # fmt: skip


WRITTEN = ("mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")  # those that gguf writes
FP8 = {"fp8_e4m3": (ml_dtypes.float8_e4m3fn, 448), "fp8_e5m2": (ml_dtypes.float8_e5m2, 57344)}
INSTALLED = [row.name for row in LIBRARIES.values() if not row.missing]


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
    assert {*FACTORS, *FP8, "sparse_2_4"} == set(formats.names())
    for name in FACTORS:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]
        assert (formats.get(name).name, (formats.get(name).elements, formats.get(name).nbytes)) == (name, sizes)


@pytest.mark.parametrize("library", INSTALLED)
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


@functools.cache
def numbers(columns=256):
    """Of any size, on and next to halves between two integers and powers of two, equal ones, and zeros."""
    rng, shape = np.random.default_rng(3), (20, columns)
    random, signs = rng.standard_normal(shape), rng.choice([-1.0, 1.0], shape)
    halves = rng.integers(-254, 255, shape) / 2.0
    halves[:, ::32] = rng.choice([-8.0, 7.5, 16.0, -127.0], (20, columns // 32))
    powers = 2.0 ** rng.integers(-40, 16, (60, columns)) * (1.0 + np.arange(-30, 30)[:, None] * 2.0**-24)
    exponents = rng.integers(-30, 6, (20, 1)).astype(np.float64)
    parts = (
        random * 10.0**exponents,
        halves,
        halves / 7.0,
        signs,
        powers,
        random * 1e-7,
        0.0 * np.abs(random) * signs[:, :1],
        3.5 + 0.0 * random,
    )
    return np.concatenate(parts).astype(np.float32)


def written(name, w, run=tp.quantize):
    blocks, scales, biases = run(w, format=name)
    assert scales is None
    assert biases is None
    return blocks


@pytest.mark.parametrize("library", INSTALLED)
@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_are_those_of_gguf(name, library):
    support.require(library)
    expected = gguf.quants.quantize(numbers(), gguf.GGMLQuantizationType[name.upper()])
    with support.holding(library, "float32"):
        blocks = support.back(written(name, support.there(numbers(), library)))
    assert blocks.dtype == np.uint8
    np.testing.assert_array_equal(blocks, expected)


@pytest.mark.parametrize("name", [*WRITTEN, *FP8])
def test_blocks_are_the_same_when_operations_are_compiled_together(name):
    support.require("jax")
    import jax

    blocks = jax.jit(lambda w: written(name, w))(numbers())
    np.testing.assert_array_equal(np.asarray(blocks), written(name, numbers()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_those_numbers_in_float32(dtype):
    w = np.random.default_rng(4).standard_normal((3, 64)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for name in WRITTEN:
        np.testing.assert_array_equal(written(name, w), written(name, w.astype(np.float32)))


@pytest.mark.parametrize("library", INSTALLED)
@pytest.mark.parametrize("name", FP8)
def test_eight_bits_are_those_of_ml_dtypes(name, library):
    support.require(library)
    dtype, largest = FP8[name]
    groups = numbers().reshape(-1, 2, 128)
    scales = np.abs(groups).max(-1, keepdims=True) / np.float32(largest)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.clip(groups * inverse, -largest, largest).astype(dtype)
    expected = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=-1).reshape(len(groups), -1)
    with support.holding(library, "float32"):
        blocks = support.back(written(name, support.there(numbers(), library)))
        values = support.back(tp.dequantize(support.there(blocks, library), format=name))
    np.testing.assert_array_equal(blocks, expected)
    np.testing.assert_array_equal(values, (codes.astype(np.float32) * scales).reshape(values.shape))


@pytest.mark.parametrize("library", INSTALLED)
@pytest.mark.parametrize("name", FP8)
def test_eight_bits_with_scales_as_in_folders(name, library):
    """Every number, NaN and infinities included; for all, by rows, and by blocks, of which the last has fewer rows."""
    support.require(library)
    rng = np.random.default_rng(5)
    bits = np.concatenate([np.arange(256), rng.integers(0, 256, 128 * 598)]).astype(np.uint8).reshape(200, 384)
    exact = bits.view(FP8[name][0]).astype(np.float32)
    for shape in ((), (1,), (200,), (200, 1), (2, 3)):
        scales = rng.uniform(1e-3, 1e3, shape).astype(np.float32)
        each = scales.reshape(-1, 1) if shape != (2, 3) else scales.repeat(128, 0)[:200].repeat(128, 1)
        with support.holding(library, "float32"):
            given, factors = support.there((bits, np.asarray(scales)), library)
            xp = tp.get_namespace(given)
            blocks = formats.fp8_blocks(xp, *(xp.asarray(x) for x in (given, factors)))
            values = support.back(tp.dequantize.generic(blocks, format=name))
        np.testing.assert_array_equal(values, exact * each)


@pytest.mark.parametrize(
    ("weight", "scales", "error", "message"),
    [
        (np.zeros((2, 128), np.float32), np.ones(1), TypeError, "weight has dtype float32, expected uint8"),
        (np.zeros((2, 100), np.uint8), np.ones(1), ValueError, "128 dividing in"),
        (np.zeros((2, 128), np.uint8), np.ones(3), ValueError, r"scales has shape \(3,\), which is not one for all"),
    ],
)
def test_scales_that_do_not_fit(weight, scales, error, message):
    with pytest.raises(error, match=f"^fp8_blocks: .*{message}"):
        formats.fp8_blocks(np, weight, scales)


def largest_two(w):
    fours = w.reshape(-1, 4)
    others = np.argsort(-np.abs(fours), axis=1, kind="stable")[:, 2:]
    kept = fours.copy()
    np.put_along_axis(kept, others, 0.0, axis=1)
    return kept.reshape(w.shape)


@pytest.mark.parametrize("library", INSTALLED)
def test_two_of_four_numbers(library):
    support.require(library)
    w = numbers()
    pruned = largest_two(w)
    with support.holding(library, "float32"):
        given = support.there(w, library)
        xp = tp.get_namespace(given)
        kept = support.back(formats.prune_2_4(xp, xp.asarray(given)))
        stored = support.back(written("sparse_2_4", support.there(kept, library)))
        values = support.back(tp.dequantize(support.there(stored, library), format="sparse_2_4"))
    np.testing.assert_array_equal(kept, pruned)
    assert stored.shape == (len(w), w.shape[1] // 32 * 36)
    np.testing.assert_array_equal(values, pruned.astype(np.float16).astype(np.float32))
    places = stored.reshape(-1, 36)[:, :4]
    fours = np.stack([places & 15, places >> 4], axis=-1)
    assert ((fours & 3) < fours >> 2).all()  # in order, as GPUs require


@pytest.mark.parametrize("name", [*WRITTEN, *FP8, "sparse_2_4"])
def test_what_cannot_be_written(name):
    elements = formats.get(name).elements
    for wrong in (np.nan, np.inf, -np.inf):
        w = np.zeros((2, 256), dtype=np.float32)
        w[1, 3] = wrong
        with pytest.raises(ValueError, match=r"^quantize: w holds a number that is not finite"):
            tp.quantize(w, format=name)
    with pytest.raises(ValueError, match=f"^quantize: w has {elements - 1} columns, not a multiple of {elements}"):
        tp.quantize(np.zeros((2, elements - 1)), format=name)
    if name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "sparse_2_4"):
        w = np.zeros((2, 256), dtype=np.float32)
        w[0, 0] = 1e8
        with pytest.raises(ValueError, match=f"^quantize: w holds a number that is too large for format '{name}'"):
            tp.quantize(w, format=name)


def test_formats_that_are_only_read_and_dense_matrices_are_refused():
    with pytest.raises(ValueError, match=r"^quantize: format is 'q4_k', which can only be read; those written are fp8"):
        tp.quantize(np.zeros((2, 256)), format="q4_k")
    with pytest.raises(ValueError, match=r"^quantize: w has more than two numbers other than 0 .*prune_2_4"):
        tp.quantize(np.ones((2, 32)), format="sparse_2_4")
    with pytest.raises(ValueError, match=r"^prune_2_4: w has shape"):
        formats.prune_2_4(np, np.ones((2, 6)))
    with pytest.raises(ValueError, match=r"^the numbers of format 'fp8_e4m3' are not integers times a scale"):
        formats.get("fp8_e4m3").affine(np, np.zeros((1, 132), dtype=np.uint8))


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
    monkeypatch.setattr("tensorops.formats._loaded", {})
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found.get(group, []))
    assert "bytes" in formats.names()
    values = formats.get("bytes").values(np, np.asarray([[2, 1, 3, 10, 0, 4]], dtype=np.uint8))
    np.testing.assert_array_equal(values, [[2.0, 6.0, 0.0, 40.0]])


def interleaved_by_index(name, stored):
    """Interleave blocks byte by byte, from the definition."""
    of = formats.get(name)
    rows, count = stored.shape[0], stored.shape[1] // of.nbytes
    odd = of.nbytes % 4
    lead = odd if of.elements == 32 else 0
    runs = [(0, lead)] * bool(lead) + [(lead + 4 * i, 4) for i in range(of.nbytes // 4)]
    runs += [(of.nbytes - odd, odd)] * bool(odd - lead)
    blocks = stored.reshape(rows // 32, 32, count, of.nbytes)
    parts = [
        bytes(blocks[band, row, block, start : start + size])
        for band, block in np.ndindex(rows // 32, count)
        for start, size in runs
        for row in range(32)
    ]
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(stored.shape)


@pytest.mark.parametrize("library", INSTALLED)
@pytest.mark.parametrize("name", ["q8_0", "q4_1", "q6_k", "mxfp4"])  # an odd half first, none, last; an odd byte
def test_interleaved_blocks(name, library):
    support.require(library)
    of, stored = formats.get(f"{name}_x32"), random_blocks(name, 64, 2)
    interleaved = interleaved_by_index(name, stored)
    np.testing.assert_array_equal(of.store(stored), interleaved)
    np.testing.assert_array_equal(of.store(stored.reshape(2, 32, -1)), interleaved.reshape(2, 32, -1))
    np.testing.assert_array_equal(of.store(np.asfortranarray(stored)), interleaved)
    with support.holding(library, "float32"):
        given = support.there(interleaved, library)
        xp = tp.get_namespace(given)
        np.testing.assert_array_equal(support.back(of.separate(xp, given)), stored)
        values = support.back(of.values(xp, given))
        np.testing.assert_array_equal(values.view(np.uint32), expected(name, stored).view(np.uint32))
        for a, b in zip(of.affine(xp, given)[:3], formats.get(name).affine(np, stored)[:3], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(support.back(a), b)
        ids = support.there(np.asarray([40, 0, 31]), library)
        found = support.back(tp.embedding(ids, given, format=of.name))
    np.testing.assert_array_equal(found, values[[40, 0, 31]])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["q8_0", "q4_1", "q6_k", "mxfp4", "q2_k"])
def test_blocks_are_interleaved_by_compiled_code_or_without(name, compiled, monkeypatch):
    of, stored = formats.get(f"{name}_x32"), random_blocks(name, 320, 3)
    asked = []

    def interleave(blocks, place, known_by):
        asked.append(_native.interleave_blocks(blocks, place, known_by) if compiled else False)
        return asked[-1]

    monkeypatch.setattr("tensorops._hooks.interleave_blocks", [interleave])
    np.testing.assert_array_equal(of.store(stored), interleaved_by_index(name, stored))
    assert asked == [compiled]


def test_compiled_code_interleaves_only_what_it_knows():
    stored, place = random_blocks("q8_0", 64, 2), np.full((64, 68), 7, np.uint8)
    for blocks, to, name in (
        (stored, place, "q9"),
        (stored[:33], place[:33], "q8_0"),
        (stored, place[:32], "q8_0"),
        (stored.T, place.T, "q8_0"),
        (stored, place.view(np.int8), "q8_0"),
        (stored[:, :67].copy(), place[:, :67].copy(), "q8_0"),
        (stored.reshape(-1), place.reshape(-1), "q8_0"),
    ):
        assert not _native.interleave_blocks(blocks, to, name)
        assert (place == 7).all()
    assert _native.interleave_blocks(stored[:0], place[:0], "q8_0")


def test_interleaved_blocks_need_32_rows():
    of, stored = formats.get("q8_0_x32"), random_blocks("q8_0", 33, 1)
    with pytest.raises(ValueError, match="33 rows, expected a multiple of 32"):
        of.store(stored)
    with pytest.raises(ValueError, match="place is not contiguous"):
        of.store(stored[:32], np.empty((34, 32), dtype=np.uint8).T)
    with pytest.raises(ValueError, match="multiple of 32 rows, but there are 33"):
        of.values(np, stored)
    with pytest.raises(ValueError, match="weight has 33 rows, but format 'q8_0_x32' interleaves 32"):
        tp.quantized_linear(np.ones((1, 32), np.float32), stored, format="q8_0_x32")
    with pytest.raises(ValueError, match="there is no format 'q9'"):
        formats.get("q9_x32")
    with pytest.raises(ValueError, match="'q8_0_x32' is interleaved"):
        formats.get("q8_0_x32_x32")
    with pytest.raises(ValueError, match="are numbers only where those of 32 rows are together"):
        of.unpack(np, stored)
