"""The sizes and options of a network, the same for every architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tensorops as tp

__all__ = ["LlamaConfig", "ModelConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and options of a network.

    Only the first eight have no default. `tensorops.models.architectures` reads all of them from a file.

    Parameters
    ----------
    blocks : int
        The number of pairs of attention and feed-forward layers.
    context_length : int
        The maximum number of tokens that it was trained for.
    dim : int
        Features per token.
    hidden_dim : int
        Features inside the feed-forward layer.
    heads, kv_heads : int
        Query heads, and heads of keys and values; the former is a multiple of the latter.
    head_dim : int
        Features per head, even.
    vocab_size : int
        Number of tokens.
    eps : float
        Added to the mean square in every normalisation.
    rope_base : float
        Base of the rotary embedding's frequencies.
    rope_scaling : {"none", "linear", "yarn", "longrope"}
        How these are scaled for a longer context, by the function of `tensorops.rope_scaling` of that name. The factors
        of LongRoPE are weights.
    rope_factor : float
        How many times as long the scaling makes the context.
    original_context_length : int, optional
        The length of the context before; by default `context_length`.
    rope_options : mapping
        Other parameters of that function.
    rope_growth : float
        A factor of what rotates, besides that of the scaling.
    rope_dims : int, optional
        How many features of a head rotate, the first ones; by default all.
    interleaved : bool
        Whether a pair of features that rotate are neighbours, as in GGUF files of some architectures, or each from one
        half of those that rotate.
    unrotated : tuple of int
        The numbers of blocks whose queries and keys do not rotate.
    architecture : str
        The name of the network's architecture, as in GGUF files.
    windowed : tuple of int
        The numbers of blocks in which a token attends only to the last `window` tokens, itself included.
    window : int, optional
        The size of that window.
    local_rope_base : float, optional
        The base of the frequencies in blocks with a window, where only factors among the weights scale them; by default
        the base of the other blocks.
    attention_scale : float, optional
        The factor of products of queries and keys; by default ``head_dim ** -0.5``.
    attention_softcap, logit_softcap : float, optional
        Bounds of these products and of the logits.
    query_growth : float
        Queries at position `p` are multiplied by ``1 + query_growth * log(1 + p // original_context_length)``.
    activation : {"swiglu", "geglu_tanh", "clamped_swiglu"}
        The gated unit of the feed-forward layer; the last one is that of gpt-oss.
    embedding_scale, residual_scale, logit_scale : float
        Factors of the embedding, of what a layer adds to its input, and of the logits.
    experts, experts_used : int
        The number of experts in a feed-forward layer, and how many of them each token passes; none if 0.
    expert_hidden_dim, shared_hidden_dim : int
        Features inside an expert, and inside the expert that all tokens pass.
    renormalize : bool
        Whether the weights of a token's experts are divided by their sum.
    scoring : {"softmax", "sigmoid"}
        What makes weights of a token's products with the experts.
    expert_scale : float
        A factor of what a token's experts give together, but for the one that all tokens pass.
    expert_groups, expert_groups_used : int
        Groups of neighbouring experts, and in how many of them those of a token are: in the best ones, of which the
        largest product counts or, where products are corrected, the sum of the largest two.
    is_gated : bool
        Whether the rows of a head of queries are followed by those of a gate, whose sigmoid multiplies its result.
    recurrent : tuple of int
        The numbers of blocks that have a gated delta net or a layer of Mamba 2 in place of attention, or, without heads
        of states, a convolution between two gates.
    state_heads, state_groups : int
        Heads of its states, and of its queries and keys.
    state_dim : int
        Features of a head.
    state_key_dim : int
        Those of its queries and keys, if they are other than `state_dim`; else 0.
    conv_width : int
        How many tokens its convolution sees.
    latent_dim : int
        Features of the latent of which a token's keys and values are made: a cache keeps it, and what rotates of a
        key, as the one head of keys and values. None if 0. `head_dim` is the sum of the latent and what rotates.
    query_latent_dim : int
        Those of the latent of which queries are made; none if 0.
    unrotated_dim, expanded_dim : int
        Of networks with a latent, features of a head of queries that do not rotate, and those of a head of values.
    is_tiled : bool
        Whether heads `i`, `i + state_groups` and so on share queries and keys, as in GGUF files, or neighbours.
    per_layer_dim : int
        Features of the embedding that a token has for each block besides that of its features; none if 0.
    normalizes_values : bool
        Whether values are normalised, without a weight.
    keys_are_values : bool
        Whether values are keys before these are normalised and rotate.
    sources : mapping of int to int
        Blocks whose keys and values are those of another block.
    overrides : mapping of int to mapping
        Fields that are different in a block, by its number; see `of_block`.
    prediction_blocks : int
        How many blocks follow that predict further tokens; they are not used.

    Raises
    ------
    ValueError
        `heads` is not a multiple of `kv_heads`, or `head_dim` is odd.
    """

    blocks: int
    context_length: int
    dim: int
    hidden_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    eps: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    original_context_length: int | None = None
    rope_options: Mapping[str, Any] = field(default_factory=dict)
    rope_growth: float = 1.0
    rope_dims: int | None = None
    interleaved: bool = True
    unrotated: tuple[int, ...] = ()
    architecture: str = "llama"
    windowed: tuple[int, ...] = ()
    window: int | None = None
    local_rope_base: float | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    query_growth: float = 0.0
    activation: str = "swiglu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    experts: int = 0
    experts_used: int = 0
    expert_hidden_dim: int = 0
    shared_hidden_dim: int = 0
    renormalize: bool = True
    scoring: str = "softmax"
    expert_scale: float = 1.0
    expert_groups: int = 1
    expert_groups_used: int = 1
    is_gated: bool = False
    recurrent: tuple[int, ...] = ()
    state_heads: int = 0
    state_groups: int = 0
    state_dim: int = 0
    state_key_dim: int = 0
    conv_width: int = 0
    latent_dim: int = 0
    query_latent_dim: int = 0
    unrotated_dim: int = 0
    expanded_dim: int = 0
    is_tiled: bool = False
    per_layer_dim: int = 0
    normalizes_values: bool = False
    keys_are_values: bool = False
    sources: Mapping[int, int] = field(default_factory=dict)
    overrides: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    prediction_blocks: int = 0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd")

    @property
    def value_dim(self) -> int:
        """Features of a head of values, as a cache keeps them."""
        return self.latent_dim or self.head_dim

    @property
    def state_channels(self) -> int:
        """Queries, keys and values of a layer with states, or what else a convolution sees."""
        keys = 2 * self.state_groups * (self.state_key_dim or self.state_dim)
        return keys + self.state_heads * self.state_dim if self.state_heads else self.dim

    @cached_property
    def _of_blocks(self) -> list[ModelConfig]:
        common = replace(self, overrides={}) if self.overrides else self
        return [replace(common, **self.overrides[i]) if i in self.overrides else common for i in range(self.blocks)]

    def of_block(self, block: int) -> ModelConfig:
        """Return the sizes and options of a block by its number."""
        return self._of_blocks[block]

    @property
    def without_cache(self) -> tuple[int, ...]:
        """The numbers of blocks whose arrays in a cache do not grow with the text."""
        return (*self.recurrent, *self.sources)

    @cached_property
    def kv_head_counts(self) -> tuple[int, ...]:
        """The different numbers of heads of keys and values that blocks keep."""
        return tuple(sorted({self.of_block(i).kv_heads for i in range(self.blocks) if i not in self.without_cache}))

    @property
    def is_scaled(self) -> bool:
        """Whether the frequencies of the rotary embedding differ from those of its base."""
        return self.rope_scaling in ("linear", "yarn") and self.rope_factor != 1.0

    @cached_property
    def rotation(self) -> tp.rope_scaling.RopeScaling:
        """The frequencies of the rotary embedding, in host memory, and the factor of what it rotates."""
        scaled: dict[str, Any] = {}
        if self.is_scaled:
            scaled = {"rope_type": self.rope_scaling, "factor": self.rope_factor, **self.rope_options}
            if self.rope_scaling == "yarn":
                scaled["original_max_position_embeddings"] = self.original_context_length or self.context_length
        found = tp.rope_scaling.from_config(self.rope_dims or self.head_dim, scaled, base=self.rope_base)
        return found._replace(attention_factor=found.attention_factor * self.rope_growth)


LlamaConfig = ModelConfig
