"""Steps as CUDA graphs, up to the library and the driver: no test needs a GPU, and none shows what one does."""

from __future__ import annotations

import concurrent.futures
import dataclasses

import numpy as np
import pytest

import fake_cuda
import fake_graphs
import tensorops as tp
from tensorops import _providers
from tensorops.backends.registry import BACKENDS
from tensorops.backends.settings import Settings, activate
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels.cuda import _compile, _driver, _launch
from tensorops.persistent import CaptureError, PersistentKernel
from tensorops.persistent._engine import Options
from tensorops.persistent.engines.cupy import CupyEngine
from tensorops.testing import REFERENCES

tp.rms_norm.kernels  # noqa: B018 - loads every provider, before any driver is replaced


@pytest.fixture
def emulated(monkeypatch, tmp_path):
    """An emulated GPU, which computes what is launched, with the kernels of every operator."""
    emulation, gpu_cases = pytest.importorskip("emulation"), pytest.importorskip("gpu_cases")
    if not emulation.compiler():
        pytest.skip("there is no C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler = fake_cuda.Nvrtc()
    monkeypatch.setattr(_compile, "nvrtc", lambda: compiler)
    driver = fake_cuda.installed(fake_cuda.Emulated(emulation), monkeypatch)
    monkeypatch.setattr(_compile, "program", emulation.program)
    device = _driver.Device(0)
    device.facts = gpu_cases.DEVICES["cuda"]
    monkeypatch.setattr(_driver, "device", lambda index: device)
    monkeypatch.setitem(_providers._reasons, "cuda", "")
    provider = dataclasses.replace(_providers.PROVIDERS["cuda"], devices={})
    monkeypatch.setitem(_providers.PROVIDERS, "cuda", provider)
    for operator, planner in PLANNERS.items():
        monkeypatch.setattr(operator, "_kernels", {})
        _launch.register(operator, planner)
    with activate(Settings()):  # which keeps no plans of other tests
        yield driver


@pytest.fixture
def torch(emulated, monkeypatch):
    """Torch, with a GPU; what it did is in `torch.fake`."""
    torch = fake_cuda.take_tensors_for_cudas(monkeypatch)
    monkeypatch.setattr(torch, "fake", fake_graphs.take_torch(monkeypatch), raising=False)
    return torch


X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def silu_of_norm(x):
    return REFERENCES["silu"](REFERENCES["rms_norm"](x).astype(np.float32))


def assert_close(y, expected):
    np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-5, atol=1e-6)


# --- torch ---------------------------------------------------------------------------------------------


def test_a_step_on_tensors(torch):
    def step(x, n):
        return tp.silu(tp.rms_norm(x, weight)) * 2, n + 1

    x, weight = torch.tensor(X), torch.ones(8)
    kernel = PersistentKernel(step, [x, torch.tensor([3])], backend="torch")
    statistics = kernel.compile()
    assert (statistics.calls, statistics.bytes) == (2, 64 + 32 + 64)
    assert statistics.separate_bytes == 4 * 64 + 2 * 8  # x, its norm, the silu of that, twice that; n, n + 1
    first, _ = kernel(x, torch.tensor([0]))
    y, n = kernel(2 * x, torch.tensor([5]))
    assert_close(y, 2 * silu_of_norm(2 * X))
    assert n == 6
    assert_close(first, 2 * silu_of_norm(X))  # a copy, which the second run has left as it was
    captured = kernel.explain()
    assert captured.mechanism == "a CUDA graph"
    assert [(call.operator, call.kernel, call.shapes) for call in captured.calls] == [
        ("rms_norm", "cuda", ("float32[2, 8]", "float32[8]")), ("silu", "cuda", ("float32[2, 8]",))
    ]  # fmt: skip
    assert captured.in_python == ("arguments that are not donated are copied in", "results are copied out")


def test_runs_follow_one_another_on_any_stream(torch):
    """Compiling, and two runs: the order of what the streams are given."""
    kernel = PersistentKernel(tp.silu, [torch.tensor(X)], backend="torch")
    kernel.compile()
    log = [(what, stream) for what, *_, stream in torch.fake.log if what != "record"]
    assert log[:5] == [
        ("wait", "stream 1"),  # for what the caller's stream was given
        ("synchronize", "stream 1"),  # after the first run, without a graph
        ("wait", "stream 1"),
        ("begin", "stream 1"),
        ("end", "stream 1"),
    ]  # then the comparison with the step, on copies
    del torch.fake.log[:]
    kernel(torch.tensor(X))
    other = torch.cuda.Stream("other")
    with torch.cuda.stream(other):
        kernel(torch.tensor(X))
    done = torch.fake.log[0][1]
    assert torch.fake.log == [
        ("wait", done, ""), ("launch", ""), ("record", done, ""),
        ("wait", done, "other"), ("launch", "other"), ("record", done, "other"),
    ]  # fmt: skip


