"""Arrays saved from one library and loaded into another: identical bits and structure, or a clear error."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import re
import struct
import sys

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.libraries import library_of

safetensors = pytest.importorskip("safetensors")
pytest.importorskip("gguf")  # which tensorops.models needs as well

from safetensors.numpy import load_file, save_file  # noqa: E402

from tensorops.models import load_safetensors, save_safetensors  # noqa: E402

STRUCTURE = "tensorops.structure"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# Zeros of both signs, subnormals, infinities, the largest number, and NaNs of both signs, quiet and signalling, each
# with a payload that conversions through another dtype would lose.
SPECIAL = {
    "float16": [0x0000, 0x8000, 0x0001, 0x8001, 0x7C00, 0xFC00, 0x7BFF, 0x7E2A, 0xFE2B, 0x7C15],
    "bfloat16": [0x0000, 0x8000, 0x0001, 0x8001, 0x7F80, 0xFF80, 0x7F7F, 0x7FCA, 0xFFCB, 0x7F95],
    "float32": [0, 1 << 31, 1, (1 << 31) + 1, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC12345, 0xFFC12345, 0x7F812345],
    "float64": [
        *(0, 1 << 63, 1, (1 << 63) + 1, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) - 1),
        *(0x7FF8000012345678, 0xFFF8000012345678, 0x7FF0000012345678),
    ],
}


def samples(floating):
    """Return NumPy arrays of every dtype that is stored, by its name."""
    found = {name: np.asarray([np.iinfo(name).min, 0, 1, np.iinfo(name).max], dtype=name) for name in INTEGERS}
    found["bool"] = np.asarray([True, False, True])
    for name in floating:
        bits = SPECIAL[name]
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
        unsigned = BITS[np.dtype(dtype).itemsize]
        found[name] = np.asarray(bits, dtype=unsigned).view(dtype).reshape(2, 5)
    return found


def assert_same_bits(actual, expected):
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert np.ascontiguousarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.safetensors"


def header_of(path):
    """Return the header of a file, read as the format's description says: a length, then JSON."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length])


# --- from every library to every library -------------------------------------------------------------


@pytest.mark.parametrize("target", support.LIBRARIES)
def test_every_bit_survives_the_way_from_any_library_to_any_other(library, target, path):
    other = support.require(target)
    floating = [n for n in support.dtypes_of(library.name) if n in support.dtypes_of(other.name)]
    expected = samples(floating)
    source_name, target_name = (support.backend_of(row.name).name for row in (library, other))
    with support.holding(library.name, "float64"), support.holding(other.name, "float64"):
        there = tp.to_backend(expected, source_name)
        assert {library_of(x) for x in there.values()} == {library}
        save_safetensors(there, path)
        loaded = load_safetensors(path, target_name)
        assert {library_of(x) for x in loaded.values()} == {other}
        returned = tp.to_backend(loaded, "numpy")
    assert list(returned) == list(expected)
    for name, value in expected.items():
        assert_same_bits(returned[name], value)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 1, 3)])
def test_every_shape_survives(library, shape, path):
    expected = np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + 1
    backend = support.backend_of(library.name).name
    save_safetensors({"x": tp.to_backend(expected, backend)}, path)
    assert header_of(path)["x"]["shape"] == list(shape)
    assert_same_bits(tp.to_backend(load_safetensors(path, backend)["x"], "numpy"), expected)


def test_float64_reaches_jax_where_it_holds_it_only(path):
    support.require("jax")
    import jax

    x = np.asarray([1 / 3, -0.0])
    save_safetensors({"blocks": [x]}, path)
    with (
        jax.enable_x64(False),
        pytest.raises(TypeError, match=r"tensor blocks\.0: jax holds float64 only if") as caught,
    ):
        load_safetensors(path, "jax")
    assert str(caught.value).startswith(f"{path}: ")
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(load_safetensors(path, "jax")["blocks"][0]), x)


def test_jax_without_64_bits_narrows_integers_that_fit(path):
    support.require("jax")
    import jax

    save_safetensors({"small": np.asarray([-5, 7]), "large": np.asarray([1 << 40])}, path)
    with jax.enable_x64(False), pytest.raises(TypeError, match=r"tensor large: jax holds int64 values this large"):
        load_safetensors(path, "jax")
    save_safetensors({"small": np.asarray([-5, 7])}, path)
    with jax.enable_x64(False):
        small = load_safetensors(path, "jax")["small"]
    assert_same_bits(np.asarray(small), np.asarray([-5, 7], dtype=np.int32))


