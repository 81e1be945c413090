"""What a ``config.json`` means, against the classes of transformers, key by key."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("transformers")

import transformers

import tiny_networks
from tensorops.models import GGUFError, LanguageModel, architectures
from tensorops.models.files.configurations import BY_KIND, DEFAULTS, HARMLESS, complete

if TYPE_CHECKING:
    from collections.abc import Mapping

# Keys that a class takes, but does not keep under this name, or of which it supports only what is published.
BY_ANOTHER_NAME = {
    "block_ff_dim", "full_attention_interval", "full_attn_idxs", "global_head_dim", "mamba_d_head", "max_window_layers",
    "num_global_key_value_heads", "partial_rotary_factor", "per_layer_config", "rope_local_base_freq", "rope_theta",
    "scoring_func", "sliding_window_pattern",
}  # fmt: skip


def the_class(model_type: str) -> Any:
    return transformers.CONFIG_MAPPING[model_type]


def by_class(model_type: str, written: dict[str, Any]) -> dict[str, Any]:
    """Return what a class of transformers makes of a configuration, with the names of those of tensorops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = the_class(model_type).from_dict(json.loads(json.dumps(written))).to_dict()
    return {"num_experts" if key == "num_local_experts" else key: value for key, value in made.items()}


def test_every_type_that_loads_has_a_row() -> None:
    assert set(architectures.model_types()) == set(DEFAULTS)


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_rows_have_every_key_with_an_effect(model_type: str) -> None:
    fields = {field.name for field in dataclasses.fields(the_class(model_type)) if not field.name.startswith("_")}
    row = {"num_local_experts" if key == "num_experts" and key not in fields else key for key in DEFAULTS[model_type]}
    aliases = set(the_class(model_type).attribute_map)
    assert fields - row - HARMLESS - aliases <= {"original_max_position_embeddings"}
    written_only = {
        "head_dim",
        "layer_types",
        "hidden_act",
        "num_key_value_heads",
    }  # which networks take from any class
    assert row - fields - aliases <= BY_ANOTHER_NAME | written_only


@pytest.mark.parametrize("model_type", DEFAULTS)
def test_what_is_missing_has_the_default_of_its_class(model_type: str) -> None:
    assert_same(model_type, {})


def assert_same(model_type: str, written: dict[str, Any]) -> None:
    ours, theirs = complete(model_type, written), by_class(model_type, written)
    for key in DEFAULTS[model_type].keys() - BY_ANOTHER_NAME:
        if key in theirs and key not in ("rope_parameters", "head_dim", "mlp_only_layers"):
            none = 0 if (model_type, key) == ("qwen2_moe", "sliding_window") else None  # what that class has for none
            assert ours[key] == theirs[key] or (ours[key] is None and theirs[key] == none), key
    if theirs.get("head_dim"):
        assert ours["head_dim"] == theirs["head_dim"]
    ropes, others = ours["rope_parameters"], theirs["rope_parameters"]
    for kind in ("full_attention", "sliding_attention") if model_type in BY_KIND else (None,):
        rope, other = (ropes, others) if kind is None else (ropes[kind], others[kind])
        for key, value in other.items():
            if value is not None and key not in ("type", "max_position_embeddings"):
                assert rope[key] == value, f"{kind} {key}"


