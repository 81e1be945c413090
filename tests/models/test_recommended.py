"""What the files of a model recommend for sampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

import gguf

import make_gguf
from tensorops.models import GGUFError, LanguageModel
from tensorops.models.files.gguf import GGUFFile
from tensorops.models.recommended import recommended_sampling


def of_folder(folder: Path, written: Any) -> dict[str, Any]:
    (folder / "generation_config.json").write_text(json.dumps(written))
    return recommended_sampling(GGUFFile(str(folder), {}, {}, is_folder=True))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"eos_token_id": 2}, {}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": None}, {"temperature": 1.0}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1},
        ),
        ({"temperature": 1, "top_k": 0, "top_p": 1.0, "min_p": None, "repetition_penalty": 1.0}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1, "repeat_last_n": -1}),
    ],
)
def test_a_folder_recommends_what_is_written(tmp_path: Path, written: dict[str, Any], expected: dict[str, Any]) -> None:
    assert of_folder(tmp_path, written) == expected


def test_transformers_reads_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    written = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05}
    found = of_folder(tmp_path, written)
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    names = {"repeat_penalty": "repetition_penalty"}
    assert found.pop("repeat_last_n") == -1
    assert found == {name: getattr(theirs, names.get(name, name)) for name in found}
    assert len(found) == 4


@pytest.mark.parametrize(
    "written",
    [
        {"temperature": "hot"}, {"temperature": -1}, {"temperature": True}, {"temperature": float("nan")},
        {"temperature": 1e-300}, {"top_k": 2.5}, {"top_p": 0}, {"min_p": 1.5}, {"repetition_penalty": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_ignored_with_a_warning(tmp_path: Path, written: dict[str, Any]) -> None:
    (name,) = written
    with pytest.warns(UserWarning, match=rf"generation_config\.json: {name}: .* is ignored"):
        assert of_folder(tmp_path, written) == {}


def test_a_folder_without_the_file_recommends_nothing(tmp_path: Path) -> None:
    assert recommended_sampling(GGUFFile(str(tmp_path), {}, {}, is_folder=True)) == {}
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(GGUFError, match=r"generation_config\.json: file: not a JSON object"):
        recommended_sampling(GGUFFile(str(tmp_path), {}, {}, is_folder=True))


def test_a_gguf_file_has_the_keys_of_llama_cpps_converter(tmp_path: Path) -> None:
    keys = gguf.Keys.General
    written = {
        keys.SAMPLING_TEMP: 0.7, keys.SAMPLING_TOP_K: 30, keys.SAMPLING_TOP_P: 0.8, keys.SAMPLING_MIN_P: 0.05,
        keys.SAMPLING_PENALTY_REPEAT: 1.2, keys.SAMPLING_PENALTY_LAST_N: 256, keys.SAMPLING_MIROSTAT: 0,
    }  # fmt: skip
    metadata = make_gguf.llama_metadata() | make_gguf.tokenizer_metadata() | written
    path = make_gguf.write_gguf(tmp_path / "model.gguf", metadata, make_gguf.llama_arrays())
    model = LanguageModel.load(path, "numpy")
    assert model.recommended == {
        "temperature": 0.7, "top_k": 30, "top_p": 0.8, "min_p": 0.05, "repeat_penalty": 1.2, "repeat_last_n": 256,
    }  # fmt: skip
    first, again = (list(model.generate_ids([5, 9], max_new_tokens=5, seed=1, **model.recommended)) for _ in range(2))
    assert first == again
    assert LanguageModel.load(make_gguf.write_llama(tmp_path / "other.gguf"), "numpy").recommended == {}
