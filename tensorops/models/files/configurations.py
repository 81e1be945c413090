"""What a ``config.json`` means: what is missing has the default of its ``model_type``, null is none.

What is written wins over every default and pattern. The table holds the defaults of transformers' classes, from which
`complete` derives what the classes derive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["DEFAULTS", "SUPPORTED_ONLY", "TEXT_TYPES", "complete", "has_effect"]

# Defaults that all classes share
COMMON: Mapping[str, Any] = MappingProxyType({
    "head_dim": None, "hidden_act": "silu", "layer_types": None, "num_key_value_heads": None,
    "partial_rotary_factor": None, "rms_norm_eps": 1e-6, "rope_parameters": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False,
})  # fmt: skip
YARN_OF_GPT_OSS = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
YARN_OF_MINISTRAL3 = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
ROPE_OF_GEMMA4 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


def _row(sizes: str, **others: Any) -> dict[str, Any]:
    """Return a row that begins with the sizes below."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings")  # fmt: skip
    own = {name: size for name, size in zip(names, sizes.split(), strict=True) if size != "none"}
    has_other = not others.keys().isdisjoint(("layer_norm_eps", "norm_eps"))
    common = {key: value for key, value in COMMON.items() if not (key == "rms_norm_eps" and has_other)}
    return {**common, **{name: None if size == "-" else int(size) for name, size in own.items()}, **others}


