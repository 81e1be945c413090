"""GGUF files of every architecture against llama.cpp, where llama-cpp-python is installed (``.ci/models``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("transformers")

import gguf
import llama_cpp

import tensorops as tp
import tiny_networks
from asv_benchmarks import random_model
from tensorops.models import LanguageModel, open_gguf
from tiny_networks import FOLDERS_ONLY, IDS, NETWORKS, NOT_LLAMA_CPP

TOKENS = 8


def peer(path: str | Path, context: int) -> llama_cpp.Llama:
    """Return llama.cpp's model, which keeps keys and values in float32 as ours does."""
    float32 = llama_cpp.GGML_TYPE_F32
    options: Any = {"n_ctx": context, "n_threads": 2, "type_k": float32, "type_v": float32}
    return llama_cpp.Llama(str(path), logits_all=True, verbose=False, **options)


def theirs(path: Path) -> tuple[np.ndarray, list[int]]:
    """Return llama.cpp's logits for IDS, and the tokens that it adds."""
    model = peer(path, 128)
    model.eval(IDS)
    logits = np.array(model.scores[: len(IDS)])
    added = [int(np.argmax(logits[-1]))]
    for _ in range(TOKENS - 1):
        model.eval(added[-1:])
        added.append(int(np.argmax(model.scores[model.n_tokens - 1])))
    return logits, added


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in FOLDERS_ONLY | NOT_LLAMA_CPP])
def test_files_give_the_logits_and_tokens_of_llama_cpp(name: str, tmp_path: Path) -> None:
    tiny_networks.save(name, tmp_path / "folder")
    path = tiny_networks.as_gguf(tmp_path / "folder", tmp_path / "model.gguf")
    logits, added = theirs(path)
    model = LanguageModel.load(path)
    assert model.tokenizer is not None
    model.tokenizer.end_ids = frozenset()
    ours: Any = tp.to_backend(model(IDS), "numpy")
    # llama.cpp computes GELU from a table of halves, whose error Gemma 4's unscaled attention makes ten times as large.
    error = 1e-2 if name.startswith("gemma4") else 1e-3
    np.testing.assert_allclose(ours, logits, rtol=0, atol=error * np.abs(logits).max())
    assert list(model.generate_ids(IDS, max_new_tokens=TOKENS)) == added


SMALL = {"block_count": 2, "embedding_length": 512, "feed_forward_length": 1024, "attention.head_count": 8,
         "attention.head_count_kv": 4, "attention.key_length": 64, "attention.value_length": 64,
         "rope.dimension_count": 64}  # fmt: skip


def in_float32(path: Path, out: Path) -> Path:
    """Write a file's weights as float32, by the package gguf."""
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(out, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            of_items = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], of_items)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("type_name", random_model.TYPES)
def test_every_type_of_file(type_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At highest, tokens and logits of float32's weights; at low, no farther from these than llama.cpp is."""
    monkeypatch.setattr(random_model, "SIZES", SMALL)
    tiny_networks.save("llama", tmp_path / "folder")
    tokenizer = tiny_networks.as_gguf(tmp_path / "folder", tmp_path / "tokenizer.gguf")
    plain, path = tmp_path / "plain.gguf", tmp_path / "model.gguf"
    random_model.write(tokenizer, plain)
    random_model.quantize(plain, path, type_name)
    exact, added = theirs(in_float32(path, tmp_path / "float32.gguf"))
    error = {"llama.cpp": np.abs(theirs(path)[0] - exact).max()}
    for precision in ("highest", "low"):
        model = LanguageModel.load(path, precision=precision)
        assert model.tokenizer is not None
        model.tokenizer.end_ids = frozenset()
        ours: Any = tp.to_backend(model(IDS), "numpy")
        error[precision] = np.abs(ours - exact).max()
        if precision == "highest":
            assert list(model.generate_ids(IDS, max_new_tokens=TOKENS)) == added
    assert error["highest"] <= 1e-5 * np.abs(exact).max()
    assert error["highest"] < error["low"] <= 1.25 * error["llama.cpp"]


def perplexity(logits: Any, ids: list[int]) -> float:
    shifted = np.asarray(logits, np.float64)[:-1]
    shifted -= shifted.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(shifted).sum(axis=1))
    return float(np.exp(-chosen.mean()))


def test_gemma_has_the_perplexity_of_its_weights() -> None:
    if not (path := os.environ.get("GEMMA_3_270M")):
        pytest.skip("GEMMA_3_270M does not name the file of Gemma 3 270M (Q4_K_M)")
    model = LanguageModel.load(path)
    ids = model.tokenizer.encode((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"))[:400]
    other = peer(path, 512)
    other.eval(ids)
    theirs = perplexity(other.scores[: len(ids)], ids)
    weights = {name: tensor.dequantize() for name, tensor in open_gguf(path).tensors.items()}
    exact = perplexity(LanguageModel(model.config, weights)(ids), ids)
    assert abs(perplexity(model(ids), ids) / exact - 1) < 1e-4
    assert abs(perplexity(LanguageModel.load(path, precision="low")(ids), ids) / theirs - 1) < 5e-3