G = {"head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32}
DEFAULT, LINEAR = ({"rope_type": kind, "rope_theta": 1e4} for kind in ("default", "linear"))
YARN, FULL, EXPERTS, DELTA = tiny_networks.YARN, ["full_attention"] * 4, tiny_networks.EXPERTS, tiny_networks.DELTA
LATENTS, MAMBA = tiny_networks.LATENTS, tiny_networks.MAMBA
MIXED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
MOE = {"head_dim": 32, "moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2}
GPT_OSS = {"head_dim": 32, **EXPERTS, "sliding_window": 6}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "long_factor": [2.0 + i / 8 for i in range(8)],
    "short_factor": [1.0] * 8, "original_max_position_embeddings": 16,
}  # fmt: skip


def kinds(full: Any, sliding: Any) -> dict[str, Any]:
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


# The class in transformers, what its network has besides SIZES, and what the file says or leaves out (...) instead.
FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma2 without windows": ("Gemma2", {**G, "layer_types": FULL}, {}),
    "gemma3 without windows": ("Gemma3Text", {**G, "layer_types": FULL}, {}),
    "olmo3 without windows": ("Olmo3", {"sliding_window": 6, "layer_types": FULL}, {}),
    "gpt-oss without windows": ("GptOss", {**GPT_OSS, "layer_types": FULL}, {}),
    "gpt-oss with other windows": ("GptOss", {**GPT_OSS, "layer_types": MIXED}, {}),
    "mistral with layer_types": ("Mistral", {"sliding_window": 6}, {"layer_types": MIXED}),
    "mistral without windows": ("Mistral", {"sliding_window": 6}, {"layer_types": FULL}),
    "mistral with null": ("Mistral", {"sliding_window": None}, {}),
    "qwen2 whose windows are off": ("Qwen2", {}, {"sliding_window": 6, "max_window_layers": 2, "layer_types": ...}),
    "qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}, {}),
    "qwen3 with full_attention": ("Qwen3", {"head_dim": 32, "layer_types": FULL}, {"use_sliding_window": False}),
    "qwen3 with windows": ("Qwen3", {"head_dim": 32, "use_sliding_window": True, "sliding_window": 6,
                                     "max_window_layers": 1}, {"layer_types": ...}),
    "qwen3_moe with a window": ("Qwen3Moe", {**MOE, "use_sliding_window": True, "sliding_window": 6}, {}),
    "gemma3 of an older pattern": ("Gemma3Text", G, {"layer_types": ..., "sliding_window_pattern": 2}),
    "mixtral without a base": ("Mixtral", EXPERTS, {"rope_parameters": ...}),
    "smollm3 without a base": ("SmolLM3", {}, {"rope_parameters": ...}),
    "gpt-oss without rotation": ("GptOss", GPT_OSS, {"rope_parameters": ...}),
    "gpt-oss without a base": ("GptOss", {**GPT_OSS, "rope_parameters": {**YARN, "rope_theta": 150000.0}},
                               {"rope_parameters": {k: v for k, v in YARN.items() if k != "rope_theta"}}),
    "gemma3 without a window": ("Gemma3Text", {**G, "sliding_window": 4096}, {"sliding_window": ...}),
    "gemma3 of which much is missing": ("Gemma3Text", {**G, "head_dim": 256, "query_pre_attn_scalar": 256,
                                                       "rms_norm_eps": 1e-6},
                                        dict.fromkeys(["head_dim", "query_pre_attn_scalar", "hidden_activation",
                                                       "rope_parameters", "layer_types", "rms_norm_eps"], ...)),
    "qwen3_moe without norm_topk_prob": ("Qwen3Moe", MOE, {"norm_topk_prob": ...}),
    "granitemoehybrid of which much is missing": ("GraniteMoeHybrid", {
        **MAMBA, "attention_multiplier": 1.0, "mamba_d_conv": 4, "mamba_n_groups": 1,
        "position_embedding_type": "rope"}, dict.fromkeys(
            ["attention_multiplier", "mamba_d_conv", "mamba_n_groups", "mamba_d_head", "mamba_chunk_size",
             "time_step_limit", "rope_parameters"], ...)),
    "granitemoehybrid with former names": ("GraniteMoeHybrid", MAMBA, {
        "layer_types": ..., "layers_block_type": ["mamba", "attention", "mamba", "mamba"], "mamba_d_head": "auto",
        "normalization_function": "rmsnorm", "init_method": "mup"}),
    "granitemoehybrid of attention": ("GraniteMoeHybrid", {
        **MAMBA, "layer_types": ["attention"] * 4, "num_local_experts": 0, "position_embedding_type": "rope"}, {}),
    "granite without its scale": ("Granite", {}, {"attention_multiplier": ...}),
    "qwen3_5 without its part": ("Qwen3_5Text", DELTA, {"rope_parameters": DEFAULT}),
    "qwen3_5 with an interval": ("Qwen3_5Text", {**DELTA, "layer_types": ["linear_attention", "full_attention"] * 2},
                                 {"layer_types": ..., "full_attention_interval": 2}),
    "qwen3_5 with other layers": ("Qwen3_5Text", {
        **DELTA, "layer_types": ["full_attention"] + ["linear_attention"] * 3}, {}),
    "deepseek_v2 without groups": ("DeepseekV2", {**LATENTS, "n_group": 4, "topk_group": 2}, {}),
    "deepseek_v2 with two scales": ("DeepseekV2", {**LATENTS, "rope_parameters": {
        **YARN, "mscale": 0.7, "mscale_all_dim": 1.2}}, {}),
    "deepseek_v2 with yarn": ("DeepseekV2", {**LATENTS, "rope_parameters": YARN}, {}),
    "deepseek_v3 as published": ("DeepseekV3", {
        **LATENTS, "n_group": 4, "topk_group": 2, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}, {
        "rope_parameters": ..., "head_dim": ..., "qk_head_dim": ..., "rope_interleave": ..., "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32, "beta_fast": 32,
                         "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "ep_size": 1, "moe_layer_freq": 1, "seq_aux": True,
        "aux_loss_alpha": 0.001}),
    "gemma2 without bounds": ("Gemma2", {**G, "attn_logit_softcapping": None, "final_logit_softcapping": None}, {}),
    "gemma3 with bounds": ("Gemma3Text", {**G, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0}, {}),
    "gemma3 with one base": ("Gemma3Text", {**G, **kinds({**DEFAULT, "rope_theta": 1e6},
                                                         {**DEFAULT, "rope_theta": 1e6})}, {}),
    "gemma3 as published": ("Gemma3Text", {**G, **kinds({**LINEAR, "rope_theta": 1e6, "factor": 8.0}, DEFAULT)},
                            {"rope_parameters": ..., "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                             "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    "gemma3 with scaled windows": ("Gemma3Text", {**G, **kinds(DEFAULT, {**LINEAR, "factor": 4.0})}, {}),
    "gemma4 with scaled windows": ("Gemma4Text", {
        **tiny_networks.NETWORKS["gemma4"][1],
        **kinds({"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
                {**LINEAR, "factor": 4.0})}, {}),
    "olmo3 as published": ("Olmo3", {"sliding_window": 6}, {
        "rope_parameters": ..., "rope_theta": 500000,
        "rope_scaling": {**{k: v for k, v in YARN.items() if k != "rope_theta"}, "factor": 8.0,
                         "attention_factor": 1.2079441541679836}}),
    "olmo3 with another base": ("Olmo3", {"sliding_window": 6}, {"rope_parameters": ..., "rope_theta": 2000.0}),
    "yarn with its own growth": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 1.138629436111989}}, {}),
    "yarn with another growth": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 0.7}}, {}),
    "yarn with everything": ("Llama", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5,
                                                           "attention_factor": 0.7}}, {}),
    "yarn with two scales": ("Llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5}}, {}),
    "yarn whose factor is null": ("Llama", {"rope_parameters": YARN}, {"rope_parameters": {**YARN, "factor": None}}),
    "yarn by an older name": ("Llama", {"rope_parameters": YARN}, {
        "rope_parameters": ..., "rope_theta": 1e4,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}),
    "longrope with a factor": ("Llama", {"rope_parameters": {**LONGROPE, "factor": 4.0}}, {}),
    "longrope with a growth": ("Llama", {"rope_parameters": {**LONGROPE, "attention_factor": 1.3}}, {}),
    "phi3 by an older name": ("Phi3", {"original_max_position_embeddings": 16, "rope_parameters": LONGROPE}, {
        "rope_parameters": ..., "rope_scaling": {"type": "longrope", "long_factor": LONGROPE["long_factor"],
                                                 "short_factor": LONGROPE["short_factor"]}}),
    "ministral3 with growing queries": ("Ministral3", {"head_dim": 32, "rope_parameters": {
        **DEFAULT, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}}, {}),
    "ministral3 with linear scaling": ("Ministral3", {"head_dim": 32, "rope_parameters": {
        **LINEAR, "factor": 2.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}}, {}),
    "smollm3 with an interval": ("SmolLM3", {"no_rope_layer_interval": 2}, {"no_rope_layers": ...}),
    "smollm3 with a list": ("SmolLM3", {"no_rope_layers": [0, 1, 1, 0]}, {}),
    "smollm3 with windows": ("SmolLM3", {"use_sliding_window": True, "sliding_window": 6}, {"layer_types": ...}),
    "harmless keys": ("Llama", {}, {
        "is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"},
        "unsloth_fixed": True, "sliding_window_size": 6, "full_attn_mod": 1, "interpolate_factor": 1,
        "use_qk_norm": True, "mtp_num_hidden_layers": 1, "tokenizer_class": "LlamaTokenizer",
        "use_flash_attention_2": True, "gradient_checkpointing": True, "novelty": None, "another": False}),
}  # fmt: skip