GEMMA = {
    "final_logit_softcapping": None, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "sliding_window": 4096,
    "tie_word_embeddings": True, "use_bidirectional_attention": None,
}  # fmt: skip
GRANITE = {"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0}
QWEN = {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False}
QWEN35 = {
    "full_attention_interval": 4, "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
}  # fmt: skip
LATENTS = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
# By `model_type`, every key that has an effect on what a network computes.
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "llama": _row("32000 4096 11008 32 32 - 2048"),
    "mistral": _row("32000 4096 14336 32 32 8 131072", sliding_window=4096),
    "mixtral": _row("32000 4096 14336 32 32 8 131072", **EXPERTS, rms_norm_eps=1e-5, rope_theta=1e6,
                    sliding_window=None),
    "ministral3": _row("131072 4096 14336 34 32 8 262144", head_dim=128, rms_norm_eps=1e-5,
                       rope_parameters=YARN_OF_MINISTRAL3, sliding_window=None),
    "qwen2": _row("151936 4096 22016 32 32 32 32768", **QWEN),
    "qwen2_moe": _row("151936 2048 5632 24 16 16 32768", **QWEN, decoder_sparse_step=1, mlp_only_layers=None,
                      moe_intermediate_size=1408, norm_topk_prob=False, num_experts=60, num_experts_per_tok=4,
                      shared_expert_intermediate_size=5632),
    "qwen3": _row("151936 4096 22016 32 32 32 32768", **QWEN, head_dim=128),
    "qwen3_moe": _row("151936 2048 6144 24 32 4 32768", sliding_window=4096, use_sliding_window=False,
                      decoder_sparse_step=1, mlp_only_layers=None, moe_intermediate_size=768, norm_topk_prob=False,
                      num_experts=128, num_experts_per_tok=8),
    "qwen3_5_text": _row("248320 4096 12288 32 16 4 32768", **QWEN35),
    "qwen3_5_moe_text": _row("248320 2048 none 40 16 2 32768", **QWEN35, moe_intermediate_size=512, num_experts=256,
                             num_experts_per_tok=8, shared_expert_intermediate_size=512),
    "qwen3_next": _row("151936 2048 5632 48 16 2 32768", **QWEN35, decoder_sparse_step=1, mlp_only_layers=None,
                       moe_intermediate_size=512, norm_topk_prob=True, num_experts=512, num_experts_per_tok=10,
                       shared_expert_intermediate_size=512),
    "gemma2": _row("256000 2304 9216 26 8 4 8192",
                   **{**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
                   query_pre_attn_scalar=256),
    "gemma3_text": _row("262208 2304 9216 26 8 4 131072", **{**GEMMA, "use_bidirectional_attention": False},
                        attn_logit_softcapping=None, query_pre_attn_scalar=256, rope_local_base_freq=10000.0,
                        rope_theta=1e6, sliding_window_pattern=6),
    "gemma4_text": _row("262144 2304 9216 30 8 4 131072", **{**GEMMA, "sliding_window": 512}, attention_k_eq_v=False,
                        enable_moe_block=False, global_head_dim=512, hidden_size_per_layer_input=256,
                        moe_intermediate_size=None, num_experts=None, num_global_key_value_heads=None,
                        num_kv_shared_layers=0, per_layer_config=None, rope_parameters=ROPE_OF_GEMMA4,
                        top_k_experts=None, use_double_wide_mlp=False, vocab_size_per_layer_input=262144),
    "cohere2": _row("256000 8192 22528 40 64 - 8192", layer_norm_eps=1e-5, logit_scale=0.0625, sliding_window=4096,
                    sliding_window_pattern=4, tie_word_embeddings=True),
    "glm4_moe": _row("151552 4096 10944 46 96 8 131072", first_k_dense_replace=1, moe_intermediate_size=1408, n_group=1,
                     n_routed_experts=128, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=8,
                     partial_rotary_factor=0.5, rms_norm_eps=1e-5, routed_scaling_factor=1.0, topk_group=1),
    "deepseek_v2": _row("102400 4096 11008 32 32 - 2048", **LATENTS, first_k_dense_replace=0,
                        moe_intermediate_size=1407, n_group=None, n_routed_experts=64, n_shared_experts=2,
                        norm_topk_prob=False, num_experts_per_tok=None, routed_scaling_factor=1.0,
                        scoring_func="softmax", topk_group=None, topk_method="greedy"),
    "deepseek_v3": _row("129280 7168 18432 61 128 128 4096", **LATENTS, first_k_dense_replace=3,
                        moe_intermediate_size=2048, n_group=8, n_routed_experts=256, n_shared_experts=1,
                        norm_topk_prob=True, num_experts_per_tok=8, rope_interleave=True, routed_scaling_factor=2.5,
                        scoring_func="sigmoid", topk_group=4),
    "glm4": _row("151552 4096 13696 40 32 2 131072", head_dim=128, partial_rotary_factor=0.5, rms_norm_eps=1.5625e-7),
    "lfm2": _row("65536 2560 12288 32 32 8 128000", block_auto_adjust_ff_dim=True, block_ff_dim=None,
                 block_ffn_dim_multiplier=1.0, block_multiple_of=256, conv_L_cache=3, conv_bias=False,
                 full_attn_idxs=None, norm_eps=1e-5, rope_theta=1e6, tie_word_embeddings=True),
    "phi3": _row("32064 3072 8192 32 32 - 4096", original_max_position_embeddings=4096, partial_rotary_factor=1.0,
                 rms_norm_eps=1e-5, sliding_window=None),
    "smollm3": _row("128256 2048 11008 36 16 4 32768", no_rope_layer_interval=4, no_rope_layers=None, rope_theta=2e6,
                    sliding_window=None, tie_word_embeddings=True, use_sliding_window=False),
    "olmo2": _row("50304 4096 11008 32 32 - 2048", rms_norm_eps=1e-5),
    "olmo3": _row("50304 4096 11008 32 32 - 2048", rms_norm_eps=1e-5, rope_theta=5e5, sliding_window=4096),
    "granite": _row("32000 4096 11008 32 32 - 2048", **GRANITE),
    "granitemoe": _row("32000 4096 11008 32 32 - 2048", **GRANITE, **EXPERTS),
    "granitemoeshared": _row("32000 4096 11008 32 32 - 2048", **GRANITE, **EXPERTS, shared_intermediate_size=0),
    "granitemoehybrid": _row("32000 4096 11008 32 32 - 2048", **GRANITE, **EXPERTS, mamba_conv_bias=True,
                             mamba_d_conv=4, mamba_d_head="auto", mamba_d_state=256, mamba_expand=2, mamba_n_groups=1,
                             mamba_n_heads=128, mamba_proj_bias=False, position_embedding_type=None,
                             shared_intermediate_size=1024, time_step_limit=[0.0, math.inf]),
    "gpt_oss": _row("201088 2880 2880 36 64 8 131072", head_dim=64, num_experts=128, num_experts_per_tok=4,
                    rms_norm_eps=1e-5, rope_parameters=YARN_OF_GPT_OSS, rope_theta=150000.0, sliding_window=128,
                    swiglu_alpha=1.702, swiglu_limit=7.0),
})  # fmt: skip
# Other names of a `model_type`, and those of the text part of networks that see or hear, if it does not say its own.
TEXT_TYPES: Mapping[str, str] = MappingProxyType({
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
})  # fmt: skip
# Keys that have an effect, but are supported only with these values; of one `model_type`, if it is in front.
SUPPORTED_ONLY: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "use_bidirectional_attention": (None, False, "vision"),
    "conv_bias": (False,),
    "decoder_sparse_step": (1,),
    "mamba_proj_bias": (False,),
    "time_step_limit": (None, [0, math.inf], [0, {"__float__": "Infinity"}]),
    "mlp_only_layers": (None, []),
    "deepseek_v2.norm_topk_prob": (None, False),  # means one thing to transformers, and another to DeepSeek
    "deepseek_v2.scoring_func": ("softmax",),
    "deepseek_v3.scoring_func": ("sigmoid",),
    "rope_interleave": (True,),
    "topk_method": ("greedy", "group_limited_greedy"),
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7.0,),
})  # fmt: skip
ALIASES = {"layers_block_type": "layer_types", "num_local_experts": "num_experts"}
# Kinds of blocks by their former names.
FORMER_KINDS = {"attention": "full_attention", "mamba": "linear_attention"}
# The period of blocks without a window, where `layer_types` does not say which these are.
PERIODS = {"gemma2": 2, "gemma4_text": 6, "olmo3": 4, "gpt_oss": 2}
# Those whose blocks with a window rotate in their own way.
BY_KIND = ("gemma3_text", "gemma4_text", "olmo3")
KINDS = ("full_attention", "sliding_attention")