def test_a_dtype_that_the_backend_lacks_names_the_tensor(path):
    support.require("array_api_strict")
    save_safetensors({"blocks": [{"norm": np.ones(2, dtype=np.float16)}]}, path)
    with pytest.raises(TypeError, match=r"arrays\.safetensors: tensor blocks\.0\.norm: .*float16"):
        load_safetensors(path, "array_api_strict")


def test_lazy_arrays_are_computed_when_they_are_saved(path):
    support.require("dask")
    import dask.array as da

    lazy = da.arange(6, chunks=2).reshape(2, 3) * 3
    save_safetensors({"x": lazy}, path)
    assert_same_bits(load_file(path)["x"], np.asarray([[0, 3, 6], [9, 12, 15]]))


def test_a_torch_parameter_is_saved_without_its_gradient_only_where_that_is_asked_for(path):
    support.require("torch")
    import torch

    layer = torch.nn.Parameter(torch.asarray([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"^save_safetensors: layer: .*requires grad.*torch\.no_grad"):
        save_safetensors({"layer": layer}, path)
    with torch.no_grad():
        save_safetensors({"layer": layer}, path)
    np.testing.assert_array_equal(load_file(path)["layer"], [1.0, 2.0])


# --- which backend -----------------------------------------------------------------------------------


def test_without_a_name_the_backend_in_force_is_meant(path):
    support.require("array_api_strict")
    save_safetensors(np.ones(2), path)
    assert type(load_safetensors(path)) is np.ndarray
    with tp.set_backend("array_api_strict"):
        assert library_of(load_safetensors(path)).name == "array_api_strict"
        assert type(load_safetensors(path, "numpy")) is np.ndarray


def test_the_backend_is_looked_at_before_the_file(unavailable, tmp_path):
    name, reason = unavailable
    with pytest.raises(tp.BackendUnavailableError, match=re.escape(reason)):
        load_safetensors(tmp_path / "missing", name)
    with pytest.raises(ValueError, match=r"^unknown backend 'nunpy'.*did you mean 'numpy'"):
        load_safetensors(tmp_path / "missing", "nunpy")


def test_a_trace_records_what_is_moved(path, elsewhere):
    backend = support.backend_of(elsewhere.name).name
    x = tp.to_backend(np.ones((2, 3), dtype=np.float32), backend)
    with tp.trace() as log:
        save_safetensors({"x": x}, path)
        load_safetensors(path, backend)
    moves = [(r.operator, r.transfers[0].source, r.transfers[0].target, r.transfers[0].nbytes) for r in log]
    assert moves == [("to_backend", elsewhere.name, "numpy", 24), ("to_backend", "numpy", elsewhere.name, 24)]


# --- memory of any layout ----------------------------------------------------------------------------

CUBE = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(CUBE.T, id="transposed"),
        pytest.param(CUBE[:, ::-2, 1:], id="strided"),
        pytest.param(np.asfortranarray(CUBE), id="fortran"),
        pytest.param(np.broadcast_to(CUBE[0], (2, 3, 4)), id="broadcast"),
        pytest.param(np.frombuffer(b"\0" + CUBE.tobytes(), np.uint8)[1:].view(np.int16), id="misaligned"),
        pytest.param(CUBE[1, 2, 3], id="scalar"),
    ],
)
def test_memory_of_any_layout_is_saved(x, path):
    save_safetensors({"x": x}, path)
    assert_same_bits(load_file(path)["x"], np.asarray(x).copy(order="C"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "uint64"])
def test_either_byte_order_is_saved(dtype, path):
    expected = samples(SPECIAL)[dtype]
    swapped = np.frombuffer(expected.byteswap().tobytes(), expected.dtype.newbyteorder()).reshape(expected.shape)
    assert not swapped.dtype.isnative
    save_safetensors([swapped, swapped[::-1], expected], path)
    first, second, third = load_safetensors(path)
    assert_same_bits(first, expected)
    assert_same_bits(second, expected[::-1])
    assert_same_bits(third, expected)


