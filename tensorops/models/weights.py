"""The weights of a network, in the structure in which its blocks use them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import tensorops as tp

from .architectures import WHOLE, block_weights, find_misfit, get, weights as weights_of
from .files.blocks import ComputedTensor, Tensor
from .files.loading import Memory, load_joined
from .matrices import matrix_of
from .ranks import divide, part_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tensorops.persistent.ranks import Ranks

    from .config import ModelConfig
    from .matrices import Matrix

__all__ = ["arrange", "frequencies", "rope_tensors", "separated"]

Array = Any
Float32 = npt.NDArray[np.float32]
Stored = Any  # array, QuantizedWeight, BlockWeight or Tensor


def arrange(
    config: ModelConfig, weights: Mapping[str, Stored], backend: str, ranks: Ranks, precision: str = "highest"
) -> tuple[dict[str, Any], Matrix]:
    """Arrange weights with the names of a GGUF file in the structure of the network.

    Parameters
    ----------
    config : ModelConfig
        The sizes.
    weights : mapping of str to array, QuantizedWeight or Tensor
        The weights by name; they are moved to the backend if necessary, and tensors are read from their file.
    backend : str
        The backend that computes.
    ranks : Ranks
        Which have parts of the weights; only the parts of this process are read.
    precision : str, optional
        With which products with blocks are computed.

    Returns
    -------
    weights : dict
        ``embedding``, ``norm``, ``frequencies`` (or None) of blocks without a window and with one, ``growth`` of
        queries by position (or None), ``others`` that only some architectures have, and ``blocks``, a list of dict by
        the names in the table of weights, or of what they are joined to, without ``.weight``.
    output : array or tuple
        The output matrix; if the network has none, the embedding. Each of several ranks has an equal part of its rows
        or, if there are none, all.

    Raises
    ------
    ValueError
        A weight is missing, unknown, or has the wrong shape.
    """
    weights = separated(config, weights)
    if misfit := find_misfit(config, {name: weight.shape for name, weight in weights.items()}):
        raise ValueError(f"weight {misfit[0]}: {misfit[1]}")
    memory = Memory(sum(weight.nbytes for weight in weights.values() if isinstance(weight, Tensor | ComputedTensor)))

    tables = {"per_layer_token_embd.weight"} | ({"token_embd.weight"} if "output.weight" in weights else set())

    def take(*names: str, axis: int = WHOLE, lengths: Sequence[int] = (0,)) -> Any:
        def part(rank: int) -> Any:
            parts = zip(names, lengths, strict=True)
            own = [part_of(weights[name], name, axis, length, rank, ranks.size) for name, length in parts]
            if names[0].endswith(".bias"):
                bias = np.concatenate([_on_host(part) for part in own], axis=-1)
                if names[0].endswith("ffn_down_exps.bias"):
                    bias = bias / np.float32(ranks.size)  # which all ranks add
                return tp.to_backend(bias, backend)
            found = _take(memory, own, backend, precision, names[0] in tables)
            return found[0] if len(found) == 1 else found

        return ranks.place(part, axis)

    of_rank = divide(config, ranks.size)

    def of_block(block: int) -> dict[str, Any]:
        groups: dict[str, list[tuple[str, int, int]]] = {}
        for weight, part in zip(block_weights(config, block), block_weights(of_rank, block), strict=True):
            name = f"blk.{block}.{weight.name}"
            if name in weights:
                length = part.shape[weight.axis] if weight.axis != WHOLE else 0
                groups.setdefault(weight.joined or weight.name, []).append((name, weight.axis, length))
        made = {}
        for name, parts in groups.items():
            names, (axis, *_), lengths = zip(*parts, strict=True)
            made[name.removesuffix(".weight")] = take(*names, axis=axis, lengths=lengths)
        return made

    embedding = take("token_embd.weight")
    arranged = {
        "embedding": embedding,
        "norm": take("output_norm.weight"),
        "frequencies": frequencies(config, weights, backend, ranks),
        "growth": _placed(_growth(config), backend, ranks),
        "others": {
            weight.name.removesuffix(".weight"): take(weight.name)
            for weight in get(config.architecture).model_weights(config)
        },
        "blocks": [of_block(block) for block in range(config.blocks)],
    }
    rows, left = divmod(config.vocab_size, ranks.size)
    output = "output.weight" if "output.weight" in weights else "token_embd.weight"
    if ranks.size > 1 and not left:
        return arranged, take(output, axis=0, lengths=[rows])
    return arranged, embedding if output == "token_embd.weight" else take(output)


def frequencies(
    config: ModelConfig, weights: Mapping[str, Stored], backend: str, ranks: Ranks, context_length: int | None = None
) -> list[Array | None]:
    """Return those of blocks without a window and with one, for a shorter context than the network's if it is given."""
    context = context_length or config.context_length
    of_kinds = (_frequencies(config, weights, context, own) for own in (False, config.local_rope_base is not None))
    return [_placed(each, backend, ranks) for each in of_kinds]


def rope_tensors(weights: Mapping[str, Stored]) -> dict[str, Float32]:
    """Return what `frequencies` needs of weights, if it depends on the context."""
    lengths = [f"rope_factors_{length}.weight" for length in ("long", "short")]
    return {name: _on_host(weights[name]) for name in lengths} if weights.keys() >= set(lengths) else {}


