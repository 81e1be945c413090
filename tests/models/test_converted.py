"""GGUF files that llama.cpp's own converter makes, against transformers and llama.cpp (``.ci/models``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import ml_dtypes
from safetensors.numpy import load_file, save_file

import tensorops as tp
import tiny_networks
from tensorops.models import LanguageModel, open_gguf
from tiny_networks import FOLDERS_ONLY, IDS, NETWORKS

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = os.environ.get("LLAMA_CPP_SOURCES")
pytestmark = pytest.mark.skipif(not SOURCES, reason="LLAMA_CPP_SOURCES does not name the sources of llama.cpp")

PHI = {
    "hidden_size": 128, "tie_word_embeddings": True, "original_max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                        "long_factor": [1.5 + 0.1 * i for i in range(12)], "short_factor": [1.0] * 12},
}  # fmt: skip
WHOLE_PHI = {**PHI["rope_parameters"], "long_factor": [2.0 + i for i in range(16)], "short_factor": [1.0] * 16,  # type: ignore[dict-item]
             "partial_rotary_factor": 1.0}  # fmt: skip
OLMO = {
    "rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
    "beta_slow": 1.0, "attention_factor": 1.2079441541679836,
}  # fmt: skip
LAYERS = ["linear_attention", "full_attention", "full_attention", "linear_attention"]
# As models are published, in small: the class of the configuration, and what differs from the sizes of all.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Phi-3-mini-128k": ("Phi3", {**PHI, "rope_parameters": WHOLE_PHI, "tie_word_embeddings": False}),
    "Phi-4-mini": ("Phi3", PHI),
    "OLMo 3": ("Olmo3", {"sliding_window": 6, "rope_parameters": {"full_attention": OLMO}}),
    "OLMo 3 with another factor": (
        "Olmo3", {"sliding_window": 6, "rope_parameters": {"full_attention": OLMO | {"attention_factor": 1.6}}}),
    "Qwen3-Embedding": ("Qwen3", {"head_dim": 32}),
    "Qwen 3.5": ("Qwen3_5Text", tiny_networks.DELTA),
    "Qwen 3.5 with other layers": ("Qwen3_5Text", {**tiny_networks.DELTA, "layer_types": LAYERS}),
    "DeepSeek-V2-Lite": ("DeepseekV2", {
        **NETWORKS["deepseek2 without a latent of queries"][1], "num_hidden_layers": 27}),
    "Granite 4 without Mamba": ("GraniteMoeHybrid", {
        **tiny_networks.MAMBA, "layer_types": ["attention"] * 4, "num_local_experts": 0, "num_experts_per_tok": 0,
        "position_embedding_type": "rope"}),
    "NVFP4": ("Llama", {"intermediate_size": 128}),
    "NVFP4 with experts": ("Qwen3Moe", {**NETWORKS["qwen3moe"][1], "hidden_size": 128, "moe_intermediate_size": 64}),
}  # fmt: skip
OPTIONS = {"llama with biases": ["--fuse-qkv"], "qwen35moe": ["--fuse-gate-up-exps"]}
# What llama.cpp does not compute as transformers does: the files have the keys, or inputs become numbers of 8 bits.
NOT_LLAMA_CPP = {*tiny_networks.NOT_LLAMA_CPP, "OLMo 3 with another factor", "NVFP4", "NVFP4 with experts"}


def with_pooling(folder: Path) -> None:
    """Add what sentence-transformers writes."""
    modules = [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))


def with_predictions(folder: Path) -> None:
    """Add a block that predicts the token after the next."""
    arrays = load_file(folder / "model.safetensors")
    full = {name.split("layers.3.")[1]: array for name, array in arrays.items() if "layers.3." in name}
    norm = arrays["model.norm.weight"]
    extra = {f"mtp.layers.0.{name}": array for name, array in full.items()}
    extra |= dict.fromkeys(
        ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"), norm
    )
    extra["mtp.fc.weight"] = np.ones((norm.size, 2 * norm.size), np.float32)
    save_file(arrays | extra, folder / "model.safetensors")
    change(folder, mtp_num_hidden_layers=1)


def change(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def with_nvfp4(folder: Path) -> None:
    """Store matrices as TensorRT's Model Optimizer does; the folder ``plain`` has the same values."""
    plain, packed = {}, {}
    for name, array in load_file(folder / "model.safetensors").items():
        plain[name] = packed[name] = array
        if not name.endswith("_proj.weight"):
            continue
        groups = array.reshape(array.shape[0], -1, 16)
        largest = np.abs(groups).max(-1)
        whole = np.float32(largest.max() / (6 * 448))
        scales = (largest / 6 / whole).astype(ml_dtypes.float8_e4m3fn)
        each = scales.astype(np.float64)[..., None] * whole
        codes = np.abs(np.abs(groups / each)[..., None] - E2M1).argmin(-1)
        exact = np.sign(groups) * E2M1[codes] * each
        codes = (codes | np.where(groups < 0, 8, 0)).astype(np.uint8).reshape(array.shape)
        plain[name] = exact.reshape(array.shape).astype(np.float32)
        stem = name.removesuffix(".weight")
        packed |= {name: codes[:, ::2] | codes[:, 1::2] << 4, f"{stem}.weight_scale": scales,
                   f"{stem}.weight_scale_2": np.asarray(whole), f"{stem}.input_scale": np.float32(0.01)}  # fmt: skip
    (folder / "plain").mkdir()
    (folder / "plain" / "config.json").write_text((folder / "config.json").read_text())
    save_file(plain, folder / "plain" / "model.safetensors")
    save_file({name: np.asarray(array) for name, array in packed.items()}, folder / "model.safetensors")
    change(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})


