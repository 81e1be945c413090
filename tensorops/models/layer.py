"""The operations of a block: attention, the feed-forward layer and norms, on the weights of the block.

Architectures put them together. What differs between them is in the configuration, or in which weights a block has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import tensorops as tp

from .architectures import get
from .matrices import by_head, linear, routed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorops.persistent.ranks import Ranks

    from .config import ModelConfig

__all__ = ["Layer", "Memory", "Step", "normalized"]

Array = Any


class Memory(Protocol):
    """What blocks keep of the tokens before those of a step, for the number of a block."""

    def attend(self, number: int, q: Array, k: Array | None, v: Array | None, **options: Any) -> Array:
        """Return what attention gives, (batch, heads, tokens, head_dim); keep keys and values if there are any."""

    def state(self, number: int) -> tuple[Array | None, Array | None]:
        """Return the states of a recurrent block: the last inputs of its convolution, and those of its heads."""

    def keep(self, number: int, convolution: Array, state: Array) -> None:
        """Replace them."""


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
    memory : Memory
        What is kept of the tokens before.
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
    memory: Memory
    batch: int
    tokens: int
    ranks: Ranks


def normalized(config: ModelConfig, added: Array | None, x: Array, weight: Array) -> tuple[Array, Array]:
    """Return the norm of a sum, or of `x` if nothing is added, and the sum."""
    subtracts_mean = get(config.architecture).subtracts_mean
    if added is None:
        norm = tp.layer_norm if subtracts_mean else tp.rms_norm
        return norm(x, weight, eps=config.eps), x
    norm_of_sum = tp.add_layer_norm if subtracts_mean else tp.add_rms_norm
    return norm_of_sum(added, x, weight, eps=config.eps)


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
    inputs : array, optional
        What blocks add to the features of tokens, (tokens, blocks, per_layer_dim).

    Attributes
    ----------
    is_recurrent : bool
        Whether the block has a gated delta net, Mamba 2 or a convolution in place of attention.
    """

    def __init__(self, step: Step, number: int, weights: Mapping[str, Any], inputs: Array | None = None) -> None:
        self.config, self._step, self._number, self._w = step.config.of_block(number), step, number, weights
        self._inputs = inputs
        self._is_windowed = number in step.config.windowed
        self.is_recurrent = number in step.config.recurrent

    def normalize(self, x: Array, name: str) -> Array:
        """Return the norm of features with the weight of that name."""
        return normalized(self.config, None, x, self._w[name])[0]

    def add_and_normalize(self, added: Array | None, x: Array, name: str) -> tuple[Array, Array]:
        """Return the norm of a sum with the weight of that name, and the sum."""
        return normalized(self.config, added, x, self._w[name])

    # ------------------------------------------------------------------------------------------- attention

    def attention(self, h: Array) -> Array:
        """Return what attention makes of features, (tokens, dim)."""
        c, step, w = self.config, self._step, self._w
        qkv, gate = linear(h, w["attn_qkv"], w.get("attn_qkv.bias")), None
        if c.is_gated:
            qkv, gate = self._without_gate(qkv)
        q, k, v = self._heads(qkv)
        options = {
            "scale": c.attention_scale,
            "softcap": c.attention_softcap,
            "window": c.window if self._is_windowed else None,
            "sinks": w.get("attn_sinks"),
        }
        given = {name: value for name, value in options.items() if value is not None}
        source = c.sources.get(self._number, self._number)
        y = step.xp.permute_dims(step.memory.attend(source, q, k, v, **given), (0, 2, 1, 3))
        y = step.xp.reshape(y, (h.shape[0], c.heads * c.head_dim))
        return self.summed(linear(y if gate is None else y * tp.sigmoid(gate), w["attn_output"]), "attn_output.bias")

    def _without_gate(self, qkv: Array) -> tuple[Array, Array]:
        """Return queries, keys and values, and the gate, whose rows follow those of the queries in every head."""
        c, xp, rows = self.config, self._step.xp, qkv.shape[0]
        width = c.heads * c.head_dim
        pairs = xp.reshape(qkv[:, : 2 * width], (rows, c.heads, 2 * c.head_dim))
        q, gate = (xp.reshape(part, (rows, width)) for part in (pairs[:, :, : c.head_dim], pairs[:, :, c.head_dim :]))
        return xp.concat([q, qkv[:, 2 * width :]], axis=1), gate

    def _heads(self, qkv: Array) -> tuple[Array, Array | None, Array | None]:
        """Return queries, keys and values, each (batch, heads, tokens, head_dim); no keys if another block has them."""
        c = self.config
        if "attn_q_norm" in self._w:
            q, k, v = self._normalized_heads(qkv)
        else:
            heads = self._by_heads(qkv)
            rotated = self._rotated(heads[:, : c.heads + c.kv_heads, :, :])
            q, k, v = rotated[:, : c.heads, :, :], rotated[:, c.heads :, :, :], heads[:, c.heads + c.kv_heads :, :, :]
        return (q if self._step.growth is None else q * self._step.growth), k, v

    def _normalized_heads(self, qkv: Array) -> tuple[Array, Array | None, Array | None]:
        c = self.config
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        q = self._rotated(self._normalized(qkv[:, :queries], "attn_q_norm"))
        if self._number in c.sources:
            return q, None, None
        k = qkv[:, queries : queries + keys]
        v = self._by_heads(k if c.keys_are_values else qkv[:, queries + keys :])
        if c.normalizes_values:
            v = tp.rms_norm(v, None, c.eps)
        return q, self._rotated(self._normalized(k, "attn_k_norm")), v

    def _normalized(self, x: Array, name: str) -> Array:
        """Return normalised heads: each by itself, or those of all ranks together, as the architecture says."""
        if get(self.config.architecture).normalizes_heads_together:
            return self._by_heads(self._step.ranks.rms_norm(x, self._w[name], self.config.eps))
        return self.normalize(self._by_heads(x), name)

    def _by_heads(self, x: Array) -> Array:
        """Return features of heads, (batch, heads, tokens, head_dim)."""
        step, dim = self._step, self.config.head_dim
        split = step.xp.reshape(x, (step.batch, step.tokens, x.shape[1] // dim, dim))
        return step.xp.permute_dims(split, (0, 2, 1, 3))

    def _rotated(self, x: Array) -> Array:
        if self._number in self.config.unrotated:
            return x
        return tp.rope(x, self._step.positions, **self._step.rotations[self._is_windowed])

    # --------------------------------------------------------------------------------- latent attention

    def latent_attention(self, h: Array) -> Array:
        """Return what attention to latents makes of features, (tokens, dim).

        Keys and values of all heads are products of a latent: its products with queries are those of the latent with
        the product of queries and the matrix of keys, and the matrix of values multiplies the sum of latents.
        """
        c, step, w, xp = self.config, self._step, self._w, self._step.xp
        x = h if "attn_q_a" not in w else tp.rms_norm(linear(h, w["attn_q_a"]), w["attn_q_a_norm"], _LATENT_EPS)
        q = linear(x, w["attn_q_b" if "attn_q_a" in w else "attn_q"])
        q = xp.reshape(q, (h.shape[0], c.heads, q.shape[1] // c.heads))
        q = xp.concat([q[:, :, c.unrotated_dim :], by_head(q[:, :, : c.unrotated_dim], w["attn_k_b"])], axis=2)
        kv = linear(h, w["attn_kv_a_mqa"])
        v = tp.rms_norm(kv[:, : c.latent_dim], w["attn_kv_a_norm"], _LATENT_EPS)
        qk = xp.concat([xp.reshape(q, (h.shape[0], c.heads * c.head_dim)), kv[:, c.latent_dim :], v], axis=1)
        qk = self._rotated(self._by_heads(qk))
        v = xp.reshape(v, (step.batch, 1, step.tokens, c.latent_dim))
        q, k = qk[:, : c.heads, :, :], qk[:, c.heads :, :, :]
        y = step.memory.attend(self._number, q, k, v, scale=c.attention_scale)[..., : c.latent_dim]
        y = xp.reshape(xp.permute_dims(y, (0, 2, 1, 3)), (h.shape[0], c.heads, c.latent_dim))
        y = by_head(y, w["attn_v_b"])
        return self.summed(linear(xp.reshape(y, (h.shape[0], c.heads * c.expanded_dim)), w["attn_output"]))

    # --------------------------------------------------------------------------------- inputs of each block

    def with_inputs(self, x: Array) -> Array:
        """Return features with what the block adds for each token, times the block's scale, if it has them."""
        w = self._w
        if self._inputs is not None:
            gate = tp.gelu(linear(x, w["inp_gate"]), approximate="tanh")
            added = linear(gate * self._inputs[:, self._number, :], w["proj"])
            x = x + self.normalize(added, "post_norm")
        return x * w["layer_output_scale"] if "layer_output_scale" in w else x

    # --------------------------------------------------------------------------------- gated delta nets

    def delta_net(self, h: Array) -> Array:
        """Return what a gated delta net makes of features, (tokens, dim): every rank computes all of it."""
        c, step, w, xp = self.config, self._step, self._w, self._step.xp
        channels, values = c.state_channels, c.state_heads * c.state_dim
        mixed = linear(h, w["ssm_in"])
        x, z = mixed[:, :channels], mixed[:, channels : channels + values]
        beta, alpha = self._rates(mixed[:, channels + values :])
        before, state = step.memory.state(self._number)
        x = xp.reshape(x, (step.batch, step.tokens, channels))
        before = None if before is None else before[:, 0, :, :]
        x, before = tp.causal_conv1d(x, w["ssm_conv1d"], None, before, activation="silu")
        q, k, v = self._state_heads(x)
        g = tp.softplus(alpha + w["ssm_dt.bias"]) * w["ssm_a"]
        g, beta = (self._by_head(part) for part in (g, tp.sigmoid(beta)))
        y, state = tp.gated_delta_rule(q, k, v, g, beta, state=state)
        step.memory.keep(self._number, xp.expand_dims(before, axis=1), state)
        y = tp.rms_norm(xp.permute_dims(y, (0, 2, 1, 3)), w["ssm_norm"], c.eps)
        y = tp.swiglu(z, xp.reshape(y, z.shape))
        return linear(y, w["ssm_out"])

    def _state_heads(self, x: Array) -> tuple[Array, Array, Array]:
        """Return queries and keys of length 1 and values, each (batch, heads, tokens, state_dim)."""
        c, step, xp = self.config, self._step, self._step.xp
        heads = xp.reshape(x, (step.batch, step.tokens, 2 * c.state_groups + c.state_heads, c.state_dim))
        heads = xp.permute_dims(heads, (0, 2, 1, 3))
        both = heads[:, : 2 * c.state_groups, :, :]
        # x / √(Σ x² + ε), by an operator that has kernels
        both = tp.rms_norm(both, None, _LENGTH_EPS / c.state_dim) * c.state_dim**-0.5
        q, k = both[:, : c.state_groups, :, :], both[:, c.state_groups :, :, :]
        if c.is_tiled and c.state_groups < c.state_heads:
            q, k = (xp.concat([part] * (c.state_heads // c.state_groups), axis=1) for part in (q, k))
        return q, k, heads[:, 2 * c.state_groups :, :, :]

    def _rates(self, both: Array) -> tuple[Array, Array]:
        """Return how much heads of states take in, and forget, (tokens, state_heads)."""
        c, xp = self.config, self._step.xp
        if not get(c.architecture).rates_by_group:
            return both[:, : c.state_heads], both[:, c.state_heads :]
        by_group = xp.reshape(both, (both.shape[0], c.state_groups, 2, c.state_heads // c.state_groups))
        taken, forgotten = (xp.reshape(by_group[:, :, i, :], (both.shape[0], c.state_heads)) for i in (0, 1))
        return taken, forgotten

    def _by_head(self, x: Array) -> Array:
        """Return numbers of each head, (batch, heads, tokens)."""
        xp, step = self._step.xp, self._step
        return xp.permute_dims(xp.reshape(x, (step.batch, step.tokens, x.shape[1])), (0, 2, 1))

    # ------------------------------------------------------------------------------- Mamba 2

    def mamba(self, h: Array) -> Array:
        """Return what a layer of Mamba 2 makes of features, (tokens, dim): every rank computes all of it."""
        c, step, w, xp = self.config, self._step, self._w, self._step.xp
        values, keys = c.state_heads * c.state_dim, c.state_groups * c.state_key_dim
        mixed = linear(h, w["ssm_in"])
        z, mixed, rates = (
            mixed[:, :values], mixed[:, values : 2 * values + 2 * keys], mixed[:, 2 * values + 2 * keys :]
        )  # fmt: skip
        before, state = step.memory.state(self._number)
        before = None if before is None else before[:, 0, :, :]
        mixed = xp.reshape(mixed, (step.batch, step.tokens, c.state_channels))
        mixed, before = tp.causal_conv1d(mixed, w["ssm_conv1d"], w.get("ssm_conv1d.bias"), before, activation="silu")
        x = xp.reshape(mixed[:, :, :values], (step.batch, step.tokens, c.state_heads, c.state_dim))
        k, q = (
            xp.permute_dims(xp.reshape(part, (step.batch, step.tokens, c.state_groups, c.state_key_dim)), (0, 2, 1, 3))
            for part in (mixed[:, :, values : values + keys], mixed[:, :, values + keys :])
        )
        rates = self._by_head(tp.softplus(rates + w["ssm_dt.bias"]))
        v = xp.permute_dims(x, (0, 2, 1, 3)) * xp.expand_dims(rates, axis=3)
        y, state = tp.gated_delta_rule(q, k, v, rates * w["ssm_a"], state=state, scale=1.0)
        step.memory.keep(self._number, xp.expand_dims(before, axis=1), state)
        y = xp.permute_dims(y, (0, 2, 1, 3)) + x * w["ssm_d"]
        y = tp.swiglu(z, xp.reshape(y, z.shape))
        y = tp.rms_norm(xp.reshape(y, (h.shape[0], c.state_groups, -1)), None, c.eps) * w["ssm_norm"]
        return linear(xp.reshape(y, z.shape), w["ssm_out"])

    # ------------------------------------------------------------------------------- short convolutions

    def short_convolution(self, h: Array) -> Array:
        """Return what a convolution between two gates makes of features, (tokens, dim), on every rank."""
        step, dim, xp = self._step, self.config.dim, self._step.xp
        mixed = linear(h, self._w["shortconv.in_proj"])
        taken, given, x = (mixed[:, i * dim : (i + 1) * dim] for i in range(3))
        before, unused = step.memory.state(self._number)
        before = None if before is None else before[:, 0, :, :]
        x = xp.reshape(taken * x, (step.batch, step.tokens, dim))
        y, before = tp.causal_conv1d(x, self._w["shortconv.conv"], None, before)
        step.memory.keep(self._number, xp.expand_dims(before, axis=1), unused)
        return linear(given * xp.reshape(y, given.shape), self._w["shortconv.out_proj"])

    # ------------------------------------------------------------------------------- the feed-forward layer

    def feed_forward(self, h: Array) -> Array:
        """Return what the feed-forward layer, or its experts, make of features, (tokens, dim)."""
        if "ffn_gate_inp" not in self._w:
            return self.summed(self.gated(h), "ffn_down.bias")
        y = self.experts(h)
        if "ffn_down_shexp" in self._w:
            shared = self.gated(h, "_shexp")
            if "ffn_gate_inp_shexp" in self._w:
                shared = shared * tp.sigmoid(linear(h, self._w["ffn_gate_inp_shexp"]))
            y = y + shared
        return self.summed(y)

    def gated(self, h: Array, suffix: str = "") -> Array:
        """Return what a rank's part of the matrices of that suffix makes of features."""
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

    def experts(self, h: Array, chosen_by: Array | None = None) -> Array:
        """Return the weighted sum of what a rank's part of a token's experts makes of it, chosen by it or by others."""
        c, w = self.config, self._w
        logits = linear(h if chosen_by is None else chosen_by, w["ffn_gate_inp"], w.get("ffn_gate_inp.bias"))
        return routed(
            h, logits, w["ffn_gate_up_exps"], w["ffn_down_exps"], self._activated,
            gate_up_bias=w.get("ffn_gate_up_exps.bias"), down_bias=w.get("ffn_down_exps.bias"),
            scales=w.get("ffn_down_exps.scale"), top_k=c.experts_used, renormalize=c.renormalize,
            is_swiglu=c.activation == "swiglu", scoring=c.scoring, correction=w.get("exp_probs_b.bias"),
            scale=c.expert_scale, groups=(c.expert_groups, c.expert_groups_used),
        )  # fmt: skip

    def summed(self, part: Array, bias: str = "") -> Array:
        """Return the sum of all ranks' parts, and the bias of that name if there is one."""
        whole = self._step.ranks.all_reduce(part)
        return whole if bias not in self._w else whole + self._w[bias]


_LATENT_EPS = 1e-6  # whatever that of other norms is
_LENGTH_EPS = 1e-6  # of queries and keys of gated delta nets
# Of gpt-oss' gated unit.
_LIMIT = 7.0
_SLOPE = 1.702
