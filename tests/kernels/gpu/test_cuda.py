"""The provider `cuda` up to the driver: what is compiled, packed, launched, kept and refused. No test needs a GPU.

A fake driver records launches; what kernels compute is tested on OpenCL devices and by emulation.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import itertools
import sys

import numpy as np
import pytest

import fake_cuda
import gpu_compiled
import support
import tensorops as tp
from fake_cuda import installed, on_gpu, take_tensors_for_cudas
from tensorops import _providers
from tensorops.backends.settings import Settings, activate
from tensorops.kernels._gpu import normalization
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import Launch, Operand, Plan, Result
from tensorops.kernels.cuda import _compile, _driver, _launch
from tensorops.testing import DTYPES
from tensorops.testing.conformance import subjects

ELEMENTS = {"DOUBLE": 0, "X": "f32"}
tp.rms_norm.kernels  # noqa: B018 - loads every provider, before any driver is replaced


@pytest.fixture
def nvrtc(monkeypatch, tmp_path):
    """A fake compiler, and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake = fake_cuda.Nvrtc()
    monkeypatch.setattr(_compile, "nvrtc", lambda: fake)
    return fake


@pytest.fixture
def driver(cupy, nvrtc, monkeypatch):
    """A fake driver in place of NVIDIA's, for arrays of a fake CuPy."""
    return installed(fake_cuda.Driver(lambda: cupy.current), monkeypatch)


@pytest.fixture
def kernel_of(monkeypatch):
    """Register an operator's kernel of `cuda` for one test, with a planner; return it."""

    def register(operator, planner):
        def planned(*args, **kwargs):
            plan = planner(*args, **kwargs)
            if isinstance(plan, Plan) and plan.launches:  # the driver is not told how large the arguments are
                arguments = plan.launches[0].arguments
                _driver.library().sizes = [
                    8 if isinstance(argument, str) else argument.itemsize for argument in arguments
                ]
            return plan

        kernels = {name: kernel for name, kernel in operator._kernels.items() if name != "cuda"}
        monkeypatch.setattr(operator, "_kernels", kernels)
        monkeypatch.setitem(_providers._reasons, "cuda", "")
        _launch.register(operator, planned)
        return operator._kernels["cuda"]

    with activate(Settings()):  # which keeps no plans of other tests
        yield register


@pytest.fixture
def rms_norm(kernel_of, driver):
    """The kernel of `rms_norm` as it is."""
    return kernel_of(tp.rms_norm, normalization.rms_norm)


