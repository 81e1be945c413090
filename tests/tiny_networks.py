"""Tiny random networks of every architecture: transformers computes them in float64 and saves them as folders.

Their conversion to GGUF files is that of llama.cpp's converter: queries and keys of some architectures are permuted.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from make_gguf import tokenizer_metadata, vocabulary, write_gguf
from tensorops.models import architectures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VOCABULARY = len(vocabulary()[0])
IDS = [int(i) for i in np.random.default_rng(0).integers(0, VOCABULARY, 24)]
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [2.0] * 8,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
}  # fmt: skip
EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
DEEPSEEK_EXPERTS = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_routed_experts": 6, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
}  # fmt: skip
LATENTS = {
    **DEEPSEEK_EXPERTS, "n_routed_experts": 8, "kv_lora_rank": 24, "q_lora_rank": 40, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 20, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "head_dim": 32, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
LAYERS = [f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding", "full", "sliding", "full")]
GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 2.0,
}  # fmt: skip
MAMBA = {
    **GRANITE, **EXPERTS, "shared_intermediate_size": 32, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 24,
    "mamba_n_groups": 2, "layer_types": ["mamba", "attention", "mamba", "mamba"],
}  # fmt: skip
# The class of the configuration in transformers, and what differs from SIZES.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with yarn": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mixtral": ("Mixtral", EXPERTS),
    "qwen2": ("Qwen2", {}),
    "qwen2moe": ("Qwen2Moe", {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_experts": 6,
                              "num_experts_per_tok": 2}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3moe": ("Qwen3Moe", {"head_dim": 32, "moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 2,
                              "norm_topk_prob": True}),
    "gemma2": ("Gemma2", {"head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32}),
    "gemma3": ("Gemma3Text", {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32,
                              "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                                  "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "cohere2": ("Cohere2", {"sliding_window": 6, "logit_scale": 0.5, "layer_norm_eps": 1e-3, "rms_norm_eps": None,
                            "rotary_pct": 1.0}),
    "deepseek2": ("DeepseekV2", {**LATENTS, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}),
    "deepseek2 without a latent of queries": ("DeepseekV2", {
        **LATENTS, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
        "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek3": ("DeepseekV3", {**LATENTS, "scoring_func": "sigmoid", "n_group": 2, "topk_group": 1,
                                 "kv_lora_rank": 32, "q_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 16,
                                 "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek3 with one group": ("DeepseekV3", {**LATENTS, "scoring_func": "sigmoid", "n_group": 1, "topk_group": 1,
                                                "norm_topk_prob": False}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True}),
    "glm4 without biases": ("Glm4", {"head_dim": 32, "attention_bias": False}),
    "glm4moe": ("Glm4Moe", {**DEEPSEEK_EXPERTS, "head_dim": 32, "attention_bias": True, "use_qk_norm": True}),
    "glm4moe without biases": ("Glm4Moe", {**DEEPSEEK_EXPERTS, "head_dim": 32, "norm_topk_prob": False}),
    "lfm2": ("Lfm2", {"full_attn_idxs": [1, 3], "block_multiple_of": 16, "norm_eps": 1e-3, "rms_norm_eps": None}),
    "phi3": ("Phi3", {}),
    "phi3 with a window": ("Phi3", {"sliding_window": 9}),
    "phi3 of which a part rotates": ("Phi3", {"partial_rotary_factor": 0.5}),
    "phi3 with factors": ("Phi3", {"original_max_position_embeddings": 256, "max_position_embeddings": 256,
                                   "rope_parameters": LONGROPE}),
    "mistral3": ("Ministral3", {"head_dim": 32, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                                    "llama_4_scaling_beta": 0.1,
                                                                    "original_max_position_embeddings": 16}}),
    "smollm3": ("SmolLM3", {}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"sliding_window": 6}),
    "granite": ("Granite", GRANITE),
    "granitemoe": ("GraniteMoe", {**GRANITE, **EXPERTS}),
    "granitemoe with a shared expert": ("GraniteMoeShared", {**GRANITE, **EXPERTS, "shared_intermediate_size": 32}),
    "granitehybrid": ("GraniteMoeHybrid", MAMBA),
    "granitehybrid without experts": ("GraniteMoeHybrid", {
        **MAMBA, "num_local_experts": 0, "mamba_n_groups": 1, "mamba_d_conv": 3, "mamba_conv_bias": False}),
    "gemma4": ("Gemma4Text", {"num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 6,
                              "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "layer_types": LAYERS[1:5],
                              "num_global_key_value_heads": 1}),
    "gemma4 with inputs of blocks": ("Gemma4Text", {
        "num_hidden_layers": 7, "head_dim": 16, "global_head_dim": 32, "sliding_window": 6, "layer_types": LAYERS,
        "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "final_logit_softcapping": 30.0}),
    "gemma4 with experts": ("Gemma4Text", {
        "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 6, "layer_types": LAYERS[1:5],
        "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}),
    "qwen35": ("Qwen3_5Text", DELTA),
    "qwen35 with shared keys": ("Qwen3_5Text", {**DELTA, "linear_num_value_heads": 4}),
    "qwen35moe": ("Qwen3_5MoeText", {**DELTA, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
                                     "num_experts": 6, "num_experts_per_tok": 2}),
    "qwen3next": ("Qwen3Next", {**DELTA, "linear_num_value_heads": 4, "moe_intermediate_size": 32, "num_experts": 6,
                                "shared_expert_intermediate_size": 48, "num_experts_per_tok": 2}),
    "gpt-oss": ("GptOss", {"head_dim": 32, **EXPERTS, "sliding_window": 6,
                           "rope_parameters": {**YARN, "truncate": True}}),
}  # fmt: skip
# What llama.cpp computes in another way: it counts two experts of each group, whatever chooses them; and a file without
# a latent of queries has 26 or 27 blocks.
NOT_LLAMA_CPP = {"deepseek2", "deepseek2 without a latent of queries"}
# What a GGUF file cannot say, or llama.cpp leaves out.
FOLDERS_ONLY = {"mistral", "phi3 with a window"}
PRIVATE = ("rope.scaling.truncate", "attention.scale")  # keys of folders that files lack; see GGUF_SCALES
GGUF_SCALES = ("granite", "granitehybrid", "granitemoe")


@cache
def _transformers() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def save_network(kind: str, changes: Mapping[str, Any], folder: Path) -> Any:
    """Save a network of a class of configurations as a folder; return it."""
    transformers = _transformers()  # skips the test where it or torch is missing
    import torch

    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    config._attn_implementation = config._experts_implementation = "eager"  # others have no float64
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in network.parameters():
        matrix = parameter.ndim > 1
        parameter.data = torch.randn_like(parameter) * (0.2 if matrix else 0.5) + (0.0 if matrix else 0.2)
    for part, buffer in network.named_buffers():
        if part.endswith("e_score_correction_bias"):
            buffer.data = torch.randn_like(buffer) * 0.2
    network.save_pretrained(folder)
    return network


def save(name: str, folder: Path, ids: Sequence[int] = IDS) -> np.ndarray:
    """Save a network as a folder; return its logits for some tokens, which transformers computes in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers'
        kind, changes = NETWORKS[name]
        longest = max(SIZES["max_position_embeddings"], len(ids))
        network = save_network(kind, {"max_position_embeddings": longest, **changes}, folder)
        return exact_logits(network.double(), ids)


