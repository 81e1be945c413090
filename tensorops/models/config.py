"""The sizes of a Llama network, read from a GGUF file and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tensorops as tp

from .fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .gguf import GGUFFile

__all__ = ["LlamaConfig"]

# Keys without effect here. A key outside this list and those read below may change the result, so it is refused rather
# than ignored.
HARMLESS = {
    "attention.layer_norm_epsilon",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
# Keys that are supported only with a neutral value.
NEUTRAL = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scale_linear": 1.0,
}
READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
}
SCALINGS = ("none", "linear", "yarn")
LONGEST_CONTEXT = 2**31 - 1  # positions are 32-bit integers
TENSORS_PER_BLOCK = 9


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama network.

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
    rope_scaling : {"none", "linear", "yarn"}
        How these are scaled for a longer context, by the function of `tensorops.rope_scaling` of that name.
    rope_factor : float
        How many times as long the scaling makes the context.
    original_context_length : int, optional
        The length of the context before; by default `context_length`.

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

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are not a multiple of {self.kv_heads} kv_heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd")

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> LlamaConfig:
        """Read the sizes from a file's metadata.

        Parameters
        ----------
        file : GGUFFile
            A model whose ``general.architecture`` is ``llama``.

        Returns
        -------
        LlamaConfig
            The sizes; `find_misfit` checks that the tensors have them.

        Raises
        ------
        GGUFError
            A key is missing, contradicts another, or needs an unsupported feature.
        """
        fields = Fields(file)
        _refuse_unsupported(fields)
        blocks = fields.count("llama.block_count")
        if blocks * TENSORS_PER_BLOCK > len(file.tensors):
            raise fields.error("llama.block_count", f"{blocks} blocks, but only {len(file.tensors)} tensors")
        context = fields.count("llama.context_length")
        if context > LONGEST_CONTEXT:
            raise fields.error("llama.context_length", f"{context} is more than {LONGEST_CONTEXT}")
        dim = fields.count("llama.embedding_length")
        heads = fields.count("llama.attention.head_count")
        return cls(
            blocks=blocks,
            context_length=context,
            dim=dim,
            hidden_dim=fields.count("llama.feed_forward_length"),
            heads=heads,
            kv_heads=_kv_heads(fields, heads),
            head_dim=_head_dim(fields, dim, heads),
            vocab_size=_vocab_size(fields),
            eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
            rope_base=fields.number("llama.rope.freq_base", 10000.0),
            rope_scaling=_rope_scaling(fields),
            rope_factor=fields.number("llama.rope.scaling.factor", 1.0),
            original_context_length=fields.count("llama.rope.scaling.original_context_length", context),
        )

    @property
    def is_scaled(self) -> bool:
        """Whether the frequencies of the rotary embedding differ from those of its base."""
        return self.rope_scaling != "none" and self.rope_factor != 1.0

    @cached_property
    def rotation(self) -> tp.rope_scaling.RopeScaling:
        """The frequencies of the rotary embedding, in host memory, and the factor of what it rotates."""
        scaled: dict[str, Any] = {"rope_type": self.rope_scaling, "factor": self.rope_factor}
        if self.rope_scaling == "yarn":
            scaled["original_max_position_embeddings"] = self.original_context_length or self.context_length
        return tp.rope_scaling.from_config(self.head_dim, scaled if self.is_scaled else None, base=self.rope_base)

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of one block by its short name; matrices are (out, in)."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "attn_norm": (self.dim,),
            "attn_q": (queries, self.dim),
            "attn_k": (keys, self.dim),
            "attn_v": (keys, self.dim),
            "attn_output": (self.dim, queries),
            "ffn_norm": (self.dim,),
            "ffn_gate": (self.hidden_dim, self.dim),
            "ffn_up": (self.hidden_dim, self.dim),
            "ffn_down": (self.dim, self.hidden_dim),
        }

    def find_misfit(self, shapes: Mapping[str, Iterable[int]]) -> tuple[str, str] | None:
        """Compare the shapes of a model's weights with those that this configuration requires.

        Parameters
        ----------
        shapes : mapping of str to tuple of int
            Shape of every weight, by its name in a GGUF file.

        Returns
        -------
        tuple of str or None
            The first name that does not fit and the reason, or None if all fit.
        """
        optional = {"output.weight", "rope_freqs.weight"}
        seen = set()
        for name, shape in self._shapes():
            seen.add(name)
            if name not in shapes:
                if name in optional:
                    continue
                return name, "missing"
            if tuple(shapes[name]) != shape:
                return name, f"shape {tuple(shapes[name])} should be {shape}"
        return next(((name, "not part of a Llama network") for name in shapes if name not in seen), None)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "token_embd.weight", (self.vocab_size, self.dim)
        yield "output_norm.weight", (self.dim,)
        yield "output.weight", (self.vocab_size, self.dim)
        yield "rope_freqs.weight", (self.head_dim // 2,)
        for block in range(self.blocks):
            for name, shape in self.block_shapes().items():
                yield f"blk.{block}.{name}.weight", shape


def _refuse_unsupported(fields: Fields) -> None:
    """Raise unless the file needs exactly what `Llama` computes."""
    if (architecture := fields.string("general.architecture")) != "llama":
        raise fields.error(
            "general.architecture",
            f"{architecture!r:.80} is not supported, only 'llama': a file of SmolLM2 or Llama will do",
        )
    for key, value in fields.file.metadata.items():
        name = key.removeprefix("llama.")
        if name == key or name in READ or name in HARMLESS:
            continue
        if name not in NEUTRAL:
            raise fields.error(key, "is not supported")
        if type(value) is not type(NEUTRAL[name]) or value != NEUTRAL[name]:
            raise fields.error(key, f"{value!r:.80} is not supported, only {NEUTRAL[name]!r}")


def _rope_scaling(fields: Fields) -> str:
    key = "llama.rope.scaling.type"
    scaling = fields.string(key, "linear")  # with a factor of 1 if the file has none
    if scaling not in SCALINGS:
        raise fields.error(key, f"{scaling!r:.80} is not supported, only {', '.join(map(repr, SCALINGS))}")
    return scaling


def _kv_heads(fields: Fields, heads: int) -> int:
    key = "llama.attention.head_count_kv"
    if heads % (kv_heads := fields.count(key, heads)):
        raise fields.error(key, f"{heads} query heads are not a multiple of {kv_heads}")
    return kv_heads


def _head_dim(fields: Fields, dim: int, heads: int) -> int:
    """Return the features per head, from the file if it has them, else by dividing a token's features."""
    key = "llama.attention.key_length"
    if key not in fields.file.metadata and dim % heads:
        raise fields.error("llama.attention.head_count", f"{dim} features do not divide into {heads} heads")
    head_dim = fields.count(key, dim // heads or 1)
    if head_dim % 2:
        raise fields.error(key, f"{head_dim} is odd, but features rotate in pairs")
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if (other := fields.count(key, head_dim)) != head_dim:
            raise fields.error(key, f"{other} is not supported, only the {head_dim} features of a head")
    return head_dim


def _vocab_size(fields: Fields) -> int:
    tokens = len(fields.strings("tokenizer.ggml.tokens"))
    key = "llama.vocab_size"
    if (size := fields.count(key, tokens)) != tokens:
        raise fields.error(key, f"{size}, but tokenizer.ggml.tokens has {tokens}")
    return size