def operand(x):
    """The metadata of an array of the fake CuPy, written anew."""
    alignment = next(n for n in (16, 8, 4, 2, 1) if x.data.ptr % n == 0)
    return Operand(x.dtype.name, x.shape, tuple(s // x.itemsize for s in x.strides), 0, alignment)


def expected_parameters(launch, pointers):
    return [pointers[a].to_bytes(8, sys.byteorder) if isinstance(a, str) else a.tobytes() for a in launch.arguments]


def in_c(driver, monkeypatch):
    """Make the fake's launch a function of C, as NVIDIA's driver has; return a list of the streams that it gets."""
    launch, streams = driver.cuLaunchKernelEx, []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(_driver._Config), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
    )

    @kind
    def function_of_c(config, function, parameters, extra):
        streams.append(config.contents.stream)
        at = [parameters[i] for i in range(len(driver.sizes))]
        return launch(ctypes.byref(config.contents), ctypes.c_void_p(function), at, extra)

    monkeypatch.setattr(driver, "cuLaunchKernelEx", function_of_c, raising=False)
    return streams


# --- what is launched ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [np.s_[:], np.s_[::2, 1:], np.s_[::-1, 4:], np.s_[:, ::3], np.s_[0]])
def test_arguments_are_packed_as_planned(rms_norm, driver, cupy, index):
    x = on_gpu(cupy, np.ones((6, 40), np.float32))[index]
    weight = on_gpu(cupy, np.ones(x.shape[-1], np.float32))
    y = rms_norm.function(x, weight, eps=0.25, weight_offset=0.5)
    facts = _driver.device(0).facts
    assert (facts.kind, facts.units, facts.lanes, facts.max_block, facts.local_bytes) == ("gpu", 132, 32, 1024, 49152)
    plan = normalization.rms_norm(facts, operand(x), operand(weight), 0.25, axis=x.ndim - 1, weight_offset=0.5)
    (launch,), (launched,) = plan.launches, driver.launches
    pointers = {"x": x.data.ptr, "weight": weight.data.ptr, "y": y.data.ptr}
    assert launched.parameters == expected_parameters(launch, pointers)
    assert (launched.grid, launched.block) == ((launch.groups, 1, 1), (launch.block, 1, 1))
    assert (launched.kernel, launched.stream) == ("rms_norm", 7000)
    assert (type(y), y.shape, y.dtype) == (cupy.ndarray, x.shape, np.float32)


def test_values_are_aligned_to_their_sizes():
    data, offsets = _driver.packed((np.int32(1), 0, np.float32(2.5), np.int64(-3), np.int32(4), np.float64(5)))
    assert offsets == [0, 8, 16, 24, 32, 40]
    parts = [
        np.frombuffer(data[at : at + np.dtype(kind).itemsize], kind)[0]
        for at, kind in zip(offsets, ("i4", "i8", "f4", "i8", "i4", "f8"), strict=True)
    ]
    assert parts == [1, 0, 2.5, -3, 4, 5]


def test_launches_run_in_order_with_their_temporaries(kernel_of, driver, cupy):
    results = {"none": None, "y": Result("float16", (3,)), "z": Result("int32", ())}
    launches = (
        Launch("rms_norm", "first", ELEMENTS, 5, 64, ("x", "held")),
        Launch("rms_norm", "none", ELEMENTS, 0, 64, ("x", "held")),
        Launch("rms_norm", "second", ELEMENTS, 6, 32, ("held", "y")),
        Launch("rms_norm", "third", ELEMENTS, 7, 32, ("z", "x")),
    )
    plan = Plan(results, launches, {"held": Result("float32", (8,))})
    kernel = kernel_of(tp.silu, lambda device, x: plan)
    x = on_gpu(cupy, np.ones(3, np.float32))
    none, y, z = kernel.function(x)
    assert none is None
    assert (y.shape, y.dtype, z.shape, z.dtype) == ((3,), np.float16, (), np.int32)
    made = [
        (launched.kernel, [int.from_bytes(p, sys.byteorder) for p in launched.parameters])
        for launched in driver.launches
    ]
    held = made[0][1][1]
    assert held not in (x.data.ptr, y.data.ptr, z.data.ptr)
    assert made == [
        ("first", [x.data.ptr, held]), ("second", [held, y.data.ptr]), ("third", [z.data.ptr, x.data.ptr])
    ]  # fmt: skip


def test_the_same_array_twice_is_two_arguments(rms_norm, driver, cupy):
    x, weight, other = (on_gpu(cupy, np.ones(8, np.float32)) for _ in range(3))
    for args in ((x, x), (other, weight)):
        rms_norm.function(*args)
        places = [int.from_bytes(driver.launches[-1].parameters[i], sys.byteorder) for i in (0, 6)]
        assert places == [a.data.ptr for a in args]


def test_constants_are_there_before_the_launch(kernel_of, driver, cupy):
    values = np.arange(3, dtype=np.uint64)
    launch = Launch("rms_norm", "rms_norm", ELEMENTS, 1, 32, ("x", "table", "y"))
    plan = Plan({"y": Result("float32", (3,))}, (launch,), constants={"table": values})
    kernel = kernel_of(tp.silu, lambda device, x: plan)
    driver.sizes = [8] * 3
    for n in (3, 4):
        kernel.function(on_gpu(cupy, np.ones(n, np.float32)))
    held = [int.from_bytes(done.parameters[1], sys.byteorder) for done in driver.launches]
    assert held[0] == held[1]
    assert driver.memory == {held[0]: values.tobytes()}
    assert driver.capture_modes == [0]


def test_a_generator_draws_anew_for_each_call(kernel_of, driver, cupy):
    launch = Launch("rms_norm", "rms_norm", ELEMENTS, 1, 32, ("logits", "rng", "y"))
    plan = Plan({"y": Result("int64", (2,))}, (launch,), drawn={"rng": Result("float32", (2,))})
    kernel = kernel_of(tp.sample, lambda device, *args, **kwargs: plan)
    driver.sizes, drawn = [8] * 3, []
    cupy.asarray = lambda a: drawn.append(a) or np.asarray(a).view(cupy.ndarray)
    logits, rng, expected = (
        on_gpu(cupy, np.ones((2, 5), np.float32)),
        np.random.default_rng(7),
        np.random.default_rng(7),
    )
    drawn.clear()
    for _ in range(2):
        kernel.function(logits, rng=rng)
    for done, a in zip(driver.launches, drawn, strict=True):
        assert int.from_bytes(done.parameters[1], sys.byteorder) == a.ctypes.data
        np.testing.assert_array_equal(a, expected.random(2, dtype=np.float32))


def test_no_rows_launch_nothing(rms_norm, driver, cupy):
    x = on_gpu(cupy, np.ones((0, 8), np.float16))
    y = rms_norm.function(x)
    assert (y.shape, y.dtype, driver.launches) == ((0, 8), np.float16, [])


def test_arrays_of_another_device_are_computed_there(rms_norm, driver, nvrtc, cupy):
    x, weight = (on_gpu(cupy, np.ones((2, 8), np.float32), 1), on_gpu(cupy, np.ones(8, np.float32), 1))
    y = rms_norm.function(x, weight)
    assert (y.on, cupy.current) == (1, 0)
    (launched,) = driver.launches
    assert (launched.context, launched.stream) == (101, 7001)
    assert [architecture for _, architecture in nvrtc.compiled] == ["sm_75"]
    assert driver.loaded[0][1] == 101
    assert rms_norm.supports(x, on_gpu(cupy, np.ones(8, np.float32)), 1e-6, axis=1, weight_offset=0.0) == (
        "the arrays are on different devices: CUDA devices 0 and 1"
    )


def test_a_call_that_is_known_only_allocates_and_launches(rms_norm, driver, nvrtc, cupy):
    x, weight = on_gpu(cupy, np.ones((2, 8), np.float32)), on_gpu(cupy, np.ones(8, np.float32))
    rms_norm.function(x, weight)
    del driver.calls[:], nvrtc.compiled[:]
    y = rms_norm.function(x + 0, weight)
    assert (driver.calls, nvrtc.compiled) == (["cuLaunchKernelEx"], [])
    assert int.from_bytes(driver.launches[-1].parameters[12], sys.byteorder) == y.data.ptr


def test_another_alignment_is_another_program(rms_norm, driver, nvrtc, cupy):
    memory, weight = on_gpu(cupy, np.ones(64, np.float32)), on_gpu(cupy, np.ones(8, np.float32))
    for at in (0, 1, 4):
        rms_norm.function(memory[at : at + 16].reshape(2, 8), weight)
    assert ["#define ALIGNED 1\n" in text for text, _ in nvrtc.compiled] == [True, False]
    assert [done.kernel for done in driver.launches] == ["rms_norm"] * 3


def test_a_thread_that_has_not_used_the_device_enters_it(rms_norm, driver, cupy):
    driver.statuses = [201]
    rms_norm.function(on_gpu(cupy, np.ones((2, 8), np.float32)), on_gpu(cupy, np.ones(8, np.float32)))
    assert (len(driver.launches), driver.entered) == (1, [100])


def test_a_failed_launch_is_an_error(rms_norm, driver, cupy):
    x, weight = on_gpu(cupy, np.ones((2, 8), np.float32)), on_gpu(cupy, np.ones(8, np.float32))
    driver.statuses = [719]
    with pytest.raises(RuntimeError, match=r"^CUDA error 719: something happened$"):
        rms_norm.function(x, weight)


@pytest.mark.parametrize("language", ["c", "python"])
def test_threads_launch_their_own_arrays(language, rms_norm, driver, cupy, monkeypatch):
    calls = 200
    if language == "c":
        in_c(driver, monkeypatch)
    weight = on_gpu(cupy, np.ones(8, np.float32))
    rms_norm.function(on_gpu(cupy, np.ones((2, 8), np.float32)), weight)
    driver.launches.clear()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            arrays = [on_gpu(cupy, np.ones((2, 8), np.float32)) for _ in range(calls)]
            results = list(pool.map(lambda x: rms_norm.function(x, weight), arrays))
    finally:
        sys.setswitchinterval(interval)
    pairs = {(x.data.ptr, y.data.ptr) for x, y in zip(arrays, results, strict=True)}
    launched = {tuple(int.from_bytes(p.parameters[i], sys.byteorder) for i in (0, 12)) for p in driver.launches}
    assert (launched, len(driver.launches)) == (pairs, calls)


# --- calls that are known ------------------------------------------------------------------------------------


def parts(launched, pointer):
    """What a launch is but for where its result is: an address that must be among its parameters, once."""
    result = pointer.to_bytes(8, sys.byteorder)
    assert launched.parameters.count(result) == 1
    parameters = [None if p == result else p for p in launched.parameters]
    return launched._replace(parameters=parameters)


def test_calls_that_differ_in_anything_are_different(rms_norm, driver, cupy):
    """What only an option, a name, a dtype, a stride, a shape, an address or the order of arguments tells apart."""
    a, b = on_gpu(cupy, np.ones((4, 4), np.float32)), on_gpu(cupy, np.ones((4, 4), np.float16))
    row, memory = on_gpu(cupy, np.ones(4, np.float32)), on_gpu(cupy, np.ones(17, np.float32))
    calls = [
        ((a, row), {}), ((b, row), {}), ((a, row), {"eps": 0.25}), ((a, row), {"weight_offset": 0.25}),
        ((a.T, row), {}), ((a[:2], row), {}), ((a[:4:2], row), {}), ((memory[1:17].reshape(4, 4), row), {}),
        ((a, a[1]), {}), ((a, memory[:8:2]), {}), ((a, memory[1:5]), {}), ((a, row), {"eps": 1}), ((a, row, 0.5), {}),
    ]  # fmt: skip

    def launched(args, kwargs):
        y = rms_norm.function(*args, **kwargs)
        return parts(driver.launches[-1], y.data.ptr)

    alone = []
    for call in calls:
        _launch.forget_calls()
        alone.append(launched(*call))
    assert all(a != b for a, b in itertools.combinations(alone, 2))
    _launch.forget_calls()
    assert [launched(*call) for call in [*calls, *calls]] == [*alone, *alone]


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_function_of_c_is_launched_as_one_of_python(library, kernel_of, driver, cupy, monkeypatch):
    kernel = kernel_of(tp.rms_norm, normalization.rms_norm)
    if library == "torch":
        torch = take_tensors_for_cudas(monkeypatch)
        arrays = [torch.ones(2, 8), torch.ones(8)]
        pointer = torch.Tensor.data_ptr
    else:
        arrays = [on_gpu(cupy, np.ones((2, 8), np.float32)), on_gpu(cupy, np.ones(8, np.float32))]
        pointer = lambda x: x.data.ptr  # noqa: E731
    y = kernel.function(*arrays, eps=0.25)
    expected = parts(driver.launches[-1], pointer(y))
    _launch.forget_calls()
    driver.launches.clear()
    streams = in_c(driver, monkeypatch)
    results = [kernel.function(*arrays, eps=0.25) for _ in range(2)]
    for y, launched in zip(results, driver.launches, strict=True):
        assert parts(launched, pointer(y)) == expected
    assert streams == [driver.launches[0].stream] * 2
    if library == "cupy":  # which must make the result on the device of the arguments, and launch there
        del driver.launches[:]
        there = [on_gpu(cupy, np.ones(shape, np.float32), 1) for shape in ((2, 8), 8)]
        for _ in range(2):
            assert kernel.function(*there, eps=0.25).on == 1
        assert [(launched.context, launched.stream) for launched in driver.launches] == [(101, 7001)] * 2
    del driver.launches[:]
    driver.statuses = [201]  # the thread has not used the device
    kernel.function(*arrays, eps=0.25)
    assert (len(driver.launches), driver.entered) == (1, [100])
    driver.statuses = [719]
    with pytest.raises(RuntimeError, match=r"^CUDA error 719: something happened$"):
        kernel.function(*arrays, eps=0.25)


# --- what is compiled and kept ---------------------------------------------------------------------------


def test_programs_are_kept_by_text_architecture_and_version(nvrtc):
    for text, architecture, version in itertools.product(("a", "b"), ("sm_80", "sm_90"), ("99.1", "99.2")):
        nvrtc.version = version
        for _ in range(2):
            assert _compile.cubin(text, architecture) == f"{architecture}: {text}".encode()
    assert len(nvrtc.compiled) == 8


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: bytes([b[0] ^ 1]) + b[1:]])
def test_a_damaged_file_is_compiled_again(nvrtc, tmp_path, damage):
    _compile.cubin("a", "sm_80")
    (path,) = (tmp_path / "tensorops" / "cuda").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        assert _compile.cubin("a", "sm_80") == b"sm_80: a"
    assert len(nvrtc.compiled) == 2


