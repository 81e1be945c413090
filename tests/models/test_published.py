"""Configurations of published models, with all their keys: what loads gives the logits of transformers.

``published_configurations.json`` has them as public repositories quote them, with the place of each. The numbers of a
network are read from a configuration as it is; its weights are tensors of the right shapes in a file with a hole in
place of their bytes. For logits, sizes become small and everything else stays. How quantised weights are stored, other
tests compare (`test_layouts.py`): here those of quantised models are plain.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import struct
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from safetensors.numpy import load_file, save_file

import tensorops as tp
from tensorops.models import GGUFError, LanguageModel, architectures
from tensorops.models.files.folder import open_folder
from tensorops.models.weights import separated

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("published_configurations.json").read_text(encoding="utf-8")
)
PAGE = Path(__file__).parents[2] / "docs" / "published-models.md"
IDS = [int(i) for i in np.random.default_rng(0).integers(0, 96, 24)]
CONTEXT = 16  # the original one of small networks, shorter than IDS: scaled embeddings differ
SIZES = {"vocab_size": 96, "vocab_size_per_layer_input": 96, "intermediate_size": 48, "moe_intermediate_size": 16,
         "shared_expert_intermediate_size": 24, "shared_intermediate_size": 24, "num_experts": 6,
         "num_local_experts": 6, "num_experts_per_tok": 2, "experts_per_token": 2, "top_k_experts": 2,
         "head_dim": 16, "global_head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
         "hidden_size_per_layer_input": 8, "pad_token_id": 0, "n_routed_experts": 6, "kv_lora_rank": 32,
         "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}  # fmt: skip
# Where files of networks that see images, too, have those of the text, and other tensors beside them.
PLACES = {
    "gemma3": ("language_model.", ["vision_tower.vision_model.post_layernorm.weight",
                                   "multi_modal_projector.mm_soft_emb_norm.weight"]),
    "mistral3": ("language_model.", ["vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight"]),
    "qwen3_5": ("model.language_model.", ["model.visual.merger.norm.weight", "mtp.norm.weight"]),
    "qwen3_5_moe": ("model.language_model.", ["model.visual.merger.norm.weight", "mtp.norm.weight"]),
    "gemma4": ("model.language_model.", ["model.vision_tower.std_bias", "model.embed_vision.norm.weight"]),
}  # fmt: skip


@cache
def rows_of_the_page() -> dict[str, tuple[str, str]]:
    """Return where a configuration stands, and "loads" or why it does not, by the name of its model."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: (place, verdict) for name, place, verdict in rows}


def loaded() -> list[str]:
    return [name for name, (_, verdict) in rows_of_the_page().items() if verdict == "loads"]


