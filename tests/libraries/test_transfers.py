"""How arrays are transferred to a backend and back, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.libraries import LIBRARIES, Library, _known
from tensorops.testing import REFERENCES, assert_matches

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)


# --- moving ------------------------------------------------------------------------------------------


def test_what_mlx_traces_cannot_be_moved():
    """Before 0.32.4, MLX crashed where NumPy read an array that could not be computed."""
    support.require("mlx")
    mx = pytest.importorskip("mlx.core")
    for _ in range(20):
        for dtype in (mx.float32, mx.bfloat16):
            with pytest.raises(ValueError, match="eval"):
                mx.compile(lambda x: tp.to_backend(x, "numpy"))(mx.ones(3, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numpy_arrays_go_to_the_backend_and_come_back(elsewhere, dtype):
    if dtype not in support.dtypes_of(elsewhere.name):
        pytest.skip(f"{elsewhere.name} holds no {dtype}")
    x, w = tp.testing.cast(X.astype(np.float64), dtype), tp.testing.cast(W.astype(np.float64), dtype)
    nbytes = x.nbytes
    with tp.set_backend(support.backend_of(elsewhere.name).name), tp.trace() as log:
        explanation = tp.rms_norm.explain(x, w)
        y = tp.rms_norm(x, w)
    assert type(y) is np.ndarray
    assert y.flags.writeable
    assert_matches(y, REFERENCES["rms_norm"](x, w), dtype, tolerance=8)
    (record,) = log
    assert record.library == explanation.library == elsewhere.name
    assert [(t.source, t.target, t.nbytes) for t in record.transfers] == [
        ("numpy", elsewhere.name, nbytes),
        ("numpy", elsewhere.name, w.nbytes),
        (elsewhere.name, "numpy", nbytes),
    ]
    assert list(explanation.transfers) == list(record.transfers[:2])
    assert f"moves numpy → {elsewhere.name} {nbytes} bytes" in str(explanation)
    assert f"numpy → {elsewhere.name} {nbytes} bytes" in str(log)


def test_other_arrays_go_to_numpy_and_come_back(elsewhere):
    if elsewhere.lazy:
        pytest.skip(f"{elsewhere.name} arrays are not moved by an operator")
    x, w = support.there((X, W), elsewhere.name)
    with tp.set_backend("numpy"), tp.trace() as log:
        y = tp.rms_norm(x, w)
    assert elsewhere.owns(y)
    assert_matches(support.back(y), REFERENCES["rms_norm"](X, W), "float32", tolerance=8)
    assert (log[0].library, len(log[0].transfers)) == ("numpy", 3)


def test_arrays_of_several_libraries_meet_in_a_backend(elsewhere):
    if elsewhere.lazy:
        pytest.skip(f"{elsewhere.name} arrays are not moved by an operator")
    w = support.there(W, elsewhere.name)
    with tp.set_backend("numpy"):
        y = tp.rms_norm(X, w)
        assert type(y) is np.ndarray  # as the first
        y = tp.rms_norm(support.there(X, elsewhere.name), W)
        assert elsewhere.owns(y)


def test_arrays_of_several_libraries_in_one_call_are_an_error(elsewhere):
    w = support.there(W, elsewhere.name)
    # A scope would compute a lazy array, now or when its result is taken back.
    remedy = r"with tensorops\.to_backend" if elsewhere.lazy else r".*: with .*set_backend\('numpy'\): …"
    message = rf"^rms_norm: x is an array of numpy, but weight of {elsewhere.name}; convert one of them.*{remedy}$"
    with pytest.raises(TypeError, match=message):
        tp.rms_norm(X, w)
    with pytest.raises(TypeError, match=message):
        tp.rms_norm.generic(X, w)
    with pytest.raises(TypeError, match=message):
        tp.rms_norm.explain(X, w)
    message = rf"several libraries in one call: numpy and {elsewhere.name}; .*to_backend\(arrays, 'numpy'\)$"
    with tp.set_backend("numpy"), pytest.raises(TypeError, match=message):  # a block does not help here
        tp.get_namespace(X, None, w)
    assert tp.get_namespace(*tp.to_backend((X, None, w), "numpy")) is tp.get_namespace(X)


def test_several_results_come_back(elsewhere):
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    with tp.set_backend(support.backend_of(elsewhere.name).name):
        packed, scales, biases = tp.quantize(w, bits=4, group_size=32)
        codes, _, none = tp.quantize(w, bits=8, group_size=32, mode="symmetric")
    assert [type(a) for a in (packed, scales, biases, codes)] == [np.ndarray] * 4
    assert [a.dtype.name for a in (packed, scales, biases)] == ["uint8", "float32", "float32"]
    assert none is None


def test_integers_go_to_the_backend_and_numbers_of_a_generator_too(elsewhere):
    with tp.set_backend(support.backend_of(elsewhere.name).name):
        y = tp.embedding(np.asarray([1, 0, 1]), X)
        drawn = tp.sample(X, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(y, X[[1, 0, 1]])
    np.testing.assert_array_equal(drawn, tp.sample(X, rng=np.random.default_rng(3)))
    assert drawn.dtype.kind == "i"


def test_results_come_back_to_their_device():
    row = support.require("array_api_strict")
    device = row.xp.Device("device1")
    with tp.set_backend("numpy"):
        y = tp.silu(row.xp.ones(3, device=device))
    assert y.device == device
    with tp.set_backend("array_api_strict"):
        y = tp.rms_norm(support.there(X, "array_api_strict").to_device(device), W)
    assert y.device == device
    assert_matches(support.back(y), REFERENCES["rms_norm"](X, W), "float32", tolerance=8)


def test_arrays_already_there_do_not_move(elsewhere):
    x = support.there(X, elsewhere.name)
    with tp.set_backend(support.backend_of(elsewhere.name).name), tp.trace() as log:
        y = tp.silu(x)
    assert elsewhere.owns(y)
    assert log[0].transfers == ()


def test_no_lazy_graph_is_computed_to_move_it():
    support.require("dask")
    import dask.array as da

    def never(block):
        raise AssertionError("a chunk was computed")

    x = da.ones((4, 4), chunks=2).map_blocks(never, dtype="float64", meta=np.empty((0, 0)))
    with tp.set_backend("numpy"):
        for call in (tp.silu, tp.silu.explain):
            with pytest.raises(
                TypeError, match=r"^silu: x is an array of dask, .*would compute.*to_backend\(x, 'numpy'\)"
            ):
                call(x)
    assert tp.silu.explain(x).kernel == "dask"
    assert tp.silu(x).shape == (4, 4)
    with pytest.raises(AssertionError, match="a chunk was computed"):
        tp.to_backend(x, "numpy")  # requested explicitly


def test_a_gradient_is_not_dropped_by_moving():
    support.require("torch")
    import torch

    x = torch.ones(3, requires_grad=True)
    with tp.set_backend("numpy"):
        with pytest.raises(TypeError, match=r"^silu: x: a torch tensor that requires grad .*x\.detach\(\)"):
            tp.silu(x)
        with torch.no_grad():
            assert not tp.silu(x).requires_grad
        assert isinstance(tp.silu(x.detach()), torch.Tensor)
    with pytest.raises(TypeError, match="requires grad"):
        tp.to_backend({"x": x}, "numpy")
    assert tp.silu(x).requires_grad


def test_a_traced_array_is_not_moved():
    support.require("jax")
    import jax

    @jax.jit
    def f(x):
        with tp.set_backend("numpy"):
            return tp.silu(x)

    with pytest.raises(TypeError, match=r"^silu: x: a traced jax array has no values yet"):
        f(jax.numpy.ones(3))
    with pytest.raises(TypeError, match="a traced jax array has no values yet"):
        jax.grad(lambda x: tp.to_backend(x, "numpy").sum())(1.0)


def test_jax_refuses_what_it_would_narrow():
    support.require("jax")
    import jax

    assert not jax.config.jax_enable_x64
    with tp.set_backend("jax"):
        with pytest.raises(TypeError, match=r"^silu: x: jax holds float64 only if jax_enable_x64 is set"):
            tp.silu(np.ones(3))
        with pytest.raises(TypeError, match=r"^embedding: ids: jax holds int64 values this large only if"):
            tp.embedding(np.asarray([2**40]), X)
        with jax.enable_x64(True):
            assert tp.silu(np.ones(3)).dtype == np.float64
    for values in ([2**31], [-(2**31) - 1]):
        with pytest.raises(TypeError, match="jax holds int64 values this large only"):
            tp.to_backend(np.asarray(values), "jax")
    kept = tp.to_backend(np.asarray([2**31 - 1, -(2**31)]), "jax")
    assert kept.tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(TypeError, match="jax holds uint64 values this large only"):
        tp.to_backend(np.asarray([2**32], dtype=np.uint64), "jax")


# --- not an array ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([1.0, 2.0], "list"),
        ((1.0, 2.0), "tuple"),
        (1.0, "float"),
        (1, "int"),
        ("x", "str"),
        (None, "NoneType"),
        (np.random.default_rng(0), "numpy.random._generator.Generator"),
    ],
)
def test_what_is_no_array_is_refused_by_name(value, name):
    expected = f"is {re.escape(name)}, expected an array of cupy, .*jax, .*numpy"
    for call in (tp.rms_norm, tp.rms_norm.generic, tp.rms_norm.explain):
        with pytest.raises(TypeError, match=rf"^rms_norm: x {expected}"):
            call(value)
    if value is not None:
        with pytest.raises(TypeError, match=rf"^rms_norm: weight {expected}"):
            tp.rms_norm(X, value)
        with tp.set_backend("numpy"), pytest.raises(TypeError, match=rf"^rms_norm: weight {expected}"):
            tp.rms_norm(X, value)


def test_rng_is_a_generator_or_an_array():
    with pytest.raises(TypeError, match=r"^sample: rng is numpy\.random\.mtrand\.RandomState, expected a seed"):
        tp.sample(X, rng=np.random.RandomState(0))
    with pytest.raises(ValueError, match=r"^sample: rng is missing"):
        tp.sample(X)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_odd_subclasses_are_refused():
    """Twice, as the look-up by type must not remember them."""
    for odd, name in ((np.matrix([[1.0, 2.0]]), "matrix"), (np.ma.masked_array([1.0], [True]), "MaskedArray")):
        for _ in range(2):
            with pytest.raises(TypeError, match=rf"^silu: x: {name} is not supported; pass "):
                tp.silu(odd)
            with pytest.raises(TypeError, match=rf"^rms_norm: weight: {name} is not supported; pass "):
                tp.rms_norm(X, odd)
            with pytest.raises(TypeError, match=rf"^{name} is not supported"):
                tp.to_backend(odd, "numpy")


def test_plain_subclasses_are_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=X.shape)
    mapped[:] = X
    np.testing.assert_array_equal(tp.rms_norm(mapped, W), tp.rms_norm.generic(X, W))
    assert tp.rms_norm.explain(mapped).refused == {"cpu": "x is not a numpy.ndarray"}


def test_arrays_of_a_library_that_cannot_be_used_are_refused_clearly(monkeypatch):
    for table in ("LIBRARIES", "_BY_PACKAGE", "_BY_TYPE"):
        monkeypatch.setattr(_known, table, getattr(_known, table).copy())
    array_type = type("Array", (), {"__module__": "unusable.array"})
    module = types.ModuleType("unusable")
    module.Array = array_type
    monkeypatch.setitem(sys.modules, "unusable", module)
    row = dataclasses.replace(Library.unusable("unusable", "it is too old"), array_type="unusable:Array")
    _known.register_library(row)
    with pytest.raises(TypeError, match=r"^silu: x is an array of unusable, and it is too old$"):
        tp.silu(array_type())
    with pytest.raises(TypeError, match=r"^unusable arrays cannot be used: it is too old$"):
        tp.get_namespace(array_type())


# --- get_namespace and to_backend --------------------------------------------------------------------


def test_get_namespace_is_that_of_the_arrays_or_of_the_backend(library):
    x = support.there(X, library.name)
    xp = tp.get_namespace(x, None)
    assert xp is library.xp
    assert library.owns(xp.exp(x))
    with tp.set_backend("numpy"):
        assert tp.get_namespace(x) is xp
    with tp.set_backend(support.backend_of(library.name).name):
        assert tp.get_namespace() is tp.get_namespace(None) is library.xp


def test_get_namespace_without_backend_is_that_of_numpy():
    assert tp.get_namespace() is LIBRARIES["numpy"].xp
    with pytest.raises(TypeError, match=r"^expected an array of .*numpy.*; got list$"):
        tp.get_namespace([1.0])


def test_a_module_is_no_name_of_a_backend():
    with pytest.raises(ValueError, match=r"given by its name, such as 'numpy', not as the module numpy$"):
        tp.set_backend(np)


class Pair(NamedTuple):
    first: object
    second: object


@dataclasses.dataclass(frozen=True)
class Block:
    weight: object
    name: str
    rest: dict
    derived: int = dataclasses.field(init=False, default=7)


def test_to_backend_takes_nested_structures(library):
    tree = {
        "list": [X, 3, "name", None],
        "tuple": (W, (X,)),
        "named": Pair(X, {"deep": W}),
        "block": Block(W, "name", {"x": X}),
        "ordered": collections.OrderedDict(b=X, a=1),
        "default": collections.defaultdict(list, w=W),
        "function": np.tanh,
    }
    moved = tp.to_backend(tree, support.backend_of(library.name).name)
    assert list(moved) == list(tree)
    assert moved["list"][1:] == [3, "name", None]
    assert isinstance(moved["named"], Pair)
    assert isinstance(moved["block"], Block)
    assert (moved["block"].name, moved["block"].derived) == ("name", 7)
    assert isinstance(moved["ordered"], collections.OrderedDict)
    assert list(moved["ordered"]) == ["b", "a"]
    assert moved["default"]["absent"] == []
    assert moved["function"] is np.tanh
    found = [
        (moved["list"][0], X),
        (moved["tuple"][0], W),
        (moved["tuple"][1][0], X),
        (moved["named"].first, X),
        (moved["named"].second["deep"], W),
        (moved["block"].weight, W),
        (moved["block"].rest["x"], X),
        (moved["ordered"]["b"], X),
        (moved["default"]["w"], W),
    ]
    for array, original in found:
        assert library.owns(array)
        there_and_back = support.back(array)
        assert there_and_back.dtype == original.dtype
        np.testing.assert_array_equal(there_and_back, original)
    assert tree["list"][0] is X


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_to_backend_keeps_dtype_shape_and_values(library, dtype, shape):
    if dtype in tp.testing.DTYPES and dtype not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no {dtype}")
    original = np.arange(6.0)[: int(np.prod(shape))].reshape(shape)
    original = original.astype(tp.testing.DTYPES.get(dtype, dtype))
    with support.holding(library.name, dtype):
        moved = tp.to_backend(original, support.backend_of(library.name).name)
        assert library.owns(moved)
        assert tuple(moved.shape) == shape
        returned = tp.to_backend(moved, "numpy")
    assert type(returned) is np.ndarray
    assert returned.dtype == original.dtype
    np.testing.assert_array_equal(returned, original)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda a: a[::-1, ::-2], id="negative"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a.astype(a.dtype.newbyteorder()), id="byteswapped"),
        pytest.param(lambda a: np.broadcast_to(a[0], (3, 4)), id="broadcast"),
        pytest.param(lambda a: np.frombuffer(b"?" + a.tobytes(), a.dtype, offset=1), id="misaligned"),
    ],
)
def test_to_backend_takes_any_layout(library, layout):
    original = layout(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    original.flags.writeable = False
    moved = tp.to_backend(original, support.backend_of(library.name).name)
    np.testing.assert_array_equal(support.back(moved), original)


def test_a_move_that_was_asked_for_is_traced(elsewhere):
    with tp.trace() as log:
        moved = tp.to_backend((X, W), support.backend_of(elsewhere.name).name)
        tp.to_backend(moved, support.backend_of(elsewhere.name).name)
    assert [(r.operator, r.library, len(r.transfers)) for r in log] == [("to_backend", elsewhere.name, 1)] * 2
    assert [r.transfers[0].nbytes for r in log] == [X.nbytes, W.nbytes]
    assert (log[0].transfers[0].source, log[0].transfers[0].target) == ("numpy", elsewhere.name)


@pytest.mark.parametrize(
    ("library", "array"),
    [
        ("array_api_strict", X.astype(np.float16)),
        ("jax", np.asarray([1j])),
        ("mlx", np.asarray([1j])),
        ("mlx", np.asarray([None])),
        ("torch", np.asarray(["a"])),
    ],
    ids=lambda value: value if isinstance(value, str) else value.dtype.name,
)
def test_a_dtype_that_is_not_held_is_an_error(library, array):
    support.require(library)
    with pytest.raises(TypeError, match=array.dtype.name.rstrip("0123456789")):
        tp.to_backend(array, library)
    with tp.set_backend(library), pytest.raises(TypeError, match=r"^silu: x"):
        tp.silu(array)


# --- containers --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Derived:
    w: np.ndarray
    scale: dataclasses.InitVar[float]
    cached: np.ndarray = dataclasses.field(init=False)

    def __post_init__(self, scale):
        object.__setattr__(self, "cached", self.w * scale)


class Parameters(dict):
    @property
    def w(self):
        return self["w"]


def test_to_backend_keeps_what_containers_are(elsewhere):
    name = support.backend_of(elsewhere.name).name
    x = np.ones(3, dtype=np.float32)
    tree = {"n": collections.Counter(a=2), "d": Derived(x, 2.0), "p": Parameters(w=x), "tied": [x, x]}
    tree["o"] = collections.OrderedDict(b=x, a=x)
    moved = tp.to_backend(tree, name)
    assert moved["n"] == collections.Counter(a=2)
    assert elsewhere.owns(moved["d"].cached)
    np.testing.assert_array_equal(support.back(moved["d"].cached), [2, 2, 2])
    assert type(moved["p"]) is Parameters
    assert elsewhere.owns(moved["p"].w)
    assert list(moved["o"]) == ["b", "a"]
    assert moved["tied"][0] is moved["tied"][1] is moved["p"].w
    assert tree["d"].w is x, "the original is as it was"
