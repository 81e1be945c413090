"""The kernels in native/gpu on an emulated GPU with warps, and that the emulation finds defects of kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import emulation
import gpu_cases
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.plans import Launch, Plan, Result
from tensorops.testing import DTYPES

if not emulation.compiler():
    pytest.skip("there is no C++ compiler: neither CXX nor g++ nor clang++", allow_module_level=True)

# Device, layout, dtype, and how many different programs of an operator to run
PARTS = [
    ("cuda", "dense", "bfloat16", 1),
    ("cuda", "hostile", "float32", 1),
    ("cuda", "strided", "float16", 1),
    ("no-shuffles", "dense", "float32", 1),
    ("cuda", "dense", "float32", 3),
]
PAIRS = [
    pytest.param(name, *part, marks=[pytest.mark.exhaustive] * ((i + j) % len(PARTS) > 0))
    for (i, name), (j, part) in itertools.product(enumerate(gpu_cases.OPERATORS), enumerate(PARTS))
]


@pytest.mark.parametrize(("name", "device", "layout", "dtype", "some"), PAIRS)
def test_some_cases(name, device, layout, dtype, some):
    """A short run has one part of each operator; `test_tensors_on_an_emulated_gpu` has each operator, too."""
    calls = gpu_cases.calls_of(gpu_cases.OPERATORS[name], dtype, gpu_cases.DEVICES[device], layout, some)
    emulation.compile_all([call.plan for call in calls])
    outcomes = [gpu_cases.check(call, emulation.run) for call in calls]
    pairs = zip(calls, outcomes, strict=True)
    failed = [f"{call.dtype} {o.case}: {o.message}" for call, o in pairs if o.status != "passed"]
    assert not failed, "\n".join(failed)
    assert outcomes


# --- what it finds -----------------------------------------------------------------------------------

THREADS = 64


@pytest.fixture
def kernel(tmp_path, monkeypatch, request):
    """A function that runs a kernel over x and y, of `THREADS` elements, given its body; returns y."""
    for path in sources.FOLDER.glob("*.h"):
        (tmp_path / path.name).symlink_to(path)
    host = (sources.FOLDER / "host.cpp").read_text()
    (tmp_path / "host.cpp").write_text(host)
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    monkeypatch.setattr(sources, "program", sources.program.__wrapped__)  # keeps no text of another test
    defines = {"DOUBLE": 0, "VEC": 4, "THREADS": THREADS, "ROWS": 1, "KEPT": 0, "WARP": 32, "ALIGNED": 1}

    def run(body, x, y="float32", parameters="const float *x, float *y", n=THREADS, **options):
        (tmp_path / "tried.cl").write_text(f"KERNEL(tried)({parameters}) {{\n{body}\n}}\n")
        launch = Launch("tried", "tried", defines, 1, THREADS, ("x", "y"))
        return emulation.run(Plan({"y": Result(y, (n,))}, (launch,)), {"x": x}, **options)["y"]

    return run


X = np.arange(1, THREADS + 1, dtype=np.float32)
SCRATCH = "LOCAL_ARRAY(real, scratch, BLOCK); const int i = thread_id();\n"
NEXT = "scratch[(i + 1) % BLOCK]"


def test_no_defect_is_reported_in_a_correct_kernel(kernel):
    y = kernel(f"{SCRATCH} scratch[i] = x[i]; BARRIER(); y[i] = {NEXT} + shuffle_xor(x[i], 16);", X)
    np.testing.assert_array_equal(y, np.roll(X, -1) + X.reshape(-1, 2, 16)[:, ::-1].reshape(-1))


@pytest.mark.parametrize(("some", "expected"), [(0, 0), (1, 1)])
def test_no_defect_is_reported_where_any_thread_decides(kernel, some, expected):
    body = f"{SCRATCH} const bool any = block_any(x[i] == {THREADS * some}, scratch); if (any) BARRIER(); y[i] = any;"
    assert (kernel(body, X) == expected).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{SCRATCH} scratch[i] = x[i]; y[i] = {NEXT};", "y depends on the order .* a barrier is missing"),
        (
            f"{SCRATCH} scratch[i] = x[i]; BARRIER(); real a = {NEXT}; scratch[i] = -a; BARRIER(); y[i] = a;",
            "y depends on the order",
        ),
        (f"{SCRATCH} if (i < 16)\nBARRIER(); y[i] = x[i];", r"threads 0 to 15 at barrier `BARRIER\(\); y.*ended"),
        (
            f"{SCRATCH} if (i < 32)\nBARRIER();\nelse\nBARRIER(); y[i] = x[i];",
            r"threads 0 to 31 at barrier .*threads 32 to 63 at barrier",
        ),
        ("const int i = thread_id(); if (i % 2) y[i] = shuffle_xor(x[i], 1);", "wait for others that do not arrive"),
        ("const int i = thread_id(); y[i] = shuffle_xor(x[i], 32);", "asks for the value of thread 32, .* warps of 32"),
        ("const int i = thread_id(); y[i] = x[i + 1];", "4 bytes? after|0 bytes after|0 bytes to the right|sanitizer"),
        ("const int i = thread_id(); y[i] = x[i - 1];", "4 bytes before|sanitizer"),
        ("const int i = thread_id(); y[i + 1] = x[i];", "0 bytes after|sanitizer"),
        ("const int i = thread_id(); ((float *)x)[i] = 0; y[i] = 0;", "x is not a result, but was written"),
        ("const int i = thread_id(); *(float *)(size_t)(64 + i) = x[i];", "which is in no array|sanitizer"),
        ("LOCAL_ARRAY(real, scratch, 16384); scratch[thread_id()] = 0; y[0] = 0;", "a block shares 65536 bytes"),
    ],
)
def test_defects_are_reported(kernel, body, message):
    with pytest.raises(emulation.EmulationError, match=message):
        kernel(body, X)


def test_a_defect_is_reported_in_vector_accesses(kernel):
    if "undefined" not in emulation.SANITIZERS:
        pytest.skip("reported by a sanitizer: .ci/gpu-emulated")
    with pytest.raises(emulation.EmulationError, match="misaligned"):
        kernel("const int i = thread_id(); store_f32(y, load_f32(x + 1));", X)


def test_what_a_kernel_did_not_write_is_no_number(kernel):
    """Results, shared arrays: a defect that would show as right by chance in memory of zeros."""
    y = kernel(f"{SCRATCH} if (i > 0) y[i] = scratch[i];", X)
    assert np.isnan(y).all()


def test_defects_of_plans_are_reported(kernel):
    with pytest.raises(emulation.EmulationError, match=r"parameter 1 is float64\*, .*'y', .*float32"):
        kernel("", X, parameters="const float *x, double *y")
    with pytest.raises(emulation.EmulationError, match=r"parameter 0 is float32\*"):  # it could write its input
        kernel("", X, parameters="float *x, float *y")
    with pytest.raises(emulation.EmulationError, match="has 3 parameters, the plan 2 arguments"):
        kernel("", X, parameters="const float *x, float *y, int n")
    with pytest.raises(emulation.EmulationError, match="is not valid C"):
        kernel("y[0] = unknown;", X)


# --- conversions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "storage"), [("float16", "half_bits"), ("bfloat16", "bfloat16_bits")])
def test_every_half_precision_number_is_read(kernel, dtype, storage):
    x = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])
    get = "get_f16" if dtype == "float16" else "get_bf16"
    y = kernel(
        f"for (int i = thread_id(); i < 65536; i += BLOCK) y[i] = {get}(x + i);",
        x, parameters=f"const {storage} *x, float *y", n=2**16,
    )  # fmt: skip
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize(("dtype", "storage"), [("float16", "half_bits"), ("bfloat16", "bfloat16_bits")])
def test_numbers_are_rounded_to_the_nearest_of_half_precision(kernel, dtype, storage):
    """Each number, half way to the next, and the float32 on either side of both."""
    every = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype]).astype(np.float32)
    with np.errstate(all="ignore"):
        between = (every[:-1] + every[1:]) / 2
        near = np.concatenate([every, between])
        x = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
        x = np.concatenate([x, np.float32([65519.996, 65520, 1e38, 3.4e38, 1e-45, -1e-45])])
        expected = x.astype(DTYPES[dtype])
    put = "put_f16" if dtype == "float16" else "put_bf16"
    y = kernel(
        f"for (int i = thread_id(); i < {x.size}; i += BLOCK) {put}(y + i, x[i]);",
        x, dtype, f"const float *x, {storage} *y", x.size,
    )  # fmt: skip
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(np.signbit(y)[finite], np.signbit(expected)[finite])