def loaded_or_exhaustive() -> list[Any]:
    """Return parameters, of which a short run takes the first with each set of keys."""
    first: dict[Any, str] = {}
    for name in loaded():
        text = text_of(PUBLISHED[name]["config"])
        first.setdefault((text["model_type"], frozenset(text), str(text.get("rope_scaling"))[:40]), name)
    exhaustive = pytest.mark.exhaustive
    return [pytest.param(name, marks=() if name in first.values() else exhaustive) for name in loaded()]


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = config.get("text_config", config)
    return text


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with small sizes, and all other keys as they are.

    Patterns over blocks keep their beginning, heads the ratio of queries to keys, long contexts their ratio to the
    original one.
    """
    config = copy.deepcopy(config)
    text = text_of(config)
    heads, kv_heads = text["num_attention_heads"], text.get("num_key_value_heads", text["num_attention_heads"])
    is_explicit = "head_dim" in text and text["head_dim"] * heads != text["hidden_size"]
    text |= {key: size for key, size in SIZES.items() if text.get(key)}
    ratio, few = min(heads // kv_heads, 4), min(kv_heads, 2)
    text["num_attention_heads"] = ratio * few
    if "num_key_value_heads" in text:
        text["num_key_value_heads"] = few
    if text.get("num_global_key_value_heads"):
        text["num_global_key_value_heads"] = 1
    if "linear_num_key_heads" in text:
        text["linear_num_value_heads"] = 2 * text["linear_num_value_heads"] // text["linear_num_key_heads"]
        text["linear_num_key_heads"] = 2
    text["hidden_size"] = 48 if is_explicit else 16 * ratio * few
    most = 4 if "linear_num_key_heads" in text else 7  # so many have every kind, and states add little rounding
    blocks = text["num_hidden_layers"] = min(text["num_hidden_layers"], most)
    for key in ("layer_types", "no_rope_layers"):
        if text.get(key):
            text[key] = text[key][:blocks]
    if text.get("sliding_window"):
        text["sliding_window"] = 7
    ropes = [text, text.get("rope_scaling") or {}, text.get("rope_parameters") or {}]
    original = max(rope.get("original_max_position_embeddings") or 0 for rope in ropes)
    is_longer = 0 < original < text["max_position_embeddings"]
    for rope in ropes:
        if is_longer and rope.get("original_max_position_embeddings"):
            rope["original_max_position_embeddings"] = CONTEXT
        for key in ("long_factor", "short_factor"):
            if key in rope:
                dims = int(16 * text.get("partial_rotary_factor", 1.0)) // 2
                rope[key] = rope[key][:: len(rope[key]) // dims]
    if is_longer:
        text["max_position_embeddings"] = text["max_position_embeddings"] * CONTEXT // original
    return config


def network_of(folder: Path, device: str) -> Any:
    """Return the network of the text that transformers makes of a folder's configuration."""
    import torch

    transformers: Any = pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers'
        config = transformers.AutoConfig.from_pretrained(folder)
        text = config.get_text_config()
        text.tie_word_embeddings = config.tie_word_embeddings
        if getattr(text, "quantization_config", None):
            del text.quantization_config
        text._attn_implementation = text._experts_implementation = "eager"  # others have no float64
        with torch.device(device):
            return transformers.AutoModelForCausalLM.from_config(text, dtype=torch.float32).eval()


def placed(name: str, config: dict[str, Any]) -> str:
    """Return the name of a tensor in the file of a published model."""
    prefix = PLACES[config["model_type"]][0] if config["model_type"] in PLACES else ""
    if prefix == "model.language_model.":
        return name.replace("model.", prefix, 1) if name.startswith("model.") else name
    return prefix + name


