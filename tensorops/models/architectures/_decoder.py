"""What the networks have in common: the weights of a block, and how a block computes.

An architecture is a subclass of `Decoder` in a file of its own, which says what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["WHOLE", "Decoder", "Weight"]

Array = Any
WHOLE = -1  # no axis: every rank has all of a weight


class Weight(NamedTuple):
    """A weight of a block.

    Parameters
    ----------
    name : str
        Its name in a GGUF file, after that of the block.
    shape : tuple of int
        Of a matrix, (out, in); of the matrices of experts, (experts, out, in).
    axis : int, optional
        The axis along which ranks share it.
    joined : str, optional
        The name of the matrix that it becomes a part of: with others that multiply the same input, one after the other
        in the order of the table. As one product they need one call, and the input is prepared once.
    is_optional : bool, optional
        Whether a file may lack it.
    """

    name: str
    shape: tuple[int, ...]
    axis: int = WHOLE
    joined: str = ""
    is_optional: bool = False


class Decoder:
    """A decoder of attention and feed-forward layers, with a norm before each: Llama's.

    Attributes
    ----------
    names : tuple of str
        ``general.architecture`` in GGUF files.
    model_types : tuple of str
        ``model_type`` in the ``config.json`` of folders of Hugging Face.
    interleaved : bool
        Whether features that rotate together are neighbours in GGUF files.
    interleaved_in_folders : bool
        Whether they are in folders.
    ignored_keys : frozenset of str
        Metadata without effect, without the name before the first dot. Others that `read` does not ask for are refused.
    folder_names : mapping
        Names of tensors in GGUF files by those in folders, after that of the block, where the package gguf has none.
    normalizes_heads_together : bool
        Whether a norm of queries or keys is over all heads of a token, or over each by itself.
    rates_by_group : bool
        Whether a gated delta net's rates are stored group of heads by group of heads, or first all of one kind.
    scoring : str
        As in `ModelConfig`, where a file does not say it.
    yarn_scales_scores : bool
        Whether the growth by YaRN's logarithm that a file has is that of scores, and not of what rotates.
    subtracts_mean : bool
        Whether norms subtract the mean.
    adds_experts : bool
        Whether blocks with experts have a feed-forward layer besides.
    gates_shared_expert : bool
        Whether a token has a weight for the expert that all tokens pass.
    activation : str
        As in `ModelConfig`.
    biases : tuple of str
        Matrices of a block that have a bias.
    biases_are_optional : bool
        Whether a file may lack them.
    renamed : mapping
        Weights that do not belong to a block and have other names in its files: those, and the usual names.
    fused : mapping
        Matrices that some files have joined: their name there, and the names of the parts.
    """

    names: ClassVar[tuple[str, ...]]
    model_types: ClassVar[tuple[str, ...]] = ()
    interleaved: ClassVar[bool] = False
    interleaved_in_folders: ClassVar[bool] = False
    ignored_keys: ClassVar[frozenset[str]] = frozenset()
    folder_names: ClassVar[Mapping[str, str]] = {}
    normalizes_heads_together: ClassVar[bool] = False
    rates_by_group: ClassVar[bool] = False
    scoring: ClassVar[str] = "softmax"
    yarn_scales_scores: ClassVar[bool] = False
    subtracts_mean: ClassVar[bool] = False
    adds_experts: ClassVar[bool] = False
    gates_shared_expert: ClassVar[bool] = False
    activation: ClassVar[str] = "swiglu"
    biases: ClassVar[tuple[str, ...]] = ()
    biases_are_optional: ClassVar[bool] = False
    renamed: ClassVar[Mapping[str, str]] = {}
    fused: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attn_qkv": ("attn_q", "attn_k", "attn_v"),
        "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
    }

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        """Return fields of `ModelConfig` that a file's metadata say, and that no other architecture has.

        Parameters
        ----------
        fields : Fields
            The metadata.
        name : str
            The architecture, with which keys begin.
        """
        return {}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata, without the name in front, for keys of a ``config.json`` that only this architecture has.

        What the file leaves out is there with the default of its ``model_type``.
        """
        return {}

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of a GGUF file, by name, for one of a folder, which has its name in a GGUF file already.

        `config` is what `read_folder` takes.
        """
        if name.endswith("ffn_gate_inp_shexp.weight"):
            tensor = tensor.computed(lambda weight: weight[0], tensor.shape[1:])
        yield name, tensor

    @classmethod
    def separated(cls, c: ModelConfig, name: str, weight: Any) -> Iterator[tuple[str, Any]]:
        """Yield the weights of the table, by their whole names, that a file has in one of another layout."""
        yield name, weight

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        """Yield the weights of a block of this number in the order in which they are needed."""
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.attention_weights(c)
        yield Weight("ffn_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)

    @classmethod
    def model_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        """Yield weights that do not belong to a block, besides those of every network."""
        yield from ()

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        """Yield those of attention."""
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        for name, rows in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
            yield from cls._matrix(name, (rows, c.dim), 0, "attn_qkv")
        yield from cls._matrix("attn_output", (c.dim, queries), 1)

    @classmethod
    def feed_forward_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        """Yield those of the feed-forward layer, or of its experts."""
        if c.experts:
            yield from cls._matrix("ffn_gate_inp", (c.experts, c.dim), WHOLE)
            for name in ("ffn_gate_exps", "ffn_up_exps"):
                yield from cls._matrix(name, (c.experts, c.expert_hidden_dim, c.dim), 1, "ffn_gate_up_exps")
            yield from cls._matrix("ffn_down_exps", (c.experts, c.dim, c.expert_hidden_dim), 2)
        is_shared = c.experts and not cls.adds_experts
        hidden, suffix = (c.shared_hidden_dim, "_shexp") if is_shared else (c.hidden_dim, "")
        if hidden:
            for name in ("ffn_gate", "ffn_up"):
                yield from cls._matrix(name + suffix, (hidden, c.dim), 0, "ffn_gate_up" + suffix)
            yield from cls._matrix("ffn_down" + suffix, (c.dim, hidden), 1)
        if cls.gates_shared_expert and c.experts and c.shared_hidden_dim:
            yield Weight("ffn_gate_inp_shexp.weight", (c.dim,))

    @classmethod
    def _matrix(cls, name: str, shape: tuple[int, ...], axis: int, joined: str = "") -> Iterator[Weight]:
        """Yield a matrix, and its bias if the architecture has one: that of a sum over ranks is whole on each."""
        yield Weight(f"{name}.weight", shape, axis, joined and f"{joined}.weight")
        if name in cls.biases:
            shared = axis if axis == len(shape) - 2 else WHOLE
            yield Weight(f"{name}.bias", shape[:-1], shared, joined and f"{joined}.bias", cls.biases_are_optional)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array | None]:
        """Compute a block.

        Parameters
        ----------
        layer : Layer
            The operations of this block.
        x : array, shape (tokens, dim)
            The features of tokens.
        added : array or None
            What the block before has computed last and is still to be added to `x`: a sum and the norm of it are one
            operation.

        Returns
        -------
        x, added : array
            Features of which the sum is the result; `added` may be None.
        """
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h, x = layer.add_and_normalize(layer.attention(h), x, "ffn_norm")
        return x, layer.feed_forward(h)