# Keys that are common in published files, and have no effect on what a network computes.
HARMLESS = frozenset([
    "architectures", "attention_bias", "attention_dropout", "attn_output_gate", "auto_map", "aux_loss_alpha",
    "block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
    "block_use_xavier_init", "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "conv_dim",
    "conv_dim_out", "conv_use_xavier_init", "dtype", "embd_pdrop", "eos_token_id", "ep_size", "experts_per_token",
    "full_attn_mod", "gradient_checkpointing", "hidden_act", "id2label", "init_method", "initial_context_length",
    "initializer_range", "intermediate_size", "interpolate_factor", "is_decoder", "is_encoder_decoder",
    "is_llama_config", "label2id", "layer_switch", "lm_head_bias", "mamba_chunk_size", "mamba_ssm_dtype", "mlp_bias",
    "model_type", "moe_layer_freq", "normalization_function", "num_heads", "num_mtp_layers", "num_nextn_predict_layers",
    "order_of_interleaved_layers", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id",
    "position_embedding_type", "pretraining_tp", "problem_type", "qk_head_dim", "qkv_bias", "quantization",
    "quantization_config", "resid_pdrop", "return_dict", "rope_interleaved", "rope_scaling", "rotary_pct",
    "router_aux_loss_coef", "router_jitter_noise", "seq_aux", "sliding_window_size", "tie_embedding", "tokenizer_class",
    "topk_method", "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id", "use_cache",
    "use_embedding_sharing", "use_flash_attention_2", "use_gated_activation", "use_parallel_block",
    "use_parallel_embedding", "use_pos_enc", "use_qk_norm", "use_sliding_window",
    # How texts are generated: older versions of transformers wrote this into the same file.
    "do_sample", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "task_specific_params", "temperature", "top_k", "top_p", "typical_p",
])  # fmt: skip
HARMLESS_PREFIXES = ("_", "mtp_", "unsloth_")
NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