def exact_logits(network: Any, ids: Sequence[int]) -> np.ndarray:
    """Return the logits of a network of transformers for some tokens."""
    import torch

    with torch.no_grad():
        return network(torch.tensor([ids])).logits[0].numpy()


def logits_of(folder: Path, ids: Sequence[int] = IDS) -> np.ndarray:
    """Return the logits of a folder for some tokens, which transformers computes in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers'
        transformers = _transformers()
        import torch

        kinds = {"attn_implementation": "eager", "experts_implementation": "eager"}  # others have no float64
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **kinds).eval()
        with torch.no_grad():
            return network(torch.tensor([ids])).logits[0].numpy()


def saver(temporary: pytest.TempPathFactory, ids: Sequence[int] = IDS) -> Callable[[str], tuple[Path, np.ndarray]]:
    """Return a function that returns the folder and the logits of a network by its name, and saves it once."""

    @cache
    def of(name: str) -> tuple[Path, np.ndarray]:
        folder = temporary.mktemp("network")
        return folder, save(name, folder, ids)

    return of


def as_gguf(folder: Path, path: Path, kinds: Mapping[str, str] | str = "F32") -> Path:
    """Write a folder as a GGUF file, in which matrices have a type."""
    from tensorops.models.files.folder import open_folder
    from tensorops.models.weights import separated

    file = open_folder(folder)
    name = file.metadata["general.architecture"]
    heads = {part: int(np.max(file.metadata[f"{name}.attention.{key}"]))
             for part, key in (("attn_q", "head_count"), ("attn_k", "head_count_kv"))}  # fmt: skip
    arrays = {}
    tensors = (
        file.tensors
        if "ffn_up" in architectures.get(name).fused
        else separated(architectures.read_config(file), file.tensors)
    )
    for key, tensor in tensors.items():
        array = tensor.dequantize()
        part = key.split(".")[2] if key.startswith("blk.") else ""
        if architectures.get(name).interleaved and not architectures.get(name).interleaved_in_folders and part in heads:
            array = np.ascontiguousarray(_neighbours(array, heads[part]))
        if name.startswith("qwen35"):
            array = _tiled(key.split(".", 2)[-1], array, *(file.metadata[f"{name}.{size}"] for size in SSM))
        arrays[key] = array
    if name == "lfm2":
        arrays["token_embd_norm.weight"] = arrays.pop("output_norm.weight")
    left_out: tuple[str, ...] = PRIVATE[:1] if name in GGUF_SCALES else PRIVATE
    if name.startswith("qwen"):
        left_out += ("expert_weights_norm",)
    metadata = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in file.metadata.items()
        if not key.endswith(left_out)
        and key != "general.architecture"
        and not (key.endswith("sliding_window") and value == 0)  # which llama.cpp refuses
    }
    if f"{name}.{SSM[0]}" in metadata and name != "granitehybrid":
        _, count, dim = (metadata[f"{name}.{size}"] for size in SSM)
        metadata |= {f"{name}.ssm.inner_size": count * dim, f"{name}.rope.dimension_sections": [2, 1, 1, 0]}
    if name == "gemma4":
        metadata[f"{name}.attention.value_length_swa"] = metadata[f"{name}.attention.key_length_swa"]
        metadata[f"{name}.rope.dimension_count_swa"] = metadata[f"{name}.attention.key_length_swa"]
        metadata[f"{name}.rope.dimension_count"] = metadata[f"{name}.attention.key_length"]
    if f"{name}.expert_count" in metadata and f"{name}.expert_feed_forward_length" not in metadata:
        metadata[f"{name}.expert_feed_forward_length"] = metadata[f"{name}.feed_forward_length"]
    if architectures.get(name).scoring == "sigmoid":
        metadata[f"{name}.expert_gating_func"] = 2
    if f"{name}.rope.dimension_count" not in metadata:
        keys = arrays.get("blk.0.attn_k.weight")
        metadata[f"{name}.rope.dimension_count"] = 16 if keys is None else keys.shape[0] // heads["attn_k"]
    return write_gguf(path, metadata | tokenizer_metadata(), arrays, kinds, name)


def _neighbours(array: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys with the features of a pair next to each other."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


SSM = ("ssm.group_count", "ssm.time_step_rank", "ssm.state_size")


def _tiled(part: str, array: np.ndarray, groups: int, heads: int, dim: int) -> np.ndarray:
    """Return a weight of a gated delta net whose heads of values are in the order of GGUF files: one of each group."""
    one, many = (0, 1), (2 * groups * dim, dim)
    rows = {"attn_gate.weight": (0, dim), "ssm_beta.weight": one, "ssm_alpha.weight": one, "ssm_a": one,
            "ssm_dt.bias": one, "attn_qkv.weight": many, "ssm_conv1d.weight": many}  # fmt: skip
    if part == "ssm_out.weight":
        return np.ascontiguousarray(_tiled("attn_gate.weight", array.T, groups, heads, dim).T)
    if part not in rows or (part == "attn_qkv.weight" and array.shape[0] != (2 * groups + heads) * dim):
        return array
    first, size = rows[part]
    values = array[first:].reshape(groups, heads // groups, size, *array.shape[1:]).swapaxes(0, 1)
    return np.concatenate([array[:first], values.reshape(array.shape[0] - first, *array.shape[1:])])
