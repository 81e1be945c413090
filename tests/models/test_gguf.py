"""The GGUF reader: what it reads, and what it refuses."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

gguf = pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import support  # noqa: E402
from make_gguf import llama_arrays, llama_metadata, tokenizer_metadata, write_gguf, write_llama  # noqa: E402
from tensorops.models import GGUFError, Llama, open_gguf  # noqa: E402
from tensorops.models.files._open_file import OpenFile  # noqa: E402
from tensorops.models.files.blocks import QuantizedWeight, block_of, supported_types  # noqa: E402
from tensorops.models.files.gguf import _Reader  # noqa: E402
from tensorops.models.files.gguf_types import TensorType, TokenType, ValueType  # noqa: E402
from tensorops.models.files.loading import Memory  # noqa: E402
from tensorops.testing import REFERENCES  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

QUANTIZED = ("Q4_0", "Q4_1", "Q8_0")
ALL_TYPES = ("F32", "F16", "BF16", *QUANTIZED)


@pytest.fixture(scope="module")
def matrix() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)


# --------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_dequantize_agrees_with_the_gguf_package(tmp_path: Path, matrix: np.ndarray, kind: str) -> None:
    path = write_gguf(tmp_path / "w.gguf", {}, {"w": matrix}, kind)
    tensor = open_gguf(path).tensors["w"]
    theirs = gguf.GGUFReader(path).tensors[0]
    values = tensor.dequantize()
    assert (tensor.name, tensor.type.name, tensor.shape) == ("w", kind, (6, 96))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, gguf.quants.dequantize(theirs.data, theirs.tensor_type))
    if kind == "F32":
        np.testing.assert_array_equal(values, matrix)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q8_0", 8)])
def test_quantized_layout_means_the_same_values(tmp_path: Path, matrix: np.ndarray, kind: str, bits: int) -> None:
    tensor = open_gguf(write_gguf(tmp_path / "w.gguf", {}, {"w": matrix}, kind)).tensors["w"]
    w = tensor.quantized()
    assert (w.bits, w.group_size, w.shape) == (bits, 32, (6, 96))
    assert (w.weight.dtype, w.weight.shape) == (np.uint8, (6, 96 * bits // 8))
    assert (w.scales.dtype, w.scales.shape) == (np.float32, (6, 3))
    assert (w.biases is None) == (kind == "Q8_0")
    decoded = REFERENCES["dequantize"](w.weight, w.scales, w.biases, bits=bits, group_size=32)
    # float64 holds every product and sum of these short numbers exactly, so one rounding remains.
    np.testing.assert_array_equal(decoded.astype(np.float32), tensor.dequantize())


def test_nibbles_of_neighbours_share_a_byte(tmp_path: Path) -> None:
    # Q4_1 of the integers 0..15 twice over has scale 1 and minimum 0: the codes are the values.
    values = np.concatenate([np.arange(16), np.arange(16)[::-1]]).astype(np.float32)[None, :]
    w = open_gguf(write_gguf(tmp_path / "w.gguf", {}, {"w": values}, "Q4_1")).tensors["w"].quantized()
    assert w.scales.tolist() == [[1.0]]
    assert w.biases is not None
    assert w.biases.tolist() == [[0.0]]
    assert w.weight[0, :3].tolist() == [0x10, 0x32, 0x54]
    assert w.weight[0, -3:].tolist() == [0x45, 0x23, 0x01]


def test_floating_point_tensor_has_no_quantized_form(tmp_path: Path, matrix: np.ndarray) -> None:
    path = write_gguf(tmp_path / "w.gguf", {}, {"w": matrix}, "F16")
    with pytest.raises(GGUFError, match=r"w\.gguf: tensor w: type F16 has no quantised form"):
        open_gguf(path).tensors["w"].quantized()


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "w.gguf", {}, {"w": np.ones((1, 32), np.float32)}, kind)
    raw = bytearray(path.read_bytes())
    nan = {"F32": np.float32(np.nan).tobytes(), "BF16": b"\xc0\x7f"}.get(kind, np.float16(np.nan).tobytes())
    start = int(gguf.GGUFReader(path).tensors[0].data_offset)
    raw[start : start + len(nan)] = nan
    path.write_bytes(raw)
    tensor = open_gguf(path).tensors["w"]
    with pytest.raises(GGUFError, match="tensor w: holds a number that is not finite"):
        tensor.dequantize()


def test_the_numbers_of_types_are_those_of_the_package_gguf() -> None:
    assert dict(TensorType.__members__) == dict(gguf.GGMLQuantizationType.__members__)
    assert dict(ValueType.__members__) == dict(gguf.GGUFValueType.__members__)
    assert dict(TokenType.__members__) == dict(gguf.TokenType.__members__)
    for kind in supported_types():
        assert block_of(kind) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]


def test_strings_longer_than_a_byte_counts_and_at_the_end_of_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a" * length for length in (0, 1, 255, 256, 70000, 3)] + ["ü" * 127, "", "x" * 300] * 40
    zeros = ["\0" * count for count in range(20)]
    texts += [*zeros, *(f"{text}\1{text}" for text in zeros), "\7" + "\0" * 7 + "seven..", "\0a"]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "none")
    writer.add_array("texts", texts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    for size, split in ((64, 64), (999, 50), (1 << 20, 1 << 16)):
        monkeypatch.setattr("tensorops.models.files.gguf.AT_A_TIME", size)
        monkeypatch.setattr("tensorops.models.files.gguf.SPLIT_AT_A_TIME", split)
        assert open_gguf(tmp_path / "m.gguf").metadata["texts"] == texts


@pytest.mark.parametrize("text", ["", "x" * 300, "\0"])
def test_strings_that_cannot_be_split_are_not_searched_again_for_each(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, number, searched = tmp_path / "m.gguf", 20_000, 0

    class Counted(bytes):
        def __getitem__(self, place: Any) -> Any:
            nonlocal searched
            part = super().__getitem__(place)
            searched += len(part) if isinstance(place, slice) else 1
            return part

    writer = gguf.GGUFWriter(path, "none")
    writer.add_array("texts", [text] * number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read = OpenFile.read

    def counted(self: OpenFile, *args: Any) -> Any:
        return SimpleNamespace(tobytes=lambda: Counted(read(self, *args).tobytes()))

    monkeypatch.setattr(OpenFile, "read", counted)
    assert open_gguf(path).metadata["texts"] == [text] * number
    assert searched < 10 * path.stat().st_size + (1 << 20)


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "none")
    kinds = gguf.GGUFValueType
    writer.add_key_value("text", "héllo", kinds.STRING)
    writer.add_key_value("yes", True, kinds.BOOL)
    writer.add_key_value("texts", ["a", "", "ü"], kinds.ARRAY, sub_type=kinds.STRING)
    writer.add_key_value("flags", [True, False], kinds.ARRAY, sub_type=kinds.BOOL)
    numbers = {"UINT8": 255, "INT8": -128, "UINT16": 65535, "INT16": -32768, "UINT32": 2**32 - 1,
               "INT32": -(2**31), "UINT64": 2**64 - 1, "INT64": -(2**63), "FLOAT32": 0.5, "FLOAT64": 0.1}  # fmt: skip
    for name, value in numbers.items():
        writer.add_key_value(name, value, kinds[name])
        writer.add_key_value(f"{name}s", [value] * 3, kinds.ARRAY, sub_type=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = open_gguf(tmp_path / "m.gguf").metadata
    assert metadata["text"] == "héllo"
    assert metadata["yes"] is True
    assert metadata["texts"] == ["a", "", "ü"]
    assert metadata["flags"].tolist() == [True, False]
    for name, value in numbers.items():
        assert metadata[name] == value
        assert type(metadata[name]) is type(value)
        assert metadata[f"{name}s"].tolist() == [value] * 3


# ------------------------------------------------------------------------------------- hostile, by hand


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: bytes | str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    head = text(name) + struct.pack("<I", len(shape) if rank is None else rank)
    return head + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)


def header(tensors: int = 0, entries: int = 0, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, entries)


def with_tensors(*infos: bytes, data: int = 256) -> bytes:
    head = header(len(infos)) + b"".join(infos)
    return head + bytes(-len(head) % 32) + bytes(data)


def with_entry(*entries: bytes) -> bytes:
    return header(0, len(entries)) + b"".join(entries) + bytes(64)


U32, BOOL, STRING, ARRAY = 4, 7, 8, 9
HUGE = 2**63
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "file: empty"),
    "no gguf": (b"GGUX" + bytes(60), "magic: not a GGUF file"),
    "a zip archive": (b"PK\x03\x04" + bytes(60), "file: a zip archive, as are weights of PyTorch"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "file: a pointer of Git LFS .* `git lfs pull`"),
    "a page": (b"<!DOCTYPE html><html>", "file: a page of HTML: download the file itself"),
    "shorter than the magic": (b"GG", "magic: needs 4 bytes at offset 0, but 2 are left"),
    "version 1": (header(version=1), "version: 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version: 50331648 is not supported"),
    "billions of tensors": (header(10**10), "tensor count: says 10000000000 tensors, but only"),
    "billions of entries": (header(0, 2**64 - 1), "metadata count: says 18446744073709551615 metadata"),
    "key past the end": (with_entry(struct.pack("<Q", 100) + b"k"), "metadata entry 0: needs 100 bytes"),
    "key of a gigabyte": (with_entry(struct.pack("<Q", 2**30)), "metadata entry 0: a name of 1073741824 bytes"),
    "string past the end": (with_entry(entry("k", STRING, struct.pack("<Q", HUGE))), f"k: needs {HUGE} bytes"),
    "not UTF-8": (with_entry(entry("k", STRING, text(b"\xff\xfe"))), "k: string at offset 45 is not UTF-8"),
    "key not UTF-8": (with_entry(entry(b"\xff", U32, bytes(4))), "metadata entry 0: string at offset 32"),
    "unknown value type": (with_entry(entry("k", 77, bytes(8))), "k: unknown value type 77"),
    "boolean of 2": (with_entry(entry("k", BOOL, b"\x02")), "k: a boolean is neither 0 nor 1"),
    "nested array": (
        with_entry(entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ", U32, 0))),
        "k: nested arrays are not supported",
    ),
    "array of unknown type": (with_entry(entry("k", ARRAY, struct.pack("<IQ", 13, 1))), "k: unknown value type 13"),
    "endless array": (with_entry(entry("k", ARRAY, struct.pack("<IQ", U32, 2**62))), f"k: says {2**62} numbers"),
    "endless strings": (with_entry(entry("k", ARRAY, struct.pack("<IQ", STRING, 2**61))), f"k: says {2**61} strings"),
    "key twice": (with_entry(*[entry("k", U32, bytes(4))] * 2), "k: this key occurs twice"),
    "alignment 0": (with_entry(entry("general.alignment", U32, bytes(4))), "general.alignment: 0 is not a power"),
    "alignment 24": (
        with_entry(entry("general.alignment", U32, struct.pack("<I", 24))),
        "general.alignment: 24 is not a power of two",
    ),
    "alignment is text": (
        with_entry(entry("general.alignment", STRING, text("32"))),
        "general.alignment: '32' is not a power of two",
    ),
    "unknown tensor type": (with_tensors(info("w", (32,), 99)), "tensor w: unknown tensor type 99"),
    "unsupported tensor type": (
        with_tensors(info("w", (256,), 16)),
        "tensor w: type IQ2_XXS is not supported, only F32.*: llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0",
    ),
    "no dimensions": (with_tensors(info("w", ())), "tensor w: 0 dimensions; a tensor has 1 to 4"),
    "many dimensions": (with_tensors(info("w", (1,), rank=2**32 - 1)), "tensor w: 4294967295 dimensions"),
    "five dimensions": (with_tensors(info("w", (1,) * 5)), "tensor w: 5 dimensions; a tensor has 1 to 4"),
    "dimension of zero": (with_tensors(info("w", (0, 4))), r"tensor w: shape \(4, 0\) has a dimension of length zero"),
    "product overflows": (with_tensors(info("w", (2**32, 2**32))), f"tensor w: ends at byte {2**66 + 96}, but"),
    "huge dimension": (with_tensors(info("w", (2**64 - 1,) * 4)), "tensor w: ends at byte"),
    "data past the end": (with_tensors(info("w", (65,))), "tensor w: ends at byte 324, but the file has 320"),
    "offset past the end": (with_tensors(info("w", (8,), 0, 2**63)), "tensor w: ends at byte"),
    "offset wraps around": (with_tensors(info("w", (8,), 0, 2**64 - 32)), "tensor w: ends at byte"),
    "misaligned offset": (with_tensors(info("w", (8,), 0, 4)), "tensor w: offset 4 is not a multiple of the"),
    "overlap": (with_tensors(info("a", (16,)), info("b", (8,), 0, 32)), "tensor b: offset 32 lies inside the tensor"),
    "same place": (with_tensors(info("a", (8,)), info("b", (8,))), "tensor b: offset 0 lies inside the tensor before"),
    "name twice": (with_tensors(info("w", (8,)), info("w", (8,), 0, 32)), "tensor w: this name occurs twice"),
    "broken block": (with_tensors(info("w", (40,), 8)), "tensor w: rows of 40 elements are not whole Q8_0 blocks"),
    "tensor list is cut": (header(1) + bytes(3), "tensor count: says 1 tensors, but only 11 bytes are left"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_file_and_field(tmp_path: Path, case: str) -> None:
    raw, message = HOSTILE[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=rf"bad\.gguf: {message}"):
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_the_builder_of_hostile_files_can_build_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    path.write_bytes(with_tensors(info("b", (2, 4), 0, 64), info("a", (16,))))
    tensors = open_gguf(path).tensors
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"b": (4, 2), "a": (16,)}
    path.write_bytes(with_entry(entry("k", U32, struct.pack("<I", 7)), entry("t", STRING, text("x"))))
    assert open_gguf(path).metadata == {"k": 7, "t": "x"}


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match=r": file: not a regular file$"):
        open_gguf(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GGUFError, match=r"pipe\.gguf: file: not a regular file"):
        open_gguf(tmp_path / "pipe.gguf")


# ------------------------------------------------------------------------------- hostile, systematically


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = {"token_embd.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_0", "blk.0.ffn_up.weight": "Q4_1",
             "blk.1.attn_k.weight": "F16"}  # fmt: skip
    return write_llama(tmp_path_factory.mktemp("model") / "model.gguf", kinds)


def read_everything(path: Path) -> bool:
    """Read all there is; return whether it worked. Anything but a `GGUFError` fails the test."""
    try:
        file = open_gguf(path)
        for tensor in file.tensors.values():
            tensor.dequantize()
            if tensor.is_quantized:
                tensor.quantized()
        Llama.from_gguf(path)
    except GGUFError as error:
        return not str(error).startswith(f"{path}: ")
    return True


def test_every_truncation_is_an_error(model_file: Path, tmp_path: Path) -> None:
    raw = model_file.read_bytes()
    assert read_everything(model_file)
    tensors = open_gguf(model_file).tensors.values()
    start = min(int(t.data_offset) for t in gguf.GGUFReader(model_file).tensors)
    last_byte = start + sum(-(-t.nbytes // 32) * 32 for t in tensors) - 32
    path = tmp_path / "cut.gguf"
    for size in [*range(700), *range(700, start, 53), *range(start, last_byte, 2003)]:
        path.write_bytes(raw[:size])
        assert not read_everything(path), f"{size} of {len(raw)} bytes were read without complaint"


SHRINKING = """
import os, sys
from tensorops.models import GGUFError, open_gguf
path = sys.argv[1]
tensors = open_gguf(path).tensors.values()
values = [tensor.dequantize() for tensor in tensors]
os.truncate(path, int(sys.argv[2]))
for tensor in tensors:
    for read in (tensor.dequantize, tensor.quantized):
        try:
            read()
        except GGUFError as error:
            print(error)
