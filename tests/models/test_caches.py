"""Caches: dtypes of keys and values, rings of blocks with a window, and what is forgotten."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")

import gguf

import tensorops as tp
import tiny_networks
from tensorops.formats import q8_0
from tensorops.models import LanguageModel, cache, memory
from tiny_networks import IDS

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = {"cpu": "numpy", "numpy": "numpy", "jax": "jax", "mlx": "mlx.core", "torch": "torch"}
# The most that logits of the random networks may be off, by the largest one.
ERRORS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2, "q8_0": 4e-2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder and the logits of a network by its name."""
    made: dict[str, tuple[Path, np.ndarray]] = {}

    def of(name: str) -> tuple[Path, np.ndarray]:
        if name not in made:
            folder = tmp_path_factory.mktemp("network")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # transformers'
                made[name] = folder, tiny_networks.save(name, folder)
        return made[name]

    return of


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(tp.to_backend(x, "numpy"))


def require(backend: str) -> None:
    pytest.importorskip(BACKENDS[backend])
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")


# --- dtypes of keys and values -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", ERRORS)
@pytest.mark.parametrize("name", ["gemma3", "qwen35", "gemma4 with inputs of blocks"])
def test_logits_for_each_dtype(saved: Any, name: str, kv_dtype: str, backend: str) -> None:
    require(backend)
    folder, exact = saved(name)
    model = LanguageModel.load(folder, backend, kv_dtype=kv_dtype)
    kept = model.new_cache()
    logits = np.concatenate([to_numpy(model(piece, kept)) for piece in (IDS[:15], IDS[15:16], IDS[16:])])
    error = np.abs(logits - exact).max() / np.abs(exact).max()
    assert error <= ERRORS[kv_dtype]
    if kv_dtype != "float32":  # or the dtype has no effect
        assert error > ERRORS["float32"]
    assert sum(each.nbytes for part in (kept.keys, kept.values) for each in map(to_numpy, part)) == memory.cache_bytes(
        model.config, 24, kv_dtype
    )


@pytest.mark.parametrize("kv_dtype", ["float16", "q8_0"])
@pytest.mark.parametrize("compiler", ["jax.jit", "mlx.core.compile"])
def test_compiled_networks_keep_them_too(saved: Any, kv_dtype: str, compiler: str) -> None:
    module, _, function = compiler.rpartition(".")
    compile_ = getattr(pytest.importorskip(module), function)
    backend = module.partition(".")[0]
    require(backend)
    folder, exact = saved("gemma3")
    model = LanguageModel.load(folder, backend, compile=compile_, kv_dtype=kv_dtype)
    kept = model.new_cache()
    logits = np.concatenate([to_numpy(model(piece, kept)) for piece in (IDS[:15], IDS[15:16], IDS[16:])])
    np.testing.assert_allclose(logits, exact, rtol=0, atol=ERRORS[kv_dtype] * np.abs(exact).max())


@pytest.mark.parametrize("most", [1, 1 << 26])
@pytest.mark.parametrize("dim", [16, 48, 64])
def test_attention_to_8_bits(dim: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_UNPACKED_BYTES", most)  # one head at a time, or all
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, 9, dim), dtype=np.float32) for heads in (6, 2, 2))
    sinks = rng.standard_normal(6, dtype=np.float32)
    kept = [cache.stored(np, x, np.dtype(np.uint8)) for x in (k, v)]
    assert kept[0].shape == (1, 2, 9, cache.storage(dim, "q8_0")[0])
    found = cache.attention(np, q[:, :, -2:, :], *kept, is_causal=True, sinks=sinks)
    read = [gguf.quants.dequantize(each, gguf.GGMLQuantizationType.Q8_0)[..., :dim] for each in kept]
    for x, near in zip((k, v), read, strict=True):
        assert 1e-3 < np.abs(x - near).max() < np.abs(x).max() / 250
    k, v = (np.repeat(x.astype(np.float64), 3, axis=1) for x in read)
    scores = np.exp(q[:, :, -2:, :].astype(np.float64) @ k.swapaxes(2, 3) * dim**-0.5)
    scores[:, :, 0, -1] = 0
    exact = (scores / (scores.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])) @ v
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("library", [*BACKENDS, "array_api_strict", "opencl"])
def test_blocks_of_8_bits_are_the_nearest(library: str) -> None:
    pytest.importorskip({"opencl": "pyopencl"}.get(library, BACKENDS.get(library, library)))
    if not tp.is_backend_available(library):
        pytest.skip(f"backend {library} is not available")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 90, 64)) * 10.0 ** rng.integers(-9, 6, (2, 90, 1))
    x[0, 0] = 0
    with tp.set_backend(library):
        there = tp.to_backend(x.astype(np.float32), library)
        xp = tp.get_namespace(there)
        blocks = to_numpy(q8_0.pack(xp, xp.asarray(there)))
    groups = x.astype(np.float32).reshape(2, 90, 2, 32)
    scales = np.abs(groups).max(-1, keepdims=True) / 127.0
    stored = blocks.reshape(2, 90, 2, 34)
    values = stored[..., :2].copy().view("<f2").astype(np.float64) * stored[..., 2:].view(np.int8)
    assert (np.abs(values - groups) <= scales * (0.5 + 2**-11 * 127) + 4e-6).all()
    assert (np.abs(values - groups).max(-1, keepdims=True) <= scales * (0.5 + 2**-11) + 4e-6).mean() > 0.99


def test_what_is_no_dtype(saved: Any) -> None:
    folder, _ = saved("gemma3")
    with pytest.raises(ValueError, match="kv_dtype is 'int8', expected one of float32, float16, bfloat16, q8_0"):
        LanguageModel.load(folder, kv_dtype="int8")
    model = LanguageModel.load(folder, "numpy", kv_dtype="q8_0")
    with pytest.raises(ValueError, match="dtype is 'q8_0', expected one of float32, float16, bfloat16"):
        model.generate_batch([IDS])
    with pytest.raises(ValueError, match="steps keep no 8 bits, but kv_dtype is 'q8_0'"):
        model.persistent(max_seq_length=32)


def test_steps_and_batches_keep_halves_as_the_model_says(saved: Any) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    folder, _ = saved("llama")
    model = LanguageModel.load(folder, "cpu", kv_dtype="float16")
    tokens = list(model.generate_ids(IDS[:12], max_new_tokens=6))
    kept = model.new_cache(32)
    model(IDS[:11], kept)
    assert {each.dtype.name for each in kept.keys} == {"float16"}
    step = model.persistent(max_seq_length=32)
    keys, values, found, token = kept.keys, kept.values, [], IDS[11]
    for position in range(11, 17):
        ids, keys, values = step(np.asarray([token], np.int32), np.asarray([position], np.int32), keys, values)
        token = int(ids[0])
        found.append(token)
    assert found == tokens
    assert [token for _, token in model.generate_batch([IDS[:12]], max_new_tokens=6)] == tokens