def writing(x, cache, place):
    cache[:, place] = tp.silu(x)
    return cache, cache[1:, :2], x[:1]


def test_donated_tensors_are_written_where_they_are(torch):
    x, cache, place = torch.tensor(X[:, :1]), torch.zeros(2, 4), torch.tensor([1])
    kernel = PersistentKernel(writing, [x, cache, place], backend="torch", donate=[1])
    kernel.compile()
    assert not cache.any()  # compiling did not write to it
    del torch.fake.log[:]
    given, part, start = kernel(x, cache, place)
    assert given is cache
    assert_close(cache[:, 1], REFERENCES["silu"](X[:, 0]))
    assert part.data_ptr() == cache[1:].data_ptr()
    assert part.shape == (1, 2)
    assert start.data_ptr() != x.data_ptr()  # of an argument that is not donated, a copy
    assert start == x[:1]
    kernel(2 * x, cache, torch.tensor([3]))
    assert_close(
        cache, np.stack([0 * X[:, 0], *REFERENCES["silu"](X[:, 0] * [[1], [2]]), 0 * X[:, 0]], 1)[:, [0, 1, 3, 2]]
    )
    assert [entry[0] for entry in torch.fake.log].count("begin") == 1  # after the comparison on copies


def test_parts_of_donated_tensors_in_another_dtype(torch):
    caches = torch.arange(48, dtype=torch.float32).reshape(2, 3, 8)
    step = lambda x, cache: (tp.silu(x), cache[1:, ::2].view(torch.int32), cache.view(torch.int16)[:, 3:])  # noqa: E731
    kernel = PersistentKernel(step, [torch.tensor(X), caches[0]], backend="torch", donate=[1])
    _, same, half = kernel(torch.tensor(X), caches[1])
    for found, expected in ((same, caches[1, 1:, ::2].view(torch.int32)), (half, caches[1].view(torch.int16)[:, 3:])):
        assert (found.data_ptr(), found.dtype) == (expected.data_ptr(), expected.dtype)
        assert torch.equal(found, expected)


def test_donated_tensors_elsewhere_are_captured_again(torch):
    x, caches, place = torch.tensor(X[:, :1]), torch.zeros(3, 2, 4), torch.tensor([1])
    kernel = PersistentKernel(writing, [x, caches[0], place], backend="torch", donate=[1])
    kernel.compile()
    del torch.fake.log[:]
    kernel(x, caches[1], place)
    kernel(x, caches[1], place)
    assert [entry[0] for entry in torch.fake.log].count("begin") == 1
    assert_close(caches[1, :, 1], REFERENCES["silu"](X[:, 0]))
    assert not caches[[0, 2]].any()
    wide = torch.zeros(2, 8)[:, ::2]  # the same shape, with other strides
    kernel(x, wide, place)
    assert_close(wide[:, 1], REFERENCES["silu"](X[:, 0]))
    assert [entry[0] for entry in torch.fake.log].count("begin") == 2


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda x: x if x[0, 0] > 0 else tp.silu(x), "before the first operator: RuntimeError: operation not"),
        (lambda x: tp.silu(x) * tp.silu(x).sum().item(), "after silu: RuntimeError: operation not"),
    ],
)
def test_what_waits_for_the_gpu_cannot_be_captured(torch, step, words):
    kernel = PersistentKernel(step, [torch.tensor(X)], backend="torch")
    for _ in range(2):  # the stream is as usable as before
        with pytest.raises(CaptureError, match=f"^the step cannot be captured, {words}[^\n]*$"):
            kernel.compile()
        assert torch.fake.nodes is None
        assert torch.fake.stream.name == ""
        assert torch.fake.log[-1][0] == "end"
    assert_close(tp.silu(torch.tensor(X)), REFERENCES["silu"](X))


def test_a_capture_that_was_broken_without_an_error(torch):
    def step(x):
        y = tp.silu(x)
        torch.fake.broken = True
        return y

    with pytest.raises(CaptureError, match=r"captured, after silu: RuntimeError: cudaErrorStreamCaptureInvalidated"):
        PersistentKernel(step, [torch.tensor(X)], backend="torch").compile()