print(sum(float(array.sum()) for array in values))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not truncate a file that is open elsewhere")
@pytest.mark.parametrize("lost", [1, 4096, 10**5])
def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path, lost: int) -> None:
    """In a process of its own: reading what a mapped file has lost would end it with a signal."""
    x = np.full((128, 1024), 127, np.float32)  # the scale is 1
    path = write_gguf(tmp_path / "w.gguf", {}, {"w": x}, "Q8_0")
    result = support.python(SHRINKING, str(path), str(path.stat().st_size - lost))
    assert result.returncode == 0, result.stderr
    problem = f"{path}: tensor w: the file became shorter after it was opened: {lost} bytes are missing"
    assert result.stdout.splitlines() == [problem, problem, str(float(x.sum()))]


def test_a_file_that_becomes_shorter_while_it_is_opened_is_an_error(model_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_file.read_bytes())
    reader = _Reader(OpenFile(path))
    os.truncate(path, 10)
    with pytest.raises(GGUFError, match=r"cut\.gguf: .*: the file became shorter after it was opened"):
        reader.read()


def test_reading_from_many_threads(tmp_path: Path) -> None:
    arrays = {f"w{i}": np.full((64, 256), i, np.float32) for i in range(8)}
    tensors = open_gguf(write_gguf(tmp_path / "w.gguf", {}, arrays)).tensors
    with ThreadPoolExecutor(8) as pool:
        for name, values in pool.map(lambda name: (name, tensors[name].dequantize()), list(arrays) * 20):
            np.testing.assert_array_equal(values, arrays[name])


