"""``tensorops models``: what loads, what is in a file, and why one does not load."""

from __future__ import annotations

import json

import numpy as np
import pytest

import make_gguf

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("gguf")

from click.testing import CliRunner

from tensorops import formats
from tensorops.cli._app import app
from tensorops.models import LanguageModel, architectures
from tensorops.models.tokenizers.pretokenizers import RULES


def run(*arguments, columns=200):
    return CliRunner().invoke(app, ["models", *map(str, arguments)], env={"COLUMNS": str(columns)})


def facts(path):
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_everything_in_the_tables_is_listed():
    said = json.loads(run("--json").stdout)
    listed = [name for row in said["architectures"] for name in row["names"]]
    assert sorted(listed) == sorted(architectures.names())
    assert [kind for row in said["architectures"] for kind in row["model_types"]] == list(architectures.model_types())
    assert {name.upper() for name in formats.names()} - set(said["formats"]) == {"FP8_E4M3", "FP8_E5M2", "SPARSE_2_4"}
    assert set(said["pretokenizers"]) == set(RULES)
    shown = run()
    assert shown.exit_code == 0
    words = shown.stdout.replace(",", " ").split()
    for name in (*listed, *said["formats"], *said["dtypes"], *said["tokenizers"], *said["pretokenizers"]):
        assert name in words, name


def test_an_architecture_that_is_registered_is_listed(monkeypatch):
    class Own(architectures.Decoder):
        names = ("own-architecture",)
        model_types = ("own_type",)

    monkeypatch.setattr(architectures, "_registered", {})
    architectures.register(Own)
    assert {"names": ["own-architecture"], "model_types": ["own_type"]} in json.loads(run("--json").stdout)[
        "architectures"
    ]


def test_what_is_in_a_file(tmp_path):
    kinds = {"blk.0.attn_q.weight": "Q8_0", "blk.1.attn_q.weight": "Q8_0", "token_embd.weight": "F16"}
    path = make_gguf.write_llama(tmp_path / "tiny.gguf", kinds)
    found = facts(path)
    model = LanguageModel.load(path, "numpy")
    assert (found["architecture"], found["loads"], found["context"]) == ("llama", True, model.config.context_length)
    assert found["parameters"] == sum(array.size for array in make_gguf.llama_arrays().values())
    assert found["sizes"] == {"blocks": 2, "features": 64, "heads": 4, "kv_heads": 2, "head_features": 16,
                              "hidden_features": 96, "vocabulary": 269}  # fmt: skip
    assert {row["type"]: row["count"] for row in found["tensors"]} == {"F32": 17, "Q8_0": 2, "F16": 1}
    assert (found["tokenizer"], found["chat_template"]) == ("gpt2 smollm", True)
    assert found["bytes"]["files"] == path.stat().st_size
    assert found["bytes"]["cache"] == 2 * 2 * 2 * 512 * 16 * 4
    shown = run(path).stdout
    for words in ("architecture: llama", "tensors: 17 F32, 2 Q8_0, 1 F16", "chat template: yes", "context: 300 tokens",
                  "heads: 4 (2 of keys and values) with 16 features", "keys and values of a full context"):  # fmt: skip
        assert words in shown


def test_what_is_in_a_folder(tmp_path):
    pytest.importorskip("transformers")
    import tiny_networks

    tiny_networks.save("qwen3moe", tmp_path)
    found = facts(tmp_path)
    assert (found["architecture"], found["tokenizer"], found["chat_template"]) == ("qwen3moe", None, False)
    assert [row["type"] for row in found["tensors"]] == ["F32"]
    assert found["sizes"]["experts"] > found["sizes"]["experts_used"] > 0
    shown = run(tmp_path).stdout
    assert "tokenizer: none: tokenizer.json is missing" in shown
    assert "chat template: no: `tensorops chat` needs one" in shown
    result = CliRunner().invoke(app, ["generate", "hello", "--model", str(tmp_path), "--backend=numpy"])
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path} has no tokenizer: copy the model's tokenizer.json to this folder\n"


def test_what_does_not_load_has_a_reason_and_exit_code_1(tmp_path):
    other = make_gguf.write_gguf(tmp_path / "other.gguf", {}, {"a": np.ones((2, 2), np.float32)}, architecture="bert")
    arrays = make_gguf.llama_arrays()
    del arrays["blk.1.ffn_up.weight"]
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata()
    lacking = make_gguf.write_gguf(tmp_path / "lacking.gguf", metadata, arrays)
    text = tmp_path / "letter.txt"
    text.write_text("Dear reader")
    for path, words in (
        (other, "general.architecture: 'bert' is not supported, only "),
        (lacking, "tensor blk.1.ffn_up.weight: "),
        (text, "magic: not a GGUF file"),
        (tmp_path, "config.json: missing, so this is not the folder of a model: pass the GGUF file, "),
    ):
        result = run(path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        as_json = run(path, "--json")
        assert as_json.exit_code == 1
        said = json.loads(as_json.stdout)
        assert (said["path"], said["loads"]) == (str(path), False)
        assert words in said["reason"]
    assert run(tmp_path / "none").exit_code == 2