def test_an_error_names_the_operator_that_it_is_from(torch, monkeypatch):
    def body(x, **options):
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")

    def step(x):
        if torch.fake.nodes is not None:
            monkeypatch.setattr(tp.softmax, "_kernels", {})
            monkeypatch.setattr(tp.softmax, "_body", body, raising=True)
        return tp.softmax(tp.silu(x))

    with pytest.raises(CaptureError, match=r"captured, in softmax: NotImplementedError: calling cuBLAS"):
        PersistentKernel(step, [torch.tensor(X)], backend="torch").compile()


def test_other_arguments_are_refused(torch):
    x, cache, place = torch.tensor(X[:, :1]), torch.zeros(2, 4), torch.tensor([1])
    kernel = PersistentKernel(writing, [x, cache, place], backend="torch", donate=[1])
    kernel.compile()
    for args, words in (
        ((x[:1], cache, place), r"array 0 of the arguments was float32 \(2, 1\) .*, and is now .* \(1, 1\)"),
        ((x, cache.double(), place), "array 1 of the arguments was float32 .* and is now float64"),
        ((x, cache), "differ from those when the step was compiled in more than values"),
        (([x], cache, place), "differ from those when the step was compiled in more than values"),
        ((x, np.zeros((2, 4), np.float32), place), "array 1 of the arguments is donated, so it must be on the GPU"),
    ):
        with pytest.raises(ValueError, match=words):
            kernel(*args)
    assert torch.fake.log[-1][0] != "launch"
    given, *_ = kernel(X[:, :1], cache, place)  # of NumPy, which is copied in
    assert_close(given[:, 1], REFERENCES["silu"](X[:, 0]))


def test_what_a_graph_cannot_do_is_refused(torch):
    x = torch.tensor(X)
    for options, words in (
        ({"num_workers": 2}, "num_workers: each kernel has as many threads"),
        ({"profile": True}, "profile: CUDA runs the graph as one"),
    ):
        with pytest.raises(ValueError, match=words):
            PersistentKernel(tp.silu, [x], backend="torch", **options).compile()
    with pytest.raises(CaptureError, match="the step writes to argument 2, which is not in `donate`"):
        PersistentKernel(lambda x, y, z: writing(x[:, :1], z, slice(1)), [x, x[0], x + 0], backend="torch").compile()
    with pytest.raises(CaptureError, match="an array is among the arguments twice"):
        PersistentKernel(lambda x, y: x, [x, x], backend="torch").compile()
    with pytest.raises(CaptureError, match="returns an array that is not on the GPU, a ndarray"):
        PersistentKernel(lambda x: (tp.silu(x), X), [x], backend="torch").compile()
    wants = x.clone().requires_grad_()
    kernel = PersistentKernel(tp.silu, [x], backend="torch")
    with pytest.raises(TypeError, match=r"has no gradient: pass x.detach\(\)"):
        kernel(wants)
    with torch.no_grad():
        assert_close(kernel(wants), REFERENCES["silu"](X))


def test_a_model_writes_the_same_text(torch, tmp_path):
    pytest.importorskip("gguf")
    from make_gguf import write_llama
    from tensorops.models import Llama

    prompt = [100, 7, 7, 250, 0]
    path = write_llama(tmp_path / "model.gguf", "Q4_1")
    with tp.set_backend("numpy"):
        expected = list(Llama.from_gguf(path, "numpy").generate_ids(prompt, max_new_tokens=4))
    model = Llama.from_gguf(path, "torch")
    decode = model.persistent(max_seq_length=16)
    cache, text = model.new_cache(16), list(prompt)
    keys, values = cache.keys, cache.values
    for position in range(len(prompt) + 3):
        token = torch.tensor([text[position]], dtype=torch.int32)
        token, keys, values = decode(token, torch.tensor([position], dtype=torch.int32), keys, values)
        if position >= len(prompt) - 1:
            text.append(int(token[0]))
    assert text[len(prompt) :] == expected
    assert keys[0] is cache.keys[0]
    assert {call.kernel for call in decode.explain().calls} == {"cuda"}
    blocks = "once" if model.config.blocks == 1 else f"{model.config.blocks} times"
    assert decode.explain().step[1:] == (f"attention of a query of each sequence to at most 16 keys, {blocks}",)


# --- CuPy ----------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(cupy, emulated, monkeypatch):
    """A fake CuPy whose launches are computed, with streams that capture; what it did is in `gpu.fake`."""
    cupy.fake = fake_graphs.take_cupy(cupy, monkeypatch)
    return cupy


def compiled(step, args, **options):
    """Return an engine; the backend `cuda` needs more of CuPy to be available."""
    return CupyEngine(step, tuple(args), Options(BACKENDS["cuda"], **options))


