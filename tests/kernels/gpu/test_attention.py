"""Attention in OpenCL: spans of keys, what lengths and pages make it read, layouts, numbers beyond the range."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import Device, Operand, Plan, contiguous_strides
from tensorops.kernels.opencl import _launch
from tensorops.testing import DTYPES, REFERENCES, assert_matches

OPERATOR = tp.scaled_dot_product_attention
REFERENCE = REFERENCES["scaled_dot_product_attention"]
GPU = Device("gpu", 132, 32, 49152, 1024, True)
FEW, MANY = 1, 30  # queries: their keys are streamed, or taken in tiles


def qkv(rng, *, b=1, hq=2, hkv=1, tq=1, tk=9, d=16, dv=None, dtype="float32"):
    shapes = (b, hq, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv or d)
    return tuple(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)


@pytest.fixture
def units(geometry, monkeypatch):
    """Return a function that gives the device a number of cores: the more, the more spans of keys there are."""

    def give(n):
        facts = dataclasses.replace(geometry, units=n)
        monkeypatch.setattr(_launch, "facts_of", lambda device: facts)
        _launch.forget_calls()
        return facts

    yield give
    _launch.forget_calls()


def attend_there(*args, **options):
    """Compute from PyOpenCL arrays, with the kernel and no other implementation."""
    with tp.trace() as log:
        y = OPERATOR(*args, **options)
    assert [record.kernel for record in log] == ["opencl"], OPERATOR.explain(*args, **options)
    return support.back(y)


def attend(*args, **options):
    there = support.on_opencl((args, options))
    return attend_there(*there[0], **there[1])


def assert_right(args, dtype="float32", tolerance=32, **options):
    """Assert that the kernel agrees with the reference; half types are rounded once."""
    y, expected = attend(*args, **options), REFERENCE(*args, **options)
    assert_matches(y, expected, dtype, tolerance=1 if dtype == "float16" else tolerance, scale_axis=None)


def surrounded(x, axis=0):
    """Return an array on the device that is a view: what comes before and after it is NaN."""
    pad = [(2, 2) if i == axis else (0, 0) for i in range(x.ndim)]
    larger = support.there(np.pad(x, pad, constant_values=np.nan), "pyopencl")
    return larger[(slice(None),) * axis + (slice(2, -2),)]


def plan(q, k, v, device=GPU, **options) -> Plan | str:
    """Plan a call for arrays of such shapes, in C order unless they are operands."""
    q, k, v = (x if isinstance(x, Operand) else Operand("float32", x, contiguous_strides(x)) for x in (q, k, v))
    defaults = dict.fromkeys(("mask", "window", "softcap", "sinks", "lengths", "page_table", "kv_format"))
    return PLANNERS[OPERATOR](device, q, k, v, **{**defaults, "is_causal": False, "scale": 1.0, **options})


# --- spans of keys -----------------------------------------------------------------------------------


@pytest.mark.costly(2)
@pytest.mark.parametrize("queries", [FEW, MANY])
@pytest.mark.parametrize(("cores", "launches"), [(1, 1), (4, 2), (100, 2)])
def test_keys_in_spans(units, cores, launches, queries, rng):
    """Some are longer than a sequence, some empty. Their number follows from that of the cores."""
    facts = units(cores)
    args = qkv(rng, b=3, hq=4, hkv=2, tq=queries, tk=1500)
    found = plan(*(x.shape for x in args), facts)
    assert len(found.launches) == (launches if queries == FEW or facts.kind == "gpu" or cores > 1 else 1)
    sinks, lengths = rng.standard_normal(4).astype(np.float32), np.array([1500, 40, 0])
    assert_right(args)
    assert_right(args, lengths=lengths, sinks=sinks)
    assert_right(args, lengths=lengths, is_causal=True, window=300)


def test_more_cores_make_more_spans():
    parts = [
        plan((1, 8, 1, 128), (1, 8, 65536, 128), (1, 8, 65536, 128), dataclasses.replace(GPU, units=n))
        for n in (1, 8, 64)
    ]
    assert [len(p.launches) for p in parts] == [1, 2, 2]
    spans = [p.temporaries["parts"].shape[1] for p in parts[1:]]
    assert spans == [4, 32]
    assert [p.launches[0].groups for p in parts] == [8, 8 * 4, 8 * 32]


# --- lengths and pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [FEW, MANY])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "int8"])
def test_lengths_out_of_range_are_clamped(geometry, queries, dtype, rng):
    """What lies around the keys is not read."""
    q, k, v = qkv(rng, b=3, hq=2, hkv=2, tq=queries, tk=70)
    info = np.iinfo(dtype)
    for options in ({}, {"is_causal": True, "window": 20}):
        y = attend_there(
            *(surrounded(x) for x in (q, k, v)),
            lengths=support.there(np.array([info.max, info.min, 33], dtype), "pyopencl"),
            **options,
        )
        expected = REFERENCE(q, k, v, lengths=np.array([70, 0, 33]), **options)
        assert_matches(y, expected, "float32", tolerance=32, scale_axis=None)


@pytest.mark.costly(2)
@pytest.mark.parametrize("queries", [FEW, MANY])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_pages_out_of_range_are_the_nearest(geometry, queries, dtype, rng):
    q = qkv(rng, hq=4, hkv=2, tq=queries)[0]
    pages_k, pages_v = (rng.standard_normal((5, 2, 7, 16)).astype(np.float32) for _ in range(2))
    info = np.iinfo(dtype)
    table = np.array([[3, info.max, 0, 5, info.min, 2]], dtype)
    nearest = np.array([[3, 4, 0, 4, 0, 2]])
    for options in ({}, {"is_causal": True, "lengths": np.array([31])}):
        there = support.there(options, "pyopencl")
        y = attend_there(*support.there([q], "pyopencl"), surrounded(pages_k), surrounded(pages_v),
                         page_table=support.there(table, "pyopencl"), **there)  # fmt: skip
        expected = REFERENCE(q, pages_k, pages_v, page_table=nearest, **options)
        assert_matches(y, expected, "float32", tolerance=32, scale_axis=None)


@pytest.mark.parametrize("queries", [FEW, MANY])
def test_what_no_query_attends_to_is_not_read(units, queries, rng):
    """Neither beyond the lengths, nor before the windows of all queries, however many spans there are."""
    units(50)
    q, k, v = qkv(rng, b=2, tq=queries, tk=900)
    options = {"lengths": np.array([800, 650]), "is_causal": True, "window": (400, 0)}
    expected = REFERENCE(q, k, v, **options)
    for x, odd in itertools.product((k, v), (np.nan, np.inf)):
        x[0, :, 800:], x[1, :, 650:] = odd, odd
        x[0, :, : 800 - queries - 400], x[1, :, : 650 - queries - 400] = odd, odd
    assert_matches(attend(q, k, v, **options), expected, "float32", tolerance=32, scale_axis=None)


# --- shapes and layouts ------------------------------------------------------------------------------


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "queries", [FEW, 7, MANY, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (3, 9, 70))]
)
@pytest.mark.parametrize(("d", "dv"), [(5, 7), (300, 40)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_fill_no_vector(geometry, queries, d, dv, dtype, rng):
    support.on_opencl_held(dtype)
    for keys in (1, 33, 150):
        assert_right(qkv(rng, hq=1, tq=queries, tk=keys, d=d, dv=dv, dtype=dtype), dtype)


@pytest.mark.parametrize("queries", [FEW, MANY])
def test_layouts(geometry, queries, rng):
    """Axes in any order, in parts of larger arrays; masks with steps, and broadcast."""
    xp = support.require("pyopencl").xp
    q, k, v = qkv(rng, b=2, hq=4, hkv=2, tq=queries, tk=40)
    by_position = [surrounded(np.ascontiguousarray(x.swapaxes(1, 2)), axis=1) for x in (q, k, v)]
    there = [xp.permute_dims(x, (0, 2, 1, 3)) for x in by_position]
    wide = rng.standard_normal((2, 1, 40, 3 * queries)).astype(np.float32)
    mask = np.ascontiguousarray(wide[..., ::3]).swapaxes(2, 3)
    for kind in (lambda x: x, lambda x: x > 0):
        masks = xp.permute_dims(support.there(kind(wide), "pyopencl")[..., ::3], (0, 1, 3, 2))
        y = attend_there(*there, mask=masks)
        assert_matches(y, REFERENCE(q, k, v, mask=kind(mask)), "float32", tolerance=32, scale_axis=None)
    backwards = attend_there(there[0], there[1][:, :, ::-1, :], there[2][:, :, ::-1, :], is_causal=True)
    expected = REFERENCE(q, k[:, :, ::-1], v[:, :, ::-1], is_causal=True)
    assert_matches(backwards, expected, "float32", tolerance=32, scale_axis=None)


def test_what_is_refused():
    q = (1, 2, 3, 8)
    strided = Operand("float32", q, (48, 24, 1, 3))
    assert plan(strided, q, q) == "the features of q are not adjacent"
    assert plan((1, 2, 3, 1025), (1, 2, 3, 1025), q) == "q has 1025 features, more than 1024"
    assert "no keys" in plan(q, (1, 2, 0, 8), (1, 2, 0, 8))
    mask = Operand("float64", (3, 3), (3, 1))
    assert "float64" in plan(q, q, q, mask=mask)
    assert "local memory" in plan(
        (1, 2, 30, 64), (1, 2, 30, 64), (1, 2, 30, 64), dataclasses.replace(GPU, local_bytes=4096)
    )
    many = Operand("int32", (1, 2**27), (2**27, 1))
    assert "2**31" in plan(q, (9, 2, 16, 8), (9, 2, 16, 8), page_table=many)
    blocks = Operand("uint8", (1, 2, 5, 34), (340, 170, 34, 1))
    assert plan((1, 2, 3, 32), blocks, blocks, kv_format="q8_0") == "the kernel reads no blocks of format 'q8_0'"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dim", [1, 8, 64, 80, 128, 192, 256, 512, 1024])
def test_blocks_fit_the_device(dim, dtype):
    """Threads and local memory of all launches; enough of the former cover all features."""
    for queries, group in itertools.product((1, 3, 16, 17, 64, 4096), (1, 7)):
        q, k = (2, 4 * group, queries, dim), (2, 4, 5000, dim)
        found = plan(*(Operand(dtype, s, contiguous_strides(s)) for s in (q, k, k)))
        for launch in found.launches:
            d = launch.defines
            assert launch.block == d["THREADS"] * d["ROWS"] <= GPU.max_block
            assert launch.groups * launch.block >= 1
        d, rows = found.launches[0].defines, group * queries
        per_block = d["QUERIES"] if rows <= 8 else d["ROWS"] * d["ROW_VECTORS"] * d["VEC"]
        spans = found.temporaries["parts"].shape[1] if found.temporaries else 1
        assert found.launches[0].groups == 2 * 4 * -(-rows // per_block) * spans


@pytest.mark.parametrize(("dtype", "masked", "lead", "queries"), [
    ("float16", False, 0, 4), ("float16", True, 0, 2), ("bfloat16", False, 1, 2), ("float32", True, 1, 4),
    ("float64", False, 1, 2),
])  # fmt: skip
def test_rows_of_a_block_fit_registers(dtype, masked, lead, queries):
    """With four rows NVRTC spills registers, see .ci/gpu-compiled, if vectors are not aligned or there is a mask."""
    q = Operand(dtype, (1, 4, 1, 64), (256, 64, 64, 1), lead, 8 if lead else 16)
    mask = Operand("float32", (1, 1, 1, 64), (64, 64, 64, 1)) if masked else None
    kv = Operand(dtype, (1, 1, 64, 64), contiguous_strides((1, 1, 64, 64)))
    assert plan(q, kv, kv, mask=mask).launches[0].defines["QUERIES"] == queries


# --- numbers -----------------------------------------------------------------------------------------


def exact(q, k, v, *, softcap=None, sinks=None, mask=None, scale=None, is_causal=False):
    """The formula in float64, whose range holds the products of any two numbers of float32."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("bhid,bjd->bhij", q, k[:, 0]) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * np.tanh(s / softcap)
    s = s if mask is None else s + mask
    if is_causal:
        s[..., np.arange(s.shape[-1]) > np.arange(s.shape[-2])[:, None] + s.shape[-1] - s.shape[-2]] = -np.inf
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (*s.shape[:3], 1))], axis=-1)
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True))[..., : v.shape[2]] @ v