def test_what_was_loaded_is_the_callers_own(path):
    save_safetensors({"x": np.zeros(3)}, path)
    loaded = load_safetensors(path)
    loaded["x"] += 1
    np.testing.assert_array_equal(loaded["x"], [1, 1, 1])
    np.testing.assert_array_equal(load_safetensors(path)["x"], [0, 0, 0])


# --- structure ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Layer:
    weight: object
    bias: object = None
    bits: int = 4


Pair = collections.namedtuple("Pair", ["left", "right"])


def same(actual, expected):
    """Compare nested structures, type by type."""
    if isinstance(expected, np.ndarray):
        assert_same_bits(actual, expected)
    elif isinstance(expected, dict):
        assert type(actual) is dict
        assert [(type(k), k) for k in actual] == [(type(k), k) for k in expected]
        for key, value in expected.items():
            same(actual[key], value)
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            same(a, e)
    elif isinstance(expected, float):
        assert type(actual) is float
        assert struct.pack("<d", actual) == struct.pack("<d", expected)
    else:
        assert type(actual) is type(expected)
        assert actual == expected


def number(value):
    return np.asarray([value], dtype=np.int32)


TREES = {
    "nested": {"blocks": [{"norm": number(1)}, {"norm": number(2)}], "head": (number(3), [number(4)])},
    "empty": {"a": {}, "b": [], "c": (), "d": [{}, ()]},
    "nothing": {},
    "lone": number(7),
    "list": [number(1), number(2)],
    "order": {"z": number(1), "a": number(2), "m": {"y": number(3), "b": number(4)}},
    "values": {
        "numbers": [True, 1, 1.0, 10**40, -0.0, 0.1, 5e-324, math.inf, -math.inf, math.nan],
        "others": (None, "", "tensor", "süß\n\0", "\ud800"),
        "x": number(5),
    },
    "keys": {0: number(1), "0": number(2), -1: number(3), "": number(4), "ü.\n": number(5), "\ud800": number(6)},
    "dots": {"a.b": number(1), "a": {"b": number(2), "b#2": number(3)}, "a.b#2": number(4)},
    "reserved": {"__metadata__": number(1), "tensorops.structure": number(2)},
    "looks like a description": {"tensor": "x", "dict": [["a", {"value": 1}]], "x": number(1)},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_structure_comes_back(tree, path):
    save_safetensors(tree, path)
    same(load_safetensors(path), tree)


def test_classes_of_ones_own_come_back_as_plain_containers(path):
    ordered = collections.OrderedDict(b=number(1), a=number(2))
    save_safetensors([Layer(number(3)), Pair(number(4), 5), ordered], path)
    plain = [{"weight": number(3), "bias": None, "bits": 4}, (number(4), 5), {"b": number(1), "a": number(2)}]
    same(load_safetensors(path), plain)
    assert set(load_file(path)) == {"0.weight", "1.left", "2.b", "2.a"}
    assert Layer(**load_safetensors(path)[0]).bits == 4


def test_other_programs_find_the_tensors_by_dotted_paths(path):
    tree = {"blocks": [{"norm": np.asarray([1.5, -2.0])}], "eps": 1e-6, "head": (number(3),)}
    save_safetensors(tree, path, metadata={"format": "pt", "made by": "süß"})
    header = header_of(path)
    assert header["__metadata__"]["format"] == "pt"
    assert header["__metadata__"]["made by"] == "süß"
    del header["__metadata__"]
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "blocks.0.norm": ("F64", [2]),
        "head.0": ("I32", [1]),
    }
    start, end = header["blocks.0.norm"]["data_offsets"]
    data = path.read_bytes()
    data = data[len(data) - 20 :]  # 16 bytes of one tensor and 4 of the other
    assert data[start:end] == struct.pack("<2d", 1.5, -2.0)


def test_the_structure_is_strict_json(path):
    save_safetensors({"a": math.nan, 3: [number(1)], "b": math.inf}, path)

    def refuse(constant):
        raise AssertionError(constant)

    described = json.loads(header_of(path)["__metadata__"][STRUCTURE], parse_constant=refuse)
    assert described == {"dict": [["a", {"float": "nan"}], [3, {"list": [{"tensor": "3.0"}]}], ["b", {"float": "inf"}]]}