def test_a_large_tensor_is_read_in_pieces(tmp_path: Path, matrix: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenFile, "PIECE", 100)
    tensors = open_gguf(write_gguf(tmp_path / "w.gguf", {}, {"v": matrix, "w": 2 * matrix})).tensors
    np.testing.assert_array_equal(tensors["w"].dequantize(), 2 * matrix)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_are_read_or_refused_in_bounded_memory(model_file: Path, tmp_path: Path, data: Any) -> None:
    raw = bytearray(model_file.read_bytes())
    start = min(int(t.data_offset) for t in gguf.GGUFReader(model_file).tensors)
    # Most of what can go wrong is at the beginning and in the list of tensors before the data.
    places = st.one_of(st.integers(0, 600), st.integers(start - 1700, start - 1), st.integers(0, len(raw) - 1))
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        raw[place] = data.draw(st.one_of(st.sampled_from([0, 1, 127, 128, 255]), st.integers(0, 255)))
    path = tmp_path / "changed.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        read_everything(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 * len(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_count": 10**9}, "llama.block_count: 1000000000 blocks, but only 20 tensors"),
        ({"block_count": 0}, "llama.block_count: 0 is not a positive integer"),
        ({"block_count": 1}, "tensor blk.1.attn_norm.weight: not part of the architecture llama"),
        ({"block_count": None}, "llama.block_count: missing"),
        ({"block_count": "2"}, "llama.block_count: '2' is not a positive integer"),
        ({"block_count": [2, 2]}, "llama.block_count: array"),
        ({"context_length": 2**40}, f"llama.context_length: {2**40} is more than {2**31 - 1}"),
        ({"embedding_length": 2**34}, "llama.embedding_length: 17179869184 is more than the longest axis of a tensor"),
        ({"attention.key_length": 2**33}, "llama.attention.key_length: 8589934592 is more than the longest axis"),
        ({"expert_count": 2**40}, "llama.expert_count: 1099511627776 is more than the longest axis"),
        ({"feed_forward_length": [128, 2**30]}, "llama.feed_forward_length: 128 to 1073741824 is not from 1 to"),
        ({"rope.dimension_count": 2**32 - 2}, "llama.rope.dimension_count: 4294967294 is more than the longest axis"),
        ({"embedding_length": 128}, r"tensor token_embd.weight: shape \(269, 64\) should be \(269, 128\)"),
        ({"feed_forward_length": 97}, r"tensor blk.0.ffn_gate.weight: shape \(96, 64\) should be \(97, 64\)"),
        ({"attention.head_count": 6}, "llama.attention.head_count: 64 features do not divide into 6 heads"),
        ({"attention.head_count": 64}, "llama.attention.key_length: 1 is odd"),
        ({"attention.head_count_kv": 3}, "llama.attention.head_count_kv: 4 query heads are not a multiple of 3"),
        ({"attention.head_count_kv": 1}, r"tensor blk.0.attn_k.weight: shape \(32, 64\) should be \(16, 64\)"),
        ({"attention.key_length": 32}, r"tensor blk.0.attn_q.weight: shape \(64, 64\) should be \(128, 64\)"),
        ({"attention.value_length": 8}, "llama.attention.value_length: 8 is not supported"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon: 0.0 is not a positive number"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon: nan is not a positive"),
        ({"attention.max_alibi_bias": 8.0}, "llama.attention.max_alibi_bias: is not supported"),
        ({"rope.freq_base": float("inf")}, "llama.rope.freq_base: inf is not a positive number"),
        ({"rope.dimension_count": 18}, "llama.rope.dimension_count: 18 of the 16 features of a head"),
        ({"rope.scaling.type": "dynamic"}, "llama.rope.scaling.type: 'dynamic' is not supported, only 'none'"),
        ({"rope.scaling.type": 1}, "llama.rope.scaling.type: not a string"),
        ({"rope.scaling.factor": 0.0}, "llama.rope.scaling.factor: 0.0 is not a positive number"),
        ({"rope.scaling.original_context_length": 0}, "llama.rope.scaling.original_context_length: 0 is not a posi"),
        ({"rope.scaling.yarn_attn_factor": 2.0}, "llama.rope.scaling.yarn_attn_factor: is not supported with the"),
        ({"rope.scaling.yarn_ext_factor": 0.0}, "yarn_ext_factor: 0.0 is not supported, only 1.0"),
        ({"rope.scaling.yarn_beta_fast": 16.0}, "llama.rope.scaling.yarn_beta_fast: is not supported"),
        ({"expert_count": 8}, "llama.expert_used_count: missing"),
        ({"vocab_size": 270}, "llama.vocab_size: 270, but tokenizer.ggml.tokens has 269"),
    ],
)  # fmt: skip
def test_a_model_that_contradicts_itself(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_llama(tmp_path / "model.gguf", **change)
    with pytest.raises(GGUFError, match=rf"model\.gguf: .*{message}"):
        Llama.from_gguf(path)


def test_what_means_nothing_special_is_accepted(tmp_path: Path) -> None:
    neutral = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "expert_count": 0, "pooling_type": 3,
               "rope.dimension_count": 16, "attention.key_length": 16, "vocab_size": 269}  # fmt: skip
    model = Llama.from_gguf(write_llama(tmp_path / "model.gguf", **neutral))
    assert model.config.head_dim == 16