@pytest.mark.costly(2)
@pytest.mark.parametrize("size", [1e20, 1e36])
@pytest.mark.parametrize(("queries", "keys"), [(FEW, 9), (3, 900), (MANY, 150), (MANY, 900)])
def test_products_beyond_the_range(units, size, queries, keys, rng):
    """The softmax of finite scores is finite, in one span of keys or several with units of their own."""
    units(20)
    large = np.where(np.arange(max(queries, keys)) % 2, 1.0, size)[:, None]
    q, k = (rng.standard_normal((1, h, n, 16)) * large[:n] for h, n in ((2, queries), (1, keys)))
    k[:, :, : keys // 2] = rng.standard_normal((1, 1, keys // 2, 16))  # the first spans stay within the range
    args = *(x.astype(np.float32) for x in (q, k)), rng.standard_normal((1, 1, keys, 16)).astype(np.float32)
    sinks, mask = np.float32([1, 2]), np.linspace(-3, 3, keys).astype(np.float32)
    for options in (
        {},
        {"softcap": 5.0},
        {"scale": 1e30},
        {"is_causal": True},
        {"sinks": sinks},
        {"softcap": 2.0, "mask": mask},
    ):
        y = attend(*args, **options)
        np.testing.assert_allclose(y, exact(*args, **options), rtol=0, atol=1000 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("queries", [FEW, MANY])
@pytest.mark.parametrize("keys", [9, 900])
def test_values_at_the_end_of_the_range(units, queries, keys, rng):
    """A sum of weights times values overflows unless it is a mean."""
    units(20)
    q, k, v = qkv(rng, tq=queries, tk=keys)
    v = np.minimum(np.abs(v), 3) * np.float32(1e38)
    v[..., 0] = 3e38
    assert_right((q, k, v))