def with_former_kinds(folder: Path) -> None:
    """Name kinds of blocks and features of layers without experts as published files do, where the converter reads."""
    config = json.loads((folder / "config.json").read_text())
    former = {"full_attention": "attention", "linear_attention": "mamba"}
    change(folder, layer_types=[former[kind] for kind in config["layer_types"]])
    if not config["num_local_experts"]:
        change(folder, intermediate_size=config["shared_intermediate_size"])


ADDED: dict[str, Callable[[Path], None]] = {
    "Qwen3-Embedding": with_pooling, "Qwen 3.5": with_predictions, "NVFP4": with_nvfp4,
    "NVFP4 with experts": with_nvfp4, "granitehybrid": with_former_kinds,
    "granitehybrid without experts": with_former_kinds, "Granite 4 without Mamba": with_former_kinds,
}  # fmt: skip
NAMES = [*(name for name in NETWORKS if name not in FOLDERS_ONLY), *PUBLISHED]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, np.ndarray]]:
    """Return a function that returns the file of a network by its name, and the logits of its folder."""

    @cache
    def of(name: str) -> tuple[Path, np.ndarray]:
        folder = tmp_path_factory.mktemp("converted")
        with pytest.MonkeyPatch.context() as patch:
            if name in PUBLISHED:
                patch.setitem(NETWORKS, name, PUBLISHED[name])
            tiny_networks.save(name, folder)
        ADDED.get(name, lambda folder: None)(folder)
        plain = folder / "plain"
        exact = tiny_networks.logits_of(plain if plain.exists() else folder)
        options = list(OPTIONS.get(name, []))
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        if model_type.startswith(("qwen3_5", "qwen3_next")) and name not in ADDED:
            options.append("--no-nextn")
        program = Path(__file__).parents[1] / "convert_folder.py"
        command = [sys.executable, str(program), str(SOURCES), str(folder), str(folder / "model.gguf"), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return folder / "model.gguf", exact

    return of


@pytest.mark.parametrize("name", NAMES)
def test_a_converted_file_gives_the_logits_of_its_folder(converted: Any, name: str) -> None:
    path, exact = converted(name)
    logits: Any = tp.to_backend(LanguageModel.load(path)(IDS), "numpy")
    np.testing.assert_allclose(logits, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_LLAMA_CPP])
def test_a_converted_file_gives_the_logits_of_llama_cpp(converted: Any, name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    path, exact = converted(name)
    float32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(path), n_ctx=128, n_threads=2, type_k=float32, type_v=float32, logits_all=True, verbose=False
    )
    model.eval(IDS)
    error = 1e-2 if name.startswith("gemma4") else 1e-3  # see test_llama_cpp.py
    np.testing.assert_allclose(model.scores[: len(IDS)], exact, rtol=0, atol=error * np.abs(exact).max())


def test_files_have_the_keys_that_this_is_about(converted: Any) -> None:
    keys = {
        "Phi-4-mini": "phi3.rope.scaling.attn_factor",
        "OLMo 3": "olmo2.rope.scaling.yarn_attn_factor",
        "Qwen3-Embedding": "qwen3.pooling_type",
        "Qwen 3.5": "qwen35.nextn_predict_layers",
        "Qwen 3.5 with other layers": "qwen35.attention.recurrent_layers",
    }
    for name, key in keys.items():
        assert key in open_gguf(converted(name)[0]).metadata
    for name in ("NVFP4", "NVFP4 with experts"):
        tensors = open_gguf(converted(name)[0]).tensors
        assert {name.rpartition(".")[2] for name in tensors} == {"weight", "scale", "input_scale"}
        assert {tensor.type.name for tensor in tensors.values()} == {"F32", "NVFP4"}


@pytest.mark.parametrize("name", ["NVFP4", "NVFP4 with experts"])
def test_blocks_with_scales_of_their_own_stay_packed(converted: Any, name: str) -> None:
    pytest.importorskip("tensorops.kernels.cpu._native")
    model = LanguageModel.load(converted(name)[0], "cpu")
    with tp.trace() as log:
        model(IDS)
    used = {record.operator: record.kernel for record in log}
    assert used["quantized_linear"] == "cpu"
    if name != "NVFP4":
        assert used.get("moe", used.get("grouped_quantized_linear")) == "cpu"