def edited(folder: Path, changes: Mapping[str, Any]) -> Path:
    """Change what the file of a folder says."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config.pop(key, None) if value is ... else config.update({key: value})
    path.write_text(json.dumps(config))
    return folder


def exact(folder: Path, ids: list[int]) -> np.ndarray:
    """Return what transformers makes of a folder in float64."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **eager)
        return tiny_networks.exact_logits(network.eval(), ids)


@pytest.mark.parametrize("name", FILES)
def test_files_mean_what_they_mean_to_transformers(name: str, tmp_path: Path) -> None:
    kind, network, changes = FILES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network(kind, network, tmp_path)
    edited(tmp_path, changes)
    ids = [i % tiny_networks.VOCABULARY for i in range(3, 43)]
    logits = exact(tmp_path, ids)
    found = np.asarray(LanguageModel.load(tmp_path, "numpy")(ids))
    np.testing.assert_allclose(found, logits, rtol=0, atol=2e-5 * np.abs(logits).max())


def test_the_context_chooses_between_the_factors_of_longrope(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network("Llama", {"rope_parameters": LONGROPE}, tmp_path)
    model, ids = LanguageModel.load(tmp_path, "numpy"), list(range(3, 15))
    short = exact(tmp_path, ids)  # fewer than the original context
    atol = 2e-5 * np.abs(short).max()
    assert np.abs(np.asarray(model(ids)) - short).max() > 100 * atol
    model.context_length = 16
    np.testing.assert_allclose(np.asarray(model(ids)), short, rtol=0, atol=atol)
    model.context_length = 17
    ids = [*ids, *range(5, 12)]
    np.testing.assert_allclose(np.asarray(model(ids[:17])), exact(tmp_path, ids[:17]), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_parameters": LINEAR}, "rope_parameters of the type linear have no factor: missing"),
        ({"rope_parameters": {**YARN, "rope_type": "dynamic"}}, "rope_type 'dynamic' is not supported"),
        ({"layer_types": FULL[:2], "model_type": "qwen2"}, "layer_types has 2 elements, expected 4"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing"),
    ],
)
def test_what_a_file_may_not_say(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network("Llama", {}, tmp_path)
    with pytest.raises(GGUFError, match=message):
        LanguageModel.load(edited(tmp_path, change), "numpy")


def test_a_network_without_attention_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network("Qwen3_5Text", {**DELTA, "layer_types": ["linear_attention"] * 4}, tmp_path)
    with pytest.raises(GGUFError, match="recurrent_layers: no block has attention"):
        LanguageModel.load(tmp_path, "numpy")


def test_unknown_keys_are_named_once(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network("Llama", {}, tmp_path)
    edited(tmp_path, {"novelty": 3, "another": "x", "nothing": None})
    with pytest.warns(UserWarning, match=r"unknown keys are ignored: another, novelty$") as said:
        LanguageModel.load(tmp_path, "numpy")
    assert len(said) == 1


@pytest.mark.parametrize("outer", ["gemma3", "qwen3_5"])
def test_of_several_parts_the_text_is_run(outer: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    kind, network = {"gemma3": ("Gemma3Text", G), "qwen3_5": ("Qwen3_5Text", DELTA)}[outer]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_networks.save_network(kind, network, tmp_path)
    logits = exact(tmp_path, tiny_networks.IDS)
    text = json.loads((tmp_path / "config.json").read_text())
    del text["model_type"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": outer, "text_config": text, "vision_config": {}}))
    path, one = tmp_path / "model.safetensors", np.ones(3, np.float32)
    tensors = load_file(path)
    save_file(
        {**tensors, "vision_tower.a.weight": one, "model.embed_vision.b.weight": one, "mtp.norm.weight": one}, path
    )
    with pytest.warns(UserWarning, match="only text is run, without embed_vision, vision_tower$"):
        found = np.asarray(LanguageModel.load(tmp_path, "numpy")(tiny_networks.IDS))
    np.testing.assert_allclose(found, logits, rtol=0, atol=2e-5 * np.abs(logits).max())