def test_a_model_in_several_files(tmp_path: Path) -> None:
    arrays, expected = llama_arrays(), Llama.load(write_llama(tmp_path / "whole.gguf"))([1, 2, 3])
    names, paths = list(arrays), [tmp_path / f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for number, path in enumerate(paths):
        own = {name: arrays[name] for name in names[number::3]}
        metadata = (llama_metadata() | tokenizer_metadata()) if number == 0 else {}
        write_gguf(path, metadata | {"split.no": number, "split.count": 3}, own)
    np.testing.assert_array_equal(Llama.load(paths[0])([1, 2, 3]), expected)
    with pytest.raises(GGUFError, match=r"split\.count: 3, but this is not the first file, NAME-00001-of-00003\.gguf"):
        Llama.load(paths[1])
    for count in (2.0, "3", [1, 2]):
        write_gguf(tmp_path / "odd-00001-of-00002.gguf", {"split.count": count}, {})
        with pytest.raises(GGUFError, match=r"split\.count: .* is not an integer"):
            Llama.load(tmp_path / "odd-00001-of-00002.gguf")
    paths[2].unlink()
    with pytest.raises(GGUFError, match=r"split\.count: 3, but .*model-00003-of-00003\.gguf is missing"):
        Llama.load(paths[0])
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(GGUFError, match="is in another file, too"):
        Llama.load(paths[0])


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama_metadata(), {}, architecture="mamba")
    with pytest.raises(GGUFError, match=r"general\.architecture: 'mamba' is not supported, only cohere2"):
        Llama.from_gguf(path)


