"""``tensorops embed`` and ``tensorops perplexity``, compared with the network in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest

import make_gguf
from llama_reference import float64_logits

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")

from click.testing import CliRunner

from tensorops.cli._app import app
from tensorops.models import LanguageModel

TEXT = "hello world or the letters of hello, a b c and so on " * 4


def written(path, begins):
    bos = {"ggml.add_bos_token": True} if begins else {}
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata(**bos)
    return make_gguf.write_gguf(path, metadata, make_gguf.llama_arrays())


def invoke(*arguments, code=0, **others):
    result = CliRunner().invoke(app, [*map(str, arguments), "--backend=numpy"], **others)
    assert result.exit_code == code, result.output
    return result


def expected_losses(model, ids, size, count):
    """The definition of llama.cpp's program, with the logits of the network in float64."""
    losses = []
    for i in range(count):
        chunk = ids[i * size : (i + 1) * size]
        if model.tokenizer.encode("")[:1] == [1]:
            chunk[0] = 1
        logits = float64_logits(model.config, make_gguf.llama_arrays(), chunk)
        for place in range(size // 2, size - 1):
            row = logits[place] - logits[place].max()
            losses.append(np.log(np.exp(row).sum()) - row[chunk[place + 1]])
    return np.asarray(losses)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("size", [16, 21])
def test_perplexity_is_that_of_its_definition(tmp_path, begins, size):
    path = written(tmp_path / "model.gguf", begins)
    model = LanguageModel.load(path, "numpy")
    ids = model.tokenizer.encode(TEXT)
    assert (ids[0] == 1) == begins
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    count = len(ids) // size
    losses = expected_losses(model, ids, size, count)
    found = json.loads(invoke("perplexity", text, "-m", path, "--context", size, "--json").stdout)
    assert found["perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    # That of llama.cpp: the error of the mean, by the derivative of exp
    error = np.sqrt(((losses**2).mean() - losses.mean() ** 2) / (len(losses) - 1)) * np.exp(losses.mean())
    assert found["standard_error"] == pytest.approx(error, rel=1e-4)
    assert (found["chunks"], found["chunk_tokens"], found["tokens_counted"]) == (count, size, len(losses))
    result = invoke("perplexity", "-", "-m", path, "--context", size, "--chunks=2", input=TEXT)
    value = np.exp(expected_losses(model, ids, size, 2).mean())
    assert float(result.stdout.partition(" +/- ")[0]) == pytest.approx(value, abs=1e-3)
    assert f"numpy: 2 chunks of {size} tokens" in result.stderr


def test_a_text_without_a_whole_chunk_is_refused(tmp_path):
    path = written(tmp_path / "model.gguf", False)
    result = invoke("perplexity", "-", "-m", path, input="hello", code=1)
    assert result.stderr == (
        "Error: the text has 1 tokens, and a chunk 300: take a longer text, or --context N with fewer tokens, "
        "at least 4\n"
    )
    assert "and a chunk 3: " in invoke("perplexity", "-", "-m", path, "--context=3", input=TEXT, code=1).stderr
    assert "the text is empty" in invoke("perplexity", "-", "-m", path, input="", code=2).stderr


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_embeddings_are_those_of_the_model(tmp_path, pooling):
    path = written(tmp_path / "model.gguf", False)
    # The features after the last norm are logits of a network whose output is the identity.
    model, arrays = LanguageModel.load(path, "numpy"), make_gguf.llama_arrays() | {"output.weight": np.eye(64)}
    texts = ["hello", "a b c"]
    expected = []
    for text in texts:
        rows = float64_logits(model.config, arrays, model.tokenizer.encode(text))
        expected.append({"mean": rows.mean(axis=0), "last": rows[-1], "cls": rows[0]}[pooling])
    options = ("-m", path, "--pooling", pooling)
    found = [json.loads(line) for line in invoke("embed", *texts, *options).stdout.splitlines()]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    lines = invoke("embed", "--file=-", *options, "--normalize", input="\n\n".join(texts)).stdout.splitlines()
    unit = [row / np.linalg.norm(row) for row in expected]
    np.testing.assert_allclose([json.loads(line) for line in lines], unit, rtol=1e-4, atol=1e-5)


def test_embed_takes_texts_or_a_file(tmp_path):
    path = written(tmp_path / "model.gguf", False)
    for arguments in ((), ("hello", "--file", __file__)):
        assert "give TEXTS or --file" in invoke("embed", *arguments, "-m", path, code=2).stderr
    long = "a b " * 300
    assert "past the model's context length of 300" in invoke("embed", long, "-m", path, code=1).stderr
