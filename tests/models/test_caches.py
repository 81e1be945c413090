"""Caches: dtypes of keys and values, rings of blocks with a window, and what is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")

import gguf

import tensorops as tp
import tiny_networks
from tensorops import formats
from tensorops.models import LanguageModel, OutOfPagesError, PromptCache, cache, language_model, memory
from tiny_networks import IDS

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = {"cpu": "numpy", "numpy": "numpy", "jax": "jax", "mlx": "mlx.core", "torch": "torch"}
# The most that logits of the random networks may be off, by the largest one.
ERRORS = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2, "q8_0": 4e-2}


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(tp.to_backend(x, "numpy"))


def require(backend: str) -> None:
    pytest.importorskip(BACKENDS[backend])
    if not tp.is_backend_available(backend):
        pytest.skip(f"backend {backend} is not available")


# --- dtypes of keys and values -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", ERRORS)
@pytest.mark.parametrize("name", ["gemma3", "qwen35", "gemma4 with inputs of blocks", "deepseek3 with one group"])
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


@pytest.mark.parametrize("dim", [16, 48, 64])
def test_attention_to_8_bits(dim: int) -> None:
    """Where blocks have more numbers than a head, the scale is that of the head."""
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
def test_blocks_of_8_bits_are_off_by_half_a_step(library: str) -> None:
    pytest.importorskip({"opencl": "pyopencl"}.get(library, BACKENDS.get(library, library)))
    if not tp.is_backend_available(library):
        pytest.skip(f"backend {library} is not available")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 90, 64)) * 10.0 ** rng.integers(-9, 6, (2, 90, 1))
    x[0, 0] = 0
    with tp.set_backend(library), np.errstate(divide="ignore"):  # the sign of a zero scale, without signbit
        there = tp.to_backend(x.astype(np.float32), library)
        xp = tp.get_namespace(there)
        blocks = to_numpy(formats.get("q8_0").packed(xp, xp.asarray(there)))
    groups = x.astype(np.float32).reshape(2, 90, 2, 32)
    scales = np.abs(groups).max(-1, keepdims=True) / 127.0
    stored = blocks.reshape(2, 90, 2, 34)
    values = stored[..., :2].copy().view("<f2").astype(np.float64) * stored[..., 2:].view(np.int8)
    assert (np.abs(values - groups) <= scales * (0.5 + 2**-11 * 127) + 4e-6).all()


def test_what_is_no_dtype(saved: Any) -> None:
    folder, _ = saved("gemma3")
    with pytest.raises(ValueError, match="kv_dtype is 'int8', expected one of float32, float16, bfloat16, q8_0"):
        LanguageModel.load(folder, kv_dtype="int8")
    model = LanguageModel.load(folder, "numpy")
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of float32, float16, bfloat16, q8_0"):
        model.generate_batch([IDS], kv_dtype="int8")
    with pytest.raises(ValueError, match="dtype is 'int8', expected one of float32, float16, bfloat16, q8_0"):
        model.persistent(max_seq_length=32, page_size=4, kv_dtype="int8")


@pytest.mark.parametrize(("kv_dtype", "kept_in"), [("float16", "float16"), ("q8_0", "uint8")])
def test_steps_and_batches_keep_them_as_the_model_says(saved: Any, kv_dtype: str, kept_in: str) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    folder, _ = saved("llama")
    model = LanguageModel.load(folder, "cpu", kv_dtype=kv_dtype)
    tokens = list(model.generate_ids(IDS[:12], max_new_tokens=6))
    kept = model.new_cache(32)
    model(IDS[:11], kept)
    assert {each.dtype.name for each in kept.keys} == {kept_in}
    step = model.persistent(max_seq_length=32)
    keys, values, found, token = kept.keys, kept.values, [], IDS[11]
    for position in range(11, 17):
        ids, keys, values = step(np.asarray([token], np.int32), np.asarray([position], np.int32), keys, values)
        token = int(ids[0])
        found.append(token)
    assert found == tokens
    assert [token for _, token in model.generate_batch([IDS[:12]], max_new_tokens=6)] == tokens


@pytest.mark.parametrize("backend", ["cpu", "numpy", "jax"])
@pytest.mark.parametrize("name", ["gemma3", "qwen35", "gpt-oss", "gemma4 with inputs of blocks"])
def test_batches_in_8_bits_give_the_tokens_of_each_alone(saved: Any, name: str, backend: str) -> None:
    """Long prompts are read apart, short ones in steps; two begin alike, so that pages are copied from."""
    require(backend)
    folder, _ = saved(name)
    model = LanguageModel.load(folder, backend, kv_dtype="q8_0")
    prompts = [IDS[:3], IDS[:21], [*IDS[:17], 5, 6, 7, 8], IDS[4:9]]
    alone = [list(model.generate_ids(ids, max_new_tokens=5)) for ids in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    for number, token in model.generate_batch(prompts, max_new_tokens=5, page_size=4, max_batch=2):
        found[number].append(token)
    assert found == alone
    if backend == "cpu":
        assert any(isinstance(step, tp.PersistentKernel) for step in model._batch_steps.values())


@pytest.mark.parametrize("backend", ["cpu", "jax", "mlx"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_steps_in_8_bits_have_the_bytes_of_the_eager_cache(saved: Any, name: str, backend: str) -> None:
    """A prompt by mode "prefill", then tokens by mode "decode"."""
    require(backend)
    folder, _ = saved(name)
    model = LanguageModel.load(folder, backend, kv_dtype="q8_0")
    tokens = list(model.generate_ids(IDS[:10], max_new_tokens=6))
    eager, kept = model.new_cache(32), model.new_cache(32)
    model([*IDS[:10], *tokens[:-1]], eager)
    filling = model.persistent(mode="prefill", length=12, max_seq_length=32)
    decoding = model.persistent(max_seq_length=32)

    def integers(*values: int) -> np.ndarray:
        return np.asarray(values, np.int32)

    ids, keys, values = filling(integers(*IDS[:10], 0, 0), integers(0), integers(10), kept.keys, kept.values)
    found = [int(to_numpy(ids)[0])]
    for position in range(10, 15):
        ids, keys, values = decoding(integers(found[-1]), integers(position), keys, values)
        found.append(int(to_numpy(ids)[0]))
    assert found == tokens
    for ours, theirs in zip((*keys, *values), (*eager.keys, *eager.values), strict=True):
        mine, expected = (
            gguf.quants.dequantize(to_numpy(each)[:, :, :15], gguf.GGMLQuantizationType.Q8_0) for each in (ours, theirs)
        )
        largest = np.abs(expected).max()  # sums in another order are rounded to other steps here and there
        assert largest > 0
        np.testing.assert_allclose(mine, expected, rtol=0, atol=largest / 100)
        assert np.abs(mine - expected).mean() < largest / 2000


def test_a_number_that_8_bits_cannot_hold() -> None:
    x = np.ones((1, 1, 2, 32), np.float32)
    for value in (np.nan, np.inf, 1e7):
        x[0, 0, 1, 5] = value
        with pytest.raises(ValueError, match="quantize: w holds a number"):
            cache.stored(np, x, np.dtype(np.uint8))


# --- blocks with a window ----------------------------------------------------------------------------------

LONG = [int(i) for i in np.random.default_rng(1).integers(0, tiny_networks.VOCABULARY, 200)]
WINDOWED = ("mistral", "gemma2", "gemma3", "olmo3", "gpt-oss", "phi3 with a window", "gemma4 with inputs of blocks")


@pytest.fixture(scope="module")
def long_saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder of a network by its name, and its logits for LONG."""
    return tiny_networks.saver(tmp_path_factory, LONG)


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let texts be read in pieces of 16 tokens: windows of the networks move on after 128."""
    monkeypatch.setattr(language_model, "PREFILL_TOKENS", 16)
    return 16


def slots_of(kept: Any) -> list[int]:
    return [keys.shape[2] for keys in kept.keys]


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_are_bounded(long_saved: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, (folder, exact) = small_pieces(monkeypatch), long_saved(name)
    model = LanguageModel.load(folder)
    kept = model.new_cache(8)
    pieces = [model(part, kept) for part in (LONG[:50], *([token] for token in LONG[50:70]), LONG[70:])]
    error = np.abs(np.concatenate([to_numpy(part) for part in pieces]) - exact).max() / np.abs(exact).max()
    assert error < 2e-5
    c = model.config
    assert c.window
    assert kept.base > 0
    for number, slots in enumerate(slots_of(kept)):
        if number in c.windowed and number not in c.sources:
            assert slots == c.window - 1 + 2 * piece < len(LONG)
        elif number not in c.sources:
            assert slots == 256


@pytest.mark.parametrize("backend", ["numpy", "jax", "mlx", "torch"])
@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_windows_are_bounded_everywhere(
    long_saved: Any, name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(backend)
    small_pieces(monkeypatch)
    folder, exact = long_saved(name)
    compile_ = None
    if backend == "jax":
        import jax

        compile_ = jax.jit
    model = LanguageModel.load(folder, backend, compile=compile_)
    kept = model.new_cache(8)
    logits = np.concatenate([to_numpy(model(part, kept)) for part in (LONG[:90], LONG[90:91], LONG[91:])])
    np.testing.assert_allclose(logits, exact, rtol=0, atol=2e-5 * np.abs(exact).max())
    assert kept.base > 0
    assert model.config.window
    assert slots_of(kept)[0] == model.config.window + 31


@pytest.mark.parametrize(("back", "is_known"), [(1, True), (16, True), (60, False)])
def test_what_windows_have_forgotten_is_read_again(
    long_saved: Any, back: int, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    folder, exact = long_saved("gemma3")
    model = LanguageModel.load(folder, "numpy")
    for first in range(len(LONG) - 20, len(LONG), 4):  # windows have moved on by different numbers of tokens
        kept = PromptCache(model.new_cache(8))
        list(model.generate_ids(LONG[:first], max_new_tokens=1, prompt_cache=kept))
        same = first - back
        left = kept.begin(LONG[: same + 1])
        assert kept.reused == (same if is_known else 0)
        logits = to_numpy(model(left, kept.cache))
        np.testing.assert_allclose(logits, exact[kept.reused : same + 1], rtol=0, atol=2e-5 * np.abs(exact).max())


def test_a_file_has_what_windows_keep(long_saved: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    small_pieces(monkeypatch)
    folder, exact = long_saved("gemma3")
    model = LanguageModel.load(folder, "numpy")
    kept = model.new_prompt_cache()
    tokens = list(model.generate_ids(LONG[:180], max_new_tokens=4, prompt_cache=kept))
    kept.save(tmp_path / "kept", 180)
    with pytest.raises(ValueError, match="windows have moved on: what follows the first 100 tokens"):
        kept.save(tmp_path / "less", 100)
    again = model.new_prompt_cache()
    again.load(tmp_path / "kept", "numpy")
    assert list(model.generate_ids(LONG[:180], max_new_tokens=4, prompt_cache=again)) == tokens
    assert again.reused == 179
    assert again.cache.truncate(180) == 180
    logits = to_numpy(model(LONG[180:], again.cache))
    np.testing.assert_allclose(logits, exact[180:], rtol=0, atol=2e-5 * np.abs(exact).max())


def test_memory_of_windows_is_bounded(saved: Any) -> None:
    model = LanguageModel.load(saved("gemma3")[0], "numpy")
    config = replace(model.config, context_length=1 << 17)
    bytes_of_a_slot = 2 * 4 * config.kv_heads * config.head_dim
    windows = len(config.windowed)
    assert config.window
    expected = bytes_of_a_slot * (windows * (config.window + 511) + (config.blocks - windows) * (1 << 17))
    assert memory.cache_bytes(config, 100_000) == expected


# --- pages and batches of what is not keys and values of equal heads -----------------------------------------

PROMPTS = [IDS[:12], IDS[3:6], IDS[5:], IDS[:12], [7, 8]]


@pytest.mark.parametrize("backend", ["cpu", "numpy", "jax"])
@pytest.mark.parametrize("name", ["qwen35moe", "gemma4", "gemma4 with inputs of blocks"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch": 2, "temperature": 1.0, "seed": 3},
        {"max_num_pages": 9, "page_size": 4},  # too few: some begin again
        {"repeat_penalty": 1.3, "presence_penalty": 0.5},
    ],
)
def test_batches_give_the_tokens_of_one(saved: Any, name: str, backend: str, options: dict[str, Any]) -> None:
    require(backend)
    compile_ = pytest.importorskip("jax").jit if backend == "jax" else None
    model = LanguageModel.load(saved(name)[0], backend, compile=compile_)
    of_one = {key: value for key, value in options.items() if "max" not in key and "page" not in key}
    found: list[list[int]] = [[] for _ in PROMPTS]
    for number, token in model.generate_batch(PROMPTS, max_new_tokens=8, **options):
        found[number].append(token)
    assert found == [list(model.generate_ids(ids, max_new_tokens=8, **of_one)) for ids in PROMPTS]
    replays = backend != "numpy"
    assert {isinstance(step, tp.PersistentKernel) for step in model._batch_steps.values()} == {replays}


def test_states_of_a_sequence_begin_and_end_with_it(saved: Any) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    model = LanguageModel.load(saved("qwen35")[0], "cpu")
    step = model.persistent(batch=2, page_size=8, max_num_pages=4, max_seq_length=16)
    pages = model.new_paged_cache(8, 4, max_sequences=2)
    kept, _ = pages.join(IDS[:4])
    for ids in (IDS[:6], IDS[8:14], IDS[:6]):  # one after the other in the same row
        number, known = pages.join(ids)
        assert known == 0
        with pytest.raises(OutOfPagesError, match="all 2 rows of states are in use: max_sequences is too small"):
            pages.join(ids)
        for token in ids:
            pages.append(number, [token])
            there = pages.step([number], pages=2, batch=2)
            last = np.asarray([token, 0], np.int32)
            tokens, pages.keys, pages.values = step(last, there[0], pages.keys, pages.values, *there[1:])
        assert [int(tokens[0])] == list(model.generate_ids(ids, max_new_tokens=1))
        assert pages.row(number) != pages.row(kept)
        pages.leave(number)