def test_without_a_cache_folder_programs_are_compiled_each_time(nvrtc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for count in (1, 2):
        assert _compile.cubin("a", "sm_80") == b"sm_80: a"
        assert len(nvrtc.compiled) == count


def test_what_the_compiler_says_is_the_reason(rms_norm, driver, nvrtc, cupy):
    nvrtc.error = _compile.CompileError("tensorops.cu(7): error: expected an expression\nmore")
    x = on_gpu(cupy, np.ones((2, 8), np.float32))
    reason = rms_norm.supports(x, None, 1e-6, axis=1, weight_offset=0.0)
    assert reason == "CompileError: tensorops.cu(7): error: expected an expression"
    assert rms_norm.function(x) is NotImplemented


# --- what is refused ---------------------------------------------------------------------------------------


def test_what_is_not_cupys_own_array(rms_norm, cupy):
    class Derived(cupy.ndarray):
        pass

    assert rms_norm.supports(np.ones(3), None, 1e-6, axis=0, weight_offset=0.0) == "an argument is a ndarray"
    assert rms_norm.function(np.ones(3)) is NotImplemented
    x = on_gpu(cupy, np.ones((2, 8), np.float32)).view(Derived)
    assert rms_norm.supports(x, None, 1e-6, axis=1, weight_offset=0.0) == "an argument is a Derived"
    assert rms_norm.function(on_gpu(cupy, np.ones((2, 8), np.float32)), np.ones(8, np.float32)) is NotImplemented


@pytest.mark.parametrize(
    ("offset", "strides", "reason"),
    [
        (2, (4,), "the address of an array is not a multiple of the size of its elements"),
        (0, (6,), "the strides of an array are not multiples of the size of its elements"),
    ],
)
def test_elements_between_elements(rms_norm, cupy, offset, strides, reason):
    memory = np.zeros(64, np.uint8)
    start = -memory.ctypes.data % 16 + offset
    x = np.ndarray((4,), np.float32, memory[start:], strides=strides).view(cupy.ndarray)
    assert rms_norm.supports(x, None, 1e-6, axis=0, weight_offset=0.0) == reason


def test_wrong_arguments_get_the_operators_words(rms_norm, driver, cupy):
    x = on_gpu(cupy, np.ones((2, 8), np.float32))
    for args, kwargs in (((x, x), {}), ((x,), {"eps": -1.0}), ((x,), {"eps": [1]}), ((x,), {"other": 1}), ((), {})):
        assert rms_norm.function(*args, **kwargs) is NotImplemented
    assert driver.launches == []


# --- torch's tensors -----------------------------------------------------------------------------------------


@pytest.fixture
def torch(rms_norm, monkeypatch):
    """Torch, whose tensors in host memory say that they are on CUDA device 0; other kernels have none."""
    monkeypatch.setattr(tp.rms_norm, "_kernels", {"cuda": rms_norm})
    return take_tensors_for_cudas(monkeypatch)


def test_tensors_are_launched_as_they_are(torch, driver):
    base = torch.ones(4, 6, 32, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(torch.ones(32), requires_grad=False)
    for x in (base, base[1:, ::2], base.transpose(0, 1), base[:1].expand(5, 6, 32)):
        y = tp.rms_norm(x, weight)
        launched = driver.launches[-1]
        places = [int.from_bytes(launched.parameters[i], sys.byteorder) for i in (0, 6, 12)]
        assert places == [x.data_ptr(), weight.data_ptr(), y.data_ptr()]
        assert launched.stream == 9000
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        step = Operand("bfloat16", tuple(x.shape), x.stride(), 0, 16)
        plan = normalization.rms_norm(
            _driver.device(0).facts, step, Operand("float32", (32,), (1,)), 1e-6, axis=2, weight_offset=0.0
        )
        pointers = dict(zip(("x", "weight", "y"), places, strict=True))
        assert launched.parameters == expected_parameters(plan.launches[0], pointers)
    assert tp.rms_norm.explain(base).kernel == "cuda"


def test_what_torch_must_see_gets_the_body(torch, driver):
    x = torch.linspace(-1, 1, 16).reshape(2, 8)

    def reason(x):
        return tp.rms_norm.explain(x).refused.get("cuda")

    tp.rms_norm(x, x[0])
    count = len(driver.launches)
    wants = x.clone().requires_grad_()
    assert reason(wants) == "an argument requires grad"
    (gradient,) = torch.autograd.grad(tp.rms_norm(wants).sum(), wants)
    torch.testing.assert_close(gradient, torch.autograd.grad(tp.rms_norm.generic(wants).sum(), wants)[0])
    found = []
    torch.func.vmap(lambda row: (found.append(reason(row)), tp.rms_norm(row))[1])(x)
    assert found == ["torch.func transforms the call"]
    with torch.no_grad():
        assert reason(wants) is None
    assert reason(x.as_subclass(type("Own", (torch.Tensor,), {}))) == "an argument is a Own"
    assert len(driver.launches) == count


def resized(torch):
    x = torch.ones(2, 8)
    x.untyped_storage().resize_(32)
    return x


UNLIKE_THEIR_METADATA = {  # or without such
    "negated": lambda torch: torch._neg_view(torch.ones(2, 8)),
    "resized": resized,
    "without memory": lambda torch: torch.ops.aten._efficientzerotensor((2, 8)),
    "sparse": lambda torch: torch.ones(2, 8).to_sparse(),
    "sparse rows": lambda torch: torch.ones(2, 8).to_sparse_csr(),
    "nested": lambda torch: torch.nested.nested_tensor([torch.ones(8), torch.ones(7)]),
    "requires grad": lambda torch: torch.ones(2, 8, requires_grad=True),
}


@pytest.mark.filterwarnings("ignore:(Sparse CSR|The PyTorch API of nested)")
@pytest.mark.parametrize("kind", UNLIKE_THEIR_METADATA)
def test_tensors_that_are_not_what_their_metadata_say(torch, driver, kind):
    kernel, x = tp.rms_norm._kernels["cuda"], UNLIKE_THEIR_METADATA[kind](torch)
    kernel.function(torch.ones(2, 8))  # has the same metadata, so its plan is known
    count = len(driver.launches)
    assert kernel.function(x) is NotImplemented
    assert "argument" in kernel.supports(x, None, 1e-6, axis=1, weight_offset=0.0)
    assert len(driver.launches) == count


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_what_sees_operations_sees_those_of_known_calls(torch, driver):
    kernel, x = tp.rms_norm._kernels["cuda"], torch.ones(2, 8)
    kernel.function(x)
    count, results = len(driver.launches), []

    def call(*_):
        results.append(kernel.function(x))
        return torch.ones(())

    torch.func.vmap(call)(torch.ones(1))
    torch.func.grad(call)(torch.ones(()))
    torch.jit.trace(call, torch.ones(()), check_trace=False)
    with torch.autograd.forward_ad.dual_level():
        results.append(kernel.function(x))
    for mode in (torch.overrides.TorchFunctionMode, torch.utils._python_dispatch.TorchDispatchMode):
        with mode():
            results.append(kernel.function(x))
    assert results == [NotImplemented] * 6
    assert len(driver.launches) == count


def test_a_generator_that_draws_nothing(kernel_of, driver, cupy):
    launch = Launch("rms_norm", "rms_norm", ELEMENTS, 1, 32, ("logits", "y"))
    kernel = kernel_of(tp.sample, lambda device, *args, **kwargs: Plan({"y": Result("int64", (2,))}, (launch,)))
    rng = np.random.default_rng(7)
    x = on_gpu(cupy, np.ones((2, 5), np.float32))
    y = kernel.function(x, rng=rng)
    assert [int.from_bytes(p, sys.byteorder) for p in driver.launches[0].parameters] == [x.data.ptr, y.data.ptr]
    assert rng.random() == np.random.default_rng(7).random()


def test_tensors_in_host_memory_are_none_of_its_business(rms_norm, driver):
    torch = support.require("torch").xp and sys.modules["torch"]
    x = torch.ones(2, 8)
    assert tp.rms_norm._kernels["cuda"].supports(x, None, 1e-6, axis=1, weight_offset=0.0) == (
        "an argument is not a dense tensor on a CUDA device"
    )
    assert tp.rms_norm._kernels["cuda"].function(x) is NotImplemented
    assert driver.calls == []


# --- from a tensor to values ---------------------------------------------------------------------------------


@pytest.mark.costly(3)
@pytest.mark.dimensions
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operator", PLANNERS, ids=lambda operator: operator.__name__)
def test_tensors_on_an_emulated_gpu(operator, dtype, kernel_of, nvrtc, monkeypatch):
    """The first cases of each operator, all the way but for NVIDIA's compiler and driver."""
    emulation, gpu_cases = pytest.importorskip("emulation"), pytest.importorskip("gpu_cases")
    if not emulation.compiler():
        pytest.skip("there is no C++ compiler")
    installed(fake_cuda.Emulated(emulation), monkeypatch)
    take_tensors_for_cudas(monkeypatch)
    monkeypatch.setattr(_compile, "program", emulation.program)
    device = _driver.Device(0)
    device.facts = gpu_cases.DEVICES["cuda"]
    monkeypatch.setattr(_driver, "device", lambda index: device)
    provider = dataclasses.replace(_providers.PROVIDERS["cuda"], devices={})
    monkeypatch.setitem(_providers.PROVIDERS, "cuda", provider)
    kernel_of(operator, PLANNERS[operator])
    (subject,) = subjects("torch", operators=[operator.__name__], dtypes=[dtype], implementations=["cuda"])
    outcomes = dataclasses.replace(subject, cases=subject.cases[:2], invalid=()).run()
    assert not [str(outcome) for outcome in outcomes if outcome.status == "failed"]
    assert "passed" in [outcome.status for outcome in outcomes]


# --- what NVRTC makes of the kernels ---------------------------------------------------------------------------


def require_nvrtc():
    if not gpu_compiled.library():
        pytest.skip("nvidia-cuda-nvrtc is not installed")


# Of each module, one; attention takes as long as all others together.
FAMILIES = {planner.__module__: operator for operator, planner in [*PLANNERS.items()][1:]}
FURTHER = [pytest.param(each, marks=pytest.mark.exhaustive) for each in PLANNERS if each not in FAMILIES.values()]


@pytest.mark.costly(2)
@pytest.mark.dimensions
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", [*FAMILIES.values(), *FURTHER], ids=lambda operator: operator.__name__)
def test_programs_compile_without_spills(operator, dtype):
    """The largest programs of each kernel; .ci/gpu-compiled compiles more, for every architecture."""
    require_nvrtc()
    programs = gpu_compiled.largest(gpu_compiled.programs([dtype], of=[operator]))
    problems = {str(p): gpu_compiled.made_of(p, "sm_80").problems for p in programs}
    assert not any(problems.values()), problems


def test_other_parameters_than_are_passed_are_found():
    require_nvrtc()
    program = gpu_compiled.programs(["float32"], of=[tp.rms_norm])[0]
    arguments = program.launch.arguments
    assert gpu_compiled.made_of(program, "sm_80").problems == ()
    for wrong, words in (
        (arguments[1:], "is passed"),
        ((*arguments[:-1], np.float64(0)), f"parameter {len(arguments) - 1} is f32, but f64 is passed"),
        ((np.int64(0), *arguments[1:]), "parameter 0 is a pointer"),
    ):
        changed = dataclasses.replace(program, launch=dataclasses.replace(program.launch, arguments=wrong))
        assert words in str(gpu_compiled.made_of(changed, "sm_80").problems)