def _placed(values: Array | None, backend: str, ranks: Ranks) -> Array | None:
    return ranks.place(lambda rank: None if values is None else tp.to_backend(values, backend), WHOLE)


def separated(config: ModelConfig, weights: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """Return weights as the architecture names them.

    Matrices are multiplied with scales of their own that a file has, those that a file has joined are separated, and
    blocks that predict further tokens are left out.
    """
    left_out = range(config.blocks, config.blocks + config.prediction_blocks)
    extra = tuple(f"blk.{block}." for block in left_out)
    table = {weight.name: weight.shape for weight in weights_of(config)}
    architecture = get(config.architecture)
    named = {
        ours: part
        for name, weight in weights.items()
        if not name.startswith(extra)
        for ours, part in architecture.separated(config, architecture.renamed.get(name, name), weight)
    }
    own = {name: _shaped(weight, table.get(name)) for name, weight in named.items()}
    weights = _scaled(table, own)
    made = dict(weights)
    for block in range(config.blocks):
        shapes = {weight.name: weight.shape for weight in block_weights(config, block)}
        for whole, parts in architecture.fused.items():
            for kind in ("weight", "bias"):
                name, names = f"blk.{block}.{whole}.{kind}", [f"{part}.{kind}" for part in parts]
                if name not in weights or f"blk.{block}.{names[0]}" in weights or not shapes.keys() >= set(names):
                    continue
                axis = max(len(shapes[names[0]]) - 2, 0) if kind == "weight" else len(shapes[names[0]]) - 1
                ends = list(itertools.accumulate((shapes[part][axis] for part in names), initial=0))
                joined = made[name]
                if joined.shape[axis : axis + 1] != (ends[-1],):
                    continue  # which is a misfit
                del made[name]
                for part, start, stop in zip(names, ends[:-1], ends[1:], strict=True):
                    made[f"blk.{block}.{part}"] = part_of(joined, name, axis, stop - start, 0, 1, start)
    return made


def _scaled(names: Collection[str], weights: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """Return weights of which those with a scale besides that of their blocks, as of NVFP4, are multiplied with it.

    `names` are those that the architecture has.
    """
    made = dict(weights)
    for name in weights.keys() - names:
        stem, _, kind = name.rpartition(".")
        weight, scale = weights.get(f"{stem}.weight"), weights[name]
        if not isinstance(weight, Tensor) or not isinstance(scale, Tensor) or kind not in ("scale", "input_scale"):
            continue
        if scale.shape not in ((1,), weight.shape[:-2]):
            continue  # which is a misfit
        del made[name]
        if kind == "scale":  # that of inputs is for products with inputs of 4 bits
            made[f"{stem}.weight"] = weight.scaled(scale)
    return made


def _shaped(weight: Stored, shape: tuple[int, ...] | None) -> Stored:
    """Return a tensor with the shape of the architecture if only leading axes of length 1 differ, as in ggml."""
    if shape is None or not isinstance(weight, Tensor) or _without_ones(weight.shape) != _without_ones(shape):
        return weight
    return replace(weight, shape=shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.dropwhile(lambda length: length == 1, shape))


def _take(memory: Memory, weights: Sequence[Stored], backend: str, precision: str, is_table: bool) -> list[Matrix]:
    """Return weights on a backend; those of a file as one matrix if they have one format."""
    if all(isinstance(weight, Tensor | ComputedTensor) for weight in weights):
        weights = load_joined(memory, weights, backend, precision, is_table)
    return [tp.to_backend(matrix_of(weight, precision), backend) for weight in weights]


def _on_host(weight: Stored) -> Float32:
    host = weight.dequantize() if isinstance(weight, Tensor | ComputedTensor) else tp.to_backend(weight, "numpy")
    return np.asarray(host, dtype=np.float32)


def _frequencies(
    config: ModelConfig, weights: Mapping[str, Stored], context: int, has_own_base: bool
) -> Float32 | None:
    """Return the scaled rotary frequencies, each divided by its factor in the file; None if those of a base apply."""
    if has_own_base:
        own = weights.get("rope_freqs_swa.weight")
        if own is None:
            return None
        base = tp.rope_scaling.from_config(2 * own.shape[0], None, base=config.local_rope_base)
        return np.asarray(base.freqs / _on_host(own), dtype=np.float32)
    length = "long" if context > (config.original_context_length or config.context_length) else "short"
    names = ("rope_freqs.weight", f"rope_factors_{length}.weight")
    factors = next((weights[name] for name in names if name in weights), None)
    if factors is None:
        return config.rotation.freqs.astype(np.float32) if config.is_scaled else None
    return np.asarray(config.rotation.freqs / _on_host(factors), dtype=np.float32)


def _growth(config: ModelConfig) -> Float32 | None:
    """Return the factor of queries for each position, if there is one."""
    if not config.query_growth:
        return None
    positions = np.arange(config.context_length)
    logarithms = np.log1p(positions // (config.original_context_length or config.context_length))
    return (1.0 + config.query_growth * logarithms).astype(np.float32)