def has_effect(model_type: str, key: str, value: Any) -> bool | None:
    """Return whether a key changes what a network computes, or None if that is not known of it."""
    if ALIASES.get(key, key) in DEFAULTS.get(model_type, COMMON):
        return True
    is_harmless = key in HARMLESS or key == "original_max_position_embeddings" or key.startswith(HARMLESS_PREFIXES)
    return False if is_harmless or value in NOTHING else None


def complete(model_type: str, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which every key that has an effect is there.

    Parameters
    ----------
    model_type : str
        That of the text part.
    written : mapping
        What a ``config.json`` has, of one with several parts that of the text.

    Returns
    -------
    dict
        The keys of `DEFAULTS`, and others that are written. ``layer_types`` has a kind for every block, and
        ``rope_parameters`` parameters by kind where blocks differ, else one mapping.

    Raises
    ------
    KeyError, TypeError, ValueError
        A value has a wrong type, or is one that a class refuses; the message names the key.
    """
    own = DEFAULTS.get(model_type, COMMON)
    config = {**own, **{ALIASES.get(key, key): value for key, value in written.items()}}
    if config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config["head_dim"] is None:
        config["head_dim"] = config.get("qk_rope_head_dim", config["hidden_size"] // config["num_attention_heads"])
    if not config.get("use_sliding_window", True):
        config["sliding_window"] = None
    if model_type == "smollm3" and config["no_rope_layers"] is None:
        interval = config["no_rope_layer_interval"]
        config["no_rope_layers"] = [int((i + 1) % interval != 0) for i in range(config["num_hidden_layers"])]
    config["layer_types"] = _layer_types(model_type, config)
    for key in ("rope_theta", "partial_rotary_factor", "rope_local_base_freq"):
        if key in own and config[key] is None:
            config[key] = own[key]
    config["rope_parameters"] = (
        {kind: _finished(config, rope) for kind, rope in _ropes_by_kind(model_type, config).items()}
        if model_type in BY_KIND
        else _finished(config, _rope(model_type, config))
    )
    return config


def _layer_types(model_type: str, config: Mapping[str, Any]) -> list[str]:
    """Return the kind of every block."""
    blocks, window = range(config["num_hidden_layers"]), config.get("sliding_window")
    # What a class does not have, its network does not read; mistral with it is another class of transformers.
    reads = model_type in (*PERIODS, *OWN_PATTERNS, "mistral") or model_type not in DEFAULTS
    written = config["layer_types"]
    if reads and written is not None:
        kinds = list(written)
        if len(kinds) < len(blocks):
            raise ValueError(f"layer_types has {len(kinds)} elements, expected {len(blocks)}")
        kinds = [FORMER_KINDS.get(kind, kind) for kind in kinds[: len(blocks)]]
    elif model_type in PERIODS:
        kinds = ["full_attention" if (i + 1) % PERIODS[model_type] == 0 else "sliding_attention" for i in blocks]
    elif model_type in OWN_PATTERNS:
        kinds = [OWN_PATTERNS[model_type](config, i) for i in blocks]
    else:
        kinds = ["full_attention" if window is None else "sliding_attention"] * len(blocks)
    if model_type == "gemma4_text":
        kinds[-1] = "full_attention"
    return kinds


def _after_some(config: Mapping[str, Any], block: int) -> str:
    has_window = config["sliding_window"] is not None and block >= config["max_window_layers"]
    return "sliding_attention" if has_window else "full_attention"


def _with_windows(config: Mapping[str, Any], block: int) -> str:
    return "sliding_attention" if (block + 1) % config["sliding_window_pattern"] else "full_attention"


def _with_recurrent(config: Mapping[str, Any], block: int) -> str:
    return "linear_attention" if (block + 1) % config["full_attention_interval"] else "full_attention"


OWN_PATTERNS: Mapping[str, Callable[[Mapping[str, Any], int], str]] = {
    "cohere2": _with_windows,
    "gemma3_text": _with_windows,
    "granitemoehybrid": lambda c, i: "linear_attention",
    "lfm2": lambda c, i: "full_attention" if c["full_attn_idxs"] is None or i in c["full_attn_idxs"] else "conv",
    "qwen2": _after_some,
    "qwen2_moe": lambda c, i: (
        "sliding_attention"
        if c["sliding_window"] is not None and i % 2 == 0 and i < c["max_window_layers"]
        else "full_attention"
    ),
    "qwen3": _after_some,
    "qwen3_next": _with_recurrent,
    "qwen3_5_text": _with_recurrent,
    "qwen3_5_moe_text": _with_recurrent,
    "smollm3": lambda c, i: (
        "sliding_attention" if c["sliding_window"] is not None and not c["no_rope_layers"][i] else "full_attention"
    ),
}


# ------------------------------------------------------------------------------------------- rotary embeddings


def _rope(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of all blocks."""
    rope = _written(config.get("rope_scaling") or config["rope_parameters"] or _default_rope(model_type))
    rope.setdefault("rope_theta", config["rope_theta"])
    if config["partial_rotary_factor"] is not None:
        rope.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if model_type == "phi3" and rope["rope_type"] in ("su", "yarn"):  # names that it had before
        rope["rope_type"] = "longrope"
    return rope


def _ropes_by_kind(model_type: str, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters of blocks without a window, and with one."""
    ropes = config["rope_parameters"] or _default_rope(model_type)
    full, local = (_written(ropes.get(kind) or {}) for kind in KINDS)
    if model_type == "gemma4_text":  # which has no older names
        return {"full_attention": full, "sliding_attention": local}
    full |= _written(config.get("rope_scaling") or {}, full["rope_type"])
    full.setdefault("rope_theta", config["rope_theta"])
    # The older key of OLMo 3 is only that of blocks without a window.
    local_base = config["rope_local_base_freq"] if model_type == "gemma3_text" else DEFAULTS[model_type]["rope_theta"]
    local.setdefault("rope_theta", local_base)
    return {"full_attention": full, "sliding_attention": local}


def _default_rope(model_type: str) -> Mapping[str, Any]:
    return DEFAULTS.get(model_type, COMMON)["rope_parameters"] or {}


def _written(rope: Mapping[str, Any], rope_type: str = "default") -> dict[str, Any]:
    """Return parameters with the type under its newer name; null is as if they were missing, but for a factor."""
    made = {key: value for key, value in rope.items() if value is not None or key == "factor"}
    return {**made, "rope_type": made.get("rope_type", made.get("type", rope_type))}


def _finished(config: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the numbers that are computed of others: the factor, and that of what rotates."""
    kind, made, longest = rope["rope_type"], dict(rope), config["max_position_embeddings"]
    if kind in ("llama3", "yarn", "longrope"):
        outside = config.get("original_max_position_embeddings")
        made["original_max_position_embeddings"] = outside or rope.get("original_max_position_embeddings", longest)
    if kind in ("linear", "yarn", "llama3") and "factor" not in rope:
        raise KeyError(f"rope_parameters of the type {kind} have no factor")
    if kind in ("yarn", "longrope"):
        original = made["original_max_position_embeddings"]
        if rope.get("factor") is None:
            made["factor"] = longest / original
        made.setdefault("attention_factor", _growth(made, original))
    return made


def _growth(rope: Mapping[str, Any], original: int) -> float:
    """Return the factor of what rotates, if it is not written."""
    factor: float = rope["factor"]
    if factor <= 1.0:
        return 1.0
    if rope["rope_type"] == "longrope":
        return math.sqrt(1.0 + math.log(factor) / math.log(original))
    mscale, over_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and over_all:
        return float((1.0 + 0.1 * mscale * math.log(factor)) / (1.0 + 0.1 * over_all * math.log(factor)))
    return 1.0 + 0.1 * math.log(factor)