def test_torch_reads_the_file_with_the_formats_own_reader(path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    save_safetensors({"w": np.asarray([1.5, -2.0, 3.0]).astype(ml_dtypes.bfloat16)}, path)
    assert torch.equal(load_torch(path)["w"], torch.asarray([1.5, -2.0, 3.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("metadata", [None, {"format": "np"}])
def test_a_file_of_another_program_is_a_flat_dict(metadata, path):
    expected = {"blk.0.norm": number(1), "blk.1.norm": CUBE, "a": np.zeros((0, 2), dtype=np.float32)}
    save_file(expected, path, metadata)
    loaded = load_safetensors(path)
    assert set(loaded) == set(expected)
    for name, value in expected.items():
        assert_same_bits(loaded[name], value)


# --- what cannot be saved ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, {2}]}, r"^save_safetensors: a\.1 is builtins\.set, expected an array, a number or a string$"),
        (object, r"^save_safetensors: tree is builtins\.type, expected"),
        (3j, r"^save_safetensors: tree is builtins\.complex, expected"),
        ({"a": {None: number(1)}}, r"^save_safetensors: a has the key None, expected a string or an integer$"),
        ({True: 1}, r"^save_safetensors: tree has the key True, expected"),
        ([np.asarray(["x"])], r"^save_safetensors: 0 has the dtype str32, which cannot be stored; valid.*bfloat16"),
        ([np.asarray([{}])], r"^save_safetensors: 0 has the dtype object, which"),
        ([np.asarray([1j])], r"^save_safetensors: 0 has the dtype complex128, which"),
        ((np.ones(2, np.complex64),), r"^save_safetensors: 0 has the dtype complex64, which"),
        ({"w": np.zeros(2, ml_dtypes.float8_e4m3fn)}, r"^save_safetensors: w has the dtype float8_e4m3fn, which"),
        ({"t": np.zeros(2, "datetime64[s]")}, r"^save_safetensors: t has the dtype datetime64\[s\], which"),
        ({"m": np.ma.masked_array([1.0])}, r"^save_safetensors: m: MaskedArray is not supported; pass"),
    ],
)
def test_what_cannot_be_stored_is_named(tree, message, path):
    path.write_bytes(b"old")
    with pytest.raises(TypeError, match=message):
        save_safetensors(tree, path)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_traced_array_cannot_be_saved(path):
    support.require("jax")
    import jax

    with pytest.raises(TypeError, match=r"^save_safetensors: x: a traced jax array has no values yet"):
        jax.jit(lambda x: save_safetensors({"x": x}, path))(np.ones(2, dtype=np.float32))
    assert not path.exists()


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": None}])
def test_metadata_is_text(metadata, path):
    with pytest.raises(TypeError, match=r"^save_safetensors: metadata has the entry .*expected only strings$"):
        save_safetensors({}, path, metadata=metadata)


def test_the_structures_key_is_taken(path):
    with pytest.raises(ValueError, match=r"^save_safetensors: the metadata key 'tensorops\.structure' is reserved"):
        save_safetensors({}, path, metadata={STRUCTURE: "{}"})


# --- the file ----------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole_or_not_at_all(path, monkeypatch):
    save_safetensors({"x": number(1)}, path)
    before = path.read_bytes()
    seen = []

    def fails(arrays, filename, metadata):
        save_file(arrays, filename, metadata)
        seen.append((filename, path.read_bytes()))
        raise safetensors.SafetensorError("the disk is full")

    monkeypatch.setattr("safetensors.numpy.save_file", fails)
    with pytest.raises(OSError, match=r"arrays\.safetensors cannot be written: the disk is full$"):
        save_safetensors({"x": number(2)}, path)
    ((temporary, during),) = seen
    assert temporary.parent == path.parent
    assert temporary != path
    assert during == path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows replaces no file that is open")
def test_whoever_has_the_old_file_open_reads_it_to_its_end(path):
    save_safetensors({"x": number(1)}, path)
    before = path.read_bytes()
    with path.open("rb") as stream:
        save_safetensors({"x": number(2), "y": CUBE}, path)
        assert stream.read() == before
    assert_same_bits(load_safetensors(path)["y"], CUBE)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_permissions_are_those_of_a_file_that_was_there_or_the_usual_ones(path):
    usual = path.with_name("usual")
    usual.touch()
    save_safetensors({"x": number(1)}, path)
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o640)
    save_safetensors({"x": number(2)}, path)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_stays_a_link(path):
    link = path.with_name("link")
    link.symlink_to(path)
    save_safetensors({"x": number(1)}, link)
    assert link.is_symlink()
    assert_same_bits(load_safetensors(path)["x"], number(1))


def test_a_path_may_be_a_string(path):
    save_safetensors({"x": number(1)}, str(path))
    same(load_safetensors(str(path)), {"x": number(1)})


def test_folders_that_are_missing_or_no_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no such folder.*nowhere"):
        save_safetensors({}, tmp_path / "nowhere" / "a.safetensors")
    with pytest.raises(IsADirectoryError, match=r"this is a folder"):
        save_safetensors({}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.safetensors"):
        load_safetensors(tmp_path / "missing.safetensors")
    with pytest.raises(ValueError, match=r": file: not a regular file$"):
        load_safetensors(tmp_path)


@pytest.mark.parametrize("content", [b"GGUF", b"\xff" * 64, struct.pack("<Q", 2) + b"[]", b"\x02" + b"\0" * 7 + b"{"])
def test_other_files_are_refused(content, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"arrays\.safetensors: header: not a safetensors file, or damaged: \w+"):
        load_safetensors(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not truncate a file that is open elsewhere")
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(path, monkeypatch):
    save_safetensors([np.zeros(1 << 12)] * 3, path)
    move = tp.to_backend

    def truncating(tree, backend):
        if isinstance(tree, np.ndarray):
            os.truncate(path, 4096)
        return move(tree, backend)

    monkeypatch.setattr(tp, "to_backend", truncating)
    with pytest.raises(ValueError, match=r"tensor 1: the file became shorter after it was opened"):
        load_safetensors(path, "numpy")


def test_a_truncated_file_is_refused(path):
    save_safetensors({"x": np.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"arrays\.safetensors: header: not a safetensors file, or damaged: "):
        load_safetensors(path)


def test_a_dtype_that_cannot_be_read_names_the_tensor(path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(TypeError, match=r"arrays\.safetensors: tensor w has the dtype F8_E4M3, which cannot be read"):
        load_safetensors(path)


DEEP = '{"list":[' * 100_000


@pytest.mark.parametrize(
    ("structure", "problem"),
    [
        ("", r"it is not valid JSON: "),
        ("{", r"it is not valid JSON: "),
        (DEEP, r"it is not valid JSON: "),
        ("3", r"it says 3;"),
        ('{"tensor":"y"}', r"it says \{'tensor': 'y'\};"),
        ('{"list":[{"tensor":"x"},{"tensor":"x"}]}', r"it says \{'tensor': 'x'\};"),
        ('{"value":[1]}', r"it says \{'value': \[1\]\};"),
        ('{"float":"one"}', r"it says \{'float': 'one'\};"),
        ('{"dict":[["x"]]}', r"it says \['x'\];"),
        ('{"dict":[[[], {"value":1}]]}', r"it says \[\[\], \{'value': 1\}\];"),
        ('{"list":[]}', r"it omits the tensor x;"),
    ],
)
def test_a_structure_that_does_not_fit_is_refused(structure, problem, path):
    save_file({"x": number(1)}, path, {STRUCTURE: structure})
    with pytest.raises(ValueError, match=rf"arrays\.safetensors: the metadata entry .* this file: {problem}") as caught:
        load_safetensors(path)
    assert "safetensors.numpy.load_file reads it" in str(caught.value)


def test_a_missing_package_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (lambda: save_safetensors({}, path), lambda: load_safetensors(path)):
        with pytest.raises(ImportError, match=r"needs the package 'safetensors': pip install 'tensorops\[models\]'"):
            call()


@pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [[2**62, 0], [0, 2**63], [2**64 - 1, 0], [0, 2**62, 2**62], [1] * 65 + [0]], ids=str)
def test_a_shape_that_no_array_has_names_file_and_tensor(shape, target, path):
    support.require(target)
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: tensor w: "):
        load_safetensors(path, target)