def test_a_step_on_cupy_arrays(gpu):
    x, weight = gpu.asarray(X), gpu.asarray(np.ones(8, np.float32))
    engine = compiled(lambda x: tp.silu(tp.rms_norm(x, weight)), [x])
    first = engine.run((x,))
    assert_close(engine.run((gpu.asarray(2 * X),)), silu_of_norm(2 * X))
    assert_close(first, silu_of_norm(X))
    assert [call.kernel for call in engine.captured().calls] == ["cuda", "cuda"]
    assert engine.statistics.separate_bytes == 3 * X.nbytes  # with that of the argument: all is the graph's own
    assert sum(map(len, engine._blocks)) == engine.statistics.arena_bytes  # which stays as long as the graph
    log = [(what, stream) for what, *_, stream in gpu.fake.log if what != "record"]
    aside = log[0][1]
    assert log == [
        ("wait", aside), ("synchronize", aside), ("wait", aside), ("begin", aside), ("end", aside),
        ("wait", ""), ("launch", ""), ("wait", ""), ("launch", ""),
    ]  # fmt: skip
    assert gpu.fake.state.pinned(7) == 7


def test_donated_cupy_arrays_are_written_where_they_are(gpu):
    x, place = gpu.asarray(X[:, :1].copy()), gpu.asarray(np.asarray([1]))
    caches = [gpu.asarray(np.zeros((2, 4), np.float32)) for _ in range(2)]
    engine = compiled(writing, [x, caches[0], place], donate=frozenset({1}))
    assert not caches[0].any()
    for cache in (caches[0], caches[1], caches[1]):
        given, part, start = engine.run((x, cache, place))
        assert given is cache
        assert_close(cache[:, 1], REFERENCES["silu"](X[:, 0]))
        assert (part.data.ptr, part.shape, part.strides) == (cache[1:].data.ptr, (1, 2), (16, 4))
        assert start.data.ptr != x.data.ptr
    assert [entry[0] for entry in gpu.fake.log].count("begin") == 2  # once for each of the two


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (lambda gpu, y: gpu.matmul(y, y.T), "captured, after silu: NotImplementedError: calling cuBLAS"),
        (lambda gpu, y: gpu.asnumpy(y), "captured, after silu: RuntimeError: operation not permitted when"),
        (
            lambda gpu, y: gpu.asarray(np.ones(3)),
            "captured, after silu: RuntimeError: an array is copied from the host",
        ),
        (lambda gpu, y: y.on.missing, "captured, after silu: AttributeError"),
    ],
    ids=["cuBLAS", "to the host", "from the host", "its own error"],
)
def test_what_cupy_cannot_capture(gpu, last, words):
    elsewhere = []

    def step(x):
        y = tp.silu(x)
        if gpu.fake.nodes is not None:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:  # whose copies from the host are not the step's
                elsewhere.append(pool.submit(gpu.asarray, np.ones(3)).result())
            last(gpu, y)
        return y

    x = gpu.asarray(X)
    with pytest.raises(CaptureError, match=words):
        compiled(step, [x])
    assert len(elsewhere) == 1
    assert gpu.fake.nodes is None
    assert gpu.fake.log[-1][0] == "end"
    assert gpu.fake.stream.name == ""
    assert gpu.fake.state.allocator is None
    assert gpu.fake.state.pinned(7) == 7
    assert_close(compiled(tp.silu, [x]).run((x,)), REFERENCES["silu"](X))


def test_cupy_arrays_that_are_written_must_be_donated(gpu):
    x, cache = gpu.asarray(X[:, :1].copy()), gpu.asarray(np.full((2, 4), np.nan, np.float32))
    with pytest.raises(CaptureError, match="the step writes to argument 1, which is not in `donate`"):
        compiled(lambda x, cache: writing(x, cache, slice(1)), [x, cache])
    assert gpu.fake.stream.name == ""
    compiled(lambda x, cache: tp.silu(cache), [x, cache])  # NaN equals itself here


def test_cupy_arrays_on_two_gpus(gpu):
    there = [fake_cuda.on_gpu(gpu, X, index) for index in (0, 1)]
    with pytest.raises(ValueError, match=r"must be arrays on one GPU, not on \[0, 1\]"):
        compiled(lambda x, y: tp.silu(x), there)
    engine = compiled(lambda x, cache: (tp.silu(x), cache), [gpu.asarray(X), there[0]], donate=frozenset({1}))
    with pytest.raises(ValueError, match="array 1 of the arguments is donated, so it must be on the GPU 0"):
        engine.run((gpu.asarray(X), there[1]))