# --------------------------------------------------------------------------------------- memory of weights


def test_small_weights_share_memory_and_large_ones_stay_where_they_are(matrix: np.ndarray) -> None:
    memory = Memory(1 << 16)
    scales, biases = np.float16([[1], [2]]), np.float16([[3], [4]])
    quantized = QuantizedWeight(np.uint8([[5] * 16, [6] * 16]), scales, biases, 4, 32)
    large = np.zeros(Memory.LARGE, dtype=np.uint8)
    first, second = memory.copy(matrix), memory.copy(quantized)
    assert memory.copy(large) is large
    assert memory.copy(matrix[:0]).shape == (0, 96)
    np.testing.assert_array_equal(first, matrix)
    for name in ("weight", "scales", "biases"):
        placed, given_ = getattr(second, name), getattr(quantized, name)
        np.testing.assert_array_equal(placed, given_)
        assert placed.dtype == given_.dtype
        assert placed.flags.c_contiguous
        assert placed.ctypes.data % Memory.LINE == 0
        assert not np.shares_memory(placed, given_)
    assert memory.copy(QuantizedWeight(quantized.weight, scales, None, 8, 32)).biases is None
    span = second.biases.ctypes.data - first.ctypes.data
    assert span == sum(-(-a.nbytes // 64) * 64 for a in (matrix, quantized.weight, scales))


def test_memory_for_weights_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "PIECE", 1024)
    monkeypatch.setattr(Memory, "LARGE", 512)
    memory = Memory(1 << 16)
    given_ = [np.full(100, i, dtype=np.float32) for i in range(9)]
    placed = [memory.copy(a) for a in given_]
    for a, b in zip(placed, given_, strict=True):
        np.testing.assert_array_equal(a, b)
    assert 2 < len({id(a.base) for a in placed}) < 9