@cache
def saved(name: str, root: Path) -> tuple[Path, np.ndarray]:
    """Save a small network with random weights as a published folder; return its logits, computed in float64."""
    import torch

    folder = root / name.replace("/", "--")
    folder.mkdir()
    config = small(PUBLISHED[name]["config"])
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    network = network_of(folder, "cpu")
    for parameter in network.parameters():
        matrix = parameter.ndim > 1
        parameter.data = torch.randn_like(parameter) * (0.2 if matrix else 0.5) + (0.0 if matrix else 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.save_pretrained(folder)
    arrays = {placed(key, config): array for key, array in load_file(folder / "model.safetensors").items()}
    arrays |= {key: np.ones(3, np.float32) for key in PLACES.get(config["model_type"], ("", []))[1]}
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        return folder, network.double()(torch.tensor([IDS])).logits[0].numpy()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


def test_the_page_has_a_row_for_each() -> None:
    assert {name: entry["source"] for name, entry in PUBLISHED.items()} == {
        name: place.replace("`", "") for name, (place, _) in rows_of_the_page().items()
    }
    assert len(PUBLISHED) >= 60


@pytest.mark.parametrize("name", loaded_or_exhaustive())
def test_the_logits_of_a_published_configuration(name: str, root: Path) -> None:
    folder, exact = saved(name, root)
    sees = PUBLISHED[name]["config"]["model_type"] in PLACES
    with pytest.warns(UserWarning, match="only text is run, without") if sees else contextlib.nullcontext():
        model = LanguageModel.load(folder, "numpy")
    logits = np.asarray(tp.to_backend(model(IDS), "numpy"))
    np.testing.assert_allclose(logits, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


def write_with_a_hole(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write a safetensors file whose numbers take no space, as nothing is written there."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        file.truncate(8 + len(content) + end)


# Where published files have a matrix for each expert: the layer, and its gate, up and down
SEPARATE = {
    "mixtral": ("block_sparse_moe", "w1", "w3", "w2"),
    "qwen2_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "glm4_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
    "deepseek_v2": ("mlp", "gate_proj", "up_proj", "down_proj"),
}


def in_separate_experts(model_type: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a published file that has a matrix for each expert."""
    layer, gate, up, down = SEPARATE[model_type]
    separate: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        stem = f"{name.partition('.mlp.')[0]}.{layer}"
        if name.endswith("mlp.experts.gate_up_proj"):
            for i in range(shape[0]):
                separate |= {f"{stem}.experts.{i}.{part}.weight": (shape[1] // 2, shape[2]) for part in (gate, up)}
        elif name.endswith("mlp.experts.down_proj"):
            separate |= {f"{stem}.experts.{i}.{down}.weight": shape[1:] for i in range(shape[0])}
        else:
            separate[name.replace(".mlp.gate.", f".{layer}.gate.")] = shape
    return separate


@pytest.mark.parametrize("name", loaded_or_exhaustive())
def test_the_numbers_of_a_published_configuration(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]["config"]
    (tmp_path / "config.json").write_text(json.dumps(published))
    network = network_of(tmp_path, "meta")
    theirs = network.config
    tied = {"lm_head.weight"} if theirs.tie_word_embeddings else set()
    shapes = {
        placed(key, published): tuple(value.shape) for key, value in network.state_dict().items() if key not in tied
    }
    shapes = in_separate_experts(theirs.model_type, shapes) if theirs.model_type in SEPARATE else shapes
    write_with_a_hole(tmp_path / "model.safetensors", shapes)
    file = open_folder(tmp_path)
    ours = architectures.read_config(file)
    tensors = separated(ours, file.tensors)
    assert architectures.find_misfit(ours, {key: tensor.shape for key, tensor in tensors.items()}) is None
    assert ours.blocks == theirs.num_hidden_layers
    assert ours.dim == theirs.hidden_size
    assert ours.heads == theirs.num_attention_heads
    if latent := getattr(theirs, "kv_lora_rank", None):  # which all heads share
        assert (ours.kv_heads, ours.head_dim) == (1, latent + theirs.qk_rope_head_dim)
    else:
        assert ours.kv_heads == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.context_length == theirs.max_position_embeddings
    assert ours.eps == theirs.rms_norm_eps
    window = getattr(theirs, "sliding_window", None)
    kinds = (
        getattr(theirs, "layer_types", None) or [f"{'full' if window is None else 'sliding'}_attention"] * ours.blocks
    )
    assert ours.windowed == tuple(i for i, kind in enumerate(kinds) if kind == "sliding_attention")
    assert ours.recurrent == tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention")
    assert not ours.windowed or ours.window == window
    ropes = theirs.rope_parameters
    full = ropes.get("full_attention", ropes)
    assert ours.rope_base == full["rope_theta"]
    assert ours.rope_factor == (full["factor"] if full["rope_type"] in ("linear", "yarn") else 1.0)
    if "sliding_attention" in ropes:
        base = ours.rope_base if ours.local_rope_base is None else ours.local_rope_base
        assert base == ropes["sliding_attention"]["rope_theta"]
    counts = [getattr(theirs, key, None) for key in ("num_experts", "n_routed_experts", "num_local_experts")]
    assert ours.experts == next(filter(None, counts), 0)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in loaded()])
def test_what_a_published_configuration_is_refused_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]["config"]))
    save_file({"model.embed_tokens.weight": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(GGUFError) as raised:
        LanguageModel.load(tmp_path, "numpy")
    assert rows_of_the_page()[name][1].replace("`", "") in str(raised.value)
