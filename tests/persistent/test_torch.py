"""Steps on torch tensors in the host's memory: plans of NumPy arrays that share it."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops.persistent import CaptureError, PersistentKernel
from tensorops.testing import REFERENCES

support.require("torch")
NATIVE = support.require_native()

import torch  # noqa: E402

X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def silu_of_norm(x):
    return REFERENCES["silu"](REFERENCES["rms_norm"](x).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step(dtype):
    weight = torch.ones(8, dtype=getattr(torch, dtype))  # read as it is
    x = torch.tensor(X, dtype=getattr(torch, dtype))
    kernel = PersistentKernel(lambda x, n: (tp.silu(tp.rms_norm(x, weight)), n + 1), [x, torch.tensor([3])])
    assert kernel.backend == "torch"
    assert [call.operator for call in kernel.explain().calls] == ["rms_norm", "silu", "add"]
    y, n = kernel(2 * x, torch.tensor([5]))
    assert (type(y), y.dtype, n.tolist()) == (torch.Tensor, x.dtype, [6])
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(y.double(), silu_of_norm(2 * x.double().numpy()), rtol=tolerance, atol=tolerance)


def test_constants_that_require_gradients():
    weight, x = torch.nn.Parameter(torch.ones(8)), torch.tensor(X)
    for step in (lambda x: tp.rms_norm(x, weight), lambda x: x * weight):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"requires? grad.*detach\(\)"):
            PersistentKernel(step, [x])(x)
    with torch.no_grad():
        kernel = PersistentKernel(lambda x: tp.silu(tp.rms_norm(x, weight)), [x])
        np.testing.assert_allclose(kernel(x), silu_of_norm(X), rtol=1e-5, atol=1e-5)


def test_arrays_are_where_they_were():
    weights, cache = torch.ones(40000, 8), torch.zeros(3, 40000)

    def step(x, cache, place):
        cache[place, :] = tp.linear(x, weights)
        return cache, cache[1:, :]

    kernel = PersistentKernel(step, [torch.tensor(X[:1]), cache, torch.tensor([0])], donate=[1])
    kernel.compile()
    assert not cache.any()
    given, part = kernel(torch.tensor(X[:1]), cache, torch.tensor([1]))
    assert given is cache
    assert part.data_ptr() == cache[1:].data_ptr()
    weights *= 2  # constants are not copied either
    kernel(torch.tensor(X[:1]), cache, torch.tensor([2]))
    np.testing.assert_allclose(cache[1:, 0], X[0].sum() * np.float32([1, 2]), rtol=1e-5)
    assert not cache[0].any()


def test_a_model_writes_the_same_text(tmp_path):
    pytest.importorskip("gguf")
    from make_gguf import write_llama
    from tensorops.models import Llama

    prompt = [100, 7, 7, 250, 0]
    model = Llama.from_gguf(write_llama(tmp_path / "model.gguf", "Q4_1"), "torch")
    decode, cache, text = model.persistent(max_seq_length=16), model.new_cache(16), list(prompt)
    keys, values = cache.keys, cache.values
    for position in range(len(prompt) + 5):
        token = torch.tensor([text[position]], dtype=torch.int32)
        token, keys, values = decode(token, torch.tensor([position], dtype=torch.int32), keys, values)
        if position >= len(prompt) - 1:
            text.append(int(token[0]))
    assert text[len(prompt) :] == list(model.generate_ids(prompt, max_new_tokens=6))


def test_functions_of_torch_cannot_be_recorded():
    weight = torch.ones(2, 8)
    for step, words in (
        (torch.nn.functional.gelu, r"the step calls torch\.gelu, which cannot be recorded; use operators"),
        (lambda x: torch.cat([x, x]), r"the step calls torch\.cat, which"),
        (lambda x: weight / x, r"the step calls torch\.div, which"),
        (lambda x: x if x[0, 0] > 0 else tp.silu(x), "computes with __gt__, which cannot be recorded"),
    ):
        with pytest.raises(CaptureError, match=words):
            PersistentKernel(step, [torch.tensor(X)]).compile()
    y = PersistentKernel(lambda x: weight * tp.silu(x) - 1, [torch.tensor(X)])(torch.tensor(X))
    np.testing.assert_allclose(y, REFERENCES["silu"](X) - 1, rtol=1e-5, atol=1e-6)


def test_gradients_are_not_lost_in_silence():
    kernel = PersistentKernel(tp.silu, [torch.tensor(X)])
    with pytest.raises(TypeError, match=r"requires grad .* pass x\.detach\(\)"):
        kernel(torch.tensor(X, requires_grad=True))


def test_options_of_a_plan():
    kernel = PersistentKernel(tp.silu, [torch.tensor(X)], num_workers=1, profile=True)
    np.testing.assert_allclose(kernel(torch.tensor(X)), REFERENCES["silu"](X), rtol=1e-5, atol=1e-6)
    assert [call.operator for call in kernel.profile().calls] == ["silu"]
    kernel.release()


def test_without_compiled_kernels(monkeypatch):
    monkeypatch.setitem(_providers._reasons, "cpu", "they were not compiled")
    with pytest.raises(ValueError, match=r"torch: tensors in the host's memory need .*: they were not compiled"):
        PersistentKernel(tp.silu, [torch.tensor(X)], backend="torch")
