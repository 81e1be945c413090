"""The operations of a block: attention, the feed-forward layer and norms, on the weights of the block.

Architectures put them together. What differs between them is in the configuration, or in which weights a block has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorops as tp

from .weights import linear, routed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensorops.persistent.ranks import Ranks

    from .config import ModelConfig

__all__ = ["Attend", "Layer", "Step"]

Array = Any
# Returns what attention gives, (batch, heads, tokens, head_dim), for the number of a block, queries, keys and values of
# the tokens, and options of attention.
Attend: TypeAlias = "Callable[..., Array]"


@dataclass(frozen=True)
class Step:
    """What all blocks of a step have in common.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    config : ModelConfig
        The sizes, of several ranks those of one.
    rotations : sequence of dict
        Arguments of `tensorops.rope`, for blocks without a window, and with one.
    growth : array or None
        A factor of queries for each position.
    positions : array of int
        Those of the tokens, as `tensorops.rope` takes them.
    attend : callable
        See `Attend`.
    batch, tokens : int
        The number of sequences, and of tokens of each.
    ranks : Ranks
        Which compute together.
    """

    xp: Any
    config: ModelConfig
    rotations: Sequence[dict[str, Any]]
    growth: Array | None
    positions: Array
    attend: Attend
    batch: int
    tokens: int
    ranks: Ranks


class Layer:
    """The operations of one block in one step.

    Parameters
    ----------
    step : Step
        The step.
    number : int
        The number of the block.
    weights : mapping
        Those of the block, by their names in its table without ``.weight``.
    """

    def __init__(self, step: Step, number: int, weights: Mapping[str, Any]) -> None:
        self.config, self._step, self._number, self._w = step.config, step, number, weights
        self._is_windowed = number in step.config.windowed

    def normalize(self, x: Array, name: str) -> Array:
        """Return the norm of features with the weight of that name."""
        return tp.rms_norm(x, self._w[name], self.config.eps)

    def add_and_normalize(self, added: Array | None, x: Array, name: str) -> tuple[Array, Array]:
        """Return the norm of a sum with the weight of that name, and the sum."""
        if added is None:
            return self.normalize(x, name), x
        return tp.add_rms_norm(added, x, self._w[name], self.config.eps)

    # ------------------------------------------------------------------------------------------- attention

    def attention(self, h: Array) -> Array:
        """Return what attention makes of features, (tokens, dim)."""
        c, step, w = self.config, self._step, self._w
        q, k, v = self._heads(linear(h, w["attn_qkv"], w.get("attn_qkv.bias")))
        options = {
            "scale": c.attention_scale,
            "softcap": c.attention_softcap,
            "window": c.window if self._is_windowed else None,
            "sinks": w.get("attn_sinks"),
        }
        given = {name: value for name, value in options.items() if value is not None}
        y = step.xp.permute_dims(step.attend(self._number, q, k, v, **given), (0, 2, 1, 3))
        h = linear(step.xp.reshape(y, (h.shape[0], c.heads * c.head_dim)), w["attn_output"])
        return self._summed(h, "attn_output.bias")

    def _heads(self, qkv: Array) -> tuple[Array, Array, Array]:
        """Return queries, keys and values, each (batch, heads, tokens, head_dim), from features of all of them."""
        c, step, xp = self.config, self._step, self._step.xp
        heads, both = c.heads, c.heads + c.kv_heads
        if "attn_q_norm" in self._w and self._w["attn_q_norm"].shape[0] != c.head_dim:  # of all heads together
            wide = [0, heads * c.head_dim, both * c.head_dim]
            norms = ("attn_q_norm", "attn_k_norm")
            parts = [self.normalize(qkv[:, i:j], name) for i, j, name in zip(wide[:-1], wide[1:], norms, strict=True)]
            qkv = xp.concat([*parts, qkv[:, wide[-1] :]], axis=1)
        split = xp.reshape(qkv, (step.batch, step.tokens, both + c.kv_heads, c.head_dim))
        split = xp.permute_dims(split, (0, 2, 1, 3))
        v = split[:, both:, :, :]
        if "attn_q_norm" in self._w and self._w["attn_q_norm"].shape[0] == c.head_dim:
            q = self._rotated(self.normalize(split[:, :heads, :, :], "attn_q_norm"))
            k = self._rotated(self.normalize(split[:, heads:both, :, :], "attn_k_norm"))
        else:
            rotated = self._rotated(split[:, :both, :, :])
            q, k = rotated[:, :heads, :, :], rotated[:, heads:, :, :]
        return (q if step.growth is None else q * step.growth), k, v

    def _rotated(self, x: Array) -> Array:
        if self._number in self.config.unrotated:
            return x
        return tp.rope(x, self._step.positions, **self._step.rotations[self._is_windowed])

    # ------------------------------------------------------------------------------- the feed-forward layer

    def feed_forward(self, h: Array) -> Array:
        """Return what the feed-forward layer, or its experts, make of features, (tokens, dim)."""
        if "ffn_gate_inp" not in self._w:
            return self._summed(self._gated(h), "ffn_down.bias")
        y = self._experts(h)
        return self._summed(y if "ffn_down_shexp" not in self._w else y + self._gated(h, "_shexp"))

    def _gated(self, h: Array, suffix: str = "") -> Array:
        w = self._w
        h = linear(h, w[f"ffn_gate_up{suffix}"], w.get(f"ffn_gate_up{suffix}.bias"))
        return linear(self._activated(h), w[f"ffn_down{suffix}"])

    def _activated(self, both: Array) -> Array:
        """Return the gated unit of features whose first half are gates."""
        hidden, xp = both.shape[-1] // 2, self._step.xp
        gate, up = both[..., :hidden], both[..., hidden:]
        if self.config.activation == "swiglu":
            return tp.swiglu(gate, up)
        if self.config.activation == "geglu_tanh":
            return tp.gelu(gate, approximate="tanh") * up
        gate, up = xp.clip(gate, max=_LIMIT), xp.clip(up, min=-_LIMIT, max=_LIMIT)
        return gate * tp.sigmoid(gate * _SLOPE) * (up + 1.0)

    def _experts(self, h: Array) -> Array:
        """Return the weighted sum of what a token's experts make of it."""
        c, w = self.config, self._w
        logits = linear(h, w["ffn_gate_inp"], w.get("ffn_gate_inp.bias"))
        return routed(
            h, logits, w["ffn_gate_up_exps"], w["ffn_down_exps"], self._activated,
            gate_up_bias=w.get("ffn_gate_up_exps.bias"), down_bias=w.get("ffn_down_exps.bias"),
            top_k=c.experts_used, renormalize=c.renormalize, is_swiglu=c.activation == "swiglu",
        )  # fmt: skip

    def _summed(self, part: Array, bias: str = "") -> Array:
        """Return the sum of all ranks' parts, and the bias of that name if there is one."""
        whole = self._step.ranks.all_reduce(part)
        return whole if bias not in self._w else whole + self._w[bias]


# Of gpt-oss' gated unit.
_LIMIT = 7.0
_SLOPE = 1.702
